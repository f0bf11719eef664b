//! The network of simulated drivers: lanes are queues in memory, and a seeded generator decides how
//! many bytes move, what fails and what comes late. The same seed breaks the same way.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::rc::Rc;

/// Xorshift: enough to be unlike.
#[derive(Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 11
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    pub(super) fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }
}

/// One direction of a connection.
#[derive(Debug, Default)]
pub(super) struct Pipe {
    pub(super) bytes: VecDeque<u8>,
    /// Nothing follows.
    pub(super) is_ended: bool,
}

/// A connection: `pipes[side]` carries what `side` writes.
#[derive(Debug, Default)]
pub(super) struct Connection {
    pub(super) pipes: [Pipe; 2],
    pub(super) is_reset: bool,
    /// Polls of each side until it hears of the reset.
    pub(super) news_polls: [usize; 2],
    pub(super) is_bulk: bool,
    /// That side reads no more.
    pub(super) is_gone: [bool; 2],
    /// Its packets disappear on the way: the attempt is never answered.
    pub(super) is_swallowed: bool,
    /// Where the listening side lives.
    listener: Option<SocketAddr>,
    /// Where the connecting side lives.
    origin: Option<SocketAddr>,
}

impl Connection {
    /// It is reset, but `side` has no news of that, and of nothing that came after.
    pub(super) fn is_unheard_of(&self, side: usize) -> bool {
        self.is_reset && self.news_polls[side] > 0
    }

    /// Where the peer of `side` lives.
    pub(super) fn beyond(&self, side: usize) -> Option<SocketAddr> {
        if side == 0 { self.listener } else { self.origin }
    }
}

/// What all drivers of one test share.
#[derive(Debug)]
pub(super) struct Net {
    pub(super) random: Random,
    pub(super) connections: Vec<Connection>,
    /// Connections that a listener has not seen yet.
    pub(super) backlogs: BTreeMap<SocketAddr, VecDeque<usize>>,
    /// Bytes that a connection holds per direction.
    pub(super) capacity: usize,
    /// One in so many attempts to connect fails; 0: none.
    pub(super) connect_failures: usize,
    /// One in so many attempts to connect is never answered; 0: none.
    pub(super) connects_swallowed: usize,
    /// Hosts without power: they send nothing more, not even a reset.
    pub(super) vanished: BTreeSet<SocketAddr>,
    /// Memory that a chunk refers to.
    pub(super) busy: Vec<(usize, usize)>,
}

pub(super) type Shared = Rc<RefCell<Net>>;

impl Net {
    pub(super) fn new(seed: u64) -> Shared {
        Rc::new(RefCell::new(Self {
            random: Random::new(seed),
            connections: Vec::new(),
            backlogs: BTreeMap::new(),
            capacity: 2000,
            connect_failures: 0,
            connects_swallowed: 0,
            vanished: BTreeSet::new(),
            busy: Vec::new(),
        }))
    }

    /// Whether a chunk that is not released refers to this memory (DESIGN D9).
    pub(super) fn is_busy(&self, bytes: &[u8]) -> bool {
        let start = bytes.as_ptr().addr();
        self.busy.iter().any(|&(from, to)| from < start + bytes.len() && start < to)
    }

    /// Breaks one connection that is in use, a bulk lane or another one. `false`: there is none.
    pub(super) fn cut(&mut self, is_bulk: bool) -> bool {
        let live: Vec<usize> = (0..self.connections.len())
            .filter(|&index| {
                let connection = &self.connections[index];
                !connection.is_reset
                    && connection.is_bulk == is_bulk
                    && connection.pipes.iter().all(|pipe| !pipe.is_ended)
            })
            .collect();
        if live.is_empty() {
            return false;
        }
        let victim = live[self.random.below(live.len())];
        // What was on its way is lost at once, but not both need hear of it at once.
        let late = self.random.below(2);
        self.connections[victim].news_polls[late] = self.random.below(80).saturating_sub(40);
        self.reset(victim);
        true
    }

    /// Loses what there is of connections, and every news of that.
    pub(super) fn mute(&mut self) {
        for index in 0..self.connections.len() {
            self.reset(index);
            self.connections[index].news_polls = [usize::MAX; 2];
        }
    }

