//! Shared memory with one peer.

use std::net::SocketAddr;

use super::backlog::Backlog;
use super::cma::AttachedProcess;
use super::doorbell_page::PeerDoorbell;
use super::ring::{
    DATAGRAM_MAX, EntryKind, HEADER_BYTES, Lines, PollState, Reader, RingViolation, WakeupHint,
    Writer,
};
use super::ring_pair::{Ring, RingPair};
use super::socket;
use crate::driver::traits::{DATAGRAM_BYTES_MAX, KeptFrames, RingSegment};
use crate::forks::EngineFd;
use crate::wire::frame_range::RingBytes;
use crate::wire::local_peer::SIGNAL_POLL;

const _: () = assert!(DATAGRAM_BYTES_MAX <= DATAGRAM_MAX, "every datagram fits into a ring");

/// Two rings, one for each direction, and the unix socket for wake-ups and for detecting the end of
/// the peer.
///
/// The fields used by polling and writing are in the first cache line: an engine polls rings of
/// many peers.
#[repr(C, align(64))]
pub(super) struct Channel {
    rings: RingPair,
    reader: Reader,
    writer: Writer,
    /// The ring that is written; the other one is read.
    writes: u8,
    /// Entries were written since the peer was last notified.
    is_behind: bool,
    /// Nothing is written any more; the remaining entries are read, then the channel closes.
    is_ending: bool,
    /// The peer has verified that it can read this process's memory.
    pub(super) is_read: bool,
    /// Recent entries: how much it is worth to poll this ring.
    pub(super) recent_entries: u32,
    /// The only session whose datagrams it carries.
    pub(super) session: u64,
    /// The number of the rings, known to both sides.
    pub(super) number: u32,
    /// Packets that wait for room in the ring.
    backlog: Backlog,
    pub(super) socket: EngineFd,
    /// The source reported for its packets: the address that the session's datagrams are sent to
    /// without shared memory.
    pub(super) address: SocketAddr,
    /// The memory of the peer's process, if this process can read it.
    pub(super) memory: Option<AttachedProcess>,
    /// The peer's process has ended.
    pub(super) has_process_ended: bool,
    /// An entry found no room, and no room was reported since.
    wants_room: bool,
    /// The peer's doorbell for this engine, used if the peer does not poll the ring.
    doorbell: PeerDoorbell,
}

const _: () = assert!(std::mem::offset_of!(Channel, session) == 64, "polling takes one cache line");

impl Channel {
    /// `writes`: the ring that this side writes, 0 if it created the memory.
    pub(super) fn new(
        socket: EngineFd,
        (session, number): (u64, u32),
        address: SocketAddr,
        (rings, writes): (RingPair, u8),
        doorbell: PeerDoorbell,
        memory: Option<AttachedProcess>,
    ) -> Self {
        let (writer, reader) = (Writer::new(), Reader::new());
        Self {
            rings,
            reader,
            writer,
            writes,
            is_behind: false,
            is_ending: false,
            is_read: false,
            recent_entries: 0,
            session,
            number,
            backlog: Backlog::default(),
            socket,
            address,
            memory,
            has_process_ended: false,
            wants_room: false,
            doorbell,
        }
    }

    /// Writes a packet, or queues it until there is room. `false`: the queue is full, or the
    /// channel is closing.
    #[inline]
    pub(super) fn send(&mut self, datagram: &[u8]) -> Result<bool, RingViolation> {
        if self.is_ending {
            return Ok(false);
        }
        self.is_behind = true;
        if !self.backlog.is_empty() {
            return Ok(self.backlog.push(datagram));
        }
        let ring = self.rings.ring(self.writes);
        let is_written = self.writer.write(&ring, EntryKind::Packet, datagram)?;
        Ok(is_written || self.backlog.push(datagram))
    }

