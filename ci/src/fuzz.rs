//! The fuzz targets: tests of the workspace, played for longer.
//!
//! `cargo xtask test` plays each for about a second with random inputs. Here one is played for as
//! long as wanted, by libFuzzer if `cargo-bolero` can be installed and by the random engine
//! otherwise.
//! What libFuzzer finds it keeps in `__fuzz__` folders beside the target, from where plain tests
//! play it again.

use std::path::PathBuf;
use std::process::Command;

use crate::run::{cargo, root, run as execute};
use crate::setup;

/// How long a target is played when nothing is said, in seconds.
const SECONDS: u64 = 60;

/// A test that takes its inputs from a fuzzer.
struct Target {
    package: &'static str,
    /// Features of it that the test needs.
    features: &'static str,
    /// What of the package holds it, as `cargo test` calls it.
    place: &'static str,
    /// Its path among the tests of the package.
    test: &'static str,
    /// What it is given.
    input: &'static str,
}

/// With the features that any of these needs: what is built for one serves all.
const fn engine(test: &'static str, input: &'static str) -> Target {
    Target { package: "ringrail", features: "xdp", place: "--lib", test, input }
}

const USAGE: &str = "usage: cargo xtask fuzz TARGET [--seconds N]
       cargo xtask fuzz --all [--only PART,PART...] [--seconds N]";

const TARGETS: [Target; 22] = [
    engine("wire::fuzz::addresses", "addresses of endpoints"),
    engine("wire::fuzz::hellos", "hellos and their replies"),
    engine("wire::fuzz::segments", "segments of a control lane"),
    engine("wire::fuzz::segments_with_checksums", "segments of a session with checksums"),
    engine("wire::fuzz::frames", "frames of a segment"),
    engine("wire::fuzz::chunk_headers", "headers on bulk lanes"),
    engine("wire::fuzz::packets", "datagrams and acknowledgements"),
    engine("proto::packet::tests::fuzz::hostile_packets", "a path, and a peer who lies about it"),
    engine("proto::fuzz::hostile_peer", "one core, a hostile peer, a user, time"),
    engine("swarm::fuzz::greetings", "an engine, and strangers who connect to it"),
    engine("swarm::fuzz::calls_and_events", "three engines, calls, a network that breaks"),
    engine("driver::xdp::parse::tests::arbitrary_frames_do_not_panic", "frames of a NIC"),
    engine("bootstrap::fuzz::fields", "fields of a rank's part"),
    engine("bootstrap::fuzz::error_reports", "errors that ranks report to each other"),
    engine("bootstrap::fuzz::directory_entries", "files of a bootstrap directory"),
    engine("bootstrap::tcp::fuzz::client_frames", "frames to a bootstrap server"),
    engine("bootstrap::tcp::fuzz::hellos", "hellos to a bootstrap server"),
    engine("bootstrap::tcp::fuzz::results", "results of a bootstrap server"),
    engine("settings::fuzz::files", "settings files"),
    engine("settings::fuzz::values", "values of settings"),
    engine("settings::fuzz::host_patterns", "patterns of host sections"),
    Target {
        package: "ringrail-perf",
        features: "",
        place: "--bins",
        test: "saved::tests::fuzz_saved_results",
        input: "saved results",
    },
];

/// Plays the target that `arguments` name, or lists all.
pub(crate) fn run(arguments: &[String]) -> Result<(), String> {
    let Some((name, options)) = arguments.split_first() else {
        list();
        return Ok(());
    };
    let (targets, options) = match (name.as_str(), options) {
        ("--all", [only, parts, options @ ..]) if only == "--only" => (within(parts)?, options),
        ("--all", options) => (TARGETS.iter().collect(), options),
        (name, options) => (vec![find(name)?], options),
    };
    let seconds = seconds_of(options)?;
    setup::run()?;
    let is_guided = match setup::program("cargo-bolero") {
        Ok(()) => true,
        Err(error) => {
            println!("fuzz: {error}; so inputs are random ones, not led by what they reach");
            false
        }
    };
    let mut failed = Vec::new();
    for (number, target) in (1..).zip(&targets) {
        let (test, package) = (target.test, target.package);
        println!("fuzz: {number} of {}: {test} of {package} for {seconds} s", targets.len());
        let mut command = if is_guided { guided(target, seconds) } else { random(target, seconds) };
        if let Err(error) = execute(&mut command) {
            println!("fuzz: {test} has failed: {error}");
            failed.push(test);
        }
    }
    println!("fuzz: {} of {} targets held", targets.len() - failed.len(), targets.len());
    if failed.is_empty() { Ok(()) } else { Err(format!("failed: {}", failed.join(", "))) }
}

/// The targets in the modules that are named, with commas between: `wire,proto,xdp`.
fn within(parts: &str) -> Result<Vec<&'static Target>, String> {
    let is_in = |target: &Target, part: &str| target.test.split("::").any(|name| name == part);
    if let Some(part) = parts.split(',').find(|part| !TARGETS.iter().any(|it| is_in(it, part))) {
        return Err(format!(
            "no target is in a module {part:?}; `cargo xtask fuzz` lists them all"
        ));
    }
    Ok(TARGETS.iter().filter(|it| parts.split(',').any(|part| is_in(it, part))).collect())
}

