//! Running other programs.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The top of the repository.
pub(crate) fn root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.parent().map_or(here.clone(), PathBuf::from)
}

/// A cargo command at the top of the repository.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root()).args(arguments);
    command
}

/// Runs a command; its failure is an error that names it.
pub(crate) fn run(command: &mut Command) -> Result<(), String> {
    println!("+ {command:?}");
    let status = command.status().map_err(|error| format!("{command:?}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{command:?} ended with {status}")) }
}

/// [`run`], for so long at the most: then the program is killed, and `false` says so. What it
/// started has to notice that by itself.
pub(crate) fn run_within(command: &mut Command, limit: Duration) -> Result<bool, String> {
    println!("+ {command:?}");
    let name = format!("{command:?}");
    let failed = |error: std::io::Error| format!("{name}: {error}");
    let mut child = command.spawn().map_err(failed)?;
    let deadline = Instant::now() + limit;
    let status = loop {
        if let Some(status) = child.try_wait().map_err(failed)? {
            break status;
        }
        if Instant::now() >= deadline {
            child.kill().and_then(|()| child.wait()).map_err(failed)?;
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    if status.success() { Ok(true) } else { Err(format!("{name} ended with {status}")) }
}

/// What a command that succeeds writes.
pub(crate) fn output(command: &mut Command) -> Result<String, String> {
    let output = command.stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("{command:?} ended with {}", output.status))
}

/// Whether this process is root.
pub(crate) fn is_root() -> bool {
    let output = Command::new("id").arg("-u").output();
    output.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

/// Whether a program is on the path.
pub(crate) fn has(program: &str) -> bool {
    Command::new(program)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok()
}
