//! The long set of what unmodified MPI programs do over the libfabric provider.

use std::time::Duration;

use crate::run::{cargo, run as execute};
use crate::setup;
use crate::watch::{End, Limits, Mark, mounted_namespaces};

const USAGE: &str = "usage: cargo xtask interop [--repeat N] [--only WORD,WORD] [--fabtests DIR]";
const COMPARE_USAGE: &str = "usage: cargo xtask mpi-compare [--rounds N] [--only WORD,WORD] \
                             [--most BYTES] [--json FILE]";

/// What the test looks for in its environment.
const REPEAT: &str = "TEST_OF_RINGRAIL_REPEAT";
const ONLY: &str = "TEST_OF_RINGRAIL_ONLY";
const FABTESTS: &str = "TEST_OF_RINGRAIL_FABTESTS";
const MOST_BYTES: &str = "TEST_OF_RINGRAIL_MOST_BYTES";
const JSON: &str = "TEST_OF_RINGRAIL_JSON";

/// For what is done once, and for each repetition.
const ONCE: Duration = Duration::from_secs(90 * 60);
const EACH: Duration = Duration::from_secs(10 * 60);

/// Without a line for so long a run hangs; it is killed, and the others go on.
const SILENT: Duration = Duration::from_secs(8 * 60);

/// What is set in the environment of the test.
type Variables = Vec<(&'static str, String)>;

/// Returns the path as the test can use it, which runs in another folder.
fn absolute(path: &str) -> Result<String, String> {
    let path = std::path::absolute(path).map_err(|error| error.to_string())?;
    Ok(path.to_string_lossy().into_owned())
}

/// Runs all programs of MPI, and fabtests.
pub(crate) fn run(options: &[String]) -> Result<(), String> {
    let (mut repeat, mut set) = (3_u32, Variables::new());
    let mut options = options.iter();
    while let Some(option) = options.next() {
        let value = options.next().ok_or(USAGE)?;
        match option.as_str() {
            "--repeat" => repeat = value.parse().map_err(|_| USAGE)?,
            "--only" => set.push((ONLY, value.clone())),
            "--fabtests" => set.push((FABTESTS, absolute(value)?)),
            _ => return Err(USAGE.to_owned()),
        }
    }
    run_test("all_consumers", repeat, set, USAGE)
}

/// Compares what MPI gets of ringrail with what it gets of its own transports.
pub(crate) fn compare(options: &[String]) -> Result<(), String> {
    let (mut rounds, mut set) = (7_u32, Variables::new());
    let mut options = options.iter();
    while let Some(option) = options.next() {
        let value = options.next().ok_or(COMPARE_USAGE)?;
        match option.as_str() {
            "--rounds" => rounds = value.parse().map_err(|_| COMPARE_USAGE)?,
            "--only" => set.push((ONLY, value.clone())),
            "--most" => {
                let bytes: u64 = value.parse().map_err(|_| COMPARE_USAGE)?;
                set.push((MOST_BYTES, bytes.to_string()));
            }
            "--json" => set.push((JSON, absolute(value)?)),
            _ => return Err(COMPARE_USAGE.to_owned()),
        }
    }
    run_test("mpi_compare", rounds, set, COMPARE_USAGE)
}

/// Builds and runs an ignored test, which prints its progress and tables. What it leaves behind is
/// ended and has failed.
fn run_test(what: &str, repeat: u32, mut set: Variables, usage: &str) -> Result<(), String> {
    if repeat == 0 {
        return Err(usage.to_owned());
    }
    set.push((REPEAT, repeat.to_string()));
    setup::run()?;
    let test = ["test", "--release", "--package", "ringrail-fi", "--test", "interop"];
    // A build may start servers that stay, such as a compiler cache: it gets no mark.
    execute(cargo(&test).arg("--no-run"))?;
    let namespaces_before = mounted_namespaces();
    let mark = Mark::new();
    let limits = Limits { total: ONCE + EACH * repeat, silent: SILENT };
    let mut command = cargo(&test);
    command.args(["--", "--ignored", "--nocapture", what]).envs(set);
    let mut last = String::new();
    let end = mark.run_aloud(&mut command, limits, |line| {
        if line.starts_with("interop: ") || line.starts_with("mpi-compare: ") {
            line.clone_into(&mut last);
        }
        last.clone()
    })?;
    let left = mark.left_over();
    for process in &left {
        println!("interop: process {process} was left behind; killed");
    }
    let mut namespaces = mounted_namespaces();
    namespaces.retain(|point| !namespaces_before.contains(point));
    match (end, left.is_empty() && namespaces.is_empty()) {
        (End::Success, true) => Ok(()),
        (End::Success, false) => Err(format!("it left behind: {left:?} {namespaces:?}")),
        (End::Failure, _) => Err("runs have failed; the table says which".to_owned()),
        (End::TimedOut, _) => Err("out of time".to_owned()),
    }
}
