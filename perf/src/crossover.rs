//! From which size on pulling a message is faster than sending it with its envelope.

use crate::cli::{Cli, TestName};
use crate::link::{Job, Link};
use crate::output::{Report, Style, median, print_json};
use crate::progress::Progress;
use crate::{interrupt, stamp, test};

/// Sizes that are measured by default, closer together where the crossover is found mostly.
const SIZES: [usize; 10] = [1024, 2048, 4096, 6144, 8192, 12_288, 16_384, 32_768, 65_536, 131_072];
const ROUNDS: usize = 3;
const ITERS: u64 = 200;

/// How messages go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// With their envelope, whatever their size.
    Eager,
    /// Pulled, whatever their size.
    Pulled,
    /// As the settings have it.
    Default,
}

impl Way {
    const ALL: [Self; 3] = [Self::Eager, Self::Pulled, Self::Default];

    fn name(self) -> &'static str {
        match self {
            Self::Eager => "crossover-eager",
            Self::Pulled => "crossover-pulled",
            Self::Default => "crossover-default",
        }
    }

    /// What forces it.
    fn settings(self) -> &'static [&'static str] {
        match self {
            Self::Eager => &["eager_limit_bytes=256K"],
            Self::Pulled => &["eager_limit_bytes=0", "inject_limit_bytes=0"],
            Self::Default => &[],
        }
    }
}

/// The client's part: the server knows nothing but its latency tests.
pub(crate) fn run(cli: &Cli, link: &mut Link) -> Result<(), String> {
    let sizes = cli.size.map_or_else(|| SIZES.to_vec(), |sizes| sizes.list());
    let rounds = cli.rounds.unwrap_or(if cli.brief { 1 } else { ROUNDS }).max(1);
    let progress = Progress::new((rounds * sizes.len() * Way::ALL.len() * 2) as u64);
    let mut measured: Vec<[Vec<Report>; 3]> = vec![Default::default(); sizes.len()];
    // What disturbs the host for a while disturbs all ways alike.
    for _ in 0..rounds {
        for (&size, measured) in sizes.iter().zip(&mut measured) {
            for (way, reports) in Way::ALL.into_iter().zip(measured) {
                let job = job(cli, size, way);
                link.put(&job)?;
                progress.begin(TestName::Crossover, size);
                reports.extend(test::run(link, &job, false, &progress)?);
            }
        }
        let so_far = points(&sizes, &measured)?;
        let cli = cli.clone();
        interrupt::offer(move || {
            let found = Found::of(&so_far);
            print(&cli, so_far, &found);
        });
    }
    let points = points(&sizes, &measured)?;
    let found = Found::of(&points);
    progress.suspend(|| print(cli, points, &found));
    Ok(())
}

/// The medians of the rounds of each size.
fn points(sizes: &[usize], measured: &[[Vec<Report>; 3]]) -> Result<Vec<Point>, String> {
    let mut points = Vec::new();
    for (&size, reports) in sizes.iter().zip(measured) {
        let mut medians = reports.iter().cloned().map(median);
        let mut next = || medians.next().flatten().ok_or("no round was measured");
        let reports = [next()?, next()?, next()?];
        if let Some(wrong) = reports.iter().find(|report| !report.verified) {
            return Err(format!(
                "at {} bytes content was wrong; please report it",
                wrong.size_bytes
            ));
        }
        points.push(Point { size, reports });
    }
    Ok(points)
}

