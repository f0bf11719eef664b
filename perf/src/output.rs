//! Results, as tables, JSON or CSV.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::cli::{Cli, HintName};
use crate::test::alltoall::AlltoallReport;
use crate::test::failover::FailoverReport;
use crate::test::incast::IncastReport;
use crate::test::overlap::OverlapReport;
use crate::test::sharing::Sharing;
use crate::test::threads::{ThreadLatencies, ThreadRates};
use crate::test::wake::WakeReport;

/// One line of results; keys as in the performance contract.
///
/// With a control lane of datagrams: `control_lane` is what messages went by (`udp`, `xdp`, `tcp`,
/// or both: `udp+tcp`, `xdp+tcp`), `datagram_share` the part of the segments received by either
/// side that came in datagrams, `datagrams_*` what the client counted and `datagrams_*_peer` the
/// server.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) test: String,
    pub(crate) size_bytes: usize,
    pub(crate) iterations: u64,
    pub(crate) threads: usize,
    /// What the threads have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) endpoints: Option<EndpointKind>,
    pub(crate) lanes: Vec<String>,
    /// What messages were for, if that was said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) hint: Option<HintName>,
    /// What the client computed before each message, in microseconds, if that was said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pause_us: Option<u64>,
    /// With several paths: bytes that bulk lanes carried, both ways, by NIC of the client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rail_bytes: Option<BTreeMap<String, u64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) latency_us_min: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) latency_us_p50: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) latency_us_p99: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) latency_us_p999: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bandwidth_mb_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) message_rate_per_s: Option<f64>,
    pub(crate) verified: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) syscalls_per_message: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) syscalls_per_message_peer: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) zero_copy: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) control_lane: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) datagram_share: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) datagrams_sent: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) datagrams_sent_peer: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) datagrams_lost: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) datagrams_lost_peer: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) datagrams_dropped: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) datagrams_dropped_peer: Option<u64>,
    /// The longest message that went with its envelope, at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) eager_limit_bytes: Option<u64>,
    /// Of a sweep: from where on pulling is faster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) crossover_bytes: Option<usize>,
    /// Of all rails: the best single one, and how many times as good as that all are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) best_rail: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ratio: Option<f64>,
    /// Of an operation on memory: what messages that do the same took, or brought, by turns with
    /// it, in the unit of this test.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) two_sided: Option<f64>,
    /// How many times that it is: the median of the quotients of rounds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) by_two_sided: Option<f64>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(crate) thread_rates: Option<ThreadRates>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(crate) thread_latencies: Option<ThreadLatencies>,
    /// Of shared endpoints: how the threads of the client came together at its engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sharing_per_million: Option<Sharing>,
    /// The same of the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sharing_per_million_peer: Option<Sharing>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(crate) incast: Option<IncastReport>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(crate) alltoall: Option<AlltoallReport>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(crate) overlap: Option<OverlapReport>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(crate) wake: Option<WakeReport>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(crate) failover: Option<FailoverReport>,
}

/// What the threads of a side have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum EndpointKind {
    /// Each thread owns an endpoint, which has an engine.
    Owned,
    /// All endpoints are on one engine, which the threads share.
    Shared,
    /// The same, with a thread of the engine's own that makes its progress.
    Dedicated,
}

impl EndpointKind {
    pub(crate) fn of(is_shared: bool) -> Self {
        if is_shared { Self::Shared } else { Self::Owned }
    }
}

/// A histogram of nanoseconds.
pub(crate) type Histogram = hdrhistogram::Histogram<u64>;

/// An empty histogram.
pub(crate) fn histogram() -> Histogram {
    // Up to 60 s with three digits; the arguments are valid.
    Histogram::new_with_bounds(1, 60_000_000_000, 3).unwrap_or_else(|_| unreachable!())
}

impl Report {
    /// Puts latencies in; the histogram holds nanoseconds.
    pub(crate) fn latencies(&mut self, histogram: &Histogram) {
        let us = |ns: u64| Some(ns as f64 / 1000.0);
        self.latency_us_min = us(histogram.min());
        self.latency_us_p50 = us(histogram.value_at_quantile(0.5));
        self.latency_us_p99 = us(histogram.value_at_quantile(0.99));
        self.latency_us_p999 = us(histogram.value_at_quantile(0.999));
    }

    /// What rounds are compared by: smaller is better.
    fn cost(&self) -> f64 {
        match (self.latency_us_p50, self.bandwidth_mb_s, self.message_rate_per_s) {
            (Some(latency), ..) => latency,
            (None, Some(bandwidth), _) => -bandwidth,
            (None, None, rate) => -rate.unwrap_or(0.0),
        }
    }
}

/// What both sides counted together.
fn both(ours: Option<u64>, theirs: Option<u64>) -> Option<f64> {
    ours.map(|ours| (ours + theirs.unwrap_or(0)) as f64)
}

