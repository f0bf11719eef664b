//! The example computes, over several processes, what one process computes.

use std::path::PathBuf;
use std::process::Command;

fn example() -> PathBuf {
    // Examples are built beside the tests: target/PROFILE/examples.
    let test = std::env::current_exe().unwrap();
    let example = test.parent().unwrap().parent().unwrap().join("examples/heat");
    // `cargo test --test api` alone does not build them.
    static BUILD: std::sync::Once = std::sync::Once::new();
    BUILD.call_once(|| {
        if !example.exists() {
            let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
            cargo.args(["build", "--quiet", "-p", "ringrail", "--example", "heat"]);
            assert!(cargo.status().unwrap().success(), "the example does not build");
        }
    });
    example
}

#[test]
fn three_ranks_get_the_field_of_one_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    let picture = folder.path().join("heat.png");
    let output = Command::new(example())
        .args(["--ranks", "3", "--width", "70", "--height", "41", "--steps", "400", "--output"])
        .arg(&picture)
        .env("HOME", folder.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{errors}");
    assert!(text.contains("equal bit for bit"), "{text}");
    assert!(text.contains("on 3 ranks over shared memory"), "{text}");
    assert_eq!(&std::fs::read(picture).unwrap()[1..4], b"PNG");
}

#[test]
fn a_field_that_is_too_small_is_refused_with_a_reason() {
    let output = Command::new(example()).args(["--ranks", "9", "--height", "5"]).output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("row for every rank"));
}

#[test]
fn ranks_without_shared_memory_name_the_nic() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(example())
        .args(["--width", "40", "--height", "20", "--steps", "5", "--output"])
        .arg(folder.path().join("heat.png"))
        .env("HOME", folder.path())
        .env("RINGRAIL_SHARED_MEMORY", "off")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("on 2 ranks over UDP on lo"), "{text}");
}

#[test]
fn ranks_that_exceed_their_limit_are_ended_with_a_reason() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(example())
        .args(["--steps", "1000000000", "--seconds", "1", "--output"])
        .arg(folder.path().join("heat.png"))
        .env("HOME", folder.path())
        .output()
        .unwrap();
    assert!(!output.status.success());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("did not end in 1s") && errors.contains("--steps"), "{errors}");
}
