//! Receiving from rings.

use std::net::SocketAddr;

use zerocopy::FromBytes;

use super::Shm;
use super::ring::{BODY_BYTES_MIN, EntryKind, RingViolation};
use crate::driver::traits::{DriverCounters, PieceHeader, RingEntry};
use crate::wire::frame_range::{FrameRange, RingHead, RingMessage};
use crate::wire::packet;

/// What is left of an entry of which only the first bytes were copied.
pub(super) struct EntryBody {
    channel: u32,
    /// Length of what was copied, in front of the rest; 0 if that is kept elsewhere.
    head_bytes: usize,
    /// Length of the rest, which [`Shm::read_body`] copies.
    bytes: usize,
}

impl EntryBody {
    /// There is none.
    pub(super) const NONE: Self = Self { channel: u32::MAX, head_bytes: 0, bytes: 0 };
}

/// An entry received from a ring.
pub(super) enum ReceivedEntry {
    /// A packet, which is to be taken.
    Packet,
    /// A segment: session and length.
    Segment(u64, usize),
    /// Frames: session, numbers, head and length.
    Frames(u64, (FrameRange, RingHead), usize),
    /// A piece of a message: session and length.
    Piece(u64, usize),
}

impl Shm {
    /// See [`crate::driver::traits::DatagramIo::recv_from_ring`].
    #[inline]
    pub(in crate::driver) fn receive_entry(
        &mut self,
        counters: &mut DriverCounters,
    ) -> Option<(u64, RingEntry<'_>)> {
        if self.untaken.is_some() {
            return None;
        }
        match self.receive(counters)? {
            ReceivedEntry::Segment(session, length) => {
                Some((session, RingEntry::Segment(&self.datagram[..length])))
            }
            ReceivedEntry::Frames(session, (range, head), length) => {
                if length >= BODY_BYTES_MIN {
                    return self.receive_long(session, (range, head), length, counters);
                }
                Some((session, RingEntry::Frames(range, &self.datagram[..length])))
            }
            ReceivedEntry::Piece(session, length) => {
                let (header, _) = PieceHeader::ref_from_prefix(&self.datagram).ok()?;
                Some((session, RingEntry::Piece(header, length)))
            }
            ReceivedEntry::Packet => None,
        }
    }

    /// Returns frames of which only the head was copied.
    #[inline(never)]
    fn receive_long(
        &mut self,
        session: u64,
        (range, head): (FrameRange, RingHead),
        length: usize,
        counters: &mut DriverCounters,
    ) -> Option<(u64, RingEntry<'_>)> {
        if range.count != 1 {
            self.read_rest(counters);
            return Some((session, RingEntry::Frames(range, &self.datagram[..length])));
        }
        let message = RingMessage::new(range, head, &self.datagram, length)?;
        Some((session, RingEntry::Message(self.message.insert(message))))
    }

    /// Copies the rest of the piece, or of the frames, received last.
    #[inline]
    pub(in crate::driver) fn read_body(&mut self, into: &mut [u8], counters: &mut DriverCounters) {
        if let Some(Some(channel)) = self.channels.get_mut(self.body.channel as usize) {
            let wakes = u64::from(channel.read_body(into));
            self.figures.wakes += wakes;
            counters.syscalls += wakes;
        }
    }

    /// The same, copied to an internal buffer.
    pub(in crate::driver) fn piece(&mut self, counters: &mut DriverCounters) -> &[u8] {
        let mut room = std::mem::take(&mut self.datagram);
        self.read_body(&mut room[..self.body.bytes], counters);
        self.datagram = room;
        &self.datagram[..self.body.bytes]
    }

    /// All bytes of the message received last.
    pub(in crate::driver) fn message(&mut self, counters: &mut DriverCounters) -> &[u8] {
        self.read_rest(counters);
        &self.datagram[..self.body.head_bytes + self.body.bytes]
    }

    /// Copies the rest of the frames received last behind their first bytes.
    fn read_rest(&mut self, counters: &mut DriverCounters) {
        let mut datagram = std::mem::take(&mut self.datagram);
        let EntryBody { head_bytes, bytes, .. } = self.body;
        self.read_body(&mut datagram[head_bytes..][..bytes], counters);
        self.datagram = datagram;
    }

    /// The source of the packet that [`Self::receive_entry`] found instead of an entry;
    /// [`Self::payload`] returns its bytes.
    #[inline]
    pub(in crate::driver) fn take_packet(&mut self) -> Option<SocketAddr> {
        self.untaken.take()
    }

    /// The next entry of a channel.
    #[inline]
    pub(super) fn receive_from(
        &mut self,
        index: u32,
        counters: &mut DriverCounters,
    ) -> Option<ReceivedEntry> {
        let channel = self.channels.get_mut(index as usize)?.as_mut()?;
        let reported_tail = channel.reported_tail();
        let received = channel.receive(&mut self.datagram);
        if channel.reported_tail() != reported_tail {
            let wakes = u64::from(channel.wake_writer());
            self.figures.wakes += wakes;
            counters.syscalls += wakes;
        }
        match received {
            Ok(Some((EntryKind::Frames(range, head), length))) => {
                if length >= BODY_BYTES_MIN {
                    let head_bytes = head.bytes();
                    let bytes = length - head_bytes;
                    self.body = EntryBody { channel: index, head_bytes, bytes };
                }
                self.figures.received += 1;
                counters.datagrams_received += 1;
                Some(ReceivedEntry::Frames(channel.session, (range, head), length))
            }
            Ok(None) if !channel.is_ending() => None,
            other => self.receive_other(index, other, counters),
        }
    }

    /// Handles what was received from a channel instead of frames.
    #[inline(never)]
    fn receive_other(
        &mut self,
        index: u32,
        received: Result<Option<(EntryKind, usize)>, RingViolation>,
        counters: &mut DriverCounters,
    ) -> Option<ReceivedEntry> {
        let channel = self.channels.get_mut(index as usize)?.as_mut()?;
        match received {
            Ok(Some((EntryKind::Segment, length))) => {
                self.figures.received += 1;
                counters.datagrams_received += 1;
                Some(ReceivedEntry::Segment(channel.session, length))
            }
            Ok(Some((EntryKind::Piece, length))) => {
                self.body = EntryBody { channel: index, head_bytes: 0, bytes: length };
                self.figures.pieces_received += 1;
                self.figures.piece_bytes_received += length as u64;
                Some(ReceivedEntry::Piece(channel.session, length))
            }
            Ok(Some((_, length))) => {
                // RR-SHM-4: a peer cannot send for another session.
                let is_its = packet::path_and_session(&self.datagram[..length])
                    == Some((packet::FIRST_PATH, channel.session));
                if !is_its {
                    self.figures.strays += 1;
                    return None;
                }
                (self.length, self.untaken) = (length, Some(channel.address));
                self.figures.received += 1;
                counters.datagrams_received += 1;
                Some(ReceivedEntry::Packet)
            }
            Ok(None) => {
                self.remove(index);
                None
            }
            Err(_) => {
                self.give_up(index, "invalid entry length");
                None
            }
        }
    }

    /// The bytes of the packet received last.
    #[inline]
    pub(in crate::driver) fn payload(&mut self) -> &mut [u8] {
        &mut self.datagram[..self.length]
    }
}
