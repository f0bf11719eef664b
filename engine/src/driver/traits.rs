//! The interface between engine loop and driver.
//!
//! A *lane* is one TCP connection. Control connections carry segments: the loop reads and writes
//! the most active ones directly, without blocking, and has the others watched. Bulk lanes carry
//! chunks: a header of fixed length followed by exactly the bytes of one granted range, moved by
//! the driver between the kernel and the message's buffer.
//!
//! # Contract
//!
//! - Every method is called by the thread that owns the engine, or by the background thread between
//!   [`Driver::begin_detached`] and [`Driver::end_detached`]: never by two at once.
//! - Per bulk lane and direction at most one chunk is outstanding.
//! - Each [`ChunkIo::send_chunk`] is answered by one [`DriverEvent::ChunkSent`] and then exactly
//!   one [`DriverEvent::ChunkReleased`]; each [`ChunkIo::recv_chunk`] by one
//!   [`DriverEvent::ChunkReceived`]. That holds for errors and for [`ConnectionIo::close`] too:
//!   [`DriverEvent::Closed`] is the last event of a lane and follows all of these. Until
//!   `ChunkReleased` (or `ChunkReceived`) the kernel may access the memory, whatever else happened.
//! - A chunk requested on a lane that is closed, or being closed, is answered in the same way with
//!   an error, so that its memory is released; the key never refers to another lane.
//! - Events carry generations: an event of a closed lane never reaches its successor.
//! - A *rail* is one NIC of this host with one of its addresses; its number is its index in the
//!   list given to [`Driver::set_rails`]. With an empty list there is only rail 0, and routing
//!   decides.
//! - All peers and rails share one datagram socket per engine. It is no lane: it has no key and
//!   exists until the driver ends. Datagrams may be lost, duplicated, reordered and corrupted
//!   (truncation and joining count as corruption); those longer than [`DATAGRAM_BYTES_MAX`] are
//!   dropped. A driver without datagrams returns `Unsupported` once, from
//!   [`DatagramIo::open_datagrams`].
//!
//! `driver/tests` verifies every driver against this.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use super::event::DriverEvent;
pub(crate) use super::local_peer::{LocalPeer, RingEntry, RingSegment};
pub(crate) use super::shm::cma::{CmaLocation, ProcessCookie};
pub(crate) use super::shm::{PIECE_BYTES_MAX, RING_SEGMENT_BYTES_MAX};
use crate::memory::Shape;

pub(crate) use crate::proto::packet::DATAGRAM_BYTES_MIN;
pub(crate) use crate::proto::session::rails::pairing::Reach;
pub(crate) use crate::proto::silence::{Resent, Unacked};
use crate::proto::table::Key;
#[cfg(feature = "xdp")]
pub(crate) use crate::types::FrameFigures;
pub(crate) use crate::types::{FrameDrops, FrameState, SharedMemoryFigures, SharedMemoryState};
pub(crate) use crate::types::{RAILS_MAX, Rail};
pub(crate) use crate::wire::chunk::CHUNK_HEADER_BYTES;
pub(crate) use crate::wire::frame_range::{KeptFrames, RingName};
pub(crate) use crate::wire::piece::PieceHeader;

/// Longest datagram, in bytes, without UDP and IP headers: what fits into a jumbo frame of 9000
/// bytes.
pub(crate) const DATAGRAM_BYTES_MAX: usize = 8972;
/// The same where the NIC's MTU is not known: more than an Ethernet frame of usual length.
pub(crate) const DATAGRAM_BYTES_USUAL: usize = 2048;

/// Identifies one lane of one driver; never reused while events of it can still arrive.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct LaneKey {
    /// Index in the driver's lane table.
    pub(crate) index: u32,
    /// Counts the uses of that entry.
    pub(crate) generation: u32,
}

impl Key for LaneKey {
    fn new(index: u32, generation: u32) -> Self {
        Self { index, generation }
    }

    fn index(self) -> usize {
        self.index as usize
    }

