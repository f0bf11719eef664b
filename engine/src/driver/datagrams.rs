//! The datagram side of a driver: a UDP socket, AF_XDP frames beside it, and shared-memory rings.
//!
//! Both drivers own one of these and watch the descriptors that it returns. Polling the XDP ring
//! takes no system call, so it is polled before the socket of the same port; the socket is polled
//! less often while it delivers nothing. Frames belong to rail 0 only; datagrams of other rails use
//! the socket. Rings shared with engines of this host ([`super::shm`]) are polled before both.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use super::shm::{self, RingChange, Shm};
use super::udp::{self, SocketInterest};
use super::xdp::Frames;
use super::{DriverConfig, datagrams_open, no_datagrams};
use crate::driver::traits::{CmaLocation, ProcessCookie, Rail};
use crate::driver::traits::{
    DATAGRAM_BYTES_MAX, DriverCounters, DriverEvent, FrameDrops, FrameState, KeptFrames, LocalPeer,
    PieceHeader, RingEntry, RingName, RingSegment, SharedMemoryState, TxFlags,
};
use crate::memory::Shape;
use crate::settings::SharedMemory;

/// Polls that find no frame before the socket is polled again: polling the socket costs 120 ns or
/// more, polling the ring 5.
const SOCKET_EVERY: u32 = 64;
/// The same while rings are shared with local peers: remote peers may still use the socket. The
/// number doubles each time the socket has nothing.
const SOCKET_EVERY_WITH_RINGS: u32 = 16;
/// How often that number doubles, at most.
const DOUBLINGS_MAX: u32 = 3;
/// Polls between two readings of the clock, for the periodic [`Frames::maintain`].
const MAINTAIN_EVERY: u32 = 64;

/// The XDP frames requested, and where they may come from.
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "xdp"), allow(dead_code, reason = "there are no frames"))]
pub(super) struct FrameSource {
    /// Number of frames.
    pub(super) frames: u32,
    /// Busy-poll time of an empty ring, in microseconds; 0: interrupts drive the NIC.
    pub(super) busy_poll_us: u32,
    /// Path of the socket of `ringrail-xdpd`.
    pub(super) helper: Option<PathBuf>,
}

/// A descriptor to watch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WatchSource {
    /// The UDP socket.
    Socket,
    /// The receive queue of XDP frames.
    Frames,
    /// The unix sockets to local peers.
    LocalPeers,
}

impl WatchSource {
    /// All sources.
    pub(super) const ALL: [Self; 3] = [Self::Socket, Self::Frames, Self::LocalPeers];
}

/// The datagram side of a driver.
///
/// A driver calls [`Self::serve`] in each poll, asks the kernel for [`Self::wants`] of each source
/// before it sleeps, and reports readiness to [`Self::on_ready`].
pub(super) struct Datagrams {
    socket: Option<udp::UdpDatagrams>,
    frames: Option<Frames>,
    /// Memory shared with local peers, if enabled.
    shm: Option<Box<Shm>>,
    /// The setting.
    shm_wanted: SharedMemory,
    shm_directory: Option<PathBuf>,
    shm_has_other_users: bool,
    has_allowed_ptrace: bool,
    shm_refusal: Option<String>,
    /// The XDP frames requested; 0: none.
    frames_wanted: FrameSource,
    /// Why there are no frames.
    refusal: FrameState,
    /// The room returned last is in a frame.
    is_in_frame: bool,
    rails: Vec<Rail>,
    /// Polls until the socket is polled again.
    polls_to_socket: u32,
    /// Polls of the socket in a row that found nothing, up to [`DOUBLINGS_MAX`].
    doublings: u32,
    /// Polls since [`Frames::maintain`].
    polls_since_maintain: u32,
    counters: DriverCounters,
}

impl Datagrams {
    /// Without a socket.
    pub(super) fn new(config: &DriverConfig) -> Self {
        Self {
            socket: None,
            frames: None,
            shm: None,
            shm_wanted: config.shared_memory,
            shm_directory: config.shared_memory_directory.clone(),
            shm_has_other_users: config.shared_memory_other_users,
            has_allowed_ptrace: config.shared_memory_ptrace_any,
            shm_refusal: None,
            frames_wanted: FrameSource {
                frames: config.xdp_frames,
                busy_poll_us: config.busy_poll_us,
                helper: config.xdpd_socket.clone(),
            },
            refusal: FrameState::Off,
            is_in_frame: false,
            rails: Vec::new(),
            polls_to_socket: 0,
            doublings: 0,
            polls_since_maintain: 0,
            counters: DriverCounters::default(),
        }
    }

