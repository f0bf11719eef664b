//! Connecting and disconnecting local peers.

use std::io;
use std::mem;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use super::channel::Channel;
use super::doorbell::DOORBELLS;
use super::handshake::{Exchange, HandshakeOutcome, LocalSide};
use super::ring::RingViolation;
use super::untrusted::{self, Untrusted};
use super::{KnownPeer, LISTENER, PROCESS, RingChange, Shm, TIMER, cma, socket, timer};
use crate::driver::traits::{KeptFrames, LocalPeer};
use crate::forks::EngineFd;
use crate::refused_call::{Seldom, refused};
use crate::wire::local_peer::{SIGNAL_POLL, SIGNAL_READS};

/// Handshakes that peers opened, at most; beyond, the oldest is closed.
pub(super) const EXCHANGES_MAX: usize = 64;
/// Timeout of a handshake.
pub(super) const EXCHANGE_LIMIT: Duration = Duration::from_secs(2);
/// Times that a peer whose channel has ended is reconnected.
const RETRIES: u32 = 6;
/// Delay before the first retry; it doubles.
const RETRY_AFTER: Duration = Duration::from_millis(50);
/// Why there is no channel with another peer.
const NO_SLOT: &str = "all doorbells of this engine are in use";
/// Pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(250);
/// Events per call of epoll.
const BATCH: usize = 64;
/// Messages read from one socket at a time.
const PACKETS_AT_ONCE: usize = 64;

/// Whether the peer belongs to this process's user, or other users are allowed.
fn is_permitted(socket: &Untrusted, others: bool) -> bool {
    let own = rustix::process::geteuid().as_raw();
    others || cma::peer_of(socket.as_fd()).is_ok_and(|peer| peer.uid == own)
}

impl Shm {
    /// See [`crate::driver::traits::DatagramIo::connect_peer`].
    pub(in crate::driver) fn connect_peer(&mut self, peer: LocalPeer) {
        let (session, now) = (peer.session, Instant::now());
        if self.known.contains_key(&session) {
            return;
        }
        let is_initiator = peer.is_initiator;
        self.known.insert(session, KnownPeer { peer, process: None, again: None, tries: 0 });
        if is_initiator {
            self.start_exchange(session, now);
            return;
        }
        // The peer may have connected before the session was established here.
        let waiting = self.exchanges.iter_mut().find(|(_, it)| it.session == Some(session));
        if let (Some((name, exchange)), Some(known)) = (waiting, self.known.get(&session)) {
            let (name, outcome) = (*name, exchange.resume(&known.peer));
            self.finish(name, outcome);
        }
    }

    /// See [`crate::driver::traits::DatagramIo::disconnect_peer`].
    pub(in crate::driver) fn disconnect_peer(&mut self, session: u64) {
        self.known.remove(&session);
        let ends = |(_, it): &mut (u64, Exchange)| it.session == Some(session);
        for (_, exchange) in self.exchanges.extract_if(.., ends).collect::<Vec<_>>() {
            self.end_exchange(exchange);
        }
        if let Some(&index) = self.by_session.get(&session) {
            self.remove(index);
        }
    }

    /// Requests a channel from a local peer.
    fn start_exchange(&mut self, session: u64, now: Instant) {
        let slot = self.free_slot();
        let Some(known) = self.known.get_mut(&session) else { return };
        known.again = None;
        let Some(slot) = slot else {
            tracing::debug!(session, "no shared memory with a local peer: {NO_SLOT}");
            return self.retry(session, now);
        };
        match Exchange::begin(&self.discovery, &known.peer, slot, now) {
            Ok(exchange) if is_permitted(&exchange.socket, self.others) => self.watch(exchange),
            Ok(_) => tracing::debug!(
                session,
                "no shared memory with a peer: it is another user's; both sides may set \
                 shared_memory_other_users"
            ),
            // The peer is on another host, or does not share memory: the common case.
            Err(error) if socket::is_not_listening(&error) && known.tries == 0 => {}
            Err(error) => {
                tracing::debug!(session, "no shared memory with a local peer: {error}");
                self.retry(session, now);
            }
        }
    }

    /// Retries later, if this side is the one that connects.
    fn retry(&mut self, session: u64, now: Instant) {
        let Some(known) = self.known.get_mut(&session) else { return };
        if known.peer.is_initiator && known.tries < RETRIES {
            known.again = Some(now + RETRY_AFTER * (1 << known.tries));
            known.tries += 1;
            self.has_retries = true;
        }
    }

