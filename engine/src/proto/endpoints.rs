//! Endpoints of an engine: opening, and closing with their pending operations.

use super::claims::Claims;
use super::context::SharedState;
use super::core::{Core, ENDPOINTS_MAX};
use super::effects::{Effects, Ended};
use super::matching::{Kept, Matcher};
use super::operation::{Cause, Operation, OperationState};
use super::operations::Operations;
use super::regions::Refusal;
use super::session::ControlFrame;
use super::table::Id;
use super::unexpected::{Kind, Unexpected};
use crate::wire::done::STATUS_ABANDONED;

/// One that is open.
#[derive(Debug)]
struct Open {
    number: u16,
    /// Receives from any source end when no peer is left ([`super::no_peer_left`]).
    needs_peers: bool,
    matcher: Matcher,
}

/// The open endpoints. Numbers are assigned in sequence, all 65536 before one is reused, so that a
/// message for a closed endpoint is not delivered to another one.
///
/// RR-MATCH-4.
#[derive(Debug)]
pub(crate) struct Endpoints {
    /// Indexed by the lower bits of their numbers: of those that share them one is open at a time.
    places: Vec<Option<Open>>,
    /// Number of open endpoints.
    len: usize,
    /// The next number, if its slot is free.
    next: u16,
    /// Seed of the hash tables of their matchers.
    hash_seed: u64,
    /// Messages removed from their matching by handle.
    claims: Claims,
}

impl Endpoints {
    pub(super) fn new(hash_seed: u64) -> Self {
        Self { places: Vec::new(), len: 0, next: 0, hash_seed, claims: Claims::new() }
    }

    /// Returns the messages removed from matching by handle.
    pub(super) fn claims(&self) -> &Claims {
        &self.claims
    }

    /// Returns the same, mutable.
    pub(super) fn claims_mut(&mut self) -> &mut Claims {
        &mut self.claims
    }

    #[inline]
    fn place_of(number: u16) -> usize {
        usize::from(number) % ENDPOINTS_MAX
    }

    /// Opens an endpoint and returns its number; `None` at the limit.
    pub(crate) fn open(&mut self) -> Option<u16> {
        if self.len == ENDPOINTS_MAX {
            return None;
        }
        loop {
            let number = self.next;
            self.next = number.wrapping_add(1);
            if self.open_at(number) {
                return Some(number);
            }
        }
    }

    /// Opens an endpoint under a number, as happens again after 65536 of them. Returns `false` if
    /// its slot is in use.
    pub(crate) fn open_at(&mut self, number: u16) -> bool {
        let place = Self::place_of(number);
        if place >= self.places.len() {
            self.places.resize_with(place + 1, || None);
        }
        if self.places[place].is_some() {
            return false;
        }
        let matcher = Matcher::new(self.hash_seed);
        self.places[place] = Some(Open { number, needs_peers: false, matcher });
        self.len += 1;
        true
    }

    fn close(&mut self, number: u16) -> Option<Matcher> {
        let place = self.places.get_mut(Self::place_of(number))?;
        let closed = place.take_if(|open| open.number == number)?;
        self.len -= 1;
        Some(closed.matcher)
    }

    /// Returns the matcher of an endpoint; `None`: it is not open.
    #[inline]
    pub(crate) fn get_mut(&mut self, number: u16) -> Option<&mut Matcher> {
        let open = self.places.get_mut(Self::place_of(number))?.as_mut()?;
        (open.number == number).then_some(&mut open.matcher)
    }

    /// Returns the same, and whether its receives from any source end when no peer is left.
    #[inline]
    pub(super) fn with_needs(&mut self, number: u16) -> Option<(&mut Matcher, bool)> {
        let open = self.places.get_mut(Self::place_of(number))?.as_mut()?;
        (open.number == number).then_some((&mut open.matcher, open.needs_peers))
    }

    /// Sets that for an endpoint.
    pub(super) fn set_needs_peers(&mut self, number: u16, needs_peers: bool) {
        let place = self.places.get_mut(Self::place_of(number)).and_then(Option::as_mut);
        if let Some(open) = place.filter(|open| open.number == number) {
            open.needs_peers = needs_peers;
        }
    }

