//! Tests that need a process for themselves: they count its threads, descriptors or memory, fork
//! it, or change what all of it shares. A runner may start every test in a process of its own;
//! `cargo test` runs those of a program in threads of one.

use std::io::{Write as _, stdout};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, exit};

/// Set in such a process, to the name of its test.
const NAME: &str = "TEST_OF_RINGRAIL_OWN_PROCESS";

/// The child prints this line before anything of the test; libtest's lines come before it.
const BEGIN: &str = "the test begins in its own process";

/// Prefix of a line with the reason why a test was skipped.
const SKIP: &str = "RINGRAIL-SKIP: ";

/// The exit status of a child whose test panicked.
const PANICKED: i32 = 101;

/// Runs `test` in a process where no other test runs. `name` is that of the test which calls this,
/// with its module: `module::test`. What the child prints is printed here, as this test's own,
/// without libtest's lines; reasons to skip go past libtest's capture, so that they are counted. If
/// the child fails, this panics.
pub(crate) fn run(name: &str, test: impl FnOnce()) {
    let errors = run_and_read(name, test);
    print!("{errors}");
}

/// The same; what the child wrote to standard error, to its very end.
pub(crate) fn run_and_read(name: &str, test: impl FnOnce()) -> String {
    if std::env::var(NAME).is_ok_and(|own| own == name) {
        println!("\n{BEGIN}");
        let is_ok = catch_unwind(AssertUnwindSafe(test)).is_ok();
        // Before libtest prints a result, which would be counted beside that of the parent.
        exit(if is_ok { 0 } else { PANICKED });
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--include-ignored", "--nocapture", "--test-threads=1"])
        .env(NAME, name)
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    let Some((_, of_test)) = printed.split_once(&format!("\n{BEGIN}\n")) else {
        panic!("no test {name} ran: {}\n{printed}", output.status);
    };
    let errors = String::from_utf8_lossy(&output.stderr);
    let (skips, others): (Vec<_>, Vec<_>) = of_test.lines().partition(|line| line.contains(SKIP));
    let (more, errors): (Vec<_>, Vec<_>) = errors.lines().partition(|line| line.contains(SKIP));
    let errors = errors.iter().map(|line| format!("{line}\n")).collect::<String>();
    let skips = [skips, more].concat();
    for line in skips {
        let _ = writeln!(stdout(), "{line}");
    }
    for line in others {
        println!("{line}");
    }
    assert!(output.status.success(), "the process of {name}: {}\n{errors}", output.status);
    errors
}

/// Runs `play` in a child, which ends with it: with 0 if it comes back, else with a panic's 101.
pub(crate) fn fork(play: impl FnOnce()) -> libc::pid_t {
    // SAFETY: the child runs one thread, which is what `play` was written for, and never returns
    // to the test runner: it ends here.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "no child");
    if child > 0 {
        return child;
    }
    let played = catch_unwind(AssertUnwindSafe(play));
    // SAFETY: nothing of the test runner is to be run at the end of the child.
    unsafe { libc::_exit(if played.is_ok() { 0 } else { 101 }) }
}
