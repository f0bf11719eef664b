//! Random sequences of operations compared with a model that keeps two simple lists.

use proptest::collection::vec;
use proptest::prelude::*;

use super::bins::{BinKey, BinLink, Bins};
use super::*;
use crate::proto::table::Id;

/// A direct implementation of the matching rules.
#[derive(Default)]
struct Model {
    /// With their numbers, and whether they stay.
    posted: Vec<(Selector, u32, bool)>,
    unexpected: Vec<(MatchEnvelope, u32)>,
}

impl Model {
    fn find_posted(&self, e: &MatchEnvelope) -> Option<u32> {
        let (_, receive, _) = self.posted.iter().find(|(s, ..)| s.accepts(e))?;
        Some(*receive)
    }

    fn take_posted(&mut self, e: &MatchEnvelope) -> Option<u32> {
        let at = self.posted.iter().position(|(s, ..)| s.accepts(e))?;
        let (_, receive, stays) = self.posted[at];
        if !stays {
            self.posted.remove(at);
        }
        Some(receive)
    }

    fn find_unexpected(&self, s: &Selector) -> Option<usize> {
        self.unexpected.iter().position(|(e, _)| s.accepts(e))
    }

    fn peek_unexpected(&self, s: &Selector) -> Option<u32> {
        Some(self.unexpected[self.find_unexpected(s)?].1)
    }

    fn take_unexpected(&mut self, s: &Selector) -> Option<u32> {
        let at = self.find_unexpected(s)?;
        Some(self.unexpected.remove(at).1)
    }

    fn cancel_posted(&mut self, receive: u32) -> Option<u32> {
        let at = self.posted.iter().position(|&(_, number, _)| number == receive)?;
        Some(self.posted.remove(at).1)
    }

    fn remove_unexpected(&mut self, message: u32) -> Option<u32> {
        let at = self.unexpected.iter().position(|&(_, handle)| handle == message)?;
        Some(self.unexpected.remove(at).1)
    }

    fn drain_unexpected(&mut self, wanted: impl Fn(&MatchEnvelope) -> bool) -> Vec<u32> {
        self.unexpected.extract_if(.., |(e, _)| wanted(e)).map(|(_, handle)| handle).collect()
    }
}

#[derive(Clone, Debug)]
enum Op {
    Arrive(MatchEnvelope),
    /// Finds the receive of a message, which stays.
    Find(MatchEnvelope),
    Post(Selector),
    /// Posts a receive that stays.
    Keep(Selector),
    Peek(Selector),
    /// Cancels one of the receives posted so far, in whatever state it is.
    Cancel(prop::sample::Index),
    Remove(prop::sample::Index),
    DrainUnexpectedFrom(u32),
    CancelAll,
    DrainAllUnexpected,
}

fn envelope() -> impl Strategy<Value = MatchEnvelope> {
    (0..3u32, 0..2u64, 0..6u64).prop_map(|(source, context, tag)| MatchEnvelope {
        source,
        context,
        tag,
    })
}

fn selector(ignore: impl Strategy<Value = u64>) -> impl Strategy<Value = Selector> {
    (prop::option::of(0..3u32), 0..2u64, 0..6u64, ignore)
        .prop_map(|(source, context, tag, ignore)| Selector { source, context, tag, ignore })
}

fn op<I: Strategy<Value = u64> + Clone + 'static>(ignore: I) -> impl Strategy<Value = Op> {
    prop_oneof![
        40 => envelope().prop_map(Op::Arrive),
        20 => envelope().prop_map(Op::Find),
        40 => selector(ignore.clone()).prop_map(Op::Post),
        4 => selector(ignore.clone()).prop_map(Op::Keep),
        8 => selector(ignore).prop_map(Op::Peek),
        8 => any::<prop::sample::Index>().prop_map(Op::Cancel),
        4 => any::<prop::sample::Index>().prop_map(Op::Remove),
        2 => (0..3u32).prop_map(Op::DrainUnexpectedFrom),
        1 => Just(Op::CancelAll),
        1 => Just(Op::DrainAllUnexpected),
    ]
}

