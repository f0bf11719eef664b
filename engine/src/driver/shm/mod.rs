//! Datagrams between engines of one host, by memory that both have mapped.
//!
//! Two engines that have a session, run on one kernel and in one network namespace, and both have
//! the setting `shared_memory`, meet by a unix socket, whose name is the engine's id in an abstract
//! name space that belongs to the network namespace. Both prove that they have the session's keys;
//! then who connected hands two rings ([`ring`]) over, in a memfd ([`segment`]). The session's
//! segments go by these from then on, without a packet around them: what is in a ring arrives, in
//! order, and who wrote it is known. Its first path's packets go there, too. A packet that finds no
//! room waits for it in order ([`backlog`]); when too much waits, when this engine sleeps, or when
//! the unix socket has ended, which tells at once that a process is gone, packets go by the UDP
//! socket again. A segment waits with the session. When a ring ends, the engine is told, and sends
//! what was not acknowledged by the session's paths.
//!
//! Neighbours of one user also learn to read each other's memory ([`cma`]), for long messages.
//!
//! ```text
//!  send : the session has a channel? copied into its ring; a packet may be kept for it
//!  flush: does the neighbour sleep? one byte by the unix socket
//!  recv : rings first, no call; the UDP socket every few times that they are empty
//!  sleep: announced in all rings, then the unix sockets are watched
//! ```
//!
//! Neighbours know the secret of the job, and may still be hostile. A wake-up goes by a packet and
//! not by a shared eventfd: whoever has that can make it block, for flags belong to the open file.

mod backlog;
mod channel;
pub(crate) mod cma;
mod handshake;
mod meeting;
mod memory;
mod neighbours;
mod ring;
mod segment;
mod socket;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use foldhash::fast::RandomState;
use rustix::event::{EventfdFlags, epoll, eventfd};

use self::channel::Channel;
use self::cma::{CmaSource, Witness};
use self::handshake::Exchange;
use self::meeting::{Left, Meeting};
use self::ring::{Broken, Entry, LONGEST};
use crate::driver::lanes::{DriverCounters, DriverEvent, Neighbour, SharedMemoryFigures};
use crate::memory::Shape;
use crate::wire::packet;

/// Longest segment that a ring takes, in bytes.
pub(crate) const RING_SEGMENT_BYTES_MAX: usize = LONGEST;

/// Channels that are looked at in each call for a datagram: those that something came by lately.
const HOT: usize = 8;
/// Of the others, how many more are.
const COLD_AT_ONCE: usize = 2;
/// Datagrams of one channel in a row.
const STREAK: u32 = 16;
/// Polls between two looks at the clock while a neighbour is to be asked again.
const TEND_EVERY: u32 = 64;

/// Epoll's names of what is no connection.
const LISTENER: u64 = 0;
const BELL: u64 = 1;
/// The first name of a connection.
const FIRST_NAME: u64 = 2;

/// What came by a ring.
enum Received {
    /// A packet, which seems to come from there.
    Packet(SocketAddr),
    /// A segment of this session.
    Segment(u64),
}

/// A session whose other side may be on this host.
struct Known {
    neighbour: Neighbour,
    /// When to ask for a channel again, and how often that has been done.
    again: Option<Instant>,
    tries: u32,
}

/// All neighbours of an engine.
pub(super) struct Shm {
    epoll: OwnedFd,
    listener: OwnedFd,
    /// What [`Self::listener`] leaves in a directory.
    _left: Option<Left>,
    /// Where neighbours are found.
    meeting: Meeting,
    /// Makes [`Self::fd`] readable, for who sleeps by it.
    bell: OwnedFd,
    /// By session.
    known: HashMap<u64, Known, RandomState>,
    /// By epoll's name.
    exchanges: Vec<(u64, Exchange)>,
    channels: Vec<Option<Channel>>,
    names: Vec<u64>,
    next_name: u64,
    by_session: HashMap<u64, u32, RandomState>,
    /// The session that was sent to last, and its channel.
    last: (u64, u32),
    /// Channels in the order in which they are looked at.
    order: Vec<u32>,
    /// Where in that order to look first.
    next: usize,
    streak: u32,
    /// The other channels, of which this one was looked at last.
    cold: usize,
    /// What came since then.
    since_cold: u32,
    /// Channels with something that their neighbour may sleep over.
    behind: Vec<u32>,
    /// What came last.
    datagram: Box<[u8]>,
    length: usize,
    /// That is a packet which nobody has taken, from there.
    untaken: Option<SocketAddr>,
    /// The kernel has news of a socket.
    is_called: bool,
    /// Some session may be due for another try.
    has_retries: bool,
    /// Polls since the kernel was asked.
    untended: u32,
    /// Neighbours wake this engine.
    is_asleep: bool,
    owner_is_absent: bool,
    figures: SharedMemoryFigures,
    /// By what neighbours know that they read this engine's memory; `None`: they may not.
    witness: Option<Arc<Witness>>,
    /// Sessions whose other side can read that, or cannot any more.
    cma_news: VecDeque<(u64, bool)>,
    /// Sessions that have a ring now, or have none any more.
    ring_news: VecDeque<(u64, bool)>,
    /// Questions for memory to map, and answers.
    memory_news: VecDeque<DriverEvent>,
}

