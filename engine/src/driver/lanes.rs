//! What the engine loop asks of a driver.
//!
//! A *lane* is one TCP connection. Control lanes carry segments: the loop reads and writes the
//! hottest of them directly, without blocking, and has the others watched. Bulk lanes carry
//! chunks: a header of fixed length followed by exactly the bytes of one granted range, moved by
//! the driver between the kernel and the message's buffer.
//!
//! # Contract
//!
//! - Every method is called by the thread that owns the engine, or by the caretaker between
//!   [`Driver::begin_absence`] and [`Driver::end_absence`]: never by two at once.
//! - Per bulk lane and direction at most one chunk is outstanding.
//! - Each [`BulkLanes::send_chunk`] is answered by one [`DriverEvent::ChunkSent`] and then exactly
//!   one [`DriverEvent::ChunkReleased`]; each [`BulkLanes::recv_chunk`] by one
//!   [`DriverEvent::ChunkReceived`]. That holds for errors and for [`ControlLanes::close`] too:
//!   [`DriverEvent::Closed`] is the last event of a lane and comes after all of these. Until
//!   `ChunkReleased` (or `ChunkReceived`) the kernel may still touch the memory, whatever else
//!   happened.
//! - A chunk that is asked of a lane which is closed, or being closed, is answered in the same way
//!   with an error, so that its memory comes back; the key names no other lane.
//! - Events carry generations: an event of a closed lane never reaches its successor.
//! - A *rail* is one NIC of this host by one address; its number is its place in the list that
//!   [`Driver::set_rails`] was given. With an empty list there is rail 0 alone, and routes decide.
//! - Datagrams go by one socket of the engine for all peers and rails, which is no lane: it has
//!   no key and is there until the driver ends. Datagrams may be lost, repeated, reordered and
//!   garbled; one that is cut, or joined with others, is one that is garbled or lost: what is
//!   longer than [`DATAGRAM_BYTES_MAX`] is dropped. A driver without datagrams says `Unsupported`
//!   once, to [`DatagramPort::open_datagrams`].
//!
//! `driver/tests` holds every driver to this.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use super::event::DriverEvent;
pub(crate) use super::neighbour::{GivenMemory, MemoryPiece, Neighbour, RingEntry};
pub(crate) use super::shm::cma::{CmaSource, Witness};
pub(crate) use super::shm::{PIECE_BYTES_MAX, RING_SEGMENT_BYTES_MAX};
use crate::memory::Shape;

pub(crate) use crate::proto::packet::DATAGRAM_BYTES_MIN;
pub(crate) use crate::proto::rails::pairing::Reach;
pub(crate) use crate::proto::silence::{Owed, Resent};
use crate::proto::table::Key;
#[cfg(feature = "xdp")]
pub(crate) use crate::types::FrameFigures;
pub(crate) use crate::types::{FrameDrops, FrameState, SharedMemoryFigures, SharedMemoryState};
pub(crate) use crate::types::{RAILS_MAX, Rail};
pub(crate) use crate::wire::chunk::CHUNK_HEADER_BYTES;
pub(crate) use crate::wire::piece::PieceHeader;

/// Longest datagram, in bytes, without the headers of UDP and IP: what a jumbo frame of 9000 bytes
/// has room for.
pub(crate) const DATAGRAM_BYTES_MAX: usize = 8972;
/// The same where the NIC's length is not known: an Ethernet frame of usual length, with room to
/// spare.
pub(crate) const DATAGRAM_BYTES_USUAL: usize = 2048;

/// Names one lane of one driver; never reused while events of it can still arrive.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct LaneKey {
    /// Slot in the driver's lane table.
    pub(crate) index: u32,
    /// Counts the uses of the slot.
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