    fn generation(self) -> u32 {
        self.generation
    }
}

/// How a chunk is sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SendMode {
    /// The kernel copies the bytes during the call.
    Copy,
    /// The same, and its last packet may be held back until the next chunk fills it (`MSG_MORE`).
    CopyMore,
    /// The kernel references the memory until `ChunkReleased`; registered memory is sent as a fixed
    /// buffer. A driver without support falls back to `Copy`.
    ZeroCopy,
}

/// How to close a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CloseMode {
    /// Sent bytes are delivered, then FIN. Outstanding chunks are cancelled. A peer that does not
    /// read can delay `Closed` for as long as the kernel needs the memory of a chunk; a second
    /// close with `Reset` ends that.
    Graceful,
    /// RST: nothing more is sent or received (`SO_LINGER` 0).
    Reset,
}

/// The event that [`ConnectionIo::watch`] waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Interest {
    /// Bytes, end of stream or an error can be read.
    Readable,
    /// There is room to write, or an error.
    Writable,
}

/// Kernel statistics of a TCP connection since it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TcpFigures {
    /// Retransmitted segments.
    pub(crate) retransmits: u64,
    /// Smoothed round-trip time.
    pub(crate) round_trip: Duration,
}

/// Counters of a driver, owned by the engine's thread.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct DriverCounters {
    /// System calls made, including those that found nothing to do.
    pub(crate) syscalls: u64,
    /// Completions whose index or generation did not match.
    pub(crate) stale_completions: u64,
    /// Completion-queue overflows seen (must stay 0).
    pub(crate) cq_overflows: u64,
    /// Zero-copy chunks sent.
    pub(crate) zero_copy_sends: u64,
    /// Of these, chunks that the kernel copied after all.
    pub(crate) zero_copy_copied: u64,
    /// Chunks sent as fixed (registered) buffers.
    pub(crate) registered_sends: u64,
    /// Datagrams accepted by the kernel.
    pub(crate) datagrams_sent: u64,
    /// Datagrams returned to the caller.
    pub(crate) datagrams_received: u64,
    /// Received datagrams dropped because longer than [`DATAGRAM_BYTES_MAX`].
    pub(crate) datagrams_too_long: u64,
    /// Datagrams that the kernel refused to send because of their destination or length.
    pub(crate) datagrams_refused: u64,
    /// Connections closed at once because made to an address of no rail.
    pub(crate) foreign_connections: u64,
}

impl DriverCounters {
    /// The sum of both.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            syscalls: self.syscalls + other.syscalls,
            stale_completions: self.stale_completions + other.stale_completions,
            cq_overflows: self.cq_overflows + other.cq_overflows,
            zero_copy_sends: self.zero_copy_sends + other.zero_copy_sends,
            zero_copy_copied: self.zero_copy_copied + other.zero_copy_copied,
            registered_sends: self.registered_sends + other.registered_sends,
            datagrams_sent: self.datagrams_sent + other.datagrams_sent,
            datagrams_received: self.datagrams_received + other.datagrams_received,
            datagrams_too_long: self.datagrams_too_long + other.datagrams_too_long,
            datagrams_refused: self.datagrams_refused + other.datagrams_refused,
            foreign_connections: self.foreign_connections + other.foreign_connections,
        }
    }
}

/// Connections, and the bytes of control connections.
pub(crate) trait ConnectionIo {
    /// Accepts connections from this listener, too. It must be non-blocking.
    fn listen(&mut self, listener: TcpListener) -> io::Result<()>;

    /// The rail has another NIC than before ([`Driver::nic_of`]): opens a listener bound to that,
    /// which replaces the rail's, beside `everywhere`, which is bound to the wildcard address.
    /// Returns a copy of it; `None`: the rail has none, and `everywhere` accepts its connections.
    fn rebind_listener(&mut self, rail: u8, everywhere: &TcpListener) -> Option<TcpListener> {
        let _ = (rail, everywhere);
        None
    }

