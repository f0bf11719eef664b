//! Names under bpffs, by which processes without `CAP_SYS_ADMIN` find what the first one attached.
//!
//! `BPFFS/ringrail-xdp-1-KEY/` holds `program`, `link`, `claims`, `sockets`, `counters`, and with
//! the program of tests `faults`.

use std::fs;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use libbpf_rs::MapHandle;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, fstat, open, openat, unlinkat};

use crate::program::plain;
use crate::sys::bpf;

/// Where bpffs is by custom.
const CUSTOMARY: &str = "/sys/fs/bpf";

/// The type of bpffs in statfs(2).
const BPF_FS_MAGIC: i64 = 0xcafe_4a11;

/// What the name of a NIC's folder begins with; the number is that of the program's interface.
const PREFIX: &str = "ringrail-xdp-1-";

/// The names of one NIC.
#[derive(Debug)]
pub(crate) struct Pins {
    path: PathBuf,
    /// Finds it again from another mount namespace, too.
    parent: OwnedFd,
    name: String,
}

impl Pins {
    /// The folder for this NIC, which [`create`](Self::create) makes. `None`: bpffs is not mounted
    /// here, or this process may not look into it.
    pub(crate) fn find(key: &str) -> Option<Self> {
        let top = mount_point()?;
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let parent = open(&top, flags, Mode::empty()).ok()?;
        let name = format!("{PREFIX}{key}");
        Some(Self { path: top.join(&name), parent, name })
    }

    /// Makes the folder.
    pub(crate) fn create(&self) -> io::Result<()> {
        fs::create_dir(&self.path)
    }

    /// Its descriptor.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.parent.as_fd()
    }

    /// Gives `object` the name `name`.
    pub(crate) fn pin(&self, name: &str, object: BorrowedFd<'_>) -> io::Result<()> {
        bpf::pin(object, &self.path.join(name))
    }

    /// Whether there is something of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.entry(name).is_ok()
    }

    /// The object of this name.
    pub(crate) fn open(&self, name: &str) -> io::Result<OwnedFd> {
        let entry = self.entry(name)?;
        bpf::open_pin(&way_to(&entry))
    }

    /// The map of this name.
    pub(crate) fn map(&self, name: &str) -> io::Result<MapHandle> {
        let entry = self.entry(name)?;
        MapHandle::from_pinned_path(way_to(&entry)).map_err(plain)
    }

    /// A name, which does not lead elsewhere later. Where any user may make folders, another
    /// user may have made this one, with links to what others have pinned: none is followed, and a
    /// pin belongs to the owner of the folder. Making one takes the privileges that we need, too.
    fn entry(&self, name: &str) -> io::Result<OwnedFd> {
        let folder = self.folder()?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let entry = openat(&folder, name, flags, Mode::empty())?;
        let (pin, owner) = (fstat(&entry)?, fstat(&folder)?.st_uid);
        let is_file = FileType::from_raw_mode(pin.st_mode) == FileType::RegularFile;
        if is_file && pin.st_uid == owner { Ok(entry) } else { Err(io::ErrorKind::NotFound.into()) }
    }

    fn folder(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(&self.parent, &self.name, flags, Mode::empty())?)
    }

    /// Takes the program that is pinned off, and its names away. No living process uses the NIC.
    pub(crate) fn take_off(&self) {
        if let Ok(link) = self.open("link") {
            // The number of a network namespace may have been another one's before: the link knows
            // what it is attached to, and no process needs it.
            let _ = bpf::link_detach(link.as_fd());
        }
        self.remove();
    }

    /// Removes all names and the folder. What no process has a descriptor of ends with this.
    pub(crate) fn remove(&self) {
        let Ok(dir) = self.folder() else { return };
        for name in ["link", "program", "claims", "sockets", "counters", "faults"] {
            // What is not there need not go.
            let _ = unlinkat(&dir, name, AtFlags::empty());
        }
        let _ = unlinkat(&self.parent, &self.name, AtFlags::REMOVEDIR);
    }
}

/// A path of this very file: the kernel takes pins by path alone.
fn way_to(entry: &OwnedFd) -> PathBuf {
    format!("/proc/thread-self/fd/{}", entry.as_raw_fd()).into()
}

/// A bpffs that this thread sees.
fn mount_point() -> Option<PathBuf> {
    let is_bpffs =
        |path: &Path| rustix::fs::statfs(path).is_ok_and(|found| found.f_type == BPF_FS_MAGIC);
    if is_bpffs(Path::new(CUSTOMARY)) {
        return Some(CUSTOMARY.into());
    }
    // `36 35 98:0 /root /mount/point options - type source`: proc_pid_mountinfo(5).
    let mounts = fs::read_to_string("/proc/thread-self/mountinfo").ok()?;
    let points = mounts.lines().filter(|line| line.contains(" - bpf "));
    points
        .filter_map(|line| line.split(' ').nth(4))
        .map(PathBuf::from)
        .find(|point| is_bpffs(point))
}
