//! Joining a NIC, and leaving it.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[cfg(feature = "faults")]
use libbpf_rs::MapHandle;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::error::{ClaimError, Detached, JoinError};
use crate::facts::reports_features;
use crate::folder::{self, Folder, RUN_DIR, Users};
use crate::pins::Pins;
use crate::privileges::Missing;
use crate::program::{Kind, Maps};
use crate::site::Site;
use crate::sys::{bpf, device::Device};
use crate::{Claim, Counters};

/// `NETDEV_XDP_ACT_XSK_ZEROCOPY`.
pub(crate) const FEATURE_ZERO_COPY: u64 = 1 << 3;
/// `NETDEV_XDP_ACT_RX_SG`.
pub(crate) const FEATURE_FRAGS: u64 = 1 << 5;

/// Where the program is to run.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub enum AttachMode {
    /// By kind of the NIC: generic on veth, where it is faster and leaves TCP its segmentation
    /// offload (40 Gb/s against 8 were measured); elsewhere native if the driver can, else generic.
    #[default]
    Auto,
    /// In the driver, before the kernel has a packet. Zero-copy sockets need it.
    Native,
    /// In the kernel's stack, on every NIC.
    Generic,
}

/// Where the program runs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mode {
    /// In the driver.
    Native,
    /// In the kernel's stack.
    Generic,
    /// In the NIC. Ringrail never asks for it, programs of others may.
    Offloaded,
}

impl fmt::Display for AttachMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "native or generic",
            Self::Native => "native",
            Self::Generic => "generic",
        })
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Native => "native",
            Self::Generic => "generic",
            Self::Offloaded => "offloaded",
        })
    }
}

/// Names a NIC of the calling thread's network namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NicId<'name> {
    /// By name, such as `eth0`.
    Name(&'name str),
    /// By interface index.
    Index(u32),
}

impl<'name> From<&'name str> for NicId<'name> {
    fn from(name: &'name str) -> Self {
        Self::Name(name)
    }
}

impl From<u32> for NicId<'_> {
    fn from(index: u32) -> Self {
        Self::Index(index)
    }
}

impl fmt::Display for NicId<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Index(index) => write!(f, "number {index}"),
        }
    }
}

/// A NIC with ringrail's program on it, and one share in that program.
///
/// Any thread may use and drop it, in whichever network namespace. Clones are the same share. The
/// last of all processes to leave takes the program off and removes what it pinned.
#[derive(Clone, Debug)]
pub struct Nic {
    joined: Arc<Joined>,
}

/// What a [`Nic`] and its claims have together.
#[derive(Debug)]
pub(crate) struct Joined {
    pub(crate) name: String,
    pub(crate) queues: u32,
    ifindex: u32,
    driver: String,
    mode: Mode,
    features: u64,
    /// Of the network namespace that the NIC is in: asks about it from any thread.
    socket: OwnedFd,
    link: OwnedFd,
    program_id: u32,
    pub(crate) maps: Maps,
    pub(crate) folder: Folder,
    pub(crate) users: Users,
    pins: Option<Pins>,
    /// Slots of this share's claims.
    slots: Mutex<BTreeSet<u32>>,
}

/// A program at its place.
pub(crate) struct Attachment {
    pub(crate) link: OwnedFd,
    pub(crate) program_id: u32,
    pub(crate) mode: Mode,
    pub(crate) maps: Maps,
}

