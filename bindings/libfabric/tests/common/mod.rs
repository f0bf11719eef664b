//! The provider where libfabric finds it, and programs that use it.

use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A folder for `FI_PROVIDER_PATH` with the provider that was built beside this test.
pub(crate) struct Provider {
    folder: tempfile::TempDir,
}

impl Provider {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder for the provider");
        let here = std::env::current_exe().expect("the path of this test");
        let built = here
            .ancestors()
            .skip(1)
            .map(|folder| folder.join("libringrail_fi.so"))
            .find(|path| path.exists())
            .expect("cargo builds the library before its tests");
        std::os::unix::fs::symlink(&built, folder.path().join("libringrail-fi.so"))
            .expect("a link to the library");
        Self { folder }
    }

    pub(crate) fn library(&self) -> PathBuf {
        self.folder.path().join("libringrail-fi.so")
    }

    /// A program that finds the provider, on loopback, with nothing of this process's settings.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            if ["RINGRAIL_", "FI_", "OMPI_"].iter().any(|it| name.starts_with(it)) {
                command.env_remove(name);
            }
        }
        command.env("FI_PROVIDER_PATH", self.folder.path()).env("RINGRAIL_CONFIG", "");
        command.env("RINGRAIL_NICS", "lo").stdin(Stdio::null());
        command
    }
}

/// What a program says, on both ways out.
pub(crate) fn text(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&both).into_owned()
}

/// Runs a program to its end, for two minutes at the most.
pub(crate) fn run(command: &mut Command) -> Output {
    finish(start(command))
}

pub(crate) fn start(command: &mut Command) -> Child {
    let program = command.get_program().to_owned();
    command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{program:?} (cargo xtask setup installs it): {error}"))
}

pub(crate) fn finish(mut child: Child) -> Output {
    let deadline = Instant::now() + Duration::from_secs(120);
    // What it says fits a pipe.
    while child.try_wait().expect("a child of this test").is_none() {
        if Instant::now() > deadline {
            child.kill().expect("a child of this test");
            let output = child.wait_with_output().expect("a child of this test");
            panic!("no end after two minutes: {}", text(&output));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().expect("a child of this test")
}
