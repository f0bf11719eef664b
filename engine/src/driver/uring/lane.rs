//! One lane of the io_uring driver.

use std::io;
use std::os::fd::OwnedFd;

use super::super::pieces::PieceList;
use super::super::tcp;
use crate::driver::traits::{CHUNK_HEADER_BYTES, CloseMode};
use crate::forks::EngineFd;
use crate::memory::Shape;

/// Arguments of a chunk request: boxed, so that they do not move while it is in flight.
#[derive(Debug)]
pub(super) struct ChunkRequest {
    pub(super) header: [u8; CHUNK_HEADER_BYTES],
    /// Additional flags of a sent chunk.
    pub(super) flags: i32,
    pub(super) message: libc::msghdr,
    pub(super) pieces: PieceList,
}

// SAFETY: the pointers in `message` lead into `pieces` and are only handed to the kernel.
unsafe impl Send for ChunkRequest {}

impl ChunkRequest {
    pub(super) fn new() -> Box<Self> {
        // SAFETY: a msghdr of zeros is valid: no name, no pieces, no control data.
        let message = unsafe { std::mem::zeroed() };
        let header = [0; CHUNK_HEADER_BYTES];
        Box::new(Self { header, message, flags: 0, pieces: PieceList::default() })
    }

    /// Starts a chunk: the header, then `length` bytes of `shape` from `offset`.
    pub(super) fn begin(&mut self, shape: &Shape, offset: usize, length: usize) -> io::Result<()> {
        self.pieces.begin(&mut self.header, shape, offset, length)
    }

    /// Points the message at the next `iovec`s, at most `max_bytes`.
    pub(super) fn next_message(&mut self, max_bytes: usize) -> *mut libc::msghdr {
        let (pieces, count) = self.pieces.window(max_bytes);
        self.message.msg_iov = pieces;
        self.message.msg_iovlen = count as _;
        &raw mut self.message
    }
}

/// A socket and its outstanding requests.
#[derive(Debug)]
pub(super) struct UringLane {
    pub(super) socket: EngineFd,
    /// Its index in the table of registered files.
    pub(super) fixed: Option<u32>,
    pub(super) is_connecting: bool,
    /// A poll request for readability (0), writability (1) is outstanding.
    pub(super) watched: [bool; 2],
    /// Allocated with the first chunk.
    receive: Option<Box<ChunkRequest>>,
    pub(super) is_receiving: bool,
    send: Option<Box<ChunkRequest>>,
    pub(super) is_sending: bool,
    /// Requests without a result.
    pub(super) requests: u32,
    /// Chunks that are not released.
    pub(super) unreleased: u32,
    pub(super) closing: Option<CloseMode>,
    /// How its stream was ended, while notifications or (detached) requests are outstanding.
    pub(super) ended: Option<CloseMode>,
}

impl UringLane {
    pub(super) fn new(socket: OwnedFd, is_connecting: bool) -> Self {
        Self {
            socket: EngineFd::new(socket),
            fixed: None,
            is_connecting,
            watched: [false; 2],
            receive: None,
            is_receiving: false,
            send: None,
            is_sending: false,
            requests: 0,
            unreleased: 0,
            closing: None,
            ended: None,
        }
    }

    /// The chunk being received.
    pub(super) fn receive(&mut self) -> &mut ChunkRequest {
        self.receive.get_or_insert_with(ChunkRequest::new)
    }

    /// The chunk being sent.
    pub(super) fn send(&mut self) -> &mut ChunkRequest {
        self.send.get_or_insert_with(ChunkRequest::new)
    }

    /// Ends the stream towards the peer. Returns the system calls made.
    pub(super) fn end_stream(&mut self, mode: CloseMode) -> u64 {
        self.ended = Some(mode);
        match mode {
            CloseMode::Graceful => tcp::finish(&self.socket),
            CloseMode::Reset => tcp::abort(&self.socket),
        }
    }
}