    /// See [`crate::driver::traits::DatagramIo::open_datagrams`].
    pub(super) fn open(&mut self, socket: UdpSocket) -> io::Result<()> {
        if self.socket.is_some() {
            return Err(datagrams_open());
        }
        self.counters.syscalls += 1;
        let mut local = socket.local_addr()?;
        if let Some(first) = self.rails.first()
            && local.ip().is_unspecified()
        {
            // Frames belong to one NIC.
            local.set_ip(first.address);
        }
        let port = (self.frames_wanted.frames > 0).then(|| socket.try_clone()).transpose()?;
        let mut socket = udp::UdpDatagrams::new(socket)?;
        socket.set_rails(&self.rails, &mut self.counters);
        self.socket = Some(socket);
        if let Some(port) = port {
            match Frames::open(port.into(), local, &self.frames_wanted) {
                Ok(frames) => self.frames = Some(frames),
                Err(cause) => {
                    tracing::warn!("AF_XDP is unavailable, using the UDP socket: {cause}");
                    self.refusal = FrameState::Refused { cause };
                }
            }
        }
        Ok(())
    }

    /// Counters of this side.
    pub(super) fn counters(&self) -> DriverCounters {
        self.counters
    }

    /// See [`crate::driver::traits::Driver::set_rails`].
    pub(super) fn set_rails(&mut self, rails: &[Rail]) {
        self.rails = rails.to_vec();
        if let Some(socket) = &mut self.socket {
            socket.set_rails(rails, &mut self.counters);
        }
    }

    /// Flushes queued datagrams once and closes all sources. Their descriptors must not be watched
    /// any more.
    pub(super) fn close(&mut self) {
        self.flush_datagrams();
        if let (Some(shm), Some(socket)) = (&mut self.shm, &mut self.socket) {
            spill(shm, socket, &mut self.counters);
        }
        (self.socket, self.frames, self.shm) = (None, None, None);
    }

    /// The descriptor to watch for a source, if it exists.
    pub(super) fn fd(&self, source: WatchSource) -> Option<RawFd> {
        match source {
            WatchSource::Socket => self.socket.as_ref().map(udp::UdpDatagrams::fd),
            WatchSource::Frames => self.frames.as_ref().and_then(Frames::fd),
            WatchSource::LocalPeers => self.shm.as_ref().map(|shm| shm.fd()),
        }
    }

    /// See [`crate::driver::traits::DatagramIo::datagram_bytes_max`].
    pub(super) fn datagram_bytes_max(&self) -> usize {
        self.frames.as_ref().map_or(DATAGRAM_BYTES_MAX, Frames::datagram_bytes_max)
    }

    /// See [`crate::driver::traits::DatagramIo::frame_state`].
    pub(super) fn frame_state(&self) -> FrameState {
        self.frames.as_ref().map_or_else(|| self.refusal.clone(), Frames::state)
    }

    /// See [`crate::driver::traits::DatagramIo::frame_drops`].
    pub(super) fn frame_drops(&mut self) -> Option<FrameDrops> {
        let frames = self.frames.as_ref()?;
        self.counters.syscalls += 1;
        Some(frames.drops())
    }

    /// See [`crate::driver::traits::DatagramIo::datagram_room`].
    #[inline(always)]
    pub(super) fn datagram_room(&mut self) -> io::Result<&mut [u8]> {
        let socket = self.socket.as_mut().ok_or_else(no_datagrams)?;
        // Also for a frame: the destination may turn out to be unreachable by frames.
        let room = socket.room(&mut self.counters)?;
        let Some(frames) = &mut self.frames else { return Ok(room) };
        let in_frame = frames.room(&mut self.counters);
        self.is_in_frame = in_frame.is_some();
        Ok(in_frame.unwrap_or(room))
    }

    /// See [`crate::driver::traits::DatagramIo::send_datagram`].
    #[inline(always)]
    pub(super) fn send_datagram(
        &mut self,
        to: SocketAddr,
        rail: u8,
        length: usize,
        tx_flags: TxFlags,
    ) {
        let Some(socket) = &mut self.socket else { return };
        if let Some(shm) = &mut self.shm
            && shm.is_up()
        {
            let written = match &mut self.frames {
                Some(frames) if self.is_in_frame => frames.written(),
                _ => socket.room(&mut self.counters).ok(),
            };
            if written.is_some_and(|written| shm.send(&written[..length], &mut self.counters)) {
                return;
            }
        }
        if self.is_in_frame
            && let Some(frames) = &mut self.frames
        {
            if rail == 0 && frames.send(to, length, tx_flags) {
                self.counters.datagrams_sent += 1;
                return;
            }
            // Both existed when the room was returned, and nothing was sent since.
            let (Some(written), Ok(room)) = (frames.written(), socket.room(&mut self.counters))
            else {
                self.counters.datagrams_refused += 1;
                return;
            };
            room[..length].copy_from_slice(&written[..length]);
        }
        socket.send(to, rail, length, tx_flags, &mut self.counters);
    }