    /// A new connection, which may never become one.
    pub(super) fn attempt(&mut self, from: SocketAddr, to: SocketAddr) -> usize {
        let Self { random, connections, backlogs, vanished, .. } = self;
        let mut is_chosen = |one_in: usize| one_in > 0 && random.one_in(one_in);
        let mut connection =
            Connection { origin: Some(from), listener: Some(to), ..Connection::default() };
        let index = connections.len();
        if is_chosen(self.connect_failures) {
            connection.is_reset = true;
        } else if vanished.contains(&to) || is_chosen(self.connects_swallowed) {
            connection.is_swallowed = true;
        } else if let Some(backlog) = backlogs.get_mut(&to) {
            backlog.push_back(index);
        } else {
            connection.is_reset = true;
        }
        connections.push(connection);
        index
    }

    /// The host of `locator` loses power. Its engine must not run any more.
    pub(super) fn vanish(&mut self, locator: SocketAddr) {
        self.vanished.insert(locator);
        self.backlogs.remove(&locator);
    }

    /// The kernels that had connections with a vanished host have waited long enough.
    pub(super) fn end_keep_alive(&mut self, locator: SocketAddr) {
        for index in 0..self.connections.len() {
            let connection = &self.connections[index];
            if [0, 1].iter().any(|&side| connection.beyond(side) == Some(locator)) {
                self.reset(index);
            }
        }
    }

    /// A connection to `locator` by somebody who is no engine, with `bytes` written.
    pub(super) fn intrude(&mut self, locator: SocketAddr, bytes: &[u8]) {
        let index = self.connections.len();
        let mut connection = Connection { listener: Some(locator), ..Connection::default() };
        connection.pipes[0].bytes.extend(bytes);
        connection.pipes[0].is_ended = self.random.one_in(2);
        self.connections.push(connection);
        self.backlogs.get_mut(&locator).expect("it listens").push_back(index);
    }

    /// Overwrites bytes on their way on a lane of the given kind. `false`: there are none.
    pub(super) fn garble(&mut self, is_bulk: bool) -> bool {
        let random = &mut self.random;
        let mut pipes = self.connections.iter_mut().filter(|it| it.is_bulk == is_bulk);
        let pipe = pipes
            .find_map(|connection| connection.pipes.iter_mut().find(|pipe| !pipe.bytes.is_empty()));
        let Some(pipe) = pipe else { return false };
        for byte in &mut pipe.bytes {
            *byte = random.next() as u8;
        }
        true
    }

    pub(super) fn reset(&mut self, connection: usize) {
        let connection = &mut self.connections[connection];
        connection.is_reset = true;
        connection.pipes.iter_mut().for_each(|pipe| pipe.bytes.clear());
    }

    pub(super) fn write(
        &mut self,
        connection: usize,
        side: usize,
        bytes: &[u8],
    ) -> io::Result<usize> {
        let Self { random, connections, capacity, .. } = self;
        let connection = &mut connections[connection];
        if connection.is_unheard_of(side) {
            return Ok(bytes.len());
        }
        if connection.is_reset || connection.is_gone[1 - side] {
            return Err(ErrorKind::ConnectionReset.into());
        }
        let pipe = &mut connection.pipes[side];
        let room = capacity.saturating_sub(pipe.bytes.len()).min(bytes.len());
        if room == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        let count =
            if room <= crate::wire::hello::HELLO_BYTES { room } else { 1 + random.below(room) };
        pipe.bytes.extend(&bytes[..count]);
        Ok(count)
    }

    pub(super) fn read(
        &mut self,
        connection: usize,
        side: usize,
        into: &mut [u8],
    ) -> io::Result<usize> {
        let Self { random, connections, .. } = self;
        let connection = &mut connections[connection];
        if connection.is_unheard_of(side) {
            return Err(ErrorKind::WouldBlock.into());
        }
        if connection.is_reset {
            return Err(ErrorKind::ConnectionReset.into());
        }
        let pipe = &mut connection.pipes[1 - side];
        let there = pipe.bytes.len().min(into.len());
        if there == 0 {
            return if pipe.is_ended { Ok(0) } else { Err(ErrorKind::WouldBlock.into()) };
        }
        let count = 1 + random.below(there);
        for byte in &mut into[..count] {
            *byte = pipe.bytes.pop_front().expect("counted above");
        }
        Ok(count)
    }

    /// A chunk refers to `memory` no more.
    pub(super) fn release(&mut self, memory: (usize, usize)) {
        let found = self.busy.iter().position(|&other| other == memory);
        self.busy.swap_remove(found.expect("what is released was taken"));
    }
}
