//! The window of bytes that grows with the advised class of eager messages.

use super::checksums::chunk_comes;
use super::*;
use crate::proto::session::credit::{ReceiveCredit, SendCredits, WINDOW_MAX};
use crate::wire::EAGER_BYTES_MAX;

/// The first window of bytes.
const FIRST: u32 = EAGER_BYTES_MAX as u32;
/// Those of the greatest class and of the one below, four messages each.
const WIDEST: u32 = 4 * EAGER_BYTES_MAX as u32;
const WIDER: u32 = WIDEST / 2;
/// Chunks that change the class by one.
const VOTES: usize = 8;
/// The length of a pulled message, and of its chunk.
const CHUNK: u64 = 100_000;

/// A bench whose peer is advised of classes, and its bulk lane.
struct Advised {
    bench: Bench,
    lane: Id,
}

impl Advised {
    fn new(unexpected_bytes: u64) -> Self {
        let mut bench = Bench::new(Config {
            eager_limit: EAGER_BYTES_MAX as u32,
            is_eager_limit_advised: true,
            eager_credit_bytes: FIRST,
            chunk_bytes: CHUNK as u32,
            busy_chunk_bytes: CHUNK as u32,
            unexpected_bytes,
            ..Config::for_tests()
        });
        bench.use_checksums(true);
        bench.core.with(bench.slot, |it, _| {
            let credits = SendCredits::new(1000, 1 << 20);
            it.segments_mut().set_send_credits(credits, EAGER_BYTES_MAX as u32);
        });
        let lane = bench.lane();
        let advised = Self { bench, lane };
        assert_eq!((advised.window(), advised.reserved()), (FIRST, FIRST.into()));
        advised
    }

    fn credit(&self) -> &ReceiveCredit {
        let session = self.bench.core.sessions.at(self.bench.slot as usize).unwrap();
        session.segments().receive_credits().both()[1]
    }

    fn window(&self) -> u32 {
        self.credit().window()
    }

    /// Lets others take so much that less than half of the memory is free; returns it.
    fn fill(&mut self) -> u64 {
        let limit_bytes = self.bench.core.shared().offers().totals().1;
        let others = Limits { byte_limit: (limit_bytes / 2) as u32, ..sim::LIMITS };
        accept(&mut self.bench.core, 50, others, sim::LIMITS);
        limit_bytes / 2
    }

    /// Returns the reserved bytes of all sessions.
    fn reserved(&self) -> u64 {
        self.bench.core.shared().offers().check();
        self.bench.core.shared().offers().reserved().1
    }

    /// Sends what there is to send. Returns the types of its frames, and the limits on bytes that
    /// its segments announce.
    fn announced(&mut self) -> (Vec<u8>, Vec<u32>) {
        let bench = &mut self.bench;
        bench.core.poll_grants(0);
        let (mut kinds, mut limits) = (Vec::new(), Vec::new());
        while let Some(slot) = bench.core.shared_mut().ready_mut().take(Work::Flush) {
            let mut bytes = next_bytes(&mut bench.core, slot);
            bench.there.read(&mut bytes, |header, frames| {
                kinds.extend(frames.iter().map(kind_of));
                limits.push(header.byte_limit.get());
            });
        }
        (kinds, limits)
    }

    /// Pulls a message of so many chunks, whose receive is posted.
    fn request(&mut self, chunks: u64) {
        self.bench.receive(chunks * CHUNK);
        self.bench.deliver(&rts(0, chunks * CHUNK)).unwrap();
        assert_eq!(self.bench.transmit(), [frame::KIND_GRANT].repeat(chunks as usize));
    }

    /// Lets the next chunk arrive.
    fn chunk(&mut self) {
        assert!(chunk_comes(&mut self.bench, self.lane, true));
    }

    /// Pulls so many messages, each in a chunk.
    fn pull(&mut self, messages: usize) {
        for _ in 0..messages {
            self.request(1);
            self.chunk();
            assert_eq!(self.bench.transmit(), [frame::KIND_DONE]);
            self.bench.acknowledge();
        }
    }

