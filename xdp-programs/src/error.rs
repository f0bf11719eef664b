//! What can go wrong, whose fault it is, and the cure.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use crate::{AttachMode, Missing, Mode};

/// Why a NIC could not be joined.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// There is no such interface in the network namespace of the calling thread.
    #[error("no network interface {nic} here: `ip link` lists them")]
    NoSuchNic {
        /// As it was asked for.
        nic: String,
    },
    /// The kernel refused for want of privileges.
    #[error("{doing} on {nic} was refused: {missing}")]
    Privileges {
        /// The interface.
        nic: String,
        /// What was refused.
        doing: &'static str,
        /// What this thread lacks, and the cure.
        missing: Missing,
    },
    /// Another XDP program is there. It is never replaced.
    #[error(
        "{nic} has the XDP program {program} of another owner ({mode}), which stays: \
         `ip -details link show {nic}` shows more; its owner has to take it off"
    )]
    Foreign {
        /// The interface.
        nic: String,
        /// Name and id of the program.
        program: String,
        /// How it is attached.
        mode: Mode,
    },
    /// A ringrail of another version uses the NIC, whose maps look different.
    #[error(
        "{nic} is in use by another version of ringrail (program {program}): \
         use the same one in all processes of this host, or wait for the end of the others"
    )]
    OtherVersion {
        /// The interface.
        nic: String,
        /// Name and id of the program.
        program: String,
    },
    /// Ringrail's program is there, but this process cannot get at it.
    #[error(
        "{nic} has ringrail's program, and this process cannot join it ({source}): mount bpffs \
         before the first process starts (`mount -t bpf bpf /sys/fs/bpf`, writable for all of \
         them) and let all see the same {run_dir}, or run this one with CAP_SYS_ADMIN too"
    )]
    OutOfReach {
        /// The interface.
        nic: String,
        /// Where the lock files are.
        run_dir: &'static str,
        /// What the kernel answered.
        source: io::Error,
    },
    /// The program is attached in another mode than the one asked for.
    #[error("{nic} is in use in {has} mode already: ask for that one, or for automatic choice")]
    ModeInUse {
        /// The interface.
        nic: String,
        /// How it is attached.
        has: Mode,
    },
    /// The driver does not do what was asked for.
    #[error("{nic} (driver `{driver}`) refuses XDP, asked for {wanted}: {source}")]
    Unsupported {
        /// The interface.
        nic: String,
        /// Its driver; empty if it has none.
        driver: String,
        /// What was asked for.
        wanted: AttachMode,
        /// What the kernel answered.
        source: io::Error,
    },
    /// The kernel's verifier did not accept the program: this kernel is older than Linux 5.15, or
    /// this is a bug of ringrail.
    #[error("the kernel does not load the XDP program: {source}; its last words: {log}")]
    Rejected {
        /// What the kernel answered.
        source: io::Error,
        /// The end of its messages and those of libbpf.
        log: String,
    },
    /// The folder of lock files cannot be used.
    #[error(
        "{path} cannot be used for locks: {source}; as root: \
         `install -d -m 0775 -g GROUP {path}` for the group that this user is in"
    )]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What the kernel answered.
        source: io::Error,
    },
    /// Another process has held the lock of the NIC for seconds, where milliseconds are usual.
    #[error("another process holds {path}: `fuser -v {path}` names it; it may be stopped")]
    Busy {
        /// The lock file.
        path: PathBuf,
    },
    /// The kernel refused something else.
    #[error("{doing}: {source}")]
    Os {
        /// What was refused.
        doing: &'static str,
        /// What the kernel answered.
        source: io::Error,
    },
}

impl JoinError {
    pub(crate) fn os(doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Os { doing, source }
    }
}

/// Who holds what was to be claimed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner {
    /// Its process id as this process sees it; `None` if it is in another PID namespace.
    pub pid: Option<u32>,
}

impl std::fmt::Display for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.pid {
            Some(pid) if pid == std::process::id() => write!(f, "this process ({pid})"),
            Some(pid) => write!(f, "process {pid}"),
            None => f.write_str("a process of another PID namespace"),
        }
    }
}

/// Why a queue and an address could not be claimed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClaimError {
    /// Another live process receives from this queue: a queue has one socket.
    #[error(
        "queue {queue} of {nic} belongs to {owner}: give the NIC more queues \
         (`ethtool -L {nic} combined N`), or use UDP sockets in this process"
    )]
    QueueTaken {
        /// The interface.
        nic: String,
        /// The queue.
        queue: u32,
        /// Who has it.
        owner: Owner,
    },
    /// Another socket receives datagrams for this address on this queue.
    #[error("datagrams for {addr} on queue {queue} of {nic} go to {owner}: take another port")]
    AddressTaken {
        /// The interface.
        nic: String,
        /// The queue.
        queue: u32,
        /// The address.
        addr: SocketAddr,
        /// Who has it.
        owner: Owner,
    },
    /// There is no such queue.
    #[error("{nic} has no queue {queue}, only {queues}, counted from 0")]
    NoSuchQueue {
        /// The interface.
        nic: String,
        /// The queue asked for.
        queue: u32,
        /// How many there are.
        queues: u32,
    },
    /// Not the address of a socket: port 0, or all addresses.
    #[error("{addr} is no address that datagrams are sent to: name the NIC's own, with a port")]
    Unspecified {
        /// As it was asked for.
        addr: SocketAddr,
    },
    /// The descriptor is no AF_XDP socket.
    #[error("descriptor {fd} is no AF_XDP socket: {source}")]
    NotASocket {
        /// The descriptor.
        fd: i32,
        /// What the kernel answered.
        source: io::Error,
    },
    /// All slots are in use by live claims.
    #[error("{nic} has {max} claims already, which is all there are")]
    Full {
        /// The interface.
        nic: String,
        /// How many claims a NIC has room for.
        max: u32,
    },
    /// Another process has held the lock of the NIC for seconds, where milliseconds are usual.
    #[error("another process holds {path}: `fuser -v {path}` names it; it may be stopped")]
    Busy {
        /// The lock file.
        path: PathBuf,
    },
    /// The kernel refused something else.
    #[error("{doing}: {source}")]
    Os {
        /// What was refused.
        doing: &'static str,
        /// What the kernel answered.
        source: io::Error,
    },
}

impl ClaimError {
    pub(crate) fn os(doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Os { doing, source }
    }
}

/// Why a NIC that was joined brings nothing any more. Datagrams go to UDP sockets then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Detached {
    /// The program was taken off: drop the [`Nic`](crate::Nic) and join again.
    #[error("the XDP program was taken off {nic}: join the NIC again")]
    Program {
        /// The interface.
        nic: String,
    },
    /// Another program was put in its place: drop the [`Nic`](crate::Nic) and join again.
    #[error("the XDP program of {nic} was replaced by another one (id {program_id})")]
    Replaced {
        /// The interface.
        nic: String,
        /// What is there now.
        program_id: u32,
    },
    /// The interface is set down; it may come back by itself.
    #[error("{nic} is down: `ip link set {nic} up`")]
    Down {
        /// The interface.
        nic: String,
    },
    /// The interface was removed, or moved to another network namespace.
    #[error("{nic} is gone")]
    Gone {
        /// As it was called.
        nic: String,
    },
    /// The kernel does not report it.
    #[error("asking about {nic}: {source}")]
    Os {
        /// The interface.
        nic: String,
        /// What the kernel answered.
        source: io::Error,
    },
}
