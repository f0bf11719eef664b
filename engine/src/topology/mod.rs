//! Topology of the host: NICs and the selection of rails, cores, placement of engines, pinning.

mod cores;
mod counters;
mod discovery;
#[cfg(feature = "hwloc")]
mod machine;
mod network_namespace;
mod placement;
mod routes;
mod selection;
mod settling;
mod time_slice;

use std::net::IpAddr;

use crate::settings::nics::is_same_network;

pub use crate::netlink::Route;
pub use cores::{PinError, cores, pin_current_thread};
pub(crate) use cores::{run_on, unpin_current_thread, unpinned_cores};
pub(crate) use counters::NicReader;
pub use discovery::{DiscoveryError, nics};
#[cfg(feature = "hwloc")]
pub use machine::{Machine, MachineError, PhysicalCore};
pub(crate) use network_namespace::NetworkNamespace;
pub use placement::Placement;
pub use routes::Routes;
pub use selection::{Candidate, Selection, SelectionError, Verdict, select};
pub use settling::{RailsError, select_when_up};
pub(crate) use time_slice::ask_for_short_slices;

/// A network interface of this host (of this network namespace).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nic {
    /// Its name, such as `eth0`.
    pub name: String,
    /// Its index.
    pub index: u32,
    /// Its addresses, the most useful first: IPv4, global IPv6, link-local IPv4, link-local IPv6.
    pub addresses: Vec<IpAddr>,
    /// How many leading bits of each of them are its network's, in the same order.
    pub prefixes: Vec<u8>,
    /// Whether it is switched on and has a carrier.
    pub up: bool,
    /// Whether it reaches this host only.
    pub loopback: bool,
    /// Why it is not taken unless named: what kind of virtual interface it is. `None` for
    /// hardware, for what bundles or divides hardware (bond, team, VLAN, macvlan) and for a plain
    /// veth, which is all the NIC that a container or a namespace has.
    pub virtual_: Option<String>,
    /// Its link speed in Mb/s, if the driver reports it.
    pub speed_mbps: Option<u32>,
    /// Its largest packet in bytes, if the system reports it.
    pub mtu: Option<u32>,
    /// The NUMA node that it is attached to, if there are several and the system reports it. A NIC
    /// that bundles or divides hardware is on the node of that hardware, if it is a single one.
    pub numa_node: Option<u32>,
}

impl Nic {
    /// Returns the prefix length of one of its addresses; `None` if it does not have the address.
    pub fn prefix_of(&self, address: IpAddr) -> Option<u8> {
        let position = self.addresses.iter().position(|known| *known == address)?;
        self.prefixes.get(position).copied()
    }

    /// Returns whether `address` is on the network of one of its addresses.
    pub fn is_on_link(&self, address: IpAddr) -> bool {
        let mut known = self.addresses.iter().zip(&self.prefixes);
        known.any(|(known, bits)| is_same_network(*known, address, *bits))
    }
}

/// Ranks an address by its usefulness; the lowest number is the best.
pub(crate) fn address_rank(address: &IpAddr) -> u8 {
    match address {
        IpAddr::V4(v4) if v4.is_link_local() => 2,
        IpAddr::V4(_) => 0,
        // It needs a scope, and gives no hint about other hosts.
        IpAddr::V6(v6) if v6.is_unicast_link_local() => 3,
        IpAddr::V6(_) => 1,
    }
}

/// Returns whether an address is publicly routable. Documentation addresses count as public.
pub(crate) fn is_public(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let [first, second, ..] = v4.octets();
            let is_shared = first == 100 && second & 0xc0 == 64;
            let is_for_tests = first == 198 && second & 0xfe == 18;
            !(v4.is_private()
                || v4.is_loopback()
                || v4.is_link_local()
                || is_shared
                || is_for_tests)
        }
        // Global unicast is 2000::/3.
        IpAddr::V6(v6) => v6.segments()[0] & 0xe000 == 0x2000,
    }
}