fn job(cli: &Cli, size: usize, way: Way) -> Job {
    let mut settings = cli.settings.clone();
    settings.extend(way.settings().iter().map(|&setting| setting.to_owned()));
    Job {
        test: TestName::Latency,
        floor: None,
        size,
        iters: cli.iters.unwrap_or(if cli.brief { ITERS / 3 } else { ITERS }).max(1),
        window: stamp::window(cli.window, size),
        buffers: cli.buffers,
        bulk_size: crate::lab::bulk_size(cli),
        pause_us: 0,
        reuse: cli.reuse,
        verify: cli.verify,
        lanes: cli.lanes,
        nics: cli.nics.clone(),
        hint: cli.hint,
        settings,
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

/// What was measured at one size, by [`Way::ALL`].
struct Point {
    size: usize,
    reports: [Report; 3],
}

impl Point {
    fn latency_us(&self, way: Way) -> f64 {
        let at = Way::ALL.iter().position(|&it| it == way).unwrap_or_default();
        self.reports[at].latency_us_p50.unwrap_or(f64::INFINITY)
    }

    fn pull_gains_us(&self) -> f64 {
        self.latency_us(Way::Eager) - self.latency_us(Way::Pulled)
    }
}

/// Where the two ways take as long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Found {
    /// In bytes.
    At(usize),
    /// Pulling is faster at all sizes, of which this is the least.
    Below(usize),
    /// It is slower at all sizes, of which this is the greatest.
    Above(usize),
}

impl Found {
    /// The crossover, between the last size at which pulling is slower and the next.
    fn of(points: &[Point]) -> Self {
        let slower = points.iter().rposition(|point| point.pull_gains_us() < 0.0);
        let Some(at) = slower else {
            return Self::Below(points.first().map_or(0, |point| point.size));
        };
        let before = &points[at];
        let Some(after) = points.get(at + 1) else { return Self::Above(before.size) };
        let (loss, gain) = (-before.pull_gains_us(), after.pull_gains_us());
        let share = if loss + gain > 0.0 { loss / (loss + gain) } else { 0.5 };
        let bytes = before.size as f64 + share * (after.size - before.size) as f64;
        Self::At(bytes as usize / 64 * 64)
    }

    fn bytes(self) -> usize {
        match self {
            Self::At(bytes) | Self::Below(bytes) | Self::Above(bytes) => bytes,
        }
    }
}

fn print(cli: &Cli, points: Vec<Point>, found: &Found) {
    if Style::of(cli) == Style::Json {
        for mut report in points.into_iter().flat_map(|point| {
            Way::ALL
                .into_iter()
                .zip(point.reports)
                .map(|(way, report)| Report { test: way.name().to_owned(), ..report })
        }) {
            report.crossover_bytes = Some(found.bytes());
            print_json(&report);
        }
        return;
    }
    let comma = Style::of(cli) == Style::Csv;
    if comma {
        println!("size,eager_us,pulled_us,default_us,default_limit_bytes");
    } else {
        println!("# ringrail-perf crossover, half round trips in us (p50)");
        println!(
            "# {:>6} {:>10} {:>10} {:>10} {:>14}",
            "Size", "Eager", "Pulled", "Default", "Its limit"
        );
    }
    let mut limit = None;
    for point in &points {
        let [eager, pulled, default] = Way::ALL.map(|way| point.latency_us(way));
        limit = point.reports[2].eager_limit_bytes.or(limit);
        let shown = limit.map_or_else(|| "-".to_owned(), |bytes| bytes.to_string());
        if comma {
            println!("{},{eager},{pulled},{default},{shown}", point.size);
        } else {
            println!("{:>8} {eager:>10.2} {pulled:>10.2} {default:>10.2} {shown:>14}", point.size);
        }
    }
    if comma {
        return;
    }
    match found {
        Found::At(bytes) => println!(
            "Longer messages than {bytes} bytes are better pulled on this path. To keep to that, \
             set eager_limit_bytes = {bytes} and inject_limit_bytes = {bytes}."
        ),
        Found::Below(bytes) => println!("Pulled messages are faster from {bytes} bytes on."),
        Found::Above(bytes) => println!(
            "Messages up to {bytes} bytes are better sent with their envelope on this path: --set \
             eager_limit_bytes={bytes}"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(size: usize, eager_us: f64, pulled_us: f64) -> Point {
        let report = |us| Report { latency_us_p50: Some(us), ..Report::default() };
        Point { size, reports: [report(eager_us), report(pulled_us), report(eager_us)] }
    }

    #[test]
    fn the_crossover_lies_where_the_lines_meet() {
        let points = [point(1024, 5.0, 20.0), point(2048, 10.0, 20.0), point(4096, 30.0, 20.0)];
        assert_eq!(Found::of(&points), Found::At(3072));
        assert_eq!(Found::of(&points[..2]), Found::Above(2048));
        assert_eq!(Found::of(&points[2..]), Found::Below(4096));
        // One size at which noise had pulling ahead is not the crossover.
        let noisy = [point(1024, 21.0, 20.0), point(2048, 10.0, 20.0), point(4096, 30.0, 20.0)];
        assert_eq!(Found::of(&noisy), Found::At(3072));
    }
}
