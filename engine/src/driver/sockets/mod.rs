//! The plain non-blocking socket driver: epoll, `sendmsg`, `recvmsg`.
//!
//! Used where io_uring is not available. Sockets are registered with epoll once, edge-triggered;
//! the driver remembers which directions may be ready and forgets it at `EAGAIN`. Chunks make one
//! bounded call per lane and direction in every poll, so that no lane starves the engine.

mod datagrams;
mod epoll;
mod lane;
mod listen;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use self::datagrams::source_of;
use self::epoll::{BATCH, Epoll};
use self::lane::{SocketLane, direction};
use super::datagrams::Datagrams;
use super::rails::DriverRails;
use super::udp::SocketInterest;
use super::{
    DriverConfig, already_outstanding, cancelled, deadline_after, no_such_lane, not_open,
    refuse_send, stopped, table_full, tcp,
};
use crate::driver::traits::{ChunkIo, ConnectionIo, DatagramIo, Driver, Rail, TxFlags};
use crate::driver::traits::{
    CloseMode, DriverCounters, DriverEvent, Interest, LaneKey, OutgoingChunk, SendMode,
};
use crate::driver::traits::{FrameDrops, FrameState, Reach, TcpFigures, Unacked};
use crate::forks::EngineFd;
use crate::memory::Shape;
use crate::proto::table::Table;

/// Flag of the epoll data of listeners; that of lanes is generation and index (below 2^31).
const LISTENER: u64 = 1 << 31;

/// The epoll data of link notifications; distinct from that of lanes and listeners.
const LINKS: u64 = u64::MAX - 3;

/// Consecutive polls that call epoll, after the last one that found an event, or after a request
/// whose completion epoll will report.
const BUSY_POLLS: u32 = 64;

/// Interval of epoll calls after those: the engine then waits for datagrams, which it reads itself,
/// and an epoll call that finds nothing would take half of the time of each poll.
const EPOLL_EVERY: Duration = Duration::from_micros(5);

/// How often that interval doubles, at most, while rings are shared with local peers and the calls
/// find nothing: a call takes as long as a message by a ring. An event ends that.
const EPOLL_DOUBLINGS_MAX: u32 = 2;

const READ: usize = 0;
const WRITE: usize = 1;

/// The driver without io_uring; see the module.
pub(crate) struct SocketsDriver {
    epoll: Epoll,
    options: tcp::LaneOptions,
    lanes: Table<SocketLane, LaneKey>,
    listeners: Vec<EngineFd<TcpListener>>,
    /// Listeners that may have connections, and when to accept (`None`: now).
    accepting: Vec<(usize, Option<Instant>)>,
    /// Accepting is paused until then.
    accepts_after: Option<Instant>,
    rails: DriverRails,
    runnable: VecDeque<LaneKey>,
    datagrams: Datagrams,
    datagrams_armed: [SocketInterest; 3],
    ready: Vec<DriverEvent>,
    /// Polls since [`Self::poll_epoll_soon`], up to [`BUSY_POLLS`].
    idle_polls: u32,
    /// When epoll was last called, in idle mode.
    epoll_polled_at: Instant,
    /// See [`EPOLL_DOUBLINGS_MAX`].
    epoll_doublings: u32,
    counters: DriverCounters,
    is_stopped: bool,
}

impl SocketsDriver {
    shared!(own);

    /// Opens the driver.
    ///
    /// # Errors
    ///
    /// No descriptor is left for epoll.
    pub(crate) fn open(config: &DriverConfig) -> io::Result<Self> {
        Ok(Self {
            epoll: Epoll::new()?,
            options: tcp::LaneOptions::new(config.peer_timeout, config.tcp_congestion),
            lanes: Table::new(config.max_lanes.min(i32::MAX as u32) as usize),
            listeners: Vec::new(),
            accepting: Vec::new(),
            accepts_after: None,
            rails: DriverRails::default(),
            runnable: VecDeque::new(),
            datagrams: Datagrams::new(config),
            datagrams_armed: Default::default(),
            ready: Vec::new(),
            idle_polls: 0,
            epoll_polled_at: Instant::now(),
            epoll_doublings: 0,
            counters: DriverCounters::default(),
            is_stopped: false,
        })
    }