    /// See [`crate::driver::traits::DatagramIo::flush_datagrams`].
    #[inline(always)]
    pub(super) fn flush_datagrams(&mut self) {
        if let Some(shm) = &mut self.shm
            && shm.is_behind()
        {
            shm.flush(&mut self.counters);
        }
        if let Some(frames) = &mut self.frames
            && frames.is_behind()
        {
            frames.flush(&mut self.counters);
        }
        if let Some(socket) = &mut self.socket {
            socket.flush(&mut self.counters);
        }
    }

    /// Whether rings are shared with local peers.
    pub(super) fn has_rings(&self) -> bool {
        self.shm.as_ref().is_some_and(|shm| shm.is_up())
    }

    /// See [`crate::driver::traits::DatagramIo::recv_from_ring`].
    #[inline(always)]
    pub(super) fn recv_from_ring(&mut self) -> Option<(u64, RingEntry<'_>)> {
        self.shm.as_mut().filter(|shm| shm.is_up())?.receive_entry(&mut self.counters)
    }

    /// See [`crate::driver::traits::DatagramIo::read_body`].
    #[inline]
    pub(super) fn read_body(&mut self, into: &mut [u8]) {
        if let Some(shm) = &mut self.shm {
            shm.read_body(into, &mut self.counters);
        }
    }

    /// See [`crate::driver::traits::DatagramIo::piece`].
    pub(super) fn piece(&mut self) -> &[u8] {
        self.shm.as_mut().map_or(&[], |shm| shm.piece(&mut self.counters))
    }

    /// See [`crate::driver::traits::DatagramIo::message`].
    pub(super) fn message(&mut self) -> &[u8] {
        self.shm.as_mut().map_or(&[], |shm| shm.message(&mut self.counters))
    }

    /// See [`crate::driver::traits::DatagramIo::write_piece`].
    #[inline]
    pub(super) fn write_piece(&mut self, session: u64, header: &PieceHeader, bytes: &[u8]) -> bool {
        self.shm.as_mut().is_some_and(|shm| shm.write_piece(session, header, bytes))
    }

    /// See [`crate::driver::traits::DatagramIo::write_segment`].
    #[inline(always)]
    pub(super) fn write_segment(&mut self, ring: RingName, segment: RingSegment<'_>) -> bool {
        let Some(shm) = &mut self.shm else { return false };
        shm.write_segment(ring, segment, &mut self.counters)
    }

    /// See [`crate::driver::traits::DatagramIo::take_unread`].
    pub(super) fn take_unread(&mut self, session: u64) -> Option<Vec<KeptFrames>> {
        self.shm.as_mut().map_or(Some(Vec::new()), |shm| shm.take_unread(session))
    }

    /// See [`crate::driver::traits::DatagramIo::recv_datagram`].
    #[inline(always)]
    pub(super) fn recv_datagram(&mut self) -> io::Result<Option<(SocketAddr, &mut [u8])>> {
        let Some(socket) = &mut self.socket else { return Ok(None) };
        let mut socket_every = SOCKET_EVERY;
        if let Some(shm) = &mut self.shm
            && shm.is_up()
        {
            if let Some(from) = shm.take_packet() {
                return Ok(Some((from, shm.payload())));
            }
            if self.polls_to_socket > 0 && self.frames.is_none() {
                self.polls_to_socket -= 1;
                return Ok(None);
            }
            socket_every = SOCKET_EVERY_WITH_RINGS << self.doublings;
        }
        if let Some(frames) = &mut self.frames {
            if let Some(from) = frames.receive(&mut self.counters) {
                return Ok(Some((from, frames.payload())));
            }
            if self.polls_to_socket > 0 && frames.is_up() {
                self.polls_to_socket -= 1;
                return Ok(None);
            }
        }
        let received = socket.receive(&mut self.counters);
        if matches!(received, Ok(None)) {
            self.polls_to_socket = socket_every;
            self.doublings = (self.doublings + 1).min(DOUBLINGS_MAX);
        } else {
            self.doublings = 0;
        }
        received
    }

    /// See [`crate::driver::traits::DatagramIo::watch_datagrams`].
    pub(super) fn watch_datagrams(&mut self) -> io::Result<()> {
        self.socket.as_mut().ok_or_else(no_datagrams)?.watch();
        Ok(())
    }

