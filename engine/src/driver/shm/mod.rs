//! Shared memory between engines of one host.
//!
//! Two engines that have a session, run on one kernel and in one network namespace, and both have
//! the setting `shared_memory`, connect by a unix socket, whose abstract name is the engine's id.
//! Both prove that they have the session's keys; then the client passes two rings ([`ring`]) in a
//! memfd ([`ring_pair`]). The session's segments use these from then on, without a packet around
//! them: ring entries arrive in order, and their writer is known. The packets of the session's
//! first path use the rings, too. A packet that finds no room is queued ([`backlog`]); packets are
//! sent by UDP again when the queue is full, while this engine sleeps, or after the unix socket was
//! closed, which shows at once that a process has ended. A segment that finds no room stays with
//! the session. When a ring ends, the engine is notified and resends unacknowledged segments by the
//! session's paths.
//!
//! A process that has ended may have a child that keeps its sockets open. So each side also keeps a
//! pidfd of the other process, which the kernel provides for a connected unix socket.
//!
//! Local peers of one user also read long messages from each other's memory ([`cma`]).
//!
//! ```text
//!  send : if the session has a channel, copy into its ring, or queue a packet for it
//!  flush: a sleeping peer gets one byte by the unix socket; a peer that does not poll the ring
//!         gets a doorbell bit in its memory
//!  recv : rings first, without a system call: the busiest few, then those whose bits are set;
//!         the UDP socket every few polls that find none
//!  sleep: announced in all rings, then the unix sockets are watched
//! ```
//!
//! Local peers know the secret of the job, and may still be hostile. Wake-ups are packets and not a
//! shared eventfd: O_NONBLOCK belongs to the open file, so a peer could make its reads block.

mod backlog;
mod channel;
pub(crate) mod cma;
mod discovery;
mod doorbell;
mod doorbell_page;
mod entry;
mod handshake;
mod incoming;
mod local_peers;
mod mapping;
mod polling;
mod ring;
mod ring_pair;
mod socket;
#[cfg(test)]
mod tests;
mod timer;
mod untrusted;
#[cfg(test)]
mod untrusted_tests;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use rustix::event::epoll;

use self::channel::Channel;
use self::cma::{CmaLocation, ProcessCookie};
use self::discovery::{Discovery, SocketFile};
use self::handshake::Exchange;
use self::incoming::EntryBody;
use self::polling::Polling;
use self::ring::{DATAGRAM_MAX, RingViolation};
use self::socket::LocalListener;
use crate::driver::traits::{
    DriverCounters, KeptFrames, LocalPeer, RingName, RingSegment, SharedMemoryFigures,
};
use crate::forks::EngineFd;
use crate::memory::Shape;
use crate::wire::frame_range::RingMessage;
use crate::wire::packet;
use crate::wire::piece::{PIECE_HEADER_BYTES, PieceHeader};

/// Longest segment in a ring, in bytes.
pub(crate) const RING_SEGMENT_BYTES_MAX: usize = DATAGRAM_MAX;
/// Longest piece of a message, in bytes.
pub(crate) use self::ring::PIECE_BYTES_MAX;

const _: () = assert!(ring::HEADER_BYTES == PIECE_HEADER_BYTES);

/// Polls between two reads of the clock while a retry with a local peer is due.
const MAINTAIN_EVERY: u32 = 64;

/// Epoll data of descriptors that are no connections.
const LISTENER: u64 = 0;
const TIMER: u64 = 1;
/// The first epoll number of a connection.
const FIRST_NAME: u64 = 2;
/// Flag of the epoll number of a process; the rest is that of its connection.
const PROCESS: u64 = 1 << 63;

/// A session has gained or lost its ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RingChange {
    pub(super) session: u64,
    pub(super) number: u32,
    pub(super) is_up: bool,
}

/// A session whose peer may be on this host.
struct KnownPeer {
    peer: LocalPeer,
    /// The process of the peer, if it had a channel and the kernel reports it: epoll number, and
    /// pidfd.
    process: Option<(u64, EngineFd)>,
    /// When to reconnect, and how many attempts were made.
    again: Option<Instant>,
    tries: u32,
}