    /// Makes the next polls call epoll.
    fn poll_epoll_soon(&mut self) {
        (self.idle_polls, self.epoll_doublings) = (0, 0);
    }

    /// Whether this poll calls epoll.
    fn is_epoll_due(&mut self) -> bool {
        if self.idle_polls < BUSY_POLLS {
            self.idle_polls += 1;
            return true;
        }
        let now = Instant::now();
        let every = EPOLL_EVERY * (1 << self.epoll_doublings);
        let is_due = now.saturating_duration_since(self.epoll_polled_at) >= every;
        if is_due {
            self.epoll_polled_at = now;
            let may_double = self.datagrams.has_rings();
            let doublings = (self.epoll_doublings + 1).min(EPOLL_DOUBLINGS_MAX);
            self.epoll_doublings = if may_double { doublings } else { 0 };
        }
        is_due
    }

    fn insert(&mut self, socket: OwnedFd, connecting: bool) -> io::Result<LaneKey> {
        let fd = socket.as_raw_fd();
        self.poll_epoll_soon();
        let Ok(key) = self.lanes.insert(SocketLane::new(socket, connecting)) else {
            return Err(table_full(self.lanes.limit()));
        };
        self.counters.syscalls += 1;
        if let Err(error) = self.epoll.add(fd, name_of(key)) {
            self.lanes.remove(key);
            return Err(error);
        }
        Ok(key)
    }

    /// Queues a lane that can make progress, once.
    fn enqueue(&mut self, key: LaneKey) {
        if let Some(lane) = self.lanes.get_mut(key)
            && !lane.queued
            && lane.runnable()
        {
            lane.queued = true;
            self.runnable.push_back(key);
        }
    }

    /// Starts a chunk; the caller reports the error.
    fn begin(
        &mut self,
        key: LaneKey,
        way: usize,
        start: impl FnOnce(&mut lane::Transfer) -> io::Result<()>,
    ) -> io::Result<()> {
        self.poll_epoll_soon();
        let lane = self.lanes.get_mut(key).ok_or_else(no_such_lane)?;
        if lane.connecting {
            return Err(not_open());
        }
        let transfer = &mut lane.transfers[way];
        if transfer.active {
            return Err(already_outstanding());
        }
        start(transfer)?;
        if self.rails.has_unmatched() {
            self.rails.rebind_unmatched(key, &lane.socket, &mut self.counters);
        }
        self.enqueue(key);
        Ok(())
    }

    fn take_epoll_events(&mut self, timeout: Duration) -> io::Result<()> {
        let mut timeout = timeout;
        loop {
            self.counters.syscalls += 1;
            let count = self.epoll.wait(timeout)?;
            let mut is_wanted = false;
            for index in 0..count {
                let (name, mask) = self.epoll.event(index);
                is_wanted |= if let Some(source) = source_of(name) {
                    self.datagrams_event(source, mask)?;
                    true
                } else if name == LINKS {
                    self.handle_link_events();
                    true
                } else if name & LISTENER != 0 {
                    let listener = (name ^ LISTENER) as usize;
                    if !self.accepting.iter().any(|&(waiting, _)| waiting == listener) {
                        self.accepting.push((listener, None));
                    }
                    true
                } else {
                    self.lane_event(name, mask)
                };
            }
            if is_wanted {
                self.poll_epoll_soon();
            }
            if count < BATCH {
                return Ok(());
            }
            timeout = Duration::ZERO;
        }
    }

