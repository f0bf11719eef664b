//! What the jobs of a run report, and how the run ends.

use std::time::{Duration, Instant};

use super::job::{Ended, Job};
use super::libtest::Count;
use super::pool;
use crate::watch::{End, Mark, mounted_namespaces};

/// Failed tests that run once more, alone; with more of them something is broken.
const FLAKY_TESTS: usize = 4;

/// Jobs that are listed as the longest.
const LONGEST: usize = 12;

/// The outcome of a run so far.
pub(super) struct Report {
    mark: Mark,
    namespaces: Vec<String>,
    total: Count,
    start: Instant,
    /// Time of each job.
    took: Vec<(Duration, String)>,
}

/// A job whose failed tests may run once more.
struct Again {
    job: Job,
    names: Vec<String>,
    count: Count,
}

impl Report {
    /// Of a run that begins now.
    pub(super) fn new() -> Self {
        let (mark, namespaces) = (Mark::new(), mounted_namespaces());
        let (total, start) = (Count::default(), Instant::now());
        Self { mark, namespaces, total, start, took: Vec::new() }
    }

    /// Runs jobs side by side. A few failed tests run once more, alone: those that pass then are
    /// listed as flaky and do not fail the run.
    pub(super) fn run(&mut self, jobs: Vec<Job>) {
        let (mut again, mut total) = (Vec::new(), Count::default());
        let took = &mut self.took;
        pool::run(jobs, &self.mark, |job, ended, time| {
            took.push((time, job.name.clone()));
            match ended {
                Err(error) => total.fail(&error),
                Ok(ended) if ended.end == End::Success => total.add(ended.count),
                Ok(ended) => {
                    print_all(job, &ended);
                    let names = job.failed_tests(&ended);
                    again.push(Again { job: job.clone(), names, count: ended.count });
                }
            }
        });
        let tests: usize = again.iter().map(|it| it.names.len()).sum();
        for Again { job, names, mut count } in again {
            if !names.is_empty() && tests <= FLAKY_TESTS && self.passes_alone(&job, &names) {
                count.forgive();
            }
            total.add(count);
        }
        self.total.add_total(total);
    }

    /// Runs jobs side by side, each once; the names of those that failed.
    pub(super) fn run_once(&mut self, jobs: Vec<Job>) -> Vec<String> {
        let (total, took) = (&mut self.total, &mut self.took);
        let mut failed = Vec::new();
        pool::run(jobs, &self.mark, |job, ended, time| {
            took.push((time, job.name.clone()));
            match ended {
                Err(error) => total.fail(&error),
                Ok(ended) => {
                    if ended.end != End::Success {
                        failed.push(job.name.clone());
                        print_all(job, &ended);
                    }
                    total.add(ended.count);
                }
            }
        });
        failed
    }

    fn passes_alone(&self, job: &Job, names: &[String]) -> bool {
        println!("test: once more, alone: {} {}", job.name, names.join(" "));
        let job = job.only(names);
        let Ok(ended) = job.run(&self.mark) else { return false };
        let passes = ended.end == End::Success && ended.count.has_passed(names.len());
        if !passes {
            print_all(&job, &ended);
        }
        passes
    }

    /// A test that cannot run here.
    pub(super) fn skip(&mut self, reason: &str) {
        self.total.skip(reason);
    }

    /// A part of the run that is no job has failed.
    pub(super) fn fail(&mut self, why: &str) {
        self.total.fail(why);
    }

    /// A part of the run that is no job has succeeded.
    pub(super) fn pass(&mut self) {
        self.total.passed += 1;
    }

    /// Looks for what the jobs have left, prints what failed, and the closing line.
    pub(super) fn close(mut self) -> Result<(), String> {
        let left = self.mark.left_over();
        for process in &left {
            self.total.fail(&format!("process {process} outlived its test; killed"));
        }
        let mut namespaces = mounted_namespaces();
        namespaces.retain(|point| !self.namespaces.contains(point));
        for point in &namespaces {
            self.total.fail(&format!("the namespace {point} was not there before"));
        }
        if left.is_empty() && namespaces.is_empty() {
            println!("test: no process and no namespace is left");
        }
        self.took.sort_by_key(|&(time, _)| std::cmp::Reverse(time));
        for (time, name) in self.took.iter().take(LONGEST) {
            println!("test: {:.0} s {name}", time.as_secs_f64());
        }
        println!("test: {} s in all, with builds", self.start.elapsed().as_secs());
        let total = &self.total;
        for line in &total.skips {
            println!("{line}");
        }
        for failure in &total.flaky {
            println!("flaky, passed when it ran alone: {failure}");
        }
        // Last, for a log of which only the end is kept.
        for failure in &total.failures {
            println!("failed: {failure}");
        }
        println!("{total}");
        if total.failed == 0 { Ok(()) } else { Err(format!("{} tests failed", total.failed)) }
    }
}

/// Everything that a failed job printed.
fn print_all(job: &Job, ended: &Ended) {
    println!("test: output of {}:", job.name);
    for line in &ended.lines {
        println!("  | {line}");
    }
}
