//! The long set of what unmodified MPI programs do over the libfabric provider.

use std::time::Duration;

use crate::run::{cargo, run as execute};
use crate::setup;
use crate::watch::{End, Limits, Mark, mounted_namespaces};

const USAGE: &str = "usage: cargo xtask interop [--repeat N] [--only WORD,WORD] [--fabtests DIR] \
                     | interop --figures [--repeat N] [--only WORD,WORD]";

/// What the test looks for in its environment.
const REPEAT: &str = "TEST_OF_RINGRAIL_REPEAT";
const ONLY: &str = "TEST_OF_RINGRAIL_ONLY";
const FABTESTS: &str = "TEST_OF_RINGRAIL_FABTESTS";

/// For what is done once, and for each repetition.
const ONCE: Duration = Duration::from_secs(90 * 60);
const EACH: Duration = Duration::from_secs(10 * 60);

/// Without a line for so long a run hangs; it is killed, and the others go on.
const SILENT: Duration = Duration::from_secs(8 * 60);

/// Builds and runs the ignored test, which says how far it is and prints a table. What it leaves
/// behind is ended and has failed.
pub(crate) fn run(options: &[String]) -> Result<(), String> {
    let (mut repeat, mut set, mut what) = (3_u32, Vec::new(), "all_consumers");
    let mut options = options.iter();
    while let Some(option) = options.next() {
        if option == "--figures" {
            what = "figures";
            continue;
        }
        let value = options.next().ok_or(USAGE)?;
        match option.as_str() {
            "--repeat" => {
                repeat = value.parse().map_err(|_| USAGE)?;
            }
            "--only" => set.push((ONLY, value.clone())),
            "--fabtests" => {
                let path = std::path::absolute(value).map_err(|error| error.to_string())?;
                set.push((FABTESTS, path.to_string_lossy().into_owned()));
            }
            _ => return Err(USAGE.to_owned()),
        }
    }
    if repeat == 0 {
        return Err(USAGE.to_owned());
    }
    set.push((REPEAT, repeat.to_string()));
    setup::run()?;
    let test = ["test", "--release", "--package", "ringrail-fi", "--test", "interop"];
    // A build may start servers that stay, such as a compiler cache: it gets no mark.
    execute(cargo(&test).arg("--no-run"))?;
    if what == "figures" {
        execute(&mut cargo(&["build", "--release", "--package", "ringrail-perf"]))?;
    }
    let namespaces_before = mounted_namespaces();
    let mark = Mark::new();
    let limits = Limits { total: ONCE + EACH * repeat, silent: SILENT };
    let mut command = cargo(&test);
    command.args(["--", "--ignored", "--nocapture", what]).envs(set);
    let mut last = String::new();
    let end = mark.run_aloud(&mut command, limits, |line| {
        if line.starts_with("interop: ") {
            line.clone_into(&mut last);
        }
        last.clone()
    })?;
    let left = mark.left_over();
    for process in &left {
        println!("interop: process {process} was left behind; killed");
    }
    let mut namespaces = mounted_namespaces();
    namespaces.retain(|point| !namespaces_before.contains(point));
    match (end, left.is_empty() && namespaces.is_empty()) {
        (End::Success, true) => Ok(()),
        (End::Success, false) => Err(format!("it left behind: {left:?} {namespaces:?}")),
        (End::Failure, _) => Err("runs have failed; the table says which".to_owned()),
        (End::TimedOut, _) => Err("out of time".to_owned()),
    }
}
