//! Fault injection: random faults of kernels, networks and peers, reproducible by seed.
//!
//! - Control connections move fewer bytes than possible, or none (`EAGAIN`). The first two sends of
//!   a lane are spared: a fresh socket takes the handshake whole.
//! - Events are delayed for some polls, within the ordering of the contract: events of a lane stay
//!   in order, a release follows its `ChunkSent`, and `Closed` is the last.
//! - Lanes are reset: the inner lane is closed, which cancels its chunks, and the caller sees a
//!   reset by the peer until it closes the lane.
//! - A bit of received data is flipped: in the memory of a chunk, before it is reported, or in the
//!   bytes of a control connection.
//! - Connection attempts fail; the peer may see a connection that is reset at once.
//! - Sent datagrams are lost, duplicated, reordered, corrupted and truncated.
//! - Rings between local peers are full, or end and are recreated; cross-memory reads fail.
//!
//! Memory is released only after the inner driver reported so: events are delayed, never early.

mod datagrams;
mod lane;
mod local_peers;
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
use self::local_peers::LocalPeers;
use self::order::{lane_of, must_follow};
use super::super::deadline_after;
use crate::driver::traits::{ChunkIo, ConnectionIo, DatagramIo, Driver, Rail, TxFlags};
use crate::driver::traits::{
    CloseMode, DriverCounters, DriverEvent, Interest, LaneKey, OutgoingChunk,
};
use crate::driver::traits::{
    CmaLocation, LocalPeer, PieceHeader, RingEntry, RingName, RingSegment,
};
use crate::driver::traits::{FrameDrops, FrameState, Reach, TcpFigures, Unacked};
use crate::memory::Shape;
use crate::settings::Faults;

/// Polls that an event is delayed, or until a lane is reset, at most.
const TURNS_MAX: u64 = 16;

/// Sends at the start of a lane that are neither short nor refused.
const SPARED_SENDS: u8 = 2;

/// Receives at the start of a lane that are not corrupted: its handshake.
const SPARED_RECEIVES: u8 = 4;

/// Sleep while delayed events are pending.
const SLICE: Duration = Duration::from_micros(200);

/// An event that was not reported yet.
#[derive(Debug)]
struct DelayedEvent {
    event: DriverEvent,
    /// The poll from which on it may be reported.
    due: u64,
}

