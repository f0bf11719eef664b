//! Peers on the same host, and what they send through shared memory.

use std::net::SocketAddr;

use zeroize::Zeroizing;

#[cfg(doc)]
use super::traits::DatagramIo;
use crate::wire::frame_range::{FrameRange, RingBytes, RingMessage};
use crate::wire::piece::PieceHeader;

/// A session's peer, which may be an engine on this host.
#[derive(Clone, Debug)]
pub(crate) struct LocalPeer {
    /// The session, as its packets name it.
    pub(crate) session: u64,
    /// The other engine.
    pub(crate) engine: u64,
    /// Destination of its datagrams without shared memory, and their reported source with it.
    pub(crate) address: SocketAddr,
    /// The secret that only both sides of the session know.
    pub(crate) key: Zeroizing<[u8; 32]>,
    /// This side opened the session, and connects.
    pub(crate) is_initiator: bool,
}

/// A segment to write into a ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingSegment<'a> {
    /// The numbers of its frames, if it is written without its header: then the ring keeps it, and
    /// [`DatagramIo::take_unread`] returns what its reader has not taken.
    pub(crate) frames: Option<FrameRange>,
    pub(crate) bytes: RingBytes<'a>,
    /// No other segment follows before the next [`DatagramIo::flush_datagrams`], so that a peer
    /// that is awake may be notified now.
    pub(crate) is_last: bool,
}

#[cfg(test)]
impl<'a> RingSegment<'a> {
    /// One with its header.
    pub(crate) fn whole(bytes: &'a [u8], is_last: bool) -> Self {
        Self { frames: None, bytes: RingBytes::whole(bytes), is_last }
    }
}

/// An entry of a ring, other than a packet.
#[derive(Debug)]
pub(crate) enum RingEntry<'a> {
    /// A segment of its session.
    Segment(&'a [u8]),
    /// The frames of a segment of its session, without its header.
    Frames(FrameRange, &'a [u8]),
    /// The same, of one long frame, of which the driver has copied only the head.
    /// [`DatagramIo::read_body`] copies the other bytes to their destination, or
    /// [`DatagramIo::message`] returns all, until the next call of [`DatagramIo::recv_from_ring`];
    /// one of the two must be called.
    Message(&'a RingMessage),
    /// A piece of a message of its session: its header, and the number of its bytes, which
    /// [`DatagramIo::read_body`] or [`DatagramIo::piece`] returns until the next call of
    /// [`DatagramIo::recv_from_ring`]; one of the two must be called.
    Piece(&'a PieceHeader, usize),
}
