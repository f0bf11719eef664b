//! Engines on one simulated host machine: rings between two of them, and cross-memory reads.
//!
//! A ring loses nothing and keeps order, until it ends. Both sides notice that at different times;
//! entries written until then are lost, and earlier ones are read or not, as after the end of a
//! process or a protocol violation. Then the two may reconnect.
//!
//! Reads are not scheduled: a polling reader finds an entry, and a sleeping one is woken when the
//! writer flushes.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use super::lane::PendingEvent;
use super::net::{Item, Net};
use crate::driver::traits::{DriverEvent, KeptFrames, LocalPeer, PieceHeader, ProcessCookie};
use crate::wire::frame_range::{FrameRange, RingHead, RingName};

/// Maximum time until the two engines of a session connect, and maximum delay of a retry, in
/// nanoseconds.
const DISCOVERY_NS: u64 = 100_000;
const RETRY_NS: u64 = 20_000_000;
/// With ring ends enabled, one in so many written pieces ends its ring: pieces in the ring are lost
/// then.
const PIECES_PER_END: usize = 15;
/// A reader reports one in so many frames, with those before it.
const FRAMES_PER_REPORT: usize = 8;
/// Connection attempts of the initiator of a session.
const TRIES: u32 = 6;

/// Impairments of rings. "One in" so many times; 0: never.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct LocalPeerImpairments {
    /// Hosts whose numbers are equal modulo this share a machine; 0: none do.
    pub(crate) machines: usize,
    /// Capacity of a ring in bytes.
    pub(crate) ring_bytes: usize,
    /// Maximum delay between write and read.
    pub(crate) delay_ns: u64,
    /// A ring seems to be full.
    pub(crate) full_one_in: usize,
    /// Mean time between the ends of two rings; 0: never.
    pub(crate) end_ns: u64,
    /// Cross-memory reads are possible.
    pub(crate) reads: bool,
    /// The kernel refuses one.
    pub(crate) unreadable_one_in: usize,
}

/// State of a session at one engine.
#[derive(Debug)]
struct Known {
    session: u64,
    host: usize,
    /// Source address reported for the peer's packets.
    address: SocketAddr,
    is_initiator: bool,
    /// The cookie for the peer's reads.
    cookie: Option<Arc<ProcessCookie>>,
    /// Events of one session keep their order.
    reported_ns: u64,
    /// What rings that have ended kept.
    unread: Vec<KeptFrames>,
}

/// An entry of a ring.
#[derive(Debug)]
struct Entry {
    seen_ns: u64,
    kind: Kind,
    bytes: Vec<u8>,
}

/// Kind of an entry.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Packet,
    Segment,
    Frames(FrameRange, RingHead),
    Piece(PieceHeader),
}

/// One side of a pair of rings, and its entries.
#[derive(Debug)]
struct Side {
    host: usize,
    /// Its engine knows the rings.
    is_open: bool,
    /// It has noticed their end, and reads the remaining entries.
    is_leaving: bool,
    /// It has read them.
    has_left: bool,
    written: VecDeque<Entry>,
    /// Size of the entries.
    bytes: usize,
    /// Frames that it wrote, and the reader has not reported as read.
    kept: VecDeque<KeptFrames>,
    /// Those of them that the reader has read.
    read_unreported: usize,
    /// Entries were written since the last flush.
    is_behind: bool,
}

impl Side {
    fn new(host: usize) -> Self {
        let written = VecDeque::new();
        Self {
            host,
            is_open: false,
            is_leaving: false,
            has_left: false,
            written,
            bytes: 0,
            kept: VecDeque::new(),
            read_unreported: 0,
            is_behind: false,
        }
    }
}

impl Side {
    /// Whether it reads entries of the other side.
    fn reads(&self) -> bool {
        self.is_open || (self.is_leaving && !self.has_left)
    }
}

/// The rings of one session.
#[derive(Debug)]
struct Rings {
    session: u64,
    number: u32,
    sides: [Side; 2],
    /// New entries are lost.
    have_ended: bool,
}

/// All sessions and rings.
#[derive(Debug, Default)]
pub(super) struct LocalPeers {
    pub(super) impairments: LocalPeerImpairments,
    known: Vec<Known>,
    rings: Vec<Rings>,
    /// Numbers of segments read, cross-memory reads, and pieces read.
    read: [u64; 3],
    /// Number of rings created.
    made: u32,
}

