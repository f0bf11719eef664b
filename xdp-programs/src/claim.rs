//! Claims: which datagrams go to which AF_XDP socket.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;

use libbpf_rs::{MapCore as _, MapFlags};

use crate::error::{ClaimError, Owner};
use crate::nic::Joined;
use crate::program::plain;

/// Claims of one NIC: `CLAIMS_MAX` in `bpf/shared.h`.
pub(crate) const CLAIMS_MAX: u32 = 1024;

/// Bytes of `struct claim_key`.
const KEY_BYTES: usize = 20;

/// Bytes of `struct claim`.
const VALUE_BYTES: usize = 16;

/// A right to the datagrams for one address on one queue. Dropping it gives them back to the
/// kernel.
///
/// It keeps the NIC joined, so the [`Nic`](crate::Nic) may be dropped before it. Close the AF_XDP
/// socket after it: datagrams that find a closed socket go to the kernel, too, but count as
/// `no_socket`.
#[derive(Debug)]
pub struct Claim {
    joined: Arc<Joined>,
    key: [u8; KEY_BYTES],
    slot: u32,
    queue: u32,
    addr: SocketAddr,
}

/// `struct claim`: who holds a key, and where its socket is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    slot: u32,
    pid: u32,
    pid_namespace: u64,
}

impl Claim {
    /// The queue.
    pub fn queue(&self) -> u32 {
        self.queue
    }

    /// The address.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub(crate) fn make(
        joined: &Arc<Joined>,
        queue: u32,
        addr: SocketAddr,
        socket: RawFd,
    ) -> Result<Self, ClaimError> {
        let nic = || joined.name.clone();
        if addr.ip().to_canonical().is_unspecified() || addr.port() == 0 {
            return Err(ClaimError::Unspecified { addr });
        }
        let queue_number = match u16::try_from(queue) {
            Ok(number) if queue < joined.queues => number,
            _ => return Err(ClaimError::NoSuchQueue { nic: nic(), queue, queues: joined.queues }),
        };
        let key = key_bytes(addr, queue_number);
        let lock = joined.folder.lock().map_err(ClaimError::os("locking the NIC"))?;
        let Some(_gate) = lock else {
            return Err(ClaimError::Busy { path: joined.folder.lock_path() });
        };
        let mut own = joined.own_slots();
        let me = Entry::of_this_process(0);
        for (other, entry) in joined.living(&own)? {
            let owner = entry.owner(&me);
            if other == key {
                return Err(ClaimError::AddressTaken { nic: nic(), queue, addr, owner });
            }
            // A process may share a queue among its own sockets, the kernel sees to that.
            let is_same_queue = other[18..] == key[18..];
            if is_same_queue && owner.pid != Some(me.pid) {
                return Err(ClaimError::QueueTaken { nic: nic(), queue, owner });
            }
        }
        let slot = (0..CLAIMS_MAX)
            .filter(|slot| !own.contains(slot))
            .find_map(|slot| match joined.users.take_slot(slot) {
                Ok(true) => Some(Ok(slot)),
                Ok(false) => None,
                Err(error) => Some(Err(error)),
            })
            .transpose()
            .map_err(ClaimError::os(ASKING))?;
        let Some(slot) = slot else {
            return Err(ClaimError::Full { nic: nic(), max: CLAIMS_MAX });
        };
        if let Err(error) = joined.enter(&key, slot, socket) {
            joined.forget(&key, slot);
            joined.users.give_slot(slot);
            return Err(error);
        }
        own.insert(slot);
        drop(own);
        Ok(Self { joined: Arc::clone(joined), key, slot, queue, addr })
    }
}

/// What fails when the users' file does.
const ASKING: &str = "asking who owns a slot";

impl Drop for Claim {
    fn drop(&mut self) {
        self.joined.forget(&self.key, self.slot);
        // Last, since another process may have it from here on.
        let mut own = self.joined.own_slots();
        own.remove(&self.slot);
        self.joined.users.give_slot(self.slot);
    }
}

impl Joined {
    /// All claims of the NIC, of the dead as well.
    fn entries(&self) -> std::io::Result<Vec<([u8; KEY_BYTES], Entry)>> {
        let map = &self.maps.claims;
        let mut entries = Vec::new();
        for key in map.keys() {
            let Ok(key) = <[u8; KEY_BYTES]>::try_from(key) else { continue };
            // Others may give theirs back at any time.
            if let Some(value) = map.lookup(&key, MapFlags::ANY).map_err(plain)? {
                entries.extend(Entry::from_bytes(&value).map(|entry| (key, entry)));
            }
        }
        Ok(entries)
    }

