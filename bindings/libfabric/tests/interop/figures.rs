//! What users see of the provider beside what they have: `measure` over Open MPI, by turns.

use std::collections::BTreeMap;
use std::env;

use ringrail_tests::lab::{LabCommand, LabSpec};

use crate::mpi::{BOTH, By, Cluster, outcome, program};

/// Sizes and rounds, if others are wanted.
const MOST: &str = "TEST_OF_RINGRAIL_MOST_BYTES";

const BYS: [By; 4] = [By::Ringrail, By::Tcp, By::Provider("tcp;ofi_rxm"), By::Provider("net")];

/// A rank on each host, each on a core of its own.
fn pinned(cluster: &Cluster, by: By) -> LabCommand {
    let mut run = cluster.mpirun(2, &BOTH, by);
    run.core(Some(0));
    run
}

/// The numbers of a line of `measure`: bytes, and what was measured.
fn parse(line: &str) -> Option<(u64, f64)> {
    let rest = line.split_once("\"bytes\": ")?.1;
    let (bytes, rest) = rest.split_once(',')?;
    let value = rest.rsplit_once(": ")?.1.trim_end_matches('}');
    Some((bytes.trim().parse().ok()?, value.trim().parse().ok()?))
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Prints tables: of each test, a row per size and a column per transport, the median of `rounds`
/// runs, and the ratio of the first to the best other one. `only`: of tests whose names contain one
/// of these words, apart by commas.
pub(crate) fn measure(rounds: usize, only: &str) {
    let is_wanted = |test: &str| only.is_empty() || only.split(',').any(|word| test.contains(word));
    let most = env::var(MOST).unwrap_or_else(|_| "4194304".to_owned());
    let measure = program("measure");
    let one = LabSpec::rails(1);
    let slow = LabSpec { rates_bit_s: vec![1_000_000_000], switch: true, ..LabSpec::rails(1) };
    for (test, least, most, unit, lab) in [
        ("latency", "1", &*most, "us", &one),
        ("loaded", "8", "8", "us", &one),
        ("rate", "8", "8", "1/s", &one),
        ("bandwidth", "1024", &*most, "MB/s", &one),
        ("overlap", "16777216", "16777216", "percent", &slow),
    ] {
        if !is_wanted(test) {
            continue;
        }
        let is_time = unit == "us";
        let mut found: BTreeMap<u64, Vec<Vec<f64>>> = BTreeMap::new();
        for round in 1..=rounds {
            for (at, by) in BYS.into_iter().enumerate() {
                println!("interop: {test} by {by:?}, {round} of {rounds}");
                let cluster = Cluster::new(lab);
                let arguments = [test, least, most];
                match outcome(&mut pinned(&cluster, by), &measure, &arguments) {
                    Ok(said) => {
                        for (bytes, value) in said.lines().filter_map(parse) {
                            let of_size = found.entry(bytes).or_default();
                            of_size.resize(BYS.len(), Vec::new());
                            of_size[at].push(value);
                        }
                    }
                    Err(why) => println!("interop: {test} by {by:?} has failed: {why}"),
                }
            }
        }
        println!("interop: {test} ({unit})");
        println!("interop: | bytes | {BYS:?} | ratio |");
        for (bytes, of_size) in found {
            let values: Vec<Option<f64>> = of_size
                .into_iter()
                .map(|mut values| (!values.is_empty()).then(|| median(&mut values)))
                .collect();
            let others = values[1..].iter().flatten().copied();
            let best = if is_time {
                others.fold(f64::INFINITY, f64::min)
            } else {
                others.fold(0.0, f64::max)
            };
            let ratio = values[0].map_or(f64::NAN, |own| own / best);
            let cells: Vec<String> = values
                .iter()
                .map(|value| value.map_or("-".to_owned(), |value| format!("{value:.1}")))
                .collect();
            println!("interop: | {bytes} | {} | {ratio:.2} |", cells.join(" | "));
        }
    }
    if is_wanted("native") {
        native(rounds);
    }
}

/// The same of the engine without MPI, in the same run, where `ringrail-perf` was built.
fn native(rounds: usize) {
    let here = env::current_exe().expect("a test has a path");
    let perf = here.ancestors().map(|it| it.join("ringrail-perf")).find(|it| it.is_file());
    let Some(perf) = perf else {
        println!("interop: ringrail-perf is not built: nothing of the engine alone");
        return;
    };
    for test in ["latency", "mr", "bw"] {
        for shared in [false, true] {
            let mut command = std::process::Command::new(&perf);
            let size = if test == "bw" { "1M" } else { "8" };
            // A shared engine goes by plain sockets.
            let lanes = if shared { "udp-sockets" } else { "udp" };
            command.args([test, "--lab", "rails=1", "--lanes", lanes, "--size", size]);
            command.args(["--rounds", &rounds.to_string()]);
            command.args(shared.then_some("--shared"));
            let output = command.output().expect("ringrail-perf runs");
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            let last = said.lines().rev().take(4).collect::<Vec<_>>();
            println!("interop: native {test}, shared: {shared}: {last:?}");
        }
    }
}
