//! Connections of the simulated network: two byte pipes, and the state of either end.

use std::collections::VecDeque;

use super::host::ProcessName;
use super::rails::At;
use super::random::Random;
use super::segments::SEGMENT_BYTES_USUAL;

/// Bytes in flight that arrive together.
#[derive(Clone, Copy, Debug)]
struct Flight {
    arrival_ns: u64,
    sent_ns: u64,
    length: usize,
}

/// One direction of a connection.
#[derive(Debug, Default)]
pub(crate) struct Pipe {
    /// Written and not read yet.
    bytes: VecDeque<u8>,
    /// Number of bytes read before these.
    read_bytes: u64,
    /// How many of them have arrived at the reader's kernel.
    visible: usize,
    flights: VecDeque<Flight>,
    /// When the link has sent everything written so far.
    free_ns: u64,
    /// The writer has closed it.
    is_ended: bool,
    /// The writer waits for room.
    pub(crate) wants_room: bool,
    /// Bytes that arrived while acknowledgements were lost.
    unconfirmed: usize,
    /// When the oldest unacknowledged byte was written.
    unacknowledged_since_ns: Option<u64>,
    /// When the first byte was written that never arrives, as its packet is too long.
    held_since_ns: Option<u64>,
}

impl Pipe {
    /// Free space, given `capacity`.
    pub(crate) fn room(&self, capacity: usize) -> usize {
        capacity.saturating_sub(self.bytes.len().max(self.unconfirmed))
    }

    /// Appends bytes that arrive `delay_ns` after the link has sent them; returns that time.
    pub(crate) fn write(&mut self, now_ns: u64, bytes: &[u8], cost_ns: u64, delay_ns: u64) -> u64 {
        self.free_ns = self.free_ns.max(now_ns) + cost_ns;
        self.write_until(now_ns, bytes, self.free_ns + delay_ns)
    }

    /// Appends bytes that arrive at `arrival_ns`, or right after those written before.
    pub(crate) fn write_until(&mut self, now_ns: u64, bytes: &[u8], arrival_ns: u64) -> u64 {
        self.bytes.extend(bytes);
        let last_ns = self.flights.back().map_or(0, |flight| flight.arrival_ns);
        let arrival_ns = arrival_ns.max(last_ns);
        self.flights.push_back(Flight { arrival_ns, sent_ns: now_ns, length: bytes.len() });
        self.unacknowledged_since_ns.get_or_insert(now_ns);
        arrival_ns
    }

    /// Appends bytes to a closed reader: they are never acknowledged.
    pub(crate) fn write_nowhere(&mut self, now_ns: u64) {
        self.unacknowledged_since_ns.get_or_insert(now_ns);
    }

    /// Takes bytes that stay in the writer's kernel for good.
    pub(crate) fn hold(&mut self, now_ns: u64, bytes: &[u8]) {
        self.bytes.extend(bytes);
        self.held_since_ns.get_or_insert(now_ns);
        self.unacknowledged_since_ns.get_or_insert(now_ns);
    }

    /// Since when that is so.
    pub(crate) fn held_since_ns(&self) -> Option<u64> {
        self.held_since_ns
    }

    /// Delivers the bytes that are due. `is_acknowledged`: the way back is open; the writer has so
    /// much less room while a rail keeps its acknowledgements (`is_held`). Returns whether it has
    /// that room again.
    pub(crate) fn arrive(&mut self, now_ns: u64, is_acknowledged: bool, is_held: bool) -> bool {
        while let Some(flight) = self.flights.front()
            && flight.arrival_ns <= now_ns
        {
            self.visible += flight.length;
            if is_held {
                self.unconfirmed += flight.length;
            }
            self.flights.pop_front();
        }
        if is_acknowledged {
            let sent_ns = self.flights.front().map(|flight| flight.sent_ns);
            self.unacknowledged_since_ns = sent_ns.or(self.held_since_ns);
        }
        is_acknowledged && std::mem::take(&mut self.unconfirmed) > 0
    }

    /// Moves arrived bytes to `into`, as many as fit.
    pub(crate) fn read(&mut self, into: &mut [u8]) -> usize {
        let count = self.visible.min(into.len());
        let (front, back) = self.bytes.as_slices();
        let from_front = front.len().min(count);
        into[..from_front].copy_from_slice(&front[..from_front]);
        into[from_front..count].copy_from_slice(&back[..count - from_front]);
        self.bytes.drain(..count);
        self.visible -= count;
        self.read_bytes += count as u64;
        count
    }

    pub(crate) fn has_arrived(&self) -> bool {
        self.visible > 0
    }