/// An entry as returned to the reader.
pub(super) enum ReadEntry {
    Segment(u64, Vec<u8>),
    Frames(u64, (FrameRange, RingHead), Vec<u8>),
    Piece(u64, PieceHeader, Vec<u8>),
    Packet(SocketAddr, Vec<u8>),
}

impl Net {
    /// Sets the impairments of rings.
    pub(crate) fn share_memory(&mut self, impairments: LocalPeerImpairments) {
        let begins = self.local_peers.impairments.end_ns == 0 && impairments.end_ns > 0;
        self.local_peers.impairments = impairments;
        if begins {
            self.plan_ring_end();
        }
    }

    /// Disables full rings and ends of rings.
    pub(crate) fn disable_ring_faults(&mut self) {
        let impairments = &mut self.local_peers.impairments;
        (impairments.full_one_in, impairments.unreadable_one_in, impairments.end_ns) = (0, 0, 0);
    }

    /// Numbers of segments read from rings, cross-memory reads, and pieces read from rings.
    pub(crate) fn local_read_counts(&self) -> [u64; 3] {
        self.local_peers.read
    }

    /// Whether a host may have local peers.
    pub(super) fn has_local_peers(&self, host: usize) -> bool {
        self.local_peers.impairments.machines > 0 && self.hosts[host].socket.is_open
    }

    fn share_a_machine(&self, one: usize, other: usize) -> bool {
        let machines = self.local_peers.impairments.machines;
        machines > 0 && one != other && one % machines == other % machines
    }

    // ---- Connecting and disconnecting ----

    /// The engine of `host` has a session.
    pub(super) fn connect_peer(
        &mut self,
        host: usize,
        peer: &LocalPeer,
        cookie: Option<Arc<ProcessCookie>>,
    ) {
        let LocalPeer { session, address, is_initiator, .. } = *peer;
        self.disconnect_peer(host, session);
        let (reported_ns, unread) = (0, Vec::new());
        let known = Known { session, host, address, is_initiator, cookie, reported_ns, unread };
        self.local_peers.known.push(known);
        if is_initiator {
            self.plan_discovery(host, session, 0, DISCOVERY_NS);
        }
    }

    fn plan_discovery(&mut self, host: usize, session: u64, tries: u32, within_ns: u64) {
        let at_ns = self.now_ns() + self.hosts[host].random.rings.within(within_ns + 1);
        self.plan(at_ns, Item::Discovery { host, session, tries });
    }

    /// The initiator of a session tries to connect.
    pub(super) fn handle_discovery(&mut self, host: usize, session: u64, tries: u32) {
        let all = &self.local_peers;
        let is_asked = all.known.iter().any(|it| (it.host, it.session) == (host, session));
        if !is_asked || all.rings.iter().any(|rings| rings.session == session) {
            return;
        }
        let other = all.known.iter().find(|it| it.session == session && it.host != host);
        match other.map(|it| it.host) {
            Some(other) if !self.share_a_machine(host, other) => {}
            Some(other) => {
                let sides = [Side::new(host), Side::new(other)];
                self.local_peers.made += 1;
                let number = self.local_peers.made;
                self.local_peers.rings.push(Rings { session, number, sides, have_ended: false });
                for host in [host, other] {
                    self.report_rings(host, (session, number), true);
                }
            }
            None if tries < TRIES => {
                self.plan_discovery(host, session, tries + 1, RETRY_NS << tries)
            }
            None => {}
        }
    }

    /// Reports to the engine of `host` that a session has gained or lost its rings.
    fn report_rings(&mut self, host: usize, (session, number): (u64, u32), is_up: bool) {
        let mut events = vec![DriverEvent::RingChanged { session, number, is_up }];
        if self.local_peers.impairments.reads {
            events.push(DriverEvent::CmaChanged { session, is_able: is_up });
        }
        for event in events {
            self.report(host, session, event);
        }
    }

    /// Reports an event of a session to the engine of `host`, after earlier ones.
    fn report(&mut self, host: usize, session: u64, event: DriverEvent) {
        let noticed_ns = self.now_ns() + self.lateness_ns(host);
        let known = &mut self.local_peers.known;
        let known = known.iter_mut().find(|it| (it.host, it.session) == (host, session));
        let Some(known) = known else { return };
        known.reported_ns = known.reported_ns.max(noticed_ns);
        let (at_ns, pending) = (known.reported_ns, PendingEvent::from(event));
        self.schedule_event(host, at_ns, pending);
    }

