//! Rows of the comparison: one for each size.

use serde::{Deserialize, Serialize};

use super::CompareTest;
use super::systems::{Bench, System};
use crate::output::Report;
use crate::saved::Metric;

/// Whose a figure is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    Ringrail,
    Peer,
    Floor,
}

/// What one system did at one size.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Figure {
    pub(super) system: String,
    pub(super) kind: Kind,
    /// What the value of a round is: `p50` or `mean`.
    pub(super) statistic: String,
    /// The median of the rounds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) value: Option<f64>,
    pub(super) rounds: Vec<f64>,
    /// Of rounds that failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) errors: Vec<String>,
}

/// All systems at one size.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Row {
    /// `compare latency` or `compare bw`.
    test: String,
    size_bytes: usize,
    /// Of all values: `us` or `MB/s`.
    unit: String,
    iterations: u64,
    /// Messages in flight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    window: Option<usize>,
    rounds: usize,
    /// What ringrail's messages went by.
    lanes: Vec<String>,
    systems: Vec<Figure>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    best_peer: Option<String>,
    /// How many times as good as the best peer ringrail is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ratio: Option<f64>,
}

fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

impl Row {
    pub(super) fn new(
        bench: &Bench<'_>,
        size: usize,
        rounds: usize,
        lanes: Vec<String>,
        figures: Vec<Figure>,
    ) -> Self {
        let test = bench.test();
        let mut row = Self {
            test: format!("compare {}", test.name()),
            size_bytes: size,
            unit: test.metric().unit().to_owned(),
            iterations: bench.iters(size),
            window: bench.window(size),
            rounds,
            lanes,
            systems: figures,
            best_peer: None,
            ratio: None,
        };
        row.judge(test.metric());
        row
    }

    /// Fills in the medians, the best peer and the ratio.
    fn judge(&mut self, metric: Metric) {
        for figure in &mut self.systems {
            figure.value = median(&figure.rounds);
        }
        let of = |kind| {
            let figures = self.systems.iter().filter(move |figure| figure.kind == kind);
            figures.filter_map(|figure| Some((&figure.system, figure.value?)))
        };
        let best = of(Kind::Peer).max_by(|a, b| metric.ratio(a.1, b.1).total_cmp(&1.0));
        let ours = of(Kind::Ringrail).next();
        let ratio = ours.zip(best).map(|(ours, best)| metric.ratio(ours.1, best.1));
        let best = best.map(|(name, _)| name.clone());
        (self.best_peer, self.ratio) = (best, ratio);
    }

    /// Whether something failed that is no peer.
    pub(super) fn is_ours_wrong(&self) -> bool {
        self.systems.iter().any(|it| it.kind != Kind::Peer && !it.errors.is_empty())
    }

    /// Says what failed, each cause once.
    pub(super) fn complain(&self) {
        for figure in &self.systems {
            let mut errors = figure.errors.clone();
            errors.dedup();
            for error in errors {
                eprintln!("ringrail-perf: {} at {} bytes: {error}", figure.system, self.size_bytes);
            }
        }
    }

    pub(super) fn print_json(&self) {
        match serde_json::to_string(self) {
            Ok(line) => println!("{line}"),
            Err(error) => eprintln!("ringrail-perf: {error}"),
        }
    }

    /// A report for each system that has a value: what `plot` and `diff` know.
    pub(crate) fn reports(&self) -> Vec<Report> {
        let report = |figure: &Figure| {
            let value = figure.value?;
            let is_latency = self.unit == Metric::LatencyP50.unit();
            Some(Report {
                test: format!("{} ({})", self.test, figure.system),
                size_bytes: self.size_bytes,
                iterations: self.iterations,
                threads: 1,
                latency_us_p50: is_latency.then_some(value),
                bandwidth_mb_s: (!is_latency).then_some(value),
                verified: true,
                ..Report::default()
            })
        };
        self.systems.iter().filter_map(report).collect()
    }
}

/// Characters of the narrowest column.
const WIDTH: usize = 10;

/// The rows for people.
pub(super) struct Table {
    test: CompareTest,
    rounds: usize,
    /// Names, kinds, and whether the value of a round is a mean.
    columns: Vec<(String, Kind)>,
    means: Vec<String>,
}

impl Table {
    pub(super) fn new(test: CompareTest, rounds: usize, systems: &[System]) -> Self {
        let columns = systems.iter().map(|system| (system.name.clone(), system.kind)).collect();
        let is_mean = |system: &&System| system.statistic == "mean";
        let means = systems.iter().filter(is_mean).map(|system| system.name.clone()).collect();
        Self { test, rounds, columns, means }
    }

