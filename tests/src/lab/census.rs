//! Who keeps a network namespace alive: for tests that check that nothing is left.

use std::fs;
use std::path::Path;

/// A process, told apart from later ones with the same id.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ProcessId {
    /// Its id, as this process sees it.
    pub pid: u32,
    /// When it started, in clock ticks since boot.
    start_ticks: u64,
}

impl ProcessId {
    /// The process that has this id now, if there is one and it is no zombie.
    pub fn of(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The second field is a name in parentheses that may hold anything.
        let mut fields = stat.get(stat.rfind(')')? + 2..)?.split(' ');
        let state = fields.next()?;
        let start_ticks = fields.nth(18)?.parse().ok()?;
        (!matches!(state, "Z" | "X")).then_some(Self { pid, start_ticks })
    }

    /// Whether it still runs.
    pub fn is_alive(self) -> bool {
        Self::of(self.pid) == Some(self)
    }
}

/// Processes with a thread in the network namespace `inode`, or with it open.
///
/// A snapshot: processes that come or go meanwhile may be missed. Only those that this user may
/// look into are seen. The kernel gives the number of a dead namespace to a later one.
pub fn users(inode: u64) -> Vec<ProcessId> {
    let link = format!("net:[{inode}]");
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| {
            let dir = Path::new("/proc").join(pid.to_string());
            any_link(&dir.join("task"), "ns/net", &link) || any_link(&dir.join("fd"), "", &link)
        })
        .filter_map(ProcessId::of)
        .collect()
}

/// Whether one of the entries of `dir`, followed by `below`, is a link to `target`.
fn any_link(dir: &Path, below: &str, target: &str) -> bool {
    let Ok(entries) = fs::read_dir(dir) else { return false };
    entries.flatten().any(|entry| {
        let path = if below.is_empty() { entry.path() } else { entry.path().join(below) };
        fs::read_link(path).is_ok_and(|link| link.as_os_str() == target)
    })
}
