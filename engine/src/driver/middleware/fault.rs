//! A driver that does, at random and by a seed, what kernels, networks and peers do at times.
//!
//! - Control lanes move fewer bytes than they could, or none (`EAGAIN`). The first two sends of
//!   a lane are spared: a fresh socket takes a greeting and a proof whole.
//! - Events are held back for some polls. The order of the contract holds all the same: events of
//!   a lane stay in order, a release follows its `ChunkSent`, and `Closed` is the last.
//! - Lanes are reset: at the end of its time the lane is closed below, which cancels its chunks,
//!   and the caller sees what a reset by the peer looks like until it closes the lane itself.
//! - A bit is flipped in what has arrived: in the memory that a chunk went to, before the caller is
//!   told of the chunk, or in what a control lane gave.
//! - Connection attempts fail; the peer may see a connection that is reset at once.
//! - Datagrams are lost, repeated, overtaken by others, garbled and cut on their way out.
//! - Rings between engines of one host have no room, or end and are made anew; what is read from
//!   the memory of others is refused.
//!
//! Memory is released only when the driver inside says so: what is held back is told later,
//! never earlier.

mod datagrams;
mod lane;
mod neighbours;
mod order;

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use self::datagrams::Datagrams;
use self::lane::{FaultLane, State};
use self::neighbours::Neighbours;
use self::order::{lane_of, must_follow};
use super::super::deadline_after;
use crate::driver::lanes::{BulkLanes, ControlLanes, DatagramPort, Driver, Handling, Rail};
use crate::driver::lanes::{
    CHUNK_HEADER_BYTES, CloseMode, DriverCounters, DriverEvent, Interest, LaneKey, SendMode,
};
use crate::driver::lanes::{CmaSource, Neighbour, PieceHeader, RingEntry};
use crate::driver::lanes::{FrameDrops, FrameState, Owed, Reach, TcpFigures};
use crate::memory::Shape;
use crate::settings::Faults;

/// Polls that an event is held back for, or that a doomed lane lives, at the most.
const TURNS_MAX: u64 = 16;

/// Sends at the begin of a lane that are neither short nor refused.
const SPARED_SENDS: u8 = 2;

/// Receives at the begin of a lane whose bytes are not garbled: its greeting.
const SPARED_RECEIVES: u8 = 4;

/// Sleep while something waits for its turn.
const SLICE: Duration = Duration::from_micros(200);

/// An event that the caller was not told yet.
#[derive(Debug)]
struct Held {
    event: DriverEvent,
    /// The poll at which it may be told.
    due: u64,
}

/// A driver that fails at times. See the module's text.
pub(super) struct Fault {
    inner: Box<dyn Driver + Send>,
    faults: Faults,
    random: StdRng,
    lanes: HashMap<LaneKey, FaultLane>,
    held: Vec<Held>,
    datagrams: Datagrams,
    neighbours: Neighbours,
    /// Polls so far, those of [`Driver::park`] included.
    turn: u64,
    /// Empty between calls; keeps its memory.
    fresh: Vec<DriverEvent>,
}

fn was_reset() -> io::Error {
    io::ErrorKind::ConnectionReset.into()
}

impl Fault {
    pub(super) fn new(inner: Box<dyn Driver + Send>, faults: Faults) -> Self {
        let random = StdRng::seed_from_u64(faults.seed);
        Self {
            inner,
            faults,
            random,
            lanes: HashMap::new(),
            held: Vec::new(),
            datagrams: Datagrams::default(),
            neighbours: Neighbours::default(),
            turn: 0,
            fresh: Vec::new(),
        }
    }

    fn chance(&mut self, rate: f64) -> bool {
        rate > 0.0 && self.random.random_bool(rate.min(1.0))
    }

    /// A poll that is not now but soon.
    fn soon(&mut self) -> u64 {
        self.turn + self.random.random_range(1..=TURNS_MAX)
    }

    /// Takes an event into the queue of those that are to be told.
    fn hold(&mut self, event: DriverEvent) {
        let due = if self.chance(self.faults.late) { self.soon() } else { self.turn };
        self.held.push(Held { event, due });
    }

