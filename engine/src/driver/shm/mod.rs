//! Datagrams between engines of one host, by memory that both have mapped.
//!
//! Two engines that have a session, run on one kernel and in one network namespace, and both have
//! the setting `shared_memory`, meet by a unix socket, whose name is the engine's id in an abstract
//! name space that belongs to the network namespace. Both prove that they have the session's keys;
//! then who connected hands two rings ([`ring`]) over, in a memfd ([`segment`]). The datagrams of
//! the session's first path go by these from then on, and by the UDP socket again when a ring is
//! full or the unix socket has ended: whose process is gone is known at once. So a channel is no
//! lane of its own: packet numbers, acknowledgements, tags, failure of the path stay what they are.
//!
//! ```text
//!  send : the session of the packet has a channel? copied into its ring
//!  flush: does the neighbour sleep? one byte by the unix socket
//!  recv : rings first, no call; the UDP socket every few times that they are empty
//!  sleep: announced in all rings, then the unix sockets are watched
//! ```
//!
//! Neighbours know the secret of the job, and may still be hostile. A wake-up goes by a packet and
//! not by a shared eventfd: whoever has that can make it block, for flags belong to the open file.

mod channel;
mod handshake;
mod ring;
mod segment;
mod socket;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io;
use std::mem;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};

use self::channel::Channel;
use self::handshake::{Exchange, Outcome};
use self::ring::LONGEST;
use crate::driver::lanes::{DriverCounters, Neighbour, SharedMemoryFigures};
use crate::wire::packet;

/// Exchanges under way; of more, the oldest ends.
const EXCHANGES_MAX: usize = 64;
/// How long one may take.
const EXCHANGE_LIMIT: Duration = Duration::from_secs(2);
/// Times that a neighbour whose channel has ended is asked for another one.
const RETRIES: u32 = 6;
/// The pause before the first of these; it doubles.
const RETRY_AFTER: Duration = Duration::from_millis(50);
/// Channels that are looked at in each call for a datagram: those that something came by lately.
const HOT: usize = 8;
/// Of the others, how many more are.
const COLD_AT_ONCE: usize = 2;
/// Datagrams of one channel in a row.
const STREAK: u32 = 16;
/// Events that are taken at once.
const BATCH: usize = 64;
/// Polls between two looks at the clock while a neighbour is to be asked again.
const TEND_EVERY: u32 = 64;
/// Packets that are taken of one socket at once.
const PACKETS_AT_ONCE: usize = 64;

/// Epoll's names of what is no connection.
const LISTENER: u64 = 0;
const BELL: u64 = 1;
/// The first name of a connection.
const FIRST_NAME: u64 = 2;

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
    cold: usize,
    /// Channels with something that their neighbour may sleep over.
    behind: Vec<u32>,
    /// What came last.
    datagram: Box<[u8]>,
    length: usize,
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
}