impl Shm {
    /// For the engine of this id. `has_cma`: long messages may be read from memory. `directory`:
    /// where neighbours are found; `None`: in the network namespace.
    pub(super) fn open(engine: u64, has_cma: bool, directory: Option<&Path>) -> io::Result<Self> {
        let meeting = Meeting::new(directory)?;
        meeting.sweep();
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let (listener, left) = socket::listen(&meeting, engine)?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        for (fd, name) in [(&listener, LISTENER), (&bell, BELL)] {
            epoll::add(&epoll, fd, epoll::EventData::new_u64(name), epoll::EventFlags::IN)?;
        }
        Ok(Self {
            epoll,
            listener,
            _left: left,
            meeting,
            bell,
            known: HashMap::default(),
            exchanges: Vec::new(),
            channels: Vec::new(),
            names: Vec::new(),
            next_name: FIRST_NAME,
            by_session: HashMap::default(),
            last: (0, 0),
            order: Vec::new(),
            next: 0,
            streak: 0,
            cold: 0,
            since_cold: 0,
            behind: Vec::new(),
            datagram: vec![0; LONGEST].into(),
            length: 0,
            untaken: None,
            is_called: false,
            has_retries: false,
            untended: 0,
            is_asleep: false,
            owner_is_absent: false,
            figures: SharedMemoryFigures::default(),
            witness: has_cma.then(|| Arc::new(Witness::new())),
            cma_news: VecDeque::new(),
            ring_news: VecDeque::new(),
            memory_news: VecDeque::new(),
        })
    }

    /// What is to be watched, always: connections, ends, wake-ups.
    pub(super) fn fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    /// A copy of [`Self::fd`].
    pub(super) fn copy_of_fd(&self) -> io::Result<OwnedFd> {
        self.epoll.try_clone()
    }

    /// The kernel announced something of [`Self::fd`].
    pub(super) fn called(&mut self) {
        self.is_called = true;
    }

    pub(super) fn figures(&self) -> SharedMemoryFigures {
        let readable = self.channels.iter().flatten().filter(|it| it.memory.is_some()).count();
        SharedMemoryFigures { neighbours: self.by_session.len(), readable, ..self.figures }
    }

    // ---- Memory of other processes ----

    /// By what neighbours know that they read this engine's memory.
    pub(super) fn witness(&self) -> Option<Arc<Witness>> {
        self.witness.clone()
    }

    /// The next session whose other side can read this engine's memory, or cannot any more.
    #[inline]
    pub(super) fn next_cma_news(&mut self) -> Option<(u64, bool)> {
        self.cma_news.pop_front()
    }

    /// The next session that has a ring now, or has none any more.
    #[inline]
    pub(super) fn next_ring_news(&mut self) -> Option<(u64, bool)> {
        self.ring_news.pop_front()
    }

