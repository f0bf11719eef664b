//! What may happen between engines of one host: rings are full or end, and are made anew; memory
//! cannot be read after all.

use std::collections::BTreeMap;

use super::Fault;
use crate::driver::lanes::Neighbour;

/// A session whose other side may be on this host.
struct Known {
    neighbour: Neighbour,
    /// It has a ring.
    is_up: bool,
    /// The poll at which it meets its neighbour again.
    again: Option<u64>,
}

/// All of them, in an order, so that a seed always does the same.
#[derive(Default)]
pub(super) struct Neighbours(BTreeMap<u64, Known>);

impl Neighbours {
    pub(super) fn has_plans(&self) -> bool {
        self.0.values().any(|known| known.again.is_some())
    }

    /// The driver inside says that a session has a ring, or has none any more.
    pub(super) fn changed(&mut self, session: u64, is_up: bool) {
        if let Some(known) = self.0.get_mut(&session) {
            known.is_up = is_up;
        }
    }
}

impl Fault {
    pub(super) fn meet_inside(&mut self, neighbour: Neighbour) {
        let known = Known { neighbour: neighbour.clone(), is_up: false, again: None };
        self.neighbours.0.insert(neighbour.session, known);
        self.inner.meet(neighbour);
    }

    pub(super) fn part_inside(&mut self, session: u64) {
        self.neighbours.0.remove(&session);
        self.inner.part(session);
    }

    /// Sessions whose rings have ended meet their neighbours again.
    pub(super) fn meet_again(&mut self, turn: u64) {
        for known in self.neighbours.0.values_mut() {
            if known.again.is_some_and(|due| due <= turn) {
                known.again = None;
                self.inner.meet(known.neighbour.clone());
            }
        }
    }

    /// Whether a segment may go by the ring of a session now, which may end over that.
    pub(super) fn admit_segment(&mut self, session: u64) -> bool {
        if self.chance(self.faults.again) {
            return false;
        }
        if !self.chance(self.faults.ring_end) {
            return true;
        }
        let due = self.soon();
        let known = self.neighbours.0.get_mut(&session);
        let Some(known) = known.filter(|known| known.is_up) else { return true };
        known.again = Some(due);
        self.inner.part(session);
        false
    }
}