    /// The engine of `host` was notified.
    pub(super) fn rings_changed(
        &mut self,
        host: usize,
        (session, number): (u64, u32),
        is_up: bool,
    ) {
        let rings = &mut self.local_peers.rings;
        let is_it = |it: &Rings| (it.session, it.number) == (session, number);
        let Some(index) = rings.iter().position(is_it) else { return };
        let Some(side) = rings[index].sides.iter_mut().find(|side| side.host == host) else {
            return;
        };
        let mut known = self.local_peers.known.iter_mut();
        let known = known.find(|it| (it.host, it.session) == (host, session));
        let Some(known) = known else { return };
        side.is_open = is_up;
        side.is_leaving = !is_up;
        if !is_up {
            known.unread.extend(side.kept.drain(..));
            side.read_unreported = 0;
        }
        self.leave_drained(index, host);
    }

    /// A side that has noticed the end leaves after it has read everything.
    fn leave_drained(&mut self, index: usize, host: usize) {
        let sides = &mut self.local_peers.rings[index].sides;
        let Some(side) = sides.iter().position(|side| side.host == host) else { return };
        if sides[side].is_leaving && sides[1 - side].written.is_empty() {
            sides[side].has_left = true;
            self.forget_left(index);
        }
    }

    /// Removes rings that both sides have left; they may be recreated.
    fn forget_left(&mut self, index: usize) {
        if self.local_peers.rings[index].sides.iter().any(|side| !side.has_left) {
            return;
        }
        let Rings { session, .. } = self.local_peers.rings.swap_remove(index);
        let mut known = self.local_peers.known.iter();
        let asks = known.find(|it| it.session == session && it.is_initiator);
        if let Some(host) = asks.map(|it| it.host) {
            self.plan_discovery(host, session, 0, RETRY_NS);
        }
    }

    /// The session of the engine of `host` has ended.
    pub(super) fn disconnect_peer(&mut self, host: usize, session: u64) {
        self.local_peers.known.retain(|it| (it.host, it.session) != (host, session));
        let mut rings = self.local_peers.rings.iter();
        let found = rings.position(|it| it.session == session);
        let Some(index) = found else { return };
        let rings = &mut self.local_peers.rings[index];
        let Some(side) = rings.sides.iter().position(|side| side.host == host) else { return };
        rings.sides[side].is_open = false;
        rings.sides[side].has_left = true;
        self.end_rings(index);
    }

    /// The process of `host` has ended.
    pub(super) fn leave_local_peers(&mut self, host: usize) {
        let all = &self.local_peers.known;
        let sessions = all.iter().filter(|it| it.host == host).map(|it| it.session);
        for session in sessions.collect::<Vec<_>>() {
            self.disconnect_peer(host, session);
        }
    }

    /// Kills the process of `host`, a child of which keeps its sockets open: its kernel answers for
    /// it from now on, and engines that share memory with it are notified. It never runs again.
    #[cfg(test)]
    pub(crate) fn kill_parent(&mut self, host: usize) {
        const FOREVER_NS: u64 = u64::MAX / 4;
        self.pause(host, FOREVER_NS);
        let all = &self.local_peers;
        let shared = all.rings.iter().filter_map(|rings| {
            let side = rings.sides.iter().position(|side| side.host == host)?;
            Some((rings.session, rings.sides[1 - side].host))
        });
        for (session, other) in shared.collect::<Vec<_>>() {
            self.disconnect_peer(host, session);
            self.report(other, session, DriverEvent::ProcessEnded { session });
        }
    }

    /// Ends rings for the sides that still use them.
    fn end_rings(&mut self, index: usize) {
        let rings = &mut self.local_peers.rings[index];
        let name = (rings.session, rings.number);
        if std::mem::replace(&mut rings.have_ended, true) {
            self.forget_left(index);
            return;
        }
        let hosts = [0, 1].map(|side| rings.sides[side].host);
        let stays = [0, 1].map(|side| !rings.sides[side].has_left);
        for (host, _) in hosts.into_iter().zip(stays).filter(|&(_, stays)| stays) {
            self.report_rings(host, name, false);
        }
        self.forget_left(index);
    }