    /// A place for a channel, which is also its doorbell's number.
    fn free_slot(&self) -> Option<u32> {
        let is_free = |&slot: &u32| {
            self.channels.get(slot as usize).is_none_or(Option::is_none)
                && self.exchanges.iter().all(|(_, exchange)| exchange.slot != slot)
        };
        (0..DOORBELLS).find(is_free)
    }

    fn watch(&mut self, exchange: Exchange) {
        let mut of_others = (0..).zip(&self.exchanges).filter(|(_, (_, it))| !it.is_own);
        if let (Some((oldest, _)), true) = (of_others.next(), !exchange.is_own)
            && of_others.count() + 1 >= EXCHANGES_MAX
        {
            let (_, exchange) = self.exchanges.remove(oldest);
            self.end_exchange(exchange);
        }
        let name = self.next_name;
        self.next_name += 1;
        let data = epoll::EventData::new_u64(name);
        if epoll::add(&self.epoll, &exchange.socket, data, epoll::EventFlags::IN).is_ok() {
            self.exchanges.push((name, exchange));
        }
    }

    /// Polls the sockets, and handles their events.
    pub(super) fn maintain(&mut self, now: Instant) {
        self.has_socket_events = false;
        let mut events = Vec::with_capacity(BATCH);
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        let spare = rustix::buffer::spare_capacity(&mut events);
        let waited = epoll::wait(&self.epoll, spare, Some(&none));
        // There may be more.
        self.has_socket_events = events.len() == BATCH || waited.is_err();
        let mut names: Vec<u64> = events.iter().map(|event| event.data.u64()).collect();
        match waited {
            Ok(_) => {}
            Err(Errno::INTR) => return,
            Err(error) => self.ask_all(error, &mut names),
        }
        for name in names {
            match name {
                LISTENER => self.accept(now),
                TIMER => {
                    let _ = rustix::io::read(&self.timer, &mut [0_u8; 8]);
                    self.resume_accept(now);
                }
                name if name & PROCESS != 0 => self.process_ended(name, now),
                name => self.handle_message(name, now),
            }
        }
        let is_late = |(_, it): &mut (u64, Exchange)| now > it.since + EXCHANGE_LIMIT;
        let late: Vec<_> = self.exchanges.extract_if(.., is_late).map(|(_, late)| late).collect();
        for exchange in late {
            let own = exchange.session.filter(|_| exchange.is_own);
            self.end_exchange(exchange);
            if let Some(session) = own {
                tracing::debug!(session, "no shared memory with a local peer: handshake timed out");
                self.retry(session, now);
            }
        }
        if mem::take(&mut self.has_retries) {
            let is_waiting = |known: &KnownPeer| known.again.is_some();
            let due = |known: &KnownPeer| known.again.is_some_and(|again| now >= again);
            let now_due = self.known.iter().filter(|(_, known)| due(known)).map(|(&it, _)| it);
            for session in now_due.collect::<Vec<_>>() {
                self.start_exchange(session, now);
            }
            self.has_retries = self.known.values().any(is_waiting);
        }
    }

    /// The kernel does not say which sockets have something: all are asked, at each turn.
    #[cold]
    fn ask_all(&self, error: Errno, names: &mut Vec<u64>) {
        static WARNED: Seldom = Seldom::new();
        if WARNED.is_due() {
            let error = refused("epoll_wait")(error);
            tracing::warn!("polling the sockets of local peers one by one: {error}");
        }
        names.extend([LISTENER, TIMER]);
        names.extend(self.exchanges.iter().map(|&(name, _)| name));
        names.extend(self.names.iter().copied().filter(|&name| name != 0));
    }

    fn accept(&mut self, now: Instant) {
        for _ in 0..EXCHANGES_MAX / 4 {
            if untrusted::are_too_many_closing() {
                return self.pause_accept(now, "too many sockets wait to be closed");
            }
            let socket = match self.listener.accept() {
                Ok(socket) => socket,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // Out of descriptors or memory: retrying at once would loop.
                Err(error) => return self.pause_accept(now, error),
            };
            if !is_permitted(&socket, self.others) {
                self.figures.refused += 1;
                continue;
            }
            match self.free_slot() {
                Some(slot) => self.watch(Exchange::accepted(socket, slot, now)),
                None => tracing::debug!("rejected a local peer: {NO_SLOT}"),
            }
        }
    }

