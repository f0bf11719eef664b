//! Objects of the provider, in a C program that is linked with libfabric.

mod common;

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use common::{Provider, run, text};

#[test]
fn a_c_program_opens_uses_and_closes_objects() {
    let provider = Provider::new();
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
    drop(free);
    let mut command = provider.command(program.to_str().expect("a path of ASCII"));
    let output = run(command.arg(port).env("RINGRAIL_INSECURE", "true"));
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("done"));
}
