//! `ringrail-perf diff`: two saved results, side by side.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Parser;
use serde_json::json;

use crate::saved::{self, Key};

/// Compares results that were saved with --json: exit code 0, or 1 where the second are worse
/// than the first by more than the tolerance, or 2 where they cannot be compared.
///
/// A file has one kind of lanes for each test; the two may differ, for instance in --lanes uring
/// and --lanes udp.
#[derive(Debug, Parser)]
#[command(name = "diff")]
pub(crate) struct Arguments {
    /// The results to compare with.
    reference: PathBuf,
    /// The results to judge.
    subject: PathBuf,
    /// How much worse is no regression, as a part of 1.
    #[arg(long, default_value_t = 0.1, value_parser = tolerance)]
    tolerance: f64,
    /// One JSON object per line.
    #[arg(long)]
    json: bool,
}

fn tolerance(text: &str) -> Result<f64, String> {
    let value = text.parse().map_err(|_| format!("`{text}` is not a number"))?;
    if (0.0..1.0).contains(&value) { Ok(value) } else { Err("it is from 0 to below 1".to_owned()) }
}

/// The values of a file, which measured each test over one kind of lanes: the two files may differ
/// in theirs.
fn values(file: &Path) -> Result<BTreeMap<Key, f64>, String> {
    let reports = saved::read(file)?;
    for (test, kinds) in saved::kinds_of_tests(&reports) {
        if kinds.len() > 1 {
            let kinds: Vec<String> = kinds.into_iter().collect();
            return Err(format!(
                "{}: {test} over several kinds of lanes ({}): save them in a file each",
                file.display(),
                kinds.join(", ")
            ));
        }
    }
    Ok(saved::values(&reports))
}

/// Prints the table. `false`: something is worse, or was not measured again.
pub(crate) fn run(arguments: &Arguments) -> Result<bool, String> {
    let reference = values(&arguments.reference)?;
    let subject = values(&arguments.subject)?;
    if !reference.keys().any(|key| subject.contains_key(key)) {
        return Err(
            "the two files have no measurement in common: same test, size and threads".to_owned()
        );
    }
    let names = [&arguments.subject, &arguments.reference].map(|path| path.display().to_string());
    if !arguments.json {
        println!("# {} beside {}; a ratio above 1 is better", names[0], names[1]);
        let columns = ["Value", "Reference", "Unit", "Ratio"];
        print!("{:<22}{:>12}{:>9}", "# Test", "Size", "Threads");
        println!("{:>14}{:>14}{:>7}{:>8}", columns[0], columns[1], columns[2], columns[3]);
    }
    let mut is_good = true;
    for (key, reference) in &reference {
        let (test, size, threads, metric) = key;
        let Some(value) = subject.get(key) else {
            eprintln!("ringrail-perf: {test} of {size} bytes is not in {}", names[0]);
            is_good = false;
            continue;
        };
        let ratio = metric.ratio(*value, *reference);
        let is_worse = ratio < 1.0 - arguments.tolerance;
        is_good &= !is_worse;
        let unit = metric.unit();
        if arguments.json {
            let line = json!({
                "test": test, "size_bytes": size, "threads": threads,
                "subject": names[0], "reference": names[1], "unit": unit,
                "subject_value": value, "reference_value": reference, "ratio": ratio,
            });
            println!("{line}");
        } else {
            let mark = if is_worse { "  WORSE" } else { "" };
            print!("{test:<22}{size:>12}{threads:>9}");
            println!("{value:>14.2}{reference:>14.2}{unit:>7}{ratio:>8.2}{mark}");
        }
    }
    Ok(is_good)
}
