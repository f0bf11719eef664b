//! A driver whose events are checked.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};
use tracing::subscriber::DefaultGuard;

use super::wraps;
use crate::driver::traits::{
    CHUNK_HEADER_BYTES, CloseMode, DATAGRAM_BYTES_MAX, Driver, DriverEvent, Interest, LaneKey,
    OutgoingChunk, SendMode,
};
use crate::driver::{ArenaRange, DriverChoice, DriverConfig, open, udp};
use crate::memory::{Arena, Buffer};
use crate::settings::Faults;

/// Timeout of expected events, on a busy machine.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// Arena of a host: within the memory that an unprivileged user may lock.
const ARENA_BYTES: usize = 1 << 20;

/// Middleware around a driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wrap {
    /// None.
    Bare,
    /// Tracing, with a subscriber.
    Trace,
    /// Packet capture to a file.
    Pcap,
    /// Delayed events.
    Late,
    /// Delayed events, short calls and calls without effect.
    Mild,
}

/// A driver and its disabled features.
pub(super) struct Variant {
    pub(super) module: &'static str,
    pub(super) choice: DriverChoice,
    pub(super) disabled: &'static [&'static str],
    pub(super) wrap: Wrap,
}

impl Variant {
    /// Why this variant cannot run here.
    pub(super) fn refused(&self) -> Option<String> {
        if self.choice != DriverChoice::Uring {
            return None;
        }
        #[cfg(feature = "uring")]
        return crate::driver::uring::UringFeatures::probe().err().map(|error| error.to_string());
        #[cfg(not(feature = "uring"))]
        Some("this build has no io_uring driver".to_owned())
    }

    /// The configuration of this variant's driver.
    pub(super) fn config(&self) -> DriverConfig {
        let disabled_features = self.disabled.iter().map(|&name| name.to_owned()).collect();
        let faults = Faults { seed: 1, late: 0.3, ..Faults::default() };
        DriverConfig {
            disabled_features,
            inject_faults: match self.wrap {
                Wrap::Late => Some(faults),
                Wrap::Mild => Some(Faults { short: 0.2, again: 0.1, ..faults }),
                _ => None,
            },
            pcap_file: (self.wrap == Wrap::Pcap).then(wraps::new_file),
            ..DriverConfig::default()
        }
    }

    /// Whether its driver uses a feature of io_uring: the kernel has it and it is not disabled.
    #[cfg(feature = "uring")]
    pub(super) fn uses(&self, name: &str) -> bool {
        let features = crate::driver::uring::UringFeatures::probe();
        self.choice == DriverChoice::Uring
            && !self.disabled.contains(&name)
            && features.is_ok_and(|all| all.iter().any(|one| one.name == name && one.is_available))
    }

    /// Without io_uring none of its features is used.
    #[cfg(not(feature = "uring"))]
    pub(super) fn uses(&self, _name: &str) -> bool {
        false
    }
}

/// State of an open lane.
#[derive(Default, Debug)]
struct Book {
    is_connecting: bool,
    sending: Option<u64>,
    is_receiving: bool,
    watched: [bool; 2],
}

/// A driver, the memory that it uses, and its events.
///
/// Every event is checked against the requests: none is unrequested or duplicated, and no event of
/// a lane follows, or is missing at, its `Closed`.
pub(super) struct Host {
    // Dropped first: it refers to the memory below.
    pub(super) driver: Box<dyn Driver + Send>,
    lanes: HashMap<LaneKey, Book>,
    gone: HashSet<LaneKey>,
    /// Chunks whose memory the kernel may read: lane, whether the end was reported, memory.
    unreleased: HashMap<u64, (LaneKey, bool, Buffer)>,
    receiving: HashMap<LaneKey, Buffer>,
    arrived: HashMap<LaneKey, Buffer>,
    inbox: VecDeque<DriverEvent>,
    listener: Option<SocketAddr>,
    /// Requested: a readable event of datagrams, a writable one.
    datagrams: [bool; 2],
    pub(super) arena: Arc<Arena>,
    /// Removed at the end.
    capture: Option<PathBuf>,
    _trace: Option<DefaultGuard>,
}