/// All local peers of an engine.
pub(super) struct Shm {
    epoll: EngineFd,
    listener: LocalListener,
    /// Accepting is paused until then.
    accepts_after: Option<Instant>,
    /// Other users may connect.
    others: bool,
    /// The socket file of [`Self::listener`], if discovery uses a directory.
    _socket_file: Option<SocketFile>,
    /// How peers are found.
    discovery: Discovery,
    /// Makes [`Self::fd`] readable, to wake a sleeping engine.
    timer: EngineFd,
    /// Sessions, by number.
    known: HashMap<u64, KnownPeer, RandomState>,
    /// Handshakes, by epoll number.
    exchanges: Vec<(u64, Exchange)>,
    channels: Vec<Option<Channel>>,
    names: Vec<u64>,
    next_name: u64,
    by_session: HashMap<u64, u32, RandomState>,
    /// The session written to last, and its channel.
    last: (u64, u32),
    /// Which channels are polled.
    polling: Polling,
    /// Channels whose peers have to be notified.
    behind: Vec<u32>,
    /// The entry received last.
    datagram: Box<[u8]>,
    /// Length of the packet received last.
    length: usize,
    /// The latest long frame of which only the head was copied.
    message: Option<RingMessage>,
    /// Of the entry received last that was not copied whole.
    body: EntryBody,
    /// The source of the packet received last, if it was not taken yet.
    untaken: Option<SocketAddr>,
    /// The kernel reported events of sockets.
    has_socket_events: bool,
    /// A session may be due for a retry.
    has_retries: bool,
    /// Polls with a retry due since the sockets were last polled.
    polls_since_maintain: u32,
    /// Peers wake this engine.
    is_asleep: bool,
    /// An entry or room was found when it fell asleep, or when it woke.
    has_pending: bool,
    is_detached: bool,
    figures: SharedMemoryFigures,
    /// The cookie by which peers verify that they read this engine's memory; `None`: they may not.
    cookie: Option<Arc<ProcessCookie>>,
    /// Sessions whose peer gained or lost the ability to read that memory.
    cma_changes: VecDeque<(u64, bool)>,
    /// Sessions that gained or lost their ring.
    ring_changes: VecDeque<RingChange>,
    /// What rings that have ended kept, by session. `None`: the peer has overwritten it.
    unread: Vec<(u64, Option<KeptFrames>)>,
    /// Sessions whose peer's process has ended, reported after all entries of its ring.
    ended_processes: VecDeque<u64>,
}

impl Shm {
    /// For the engine of this id. `has_cma`: long messages may be read from memory. `directory`:
    /// where peers are found; `None`: by abstract names. `others`: peers may belong to other users.
    pub(super) fn open(
        engine: u64,
        has_cma: bool,
        directory: Option<&Path>,
        others: bool,
    ) -> io::Result<Self> {
        let discovery = Discovery::new(directory, others)?;
        discovery.remove_stale_sockets();
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let (listener, left) = socket::listen(&discovery, engine)?;
        let timer = timer::new()?;
        for (fd, name) in [(listener.as_fd(), LISTENER), (timer.as_fd(), TIMER)] {
            epoll::add(&epoll, fd, epoll::EventData::new_u64(name), epoll::EventFlags::IN)?;
        }
        Ok(Self {
            epoll: EngineFd::new(epoll),
            listener,
            accepts_after: None,
            others,
            _socket_file: left,
            discovery,
            timer: EngineFd::new(timer),
            known: HashMap::default(),
            exchanges: Vec::new(),
            channels: Vec::new(),
            names: Vec::new(),
            next_name: FIRST_NAME,
            by_session: HashMap::default(),
            last: (0, 0),
            polling: Polling::new()?,
            behind: Vec::new(),
            datagram: vec![0; DATAGRAM_MAX].into(),
            length: 0,
            message: None,
            body: EntryBody::NONE,
            untaken: None,
            has_socket_events: false,
            has_retries: false,
            polls_since_maintain: 0,
            is_asleep: false,
            has_pending: false,
            is_detached: false,
            figures: SharedMemoryFigures::default(),
            cookie: has_cma.then(ProcessCookie::new).transpose()?.map(Arc::new),
            cma_changes: VecDeque::new(),
            ring_changes: VecDeque::new(),
            unread: Vec::new(),
            ended_processes: VecDeque::new(),
        })
    }

    /// The descriptor to watch, always: connections, ends, wake-ups.
    pub(super) fn fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    /// A copy of [`Self::fd`].
    pub(super) fn copy_of_fd(&self) -> io::Result<OwnedFd> {
        self.epoll.try_clone()
    }

    /// The kernel reported readiness of [`Self::fd`].
    pub(super) fn mark_socket_events(&mut self) {
        self.has_socket_events = true;
    }

