//! A driver without a kernel, over the network of [`super::net`]: short reads and writes, full
//! pipes, late events, and requests that still hold memory when their lane is closed.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use super::net::{Net, Shared};
use crate::memory::Shape;
use crate::progress::lanes::{
    CHUNK_HEADER_BYTES, CloseMode, Driver, DriverCounters, Event, Interest, LaneKey, SendMode,
};

#[derive(Debug)]
struct Sending {
    token: u64,
    header: [u8; CHUNK_HEADER_BYTES],
    memory: (usize, usize),
    pointer: *const u8,
    at: usize,
    /// How it ended, before that is reported.
    end: Option<io::Result<()>>,
}

#[derive(Debug)]
struct Receiving {
    header: [u8; CHUNK_HEADER_BYTES],
    memory: (usize, usize),
    pointer: *mut u8,
    at: usize,
    /// How it ended, before that is reported.
    end: Option<io::Result<[u8; CHUNK_HEADER_BYTES]>>,
}

#[derive(Debug)]
struct Lane {
    generation: u32,
    connection: usize,
    side: usize,
    is_connecting: bool,
    reads: bool,
    writes: bool,
    sending: Option<Sending>,
    /// Sent and not released.
    releasing: Vec<(u64, (usize, usize))>,
    receiving: Option<Receiving>,
    is_closing: bool,
    /// Polls in which nothing of this lane comes.
    asleep_polls: usize,
}

/// See the module.
#[derive(Debug)]
pub(super) struct SimDriver {
    net: Shared,
    locator: SocketAddr,
    lanes: Vec<Option<Lane>>,
    generation: u32,
    is_shut_down: bool,
}

impl SimDriver {
    pub(super) fn new(net: &Shared, locator: SocketAddr) -> Self {
        net.borrow_mut().backlogs.insert(locator, VecDeque::new());
        Self { net: Rc::clone(net), locator, lanes: Vec::new(), generation: 0, is_shut_down: false }
    }

    fn add(&mut self, connection: usize, side: usize, is_connecting: bool) -> LaneKey {
        self.generation += 1;
        let lane = Lane {
            generation: self.generation,
            connection,
            side,
            is_connecting,
            reads: false,
            writes: false,
            sending: None,
            releasing: Vec::new(),
            receiving: None,
            is_closing: false,
            asleep_polls: 0,
        };
        let free = self.lanes.iter().position(Option::is_none);
        let index = free.unwrap_or_else(|| {
            self.lanes.push(None);
            self.lanes.len() - 1
        });
        self.lanes[index] = Some(lane);
        LaneKey { index: index as u32, generation: self.generation }
    }

    fn lane(&mut self, key: LaneKey) -> &mut Lane {
        let lane = self.lanes[key.index as usize].as_mut();
        lane.filter(|lane| lane.generation == key.generation).expect("the loop knows its lanes")
    }

    /// Lets one lane come further; its events go to `events`.
    fn step(&mut self, index: usize, events: &mut Vec<Event>) {
        let Some(lane) = self.lanes[index].as_mut() else { return };
        let net = &mut *self.net.borrow_mut();
        let key = LaneKey { index: index as u32, generation: lane.generation };
        if lane.asleep_polls > 0 {
            lane.asleep_polls -= 1;
            return;
        }
        if net.random.one_in(60) {
            lane.asleep_polls = net.random.below(60);
        }
        if net.random.one_in(3) {
            return;
        }
        if lane.is_closing {
            return Self::reap(&mut self.lanes[index], key, net, events);
        }
        if lane.is_connecting {
            let attempt = &net.connections[lane.connection];
            // A host without power answers no more than a firewall does.
            if attempt.is_swallowed && !attempt.is_reset {
                return;
            }
            lane.is_connecting = false;
            if net.connections[lane.connection].is_reset {
                let error = ErrorKind::ConnectionRefused.into();
                events.push(Event::ConnectFailed { lane: key, error });
                lane.is_closing = true;
            } else {
                events.push(Event::Connected { lane: key });
            }
            return;
        }
        let connection = &mut net.connections[lane.connection];
        let news_polls = &mut connection.news_polls[lane.side];
        *news_polls = news_polls.saturating_sub(usize::from(connection.is_reset));
        let incoming = &connection.pipes[1 - lane.side];
        let is_unheard_of = connection.is_unheard_of(lane.side);
        let ended = !is_unheard_of && (connection.is_reset || incoming.is_ended);
        if lane.reads && (ended || !incoming.bytes.is_empty()) {
            lane.reads = false;
            events.push(Event::Readable { lane: key });
        }
        let has_room = connection.pipes[lane.side].bytes.len() < net.capacity / 2;
        let is_gone = connection.is_reset || connection.is_gone[1 - lane.side];
        let is_broken = is_gone && !is_unheard_of;
        if lane.writes && (is_broken || has_room) {
            lane.writes = false;
            events.push(Event::Writable { lane: key });
        }
        Self::step_sending(lane, key, net, events);
        Self::step_receiving(lane, key, net, events);
        if !lane.releasing.is_empty() && net.random.one_in(3) {
            let (token, memory) = lane.releasing.remove(0);
            net.release(memory);
            events.push(Event::ChunkReleased { token });
        }
    }

