//! A million messages between NICs that drop packets, and what comes through.

use crate::run::{cargo, run as execute};

const USAGE: &str = "usage: cargo xtask lossy [--messages N]";

/// The variable in which the test looks for the number of messages.
const MESSAGES_OF: &str = "TEST_OF_RINGRAIL_MESSAGES";

/// Runs the ignored test, which says how far it is and prints a table. Wants root.
pub(crate) fn run(options: &[String]) -> Result<(), String> {
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let messages = match options[..] {
        [] => "1000000",
        ["--messages", number] => number,
        _ => return Err(USAGE.to_owned()),
    };
    // Each direction has its share, and progress is told by twentieths.
    if !messages.parse::<u64>().is_ok_and(|number| number >= 1000) {
        return Err(format!("{messages:?} is no number from 1000 on; {USAGE}"));
    }
    let test = ["test", "--release", "--package", "ringrail-tests", "--test", "labs"];
    let name = ["--", "--ignored", "--nocapture", "lossy::a_million_messages_of_each_kind"];
    execute(cargo(&test).args(name).env(MESSAGES_OF, messages))
}
