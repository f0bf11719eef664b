//! Several threads on each side, each with an endpoint of its own: thread i of the client and
//! thread i of the server run one of the other tests, all at the same time.
//!
//! A thread drives a [`Side`], as a test of one thread does, over a control connection of its own.
//! Its endpoint has an engine that the thread owns, or is one of those on the engine that all
//! threads of the side share.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use ringrail::{Attached, Domain, Endpoint, EndpointOptions, Shared};
use serde::{Deserialize, Serialize};

use super::sharing::Readings;
use super::{Side, message};
use crate::cli::{Cli, TestName};
use crate::link::{Job, Link};
use crate::output::{EndpointKind, Histogram, Report, histogram};
use crate::progress::Progress;

/// Threads of a side at most: each has an engine.
const THREADS_MAX: usize = 64;

/// What a thread says that stops because of another one.
const OTHER_FAILED: &str = "another thread failed";

/// What each thread reached, of tests that have a rate.
///
/// A thread's rate is of the time it took for its own messages. Threads begin together and have as
/// many messages each, so that a slow one has less company at its end: what it lacks is at least
/// what `slowest_thread_share` says.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ThreadRates {
    pub(crate) thread_rate_min_per_s: f64,
    pub(crate) thread_rate_mean_per_s: f64,
    pub(crate) thread_rate_max_per_s: f64,
    /// The slowest thread, by the mean of all.
    pub(crate) slowest_thread_share: f64,
    pub(crate) thread_rate_per_s: Vec<f64>,
}

impl ThreadRates {
    fn of(rates: Vec<f64>) -> Self {
        let mean = rates.iter().sum::<f64>() / rates.len() as f64;
        let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
        Self {
            thread_rate_min_per_s: least,
            thread_rate_mean_per_s: mean,
            thread_rate_max_per_s: rates.iter().copied().fold(0.0, f64::max),
            slowest_thread_share: least / mean,
            thread_rate_per_s: rates,
        }
    }
}

/// The median of each thread, of `latency-mt`, in microseconds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ThreadLatencies {
    pub(crate) thread_latency_us_p50_min: f64,
    pub(crate) thread_latency_us_p50_max: f64,
    pub(crate) thread_latency_us_p50: Vec<f64>,
}

/// Refuses threads where there is no test for them.
pub(crate) fn check(cli: &Cli) -> Result<(), String> {
    if !(1..=THREADS_MAX).contains(&cli.threads) {
        return Err(format!("--threads is from 1 to {THREADS_MAX}"));
    }
    let has_threads =
        matches!(cli.test, TestName::Mr | TestName::Bw | TestName::Bibw | TestName::LatencyMt);
    if cli.threads > 1 && !has_threads {
        return Err("--threads above 1 is of mr, bw, bibw and latency-mt".to_owned());
    }
    if cli.threads > 1 && cli.pcap.is_some() {
        return Err("--pcap writes what one endpoint carries: use --threads 1".to_owned());
    }
    if cli.shared && !has_threads && cli.test != TestName::Latency {
        return Err("--shared is of mr, bw, bibw, latency and latency-mt".to_owned());
    }
    let is_uring = cli.lanes.settings().contains(&("lanes", "uring"));
    if is_uring && (cli.shared || matches!(cli.test, TestName::Overlap | TestName::DedicatedWake)) {
        return Err("shared and dedicated endpoints go by plain sockets: --lanes auto, sockets, \
                    udp-sockets, udp-only or xdp-only"
            .to_owned());
    }
    Ok(())
}

/// What a thread has of a round.
#[derive(Default)]
struct Part {
    report: Report,
    span: Option<(Instant, Instant)>,
    histogram: Option<Histogram>,
    /// What the engine that threads share counted, on this side and on the other one.
    readings: Option<(Readings, Readings)>,
}

