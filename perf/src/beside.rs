//! Operations on memory beside the messages that do the same, interleaved: a round of the one, a
//! round of the other.

use crate::cli::{Cli, TestName};
use crate::lab;
use crate::link::{Job, Link};
use crate::output::{Printer, Report, Style, median};
use crate::progress::Progress;
use crate::saved::Metric;
use crate::test;

const ROUNDS: usize = 5;

/// The test of messages that is measured beside one of operations on memory; `None`: it is another
/// test.
pub(crate) fn two_sided(test: TestName) -> Option<TestName> {
    match test {
        TestName::PutLatency | TestName::GetLatency | TestName::AtomicLatency => {
            Some(TestName::Latency)
        }
        TestName::PutBw | TestName::GetBw => Some(TestName::Bw),
        TestName::PutMr => Some(TestName::Mr),
        _ => None,
    }
}

fn metric(two_sided: TestName) -> Metric {
    match two_sided {
        TestName::Latency => Metric::LatencyP50,
        TestName::Bw => Metric::Bandwidth,
        _ => Metric::MessageRate,
    }
}

/// The client's part.
pub(crate) fn run(cli: &Cli, link: &mut Link, two_sided: TestName) -> Result<(), String> {
    let rounds = cli.rounds.unwrap_or(if cli.brief { 1 } else { ROUNDS }).max(1);
    let other = Cli { test: two_sided, ..cli.clone() };
    let jobs: Vec<(Job, Job)> = lab::jobs(cli).into_iter().zip(lab::jobs(&other)).collect();
    // A measurement warms up for a round.
    let progress = Progress::new((4 * rounds * jobs.len()) as u64);
    let mut printer = Printer::new(Style::of(cli));
    for (ours, theirs) in jobs {
        let (mut reports, mut references) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            for (job, into) in [(&ours, &mut reports), (&theirs, &mut references)] {
                // Those of one measurement; what disturbs the host for a while disturbs both.
                let job = Job { rounds: 1, ..job.clone() };
                link.put(&job)?;
                progress.begin(job.test, job.size);
                let round = test::run(link, &job, false, &progress)?;
                if job.lanes.wants_datagrams() {
                    round.iter().try_for_each(|round| round.check_datagrams(job.lanes))?;
                }
                into.extend(round);
            }
        }
        let report = judge(metric(two_sided), reports, references)?;
        progress.suspend(|| printer.print(&report));
        if !report.verified {
            return Err(format!(
                "{} at {} bytes: content was wrong; please report it",
                report.test, report.size_bytes
            ));
        }
    }
    Ok(())
}

/// The median round, with that of messages and the median of the ratios of rounds beside it.
fn judge(metric: Metric, reports: Vec<Report>, references: Vec<Report>) -> Result<Report, String> {
    let pairs = reports.iter().zip(&references);
    let ratio = |(ours, theirs)| Some(metric.of(ours)? / metric.of(theirs)?);
    let mut ratios: Vec<f64> = pairs.filter_map(ratio).collect();
    ratios.sort_by(f64::total_cmp);
    let middle = ratios.get(ratios.len() / 2).copied();
    let report = median(reports).ok_or("no round was measured")?;
    let reference = median(references).ok_or("no round was measured")?;
    Ok(Report {
        two_sided: metric.of(&reference),
        by_two_sided: middle,
        verified: report.verified && reference.verified,
        ..report
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_compared_one_by_one() {
        let round = |&value: &f64| Report {
            latency_us_p50: Some(value),
            verified: true,
            ..Report::default()
        };
        // The second round was disturbed, and says the same.
        let ours: Vec<Report> = [11.0, 33.0, 10.5].iter().map(round).collect();
        let theirs: Vec<Report> = [10.0, 30.0, 10.0].iter().map(round).collect();
        let report = judge(Metric::LatencyP50, ours, theirs).unwrap();
        assert_eq!((report.latency_us_p50, report.two_sided), (Some(11.0), Some(10.0)));
        assert!((report.by_two_sided.unwrap() - 1.1).abs() < 1e-9);
        assert!(report.verified);
    }

    #[test]
    fn one_wrong_round_of_either_kind_taints_the_result() {
        let good = Report { message_rate_per_s: Some(1.0), verified: true, ..Report::default() };
        let bad = Report { verified: false, ..good.clone() };
        for (ours, theirs) in [(&good, &bad), (&bad, &good)] {
            let report =
                judge(Metric::MessageRate, vec![ours.clone()], vec![theirs.clone()]).unwrap();
            assert!(!report.verified);
        }
    }
}