    fn step_sending(lane: &mut Lane, key: LaneKey, net: &mut Net, events: &mut Vec<Event>) {
        let Some(sending) = &mut lane.sending else { return };
        if sending.end.is_none() {
            sending.end = sending.advance(lane.connection, lane.side, net);
        }
        if net.random.one_in(2)
            && let Some(result) = sending.end.take()
        {
            lane.releasing.push((sending.token, sending.memory));
            lane.sending = None;
            events.push(Event::ChunkSent { lane: key, result });
        }
    }

    fn step_receiving(lane: &mut Lane, key: LaneKey, net: &mut Net, events: &mut Vec<Event>) {
        let Some(receiving) = &mut lane.receiving else { return };
        if receiving.end.is_none() {
            receiving.end = receiving.advance(lane.connection, lane.side, net);
        }
        if net.random.one_in(2)
            && let Some(result) = receiving.end.take()
        {
            net.release(receiving.memory);
            lane.receiving = None;
            events.push(Event::ChunkReceived { lane: key, result });
        }
    }

    /// One outstanding thing of a lane that is being closed ends, or the lane does.
    fn reap(slot: &mut Option<Lane>, key: LaneKey, net: &mut Net, events: &mut Vec<Event>) {
        let Some(lane) = slot else { return };
        let cancelled = || io::Error::from_raw_os_error(125);
        if let Some(sending) = lane.sending.take() {
            lane.releasing.push((sending.token, sending.memory));
            let result = sending.end.unwrap_or_else(|| Err(cancelled()));
            events.push(Event::ChunkSent { lane: key, result });
        } else if let Some(receiving) = lane.receiving.take() {
            // What had ended before the lane was closed is reported as it ended.
            let result = receiving.end.unwrap_or_else(|| {
                let length = receiving.memory.1 - receiving.memory.0;
                // SAFETY: the caller of `recv_chunk` promised the memory until the chunk is
                // reported.
                let payload = unsafe { std::slice::from_raw_parts_mut(receiving.pointer, length) };
                // A request that is not reaped may still write: who looks too early finds this.
                payload.fill(0xee);
                Err(cancelled())
            });
            net.release(receiving.memory);
            events.push(Event::ChunkReceived { lane: key, result });
        } else if let Some((token, memory)) = lane.releasing.pop() {
            net.release(memory);
            events.push(Event::ChunkReleased { token });
        } else {
            net.connections[lane.connection].is_gone[lane.side] = true;
            *slot = None;
            events.push(Event::Closed { lane: key });
        }
    }
}

