//! What a message costs, in instructions, cache lines, system calls and packets: no more than
//! `perf/instructions.json` says.

use std::process::Command;

use crate::run::{cargo, is_root, root, run as execute};

/// Compilers make different code of the same source: the file is of this one, for x86-64.
const COUNTED_WITH: &str = "rustc 1.95.0 (";

/// The program that counts, in the profile of releases.
const TOOL: [&str; 3] = ["--release", "--package", "ringrail-perf"];

/// Counts and compares, in the release build of `ringrail-perf`.
pub(crate) fn run() -> Result<(), String> {
    match build()? {
        Ok(mut command) => execute(&mut command),
        Err(reason) => {
            println!("RINGRAIL-SKIP: instructions: {reason}");
            Ok(())
        }
    }
}

/// Builds the program that counts; the command that counts and compares, or why it cannot be done
/// here.
pub(crate) fn build() -> Result<Result<Command, String>, String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).current_dir(root()).arg("--version").output();
    let version = output.map_err(|error| format!("rustc: {error}"))?.stdout;
    let version = String::from_utf8_lossy(&version);
    if !is_root() {
        return Ok(Err("labs want root".to_owned()));
    }
    if !version.starts_with(COUNTED_WITH) || !cfg!(target_arch = "x86_64") {
        let with = COUNTED_WITH.trim_end_matches(" (");
        return Ok(Err(format!("perf/instructions.json was counted with {with} for x86-64")));
    }
    execute(cargo(&["build"]).args(TOOL))?;
    let mut command = cargo(&["run", "--quiet"]);
    command.args(TOOL).args(["--", "instructions", "--check", "perf/instructions.json"]);
    Ok(Ok(command))
}
