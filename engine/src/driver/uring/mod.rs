//! The io_uring driver.
//!
//! Control connections are read and written by direct calls (they measure faster for the most
//! active socket); the ring watches the others, moves the chunks of bulk lanes, and makes
//! [`Driver::poll`] free of system calls while nothing happens: with `TASKRUN_FLAG` the kernel
//! signals work in shared memory.
//!
//! A request's slot is freed by a completion without `F_MORE` and never before: even an error can
//! be followed by a notification. Memory that a request points to is boxed in its lane, and a lane
//! exists until its last request has completed.

mod chunks;
mod connect;
mod datagrams;
mod detached_mode;
mod features;
mod lane;
mod listen;
mod ring;
mod slots;

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use io_uring::{IoUring, cqueue, opcode, squeue, types};

use self::chunks::SentChunks;
use self::detached_mode::DetachedMode;
use self::features::Name;
pub(crate) use self::features::UringFeatures;
use self::lane::UringLane;
use self::listen::RingListener;
use self::slots::{RequestKind, RequestSlots};
use super::datagrams::Datagrams;
use super::rails::DriverRails;
use super::udp::SocketInterest;
use super::{
    ArenaRange, DriverConfig, already_outstanding, deadline_after, no_such_lane, not_open,
    refuse_send, stopped, table_full, tcp,
};
use crate::driver::traits::{ChunkIo, ConnectionIo, DatagramIo, Driver, Rail, TxFlags};
use crate::driver::traits::{
    CloseMode, DriverCounters, DriverEvent, Interest, LaneKey, OutgoingChunk,
};
use crate::driver::traits::{FrameDrops, FrameState, Reach, TcpFigures, Unacked};
use crate::forks::EngineFd;
use crate::memory::Shape;
use crate::proto::table::Table;

/// Size of the table of registered files; further lanes use ordinary descriptors.
const FILES: u32 = 4096;

/// See the module.
pub(crate) struct UringDriver {
    // Dropped first: closing the ring ends requests that shutdown could not reap.
    ring: EngineFd<IoUring>,
    features: UringFeatures,
    options: tcp::LaneOptions,
    arena: Option<ArenaRange>,
    /// Whether the arena is registered: decided at the first zero-copy send from it.
    is_registered: Option<bool>,
    can_zero_copy: bool,
    has_files: bool,
    lanes: Table<UringLane, LaneKey>,
    listeners: Vec<RingListener>,
    /// Some listener is paused.
    has_paused: bool,
    rails: DriverRails,
    datagrams: Datagrams,
    datagrams_armed: [SocketInterest; 3],
    slots: RequestSlots,
    chunks: SentChunks,
    staged: u32,
    ready: Vec<DriverEvent>,
    completions: Vec<(u64, i32, u32)>,
    detached: DetachedMode,
    counters: DriverCounters,
    is_stopped: bool,
    /// Signalled by the ring, once a sleep by it was prepared.
    wake_signal: OnceLock<EngineFd>,
}

impl UringDriver {
    shared!(own);

    /// Opens a ring for the calling thread.
    ///
    /// # Safety
    ///
    /// `arena` stays mapped until the driver is dropped.
    pub(crate) unsafe fn open(
        config: &DriverConfig,
        features: UringFeatures,
        arena: Option<ArenaRange>,
    ) -> io::Result<Self> {
        let lanes = config.max_lanes;
        let ring = features.build(config.ring_entries, (config.ring_entries * 4).max(1024))?;
        let has_files = features.has(Name::RegisteredFiles)
            && ring.submitter().register_files_sparse(FILES.min(lanes)).is_ok();
        Ok(Self {
            ring: EngineFd::new(ring),
            options: tcp::LaneOptions::new(config.peer_timeout, config.tcp_congestion),
            arena: arena
                .filter(|arena| features.has(Name::RegisteredBuffers) && !arena.may_be_huge),
            is_registered: None,
            can_zero_copy: features.has(Name::SendZc),
            features,
            has_files,
            lanes: Table::new(lanes as usize),
            listeners: Vec::new(),
            has_paused: false,
            rails: DriverRails::default(),
            datagrams: Datagrams::new(config),
            datagrams_armed: Default::default(),
            slots: RequestSlots::default(),
            chunks: SentChunks::default(),
            staged: 0,
            ready: Vec::new(),
            completions: Vec::new(),
            detached: DetachedMode::default(),
            counters: DriverCounters::default(),
            is_stopped: false,
            wake_signal: OnceLock::new(),
        })
    }

    // ---- Completions ----