    /// Lets a message of so many bytes arrive, and wait for its receive.
    fn arrive(&mut self, length: u32) {
        let segment = [Eager { context: 6.into(), ..sim::eager(length) }.as_bytes()].concat();
        self.bench.deliver(&[segment, vec![0; length as usize]].concat()).unwrap();
    }

    /// Posts the receive of such a message.
    fn receive(&mut self) {
        let request = receive_request(Some(self.bench.peer), 6, 1, u64::from(WINDOW_MAX));
        let id = self.bench.core.shared_mut().new_receive(&request).unwrap();
        self.bench.core.start_receive(id, &mut self.bench.results);
        assert!(matches!(self.bench.results.ended[&id], Ended::Received(_)));
    }
}

/// RR-CREDIT-5, RR-RDV-10
#[test]
fn window_grows_to_four_messages_of_the_advised_class() {
    let mut advised = Advised::new(64 << 20);
    for (class_votes, before, after) in
        [(VOTES, FIRST, WIDER), (VOTES, WIDER, WIDEST), (3 * VOTES, WIDEST, WIDEST)]
    {
        advised.pull(class_votes - 1);
        assert_eq!((advised.window(), advised.reserved()), (before, before.into()));
        advised.pull(1);
        assert_eq!((advised.window(), advised.reserved()), (after, after.into()));
    }
}

/// RR-CREDIT-5
#[test]
fn window_stays_while_receives_are_late() {
    let mut advised = Advised::new(64 << 20);
    for _ in 0..4 * VOTES {
        for context in [6, 5] {
            let header = Rts { context: context.into(), ..sim::rts(CHUNK) };
            advised.bench.deliver(header.as_bytes()).unwrap();
        }
        // The other one waits.
        advised.bench.receive(CHUNK);
        assert_eq!(advised.bench.transmit(), [frame::KIND_GRANT]);
        advised.chunk();
        assert_eq!(advised.bench.transmit(), [frame::KIND_DONE]);
        advised.bench.acknowledge();
        assert_eq!((advised.window(), advised.reserved()), (FIRST, FIRST.into()));
    }
}

/// Although nothing else is to be sent.
///
/// RR-CREDIT-2, RR-CREDIT-5
#[test]
fn grown_window_is_announced_at_once() {
    let mut advised = Advised::new(64 << 20);
    advised.pull(VOTES - 1);
    advised.request(2);
    assert_eq!(advised.announced(), (vec![], vec![]));
    advised.chunk();
    assert_eq!(advised.window(), WIDER);
    assert_eq!(advised.announced(), (vec![], vec![WIDER]));
    assert_eq!(advised.credit().left(), WIDER);
    advised.chunk();
    assert_eq!(advised.announced(), (vec![frame::KIND_DONE], vec![WIDER]));
    // The peer may use all of it.
    advised.arrive(EAGER_BYTES_MAX as u32);
    advised.arrive(WIDER - EAGER_BYTES_MAX as u32);
    assert_eq!(advised.credit().left(), 0);
}

/// RR-CREDIT-4, RR-CREDIT-5
#[test]
fn a_session_gets_a_quarter_of_the_bytes_that_advice_may_take() {
    // A quarter of half of them.
    let unexpected_bytes = 8 * 400_000;
    let mut advised = Advised::new(unexpected_bytes);
    for _ in 0..8 * VOTES {
        advised.pull(1);
        assert!(advised.window() <= 400_000, "{}", advised.window());
        assert_eq!(advised.reserved(), advised.window().into());
    }
    assert_eq!(advised.window(), 400_000);
}