    pub(crate) fn end(&mut self) {
        self.is_ended = true;
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// The end of the stream has arrived, after all bytes.
    pub(crate) fn is_over(&self) -> bool {
        self.is_ended && self.bytes.is_empty()
    }

    /// Number of bytes that the reader has read.
    pub(crate) fn read_bytes(&self) -> u64 {
        self.read_bytes
    }

    pub(crate) fn unacknowledged_since_ns(&self) -> Option<u64> {
        self.unacknowledged_since_ns
    }

    /// Loses bytes in flight, and arrived ones unless `keeps_arrived`.
    pub(crate) fn lose(&mut self, keeps_arrived: bool) {
        self.flights.clear();
        if !keeps_arrived {
            self.visible = 0;
        }
        self.bytes.truncate(self.visible);
    }

    /// Number of bytes in flight from byte `from` of the stream on.
    pub(crate) fn bytes_from(&self, from: u64) -> usize {
        self.bytes.len() - (from.saturating_sub(self.read_bytes) as usize).min(self.bytes.len())
    }

    /// Flips a bit of the bytes in flight from byte `from` of the stream on, in the byte that
    /// `pick` chooses; there must be some.
    pub(crate) fn flip(&mut self, from: u64, mut pick: impl FnMut(usize) -> usize) {
        let count = self.bytes_from(from);
        let at = self.bytes.len() - count + pick(count);
        self.bytes[at] ^= 1 << pick(8);
    }

    /// Overwrites the bytes in flight. `false`: there are none.
    #[cfg(test)]
    pub(crate) fn garble(&mut self, mut noise: impl FnMut() -> u8) -> bool {
        self.bytes.iter_mut().for_each(|byte| *byte = noise());
        !self.bytes.is_empty()
    }
}

/// One side of a connection.
#[derive(Debug)]
pub(crate) struct End {
    /// The host, and its process; `None`: not an engine.
    pub(crate) host: Option<usize>,
    /// Index of its link at the host.
    pub(crate) link: usize,
    pub(crate) process: u32,
    /// Index and generation of the lane, once created.
    pub(crate) lane: Option<(u32, u32)>,
    /// Closed by the process.
    pub(crate) is_closed: bool,
    /// Its kernel knows that the connection is broken.
    pub(crate) knows_broken: bool,
    /// Its kernel has reset the connection, or died: incoming bytes are answered by a reset.
    pub(crate) is_forgotten: bool,
}

impl End {
    pub(crate) fn new(host: Option<usize>, process: u32) -> Self {
        let (lane, link, is_closed) = (None, 0, false);
        Self { host, link, process, lane, is_closed, knows_broken: false, is_forgotten: false }
    }
}

impl End {
    /// Its link, if there is a host.
    pub(super) fn at(&self) -> Option<At> {
        self.host.map(|host| At { host, link: self.link })
    }
}

/// Identifies a connection of a run, independently of other connections.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct ConnectionName {
    /// The process that opened it, or accepted it from a visitor.
    pub(super) process: ProcessName,
    /// Not opened by an engine.
    pub(super) is_visit: bool,
    /// Number of earlier ones of this kind.
    pub(super) number: u64,
}

/// A connection: `pipes[side]` carries bytes written by `side`. Side 0 connected.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(super) name: ConnectionName,
    /// Random numbers of each side.
    pub(super) random: [Random; 2],
    pub(crate) ends: [End; 2],
    pub(crate) pipes: [Pipe; 2],
    pub(crate) is_bulk: bool,
    /// Bytes of the stream in one packet at the most.
    pub(super) segment_bytes: usize,
    /// Nothing arrives before this time.
    pub(crate) stalled_until_ns: u64,
    /// It was cut in the network: nothing arrives any more, and both sides will notice.
    pub(crate) is_broken: bool,
    /// Its end is never reported.
    pub(crate) is_mute: bool,
    /// When side 1 wrote first.
    pub(crate) answered_ns: Option<u64>,
}

impl Connection {
    pub(super) fn new(seed: u64, name: ConnectionName, ends: [End; 2]) -> Self {
        let ProcessName { host, process } = name.process;
        let random = |side| {
            let kind = u64::from(name.is_visit) << 1 | side;
            Random::of(seed, &[host as u64, u64::from(process), name.number, kind])
        };
        Self {
            name,
            random: [0, 1].map(random),
            ends,
            pipes: [Pipe::default(), Pipe::default()],
            is_bulk: false,
            segment_bytes: SEGMENT_BYTES_USUAL,
            stalled_until_ns: 0,
            is_broken: false,
            is_mute: false,
            answered_ns: None,
        }
    }

    /// Whether both sides still use it.
    pub(crate) fn is_whole(&self) -> bool {
        !self.is_broken
            && self.ends.iter().all(|end| !end.is_closed && !end.knows_broken && !end.is_forgotten)
    }

    /// Whether bytes are in flight to an open reader.
    pub(crate) fn has_bytes_under_way(&self) -> bool {
        self.is_whole() && !self.is_mute && self.pipes.iter().any(|pipe| !pipe.flights.is_empty())
    }

    /// Something can be read by `side`: bytes, the end, or an error.
    pub(crate) fn is_readable(&self, side: usize) -> bool {
        let incoming = &self.pipes[1 - side];
        incoming.has_arrived() || self.ends[side].knows_broken || incoming.is_over()
    }
}