    /// Prints a row, below the header if it is the first.
    pub(super) fn print(&self, row: &Row, is_first: bool) {
        if is_first {
            self.print_header();
        }
        print!("{:<10}", row.size_bytes);
        self.print_cells(row, false);
        let best = row.best_peer.as_deref().unwrap_or("-");
        print!("{best:>WIDTH$}{}", cell(row.ratio, WIDTH));
        self.print_cells(row, true);
        println!();
    }

    fn print_header(&self) {
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let what = match self.test {
            CompareTest::Latency => "half round trips in us",
            CompareTest::Bw => "MB/s",
        };
        let (name, kernel) = (self.test.name(), kernel.trim());
        print!("# ringrail-perf compare {name}, kernel {kernel}, {what}, rounds: {}", self.rounds);
        if self.test == CompareTest::Latency && !self.means.is_empty() {
            print!("; means, not medians, of a round: {}", self.means.join(", "));
        }
        println!();
        print!("{:<10}", "# Size");
        self.print_names(false);
        print!("{:>WIDTH$}{:>WIDTH$}", "Best peer", "Ratio");
        self.print_names(true);
        println!();
    }

    /// Floors stand behind the verdict, which is not about them.
    fn columns(&self, floors: bool) -> impl Iterator<Item = &(String, Kind)> {
        self.columns.iter().filter(move |(_, kind)| (*kind == Kind::Floor) == floors)
    }

    fn print_names(&self, floors: bool) {
        self.columns(floors).for_each(|(name, _)| print!("{name:>0$}", width(name)));
    }

    fn print_cells(&self, row: &Row, floors: bool) {
        for (name, _) in self.columns(floors) {
            let figure = row.systems.iter().find(|figure| figure.system == *name);
            print!("{}", cell(figure.and_then(|figure| figure.value), width(name)));
        }
    }
}

fn width(name: &str) -> usize {
    WIDTH.max(name.len() + 2)
}

fn cell(value: Option<f64>, width: usize) -> String {
    value.map_or_else(|| format!("{:>width$}", "-"), |value| format!("{value:>width$.2}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(system: &str, kind: Kind, rounds: &[f64]) -> Figure {
        let statistic = "p50".to_owned();
        let (system, rounds) = (system.to_owned(), rounds.to_vec());
        Figure { system, kind, statistic, value: None, rounds, errors: Vec::new() }
    }

    fn row(metric: Metric, systems: Vec<Figure>) -> Row {
        let mut row = Row {
            test: "compare latency".to_owned(),
            size_bytes: 8,
            unit: metric.unit().to_owned(),
            iterations: 1,
            window: None,
            rounds: 3,
            lanes: Vec::new(),
            systems,
            best_peer: None,
            ratio: None,
        };
        row.judge(metric);
        row
    }

    fn systems() -> Vec<Figure> {
        vec![
            figure("ringrail", Kind::Ringrail, &[9.0, 2.0, 3.0]),
            figure("a", Kind::Peer, &[6.0]),
            figure("b", Kind::Peer, &[4.0, 12.0, 12.0]),
            figure("c", Kind::Peer, &[]),
            // A floor is no peer, however good it is.
            figure("floor", Kind::Floor, &[1.0]),
        ]
    }

    #[test]
    fn medians_are_beside_those_of_the_best_peer() {
        let latency = row(Metric::LatencyP50, systems());
        assert_eq!((latency.best_peer.as_deref(), latency.ratio), (Some("a"), Some(2.0)));
        let bandwidth = row(Metric::Bandwidth, systems());
        assert_eq!((bandwidth.best_peer.as_deref(), bandwidth.ratio), (Some("b"), Some(0.25)));
        let alone = row(Metric::Bandwidth, systems().drain(..1).collect());
        assert_eq!((alone.best_peer, alone.ratio), (None, None));
    }

    #[test]
    fn a_line_is_read_again_and_becomes_reports() {
        let line = serde_json::to_string(&row(Metric::LatencyP50, systems())).unwrap();
        let again: Row = serde_json::from_str(&line).unwrap();
        assert_eq!(serde_json::to_string(&again).unwrap(), line);
        let reports = again.reports();
        let values: Vec<_> =
            reports.iter().map(|it| (it.test.as_str(), it.latency_us_p50)).collect();
        assert_eq!(
            values[..2],
            [("compare latency (ringrail)", Some(3.0)), ("compare latency (a)", Some(6.0)),]
        );
        assert_eq!(values.len(), 4, "who has no value has no report");
    }

    #[test]
    fn a_failure_of_a_peer_is_not_ours() {
        let mut row = row(Metric::LatencyP50, systems());
        row.systems[3].errors.push("it fails".to_owned());
        assert!(!row.is_ours_wrong());
        row.systems[4].errors.push("it fails".to_owned());
        assert!(row.is_ours_wrong());
    }
}
