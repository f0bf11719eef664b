//! The example computes, over several threads, what one thread computes.

use std::process::{Command, Output};
use std::sync::Once;

fn stencil(arguments: &[&str]) -> Output {
    // Examples are built beside the tests: target/PROFILE/examples.
    let test = std::env::current_exe().unwrap();
    let example = test.parent().unwrap().parent().unwrap().join("examples/stencil");
    // `cargo test --test api` alone does not build them.
    static BUILD: Once = Once::new();
    BUILD.call_once(|| {
        if !example.exists() {
            let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
            cargo.args(["build", "--quiet", "-p", "ringrail", "--example", "stencil"]);
            assert!(cargo.status().unwrap().success(), "the example does not build");
        }
    });
    let home = tempfile::tempdir().unwrap();
    Command::new(example).args(arguments).env("HOME", home.path()).output().unwrap()
}

/// A row is a message: of 328, 4800 and 160 bytes.
#[test]
fn threads_get_the_field_of_one_bit_for_bit() {
    for arguments in [["3", "41", "60"], ["2", "600", "4"], ["1", "20", "5"]] {
        let output = stencil(&arguments);
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {text}{errors}");
        assert!(text.contains("equal bit for bit"), "{text}");
    }
}

#[test]
fn a_field_that_is_too_small_is_refused_with_a_reason() {
    let output = stencil(&["9", "5"]);
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("a row for each thread"));
}