    pub(super) fn figures(&self) -> SharedMemoryFigures {
        let readable = self.channels.iter().flatten().filter(|it| it.memory.is_some()).count();
        SharedMemoryFigures { local_peers: self.by_session.len(), readable, ..self.figures }
    }

    // ---- Memory of other processes ----

    /// The cookie by which peers verify that they read this engine's memory.
    pub(super) fn process_cookie(&self) -> Option<Arc<ProcessCookie>> {
        self.cookie.clone()
    }

    /// The next session whose peer gained or lost the ability to read this engine's memory.
    #[inline]
    pub(super) fn next_cma_change(&mut self) -> Option<(u64, bool)> {
        self.cma_changes.pop_front()
    }

    /// The next session that gained or lost its ring.
    #[inline]
    pub(super) fn next_ring_change(&mut self) -> Option<RingChange> {
        self.ring_changes.pop_front()
    }

    /// The next session whose peer's process has ended.
    #[inline]
    pub(super) fn next_ended_process(&mut self) -> Option<u64> {
        self.ended_processes.pop_front()
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
        let index = self.by_session.get(&session).copied();
        let channel = index.and_then(|index| self.channels.get_mut(index as usize)?.as_mut());
        let memory = channel.and_then(|channel| channel.memory.as_mut());
        let memory = memory.ok_or_else(|| io::Error::other("the local peer has disconnected"))?;
        // SAFETY: the caller's contract.
        let read = unsafe { memory.read(source, into, offset, length) };
        match read {
            Ok(()) => {
                self.figures.read_calls += 1;
                self.figures.read_bytes += length as u64;
            }
            Err(_) => self.figures.read_failures += 1,
        }
        read
    }

    // ---- Sending ----

    /// Writes a packet into the ring of its session, or queues it. `false`: there is no ring, or
    /// the queue is full.
    #[inline]
    pub(super) fn send(&mut self, datagram: &[u8], counters: &mut DriverCounters) -> bool {
        let Some((packet::FIRST_PATH, session)) = packet::path_and_session(datagram) else {
            return false;
        };
        let is_taken = self.with_channel(session, |channel| channel.send(datagram));
        self.count_sent(is_taken, counters)
    }

    /// See [`crate::driver::traits::DatagramIo::write_segment`].
    #[inline(never)]
    pub(super) fn write_segment(
        &mut self,
        RingName { session, number }: RingName,
        segment: RingSegment<'_>,
        counters: &mut DriverCounters,
    ) -> bool {
        let is_taken = self.with_channel(session, |channel| {
            // What goes into a ring is kept by it: not into one that the engine does not know yet.
            if channel.number == number { channel.write_segment(segment) } else { Ok(false) }
        });
        self.count_sent(is_taken, counters)
    }

    /// The ring of a session; another one if it has none.
    #[cfg(test)]
    fn ring_name(&self, session: u64) -> RingName {
        let index = self.by_session.get(&session).copied();
        let channel = index.and_then(|index| self.channels.get(index as usize)?.as_ref());
        RingName { session, number: channel.map_or(0, |channel| channel.number) }
    }

    /// See [`crate::driver::traits::DatagramIo::take_unread`].
    pub(super) fn take_unread(&mut self, session: u64) -> Option<Vec<KeptFrames>> {
        let of_session = self.unread.extract_if(.., |(it, _)| *it == session);
        let unread: Vec<_> = of_session.map(|(_, frames)| frames).collect();
        unread.into_iter().collect()
    }

    /// See [`crate::driver::traits::DatagramIo::write_piece`].
    #[inline]
    pub(super) fn write_piece(&mut self, session: u64, header: &PieceHeader, bytes: &[u8]) -> bool {
        let header = zerocopy::transmute_ref!(header);
        let is_taken = self.with_channel(session, |channel| channel.write_piece(header, bytes));
        if is_taken == Some(true) {
            self.figures.pieces_sent += 1;
            self.figures.piece_bytes_sent += bytes.len() as u64;
        }
        is_taken == Some(true)
    }

    /// Counts whether a channel took a datagram. `None`: there is no channel.
    #[inline(always)]
    fn count_sent(&mut self, is_taken: Option<bool>, counters: &mut DriverCounters) -> bool {
        let Some(is_taken) = is_taken else { return false };
        self.figures.sent += u64::from(is_taken);
        self.figures.full += u64::from(!is_taken);
        counters.datagrams_sent += u64::from(is_taken);
        is_taken
    }