    fn state(&self, lane: LaneKey) -> Option<State> {
        self.lanes.get(&lane).map(|lane| lane.state)
    }

    /// The caller must find the lane reset from now on.
    fn reset(&mut self, key: LaneKey) {
        let Some(lane) = self.lanes.get_mut(&key) else { return };
        if lane.state != State::Open {
            return;
        }
        lane.state = State::Broken { is_gone: false };
        let watched = std::mem::take(&mut lane.watched);
        self.inner.close(key, CloseMode::Reset);
        if watched[0] {
            self.hold(DriverEvent::Readable { lane: key });
        }
        if watched[1] {
            self.hold(DriverEvent::Writable { lane: key });
        }
    }

    /// What the driver inside has told, as the caller is to be told.
    fn take_in(&mut self) {
        let mut fresh = std::mem::take(&mut self.fresh);
        for event in fresh.drain(..) {
            if let Some(event) = self.judge(event) {
                self.hold(event);
            }
        }
        self.fresh = fresh;
    }

    /// A chunk has arrived, which the caller does not know yet.
    fn garble_chunk(&mut self, key: LaneKey) {
        let target = self.lanes.get_mut(&key).and_then(|lane| lane.target.take());
        let Some((target, offset, length)) = target else { return };
        if self.chance(self.faults.garble) {
            let at = offset + self.random.random_range(0..length);
            let bit = self.random.random_range(0..8);
            for span in target.spans(at, 1) {
                // SAFETY: the caller of `recv_chunk` keeps the memory, and leaves it alone, until
                // it is told of the chunk; the driver inside is done with it.
                unsafe { *span.ptr ^= 1 << bit };
            }
        }
    }

    /// Bytes of a control lane, or of a greeting, have arrived.
    fn garble_bytes(&mut self, key: LaneKey, bytes: &mut [u8]) {
        if let Some(lane) = self.lanes.get_mut(&key).filter(|lane| lane.receives < SPARED_RECEIVES)
        {
            lane.receives += 1;
        } else if !bytes.is_empty() && self.chance(self.faults.garble_control) {
            let at = self.random.random_range(0..bytes.len());
            bytes[at] ^= 1 << self.random.random_range(0..8);
        }
    }

    /// Notes what an event means for its lane; `None` when the caller must not see it.
    fn judge(&mut self, event: DriverEvent) -> Option<DriverEvent> {
        if let DriverEvent::ChunkReceived { lane, result: Ok(_) } = event {
            self.garble_chunk(lane);
        }
        if let DriverEvent::Accepted { lane, .. } = event {
            self.lanes.insert(lane, FaultLane::new(State::Open));
        }
        if matches!(event, DriverEvent::DatagramsReadable | DriverEvent::DatagramsWritable) {
            return self.datagrams.is_asked(&event).then_some(event);
        }
        if let DriverEvent::RingChanged { session, is_up, .. } = event {
            self.neighbours.changed(session, is_up);
        }
        let Some(key) = lane_of(&event) else { return Some(event) };
        let Some(lane) = self.lanes.get_mut(&key) else { return Some(event) };
        let is_broken = matches!(lane.state, State::Broken { .. });
        match event {
            DriverEvent::Connected { .. } | DriverEvent::ConnectFailed { .. }
                if lane.state == State::Refused =>
            {
                None
            }
            DriverEvent::Readable { .. } => std::mem::take(&mut lane.watched[0]).then_some(event),
            DriverEvent::Writable { .. } => std::mem::take(&mut lane.watched[1]).then_some(event),
            // The cancellation of a chunk is our doing: a peer's reset says otherwise.
            DriverEvent::ChunkSent { lane, result: Err(_) } if is_broken => {
                Some(DriverEvent::ChunkSent { lane, result: Err(was_reset()) })
            }
            DriverEvent::ChunkReceived { lane, result: Err(_) } if is_broken => {
                Some(DriverEvent::ChunkReceived { lane, result: Err(was_reset()) })
            }
            DriverEvent::Closed { .. } if is_broken => {
                lane.state = State::Broken { is_gone: true };
                None
            }
            DriverEvent::Closed { .. } => {
                let state = lane.state;
                self.lanes.remove(&key);
                if state == State::Refused {
                    let error = io::ErrorKind::ConnectionRefused.into();
                    self.hold(DriverEvent::ConnectFailed { lane: key, error });
                }
                Some(event)
            }
            event => Some(event),
        }
    }