    /// Writes a segment. `false`: no room, or the channel is closing. If it is the last one, the
    /// peer, unless it sleeps, is notified at once.
    #[inline]
    pub(super) fn write_segment(
        &mut self,
        segment: RingSegment<'_>,
    ) -> Result<bool, RingViolation> {
        let RingSegment { frames, bytes, is_last } = segment;
        self.write_in_turn(is_last, |writer, ring| match (frames, bytes) {
            (Some(range), RingBytes::Short(bytes, length)) => {
                writer.write_short(ring, range, bytes, length)
            }
            (Some(range), bytes) => {
                writer.write_bytes(ring, EntryKind::Frames(range, bytes.head()), bytes)
            }
            (None, bytes) => writer.write_bytes(ring, EntryKind::Segment, bytes),
        })
    }

    /// The frames that the peer has not reported as read, in their order.
    pub(super) fn unread(&mut self) -> Result<Vec<KeptFrames>, RingViolation> {
        self.writer.unread(&self.rings.ring(self.writes))
    }

    /// Writes a piece of a message. `false`: no room, or the channel is closing.
    #[inline]
    pub(super) fn write_piece(
        &mut self,
        header: &[u8; HEADER_BYTES],
        bytes: &[u8],
    ) -> Result<bool, RingViolation> {
        self.write_in_turn(false, |writer, ring| writer.write_piece(ring, header, bytes))
    }