    /// Handles an event of a lane. Returns whether a watch or a chunk waits for it: a control lane
    /// that is polled is read without its events.
    fn lane_event(&mut self, name: u64, mask: u32) -> bool {
        let key = LaneKey { index: name as u32, generation: (name >> 32) as u32 };
        let Some(lane) = self.lanes.get_mut(key) else {
            self.counters.stale_completions += 1;
            return false;
        };
        let broken = mask & (libc::EPOLLERR | libc::EPOLLHUP) as u32 != 0;
        let readable = mask & (libc::EPOLLIN | libc::EPOLLRDHUP) as u32 != 0;
        let writable = mask & libc::EPOLLOUT as u32 != 0;
        if lane.connecting {
            // An unconnected socket reports HUP until `connect` has begun; only a completed attempt
            // is writable or has an error.
            if writable || mask & libc::EPOLLERR as u32 != 0 {
                self.counters.syscalls += 1;
                let outcome = tcp::connect_error(&lane.socket);
                lane.ready = [readable || broken, writable || broken];
                self.connect_completed(key, outcome);
            }
            return true;
        }
        lane.ready[READ] |= readable || broken;
        lane.ready[WRITE] |= writable || broken;
        let is_wanted = lane.runnable();
        self.enqueue(key);
        is_wanted
    }

    fn connect_completed(&mut self, key: LaneKey, error: Option<io::Error>) {
        if let Some(error) = error {
            self.ready.push(DriverEvent::ConnectFailed { lane: key, error });
            self.close(key, CloseMode::Reset);
        } else if let Some(lane) = self.lanes.get_mut(key) {
            lane.connecting = false;
            self.counters.syscalls += tcp::established(&lane.socket, &self.options);
            self.ready.push(DriverEvent::Connected { lane: key });
        }
    }

    /// Serves each lane that can make progress: one call per direction.
    fn serve_lanes(&mut self) {
        for _ in 0..self.runnable.len() {
            let Some(key) = self.runnable.pop_front() else { return };
            let Some(lane) = self.lanes.get_mut(key) else { continue };
            lane.queued = false;
            for way in [READ, WRITE] {
                if !lane.ready[way] {
                    continue;
                }
                if lane.watched[way] {
                    lane.watched[way] = false;
                    self.ready.push(match way {
                        READ => DriverEvent::Readable { lane: key },
                        _ => DriverEvent::Writable { lane: key },
                    });
                }
                if lane.transfers[way].active {
                    self.counters.syscalls += 1;
                    if let Some(result) = lane.step(way) {
                        report(&mut self.ready, key, lane, way, result);
                    }
                }
            }
            self.enqueue(key);
        }
    }

    fn accept_waiting(&mut self) {
        if self.accepting.is_empty() {
            return;
        }
        if self.accepts_after.is_some_and(|until| Instant::now() < until) {
            return;
        }
        self.accepts_after = None;
        let mut waiting = std::mem::take(&mut self.accepting);
        waiting.retain_mut(|(listener, pause)| {
            if pause.is_some_and(|until| Instant::now() < until) {
                return true;
            }
            *pause = self.accept_some(*listener);
            pause.is_some()
        });
        self.accepting = waiting;
    }

    /// Watches link notifications.
    fn watch_links(&mut self, fd: RawFd) -> io::Result<()> {
        self.counters.syscalls += 1;
        self.epoll.arm(fd, LINKS, libc::EPOLLIN)
    }

    /// Accepts some pending connections; returns when to continue if there may be more.
    fn accept_some(&mut self, listener: usize) -> Option<Instant> {
        let listeners = std::mem::take(&mut self.listeners);
        let accepted = tcp::accept_some(&listeners[listener], |socket, remote| {
            self.accept_connection(socket, remote)
        });
        self.listeners = listeners;
        self.counters.syscalls += accepted.syscalls;
        accepted.rest.map(|rest| Instant::now() + rest)
    }

    fn serve(&mut self, events: &mut Vec<DriverEvent>) {
        if self.rails.links_retry_in() == Some(Duration::ZERO) {
            self.handle_link_events();
        }
        self.accept_waiting();
        self.serve_lanes();
        events.append(&mut self.ready);
    }
}

/// Reports the end of a chunk.
fn report(
    events: &mut Vec<DriverEvent>,
    key: LaneKey,
    lane: &mut SocketLane,
    way: usize,
    result: io::Result<()>,
) {
    let transfer = &mut lane.transfers[way];
    transfer.active = false;
    let token = transfer.token;
    if way == READ {
        let result = result.map(|()| *transfer.header);
        events.push(DriverEvent::ChunkReceived { lane: key, result });
    } else {
        events.push(DriverEvent::ChunkSent { lane: key, result });
        events.push(DriverEvent::ChunkReleased { token });
    }
}

