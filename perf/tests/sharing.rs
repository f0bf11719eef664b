//! `incast` and `rails` from outside, in labs: what they print, and that the engine does roughly
//! what they are there to show. What it does exactly simulations say; here the host is busy.

mod common;

use std::time::Duration;

use common::number;
use ringrail_tests::require_lab;
use serde_json::Value;

/// Beyond this something hangs.
const LIMIT: Duration = Duration::from_secs(120);

/// Lines of results.
fn reports(arguments: &[&str]) -> Vec<Value> {
    let output = common::perf(arguments, LIMIT);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {stderr}");
    let stdout = String::from_utf8(output.stdout).unwrap();
    stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn eight_senders_share_a_link() {
    require_lab!();
    let lab = ["incast", "--json", "--lab", "rate=500mbit", "--rounds", "1", "--iters", "24"];
    let reports = reports(&lab);
    let [report] = &reports[..] else { panic!("{reports:?}") };
    assert_eq!((&report["test"], &report["verified"]), (&"incast".into(), &true.into()));
    assert_eq!(report["sender_mb_s"].as_array().map(Vec::len), Some(8));
    // 62.5 MB/s, less what headers take.
    let single = number(report, "single_mb_s");
    assert!(single > 0.0 && single < 63.0, "{report}");
    assert!(number(report, "link_share") > 0.4, "{report}");
    assert!(number(report, "slowest_share") > 0.2, "{report}");
}

#[test]
fn a_rail_more_is_compared_with_the_best_one() {
    require_lab!();
    let folder = tempfile::tempdir().unwrap();
    let plot = folder.path().join("rails.svg");
    let lab = ["rails", "--json", "--lab", "rails=2,rate=200mbit:600mbit", "--brief"];
    // Long enough for what a busy host does in between not to count.
    let curves = ["--size", "64K", "--iters", "200", "--plot", plot.to_str().unwrap()];
    let reports = reports(&[&lab[..], &curves].concat());
    let names: Vec<&str> = reports.iter().map(|it| it["test"].as_str().unwrap()).collect();
    let [latency, bandwidth] = ["latency", "bw"]
        .map(|test| ["rail0", "rail1", "all"].map(|way| format!("rails {test} ({way})")));
    assert_eq!(names, [latency, bandwidth].concat());
    for all in [&reports[2], &reports[5]] {
        // What was measured for a moment on a busy host is not judged.
        assert!(number(all, "ratio") > 0.0, "{all}");
    }
    assert_eq!(reports[5]["best_rail"], "rail1", "{reports:?}");
    let picture = std::fs::read_to_string(plot).unwrap();
    for text in ["bandwidth (rails bw)", "rail0", "rail1", "all"] {
        assert!(picture.contains(&format!("\n{text}\n")), "{text}: {picture}");
    }
}

#[test]
fn without_several_rails_there_is_nothing_to_compare() {
    let output = common::perf(&["rails", "--loopback"], LIMIT);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("--lab rails=2"), "{stderr}");
}
