//! The datagram socket of a host: queues of its driver and kernel.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};

use super::super::rails::At;

use crate::driver::traits::DATAGRAM_BYTES_MAX;

/// Datagrams queued by the driver before the kernel must take some.
pub(super) const QUEUED_MAX: usize = 16;

/// A datagram at any stage. Reused, so that no datagram allocates.
pub(in super::super) struct Datagram {
    pub(in super::super) bytes: [u8; DATAGRAM_BYTES_MAX],
    pub(in super::super) length: usize,
    /// Its source address as seen by the receiver.
    pub(in super::super) from: SocketAddr,
    pub(in super::super) to: SocketAddr,
    /// The link of its host that it leaves or arrives by.
    pub(in super::super) link: usize,
    pub(super) link_in: usize,
    /// The host that sent it; `None`: injected.
    pub(super) sender: Option<usize>,
    /// When the sender's link has sent it.
    pub(super) left_ns: u64,
}

impl Datagram {
    pub(super) fn new() -> Self {
        let nowhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        Self {
            bytes: [0; DATAGRAM_BYTES_MAX],
            length: 0,
            from: nowhere,
            to: nowhere,
            link: 0,
            link_in: 0,
            sender: None,
            left_ns: 0,
        }
    }

    /// Copies another one.
    pub(super) fn copy_from(&mut self, other: &Self) {
        self.bytes[..other.length].copy_from_slice(other.content());
        (self.length, self.from, self.to) = (other.length, other.from, other.to);
        (self.link, self.link_in) = (other.link, other.link_in);
        (self.sender, self.left_ns) = (other.sender, other.left_ns);
    }

    pub(in super::super) fn content(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl fmt::Debug for Datagram {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} bytes from {} to {}", self.length, self.from, self.to)
    }
}

/// A datagram in flight to a host. The next one to arrive is the greatest.
#[derive(Debug)]
pub(super) struct UnderWay {
    pub(super) arrival_ns: u64,
    pub(super) number: u64,
    pub(super) datagram: Box<Datagram>,
}

impl PartialEq for UnderWay {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for UnderWay {}

impl PartialOrd for UnderWay {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for UnderWay {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.arrival_ns, other.number).cmp(&(self.arrival_ns, self.number))
    }
}

/// See the module.
#[derive(Debug)]
pub(in super::super) struct Socket {
    /// A process receives.
    pub(in super::super) is_open: bool,
    /// Queued by the driver, for the kernel to take.
    pub(super) queue: VecDeque<Box<Datagram>>,
    /// A writable event was requested.
    pub(super) wants_room: bool,
    /// A check for room is scheduled.
    pub(super) awaits_room: bool,
    /// When the link has sent everything that the kernel took.
    pub(super) free_ns: u64,
    /// The last in-order arrival: by local link, remote host and link.
    last_ns: BTreeMap<(usize, usize, usize), u64>,
    /// In flight to this host.
    pub(super) under_way: BinaryHeap<UnderWay>,
    /// Arrived and not received yet.
    pub(super) inbox: VecDeque<Box<Datagram>>,
    pub(super) inbox_bytes: usize,
    /// When the readable event is due, if requested: `u64::MAX` is never.
    pub(super) readable_ns: Option<u64>,
    /// Datagrams that the process received or sent.
    pub(in super::super) handled: u64,
}

impl Socket {
    pub(in super::super) fn new() -> Self {
        Self {
            is_open: false,
            queue: VecDeque::new(),
            wants_room: false,
            awaits_room: false,
            free_ns: 0,
            last_ns: BTreeMap::new(),
            under_way: BinaryHeap::new(),
            inbox: VecDeque::new(),
            inbox_bytes: 0,
            readable_ns: None,
            handled: 0,
        }
    }

    /// When the next datagram arrives.
    pub(super) fn next_arrival_ns(&self) -> u64 {
        self.under_way.peek().map_or(u64::MAX, |first| first.arrival_ns)
    }

    /// Arrival by `link` at `to` at `at_ns`, or right after datagrams sent on that route before.
    pub(super) fn keep_order(&mut self, link: usize, to: At, at_ns: u64) -> u64 {
        let last_ns = self.last_ns.entry((link, to.host, to.link)).or_default();
        *last_ns = (*last_ns).max(at_ns);
        *last_ns
    }
}
