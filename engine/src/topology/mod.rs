//! What the host has: NICs with the one to use and why, cores and pinning.

mod cores;
mod discovery;
mod selection;

use std::net::IpAddr;

pub(crate) use cores::unpin_current_thread;
pub use cores::{PinError, cores, pin_current_thread};
pub use discovery::{DiscoveryError, nics};
pub use selection::{Candidate, Selection, SelectionError, Verdict, select};

/// A network interface of this host (of this network namespace).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nic {
    /// Its name, such as `eth0`.
    pub name: String,
    /// Its index.
    pub index: u32,
    /// Its addresses, the most useful first: IPv4, global IPv6, link-local IPv4, link-local IPv6.
    pub addresses: Vec<IpAddr>,
    /// Whether it is switched on and has a carrier.
    pub up: bool,
    /// Whether it reaches this host only.
    pub loopback: bool,
    /// Why it is not taken unless named: what kind of virtual interface it is. `None` for
    /// hardware, for what bundles or divides hardware (bond, team, VLAN, macvlan) and for a plain
    /// veth, which is all the NIC that a container or a namespace has.
    pub virtual_: Option<String>,
    /// Its link speed in Mb/s, where the driver knows it.
    pub speed_mbps: Option<u32>,
    /// Its largest packet in bytes, where the system tells.
    pub mtu: Option<u32>,
}

/// How useful an address is, the least number first.
pub(crate) fn address_rank(address: &IpAddr) -> u8 {
    match address {
        IpAddr::V4(v4) if v4.is_link_local() => 2,
        IpAddr::V4(_) => 0,
        // It needs a scope to be reached by, and says nothing about who else is there.
        IpAddr::V6(v6) if v6.is_unicast_link_local() => 3,
        IpAddr::V6(_) => 1,
    }
}