/// How a chunk leaves the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SendMode {
    /// The kernel copies the bytes during the call.
    Copy,
    /// The same, and its last packet may wait for the next chunk, which fills it (`MSG_MORE`).
    CopyMore,
    /// The kernel references the memory until it says otherwise; registered memory is sent by
    /// its registration. A driver that cannot falls back to `Copy` by itself.
    ZeroCopy,
}

/// How a lane is closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CloseMode {
    /// Sent bytes are delivered, then FIN. Outstanding chunks are cancelled. A peer that does
    /// not read can hold `Closed` back for as long as the kernel needs the memory of a chunk; a
    /// second close with `Reset` ends that.
    Graceful,
    /// RST: nothing more is sent or received (`SO_LINGER` 0).
    Reset,
}

/// What [`ControlLanes::watch`] waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Interest {
    /// Bytes, end of stream or an error can be read.
    Readable,
    /// There is room to write, or an error.
    Writable,
}

/// What the kernel counted of a TCP connection since that was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TcpFigures {
    /// Segments that were sent again.
    pub(crate) retransmits: u64,
    /// Smoothed round trip.
    pub(crate) round_trip: Duration,
}

/// What a driver counts. Plain numbers, owned by the engine's thread.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct DriverCounters {
    /// System calls made, those that found nothing to do included.
    pub(crate) syscalls: u64,
    /// Completions whose slot or generation did not match anything.
    pub(crate) stale_completions: u64,
    /// Completion-queue overflows seen (must stay 0).
    pub(crate) cq_overflows: u64,
    /// Chunks sent with zero copy.
    pub(crate) zero_copy_sends: u64,
    /// Of these, chunks that the kernel copied after all.
    pub(crate) zero_copy_copied: u64,
    /// Chunks sent from registered memory by its registration.
    pub(crate) registered_sends: u64,
    /// Datagrams that the kernel took.
    pub(crate) datagrams_sent: u64,
    /// Datagrams that were given to the caller.
    pub(crate) datagrams_received: u64,
    /// Datagrams that came in longer than [`DATAGRAM_BYTES_MAX`] and were dropped.
    pub(crate) datagrams_too_long: u64,
    /// Datagrams to be sent that the kernel refused for the sake of their destination or length.
    pub(crate) datagrams_refused: u64,
    /// Connections to an address of this host that is none of its rails', closed at once.
    pub(crate) foreign_connections: u64,
}

impl DriverCounters {
    /// Both together.
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

/// Connections, and the bytes of those that are control lanes.
pub(crate) trait ControlLanes {
    /// Accepts connections from now on, by one listener more. It is non-blocking already.
    fn listen(&mut self, listener: TcpListener) -> io::Result<()>;

    /// A rail has another NIC than before ([`Driver::nic_of`]): a listener that is bound to that
    /// takes the place of the rail's, beside `everywhere`, which is bound to no address. Returns a
    /// copy of it; `None`: the rail has none, and what comes by it comes to `everywhere`.
    fn listen_anew(&mut self, rail: u8, everywhere: &TcpListener) -> Option<TcpListener> {
        let _ = (rail, everywhere);
        None
    }

    /// Accepts no connection for `pause`; those that come wait in the kernel, and those that its
    /// queue has no room for are dropped there. A longer pause that is under way stays.
    fn rest_from_accepting(&mut self, pause: Duration) {
        let _ = pause;
    }

    /// Starts a connection; the outcome comes as an event.
    ///
    /// It leaves by `rail`, from the rail's address; a number that no rail has, and a rail whose
    /// address is of another family than `remote`, are errors. `TCP_NODELAY` and keep-alive are
    /// set on every lane. `segment_bytes` bounds the segments of both directions, options included
    /// (`TCP_MAXSEG`); `None`: as long as both NICs take them.
    fn connect(
        &mut self,
        remote: SocketAddr,
        rail: u8,
        segment_bytes: Option<u16>,
    ) -> io::Result<LaneKey>;

