//! Unsolicited pieces: a sender writes a message into the ring behind its RTS, and does not wait
//! for a grant.
//!
//! ```text
//!  sender                                    receiver
//!    │ RTS(envelope, length, ring, number)      │
//!    │ piece(number), piece(number), ...        │
//!    ├──────────────── ring ───────────────────>│ match: each is copied to its offset
//!    │                                    DONE  │ no match: they are dropped, and the message is
//!    │<─────────────────────────────────────────┤ granted when it has matched
//! ```
//!
//! That saves a round trip where a receive is posted, as is usual, and copies in vain where none
//! is. Two limits apply: only a few messages are sent unsolicited beyond the newest one that has
//! arrived, and after a grant for an unsolicited message the next ones wait for their grants.
//!
//! The receiver takes the pieces if none of this message, nor of a later one, has come before its
//! match: then all of them are still to come, since the sender writes all, or ends them with a
//! piece without bytes. Otherwise it grants the message.

use super::super::late::AtRest;
use super::SessionRendezvous;
use super::granted::{NewRange, QueuedRange, RangeCarrier, RangeOf};
use super::pull::ring::RingCarrier;
use crate::proto::context::Cx;
use crate::proto::hint::Hint;
use crate::proto::operations::Operations;
use crate::proto::table::Id;
use crate::wire::UnsolicitedPieces;

/// Longest message that is sent unsolicited, in bytes.
const BYTES_MAX: u64 = 256 << 10;

/// Messages that are sent unsolicited beyond the newest one that has arrived: the limit on what is
/// copied in vain, and on what is before a granted message in the queue.
const BEYOND_ARRIVED_MAX: u64 = 16;

/// Messages that wait for their grants after one whose pieces were dropped.
const GRANTED_AFTER_DROP: u32 = 16;

/// Receives that take unsolicited pieces at a time, several times what a sender of this version
/// needs: others are granted.
const RECEIVES_MAX: usize = 64;

/// Messages of a session that are sent or received in unsolicited pieces.
#[derive(Debug, Default)]
pub(super) struct Unsolicited {
    /// Number of the next message of this side.
    next: u64,
    /// Number after the newest message of this side that has arrived.
    arrived_before: u64,
    /// How many of the next messages of this side wait for their grants.
    waiting: u32,
    /// The peer's messages before this number are granted if they match now: a piece has come of
    /// the one before it, on this ring or another.
    granted_before: u64,
    /// Receives whose pieces come, by the number of the message.
    receives: Vec<(u64, Id)>,
}

impl AtRest for Unsolicited {
    const AT_REST: &'static Self =
        &Self { next: 0, arrived_before: 0, waiting: 0, granted_before: 0, receives: Vec::new() };
}

impl Unsolicited {
    /// Notes a piece of message `number`, on any ring. One that is ahead of its ring, as this side
    /// knows it, is dropped like others.
    pub(super) fn note_piece(&mut self, number: u64) {
        self.granted_before = self.granted_before.max(number.saturating_add(1));
    }

    /// Returns the receive of message `number`.
    pub(super) fn receive_of(&self, number: u64) -> Option<Id> {
        self.receives.iter().find(|(other, _)| *other == number).map(|&(_, id)| id)
    }

    /// Forgets the receive of message `number`, of which nothing more is expected.
    pub(super) fn remove(&mut self, number: u64) {
        self.receives.retain(|&(other, _)| other != number);
    }

    /// Begins with another ring.
    pub(super) fn begin_ring(&mut self) {
        self.receives = Vec::new();
    }

    /// Returns whether another receive may take unsolicited pieces; drops those that have ended.
    fn has_room(&mut self, operations: &Operations) -> bool {
        if self.receives.len() >= RECEIVES_MAX {
            self.receives.retain(|&(_, id)| operations.get(id).is_some());
        }
        self.receives.len() < RECEIVES_MAX
    }