    /// Tells what is due and does not have to follow what is not.
    fn tell(&mut self, events: &mut Vec<DriverEvent>) {
        if self.held.iter().all(|held| held.due <= self.turn) {
            events.extend(self.held.drain(..).map(|held| held.event));
            return;
        }
        let mut kept: Vec<Held> = Vec::new();
        for held in std::mem::take(&mut self.held) {
            let is_free = !kept.iter().any(|kept| must_follow(&held.event, &kept.event));
            if held.due <= self.turn && is_free {
                events.push(held.event);
            } else {
                kept.push(held);
            }
        }
        self.held = kept;
    }

    /// The turn's resets, before the driver inside is asked for its events.
    fn begin_turn(&mut self) {
        self.turn += 1;
        let turn = self.turn;
        let is_due = |lane: &FaultLane| lane.doom.is_some_and(|doom| doom <= turn);
        // In the order of the keys, so that a seed always does the same.
        let mut due: Vec<LaneKey> =
            self.lanes.iter().filter(|(_, lane)| is_due(lane)).map(|(&key, _)| key).collect();
        due.sort_unstable_by_key(|key| (key.index, key.generation));
        for key in due {
            if let Some(lane) = self.lanes.get_mut(&key) {
                lane.doom = None;
            }
            self.reset(key);
        }
        self.pass_on_kept(turn);
        self.meet_again(turn);
    }

    /// Something happens at a turn to come although the driver inside has no news.
    fn has_plans(&self) -> bool {
        !self.held.is_empty()
            || self.datagrams.has_plans()
            || self.neighbours.has_plans()
            || self.lanes.values().any(|lane| lane.doom.is_some())
    }

    /// Decides on the fate of a lane that moves a chunk. `false`: it is reset already.
    fn admit_chunk(&mut self, key: LaneKey) -> bool {
        match self.state(key) {
            Some(State::Broken { .. }) => false,
            Some(State::Open) => {
                if self.chance(self.faults.reset) {
                    let doom = self.soon();
                    if let Some(lane) = self.lanes.get_mut(&key) {
                        lane.doom.get_or_insert(doom);
                    }
                }
                true
            }
            _ => true,
        }
    }

    /// What a direct call of a lane meets before the driver inside is asked.
    fn admit_call(&mut self, key: LaneKey, is_spared: bool) -> io::Result<()> {
        match self.state(key) {
            Some(State::Broken { .. }) => return Err(was_reset()),
            Some(State::Open) => {}
            // The driver inside knows what to say.
            _ => return Ok(()),
        }
        if self.chance(self.faults.cut) {
            self.reset(key);
            return Err(was_reset());
        }
        if !is_spared && self.chance(self.faults.again) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(())
    }

    /// How many of `length` bytes a call may move.
    fn cut_short(&mut self, length: usize) -> usize {
        if length > 1 && self.chance(self.faults.short) {
            self.random.random_range(1..length)
        } else {
            length
        }
    }
}

impl Driver for Fault {
    pass_on!(inner: name polls_for_free set_rails reach nic_of begin_absence end_absence counters);
    pass_on!(inner: wake_fd);

    fn poll(&mut self, events: &mut Vec<DriverEvent>) -> io::Result<()> {
        self.begin_turn();
        self.inner.poll(&mut self.fresh)?;
        self.take_in();
        self.tell(events);
        Ok(())
    }

    fn park(&mut self, timeout: Duration, events: &mut Vec<DriverEvent>) -> io::Result<()> {
        let before = events.len();
        let deadline = deadline_after(timeout);
        loop {
            self.begin_turn();
            let mut left = deadline.saturating_duration_since(Instant::now());
            if self.has_plans() {
                left = left.min(SLICE);
            }
            self.inner.park(left, &mut self.fresh)?;
            self.take_in();
            self.tell(events);
            if events.len() > before || Instant::now() >= deadline {
                return Ok(());
            }
        }
    }