impl Nic {
    /// Joins the processes that use ringrail's program on a NIC of the calling thread's network
    /// namespace; the first one loads and attaches it.
    ///
    /// What killed processes left is cleaned up first. An XDP program of others stays.
    ///
    /// # Errors
    ///
    /// See [`JoinError`]: each names what is missing and what to do. Nothing is left behind.
    pub fn join<'name>(nic: impl Into<NicId<'name>>, mode: AttachMode) -> Result<Self, JoinError> {
        Self::join_as(nic.into(), mode, Kind::Plain)
    }

    /// As [`join`](Self::join), but the first one attaches the program that can drop and damage
    /// datagrams. Those who join later with [`join`](Self::join) share it.
    #[cfg(feature = "faults")]
    pub fn join_with_faults<'name>(
        nic: impl Into<NicId<'name>>,
        mode: AttachMode,
    ) -> Result<Self, JoinError> {
        Self::join_as(nic.into(), mode, Kind::Faults)
    }

    fn join_as(nic: NicId<'_>, wanted: AttachMode, kind: Kind) -> Result<Self, JoinError> {
        let (family, flags) = (AddressFamily::INET, SocketFlags::CLOEXEC);
        let socket = socket_with(family, SocketType::DGRAM, flags, None)
            .map_err(|error| JoinError::Os { doing: "opening a socket", source: error.into() })?;
        let no_such = |_| JoinError::NoSuchNic { nic: nic.to_string() };
        let ifindex = match nic {
            NicId::Index(index) => index,
            NicId::Name(name) => {
                rustix::net::netdevice::name_to_index(&socket, name).map_err(no_such)?
            }
        };
        let mut device =
            Device::find(socket.as_fd(), ifindex).map_err(|error| no_such(to_errno(&error)))?;
        let (name, driver, queues) = (device.name(), device.driver(), device.queues());
        if let Some(missing) = Missing::for_joining() {
            let doing = "attaching the XDP program";
            return Err(JoinError::Privileges { nic: name, doing, missing });
        }
        let asking = "asking for the network namespace";
        let key = folder::key(ifindex).map_err(JoinError::os(asking))?;
        let pins = Pins::find(&key);
        let no_folder = |source| JoinError::Folder { path: RUN_DIR.into(), source };
        let folder = Folder::open(key).map_err(no_folder)?;
        let gate = folder.lock().map_err(no_folder)?;
        let Some(gate) = gate else {
            return Err(JoinError::Busy { path: folder.lock_path() });
        };
        let users = folder.users(&gate).map_err(no_folder)?;
        let site = Site { name, ifindex, driver, wanted, kind, pins };
        let found = site.settle(&users, &gate);
        let (attachment, features) = match found {
            Ok(found) => found,
            Err(error) => {
                // Files without a user would only be litter.
                if users.is_alone(&gate) {
                    folder.remove(gate);
                }
                return Err(error);
            }
        };
        users.share(&gate).map_err(no_folder)?;
        drop(gate);
        let Attachment { link, program_id, mode, maps } = attachment;
        let Site { name, driver, pins, .. } = site;
        let slots = Mutex::default();
        let joined = Joined {
            name,
            queues,
            ifindex,
            driver,
            mode,
            features,
            socket,
            link,
            program_id,
            maps,
            folder,
            users,
            pins,
            slots,
        };
        Ok(Self { joined: Arc::new(joined) })
    }

    /// Sends datagrams for `addr` that arrive on `queue` to an AF_XDP socket, until the claim is
    /// dropped or the process ends.
    ///
    /// `socket` is bound to this NIC and `queue`, and has frames in its fill ring: the kernel drops
    /// what comes to a socket of another queue. It stays the caller's. Entries of processes that
    /// died are taken over.
    ///
    /// # Errors
    ///
    /// See [`ClaimError`]. Nothing has changed then.
    pub fn claim(&self, queue: u32, addr: SocketAddr, socket: RawFd) -> Result<Claim, ClaimError> {
        Claim::make(&self.joined, queue, addr, socket)
    }

    /// The descriptors by which this process has its share, for as long as the NIC and its claims
    /// live. A copy of them, which a child of `fork` has, keeps the program on the NIC when this
    /// process is gone.
    pub fn descriptors(&self) -> Vec<RawFd> {
        let Joined { socket, link, maps, folder, users, pins, .. } = &*self.joined;
        let Maps { claims, sockets, counters, faults } = maps;
        let of_maps = [Some(claims), Some(sockets), Some(counters), faults.as_ref()];
        let of_maps = of_maps.into_iter().flatten().map(|map| map.as_fd());
        let others = [socket.as_fd(), link.as_fd(), folder.as_fd(), users.as_fd()];
        let of_pins = pins.as_ref().map(Pins::as_fd);
        let all = of_maps.chain(others).chain(of_pins);
        all.map(|descriptor| descriptor.as_raw_fd()).collect()
    }

    /// What became of the frames of this NIC since the program was attached.
    ///
    /// # Errors
    ///
    /// What the kernel answered.
    pub fn counters(&self) -> io::Result<Counters> {
        Counters::read(&self.joined.maps.counters)
    }

    /// The interface's name when it was joined.
    pub fn name(&self) -> &str {
        &self.joined.name
    }

    /// The interface's index.
    pub fn ifindex(&self) -> u32 {
        self.joined.ifindex
    }

    /// The name of its driver, such as `veth`; empty if it has none.
    pub fn driver(&self) -> &str {
        &self.joined.driver
    }

    /// Where the program runs.
    pub fn mode(&self) -> Mode {
        self.joined.mode
    }

    /// Whether a socket may ask for zero-copy: the driver reports it (Linux 6.3), and the program
    /// runs in it.
    pub fn has_zero_copy(&self) -> bool {
        self.joined.mode == Mode::Native && self.joined.features & FEATURE_ZERO_COPY != 0
    }

    /// Whether the NIC may do without copies whatever the program's mode: its driver reports it,
    /// or the kernel reports no features (before Linux 6.3).
    pub fn may_have_zero_copy(&self) -> bool {
        let features = self.joined.features;
        features & FEATURE_ZERO_COPY != 0 || (features == 0 && !reports_features())
    }

    /// Whether frames longer than one buffer reach the program whole: always in the kernel's stack,
    /// natively where the driver reports it (Linux 6.3).
    pub fn has_frags(&self) -> bool {
        self.joined.mode == Mode::Generic || self.joined.features & FEATURE_FRAGS != 0
    }

    /// How many receive queues it had when it was joined, at least 1.
    pub fn queues(&self) -> u32 {
        self.joined.queues
    }

    /// Whether other processes without `CAP_SYS_ADMIN` can join: bpffs is mounted and holds the
    /// program.
    pub fn is_pinned(&self) -> bool {
        self.joined.pins.as_ref().is_some_and(|pins| pins.has("link"))
    }

    /// Checks whether datagrams can still come: the program is where it was and the NIC is up.
    /// Three short system calls, so it may be called ten times a second; they may have to wait
    /// while interfaces of this host are changed, so threads that must not wait do not call it.
    ///
    /// # Errors
    ///
    /// Why they cannot.
    pub fn is_attached(&self) -> Result<(), Detached> {
        self.joined.is_attached()
    }

    /// Whether there are other clones, or claims.
    pub(crate) fn is_shared(&self) -> bool {
        Arc::strong_count(&self.joined) > 1
    }

    /// Takes the claims of processes that died away.
    pub(crate) fn sweep(&self) -> Result<(), ClaimError> {
        self.joined.sweep()
    }

    /// The map of faults, if this is the program of tests.
    #[cfg(feature = "faults")]
    pub(crate) fn faults_map(&self) -> Option<&MapHandle> {
        self.joined.maps.faults.as_ref()
    }
}

