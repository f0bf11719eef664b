//! What a message costs, in instructions: no more than `perf/instructions.json` says.

use std::process::Command;

use crate::run::{cargo, is_root, root};

/// Compilers make different code of the same source: the file is of this one, for x86-64.
const COUNTED_WITH: &str = "rustc 1.95.0 (";

/// Counts, in the release build of `ringrail-perf`. `Ok(false)`: not here, which a line says.
pub(crate) fn run() -> Result<bool, String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).current_dir(root()).arg("--version").output();
    let version = output.map_err(|error| format!("rustc: {error}"))?.stdout;
    let version = String::from_utf8_lossy(&version);
    let refusal = if !is_root() {
        "labs want root".to_owned()
    } else if !version.starts_with(COUNTED_WITH) || !cfg!(target_arch = "x86_64") {
        let with = COUNTED_WITH.trim_end_matches(" (");
        format!("perf/instructions.json was counted with {with} for x86-64")
    } else {
        let tool = ["run", "--release", "--package", "ringrail-perf", "--", "instructions"];
        crate::run::run(cargo(&tool).args(["--check", "perf/instructions.json"]))?;
        return Ok(true);
    };
    println!("RINGRAIL-SKIP: instructions: {refusal}");
    Ok(false)
}
