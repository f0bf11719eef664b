//! What fences guarantee.

use super::oracle::{Fate, Oracle};
use super::plan::Plan;
use crate::driver::sim::random::Random;

/// How far back sends are looked at.
const LOOK_BACK: usize = 100;

/// Whether message `index` of a run is fenced; as its hint, not out of the run's own random
/// numbers.
pub(super) fn is_fenced(plan: &Plan, index: usize) -> bool {
    let mut random = Random::new(plan.seed.rotate_left(48) ^ index as u64);
    plan.fences && random.one_in(8)
}

impl Oracle {
    /// Send `index` is complete, and so is all that was posted before a fence that it is behind.
    /// Where a session may have failed, or a peer was forgotten, there may be another one of the
    /// same name, which waits for nothing of the first.
    pub(super) fn check_fence(&self, index: usize) -> Result<(), String> {
        let sent = &self.sent[index];
        // Threads read completions from queues of their own, earlier or later than others; a send
        // may complete before the call that posts it has returned.
        if sent.is_threaded || self.is_tainted(sent.from.0, sent.to.0) {
            return Ok(());
        }
        let mut is_behind = sent.is_fenced;
        for early in (index.saturating_sub(LOOK_BACK)..index).rev() {
            let other = &self.sent[early];
            if (other.from, other.to) != (sent.from, sent.to) || other.fate == Fate::Cancelled {
                continue;
            }
            let is_comparable = !other.is_threaded;
            if is_behind && is_comparable && other.fate == Fate::Outstanding {
                return Err(format!("send {index} went before {early}: {sent:?} {other:?}"));
            }
            is_behind |= other.is_fenced;
        }
        Ok(())
    }
}