impl Host {
    pub(super) fn new(variant: &Variant) -> Self {
        let is_traced = variant.wrap == Wrap::Trace;
        let trace = is_traced.then(|| wraps::listen(&wraps::Listener::default()));
        let mut host = Self::with(variant.choice, &variant.config());
        host._trace = trace;
        host
    }

    pub(super) fn with(choice: DriverChoice, config: &DriverConfig) -> Self {
        Self::in_memory(choice, config, false)
    }

    /// The driver takes the pages of the arena for huge ones.
    pub(super) fn in_huge_pages(variant: &Variant) -> Self {
        Self::in_memory(variant.choice, &variant.config(), true)
    }

    fn in_memory(choice: DriverChoice, config: &DriverConfig, may_be_huge: bool) -> Self {
        let arena = Arena::new(ARENA_BYTES).unwrap();
        let range = ArenaRange { base: arena.base(), len: arena.len(), may_be_huge };
        // SAFETY: the arena is dropped after the driver.
        let driver = unsafe { open(choice, config, Some(range)) }.unwrap().boxed();
        Self {
            driver,
            lanes: HashMap::new(),
            gone: HashSet::new(),
            unreleased: HashMap::new(),
            receiving: HashMap::new(),
            arrived: HashMap::new(),
            inbox: VecDeque::new(),
            listener: None,
            datagrams: [false; 2],
            arena,
            capture: config.pcap_file.clone(),
            _trace: None,
        }
    }

    // ---- Lanes ----

    /// Listens on a port of 127.0.0.1, once.
    pub(super) fn listen(&mut self) -> SocketAddr {
        if let Some(address) = self.listener {
            return address;
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        self.driver.listen(listener).unwrap();
        self.listener = Some(address);
        address
    }

    pub(super) fn connect(&mut self, remote: SocketAddr) -> LaneKey {
        self.connect_by(remote, 0)
    }

    pub(super) fn connect_by(&mut self, remote: SocketAddr, rail: u8) -> LaneKey {
        let lane = self.driver.connect(remote, rail, None).unwrap();
        self.open_book(lane, true);
        lane
    }

    pub(super) fn adopt(&mut self, socket: OwnedFd) -> LaneKey {
        let lane = self.driver.adopt(socket).unwrap();
        self.open_book(lane, false);
        lane
    }

    /// Two lanes of this driver that are connected with each other.
    pub(super) fn pair(&mut self) -> (LaneKey, LaneKey) {
        let address = self.listen();
        let near = self.connect(address);
        self.expect("Connected", |e| matches!(e, DriverEvent::Connected { lane } if *lane == near));
        let accepted = self.expect("Accepted", |e| matches!(e, DriverEvent::Accepted { .. }));
        let DriverEvent::Accepted { lane: far, .. } = accepted else { unreachable!() };
        (near, far)
    }

    /// A lane and its peer's socket.
    pub(super) fn lane_to_outside(&mut self) -> (LaneKey, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let lane = self.connect(listener.local_addr().unwrap());
        self.expect("Connected", |e| matches!(e, DriverEvent::Connected { lane: l } if *l == lane));
        let (peer, _) = listener.accept().unwrap();
        peer.set_read_timeout(Some(PATIENCE)).unwrap();
        peer.set_write_timeout(Some(PATIENCE)).unwrap();
        (lane, peer)
    }

    pub(super) fn watch(&mut self, lane: LaneKey, interest: Interest) {
        self.driver.watch(lane, interest).unwrap();
        let book = self.lanes.get_mut(&lane).unwrap();
        book.watched[usize::from(interest == Interest::Writable)] = true;
    }

    pub(super) fn close(&mut self, lane: LaneKey, mode: CloseMode) {
        self.driver.close(lane, mode);
    }

    pub(super) fn expect_closed(&mut self, lane: LaneKey) {
        self.expect("Closed", |e| matches!(e, DriverEvent::Closed { lane: l } if *l == lane));
    }

    /// A lane whose sockets have buffers of some ten KiB only.
    pub(super) fn narrow_lane(&mut self) -> (LaneKey, TcpStream) {
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        listener.set_recv_buffer_size(32 * 1024).unwrap();
        listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        listener.listen(1).unwrap();
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.set_send_buffer_size(32 * 1024).unwrap();
        socket.connect(&listener.local_addr().unwrap()).unwrap();
        let peer = TcpStream::from(listener.accept().unwrap().0);
        peer.set_read_timeout(Some(PATIENCE)).unwrap();
        (self.adopt(socket.into()), peer)
    }

    /// Returns all sockets; the driver is useless afterwards.
    pub(super) fn dismantle(&mut self) -> io::Result<Vec<(LaneKey, OwnedFd)>> {
        let sockets = self.driver.dismantle()?;
        assert_eq!(sockets.len(), self.lanes.len());
        for (lane, _) in &sockets {
            assert!(self.lanes.remove(lane).is_some(), "{lane:?} was not open");
        }
        Ok(sockets)
    }

    // ---- Datagrams ----

    /// Opens datagrams on a port of `address`.
    pub(super) fn open_datagrams(&mut self, address: &str) -> SocketAddr {
        let socket = udp::bind((address.parse::<std::net::IpAddr>().unwrap(), 0).into()).unwrap();
        let address = socket.local_addr().unwrap();
        self.driver.open_datagrams(socket).unwrap();
        address
    }

    pub(super) fn watch_datagrams(&mut self) {
        self.driver.watch_datagrams().unwrap();
        self.datagrams[0] = true;
    }

    /// Queues a datagram; `false` if there is no room, of which an event follows.
    pub(super) fn try_datagram(&mut self, to: SocketAddr, bytes: &[u8]) -> bool {
        self.try_datagram_by(to, 0, bytes)
    }

    fn try_datagram_by(&mut self, to: SocketAddr, rail: u8, bytes: &[u8]) -> bool {
        match self.driver.datagram_room() {
            Ok(room) => {
                assert!(room.len() >= DATAGRAM_BYTES_MAX);
                room[..bytes.len()].copy_from_slice(bytes);
                self.driver.send_datagram(
                    to,
                    rail,
                    bytes.len(),
                    crate::driver::traits::TxFlags::PLAIN,
                );
                true
            }
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                self.datagrams[1] = true;
                false
            }
        }
    }

