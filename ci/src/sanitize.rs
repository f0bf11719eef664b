//! The engine's tests under AddressSanitizer and ThreadSanitizer.
//!
//! They see what Rust code and the C library's calls do to memory. What the kernel does to it on
//! behalf of a ring they cannot see; buffers that were freed too early show when they are freed or
//! used again.
//!
//! The standard library is built with them, from its source, which is added to the toolchain where
//! it is missing. ThreadSanitizer does not go without: it would not see what the library's locks
//! and fences order, and report races where there are none.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::run::{cargo, root, run as execute};
use crate::setup;

/// Modules of the test programs that no sanitizer can run, and why.
const UNFIT_MODULES: [(&str, &str); 1] =
    [("matching_cost::", "valgrind counts its instructions, and cannot run what is instrumented")];

/// Unit tests that a sanitizer is not asked for, and why.
const SKIPPED: [(Sanitizer, &str, &str); 6] = [
    (Sanitizer::Thread, "swarm::", "one thread simulates hosts under virtual time"),
    (Sanitizer::Thread, "proto::", "no thread, no I/O: one thread decides"),
    (Sanitizer::Thread, "wire::", "as proto"),
    (
        Sanitizer::Address,
        "swarm::figures::",
        "minutes of one thread's figures, no memory of others",
    ),
    (Sanitizer::Address, "swarm::tests::", "its threads switch stacks, as loom's do"),
    (Sanitizer::Address, "proto::packet::", "figures of links, for minutes"),
];

/// How long the tests of one sanitizer may take, builds included.
const LIMIT: Duration = Duration::from_secs(3 * 3600);

/// All rooms of the engine, and the tests that look into private ones.
const FEATURES: &str = "bench,xdp";

/// What looks for mistakes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sanitizer {
    Address,
    Thread,
}

impl Sanitizer {
    const ALL: [Self; 2] = [Self::Address, Self::Thread];

    /// As the compiler calls it.
    fn name(self) -> &'static str {
        match self {
            Self::Address => "address",
            Self::Thread => "thread",
        }
    }
}

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
    setup::run()?;
    let (sanitizers, arguments) = chosen(arguments);
    let toolchain = Toolchain::find()?;
    println!("sanitize: {}", toolchain.describe());
    let mut failed = Vec::new();
    for sanitizer in sanitizers {
        println!("sanitize: {}", sanitizer.name());
        let everything = if arguments.is_empty() { everything(sanitizer)? } else { Vec::new() };
        let begin = Instant::now();
        let tested = toolchain
            .command(sanitizer)
            .and_then(|mut command| within(LIMIT, command.args(everything).args(arguments)));
        let took = begin.elapsed().as_secs();
        let result = if tested.is_ok() { "nothing is found" } else { "something is found" };
        println!("sanitize: {}: {result}, after {took} s", sanitizer.name());
        // What the other one finds is worth knowing, too.
        failed.extend(tested.err());
    }
    if failed.is_empty() { Ok(()) } else { Err(failed.join("; ")) }
}

/// What is tested when nothing is said: unit tests, and `engine/tests` but for the unfit.
fn everything(sanitizer: Sanitizer) -> Result<Vec<String>, String> {
    let folder = root().join("engine/tests");
    let entries = std::fs::read_dir(&folder).and_then(|it| it.collect::<Result<Vec<_>, _>>());
    let entries = entries.map_err(|error| format!("{}: {error}", folder.display()))?;
    let programs = entries.into_iter().filter(|entry| entry.path().join("main.rs").is_file());
    let mut tests: Vec<String> =
        programs.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    tests.sort();
    let mut arguments = vec!["--lib".to_owned()];
    arguments.extend(tests.into_iter().flat_map(|test| ["--test".to_owned(), test]));
    // Behind this what goes to the tests themselves.
    arguments.push("--".to_owned());
    let skipped = SKIPPED.iter().filter(|(of, ..)| *of == sanitizer);
    let skipped = skipped.map(|(_, name, reason)| (name, reason));
    for (name, reason) in UNFIT_MODULES.iter().map(|(name, reason)| (name, reason)).chain(skipped) {
        println!("sanitize: without {name}: {reason}");
        arguments.extend(["--skip".to_owned(), (*name).to_owned()]);
    }
    Ok(arguments)
}

