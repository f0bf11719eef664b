//! Whether the host does much else: figures are worse then, and differ from run to run.

use std::fmt;
use std::fs;
use std::io::IsTerminal as _;

/// Of the last ten seconds, how much somebody waited for a core, in percent, on a busy host.
const PRESSURE_MAX: f64 = 10.0;

/// Of the cores, how many had something to do in the last minute, on a busy host.
const LOAD_SHARE_MAX: f64 = 0.5;

/// What the host does, beside what is measured.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Busy {
    /// Percent of ten seconds; `None`: the kernel does not say (`CONFIG_PSI`).
    pressure: Option<f64>,
    load: Option<f64>,
    cores: usize,
}

impl Busy {
    /// Looks now, before anything is measured.
    pub(crate) fn look() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        Self {
            pressure: pressure(&read("/proc/pressure/cpu")),
            load: load(&read("/proc/loadavg")),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }

    fn is_busy(&self) -> bool {
        let is_waited_for = self.pressure.is_some_and(|percent| percent > PRESSURE_MAX);
        let most = self.cores as f64 * LOAD_SHARE_MAX;
        is_waited_for || self.load.is_some_and(|load| load > most)
    }

    /// Warns somebody who watches.
    pub(crate) fn warn_terminal(&self) {
        if std::io::stderr().is_terminal() {
            self.warn();
        }
    }

    /// Warns somebody who reads the output afterwards. A failure stays one line.
    pub(crate) fn warn_reader(&self) {
        if !std::io::stderr().is_terminal() {
            self.warn();
        }
    }

    fn warn(&self) {
        if self.is_busy() {
            eprintln!("ringrail-perf: warning: {self}");
        }
    }
}

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "this host was busy before the test")?;
        if let Some(load) = self.load {
            write!(f, ", load average {load} on {} cores", self.cores)?;
        }
        if let Some(pressure) = self.pressure {
            write!(f, ", tasks waited for a core in {pressure} % of ten seconds")?;
        }
        write!(f, ": figures are worse than those of an idle one")
    }
}

/// The share of the last ten seconds in which some task waited for a core.
fn pressure(text: &str) -> Option<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix("some "))?;
    line.split_whitespace().find_map(|word| word.strip_prefix("avg10="))?.parse().ok()
}

/// The load average of the last minute.
fn load(text: &str) -> Option<f64> {
    text.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_host_is_seen_by_either_figure() {
        let text = "some avg10=12.50 avg60=3.00 avg300=1.00 total=1\nfull avg10=0.00 total=0\n";
        let pressure = pressure(text);
        let load = load("0.40 2.00 3.00 1/100 4711\n");
        assert_eq!((pressure, load), (Some(12.5), Some(0.4)));
        let busy = Busy { pressure, load, cores: 2 };
        assert!(busy.is_busy());
        assert!(busy.to_string().contains("load average 0.4 on 2 cores"), "{busy}");
        assert!(!Busy { pressure: Some(1.0), ..busy }.is_busy());
        assert!(Busy { pressure: None, load: Some(1.5), ..busy }.is_busy());
        // A kernel that says nothing is no reason to warn.
        assert!(!Busy { pressure: None, load: None, ..busy }.is_busy());
        assert_eq!((super::pressure(""), super::load("")), (None, None));
    }
}