    /// Stops accepting connections for a while.
    #[cold]
    pub(super) fn pause_accept(&mut self, now: Instant, why: impl std::fmt::Display) {
        tracing::warn!(
            "cannot accept connections of local peers for now: {why}; new sessions use UDP until \
             then; raise the limit of descriptors (ulimit -n) if it is reached"
        );
        let data = epoll::EventData::new_u64(LISTENER);
        let _ = epoll::modify(&self.epoll, &self.listener, data, epoll::EventFlags::empty());
        self.accepts_after = Some(now + ACCEPT_PAUSE);
        timer::arm_after(&self.timer, ACCEPT_PAUSE);
    }

    /// The alarm has rung: for this, or for another purpose.
    fn resume_accept(&mut self, now: Instant) {
        let Some(until) = self.accepts_after else { return };
        if now < until {
            let rest = until.duration_since(now).max(Duration::from_nanos(1));
            return timer::arm_after(&self.timer, rest);
        }
        self.accepts_after = None;
        let data = epoll::EventData::new_u64(LISTENER);
        let _ = epoll::modify(&self.epoll, &self.listener, data, epoll::EventFlags::IN);
    }

    /// Ends a handshake. Its socket may be closed later, and is not watched until then.
    fn end_exchange(&self, exchange: Exchange) {
        let _ = epoll::delete(&self.epoll, &exchange.socket);
    }

    /// Handles an event of a connection.
    fn handle_message(&mut self, name: u64, now: Instant) {
        if let Some(index) = self.names.iter().position(|&it| it == name) {
            self.handle_channel_message(index as u32, now);
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
                let find = |session| known.get(&session).map(|it: &KnownPeer| &it.peer);
                let doorbells = self.polling.doorbells();
                let own = LocalSide { cookie: self.cookie.as_deref(), doorbells };
                exchange.handle(packet, own, find)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => HandshakeOutcome::Pending,
            Err(_) => HandshakeOutcome::Failed("the connection has ended"),
        };
        self.finish(name, outcome);
    }