    fn arm(&mut self, timeout: Duration) -> io::Result<Duration> {
        let left = self.inner.arm(timeout)?;
        Ok(if self.has_plans() { left.min(SLICE) } else { left })
    }

    fn shutdown(&mut self, limit: Duration) -> bool {
        self.pass_on_kept(u64::MAX);
        self.held.clear();
        self.lanes.clear();
        self.inner.shutdown(limit)
    }

    fn dismantle(&mut self) -> io::Result<Vec<(LaneKey, OwnedFd)>> {
        // Readiness is found again by whoever adopts the lanes; the rest must be told here.
        let is_news = |held: &Held| {
            !matches!(
                held.event,
                DriverEvent::Readable { .. }
                    | DriverEvent::Writable { .. }
                    | DriverEvent::DatagramsReadable
                    | DriverEvent::DatagramsWritable
            )
        };
        let is_odd = |lane: &FaultLane| lane.state != State::Open || lane.doom.is_some();
        if self.held.iter().any(is_news) || self.lanes.values().any(is_odd) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.pass_on_kept(u64::MAX);
        self.inner.dismantle()
    }
}

impl ControlLanes for Fault {
    pass_on!(inner: listen listen_anew rest_from_accepting addresses hasten_ack);
    pass_on!(inner: resent tcp_figures);

    fn connect(
        &mut self,
        remote: SocketAddr,
        rail: u8,
        segment_bytes: Option<u16>,
    ) -> io::Result<LaneKey> {
        let key = self.inner.connect(remote, rail, segment_bytes)?;
        let is_refused = self.chance(self.faults.refuse);
        self.lanes
            .insert(key, FaultLane::new(if is_refused { State::Refused } else { State::Open }));
        if is_refused {
            self.inner.close(key, CloseMode::Reset);
        }
        Ok(key)
    }

    fn adopt(&mut self, socket: OwnedFd) -> io::Result<LaneKey> {
        let key = self.inner.adopt(socket)?;
        self.lanes.insert(key, FaultLane::new(State::Open));
        Ok(key)
    }

    fn send(&mut self, key: LaneKey, bytes: &[u8]) -> io::Result<usize> {
        let is_spared = match self.lanes.get_mut(&key) {
            Some(lane) if lane.sends < SPARED_SENDS => {
                lane.sends += 1;
                true
            }
            _ => false,
        };
        self.admit_call(key, is_spared)?;
        let count = if is_spared { bytes.len() } else { self.cut_short(bytes.len()) };
        self.inner.send(key, &bytes[..count])
    }

    fn recv(&mut self, key: LaneKey, into: &mut [u8]) -> io::Result<usize> {
        self.admit_call(key, false)?;
        let count = self.cut_short(into.len());
        let got = self.inner.recv(key, &mut into[..count])?;
        self.garble_bytes(key, &mut into[..got]);
        Ok(got)
    }

    fn watch(&mut self, key: LaneKey, interest: Interest) -> io::Result<()> {
        let event = match interest {
            Interest::Readable => DriverEvent::Readable { lane: key },
            Interest::Writable => DriverEvent::Writable { lane: key },
        };
        let kind = std::mem::discriminant(&event);
        let is_same = |held: &Held| {
            lane_of(&held.event) == Some(key) && std::mem::discriminant(&held.event) == kind
        };
        match self.state(key) {
            // The answer is on its way.
            Some(State::Open | State::Broken { .. }) if self.held.iter().any(is_same) => {}
            // A reset lane is ready for everything: the next call says so.
            Some(State::Broken { .. }) => self.hold(event),
            _ => {
                self.inner.watch(key, interest)?;
                if let Some(lane) = self.lanes.get_mut(&key) {
                    lane.watched[usize::from(interest == Interest::Writable)] = true;
                }
            }
        }
        Ok(())
    }

