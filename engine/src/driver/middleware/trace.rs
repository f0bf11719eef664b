//! Logs every call and every event at TRACE level, target `ringrail::driver`.
//!
//! Polls without events and reads without bytes, of which a busy-polling engine makes millions, are
//! counted and logged as one event.

use std::fmt::{Debug, Display};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::Duration;

use tracing::{Level, enabled, trace};

use crate::driver::traits::{ChunkIo, ConnectionIo, DatagramIo, Driver, Rail, TxFlags};
use crate::driver::traits::{
    CloseMode, DriverCounters, DriverEvent, Interest, LaneKey, OutgoingChunk,
};
use crate::driver::traits::{FrameDrops, FrameState, Reach, TcpFigures, Unacked};
use crate::memory::Shape;

/// The target of all events of this file.
const TARGET: &str = "ringrail::driver";

/// Whether TRACE is enabled. (Release builds of the workspace omit it.)
pub(in crate::driver) fn is_enabled() -> bool {
    enabled!(target: TARGET, Level::TRACE)
}

/// A driver with tracing.
pub(super) struct Trace {
    inner: Box<dyn Driver + Send>,
    /// Polls and reads without result that were not logged yet.
    idle: u64,
    /// Datagrams were sent since the last logged flush.
    has_queued: bool,
}

/// A lane in logs: index and generation.
fn name(lane: LaneKey) -> String {
    format!("{}.{}", lane.index, lane.generation)
}

/// The outcome of a call, short.
fn outcome<T: Debug, E: Display>(result: &Result<T, E>) -> String {
    match result {
        Ok(value) => format!("{value:?}"),
        Err(error) => format!("error: {error}"),
    }
}

impl Trace {
    pub(super) fn new(inner: Box<dyn Driver + Send>) -> Self {
        Self { inner, idle: 0, has_queued: false }
    }

    fn log_idle(&mut self) {
        log_idle(&mut self.idle);
    }

    fn log_events(&mut self, call: &'static str, result: &io::Result<()>, events: &[DriverEvent]) {
        if result.is_ok() && events.is_empty() {
            self.idle += 1;
            return;
        }
        self.log_idle();
        trace!(target: TARGET, call, events = events.len(), outcome = outcome(result));
        for event in events {
            log_event(event);
        }
    }
}

fn log_idle(idle: &mut u64) {
    let count = std::mem::take(idle);
    if count > 0 {
        trace!(target: TARGET, call = "idle", count);
    }
}

fn log_event(event: &DriverEvent) {
    match event {
        DriverEvent::Accepted { lane, remote, rail } => {
            trace!(target: TARGET, event = "accepted", lane = name(*lane), %remote, rail);
        }
        DriverEvent::Connected { lane } => {
            trace!(target: TARGET, event = "connected", lane = name(*lane));
        }
        DriverEvent::ConnectFailed { lane, error } => {
            trace!(target: TARGET, event = "connect_failed", lane = name(*lane), outcome = %error);
        }
        DriverEvent::Readable { lane } => {
            trace!(target: TARGET, event = "readable", lane = name(*lane));
        }
        DriverEvent::Writable { lane } => {
            trace!(target: TARGET, event = "writable", lane = name(*lane));
        }
        DriverEvent::DatagramsReadable => trace!(target: TARGET, event = "datagrams_readable"),
        DriverEvent::DatagramsWritable => trace!(target: TARGET, event = "datagrams_writable"),
        DriverEvent::ChunkSent { lane, result } => {
            let outcome = outcome(result);
            trace!(target: TARGET, event = "chunk_sent", lane = name(*lane), outcome);
        }
        DriverEvent::ChunkReleased { token } => {
            trace!(target: TARGET, event = "chunk_released", token);
        }
        DriverEvent::ChunkReceived { lane, result } => {
            let outcome = outcome(&result.as_ref().map(|_| ()));
            trace!(target: TARGET, event = "chunk_received", lane = name(*lane), outcome);
        }
        DriverEvent::RailChanged { rail, is_up } => {
            trace!(target: TARGET, event = "rail_changed", rail, is_up);
        }
        DriverEvent::CmaChanged { session, is_able } => {
            trace!(target: TARGET, event = "cma_changed", session, is_able);
        }
        DriverEvent::RingChanged { session, number, is_up } => {
            trace!(target: TARGET, event = "ring_changed", session, number, is_up);
        }
        DriverEvent::ProcessEnded { session } => {
            trace!(target: TARGET, event = "process_ended", session);
        }
        DriverEvent::Closed { lane } => {
            trace!(target: TARGET, event = "closed", lane = name(*lane));
        }
    }
}

