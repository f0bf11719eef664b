//! The XDP program that steers ringrail's datagrams into AF_XDP sockets, and its loader.
//!
//! A NIC has one XDP program, and its queues are shared property: processes that want their
//! datagrams before the kernel's stack [join](Nic::join) the program of the NIC, the first one
//! attaches it, the last one takes it off. A process that has bound an AF_XDP socket to a queue
//! then [claims](Nic::claim) (queue, address, port). What is claimed goes to the socket, everything
//! else passes untouched; so does what was claimed by a process that has died.
//!
//! ```no_run
//! use ringrail_xdp::{AttachMode, Nic};
//! # fn bound_socket(_nic: &Nic, _queue: u32) -> std::os::fd::RawFd { 0 }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let nic = Nic::join("eth1", AttachMode::Auto)?;
//! let socket = bound_socket(&nic, 0);
//! let claim = nic.claim(0, "192.0.2.1:7200".parse()?, socket)?;
//! // Ten times a second: a reason to go on over the UDP socket of the same port.
//! if let Err(why) = nic.is_attached() {
//!     eprintln!("{why}");
//! }
//! println!("{}: {}", nic.name(), nic.counters()?);
//! drop(claim);
//! # Ok(())
//! # }
//! ```
//!
//! # Who shares what
//!
//! The attachment is a BPF link. Each process has a descriptor of it, so it outlives any of them;
//! the link, the program and its maps are pinned under bpffs where that is mounted, for processes
//! without `CAP_SYS_ADMIN` to find them. Others find them by their ids. Lock files
//! below `/run/ringrail-xdp`, which the kernel unlocks when a process ends, show which processes
//! use a NIC and whose claims are alive. All of it is per network namespace: a thread joins NICs of
//! the one it is in.
//!
//! | ends | what happens |
//! |---|---|
//! | [`Claim`] | its entries go; datagrams are the kernel's again |
//! | a process, killed | its socket leaves the map; its entries go with the next claim |
//! | the last process, in order | program and pins go |
//! | all, killed | the program goes; if pinned, it passes all until the next start clears up |
//! | `ringrail-xdpd`, killed | as any other; the start of the next one clears up on all NICs |
//!
//! # What it needs
//!
//! `CAP_BPF`, `CAP_NET_ADMIN`, and `CAP_NET_RAW` for AF_XDP sockets ([`Missing`]); locked memory
//! for a UMEM, or `CAP_IPC_LOCK` ([`memlock_bytes`]). Linux 5.15, then `CAP_PERFMON` as well; from
//! 5.18 on without that, and with frames in several buffers (jumbo frames).

#![deny(unsafe_code)]

mod claim;
mod counters;
mod error;
mod facts;
#[cfg(feature = "faults")]
mod faults;
mod folder;
pub mod lease;
mod nic;
mod pins;
mod privileges;
mod program;
mod site;
mod sweep;
#[expect(unsafe_code, reason = "system calls, each behind a safe function")]
mod sys;

pub use claim::Claim;
pub use counters::Counters;
pub use error::{ClaimError, Detached, JoinError, Owner};
pub use facts::{FlowRules, NicFacts, Support, facts};
#[cfg(feature = "faults")]
pub use faults::{Effect, Fault, FaultError, FaultReport};
pub use nic::{AttachMode, Mode, Nic, NicId};
pub use privileges::{Capability, Missing, memlock_bytes};
pub use program::{Verified, verify};
