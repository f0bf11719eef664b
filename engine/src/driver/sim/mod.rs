//! A driver without a kernel: lanes are connections of a simulated network ([`net`]), in virtual
//! time. Short reads and writes, full pipes, late events, and requests that write to their memory
//! until they are reaped; reproducible by seed.
//!
//! Lanes are byte streams. The network has hosts, links and delays; `connection` and `datagrams`
//! implement the transfer.

mod chunks;
pub(crate) mod connection;
pub(crate) mod datagrams;
mod faults;
mod host;
mod lane;
pub(crate) mod local_peers;
pub(crate) mod net;
mod on_path_attacker;
mod peer_memory;
pub(crate) mod rails;
pub(crate) mod random;
mod segments;
mod streams;
mod wire_hash;

use std::cell::RefCell;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use zerocopy::FromZeros;

use self::datagrams::Datagram;
use self::lane::{Chunk, Watch};
use self::local_peers::{Kind, ReadEntry};
use self::net::Net;
use self::rails::At;
use crate::driver::traits::{
    CHUNK_HEADER_BYTES, CloseMode, DriverCounters, DriverEvent, Interest, LaneKey, OutgoingChunk,
    Unacked,
};
use crate::driver::traits::{ChunkIo, ConnectionIo, DatagramIo, Driver, Rail, TxFlags};
use crate::driver::traits::{
    CmaLocation, KeptFrames, LocalPeer, PieceHeader, ProcessCookie, RingEntry, RingName,
    RingSegment,
};
use crate::memory::Shape;
use crate::wire::frame_range::{RING_SHORT_BYTES, RingBytes, RingMessage};
use crate::wire::packet;

/// The network shared by all drivers of one world.
pub(crate) type Shared = Rc<RefCell<Net>>;

/// The driver of one process on one host of the network.
#[derive(Debug)]
pub(crate) struct SimDriver {
    net: Shared,
    host: usize,
    is_shut_down: bool,
    /// Detached mode: no chunk may be started, and the driver must not sleep.
    is_absent: bool,
    /// The buffer returned last.
    room: Option<Box<Datagram>>,
    /// The datagram received last.
    received: Option<Box<Datagram>>,
    /// Local peers are enabled.
    has_local_peers: bool,
    /// The cookie for reads of this engine's memory.
    cookie: Option<Arc<ProcessCookie>>,
    /// The segment read last, or the bytes of the piece.
    segment: Vec<u8>,
    /// Where the bytes begin in it that [`DatagramIo::read_body`] copies.
    body_at: usize,
    /// The latest long frame of a ring.
    ring_message: Option<RingMessage>,
    /// The header of the piece.
    header: PieceHeader,
    /// A packet that was read instead, and its source.
    untaken: Option<(SocketAddr, Vec<u8>)>,
}

impl SimDriver {
    /// Starts a process on `host`, with a listener.
    pub(crate) fn new(net: &Shared, host: usize) -> Self {
        net.borrow_mut().start_process(host);
        Self {
            net: Rc::clone(net),
            host,
            is_shut_down: false,
            is_absent: false,
            room: None,
            received: None,
            has_local_peers: false,
            cookie: None,
            segment: Vec::new(),
            body_at: 0,
            ring_message: None,
            header: PieceHeader::new_zeroed(),
            untaken: None,
        }
    }
}

impl Driver for SimDriver {
    fn name(&self) -> &'static str {
        "sim"
    }

    fn polls_for_free(&self) -> bool {
        true
    }

    fn set_rails(&mut self, rails: &[Rail]) -> io::Result<()> {
        self.net.borrow_mut().set_rails(self.host, rails)
    }

    fn poll(&mut self, events: &mut Vec<DriverEvent>) -> io::Result<()> {
        self.net.borrow_mut().deliver(self.host, events);
        Ok(())
    }

    fn park(&mut self, timeout: Duration, events: &mut Vec<DriverEvent>) -> io::Result<()> {
        let net = &mut *self.net.borrow_mut();
        if self.is_absent {
            net.violation("the driver sleeps in detached mode");
        }
        net.deliver(self.host, events);
        if events.is_empty() {
            net.sleep(self.host, timeout.as_nanos() as u64);
        }
        Ok(())
    }

    /// Not polled: the world schedules the turns of the host.
    fn wake_fd(&self) -> io::Result<OwnedFd> {
        Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
    }

    fn arm(&mut self, timeout: Duration) -> io::Result<Duration> {
        let net = &mut *self.net.borrow_mut();
        net.sleep(self.host, timeout.as_nanos() as u64);
        Ok(if net.has_event(self.host) { Duration::ZERO } else { timeout })
    }

    fn begin_detached(&mut self) -> bool {
        self.is_absent = true;
        false
    }

    fn end_detached(&mut self) {
        self.is_absent = false;
    }

    fn shutdown(&mut self, _limit: Duration) -> bool {
        self.is_shut_down = true;
        // Datagrams beyond the send buffer are lost.
        self.flush_datagrams();
        self.end_process();
        true
    }

    fn dismantle(&mut self) -> io::Result<Vec<(LaneKey, OwnedFd)>> {
        Err(ErrorKind::Unsupported.into())
    }

    fn counters(&self) -> DriverCounters {
        DriverCounters::default()
    }
}

