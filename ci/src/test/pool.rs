//! Runs jobs side by side, as many as the machine has room for.

use std::io::IsTerminal as _;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::job::{Ended, Job};
use super::needs::Share;
use crate::watch::Mark;

/// How often a log without a terminal says what runs.
const REPORT_EVERY: Duration = Duration::from_secs(60);

/// Jobs that mostly wait and run at the same time for each core, beside one that computes.
const WAITING_PER_CORE: usize = 2;

/// Runs all jobs and hands each with its end to `done`, in the order of their ends.
pub(super) fn run(
    mut waiting: Vec<Job>,
    mark: &Mark,
    mut done: impl FnMut(&Job, Result<Ended, String>, Duration),
) {
    let cores = thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    let waiting_places = cores as usize * WAITING_PER_CORE;
    let places = Places { halves: cores as usize * 2, waiting: waiting_places };
    let mut progress = Progress::new(&waiting, cores);
    // Long ones first, so that none of them is alone at the end; those that need the machine for
    // themselves when nothing else is left.
    waiting.sort_by_key(|job| {
        (job.needs.share == Share::Machine, std::cmp::Reverse(job.needs.seconds))
    });
    let (sender, ends) = channel();
    let mut free = places;
    let mut running: Vec<String> = Vec::new();
    thread::scope(|scope| {
        loop {
            let fits = |free: &Places, job: &Job| free.has(places.of(job.needs.share));
            while let Some(at) = waiting.iter().position(|job| fits(&free, job)) {
                let job = waiting.remove(at);
                free.take(places.of(job.needs.share));
                running.push(job.name.clone());
                let sender = sender.clone();
                scope.spawn(move || {
                    let start = Instant::now();
                    let ended = job.run(mark);
                    // The receiver is there until all jobs have ended.
                    let _ = sender.send((job, ended, start.elapsed()));
                });
            }
            if running.is_empty() {
                break;
            }
            match ends.recv_timeout(REPORT_EVERY) {
                Ok((job, ended, took)) => {
                    free.give_back(places.of(job.needs.share));
                    running.retain(|name| *name != job.name);
                    progress.end_of(&job, &ended, took);
                    done(&job, ended, took);
                }
                Err(RecvTimeoutError::Timeout) => progress.still(&running),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
    });
    progress.bar.finish_and_clear();
}

/// Places for jobs: halves of cores, and those for jobs that mostly wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Places {
    halves: usize,
    waiting: usize,
}

impl Places {
    /// The places of all these that a job needs.
    fn of(self, share: Share) -> Self {
        match share {
            Share::Waits => Self { halves: 0, waiting: 1 },
            Share::Half => Self { halves: 1, waiting: 0 },
            Share::Core => Self { halves: 2, waiting: 0 },
            Share::Machine => self,
        }
    }

    fn has(self, needed: Self) -> bool {
        needed.halves <= self.halves && needed.waiting <= self.waiting
    }

    fn take(&mut self, needed: Self) {
        (self.halves, self.waiting) = (self.halves - needed.halves, self.waiting - needed.waiting);
    }

    fn give_back(&mut self, needed: Self) {
        (self.halves, self.waiting) = (self.halves + needed.halves, self.waiting + needed.waiting);
    }
}

/// How far the jobs are.
struct Progress {
    bar: ProgressBar,
    start: Instant,
    /// Expected work in core-seconds: of all jobs, and of those that have ended.
    expected: u64,
    ended: u64,
    jobs: usize,
    jobs_ended: usize,
}

impl Progress {
    fn new(jobs: &[Job], cores: u32) -> Self {
        let expected = jobs.iter().map(|job| job.needs.work(cores)).sum();
        let bar = if std::io::stderr().is_terminal() {
            let style = ProgressStyle::with_template("{elapsed} {wide_bar} {msg}");
            let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new(expected).with_style(style)
        } else {
            ProgressBar::hidden()
        };
        let (start, jobs) = (Instant::now(), jobs.len());
        Self { bar, start, expected, ended: 0, jobs, jobs_ended: 0 }
    }

    /// Time that the rest takes if it takes as long as expected, by what the ended ones took.
    fn left(&self) -> Duration {
        if self.ended == 0 {
            return Duration::from_secs(self.expected / 2);
        }
        let per_unit = self.start.elapsed().as_secs_f64() / self.ended as f64;
        Duration::from_secs_f64(per_unit * (self.expected - self.ended) as f64)
    }

    fn line(&self) -> String {
        let (elapsed, left) = (self.start.elapsed().as_secs(), self.left().as_secs());
        format!("{} of {} jobs in {elapsed} s, about {left} s left", self.jobs_ended, self.jobs)
    }

    fn end_of(&mut self, job: &Job, ended: &Result<Ended, String>, took: Duration) {
        let cores = thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
        self.ended += job.needs.work(cores);
        self.jobs_ended += 1;
        let (outcome, cpu) = match ended {
            Ok(ended) => (ended.count.to_string(), ended.cpu.as_secs_f64()),
            Err(error) => (error.clone(), 0.0),
        };
        let took = format!("{:.1} s, {cpu:.1} s of CPU time", took.as_secs_f64());
        self.bar.suspend(|| {
            println!("test: {}: {outcome} in {took} [{}]", job.name, self.line());
        });
        self.bar.set_position(self.ended);
        self.bar.set_message(self.line());
    }

    fn still(&self, running: &[String]) {
        let running = running.join(", ");
        self.bar.suspend(|| println!("test: {}; running: {running}", self.line()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_that_wait_run_beside_those_that_compute_and_one_needs_the_whole_machine() {
        let all = Places { halves: 4, waiting: 1 };
        let mut free = all;
        for share in [Share::Core, Share::Half, Share::Half, Share::Waits] {
            assert!(free.has(all.of(share)));
            assert!(free == all || !free.has(all.of(Share::Machine)));
            free.take(all.of(share));
        }
        assert!([Share::Core, Share::Half, Share::Waits].iter().all(|it| !free.has(all.of(*it))));
        free.give_back(all.of(Share::Core));
        assert!(free.has(all.of(Share::Core)) && !free.has(all.of(Share::Machine)));
    }
}
