//! A lane of a simulated driver: watches, and chunks in progress.

use std::io;

use crate::driver::traits::{CHUNK_HEADER_BYTES, DriverEvent};
use crate::memory::{Shape, Span};

/// Memory that a request of the simulated kernel refers to.
pub(crate) type Spans = Vec<Span>;

/// The ranges of memory of a part of a message.
pub(super) fn spans_of(shape: &Shape, offset: usize, length: usize) -> Spans {
    shape.spans(offset, length).collect()
}

/// State of a requested event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Watch {
    Off,
    Armed,
    /// The event is scheduled.
    Reported,
}

/// A chunk in progress, header first.
#[derive(Debug)]
pub(super) struct Chunk {
    /// The caller's identifier of a chunk being sent.
    pub(super) token: u64,
    pub(super) header: [u8; CHUNK_HEADER_BYTES],
    pub(super) spans: Spans,
    length: usize,
    at: usize,
}

impl Chunk {
    pub(super) fn new(token: u64, header: [u8; CHUNK_HEADER_BYTES], spans: Spans) -> Self {
        let length = spans.iter().map(|span| span.len).sum();
        Self { token, header, spans, length, at: 0 }
    }

    /// All bytes have moved.
    pub(super) fn is_whole(&self) -> bool {
        self.at == CHUNK_HEADER_BYTES + self.length
    }

    pub(super) fn advance(&mut self, count: usize) {
        self.at += count;
    }

    /// The payload's range at the current position.
    fn piece(&self) -> Span {
        let mut at = self.at - CHUNK_HEADER_BYTES;
        for span in &self.spans {
            if at < span.len {
                return Span { ptr: span.ptr.wrapping_add(at), len: span.len - at };
            }
            at -= span.len;
        }
        Span { ptr: std::ptr::dangling_mut(), len: 0 }
    }

    /// The bytes to send next.
    ///
    /// # Safety
    ///
    /// The memory of the chunk is live, and is not written while the result is used.
    pub(super) unsafe fn bytes_to_send(&self) -> &[u8] {
        if self.at < CHUNK_HEADER_BYTES {
            return &self.header[self.at..];
        }
        let piece = self.piece();
        // SAFETY: the caller's contract, passed on; the piece lies within the chunk's memory.
        unsafe { std::slice::from_raw_parts(piece.ptr, piece.len) }
    }

    /// The destination of the next bytes.
    ///
    /// # Safety
    ///
    /// The memory of the chunk is live, and nothing else accesses it while the result is used.
    pub(super) unsafe fn room(&mut self) -> &mut [u8] {
        if self.at < CHUNK_HEADER_BYTES {
            return &mut self.header[self.at..];
        }
        let piece = self.piece();
        // SAFETY: the caller's contract, passed on; the piece lies within the chunk's memory.
        unsafe { std::slice::from_raw_parts_mut(piece.ptr, piece.len) }
    }
}

/// A scheduled event, and its effect when delivered.
#[derive(Debug)]
pub(super) struct PendingEvent {
    pub(super) what: What,
    /// Memory to release.
    pub(super) releases: Option<Spans>,
    /// The request was cancelled, and overwrites its memory until then.
    pub(super) scribbles: bool,
}

#[derive(Debug)]
pub(super) enum What {
    /// Delivered to the engine.
    DriverEvent(DriverEvent),
    /// A new connection, which gets a lane.
    Accept(usize),
}

impl From<DriverEvent> for PendingEvent {
    fn from(event: DriverEvent) -> Self {
        Self { what: What::DriverEvent(event), releases: None, scribbles: false }
    }
}

#[derive(Debug)]
pub(super) struct SimLane {
    pub(super) generation: u32,
    pub(super) connection: usize,
    pub(super) side: usize,
    pub(super) is_connecting: bool,
    pub(super) reads: Watch,
    pub(super) writes: Watch,
    pub(super) sending: Option<Chunk>,
    pub(super) receiving: Option<Chunk>,
    /// The end of a chunk is scheduled.
    pub(super) send_is_over: bool,
    pub(super) receive_is_over: bool,
    pub(super) is_closing: bool,
    /// Later events of the lane are not before this time.
    pub(super) last_event_ns: u64,
}

impl SimLane {
    pub(super) fn new(generation: u32, connection: usize, side: usize) -> Self {
        Self {
            generation,
            connection,
            side,
            is_connecting: side == 0,
            reads: Watch::Off,
            writes: Watch::Off,
            sending: None,
            receiving: None,
            send_is_over: false,
            receive_is_over: false,
            is_closing: false,
            last_event_ns: 0,
        }
    }
}

/// The error of a cancelled request.
pub(super) fn cancelled() -> io::Error {
    io::Error::other("cancelled by the simulation")
}
