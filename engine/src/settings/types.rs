//! The types of settings that are more than a number or a text.

use std::fmt;
use std::num::NonZeroU16;

use crate::types::hint::Hint;

/// A type whose values have names.
pub(crate) trait NameSet: Copy + fmt::Debug + PartialEq + 'static {
    /// Every value with its name.
    const NAMES: &'static [(&'static str, Self)];

    /// The name of this value.
    fn name(self) -> &'static str {
        Self::NAMES
            .iter()
            .find(|(_, value)| *value == self)
            .map(|(name, _)| *name)
            .expect("NAMES lists every value, which the unit tests walk through")
    }
}

impl NameSet for bool {
    const NAMES: &'static [(&'static str, Self)] =
        &[("false", false), ("true", true), ("0", false), ("1", true)];
}

impl NameSet for Hint {
    const NAMES: &'static [(&'static str, Self)] = &[
        ("none", Self::None),
        ("latency", Self::Latency),
        ("bulk", Self::Bulk),
        ("priority", Self::Priority),
    ];
}

/// The driver of an engine (setting `lanes`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Lanes {
    /// `Uring`, or `Sockets` if the kernel refuses io_uring.
    Auto,
    /// io_uring; opening the driver fails if the kernel refuses it.
    Uring,
    /// Non-blocking sockets with epoll, without io_uring.
    Sockets,
}

impl NameSet for Lanes {
    const NAMES: &'static [(&'static str, Self)] =
        &[("auto", Self::Auto), ("uring", Self::Uring), ("sockets", Self::Sockets)];
}

/// The transport of short messages and of the control of long ones (setting `control_lane`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ControlLane {
    /// One TCP connection for each peer.
    Tcp,
    /// Datagrams of one UDP socket (the default). TCP is used with peers that do not use datagrams,
    /// while a network drops them, and, with one line in the log, if the system refuses the socket.
    /// A thread of the library retransmits lost datagrams while the program computes.
    Udp,
    /// As `Udp`, with datagrams as AF_XDP frames, which bypass the kernel's network stack.
    /// Attaching an endpoint fails if AF_XDP is not possible; if it fails later, the UDP socket is
    /// used.
    Xdp,
    /// As `Xdp` if this host permits it, else as `Udp` with one line in the log.
    Auto,
}

impl ControlLane {
    /// Whether AF_XDP frames are requested.
    pub(crate) fn wants_frames(self) -> bool {
        matches!(self, Self::Xdp | Self::Auto)
    }
}

impl NameSet for ControlLane {
    const NAMES: &'static [(&'static str, Self)] =
        &[("tcp", Self::Tcp), ("udp", Self::Udp), ("xdp", Self::Xdp), ("auto", Self::Auto)];
}

impl fmt::Display for ControlLane {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

/// Shared memory between engines of one host (setting `shared_memory`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SharedMemory {
    /// None: datagrams to peers of this host use the UDP socket, as for other hosts.
    Off,
    /// Rings in shared memory, if both sides enable it, run on one kernel, and are in one network
    /// namespace or have the same `shared_memory_directory`.
    Rings,
    /// The same; in addition, long messages, puts and gets are read directly from the memory of the
    /// peer's process if the kernel allows it.
    Auto,
}

impl NameSet for SharedMemory {
    const NAMES: &'static [(&'static str, Self)] =
        &[("off", Self::Off), ("rings", Self::Rings), ("auto", Self::Auto)];
}

impl fmt::Display for SharedMemory {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

/// The transport of long messages (setting `bulk_lane`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BulkLane {
    /// TCP connections that are opened at the first long message (the default, and in general the
    /// faster one).
    Tcp,
    /// The datagrams of the control lane (UDP or AF_XDP): a session has only the connection that
    /// set it up. Used with a peer if either side requests it; connecting to a peer without
    /// datagrams then fails.
    Datagram,
}

impl NameSet for BulkLane {
    const NAMES: &'static [(&'static str, Self)] =
        &[("tcp", Self::Tcp), ("datagram", Self::Datagram)];
}

impl fmt::Display for BulkLane {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

/// The transport of eager messages that do not fit a datagram of 2 KiB (setting `eager_lane`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EagerLane {
    /// The TCP connection of the session (the default). In a session with several paths, only while
    /// that connection is on the path of the datagrams.
    Tcp,
    /// Datagrams, as many as the message takes.
    Datagram,
}

impl NameSet for EagerLane {
    const NAMES: &'static [(&'static str, Self)] =
        &[("tcp", Self::Tcp), ("datagram", Self::Datagram)];
}

impl fmt::Display for EagerLane {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

/// Zero-copy sends of bulk data (setting `zero_copy`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ZeroCopy {
    /// Chosen for each path by measurement.
    Auto,
    /// Always, if the kernel supports them.
    On,
    /// Never.
    Off,
}

impl NameSet for ZeroCopy {
    const NAMES: &'static [(&'static str, Self)] =
        &[("auto", Self::Auto), ("on", Self::On), ("off", Self::Off)];
}

/// The TCP congestion control of connections (setting `tcp_congestion`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TcpCongestion {
    /// That of the host. If that one paces (BBR) and the round trip is below 1 ms: the first of
    /// `cubic` and `reno` that this process may use.
    Auto,
    /// That of the host (`net.ipv4.tcp_congestion_control`).
    System,
    /// CUBIC, if the host allows it.
    Cubic,
    /// NewReno, which each host has.
    Reno,
    /// BBR, if the host allows it.
    Bbr,
    /// DCTCP, if the host allows it; only for networks that mark congestion (ECN).
    Dctcp,
}

impl NameSet for TcpCongestion {
    const NAMES: &'static [(&'static str, Self)] = &[
        ("auto", Self::Auto),
        ("system", Self::System),
        ("cubic", Self::Cubic),
        ("reno", Self::Reno),
        ("bbr", Self::Bbr),
        ("dctcp", Self::Dctcp),
    ];
}

impl TcpCongestion {
    /// The kernel's name of the algorithm; `None` if none is requested.
    pub(crate) fn kernel_name(self) -> Option<&'static str> {
        match self {
            Self::Auto | Self::System => None,
            named => Some(named.name()),
        }
    }
}

impl fmt::Display for TcpCongestion {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

impl fmt::Display for Lanes {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

impl fmt::Display for ZeroCopy {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

/// The ports on which an engine may listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PortRange {
    first: u16,
    last: u16,
}

impl PortRange {
    /// A port that the kernel chooses.
    pub const ANY: Self = Self { first: 0, last: 0 };

    /// Returns the ports `first` to `last`, both included; `None` if `first` is 0 or above `last`.
    pub const fn new(first: u16, last: u16) -> Option<Self> {
        if first == 0 || first > last { None } else { Some(Self { first, last }) }
    }

    /// Whether the kernel chooses the port.
    pub const fn is_any(self) -> bool {
        self.first == 0
    }

    /// Returns the ports to try, in order; for [`ANY`](Self::ANY) port 0 alone, with which `bind`
    /// chooses a free port.
    pub fn ports(self) -> std::ops::RangeInclusive<u16> {
        self.first..=self.last
    }
}

impl From<NonZeroU16> for PortRange {
    fn from(port: NonZeroU16) -> Self {
        Self { first: port.get(), last: port.get() }
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self { first: 0, .. } => out.write_str("any"),
            Self { first, last } if first == last => write!(out, "{first}"),
            Self { first, last } => write!(out, "{first}-{last}"),
        }
    }
}
