//! Random exchanges: every message arrives once, whole and in order, whatever the lanes do.

use std::collections::BTreeMap;

use super::net::{Net, Random};
use super::*;
use crate::types::OperationKind;

const TAGS: u64 = 3;

/// From, to, tag: messages of one stream match in order.
type Stream = (usize, usize, u64);

/// Name of the message number `count` of a stream.
fn name((from, to, tag): Stream, count: u64) -> u64 {
    (from as u64) << 48 | (to as u64) << 40 | tag << 32 | count
}

fn stream_and_count(name: u64) -> (Stream, u64) {
    let stream = ((name >> 48) as usize, (name >> 40 & 0xff) as usize, name >> 32 & 0xff);
    (stream, name & 0xffff_ffff)
}

fn length_of(random: &mut Random) -> usize {
    match random.below(6) {
        0 => 0,
        1 => random.below(33),
        2 => random.below(257),
        3 => 257 + random.below(300),
        _ => 257 + random.below(5000),
    }
}

/// Mostly enough for any message.
fn capacity_of(random: &mut Random) -> usize {
    if random.one_in(8) { random.below(3000) } else { 6000 }
}

struct Exchange {
    net: Shared,
    random: Random,
    engines: Vec<Engine>,
    lengths: BTreeMap<Stream, Vec<usize>>,
    capacities: BTreeMap<Stream, Vec<usize>>,
    received: BTreeMap<Stream, u64>,
    sends_open: usize,
}

impl Exchange {
    fn new(seed: u64, ranks: usize, config: &Config) -> Self {
        let net = Net::new(seed);
        let mut random = Random::new(seed ^ 0xabcd);
        {
            let net = &mut *net.borrow_mut();
            net.capacity = 100 + random.below(3000);
            net.connect_failures = [0, 4][random.below(2)];
        }
        let engines = (0..ranks).map(|rank| engine(&net, rank, config.clone())).collect();
        let (lengths, capacities) = (BTreeMap::new(), BTreeMap::new());
        let received = BTreeMap::new();
        Self { net, random, engines, lengths, capacities, received, sends_open: 0 }
    }

    fn send(&mut self, stream: Stream) {
        let (from, to, tag) = stream;
        let length = length_of(&mut self.random);
        let lengths = self.lengths.entry(stream).or_default();
        let bytes = content(name(stream, lengths.len() as u64), length);
        lengths.push(length);
        let level = [Level::BufferReusable, Level::Delivered, Level::Matched];
        let level = level[self.random.below(3)];
        let target = peer(&mut self.engines[from], to);
        if let Posted::Pending(_) =
            send(&mut self.engines[from], target, tag, bytes, level).unwrap()
        {
            self.sends_open += 1;
        }
    }

    fn receive(&mut self, stream: Stream) {
        let (from, to, tag) = stream;
        let capacity = capacity_of(&mut self.random);
        let source = peer(&mut self.engines[to], from);
        let capacities = self.capacities.entry(stream).or_default();
        let name = name(stream, capacities.len() as u64);
        capacities.push(capacity);
        receive_as(&mut self.engines[to], Some(source), tag, capacity, name);
    }

    /// Sends, receives or lets time pass.
    fn act(&mut self) {
        let ranks = self.engines.len();
        let (from, to) = (self.random.below(ranks), self.random.below(ranks));
        let stream = (from, to, self.random.next() % TAGS);
        match self.random.below(4) {
            0 => self.send(stream),
            1 => self.receive(stream),
            _ => turns(&mut self.engines[from..=from], 1 + self.random.below(6)),
        }
        self.collect();
    }

    /// Makes receives for all sends and the other way round.
    fn even_out(&mut self) {
        let streams = self.lengths.keys().chain(self.capacities.keys());
        for stream in streams.copied().collect::<Vec<_>>() {
            let sent = self.lengths.get(&stream).map_or(0, Vec::len);
            let posted = self.capacities.get(&stream).map_or(0, Vec::len);
            (posted..sent).for_each(|_| self.receive(stream));
            (sent..posted).for_each(|_| self.send(stream));
        }
    }

