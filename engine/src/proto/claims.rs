//! Messages removed from matching by handle (`MPI_Mprobe`, `FI_CLAIM`): only a receive that names
//! the claim gets one.
//!
//! A claimed message remains in the unexpected store, and counts toward its limits, until it is
//! received or discarded. If it can no longer be received (its remainder was expected on a session
//! that ended, or its peer was removed) the claim remains, and reports the cause to the receive.

use super::core::Core;
use super::effects::{Arrival, Effects, Ended, RemoteName};
use super::failure::PeerFailure;
use super::matching::{Kept, MatchEnvelope, Selector};
use super::receive::ReceiveRequest;
use super::send::SendRefusal;
use super::session::ControlFrame;
use super::table::Id;
use super::unexpected::{Kind, Message};
use crate::wire::done::STATUS_OK;

/// A claimed message.
#[derive(Debug)]
pub(crate) struct Claim {
    endpoint: u16,
    envelope: MatchEnvelope,
    what: Claimed,
}

#[derive(Debug)]
enum Claimed {
    /// The claim refers to this unexpected message.
    Here(u32),
    /// It is lost.
    Lost(PeerFailure, Option<RemoteName>),
}

impl Core {
    /// Removes the message that [`Self::peek`] finds from matching, and returns its handle.
    pub(crate) fn claim(
        &mut self,
        request: &ReceiveRequest,
    ) -> Result<Option<(Id, Arrival)>, SendRefusal> {
        let Some(arrival) = self.peek(request)? else { return Ok(None) };
        let (selector, _) = self.selector(request)?;
        let endpoint = request.endpoint;
        let matcher = self.shared.endpoints.get_mut(endpoint);
        let Some(kept) = matcher.and_then(|matcher| matcher.take_unexpected(&selector)) else {
            return Ok(None);
        };
        let Kept { message, envelope } = kept;
        let claim = Claim { endpoint, envelope, what: Claimed::Here(message) };
        let claim = self.shared.claims.insert(claim).expect("the table is unbounded");
        Ok(Some((claim, arrival)))
    }

    /// Creates an operation for the receive of a claimed message. Start it with
    /// [`Self::start_claimed`] when its buffer is ready. `None`: there is no such claim.
    pub(crate) fn new_claimed_receive(
        &mut self,
        claim: Id,
        capacity: u64,
    ) -> Option<Result<Id, SendRefusal>> {
        let &Claim { endpoint, envelope: MatchEnvelope { context, tag, .. }, .. } =
            self.shared.claims.get(claim)?;
        let selector = Selector { source: None, context, tag, ignore: 0 };
        let made = self.shared.operations.insert_receive(endpoint, &selector, capacity);
        Some(made.ok_or(SendRefusal::OPERATIONS))
    }

    /// Receives a claimed message, which ends the claim.
    pub(crate) fn start_claimed(&mut self, id: Id, claim: Id, effects: &mut impl Effects) {
        let Some(Claim { envelope, what, .. }) = self.shared.claims.remove(claim) else { return };
        match what {
            Claimed::Here(message) => self.deliver(id, &Kept { message, envelope }, effects),
            Claimed::Lost(failure, name) => {
                self.shared.operations.remove_receive(id);
                effects.complete(id, Ended::Failed(failure, name));
            }
        }
    }

    /// Drops a claimed message; its send completes as if it had been received. Returns `false` if
    /// there is no such claim.
    pub(crate) fn discard_claimed(&mut self, claim: Id) -> bool {
        let Some(claim) = self.shared.claims.remove(claim) else { return false };
        let Claimed::Here(message) = claim.what else { return true };
        let Some(message) = self.shared.unexpected.take(message) else { return true };
        self.return_credit_of(&message);
        let session = message.session;
        let report = match message.kind {
            Kind::Eager { report, .. } => report,
            Kind::Rendezvous { send_operation, .. } => {
                self.push_control(session, ControlFrame::done(send_operation, STATUS_OK, 0));
                0
            }
        };
        if report != 0 {
            self.push_control(session, ControlFrame::matched(report));
        }
        self.shared.unexpected.recycle(message);
        true
    }

    /// Marks claimed messages that `is_hit` selects as lost.
    fn lose_claims(&mut self, failure: &PeerFailure, is_hit: impl Fn(u32, &Message) -> bool) {
        for slot in 0..self.shared.claims.slots() {
            let Some(id) = self.shared.claims.id_at(slot) else { continue };
            let Some(claim) = self.shared.claims.get(id) else { continue };
            let Claimed::Here(message) = claim.what else { continue };
            let (source, kept) = (claim.envelope.source, self.shared.unexpected.at(message));
            if !kept.is_some_and(|kept| is_hit(source, kept)) {
                continue;
            }
            let name = self.name_of(source);
            if let Some(claim) = self.shared.claims.get_mut(id) {
                claim.what = Claimed::Lost(failure.clone(), name);
            }
            self.abandon(message);
        }
    }

    /// Marks incomplete claimed messages of a session that ended as lost.
    pub(super) fn lose_claims_of_session(&mut self, slot: u32, failure: &PeerFailure) {
        self.lose_claims(failure, |_, message| {
            message.session == slot && !matches!(message.kind, Kind::Eager { .. })
        });
    }

    /// Marks claimed messages of a removed remote endpoint as lost.
    pub(super) fn lose_claims_of_remote(&mut self, remote: u32) {
        self.lose_claims(&PeerFailure::Removed, |source, _| source == remote);
    }

    /// Drops the claimed messages of a closed endpoint.
    pub(super) fn drop_claims_of(&mut self, endpoint: u16) {
        for slot in 0..self.shared.claims.slots() {
            let Some(id) = self.shared.claims.id_at(slot) else { continue };
            if self.shared.claims.get(id).is_none_or(|claim| claim.endpoint != endpoint) {
                continue;
            }
            if let Some(Claim { what: Claimed::Here(message), .. }) = self.shared.claims.remove(id)
            {
                self.abandon(message);
            }
        }
    }
}
