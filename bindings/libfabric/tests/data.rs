//! The data path as programs in C use it: both sides of a conversation in one process.

mod common;

use std::path::Path;
use std::process::Command;

use common::{Provider, run, text};

/// Compiles `tests/c/NAME.c` with every warning an error, and runs it.
fn compile_and_run(name: &str) {
    run_with(name, &[], &[]);
}

/// Compiles and runs it with arguments and settings, and returns what it prints.
fn run_with(name: &str, arguments: &[&str], settings: &[(&str, &str)]) -> String {
    let provider = Provider::new();
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c");
    let program = provider.library().with_file_name(name);
    let mut compiler = Command::new("cc");
    compiler
        .args(["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-g", "-o"])
        .arg(&program)
        .arg(sources.join(name).with_extension("c"))
        .args(["-lfabric", "-lpthread"]);
    let output = run(&mut compiler);
    assert!(output.status.success(), "{}", text(&output));
    let mut command = provider.command(program.to_str().expect("a path of this test"));
    command.args(arguments).env("RINGRAIL_INSECURE", "true").envs(settings.iter().copied());
    let output = run(&mut command);
    assert!(output.status.success(), "{name}: {:?}: {}", output.status, text(&output));
    text(&output)
}

/// MPI reports that a process was aborted, but not which peer was lost, nor the cause.
#[test]
fn a_lost_peer_is_one_line_on_standard_error() {
    let printed = run_with("lost", &[], &[]);
    let lines: Vec<_> = printed.lines().filter(|line| line.starts_with("ringrail: ")).collect();
    let [line] = &lines[..] else { panic!("{printed}") };
    assert!(line.starts_with("ringrail: peer 127.0.0.1:") && line.contains(" lost: "), "{line}");
}

#[test]
fn a_setting_silences_lines_of_lost_peers() {
    let printed = run_with("lost", &[], &[("FI_RINGRAIL_REPORT_LOST_PEERS", "false")]);
    assert!(!printed.contains("ringrail: "), "{printed}");
}

#[test]
fn messages() {
    compile_and_run("messages");
}

/// Eight threads at one endpoint that has room for few operations: a call says so, no entry does.
#[test]
fn a_crowd_at_a_limit_is_refused_by_calls_alone() {
    compile_and_run("crowd");
}

#[test]
fn memory_of_peers() {
    compile_and_run("memory");
}

#[test]
fn objects_end_in_any_order_with_operations_outstanding_and_across_forks() {
    compile_and_run("ends");
}

/// Open MPI 4.1 dereferences the context of every error entry.
#[test]
fn failed_injects_have_no_entry_and_the_next_call_says_why() {
    compile_and_run("injects");
}

#[test]
fn objects_of_another_domain_or_fabric_are_refused_by_binds() {
    compile_and_run("foreign");
}

#[test]
fn entries_of_peek_have_a_bound() {
    compile_and_run("peeks");
}

/// Each side is a place to the other one, also where it was met as a source before.
#[test]
fn both_sides_may_know_each_other_by_ip_and_port() {
    compile_and_run("places");
}

/// The budget of engine/docs/guide/threads.md, by shared memory and by NICs, with io_uring and
/// without.
#[test]
fn calls_other_than_opening_fit_the_stack_of_a_user_level_thread() {
    // Frames of builds without optimisation are larger; those are not for small stacks.
    let budget = if cfg!(debug_assertions) { "32768" } else { "12288" };
    let ways = [("SHARED_MEMORY", "auto"), ("SHARED_MEMORY", "rings"), ("SHARED_MEMORY", "off")];
    let ways = ways.into_iter().chain([("CONTROL_LANE", "tcp"), ("LANES", "sockets")]);
    let names = ways.map(|(name, value)| (format!("FI_RINGRAIL_{name}"), value));
    for (name, value) in names {
        run_with("stack", &[budget], &[(&*name, value)]);
    }
}