impl ConnectionIo for SimDriver {
    fn listen(&mut self, _listener: TcpListener) -> io::Result<()> {
        Ok(())
    }

    fn pause_accept(&mut self, pause: Duration) {
        let net = &mut *self.net.borrow_mut();
        let until_ns = net.now_ns() + pause.as_nanos() as u64;
        let known = &mut net.hosts[self.host];
        known.accepts_after_ns = known.accepts_after_ns.max(until_ns);
    }

    fn connect(
        &mut self,
        remote: SocketAddr,
        rail: u8,
        segment_bytes: Option<u16>,
    ) -> io::Result<LaneKey> {
        let net = &mut *self.net.borrow_mut();
        let one_in = net.impairments.descriptors_missing_one_in;
        if net.hosts[self.host].random.events.one_in(one_in) {
            return Err(io::Error::other("no descriptor is left (simulated)"));
        }
        let Some(link) = net.link_of(self.host, rail) else {
            return Err(io::Error::new(ErrorKind::InvalidInput, "there is no such rail"));
        };
        Ok(net.connect(At { host: self.host, link }, remote, segment_bytes))
    }

    fn adopt(&mut self, _socket: OwnedFd) -> io::Result<LaneKey> {
        Err(ErrorKind::Unsupported.into())
    }

    fn send(&mut self, lane: LaneKey, bytes: &[u8]) -> io::Result<usize> {
        let net = &mut *self.net.borrow_mut();
        let (connection, side) = net.lane(self.host, lane);
        if net.connections[connection].random[side].one_in(net.impairments.interrupted_one_in) {
            return Err(ErrorKind::Interrupted.into());
        }
        net.write(connection, side, bytes)
    }

    fn recv(&mut self, lane: LaneKey, into: &mut [u8]) -> io::Result<usize> {
        let net = &mut *self.net.borrow_mut();
        let (connection, side) = net.lane(self.host, lane);
        if net.connections[connection].random[side].one_in(net.impairments.interrupted_one_in) {
            return Err(ErrorKind::Interrupted.into());
        }
        net.read(connection, side, into)
    }

    fn watch(&mut self, key: LaneKey, interest: Interest) -> io::Result<()> {
        let net = &mut *self.net.borrow_mut();
        let Some(lane) = net.find_lane(self.host, key) else { return Ok(()) };
        let (watch, connection, side) = match interest {
            Interest::Readable => (&mut lane.reads, lane.connection, lane.side),
            Interest::Writable => (&mut lane.writes, lane.connection, lane.side),
        };
        if *watch == Watch::Off {
            *watch = Watch::Armed;
        }
        net.look_at(connection, side);
        Ok(())
    }

    fn close(&mut self, lane: LaneKey, mode: CloseMode) {
        self.net.borrow_mut().close(self.host, lane, mode);
    }

    fn addresses(&self, key: LaneKey) -> Option<(SocketAddr, SocketAddr)> {
        let net = &mut *self.net.borrow_mut();
        let lane = net.find_lane(self.host, key)?;
        let (index, side) = (lane.connection, lane.side);
        let ends = &net.connections[index].ends;
        let (near, far) = (ends[side].at()?, ends[1 - side].at()?);
        Some((net.rail_address(near.host, near.link), net.rail_address(far.host, far.link)))
    }

    fn unacked(&mut self, lane: LaneKey) -> io::Result<Unacked> {
        let net = &mut *self.net.borrow_mut();
        let (connection, side) = net.lane(self.host, lane);
        let since = net.connections[connection].pipes[side].unacknowledged_since_ns();
        Ok(since.map_or(Unacked::Nothing, |since| {
            let silence = Duration::from_nanos(net.now_ns() - since);
            let resent = net.resent(connection, side);
            Unacked::Answer { since_answer: silence, since_sent: silence, resent }
        }))
    }

