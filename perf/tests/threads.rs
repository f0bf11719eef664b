//! Tests with several threads, over the loopback address: what they print.

#[path = "common/loopback.rs"]
mod loopback;

use loopback::{LATENCIES, assert_counted, assert_report, objects, perf, text};
use serde_json::Value;

/// What each thread reached beside what all of them did.
#[test]
fn threads_are_reported_one_by_one() {
    let run = |test: &str, more: &[&str]| -> Value {
        let common = [test, "--loopback", "--threads", "3", "--rounds", "2", "--iters", "40"];
        let reports = objects(&[&common[..], more].concat());
        assert_eq!((reports.len(), &reports[0]["threads"]), (1, &Value::from(3)), "{reports:?}");
        reports[0].clone()
    };
    let numbers = |report: &Value, key: &str| -> Vec<f64> {
        let list = report[key].as_array().unwrap_or_else(|| panic!("no {key}: {report}"));
        list.iter().map(|value| value.as_f64().unwrap()).collect()
    };
    const RATES: [&str; 3] =
        ["thread_rate_min_per_s", "thread_rate_mean_per_s", "thread_rate_max_per_s"];
    for (test, size, more, fields) in [
        ("mr", 8, &[][..], &["message_rate_per_s"][..]),
        ("bw", 1 << 16, &["--size", "64K", "--verify"], &["bandwidth_mb_s", "message_rate_per_s"]),
        ("bw", 1 << 16, &["--size", "64K", "--reuse", "same"], &["bandwidth_mb_s"]),
    ] {
        let report = run(test, more);
        assert_report(&report, test, size, 40, fields);
        assert_counted(&report);
        let rates = numbers(&report, "thread_rate_per_s");
        assert!(rates.len() == 3 && rates.iter().all(|&rate| rate > 0.0), "{report}");
        let [least, mean, most] = RATES.map(|key| report[key].as_f64().unwrap());
        assert!(least <= mean && mean <= most && rates.contains(&least), "{report}");
        let share = report["slowest_thread_share"].as_f64().unwrap();
        assert!((share - least / mean).abs() < 1e-9 && share <= 1.0, "{report}");
        let all = report["message_rate_per_s"].as_f64().unwrap();
        assert!(all <= rates.iter().sum::<f64>() * 1.000_001, "no more than their sum: {report}");
    }
    let report = run("latency-mt", &[]);
    assert_report(&report, "latency-mt", 8, 40, &LATENCIES);
    let medians = numbers(&report, "thread_latency_us_p50");
    let [best, worst] = ["min", "max"].map(|which| format!("thread_latency_us_p50_{which}"));
    assert_eq!(medians.len(), 3, "{report}");
    assert!(medians.contains(&report[best].as_f64().unwrap()), "{report}");
    assert!(medians.contains(&report[worst].as_f64().unwrap()), "{report}");
}

/// Endpoints on one engine: the same tests, with what the engine counted, once for all threads.
#[test]
fn threads_share_an_engine() {
    for (test, threads, fields) in [
        ("mr", "3", &["message_rate_per_s"][..]),
        ("mr", "1", &["message_rate_per_s"]),
        ("bw", "2", &["bandwidth_mb_s", "message_rate_per_s"]),
        ("bibw", "2", &["bandwidth_mb_s", "message_rate_per_s"]),
        ("latency", "1", &LATENCIES),
        ("latency-mt", "2", &LATENCIES),
    ] {
        let common = [test, "--loopback", "--shared", "--rounds", "2", "--iters", "40"];
        let reports = objects(&[&common[..], &["--size", "64", "--threads", threads]].concat());
        let report = &reports[0];
        assert_report(report, test, 64, 40, fields);
        assert_counted(report);
        assert_eq!(report["endpoints"], "shared", "{report}");
        assert_eq!(report["threads"].to_string(), threads, "{report}");
        let lanes = report["lanes"].as_array().unwrap();
        assert!(lanes.iter().all(|lane| !lane.as_str().unwrap().contains("uring")), "{report}");
        for side in ["sharing_per_million", "sharing_per_million_peer"] {
            let counters = report[side].as_object().unwrap_or_else(|| panic!("{side}: {report}"));
            let counts = |name: &str| counters[name].as_f64().is_some_and(|count| count >= 0.0);
            for name in ["failed_locks", "combined", "leftovers", "sleeps"] {
                assert!(counts(name), "{side}, {name}: {report}");
            }
        }
    }
    let reports = objects(&["mr", "--loopback", "--rounds", "1", "--iters", "40"]);
    assert_eq!(reports[0]["endpoints"], "owned", "{reports:?}");
    assert!(reports[0].get("sharing_per_million").is_none(), "{reports:?}");
}

#[test]
fn threads_have_columns() {
    let run = ["mr", "--loopback", "--threads", "2", "--rounds", "1", "--iters", "20", "--csv"];
    let output = perf(&run);
    let stdout = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let rows: Vec<Vec<&str>> = stdout.lines().map(|line| line.split(',').collect()).collect();
    let at = |name| rows[0].iter().position(|&column| column == name).unwrap();
    assert_eq!(rows[1][at("Threads")], "2", "{stdout}");
    let rate = |name| rows[1][at(name)].parse::<f64>().unwrap();
    assert!(rate("Least thread (/s)") <= rate("Most thread (/s)"), "{stdout}");
}

/// An engine that sleeps is woken by the first message, and spins for the second one.
#[test]
fn the_first_message_wakes_a_dedicated_engine() {
    let job = ["dedicated-wake", "--loopback", "--rounds", "1", "--iters", "20"];
    let reports = objects(&job);
    let [report] = &reports[..] else { panic!("{reports:?}") };
    assert_report(report, "dedicated-wake", 8, 20, &LATENCIES);
    assert_counted(report);
    assert_eq!(report["endpoints"], "dedicated", "{report}");
    for time in ["awake_us_p50", "floor_wake_us_p50"] {
        assert!(report[time].as_f64().unwrap() > 0.0, "{report}");
    }
    assert!(report["by_floor_wake"].is_number() && report["wake_us"].is_number(), "{report}");
    for refused in [&["--size", "16"][..], &["--lanes", "uring"], &["--threads", "2"]] {
        let output = perf(&[&["dedicated-wake", "--loopback"], refused].concat());
        assert!(!output.status.success(), "{refused:?}: {}", text(&output.stdout));
    }
}

/// Who computes while an engine's own thread moves a long message, and how long that took.
#[test]
fn overlap_is_reckoned_on_both_sides() {
    let job = ["overlap", "--loopback", "--rounds", "1", "--size", "1M", "--iters", "4"];
    let reports = objects(&job);
    let [report] = &reports[..] else { panic!("{reports:?}") };
    assert_report(report, "overlap", 1 << 20, 4, &LATENCIES);
    assert_counted(report);
    assert_eq!(report["endpoints"], "dedicated", "{report}");
    for percent in ["overlap_percent", "overlap_percent_peer"] {
        // How much it is depends on who else is on this host.
        assert!((0.0..=100.0).contains(&report[percent].as_f64().unwrap()), "{report}");
    }
    for share in ["progress_cpu_share", "progress_cpu_share_peer"] {
        assert!(report[share].as_f64().unwrap() >= 0.0, "{report}");
    }
    for refused in [&["--size", "8"][..], &["--lanes", "uring"], &["--threads", "2"]] {
        let output = perf(&[&["overlap", "--loopback"], refused].concat());
        assert!(!output.status.success(), "{refused:?}: {}", text(&output.stdout));
    }
}