/// Runs all rounds of a job on all threads; the client's reports mean something.
pub(super) fn run(
    link: &mut Link,
    job: &Job,
    domain: &Domain,
    is_server: bool,
    progress: &Progress,
) -> Result<Vec<Report>, String> {
    let links = (0..job.threads).map(|_| link.beside(is_server));
    let links = links.collect::<Result<Vec<_>, _>>()?;
    let share = || domain.endpoint().and_then(Endpoint::share).map_err(message);
    let shared = job.is_shared.then(share).transpose()?;
    let gate = Gate { threads: job.threads, ..Gate::default() };
    let threads: Vec<Vec<Part>> = std::thread::scope(|scope| {
        let start = |(at, mut link): (usize, Link)| {
            let (gate, domain, shared) = (&gate, domain.clone(), shared.as_ref());
            scope.spawn(move || {
                let watcher = (at == 0).then_some(progress);
                let side = (&mut link, job, is_server);
                let parts = match shared {
                    Some(shared) => sharer(side, shared, (gate, watcher)),
                    None => owner(side, &domain, (gate, watcher)),
                };
                if parts.is_err() {
                    gate.has_failed.store(true, Ordering::Release);
                }
                parts
            })
        };
        let running: Vec<_> = links.into_iter().enumerate().map(start).collect();
        let ended = running.into_iter().map(|thread| {
            let ended = thread.join().unwrap_or_else(|_| Err("it panicked".to_owned()));
            ended.map_err(|error| format!("one of the threads: {error}"))
        });
        // All are joined before an error counts: that of the thread that has a cause to name.
        let mut ended: Vec<_> = ended.collect();
        let is_cause = |ended: &Result<_, String>| {
            ended.as_ref().is_err_and(|error| !error.ends_with(OTHER_FAILED))
        };
        match ended.iter().position(is_cause) {
            Some(at) => ended.swap_remove(at).map(|cause| vec![cause]),
            None => ended.into_iter().collect(),
        }
    })?;
    link.barrier()?;
    let mut threads: Vec<_> = threads.into_iter().map(Vec::into_iter).collect();
    // The first round warms up.
    let rounds = (0..=job.rounds).map(|_| {
        let parts = threads.iter_mut().map(Iterator::next).collect::<Option<Vec<_>>>();
        parts.and_then(together).ok_or_else(|| "a thread has not measured every round".to_owned())
    });
    let mut reports = rounds.collect::<Result<Vec<_>, _>>()?;
    reports.remove(0);
    Ok(reports)
}

/// What a thread opens its side with: its control connection, the job, whether it is the server.
type Opening<'a> = (&'a mut Link, &'a Job, bool);

/// All rounds of a thread that owns its endpoint.
fn owner(
    (link, job, is_server): Opening<'_>,
    domain: &Domain,
    (gate, progress): (&Gate, Option<&Progress>),
) -> Result<Vec<Part>, String> {
    let endpoint = domain.endpoint().and_then(Endpoint::attach).map_err(message)?;
    let mut side = Side::open(link, job, endpoint, is_server)?;
    rounds(&mut side, (gate, progress), |side| {
        let report = side.round()?;
        Ok(Part { report, ..Part::default() })
    })
}

/// All rounds of a thread that shares an engine with the others. It has an endpoint there, with a
/// completion queue, so that nobody else takes what is its own.
fn sharer(
    (link, job, is_server): Opening<'_>,
    shared: &Endpoint<Shared>,
    (gate, progress): (&Gate, Option<&Progress>),
) -> Result<Vec<Part>, String> {
    let endpoint = shared.open_endpoint(EndpointOptions::default()).map_err(message)?;
    let mut side = Side::open(link, job, endpoint, is_server)?;
    rounds(&mut side, (gate, progress), |side| {
        let (report, ours) = Readings::around(shared, || side.round())?;
        side.link.put(&ours)?;
        let readings = Some((ours, side.get()?));
        Ok(Part { report, readings, ..Part::default() })
    })
}