    /// Queues a datagram, as soon as there is room.
    pub(super) fn datagram(&mut self, to: SocketAddr, bytes: &[u8]) {
        self.datagram_by(to, 0, bytes);
    }

    pub(super) fn datagram_by(&mut self, to: SocketAddr, rail: u8, bytes: &[u8]) {
        while !self.try_datagram_by(to, rail, bytes) {
            self.expect("DatagramsWritable", |e| matches!(e, DriverEvent::DatagramsWritable));
        }
    }

    /// The next datagram, if any. A driver returns `None` once before it asks again.
    pub(super) fn take_datagram(&mut self) -> Option<(SocketAddr, Vec<u8>)> {
        for _ in 0..2 {
            if let Some((from, bytes)) = self.driver.recv_datagram().unwrap() {
                return Some((from, bytes.to_vec()));
            }
        }
        None
    }

    /// Waits for the next datagram.
    pub(super) fn expect_datagram(&mut self) -> (SocketAddr, Vec<u8>) {
        loop {
            if let Some(datagram) = self.take_datagram() {
                return datagram;
            }
            self.watch_datagrams();
            self.expect("DatagramsReadable", |e| matches!(e, DriverEvent::DatagramsReadable));
        }
    }

    // ---- Chunks ----

    /// Sends all of `buffer` as one chunk, with the header of `token`.
    pub(super) fn send_chunk(&mut self, lane: LaneKey, token: u64, buffer: Buffer, mode: SendMode) {
        let length = buffer.len();
        self.send_part(lane, token, buffer, 0, length, mode);
    }