    fn complete(&mut self, user_data: u64, result: i32, flags: u32) {
        let Some(kind) = self.slots.get(user_data) else {
            self.counters.stale_completions += 1;
            return;
        };
        let has_more = cqueue::more(flags);
        if !has_more {
            self.slots.remove(user_data);
        }
        match kind {
            RequestKind::Cancel => {}
            RequestKind::Listen(listener) => self.listener_ready(listener, result, has_more),
            RequestKind::Connect(lane) => self.connect_completed(lane, result),
            RequestKind::Links => self.links_ready(result),
            RequestKind::Watch(lane, way) => {
                let Some(found) = self.retire(lane) else { return };
                found.watched[way] = false;
                if found.closing.is_none() && result != -libc::ECANCELED {
                    self.ready.push(match way {
                        0 => DriverEvent::Readable { lane },
                        _ => DriverEvent::Writable { lane },
                    });
                }
                self.finish_close(lane);
            }
            RequestKind::Datagrams { source, is_writable } => {
                self.datagrams_ready(source, is_writable, result);
            }
            RequestKind::Receive(lane) => self.received(lane, result),
            RequestKind::Send { lane, chunk, .. } if cqueue::notif(flags) => {
                // The upper bit of a notification's result reports that the kernel copied.
                self.released(lane, chunk, result < 0);
            }
            RequestKind::Send { lane, chunk, zero_copy } => {
                if has_more {
                    self.slots.await_notification(user_data);
                }
                self.sent(lane, chunk, zero_copy, has_more, result);
            }
        }
    }

    /// A request of a lane has completed.
    fn retire(&mut self, lane: LaneKey) -> Option<&mut UringLane> {
        let found = self.lanes.get_mut(lane)?;
        found.requests -= 1;
        Some(found)
    }

    // ---- Lanes ----

    fn insert(&mut self, socket: OwnedFd, is_connecting: bool) -> io::Result<LaneKey> {
        let fd = socket.as_raw_fd();
        let Ok(key) = self.lanes.insert(UringLane::new(socket, is_connecting)) else {
            return Err(table_full(self.lanes.limit()));
        };
        self.unregister_deferred();
        if self.has_files && key.index < FILES && !self.detached.is_on() {
            self.counters.syscalls += 1;
            let updated = self.ring.submitter().register_files_update(key.index, &[fd]);
            if updated.is_ok()
                && let Some(lane) = self.lanes.get_mut(key)
            {
                lane.fixed = Some(key.index);
            }
        }
        Ok(key)
    }

    fn poll_entry(&self, key: LaneKey, events: i16) -> Option<squeue::Entry> {
        let lane = self.lanes.get(key)?;
        let events = events as u32;
        Some(match lane.fixed {
            Some(index) => opcode::PollAdd::new(types::Fixed(index), events).build(),
            None => opcode::PollAdd::new(types::Fd(lane.socket.as_raw_fd()), events).build(),
        })
    }

    fn request_poll(&mut self, key: LaneKey, kind: RequestKind, events: i16) -> io::Result<()> {
        let entry = self.poll_entry(key, events).ok_or_else(no_such_lane)?;
        // SAFETY: a poll request points to nothing.
        unsafe { self.request(kind, entry)? };
        if let Some(lane) = self.lanes.get_mut(key) {
            lane.requests += 1;
        }
        Ok(())
    }

    fn cancel(&mut self, targets: Vec<u64>) {
        for target in targets {
            let entry = opcode::AsyncCancel::new(target).build();
            // SAFETY: a cancel request points to nothing.
            if let Err(error) = unsafe { self.request(RequestKind::Cancel, entry) } {
                tracing::error!("cannot cancel a request: {error}");
            }
        }
    }

    /// Ends the stream of a closing lane once no request uses its socket, and reports `Closed` once
    /// its last chunk is released.
    ///
    /// The descriptor stays open until then: a peer that does not acknowledge can delay
    /// notifications for minutes, and only a reset ends that sooner.
    fn finish_close(&mut self, key: LaneKey) {
        let Some(lane) = self.lanes.get_mut(key) else { return };
        let Some(mode) = lane.closing else { return };
        if lane.requests > 0 {
            return;
        }
        let is_released = lane.unreleased == 0;
        // Data received since would turn the FIN into a reset.
        let is_late = is_released && mode == CloseMode::Graceful;
        if lane.ended != Some(mode) || is_late {
            self.counters.syscalls += lane.end_stream(mode);
        }
        if is_released {
            self.forget(key);
            self.ready.push(DriverEvent::Closed { lane: key });
        }
    }

