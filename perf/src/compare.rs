//! `ringrail-perf compare`: the tests of other transports beside ringrail's own.

mod mpi;
mod pair;
mod rows;
mod said;
mod systems;

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use ringrail_tests::lab::{Lab, LabSpec};

use self::rows::{Figure, Kind, Row, Table};
use self::systems::{Bench, System};
use crate::cli::{Lanes, Sizes, sizes};
use crate::output::Report;
use crate::progress::Progress;
use crate::saved::Metric;
use crate::{lab, plot, secret, test};

/// Messages in flight of `bw`, as in the OSU benchmarks.
const WINDOW: usize = 64;
const ROUNDS: usize = 3;

pub(crate) use self::rows::Row as SavedRow;

/// Runs the tests of other transports beside ringrail's and the floors, by turns, in one lab: for
/// each size the figure of each, the best peer, and how many times as good ringrail is.
///
/// Peers are UCX (`ucx_perftest`, tag_lat and tag_bw over tcp), libfabric (fabtests'
/// `fi_rdm_tagged_pingpong` and `fi_rdm_tagged_bw`, or its own `fi_pingpong`, over tcp) and OSU's
/// `osu_latency` and `osu_bw` under `mpirun` of Open MPI. What is not installed is said and left
/// out. Ringrail has its default settings unless --lanes or --set say otherwise.
///
/// All run in the same two hosts, the client on the first core and the server on the second, with
/// the same number of messages, and in `bw` the same window. Figures are medians of the rounds. Of
/// a round ringrail, the floors and UCX tell the median latency, the others the mean only. MB are
/// 10^6 bytes. The peers' tools send from one buffer and receive into another, whatever the
/// window, and so does ringrail here (`bw --reuse same`). fabtests and OSU wait for an answer after
/// each window, which ringrail and UCX do not.
///
/// Exit code 0, whichever is better; 1 where ringrail or a floor failed.
#[derive(Debug, Parser)]
#[command(name = "compare")]
pub(crate) struct Arguments {
    /// What to measure.
    test: CompareTest,
    /// Message size, or a range A:B that doubles; K and M are 2^10 and 2^20 [default: 1:64K,
    /// bw 1:64M].
    #[arg(long, value_parser = sizes)]
    size: Option<Sizes>,
    /// The lab, which needs root.
    #[arg(long, default_value = "rails=1")]
    lab: String,
    /// What moves ringrail's messages.
    #[arg(long, value_enum, default_value_t = Lanes::Auto)]
    lanes: Lanes,
    /// Set a setting of ringrail, NAME=VALUE; any number of times.
    #[arg(long = "set")]
    settings: Vec<String>,
    /// Iterations (latency: round trips; bw: messages).
    #[arg(long)]
    iters: Option<u64>,
    /// Messages in flight (bw) [default: 64].
    #[arg(long)]
    window: Option<usize>,
    /// Rounds of which the median is reported [default: 3].
    #[arg(long)]
    rounds: Option<usize>,
    /// A first look: a tenth of the iterations, and one round.
    #[arg(long)]
    brief: bool,
    /// One JSON object per line, one line per size.
    #[arg(long)]
    json: bool,
    /// Draw all curves, as SVG.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Keep root and its capabilities in ringrail's processes; peers always do.
    #[arg(long)]
    keep_root: bool,
    /// `ucx_perftest`, or the folder of it [default: COMPARE_UCX, or as PATH finds it].
    #[arg(long, value_name = "PATH")]
    ucx: Option<PathBuf>,
    /// The folder of fabtests' programs [default: COMPARE_FABTESTS, or as PATH finds them].
    #[arg(long, value_name = "DIR")]
    fabtests: Option<PathBuf>,
    /// The folder of OSU's programs [default: COMPARE_OSU, or as PATH finds them].
    #[arg(long, value_name = "DIR")]
    osu: Option<PathBuf>,
}

/// What can be compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum CompareTest {
    /// Tagged ping-pong, half round trip.
    Latency,
    /// Tagged stream with a window.
    Bw,
}

impl CompareTest {
    fn metric(self) -> Metric {
        match self {
            Self::Latency => Metric::LatencyP50,
            Self::Bw => Metric::Bandwidth,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::Bw => "bw",
        }
    }
}