    /// Wake-ups need no further handling; an unexpected message ends the channel.
    ///
    /// RR-SHM-5.
    fn handle_channel_message(&mut self, index: u32, now: Instant) {
        for _ in 0..PACKETS_AT_ONCE {
            let Some(Some(channel)) = self.channels.get_mut(index as usize) else { return };
            let session = channel.session;
            match socket::receive(channel.socket.as_fd()) {
                Ok(packet) if packet.is_signal(SIGNAL_POLL) => {
                    self.handle_wakeup(index);
                    continue;
                }
                Ok(packet) if packet.is_signal(SIGNAL_READS) => {
                    channel.is_read = self.cookie.is_some();
                    self.cma_changes.push_back((session, channel.is_read));
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Ok(_) | Err(_) => return self.end_channel(index, now),
            }
        }
        self.has_socket_events = true;
    }

    /// A peer's process has ended; a child may keep its sockets open. Entries in the ring are still
    /// read.
    fn process_ended(&mut self, name: u64, now: Instant) {
        let is_its = |known: &KnownPeer| known.process.as_ref().is_some_and(|(it, _)| *it == name);
        let Some((&session, known)) = self.known.iter_mut().find(|(_, known)| is_its(known)) else {
            return;
        };
        if let Some((_, process)) = known.process.take() {
            let _ = epoll::delete(&self.epoll, &process);
        }
        tracing::debug!(session, "the process of a local peer has ended");
        match self.by_session.get(&session).copied() {
            Some(index) => {
                if let Some(Some(channel)) = self.channels.get_mut(index as usize) {
                    channel.has_process_ended = true;
                }
                self.end_channel(index, now);
            }
            None => self.ended_processes.push_back(session),
        }
    }

    /// Stops writing to a channel; entries in its ring are still read.
    pub(super) fn end_channel(&mut self, index: u32, now: Instant) {
        let Some(Some(channel)) = self.channels.get_mut(index as usize) else { return };
        let session = channel.session;
        tracing::debug!(session, "shared memory with a local peer has ended");
        channel.end();
        let unread = channel.unread();
        self.ring_changes.push_back(RingChange { session, number: channel.number, is_up: false });
        if channel.is_read {
            self.cma_changes.push_back((session, false));
        }
        // The end is reported once.
        let _ = epoll::delete(&self.epoll, &channel.socket);
        let has_received = channel.has_received();
        self.figures.broken += u64::from(unread.is_err());
        self.keep_unread(session, unread);
        if has_received {
            self.mark_pending(index);
        } else {
            self.remove(index);
        }
        self.retry(session, now);
    }

    /// Handles the result of a handshake step.
    fn finish(&mut self, name: u64, outcome: HandshakeOutcome) {
        if matches!(outcome, HandshakeOutcome::Pending) {
            return;
        }
        let Some(at) = self.exchanges.iter().position(|&(it, _)| it == name) else { return };
        let (_, exchange) = self.exchanges.swap_remove(at);
        let session = exchange.session;
        match outcome {
            HandshakeOutcome::Pending => {}
            HandshakeOutcome::Failed(why) => {
                tracing::debug!(?session, "no shared memory with a local peer: {why}");
                self.figures.refused += 1;
                let own = session.filter(|_| exchange.is_own);
                self.end_exchange(exchange);
                // The peer may have had too many handshakes at a time.
                if let Some(session) = own {
                    self.retry(session, Instant::now());
                }
            }
            HandshakeOutcome::Done { segment, writes, number, doorbell, memory, is_read } => {
                let known = session.and_then(|session| self.known.get_mut(&session));
                let Some(known) = known else { return };
                known.tries = 0;
                let (session, address) = (known.peer.session, known.peer.address);
                // The peer has started anew: what came by the old channel came before.
                if let Some(&old) = self.by_session.get(&session) {
                    self.remove(old);
                }
                let Exchange { socket, slot, .. } = exchange;
                let Some(socket) = socket.into_trusted() else { return };
                self.watch_process(session, name, &socket);
                let (names, rings) = ((session, number), (*segment, writes));
                let mut channel = Channel::new(socket, names, address, rings, doorbell, memory);
                channel.is_read = is_read;
                if is_read {
                    self.cma_changes.push_back((session, true));
                }
                self.insert(name, slot, channel);
            }
        }
    }

    /// Watches the process at the other end of a channel's socket.
    fn watch_process(&mut self, session: u64, name: u64, socket: &EngineFd) {
        let Some(process) = socket::process_of(socket.as_fd()) else { return };
        let name = PROCESS | name;
        let data = epoll::EventData::new_u64(name);
        // One-shot: a raw clone of this process may keep the descriptor registered after it is
        // closed.
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
        if epoll::add(&self.epoll, &process, data, flags).is_ok()
            && let Some(known) = self.known.get_mut(&session)
        {
            known.process = Some((name, EngineFd::new(process)));
        }
    }

    fn insert(&mut self, name: u64, index: u32, channel: Channel) {
        tracing::debug!(session = channel.session, "using shared memory with a local peer");
        if self.channels.len() <= index as usize {
            self.channels.resize_with(index as usize + 1, || None);
            self.names.resize(index as usize + 1, 0);
        }
        self.by_session.insert(channel.session, index);
        let (session, number) = (channel.session, channel.number);
        self.ring_changes.push_back(RingChange { session, number, is_up: true });
        self.names[index as usize] = name;
        self.channels[index as usize] = Some(channel);
        self.add_channel(index);
    }

    /// A peer violated the ring protocol: its session uses UDP from now on.
    ///
    /// RR-SHM-5.
    #[cold]
    pub(super) fn give_up(&mut self, index: u32, why: &str) {
        let Some(Some(channel)) = self.channels.get(index as usize) else { return };
        let session = channel.session;
        tracing::warn!(session, "protocol violation by a local peer, using UDP instead: {why}");
        self.figures.broken += 1;
        self.remove(index);
        self.known.remove(&session);
    }

    #[cold]
    pub(super) fn remove(&mut self, index: u32) {
        let Some(mut channel) = self.channels.get_mut(index as usize).and_then(Option::take) else {
            return;
        };
        self.figures.ended += 1;
        if !channel.is_ending() {
            let unread = channel.unread();
            self.keep_unread(channel.session, unread);
            let Channel { session, number, .. } = channel;
            self.ring_changes.push_back(RingChange { session, number, is_up: false });
        }
        if channel.is_read && !channel.is_ending() {
            self.cma_changes.push_back((channel.session, false));
        }
        if channel.has_process_ended {
            self.ended_processes.push_back(channel.session);
        }
        self.names[index as usize] = 0;
        self.by_session.remove(&channel.session);
        self.remove_channel(index);
        self.last = (0, 0);
    }

    /// Keeps what a ring that ends has of its writer.
    fn keep_unread(&mut self, session: u64, unread: Result<Vec<KeptFrames>, RingViolation>) {
        match unread {
            Ok(kept) => self.unread.extend(kept.into_iter().map(|kept| (session, Some(kept)))),
            Err(RingViolation) => self.unread.push((session, None)),
        }
    }
}