    /// Returns whether an endpoint is open.
    #[inline]
    pub(crate) fn is_open(&self, number: u16) -> bool {
        let place = self.places.get(Self::place_of(number));
        matches!(place, Some(Some(open)) if open.number == number)
    }

    /// Returns whether any endpoint has receives that end when no peer is left.
    pub(super) fn need_peers(&self) -> bool {
        self.places.iter().flatten().any(|open| open.needs_peers)
    }

    /// Removes and returns the unexpected messages from a remote endpoint.
    pub(super) fn drain_unexpected_from(&mut self, remote: u32) -> Vec<u32> {
        let mut messages = Vec::new();
        for open in self.places.iter_mut().flatten() {
            open.matcher.drain_unexpected_from(remote, |kept| messages.push(kept.message));
        }
        messages
    }

    /// Returns the numbers of open endpoints.
    pub(crate) fn numbers(&self) -> Vec<u16> {
        self.places.iter().flatten().map(|open| open.number).collect()
    }
}

impl Endpoints {
    /// Removes and returns the unexpected messages from remote endpoints whose remainder is lost;
    /// complete ones can still be received.
    pub(super) fn drain_incomplete_from(
        &mut self,
        remotes: &[u32],
        unexpected: &Unexpected,
    ) -> Vec<u32> {
        let mut incomplete = Vec::new();
        for Open { matcher, .. } in self.places.iter_mut().flatten() {
            for &remote in remotes {
                let mut drained = Vec::new();
                matcher.drain_unexpected_from(remote, |kept| drained.push(kept));
                for Kept { message, envelope } in drained {
                    match unexpected.at(message).map(|it| it.kind) {
                        Some(Kind::Eager { put_back: 0, .. }) => {
                            matcher.insert_unexpected(&envelope, message);
                        }
                        Some(Kind::Eager { put_back: order, .. }) => {
                            matcher.put_back(&envelope, message, order);
                        }
                        _ => incomplete.push(message),
                    }
                }
            }
        }
        incomplete
    }

    /// Removes a receive or multi-receive from those that are posted. Returns whether it was.
    pub(super) fn withdraw(&mut self, operations: &mut Operations, id: Id) -> bool {
        let receives = &mut operations.slots;
        let posted = receives.get(id).filter(|it| it.is_posted());
        let matcher = posted.and_then(|it| self.get_mut(it.endpoint()));
        debug_assert!(
            matcher.is_some() == posted.is_some() || planted!(KeepReceivesOfDead),
            "receives end with their endpoint"
        );
        matcher.is_some_and(|matcher| matcher.cancel_posted(receives, id.index() as u32))
    }
}

impl SharedState {
    /// Returns the operations of closed endpoints.
    pub(crate) fn closed_operations(&self) -> impl Iterator<Item = (Id, &Operation)> {
        self.operations.iter().filter(|(_, it)| !self.endpoints.is_open(it.endpoint))
    }

    /// Returns whether operations of closed endpoints have not ended.
    pub(crate) fn has_closed(&self) -> bool {
        self.closed_operations().next().is_some()
    }

    /// Returns whether a send of a closed endpoint is unsent or unacknowledged. A send to a receive
    /// of this same engine may wait forever.
    pub(crate) fn is_sending_of_closed(&self) -> bool {
        let own = self.peers.session_of(self.engine());
        let mut closed = self.closed_operations();
        closed.any(|(_, it)| it.is_sending() && Some(it.session) != own)
    }
}

impl Kind {
    /// Returns what notifies the sender of a message that is dropped, if it waits.
    pub(super) fn abandonment(&self) -> Option<ControlFrame> {
        let operation = match *self {
            Self::Eager { report, .. } => report,
            Self::Rendezvous { send_operation, .. } => send_operation,
        };
        (operation != 0).then(|| ControlFrame::done(operation, STATUS_ABANDONED, 0))
    }
}

