//! Writes the traffic of a driver to a [`Capture`].
//!
//! A chunk that failed or was cancelled is not in the file, as the number of bytes moved is not
//! known and its lane ends. A datagram is written when it is queued, although the kernel may refuse
//! it, and when it is received.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::Duration;

use super::capture::{Capture, End, Flow};
use crate::driver::traits::{
    CHUNK_HEADER_BYTES, CloseMode, DATAGRAM_BYTES_MAX, DriverCounters, DriverEvent, Interest,
    LaneKey, OutgoingChunk,
};
use crate::driver::traits::{ChunkIo, ConnectionIo, DatagramIo, Driver, Rail, TxFlags};
use crate::driver::traits::{FrameDrops, FrameState, Reach, TcpFigures, Unacked};
use crate::memory::Shape;

/// Bytes of a chunk copied at a time.
const COPY_BYTES: usize = 256 * 1024;

/// A chunk in progress. The inner driver refuses further ones in its direction.
struct Chunk {
    /// The header of a sent chunk.
    header: [u8; CHUNK_HEADER_BYTES],
    shape: Shape,
    offset: usize,
    length: usize,
    /// Chunks refused while this one was in progress: their errors are reported before its end.
    refused: u32,
}

struct CapturedLane {
    flow: Flow,
    /// Sent, received.
    chunks: [Option<Chunk>; 2],
}

const SEND: usize = 0;
const RECEIVE: usize = 1;

/// A driver with capture; see the module.
pub(super) struct Pcap {
    inner: Box<dyn Driver + Send>,
    capture: Capture,
    lanes: HashMap<LaneKey, CapturedLane>,
    scratch: Vec<u8>,
    /// The address of the datagram socket.
    local: SocketAddr,
    /// The source address of each rail.
    sources: Vec<IpAddr>,
    /// Buffer of the datagram being written; empty without a socket.
    room: Vec<u8>,
    /// Something was written since the last flush.
    is_dirty: bool,
}

impl Pcap {
    pub(super) fn new(inner: Box<dyn Driver + Send>, capture: Capture) -> Self {
        Self {
            inner,
            capture,
            lanes: HashMap::new(),
            scratch: Vec::new(),
            local: (Ipv4Addr::UNSPECIFIED, 0).into(),
            room: Vec::new(),
            sources: Vec::new(),
            is_dirty: false,
        }
    }

    /// A lane is connected. If its peer has already closed, it has no addresses and is omitted.
    fn begin(&mut self, key: LaneKey, opener: End) {
        if let Some((near, far)) = self.inner.addresses(key) {
            let flow = self.capture.open([near, far], opener);
            self.lanes.insert(key, CapturedLane { flow, chunks: [None, None] });
            self.is_dirty = true;
        }
    }

