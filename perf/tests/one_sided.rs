//! Operations on memory are measured over the loopback address, beside the messages that do the
//! same.

#[path = "common/loopback.rs"]
mod loopback;

use loopback::{LATENCIES, assert_counted, assert_report, objects, perf, text};

const BESIDE: [&str; 2] = ["two_sided", "by_two_sided"];

/// Runs a test at these sizes; each report says how it compares.
fn measure(test: &str, more: &[&str], sizes: &[u64], iters: u64, fields: &[&str]) {
    let range = format!("{}:{}", sizes[0], sizes[sizes.len() - 1]);
    let count = iters.to_string();
    let common = [test, "--loopback", "--rounds", "2", "--size", &range, "--iters", &count];
    let reports = objects(&[&common, more].concat());
    assert_eq!(reports.len(), sizes.len());
    for (report, size) in reports.iter().zip(sizes) {
        assert_report(report, test, *size, iters, &[fields, &BESIDE].concat());
        assert!(report["by_two_sided"].as_f64().unwrap() > 0.0, "{report}");
        assert_counted(report);
    }
}

#[test]
fn one_operation_at_a_time() {
    measure("put-latency", &[], &[8, 16], 20, &LATENCIES);
    // Bytes of which no word is whole; more than a datagram holds; what is pulled.
    for size in [1, 13, 5_000, 200_001] {
        measure("put-latency", &["--verify", "--buffers", "heap"], &[size], 5, &LATENCIES);
        measure("get-latency", &["--verify"], &[size], 5, &LATENCIES);
    }
    measure("get-latency", &[], &[8, 16], 20, &LATENCIES);
    measure("atomic-latency", &[], &[8, 16], 20, &LATENCIES);
    measure("atomic-latency", &["--lanes", "sockets"], &[512], 5, &LATENCIES);
}

#[test]
fn many_operations_at_a_time() {
    let fields = ["bandwidth_mb_s", "message_rate_per_s"];
    for test in ["put-bw", "get-bw"] {
        measure(test, &[], &[65_536, 131_072], 20, &fields);
        measure(test, &["--verify", "--window", "3", "--buffers", "heap"], &[100_001], 8, &fields);
        measure(test, &["--verify", "--lanes", "sockets"], &[64], 200, &fields);
    }
    measure("put-mr", &[], &[8, 16], 3_000, &["message_rate_per_s"]);
    measure("put-mr", &["--verify", "--lanes", "sockets"], &[1], 500, &["message_rate_per_s"]);
}

#[test]
fn what_cannot_be_measured_is_refused_with_a_reason() {
    for (arguments, reason) in [
        (&["put-mr", "--size", "64K"][..], "use put-bw"),
        (&["put-latency", "--size", "0"], "1 byte at least"),
        (&["atomic-latency", "--size", "12"], "words of 8 bytes"),
        (&["atomic-latency", "--size", "1K"], "512 bytes"),
        (&["put-bw", "--threads", "2"], "--threads above 1 is of"),
        (&["get-latency", "--pcap", "lanes.pcap"], "--pcap"),
    ] {
        let output = perf(&[arguments, &["--loopback"]].concat());
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(reason), "{arguments:?}: {stderr}");
    }
}