    /// Takes over a connected socket (an accepted one, or one that [`Driver::dismantle`] gave up).
    fn adopt(&mut self, socket: OwnedFd) -> io::Result<LaneKey>;

    /// Writes to a control lane without blocking; returns how many bytes the kernel took.
    fn send(&mut self, lane: LaneKey, bytes: &[u8]) -> io::Result<usize>;

    /// Writes `head` and then `body`, as one if it can. What became of an error after the first
    /// byte is asked again by the next call.
    fn send_both(&mut self, lane: LaneKey, head: &[u8], body: &[u8]) -> io::Result<usize> {
        let sent = self.send(lane, head)?;
        if sent < head.len() {
            return Ok(sent);
        }
        Ok(sent + self.send(lane, body).unwrap_or(0))
    }

    /// Reads from a control lane without blocking; 0 means end of stream.
    fn recv(&mut self, lane: LaneKey, into: &mut [u8]) -> io::Result<usize>;

    /// Asks for one event when the lane is ready. Asking again while armed changes nothing.
    fn watch(&mut self, lane: LaneKey, interest: Interest) -> io::Result<()>;

    /// Ends a lane: outstanding chunks are cancelled and reaped, then `Closed` is reported.
    fn close(&mut self, lane: LaneKey, mode: CloseMode);

    /// Both ends of a connected lane, this one first; `None` when the lane is not connected, or
    /// the driver does not know.
    fn addresses(&self, lane: LaneKey) -> Option<(SocketAddr, SocketAddr)> {
        let _ = lane;
        None
    }

    /// What the peer's kernel owes on this lane (from `TCP_INFO`): an answer to bytes, to
    /// keep-alive, or to questions about a window that is shut.
    fn owed(&mut self, lane: LaneKey) -> io::Result<Owed>;

    /// What has arrived on a lane is acknowledged now, and not with what may be sent there next
    /// (`TCP_QUICKACK`): a sender whose memory the kernel sends from waits for that. Where nobody
    /// puts it off, or the lane is not connected, nothing happens.
    fn hasten_ack(&mut self, lane: LaneKey) {
        let _ = lane;
    }

    /// What the kernel has sent again and again on a connected lane; `None`: nothing, or the driver
    /// does not know.
    fn resent(&mut self, lane: LaneKey) -> Option<Resent> {
        let _ = lane;
        None
    }

    /// What the kernel counted of a connected lane; `None` where it is not connected, or nobody
    /// counts. One system call: for statistics.
    fn tcp_figures(&mut self, lane: LaneKey) -> Option<TcpFigures> {
        let _ = lane;
        None
    }
}

/// What bulk lanes move.
pub(crate) trait BulkLanes {
    /// Sends `header` and then `length` bytes of `source` from `offset`.
    ///
    /// # Safety
    ///
    /// The memory behind `source` stays valid and unchanged until `ChunkReleased`. The `Shape`
    /// value itself is only read during the call.
    #[allow(clippy::too_many_arguments)]
    unsafe fn send_chunk(
        &mut self,
        lane: LaneKey,
        token: u64,
        header: &[u8; CHUNK_HEADER_BYTES],
        source: &Shape,
        offset: usize,
        length: usize,
        mode: SendMode,
    );

    /// Receives a header and then `length` bytes into `target` from `offset`.
    ///
    /// # Safety
    ///
    /// The memory behind `target` stays valid, and nothing else accesses it, until
    /// `ChunkReceived`. The `Shape` value itself is only read during the call.
    unsafe fn recv_chunk(&mut self, lane: LaneKey, target: &Shape, offset: usize, length: usize);
}

/// What a datagram needs on its way out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Handling {
    /// It is not joined with others in one train: its receiver may take it before anything cuts
    /// them.
    pub(crate) is_alone: bool,
    /// It has UDP's checksum; otherwise it may go without where IP allows that.
    ///
    /// RR-PATH-8.
    pub(crate) is_summed: bool,
}

