//! Rails: the addresses of this host that an engine sends and receives by.

use std::fmt;
use std::net::IpAddr;

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

/// Why a path fares otherwise than before. Displayed as a sentence for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PathCause {
    /// It answered.
    Answered,
    /// It answered what it was suspected for, only late.
    Late,
    /// The peer says that it fails.
    PeerDoubts,
    /// Another path brought an answer to something that was sent later.
    OthersAnswer,
    /// Its probes are not answered.
    ProbesLost,
    /// Probes are not answered although packets of the peer arrive.
    OneWay,
    /// Its NIC lost its link.
    NoLink,
}

impl fmt::Display for PathCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Answered => "it answered",
            Self::Late => "its answers were late, not lost",
            Self::PeerDoubts => "the peer says that it fails",
            Self::OthersAnswer => "other paths answer, this one does not",
            Self::ProbesLost => "its probes are not answered",
            Self::OneWay => {
                "it works one way only: datagrams of the peer arrive, ours are not answered"
            }
            Self::NoLink => "its NIC has no link",
        })
    }
}
