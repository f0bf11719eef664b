//! Whether one more rail makes messages of any size slower: each rail alone and all together,
//! interleaved.

use crate::cli::{Cli, TestName};
use crate::link::{Job, Link};
use crate::output::{Report, Style, median, print_json};
use crate::progress::Progress;
use crate::saved::Metric;
use crate::test::failover::control::Control;
use crate::{interrupt, plot, stamp, test};

/// Sizes that are measured by default.
const SIZES: [usize; 12] = [
    8,
    64,
    512,
    4 << 10,
    16 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
    4 << 20,
    16 << 20,
    32 << 20,
    64 << 20,
];
/// Up to this size it is latency that matters, and from it on bandwidth.
const BETWEEN: usize = 64 << 10;
/// Of each measurement of latency.
const PINGS: u64 = 2_000;
/// Of each measurement of bandwidth.
const STREAM_BYTES: usize = 128 << 20;
const ROUNDS: usize = 5;
/// Worse than this, by the best rail alone, is slower.
const TOLERATED: f64 = 0.95;

/// The rails that one measurement uses.
#[derive(Clone)]
struct Way {
    /// As `nics` has it.
    nics: String,
    /// In results.
    name: String,
}

/// One size by one metric.
struct Point {
    test: TestName,
    size: usize,
    /// By way, in rounds.
    reports: Vec<Vec<Report>>,
}

impl Point {
    fn metric(&self) -> Metric {
        match self.test {
            TestName::Latency => Metric::LatencyP50,
            _ => Metric::Bandwidth,
        }
    }

    /// The ratio of all rails, the last way, to the best single one, both of the same round: the
    /// median of rounds. Which one is the best the medians say.
    fn verdict(&self, medians: &[Report]) -> Option<(usize, f64)> {
        let metric = self.metric();
        let value = |report: &Report| metric.of(report);
        let (_, single) = medians.split_last()?;
        let better = |(at, report): (usize, &Report)| Some((at, value(report)?));
        let best = single.iter().enumerate().filter_map(better).max_by(|a, b| {
            // Of a metric of which less is better the ratio turns them round.
            metric.ratio(a.1, b.1).total_cmp(&1.0)
        })?;
        let (all, alone) = (self.reports.last()?, self.reports.get(best.0)?);
        let pairs = all.iter().zip(alone);
        let mut ratios: Vec<f64> = pairs
            .filter_map(|(all, alone)| Some(metric.ratio(value(all)?, value(alone)?)))
            .collect();
        ratios.sort_by(f64::total_cmp);
        Some((best.0, *ratios.get(ratios.len() / 2)?))
    }
}

/// The client's part: the server knows nothing but its latency and bandwidth tests.
pub(crate) fn run(cli: &Cli, link: &mut Link) -> Result<(), String> {
    let ways = ways(cli)?;
    let sizes = cli.size.map_or_else(|| SIZES.to_vec(), |sizes| sizes.list());
    let rounds = cli.rounds.unwrap_or(if cli.brief { 1 } else { ROUNDS }).max(1);
    let mut points = Vec::new();
    for &size in &sizes {
        let mut add = |test| {
            let reports = vec![Vec::new(); ways.len()];
            points.push(Point { test, size, reports });
        };
        if size <= BETWEEN {
            add(TestName::Latency);
        }
        if size >= BETWEEN {
            add(TestName::Bw);
        }
    }
    // A measurement warms up for a round.
    let progress = Progress::new((2 * rounds * points.len() * ways.len()) as u64);
    let mut lines: Vec<Vec<Report>> = Vec::new();
    for point in &mut points {
        // What disturbs the host for a while disturbs all ways alike.
        for _ in 0..rounds {
            for (way, reports) in ways.iter().zip(&mut point.reports) {
                let job = job(cli, point.test, point.size, way);
                link.put(&job)?;
                progress.begin(TestName::Rails, point.size);
                reports.extend(test::run(link, &job, false, &progress)?);
            }
        }
        lines.push(judge(point, &ways)?);
        let (cli, ways, lines) = (cli.clone(), ways.clone(), lines.clone());
        interrupt::offer(move || print(&cli, &ways, &lines));
    }
    progress.suspend(|| print(cli, &ways, &lines));
    if cli.plot.is_some() {
        let drawn: Vec<Report> = lines.concat();
        Control::of_standard_input()?.write_picture(plot::picture(&drawn)?)?;
    }
    Ok(())
}

/// Each rail alone, and at last all of them.
fn ways(cli: &Cli) -> Result<Vec<Way>, String> {
    let nics: Vec<&str> = cli.lab_rails.iter().map(|rail| rail.nic.as_str()).collect();
    if nics.len() < 2 {
        return Err("one rail alone cannot be compared: --lab rails=2".to_owned());
    }
    let alone = nics.iter().map(|nic| Way { nics: (*nic).to_owned(), name: (*nic).to_owned() });
    let all = Way { nics: nics.join(","), name: "all".to_owned() };
    Ok(alone.chain([all]).collect())
}