impl Joined {
    fn is_attached(&self) -> Result<(), Detached> {
        let nic = || self.name.clone();
        let unknown = |source| Detached::Os { nic: nic(), source };
        match Device::find(self.socket.as_fd(), self.ifindex).and_then(|mut it| it.is_up()) {
            Ok(true) => {}
            Ok(false) => return Err(Detached::Down { nic: nic() }),
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {
                return Err(Detached::Gone { nic: nic() });
            }
            Err(error) => return Err(unknown(error)),
        }
        let link = bpf::link_info(self.link.as_fd()).map_err(unknown)?;
        if link.ifindex == 0 {
            return Err(Detached::Program { nic: nic() });
        }
        if link.program_id != self.program_id {
            return Err(Detached::Replaced { nic: nic(), program_id: link.program_id });
        }
        Ok(())
    }

    /// Slots of this share's claims, for as long as they are to stay the same.
    pub(crate) fn own_slots(&self) -> MutexGuard<'_, BTreeSet<u32>> {
        // A panic in between leaves a set that is as good as before.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Leaves; the last one takes everything away.
impl Drop for Joined {
    fn drop(&mut self) {
        // Where the lock is not to be had, the next start cleans up.
        let Ok(Some(gate)) = self.folder.lock() else { return };
        if !self.users.is_alone(&gate) {
            return;
        }
        // Others may have it open without using it, such as tools that look at it.
        let _ = bpf::link_detach(self.link.as_fd());
        if let Some(pins) = &self.pins {
            pins.remove();
        }
        self.folder.remove(gate);
    }
}

/// `io::Error` as rustix has it.
fn to_errno(error: &io::Error) -> rustix::io::Errno {
    rustix::io::Errno::from_io_error(error).unwrap_or(rustix::io::Errno::IO)
}
