//! All tests.

use std::process::Command;

use crate::run::{cargo, run_watched};
use crate::setup;

#[derive(Default)]
struct Count {
    passed: u64,
    failed: u64,
    skipped: u64,
}

impl Count {
    fn look(&mut self, line: &str) {
        if let Some(rest) = line.strip_prefix("test result: ") {
            self.passed += number_before(rest, " passed");
            self.failed += number_before(rest, " failed");
            self.skipped += number_before(rest, " ignored");
        }
        // A test that cannot run here says so and why.
        if line.contains("RINGRAIL-SKIP:") || line.starts_with("SKIPPED ") {
            self.skipped += 1;
        }
    }
}

fn number_before(line: &str, word: &str) -> u64 {
    let Some(end) = line.find(word) else { return 0 };
    let digits = line[..end].rsplit(|c: char| !c.is_ascii_digit()).next();
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

/// Runs everything and closes with `N passed, N failed, N skipped`.
pub(crate) fn run() -> Result<(), String> {
    setup::run()?;
    let mut count = Count::default();
    let mut is_good = true;
    let mut go = |command: &mut Command| -> Result<(), String> {
        is_good &= run_watched(command, |line| count.look(line))?;
        Ok(())
    };
    // Tests of timers and of two threads each share two cores: few at a time.
    let all = ["test", "--workspace", "--features", "ringrail/bench", "--no-fail-fast"];
    go(&mut cargo(&all))?;
    let endpoints = ["test", "-p", "ringrail", "--test", "endpoint", "--test", "faults"];
    go(cargo(&endpoints).env("RINGRAIL_TEST_LANES", "sockets"))?;
    for feature in [
        "single_issuer",
        "defer_taskrun",
        "taskrun_flag",
        "coop_taskrun",
        "no_sqarray",
        "registered_files",
        "registered_buffers",
        "send_zc",
        "multishot_poll",
        "defer_taskrun,coop_taskrun",
    ] {
        let mut command = cargo(&["test", "--quiet", "-p", "ringrail", "--test", "endpoint"]);
        command.env("RINGRAIL_TEST_URING_DISABLE", feature);
        go(&mut command)?;
    }
    println!("{} passed, {} failed, {} skipped", count.passed, count.failed, count.skipped);
    if is_good && count.failed == 0 { Ok(()) } else { Err("some tests failed".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_lines_are_counted() {
        let mut count = Count::default();
        count.look("test result: ok. 12 passed; 3 failed; 4 ignored; 0 measured; 0 filtered out");
        count.look("SKIPPED this: valgrind is missing");
        count.look("x RINGRAIL-SKIP: lab: needs root");
        assert_eq!((count.passed, count.failed, count.skipped), (12, 3, 6));
    }
}