impl Sending {
    /// Moves some bytes; `Some`: it is over.
    fn advance(&mut self, connection: usize, side: usize, net: &mut Net) -> Option<io::Result<()>> {
        let length = self.memory.1 - self.memory.0;
        // SAFETY: the caller of `send_chunk` promised the memory until the chunk is released.
        let payload = unsafe { std::slice::from_raw_parts(self.pointer, length) };
        let rest = match self.header.get(self.at..).filter(|rest| !rest.is_empty()) {
            Some(rest) => rest,
            None => &payload[self.at - CHUNK_HEADER_BYTES..],
        };
        match net.write(connection, side, rest) {
            Ok(count) => {
                self.at += count;
                (self.at == CHUNK_HEADER_BYTES + length).then_some(Ok(()))
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            Err(error) => Some(Err(error)),
        }
    }
}

impl Receiving {
    /// Moves some bytes; `Some`: it is over.
    fn advance(
        &mut self,
        connection: usize,
        side: usize,
        net: &mut Net,
    ) -> Option<io::Result<[u8; CHUNK_HEADER_BYTES]>> {
        let length = self.memory.1 - self.memory.0;
        // SAFETY: the caller of `recv_chunk` promised the memory until the chunk is reported.
        let payload = unsafe { std::slice::from_raw_parts_mut(self.pointer, length) };
        let rest = match self.header.get_mut(self.at..).filter(|rest| !rest.is_empty()) {
            Some(rest) => rest,
            None => &mut payload[self.at - CHUNK_HEADER_BYTES..],
        };
        match net.read(connection, side, rest) {
            Ok(0) => Some(Err(ErrorKind::UnexpectedEof.into())),
            Ok(count) => {
                self.at += count;
                (self.at == CHUNK_HEADER_BYTES + length).then_some(Ok(self.header))
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            Err(error) => Some(Err(error)),
        }
    }
}

fn span(shape: &Shape, offset: usize, length: usize) -> *mut u8 {
    let whole = shape.as_span().expect("these tests use contiguous memory only");
    assert!(offset + length <= whole.len, "a chunk lies within its message");
    whole.ptr.wrapping_add(offset)
}

impl Driver for SimDriver {
    fn name(&self) -> &'static str {
        "sim"
    }

    fn polls_for_free(&self) -> bool {
        true
    }

    fn listen(&mut self, _listener: TcpListener) -> io::Result<()> {
        Ok(())
    }

    fn connect(&mut self, remote: SocketAddr, _local: Option<SocketAddr>) -> io::Result<LaneKey> {
        let connection = self.net.borrow_mut().attempt(self.locator, remote);
        Ok(self.add(connection, 0, true))
    }

    fn adopt(&mut self, _socket: OwnedFd) -> io::Result<LaneKey> {
        Err(ErrorKind::Unsupported.into())
    }

    fn send(&mut self, lane: LaneKey, bytes: &[u8]) -> io::Result<usize> {
        let &mut Lane { connection, side, .. } = self.lane(lane);
        self.net.borrow_mut().write(connection, side, bytes)
    }

    fn recv(&mut self, lane: LaneKey, into: &mut [u8]) -> io::Result<usize> {
        let &mut Lane { connection, side, .. } = self.lane(lane);
        self.net.borrow_mut().read(connection, side, into)
    }

    fn watch(&mut self, lane: LaneKey, interest: Interest) -> io::Result<()> {
        let lane = self.lane(lane);
        match interest {
            Interest::Readable => lane.reads = true,
            Interest::Writable => lane.writes = true,
        }
        Ok(())
    }

    unsafe fn send_chunk(
        &mut self,
        lane: LaneKey,
        token: u64,
        header: &[u8; CHUNK_HEADER_BYTES],
        source: &Shape,
        offset: usize,
        length: usize,
        _mode: SendMode,
    ) {
        let pointer = span(source, offset, length);
        let memory = (pointer.addr(), pointer.addr() + length);
        let lane = self.lane(lane);
        assert!(lane.sending.is_none() && !lane.is_closing, "one chunk per direction");
        lane.sending = Some(Sending { token, header: *header, memory, pointer, at: 0, end: None });
        let connection = lane.connection;
        let net = &mut *self.net.borrow_mut();
        net.connections[connection].is_bulk = true;
        net.busy.push(memory);
    }