    /// See [`crate::driver::traits::DatagramIo::enable_shared_memory`].
    pub(super) fn enable_shared_memory(&mut self, engine: u64) {
        if self.shm_wanted == SharedMemory::Off || self.socket.is_none() {
            return;
        }
        if self.has_allowed_ptrace && self.shm_wanted == SharedMemory::Auto {
            shm::cma::allow_ptrace();
        }
        let directory = self.shm_directory.as_deref();
        let has_cma = self.shm_wanted == SharedMemory::Auto;
        match Shm::open(engine, has_cma, directory, self.shm_has_other_users) {
            Ok(shm) => self.shm = Some(Box::new(shm)),
            Err(error) => {
                let error = match directory {
                    None => error.to_string(),
                    Some(path) => format!(
                        "cannot listen in {} (setting shared_memory_directory): {error}; name a \
                         directory that this user may write to, with less than 70 characters",
                        path.display(),
                    ),
                };
                tracing::warn!("shared memory is unavailable: {error}");
                self.shm_refusal = Some(error);
            }
        }
    }

    /// See [`crate::driver::traits::DatagramIo::accepts_local_peers`].
    pub(super) fn accepts_local_peers(&self) -> bool {
        self.shm.is_some()
    }

    /// See [`crate::driver::traits::DatagramIo::connect_peer`].
    pub(super) fn connect_peer(&mut self, peer: LocalPeer) {
        if let Some(shm) = &mut self.shm {
            shm.connect_peer(peer);
        }
    }

    /// See [`crate::driver::traits::DatagramIo::disconnect_peer`].
    pub(super) fn disconnect_peer(&mut self, session: u64) {
        if let Some(shm) = &mut self.shm {
            shm.flush(&mut self.counters);
            if let Some(socket) = &mut self.socket {
                spill(shm, socket, &mut self.counters);
            }
            shm.disconnect_peer(session);
        }
    }

    /// See [`crate::driver::traits::DatagramIo::process_cookie`].
    pub(super) fn process_cookie(&self) -> Option<Arc<ProcessCookie>> {
        self.shm.as_ref()?.process_cookie()
    }

    /// See [`crate::driver::traits::DatagramIo::read_by_cma`].
    ///
    /// # Safety
    ///
    /// As there.
    pub(super) unsafe fn read_by_cma(
        &mut self,
        session: u64,
        source: CmaLocation,
        into: &Shape,
        offset: usize,
        length: usize,
    ) -> io::Result<()> {
        let shm = self.shm.as_mut().ok_or(io::ErrorKind::Unsupported)?;
        self.counters.syscalls += 1;
        // SAFETY: the caller's contract.
        unsafe { shm.read_by_cma(session, source, into, offset, length) }
    }

    /// See [`crate::driver::traits::DatagramIo::shared_memory`].
    pub(super) fn shared_memory(&self) -> SharedMemoryState {
        match (&self.shm, &self.shm_refusal) {
            (Some(shm), _) => SharedMemoryState::On { figures: shm.figures() },
            (None, Some(cause)) => SharedMemoryState::Refused { cause: cause.clone() },
            (None, None) => SharedMemoryState::Off,
        }
    }

    /// See [`crate::driver::traits::DatagramIo::local_peers_fd`].
    pub(super) fn local_peers_fd(&self) -> Option<io::Result<OwnedFd>> {
        self.shm.as_ref().map(|shm| shm.copy_of_fd())
    }

    /// See [`crate::driver::traits::Driver::begin_detached`].
    pub(super) fn begin_detached(&mut self) {
        if let Some(shm) = &mut self.shm {
            shm.begin_detached();
        }
    }

    /// See [`crate::driver::traits::Driver::end_detached`].
    pub(super) fn end_detached(&mut self) {
        if let Some(shm) = &mut self.shm {
            shm.end_detached();
        }
    }

    /// Reports events that need no system call, and maintains the frames. `sleeps`: the driver is
    /// about to sleep. `is_armed`: the kernel has been asked to watch [`WatchSource::Frames`] and
    /// has not answered.
    #[inline]
    pub(super) fn serve(&mut self, sleeps: bool, is_armed: bool, events: &mut Vec<DriverEvent>) {
        let Some(socket) = &mut self.socket else { return };
        if let Some(shm) = &mut self.shm {
            if sleeps || shm.needs_service() {
                serve_rings(shm, socket, sleeps, &mut self.counters, events);
            }
            if socket.is_watched() && shm.has_received(sleeps) {
                socket.on_ready(READABLE, &mut self.counters, events);
            }
        }
        socket.serve(sleeps, events);
        if self.frames.is_some() {
            self.serve_frames(sleeps, is_armed, events);
        }
    }

