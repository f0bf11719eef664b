//! The engine's tests under AddressSanitizer.
//!
//! It sees what Rust code and the C library's calls do to memory. What the kernel does to it on
//! behalf of a ring it cannot see; buffers that were freed too early show when they are freed or
//! used again.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::run::{cargo, root, run as execute};

/// What is tested when nothing is said: unit tests and `engine/tests`.
const EVERYTHING: [&str; 2] = ["--lib", "--tests"];

/// The compiler that instruments.
#[derive(Debug)]
struct Toolchain {
    /// Of the nightly channel; otherwise the one that runs this program.
    is_nightly: bool,
    /// The target triple of this host.
    host: String,
    /// The standard library's source is there, so that it is instrumented, too.
    has_source: bool,
}

/// Builds and runs the tests; `arguments` go to `cargo test`.
pub(crate) fn run(arguments: &[String]) -> Result<(), String> {
    let toolchain = Toolchain::find()?;
    println!("sanitize: {}", toolchain.describe());
    let mut command = toolchain.command();
    if arguments.is_empty() {
        command.args(EVERYTHING);
    }
    execute(command.args(arguments))
}

impl Toolchain {
    /// Nightly where it is installed, otherwise what this program was built with.
    fn find() -> Result<Self, String> {
        let mut nightly = Command::new("rustup");
        if let Some(version) = output(nightly.args(["run", "nightly", "rustc", "-vV"])) {
            let mut sysroot = Command::new("rustup");
            let sysroot = output(sysroot.args(["run", "nightly", "rustc", "--print", "sysroot"]));
            let has_source = sysroot.is_some_and(|path| has_source(Path::new(path.trim())));
            return Ok(Self { is_nightly: true, host: host_of(&version)?, has_source });
        }
        let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let version = output(Command::new(rustc).arg("-vV")).ok_or("rustc does not run")?;
        Ok(Self { is_nightly: false, host: host_of(&version)?, has_source: false })
    }

    fn describe(&self) -> &'static str {
        match (self.is_nightly, self.has_source) {
            (true, true) => "nightly, with an instrumented standard library",
            (true, false) => {
                "nightly, with the standard library as it comes; for an instrumented one: rustup \
                 component add rust-src --toolchain nightly"
            }
            (false, _) => {
                "no nightly toolchain (rustup toolchain install nightly --component rust-src): \
                 this one, told to take unstable flags, with the standard library as it comes"
            }
        }
    }

    fn command(&self) -> Command {
        let mut command = if self.is_nightly {
            let mut command = Command::new("rustup");
            command.current_dir(root()).args(["run", "nightly", "cargo"]);
            // The outer cargo's own choices would win over those of rustup.
            command.env_remove("CARGO").env_remove("RUSTC").env_remove("RUSTDOC");
            command
        } else {
            let mut command = cargo(&[]);
            command.env("RUSTC_BOOTSTRAP", "1");
            command
        };
        command.arg("test");
        if self.has_source {
            command.arg("-Zbuild-std");
        }
        // With a target named, build scripts and macros stay as they are.
        command.args(["--target", &self.host, "-p", "ringrail", "--no-fail-fast"]);
        command.env("RUSTFLAGS", "-Zsanitizer=address -Cforce-frame-pointers=yes");
        command.env("CARGO_TARGET_DIR", target_folder());
        command
    }
}

/// A folder of its own: these builds share nothing with the others.
fn target_folder() -> PathBuf {
    let folder = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    folder.unwrap_or_else(|| root().join("target")).join("sanitize")
}

fn has_source(sysroot: &Path) -> bool {
    sysroot.join("lib/rustlib/src/rust/library/Cargo.lock").is_file()
}

fn host_of(version: &str) -> Result<String, String> {
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| format!("rustc does not name its host: {version}"))
}

/// What a program prints, if it succeeds.
fn output(command: &mut Command) -> Option<String> {
    let output = command.stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_is_named() {
        let version = "rustc 1.95.0\nbinary: rustc\nhost: x86_64-unknown-linux-gnu\nrelease: 1";
        assert_eq!(host_of(version).unwrap(), "x86_64-unknown-linux-gnu");
        assert!(host_of("rustc 1.95.0").is_err());
    }

    #[test]
    fn unstable_flags_are_allowed_where_they_are_used() {
        let host = "some-host".to_owned();
        let command = Toolchain { is_nightly: false, host, has_source: false }.command();
        let is_set = |(name, value): (&std::ffi::OsStr, Option<&std::ffi::OsStr>)| {
            name == "RUSTC_BOOTSTRAP" && value.is_some()
        };
        assert!(command.get_envs().any(is_set));
        assert!(!command.get_args().any(|argument| argument == "-Zbuild-std"));
        assert!(command.get_args().any(|argument| argument == "some-host"));
    }
}