/// A driver with injected faults; see the module.
pub(super) struct Fault {
    inner: Box<dyn Driver + Send>,
    faults: Faults,
    random: StdRng,
    lanes: HashMap<LaneKey, FaultLane>,
    delayed_events: Vec<DelayedEvent>,
    datagrams: Datagrams,
    local_peers: LocalPeers,
    /// Polls so far, including those of [`Driver::park`].
    turn: u64,
    /// Empty between calls; keeps its allocation.
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
            delayed_events: Vec::new(),
            datagrams: Datagrams::default(),
            local_peers: LocalPeers::default(),
            turn: 0,
            fresh: Vec::new(),
        }
    }

    fn chance(&mut self, rate: f64) -> bool {
        rate > 0.0 && self.random.random_bool(rate.min(1.0))
    }

    /// A poll in the near future.
    fn soon(&mut self) -> u64 {
        self.turn + self.random.random_range(1..=TURNS_MAX)
    }

    /// Queues an event to be reported, possibly later.
    fn delay_event(&mut self, event: DriverEvent) {
        let due = if self.chance(self.faults.late) { self.soon() } else { self.turn };
        self.delayed_events.push(DelayedEvent { event, due });
    }

    fn state(&self, lane: LaneKey) -> Option<State> {
        self.lanes.get(&lane).map(|lane| lane.state)
    }

    /// Makes a lane look reset from now on.
    fn reset(&mut self, key: LaneKey) {
        let Some(lane) = self.lanes.get_mut(&key) else { return };
        if lane.state != State::Open {
            return;
        }
        lane.state = State::Broken { is_gone: false };
        let watched = std::mem::take(&mut lane.watched);
        self.inner.close(key, CloseMode::Reset);
        if watched[0] {
            self.delay_event(DriverEvent::Readable { lane: key });
        }
        if watched[1] {
            self.delay_event(DriverEvent::Writable { lane: key });
        }
    }

    /// Queues the events of the inner driver.
    fn collect_inner_events(&mut self) {
        let mut fresh = std::mem::take(&mut self.fresh);
        for event in fresh.drain(..) {
            if let Some(event) = self.filter_event(event) {
                self.delay_event(event);
            }
        }
        self.fresh = fresh;
    }

    /// Corrupts a received chunk that was not reported yet.
    fn corrupt_chunk(&mut self, key: LaneKey) {
        let target = self.lanes.get_mut(&key).and_then(|lane| lane.target.take());
        let Some((target, offset, length)) = target else { return };
        if self.chance(self.faults.garble) {
            let at = offset + self.random.random_range(0..length);
            let bit = self.random.random_range(0..8);
            for span in target.spans(at, 1) {
                // SAFETY: the caller of `recv_chunk` keeps the memory, and leaves it alone, until
                // the chunk is reported; the inner driver has finished with it.
                unsafe { *span.ptr ^= 1 << bit };
            }
        }
    }

    /// Corrupts received bytes of a control connection.
    fn corrupt_bytes(&mut self, key: LaneKey, bytes: &mut [u8]) {
        if let Some(lane) = self.lanes.get_mut(&key).filter(|lane| lane.receives < SPARED_RECEIVES)
        {
            lane.receives += 1;
        } else if !bytes.is_empty() && self.chance(self.faults.garble_control) {
            let at = self.random.random_range(0..bytes.len());
            bytes[at] ^= 1 << self.random.random_range(0..8);
        }
    }

    /// Updates the lane's state by an event; `None` if the caller must not see it.
    fn filter_event(&mut self, event: DriverEvent) -> Option<DriverEvent> {
        if let DriverEvent::ChunkReceived { lane, result: Ok(_) } = event {
            self.corrupt_chunk(lane);
        }
        if let DriverEvent::Accepted { lane, .. } = event {
            self.lanes.insert(lane, FaultLane::new(State::Open));
        }
        if matches!(event, DriverEvent::DatagramsReadable | DriverEvent::DatagramsWritable) {
            return self.datagrams.answers_request(&event).then_some(event);
        }
        if let DriverEvent::RingChanged { session, is_up, .. } = event {
            self.local_peers.changed(session, is_up);
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
            // The chunk was cancelled by this driver: report a reset by the peer.
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
                    self.delay_event(DriverEvent::ConnectFailed { lane: key, error });
                }
                Some(event)
            }
            event => Some(event),
        }
    }

    /// Reports due events that need not follow ones that are not due.
    fn deliver_due(&mut self, events: &mut Vec<DriverEvent>) {
        if self.delayed_events.iter().all(|held| held.due <= self.turn) {
            events.extend(self.delayed_events.drain(..).map(|held| held.event));
            return;
        }
        let mut kept: Vec<DelayedEvent> = Vec::new();
        for held in std::mem::take(&mut self.delayed_events) {
            let is_free = !kept.iter().any(|kept| must_follow(&held.event, &kept.event));
            if held.due <= self.turn && is_free {
                events.push(held.event);
            } else {
                kept.push(held);
            }
        }
        self.delayed_events = kept;
    }

    /// Applies due resets, before the inner driver is polled.
    fn begin_turn(&mut self) {
        self.turn += 1;
        let turn = self.turn;
        let is_due = |lane: &FaultLane| lane.reset_at.is_some_and(|reset_at| reset_at <= turn);
        // In the order of the keys, so that a seed is reproducible.
        let mut due: Vec<LaneKey> =
            self.lanes.iter().filter(|(_, lane)| is_due(lane)).map(|(&key, _)| key).collect();
        due.sort_unstable_by_key(|key| (key.index, key.generation));
        for key in due {
            if let Some(lane) = self.lanes.get_mut(&key) {
                lane.reset_at = None;
            }
            self.reset(key);
        }
        self.forward_delayed(turn);
        self.reconnect_due(turn);
    }

    /// Whether a later poll has work although the inner driver has no events.
    fn has_pending(&self) -> bool {
        !self.delayed_events.is_empty()
            || self.datagrams.has_pending()
            || self.local_peers.has_pending()
            || self.lanes.values().any(|lane| lane.reset_at.is_some())
    }

    /// Decides the faults of a lane that moves a chunk. `false`: it is reset already.
    fn admit_chunk(&mut self, key: LaneKey) -> bool {
        match self.state(key) {
            Some(State::Broken { .. }) => false,
            Some(State::Open) => {
                if self.chance(self.faults.reset) {
                    let reset_at = self.soon();
                    if let Some(lane) = self.lanes.get_mut(&key) {
                        lane.reset_at.get_or_insert(reset_at);
                    }
                }
                true
            }
            _ => true,
        }
    }

    /// Faults of a direct call, before the inner driver is called.
    fn admit_call(&mut self, key: LaneKey, is_spared: bool) -> io::Result<()> {
        match self.state(key) {
            Some(State::Broken { .. }) => return Err(was_reset()),
            Some(State::Open) => {}
            // The inner driver returns the error.
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
    delegate!(inner: name polls_for_free set_rails reach nic_of counters);
    delegate!(inner: begin_detached end_detached);
    delegate!(inner: wake_fd);

    fn poll(&mut self, events: &mut Vec<DriverEvent>) -> io::Result<()> {
        self.begin_turn();
        self.inner.poll(&mut self.fresh)?;
        self.collect_inner_events();
        self.deliver_due(events);
        Ok(())
    }

    fn park(&mut self, timeout: Duration, events: &mut Vec<DriverEvent>) -> io::Result<()> {
        let before = events.len();
        let deadline = deadline_after(timeout);
        loop {
            self.begin_turn();
            let mut left = deadline.saturating_duration_since(Instant::now());
            if self.has_pending() {
                left = left.min(SLICE);
            }
            self.inner.park(left, &mut self.fresh)?;
            self.collect_inner_events();
            self.deliver_due(events);
            if events.len() > before || Instant::now() >= deadline {
                return Ok(());
            }
        }
    }

    fn arm(&mut self, timeout: Duration) -> io::Result<Duration> {
        let left = self.inner.arm(timeout)?;
        Ok(if self.has_pending() { left.min(SLICE) } else { left })
    }

    fn shutdown(&mut self, limit: Duration) -> bool {
        self.forward_delayed(u64::MAX);
        self.delayed_events.clear();
        self.lanes.clear();
        self.inner.shutdown(limit)
    }

    fn dismantle(&mut self) -> io::Result<Vec<(LaneKey, OwnedFd)>> {
        // The driver that adopts the lanes finds readiness again; the rest must be reported here.
        let must_report = |held: &DelayedEvent| {
            !matches!(
                held.event,
                DriverEvent::Readable { .. }
                    | DriverEvent::Writable { .. }
                    | DriverEvent::DatagramsReadable
                    | DriverEvent::DatagramsWritable
            )
        };
        let is_odd = |lane: &FaultLane| lane.state != State::Open || lane.reset_at.is_some();
        if self.delayed_events.iter().any(must_report) || self.lanes.values().any(is_odd) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.forward_delayed(u64::MAX);
        self.inner.dismantle()
    }
}

impl ConnectionIo for Fault {
    delegate!(inner: listen rebind_listener pause_accept addresses quickack);
    delegate!(inner: tcp_figures);

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
        self.corrupt_bytes(key, &mut into[..got]);
        Ok(got)
    }

    fn watch(&mut self, key: LaneKey, interest: Interest) -> io::Result<()> {
        let event = match interest {
            Interest::Readable => DriverEvent::Readable { lane: key },
            Interest::Writable => DriverEvent::Writable { lane: key },
        };
        let kind = std::mem::discriminant(&event);
        let is_same = |held: &DelayedEvent| {
            lane_of(&held.event) == Some(key) && std::mem::discriminant(&held.event) == kind
        };
        match self.state(key) {
            // The event is already queued.
            Some(State::Open | State::Broken { .. }) if self.delayed_events.iter().any(is_same) => {
            }
            // A reset lane is ready for everything: the next call returns the error.
            Some(State::Broken { .. }) => self.delay_event(event),
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
            lane.reset_at = None;
            match lane.state {
                State::Broken { is_gone: true } => {
                    self.lanes.remove(&key);
                    self.delay_event(DriverEvent::Closed { lane: key });
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

    fn unacked(&mut self, lane: LaneKey) -> io::Result<Unacked> {
        match self.state(lane) {
            Some(State::Broken { .. }) => Ok(Unacked::Nothing),
            _ => self.inner.unacked(lane),
        }
    }
}

impl ChunkIo for Fault {
    unsafe fn send_chunk(&mut self, chunk: &OutgoingChunk<'_>) {
        let OutgoingChunk { lane, token, .. } = *chunk;
        if self.admit_chunk(lane) {
            // SAFETY: the caller's contract, passed on; its release is never reported before
            // the inner driver reports it.
            unsafe { self.inner.send_chunk(chunk) };
        } else {
            self.delay_event(DriverEvent::ChunkSent { lane, result: Err(was_reset()) });
            self.delay_event(DriverEvent::ChunkReleased { token });
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
            self.delay_event(DriverEvent::ChunkReceived { lane, result: Err(was_reset()) });
        }
    }
}

impl DatagramIo for Fault {
    delegate!(inner: flush_datagrams datagram_bytes_max frame_state frame_drops);
    delegate!(inner: local_peers_except_messages);

    fn open_datagrams(&mut self, socket: UdpSocket) -> io::Result<()> {
        self.inner.open_datagrams(socket)?;
        self.datagrams.open();
        Ok(())
    }

    fn datagram_room(&mut self) -> io::Result<&mut [u8]> {
        self.room()
    }

    fn send_datagram(&mut self, to: SocketAddr, rail: u8, length: usize, tx_flags: TxFlags) {
        self.apply_datagram_faults(to, rail, length, tx_flags);
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

    fn connect_peer(&mut self, peer: LocalPeer) {
        self.connect_inner(peer);
    }

    fn disconnect_peer(&mut self, session: u64) {
        self.disconnect_inner(session);
    }

    fn write_segment(&mut self, ring: RingName, segment: RingSegment<'_>) -> bool {
        self.admit_segment(ring.session) && self.inner.write_segment(ring, segment)
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
        source: CmaLocation,
        into: &Shape,
        offset: usize,
        length: usize,
    ) -> io::Result<()> {
        if self.chance(self.faults.unread) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        // SAFETY: the caller's contract, passed on.
        unsafe { self.inner.read_by_cma(session, source, into, offset, length) }
    }
}
