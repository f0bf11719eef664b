//! What users of MPI see of ringrail beside what they have: `mpi/measure.c` over Open MPI, by
//! turns, between two hosts and on one.

use std::collections::BTreeMap;
use std::{env, fs};

use ringrail_tests::lab::{LabCommand, LabSpec};
use serde_json::json;

use crate::mpi::{BOTH, By, Cluster, ONE, outcome, program};

/// The largest size, in bytes, if not that of the row.
const MOST_BYTES: &str = "TEST_OF_RINGRAIL_MOST_BYTES";
/// The file that gets the figures as lines of JSON.
const JSON: &str = "TEST_OF_RINGRAIL_JSON";

/// Running tasks on average, from which on the host is called busy.
const BUSY_LOAD: f64 = 0.5;

/// Runs a program on the core that has the number of its rank. In a lab, Open MPI cannot bind it.
const ON_ITS_CORE: &str = r#"exec taskset -c "$OMPI_COMM_WORLD_LOCAL_RANK" "$0" "$@""#;

/// A test of `measure`, and what carries its messages. Ringrail is first.
struct Row {
    name: &'static str,
    test: &'static str,
    bytes: (u64, u64),
    unit: &'static str,
    hosts: &'static [&'static str],
    /// Bit/s of each rail; `None`: not limited.
    rate: Option<u64>,
    by: &'static [By],
}

const FAR: [By; 4] = [By::Ringrail, By::Tcp, By::Provider("tcp;ofi_rxm"), By::Provider("net")];
const NEAR: [By; 3] = [By::Ringrail, By::Vader, By::Provider("shm")];

const fn row(
    (name, test): (&'static str, &'static str),
    bytes: (u64, u64),
    unit: &'static str,
    hosts: &'static [&'static str],
    by: &'static [By],
) -> Row {
    Row { name, test, bytes, unit, hosts, rate: None, by }
}

const MIB: u64 = 1 << 20;

const ROWS: [Row; 8] = [
    row(("latency, two hosts", "latency"), (1, 4 * MIB), "us", &BOTH, &FAR),
    row(("bandwidth, two hosts", "bandwidth"), (1, 4 * MIB), "MB/s", &BOTH, &FAR),
    row(("rate, two hosts", "rate"), (8, 8), "1/s", &BOTH, &FAR),
    row(("loaded, two hosts", "loaded"), (8, 8), "us", &BOTH, &FAR),
    Row {
        rate: Some(1_000_000_000),
        ..row(("overlap, two hosts", "overlap"), (16 * MIB, 16 * MIB), "percent", &BOTH, &FAR)
    },
    row(("latency, one host", "latency"), (1, 4 * MIB), "us", &ONE, &NEAR),
    row(("bandwidth, one host", "bandwidth"), (1, 4 * MIB), "MB/s", &ONE, &NEAR),
    row(("rate, one host", "rate"), (8, 8), "1/s", &ONE, &NEAR),
];

/// What rounds have measured, of each transport of a row.
type Measured = BTreeMap<u64, Vec<Vec<f64>>>;

impl Row {
    fn is_time(&self) -> bool {
        self.unit == "us"
    }

    fn lab(&self) -> LabSpec {
        match self.rate {
            Some(rate) => LabSpec { rates_bit_s: vec![rate], switch: true, ..LabSpec::rails(1) },
            None => LabSpec::rails(1),
        }
    }

    /// Two ranks, each on a core of its own.
    fn command(&self, cluster: &Cluster, by: By) -> LabCommand {
        let mut run = cluster.mpirun(2, self.hosts, by);
        if self.hosts.len() == 2 {
            run.core(Some(0));
        } else {
            run.args(["sh", "-c", ON_ITS_CORE]);
        }
        run
    }

    fn measure(&self, rounds: usize) -> Measured {
        let measure = program("measure");
        let lab = self.lab();
        let (least, most) = self.bytes;
        let most = env::var(MOST_BYTES).ok().and_then(|text| text.parse().ok()).unwrap_or(most);
        let sizes = [least, most.max(least)].map(|bytes| bytes.to_string());
        let mut measured = Measured::new();
        for round in 1..=rounds {
            for (at, &by) in self.by.iter().enumerate() {
                println!("mpi-compare: {} by {by:?}, {round} of {rounds}", self.name);
                let cluster = Cluster::new(&lab);
                let arguments = [self.test, &sizes[0], &sizes[1]];
                match outcome(&mut self.command(&cluster, by), &measure, &arguments) {
                    Ok(output) => {
                        for (bytes, value) in output.lines().filter_map(parse) {
                            let of_size = measured.entry(bytes).or_default();
                            of_size.resize(self.by.len(), Vec::new());
                            of_size[at].push(value);
                        }
                    }
                    Err(why) => println!("mpi-compare: {} by {by:?} failed: {why}", self.name),
                }
            }
        }
        measured
    }