fn name_of(key: LaneKey) -> u64 {
    u64::from(key.generation) << 32 | u64::from(key.index)
}

impl Driver for SocketsDriver {
    shared!(driver);

    fn name(&self) -> &'static str {
        "sockets"
    }

    fn polls_for_free(&self) -> bool {
        false
    }

    fn poll(&mut self, events: &mut Vec<DriverEvent>) -> io::Result<()> {
        if self.is_stopped {
            return Err(stopped());
        }
        self.serve_datagrams(false)?;
        if self.is_epoll_due() {
            self.take_epoll_events(Duration::ZERO)?;
        }
        self.serve(events);
        Ok(())
    }

    fn park(&mut self, timeout: Duration, events: &mut Vec<DriverEvent>) -> io::Result<()> {
        let before = events.len();
        let deadline = deadline_after(timeout);
        loop {
            let left = self.arm(deadline.saturating_duration_since(Instant::now()))?;
            self.take_epoll_events(left)?;
            self.serve(events);
            if events.len() > before || Instant::now() >= deadline {
                return Ok(());
            }
        }
    }

    fn wake_fd(&self) -> io::Result<OwnedFd> {
        self.epoll.copy()
    }

    fn begin_detached(&mut self) -> bool {
        self.datagrams.begin_detached();
        true
    }

    fn end_detached(&mut self) {
        self.datagrams.end_detached();
    }

    fn arm(&mut self, timeout: Duration) -> io::Result<Duration> {
        if self.is_stopped {
            return Err(stopped());
        }
        self.serve_datagrams(true)?;
        // After a sleep, look for the event that ended it.
        self.poll_epoll_soon();
        let mut left = timeout;
        if !self.ready.is_empty() || !self.runnable.is_empty() {
            left = Duration::ZERO;
        }
        for &(_, pause) in &self.accepting {
            let until = pause
                .max(self.accepts_after)
                .map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()));
            left = left.min(until);
        }
        Ok(self.rails.links_retry_in().map_or(left, |unacked| left.min(unacked)))
    }

    fn shutdown(&mut self, _limit: Duration) -> bool {
        self.is_stopped = true;
        self.drop_datagrams();
        self.listeners.clear();
        for index in 0..self.lanes.slots() {
            if let Some(key) = self.lanes.id_at(index) {
                self.close(key, CloseMode::Graceful);
            }
        }
        self.ready.clear();
        true
    }

    fn dismantle(&mut self) -> io::Result<Vec<(LaneKey, OwnedFd)>> {
        if self.is_stopped {
            return Err(stopped());
        }
        let busy = |lane: &SocketLane| lane.connecting || lane.transfers.iter().any(|t| t.active);
        if !self.ready.is_empty() || self.lanes.iter().any(|(_, lane)| busy(lane)) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.is_stopped = true;
        self.drop_datagrams();
        self.listeners.clear();
        let mut sockets = Vec::with_capacity(self.lanes.len());
        for index in 0..self.lanes.slots() {
            let Some(key) = self.lanes.id_at(index) else { continue };
            if let Some(lane) = self.lanes.remove(key) {
                self.counters.syscalls += 1;
                self.epoll.remove(lane.socket.as_raw_fd())?;
                sockets.push((key, lane.socket.into_inner()));
            }
        }
        Ok(sockets)
    }
}

impl ConnectionIo for SocketsDriver {
    shared!(control_lanes);

    fn listen(&mut self, listener: TcpListener) -> io::Result<()> {
        if self.is_stopped {
            return Err(stopped());
        }
        self.rails.note_listener(&listener);
        let index = self.listeners.len();
        self.counters.syscalls += 1;
        self.epoll.add(listener.as_raw_fd(), LISTENER | index as u64)?;
        self.listeners.push(EngineFd::new(listener));
        Ok(())
    }

    fn rebind_listener(&mut self, rail: u8, everywhere: &TcpListener) -> Option<TcpListener> {
        self.replace_listener(rail, everywhere)
    }