impl Shm {
    /// For the engine of this id.
    pub(super) fn open(engine: u64) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let listener = socket::listen(engine)?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        for (fd, name) in [(&listener, LISTENER), (&bell, BELL)] {
            epoll::add(&epoll, fd, epoll::EventData::new_u64(name), epoll::EventFlags::IN)?;
        }
        Ok(Self {
            epoll,
            listener,
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
            behind: Vec::new(),
            datagram: vec![0; LONGEST].into(),
            length: 0,
            is_called: false,
            has_retries: false,
            untended: 0,
            is_asleep: false,
            owner_is_absent: false,
            figures: SharedMemoryFigures::default(),
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
        SharedMemoryFigures { neighbours: self.by_session.len(), ..self.figures }
    }

    // ---- Sending ----

    /// Writes a packet into the ring of its session. `false`: there is none, or no room.
    #[inline]
    pub(super) fn send(&mut self, datagram: &[u8], counters: &mut DriverCounters) -> bool {
        let Some((packet::FIRST_PATH, session)) = packet::path_and_session(datagram) else {
            return false;
        };
        if session != self.last.0 {
            let Some(&index) = self.by_session.get(&session) else { return false };
            self.last = (session, index);
        }
        let index = self.last.1;
        let Some(Some(channel)) = self.channels.get_mut(index as usize) else { return false };
        let was_behind = channel.is_behind();
        match channel.send(datagram) {
            Ok(true) => {
                if !was_behind {
                    self.behind.push(index);
                }
                self.figures.sent += 1;
                counters.datagrams_sent += 1;
                true
            }
            Ok(false) => {
                self.figures.full += 1;
                false
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

    /// Wakes neighbours that sleep over what was sent.
    #[inline]
    pub(super) fn flush(&mut self, counters: &mut DriverCounters) {
        while let Some(index) = self.behind.pop() {
            if let Some(Some(channel)) = self.channels.get_mut(index as usize) {
                let calls = channel.flush();
                counters.syscalls += calls;
                self.figures.wakes += calls;
            }
        }
    }

    // ---- Receiving ----

    /// Whether there are channels.
    #[inline]
    pub(super) fn is_up(&self) -> bool {
        !self.order.is_empty()
    }

    /// Where the next datagram seems to come from; [`Self::payload`] has it.
    #[inline]
    pub(super) fn receive(&mut self, counters: &mut DriverCounters) -> Option<SocketAddr> {
        let hot = self.order.len().min(HOT);
        for _ in 0..hot {
            if self.next >= hot {
                self.next = 0;
            }
            if let Some(from) = self.receive_from(self.next, counters) {
                self.streak += 1;
                if self.streak >= STREAK {
                    (self.next, self.streak) = (self.next + 1, 0);
                }
                return Some(from);
            }
            (self.next, self.streak) = (self.next + 1, 0);
        }
        if self.order.len() > hot { self.receive_cold(hot, counters) } else { None }
    }

    /// The same of channels that nothing came by lately, some at a time.
    fn receive_cold(&mut self, hot: usize, counters: &mut DriverCounters) -> Option<SocketAddr> {
        for _ in 0..COLD_AT_ONCE {
            let count = self.order.len().checked_sub(hot).filter(|&count| count > 0)?;
            self.cold = (self.cold + 1) % count;
            let at = hot + self.cold;
            if let Some(from) = self.receive_from(at, counters) {
                // The hot one whose turn is the farthest makes room.
                let victim = (self.next + hot - 1) % hot;
                self.order.swap(at, victim);
                return Some(from);
            }
        }
        None
    }

    #[inline]
    fn receive_from(&mut self, at: usize, counters: &mut DriverCounters) -> Option<SocketAddr> {
        let index = *self.order.get(at)?;
        let channel = self.channels.get_mut(index as usize)?.as_mut()?;
        match channel.receive(&mut self.datagram) {
            Ok(Some(length)) => {
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
                Some(channel.address)
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

    /// The datagram that [`Self::receive`] found.
    #[inline]
    pub(super) fn payload(&mut self) -> &mut [u8] {
        &mut self.datagram[..self.length]
    }

    /// Whether a datagram is in some ring.
    pub(super) fn has_received(&self) -> bool {
        self.channels.iter().flatten().any(Channel::has_received)
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

    /// What was not taken has no wake-up of its own any more.
    pub(super) fn end_absence(&mut self) {
        self.owner_is_absent = false;
        if self.has_received() {
            let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        }
    }

    // ---- Neighbours ----

    /// See [`crate::driver::lanes::DatagramPort::meet`].
    pub(super) fn meet(&mut self, neighbour: Neighbour) {
        let (session, now) = (neighbour.session, Instant::now());
        if self.known.contains_key(&session) {
            return;
        }
        let is_initiator = neighbour.is_initiator;
        self.known.insert(session, Known { neighbour, again: None, tries: 0 });
        if is_initiator {
            self.begin(session, now);
            return;
        }
        // Its side may have been faster than the connection that the session is set up by.
        let waiting = self.exchanges.iter_mut().find(|(_, it)| it.session == Some(session));
        if let (Some((name, exchange)), Some(known)) = (waiting, self.known.get(&session)) {
            let (name, outcome) = (*name, exchange.resume(&known.neighbour));
            self.finish(name, outcome);
        }
    }

    /// See [`crate::driver::lanes::DatagramPort::part`].
    pub(super) fn part(&mut self, session: u64) {
        self.known.remove(&session);
        self.exchanges.retain(|(_, exchange)| exchange.session != Some(session));
        if let Some(&index) = self.by_session.get(&session) {
            self.remove(index);
        }
    }

    /// Asks a neighbour for a channel.
    fn begin(&mut self, session: u64, now: Instant) {
        let Some(known) = self.known.get_mut(&session) else { return };
        known.again = None;
        match Exchange::begin(&known.neighbour, now) {
            Ok(exchange) => self.watch(exchange),
            // Another host's, or without the setting: most are.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused && known.tries == 0 => {}
            Err(error) => {
                tracing::debug!(session, "no shared memory with a neighbour: {error}");
                self.retry(session, now);
            }
        }
    }

    /// Tries again later, where this side is the one that connects.
    fn retry(&mut self, session: u64, now: Instant) {
        let Some(known) = self.known.get_mut(&session) else { return };
        if known.neighbour.is_initiator && known.tries < RETRIES {
            known.again = Some(now + RETRY_AFTER * (1 << known.tries));
            known.tries += 1;
            self.has_retries = true;
        }
    }

    fn watch(&mut self, exchange: Exchange) {
        if self.exchanges.len() >= EXCHANGES_MAX {
            self.exchanges.remove(0);
        }
        let name = self.next_name;
        self.next_name += 1;
        let data = epoll::EventData::new_u64(name);
        if epoll::add(&self.epoll, &exchange.socket, data, epoll::EventFlags::IN).is_ok() {
            self.exchanges.push((name, exchange));
        }
    }

    /// Asks the kernel for news of sockets, and does what they ask for.
    fn tend(&mut self, now: Instant) {
        self.is_called = false;
        let mut events = Vec::with_capacity(BATCH);
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        let spare = rustix::buffer::spare_capacity(&mut events);
        if epoll::wait(&self.epoll, spare, Some(&none)).is_err() {
            self.is_called = true;
            return;
        }
        // There may be more.
        self.is_called = events.len() == BATCH;
        for event in events {
            match event.data.u64() {
                LISTENER => self.accept(now),
                BELL => {
                    let _ = rustix::io::read(&self.bell, &mut [0_u8; 8]);
                }
                name => self.hear(name, now),
            }
        }
        let is_late = |exchange: &Exchange| now > exchange.since + EXCHANGE_LIMIT;
        self.exchanges.retain(|(_, exchange)| !is_late(exchange));
        if mem::take(&mut self.has_retries) {
            let is_waiting = |known: &Known| known.again.is_some();
            let due = |known: &Known| known.again.is_some_and(|again| now >= again);
            let now_due = self.known.iter().filter(|(_, known)| due(known)).map(|(&it, _)| it);
            for session in now_due.collect::<Vec<_>>() {
                self.begin(session, now);
            }
            self.has_retries = self.known.values().any(is_waiting);
        }
    }

    fn accept(&mut self, now: Instant) {
        for _ in 0..EXCHANGES_MAX / 4 {
            let Some(socket) = socket::accept(self.listener.as_fd()) else { return };
            self.watch(Exchange::accepted(socket, now));
        }
    }

    /// There is news of a connection.
    fn hear(&mut self, name: u64, now: Instant) {
        if let Some(index) = self.names.iter().position(|&it| it == name) {
            self.hear_of_channel(index as u32, now);
            return;
        }
        let Some(at) = self.exchanges.iter().position(|&(it, _)| it == name) else { return };
        let exchange = &mut self.exchanges[at].1;
        let outcome = match socket::receive(exchange.socket.as_fd()) {
            Ok(packet) => {
                let known = &self.known;
                exchange.handle(packet, |session| known.get(&session).map(|it| &it.neighbour))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Outcome::Going,
            Err(_) => Outcome::Failed("it is gone"),
        };
        self.finish(name, outcome);
    }

    /// Wake-ups have done what they are for; anything else ends a channel.
    fn hear_of_channel(&mut self, index: u32, now: Instant) {
        for _ in 0..PACKETS_AT_ONCE {
            let Some(Some(channel)) = self.channels.get_mut(index as usize) else { return };
            match socket::receive(channel.socket.as_fd()) {
                Ok(packet) if packet.bytes().len() == 1 && packet.descriptor.is_none() => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                _ => {
                    tracing::debug!(session = channel.session, "a neighbour's memory ends");
                    let session = channel.session;
                    channel.end();
                    // The end is not told twice.
                    let _ = epoll::delete(&self.epoll, &channel.socket);
                    if !channel.has_received() {
                        self.remove(index);
                    }
                    self.retry(session, now);
                    return;
                }
            }
        }
        self.is_called = true;
    }

    /// An exchange went on.
    fn finish(&mut self, name: u64, outcome: Outcome) {
        if matches!(outcome, Outcome::Going) {
            return;
        }
        let Some(at) = self.exchanges.iter().position(|&(it, _)| it == name) else { return };
        let (_, exchange) = self.exchanges.swap_remove(at);
        let session = exchange.session;
        match outcome {
            Outcome::Going => {}
            Outcome::Failed(why) => {
                tracing::debug!(?session, "no shared memory with a neighbour: {why}");
                self.figures.refused += 1;
            }
            Outcome::Done { segment, writes } => {
                let known = session.and_then(|session| self.known.get_mut(&session));
                let Some(known) = known else { return };
                known.tries = 0;
                let (session, address) = (known.neighbour.session, known.neighbour.address);
                // A neighbour that has begun anew: what came by the old one came before.
                if let Some(&old) = self.by_session.get(&session) {
                    self.remove(old);
                }
                let channel = Channel::new(exchange.socket, session, address, *segment, writes);
                self.insert(name, channel);
            }
        }
    }

    fn insert(&mut self, name: u64, channel: Channel) {
        tracing::debug!(session = channel.session, "datagrams go by shared memory");
        if self.is_asleep && !channel.fall_asleep() {
            self.is_called = true;
        }
        let free = self.channels.iter().position(Option::is_none);
        let index = free.unwrap_or(self.channels.len());
        if index == self.channels.len() {
            self.channels.push(None);
            self.names.push(0);
        }
        self.by_session.insert(channel.session, index as u32);
        self.names[index] = name;
        self.order.push(index as u32);
        self.channels[index] = Some(channel);
    }

    /// A neighbour breaks the rules: datagrams go by UDP, and stay there.
    ///
    /// RR-SHM-5.
    #[cold]
    fn give_up(&mut self, index: u32, why: &str) {
        let Some(Some(channel)) = self.channels.get(index as usize) else { return };
        let session = channel.session;
        tracing::warn!(session, "shared memory with a neighbour is given up: {why}");
        self.figures.broken += 1;
        self.remove(index);
        self.known.remove(&session);
    }

    #[cold]
    fn remove(&mut self, index: u32) {
        let Some(channel) = self.channels.get_mut(index as usize).and_then(Option::take) else {
            return;
        };
        self.names[index as usize] = 0;
        self.by_session.remove(&channel.session);
        self.order.retain(|&it| it != index);
        self.last = (0, 0);
    }
}