    /// Closes the descriptor of a lane and frees its key.
    fn forget(&mut self, key: LaneKey) {
        let Some(lane) = self.lanes.remove(key) else { return };
        self.counters.syscalls += 1;
        if let Some(index) = lane.fixed {
            self.unregister(index);
        }
    }
}

impl Driver for UringDriver {
    shared!(driver);

    fn name(&self) -> &'static str {
        "uring"
    }

    fn polls_for_free(&self) -> bool {
        self.features.announces() || self.features.completes_unasked()
    }

    fn poll(&mut self, events: &mut Vec<DriverEvent>) -> io::Result<()> {
        if self.is_stopped {
            return Err(stopped());
        }
        self.resume_listeners();
        self.retry_link_request();
        self.serve_datagrams(false)?;
        if self.detached.is_on() {
            self.poll_detached()?;
        } else {
            self.unregister_deferred();
            self.reap()?;
        }
        if !self.ready.is_empty() {
            events.append(&mut self.ready);
        }
        Ok(())
    }

    fn park(&mut self, timeout: Duration, events: &mut Vec<DriverEvent>) -> io::Result<()> {
        if self.is_stopped {
            return Err(stopped());
        }
        let deadline = deadline_after(timeout);
        loop {
            self.collect()?;
            let left = deadline.saturating_duration_since(Instant::now());
            if !self.ready.is_empty() || left.is_zero() {
                events.append(&mut self.ready);
                return Ok(());
            }
            // The waiting call also submits staged requests.
            self.sleep(self.next_wake().map_or(left, |wake| left.min(wake)))?;
        }
    }

    fn wake_fd(&self) -> io::Result<OwnedFd> {
        self.wake_signal()
    }

    fn arm(&mut self, timeout: Duration) -> io::Result<Duration> {
        if self.is_stopped {
            return Err(stopped());
        }
        self.clear_wake_signal();
        self.collect()?;
        if self.staged > 0 {
            // Submit staged requests, as no later call does before the sleep.
            self.reap()?;
        }
        if !self.ready.is_empty() {
            return Ok(Duration::ZERO);
        }
        Ok(self.next_wake().map_or(timeout, |wake| timeout.min(wake)))
    }

    fn begin_detached(&mut self) -> bool {
        self.detached.begin();
        self.datagrams.begin_detached();
        self.end_streams();
        // Requests would wait for the owner.
        false
    }

    fn end_detached(&mut self) {
        self.datagrams.end_detached();
        self.detached.end();
    }

    fn shutdown(&mut self, limit: Duration) -> bool {
        let deadline = deadline_after(limit);
        self.is_stopped = true;
        self.drop_datagrams();
        // Only a reset releases memory that a peer may hold for long; bytes of other lanes are
        // delivered.
        let mode = |lane: &UringLane| match lane.unreleased {
            0 => CloseMode::Graceful,
            _ => CloseMode::Reset,
        };
        let lanes: Vec<_> = self.lanes.iter().map(|(key, lane)| (key, mode(lane))).collect();
        for (key, mode) in lanes {
            self.close(key, mode);
        }
        let is_watch = |kind| {
            matches!(
                kind,
                RequestKind::Listen(_) | RequestKind::Links | RequestKind::Datagrams { .. }
            )
        };
        let listening = self.slots.select(is_watch);
        self.cancel(listening);
        while self.slots.len() > 0 {
            if let Err(error) = self.reap() {
                return self.release_without_ring(&error);
            }
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::yield_now();
        }
        self.listeners.clear();
        self.ready.clear();
        true
    }

    fn dismantle(&mut self) -> io::Result<Vec<(LaneKey, OwnedFd)>> {
        if self.is_stopped {
            return Err(stopped());
        }
        let is_busy = |lane: &UringLane| {
            lane.is_connecting
                || lane.is_receiving
                || lane.is_sending
                || lane.unreleased > 0
                || lane.closing.is_some()
        };
        if !self.ready.is_empty() || self.lanes.iter().any(|(_, lane)| is_busy(lane)) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.is_stopped = true;
        self.drop_datagrams();
        let waiting = self.slots.select(|_| true);
        self.cancel(waiting);
        let deadline = Instant::now() + Duration::from_secs(1);
        while self.slots.len() > 0 {
            if Instant::now() >= deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.reap()?;
        }
        self.ready.clear();
        self.listeners.clear();
        let keys: Vec<LaneKey> = self.lanes.iter().map(|(key, _)| key).collect();
        let sockets = keys.into_iter().filter_map(|key| {
            let lane = self.lanes.remove(key)?;
            Some((key, lane.socket.into_inner()))
        });
        Ok(sockets.collect())
    }
}

