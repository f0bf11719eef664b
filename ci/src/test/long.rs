//! The long set: everything of the short one, and what takes hours. No failed test runs again: one
//! that fails once in hundreds of runs shows a defect.

use std::collections::BTreeMap;
use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::build::{self, Program, programs};
use super::job::{Job, jobs_of, jobs_of_each_test, long_jobs_of};
use super::report::Report;
use super::{ALL_CASES, URING_FEATURES, jobs_of_modules, without};
use crate::run::run as execute;
use crate::swarm::Swarm;
use crate::{demo, fuzz, interop, sanitize, setup};

const USAGE: &str = "usage: cargo xtask test --all [--only PART,PART...] [--repeat N]";

/// How often each lab test runs unless `--repeat` says otherwise.
const REPEAT: u32 = 300;

/// Seconds that each fuzz target is played.
const FUZZ_SECONDS: &str = "60";

/// Features of io_uring that depend on each other and are switched off together.
const TOGETHER: [&str; 1] = ["defer_taskrun,coop_taskrun"];

/// A part of the set: its name, its work, and the minutes that it takes on two cores.
struct Part {
    name: &'static str,
    run: fn(&mut Report, &Options) -> Result<(), String>,
    minutes: fn(&Options) -> u64,
}

const PARTS: [Part; 10] = [
    Part { name: "short", run: short, minutes: |_| 20 },
    Part { name: "units", run: units, minutes: |_| 6 },
    Part { name: "models", run: models, minutes: |_| 5 },
    Part { name: "uring", run: uring, minutes: |_| 5 },
    Part { name: "planted", run: planted, minutes: |_| 5 },
    Part { name: "swarm", run: swarm, minutes: |_| 30 },
    Part { name: "fuzz", run: fuzz_targets, minutes: |_| 30 },
    Part { name: "sanitize", run: sanitizers, minutes: |_| 120 },
    Part { name: "demo", run: demonstration, minutes: |_| 7 },
    Part { name: "interop", run: consumers, minutes: |_| 90 },
];

/// Last, for it takes longest by far.
const LABS: Part = Part { name: "labs", run: labs, minutes: |it| 6 * u64::from(it.repeat) };

struct Options {
    repeat: u32,
    only: Vec<String>,
}

impl Options {
    fn parse(words: &[&str]) -> Result<Self, String> {
        let mut options = Self { repeat: REPEAT, only: Vec::new() };
        let mut words = words.iter();
        while let Some(&word) = words.next() {
            let value = *words.next().ok_or(USAGE)?;
            match word {
                "--repeat" => options.repeat = value.parse().map_err(|_| USAGE)?,
                "--only" => options.only = value.split(',').map(str::to_owned).collect(),
                _ => return Err(USAGE.to_owned()),
            }
        }
        let all: Vec<&str> = parts().map(|part| part.name).collect();
        match options.only.iter().find(|name| !all.contains(&name.as_str())) {
            Some(name) => Err(format!("there is no part {name:?}; there are {}", all.join(", "))),
            None => Ok(options),
        }
    }

    fn wants(&self, part: &Part) -> bool {
        self.only.is_empty() || self.only.iter().any(|name| name == part.name)
    }
}

fn parts() -> impl Iterator<Item = &'static Part> {
    PARTS.iter().chain([&LABS])
}

/// Runs the parts, all of them also when one fails.
pub(super) fn run(words: &[&str]) -> Result<(), String> {
    let options = Options::parse(words)?;
    setup::run()?;
    let wanted: Vec<&Part> = parts().filter(|part| options.wants(part)).collect();
    let mut left: u64 = wanted.iter().map(|part| (part.minutes)(&options)).sum();
    let mut report = Report::new();
    for (number, part) in (1..).zip(&wanted) {
        let (name, count) = (part.name, wanted.len());
        println!("test: part {number} of {count}, {name}; about {left} minutes are left");
        let start = Instant::now();
        if let Err(error) = (part.run)(&mut report, &options) {
            report.fail(&format!("{name}: {error}"));
        }
        left -= (part.minutes)(&options);
        println!("test: {name} took {} minutes", start.elapsed().as_secs() / 60);
    }
    report.close()
}

fn short(report: &mut Report, _: &Options) -> Result<(), String> {
    let jobs = super::jobs_of_short_set(report)?;
    report.run_once(jobs);
    Ok(())
}

/// Unit tests that the short set leaves out.
fn units(report: &mut Report, _: &Options) -> Result<(), String> {
    let programs = programs()?;
    let all = [(ALL_CASES, "1".to_owned())];
    let refused = jobs_of_modules(&programs, &["api refused_calls"])?;
    let refused = refused.into_iter().map(|job| job.with("all errors", &all)).collect();
    report.run_once(refused);
    run_jobs(report, &programs, long_jobs_of)
}