    /// Returns the best peer's median, by ringrail's for a time, the other way round for others:
    /// above 1, ringrail is better.
    fn ratio(&self, medians: &[Option<f64>]) -> Option<f64> {
        let (own, peers) = medians.split_first()?;
        let peers = peers.iter().flatten().copied();
        match self.is_time() {
            true => Some(peers.reduce(f64::min)? / (*own)?),
            false => Some((*own)? / peers.reduce(f64::max)?),
        }
    }

    /// Prints a table: for each size the medians, with the least and the greatest value, and the
    /// ratio of ringrail to the best other one. Appends a line of JSON for each.
    fn print(&self, measured: &Measured, lines: &mut Vec<String>) {
        println!("mpi-compare: {} ({}): median (least to greatest)", self.name, self.unit);
        println!("mpi-compare: | bytes | {:?} | ratio |", self.by);
        let mut ratios = Vec::new();
        for (bytes, of_size) in measured {
            let mut cells = Vec::new();
            let mut medians = Vec::new();
            for (by, values) in self.by.iter().zip(of_size) {
                let found = Spread::of(values);
                medians.push(found.as_ref().map(|it| it.median));
                let Some(Spread { median, least, greatest }) = found else {
                    cells.push("-".to_owned());
                    continue;
                };
                cells.push(format!("{median:.2} ({least:.2} to {greatest:.2})"));
                let line = json!({
                    "row": self.name, "unit": self.unit, "by": format!("{by:?}"),
                    "bytes": bytes, "median": median, "least": least, "greatest": greatest,
                });
                lines.push(line.to_string());
            }
            let ratio = self.ratio(&medians);
            ratios.extend(ratio.map(|ratio| (ratio, *bytes)));
            let ratio = ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}"));
            println!("mpi-compare: | {bytes} | {} | {ratio} |", cells.join(" | "));
        }
        let worst = ratios.iter().copied().min_by(|a, b| a.0.total_cmp(&b.0));
        if let Some((worst, bytes)) = worst {
            let logarithms: f64 = ratios.iter().map(|(ratio, _)| ratio.ln()).sum();
            let mean = (logarithms / ratios.len() as f64).exp();
            println!(
                "mpi-compare: {}: geometric mean {mean:.2} of the best peer, least {worst:.2} at \
                 {bytes} bytes",
                self.name
            );
        }
    }
}

/// Values of the rounds.
struct Spread {
    median: f64,
    least: f64,
    greatest: f64,
}

impl Spread {
    fn of(values: &[f64]) -> Option<Self> {
        let mut values = values.to_vec();
        values.sort_by(f64::total_cmp);
        let (least, greatest) = (*values.first()?, *values.last()?);
        Some(Self { median: values[values.len() / 2], least, greatest })
    }
}

/// The numbers of a line of `measure`: bytes, and what was measured.
fn parse(line: &str) -> Option<(u64, f64)> {
    let rest = line.split_once("\"bytes\": ")?.1;
    let (bytes, rest) = rest.split_once(',')?;
    let value = rest.rsplit_once(": ")?.1.trim_end_matches('}');
    Some((bytes.trim().parse().ok()?, value.trim().parse().ok()?))
}

/// Warns if other programs use the cores: ratios of medians are then less certain.
fn warn_if_busy() {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().and_then(|text| text.parse::<f64>().ok());
    if let Some(load) = load.filter(|&load| load > BUSY_LOAD) {
        println!("mpi-compare: the host is busy ({load:.2} tasks run on average)");
    }
}

/// Measures all rows by turns, in `rounds` rounds, and prints a table of each. `only`: rows whose
/// names contain one of these words, apart by commas.
pub(crate) fn compare(rounds: usize, only: &str) {
    let is_wanted =
        |row: &&Row| only.is_empty() || only.split(',').any(|word| row.name.contains(word));
    warn_if_busy();
    let mut lines = Vec::new();
    let mut count = 0;
    for row in ROWS.iter().filter(is_wanted) {
        let measured = row.measure(rounds);
        row.print(&measured, &mut lines);
        count += measured.len();
    }
    if let Ok(path) = env::var(JSON) {
        let json = lines.join("\n") + "\n";
        fs::write(&path, json).unwrap_or_else(|error| panic!("cannot write {path}: {error}"));
    }
    assert!(count > 0, "nothing was measured: no row is named so, or all runs have failed");
}