    fn quickack(&mut self, _lane: LaneKey) {
        self.net.borrow_mut().quickacks += 1;
    }
}

impl ChunkIo for SimDriver {
    unsafe fn send_chunk(&mut self, chunk: &OutgoingChunk<'_>) {
        let OutgoingChunk { lane: key, token, header, source, offset, length, mode: _ } = *chunk;
        let spans = lane::spans_of(source, offset, length);
        let net = &mut *self.net.borrow_mut();
        net.take_memory(&spans, false);
        if self.is_absent {
            net.violation("a chunk is sent in detached mode");
        }
        let Some(lane) = net.find_lane(self.host, key) else {
            net.violation("a chunk is sent on an unknown lane");
            return;
        };
        let (connection, side) = (lane.connection, lane.side);
        let is_second = lane.sending.is_some() || lane.is_closing;
        lane.sending = Some(Chunk::new(token, *header, spans));
        lane.send_is_over = false;
        if is_second {
            net.violation("one chunk per direction and only on an open lane");
        }
        net.mark_bulk(connection);
        net.look_at(connection, side);
    }

    unsafe fn recv_chunk(&mut self, key: LaneKey, target: &Shape, offset: usize, length: usize) {
        let spans = lane::spans_of(target, offset, length);
        let net = &mut *self.net.borrow_mut();
        net.take_memory(&spans, true);
        if self.is_absent {
            net.violation("a chunk is received in detached mode");
        }
        let Some(lane) = net.find_lane(self.host, key) else {
            net.violation("a chunk is received on an unknown lane");
            return;
        };
        let (connection, side) = (lane.connection, lane.side);
        let is_second = lane.receiving.is_some() || lane.is_closing;
        lane.receiving = Some(Chunk::new(0, [0; CHUNK_HEADER_BYTES], spans));
        lane.receive_is_over = false;
        if is_second {
            net.violation("one chunk per direction and only on an open lane");
        }
        net.mark_bulk(connection);
        net.look_at(connection, side);
    }
}

impl DatagramIo for SimDriver {
    /// The socket is the host's own, at its locator.
    fn open_datagrams(&mut self, _socket: UdpSocket) -> io::Result<()> {
        self.net.borrow_mut().open_datagrams(self.host)
    }

    fn datagram_room(&mut self) -> io::Result<&mut [u8]> {
        let net = &mut *self.net.borrow_mut();
        net.datagram_room(self.host)?;
        let room = self.room.get_or_insert_with(|| net.spare_datagram());
        Ok(&mut room.bytes)
    }

    fn send_datagram(&mut self, to: SocketAddr, rail: u8, length: usize, _handling: TxFlags) {
        let net = &mut *self.net.borrow_mut();
        match self.room.take() {
            Some(mut datagram) if length <= datagram.bytes.len() => {
                let Some(link) = net.link_of(self.host, rail) else {
                    net.violation("a datagram is sent by an unknown rail");
                    return;
                };
                (datagram.to, datagram.link, datagram.length) = (to, link, length);
                if let Some((packet::FIRST_PATH, session)) =
                    packet::path_and_session(datagram.content())
                    && net.write_ring(self.host, session, Kind::Packet, datagram.content())
                {
                    net.recycle(datagram);
                    return;
                }
                net.queue_datagram(self.host, datagram);
            }
            _ => net.violation("a datagram is sent without room for it"),
        }
    }

    fn flush_datagrams(&mut self) {
        let net = &mut *self.net.borrow_mut();
        net.flush_rings(self.host);
        net.flush_datagrams(self.host);
    }

    fn recv_datagram(&mut self) -> io::Result<Option<(SocketAddr, &mut [u8])>> {
        let net = &mut *self.net.borrow_mut();
        if let Some(before) = self.received.take() {
            net.recycle(before);
        }
        self.received = match self.untaken.take() {
            Some((from, bytes)) => {
                let mut datagram = net.spare_datagram();
                datagram.bytes[..bytes.len()].copy_from_slice(&bytes);
                (datagram.from, datagram.length) = (from, bytes.len());
                Some(datagram)
            }
            None => net.receive_datagram(self.host),
        };
        let received = self.received.as_mut();
        Ok(received.map(|datagram| (datagram.from, &mut datagram.bytes[..datagram.length])))
    }