    pub(super) fn send_part(
        &mut self,
        lane: LaneKey,
        token: u64,
        mut buffer: Buffer,
        offset: usize,
        length: usize,
        mode: SendMode,
    ) {
        let shape = buffer.shape_for_send().unwrap();
        let book = self.lanes.get_mut(&lane).unwrap();
        assert_eq!(book.sending.replace(token), None);
        assert!(self.unreleased.insert(token, (lane, false, buffer)).is_none());
        let (header, source) = (&header(token), &shape);
        let chunk = OutgoingChunk { lane, token, header, source, offset, length, mode };
        // SAFETY: the buffer stays here until the chunk is released.
        unsafe { self.driver.send_chunk(&chunk) };
    }

    /// Receives a chunk into all of `buffer`.
    pub(super) fn recv_chunk(&mut self, lane: LaneKey, buffer: Buffer) {
        let length = buffer.len();
        self.recv_part(lane, buffer, 0, length);
    }

    pub(super) fn recv_part(
        &mut self,
        lane: LaneKey,
        mut buffer: Buffer,
        offset: usize,
        length: usize,
    ) {
        let shape = buffer.shape_for_recv().unwrap();
        let book = self.lanes.get_mut(&lane).unwrap();
        assert!(!std::mem::replace(&mut book.is_receiving, true));
        assert!(self.receiving.insert(lane, buffer).is_none());
        // SAFETY: the buffer stays here until the chunk is reported.
        unsafe { self.driver.recv_chunk(lane, &shape, offset, length) };
    }

    /// Waits for the end of the chunk that `lane` sends.
    pub(super) fn expect_sent(&mut self, lane: LaneKey) -> io::Result<()> {
        let is_hit =
            |e: &DriverEvent| matches!(e, DriverEvent::ChunkSent { lane: l, .. } if *l == lane);
        let DriverEvent::ChunkSent { result, .. } = self.expect("ChunkSent", is_hit) else {
            unreachable!()
        };
        result
    }

    pub(super) fn expect_released(&mut self, token: u64) {
        let is_hit =
            |e: &DriverEvent| matches!(e, DriverEvent::ChunkReleased { token: t } if *t == token);
        self.expect("ChunkReleased", is_hit);
    }

    /// Waits for the end of the chunk that `lane` receives; returns its memory.
    pub(super) fn expect_received(
        &mut self,
        lane: LaneKey,
    ) -> (io::Result<[u8; CHUNK_HEADER_BYTES]>, Buffer) {
        let is_hit =
            |e: &DriverEvent| matches!(e, DriverEvent::ChunkReceived { lane: l, .. } if *l == lane);
        let DriverEvent::ChunkReceived { result, .. } = self.expect("ChunkReceived", is_hit) else {
            unreachable!()
        };
        (result, self.arrived.remove(&lane).unwrap())
    }

    // ---- Events ----

    /// Collects the driver's events.
    pub(super) fn turn(&mut self) {
        let mut events = Vec::new();
        self.driver.poll(&mut events).unwrap();
        if events.is_empty() {
            self.driver.park(Duration::from_millis(2), &mut events).unwrap();
        }
        for event in events {
            self.check(&event);
            self.inbox.push_back(event);
        }
    }

