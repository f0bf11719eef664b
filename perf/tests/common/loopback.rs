//! Running the tool over the loopback address, and what every report says.

use std::io::Read as _;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

/// Far beyond what these few iterations take; a side that waits for ever ends here.
const LIMIT: Duration = Duration::from_secs(120);

/// Runs the tool without a terminal, to its end.
pub(crate) fn perf(arguments: &[&str]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_ringrail-perf"))
        // Both sides are on one host, and what NICs carry is meant unless lanes say otherwise.
        .env("RINGRAIL_SHARED_MEMORY", "off")
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut stdout, mut stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let reader = thread::spawn(move || {
        let mut bytes = Vec::new();
        stdout.read_to_end(&mut bytes).map(|_| bytes)
    });
    let errors = thread::spawn(move || {
        let mut bytes = Vec::new();
        stderr.read_to_end(&mut bytes).map(|_| bytes)
    });
    let deadline = Instant::now() + LIMIT;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > deadline {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("{arguments:?} did not end within {LIMIT:?}");
        }
        thread::sleep(Duration::from_millis(5));
    };
    let (stdout, stderr) = (reader.join().unwrap(), errors.join().unwrap());
    Output { status, stdout: stdout.unwrap(), stderr: stderr.unwrap() }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Runs a test with `--json`: every line of standard output is an object.
pub(crate) fn objects(arguments: &[&str]) -> Vec<Value> {
    let arguments = [arguments, &["--json"]].concat();
    let output = perf(&arguments);
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{arguments:?}: {stderr}");
    // The host may be busy.
    let is_warning = |line: &&str| line.starts_with("ringrail-perf: warning: ");
    let others: Vec<&str> = stderr.lines().filter(|line| !is_warning(line)).collect();
    assert_eq!(others, [""; 0], "{arguments:?}: a progress bar only where somebody watches");
    let parse = |line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"));
    stdout.lines().map(parse).collect()
}

pub(crate) const LATENCIES: [&str; 4] =
    ["latency_us_min", "latency_us_p50", "latency_us_p99", "latency_us_p999"];

/// What every test of two sides says, and the `fields` of this one, which are above 0.
pub(crate) fn assert_report(report: &Value, test: &str, size: u64, iters: u64, fields: &[&str]) {
    assert_eq!(report["test"], test, "{report}");
    assert_eq!(report["size_bytes"], size, "{report}");
    assert_eq!(report["iterations"], iters, "{report}");
    assert_eq!(report["verified"], true, "{report}");
    assert!(report["threads"].as_u64().unwrap() >= 1, "{report}");
    for lane in report["lanes"].as_array().unwrap() {
        let (kind, nic) = lane.as_str().unwrap().split_once(':').unwrap();
        assert!(!kind.is_empty() && !nic.is_empty(), "{report}");
    }
    for field in fields {
        let value = report[field].as_f64().unwrap_or_else(|| panic!("no {field}: {report}"));
        assert!(value > 0.0, "{field}: {report}");
    }
    if fields.contains(&"latency_us_min") {
        let values = LATENCIES.map(|field| report[field].as_f64().unwrap());
        assert!(values.is_sorted(), "{report}");
    }
}

/// What the endpoints counted.
pub(crate) fn assert_counted(report: &Value) {
    for field in ["syscalls_per_message", "syscalls_per_message_peer"] {
        assert!(report[field].as_f64().unwrap() >= 0.0, "{field}: {report}");
    }
    let zero_copy = report["zero_copy"].as_str().unwrap();
    assert!(["off", "on", "copied"].contains(&zero_copy), "{report}");
}
