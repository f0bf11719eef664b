//! Which network namespace a thread is in.

use rustix::fs::stat;

/// A network namespace, as the kernel names it: device and inode of its file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NetworkNamespace {
    device: u64,
    inode: u64,
}

impl NetworkNamespace {
    /// That in which the calling thread opens sockets, and threads that it starts. `None`: there
    /// is no `/proc`. One system call.
    pub(crate) fn of_current_thread() -> Option<Self> {
        let file = stat("/proc/thread-self/ns/net").ok()?;
        Some(Self { device: file.st_dev, inode: file.st_ino })
    }
}
