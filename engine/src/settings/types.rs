//! The types of settings that are more than a number or a text.

use std::fmt;
use std::num::NonZeroU16;

use crate::types::hint::Hint;

/// A type whose values are known by name.
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

/// Which kinds of lanes an engine uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Lanes {
    /// The best that the kernel offers: `Uring`, and `Sockets` where io_uring is refused.
    Auto,
    /// TCP by io_uring; an error where the kernel refuses io_uring.
    Uring,
    /// TCP by plain non-blocking sockets, no io_uring at all.
    Sockets,
}

impl NameSet for Lanes {
    const NAMES: &'static [(&'static str, Self)] =
        &[("auto", Self::Auto), ("uring", Self::Uring), ("sockets", Self::Sockets)];
}

/// What carries short messages and everything that controls long ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ControlLane {
    /// A TCP connection for each peer.
    Tcp,
    /// Datagrams by one UDP socket for all peers that have them on, too: the default. TCP takes
    /// over with peers that have not, while a network drops datagrams, and, with one line in the
    /// log, where the system refuses the socket. What a lost datagram carried is sent again while
    /// the program computes, too: a thread of the library sees to that.
    Udp,
    /// As `Udp`, and the datagrams go as AF_XDP frames past the kernel's stack. An endpoint that
    /// cannot have them is not attached; one that loses them goes on by its UDP socket.
    Xdp,
    /// As `Xdp` where this host lets us, otherwise as `Udp` with one line in the log.
    Auto,
}

impl ControlLane {
    /// Whether frames are asked for.
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

/// Whether memory is shared with engines of the same host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SharedMemory {
    /// Not: their datagrams go by the UDP socket, as those of other hosts.
    Off,
    /// By rings in shared memory, where both sides have it, run on one kernel and are in one
    /// network namespace or have one `shared_memory_directory`.
    Rings,
    /// The same, and long messages, puts and gets are read from the memory of their owner's process
    /// where the kernel allows that.
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

/// What carries the data of long messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BulkLane {
    /// TCP connections of their own, opened at the first long message: the default, and the
    /// faster one wherever TCP is.
    Tcp,
    /// The datagrams of the control lane (UDP or AF_XDP frames): a session opens no connection
    /// beyond the one that it was set up by. Used with a peer if either side asks for it; one that
    /// has no datagrams cannot be talked to then.
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

/// What carries eager messages that fit no datagram of 2 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EagerLane {
    /// The TCP connection of the session: the default. In a session with several paths to its peer,
    /// while that connection is on the one that datagrams take.
    Tcp,
    /// Datagrams, several where one does not do.
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

/// Whether bulk data leaves by zero-copy sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ZeroCopy {
    /// Decided for each path by measuring.
    Auto,
    /// Always, where the kernel has it.
    On,
    /// Never.
    Off,
}

impl NameSet for ZeroCopy {
    const NAMES: &'static [(&'static str, Self)] =
        &[("auto", Self::Auto), ("on", Self::On), ("off", Self::Off)];
}

/// Which TCP congestion control lanes use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TcpCongestion {
    /// The host's own; where that is a paced one (BBR) and the path a local one (round trip below
    /// 1 ms), the first of `cubic` and `reno` that this process may use.
    Auto,
    /// The host's own (`net.ipv4.tcp_congestion_control`).
    System,
    /// CUBIC, where the host allows it.
    Cubic,
    /// NewReno, which every host has.
    Reno,
    /// BBR, where the host allows it.
    Bbr,
    /// DCTCP, where the host allows it; only for networks that mark congestion.
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
    /// The kernel's name of the one that is asked for; `None` where none is.
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

/// The ports that an engine may listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PortRange {
    first: u16,
    last: u16,
}

impl PortRange {
    /// Whichever port the kernel gives.
    pub const ANY: Self = Self { first: 0, last: 0 };

    /// The ports `first` to `last`, both included; `None` when `first` is 0 or above `last`.
    pub const fn new(first: u16, last: u16) -> Option<Self> {
        if first == 0 || first > last { None } else { Some(Self { first, last }) }
    }

    /// Whether the kernel picks the port.
    pub const fn is_any(self) -> bool {
        self.first == 0
    }

    /// The ports to try in order. For [`ANY`](Self::ANY) this is port 0 alone, which is how
    /// `bind` is asked for whichever port is free.
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