    /// Accepts no connection for `pause`; new ones wait in the kernel, which drops those beyond its
    /// backlog. A longer pause in effect is kept.
    fn pause_accept(&mut self, pause: Duration) {
        let _ = pause;
    }

    /// Starts a connection; the outcome is reported as an event.
    ///
    /// Its source is the address of `rail`. A number without a rail, and an address family other
    /// than that of `remote`, are errors. `TCP_NODELAY` and keep-alive are set on every lane.
    /// `segment_bytes` limits the segments of both directions, options included (`TCP_MAXSEG`);
    /// `None`: as long as both NICs take them.
    fn connect(
        &mut self,
        remote: SocketAddr,
        rail: u8,
        segment_bytes: Option<u16>,
    ) -> io::Result<LaneKey>;

    /// Takes over a connected socket (accepted, or returned by [`Driver::dismantle`]).
    fn adopt(&mut self, socket: OwnedFd) -> io::Result<LaneKey>;

    /// Writes to a control connection without blocking; returns how many bytes the kernel took.
    fn send(&mut self, lane: LaneKey, bytes: &[u8]) -> io::Result<usize>;

    /// Writes `head` and then `body`, by one call if possible. An error after the first byte is
    /// returned by the next call.
    fn send_both(&mut self, lane: LaneKey, head: &[u8], body: &[u8]) -> io::Result<usize> {
        let sent = self.send(lane, head)?;
        if sent < head.len() {
            return Ok(sent);
        }
        Ok(sent + self.send(lane, body).unwrap_or(0))
    }

    /// Reads from a control connection without blocking; 0 means end of stream.
    fn recv(&mut self, lane: LaneKey, into: &mut [u8]) -> io::Result<usize>;

    /// Requests one event when the lane is ready. Requesting again while armed has no effect.
    fn watch(&mut self, lane: LaneKey, interest: Interest) -> io::Result<()>;

    /// Closes a lane: outstanding chunks are cancelled and reaped, then `Closed` is reported.
    fn close(&mut self, lane: LaneKey, mode: CloseMode);

    /// Local and remote address of a connected lane; `None` if it is not connected or the driver
    /// does not know.
    fn addresses(&self, lane: LaneKey) -> Option<(SocketAddr, SocketAddr)> {
        let _ = lane;
        None
    }

    /// What the peer's kernel has left unacknowledged on this lane (from `TCP_INFO`): data,
    /// keep-alive probes or zero-window probes.
    fn unacked(&mut self, lane: LaneKey) -> io::Result<Unacked>;

    /// Acknowledges received data at once instead of delaying the ACK (`TCP_QUICKACK`): a zero-copy
    /// sender waits for it. No effect if the lane is not connected or ACKs are not delayed.
    fn quickack(&mut self, lane: LaneKey) {
        let _ = lane;
    }

    /// Kernel statistics of a connected lane; `None` if it is not connected, or there are none. One
    /// system call: for statistics.
    fn tcp_figures(&mut self, lane: LaneKey) -> Option<TcpFigures> {
        let _ = lane;
        None
    }
}

/// A chunk to send: `header`, and then `length` bytes of `source` from `offset`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutgoingChunk<'a> {
    /// The bulk lane.
    pub(crate) lane: LaneKey,
    /// Identifies the chunk in [`DriverEvent::ChunkReleased`].
    pub(crate) token: u64,
    pub(crate) header: &'a [u8; CHUNK_HEADER_BYTES],
    pub(crate) source: &'a Shape,
    pub(crate) offset: usize,
    pub(crate) length: usize,
    pub(crate) mode: SendMode,
}