fn list() {
    println!("{USAGE}\n");
    for target in &TARGETS {
        println!("  {:44} {}", target.test, target.input);
    }
}

fn seconds_of(options: &[String]) -> Result<u64, String> {
    match options {
        [] => Ok(SECONDS),
        [name, value] if name == "--seconds" => match value.parse() {
            Ok(seconds @ 1..=1_000_000) => Ok(seconds),
            _ => Err(format!("--seconds takes a whole number from 1 to 1000000, not {value:?}")),
        },
        _ => Err(USAGE.to_owned()),
    }
}

/// The one target whose path ends with `name`.
fn find(name: &str) -> Result<&'static Target, String> {
    let is_meant =
        |target: &&Target| target.test == name || target.test.ends_with(&format!("::{name}"));
    let mut found = TARGETS.iter().filter(is_meant);
    match (found.next(), found.next()) {
        (Some(target), None) => Ok(target),
        (Some(_), Some(_)) => {
            Err(format!("several targets end with {name}: give more of its path"))
        }
        (None, _) => Err(format!("no target ends with {name}; `cargo xtask fuzz` lists them all")),
    }
}

/// libFuzzer, with AddressSanitizer.
fn guided(target: &Target, seconds: u64) -> Command {
    let mut command = cargo(&["bolero", "test", target.test, "--package", target.package]);
    // The flags that instrument are unstable ones.
    command.args(["--rustc-bootstrap", "-T", &format!("{seconds}s")]);
    // A script of a few bytes does little: libFuzzer would try short ones only for the first hours.
    command.args(["--engine-args=-len_control=0"]);
    command.args(["--features", target.features]);
    command.arg("--target-dir").arg(target_folder());
    command
}

/// Random inputs, with the same checks and the same optimisation.
fn random(target: &Target, seconds: u64) -> Command {
    let mut command = cargo(&["test", "--profile", "fuzz", "--package", target.package]);
    command.args(["--features", target.features]);
    command.args([target.place, target.test, "--", "--exact", "--nocapture"]);
    command.env("BOLERO_RANDOM_TEST_TIME_MS", (seconds * 1000).to_string());
    command
}

/// A folder of its own: instrumented builds share nothing with the others.
fn target_folder() -> PathBuf {
    let folder = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    folder.unwrap_or_else(|| root().join("target")).join("libfuzzer")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All `.rs` files below a folder.
    fn sources(folder: PathBuf, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sources(path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(std::fs::read_to_string(path).unwrap());
            }
        }
    }

    #[test]
    fn every_target_is_listed_and_every_listed_one_exists() {
        let mut count = 0;
        for (package, folder) in [("ringrail", "engine/src"), ("ringrail-perf", "perf/src")] {
            let mut texts = Vec::new();
            sources(root().join(folder), &mut texts);
            count += texts.iter().map(|text| text.matches("bolero::check!").count()).sum::<usize>();
            for target in TARGETS.iter().filter(|target| target.package == package) {
                let name = target.test.rsplit("::").next().unwrap();
                let head = format!("fn {name}() {{");
                let is_there =
                    |text: &String| text.contains(&head) && text.contains("bolero::check!");
                assert!(texts.iter().any(is_there), "{} is nowhere", target.test);
            }
        }
        assert_eq!(count, TARGETS.len(), "a target is not in the list");
    }

    #[test]
    fn targets_are_found_by_the_end_of_their_path() {
        assert_eq!(find("hostile_peer").ok().map(|it| it.test), Some("proto::fuzz::hostile_peer"));
        assert!(find("hellos").is_err_and(|error| error.contains("several")));
        assert!(find("tcp::fuzz::hellos").is_ok());
        assert!(find("peer").is_err_and(|error| error.contains("no target")));
    }

    #[test]
    fn targets_are_found_by_their_modules() {
        let names = |parts: &str| -> Vec<&str> {
            within(parts).into_iter().flatten().map(|target| target.test).collect()
        };
        assert_eq!(names("xdp"), ["driver::xdp::parse::tests::arbitrary_frames_do_not_panic"]);
        assert!(names("wire,proto").contains(&"wire::fuzz::frames"));
        assert!(names("wire,proto").contains(&"proto::fuzz::hostile_peer"));
        assert!(!names("wire,proto").contains(&"settings::fuzz::files"));
        assert!(within("wire,nowhere").is_err_and(|error| error.contains("nowhere")));
    }

    #[test]
    fn seconds_are_checked() {
        let options = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let of = |words: &[&str]| -> Result<u64, String> {
            let options: Vec<String> = options(words);
            seconds_of(&options)
        };
        assert_eq!(of(&[]), Ok(SECONDS));
        assert_eq!(of(&["--seconds", "5"]), Ok(5));
        assert!(of(&["--seconds", "0"]).is_err());
        assert!(of(&["--second", "5"]).is_err());
    }
}
