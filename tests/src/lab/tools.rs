//! iproute2, run inside a namespace.

use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::Arc;

use rustix::io::{FdFlags, fcntl_setfd};

use super::LabError;
use super::namespace::{Namespace, move_in};

/// Asks `ip` its version, to learn whether it is there.
pub(crate) fn is_there() -> Result<(), LabError> {
    let status = Command::new("ip").arg("-Version").stdout(Stdio::null()).status();
    status.map(drop).map_err(|source| LabError::NoTool { tool: "ip", source })
}

/// Runs `batch` by `ip` inside `inside`; its process has the descriptors of `others`, too.
pub(crate) fn ip(
    inside: &Arc<Namespace>,
    others: &[&Arc<Namespace>],
    batch: &str,
) -> Result<(), LabError> {
    run("ip", inside, others, batch)
}

/// Runs `batch` by `tc` inside `inside`.
pub(crate) fn tc(inside: &Arc<Namespace>, batch: &str) -> Result<(), LabError> {
    run("tc", inside, &[], batch)
}

fn run(
    tool: &'static str,
    inside: &Arc<Namespace>,
    others: &[&Arc<Namespace>],
    batch: &str,
) -> Result<(), LabError> {
    if batch.is_empty() {
        return Ok(());
    }
    let mut command = Command::new(tool);
    command.args(["-batch", "-"]);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let inside = Arc::clone(inside);
    let others: Vec<_> = others.iter().map(|other| Arc::clone(other)).collect();
    let before_exec = move || {
        move_in(inside.as_fd())?;
        others.iter().try_for_each(|other| Ok(fcntl_setfd(&**other, FdFlags::empty())?))
    };
    // SAFETY: the closure makes system calls only; it neither allocates nor takes a lock.
    unsafe { command.pre_exec(before_exec) };
    let mut child = command.spawn().map_err(|source| match source.kind() {
        std::io::ErrorKind::NotFound => LabError::NoTool { tool, source },
        _ => LabError::Os { doing: format!("running `{tool}` in a host of the lab"), source },
    })?;
    let fed = child.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(batch.as_bytes()));
    let doing = format!("waiting for `{tool}`");
    let output = child.wait_with_output().map_err(LabError::os(doing))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
        return Err(LabError::Refused { tool, stderr });
    }
    fed.map_err(LabError::os(format!("writing to `{tool}`")))
}
