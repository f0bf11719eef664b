//! Matching allocates nothing once its tables have grown to the depth in use.

use crate::counting::allocations;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use ringrail::bench::{Matching, Post, Waiting};

/// Receives and messages that may wait at a time.
const DEPTH: usize = 1000;
const SOURCES: u32 = 50;
const TAGS: u64 = 2000;
/// More kinds of wildcard than get bins of their own, so that walking is counted too.
const IGNORES: [u64; 10] = [0, 0, 0, 1, 2, 4, 8, 0xf, 0xff, u64::MAX];

/// The context of receives that wait, and the one of messages that wait: nothing matches while
/// depths grow.
const RECEIVES: u64 = 1;
const MESSAGES: u64 = 2;

/// Random operations on one matcher. Depths swing up to `DEPTH` and back to zero.
struct Mix {
    rng: SmallRng,
    matching: Matching,
    /// Receives not cancelled yet, with an envelope that each accepts.
    waiting: Vec<(Waiting, u32, u64)>,
    filling: bool,
    answers: u64,
}

impl Mix {
    fn new() -> Self {
        Self {
            rng: SmallRng::seed_from_u64(7),
            matching: Matching::new(11),
            waiting: Vec::with_capacity(2 * DEPTH),
            filling: true,
            answers: 0,
        }
    }

    fn step(&mut self) {
        let waiting = self.waiting.len().max(self.matching.unexpected_len());
        if waiting >= DEPTH {
            self.filling = false;
        } else if self.waiting.len() + self.matching.unexpected_len() == 0 {
            self.filling = true;
        }
        let answer = if self.filling { self.fill() } else { self.empty() };
        self.answers += u64::from(answer);
    }

    /// Posts, lets a message arrive, probes, or cancels; returns whether something was found.
    fn fill(&mut self) -> bool {
        let source = self.rng.random_range(0..SOURCES);
        let directed = self.rng.random_bool(0.5).then_some(source);
        let tag = self.rng.random_range(0..TAGS);
        let ignore = IGNORES[self.rng.random_range(0..IGNORES.len())];
        match self.rng.random_range(0..10) {
            0 => self.matching.peek(directed, MESSAGES, tag, ignore).is_some(),
            1 => self.cancel_any(),
            2..6 => self.matching.arrive(source, MESSAGES, tag, 1).is_some(),
            _ => match self.matching.post(directed, RECEIVES, tag, ignore, 2) {
                Post::Matched(_) => true,
                Post::Waiting(waiting) => {
                    self.waiting.push((waiting, source, tag));
                    false
                }
            },
        }
    }

    /// Takes a message if there is one, else matches or cancels a receive.
    fn empty(&mut self) -> bool {
        for context in [RECEIVES, MESSAGES] {
            if self.matching.peek(None, context, 0, u64::MAX).is_some() {
                return matches!(
                    self.matching.post(None, context, 0, u64::MAX, 3),
                    Post::Matched(_)
                );
            }
        }
        if self.rng.random_bool(0.5) {
            return self.cancel_any();
        }
        let (_, source, tag) = self.waiting[self.rng.random_range(0..self.waiting.len())];
        self.matching.arrive(source, RECEIVES, tag, 4).is_some()
    }

    fn cancel_any(&mut self) -> bool {
        if self.waiting.is_empty() {
            return false;
        }
        let at = self.rng.random_range(0..self.waiting.len());
        let (waiting, ..) = self.waiting.swap_remove(at);
        self.matching.cancel(waiting).is_some()
    }
}

#[test]
fn a_warm_matcher_allocates_nothing() {
    let mut mix = Mix::new();
    let cold = allocations();
    // Every table takes part in every kind of wildcard before it has met the greatest depth.
    for _ in 0..300_000 {
        mix.step();
    }
    let warm = allocations();
    assert!(warm > cold, "the first operations must allocate, or this test counts nothing");
    let answers = mix.answers;
    for _ in 0..100_000 {
        mix.step();
    }
    assert_eq!(allocations() - warm, 0, "allocations in 100 000 operations of a warm matcher");
    assert!(mix.answers - answers > 10_000, "the operations must do something");
}