/// All rounds of one thread, which `measure` makes. The first thread says how far they are.
fn rounds<M: Attached>(
    side: &mut Side<'_, M>,
    (gate, progress): (&Gate, Option<&Progress>),
    mut measure: impl FnMut(&mut Side<'_, M>) -> Result<Part, String>,
) -> Result<Vec<Part>, String> {
    let mut parts = Vec::new();
    for round in 0..=side.job.rounds {
        side.barrier()?;
        gate.pass(round, side)?;
        let part = measure(side)?;
        parts.push(Part { span: side.span.take(), histogram: side.histogram.take(), ..part });
        if let Some(progress) = progress {
            progress.advance();
        }
    }
    // Neither side leaves while the other still waits for something.
    side.barrier()?;
    Ok(parts)
}

/// Where the threads of a side wait for each other before each round.
#[derive(Default)]
struct Gate {
    threads: usize,
    arrived: AtomicUsize,
    has_failed: AtomicBool,
}

impl Gate {
    /// Waits for all other threads; `round` counts from 0. An endpoint makes progress meanwhile.
    fn pass(&self, round: usize, side: &Side<'_, impl Attached>) -> Result<(), String> {
        self.arrived.fetch_add(1, Ordering::AcqRel);
        while self.arrived.load(Ordering::Acquire) < self.threads * (round + 1) {
            if self.has_failed.load(Ordering::Acquire) {
                return Err(OTHER_FAILED.to_owned());
            }
            side.endpoint.progress().map_err(message)?;
            std::thread::yield_now();
        }
        Ok(())
    }
}

/// One round of all threads: sums of rates are of the time from the first message to the last.
fn together(parts: Vec<Part>) -> Option<Report> {
    let mut report = parts.first()?.report.clone();
    let count = parts.len() as f64;
    // Engines of their own are added up. Of one that is shared each thread has counted the whole,
    // and who took longest has missed least.
    let is_shared = report.endpoints == Some(EndpointKind::Shared);
    let add = |one: u64, other: u64| if is_shared { one.max(other) } else { one + other };
    let all = |of: fn(&Report) -> Option<u64>| {
        let counts = parts.iter().map(|part| of(&part.report)).collect::<Option<Vec<_>>>()?;
        counts.into_iter().reduce(add)
    };
    let mean = |of: fn(&Report) -> Option<f64>| {
        let parts = parts.iter().map(|part| of(&part.report)).collect::<Option<Vec<_>>>()?;
        let most = parts.iter().copied().fold(0.0, f64::max);
        Some(if is_shared { most } else { parts.iter().sum::<f64>() / count })
    };
    report.verified = parts.iter().all(|part| part.report.verified);
    report.syscalls_per_message = mean(|it| it.syscalls_per_message);
    report.syscalls_per_message_peer = mean(|it| it.syscalls_per_message_peer);
    report.datagram_share = mean(|it| it.datagram_share);
    report.datagrams_sent = all(|it| it.datagrams_sent);
    report.datagrams_sent_peer = all(|it| it.datagrams_sent_peer);
    report.datagrams_lost = all(|it| it.datagrams_lost);
    report.datagrams_lost_peer = all(|it| it.datagrams_lost_peer);
    report.datagrams_dropped = all(|it| it.datagrams_dropped);
    report.datagrams_dropped_peer = all(|it| it.datagrams_dropped_peer);
    for other in parts.iter().skip(1).filter_map(|part| part.report.rail_bytes.as_ref()) {
        for (nic, &bytes) in other {
            let of_all = report.rail_bytes.get_or_insert_default().entry(nic.clone()).or_default();
            *of_all = add(*of_all, bytes);
        }
    }
    let messages = report.iterations * parts.len() as u64;
    let readings = || parts.iter().map(|part| part.readings);
    report.sharing_per_million = Readings::together(readings().map(|both| Some(both?.0)), messages);
    report.sharing_per_million_peer =
        Readings::together(readings().map(|both| Some(both?.1)), messages);
    let begins = parts.iter().filter_map(|part| part.span).map(|(begin, _)| begin).min();
    let ends = parts.iter().filter_map(|part| part.span).map(|(_, end)| end).max();
    if let (Some(begin), Some(end)) = (begins, ends) {
        let seconds = (end - begin).as_secs_f64().max(1e-9);
        // What each thread moved: its rate by its own time.
        let moved = |of: fn(&Report) -> Option<f64>| {
            let of_it = |part: &Part| {
                let (begin, end) = part.span?;
                Some(of(&part.report)? * (end - begin).as_secs_f64())
            };
            parts.iter().map(of_it).sum::<Option<f64>>()
        };
        report.message_rate_per_s = moved(|it| it.message_rate_per_s).map(|all| all / seconds);
        report.bandwidth_mb_s = moved(|it| it.bandwidth_mb_s).map(|all| all / seconds);
        let rates = parts.iter().filter_map(|part| part.report.message_rate_per_s).collect();
        report.thread_rates = Some(ThreadRates::of(rates));
    }
    let histograms = parts.iter().filter_map(|part| part.histogram.as_ref());
    let mut all = histogram();
    if histograms.clone().try_for_each(|one| all.add(one)).is_ok() && !all.is_empty() {
        report.latencies(&all);
        let medians: Vec<f64> =
            parts.iter().filter_map(|part| part.report.latency_us_p50).collect();
        report.thread_latencies = Some(ThreadLatencies {
            thread_latency_us_p50_min: medians.iter().copied().fold(f64::INFINITY, f64::min),
            thread_latency_us_p50_max: medians.iter().copied().fold(0.0, f64::max),
            thread_latency_us_p50: medians,
        });
    }
    Some(report)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn part(begin: Instant, millis: u64, messages: f64) -> Part {
        let end = begin + Duration::from_millis(millis);
        let rate = messages * 1000.0 / millis as f64;
        let report = Report {
            message_rate_per_s: Some(rate),
            datagrams_lost: Some(2),
            syscalls_per_message: Some(millis as f64),
            verified: true,
            ..Report::default()
        };
        Part { report, span: Some((begin, end)), ..Part::default() }
    }

    /// The sum of what threads reach is not what all of them reach, if they do not end together.
    #[test]
    fn the_rate_of_all_is_that_of_the_whole_time() {
        let begin = Instant::now();
        let later = begin + Duration::from_millis(500);
        let all = together(vec![part(begin, 1000, 600.0), part(later, 1500, 600.0)]).unwrap();
        assert!((all.message_rate_per_s.unwrap() - 600.0).abs() < 1e-6, "{all:?}");
        assert_eq!((all.datagrams_lost, all.syscalls_per_message), (Some(4), Some(1250.0)));
        let rates = all.thread_rates.unwrap();
        assert_eq!(rates.thread_rate_per_s, [600.0, 400.0]);
        assert!((rates.slowest_thread_share - 0.8).abs() < 1e-9, "{rates:?}");
    }

    #[test]
    fn latencies_of_all_threads_are_one_distribution() {
        let one = |ns: u64| {
            let mut of_it = histogram();
            of_it.record_n(ns, 10).unwrap();
            let mut report = Report { verified: ns < 9000, ..Report::default() };
            report.latencies(&of_it);
            Part { report, histogram: Some(of_it), ..Part::default() }
        };
        let all = together(vec![one(1000), one(9000)]).unwrap();
        assert!(all.latency_us_min.unwrap() < 1.1 && all.latency_us_p99.unwrap() > 8.9, "{all:?}");
        assert!(!all.verified, "one bad thread taints all");
        let threads = all.thread_latencies.unwrap();
        assert_eq!(threads.thread_latency_us_p50.len(), 2);
        assert!(threads.thread_latency_us_p50_min < threads.thread_latency_us_p50_max);
        assert!(all.thread_rates.is_none());
    }
}