impl Driver for Trace {
    delegate!(inner: name polls_for_free nic_of begin_detached end_detached counters wake_fd arm);

    fn set_rails(&mut self, rails: &[Rail]) -> io::Result<()> {
        let result = self.inner.set_rails(rails);
        self.log_idle();
        trace!(target: TARGET, call = "set_rails", ?rails, outcome = outcome(&result));
        result
    }

    fn reach(&mut self, rail: u8, remote: IpAddr) -> Reach {
        let reach = self.inner.reach(rail, remote);
        self.log_idle();
        trace!(target: TARGET, call = "reach", rail, %remote, outcome = ?reach);
        reach
    }

    fn poll(&mut self, events: &mut Vec<DriverEvent>) -> io::Result<()> {
        let before = events.len();
        let result = self.inner.poll(events);
        self.log_events("poll", &result, &events[before..]);
        result
    }

    fn park(&mut self, timeout: Duration, events: &mut Vec<DriverEvent>) -> io::Result<()> {
        let before = events.len();
        let result = self.inner.park(timeout, events);
        self.log_events("park", &result, &events[before..]);
        result
    }

    fn shutdown(&mut self, limit: Duration) -> bool {
        let is_done = self.inner.shutdown(limit);
        self.log_idle();
        trace!(target: TARGET, call = "shutdown", ?limit, outcome = is_done);
        is_done
    }

    fn dismantle(&mut self) -> io::Result<Vec<(LaneKey, OwnedFd)>> {
        let result = self.inner.dismantle();
        self.log_idle();
        let lanes = result.as_ref().map_or(0, Vec::len);
        let outcome = outcome(&result.as_ref().map(|_| ()));
        trace!(target: TARGET, call = "dismantle", lanes, outcome);
        result
    }
}

impl ConnectionIo for Trace {
    delegate!(inner: rebind_listener addresses tcp_figures);

    fn listen(&mut self, listener: TcpListener) -> io::Result<()> {
        let local = listener.local_addr();
        let result = self.inner.listen(listener);
        self.log_idle();
        let (local, outcome) = (outcome(&local), outcome(&result));
        trace!(target: TARGET, call = "listen", local, outcome);
        result
    }

    fn pause_accept(&mut self, pause: Duration) {
        self.log_idle();
        trace!(target: TARGET, call = "pause_accept", ?pause);
        self.inner.pause_accept(pause);
    }

    fn connect(
        &mut self,
        remote: SocketAddr,
        rail: u8,
        segment_bytes: Option<u16>,
    ) -> io::Result<LaneKey> {
        let result = self.inner.connect(remote, rail, segment_bytes);
        self.log_idle();
        let outcome = outcome(&result);
        trace!(target: TARGET, call = "connect", %remote, rail, segment_bytes, outcome);
        result
    }

    fn adopt(&mut self, socket: OwnedFd) -> io::Result<LaneKey> {
        let result = self.inner.adopt(socket);
        self.log_idle();
        trace!(target: TARGET, call = "adopt", outcome = outcome(&result));
        result
    }

    fn send(&mut self, lane: LaneKey, bytes: &[u8]) -> io::Result<usize> {
        let result = self.inner.send(lane, bytes);
        self.log_idle();
        let (length, outcome) = (bytes.len(), outcome(&result));
        trace!(target: TARGET, call = "send", lane = name(lane), length, outcome);
        result
    }

