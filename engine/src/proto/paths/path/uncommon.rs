//! Why a path leaves its fast paths.
//!
//! Sending and receiving a short packet have a fast path each, for the common state of a path. A
//! word of it has a bit for each reason to leave them, so that a fast path asks once. A bit is set
//! where its reason arises, and cleared where that has passed. Debug builds compare it with the
//! state it stands for at each use. A session has such a word, too (`proto/segments/uncommon.rs`).
//!
//! That the driver does not serve a path is no reason of its own: it counts as one that does not
//! answer.

use super::{PathValidation, SessionPath};

/// A set of reasons.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct PathReasons(u8);

impl PathReasons {
    /// No packet was acknowledged yet, or none is any more.
    pub(super) const UNPROVEN: Self = Self(1 << 0);
    /// It carries no segments: another path does, or it is not healthy.
    pub(super) const HELD: Self = Self(1 << 1);
    /// The peer may have a new address.
    pub(super) const CANDIDATE: Self = Self(1 << 2);
    /// It is one of several.
    pub(super) const SEVERAL: Self = Self(1 << 3);

    /// What keeps it from carrying segments.
    pub(super) const CARRYING: Self = Self::UNPROVEN.or(Self::HELD);
    /// What keeps a segment from being sent alone.
    pub(super) const SENDING: Self = Self::CARRYING.or(Self::CANDIDATE);

    const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns this reason where it holds.
    fn if_holds(self, holds: bool) -> Self {
        if holds { self } else { Self::default() }
    }
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
        let others = self.reasons.without(reason);
        self.reasons = others.or(reason.if_holds(holds && !is_missed(reason)));
    }

    /// Returns whether none of these reasons holds.
    #[inline(always)]
    pub(super) fn is_free_of(&self, reasons: PathReasons) -> bool {
        self.check_reasons();
        self.reasons.and(reasons) == PathReasons::default()
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
        [
            PathReasons::UNPROVEN.if_holds(self.validation != PathValidation::Good),
            PathReasons::HELD.if_holds(self.is_held),
            PathReasons::CANDIDATE.if_holds(self.peer.has_candidate()),
            PathReasons::SEVERAL.if_holds(self.rail_health.is_some()),
        ]
        .into_iter()
        .fold(PathReasons::default(), PathReasons::or)
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
                let use_it = || path.is_free_of(PathReasons::SENDING.or(PathReasons::SEVERAL));
                let used = catch_unwind(AssertUnwindSafe(use_it));
                assert_eq!(used.ok(), planted.is_none().then_some(false), "{bug:?}");
            }
        }
    }
}