/// Transfer of chunks on bulk lanes.
pub(crate) trait ChunkIo {
    /// Sends the header of a chunk and then its bytes.
    ///
    /// # Safety
    ///
    /// The memory behind its `source` stays valid and unchanged until `ChunkReleased`. The `Shape`
    /// value itself is only read during the call.
    unsafe fn send_chunk(&mut self, chunk: &OutgoingChunk<'_>);

    /// Receives a header and then `length` bytes into `target` from `offset`.
    ///
    /// # Safety
    ///
    /// The memory behind `target` stays valid, and nothing else accesses it, until
    /// `ChunkReceived`. The `Shape` value itself is only read during the call.
    unsafe fn recv_chunk(&mut self, lane: LaneKey, target: &Shape, offset: usize, length: usize);
}

/// How a datagram is to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TxFlags {
    /// It is never joined with others by GSO: its receiver may take it before the batch is
    /// segmented.
    pub(crate) no_gso: bool,
    /// It has a UDP checksum; otherwise it may be omitted where IP allows that.
    ///
    /// RR-PATH-8.
    pub(crate) is_summed: bool,
}

impl TxFlags {
    /// Defaults: GSO allowed, with a checksum.
    #[cfg(test)]
    pub(crate) const PLAIN: Self = Self { no_gso: false, is_summed: true };
}

/// The datagram socket, with XDP frames and shared-memory rings beside it. A driver without
/// datagrams implements none of this.
pub(crate) trait DatagramIo {
    /// Sends and receives datagrams by this socket from now on. It must be bound, not connected,
    /// and non-blocking. After an error the driver has no datagrams; a second socket is refused
    /// with `AlreadyExists`, and the first one stays.
    fn open_datagrams(&mut self, socket: UdpSocket) -> io::Result<()> {
        let _ = socket;
        Err(io::ErrorKind::Unsupported.into())
    }

    /// A buffer for the next datagram, at least [`Self::datagram_bytes_max`] bytes of any content.
    /// `WouldBlock`: all queues are full even after a flush; one [`DriverEvent::DatagramsWritable`]
    /// follows, however often this failed. Other errors are not specific to a peer. A buffer that
    /// is not sent is returned again.
    fn datagram_room(&mut self) -> io::Result<&mut [u8]> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Queues the first `length` bytes of the buffer returned last, at most
    /// [`Self::datagram_bytes_max`], for sending to `to` by `rail`. A buffer is sent once; ask for
    /// another one. A datagram that the network or the kernel refuses because of its destination or
    /// rail is lost.
    fn send_datagram(&mut self, to: SocketAddr, rail: u8, length: usize, tx_flags: TxFlags) {
        let _ = (to, rail, length, tx_flags);
    }

    /// Hands queued datagrams to the kernel, as far as it takes them; later polls send the rest.
    /// Makes no system call when nothing is queued.
    fn flush_datagrams(&mut self) {}

    /// The next received datagram and its source, without blocking. The bytes are valid until the
    /// next call. `None`: the queue was empty when the driver last asked the kernel, in this call
    /// or together with the previous datagram, but since the last poll; the call after a `None`
    /// asks again. With XDP frames ([`Self::frame_state`]) this refers to the frames; an idle
    /// socket is polled every few calls.
    fn recv_datagram(&mut self) -> io::Result<Option<(SocketAddr, &mut [u8])>> {
        Ok(None)
    }