    /// Calls `take` with the channel of a session. `None`: there is none.
    #[inline(always)]
    fn with_channel(
        &mut self,
        session: u64,
        take: impl FnOnce(&mut Channel) -> Result<bool, RingViolation>,
    ) -> Option<bool> {
        if session != self.last.0 {
            let &index = self.by_session.get(&session)?;
            self.last = (session, index);
        }
        let index = self.last.1;
        let channel = self.channels.get_mut(index as usize)?.as_mut()?;
        let was_behind = channel.is_behind();
        match take(channel) {
            Ok(is_taken) => {
                if !was_behind && channel.is_behind() {
                    self.behind.push(index);
                }
                Some(is_taken)
            }
            Err(_) => {
                self.give_up(index, "invalid read position");
                None
            }
        }
    }

    /// Whether [`Self::flush`] has anything to do.
    #[inline]
    pub(super) fn is_behind(&self) -> bool {
        !self.behind.is_empty()
    }

    /// Writes queued packets, and wakes sleeping peers.
    #[inline]
    pub(super) fn flush(&mut self, counters: &mut DriverCounters) {
        let mut at = 0;
        while let Some(&index) = self.behind.get(at) {
            let Some(Some(channel)) = self.channels.get_mut(index as usize) else {
                self.behind.swap_remove(at);
                continue;
            };
            match channel.flush() {
                Ok(is_woken) => {
                    counters.syscalls += u64::from(is_woken);
                    self.figures.wakes += u64::from(is_woken);
                    if channel.is_behind() {
                        at += 1;
                    } else {
                        self.behind.swap_remove(at);
                    }
                }
                Err(_) => self.give_up(index, "invalid read position"),
            }
        }
    }

    /// Sends queued packets by `other`, as far as that takes them: a sleeping engine is not
    /// notified of room.
    pub(super) fn spill(&mut self, mut other: impl FnMut(SocketAddr, &[u8]) -> bool) {
        for &index in &self.behind {
            let Some(Some(channel)) = self.channels.get_mut(index as usize) else { continue };
            while let Some(datagram) = channel.first_queued() {
                if !other(channel.address, datagram) {
                    return;
                }
                self.figures.sent -= 1;
                self.figures.full += 1;
                channel.pop_queued();
            }
        }
    }

    // ---- Sleep ----

    /// Whether [`Self::serve`], and what follows it, has anything to do while the driver polls.
    #[inline]
    pub(super) fn needs_service(&self) -> bool {
        let has_events = !self.ring_changes.is_empty()
            | !self.ended_processes.is_empty()
            | !self.cma_changes.is_empty();
        let flags = self.has_socket_events | self.has_retries | self.is_asleep | self.is_detached;
        flags | has_events | self.is_behind()
    }

    /// Called in each poll that [needs it](Self::needs_service). `sleeps`: the driver is about to
    /// sleep.
    pub(super) fn serve(&mut self, sleeps: bool) {
        self.polls_since_maintain += 1;
        let is_due = self.has_retries && self.polls_since_maintain >= MAINTAIN_EVERY;
        if self.has_socket_events || sleeps || self.is_detached || is_due {
            self.polls_since_maintain = 0;
            self.maintain(Instant::now());
        }
        if sleeps {
            self.prepare_sleep();
        } else if self.is_asleep && !self.is_detached {
            self.end_sleep();
        }
    }

    /// Whether rings are not checked for room.
    pub(super) fn is_idle(&self, sleeps: bool) -> bool {
        sleeps || self.is_detached
    }

    /// See [`crate::driver::traits::Driver::begin_detached`]. The background thread sleeps by
    /// [`Self::fd`]; entries that arrive while it polls wake it once more.
    pub(super) fn begin_detached(&mut self) {
        self.is_detached = true;
        self.prepare_sleep();
    }

    /// Announces the sleep anew: a local peer that wrote meanwhile took this engine for awake, and
    /// its wake-up may have been consumed already. What was not taken has none of its own.
    pub(super) fn end_detached(&mut self) {
        self.is_detached = false;
        self.prepare_sleep();
        if self.has_received(true) {
            timer::arm_after(&self.timer, Duration::from_nanos(1));
        }
    }
}

/// Peers must not read this process's memory any more.
impl Drop for Shm {
    fn drop(&mut self) {
        if let Some(cookie) = &self.cookie {
            cookie.end();
        }
    }
}