/// Runs a command that is killed, with those that it has started, when it takes too long.
fn within(limit: Duration, command: &mut Command) -> Result<(), String> {
    let name = format!("{command:?}");
    let failed = |error: std::io::Error| format!("{name}: {error}");
    let mut child = command.process_group(0).spawn().map_err(failed)?;
    let begin = Instant::now();
    loop {
        if let Some(status) = child.try_wait().map_err(failed)? {
            return if status.success() { Ok(()) } else { Err(format!("{name}: {status}")) };
        }
        if begin.elapsed() > limit {
            let group = format!("-{}", child.id());
            let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
            let _ = child.wait();
            return Err(format!("{name}: not over after {} s", limit.as_secs()));
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// The one that the first argument names, or all, and the arguments that are left.
fn chosen(arguments: &[String]) -> (Vec<Sanitizer>, &[String]) {
    let named = |first: &String| Sanitizer::ALL.into_iter().find(|it| it.name() == first);
    match arguments.split_first().and_then(|(first, rest)| Some((named(first)?, rest))) {
        Some((one, rest)) => (vec![one], rest),
        None => (Sanitizer::ALL.to_vec(), arguments),
    }
}

impl Toolchain {
    /// Nightly where it is installed, otherwise what this program was built with.
    fn find() -> Result<Self, String> {
        let mut nightly = Command::new("rustup");
        if let Some(version) = output(nightly.args(["run", "nightly", "rustc", "-vV"])) {
            let mut sysroot = Command::new("rustup");
            let sysroot = output(sysroot.args(["run", "nightly", "rustc", "--print", "sysroot"]));
            let sysroot = sysroot.ok_or("rustc does not say where its toolchain is")?;
            let has_source = add_source(Path::new(sysroot.trim()));
            return Ok(Self { is_nightly: true, host: host_of(&version)?, has_source });
        }
        let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let version = output(Command::new(rustc).arg("-vV")).ok_or("rustc does not run")?;
        Ok(Self { is_nightly: false, host: host_of(&version)?, has_source: false })
    }

    fn describe(&self) -> &'static str {
        match (self.is_nightly, self.has_source) {
            (true, true) => "nightly, with an instrumented standard library",
            (true, false) => "nightly, with the standard library as it comes",
            (false, _) => {
                "no nightly toolchain: this one, told to take unstable flags, with the standard \
                 library as it comes"
            }
        }
    }

    fn command(&self, sanitizer: Sanitizer) -> Result<Command, String> {
        if sanitizer == Sanitizer::Thread && !self.has_source {
            let cure = "rustup toolchain install nightly --component rust-src";
            return Err(format!("ThreadSanitizer wants the standard library's source: {cure}"));
        }
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
            // In the environment, as the target below: nothing can be linked with another library.
            command.env("CARGO_UNSTABLE_BUILD_STD", "std");
        }
        if sanitizer == Sanitizer::Thread {
            // Children of a test begin anew, with a thread of their own.
            let false_reports = root().join("ci/thread-sanitizer.txt");
            let options = format!("die_after_fork=0:suppressions={}", false_reports.display());
            command.env("TSAN_OPTIONS", options);
        }
        // With a target named, build scripts and macros stay as they are. It is named in the
        // environment, for the cargo that a test starts to build an example.
        command.env("CARGO_BUILD_TARGET", &self.host);
        command.args(["-p", "ringrail", "--no-fail-fast"]);
        command.args(["--features", FEATURES]);
        let flags = format!("-Zsanitizer={} -Cforce-frame-pointers=yes", sanitizer.name());
        command.env("RUSTFLAGS", flags);
        command.env("CARGO_TARGET_DIR", target_folder(sanitizer));
        Ok(command)
    }
}

/// A folder of its own: these builds share nothing with the others.
fn target_folder(sanitizer: Sanitizer) -> PathBuf {
    let folder = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    folder.unwrap_or_else(|| root().join("target")).join("sanitize").join(sanitizer.name())
}

/// Adds the standard library's source to the nightly toolchain unless it is there; returns whether
/// it is.
fn add_source(sysroot: &Path) -> bool {
    let source = sysroot.join("lib/rustlib/src/rust/library/Cargo.lock");
    if !source.is_file() {
        println!("sanitize: adding the source of the standard library");
        let mut add = Command::new("rustup");
        add.args(["component", "add", "rust-src", "--toolchain", "nightly"]);
        if let Err(error) = execute(&mut add) {
            println!("sanitize: {error}");
        }
    }
    source.is_file()
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
    fn both_run_unless_one_is_named() {
        let words = ["thread", "--lib"].map(str::to_owned);
        assert_eq!(chosen(&words), (vec![Sanitizer::Thread], &words[1..]));
        assert_eq!(chosen(&words[1..]), (Sanitizer::ALL.to_vec(), &words[1..]));
        assert_eq!(chosen(&[]), (Sanitizer::ALL.to_vec(), &[][..]));
    }

    #[test]
    fn everything_is_what_is_fit() {
        let arguments = everything(Sanitizer::Thread).unwrap();
        assert_eq!(arguments[..2], ["--lib", "--test"].map(str::to_owned));
        for name in ["api", "memory", "one_host", "threads"] {
            assert!(arguments.windows(2).any(|pair| pair == ["--test", name]), "{name}");
        }
        let tests = root().join("engine/tests");
        for (name, _) in UNFIT_MODULES {
            let file = format!("{}.rs", name.trim_end_matches("::"));
            let programs = std::fs::read_dir(&tests).unwrap();
            let is_there = |program: std::fs::DirEntry| program.path().join(&file).is_file();
            assert!(programs.flatten().any(is_there), "{name}");
            assert!(arguments.windows(2).any(|pair| pair == ["--skip", name]), "{name}");
        }
    }

    #[test]
    fn tests_without_threads_are_not_looked_at_for_races() {
        let skipped = |sanitizer| {
            let arguments = everything(sanitizer).unwrap();
            let own = arguments.iter().position(|it| it == "--").unwrap();
            arguments[own + 1..].to_vec()
        };
        assert!(skipped(Sanitizer::Thread).windows(2).any(|pair| pair == ["--skip", "swarm::"]));
        assert!(!skipped(Sanitizer::Address).iter().any(|it| it == "swarm::"));
    }

    #[test]
    fn what_takes_too_long_ends() {
        let limit = Duration::from_millis(300);
        let begin = Instant::now();
        let error = within(limit, Command::new("sh").args(["-c", "sleep 600 & wait"])).unwrap_err();
        assert!(error.contains("not over"), "{error}");
        assert!(begin.elapsed() < Duration::from_secs(60));
        within(Duration::from_secs(60), &mut Command::new("true")).unwrap();
        assert!(within(Duration::from_secs(60), &mut Command::new("false")).is_err());
    }

    #[test]
    fn unstable_flags_are_allowed_where_they_are_used() {
        let host = "some-host".to_owned();
        let toolchain = Toolchain { is_nightly: false, host, has_source: false };
        let command = toolchain.command(Sanitizer::Address).unwrap();
        let is_set = |(name, value): (&std::ffi::OsStr, Option<&std::ffi::OsStr>)| {
            name == "RUSTC_BOOTSTRAP" && value.is_some()
        };
        assert!(command.get_envs().any(is_set));
        assert!(!command.get_args().any(|argument| argument == "-Zbuild-std"));
        let target = command.get_envs().find(|(name, _)| *name == "CARGO_BUILD_TARGET");
        assert_eq!(target.and_then(|(_, value)| value), Some("some-host".as_ref()));
    }

    #[test]
    fn threads_are_not_looked_at_through_a_library_as_it_comes() {
        let command = |has_source| {
            let host = "some-host".to_owned();
            Toolchain { is_nightly: true, host, has_source }.command(Sanitizer::Thread)
        };
        assert!(command(false).is_err_and(|error| error.contains("--component rust-src")));
        let command = command(true).unwrap();
        let mut variables = command.get_envs();
        assert!(variables.any(|(name, _)| name == "CARGO_UNSTABLE_BUILD_STD"));
    }
}