impl Handling {
    /// As any receiver takes it: in a train or not, with a checksum.
    #[cfg(test)]
    pub(crate) const PLAIN: Self = Self { is_alone: false, is_summed: true };
}

/// The socket of datagrams, with the frames beside it. A driver without datagrams implements none
/// of this.
pub(crate) trait DatagramPort {
    /// Sends and receives datagrams by this socket from now on. It is bound, not connected, and
    /// non-blocking already. An error leaves the driver without datagrams; a second socket is
    /// refused with `AlreadyExists`, and the first one stays.
    fn open_datagrams(&mut self, socket: UdpSocket) -> io::Result<()> {
        let _ = socket;
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Room for the next datagram to be sent, at least [`Self::datagram_bytes_max`] bytes of any
    /// content. `WouldBlock`: everything that the driver queues is full even after a flush;
    /// [`DriverEvent::DatagramsWritable`] follows, once, however often there was none. Any other
    /// error concerns no single peer. Room that is not sent is given again.
    fn datagram_room(&mut self) -> io::Result<&mut [u8]> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Queues the first `length` bytes of the room that was given last for sending to `to` by
    /// `rail`, at most [`Self::datagram_bytes_max`]; room is sent once, and must be asked for
    /// again. What the network, or the kernel for the sake of one destination or rail, refuses is
    /// lost.
    fn send_datagram(&mut self, to: SocketAddr, rail: u8, length: usize, handling: Handling) {
        let _ = (to, rail, length, handling);
    }

    /// Hands queued datagrams to the kernel, as far as it takes them; the rest goes when it does,
    /// in a poll and without being asked for. Makes no system call when nothing is queued.
    fn flush_datagrams(&mut self) {}

    /// The next datagram that came in and where it came from, without blocking. Its bytes are valid
    /// until the next call. `None`: none was there when the driver last asked the kernel, in this
    /// call or together with the datagram before, but since the last poll; the call after a `None`
    /// asks again. Where datagrams come as frames ([`Self::frame_state`]), that holds for the
    /// frames; a socket that nothing came by lately is asked every few calls.
    fn recv_datagram(&mut self) -> io::Result<Option<(SocketAddr, &mut [u8])>> {
        Ok(None)
    }

    /// Asks for one event when a datagram can be received. Asking again while armed changes
    /// nothing; datagrams that a driver holds already count. The event may be out of date: what it
    /// announced can be received before it is told.
    fn watch_datagrams(&mut self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Longest datagram that can come in, once there is a socket; at most [`DATAGRAM_BYTES_MAX`].
    fn datagram_bytes_max(&self) -> usize {
        DATAGRAM_BYTES_MAX
    }

    /// Whether datagrams go as AF_XDP frames, and how these fare.
    fn frame_state(&self) -> FrameState {
        FrameState::Off
    }

    /// Engines of this host may share memory with this one from now on, whose id is `engine`. Comes
    /// behind [`Self::open_datagrams`]; without the setting nothing happens.
    fn listen_to_neighbours(&mut self, engine: u64) {
        let _ = engine;
    }

    /// Whether [`Self::meet`] may come to anything.
    fn takes_neighbours(&self) -> bool {
        false
    }

    /// A session has begun. If its other side is on this host its first path's datagrams go by
    /// shared memory, both ways, as soon as both sides agree; until then and if not, nothing is
    /// different. Those that are on their way may be overtaken.
    fn meet(&mut self, neighbour: Neighbour) {
        let _ = neighbour;
    }

    /// Writes a segment of a session into its ring ([`DriverEvent::RingChanged`]), at most
    /// [`RING_SEGMENT_BYTES_MAX`] long. It is in two places: if the second is not empty, the first
    /// has a multiple of 8 bytes. What is written arrives, whole and in order, unless the
    /// ring ends. `false`: there is no room now, or no ring. [`Self::flush_datagrams`] wakes a
    /// neighbour that sleeps.
    fn write_segment(&mut self, session: u64, segment: [&[u8]; 2]) -> bool {
        let _ = (session, segment);
        false
    }

    /// Writes a piece of a message, at most [`PIECE_BYTES_MAX`] bytes, into the ring of a session,
    /// as [`Self::write_segment`] does. `false` also where the room that is left is for segments.
    fn write_piece(&mut self, session: u64, header: &PieceHeader, bytes: &[u8]) -> bool {
        let _ = (session, header, bytes);
        false
    }

    /// What came next by a ring, and its session; valid until the next call. `None`: nothing is
    /// there, or a packet is, which comes by [`Self::recv_datagram`] first.
    fn recv_from_ring(&mut self) -> Option<(u64, RingEntry<'_>)> {
        None
    }

    /// Copies the bytes of the piece that came last, as many as that says, to where they belong;
    /// once. This makes room for others.
    fn read_piece(&mut self, into: &mut [u8]) {
        let _ = into;
    }

    /// The same, for bytes that do not belong in one place: valid until the next call.
    fn piece(&mut self) -> &[u8] {
        &[]
    }

    /// Asks the other side of a session with a ring for the memory that a key opens. A
    /// [`DriverEvent::MemoryGiven`] with the token answers, unless the ring ends before.
    ///
    /// # Errors
    ///
    /// There is no ring, or `WouldBlock`: the neighbour has not heard of the questions before.
    fn ask_for_memory(&mut self, session: u64, token: u32, key: u64) -> io::Result<()> {
        let _ = (session, token, key);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Answers a [`DriverEvent::MemoryAsked`]: with memory, which is the peer's to map from then
    /// on, or with a code.
    ///
    /// # Errors
    ///
    /// As for [`Self::ask_for_memory`]: the peer does not have the memory, and still waits; the
    /// kernel may refuse descriptors alone. A code that cannot be sent ends the ring.
    fn give_memory(
        &mut self,
        session: u64,
        token: u32,
        answer: Result<MemoryPiece<'_>, u8>,
    ) -> io::Result<()> {
        let _ = (session, token, answer);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// A session that [`Self::meet`] told of has ended.
    fn part(&mut self, session: u64) {
        let _ = session;
    }

    /// By what engines of this host know that they read the memory of this one; `None`: they may
    /// not. It is the same for the life of the driver, and ends with it.
    fn witness(&self) -> Option<Arc<Witness>> {
        None
    }

    /// Reads bytes `offset..offset + length` of a message from the memory of the other side of a
    /// session, which said that it is at `source`, to the same place of `into`; at once.
    ///
    /// # Errors
    ///
    /// They were not read, or do not count. The message may be asked for otherwise.
    ///
    /// # Safety
    ///
    /// The memory behind `into` is live and writable, and nothing else accesses these bytes of it
    /// during the call.
    unsafe fn read_by_cma(
        &mut self,
        session: u64,
        source: CmaSource,
        into: &Shape,
        offset: usize,
        length: usize,
    ) -> io::Result<()> {
        let _ = (session, source, into, offset, length);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Whether memory is shared with engines of this host, and how that fares.
    fn shared_memory(&self) -> SharedMemoryState {
        SharedMemoryState::Off
    }

    /// A copy of what becomes readable when something comes by shared memory in the owner's absence
    /// or sleep; `None`: nothing does.
    fn neighbours_fd(&self) -> Option<io::Result<OwnedFd>> {
        None
    }

    /// What the kernel dropped of frames; `None`: there never were any. One system call: for
    /// statistics.
    fn frame_drops(&mut self) -> Option<FrameDrops> {
        None
    }
}

/// One set of sockets and rings, driven by one thread.
pub(crate) trait Driver: ControlLanes + BulkLanes + DatagramPort {
    /// `"uring"` or `"sockets"`.
    fn name(&self) -> &'static str;

    /// Whether a [`Self::poll`] that finds nothing makes no system call.
    fn polls_for_free(&self) -> bool;

    /// The rails from now on, in the order of their numbers; at most
    /// [`RAILS_MAX`]. Comes before [`ControlLanes::listen`] and
    /// [`DatagramPort::open_datagrams`], and again when the list changes: events of
    /// before may still come with numbers of the old list, and open lanes stay as they are. An
    /// empty list, as at the start: rail 0 alone, and routes decide.
    ///
    /// With one rail listener and datagrams are bound to its address. With several they are bound
    /// to the wildcard address, each rail sends from its own, and connections to other addresses of
    /// this host are closed ([`DriverCounters::foreign_connections`]). Rails may have listeners of
    /// their own beside that one, which are bound to their NICs, and so is what they accept.
    fn set_rails(&mut self, rails: &[Rail]) -> io::Result<()>;

    /// How `remote` is reached by a rail, as far as the system tells without trying.
    fn reach(&mut self, rail: u8, remote: IpAddr) -> Reach {
        let _ = (rail, remote);
        Reach::Unknown
    }

    /// Index of the NIC that a rail has now: one that is deleted and made again, or comes back from
    /// another network namespace, is another one. An [`DriverEvent::RailChanged`] says when it is
    /// up. `None`: that of [`Self::set_rails`].
    fn nic_of(&self, rail: u8) -> Option<u32> {
        let _ = rail;
        None
    }

    /// Collects what has happened, without blocking. Makes no system call when there is
    /// nothing to submit and the kernel announces nothing (io_uring).
    fn poll(&mut self, events: &mut Vec<DriverEvent>) -> io::Result<()>;

    /// Like [`Self::poll`], but sleeps until there is an event or `timeout` is over.
    fn park(&mut self, timeout: Duration, events: &mut Vec<DriverEvent>) -> io::Result<()>;

    /// A copy of the descriptor that becomes readable when a driver that was armed has something
    /// for [`Self::poll`]. Good for the life of the driver.
    fn wake_fd(&self) -> io::Result<OwnedFd> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Prepares a sleep of [`Self::park`] that somebody else sleeps, by [`Self::wake_fd`]. How long
    /// that may last, `timeout` at the most; zero: there is something to poll for.
    fn arm(&mut self, timeout: Duration) -> io::Result<Duration> {
        let _ = timeout;
        Err(io::ErrorKind::Unsupported.into())
    }

    /// The owner of the engine is absent: up to [`Self::end_absence`] another thread calls, and
    /// does not call [`Self::park`], [`Self::shutdown`] or [`Self::dismantle`]. Everything else
    /// works as ever, but that a driver whose requests only the owner can make keeps them until
    /// then; an event may be told again to the owner. `false`: chunks are such requests, and none
    /// may be asked for now.
    fn begin_absence(&mut self) -> bool {
        true
    }

    /// The opposite of [`Self::begin_absence`].
    fn end_absence(&mut self) {}

    /// Closes everything and reaps what is outstanding, for `limit` at the most. Bytes that were
    /// sent are delivered, except on lanes with chunks that are not released: these are reset.
    /// Queued datagrams are flushed once more.
    /// `false`: the kernel may still reference memory, which the caller must then leak.
    fn shutdown(&mut self, limit: Duration) -> bool;

    /// Gives every lane's socket back, for another driver to adopt on another thread. Only when
    /// no chunk and no connection attempt is outstanding, otherwise `WouldBlock`; watches are
    /// cancelled and reaped first. The driver can only be dropped afterwards. The socket of
    /// datagrams is flushed and dropped: whoever goes on with it keeps a clone, and the driver has
    /// left nothing on it. Datagrams that the driver held are lost.
    fn dismantle(&mut self) -> io::Result<Vec<(LaneKey, OwnedFd)>>;

    /// The counters so far.
    fn counters(&self) -> DriverCounters;
}