/// The median of several rounds; verified only if all are.
pub(crate) fn median(mut rounds: Vec<Report>) -> Option<Report> {
    let verified = rounds.iter().all(|report| report.verified);
    rounds.sort_by(|a, b| a.cost().total_cmp(&b.cost()));
    let middle = rounds.len() / 2;
    let mut report = rounds.into_iter().nth(middle)?;
    report.verified = verified;
    Some(report)
}

/// How to print.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Style {
    Table,
    Json,
    Csv,
}

impl Style {
    /// As the command line says.
    pub(crate) fn of(cli: &Cli) -> Self {
        match (cli.json, cli.csv) {
            (true, _) => Self::Json,
            (_, true) => Self::Csv,
            _ => Self::Table,
        }
    }
}

/// Prints a report as one line.
pub(crate) fn print_json(report: &Report) {
    match serde_json::to_string(report) {
        Ok(line) => println!("{line}"),
        Err(error) => eprintln!("ringrail-perf: {error}"),
    }
}

/// What a table or CSV has of a report beside the size: each column that it has something for.
/// Names tell messages from datagrams, of which lost ones cost nothing but time.
fn columns(report: &Report) -> Vec<(&'static str, f64)> {
    let failover = report.failover.as_ref();
    let incast = report.incast.as_ref();
    let overlap = report.overlap.as_ref();
    let alltoall = report.alltoall.as_ref();
    let wake = report.wake.as_ref();
    let (rates, medians) = (report.thread_rates.as_ref(), report.thread_latencies.as_ref());
    let sharing = report.sharing_per_million.as_ref();
    let columns = [
        ("Threads", (report.threads > 1).then_some(report.threads as f64)),
        ("Senders", incast.map(|report| report.senders as f64)),
        ("One alone (MB/s)", incast.map(|report| report.single_mb_s)),
        ("Share of link", incast.map(|report| report.link_share)),
        ("Slowest by mean", incast.map(|report| report.slowest_share)),
        ("Ranks", alltoall.map(|of| of.ranks as f64)),
        ("ns/message", alltoall.map(|of| of.ns_per_message)),
        ("Among 8 (ns)", alltoall.map(|of| of.few_ns_per_message)),
        ("By that", alltoall.map(|of| of.by_few)),
        ("Empty look (ns)", alltoall.map(|of| of.empty_look_ns)),
        ("Among 8", alltoall.map(|of| of.few_empty_look_ns)),
        ("Shared/pair (KiB)", alltoall.map(|of| of.shared_kib_per_pair)),
        ("Own/pair (KiB)", alltoall.map(|of| of.own_kib_per_pair)),
        ("Gap p50 (ms)", failover.map(|report| report.gap_ms_p50)),
        ("Gap p99 (ms)", failover.map(|report| report.gap_ms_p99)),
        ("Gap max (ms)", failover.map(|report| report.gap_ms_max)),
        ("Recovered (ms)", failover.map(|report| report.recovered_ms)),
        ("Surviving share", failover.and_then(|report| report.surviving_share)),
        ("Messages lost", failover.map(|report| report.lost as f64)),
        ("Messages duplicated", failover.map(|report| report.duplicated as f64)),
        ("Messages reordered", failover.map(|report| report.reordered as f64)),
        ("Messages corrupted", failover.map(|report| report.corrupted as f64)),
        ("Latency (us)", report.latency_us_p50),
        ("p99 (us)", report.latency_us_p99),
        ("Awake (us)", wake.map(|of| of.awake_us_p50)),
        ("Wake (us)", wake.map(|of| of.wake_us)),
        ("By floor", wake.map(|of| of.by_floor_wake)),
        ("Overlap (%)", overlap.map(|of| of.overlap_percent)),
        ("Of the peer (%)", overlap.map(|of| of.overlap_percent_peer)),
        ("Progress' CPU", overlap.map(|of| of.progress_cpu_share)),
        ("The peer's", overlap.map(|of| of.progress_cpu_share_peer)),
        ("Bandwidth (MB/s)", report.bandwidth_mb_s),
        ("Messages/s", report.message_rate_per_s),
        ("Two-sided", report.two_sided),
        ("By two-sided", report.by_two_sided),
        ("Least thread (/s)", rates.map(|rates| rates.thread_rate_min_per_s)),
        ("Mean thread (/s)", rates.map(|rates| rates.thread_rate_mean_per_s)),
        ("Most thread (/s)", rates.map(|rates| rates.thread_rate_max_per_s)),
        ("Slowest by mean", rates.map(|rates| rates.slowest_thread_share)),
        ("Best p50 (us)", medians.map(|of| of.thread_latency_us_p50_min)),
        ("Worst p50 (us)", medians.map(|of| of.thread_latency_us_p50_max)),
        ("Failed locks/M", sharing.map(|of| of.failed_locks)),
        ("Combined/M", sharing.map(|of| of.combined)),
        ("Leftovers/M", sharing.map(|of| of.leftovers)),
        ("Sleeps/M", sharing.map(|of| of.sleeps)),
        ("Syscalls/message", report.syscalls_per_message),
        ("By datagram (%)", report.datagram_share.map(|share| share * 100.0)),
        ("Datagrams", both(report.datagrams_sent, report.datagrams_sent_peer)),
        ("Datagrams lost", both(report.datagrams_lost, report.datagrams_lost_peer)),
        ("Datagrams dropped", both(report.datagrams_dropped, report.datagrams_dropped_peer)),
    ];
    columns.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

/// Characters of a column of a table, the first one aside.
const WIDTH: usize = 20;

/// Prints reports one after the other.
#[derive(Clone)]
pub(crate) struct Printer {
    style: Style,
    has_header: bool,
}

impl Printer {
    pub(crate) fn new(style: Style) -> Self {
        Self { style, has_header: false }
    }

    pub(crate) fn print(&mut self, report: &Report) {
        let columns = columns(report);
        if !self.has_header && self.style != Style::Json {
            self.has_header = true;
            if self.style == Style::Table {
                let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease");
                let kernel = kernel.unwrap_or_default();
                let lanes = report.lanes.join(",");
                println!("# ringrail-perf {}, kernel {}, {lanes}", report.test, kernel.trim());
                print!("{:<10}", "# Size");
                columns.iter().for_each(|(name, _)| print!("{name:>WIDTH$}"));
            } else {
                print!("size");
                columns.iter().for_each(|(name, _)| print!(",{name}"));
            }
            println!();
        }
        match self.style {
            Style::Json => print_json(report),
            Style::Csv => {
                print!("{}", report.size_bytes);
                columns.iter().for_each(|(_, value)| print!(",{value}"));
                println!();
            }
            Style::Table => {
                print!("{:<10}", report.size_bytes);
                columns.iter().for_each(|(_, value)| print!("{value:>WIDTH$.2}"));
                println!("{}", if report.verified { "" } else { "   NOT VERIFIED" });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_round_is_reported_and_one_bad_one_taints_it() {
        let round = |rate: f64, verified| Report {
            message_rate_per_s: Some(rate),
            verified,
            ..Report::default()
        };
        let report = median(vec![round(1.0, true), round(9.0, false), round(5.0, true)]).unwrap();
        assert_eq!((report.message_rate_per_s, report.verified), (Some(5.0), false));
    }

    /// Parts are flattened into one object: two of one name would make lines that nobody can read.
    #[test]
    fn a_line_with_every_part_is_read_again() {
        let whole = Report {
            rail_bytes: Some(BTreeMap::from([("rail0".to_owned(), 4096)])),
            thread_rates: Some(ThreadRates::default()),
            thread_latencies: Some(ThreadLatencies::default()),
            endpoints: Some(EndpointKind::Shared),
            sharing_per_million: Some(Sharing::default()),
            sharing_per_million_peer: Some(Sharing::default()),
            incast: Some(IncastReport::default()),
            alltoall: Some(AlltoallReport::default()),
            overlap: Some(OverlapReport::default()),
            wake: Some(WakeReport::default()),
            failover: Some(FailoverReport::default()),
            ..Report::default()
        };
        let line = serde_json::to_string(&whole).unwrap();
        let again: Report = serde_json::from_str(&line).unwrap();
        assert_eq!(serde_json::to_string(&again).unwrap(), line);
    }

    /// A column of lost datagrams beside a stream that lost nothing is no alarm.
    #[test]
    fn messages_and_datagrams_have_columns_of_their_own() {
        let failover =
            FailoverReport { lost: 1, duplicated: 2, reordered: 3, corrupted: 4, ..<_>::default() };
        let mut report = Report {
            failover: Some(failover),
            datagrams_lost: Some(7),
            datagrams_lost_peer: Some(5),
            datagrams_dropped: Some(6),
            ..Report::default()
        };
        let of = |report: &Report, name: &str| {
            columns(report).iter().find(|(column, _)| *column == name).map(|(_, value)| *value)
        };
        for (name, value) in [
            ("Messages lost", 1.0),
            ("Messages duplicated", 2.0),
            ("Messages reordered", 3.0),
            ("Messages corrupted", 4.0),
            ("Datagrams lost", 12.0),
            ("Datagrams dropped", 6.0),
        ] {
            assert_eq!(of(&report, name), Some(value), "{name}");
            // One blank at least is before each.
            assert!(name.len() < WIDTH, "{name}");
        }
        report.failover = None;
        assert_eq!(of(&report, "Messages lost"), None);
        assert_eq!(of(&report, "Datagrams lost"), Some(12.0));
    }
}