    /// Claims of the living; those of the dead are removed. Under the lock.
    fn living(&self, own: &BTreeSet<u32>) -> Result<Vec<([u8; KEY_BYTES], Entry)>, ClaimError> {
        let mut entries = self.entries().map_err(ClaimError::os("reading the claims"))?;
        let mut failed = Ok(());
        entries.retain(|(key, entry)| {
            let is_dead = !own.contains(&entry.slot)
                && self.is_abandoned(entry.slot).unwrap_or_else(|error| {
                    failed = Err(ClaimError::Os { doing: ASKING, source: error });
                    false
                });
            if is_dead {
                self.forget(key, entry.slot);
            }
            !is_dead
        });
        failed.map(|()| entries)
    }

    /// Removes the claims of the dead.
    pub(crate) fn sweep(&self) -> Result<(), ClaimError> {
        let lock = self.folder.lock().map_err(ClaimError::os("locking the NIC"))?;
        let Some(_gate) = lock else {
            return Err(ClaimError::Busy { path: self.folder.lock_path() });
        };
        self.living(&self.own_slots()).map(drop)
    }

    /// Whether no living process owns a slot that is none of our own. Under the lock.
    fn is_abandoned(&self, slot: u32) -> std::io::Result<bool> {
        let is_free = self.users.take_slot(slot)?;
        if is_free {
            self.users.give_slot(slot);
        }
        Ok(is_free)
    }

    /// Makes the entries of a claim.
    fn enter(&self, key: &[u8], slot: u32, socket: RawFd) -> Result<(), ClaimError> {
        let (sockets, claims) = (&self.maps.sockets, &self.maps.claims);
        sockets.update(&slot.to_ne_bytes(), &socket.to_ne_bytes(), MapFlags::ANY).map_err(
            |error| {
                let source = plain(error);
                match source.raw_os_error() {
                    Some(libc::EBADF | libc::EOPNOTSUPP | libc::ENOTSOCK | libc::EINVAL) => {
                        ClaimError::NotASocket { fd: socket, source }
                    }
                    _ => ClaimError::Os { doing: "entering the AF_XDP socket", source },
                }
            },
        )?;
        // The socket first: from the next call on datagrams come.
        let value = Entry::of_this_process(slot).to_bytes();
        claims
            .update(key, &value, MapFlags::NO_EXIST)
            .map_err(|error| ClaimError::Os { doing: "entering the claim", source: plain(error) })
    }

    /// Removes the entries of a claim, if they are there.
    fn forget(&self, key: &[u8], slot: u32) {
        // The claim first: what comes in between still finds the socket.
        let _ = self.maps.claims.delete(key);
        let _ = self.maps.sockets.delete(&slot.to_ne_bytes());
    }
}

impl Entry {
    pub(crate) fn of_this_process(slot: u32) -> Self {
        let namespace = std::fs::metadata("/proc/self/ns/pid").map_or(0, |found| found.ino());
        Self { slot, pid: std::process::id(), pid_namespace: namespace }
    }

    fn owner(&self, me: &Self) -> Owner {
        Owner { pid: (self.pid_namespace == me.pid_namespace).then_some(self.pid) }
    }

    pub(crate) fn to_bytes(self) -> [u8; VALUE_BYTES] {
        let mut bytes = [0; VALUE_BYTES];
        bytes[..4].copy_from_slice(&self.slot.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.pid.to_ne_bytes());
        bytes[8..].copy_from_slice(&self.pid_namespace.to_ne_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            slot: u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?),
            pid: u32::from_ne_bytes(bytes.get(4..8)?.try_into().ok()?),
            pid_namespace: u64::from_ne_bytes(bytes.get(8..VALUE_BYTES)?.try_into().ok()?),
        })
    }
}

/// `struct claim_key`. Addresses are IPv6 ones, those of IPv4 mapped into it.
pub(crate) fn key_bytes(addr: SocketAddr, queue: u16) -> [u8; KEY_BYTES] {
    let ip = match addr.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let mut key = [0; KEY_BYTES];
    key[..16].copy_from_slice(&ip.octets());
    key[16..18].copy_from_slice(&addr.port().to_be_bytes());
    key[18..].copy_from_slice(&queue.to_ne_bytes());
    key
}
