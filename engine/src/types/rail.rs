//! Rails: the addresses of this host that an engine sends and receives by.

use std::net::IpAddr;

pub use crate::proto::rails::health::PathCause;

/// Rails of an engine at the most.
pub const RAILS_MAX: usize = crate::wire::rail::RAILS_MAX;

/// One NIC of this host by one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rail {
    /// Name of the NIC.
    pub nic: String,
    /// Its index in this network namespace; 0: not known, routes decide.
    pub nic_index: u32,
    /// What it sends from and listens on.
    pub address: IpAddr,
    /// Its speed in Mb/s, where the driver tells.
    pub speed_mbps: Option<u32>,
    /// Its MTU in bytes, where the system tells.
    pub mtu: Option<u32>,
    /// When it is used.
    pub role: RailRole,
}

/// When a rail is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum RailRole {
    /// Short messages go by it while it is healthy, even if another one is faster.
    Preferred,
    /// As its speed and health say.
    #[default]
    Ordinary,
    /// Only while none of the others is healthy.
    Backup,
}

/// How a path between a rail of this engine and one of a peer's fares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathState {
    /// It is asked, and has not answered often enough to carry anything.
    Probing,
    /// It carries what it is given.
    Active,
    /// It owes answers while other paths bring theirs: what was under way goes by those.
    Suspect,
    /// It does not answer; it is asked on.
    Down,
}