/// A matcher and the slots of its receives. The capacity of a receive is its number here.
struct Bench {
    matcher: Matcher,
    receives: OperationSlots,
    /// Ids of the receives posted so far, by number.
    ids: Vec<Id>,
}

impl Bench {
    fn new(seed: u64) -> Self {
        let (receives, ids) = (OperationSlots::new(usize::MAX), Vec::new());
        Self { matcher: Matcher::new(seed), receives, ids }
    }

    fn number_of(&self, index: u32) -> u32 {
        self.receives.at(index).capacity() as u32
    }

    /// Posts a receive, and returns its number.
    fn post(&mut self, s: &Selector, stays: bool) -> u32 {
        let number = self.ids.len() as u32;
        let id = self.receives.insert(0, s, number.into()).unwrap();
        if stays {
            self.receives.turn_into_operation(id);
        }
        self.matcher.insert_posted(&mut self.receives, id.index() as u32);
        self.ids.push(id);
        number
    }

    fn find(&self, e: &MatchEnvelope) -> Option<u32> {
        let index = self.matcher.find_posted(&self.receives, e)?;
        assert!(self.receives.at(index).is_posted(), "what is found stays");
        Some(self.number_of(index))
    }

    fn take(&mut self, e: &MatchEnvelope) -> Option<u32> {
        let found = self.find(e);
        let taken = self.take_whole(e);
        assert_eq!(found, taken, "what is found is what is taken");
        taken
    }

    fn take_whole(&mut self, e: &MatchEnvelope) -> Option<u32> {
        match self.matcher.take_whole(&mut self.receives, e)? {
            Some((_, number)) => Some(number as u32),
            None => {
                let index = self.matcher.take_posted(&mut self.receives, e)?;
                assert_eq!(self.receives.at(index).state(), SlotState::Multi);
                Some(self.number_of(index))
            }
        }
    }

    fn cancel(&mut self, number: u32) -> Option<u32> {
        let id = self.ids[number as usize];
        self.receives.get(id)?;
        let index = id.index();
        assert!(self.matcher.cancel_posted(&mut self.receives, index as u32));
        assert!(!self.matcher.cancel_posted(&mut self.receives, index as u32), "only once");
        self.receives.remove(index);
        Some(number)
    }
}

/// Runs `ops` on the matcher and on the model and compares every result.
fn compare(seed: u64, ops: &[Op]) -> Result<(), TestCaseError> {
    let mut bench = Bench::new(seed);
    let mut model = Model::default();
    let mut messages = Vec::new();
    for op in ops {
        match op {
            Op::Arrive(e) => {
                let taken = bench.take(e);
                prop_assert_eq!(taken, model.take_posted(e));
                if taken.is_none() {
                    let handle = messages.len() as u32;
                    messages.push(bench.matcher.insert_unexpected(e, handle));
                    model.unexpected.push((*e, handle));
                }
            }
            Op::Find(e) => {
                // Twice: it changes nothing.
                prop_assert_eq!(bench.find(e), model.find_posted(e));
                prop_assert_eq!(bench.find(e), model.find_posted(e));
            }
            Op::Post(s) | Op::Keep(s) => {
                let taken = bench.matcher.take_unexpected(s).map(|kept| kept.message);
                prop_assert_eq!(taken, model.take_unexpected(s));
                if taken.is_none() {
                    let stays = matches!(op, Op::Keep(_));
                    model.posted.push((*s, bench.post(s, stays), stays));
                }
            }
            Op::Peek(s) => {
                let found = bench.matcher.peek_unexpected(s).map(|kept| kept.message);
                prop_assert_eq!(found, model.peek_unexpected(s));
            }
            Op::Cancel(at) if !bench.ids.is_empty() => {
                let number = at.index(bench.ids.len()) as u32;
                prop_assert_eq!(bench.cancel(number), model.cancel_posted(number));
            }
            Op::Remove(at) if !messages.is_empty() => {
                let at = at.index(messages.len());
                prop_assert_eq!(
                    bench.matcher.remove_unexpected(messages[at]),
                    model.remove_unexpected(at as u32)
                );
            }
            Op::Cancel(_) | Op::Remove(_) => {}
            Op::DrainUnexpectedFrom(source) => {
                let mut drained = Vec::new();
                bench.matcher.drain_unexpected_from(*source, |kept| drained.push(kept.message));
                prop_assert_eq!(drained, model.drain_unexpected(|e| e.source == *source));
            }
            Op::CancelAll => {
                let posted = bench.receives.posted_at(0);
                let numbers = posted.iter().map(|id| bench.number_of(id.index() as u32));
                let numbers: Vec<u32> = numbers.collect();
                let model = std::mem::take(&mut model.posted);
                prop_assert_eq!(&numbers, &model.iter().map(|it| it.1).collect::<Vec<_>>());
                for &number in &numbers {
                    bench.cancel(number);
                }
            }
            Op::DrainAllUnexpected => {
                let mut drained = Vec::new();
                bench.matcher.drain_all_unexpected(|kept| drained.push(kept.message));
                prop_assert_eq!(drained, model.drain_unexpected(|_| true));
            }
        }
        prop_assert_eq!(bench.matcher.posted_len(), model.posted.len());
        prop_assert_eq!(bench.matcher.unexpected_len(), model.unexpected.len());
    }
    Ok(())
}

