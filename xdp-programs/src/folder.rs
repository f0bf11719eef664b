//! Lock files: who uses a NIC, whose claims are alive, and who may change things now.
//!
//! In [`RUN_DIR`], for each NIC (network namespace and interface index):
//!
//! - `KEY.lock`: held (`flock`, exclusive) while a process joins, claims or leaves;
//! - `KEY.users`: each user holds it shared for life, so that a process that gets it exclusively
//!   is alone; byte N of it is locked by the owner of slot N.
//!
//! The kernel gives all these back when a process ends, whichever way it does. A file is removed by
//! the last user, under the lock; who waits for a lock that was removed meanwhile starts again.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, flock, fstat, open, openat, statat};
use rustix::io::Errno;

use crate::sys::lock::{try_lock_byte, unlock_byte};

/// Where the lock files are.
pub(crate) const RUN_DIR: &str = "/run/ringrail-xdp";

/// How long the lock of a NIC is waited for. What is done under it takes milliseconds, loading the
/// program a few hundred on a slow machine.
const PATIENCE: Duration = Duration::from_secs(10);

/// The lock files of one NIC.
#[derive(Debug)]
pub(crate) struct Folder {
    /// Descriptors find the files again from another mount namespace, too.
    dir: OwnedFd,
    key: String,
}

/// While it lives, no other process joins, claims or leaves.
#[derive(Debug)]
pub(crate) struct Gate {
    /// Closing it gives the lock back.
    _file: OwnedFd,
}

/// A user's share in a NIC.
#[derive(Debug)]
pub(crate) struct Users {
    file: OwnedFd,
}

impl Folder {
    /// Opens the folder, and makes it where it is missing.
    pub(crate) fn open(key: String) -> io::Result<Self> {
        let mode = Mode::RWXU | Mode::RGRP | Mode::XGRP | Mode::ROTH | Mode::XOTH;
        match rustix::fs::mkdir(RUN_DIR, mode) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(Self { dir: open(RUN_DIR, flags, Mode::empty())?, key })
    }

    /// Its descriptor.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// The lock file, for people.
    pub(crate) fn lock_path(&self) -> PathBuf {
        Path::new(RUN_DIR).join(self.lock_name())
    }

    /// Waits for the lock; `None`: longer than is sensible.
    pub(crate) fn lock(&self) -> io::Result<Option<Gate>> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let file = self.open_file(&self.lock_name())?;
            loop {
                match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                    Ok(()) => break,
                    Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < deadline => {
                        sleep(Duration::from_millis(1));
                    }
                    Err(Errno::WOULDBLOCK | Errno::INTR) => return Ok(None),
                    Err(error) => return Err(error.into()),
                }
            }
            // The last user may have removed it before we had it.
            let there = statat(&self.dir, self.lock_name(), AtFlags::SYMLINK_NOFOLLOW);
            if there.is_ok_and(|there| fstat(&file).is_ok_and(|own| own.st_ino == there.st_ino)) {
                return Ok(Some(Gate { _file: file }));
            }
        }
    }

    /// Opens the users' file without being one yet. Under the lock only.
    pub(crate) fn users(&self, _gate: &Gate) -> io::Result<Users> {
        Ok(Users { file: self.open_file(&self.users_name())? })
    }

    /// Removes both files. Under the lock, and as the only user.
    pub(crate) fn remove(&self, _gate: Gate) {
        for name in [self.users_name(), self.lock_name()] {
            // What stays is an empty file that the next user takes over.
            let _ = rustix::fs::unlinkat(&self.dir, name, AtFlags::empty());
        }
    }

    fn open_file(&self, name: &str) -> io::Result<OwnedFd> {
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::WGRP;
        Ok(openat(&self.dir, name, flags, mode)?)
    }

    fn lock_name(&self) -> String {
        format!("{}.lock", self.key)
    }

    fn users_name(&self) -> String {
        format!("{}.users", self.key)
    }
}

impl Users {
    /// Its descriptor.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Returns whether no other process uses the NIC. A share of ours may be lost if one does.
    /// Under the lock only.
    pub(crate) fn is_alone(&self, _gate: &Gate) -> bool {
        flock(&self.file, FlockOperation::NonBlockingLockExclusive).is_ok()
    }

    /// Uses the NIC from now on, until this value is dropped. Under the lock only.
    pub(crate) fn share(&self, _gate: &Gate) -> io::Result<()> {
        Ok(flock(&self.file, FlockOperation::NonBlockingLockShared)?)
    }

    /// Takes slot `slot`; `false`: another living process has it. Slots of this value's own are not
    /// distinguished from free ones.
    pub(crate) fn take_slot(&self, slot: u32) -> io::Result<bool> {
        try_lock_byte(self.file.as_fd(), slot)
    }

    /// Gives slot `slot` back.
    pub(crate) fn give_slot(&self, slot: u32) {
        // Fails for no file that a lock was had on.
        let _ = unlock_byte(self.file.as_fd(), slot);
    }
}

/// The name of a NIC's files: the calling thread's network namespace and the interface in it.
pub(crate) fn key(ifindex: u32) -> io::Result<String> {
    Ok(format!("{}-{ifindex}", namespace()?))
}

/// The NICs of the calling thread's network namespace that have files: a process uses them, or was
/// killed.
pub(crate) fn known() -> io::Result<Vec<u32>> {
    let namespace = namespace()?.to_string();
    let files = match fs::read_dir(RUN_DIR) {
        Ok(files) => files,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut known = Vec::new();
    for file in files {
        let name = file?.file_name();
        let key = name.to_str().and_then(|name| name.strip_suffix(".users")?.split_once('-'));
        let Some((_, second)) = key.filter(|&(first, _)| first == namespace) else { continue };
        known.extend(second.parse::<u32>());
    }
    Ok(known)
}

fn namespace() -> io::Result<u64> {
    use std::os::unix::fs::MetadataExt as _;
    Ok(File::open("/proc/thread-self/ns/net")?.metadata()?.ino())
}
