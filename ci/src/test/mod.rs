//! All tests: a short set for each change, and a long one.

mod build;
mod job;
mod libtest;
mod long;
mod needs;
mod pool;
mod report;

use std::process::Command;
use std::thread;

pub(crate) use self::build::simulation;
use self::build::{Program, programs};
use self::job::{Job, jobs_of};
use self::report::Report;
use crate::instructions;
use crate::setup;
use crate::swarm::Swarm;

const USAGE: &str = "usage: cargo xtask test [--all [--only PART,PART...] [--repeat N]]";

/// io_uring features that endpoints must do without. The short set switches all of them off at
/// once, the long set one after the other.
const URING_FEATURES: [&str; 9] = [
    "single_issuer",
    "defer_taskrun",
    "taskrun_flag",
    "coop_taskrun",
    "no_sqarray",
    "registered_files",
    "registered_buffers",
    "send_zc",
    "multishot_poll",
];

/// Values of `lanes` and `control_lane` other than the defaults, which are io_uring and datagrams.
const LANES: [(&str, &str); 3] = [("sockets", "udp"), ("uring", "tcp"), ("sockets", "tcp")];

/// Variables that tests read.
const URING_DISABLE: &str = "TEST_OF_RINGRAIL_URING_DISABLE";
const LANES_OF: &str = "TEST_OF_RINGRAIL_LANES";
const ALL_CASES: &str = "TEST_OF_RINGRAIL_ALL_CASES";
const CONTROL_LANE: &str = "TEST_OF_RINGRAIL_CONTROL_LANE";

/// Runs the short set, or the long one, and closes with `N passed, N failed, N skipped`.
pub(crate) fn run(options: &[String]) -> Result<(), String> {
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    match options.as_slice() {
        [] => short(),
        ["--all", rest @ ..] => long::run(rest),
        _ => Err(USAGE.to_owned()),
    }
}

/// The tests of each change.
fn short() -> Result<(), String> {
    setup::run()?;
    let mut report = Report::new();
    let jobs = jobs_of_short_set(&mut report)?;
    report.run(jobs);
    report.close()
}

/// Builds the short set. A build may start servers that stay, such as a compiler cache: it gets no
/// mark.
fn jobs_of_short_set(report: &mut Report) -> Result<Vec<Job>, String> {
    let (programs, swarm, counts) = thread::scope(|scope| {
        // Cargo builds releases in a folder of its own, at the same time.
        let counts = scope.spawn(instructions::build);
        let programs = programs().and_then(|programs| Ok((programs, Swarm::build()?)));
        let counts = counts.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        programs.and_then(|(programs, swarm)| Ok((programs, swarm, counts?)))
    })?;
    let mut jobs = vec![
        Job::of_command("swarm: fixed seeds", &swarm.fixed_seeds()),
        Job::of_command("swarm: known seeds", &swarm.known_seeds()),
        Job::of_command("swarm: new seeds", &swarm.new_seeds()),
        Job::of_command("swarm: planted bugs", &swarm.planted_bugs()),
        Job::of_command("swarm: figures", &swarm.figures()),
        Job::of_command("documentation tests", &documentation()),
    ];
    match counts {
        Ok(command) => jobs.push(Job::of_command("instructions", &command)),
        Err(reason) => report.skip(&format!("instructions: {reason}")),
    }
    for program in &programs {
        jobs.extend(jobs_of(program)?);
    }
    jobs.extend(on_other_lanes(&programs)?);
    jobs.extend(without(&programs, "all features", &URING_FEATURES.join(","))?);
    Ok(jobs)
}

/// Examples in the documentation.
fn documentation() -> Command {
    let mut command = build::cargo_test();
    command.arg("--doc");
    command
}

/// The jobs of modules of the engine's tests: of those of `tests/api` and of `tests/memory`.
fn jobs_of_modules(programs: &[Program], modules: &[&str]) -> Result<Vec<Job>, String> {
    let mut jobs = Vec::new();
    for program in programs.iter().filter(|program| program.package == "ringrail") {
        if program.is_integration {
            jobs.extend(jobs_of(program)?);
        }
    }
    let is_meant =
        |job: &Job| modules.iter().any(|module| job.name == format!("ringrail {module}"));
    jobs.retain(is_meant);
    if jobs.len() == modules.len() {
        Ok(jobs)
    } else {
        let found: Vec<&str> = jobs.iter().map(|job| job.name.as_str()).collect();
        Err(format!("of the modules {modules:?} of the engine's tests only {found:?} are there"))
    }
}

/// Endpoints by other lanes than the default ones.
fn on_other_lanes(programs: &[Program]) -> Result<Vec<Job>, String> {
    let modules = ["api endpoint", "api faults", "memory allocations"];
    let jobs = jobs_of_modules(programs, &modules)?;
    let variants = LANES.iter().map(|&(lanes, control)| {
        let set = [(LANES_OF, lanes.to_owned()), (CONTROL_LANE, control.to_owned())];
        (format!("{lanes}, {control}"), set)
    });
    let mut all = Vec::new();
    for (variant, set) in variants {
        all.extend(jobs.iter().map(|job| job.clone().with(&variant, &set)));
    }
    Ok(all)
}

/// Endpoints without some features of io_uring; `name` names them in that of the job.
fn without(programs: &[Program], name: &str, features: &str) -> Result<Vec<Job>, String> {
    let set = [(URING_DISABLE, features.to_owned())];
    let jobs = jobs_of_modules(programs, &["api endpoint"])?;
    Ok(jobs.into_iter().map(|job| job.with(&format!("without {name}"), &set)).collect())
}