impl Core {
    /// Closes an endpoint: its receives end as cancelled, those that pull as soon as the kernel has
    /// released their memory; its unexpected messages are dropped. Its sends continue until
    /// [`Self::cancel_closed`].
    pub(crate) fn close_endpoint(&mut self, endpoint: u16, effects: &mut impl Effects) {
        for id in self.shared.operations.slots.posted_at(endpoint) {
            self.fail_operation(id, &Cause::Closed, effects);
        }
        debug_assert!(
            self.shared.operations.slots.posted_at(endpoint).is_empty()
                || planted!(KeepReceivesOfDead),
            "receives end with their endpoint"
        );
        let Some(mut matcher) = self.shared.endpoints.close(endpoint) else { return };
        let mut messages = Vec::new();
        matcher.drain_all_unexpected(|kept| messages.push(kept.message));
        messages.extend(self.shared.endpoints.claims.remove_all_of(endpoint));
        for message in messages {
            self.drop_unexpected(message, Kind::abandonment);
        }
        let is_receiving = |operation: &Operation| {
            operation.endpoint == endpoint
                && matches!(operation.state, OperationState::AwaitBytes(_))
        };
        self.cancel_closed(is_receiving, effects);
    }

    /// Cancels those remaining operations of closed endpoints that `is_hit` selects, at once or as
    /// soon as the kernel has released the memory. Their peers are notified.
    ///
    /// RR-RDV-5.
    pub(crate) fn cancel_closed(
        &mut self,
        is_hit: impl Fn(&Operation) -> bool,
        effects: &mut impl Effects,
    ) {
        let hit = self.shared.closed_operations().filter(|(_, operation)| is_hit(operation));
        let hit: Vec<Id> = hit.map(|(id, _)| id).collect();
        for id in hit {
            self.abort(id, Refusal::Endpoint, effects);
        }
    }

    /// Ends the remaining operations of closed endpoints after the kernel has released all memory
    /// of this engine.
    pub(crate) fn drop_closed(&mut self, effects: &mut impl Effects) {
        let is_multi = |it: &Operation| matches!(it.state, OperationState::AwaitMessages(_));
        let closed =
            self.shared.closed_operations().map(|(id, operation)| (is_multi(operation), id));
        let mut closed: Vec<(bool, Id)> = closed.collect();
        // Slices end before their multi-receives.
        closed.sort_unstable();
        for (_, id) in closed {
            self.remove_operation(id);
            effects.complete(id, Ended::Cancelled);
        }
    }

    /// Drops an unexpected message, and sends its sender the frame that `answer` returns.
    pub(super) fn drop_unexpected(
        &mut self,
        message: u32,
        answer: impl FnOnce(&Kind) -> Option<ControlFrame>,
    ) {
        let Some(message) = self.shared.unexpected.take(message) else {
            debug_assert!(false, "unexpected messages are kept until they are taken");
            return;
        };
        self.return_credit_of(&message);
        if let Some(answer) = answer(&message.kind) {
            self.with(message.session, |it, mut cx| it.send_control(&mut cx, answer));
        }
        self.shared.unexpected.recycle(message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RR-MATCH-4
    #[test]
    fn numbers_are_assigned_in_sequence_and_never_shared() {
        let mut endpoints = Endpoints::new(1);
        let kept = endpoints.open().unwrap();
        assert_eq!(kept, 0);
        let mut given = vec![0u32; 1 << 16];
        // Every 1024th number has the slot of the one that is kept.
        for _ in 0..(1 << 16) - 64 {
            let number = endpoints.open().unwrap();
            given[usize::from(number)] += 1;
            assert!(endpoints.is_open(number) && endpoints.get_mut(number).is_some());
            assert!(endpoints.close(number).is_some());
            assert!(!endpoints.is_open(number) && endpoints.close(number).is_none());
            assert!(!endpoints.is_open(number.wrapping_add(1024)));
        }
        assert!(given.iter().all(|&times| times <= 1), "one was given twice");
        assert!(endpoints.is_open(kept));
        assert_eq!(endpoints.numbers(), [kept]);
    }

    #[test]
    fn closing_an_endpoint_frees_a_slot_at_the_limit() {
        let mut endpoints = Endpoints::new(1);
        let all: Vec<u16> = std::iter::from_fn(|| endpoints.open()).collect();
        assert_eq!(all.len(), ENDPOINTS_MAX);
        for number in [1000, 3, 1023] {
            assert!(endpoints.close(number).is_some());
            let next = endpoints.open().unwrap();
            assert!(next >= 1024 && next % 1024 == number);
            assert_eq!(endpoints.open(), None);
        }
    }
}
