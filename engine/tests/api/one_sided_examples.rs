//! The examples of operations on the memory of peers run, and check what they get.

use std::process::{Command, Output};
use std::sync::Once;

const EXAMPLES: [&str; 2] = ["hash_table", "window"];

fn run(example: &str, arguments: &[&str]) -> Output {
    // Examples are built beside the tests: target/PROFILE/examples.
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().unwrap().parent().unwrap().join("examples");
    // `cargo test --test api` alone does not build them.
    static BUILD: Once = Once::new();
    BUILD.call_once(|| {
        for example in EXAMPLES {
            if !folder.join(example).exists() {
                let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
                cargo.args(["build", "--quiet", "-p", "ringrail", "--example", example]);
                assert!(cargo.status().unwrap().success(), "{example} does not build");
            }
        }
    });
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new(folder.join(example));
    command.args(arguments).env("HOME", home.path()).output().unwrap()
}

fn succeeds(example: &str, arguments: &[&str], prints: &str) {
    let output = run(example, arguments);
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{example} {arguments:?}: {text}{errors}");
    assert!(text.contains(prints), "{text}");
}

#[test]
fn keys_are_inserted_once_in_any_order() {
    for arguments in [["3", "200"], ["2", "40"], ["1", "10"]] {
        succeeds("hash_table", &arguments, "each inserted once, and found by all");
    }
}

/// A single rank puts to itself.
#[test]
fn accesses_of_windows_are_kept_apart_in_all_three_ways() {
    for arguments in [["3", "6"], ["2", "10"], ["1", "3"]] {
        succeeds("window", &arguments, "fences, groups and locks keep accesses apart");
    }
}

#[test]
fn examples_refuse_what_makes_no_sense() {
    for example in EXAMPLES {
        let output = run(example, &["0", "5"]);
        assert!(!output.status.success(), "{example}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("THREADS"), "{example}");
    }
}
