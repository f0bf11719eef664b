//! Rate limit of wrong keys per peer.

use std::collections::HashMap;

use foldhash::quality::FixedState;

/// Wrong keys that a peer may use at once.
pub(crate) const WRONG_KEYS_BURST: u64 = 1024;
/// Wrong keys that a peer may use per second, on average.
pub(crate) const WRONG_KEYS_PER_SECOND: u64 = 1000;

const INTERVAL_NS: u64 = 1_000_000_000 / WRONG_KEYS_PER_SECOND;
/// Maximum deficit of a bucket, in the time that fills it, with a token left.
const LACK_MAX_NS: u64 = (WRONG_KEYS_BURST - 1) * INTERVAL_NS;

/// Maximum number of tracked peers.
pub(super) const PEERS_MAX: usize = 4096;

/// A bucket of [`WRONG_KEYS_BURST`] tokens for each peer that used a wrong key lately.
#[derive(Debug)]
pub(super) struct Throttle {
    buckets: HashMap<u64, Bucket, FixedState>,
    /// Number of empty buckets at the last check.
    empty: usize,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    /// When it is full again, in ns.
    full_at: u64,
    is_empty: bool,
}

impl Bucket {
    fn lacks_a_token(self, now_ns: u64) -> bool {
        self.full_at.saturating_sub(now_ns) > LACK_MAX_NS
    }
}

impl Throttle {
    pub(super) fn new(seed: u64) -> Self {
        Self { buckets: HashMap::with_hasher(FixedState::with_seed(seed)), empty: 0 }
    }

    #[cfg(test)]
    pub(super) fn peers(&self) -> usize {
        self.buckets.len()
    }

    /// Returns whether any peer may be throttled: if not, no look-up is necessary.
    #[inline]
    pub(super) fn is_any(&self) -> bool {
        self.empty > 0
    }

    /// Returns whether a peer's bucket is empty.
    pub(super) fn is_throttled(&mut self, peer: u64, now_ns: u64) -> bool {
        let Some(bucket) = self.buckets.get_mut(&peer).filter(|bucket| bucket.is_empty) else {
            return false;
        };
        bucket.is_empty = bucket.lacks_a_token(now_ns);
        self.empty -= usize::from(!bucket.is_empty);
        bucket.is_empty
    }

    /// Takes a token from a peer's bucket, which is not throttled.
    pub(super) fn wrong_key(&mut self, peer: u64, now_ns: u64) {
        if self.buckets.len() >= PEERS_MAX && !self.buckets.contains_key(&peer) {
            self.forget_one(now_ns);
        }
        let full = Bucket { full_at: now_ns, is_empty: false };
        let bucket = self.buckets.entry(peer).or_insert(full);
        bucket.full_at = bucket.full_at.max(now_ns).saturating_add(INTERVAL_NS);
        if !bucket.is_empty && bucket.lacks_a_token(now_ns) {
            bucket.is_empty = true;
            self.empty += 1;
        }
    }

    /// Checks that empty buckets are counted.
    #[cfg(any(test, feature = "sim"))]
    pub(super) fn check(&self) {
        let empty = self.buckets.values().filter(|bucket| bucket.is_empty).count();
        assert_eq!(empty, self.empty, "empty buckets are counted");
        assert!(self.buckets.len() <= PEERS_MAX, "the fullest ones are forgotten");
    }

    /// Removes full buckets, or else the fullest one.
    fn forget_one(&mut self, now_ns: u64) {
        self.buckets.retain(|_, bucket| bucket.full_at > now_ns || bucket.is_empty);
        if self.buckets.len() < PEERS_MAX {
            return;
        }
        let least = self.buckets.iter().min_by_key(|(_, bucket)| bucket.full_at);
        if let Some(peer) = least.map(|(&peer, _)| peer) {
            let forgotten = self.buckets.remove(&peer);
            self.empty -= usize::from(forgotten.is_some_and(|bucket| bucket.is_empty));
        }
    }
}