    #[inline(never)]
    fn serve_frames(&mut self, sleeps: bool, is_armed: bool, events: &mut Vec<DriverEvent>) {
        let (Some(frames), Some(socket)) = (&mut self.frames, &mut self.socket) else { return };
        self.polls_since_maintain += 1;
        if sleeps || self.polls_since_maintain >= MAINTAIN_EVERY || frames.has_pending_lookups() {
            self.polls_since_maintain = 0;
            frames.maintain(Instant::now(), is_armed);
        }
        if frames.is_behind() {
            frames.flush(&mut self.counters);
        }
        if socket.is_watched() && frames.has_received() {
            socket.on_ready(READABLE, &mut self.counters, events);
        }
    }

    /// Returns the events to request from the kernel for one source, excluding requests already
    /// made. While the driver polls, it polls the ring itself.
    pub(super) fn wants(&self, source: WatchSource, sleeps: bool) -> SocketInterest {
        let Some(socket) = &self.socket else { return SocketInterest::default() };
        match source {
            WatchSource::Socket => socket.wants(),
            WatchSource::Frames if self.fd(source).is_some() => {
                SocketInterest { readable: sleeps && socket.is_watched(), writable: false }
            }
            WatchSource::Frames => SocketInterest::default(),
            WatchSource::LocalPeers => {
                SocketInterest { readable: self.shm.is_some(), writable: false }
            }
        }
    }

    /// Whether any request to the kernel is needed beyond those made, `armed`.
    #[inline]
    pub(super) fn has_wants(&self, armed: &[SocketInterest; WatchSource::ALL.len()]) -> bool {
        (self.shm.is_some() && !armed[WatchSource::LocalPeers as usize].readable)
            || self.socket.as_ref().is_some_and(udp::UdpDatagrams::has_wants)
    }

    /// Whether a source is being closed, so that a request that watches it must be cancelled.
    pub(super) fn must_cancel(&self, source: WatchSource) -> bool {
        source == WatchSource::Frames && self.fd(source).is_none()
    }

    /// The kernel reported readiness of a source.
    pub(super) fn on_ready(
        &mut self,
        source: WatchSource,
        what: SocketInterest,
        events: &mut Vec<DriverEvent>,
    ) {
        if source == WatchSource::LocalPeers {
            if let Some(shm) = &mut self.shm {
                shm.mark_socket_events();
            }
            // Entries that came with a wake-up are found by the next poll, or reported now.
            self.serve(false, false, events);
            return;
        }
        let Some(socket) = &mut self.socket else { return };
        if source == WatchSource::Socket && what.readable {
            self.polls_to_socket = 0;
        }
        socket.on_ready(what, &mut self.counters, events);
    }
}

/// Serves local peers, and reports their events.
#[inline(never)]
fn serve_rings(
    shm: &mut Shm,
    socket: &mut udp::UdpDatagrams,
    sleeps: bool,
    counters: &mut DriverCounters,
    events: &mut Vec<DriverEvent>,
) {
    shm.serve(sleeps);
    while let Some(RingChange { session, number, is_up }) = shm.next_ring_change() {
        events.push(DriverEvent::RingChanged { session, number, is_up });
    }
    while let Some(session) = shm.next_ended_process() {
        events.push(DriverEvent::ProcessEnded { session });
    }
    while let Some((session, is_able)) = shm.next_cma_change() {
        events.push(DriverEvent::CmaChanged { session, is_able });
    }
    if shm.is_behind() {
        shm.flush(counters);
        if shm.is_behind() && shm.is_idle(sleeps) {
            spill(shm, socket, counters);
        }
    }
}

/// Packets that wait for room in a ring are sent by the socket, as far as it takes them.
fn spill(shm: &mut Shm, socket: &mut udp::UdpDatagrams, counters: &mut DriverCounters) {
    shm.spill(|to, datagram| {
        let Ok(room) = socket.room(counters) else { return false };
        room[..datagram.len()].copy_from_slice(datagram);
        counters.datagrams_sent -= 1;
        socket.send(to, 0, datagram.len(), CONSERVATIVE, counters);
        true
    });
    socket.flush(counters);
}

/// Acceptable to every receiver.
const CONSERVATIVE: TxFlags = TxFlags { no_gso: true, is_summed: true };
/// A datagram can be received.
const READABLE: SocketInterest = SocketInterest { readable: true, writable: false };