    /// Records the end of the peer's stream, if a failed call shows it.
    fn failed(&mut self, key: LaneKey, error: &io::Error) {
        let Some(lane) = self.lanes.get_mut(&key) else { return };
        match error.kind() {
            io::ErrorKind::UnexpectedEof => self.capture.finish(&mut lane.flow, End::Far),
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                self.capture.reset(&mut lane.flow, End::Far);
            }
            _ => {}
        }
    }

    fn start(&mut self, key: LaneKey, way: usize, chunk: Chunk) {
        if let Some(lane) = self.lanes.get_mut(&key) {
            match &mut lane.chunks[way] {
                Some(earlier) => earlier.refused += 1,
                none => *none = Some(chunk),
            }
        }
    }

    /// Ends a chunk: its bytes are written if it was complete.
    ///
    /// # Safety
    ///
    /// `Ok` only while the driver may use the memory of the chunk: its end was not reported to the
    /// caller yet.
    unsafe fn end(
        &mut self,
        key: LaneKey,
        way: usize,
        result: Result<Option<&[u8; CHUNK_HEADER_BYTES]>, &io::Error>,
    ) {
        let Some(lane) = self.lanes.get_mut(&key) else { return };
        let slot = &mut lane.chunks[way];
        let received = match result {
            Ok(header) => header,
            Err(error) => {
                match slot {
                    Some(chunk) if chunk.refused > 0 => chunk.refused -= 1,
                    _ => {
                        *slot = None;
                        self.failed(key, error);
                    }
                }
                return;
            }
        };
        let Some(chunk) = slot.take() else { return };
        let from = if way == SEND { End::Near } else { End::Far };
        self.capture.data(&mut lane.flow, from, received.unwrap_or(&chunk.header));
        let mut at = 0;
        while at < chunk.length {
            let count = (chunk.length - at).min(COPY_BYTES);
            self.scratch.resize(count, 0);
            // SAFETY: the memory is live and holds the chunk's bytes until its end is
            // reported, which has not happened (the caller's contract); `scratch` is ours.
            unsafe { chunk.shape.copy_to(chunk.offset + at, &mut self.scratch) };
            self.capture.data(&mut lane.flow, from, &self.scratch);
            at += count;
        }
        self.is_dirty = true;
    }

    /// Records events of the inner driver.
    fn note(&mut self, events: &[DriverEvent]) {
        for event in events {
            match event {
                DriverEvent::Accepted { lane, .. } => self.begin(*lane, End::Far),
                DriverEvent::Connected { lane } => self.begin(*lane, End::Near),
                // SAFETY: the caller gets these events when this call returns, so that the
                // memory is as it was when the chunk ended.
                DriverEvent::ChunkSent { lane, result } => unsafe {
                    self.end(*lane, SEND, result.as_ref().map(|()| None));
                },
                // SAFETY: as above.
                DriverEvent::ChunkReceived { lane, result } => unsafe {
                    self.end(*lane, RECEIVE, result.as_ref().map(Some));
                },
                DriverEvent::Closed { lane } => {
                    self.lanes.remove(lane);
                }
                DriverEvent::ConnectFailed { .. }
                | DriverEvent::Readable { .. }
                | DriverEvent::Writable { .. }
                | DriverEvent::ChunkReleased { .. }
                | DriverEvent::DatagramsReadable
                | DriverEvent::DatagramsWritable
                | DriverEvent::RailChanged { .. }
                | DriverEvent::CmaChanged { .. }
                | DriverEvent::RingChanged { .. }
                | DriverEvent::ProcessEnded { .. } => {}
            }
        }
    }

    fn flush(&mut self) {
        if std::mem::take(&mut self.is_dirty) {
            self.capture.flush();
        }
    }
}

impl Driver for Pcap {
    delegate!(inner: name polls_for_free reach nic_of begin_detached end_detached counters wake_fd);

    fn set_rails(&mut self, rails: &[Rail]) -> io::Result<()> {
        self.inner.set_rails(rails)?;
        self.sources = rails.iter().map(|rail| rail.address).collect();
        Ok(())
    }

    fn poll(&mut self, events: &mut Vec<DriverEvent>) -> io::Result<()> {
        let before = events.len();
        let result = self.inner.poll(events);
        self.note(&events[before..]);
        result
    }

    fn park(&mut self, timeout: Duration, events: &mut Vec<DriverEvent>) -> io::Result<()> {
        self.flush();
        let before = events.len();
        let result = self.inner.park(timeout, events);
        self.note(&events[before..]);
        result
    }

    fn arm(&mut self, timeout: Duration) -> io::Result<Duration> {
        self.flush();
        self.inner.arm(timeout)
    }

    fn shutdown(&mut self, limit: Duration) -> bool {
        for lane in self.lanes.values_mut() {
            self.capture.finish(&mut lane.flow, End::Near);
        }
        self.capture.flush();
        self.lanes.clear();
        self.inner.shutdown(limit)
    }

    fn dismantle(&mut self) -> io::Result<Vec<(LaneKey, OwnedFd)>> {
        let result = self.inner.dismantle();
        if result.is_ok() {
            self.lanes.clear();
            self.capture.flush();
        }
        result
    }
}

impl ConnectionIo for Pcap {
    delegate!(inner: listen rebind_listener pause_accept connect watch);
    delegate!(inner: addresses unacked quickack tcp_figures);

