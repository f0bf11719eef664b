//! Engines of this host come and go.

use std::io;
use std::mem;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use super::channel::Channel;
use super::doorbell::DOORBELLS;
use super::handshake::{Exchange, Outcome, Own};
use super::untrusted::{self, Untrusted};
use super::{ALARM, Known, LISTENER, PROCESS, RingNews, Shm, alarm, cma, memory, socket};
use crate::driver::lanes::Neighbour;
use crate::forks::EngineFd;
use crate::refused_call::{Seldom, refused};
use crate::wire::neighbour::{SIGN_LOOK, SIGN_READS};

/// Exchanges under way that others have begun; of more, the oldest ends.
pub(super) const EXCHANGES_MAX: usize = 64;
/// How long one may take.
pub(super) const EXCHANGE_LIMIT: Duration = Duration::from_secs(2);
/// Times that a neighbour whose channel has ended is asked for another one.
const RETRIES: u32 = 6;
/// The pause before the first of these; it doubles.
const RETRY_AFTER: Duration = Duration::from_millis(50);
/// Why there is no channel with one more.
const NO_PLACE: &str = "this engine has as many neighbours as doorbells";
/// The pause after a connection that could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(250);
/// Events that are taken at once.
const BATCH: usize = 64;
/// Packets that are taken of one socket at once.
const PACKETS_AT_ONCE: usize = 64;

/// Whether the peer is of this process's user, or may be of another one.
fn is_permitted(socket: &Untrusted, others: bool) -> bool {
    let own = rustix::process::geteuid().as_raw();
    others || cma::peer_of(socket.as_fd()).is_ok_and(|peer| peer.uid == own)
}

