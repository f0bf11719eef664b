//! Rails: the NICs and addresses that an engine uses.

use std::net::IpAddr;

pub use crate::proto::session::rails::health::PathCause;

/// The most rails of an engine.
pub const RAILS_MAX: usize = crate::wire::rail::RAILS_MAX;

/// A NIC of this host with one of its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rail {
    /// Name of the NIC.
    pub nic: String,
    /// Its index in this network namespace; 0 if unknown: the routing table decides.
    pub nic_index: u32,
    /// The address that it sends from and listens on.
    pub address: IpAddr,
    /// Its speed in Mb/s, if the driver reports it.
    pub speed_mbps: Option<u32>,
    /// Its MTU in bytes, if the system reports it.
    pub mtu: Option<u32>,
    /// When it is used.
    pub role: RailRole,
}

/// When a rail is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum RailRole {
    /// Carries short messages while it is healthy, even if another rail is faster.
    Preferred,
    /// Used according to its speed and health.
    #[default]
    Ordinary,
    /// Used only while no other rail is healthy.
    Backup,
}

/// The state of a path between a rail of this engine and one of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PathState {
    /// Probed; not enough probes have been answered for it to carry data.
    Probing,
    /// Carries data.
    Active,
    /// Acknowledgements are overdue while other paths deliver theirs; its data is sent on those.
    Suspect,
    /// Not answering; probed at intervals.
    Down,
}
