//! Objects of the provider, in a C program that is linked with libfabric.

mod common;

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use common::{Provider, run, text};

/// The program, compiled beside the provider, with a port that nobody has.
fn program(provider: &Provider) -> (String, String) {
    let program = provider.library().with_file_name("objects");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/objects.c");
    let built = Command::new("cc")
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g", "-o"])
        .args([&program, &source])
        .arg("-lfabric")
        .output()
        .expect("a C compiler, as cargo xtask setup installs it");
    assert!(built.status.success(), "{}", text(&built));
    let free = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let port = free.local_addr().expect("it is bound").port().to_string();
    (program.to_str().expect("a path of ASCII").to_owned(), port)
}

fn succeed(command: &mut Command) {
    let output = run(command.env("RINGRAIL_INSECURE", "true"));
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("done"));
}

#[test]
fn a_c_program_opens_uses_and_closes_objects() {
    let provider = Provider::new();
    let (program, port) = program(&provider);
    succeed(provider.command(&program).arg(port));
}

/// Reads and writes nothing that is not its own, and loses no memory.
#[test]
fn valgrind_finds_nothing_in_the_provider() {
    let provider = Provider::new();
    let (program, port) = program(&provider);
    let here = env!("CARGO_MANIFEST_DIR");
    let mut command = provider.command("valgrind");
    command.args(["--fair-sched=try", "--quiet", "--error-exitcode=9", "--leak-check=full"]);
    command.args(["--show-leak-kinds=definite", "--errors-for-leak-kinds=definite"]);
    command.arg(format!("--suppressions={here}/../c/tests/valgrind.supp"));
    // An answer takes its time there.
    command.env("RINGRAIL_PEER_TIMEOUT", "60s");
    succeed(command.args([program, port]));
}
