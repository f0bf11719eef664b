//! How far a measurement is, for somebody who watches.

use std::sync::{Mutex, PoisonError};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::cli::TestName;
use crate::interrupt;
use crate::output::{Printer, Report, median};

/// A bar on standard error, where that is a terminal; otherwise nothing.
///
/// It is drawn between rounds only: a thread that kept it moving would take its core away from
/// what is measured.
///
/// It also keeps the rounds of the measurement that is under way, for an interruption to print.
pub(crate) struct Progress {
    bar: ProgressBar,
    /// `None`: rounds of this one are printed by nobody.
    rounds: Mutex<Option<Rounds>>,
}

/// Rounds of one size that are over.
#[derive(Clone)]
struct Rounds {
    printer: Printer,
    reports: Vec<Report>,
    planned: usize,
}

impl Progress {
    /// A bar of `rounds` rounds, those to warm up included.
    pub(crate) fn new(rounds: u64) -> Self {
        // The target hides itself where standard error is no terminal.
        let bar = ProgressBar::with_draw_target(Some(rounds), ProgressDrawTarget::stderr());
        let template = "{bar:30} round {pos} of {len}, {elapsed}: {msg}";
        let style = ProgressStyle::with_template(template);
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self { bar, rounds: Mutex::new(None) }
    }

    /// A bar that nobody sees: that of a server.
    pub(crate) fn hidden() -> Self {
        Self { bar: ProgressBar::hidden(), rounds: Mutex::new(None) }
    }

    /// Says what is measured now.
    pub(crate) fn begin(&self, test: TestName, size: usize) {
        let name = serde_json::to_value(test).ok();
        self.begin_named(name.as_ref().and_then(|name| name.as_str()).unwrap_or_default(), size);
    }

    /// The same of what is no test.
    pub(crate) fn begin_named(&self, name: &str, size: usize) {
        self.bar.set_message(format!("{name} of {size} bytes"));
        self.bar.tick();
    }

    /// From now on the rounds of one size are kept, for an interruption to print their median as
    /// `printer` would.
    pub(crate) fn offer_rounds(&self, printer: &Printer, planned: usize) {
        let rounds = Rounds { printer: printer.clone(), reports: Vec::new(), planned };
        *self.rounds.lock().unwrap_or_else(PoisonError::into_inner) = Some(rounds);
    }

    /// A round is over, and its report is there.
    pub(crate) fn keep(&self, report: &Report) {
        let mut rounds = self.rounds.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(rounds) = &mut *rounds else { return };
        rounds.reports.push(report.clone());
        let (mut rounds, bar) = (rounds.clone(), self.bar.clone());
        interrupt::offer(move || {
            let (over, planned) = (rounds.reports.len(), rounds.planned);
            let report = median(rounds.reports);
            bar.finish_and_clear();
            report.iter().for_each(|report| rounds.printer.print(report));
            eprintln!("ringrail-perf: interrupted: the last line has {over} of {planned} rounds");
        });
    }

    /// A round is over.
    pub(crate) fn advance(&self) {
        self.bar.inc(1);
        self.bar.tick();
    }

    /// Prints without the bar in between, and in the place of rounds that were kept.
    pub(crate) fn suspend(&self, print: impl FnOnce()) {
        interrupt::printing(|| self.bar.suspend(print));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