impl Arguments {
    /// Refuses what makes no sense, before anything is started.
    pub(crate) fn check(&self) -> Result<(), String> {
        secret::refuse_on_command_line(&self.settings)?;
        test::settings(self.lanes, None, None, None, &self.settings)?;
        if self.window.is_some() && self.test != CompareTest::Bw {
            return Err("--window is of bw: a ping-pong has one message".to_owned());
        }
        lab::check_window(self.window)?;
        systems::find(self)?;
        self.spec().map(drop)
    }

    fn spec(&self) -> Result<LabSpec, String> {
        self.lab.parse().map_err(|error| format!("--lab {}: {error}", self.lab))
    }

    fn sizes(&self) -> Vec<usize> {
        let last = match self.test {
            CompareTest::Latency => 64 << 10,
            CompareTest::Bw => 64 << 20,
        };
        self.size.unwrap_or(Sizes { first: 1, last }).list()
    }

    fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.brief { 1 } else { ROUNDS }).max(1)
    }

    /// Of one round, at a size in bytes.
    fn iters(&self, size: usize) -> u64 {
        let usual = match self.test {
            CompareTest::Latency => lab::ping_iters(size),
            CompareTest::Bw => lab::stream_iters(size),
        };
        let usual = if self.brief { (usual / lab::BRIEF).max(8) } else { usual };
        self.iters.unwrap_or(usual).max(1)
    }

    /// Messages in flight: half of them all at the most, so that there is something to reuse.
    fn window(&self, size: usize) -> usize {
        let half = usize::try_from(self.iters(size) / 2).unwrap_or(usize::MAX);
        self.window.unwrap_or(WINDOW.min(half)).max(1)
    }
}

/// Measures, and prints a row as soon as a size is done.
pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    let (systems, missing) = systems::find(arguments)?;
    for line in missing {
        eprintln!("ringrail-perf: {line}");
    }
    let lab = Lab::build(&arguments.spec()?).map_err(|error| error.to_string())?;
    let bench = Bench::new(&lab, arguments)?;
    let (sizes, rounds) = (arguments.sizes(), arguments.rounds());
    let progress = Progress::new((sizes.len() * rounds * systems.len()) as u64);
    let table = Table::new(arguments.test, rounds, &systems);
    let mut rows: Vec<Row> = Vec::new();
    for size in sizes {
        let row = measure(&bench, &systems, size, rounds, &progress);
        progress.suspend(|| {
            row.complain();
            if arguments.json {
                row.print_json();
            } else {
                table.print(&row, rows.is_empty());
            }
        });
        rows.push(row);
    }
    drop(progress);
    if let Some(file) = &arguments.plot {
        let reports: Vec<Report> = rows.iter().flat_map(Row::reports).collect();
        let written = std::fs::write(file, plot::picture(&reports)?);
        written.map_err(|error| format!("{}: {error}", file.display()))?;
    }
    match rows.iter().filter(|row| row.is_ours_wrong()).count() {
        0 => Ok(()),
        sizes => Err(format!("ringrail or a floor failed at {sizes} of {} sizes", rows.len())),
    }
}

/// All systems at one size, by turns: what disturbs the host for a while disturbs all alike.
fn measure(
    bench: &Bench<'_>,
    systems: &[System],
    size: usize,
    rounds: usize,
    progress: &Progress,
) -> Row {
    let mut figures: Vec<Figure> = systems.iter().map(System::figure).collect();
    let mut lanes = Vec::new();
    for _ in 0..rounds {
        for (system, figure) in systems.iter().zip(&mut figures) {
            if system.is_of(size) {
                progress.begin_named(&format!("{} of {}", bench.test().name(), system.name), size);
                match bench.measure(system, size) {
                    Ok(measured) => {
                        figure.rounds.push(measured.value);
                        if system.kind == Kind::Ringrail {
                            lanes = measured.lanes;
                        }
                    }
                    Err(error) => figure.errors.push(error),
                }
            }
            progress.advance();
        }
    }
    Row::new(bench, size, rounds, lanes, figures)
}
