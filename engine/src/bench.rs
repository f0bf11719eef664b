//! Doors into private rooms, for benches and for tests that count instructions or allocations.
//! Not part of the interface: anything here may change at any time.

use crate::proto::matching::{Envelope, Hasher, Matcher, PostedKey, Selector};

/// A matcher, used as an endpoint uses it.
pub struct Matching(Matcher);

/// What became of a receive.
pub enum Post {
    /// It took this unexpected message.
    Matched(u32),
    /// It waits.
    Waiting(Waiting),
}

/// Names a receive that waits.
#[derive(Clone, Copy)]
pub struct Waiting(PostedKey);

impl Matching {
    /// An empty matcher whose hash is keyed by `seed`.
    pub fn new(seed: u64) -> Self {
        Self(Matcher::new(seed))
    }

    /// A message arrives: gives the receive that takes it, or keeps it as `message`.
    #[inline]
    pub fn arrive(&mut self, source: u32, context: u64, tag: u64, message: u32) -> Option<u32> {
        let envelope = Envelope { source, context, tag };
        let receive = self.0.take_posted(&envelope);
        if receive.is_none() {
            self.0.insert_unexpected(&envelope, message);
        }
        receive
    }

    /// A receive is posted: gives the message it takes, or keeps it as `receive`.
    #[inline]
    pub fn post(
        &mut self,
        source: Option<u32>,
        context: u64,
        tag: u64,
        ignore: u64,
        receive: u32,
    ) -> Post {
        let selector = Selector { source, context, tag, ignore };
        match self.0.take_unexpected(&selector) {
            Some(message) => Post::Matched(message),
            None => Post::Waiting(Waiting(self.0.insert_posted(&selector, receive))),
        }
    }

    /// The message that a receive would take.
    pub fn peek(
        &mut self,
        source: Option<u32>,
        context: u64,
        tag: u64,
        ignore: u64,
    ) -> Option<u32> {
        self.0.peek_unexpected(&Selector { source, context, tag, ignore })
    }

    /// Takes a receive back, unless it was matched before.
    pub fn cancel(&mut self, waiting: Waiting) -> Option<u32> {
        self.0.cancel_posted(waiting.0)
    }

    /// Receives that wait.
    pub fn posted_len(&self) -> usize {
        self.0.posted_len()
    }

    /// Messages that wait.
    pub fn unexpected_len(&self) -> usize {
        self.0.unexpected_len()
    }
}

/// The keyed hash of the matcher's bins.
pub struct MatchingHash(Hasher);

impl MatchingHash {
    /// Keyed by `seed`.
    pub fn new(seed: u64) -> Self {
        Self(Hasher::new(seed))
    }

    /// The hash of a bin key.
    #[inline]
    pub fn hash(&self, context: u64, tag: u64, source: u32) -> u32 {
        self.0.hash_words(context, tag, source)
    }
}
