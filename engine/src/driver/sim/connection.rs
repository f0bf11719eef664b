//! Connections of the simulated network: two pipes of bytes, and what either end knows.

use std::collections::VecDeque;

use super::host::ProcessName;
use super::rails::At;
use super::random::Random;
use super::segments::SEGMENT_BYTES_USUAL;

/// Bytes on their way, all of which arrive at once.
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
    /// All that were read before these.
    read_bytes: u64,
    /// How many of them the reading side's kernel has.
    visible: usize,
    flights: VecDeque<Flight>,
    /// When the link has sent all that was written.
    free_ns: u64,
    /// The writer closed it; nothing follows.
    is_ended: bool,
    /// The writer waits for room.
    pub(crate) wants_room: bool,
    /// Arrived while no acknowledgement came back.
    unconfirmed: usize,
    /// When the oldest byte that is not acknowledged was written.
    unacknowledged_since_ns: Option<u64>,
    /// When the first byte was written that never arrives, as its packet is too long.
    held_since_ns: Option<u64>,
}

impl Pipe {
    /// Bytes that find room in `capacity`.
    pub(crate) fn room(&self, capacity: usize) -> usize {
        capacity.saturating_sub(self.bytes.len().max(self.unconfirmed))
    }

    /// Takes bytes that arrive `delay_ns` after the link is done with them; tells when that is.
    pub(crate) fn write(&mut self, now_ns: u64, bytes: &[u8], cost_ns: u64, delay_ns: u64) -> u64 {
        self.free_ns = self.free_ns.max(now_ns) + cost_ns;
        self.write_until(now_ns, bytes, self.free_ns + delay_ns)
    }

    /// Takes bytes that arrive at `arrival_ns`, or right after what was written before.
    pub(crate) fn write_until(&mut self, now_ns: u64, bytes: &[u8], arrival_ns: u64) -> u64 {
        self.bytes.extend(bytes);
        let last_ns = self.flights.back().map_or(0, |flight| flight.arrival_ns);
        let arrival_ns = arrival_ns.max(last_ns);
        self.flights.push_back(Flight { arrival_ns, sent_ns: now_ns, length: bytes.len() });
        self.unacknowledged_since_ns.get_or_insert(now_ns);
        arrival_ns
    }

    /// Bytes that nobody receives any more are taken, and never acknowledged.
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

    /// What has had its time arrives. `is_acknowledged`: the way back is open; the writer has so
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

    /// The end of the stream has arrived, behind all bytes.
    pub(crate) fn is_over(&self) -> bool {
        self.is_ended && self.bytes.is_empty()
    }

    /// Bytes that the reading side has read.
    pub(crate) fn read_bytes(&self) -> u64 {
        self.read_bytes
    }

    pub(crate) fn unacknowledged_since_ns(&self) -> Option<u64> {
        self.unacknowledged_since_ns
    }

    /// Loses what is on its way, and what has arrived unless `keeps_arrived`.
    pub(crate) fn lose(&mut self, keeps_arrived: bool) {
        self.flights.clear();
        if !keeps_arrived {
            self.visible = 0;
        }
        self.bytes.truncate(self.visible);
    }

    /// Bytes under way from byte `from` of the stream on.
    pub(crate) fn bytes_from(&self, from: u64) -> usize {
        self.bytes.len() - (from.saturating_sub(self.read_bytes) as usize).min(self.bytes.len())
    }

    /// Flips a bit of what is under way from byte `from` of the stream on, in the byte that `pick`
    /// chooses of so many; there are some.
    pub(crate) fn flip(&mut self, from: u64, mut pick: impl FnMut(usize) -> usize) {
        let count = self.bytes_from(from);
        let at = self.bytes.len() - count + pick(count);
        self.bytes[at] ^= 1 << pick(8);
    }

    /// Overwrites what is under way. `false`: there is nothing.
    #[cfg(test)]
    pub(crate) fn garble(&mut self, mut noise: impl FnMut() -> u8) -> bool {
        self.bytes.iter_mut().for_each(|byte| *byte = noise());
        !self.bytes.is_empty()
    }
}

/// One side of a connection.
#[derive(Debug)]
pub(crate) struct End {
    /// The host, and which process there; `None`: no engine, somebody else.
    pub(crate) host: Option<usize>,
    /// Its place among the links of the host.
    pub(crate) link: usize,
    pub(crate) process: u32,
    /// Index and generation of the lane, once there is one.
    pub(crate) lane: Option<(u32, u32)>,
    /// Nobody reads or writes here any more.
    pub(crate) is_closed: bool,
    /// Its kernel knows that the connection is broken.
    pub(crate) has_heard: bool,
    /// Its kernel has told the other side so, or died: what comes in is answered by a reset.
    pub(crate) is_forgotten: bool,
}

impl End {
    pub(crate) fn new(host: Option<usize>, process: u32) -> Self {
        let (lane, link, is_closed) = (None, 0, false);
        Self { host, link, process, lane, is_closed, has_heard: false, is_forgotten: false }
    }
}

impl End {
    /// Its link, if there is a host.
    pub(super) fn at(&self) -> Option<At> {
        self.host.map(|host| At { host, link: self.link })
    }
}

/// Which connection of a run, whatever others there are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct ConnectionName {
    /// Which process opened it, or was visited.
    pub(super) process: ProcessName,
    /// No engine opened it.
    pub(super) is_visit: bool,
    /// How many of this kind were before it.
    pub(super) number: u64,
}

/// A connection: `pipes[side]` carries what `side` writes. Side 0 connected.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(super) name: ConnectionName,
    /// What each side draws.
    pub(super) random: [Random; 2],
    pub(crate) ends: [End; 2],
    pub(crate) pipes: [Pipe; 2],
    pub(crate) is_bulk: bool,
    /// Bytes of the stream in one packet at the most.
    pub(super) segment_bytes: usize,
    /// Nothing arrives before this time.
    pub(crate) stalled_until_ns: u64,
    /// It was cut on the way: nothing arrives any more, and both sides will hear of it.
    pub(crate) is_broken: bool,
    /// No news of its end ever arrives.
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
            && self.ends.iter().all(|end| !end.is_closed && !end.has_heard && !end.is_forgotten)
    }

    /// Whether bytes are on their way to somebody who takes them.
    pub(crate) fn has_bytes_under_way(&self) -> bool {
        self.is_whole() && !self.is_mute && self.pipes.iter().any(|pipe| !pipe.flights.is_empty())
    }

    /// Something can be read by `side`: bytes, the end, or an error.
    pub(crate) fn is_readable(&self, side: usize) -> bool {
        let incoming = &self.pipes[1 - side];
        incoming.has_arrived() || self.ends[side].has_heard || incoming.is_over()
    }
}