/// RR-CREDIT-4, RR-CREDIT-5
#[test]
fn advice_leaves_half_of_the_bytes_free_over_all_sessions() {
    let unexpected_bytes: u64 = 8 << 20;
    for free in [0, 1, 10_001, 300_000] {
        let mut advised = Advised::new(unexpected_bytes);
        // The windows of others, as offers and as those of sessions.
        let taken = unexpected_bytes / 2 - u64::from(FIRST) - free;
        let offered = 10 * u64::from(FIRST);
        for engine in 100..110 {
            advised.bench.core.shared_mut().offer_to(engine, engine);
        }
        let others = Limits { byte_limit: (taken - offered) as u32, ..sim::LIMITS };
        accept(&mut advised.bench.core, 50, others, sim::LIMITS);
        let used = |it: &Advised| it.reserved() + offered;
        assert_eq!(used(&advised), unexpected_bytes / 2 - free);
        for _ in 0..8 * VOTES {
            let before = used(&advised);
            advised.pull(1);
            let (left, more) = (unexpected_bytes / 2 - before, used(&advised) - before);
            assert!(more <= left.div_ceil(2), "{more} of {left}");
            let grown = used(&advised) + free - unexpected_bytes / 2;
            assert_eq!(u64::from(advised.window()), u64::from(FIRST) + grown);
        }
        assert_eq!(used(&advised), unexpected_bytes / 2, "{free} bytes");
    }
}

/// RR-CREDIT-4
#[test]
fn grown_window_is_released_when_its_session_ends() {
    for held in 0..3 {
        let mut advised = Advised::new(64 << 20);
        advised.pull(2 * VOTES);
        (0..held).for_each(|_| advised.arrive(200_000));
        assert_eq!(advised.reserved(), WIDEST.into());
        let Advised { bench, .. } = &mut advised;
        bench.core.fail_session(bench.slot, PeerFailure::Left, &mut bench.results);
        assert_eq!(advised.reserved(), held * 200_000, "what waits for receives stays");
        for left in (0..held).rev() {
            advised.receive();
            assert_eq!(advised.reserved(), left * 200_000);
        }
        assert_eq!(advised.bench.core.shared().offers().reserved(), (0, 0));
    }
}

/// RR-CREDIT-5
#[test]
fn grown_window_stays_while_half_of_the_memory_is_free() {
    let mut advised = Advised::new(64 << 20);
    advised.pull(2 * VOTES);
    for _ in 0..30 {
        advised.arrive(50_000);
        advised.receive();
        advised.announced();
        assert_eq!((advised.window(), advised.reserved()), (WIDEST, WIDEST.into()));
    }
}

/// RR-CREDIT-5
#[test]
fn grown_window_shrinks_by_what_is_received_late_as_far_as_it_was_not_announced() {
    let mut advised = Advised::new(64 << 20);
    advised.pull(2 * VOTES);
    let taken = advised.fill();
    let (mut used, length) = (0, 50_000);
    // The peer may use all that was announced, whenever it likes.
    while advised.window() > FIRST {
        advised.arrive(length);
        used += length;
        advised.receive();
        let window = advised.window();
        assert_eq!(window, (WIDEST - used).max(FIRST));
        let reserved = taken + u64::from(window);
        assert_eq!((advised.credit().left(), advised.reserved()), (WIDEST - used, reserved));
    }
    // The first window stays.
    advised.arrive(length);
    advised.receive();
    assert_eq!((advised.window(), advised.reserved()), (FIRST, taken + u64::from(FIRST)));
}

/// RR-CREDIT-5
#[test]
fn growth_that_was_not_announced_is_given_back_at_once() {
    let mut advised = Advised::new(64 << 20);
    advised.pull(VOTES - 1);
    advised.arrive(1000);
    advised.request(1);
    advised.chunk();
    assert_eq!((advised.window(), advised.reserved()), (WIDER, WIDER.into()));
    let taken = advised.fill();
    advised.receive();
    assert_eq!((advised.window(), advised.reserved()), (FIRST, taken + u64::from(FIRST)));
    assert_eq!(advised.announced().1, [FIRST + 1000]);
    assert_eq!(advised.credit().left(), FIRST);
}

/// RR-CREDIT-5
#[test]
fn window_grows_for_messages_that_both_sides_accept_alone() {
    let mut advised = Advised::new(64 << 20);
    advised.bench.core.with(advised.bench.slot, |it, _| {
        it.segments_mut().set_send_credits(SendCredits::new(1000, 1 << 20), 60_000);
    });
    advised.pull(4 * VOTES);
    assert_eq!((advised.window(), advised.reserved()), (FIRST, FIRST.into()));
}