    fn watch_datagrams(&mut self) -> io::Result<()> {
        self.net.borrow_mut().watch_datagrams(self.host)
    }

    fn enable_shared_memory(&mut self, _engine: u64) {
        let net = self.net.borrow();
        self.has_local_peers = net.has_local_peers(self.host);
        let is_readable = self.has_local_peers && net.local_peers.impairments.reads;
        // Announcements of an earlier process must not match.
        let revocations = u64::from(net.hosts[self.host].process) << 32;
        self.cookie = is_readable.then(|| Arc::new(ProcessCookie::simulated(revocations)));
    }

    fn accepts_local_peers(&self) -> bool {
        self.has_local_peers
    }

    fn connect_peer(&mut self, peer: LocalPeer) {
        self.net.borrow_mut().connect_peer(self.host, &peer, self.cookie.clone());
    }

    fn disconnect_peer(&mut self, session: u64) {
        self.net.borrow_mut().disconnect_peer(self.host, session);
    }

    fn write_segment(&mut self, ring: RingName, segment: RingSegment<'_>) -> bool {
        let head = segment.bytes.head();
        let kind = segment.frames.map_or(Kind::Segment, |range| Kind::Frames(range, head));
        let bytes = match segment.bytes {
            RingBytes::Short(bytes, length) => bytes[..length].to_vec(),
            RingBytes::Parts(parts) => parts.concat(),
        };
        self.net.borrow_mut().write_segment(self.host, ring, kind, &bytes)
    }

    fn take_unread(&mut self, session: u64) -> Option<Vec<KeptFrames>> {
        Some(self.net.borrow_mut().take_unread(self.host, session))
    }

    fn write_piece(&mut self, session: u64, header: &PieceHeader, bytes: &[u8]) -> bool {
        self.net.borrow_mut().write_ring(self.host, session, Kind::Piece(*header), bytes)
    }

    fn recv_from_ring(&mut self) -> Option<(u64, RingEntry<'_>)> {
        if self.untaken.is_some() {
            return None;
        }
        match self.net.borrow_mut().read_ring(self.host)? {
            ReadEntry::Segment(session, bytes) => {
                self.segment = bytes;
                Some((session, RingEntry::Segment(&self.segment)))
            }
            ReadEntry::Frames(session, (range, head), bytes) => {
                self.segment = bytes;
                let length = self.segment.len();
                if range.count == 1
                    && length > RING_SHORT_BYTES
                    && let Some(message) = RingMessage::new(range, head, &self.segment, length)
                {
                    self.body_at = head.bytes();
                    return Some((session, RingEntry::Message(self.ring_message.insert(message))));
                }
                Some((session, RingEntry::Frames(range, &self.segment)))
            }
            ReadEntry::Piece(session, header, bytes) => {
                (self.header, self.segment, self.body_at) = (header, bytes, 0);
                Some((session, RingEntry::Piece(&self.header, self.segment.len())))
            }
            ReadEntry::Packet(from, bytes) => {
                self.untaken = Some((from, bytes));
                None
            }
        }
    }

    fn read_body(&mut self, into: &mut [u8]) {
        into.copy_from_slice(&self.segment[self.body_at..]);
    }

    fn message(&mut self) -> &[u8] {
        &self.segment
    }

    fn piece(&mut self) -> &[u8] {
        &self.segment
    }

    fn process_cookie(&self) -> Option<Arc<ProcessCookie>> {
        self.cookie.clone()
    }

    unsafe fn read_by_cma(
        &mut self,
        session: u64,
        source: CmaLocation,
        into: &Shape,
        offset: usize,
        length: usize,
    ) -> io::Result<()> {
        let whose = (self.host, session);
        // SAFETY: the caller's contract.
        unsafe { self.net.borrow_mut().read_peer_memory(whose, source, into, offset, length) }
    }
}

impl SimDriver {
    /// The process ends, and its memory with it.
    fn end_process(&mut self) {
        if let Some(cookie) = &self.cookie {
            cookie.end();
        }
        self.net.borrow_mut().end_process(self.host);
    }
}

/// A process that is killed: its kernel resets open connections.
impl Drop for SimDriver {
    fn drop(&mut self) {
        // After a shutdown the host may have a new process.
        if !self.is_shut_down {
            self.end_process();
        }
    }
}
