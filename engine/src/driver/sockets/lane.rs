//! One lane of the socket driver.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use super::super::pieces::PieceList;
use super::super::{BYTES_PER_CALL, cut_short, tcp};
use crate::driver::traits::{CHUNK_HEADER_BYTES, Interest};
use crate::forks::EngineFd;
use crate::memory::Shape;

/// Index of a direction in a lane's pairs.
pub(super) fn direction(interest: Interest) -> usize {
    match interest {
        Interest::Readable => 0,
        Interest::Writable => 1,
    }
}

/// A socket and its state. Pairs are `[readable, writable]`.
#[derive(Debug)]
pub(super) struct SocketLane {
    pub(super) socket: EngineFd,
    pub(super) connecting: bool,
    /// An event reported readiness, and no call has returned `EAGAIN` since. The first event comes
    /// unasked: registering a socket reports its readiness.
    pub(super) ready: [bool; 2],
    pub(super) watched: [bool; 2],
    pub(super) transfers: [Transfer; 2],
    /// The lane is in the driver's queue.
    pub(super) queued: bool,
}

impl SocketLane {
    pub(super) fn new(socket: OwnedFd, connecting: bool) -> Self {
        Self {
            socket: EngineFd::new(socket),
            connecting,
            ready: [false; 2],
            watched: [false; 2],
            transfers: [Transfer::default(), Transfer::default()],
            queued: false,
        }
    }

    /// Notes that the kernel took `sent` of `wanted` bytes. Fewer mean that the buffer is full, so
    /// that an event will follow.
    pub(super) fn note_sent(&mut self, wanted: usize, sent: &io::Result<usize>) {
        let is_full = match sent {
            Ok(sent) => *sent < wanted,
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        };
        if is_full {
            self.ready[super::WRITE] = false;
        }
    }

    /// Whether a call can make progress.
    pub(super) fn runnable(&self) -> bool {
        (0..2).any(|way| self.ready[way] && (self.watched[way] || self.transfers[way].active))
    }

    /// One bounded call for the chunk in direction `way`; `Some` when the chunk has ended.
    pub(super) fn step(&mut self, way: usize) -> Option<io::Result<()>> {
        let socket = self.socket.as_raw_fd();
        let transfer = &mut self.transfers[way];
        let (pieces, count) = transfer.pieces.window(BYTES_PER_CALL);
        // SAFETY: `window` describes `count` pieces; the callers of `send_chunk` and `recv_chunk`
        // keep the memory until the chunk is reported, and the header is the transfer's own.
        let moved = unsafe {
            if way == 0 {
                tcp::receive_pieces(socket, pieces, count)
            } else {
                tcp::send_pieces(socket, pieces, count, transfer.flags)
            }
        };
        transfer.pieces.advance(*moved.as_ref().unwrap_or(&0));
        match moved {
            Ok(0) => Some(Err(cut_short())),
            Ok(_) if transfer.pieces.remaining().is_empty() => Some(Ok(())),
            Ok(_) => None,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.ready[way] = false;
                None
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => None,
            Err(error) => Some(Err(error)),
        }
    }
}

/// A chunk in one direction; its allocation is reused by the next one.
#[derive(Debug)]
pub(super) struct Transfer {
    pub(super) active: bool,
    pub(super) token: u64,
    /// Boxed: the `iovec`s point to it, and lanes move.
    pub(super) header: Box<[u8; CHUNK_HEADER_BYTES]>,
    /// Additional flags of a sent chunk.
    pub(super) flags: i32,
    pieces: PieceList,
}

impl Default for Transfer {
    fn default() -> Self {
        let header = Box::new([0; CHUNK_HEADER_BYTES]);
        Self { active: false, token: 0, header, flags: 0, pieces: PieceList::default() }
    }
}

impl Transfer {
    /// Starts a chunk: the header, then `length` bytes of `shape` from `offset`.
    pub(super) fn begin(
        &mut self,
        token: u64,
        shape: &Shape,
        offset: usize,
        length: usize,
    ) -> io::Result<()> {
        self.pieces.begin(&mut self.header[..], shape, offset, length)?;
        (self.active, self.token) = (true, token);
        Ok(())
    }
}