/// The loom and shuttle models.
fn models(report: &mut Report, _: &Options) -> Result<(), String> {
    run_jobs(report, &build::models()?, jobs_of)
}

/// Runs the jobs of some programs.
fn run_jobs(
    report: &mut Report,
    programs: &[Program],
    jobs_of: fn(&Program) -> Result<Vec<Job>, String>,
) -> Result<(), String> {
    let mut jobs = Vec::new();
    for program in programs {
        jobs.extend(jobs_of(program)?);
    }
    report.run_once(jobs);
    Ok(())
}

/// Endpoints without one feature of io_uring after the other.
fn uring(report: &mut Report, _: &Options) -> Result<(), String> {
    let programs = programs()?;
    let mut jobs = Vec::new();
    for features in URING_FEATURES.iter().chain(&TOGETHER) {
        jobs.extend(without(&programs, features, features)?);
    }
    report.run_once(jobs);
    Ok(())
}

/// Runs what is no job: it succeeds or fails as a whole.
fn whole(report: &mut Report, result: Result<(), String>) -> Result<(), String> {
    result.map(|()| report.pass())
}

fn planted(report: &mut Report, _: &Options) -> Result<(), String> {
    whole(report, execute(&mut Swarm::build()?.search_for_planted_bugs()))
}

/// New seeds, and the fixed ones without fast paths.
fn swarm(report: &mut Report, _: &Options) -> Result<(), String> {
    let swarm = Swarm::build()?;
    execute(&mut swarm.without_fast_paths())?;
    whole(report, execute(&mut swarm.many_new_seeds()))
}

fn fuzz_targets(report: &mut Report, _: &Options) -> Result<(), String> {
    let options = ["--all", "--seconds", FUZZ_SECONDS].map(str::to_owned);
    whole(report, fuzz::run(&options))
}

fn sanitizers(report: &mut Report, _: &Options) -> Result<(), String> {
    whole(report, sanitize::run(&[]))
}

fn demonstration(report: &mut Report, _: &Options) -> Result<(), String> {
    whole(report, demo::run())
}

fn consumers(report: &mut Report, _: &Options) -> Result<(), String> {
    whole(report, interop::run(&[]))
}

/// Tests that run in network namespaces.
fn has_labs(program: &Program) -> bool {
    let packages = ["ringrail-tests", "ringrail-xdp", "ringrail-perf", "ringrail-fi"];
    program.is_integration && packages.contains(&program.package.as_str())
}

/// Each lab test many times, by turns, while all cores compute.
fn labs(report: &mut Report, options: &Options) -> Result<(), String> {
    let mut jobs: Vec<Job> = Vec::new();
    for program in programs()?.iter().filter(|program| has_labs(program)) {
        jobs.extend(jobs_of_each_test(program)?);
    }
    let (start, mut failed) = (Instant::now(), BTreeMap::<String, u32>::new());
    let _load = Load::new();
    for round in 1..=options.repeat {
        for name in report.run_once(jobs.clone()) {
            *failed.entry(name).or_default() += 1;
        }
        let left = start.elapsed() / round * (options.repeat - round);
        let minutes = left.as_secs() / 60;
        println!("test: round {round} of {}, about {minutes} minutes left", options.repeat);
        for (name, times) in &failed {
            println!("test: failed {times} times: {name}");
        }
    }
    Ok(())
}

/// Threads that compute, one a core, with pauses in which others see an idle core.
struct Load {
    is_over: &'static AtomicBool,
}

impl Load {
    fn new() -> Self {
        let is_over: &'static AtomicBool = Box::leak(Box::default());
        let cores = thread::available_parallelism().map_or(1, std::num::NonZero::get);
        for _ in 0..cores {
            thread::spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let start = Instant::now();
                    while start.elapsed() < Duration::from_millis(90) {
                        spin_loop();
                    }
                    thread::sleep(Duration::from_millis(10));
                }
            });
        }
        Self { is_over }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_choose_parts_and_repetitions() {
        let all = Options::parse(&[]).unwrap();
        assert!(parts().all(|part| all.wants(part)) && all.repeat == REPEAT);
        let some = Options::parse(&["--only", "models,labs", "--repeat", "3"]).unwrap();
        let names: Vec<&str> =
            parts().filter(|part| some.wants(part)).map(|part| part.name).collect();
        assert_eq!((names.as_slice(), some.repeat), (&["models", "labs"][..], 3));
        assert!(Options::parse(&["--only", "nothing"]).is_err());
        assert!(Options::parse(&["--repeat"]).is_err() && Options::parse(&["--x", "1"]).is_err());
    }
}
