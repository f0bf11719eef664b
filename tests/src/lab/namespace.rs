//! Nameless network namespaces, and threads inside them.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::os::unix::fs::MetadataExt as _;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::thread;

use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use super::LabError;

/// A network namespace that lives as long as this value and the processes in it.
#[derive(Debug)]
pub(crate) struct Namespace {
    file: File,
    inode: u64,
}

impl Namespace {
    /// Makes one; only `lo` is in it, and down.
    pub(crate) fn create() -> Result<Self, LabError> {
        on_thread("lab-create", || {
            unshare(UnshareFlags::NEWNET).map_err(|source| LabError::Unprivileged {
                refused: "a network namespace",
                source,
            })?;
            let file = File::open("/proc/thread-self/ns/net")
                .map_err(LabError::os("opening a new network namespace"))?;
            let inode = file.metadata().map_err(LabError::os("asking a namespace its name"))?.ino();
            Ok(Self { file, inode })
        })?
    }

    /// The inode number that identifies it.
    pub(crate) fn inode(&self) -> u64 {
        self.inode
    }

    /// A path to it, good for any process as long as this value lives.
    pub(crate) fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd()).into()
    }

    /// Runs `work` on a new thread inside.
    pub(crate) fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, LabError> {
        on_thread("lab-host", || {
            move_in(self.as_fd()).map_err(LabError::os("entering a host of the lab"))?;
            Ok(work())
        })?
    }
}

/// A host's network namespace, for one process that is in both hosts by turns.
#[derive(Debug)]
pub struct HostNetwork(File);

impl HostNetwork {
    /// The one at `path`, as [`HostHandle::path`](super::HostHandle::path) says it.
    ///
    /// # Errors
    ///
    /// When it is not there any more, or may not be opened.
    pub fn open(path: &Path) -> Result<Self, LabError> {
        File::open(path).map(Self).map_err(LabError::os("opening a host of the lab"))
    }

    /// Moves the calling thread into it: sockets that it opens from now on are of this host.
    ///
    /// # Errors
    ///
    /// When the kernel lets the thread not in.
    pub fn enter(&self) -> Result<(), LabError> {
        move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|error| LabError::os("entering a host of the lab")(error))
    }

    /// The same with a `/sys` that shows this host's interfaces.
    ///
    /// # Errors
    ///
    /// As [`enter`](Self::enter).
    pub fn enter_with_sys(&self) -> Result<(), LabError> {
        move_in(self.0.as_fd()).map_err(LabError::os("entering a host of the lab"))
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Moves the calling thread into a network namespace, with a `/sys` that shows its interfaces.
///
/// Makes system calls only, so that it can run between `fork` and `exec`.
pub(crate) fn move_in(namespace: BorrowedFd<'_>) -> io::Result<()> {
    move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network))?;
    // The network whose interfaces a sysfs shows is the one of the thread that mounted it.
    unshare(UnshareFlags::NEWNS)?;
    mount_change(c"/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    Ok(mount(c"sysfs", c"/sys", c"sysfs", flags, None)?)
}

/// Gives the calling thread namespaces of its own. Must not be asked for `FILES`.
pub(crate) fn unshare(kinds: UnshareFlags) -> io::Result<()> {
    debug_assert!(!kinds.contains(UnshareFlags::FILES));
    // SAFETY: only FILES can make descriptors of other code invalid, and that is not asked for.
    Ok(unsafe { unshare_unsafe(kinds) }?)
}

/// Runs `work` on a thread of its own, so that its namespaces die with it; panics pass through.
fn on_thread<T: Send>(name: &str, work: impl FnOnce() -> T + Send) -> Result<T, LabError> {
    thread::scope(|scope| {
        let handle = thread::Builder::new()
            .name(name.to_owned())
            .spawn_scoped(scope, work)
            .map_err(LabError::os("starting a thread for the lab"))?;
        handle.join().or_else(|panic| resume_unwind(panic))
    })
}