    fn plan_ring_end(&mut self) {
        let mean_ns = self.local_peers.impairments.end_ns;
        let at_ns = self.now_ns() + 1 + self.random.within(2 * mean_ns);
        self.plan(at_ns, Item::RingEnd);
    }

    /// Ends the rings of a random session.
    pub(super) fn handle_ring_end(&mut self) {
        if self.local_peers.impairments.end_ns == 0 {
            return;
        }
        let live = self.local_peers.rings.iter().enumerate().filter(|(_, it)| !it.have_ended);
        let live: Vec<usize> = live.map(|(index, _)| index).collect();
        if !live.is_empty() {
            let index = live[self.random.below(live.len())];
            self.break_rings(index);
        }
        self.plan_ring_end();
    }

    /// Ends rings in the middle of an entry.
    fn break_rings(&mut self, index: usize) {
        let host = self.local_peers.rings[index].sides[0].host;
        if self.hosts[host].random.rings.one_in(2) {
            // The remaining entries are discarded.
            for side in &mut self.local_peers.rings[index].sides {
                side.written.clear();
                side.bytes = 0;
            }
        }
        self.end_rings(index);
    }

    // ---- Writing ----

    /// Writes a segment into a ring. `false`: another ring or none, or no room.
    pub(super) fn write_segment(
        &mut self,
        host: usize,
        RingName { session, number }: RingName,
        kind: Kind,
        bytes: &[u8],
    ) -> bool {
        let ring = self.local_peers.side_mut(host, session);
        ring.is_some_and(|(ring, _)| ring.number == number)
            && self.write_ring(host, session, kind, bytes)
    }

    /// Writes into the ring of a session. `false`: no ring, or no room.
    pub(super) fn write_ring(
        &mut self,
        host: usize,
        session: u64,
        kind: Kind,
        bytes: &[u8],
    ) -> bool {
        if self.local_peers.side_mut(host, session).is_none() {
            // Draws no random number, so that runs without rings stay the same.
            return false;
        }
        let impairments = self.local_peers.impairments;
        let random = &mut self.hosts[host].random.rings;
        let late_ns = random.within(impairments.delay_ns + 1);
        let seems_full = random.one_in(impairments.full_one_in);
        let now_ns = self.now_ns();
        let Some((rings, side)) = self.local_peers.side_mut(host, session) else { return false };
        let have_ended = rings.have_ended;
        let side = &mut rings.sides[side];
        // An empty ring takes anything.
        let has_room = side.bytes == 0 || side.bytes + bytes.len() <= impairments.ring_bytes;
        if !side.is_open || seems_full || !has_room {
            return false;
        }
        let sender = self.hosts[host].process_name(host);
        self.wire.add_to_ring(sender, session, &kind, bytes);
        if let Kind::Frames(range, _) = kind {
            side.kept.push_back(KeptFrames { range, bytes: bytes.to_vec() });
        }
        if have_ended {
            return true;
        }
        let last_ns = side.written.back().map_or(0, |entry| entry.seen_ns);
        let seen_ns = last_ns.max(now_ns + late_ns);
        side.written.push_back(Entry { seen_ns, kind, bytes: bytes.to_vec() });
        side.bytes += bytes.len();
        side.is_behind = true;
        if matches!(kind, Kind::Piece(_))
            && impairments.end_ns > 0
            && self.hosts[host].random.rings.one_in(PIECES_PER_END)
        {
            let index = self.local_peers.rings.iter().position(|rings| rings.session == session);
            index.into_iter().for_each(|index| self.break_rings(index));
        }
        true
    }

    /// Wakes peers that sleep over entries of `host`.
    pub(super) fn flush_rings(&mut self, host: usize) {
        let now_ns = self.now_ns();
        for index in 0..self.local_peers.rings.len() {
            let sides = &mut self.local_peers.rings[index].sides;
            let Some(writer) = sides.iter().position(|side| side.host == host) else { continue };
            if !std::mem::take(&mut sides[writer].is_behind) {
                continue;
            }
            let seen_ns = sides[writer].written.back().map_or(now_ns, |entry| entry.seen_ns);
            let reader = &sides[1 - writer];
            let (reader, is_open) = (reader.host, reader.is_open);
            if is_open && self.is_asleep(reader) {
                let late_ns = self.lateness_ns(reader);
                self.wake_at(reader, seen_ns.max(now_ns) + late_ns);
            }
        }
    }