    fn pause_accept(&mut self, pause: Duration) {
        self.accepts_after = self.accepts_after.max(Some(Instant::now() + pause));
    }

    fn connect(
        &mut self,
        remote: SocketAddr,
        rail: u8,
        segment_bytes: Option<u16>,
    ) -> io::Result<LaneKey> {
        if self.is_stopped {
            return Err(stopped());
        }
        let binding = self.rails.binding(rail, remote, &mut self.counters)?;
        let opening = tcp::open(remote, binding, segment_bytes, &self.options)?;
        self.counters.syscalls += opening.syscalls;
        let key = self.insert(opening.socket, true)?;
        match opening.outcome {
            Ok(true) => self.connect_completed(key, None),
            Ok(false) => {}
            Err(error) => self.connect_completed(key, Some(error)),
        }
        Ok(key)
    }

    fn send(&mut self, lane: LaneKey, bytes: &[u8]) -> io::Result<usize> {
        let lane = self.lanes.get_mut(lane).ok_or_else(no_such_lane)?;
        self.counters.syscalls += 1;
        let sent = tcp::send(lane.socket.as_raw_fd(), bytes);
        lane.note_sent(bytes.len(), &sent);
        sent
    }

    fn send_both(&mut self, lane: LaneKey, head: &[u8], body: &[u8]) -> io::Result<usize> {
        let lane = self.lanes.get_mut(lane).ok_or_else(no_such_lane)?;
        self.counters.syscalls += 1;
        let sent = tcp::send_both(lane.socket.as_raw_fd(), head, body);
        lane.note_sent(head.len() + body.len(), &sent);
        sent
    }

    fn recv(&mut self, lane: LaneKey, into: &mut [u8]) -> io::Result<usize> {
        let lane = self.lanes.get_mut(lane).ok_or_else(no_such_lane)?;
        self.counters.syscalls += 1;
        let received = tcp::receive(lane.socket.as_raw_fd(), into);
        if received.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            lane.ready[READ] = false;
        }
        received
    }

    fn watch(&mut self, key: LaneKey, interest: Interest) -> io::Result<()> {
        let lane = self.lanes.get_mut(key).ok_or_else(no_such_lane)?;
        if lane.connecting {
            return Err(not_open());
        }
        lane.watched[direction(interest)] = true;
        self.poll_epoll_soon();
        self.enqueue(key);
        Ok(())
    }

    fn close(&mut self, key: LaneKey, mode: CloseMode) {
        let Some(mut lane) = self.lanes.remove(key) else { return };
        self.rails.lane_closed(key);
        for way in [READ, WRITE] {
            if lane.transfers[way].active {
                report(&mut self.ready, key, &mut lane, way, Err(cancelled()));
            }
        }
        self.counters.syscalls += 1 + match mode {
            CloseMode::Graceful => tcp::finish(&lane.socket),
            CloseMode::Reset => tcp::abort(&lane.socket),
        };
        drop(lane);
        self.ready.push(DriverEvent::Closed { lane: key });
    }
}

impl ChunkIo for SocketsDriver {
    unsafe fn send_chunk(&mut self, chunk: &OutgoingChunk<'_>) {
        let OutgoingChunk { lane, token, header, source, offset, length, mode } = *chunk;
        let started = self.begin(lane, WRITE, |transfer| {
            transfer.begin(token, source, offset, length)?;
            *transfer.header = *header;
            transfer.flags = if mode == SendMode::CopyMore { libc::MSG_MORE } else { 0 };
            Ok(())
        });
        if let Err(error) = started {
            refuse_send(&mut self.ready, lane, token, error);
        }
    }

    unsafe fn recv_chunk(&mut self, lane: LaneKey, target: &Shape, offset: usize, length: usize) {
        let started = self.begin(lane, READ, |transfer| transfer.begin(0, target, offset, length));
        if let Err(error) = started {
            self.ready.push(DriverEvent::ChunkReceived { lane, result: Err(error) });
        }
    }
}

impl DatagramIo for SocketsDriver {
    shared!(datagram_port);
}