    /// Waits for the first event that `is_hit` selects; others stay queued.
    pub(super) fn expect(
        &mut self,
        what: &str,
        is_hit: impl Fn(&DriverEvent) -> bool,
    ) -> DriverEvent {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(at) = self.inbox.iter().position(&is_hit) {
                return self.inbox.remove(at).unwrap();
            }
            assert!(Instant::now() < deadline, "no {what}; there are {:?}", self.inbox);
            self.turn();
        }
    }

    /// All events within `time`, including queued ones.
    pub(super) fn events_of(&mut self, time: Duration) -> Vec<DriverEvent> {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.turn();
        }
        self.inbox.drain(..).collect()
    }

    /// Fails if any event follows.
    pub(super) fn expect_quiet(&mut self) {
        let events = self.events_of(Duration::from_millis(30));
        assert!(events.is_empty(), "unexpected: {events:?}");
    }

    fn open_book(&mut self, lane: LaneKey, is_connecting: bool) {
        assert!(!self.gone.contains(&lane), "{lane:?} is used again");
        let book = Book { is_connecting, ..Book::default() };
        assert!(self.lanes.insert(lane, book).is_none(), "{lane:?} is open twice");
    }

    fn book(&mut self, lane: LaneKey, event: &DriverEvent) -> &mut Book {
        self.lanes.get_mut(&lane).unwrap_or_else(|| panic!("{event:?} of a lane that is not open"))
    }

    fn check(&mut self, event: &DriverEvent) {
        match *event {
            DriverEvent::Accepted { lane, .. } => self.open_book(lane, false),
            DriverEvent::Connected { lane } | DriverEvent::ConnectFailed { lane, .. } => {
                let book = self.book(lane, event);
                assert!(std::mem::take(&mut book.is_connecting), "{event:?} unasked");
            }
            DriverEvent::DatagramsReadable => {
                assert!(std::mem::take(&mut self.datagrams[0]), "{event:?} unasked");
            }
            DriverEvent::DatagramsWritable => {
                assert!(std::mem::take(&mut self.datagrams[1]), "{event:?} unasked");
            }
            DriverEvent::Readable { lane } => {
                let book = self.book(lane, event);
                assert!(std::mem::take(&mut book.watched[0]), "{event:?} unasked");
            }
            DriverEvent::Writable { lane } => {
                let book = self.book(lane, event);
                assert!(std::mem::take(&mut book.watched[1]), "{event:?} unasked");
            }
            DriverEvent::ChunkSent { lane, .. } => {
                let token = self.book(lane, event).sending.take();
                let token = token.unwrap_or_else(|| panic!("{event:?} unasked"));
                self.unreleased.get_mut(&token).expect("released before it was sent").1 = true;
            }
            DriverEvent::ChunkReleased { token } => {
                let chunk = self.unreleased.remove(&token);
                let (_, is_sent, _) = chunk.unwrap_or_else(|| panic!("{event:?} unasked"));
                assert!(is_sent, "{event:?} before the chunk was sent");
            }
            DriverEvent::ChunkReceived { lane, .. } => {
                let book = self.book(lane, event);
                assert!(std::mem::take(&mut book.is_receiving), "{event:?} unasked");
                let buffer = self.receiving.remove(&lane).unwrap();
                self.arrived.insert(lane, buffer);
            }
            DriverEvent::RailChanged { .. }
            | DriverEvent::CmaChanged { .. }
            | DriverEvent::RingChanged { .. }
            | DriverEvent::ProcessEnded { .. } => {}
            DriverEvent::Closed { lane } => {
                let book = self.lanes.remove(&lane);
                let book = book.unwrap_or_else(|| panic!("{event:?} of a lane that is not open"));
                assert!(book.sending.is_none() && !book.is_receiving, "{event:?} too early");
                let is_held = self.unreleased.values().any(|(owner, ..)| *owner == lane);
                assert!(!is_held, "{event:?} before the release of its chunks");
                self.gone.insert(lane);
            }
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if !self.driver.shutdown(PATIENCE) {
            // The kernel may still write there.
            std::mem::forget((self.unreleased.drain(), self.receiving.drain()));
            self.arena.leak();
            assert!(std::thread::panicking(), "the kernel did not release the memory");
        }
        if let Some(path) = &self.capture {
            if !std::thread::panicking() {
                wraps::check_capture(path);
            }
            std::fs::remove_file(path).unwrap();
        }
    }
}

/// The header of the chunk with this token.
pub(super) fn header(token: u64) -> [u8; CHUNK_HEADER_BYTES] {
    std::array::from_fn(|at| (token as usize * 7 + at * 3 + 1) as u8)
}

/// Bytes that differ by message and position.
pub(super) fn pattern(seed: u64, length: usize) -> Vec<u8> {
    (0..length as u64).map(|at| (at.wrapping_mul(31) ^ (at >> 8) ^ seed) as u8).collect()
}