    fn recv(&mut self, lane: LaneKey, into: &mut [u8]) -> io::Result<usize> {
        let result = self.inner.recv(lane, into);
        if result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
            self.idle += 1;
            return result;
        }
        self.log_idle();
        let (length, outcome) = (into.len(), outcome(&result));
        trace!(target: TARGET, call = "recv", lane = name(lane), length, outcome);
        result
    }

    fn watch(&mut self, lane: LaneKey, interest: Interest) -> io::Result<()> {
        let result = self.inner.watch(lane, interest);
        self.log_idle();
        let outcome = outcome(&result);
        trace!(target: TARGET, call = "watch", lane = name(lane), ?interest, outcome);
        result
    }

    fn close(&mut self, lane: LaneKey, mode: CloseMode) {
        self.log_idle();
        trace!(target: TARGET, call = "close", lane = name(lane), ?mode);
        self.inner.close(lane, mode);
    }

    fn unacked(&mut self, lane: LaneKey) -> io::Result<Unacked> {
        let result = self.inner.unacked(lane);
        self.log_idle();
        let outcome = outcome(&result);
        trace!(target: TARGET, call = "unacked", lane = name(lane), outcome);
        result
    }

    fn quickack(&mut self, lane: LaneKey) {
        self.inner.quickack(lane);
        self.log_idle();
        trace!(target: TARGET, call = "quickack", lane = name(lane));
    }
}

impl ChunkIo for Trace {
    unsafe fn send_chunk(&mut self, chunk: &OutgoingChunk<'_>) {
        let OutgoingChunk { lane, token, offset, length, mode, .. } = *chunk;
        self.log_idle();
        trace!(
            target: TARGET, call = "send_chunk", lane = name(lane), token, offset, length, ?mode,
        );
        // SAFETY: the caller's contract, passed on.
        unsafe { self.inner.send_chunk(chunk) };
    }

    unsafe fn recv_chunk(&mut self, lane: LaneKey, target: &Shape, offset: usize, length: usize) {
        self.log_idle();
        trace!(target: TARGET, call = "recv_chunk", lane = name(lane), offset, length);
        // SAFETY: the caller's contract, passed on.
        unsafe { self.inner.recv_chunk(lane, target, offset, length) };
    }
}

impl DatagramIo for Trace {
    delegate!(inner: datagram_bytes_max frame_state frame_drops local_peers);

    fn open_datagrams(&mut self, socket: UdpSocket) -> io::Result<()> {
        let local = socket.local_addr();
        let result = self.inner.open_datagrams(socket);
        self.log_idle();
        let (local, outcome) = (outcome(&local), outcome(&result));
        trace!(target: TARGET, call = "open_datagrams", local, outcome);
        result
    }

    fn datagram_room(&mut self) -> io::Result<&mut [u8]> {
        let result = self.inner.datagram_room();
        if let Err(error) = &result {
            log_idle(&mut self.idle);
            trace!(target: TARGET, call = "datagram_room", outcome = %error);
        }
        result
    }

    fn send_datagram(&mut self, to: SocketAddr, rail: u8, length: usize, tx_flags: TxFlags) {
        self.inner.send_datagram(to, rail, length, tx_flags);
        self.log_idle();
        self.has_queued = true;
        trace!(target: TARGET, call = "send_datagram", %to, rail, length);
    }

    fn flush_datagrams(&mut self) {
        self.inner.flush_datagrams();
        if std::mem::take(&mut self.has_queued) {
            self.log_idle();
            trace!(target: TARGET, call = "flush_datagrams");
        }
    }

    fn recv_datagram(&mut self) -> io::Result<Option<(SocketAddr, &mut [u8])>> {
        let result = self.inner.recv_datagram();
        match &result {
            Ok(None) => self.idle += 1,
            Ok(Some((from, bytes))) => {
                log_idle(&mut self.idle);
                trace!(target: TARGET, call = "recv_datagram", %from, length = bytes.len());
            }
            Err(error) => {
                log_idle(&mut self.idle);
                trace!(target: TARGET, call = "recv_datagram", outcome = %error);
            }
        }
        result
    }

    fn watch_datagrams(&mut self) -> io::Result<()> {
        let result = self.inner.watch_datagrams();
        self.log_idle();
        trace!(target: TARGET, call = "watch_datagrams", outcome = outcome(&result));
        result
    }
}