    /// See [`crate::driver::lanes::DatagramPort::read_by_cma`].
    ///
    /// # Safety
    ///
    /// As there.
    pub(super) unsafe fn read_by_cma(
        &mut self,
        session: u64,
        source: CmaSource,
        into: &Shape,
        offset: usize,
        length: usize,
    ) -> io::Result<()> {
        let index = self.by_session.get(&session).copied();
        let channel = index.and_then(|index| self.channels.get_mut(index as usize)?.as_mut());
        let memory = channel.and_then(|channel| channel.memory.as_mut());
        let memory = memory.ok_or_else(|| io::Error::other("there is no neighbour any more"))?;
        // SAFETY: the caller's promise.
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

    /// Writes a packet into the ring of its session, or keeps it for that. `false`: there is none,
    /// or too much is kept.
    #[inline]
    pub(super) fn send(&mut self, datagram: &[u8], counters: &mut DriverCounters) -> bool {
        let Some((packet::FIRST_PATH, session)) = packet::path_and_session(datagram) else {
            return false;
        };
        self.with_channel(session, counters, |channel| channel.send(datagram))
    }

    /// See [`crate::driver::lanes::DatagramPort::write_segment`].
    #[inline]
    pub(super) fn write_segment(
        &mut self,
        session: u64,
        segment: &[u8],
        counters: &mut DriverCounters,
    ) -> bool {
        self.with_channel(session, counters, |channel| channel.write_segment(segment))
    }

    /// Has the channel of a session take something. `false`: it did not, or there is none.
    #[inline(always)]
    fn with_channel(
        &mut self,
        session: u64,
        counters: &mut DriverCounters,
        take: impl FnOnce(&mut Channel) -> Result<bool, Broken>,
    ) -> bool {
        if session != self.last.0 {
            let Some(&index) = self.by_session.get(&session) else { return false };
            self.last = (session, index);
        }
        let index = self.last.1;
        let Some(Some(channel)) = self.channels.get_mut(index as usize) else { return false };
        let was_behind = channel.is_behind();
        match take(channel) {
            Ok(is_taken) => {
                if !was_behind && channel.is_behind() {
                    self.behind.push(index);
                }
                self.figures.sent += u64::from(is_taken);
                self.figures.full += u64::from(!is_taken);
                counters.datagrams_sent += u64::from(is_taken);
                is_taken
            }
            Err(_) => {
                self.give_up(index, "it says that it read what was never written");
                false
            }
        }
    }

    /// Whether [`Self::flush`] has anything to do.
    #[inline]
    pub(super) fn is_behind(&self) -> bool {
        !self.behind.is_empty()
    }

    /// Writes what waits for room in rings, and wakes neighbours that sleep over what was sent.
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
                Err(_) => self.give_up(index, "it says that it read what was never written"),
            }
        }
    }

    /// Gives `other`, a way to an address, what waits for room in rings, as far as that takes it:
    /// nobody says when there is some to an engine that sleeps.
    pub(super) fn spill(&mut self, mut other: impl FnMut(SocketAddr, &[u8]) -> bool) {
        for &index in &self.behind {
            let Some(Some(channel)) = self.channels.get_mut(index as usize) else { continue };
            while let Some(datagram) = channel.kept() {
                if !other(channel.address, datagram) {
                    return;
                }
                self.figures.sent -= 1;
                self.figures.full += 1;
                channel.forget_kept();
            }
        }
    }

    // ---- Receiving ----

    /// Whether there are channels.
    #[inline]
    pub(super) fn is_up(&self) -> bool {
        !self.order.is_empty()
    }

    /// The session of which the next entry is a segment; [`Self::payload`] has it. `None`: nothing
    /// is there, or a packet, which is to be taken first.
    #[inline]
    pub(super) fn receive_segment(&mut self, counters: &mut DriverCounters) -> Option<u64> {
        if self.untaken.is_some() {
            return None;
        }
        match self.receive(counters)? {
            Received::Segment(session) => Some(session),
            Received::Packet(from) => {
                self.untaken = Some(from);
                None
            }
        }
    }

    /// Where the packet seems to come from that [`Self::receive_segment`] found in its place;
    /// [`Self::payload`] has it.
    #[inline]
    pub(super) fn take_packet(&mut self) -> Option<SocketAddr> {
        self.untaken.take()
    }

    #[inline]
    fn receive(&mut self, counters: &mut DriverCounters) -> Option<Received> {
        let hot = self.order.len().min(HOT);
        if self.since_cold >= STREAK && self.order.len() > hot {
            // Hot ones that always have something do not keep the others from being heard.
            if let Some(received) = self.receive_cold(hot, counters) {
                return Some(received);
            }
        }
        for _ in 0..hot {
            if self.next >= hot {
                self.next = 0;
            }
            if let Some(from) = self.receive_from(self.next, counters) {
                self.streak += 1;
                self.since_cold = self.since_cold.saturating_add(1);
                if self.streak >= STREAK {
                    (self.next, self.streak) = (self.next + 1, 0);
                }
                return Some(from);
            }
            (self.next, self.streak) = (self.next + 1, 0);
        }
        if self.order.len() > hot { self.receive_cold(hot, counters) } else { None }
    }

    /// The same of channels that nothing came by lately, some at a time; all of them while the
    /// owner is absent, for what its caretaker does not find has no other wake-up.
    fn receive_cold(&mut self, hot: usize, counters: &mut DriverCounters) -> Option<Received> {
        self.since_cold = 0;
        let at_once = if self.owner_is_absent { self.order.len() } else { COLD_AT_ONCE };
        for _ in 0..at_once {
            let count = self.order.len().checked_sub(hot).filter(|&count| count > 0)?;
            self.cold = (self.cold + 1) % count;
            let at = hot + self.cold;
            if let Some(from) = self.receive_from(at, counters) {
                // One whose turn is far makes room; the farthest may be the one that was read last.
                let victim = (self.next + hot - 2) % hot;
                self.order.swap(at, victim);
                return Some(from);
            }
        }
        None
    }

    #[inline]
    fn receive_from(&mut self, at: usize, counters: &mut DriverCounters) -> Option<Received> {
        let index = *self.order.get(at)?;
        let channel = self.channels.get_mut(index as usize)?.as_mut()?;
        match channel.receive(&mut self.datagram) {
            Ok(Some((Entry::Segment, length))) => {
                self.length = length;
                self.figures.received += 1;
                counters.datagrams_received += 1;
                Some(Received::Segment(channel.session))
            }
            Ok(Some((Entry::Packet, length))) => {
                // RR-SHM-4: nobody speaks for another session.
                let is_its = packet::path_and_session(&self.datagram[..length])
                    == Some((packet::FIRST_PATH, channel.session));
                if !is_its {
                    self.figures.strays += 1;
                    return None;
                }
                self.length = length;
                self.figures.received += 1;
                counters.datagrams_received += 1;
                Some(Received::Packet(channel.address))
            }
            Ok(None) => {
                if channel.is_ending() {
                    self.remove(index);
                }
                None
            }
            Err(_) => {
                self.give_up(index, "it wrote a length that cannot be");
                None
            }
        }
    }

    /// What came last.
    #[inline]
    pub(super) fn payload(&mut self) -> &mut [u8] {
        &mut self.datagram[..self.length]
    }

    /// Whether something is in a ring; of an engine that polls, in one of those that the next call
    /// for a datagram looks at.
    pub(super) fn has_received(&mut self, sleeps: bool) -> bool {
        if self.untaken.is_some() {
            return true;
        }
        if sleeps || self.owner_is_absent {
            return self.channels.iter().flatten().any(Channel::has_received);
        }
        let hot = self.order.len().min(HOT);
        (0..hot).any(|at| self.is_waiting(at)) || (self.order.len() > hot && self.is_cold_waiting())
    }

    /// Whether something came by the channel in this place of the order.
    fn is_waiting(&self, at: usize) -> bool {
        let channel = self.order.get(at).and_then(|&index| self.channels.get(index as usize));
        channel.and_then(Option::as_ref).is_some_and(Channel::has_received)
    }

    /// The same of the next few of those that nothing came by lately: [`Self::receive_cold`] begins
    /// with the first that has something.
    fn is_cold_waiting(&mut self) -> bool {
        for _ in 0..COLD_AT_ONCE {
            let next = (self.cold + 1) % (self.order.len() - HOT);
            if self.is_waiting(HOT + next) {
                return true;
            }
            self.cold = next;
        }
        false
    }

    // ---- Sleep ----

    /// Comes in each poll. `sleeps`: the driver is about to.
    #[inline]
    pub(super) fn serve(&mut self, sleeps: bool) {
        self.untended += 1;
        let is_due = self.has_retries && self.untended >= TEND_EVERY;
        if self.is_called || sleeps || self.owner_is_absent || is_due {
            self.untended = 0;
            self.tend(Instant::now());
        }
        if sleeps {
            self.fall_asleep();
        } else if self.is_asleep && !self.owner_is_absent {
            self.wake_up();
        }
    }

    /// Whether nobody looks whether there is room.
    pub(super) fn is_idle(&self, sleeps: bool) -> bool {
        sleeps || self.owner_is_absent
    }

    /// Neighbours wake this engine from now on.
    fn fall_asleep(&mut self) {
        self.is_asleep = true;
        for channel in self.channels.iter().flatten() {
            channel.fall_asleep();
        }
    }

    fn wake_up(&mut self) {
        self.is_asleep = false;
        for channel in self.channels.iter().flatten() {
            channel.wake_up();
        }
    }

    /// See [`crate::driver::lanes::Driver::begin_absence`]. Whoever acts for the owner sleeps by
    /// [`Self::fd`], and what comes while it looks wakes it once more.
    pub(super) fn begin_absence(&mut self) {
        self.owner_is_absent = true;
        self.fall_asleep();
    }

    /// The sleep is announced anew: a neighbour that wrote meanwhile took this engine for awake,
    /// and its wake-up may have been heard already. What was not taken has none of its own.
    pub(super) fn end_absence(&mut self) {
        self.owner_is_absent = false;
        self.fall_asleep();
        if self.has_received(true) {
            let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        }
    }
}

/// What was shown to neighbours is not theirs to read any more.
impl Drop for Shm {
    fn drop(&mut self) {
        if let Some(witness) = &self.witness {
            witness.end();
        }
    }
}
