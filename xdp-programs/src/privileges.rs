//! Which capabilities AF_XDP needs, and which are missing.

use std::fmt;

use rustix::thread::{CapabilitySet, capabilities};

/// What is needed, one by one.
const NEEDED: [(CapabilitySet, Capability); 3] = [
    (CapabilitySet::BPF, Capability::Bpf),
    (CapabilitySet::NET_ADMIN, Capability::NetAdmin),
    (CapabilitySet::NET_RAW, Capability::NetRaw),
];

/// A capability that AF_XDP needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Capability {
    /// To load the program and to use its maps.
    Bpf,
    /// To attach it to a NIC.
    NetAdmin,
    /// To open AF_XDP sockets.
    NetRaw,
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bpf => "CAP_BPF",
            Self::NetAdmin => "CAP_NET_ADMIN",
            Self::NetRaw => "CAP_NET_RAW",
        })
    }
}

/// What the calling thread lacks. Its text names the cure.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Missing {
    /// Capabilities that are not effective. Empty although something was refused: the capabilities
    /// are those of a user namespace, or a security module or lockdown forbids it.
    pub capabilities: Vec<Capability>,
}

impl Missing {
    /// What the calling thread lacks of what [`Nic::join`](crate::Nic::join), claims and AF_XDP
    /// sockets need; `None` if nothing.
    ///
    /// Locked memory is another matter: a UMEM counts against `RLIMIT_MEMLOCK` of its user, unless
    /// the thread has `CAP_IPC_LOCK`. See [`memlock_bytes`].
    pub fn of_this_thread() -> Option<Self> {
        let missing = Self::look();
        (!missing.capabilities.is_empty()).then_some(missing)
    }

    /// As [`of_this_thread`](Self::of_this_thread), if joining a NIC needs any of it: sockets may
    /// be another process's.
    pub(crate) fn for_joining() -> Option<Self> {
        Self::of_this_thread().filter(|missing| missing.capabilities != [Capability::NetRaw])
    }

    /// As [`of_this_thread`](Self::of_this_thread), but also when nothing is missing.
    pub(crate) fn look() -> Self {
        // Where the kernel does not report it, nothing is known to be missing.
        let effective = capabilities(None).map_or(CapabilitySet::all(), |sets| sets.effective);
        // Root's old right includes the newer one to load programs.
        let has = |wanted: CapabilitySet| {
            effective.contains(wanted)
                || (wanted == CapabilitySet::BPF && effective.contains(CapabilitySet::SYS_ADMIN))
        };
        let lacking = NEEDED.into_iter().filter(|&(wanted, _)| !has(wanted));
        Self { capabilities: lacking.map(|(_, capability)| capability).collect() }
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.capabilities.is_empty() {
            return f.write_str(
                "no capability is missing, so they are those of a user namespace, which do not \
                 count, or a security module (container profile, lockdown) forbids it",
            );
        }
        let names: Vec<String> = self.capabilities.iter().map(Capability::to_string).collect();
        write!(
            f,
            "{} is missing: run as root, or `setcap cap_net_raw,cap_net_admin,cap_bpf,\
             cap_ipc_lock+ep PROGRAM`, or in a unit of systemd AmbientCapabilities=",
            names.join(", ")
        )
    }
}

/// Bytes that this thread may lock, a UMEM among them, beside what its user has locked elsewhere;
/// `None`: as many as there are. The cure for too few is `ulimit -l`, `LimitMEMLOCK=` in a unit of
/// systemd, or `CAP_IPC_LOCK`.
pub fn memlock_bytes() -> Option<u64> {
    let effective = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
    if effective.contains(CapabilitySet::IPC_LOCK) {
        return None;
    }
    rustix::process::getrlimit(rustix::process::Resource::Memlock).current
}