    /// Writes an entry, unless packets precede it.
    #[inline]
    fn write_in_turn(
        &mut self,
        is_last: bool,
        write: impl FnOnce(&mut Writer, &Ring<'_>) -> Result<bool, RingViolation>,
    ) -> Result<bool, RingViolation> {
        if self.is_ending || !self.backlog.is_empty() {
            self.wants_room = true;
            return Ok(false);
        }
        let ring = self.rings.ring(self.writes);
        let is_written = write(&mut self.writer, &ring)?;
        if is_last && is_written {
            match self.writer.peek_wakeup_hint(&ring) {
                WakeupHint::None => {}
                WakeupHint::Doorbell => self.doorbell.set(),
                WakeupHint::WakeUp => self.is_behind = true,
            }
            return Ok(true);
        }
        self.is_behind = true;
        self.wants_room |= !is_written;
        Ok(is_written)
    }

    /// Writes queued packets, as far as there is room, and notifies the peer unless it polls the
    /// ring. Returns whether it was asleep.
    #[inline]
    pub(super) fn flush(&mut self) -> Result<bool, RingViolation> {
        let ring = self.rings.ring(self.writes);
        while let Some(datagram) = self.backlog.first() {
            if !self.writer.write(&ring, EntryKind::Packet, datagram)? {
                break;
            }
            self.backlog.pop();
        }
        self.is_behind = !self.backlog.is_empty();
        let notice = self.writer.wakeup_hint(&ring);
        match notice {
            WakeupHint::None => {}
            WakeupHint::Doorbell => self.doorbell.set(),
            WakeupHint::WakeUp => socket::send_signal(&self.socket, SIGNAL_POLL),
        }
        Ok(notice == WakeupHint::WakeUp)
    }

    /// The first queued packet.
    pub(super) fn first_queued(&self) -> Option<&[u8]> {
        self.backlog.first()
    }

    /// Removes the first queued packet, which was sent by other means.
    pub(super) fn pop_queued(&mut self) {
        self.backlog.pop();
    }

    /// Copies the next entry to the start of `into`; returns its kind and length. Of a piece and of
    /// long frames only the first line is copied, as [`Reader::read`] does.
    #[inline]
    pub(super) fn receive(
        &mut self,
        into: &mut [u8],
    ) -> Result<Option<(EntryKind, usize)>, RingViolation> {
        let received = self.reader.read(&self.rings.ring(1 - self.writes), into);
        if let Ok(Some(_)) = received {
            self.recent_entries = self.recent_entries.wrapping_add(1);
        }
        received
    }

    /// The position last published to the writer; if it moved, call [`Self::wake_writer`].
    #[inline]
    pub(super) fn reported_tail(&self) -> u64 {
        self.reader.reported_tail()
    }

    /// Wakes the peer if it sleeps until there is room. Returns whether it did.
    #[cold]
    pub(super) fn wake_writer(&self) -> bool {
        let wakes = self.reader.take_waiting_writer(&self.rings.ring(1 - self.writes));
        if wakes {
            socket::send_signal(&self.socket, SIGNAL_POLL);
        }
        wakes
    }

    /// Copies the rest of the entry received last. Returns whether this woke the peer, which waited
    /// for room.
    #[inline]
    pub(super) fn read_body(&mut self, into: &mut [u8]) -> bool {
        let reported_tail = self.reported_tail();
        self.reader.read_body(&self.rings.ring(1 - self.writes), into);
        self.reported_tail() != reported_tail && self.wake_writer()
    }

    /// Whether an entry is present.
    #[inline]
    pub(super) fn has_received(&self) -> bool {
        self.reader.has_some(&self.rings.ring(1 - self.writes))
    }

    /// Whether the channel needs service: an entry is present, or it is closing.
    #[inline]
    pub(super) fn is_waiting(&self) -> bool {
        self.has_received() || self.is_ending
    }

    /// Has the peer give notice in this way, which is not [`PollState::Sleeping`], of what it
    /// writes. `false`: something is there that it gives no notice of.
    pub(super) fn set_poll_state(&self, state: PollState) -> bool {
        let ring = self.rings.ring(1 - self.writes);
        self.reader.set_poll_state(&ring, state);
        state == PollState::Polling || {
            ring.fence();
            !self.reader.has_some(&ring)
        }
    }

    /// Has the peer wake this engine with what comes next, and with room if it wants some. A fence,
    /// [`Self::has_received`] and [`Self::has_new_room`] follow: it does not for what is there.
    pub(super) fn prepare_sleep(&self) {
        self.reader.set_poll_state(&self.rings.ring(1 - self.writes), PollState::Sleeping);
        if self.wants_room {
            self.writer.prepare_sleep(&self.rings.ring(self.writes));
        }
    }

    /// Ends a sleep: publishes `state`. Follow with the same checks.
    pub(super) fn end_sleep(&self, state: PollState) {
        self.reader.set_poll_state(&self.rings.ring(1 - self.writes), state);
        self.writer.end_sleep(&self.rings.ring(self.writes));
    }

    /// Whether room that was wanted has become available.
    pub(super) fn has_new_room(&mut self) -> bool {
        let has_room = self.wants_room && self.writer.has_new_room(&self.rings.ring(self.writes));
        self.wants_room &= !has_room;
        has_room
    }

    /// Another mapping of the memory.
    #[cfg(test)]
    pub(super) fn map_again(&self) -> RingPair {
        self.rings.again()
    }

    /// The notification that the peer would get after a write.
    #[cfg(test)]
    pub(super) fn wakeup_hint(&self) -> WakeupHint {
        self.writer.wakeup_hint(&self.rings.ring(self.writes))
    }

    /// Stores what a writer stores when it wakes the peer.
    #[cfg(test)]
    pub(super) fn mark_reader_awake(&self) {
        Reader::new().set_poll_state(&self.rings.ring(self.writes), PollState::Polling);
    }

    /// Overwrites all doorbell words of the peer.
    #[cfg(test)]
    pub(super) fn corrupt_doorbells(&self, value: u64) {
        self.doorbell.corrupt(value);
    }

    /// Closes the channel: the peer is gone.
    pub(super) fn end(&mut self) {
        self.is_ending = true;
    }

    /// Whether [`Self::flush`] has anything to do.
    #[inline]
    pub(super) fn is_behind(&self) -> bool {
        self.is_behind
    }

    pub(super) fn is_ending(&self) -> bool {
        self.is_ending
    }
}