/// No files beside the sources: a failure prints its smallest sequence.
fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases(2000))]

    #[test]
    fn few_shapes_match_like_the_model(
        seed: u64,
        ops in vec(op(prop::sample::select(&[0, 0, 0, 1, u64::MAX][..])), 0..100),
    ) {
        compare(seed, &ops)?;
    }

    /// Receives of one shape use a fast path; with and without it they match as in the model.
    #[test]
    fn one_shape_at_a_time_matches_like_the_model(seed: u64, ops in vec(op(Just(0)), 0..100)) {
        compare(seed, &ops)?;
        crate::hooks::simulated::by_long_ways(|| compare(seed, &ops))?;
    }

    #[test]
    fn more_shapes_than_bins_match_like_the_model(
        seed: u64,
        ops in vec(op(prop_oneof![0..8u64, Just(u64::MAX)]), 0..120),
    ) {
        compare(seed, &ops)?;
    }

    /// With hashes chosen by the test: everything collides, at the end of the table too.
    #[test]
    fn bins_keep_their_lists_when_hashes_collide(
        hashes in vec(prop::sample::select(&[0, 1, 2, 14, 15, 31, u32::MAX][..]), 24),
        ops in vec((any::<bool>(), 0..24usize, any::<prop::sample::Index>()), 0..120),
    ) {
        let key = |number| BinKey { context: 0, tag: number as u64, source: 0 };
        let mut bins = Bins::default();
        let mut links = vec![BinLink::NONE; ops.len()];
        let mut lists: Vec<Vec<u32>> = vec![Vec::new(); hashes.len()];
        for (node, (push, number, at)) in ops.into_iter().enumerate() {
            let list = &mut lists[number];
            if push || list.is_empty() {
                bins.push_back(&mut links, &key(number), hashes[number], node as u32);
                list.push(node as u32);
            } else {
                let at = at.index(list.len());
                bins.unlink(&mut links, list.remove(at));
            }
            for (number, list) in lists.iter().enumerate() {
                let mut found = Vec::new();
                if let Some(at) = bins.find(&key(number), hashes[number]) {
                    let mut node = bins.head(at);
                    while node != slab::NIL {
                        found.push(node);
                        node = links[node as usize].next();
                    }
                }
                prop_assert_eq!(&found, list);
            }
            prop_assert_eq!(bins.is_empty(), lists.iter().all(Vec::is_empty));
        }
    }
}

const DEPTH: u32 = 10_000;

/// Returns envelopes as programs use them; each list has `DEPTH` different ones.
fn regular_envelopes() -> Vec<Vec<MatchEnvelope>> {
    let all = |f: fn(u32) -> MatchEnvelope| (0..DEPTH).map(f).collect();
    vec![
        all(|i| MatchEnvelope { source: 0, context: 0, tag: u64::from(i) }),
        all(|i| MatchEnvelope { source: i, context: 0, tag: 7 }),
        all(|i| MatchEnvelope { source: 0, context: u64::from(i), tag: 0 }),
        all(|i| MatchEnvelope { source: 3, context: 1, tag: u64::from(i) << 32 }),
        all(|i| MatchEnvelope { source: 3, context: 1, tag: u64::from(i) << 50 }),
        all(|i| MatchEnvelope {
            source: i % 100,
            context: u64::from(i % 7),
            tag: u64::from(i / 100),
        }),
        all(|i| MatchEnvelope { source: i, context: u64::from(i), tag: u64::from(i) }),
    ]
}

