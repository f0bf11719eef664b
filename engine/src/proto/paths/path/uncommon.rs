//! Why a path leaves its fast paths.
//!
//! Sending and receiving a short packet have a fast path each, for the common state of a path. A
//! word of it has a bit for each reason to leave them, so that a fast path asks once. A bit is set
//! where its reason arises, and cleared where that has passed. Debug builds compare it with the
//! state it stands for at each use. A session has such a word, too
//! (`proto/session/segments/uncommon.rs`).
//!
//! That the driver does not serve a path is no reason of its own: it counts as one that does not
//! answer.

use super::{PathValidation, SessionPath};

bitflags::bitflags! {
    /// A set of reasons.
    #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
    pub(super) struct PathReasons: u8 {
        /// No packet was acknowledged yet, or none is any more.
        const UNPROVEN = 1 << 0;
        /// It carries no segments: another path does, or it is not healthy.
        const HELD = 1 << 1;
        /// The peer may have a new address.
        const CANDIDATE = 1 << 2;
        /// It is one of several.
        const SEVERAL = 1 << 3;
    }
}

impl PathReasons {
    /// What keeps it from carrying segments.
    pub(super) const CARRYING: Self = Self::UNPROVEN.union(Self::HELD);
    /// What keeps a segment from being sent alone.
    pub(super) const SENDING: Self = Self::CARRYING.union(Self::CANDIDATE);
    /// What keeps a packet from being received in the common way.
    pub(super) const RECEIVING: Self = Self::UNPROVEN.union(Self::CANDIDATE);
}

/// Returns whether a planted bug misses a reason.
fn is_missed(reason: PathReasons) -> bool {
    match reason {
        PathReasons::UNPROVEN => planted!(MissUnproven),
        PathReasons::HELD => planted!(MissHeld),
        PathReasons::CANDIDATE => planted!(MissCandidate),
        PathReasons::SEVERAL => planted!(MissSeveral),
        _ => false,
    }
}

impl SessionPath {
    /// Notes whether a reason to leave the fast paths holds.
    #[inline]
    pub(super) fn set_reason(&mut self, reason: PathReasons, holds: bool) {
        self.reasons.set(reason, holds && !is_missed(reason));
    }

    /// Returns whether none of these reasons holds.
    #[inline(always)]
    pub(super) fn is_free_of(&self, reasons: PathReasons) -> bool {
        self.check_reasons();
        !self.reasons.intersects(reasons)
    }

    /// Checks that each reason that holds is noted, and no other.
    #[inline(always)]
    pub(in crate::proto::paths) fn check_reasons(&self) {
        debug_assert!(!self.is_off || self.validation != PathValidation::Good, "it is not served");
        debug_assert_eq!(
            self.reasons,
            self.held_reasons(),
            "a reason to leave the fast paths of a path was missed"
        );
    }

    /// Returns the reasons that hold.
    fn held_reasons(&self) -> PathReasons {
        let mut held = PathReasons::empty();
        held.set(PathReasons::UNPROVEN, self.validation != PathValidation::Good);
        held.set(PathReasons::HELD, self.is_held);
        held.set(PathReasons::CANDIDATE, self.peer.has_candidate());
        held.set(PathReasons::SEVERAL, self.rail_health.is_some());
        held
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::hooks::simulated::{Bug, plant};
    use crate::proto::paths::by_hand::new_path;

    #[test]
    fn a_reason_that_is_missed_is_found_at_the_next_use() {
        type Arise = fn(&mut SessionPath);
        let ways: [(Bug, Arise); 4] = [
            (Bug::MissUnproven, SessionPath::prepare_final_ack),
            (Bug::MissHeld, |path| path.hold(true)),
            (Bug::MissCandidate, |path| {
                path.peer.note_source(0, ([192, 0, 2, 9], 1).into());
                path.set_reason(PathReasons::CANDIDATE, path.peer.has_candidate());
            }),
            (Bug::MissSeveral, |path| path.begin_comparison(0, true)),
        ];
        for (bug, arise) in ways {
            for planted in [None, Some(bug)] {
                let mut path = new_path(0);
                path.prove();
                plant(planted);
                arise(&mut path);
                plant(None);
                let use_it = || path.is_free_of(PathReasons::all());
                let used = catch_unwind(AssertUnwindSafe(use_it));
                assert_eq!(used.ok(), planted.is_none().then_some(false), "{bug:?}");
            }
        }
    }
}