    fn close(&mut self, key: LaneKey, mode: CloseMode) {
        if let Some(lane) = self.lanes.get_mut(&key) {
            lane.doom = None;
            match lane.state {
                State::Broken { is_gone: true } => {
                    self.lanes.remove(&key);
                    self.hold(DriverEvent::Closed { lane: key });
                    return;
                }
                State::Broken { is_gone: false } => {
                    lane.state = State::Closing;
                    return;
                }
                _ => lane.state = State::Closing,
            }
        }
        self.inner.close(key, mode);
    }

    fn owed(&mut self, lane: LaneKey) -> io::Result<Owed> {
        match self.state(lane) {
            Some(State::Broken { .. }) => Ok(Owed::Nothing),
            _ => self.inner.owed(lane),
        }
    }
}

impl BulkLanes for Fault {
    unsafe fn send_chunk(
        &mut self,
        lane: LaneKey,
        token: u64,
        header: &[u8; CHUNK_HEADER_BYTES],
        source: &Shape,
        offset: usize,
        length: usize,
        mode: SendMode,
    ) {
        if self.admit_chunk(lane) {
            // SAFETY: the caller's promise, passed on; its release is never told before the
            // driver inside tells it.
            unsafe { self.inner.send_chunk(lane, token, header, source, offset, length, mode) };
        } else {
            self.hold(DriverEvent::ChunkSent { lane, result: Err(was_reset()) });
            self.hold(DriverEvent::ChunkReleased { token });
        }
    }

    unsafe fn recv_chunk(&mut self, lane: LaneKey, target: &Shape, offset: usize, length: usize) {
        if self.admit_chunk(lane) {
            if self.faults.garble > 0.0
                && let Some(known) = self.lanes.get_mut(&lane)
            {
                known.target = Some((target.clone(), offset, length));
            }
            // SAFETY: as in `send_chunk`.
            unsafe { self.inner.recv_chunk(lane, target, offset, length) };
        } else {
            self.hold(DriverEvent::ChunkReceived { lane, result: Err(was_reset()) });
        }
    }
}

impl DatagramPort for Fault {
    pass_on!(inner: flush_datagrams datagram_bytes_max frame_state frame_drops);
    pass_on!(inner: neighbours_beside_messages);

    fn open_datagrams(&mut self, socket: UdpSocket) -> io::Result<()> {
        self.inner.open_datagrams(socket)?;
        self.datagrams.open();
        Ok(())
    }

    fn datagram_room(&mut self) -> io::Result<&mut [u8]> {
        self.room()
    }

    fn send_datagram(&mut self, to: SocketAddr, rail: u8, length: usize, handling: Handling) {
        self.mistreat(to, rail, length, handling);
    }

    fn recv_datagram(&mut self) -> io::Result<Option<(SocketAddr, &mut [u8])>> {
        if self.chance(self.faults.again) {
            return Ok(None);
        }
        self.inner.recv_datagram()
    }

    fn watch_datagrams(&mut self) -> io::Result<()> {
        self.watch_inside()
    }

    fn meet(&mut self, neighbour: Neighbour) {
        self.meet_inside(neighbour);
    }

    fn part(&mut self, session: u64) {
        self.part_inside(session);
    }

    fn write_segment(&mut self, session: u64, segment: [&[u8]; 2]) -> bool {
        self.admit_segment(session) && self.inner.write_segment(session, segment)
    }

    fn write_piece(&mut self, session: u64, header: &PieceHeader, bytes: &[u8]) -> bool {
        self.admit_segment(session) && self.inner.write_piece(session, header, bytes)
    }

    fn recv_from_ring(&mut self) -> Option<(u64, RingEntry<'_>)> {
        if self.chance(self.faults.again) {
            return None;
        }
        self.inner.recv_from_ring()
    }

    unsafe fn read_by_cma(
        &mut self,
        session: u64,
        source: CmaSource,
        into: &Shape,
        offset: usize,
        length: usize,
    ) -> io::Result<()> {
        if self.chance(self.faults.unread) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        // SAFETY: the caller's promise, passed on.
        unsafe { self.inner.read_by_cma(session, source, into, offset, length) }
    }
}
