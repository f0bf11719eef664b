//! Engines of the same host, and what comes from them.

use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};

use zeroize::Zeroizing;

#[cfg(doc)]
use super::traits::DatagramIo;
use crate::wire::piece::PieceHeader;

/// The other side of a session, which may be an engine of this host.
#[derive(Clone, Debug)]
pub(crate) struct LocalPeer {
    /// The session, as its packets name it.
    pub(crate) session: u64,
    /// The other engine.
    pub(crate) engine: u64,
    /// Where its datagrams are sent to without shared memory, and are said to come from with it.
    pub(crate) address: SocketAddr,
    /// What both sides of the session know and nobody else.
    pub(crate) key: Zeroizing<[u8; 32]>,
    /// This side opened the session, and asks for memory to share.
    pub(crate) is_initiator: bool,
}

/// A piece of memory that others may map.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MappableMemory<'a> {
    /// Of the whole.
    pub(crate) descriptor: BorrowedFd<'a>,
    /// Where in it the piece begins, and its length, in bytes.
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

/// The same from a peer, which may be anything.
#[derive(Debug)]
pub(crate) struct ReceivedMemory {
    pub(crate) descriptor: OwnedFd,
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

/// What comes by a ring, besides packets.
#[derive(Debug)]
pub(crate) enum RingEntry<'a> {
    /// A segment of its session.
    Segment(&'a [u8]),
    /// A piece of a message of its session: what stands before its bytes, and how many these are.
    /// [`DatagramIo::read_piece`] and [`DatagramIo::piece`] have them, up to the next call of
    /// [`DatagramIo::recv_from_ring`]; one of them is to be called.
    Piece(&'a PieceHeader, usize),
}
