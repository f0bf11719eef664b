//! Running the tool.

use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Runs the tool to its end, which must come within `limit`; what it prints fits a pipe.
pub(crate) fn perf(arguments: &[&str], limit: Duration) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_ringrail-perf"))
        // Both sides are on one host, and what NICs carry is meant unless lanes say otherwise.
        .env("RINGRAIL_SHARED_MEMORY", "off")
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + limit;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
            let output = child.wait_with_output().unwrap();
            panic!("{arguments:?}: no end; {}", String::from_utf8_lossy(&output.stderr));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().unwrap()
}

/// A number of a report.
#[allow(dead_code, reason = "not every test program reads numbers")]
pub(crate) fn number(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or_else(|| panic!("no {key}: {value}"))
}
