//! All tests.

use std::collections::BTreeSet;
use std::fmt;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::instructions;
use crate::run::{cargo, run as execute};
use crate::setup;
use crate::swarm;
use crate::watch::{End, Mark, mounted_namespaces};

/// Time that all tests together may take; what still runs then is killed and has failed.
const LIMIT: Duration = Duration::from_secs(45 * 60);

/// One build serves every run: other packages or features would build the engine again.
const BUILD: [&str; 5] =
    ["test", "--workspace", "--features", "ringrail/bench,ringrail-xdp/faults", "--no-fail-fast"];

/// What a line of a test that cannot run here starts with; its name and the reason follow.
const SKIP_MARKS: [&str; 2] = ["RINGRAIL-SKIP: ", "SKIPPED "];

/// What libtest says of a test that only others start: it is part of those, and none itself.
const PART_MARK: &str = " ... ignored, started by other tests";

/// What the swarm's line begins with when all seeds held.
const SWARM_MARK: &str = "swarm holds: ";

/// Kernel features that endpoints must do without, one run each.
const FORCED_OFF: [&str; 10] = [
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
];

/// What one command reported so far.
#[derive(Default)]
struct Count {
    passed: usize,
    failed: usize,
    ignored: usize,
    /// Among them those that are parts of other tests.
    parts: usize,
    /// Lines of tests that returned early, which libtest takes for passed.
    skips: BTreeSet<String>,
}

impl Count {
    /// Takes what a line says, and says how far the command is.
    fn look(&mut self, line: &str) -> String {
        if let Some(rest) = line.strip_prefix("test result: ") {
            self.passed += number_before(rest, " passed");
            self.failed += number_before(rest, " failed");
            self.ignored += number_before(rest, " ignored");
        }
        if line.ends_with(PART_MARK) {
            // Of those that the closing line calls ignored.
            self.parts += 1;
        }
        // All its seeds are one test; a failure is that of the command.
        self.passed += usize::from(line.starts_with(SWARM_MARK));
        // libtest may have begun a line of its own on the other side of the pipe.
        if let Some(at) = SKIP_MARKS.iter().find_map(|mark| line.find(mark)) {
            self.skips.insert(line[at..].trim_end().to_owned());
        }
        self.to_string()
    }

    /// Takes how the command ended: one that fails without a failed test has failed itself.
    fn close(&mut self, end: End) {
        if end != End::Success {
            self.failed = self.failed.max(1);
        }
    }

    fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored.saturating_sub(other.parts) + other.skips.len();
        // A test without libtest is nowhere else: it is in no count of passed ones.
        let libtest = |line: &&String| line.starts_with(SKIP_MARKS[0]);
        self.passed = self.passed.saturating_sub(other.skips.iter().filter(libtest).count());
        self.skips.extend(other.skips);
    }
}

/// The closing line. For a command that still runs `skips` are counted as passed.
impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.ignored)
    }
}

fn number_before(line: &str, word: &str) -> usize {
    let Some(end) = line.find(word) else { return 0 };
    let digits = line[..end].rsplit(|c: char| !c.is_ascii_digit()).next();
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

/// Runs everything and closes with `N passed, N failed, N skipped`.
pub(crate) fn run() -> Result<(), String> {
    setup::run()?;
    // A build may start servers that stay, such as a compiler cache: it gets no mark.
    execute(cargo(&BUILD).arg("--no-run"))?;
    execute(&mut swarm::build())?;
    let namespaces_before = mounted_namespaces();
    let (mark, deadline) = (Mark::new(), Instant::now() + LIMIT);
    let mut total = Count::default();
    let mut go = |command: &mut Command| -> Result<(), String> {
        let mut count = Count::default();
        let end = mark.run(command, deadline, |line| count.look(line))?;
        count.close(end);
        total.add(count);
        Ok(())
    };
    // Documentation tests come with this one.
    go(&mut cargo(&BUILD))?;
    let endpoint = ["--test", "endpoint"];
    // What users get by default went before: io_uring beside datagrams.
    let others = [("sockets", "udp"), ("uring", "tcp"), ("sockets", "tcp")];
    for (lanes, control) in others {
        let set = [("TEST_OF_RINGRAIL_LANES", lanes), ("TEST_OF_RINGRAIL_CONTROL_LANE", control)];
        let tests = [&endpoint[..], &["--test", "allocations", "--test", "faults"]].concat();
        go(cargo(&BUILD).args(tests).envs(set))?;
    }
    for feature in FORCED_OFF {
        let without = [("TEST_OF_RINGRAIL_URING_DISABLE", feature)];
        go(cargo(&BUILD).args(endpoint).arg("--quiet").envs(without))?;
    }
    go(&mut swarm::of_tests())?;
    go(&mut swarm::of_planted_bugs())?;
    match instructions::run() {
        Ok(true) => total.passed += 1,
        Ok(false) => total.ignored += 1,
        Err(error) => {
            println!("test: {error}");
            total.failed += 1;
        }
    }
    let left = mark.left_over();
    for process in &left {
        println!("test: process {process} outlived its test; killed");
    }
    let mut namespaces = mounted_namespaces();
    namespaces.retain(|point| !namespaces_before.contains(point));
    for point in &namespaces {
        println!("test: the namespace {point} was not there before");
    }
    if left.is_empty() && namespaces.is_empty() {
        println!("test: no process and no namespace is left");
    } else {
        total.failed += 1;
    }
    for line in &total.skips {
        println!("{line}");
    }
    println!("{total}");
    if total.failed == 0 { Ok(()) } else { Err(format!("{} tests failed", total.failed)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(lines: &[&str], end: End) -> String {
        let mut count = Count::default();
        for line in lines {
            count.look(line);
        }
        count.close(end);
        let mut total = Count::default();
        total.add(count);
        total.to_string()
    }

    #[test]
    fn closing_lines_are_summed() {
        let lines = [
            "test result: FAILED. 12 passed; 3 failed; 4 ignored; 0 measured; 0 filtered out",
            "test other result: 1 passed",
            "test result: ok. 5 passed; 0 failed; 0 ignored; 0 measured; 7 filtered out",
        ];
        assert_eq!(counted(&lines, End::Failure), "17 passed, 3 failed, 4 skipped");
    }

    #[test]
    fn a_skipped_test_has_not_passed() {
        let lines = [
            "RINGRAIL-SKIP: lab::one: no root",
            "test two ... RINGRAIL-SKIP: lab::two: no root",
            // Without libtest, so in no sum.
            "SKIPPED matching_cost: valgrind does not run",
            "test result: ok. 5 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out",
        ];
        assert_eq!(counted(&lines, End::Success), "3 passed, 0 failed, 3 skipped");
    }

    #[test]
    fn what_only_other_tests_start_is_no_test() {
        let lines = [
            "test victim ... ignored, started by other tests",
            "test slow ... ignored, takes an hour",
            "test result: ok. 5 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out",
        ];
        assert_eq!(counted(&lines, End::Success), "5 passed, 0 failed, 1 skipped");
    }

    #[test]
    fn a_command_that_fails_without_a_failed_test_counts() {
        assert_eq!(counted(&["error: aborted"], End::Failure), "0 passed, 1 failed, 0 skipped");
        assert_eq!(counted(&[], End::TimedOut), "0 passed, 1 failed, 0 skipped");
    }
}