#[test]
fn regular_envelopes_spread_under_every_seed() {
    for seed in [0, 1, u64::MAX, 0x0123_4567_89ab_cdef] {
        for envelopes in regular_envelopes() {
            let mut matcher = Matcher::new(seed);
            for (e, handle) in envelopes.iter().zip(0..) {
                matcher.insert_unexpected(e, handle);
            }
            let (first, last) = (envelopes[0], envelopes[DEPTH as usize - 1]);
            let s = |e: MatchEnvelope| Selector {
                source: Some(e.source),
                context: e.context,
                tag: e.tag,
                ignore: 0,
            };
            // The first look-up builds the bins.
            assert_eq!(matcher.peek_unexpected(&s(first)).map(|kept| kept.message), Some(0));
            assert_eq!(matcher.peek_unexpected(&s(last)).map(|kept| kept.message), Some(DEPTH - 1));
            // Half full, linear probing: the longest of 10 000 is around 20 for a random function.
            let longest = matcher.unexpected.longest_probe();
            assert!(longest <= 60, "seed {seed}, {first:?} ..: a probe of {longest} steps");
        }
    }
}

#[test]
fn tags_that_collide_under_one_seed_spread_under_another() {
    let key = |tag| BinKey { context: 0, tag, source: 0 };
    let known = Hasher::new(1);
    // Tags that fall into the same 1/1024 of every table with the known seed.
    let flood: Vec<u64> =
        (0..).filter(|&tag| known.hash(&key(tag)) & 1023 == 0).take(1000).collect();
    let fill = |seed| {
        let mut bench = Bench::new(seed);
        for &tag in &flood {
            bench.post(&Selector { source: None, context: 0, tag, ignore: 0 }, false);
        }
        bench.matcher.posted.longest_probe()
    };
    assert!(fill(1) >= 400, "the flood must work on the seed it was made for");
    for seed in [0, 2, 3, 4] {
        let longest = fill(seed);
        assert!(longest <= 60, "seed {seed}: a probe of {longest} steps");
    }
}

fn any_source(tag: u64, ignore: u64) -> Selector {
    Selector { source: None, context: 0, tag, ignore }
}

/// RR-MATCH-2
#[test]
fn oldest_receive_wins_regardless_of_its_kind() {
    let e = MatchEnvelope { source: 5, context: 0, tag: 0x21 };
    let kinds = [
        Selector { source: Some(5), ..any_source(0x21, 0) },
        any_source(0x21, 0),
        any_source(0x2f, 0xf),
        any_source(0, u64::MAX),
        Selector { source: Some(5), ..any_source(0, u64::MAX) },
    ];
    for first in 0..kinds.len() {
        let mut bench = Bench::new(9);
        // Newer receives of every kind, and one that accepts only another tag, change nothing.
        let order = kinds[first..].iter().chain(&kinds[..first]);
        bench.post(&any_source(0x22, 0), false);
        for s in order {
            bench.post(s, false);
        }
        for receive in 1..=kinds.len() as u32 {
            assert_eq!(bench.take(&e), Some(receive), "oldest kind {first}");
        }
        assert_eq!(bench.take(&e), None);
        assert_eq!(bench.matcher.posted_len(), 1);
    }
}