impl Shm {
    /// See [`crate::driver::lanes::DatagramPort::meet`].
    pub(in crate::driver) fn meet(&mut self, neighbour: Neighbour) {
        let (session, now) = (neighbour.session, Instant::now());
        if self.known.contains_key(&session) {
            return;
        }
        let is_initiator = neighbour.is_initiator;
        self.known.insert(session, Known { neighbour, process: None, again: None, tries: 0 });
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
    pub(in crate::driver) fn part(&mut self, session: u64) {
        self.known.remove(&session);
        let ends = |(_, it): &mut (u64, Exchange)| it.session == Some(session);
        for (_, exchange) in self.exchanges.extract_if(.., ends).collect::<Vec<_>>() {
            self.forget(exchange);
        }
        if let Some(&index) = self.by_session.get(&session) {
            self.remove(index);
        }
    }

    /// Asks a neighbour for a channel.
    fn begin(&mut self, session: u64, now: Instant) {
        let place = self.free_place();
        let Some(known) = self.known.get_mut(&session) else { return };
        known.again = None;
        let Some(place) = place else {
            tracing::debug!(session, "no shared memory with a neighbour: {NO_PLACE}");
            return self.retry(session, now);
        };
        match Exchange::begin(&self.meeting, &known.neighbour, place, now) {
            Ok(exchange) if is_permitted(&exchange.socket, self.others) => self.watch(exchange),
            Ok(_) => tracing::debug!(
                session,
                "no shared memory with a neighbour: it is another user's; both sides may set \
                 shared_memory_other_users"
            ),
            // Another host's, or without the setting: most are.
            Err(error) if socket::is_nobody(&error) && known.tries == 0 => {}
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

    /// A place for a channel, which is also its doorbell's number.
    fn free_place(&self) -> Option<u32> {
        let is_free = |&place: &u32| {
            self.channels.get(place as usize).is_none_or(Option::is_none)
                && self.exchanges.iter().all(|(_, exchange)| exchange.place != place)
        };
        (0..DOORBELLS).find(is_free)
    }

    fn watch(&mut self, exchange: Exchange) {
        let mut of_others = (0..).zip(&self.exchanges).filter(|(_, (_, it))| !it.is_own);
        if let (Some((oldest, _)), true) = (of_others.next(), !exchange.is_own)
            && of_others.count() + 1 >= EXCHANGES_MAX
        {
            let (_, exchange) = self.exchanges.remove(oldest);
            self.forget(exchange);
        }
        let name = self.next_name;
        self.next_name += 1;
        let data = epoll::EventData::new_u64(name);
        if epoll::add(&self.epoll, &exchange.socket, data, epoll::EventFlags::IN).is_ok() {
            self.exchanges.push((name, exchange));
        }
    }

    /// Asks the kernel for news of sockets, and does what they ask for.
    pub(super) fn tend(&mut self, now: Instant) {
        self.is_called = false;
        let mut events = Vec::with_capacity(BATCH);
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        let spare = rustix::buffer::spare_capacity(&mut events);
        let waited = epoll::wait(&self.epoll, spare, Some(&none));
        // There may be more.
        self.is_called = events.len() == BATCH || waited.is_err();
        let mut names: Vec<u64> = events.iter().map(|event| event.data.u64()).collect();
        match waited {
            Ok(_) => {}
            Err(Errno::INTR) => return,
            Err(error) => self.ask_all(error, &mut names),
        }
        for name in names {
            match name {
                LISTENER => self.accept(now),
                ALARM => {
                    let _ = rustix::io::read(&self.alarm, &mut [0_u8; 8]);
                    self.accept_again(now);
                }
                name if name & PROCESS != 0 => self.process_ended(name, now),
                name => self.hear(name, now),
            }
        }
        let is_late = |(_, it): &mut (u64, Exchange)| now > it.since + EXCHANGE_LIMIT;
        let late: Vec<_> = self.exchanges.extract_if(.., is_late).map(|(_, late)| late).collect();
        for exchange in late {
            let own = exchange.session.filter(|_| exchange.is_own);
            self.forget(exchange);
            if let Some(session) = own {
                tracing::debug!(session, "no shared memory with a neighbour: it does not answer");
                self.retry(session, now);
            }
        }
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

    /// The kernel does not say which sockets have something: all are asked, at each turn.
    #[cold]
    fn ask_all(&self, error: Errno, names: &mut Vec<u64>) {
        static SAID: Seldom = Seldom::new();
        if SAID.is_due() {
            let error = refused("epoll_wait")(error);
            tracing::warn!("sockets of engines of this host are asked one by one: {error}");
        }
        names.extend([LISTENER, ALARM]);
        names.extend(self.exchanges.iter().map(|&(name, _)| name));
        names.extend(self.names.iter().copied().filter(|&name| name != 0));
    }

    fn accept(&mut self, now: Instant) {
        for _ in 0..EXCHANGES_MAX / 4 {
            if untrusted::are_too_many_closing() {
                return self.rest_from_accepting(now, "too many sockets wait to be closed");
            }
            let socket = match self.listener.accept() {
                Ok(socket) => socket,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // Out of descriptors or memory: asking again at once would be asking for ever.
                Err(error) => return self.rest_from_accepting(now, error),
            };
            if !is_permitted(&socket, self.others) {
                self.figures.refused += 1;
                continue;
            }
            match self.free_place() {
                Some(place) => self.watch(Exchange::accepted(socket, place, now)),
                None => tracing::debug!("a neighbour shares no memory: {NO_PLACE}"),
            }
        }
    }

    /// The kernel is not asked for connections for a while.
    #[cold]
    pub(super) fn rest_from_accepting(&mut self, now: Instant, why: impl std::fmt::Display) {
        tracing::warn!(
            "cannot accept connections of engines of this host for now: {why}; datagrams go by \
             UDP until then; raise the limit of descriptors (ulimit -n) if it is reached"
        );
        let data = epoll::EventData::new_u64(LISTENER);
        let _ = epoll::modify(&self.epoll, &self.listener, data, epoll::EventFlags::empty());
        self.accepts_after = Some(now + ACCEPT_PAUSE);
        alarm::ring_in(&self.alarm, ACCEPT_PAUSE);
    }

    /// The alarm has rung: for this, or for another purpose.
    fn accept_again(&mut self, now: Instant) {
        let Some(until) = self.accepts_after else { return };
        if now < until {
            let rest = until.duration_since(now).max(Duration::from_nanos(1));
            return alarm::ring_in(&self.alarm, rest);
        }
        self.accepts_after = None;
        let data = epoll::EventData::new_u64(LISTENER);
        let _ = epoll::modify(&self.epoll, &self.listener, data, epoll::EventFlags::IN);
    }

    /// Ends an exchange. Its socket may be closed later, and is not watched until then.
    fn forget(&self, exchange: Exchange) {
        let _ = epoll::delete(&self.epoll, &exchange.socket);
    }

    /// There is news of a connection.
    fn hear(&mut self, name: u64, now: Instant) {
        if let Some(index) = self.names.iter().position(|&it| it == name) {
            self.hear_of_channel(index as u32, now);
            return;
        }
        let Some(at) = self.exchanges.iter().position(|&(it, _)| it == name) else { return };
        let exchange = &mut self.exchanges[at].1;
        let received = if exchange.is_admitted() {
            socket::receive(exchange.socket.as_fd())
        } else {
            socket::receive_without_descriptors(exchange.socket.as_fd())
        };
        let outcome = match received {
            Ok(packet) => {
                let known = &self.known;
                let find = |session| known.get(&session).map(|it: &Known| &it.neighbour);
                let doorbells = self.polling.doorbells();
                let own = Own { witness: self.witness.as_deref(), doorbells };
                exchange.handle(packet, own, find)
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
            let session = channel.session;
            let news = match socket::receive(channel.socket.as_fd()) {
                Ok(packet) if packet.is_sign(SIGN_LOOK) => {
                    self.was_woken_by(index);
                    continue;
                }
                Ok(packet) if packet.is_sign(SIGN_READS) => {
                    channel.is_read = self.witness.is_some();
                    self.cma_news.push_back((session, channel.is_read));
                    continue;
                }
                Ok(packet) => memory::event_of(session, &mut channel.questions, packet),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => None,
            };
            if let Some(news) = news {
                self.memory_news.push_back(news);
                continue;
            }
            return self.end_channel(index, now);
        }
        self.is_called = true;
    }

    /// The process of a neighbour has ended; another one may keep its sockets open. What is in the
    /// ring is still read.
    fn process_ended(&mut self, name: u64, now: Instant) {
        let is_its = |known: &Known| known.process.as_ref().is_some_and(|(it, _)| *it == name);
        let Some((&session, known)) = self.known.iter_mut().find(|(_, known)| is_its(known)) else {
            return;
        };
        if let Some((_, process)) = known.process.take() {
            let _ = epoll::delete(&self.epoll, &process);
        }
        tracing::debug!(session, "the process of a neighbour has ended");
        match self.by_session.get(&session).copied() {
            Some(index) => {
                if let Some(Some(channel)) = self.channels.get_mut(index as usize) {
                    channel.has_process_ended = true;
                }
                self.end_channel(index, now);
            }
            None => self.ended.push_back(session),
        }
    }

    /// Nothing is written to a channel any more; what is in its ring is still read.
    pub(super) fn end_channel(&mut self, index: u32, now: Instant) {
        let Some(Some(channel)) = self.channels.get_mut(index as usize) else { return };
        let session = channel.session;
        tracing::debug!(session, "a neighbour's memory ends");
        channel.end();
        self.ring_news.push_back(RingNews { session, number: channel.number, is_up: false });
        if channel.is_read {
            self.cma_news.push_back((session, false));
        }
        // The end is not told twice.
        let _ = epoll::delete(&self.epoll, &channel.socket);
        if channel.has_received() {
            self.look_at(index);
        } else {
            self.remove(index);
        }
        self.retry(session, now);
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
                let own = session.filter(|_| exchange.is_own);
                self.forget(exchange);
                // It may have had too many exchanges at a time.
                if let Some(session) = own {
                    self.retry(session, Instant::now());
                }
            }
            Outcome::Done { segment, writes, number, doorbell, memory, is_read } => {
                let known = session.and_then(|session| self.known.get_mut(&session));
                let Some(known) = known else { return };
                known.tries = 0;
                let (session, address) = (known.neighbour.session, known.neighbour.address);
                // A neighbour that has begun anew: what came by the old one came before.
                if let Some(&old) = self.by_session.get(&session) {
                    self.remove(old);
                }
                let Exchange { socket, place, .. } = exchange;
                let Some(socket) = socket.into_trusted() else { return };
                self.watch_process(session, name, &socket);
                let (names, rings) = ((session, number), (*segment, writes));
                let mut channel = Channel::new(socket, names, address, rings, doorbell, memory);
                channel.is_read = is_read;
                if is_read {
                    self.cma_news.push_back((session, true));
                }
                self.insert(name, place, channel);
            }
        }
    }

    /// Has the kernel say when the process at the other end of a channel's socket ends.
    fn watch_process(&mut self, session: u64, name: u64, socket: &EngineFd) {
        let Some(process) = socket::process_of(socket.as_fd()) else { return };
        let name = PROCESS | name;
        let data = epoll::EventData::new_u64(name);
        // Once: a raw clone of this process may keep the descriptor registered when it is closed.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
        if epoll::add(&self.epoll, &process, data, flags).is_ok()
            && let Some(known) = self.known.get_mut(&session)
        {
            known.process = Some((name, EngineFd::new(process)));
        }
    }

    fn insert(&mut self, name: u64, index: u32, channel: Channel) {
        tracing::debug!(session = channel.session, "datagrams go by shared memory");
        if self.channels.len() <= index as usize {
            self.channels.resize_with(index as usize + 1, || None);
            self.names.resize(index as usize + 1, 0);
        }
        self.by_session.insert(channel.session, index);
        let (session, number) = (channel.session, channel.number);
        self.ring_news.push_back(RingNews { session, number, is_up: true });
        self.names[index as usize] = name;
        self.channels[index as usize] = Some(channel);
        self.begin_to_look(index);
    }

    /// A neighbour breaks the rules: datagrams go by UDP, and stay there.
    ///
    /// RR-SHM-5.
    #[cold]
    pub(super) fn give_up(&mut self, index: u32, why: &str) {
        let Some(Some(channel)) = self.channels.get(index as usize) else { return };
        let session = channel.session;
        tracing::warn!(session, "shared memory with a neighbour is given up: {why}");
        self.figures.broken += 1;
        self.remove(index);
        self.known.remove(&session);
    }

    #[cold]
    pub(super) fn remove(&mut self, index: u32) {
        let Some(channel) = self.channels.get_mut(index as usize).and_then(Option::take) else {
            return;
        };
        self.figures.ended += 1;
        if !channel.is_ending() {
            let Channel { session, number, .. } = channel;
            self.ring_news.push_back(RingNews { session, number, is_up: false });
        }
        if channel.is_read && !channel.is_ending() {
            self.cma_news.push_back((channel.session, false));
        }
        if channel.has_process_ended {
            self.ended.push_back(channel.session);
        }
        self.names[index as usize] = 0;
        self.by_session.remove(&channel.session);
        self.cease_to_look(index);
        self.last = (0, 0);
    }
}
