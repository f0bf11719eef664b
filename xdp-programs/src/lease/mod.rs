//! AF_XDP sockets for users without privileges, leased by `ringrail-xdpd`.
//!
//! The daemon has the privileges, the client the memory. What passes between them goes over a Unix
//! socket whose connection is the lease: when it ends, whichever side ended it, so does the claim.
//!
//! ```text
//! client                                          daemon
//! Ask(NIC, rings) + its UDP socket ─────────────> who asks? within limits? a UDP socket of this
//!                                                 network, bound to an address of that NIC?
//!                                                 joins the NIC; does it copy, or are clients
//!                                                 trusted? socket(AF_XDP), SO_BINDTODEVICE, rings
//! memory             <── Offer + AF_XDP socket ──
//! Bind(queue) ──────────────────────────────────> bind(), then the claim of (queue, address, port)
//!                    <── Bound ── or Refused: another queue may be free
//!                                                 closes the AF_XDP socket, keeps the UDP socket
//! looks now and then <── Lost ─── or the end: datagrams are the kernel's again
//! ```
//!
//! Memory counts against the client's `RLIMIT_MEMLOCK`: it is the one that registers it. The rings
//! count against no user, so the daemon makes them, for the kernel makes them once. The device
//! of the AF_XDP socket cannot be changed without `CAP_NET_RAW`; its queue is bound by the daemon,
//! which so knows what it claims for. The UDP socket identifies the owner of the port, and as the
//! daemon keeps a descriptor of it, no other process gets the port while its datagrams are
//! redirected. The daemon has no descriptor of the AF_XDP socket after the claim, so the queue is
//! free when the client ends.
//!
//! A NIC that receives without copies writes all that comes in on a queue to the memory of the
//! process that has it, before the program sees it. So queues of such NICs are leased only if
//! clients are trusted with that ([`DaemonConfig::trusts_clients`], `--trust-clients yes`).

mod channel;
mod client;
mod daemon;
mod grant;
mod nics;
mod place;
mod usage;
mod wire;

pub use client::{Bound, Lease, LeaseError, Offer};
pub use daemon::{Daemon, DaemonConfig, DaemonError, group_id, termination};
pub use grant::RING_ENTRIES_MAX;

/// Where the daemon listens by default.
pub const DEFAULT_SOCKET: &str = "/run/ringrail/xdpd.sock";

/// The group whose members are served by default.
pub const DEFAULT_GROUP: &str = "ringrail";
