//! What comes by rings, and which of them are looked at.

use std::net::SocketAddr;

use zerocopy::FromBytes;

use super::Shm;
use super::channel::Channel;
use super::ring::Entry;
use crate::driver::lanes::{DriverCounters, PieceHeader, RingEntry};
use crate::wire::packet;

/// Channels that are looked at in each call for a datagram: those that something came by lately.
pub(super) const HOT: usize = 8;
/// Of the others, how many more are.
const COLD_AT_ONCE: usize = 2;
/// Datagrams of one channel in a row.
const STREAK: u32 = 16;

/// What came by a ring.
enum Received {
    /// A packet, which seems to come from there.
    Packet(SocketAddr),
    /// A segment of this session.
    Segment(u64),
    /// A piece of a message of this session, which is so long.
    Piece(u64, usize),
}

impl Shm {
    /// Whether there are channels.
    #[inline]
    pub(in crate::driver) fn is_up(&self) -> bool {
        !self.order.is_empty()
    }

    /// See [`crate::driver::lanes::DatagramPort::recv_from_ring`].
    #[inline]
    pub(in crate::driver) fn receive_entry(
        &mut self,
        counters: &mut DriverCounters,
    ) -> Option<(u64, RingEntry<'_>)> {
        if self.untaken.is_some() {
            return None;
        }
        match self.receive(counters)? {
            Received::Segment(session) => {
                Some((session, RingEntry::Segment(&self.datagram[..self.length])))
            }
            Received::Piece(session, length) => {
                let (header, _) = PieceHeader::ref_from_prefix(&self.datagram).ok()?;
                Some((session, RingEntry::Piece(header, length)))
            }
            Received::Packet(from) => {
                self.untaken = Some(from);
                None
            }
        }
    }

    /// Copies the bytes of the piece that came last, as many as there are.
    #[inline]
    pub(in crate::driver) fn read_piece(&mut self, into: &mut [u8], counters: &mut DriverCounters) {
        if let Some(Some(channel)) = self.channels.get_mut(self.piece.0 as usize) {
            let wakes = u64::from(channel.read_piece(into));
            self.figures.wakes += wakes;
            counters.syscalls += wakes;
        }
    }

    /// The same, copied to a place of this side's.
    pub(in crate::driver) fn piece(&mut self, counters: &mut DriverCounters) -> &[u8] {
        let mut room = std::mem::take(&mut self.datagram);
        self.read_piece(&mut room[..self.piece.1], counters);
        self.datagram = room;
        &self.datagram[..self.piece.1]
    }

    /// Where the packet seems to come from that [`Self::receive_entry`] found in its place;
    /// [`Self::payload`] has it.
    #[inline]
    pub(in crate::driver) fn take_packet(&mut self) -> Option<SocketAddr> {
        self.untaken.take()
    }

    #[inline]
    fn receive(&mut self, counters: &mut DriverCounters) -> Option<Received> {
        let hot = self.order.len().min(HOT);
        if self.since_cold >= STREAK && self.order.len() > hot {
            // Hot ones that always have something do not keep the others from being heard.
            if let Some(received) = self.receive_cold(hot, counters) {
                return Some(received);
            }
        }
        for _ in 0..hot {
            if self.next >= hot {
                self.next = 0;
            }
            if let Some(from) = self.receive_from(self.next, counters) {
                self.streak += 1;
                self.since_cold = self.since_cold.saturating_add(1);
                if self.streak >= STREAK {
                    (self.next, self.streak) = (self.next + 1, 0);
                }
                return Some(from);
            }
            (self.next, self.streak) = (self.next + 1, 0);
        }
        if self.order.len() > hot { self.receive_cold(hot, counters) } else { None }
    }

    /// The same of channels that nothing came by lately, some at a time; all of them while the
    /// owner is absent, for what its caretaker does not find has no other wake-up.
    fn receive_cold(&mut self, hot: usize, counters: &mut DriverCounters) -> Option<Received> {
        self.since_cold = 0;
        let at_once = if self.owner_is_absent { self.order.len() } else { COLD_AT_ONCE };
        for _ in 0..at_once {
            let count = self.order.len().checked_sub(hot).filter(|&count| count > 0)?;
            self.cold = (self.cold + 1) % count;
            let at = hot + self.cold;
            if let Some(from) = self.receive_from(at, counters) {
                // One whose turn is far makes room; the farthest may be the one that was read last.
                let victim = (self.next + hot - 2) % hot;
                self.order.swap(at, victim);
                return Some(from);
            }
        }
        None
    }

    #[inline]
    fn receive_from(&mut self, at: usize, counters: &mut DriverCounters) -> Option<Received> {
        let index = *self.order.get(at)?;
        let channel = self.channels.get_mut(index as usize)?.as_mut()?;
        let told = channel.told();
        let received = channel.receive(&mut self.datagram);
        if channel.told() != told {
            let wakes = u64::from(channel.wake_writer());
            self.figures.wakes += wakes;
            counters.syscalls += wakes;
        }
        match received {
            Ok(Some((Entry::Segment, length))) => {
                self.length = length;
                self.figures.received += 1;
                counters.datagrams_received += 1;
                Some(Received::Segment(channel.session))
            }
            Ok(Some((Entry::Piece, length))) => {
                self.piece = (index, length);
                self.figures.pieces_received += 1;
                self.figures.piece_bytes_received += length as u64;
                Some(Received::Piece(channel.session, length))
            }
            Ok(Some((Entry::Packet, length))) => {
                // RR-SHM-4: nobody speaks for another session.
                let is_its = packet::path_and_session(&self.datagram[..length])
                    == Some((packet::FIRST_PATH, channel.session));
                if !is_its {
                    self.figures.strays += 1;
                    return None;
                }
                self.length = length;
                self.figures.received += 1;
                counters.datagrams_received += 1;
                Some(Received::Packet(channel.address))
            }
            Ok(None) => {
                if channel.is_ending() {
                    self.remove(index);
                }
                None
            }
            Err(_) => {
                self.give_up(index, "it wrote a length that cannot be");
                None
            }
        }
    }

    /// What came last.
    #[inline]
    pub(in crate::driver) fn payload(&mut self) -> &mut [u8] {
        &mut self.datagram[..self.length]
    }

    /// Whether something is in a ring, or has been made room for since this engine slept; of one
    /// that polls, in one of those rings that the next call for a datagram looks at.
    pub(in crate::driver) fn has_received(&mut self, sleeps: bool) -> bool {
        if self.untaken.is_some() || std::mem::take(&mut self.has_news) {
            return true;
        }
        if sleeps || self.owner_is_absent {
            return self.channels.iter().flatten().any(Channel::has_received);
        }
        let hot = self.order.len().min(HOT);
        (0..hot).any(|at| self.is_waiting(at)) || (self.order.len() > hot && self.is_cold_waiting())
    }

    /// Whether something came by the channel in this place of the order.
    fn is_waiting(&self, at: usize) -> bool {
        let channel = self.order.get(at).and_then(|&index| self.channels.get(index as usize));
        channel.and_then(Option::as_ref).is_some_and(Channel::has_received)
    }

    /// The same of the next few of those that nothing came by lately: [`Self::receive_cold`] begins
    /// with the first that has something.
    fn is_cold_waiting(&mut self) -> bool {
        for _ in 0..COLD_AT_ONCE {
            let next = (self.cold + 1) % (self.order.len() - HOT);
            if self.is_waiting(HOT + next) {
                return true;
            }
            self.cold = next;
        }
        false
    }
}
