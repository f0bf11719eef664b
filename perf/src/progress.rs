//! How far a measurement is, for somebody who watches.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::cli::TestName;

/// A bar on standard error, where that is a terminal; otherwise nothing.
///
/// It is drawn between rounds only: a thread that kept it moving would take its core away from
/// what is measured.
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// A bar of `rounds` rounds, those to warm up included.
    pub(crate) fn new(rounds: u64) -> Self {
        // The target hides itself where standard error is no terminal.
        let bar = ProgressBar::with_draw_target(Some(rounds), ProgressDrawTarget::stderr());
        let template = "{bar:30} round {pos} of {len}, {elapsed}: {msg}";
        let style = ProgressStyle::with_template(template);
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self(bar)
    }

    /// A bar that nobody sees: that of a server.
    pub(crate) fn hidden() -> Self {
        Self(ProgressBar::hidden())
    }

    /// Says what is measured now.
    pub(crate) fn begin(&self, test: TestName, size: usize) {
        let name = serde_json::to_value(test).ok();
        self.begin_named(name.as_ref().and_then(|name| name.as_str()).unwrap_or_default(), size);
    }

    /// The same of what is no test.
    pub(crate) fn begin_named(&self, name: &str, size: usize) {
        self.0.set_message(format!("{name} of {size} bytes"));
        self.0.tick();
    }

    /// A round is over.
    pub(crate) fn advance(&self) {
        self.0.inc(1);
        self.0.tick();
    }

    /// Prints without the bar in between.
    pub(crate) fn suspend(&self, print: impl FnOnce()) {
        self.0.suspend(print);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