    /// Checks what has completed.
    fn collect(&mut self) {
        for rank in 0..self.engines.len() {
            for completion in drain(&self.net, &mut self.engines[rank]) {
                if completion.kind == OperationKind::Send {
                    completion.result.unwrap_or_else(|error| panic!("rank {rank}: {error}"));
                    self.sends_open -= 1;
                } else {
                    self.check_received(rank, &completion);
                }
            }
        }
    }

    /// A receive gets the message of its own number, whichever is whole first.
    fn check_received(&mut self, rank: usize, completion: &Completion) {
        let (stream, count) = stream_and_count(completion.context);
        let length = self.lengths[&stream][count as usize];
        let capacity = self.capacities[&stream][count as usize];
        match &completion.result {
            Ok(status) => assert_eq!(status.length, length, "message {count} of {stream:?}"),
            Err(Error::Truncated { sent, capacity: had }) => {
                let wanted = (length as u64, capacity as u64);
                assert_eq!((*sent, *had), wanted, "message {count} of {stream:?}");
            }
            Err(error) => panic!("rank {rank}: {error}"),
        }
        assert_eq!(completion.result.is_ok(), length <= capacity);
        let Some(Buffer::Heap(bytes)) = &completion.buffer else { panic!("a heap buffer") };
        let fits = length.min(capacity);
        let expected = content(name(stream, count), length);
        assert!(bytes[..fits] == expected[..fits], "message {count} of {stream:?}");
        assert!(bytes[fits..].iter().all(|&byte| byte == 0), "nothing is behind the message");
        *self.received.entry(stream).or_default() += 1;
    }

    fn is_over(&self) -> bool {
        let received = |stream| self.received.get(stream).copied().unwrap_or(0);
        self.sends_open == 0
            && self.lengths.iter().all(|(stream, sent)| received(stream) == sent.len() as u64)
    }

    /// Everything arrives and nothing is left behind.
    fn finish(&mut self) {
        self.even_out();
        for _ in 0..100_000 {
            turns(&mut self.engines, 1);
            self.collect();
            if self.is_over() {
                turns(&mut self.engines, 100);
                self.engines.iter().for_each(assert_at_rest);
                return;
            }
        }
        self.engines.iter().for_each(report);
        panic!("messages are missing");
    }
}

/// RR-MATCH-1
#[test]
fn messages_arrive_once_whole_and_in_order() {
    with_seeds(40, |seed| {
        let mut exchange = Exchange::new(seed, 2 + seed as usize % 2, &config());
        (0..300).for_each(|_| exchange.act());
        exchange.finish();
    });
}

/// RR-RDV-3, RR-RDV-6
#[test]
fn cut_bulk_lanes_lose_nothing() {
    with_seeds(40, |seed| {
        let mut exchange = Exchange::new(seed, 2 + seed as usize % 2, &config());
        // Cuts and refused connections together could use up a session's patience.
        exchange.net.borrow_mut().connect_failures = 0;
        let mut cuts = 0;
        for _ in 0..400 {
            exchange.act();
            if exchange.random.one_in(40) && exchange.net.borrow_mut().cut(true) {
                cuts += 1;
            }
        }
        exchange.finish();
        let failures = |engine: &Engine| engine.state.core.counters.lane_failures;
        assert!(exchange.engines.iter().map(failures).sum::<u64>() >= cuts);
    });
}

#[test]
fn few_lanes_that_close_soon_serve_many_peers() {
    with_seeds(20, |seed| {
        let few = Config { bulk_lanes_max: 2, bulk_idle_ns: 100_000, ..config() };
        let mut exchange = Exchange::new(seed, 4, &few);
        for _ in 0..400 {
            exchange.act();
            pass_time(&mut exchange.engines, 20_000_000);
        }
        exchange.finish();
    });
}