    unsafe fn recv_chunk(&mut self, lane: LaneKey, target: &Shape, offset: usize, length: usize) {
        let pointer = span(target, offset, length);
        let memory = (pointer.addr(), pointer.addr() + length);
        let lane = self.lane(lane);
        assert!(lane.receiving.is_none() && !lane.is_closing, "one chunk per direction");
        let header = [0; CHUNK_HEADER_BYTES];
        lane.receiving = Some(Receiving { header, memory, pointer, at: 0, end: None });
        let connection = lane.connection;
        let net = &mut *self.net.borrow_mut();
        net.connections[connection].is_bulk = true;
        let is_shared = net.busy.iter().any(|&(from, to)| from < memory.1 && memory.0 < to);
        assert!(!is_shared, "two requests of the kernel share a receive's memory");
        net.busy.push(memory);
    }

    fn close(&mut self, lane: LaneKey, mode: CloseMode) {
        // After `ConnectFailed` the lane may be gone already.
        let found = self.lanes.get_mut(lane.index as usize).and_then(Option::as_mut);
        let Some(lane) = found.filter(|found| found.generation == lane.generation) else { return };
        lane.is_closing = true;
        let (connection, side) = (lane.connection, lane.side);
        let is_cut_short = lane.sending.is_some();
        let net = &mut *self.net.borrow_mut();
        if mode == CloseMode::Reset || is_cut_short {
            net.reset(connection);
        } else {
            net.connections[connection].pipes[side].is_ended = true;
        }
    }

    fn poll(&mut self, events: &mut Vec<Event>) -> io::Result<()> {
        let accepted = {
            let net = &mut *self.net.borrow_mut();
            let is_late = net.random.one_in(3);
            let backlog = net.backlogs.get_mut(&self.locator).expect("it listens");
            if is_late { None } else { backlog.pop_front() }
        };
        if let Some(connection) = accepted {
            let lane = self.add(connection, 1, false);
            events.push(Event::Accepted { lane, remote: self.locator });
        }
        if self.lanes.is_empty() {
            return Ok(());
        }
        let first = self.net.borrow_mut().random.below(self.lanes.len());
        for index in 0..self.lanes.len() {
            self.step((first + index) % self.lanes.len(), events);
        }
        Ok(())
    }

    fn park(&mut self, _timeout: Duration, events: &mut Vec<Event>) -> io::Result<()> {
        self.poll(events)
    }

    fn unanswered(&mut self, lane: LaneKey) -> io::Result<Option<Duration>> {
        let &mut Lane { connection, side, .. } = self.lane(lane);
        let net = self.net.borrow();
        let connection = &net.connections[connection];
        let is_silent = connection.beyond(side).is_some_and(|peer| net.vanished.contains(&peer));
        let is_owed = is_silent && !connection.pipes[side].bytes.is_empty();
        Ok(is_owed.then_some(Duration::MAX))
    }

    fn shutdown(&mut self, _limit: Duration) -> bool {
        let net = &mut *self.net.borrow_mut();
        let is_silent = net.vanished.contains(&self.locator);
        self.is_shut_down = true;
        for mut lane in self.lanes.drain(..).flatten() {
            if !is_silent {
                net.reset(lane.connection);
            }
            let chunks = lane.sending.take().map(|sending| sending.memory);
            let chunks = chunks.into_iter().chain(lane.receiving.take().map(|r| r.memory));
            for memory in chunks.chain(lane.releasing.drain(..).map(|(_, memory)| memory)) {
                net.release(memory);
            }
        }
        for connection in net.backlogs.remove(&self.locator).into_iter().flatten() {
            net.reset(connection);
        }
        true
    }

    fn dismantle(&mut self) -> io::Result<Vec<(LaneKey, OwnedFd)>> {
        Err(ErrorKind::Unsupported.into())
    }

    fn counters(&self) -> DriverCounters {
        DriverCounters::default()
    }
}

/// A process that ends without a word: its kernel resets what it had open.
impl Drop for SimDriver {
    fn drop(&mut self) {
        // After an orderly end its successor listens there.
        if !self.is_shut_down {
            self.shutdown(Duration::ZERO);
        }
    }
}
