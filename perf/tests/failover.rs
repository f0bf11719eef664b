//! `failover` from outside, in labs with a switch: what it prints, whatever the engine does about
//! the faults.

mod common;

use std::time::Duration;

use common::number;
use ringrail_tests::require_lab;
use serde_json::Value;

/// A fault takes 3 s; beyond this something hangs.
const LIMIT: Duration = Duration::from_secs(120);

/// One line of results of messages that all arrived.
fn report(arguments: &[&str]) -> Value {
    let arguments = [&["failover", "--json", "--size", "256K"], arguments].concat();
    let output = common::perf(&arguments, LIMIT);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {stderr}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    for field in ["lost", "duplicated", "reordered", "corrupted"] {
        assert_eq!(report[field], 0, "{field}: {report}");
    }
    assert_eq!((&report["test"], &report["verified"]), (&"failover".into(), &true.into()));
    assert!(number(&report, "bandwidth_mb_s") > 0.0 && number(&report, "ping_ms_p50") > 0.0);
    report
}

/// With one rail there is nothing to fail over to, and the figures are known: it stands still as
/// long as the fault lasts, and longer, until TCP tries again.
#[test]
fn a_single_rail_stands_still_and_nothing_is_lost() {
    require_lab!();
    let folder = tempfile::tempdir().unwrap();
    let plot = folder.path().join("fault.svg");
    let lab = ["--lab", "rate=500mbit", "--iters", "1", "--plot", plot.to_str().unwrap()];
    let report = report(&lab);
    for gap in ["gap_ms_p50", "gap_ms_p99", "gap_ms_max"] {
        // A gap is told without what is usual; on a busy machine that is something.
        let whole = number(&report, gap) + number(&report, "before_ms_p99");
        assert!((990.0..3200.0).contains(&whole), "{gap}: {report}");
    }
    assert!(number(&report, "recovered_ms") <= 2000.0, "{report}");
    assert!(report.get("surviving_share").is_none(), "no rail was left: {report}");
    assert_eq!(report["rails"].as_array().unwrap().len(), 1);
    let alone = number(&report["rails"][0], "alone_mb_s");
    assert!((30.0..61.0).contains(&alone), "{report}");
    let picture = std::fs::read_to_string(plot).unwrap();
    assert!(picture.contains("rail0") && picture.contains("blackhole"));
}

#[test]
fn faults_hit_the_rails_by_turns_or_all_at_once() {
    require_lab!();
    let report_of = |fault| {
        report(&["--lab", "rails=2,rate=500mbit", "--iters", "2", "--fault", fault, "--verify"])
    };
    let turns = report_of("link-down");
    assert_eq!(turns["fault"], "link-down");
    for rail in 0..2 {
        let rail = &turns["rails"][rail];
        assert_eq!(rail["faults"], 1, "{turns}");
    }
    assert!(number(&turns, "surviving_share") >= 0.0, "{turns}");
    let all = report_of("all-rails");
    let whole = number(&all, "gap_ms_max") + number(&all, "before_ms_p99");
    assert!(whole > 190.0, "{all}");
    assert!(all["rails"].as_array().unwrap().iter().all(|rail| rail["faults"] == 2), "{all}");
}