#[test]
fn stale_key_does_not_affect_a_reused_slot() {
    let mut bench = Bench::new(0);
    let e = MatchEnvelope { source: 0, context: 0, tag: 1 };
    let matched = bench.post(&any_source(1, 0), false);
    assert_eq!(bench.take(&e), Some(matched));
    assert_eq!(bench.cancel(matched), None);
    // The slot is reused; the old id must not cancel its new content.
    let reposted = bench.post(&any_source(1, 0), false);
    assert_eq!(bench.cancel(matched), None);
    assert_eq!(bench.cancel(reposted), Some(reposted));
    assert_eq!(bench.cancel(reposted), None);
    assert_eq!(bench.matcher.posted_len(), 0);
    // The same for messages.
    let mut matcher = bench.matcher;
    let taken = matcher.insert_unexpected(&e, 20);
    assert_eq!(matcher.take_unexpected(&any_source(1, 0)).map(|kept| kept.message), Some(20));
    let kept = matcher.insert_unexpected(&e, 21);
    assert_eq!(matcher.remove_unexpected(taken), None);
    assert_eq!(matcher.remove_unexpected(kept), Some(21));
}

#[test]
fn unused_views_are_dropped() {
    let mut matcher = Matcher::new(0);
    let e = MatchEnvelope { source: 0, context: 0, tag: 1 };
    let directed = Selector { source: Some(0), ..any_source(1, 0) };
    matcher.insert_unexpected(&e, 0);
    assert_eq!(matcher.unexpected.live_views(), 0, "no receive was posted yet");
    assert_eq!(matcher.peek_unexpected(&any_source(1, 0)).map(|kept| kept.message), Some(0));
    assert_eq!(matcher.take_unexpected(&directed).map(|kept| kept.message), Some(0));
    assert_eq!(matcher.unexpected.live_views(), 2);
    for message in 0..50 {
        matcher.insert_unexpected(&e, message);
        assert_eq!(matcher.take_unexpected(&directed).map(|kept| kept.message), Some(message));
    }
    assert_eq!(matcher.unexpected.live_views(), 1, "only directed receives were posted recently");
    matcher.insert_unexpected(&e, 50);
    assert_eq!(matcher.take_unexpected(&any_source(1, 0)).map(|kept| kept.message), Some(50));
}

#[test]
fn empty_matcher_allocates_no_memory() {
    let matcher = Matcher::new(0);
    assert!(size_of_val(&matcher) <= 256);
    assert_eq!(matcher.posted.longest_probe() + matcher.unexpected.longest_probe(), 0);
}

/// Matchers of several endpoints share the slots: each sees its own receives only.
#[test]
fn matchers_of_several_endpoints_share_slots() {
    let mut slots = OperationSlots::new(100);
    let mut matchers = [Matcher::new(1), Matcher::new(2)];
    let mut posted: [Vec<Id>; 2] = [Vec::new(), Vec::new()];
    for round in 0..20_u64 {
        for (endpoint, matcher) in matchers.iter_mut().enumerate() {
            let id = slots.insert(endpoint as u16, &any_source(round % 3, 0), round).unwrap();
            matcher.insert_posted(&mut slots, id.index() as u32);
            posted[endpoint].push(id);
        }
        // One is cancelled now and then, at one endpoint.
        if round % 4 == 3 {
            let id = posted[0].remove(posted[0].len() / 2);
            assert!(matchers[0].cancel_posted(&mut slots, id.index() as u32));
            slots.remove(id.index());
        }
        assert_eq!(
            (slots.posted_at(0), slots.posted_at(1)),
            (posted[0].clone(), posted[1].clone())
        );
    }
    // The oldest of each tag, at the one endpoint, then at the other.
    for (endpoint, matcher) in matchers.iter_mut().enumerate() {
        for tag in [1, 0, 2] {
            let e = MatchEnvelope { source: 7, context: 0, tag };
            let accepts = |id: &Id| slots.get(*id).unwrap().selector().accepts(&e);
            let expected = posted[endpoint].iter().copied().find(accepts).unwrap();
            let taken = matcher.take_whole(&mut slots, &e).unwrap();
            assert_eq!(taken.map(|(id, _)| id), Some(expected));
            posted[endpoint].retain(|&id| id != expected);
        }
    }
    for id in slots.posted_at(0) {
        assert!(matchers[0].cancel_posted(&mut slots, id.index() as u32));
        slots.remove(id.index());
    }
    assert_eq!(matchers[0].posted_len(), 0);
    assert_eq!((slots.posted_at(1), slots.len()), (posted[1].clone(), posted[1].len()));
}