    /// Requests one event when a datagram can be received. Requesting again while armed has no
    /// effect; datagrams already in the driver count. The event may be stale: the datagram can be
    /// received before the event is reported.
    fn watch_datagrams(&mut self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Longest datagram that can be received, once there is a socket; at most
    /// [`DATAGRAM_BYTES_MAX`].
    fn datagram_bytes_max(&self) -> usize {
        DATAGRAM_BYTES_MAX
    }

    /// State and counters of AF_XDP.
    fn frame_state(&self) -> FrameState {
        FrameState::Off
    }

    /// Lets local peers connect to this engine, whose id is `engine`. Called after
    /// [`Self::open_datagrams`]; no effect unless enabled by the setting.
    fn enable_shared_memory(&mut self, engine: u64) {
        let _ = engine;
    }

    /// Whether [`Self::connect_peer`] can have any effect.
    fn accepts_local_peers(&self) -> bool {
        false
    }

    /// A session has begun. If its peer is on this host, the datagrams of its first path use shared
    /// memory, both ways, as soon as both sides agree; otherwise nothing changes. Datagrams in
    /// flight may be overtaken.
    fn connect_peer(&mut self, peer: LocalPeer) {
        let _ = peer;
    }

    /// Writes a segment of a session into its ring, as [`DriverEvent::RingChanged`] named it, at
    /// most [`RING_SEGMENT_BYTES_MAX`] long. Entries arrive whole and in order, unless the ring
    /// ends. `false`: no room now, another ring, or none. [`Self::flush_datagrams`] notifies the
    /// peer.
    fn write_segment(&mut self, ring: RingName, segment: RingSegment<'_>) -> bool {
        let _ = (ring, segment);
        false
    }

    /// Returns what was written without a header into a ring of this session that has ended, and
    /// was not reported as read, in its order; once, after [`DriverEvent::RingChanged`] has
    /// reported the end. The peer may have taken some of it, and may take others meanwhile. `None`:
    /// the peer has overwritten what it had not read.
    fn take_unread(&mut self, session: u64) -> Option<Vec<KeptFrames>> {
        let _ = session;
        Some(Vec::new())
    }

    /// Writes a piece of a message, at most [`PIECE_BYTES_MAX`] bytes, into the ring of a session,
    /// as [`Self::write_segment`] does. `false` also if the remaining room is reserved for
    /// segments.
    fn write_piece(&mut self, session: u64, header: &PieceHeader, bytes: &[u8]) -> bool {
        let _ = (session, header, bytes);
        false
    }

    /// The next entry of any ring, and its session; valid until the next call. `None`: there is
    /// none, or a packet precedes it, which [`Self::recv_datagram`] returns.
    fn recv_from_ring(&mut self) -> Option<(u64, RingEntry<'_>)> {
        None
    }

    /// Copies the bytes of the piece returned last, or those of the message behind its first ones,
    /// to their destination, which has their length; once. This makes room in the ring.
    fn read_body(&mut self, into: &mut [u8]) {
        let _ = into;
    }

    /// The same, for bytes that have no contiguous destination: valid until the next call.
    fn piece(&mut self) -> &[u8] {
        &[]
    }

    /// Returns all bytes of the message returned last: valid until the next call. In place of
    /// [`Self::read_body`].
    fn message(&mut self) -> &[u8] {
        &[]
    }

    /// The session given to [`Self::connect_peer`] has ended.
    fn disconnect_peer(&mut self, session: u64) {
        let _ = session;
    }

    /// The cookie by which local peers verify that they read this engine's memory; `None`: they may
    /// not. It is the same for the life of the driver, and is cleared at its end.
    fn process_cookie(&self) -> Option<Arc<ProcessCookie>> {
        None
    }

    /// Reads bytes `offset..offset + length` of a message from the memory of a session's peer,
    /// which announced it at `source`, to the same offsets of `into`, synchronously.
    ///
    /// # Errors
    ///
    /// The bytes were not read, or are not valid. The message may be transferred by other means.
    ///
    /// # Safety
    ///
    /// The memory behind `into` is live and writable, and nothing else accesses these bytes of it
    /// during the call.
    unsafe fn read_by_cma(
        &mut self,
        session: u64,
        source: CmaLocation,
        into: &Shape,
        offset: usize,
        length: usize,
    ) -> io::Result<()> {
        let _ = (session, source, into, offset, length);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// State and counters of shared memory.
    fn shared_memory(&self) -> SharedMemoryState {
        SharedMemoryState::Off
    }

    /// A copy of the descriptor that becomes readable when a local peer wrote something while the
    /// owner is detached or asleep; `None`: there is none.
    fn local_peers_fd(&self) -> Option<io::Result<OwnedFd>> {
        None
    }

    /// Frames dropped by the kernel; `None`: AF_XDP was never used. One system call: for
    /// statistics.
    fn frame_drops(&mut self) -> Option<FrameDrops> {
        None
    }
}

/// One set of sockets and rings, used by one thread.
pub(crate) trait Driver: ConnectionIo + ChunkIo + DatagramIo {
    /// `"uring"` or `"sockets"`.
    fn name(&self) -> &'static str;

    /// Whether a [`Self::poll`] that finds nothing makes no system call.
    fn polls_for_free(&self) -> bool;

    /// Sets the rails, at most [`RAILS_MAX`], in the order of their numbers. Called before
    /// [`ConnectionIo::listen`] and [`DatagramIo::open_datagrams`], and again when the list
    /// changes: earlier events may still carry old numbers, and open lanes are unaffected. An empty
    /// list, as at the start: only rail 0, and routing decides.
    ///
    /// With one rail, listener and datagram socket are bound to its address. With several they are
    /// bound to the wildcard address, each rail sends from its own, and connections to other
    /// addresses of this host are closed ([`DriverCounters::foreign_connections`]). Rails may have
    /// listeners of their own beside that one, bound to their NICs, as are the connections they
    /// accept.
    fn set_rails(&mut self, rails: &[Rail]) -> io::Result<()>;

    /// How `remote` is reached by a rail, according to routing tables.
    fn reach(&mut self, rail: u8, remote: IpAddr) -> Reach {
        let _ = (rail, remote);
        Reach::Unknown
    }

    /// Index of the NIC that a rail has now: a NIC that is deleted and made again, or returns from
    /// another network namespace, has another index. A [`DriverEvent::RailChanged`] reports when it
    /// is up. `None`: as given to [`Self::set_rails`].
    fn nic_of(&self, rail: u8) -> Option<u32> {
        let _ = rail;
        None
    }

    /// Collects events, without blocking. Makes no system call when there is nothing to submit and
    /// the kernel signals nothing (io_uring).
    fn poll(&mut self, events: &mut Vec<DriverEvent>) -> io::Result<()>;

    /// Like [`Self::poll`], but sleeps until there is an event or `timeout` is over.
    fn park(&mut self, timeout: Duration, events: &mut Vec<DriverEvent>) -> io::Result<()>;

    /// A copy of the descriptor that becomes readable when an armed driver has events for
    /// [`Self::poll`]. Valid for the life of the driver.
    fn wake_fd(&self) -> io::Result<OwnedFd> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Prepares a sleep by [`Self::wake_fd`] in place of [`Self::park`]. Returns how long it may
    /// last, at most `timeout`; zero: events are pending.
    fn arm(&mut self, timeout: Duration) -> io::Result<Duration> {
        let _ = timeout;
        Err(io::ErrorKind::Unsupported.into())
    }

    /// The owner leaves the engine: until [`Self::end_detached`] another thread makes the calls,
    /// except [`Self::park`], [`Self::shutdown`] and [`Self::dismantle`]. A driver whose requests
    /// only the owner can submit defers them until then; an event may be reported again to the
    /// owner. `false`: chunks are such requests, and none may be started now.
    fn begin_detached(&mut self) -> bool {
        true
    }

    /// Ends [`Self::begin_detached`].
    fn end_detached(&mut self) {}

    /// Closes everything and reaps outstanding requests, for at most `limit`. Sent bytes are
    /// delivered, except on lanes with unreleased chunks: these are reset. Queued datagrams are
    /// flushed once more. `false`: the kernel may still reference memory, which the caller must
    /// then leak.
    fn shutdown(&mut self, limit: Duration) -> bool;

    /// Returns every lane's socket, for another driver to adopt on another thread. Only when no
    /// chunk and no connection attempt is outstanding, otherwise `WouldBlock`; watches are
    /// cancelled and reaped first. The driver can only be dropped afterwards. The datagram socket
    /// is flushed and dropped without traces: keep a clone to continue with it. Datagrams that the
    /// driver held are lost.
    fn dismantle(&mut self) -> io::Result<Vec<(LaneKey, OwnedFd)>>;

    /// The counters so far.
    fn counters(&self) -> DriverCounters;
}
