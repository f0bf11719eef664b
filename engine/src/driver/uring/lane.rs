//! One lane of the io_uring driver.

use std::io;
use std::os::fd::OwnedFd;

use super::super::pieces::Pieces;
use super::super::tcp;
use crate::driver::traits::{CHUNK_HEADER_BYTES, CloseMode};
use crate::forks::EngineFd;
use crate::memory::Shape;

/// What the kernel reads of a chunk request: boxed, so that it never moves while one is in
/// flight.
#[derive(Debug)]
pub(super) struct Transfer {
    pub(super) header: [u8; CHUNK_HEADER_BYTES],
    /// Of a chunk that is sent, beside the usual ones.
    pub(super) flags: i32,
    pub(super) message: libc::msghdr,
    pub(super) pieces: Pieces,
}

// SAFETY: the pointers in `message` lead into `pieces` and are only handed to the kernel.
unsafe impl Send for Transfer {}

impl Transfer {
    pub(super) fn new() -> Box<Self> {
        // SAFETY: a msghdr of zeros is valid: no name, no pieces, no control data.
        let message = unsafe { std::mem::zeroed() };
        let header = [0; CHUNK_HEADER_BYTES];
        Box::new(Self { header, message, flags: 0, pieces: Pieces::default() })
    }

    /// Takes a chunk: the header, then `length` bytes of `shape` from `offset`.
    pub(super) fn begin(&mut self, shape: &Shape, offset: usize, length: usize) -> io::Result<()> {
        self.pieces.begin(&mut self.header, shape, offset, length)
    }

    /// Points the message at the next pieces, `max_bytes` of them at the most.
    pub(super) fn next_message(&mut self, max_bytes: usize) -> *mut libc::msghdr {
        let (pieces, count) = self.pieces.window(max_bytes);
        self.message.msg_iov = pieces;
        self.message.msg_iovlen = count as _;
        &raw mut self.message
    }
}

/// A socket and what is outstanding on it.
#[derive(Debug)]
pub(super) struct UringLane {
    pub(super) socket: EngineFd,
    /// Its index in the table of registered files.
    pub(super) fixed: Option<u32>,
    pub(super) is_connecting: bool,
    /// A request waits until it is readable (0), writable (1).
    pub(super) watched: [bool; 2],
    /// With the first chunk.
    receive: Option<Box<Transfer>>,
    pub(super) is_receiving: bool,
    send: Option<Box<Transfer>>,
    pub(super) is_sending: bool,
    /// Requests whose result has not come.
    pub(super) requests: u32,
    /// Chunks that are not released.
    pub(super) unreleased: u32,
    pub(super) closing: Option<CloseMode>,
    /// How its stream was ended, while notifications or, in an absence, requests are outstanding.
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

    /// The chunk that is received.
    pub(super) fn receive(&mut self) -> &mut Transfer {
        self.receive.get_or_insert_with(Transfer::new)
    }

    /// The chunk that is sent.
    pub(super) fn send(&mut self) -> &mut Transfer {
        self.send.get_or_insert_with(Transfer::new)
    }

    /// Tells the peer that this side ends the stream. Returns the system calls made.
    pub(super) fn end_stream(&mut self, mode: CloseMode) -> u64 {
        self.ended = Some(mode);
        match mode {
            CloseMode::Graceful => tcp::finish(&self.socket),
            CloseMode::Reset => tcp::abort(&self.socket),
        }
    }
}
