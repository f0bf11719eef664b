//! What was run, how often, and how it ended.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// How a run of a step ended.
pub(crate) enum Outcome {
    Passed,
    /// Passed, with a detail for the table.
    PassedWith(String),
    Failed(String),
    NotRun(String),
    /// A step of many tests.
    Counted {
        passed: usize,
        failed: usize,
        not_run: usize,
        detail: String,
    },
}

impl From<Result<(), String>> for Outcome {
    fn from(result: Result<(), String>) -> Self {
        match result {
            Ok(()) => Self::Passed,
            Err(why) => Self::Failed(why),
        }
    }
}

#[derive(Default)]
struct Row {
    name: String,
    passed: usize,
    failed: usize,
    not_run: usize,
    took: Duration,
    detail: String,
}

pub(crate) struct Table {
    rows: Vec<Row>,
    only: Vec<String>,
    began: Instant,
}

impl Table {
    /// `only`: words apart by commas, of which a step's name has to contain one, if there are any.
    pub(crate) fn new(only: &str) -> Self {
        let only = only.split(',').filter(|word| !word.is_empty()).map(str::to_lowercase);
        Self { rows: Vec::new(), only: only.collect(), began: Instant::now() }
    }

    fn wants(&self, name: &str) -> bool {
        let name = name.to_lowercase();
        self.only.is_empty() || self.only.iter().any(|word| name.contains(word))
    }

    pub(crate) fn wants_any(&self, names: &[String]) -> bool {
        names.iter().any(|name| self.wants(name))
    }

    /// Runs a step so often. It is not repeated once it could not be run.
    pub(crate) fn step(&mut self, name: &str, repeat: usize, mut step: impl FnMut() -> Outcome) {
        if !self.wants(name) {
            return;
        }
        let began = Instant::now();
        let mut row = Row { name: name.to_owned(), ..Row::default() };
        for round in 1..=repeat {
            let since = self.began.elapsed().as_secs();
            println!("interop: {since} s: {name}, {round} of {repeat}");
            let outcome = catch_unwind(AssertUnwindSafe(&mut step)).unwrap_or_else(|panic| {
                let text = panic.downcast_ref::<String>().cloned();
                Outcome::Failed(text.unwrap_or_else(|| "it panicked, see above".to_owned()))
            });
            match outcome {
                Outcome::Passed => row.passed += 1,
                Outcome::PassedWith(detail) => (row.passed, row.detail) = (row.passed + 1, detail),
                Outcome::Failed(why) => {
                    println!("interop: {name}, {round} of {repeat}, has failed: {why}");
                    row.failed += 1;
                    row.detail = why.lines().next().unwrap_or_default().to_owned();
                }
                Outcome::NotRun(why) => {
                    (row.not_run, row.detail) = (row.not_run + 1, why);
                    break;
                }
                Outcome::Counted { passed, failed, not_run, detail } => {
                    row.passed += passed;
                    row.failed += failed;
                    row.not_run += not_run;
                    row.detail = detail;
                }
            }
        }
        row.took = began.elapsed();
        self.rows.push(row);
    }

    /// A step that cannot be run.
    pub(crate) fn not_run(&mut self, name: &str, why: &str) {
        self.step(name, 1, || Outcome::NotRun(why.to_owned()));
    }

    /// Prints the table.
    ///
    /// # Panics
    ///
    /// If something has failed.
    pub(crate) fn close(&self) {
        let width = self.rows.iter().map(|row| row.name.len()).max().unwrap_or(0);
        println!("\ninterop: {:width$}  pass fail not run       s", "");
        for Row { name, passed, failed, not_run, took, detail } in &self.rows {
            let took = took.as_secs_f64();
            println!(
                "interop: {name:width$}  {passed:4} {failed:4} {not_run:7} {took:7.1}  {detail}"
            );
        }
        let sum = |of: fn(&Row) -> usize| self.rows.iter().map(of).sum::<usize>();
        let failed = sum(|row| row.failed);
        println!(
            "interop: {} passed, {failed} failed, {} not run, in {} s",
            sum(|row| row.passed),
            sum(|row| row.not_run),
            self.began.elapsed().as_secs()
        );
        assert!(!self.rows.is_empty(), "no step has a name with one of the words");
        assert_eq!(failed, 0, "runs have failed");
    }
}
