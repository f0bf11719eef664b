//! All tests.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::instructions;
use crate::libtest::Count;
use crate::run::{cargo, root, run as execute};
use crate::setup;
use crate::swarm;
use crate::watch::{End, Mark, mounted_namespaces};

/// Time that all tests together may take; what still runs then is killed and has failed.
const LIMIT: Duration = Duration::from_secs(45 * 60);

/// One build serves every run: other packages or features would build the engine again.
const BUILD: [&str; 5] =
    ["test", "--workspace", "--features", "ringrail/bench,ringrail-xdp/faults", "--no-fail-fast"];

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

/// Failed tests of one command that run once more, alone; with more of them something is broken.
const FLAKY_TESTS: usize = 3;

/// The same command for the named tests alone, one at a time.
fn only(command: &Command, tests: &[String]) -> Command {
    let mut again = Command::new(command.get_program());
    again.args(command.get_args()).args(["--", "--test-threads=1", "--exact"]).args(tests);
    again.current_dir(root());
    for (key, value) in command.get_envs() {
        value.map(|value| again.env(key, value));
    }
    again
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
        let (mut count, start) = (Count::default(), Instant::now());
        let end = mark.run(command, deadline, |line| count.look(line))?;
        println!("test: {count} in {} s", start.elapsed().as_secs());
        count.close(end, &format!("{command:?}"));
        let names = count.failed_tests(end);
        if (1..=FLAKY_TESTS).contains(&names.len()) {
            let mut again = Count::default();
            let end = mark.run(&mut only(command, &names), deadline, |line| again.look(line))?;
            if end == End::Success && again.has_passed(names.len()) {
                count.forgive();
            }
        }
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
        Err(error) => total.fail(&error),
    }
    let left = mark.left_over();
    for process in &left {
        total.fail(&format!("process {process} outlived its test; killed"));
    }
    let mut namespaces = mounted_namespaces();
    namespaces.retain(|point| !namespaces_before.contains(point));
    for point in &namespaces {
        total.fail(&format!("the namespace {point} was not there before"));
    }
    if left.is_empty() && namespaces.is_empty() {
        println!("test: no process and no namespace is left");
    }
    for line in &total.skips {
        println!("{line}");
    }
    for failure in &total.flaky {
        println!("flaky, passed when it ran alone: {failure}");
    }
    // Last, for a log of which only the end is kept.
    for failure in &total.failures {
        println!("failed: {failure}");
    }
    println!("{total}");
    if total.failed == 0 { Ok(()) } else { Err(format!("{} tests failed", total.failed)) }
}