    // ---- Reading ----

    /// When the next entry for `host` can be read.
    pub(super) fn ring_ready_ns(&self, host: usize) -> u64 {
        let rings = self.local_peers.rings.iter();
        let sides = rings.filter_map(|rings| {
            let reader = rings.sides.iter().position(|side| side.host == host)?;
            rings.sides[reader].reads().then_some(&rings.sides[1 - reader])
        });
        sides.filter_map(|side| Some(side.written.front()?.seen_ns)).min().unwrap_or(u64::MAX)
    }

    /// The next entry for `host`.
    pub(super) fn read_ring(&mut self, host: usize) -> Option<ReadEntry> {
        let (now_ns, count) = (self.now_ns(), self.local_peers.rings.len());
        if count == 0 {
            return None;
        }
        let first = self.hosts[host].random.rings.below(count);
        for index in (first..count).chain(0..first) {
            let Rings { session, sides, .. } = &mut self.local_peers.rings[index];
            let (session, reader) = (*session, sides.iter().position(|side| side.host == host));
            let Some(reader) = reader.filter(|&reader| sides[reader].reads()) else { continue };
            let written = &mut sides[1 - reader];
            if written.written.front().is_none_or(|entry| entry.seen_ns > now_ns) {
                continue;
            }
            let Some(Entry { kind, bytes, .. }) = written.written.pop_front() else {
                continue;
            };
            written.bytes -= bytes.len();
            if matches!(kind, Kind::Frames(..)) {
                self.report_read(index, 1 - reader);
            }
            self.leave_drained(index, host);
            self.hosts[host].socket.handled += 1;
            match kind {
                Kind::Segment => {
                    self.local_peers.read[0] += 1;
                    return Some(ReadEntry::Segment(session, bytes));
                }
                Kind::Frames(range, head) => {
                    self.local_peers.read[0] += 1;
                    return Some(ReadEntry::Frames(session, (range, head), bytes));
                }
                Kind::Piece(header) => {
                    self.local_peers.read[2] += 1;
                    return Some(ReadEntry::Piece(session, header, bytes));
                }
                Kind::Packet => {}
            }
            let mut known = self.local_peers.known.iter();
            let known = known.find(|it| (it.host, it.session) == (host, session));
            return known.map(|known| ReadEntry::Packet(known.address, bytes));
        }
        None
    }

    /// Notes frames read. A reader reports them late, and not all at a time.
    fn report_read(&mut self, index: usize, writer: usize) {
        let side = &mut self.local_peers.rings[index].sides[writer];
        if side.read_unreported == side.kept.len() {
            // The writer has taken them back.
            return;
        }
        side.read_unreported += 1;
        if self.hosts[side.host].random.rings.one_in(FRAMES_PER_REPORT) {
            side.kept.drain(..side.read_unreported);
            side.read_unreported = 0;
        }
    }

    /// Returns what rings of the session that have ended kept for `host`.
    pub(super) fn take_unread(&mut self, host: usize, session: u64) -> Vec<KeptFrames> {
        let mut known = self.local_peers.known.iter_mut();
        let known = known.find(|it| (it.host, it.session) == (host, session));
        known.map_or_else(Vec::new, |known| std::mem::take(&mut known.unread))
    }
}

impl LocalPeers {
    /// The cookie of the engine that shares a session with that of `host`.
    pub(super) fn cookie_of_peer(&self, host: usize, session: u64) -> Option<Arc<ProcessCookie>> {
        let other = self.known.iter().find(|it| it.session == session && it.host != host);
        other.and_then(|it| it.cookie.clone())
    }

    /// Whether the engine of `host` has rings with the peer of a session.
    pub(super) fn has_rings(&mut self, host: usize, session: u64) -> bool {
        self.side_mut(host, session).is_some()
    }

    /// Counts a cross-memory read.
    pub(super) fn count_memory_read(&mut self, is_done: bool) {
        self.read[1] += u64::from(is_done);
    }

    /// The rings of a session, and the side of `host`.
    fn side_mut(&mut self, host: usize, session: u64) -> Option<(&mut Rings, usize)> {
        let rings = self.rings.iter_mut().find(|rings| rings.session == session)?;
        let side = rings.sides.iter().position(|side| side.host == host)?;
        Some((rings, side))
    }
}