    fn adopt(&mut self, socket: OwnedFd) -> io::Result<LaneKey> {
        let key = self.inner.adopt(socket)?;
        self.begin(key, End::Near);
        Ok(key)
    }

    fn send(&mut self, key: LaneKey, bytes: &[u8]) -> io::Result<usize> {
        let result = self.inner.send(key, bytes);
        match (&result, self.lanes.get_mut(&key)) {
            (Ok(count), Some(lane)) => {
                self.capture.data(&mut lane.flow, End::Near, &bytes[..*count]);
                self.is_dirty = true;
            }
            (Err(error), _) => self.failed(key, error),
            _ => {}
        }
        result
    }

    fn recv(&mut self, key: LaneKey, into: &mut [u8]) -> io::Result<usize> {
        let result = self.inner.recv(key, into);
        match (&result, self.lanes.get_mut(&key)) {
            (Ok(0), Some(lane)) if !into.is_empty() => {
                self.capture.finish(&mut lane.flow, End::Far);
            }
            (Ok(count), Some(lane)) => {
                self.capture.data(&mut lane.flow, End::Far, &into[..*count]);
                self.is_dirty = true;
            }
            (Err(error), _) => self.failed(key, error),
            _ => {}
        }
        result
    }

    fn close(&mut self, key: LaneKey, mode: CloseMode) {
        if let Some(lane) = self.lanes.get_mut(&key) {
            match mode {
                CloseMode::Graceful => self.capture.finish(&mut lane.flow, End::Near),
                CloseMode::Reset => self.capture.reset(&mut lane.flow, End::Near),
            }
            self.is_dirty = true;
        }
        self.inner.close(key, mode);
    }
}

impl ChunkIo for Pcap {
    unsafe fn send_chunk(&mut self, chunk: &OutgoingChunk<'_>) {
        let OutgoingChunk { lane, header, source, offset, length, .. } = *chunk;
        let (header, shape) = (*header, source.clone());
        self.start(lane, SEND, Chunk { header, shape, offset, length, refused: 0 });
        // SAFETY: the caller's contract, passed on.
        unsafe { self.inner.send_chunk(chunk) };
    }

    unsafe fn recv_chunk(&mut self, lane: LaneKey, target: &Shape, offset: usize, length: usize) {
        let (header, shape) = ([0; CHUNK_HEADER_BYTES], target.clone());
        self.start(lane, RECEIVE, Chunk { header, shape, offset, length, refused: 0 });
        // SAFETY: the caller's contract, passed on.
        unsafe { self.inner.recv_chunk(lane, target, offset, length) };
    }
}

impl DatagramIo for Pcap {
    delegate!(inner: flush_datagrams watch_datagrams datagram_bytes_max frame_state frame_drops);
    delegate!(inner: local_peers);

    fn open_datagrams(&mut self, socket: UdpSocket) -> io::Result<()> {
        let local = socket.local_addr()?;
        self.inner.open_datagrams(socket)?;
        self.local = local;
        self.room.resize(DATAGRAM_BYTES_MAX, 0);
        Ok(())
    }

    fn datagram_room(&mut self) -> io::Result<&mut [u8]> {
        self.inner.datagram_room()?;
        Ok(&mut self.room)
    }

    fn send_datagram(&mut self, to: SocketAddr, rail: u8, length: usize, tx_flags: TxFlags) {
        // There is room: it was requested, and nothing was sent since.
        let Ok(room) = self.inner.datagram_room() else { return };
        let bytes = &self.room[..length];
        room[..length].copy_from_slice(bytes);
        self.inner.send_datagram(to, rail, length, tx_flags);
        let mut local = self.local;
        if let Some(&source) = self.sources.get(usize::from(rail)) {
            local.set_ip(source);
        }
        self.capture.datagram(local, to, bytes);
        self.is_dirty = true;
    }

    fn recv_datagram(&mut self) -> io::Result<Option<(SocketAddr, &mut [u8])>> {
        let received = self.inner.recv_datagram()?;
        if let Some((from, bytes)) = &received {
            self.capture.datagram(*from, self.local, bytes);
            self.is_dirty = true;
        }
        Ok(received)
    }
}