impl ConnectionIo for UringDriver {
    shared!(control_lanes);

    fn listen(&mut self, listener: TcpListener) -> io::Result<()> {
        if self.is_stopped {
            return Err(stopped());
        }
        self.add_listener(listener)
    }

    fn rebind_listener(&mut self, rail: u8, everywhere: &TcpListener) -> Option<TcpListener> {
        self.replace_listener(rail, everywhere)
    }

    fn pause_accept(&mut self, pause: Duration) {
        self.pause_all(pause);
    }

    fn connect(
        &mut self,
        remote: SocketAddr,
        rail: u8,
        segment_bytes: Option<u16>,
    ) -> io::Result<LaneKey> {
        self.start_connection(remote, rail, segment_bytes)
    }

    fn send(&mut self, lane: LaneKey, bytes: &[u8]) -> io::Result<usize> {
        let socket = self.open_socket(lane)?;
        self.counters.syscalls += 1;
        tcp::send(socket, bytes)
    }

    fn send_both(&mut self, lane: LaneKey, head: &[u8], body: &[u8]) -> io::Result<usize> {
        let socket = self.open_socket(lane)?;
        self.counters.syscalls += 1;
        tcp::send_both(socket, head, body)
    }

    fn recv(&mut self, lane: LaneKey, into: &mut [u8]) -> io::Result<usize> {
        let socket = self.open_socket(lane)?;
        self.counters.syscalls += 1;
        tcp::receive(socket, into)
    }

    fn watch(&mut self, key: LaneKey, interest: Interest) -> io::Result<()> {
        let lane = self.lanes.get_mut(key).ok_or_else(no_such_lane)?;
        if lane.is_connecting || lane.closing.is_some() {
            return Err(not_open());
        }
        let (way, events) = match interest {
            Interest::Readable => (0, libc::POLLIN | libc::POLLRDHUP),
            Interest::Writable => (1, libc::POLLOUT),
        };
        if lane.watched[way] {
            return Ok(());
        }
        lane.watched[way] = true;
        let requested = self.request_poll(key, RequestKind::Watch(key, way), events);
        if requested.is_err()
            && let Some(lane) = self.lanes.get_mut(key)
        {
            lane.watched[way] = false;
        }
        requested
    }

    fn close(&mut self, key: LaneKey, mode: CloseMode) {
        let Some(lane) = self.lanes.get_mut(key) else { return };
        if lane.closing.is_some() {
            // Outstanding requests are cancelled already; a reset may still follow.
            if mode == CloseMode::Reset {
                lane.closing = Some(mode);
                self.end_stream_detached(key);
                self.finish_close(key);
            }
            return;
        }
        lane.closing = Some(mode);
        self.rails.lane_closed(key);
        self.end_stream_detached(key);
        let targets = self.slots.select(|kind| match kind {
            RequestKind::Connect(lane)
            | RequestKind::Watch(lane, _)
            | RequestKind::Receive(lane) => lane == key,
            RequestKind::Send { lane, .. } => lane == key,
            RequestKind::Listen(_)
            | RequestKind::Links
            | RequestKind::Datagrams { .. }
            | RequestKind::Cancel => false,
        });
        let submitted = self.cancel_deferred(targets);
        self.cancel(submitted);
        self.finish_close(key);
    }
}

impl ChunkIo for UringDriver {
    unsafe fn send_chunk(&mut self, chunk: &OutgoingChunk<'_>) {
        // SAFETY: passed on to the caller.
        let started = unsafe { self.start_send(chunk) };
        if let Err(error) = started {
            refuse_send(&mut self.ready, chunk.lane, chunk.token, error);
        }
    }

    unsafe fn recv_chunk(&mut self, key: LaneKey, target: &Shape, offset: usize, length: usize) {
        let started = match self.lanes.get_mut(key) {
            None => Err(no_such_lane()),
            Some(lane) if lane.is_connecting || lane.closing.is_some() => Err(not_open()),
            Some(lane) if lane.is_receiving => Err(already_outstanding()),
            Some(lane) => {
                if self.rails.has_unmatched() {
                    self.rails.rebind_unmatched(key, &lane.socket, &mut self.counters);
                }
                lane.receive().begin(target, offset, length)
            }
        };
        let started = started.and_then(|()| self.submit_receive(key));
        if let Err(error) = started {
            self.ready.push(DriverEvent::ChunkReceived { lane: key, result: Err(error) });
        }
    }
}

impl DatagramIo for UringDriver {
    shared!(datagram_port);
}