    /// Frees memory that is not used.
    pub(super) fn shrink(&mut self) {
        if self.receives.is_empty() {
            self.receives = Vec::new();
        }
    }
}

/// The sender.
impl SessionRendezvous {
    /// Returns the pieces in which the next message, of `length` bytes, may be sent without a
    /// grant. `None`: it waits for one.
    pub(in crate::proto::session) fn unsolicited(&self, length: u64) -> Option<UnsolicitedPieces> {
        let RingCarrier(ring) = self.ring?;
        let Unsolicited { next, arrived_before, waiting, .. } = *self.unsolicited;
        if length > BYTES_MAX
            || waiting > 0
            || next >= arrived_before + BEYOND_ARRIVED_MAX
            || rare!("a message that waits for its grant", 3)
        {
            return None;
        }
        Some(UnsolicitedPieces { ring: ring.into(), number: next.into() })
    }

    /// Sends the message of operation `id` in the pieces that [`Self::unsolicited`] has returned,
    /// which its RTS states.
    pub(in crate::proto::session) fn send_unsolicited(
        &mut self,
        cx: &mut Cx<'_>,
        id: Id,
        (length, hint): (u64, Hint),
        pieces: UnsolicitedPieces,
    ) {
        self.unsolicited.next = pieces.number.get() + 1;
        let range = QueuedRange {
            operation: id,
            of: RangeOf::Message(pieces.number.get()),
            offset: 0,
            length: length as u32,
        };
        let new = NewRange { range, hint, operations: &cx.shared.operations };
        RingCarrier(pieces.ring.get()).insert(&mut self.granted.pieces, &new);
        cx.add_work(RingCarrier::WORK);
    }

    /// Lets all messages wait for their grants.
    #[cfg(test)]
    pub(in crate::proto) fn wait_for_grants(&mut self) {
        self.unsolicited.waiting = u32::MAX;
    }

    /// Notes that a message waits for its grant. Returns the number of messages before it that were
    /// sent in unsolicited pieces.
    pub(in crate::proto::session) fn note_solicited(&mut self) -> u64 {
        let Some(unsolicited) = self.unsolicited.get_mut() else { return 0 };
        unsolicited.waiting = unsolicited.waiting.saturating_sub(1);
        unsolicited.next
    }

    /// Notes that a message has arrived: the last one of `count` that were sent in unsolicited
    /// pieces, or a later one that was granted.
    pub(super) fn note_arrived(&mut self, count: u64) {
        if let Some(unsolicited) = self.unsolicited.get_mut() {
            unsolicited.arrived_before = unsolicited.arrived_before.max(count);
        }
    }

    /// Notes that the peer grants the message of operation `id`, which was sent in unsolicited
    /// pieces: it has dropped these.
    pub(super) fn note_dropped(&mut self, id: Id) {
        self.granted.pieces.drop_unsolicited(id);
        self.unsolicited.waiting = GRANTED_AFTER_DROP;
    }
}

/// The receiver.
impl SessionRendezvous {
    /// Lets the receive `id` take these unsolicited pieces, if all of them are to come and it wants
    /// them. Returns `false` if its message is to be granted.
    ///
    /// RR-SHM-14.
    pub(super) fn take_unsolicited(
        &mut self,
        cx: &mut Cx<'_>,
        id: Id,
        pieces: UnsolicitedPieces,
    ) -> bool {
        let (ring, number) = (RingCarrier(pieces.ring.get()), pieces.number.get());
        let is_late = number < self.unsolicited.granted_before;
        if self.ring != Some(ring) || (is_late && !planted!(AwaitDroppedPieces)) {
            return false;
        }
        if !self.unsolicited.has_room(&cx.shared.operations) {
            return false;
        }
        let pulled = cx.shared.operations.pulling(cx.slot, id);
        let is_taken = pulled.is_some_and(|(pulling, _)| pulling.begin_unsolicited(ring));
        if is_taken {
            self.unsolicited.receives.push((number, id));
        }
        is_taken
    }
}
