//! Memory that is shared with one neighbour.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use super::ring::{Broken, LONGEST, Reader, Writer};
use super::segment::Segment;
use super::socket;
use crate::driver::lanes::DATAGRAM_BYTES_MAX;

const _: () = assert!(DATAGRAM_BYTES_MAX <= LONGEST, "every datagram fits into a ring");

/// Two rings, one for each direction, and the socket by which neighbours wake each other and see
/// each other's end.
pub(super) struct Channel {
    pub(super) socket: OwnedFd,
    /// Whose datagrams it carries, and no others.
    pub(super) session: u64,
    /// Where they seem to come from: the place that the session's datagrams go to without it.
    pub(super) address: SocketAddr,
    segment: Segment,
    /// The ring that is written; the other one is read.
    writes: usize,
    writer: Writer,
    reader: Reader,
    /// Something was written since the other side was last woken, or found awake.
    is_behind: bool,
    /// Nothing is written any more: what is there is read, and it ends.
    is_ending: bool,
}

impl Channel {
    /// `writes`: which ring this side writes, 0 if it made the memory.
    pub(super) fn new(
        socket: OwnedFd,
        session: u64,
        address: SocketAddr,
        segment: Segment,
        writes: usize,
    ) -> Self {
        let (writer, reader) = (Writer::new(), Reader::new());
        let (is_behind, is_ending) = (false, false);
        Self { socket, session, address, segment, writes, writer, reader, is_behind, is_ending }
    }

    /// Writes a datagram. `false`: there is no room, or no more is written.
    #[inline]
    pub(super) fn send(&mut self, datagram: &[u8]) -> Result<bool, Broken> {
        if self.is_ending {
            return Ok(false);
        }
        let is_written = self.writer.write(&self.segment.ring(self.writes), datagram)?;
        self.is_behind |= is_written;
        Ok(is_written)
    }

    /// Wakes the other side if it sleeps; how many system calls that took.
    #[inline]
    pub(super) fn flush(&mut self) -> u64 {
        if !std::mem::take(&mut self.is_behind)
            || !self.writer.must_wake(&self.segment.ring(self.writes))
        {
            return 0;
        }
        socket::wake(&self.socket);
        1
    }

    /// Copies the next datagram into the first of `into`, and says how long it is.
    #[inline]
    pub(super) fn receive(&mut self, into: &mut [u8]) -> Result<Option<usize>, Broken> {
        self.reader.read(&self.segment.ring(1 - self.writes), into)
    }

    /// Whether a datagram is there.
    #[inline]
    pub(super) fn has_received(&self) -> bool {
        self.reader.has_some(&self.segment.ring(1 - self.writes))
    }

    /// Has the neighbour wake this engine with what comes next. `false`: something is there.
    pub(super) fn fall_asleep(&self) -> bool {
        self.reader.fall_asleep(&self.segment.ring(1 - self.writes))
    }

    /// The opposite.
    pub(super) fn wake_up(&self) {
        self.reader.wake_up(&self.segment.ring(1 - self.writes));
    }

    /// Another mapping of its memory.
    #[cfg(test)]
    pub(super) fn memory(&self) -> Segment {
        self.segment.again()
    }

    /// The other side is gone.
    pub(super) fn end(&mut self) {
        self.is_ending = true;
    }

    #[inline]
    pub(super) fn is_behind(&self) -> bool {
        self.is_behind
    }

    pub(super) fn is_ending(&self) -> bool {
        self.is_ending
    }
}