fn job(cli: &Cli, test: TestName, size: usize, way: &Way) -> Job {
    let iters = match test {
        TestName::Latency => PINGS.min((STREAM_BYTES / 8 / size.max(1)) as u64).max(50),
        _ => (STREAM_BYTES / size.max(1)).clamp(8, 2000) as u64,
    };
    Job {
        test,
        floor: None,
        size,
        iters: cli.iters.unwrap_or(if cli.brief { (iters / 10).max(8) } else { iters }).max(1),
        window: stamp::window(cli.window, size),
        buffers: cli.buffers,
        bulk_size: crate::lab::bulk_size(cli),
        pause_us: 0,
        reuse: cli.reuse,
        verify: cli.verify,
        lanes: cli.lanes,
        hint: cli.hint,
        nics: Some(way.nics.clone()),
        settings: cli.settings.clone(),
        pcap: None,
        rounds: 1,
        fault: cli.fault,
        lab_rails: cli.lab_rails.clone(),
        has_decoys: cli.lab_decoys,
        plots: false,
        senders: cli.senders,
        ranks: cli.ranks,
        threads: 1,
        is_shared: false,
    }
}

/// One line for each way; that of all rails has the verdict.
fn judge(point: &Point, ways: &[Way]) -> Result<Vec<Report>, String> {
    let medians = point.reports.iter().cloned().map(median).collect::<Option<Vec<_>>>();
    let medians = medians.ok_or("no round was measured")?;
    if medians.iter().any(|report| !report.verified) {
        return Err(format!("at {} bytes content was wrong; please report it", point.size));
    }
    let (best, ratio) = point.verdict(&medians).ok_or("nothing was measured")?;
    let named = |(way, report): (&Way, Report)| {
        let test = format!("rails {} ({})", report.test, way.name);
        Report { test, ..report }
    };
    let mut lines: Vec<Report> = ways.iter().zip(medians).map(named).collect();
    if let Some(all) = lines.last_mut() {
        (all.best_rail, all.ratio) = (Some(ways[best].name.clone()), Some(ratio));
    }
    Ok(lines)
}

fn print(cli: &Cli, ways: &[Way], lines: &[Vec<Report>]) {
    if Style::of(cli) == Style::Json {
        lines.iter().flatten().for_each(print_json);
        return;
    }
    let comma = Style::of(cli) == Style::Csv;
    if comma {
        let names: Vec<&str> = ways.iter().map(|way| &*way.name).collect();
        println!("size,unit,{},best,ratio", names.join(","));
    } else {
        println!("# ringrail-perf rails: all rails by the best single one; below 1 is slower");
        print!("{:<10}{:>6}", "# Size", "Unit");
        ways.iter().for_each(|way| print!("{:>12}", way.name));
        println!("{:>12}{:>8}", "Best", "Ratio");
    }
    for line in lines {
        let Some(all) = line.last() else { continue };
        let metric =
            if all.latency_us_p50.is_some() { Metric::LatencyP50 } else { Metric::Bandwidth };
        let values = line.iter().map(|report| metric.of(report).unwrap_or(f64::NAN));
        let (best, ratio) = (all.best_rail.as_deref().unwrap_or_default(), all.ratio);
        let ratio = ratio.unwrap_or(f64::NAN);
        if comma {
            let values: Vec<String> = values.map(|value| value.to_string()).collect();
            let size = all.size_bytes;
            println!("{size},{},{},{best},{ratio}", metric.unit(), values.join(","));
            continue;
        }
        print!("{:<10}{:>6}", all.size_bytes, metric.unit());
        values.for_each(|value| print!("{value:>12.2}"));
        let mark = if ratio < TOLERATED { "  SLOWER" } else { "" };
        println!("{best:>12}{ratio:>8.2}{mark}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds(test: TestName, values: &[f64]) -> Vec<Report> {
        let report = |&value: &f64| match test {
            TestName::Latency => Report { latency_us_p50: Some(value), ..Report::default() },
            _ => Report { bandwidth_mb_s: Some(value), ..Report::default() },
        };
        values.iter().map(report).collect()
    }

    fn verdict(test: TestName, reports: [&[f64]; 3]) -> (usize, f64) {
        let reports: Vec<_> = reports.iter().map(|values| rounds(test, values)).collect();
        let point = Point { test, size: 8, reports };
        let medians: Vec<_> =
            point.reports.iter().cloned().map(|rounds| median(rounds).unwrap()).collect();
        point.verdict(&medians).unwrap()
    }

    #[test]
    fn all_rails_are_compared_with_the_best_one_of_the_same_round() {
        // The second round was disturbed, and says the same.
        let latency = [&[20.0, 60.0, 20.0][..], &[10.0, 30.0, 10.0], &[8.0, 24.0, 8.0]];
        assert_eq!(verdict(TestName::Latency, latency), (1, 1.25));
        let bandwidth = [&[100.0, 50.0, 100.0][..], &[300.0, 150.0, 300.0], &[390.0, 195.0, 390.0]];
        assert_eq!(verdict(TestName::Bw, bandwidth), (1, 1.3));
        let slower = [&[100.0][..], &[90.0], &[80.0]];
        assert_eq!(verdict(TestName::Bw, slower), (0, 0.8));
    }
}
