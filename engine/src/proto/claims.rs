//! Messages removed from matching by handle (`MPI_Mprobe`, `FI_CLAIM`): only a receive that names
//! the claim gets one.
//!
//! A claimed message remains in the unexpected store, and counts toward its limits, until it is
//! received or discarded. If it can no longer be received (its remainder was expected on a session
//! that ended, or its peer was removed) the claim remains, and reports the cause to the receive.

use super::context::SharedState;
use super::core::Core;
use super::effects::{Arrival, Effects, Ended, RemoteName};
use super::failure::PeerFailure;
use super::matching::{Kept, MatchEnvelope, Selector};
use super::receive::ReceiveRequest;
use super::session::ControlFrame;
use super::session::send::SendRefusal;
use super::table::{Id, Table};
use super::unexpected::{Kind, Message};
use crate::wire::done::STATUS_OK;

/// The claimed messages.
#[derive(Debug)]
pub(super) struct Claims {
    claims: Table<Claim>,
}

/// A claimed message.
#[derive(Debug)]
struct Claim {
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

impl Claim {
    /// Returns the message, unless it is lost.
    fn kept(&self) -> Option<Kept> {
        match self.what {
            Claimed::Here(message) => Some(Kept { message, envelope: self.envelope }),
            Claimed::Lost(..) => None,
        }
    }
}

impl Claims {
    pub(super) fn new() -> Self {
        Self { claims: Table::new(usize::MAX) }
    }

    fn insert(&mut self, endpoint: u16, kept: Kept) -> Id {
        let Kept { message, envelope } = kept;
        let claim = Claim { endpoint, envelope, what: Claimed::Here(message) };
        self.claims.insert(claim).expect("the table is unbounded")
    }

    /// Returns the claimed messages that are not lost.
    fn kept(&self) -> impl Iterator<Item = (Id, Kept)> {
        self.claims.iter().filter_map(|(id, claim)| Some((id, claim.kept()?)))
    }

    /// Marks a claimed message as lost.
    fn lose(&mut self, claim: Id, failure: PeerFailure, source: Option<RemoteName>) {
        if let Some(claim) = self.claims.get_mut(claim) {
            claim.what = Claimed::Lost(failure, source);
        }
    }

    /// Removes the claims of a closed endpoint. Returns the messages that are not lost.
    pub(super) fn remove_all_of(&mut self, endpoint: u16) -> Vec<u32> {
        let claims = self.claims.iter().filter(|(_, claim)| claim.endpoint == endpoint);
        let claims: Vec<Id> = claims.map(|(id, _)| id).collect();
        let removed = claims.into_iter().filter_map(|id| self.claims.remove(id));
        removed.filter_map(|claim| Some(claim.kept()?.message)).collect()
    }
}

impl SharedState {
    /// Creates an operation for the receive of a claimed message. Start it with
    /// [`Core::start_claimed`] when its buffer is ready. `None`: there is no such claim.
    pub(crate) fn new_claimed_receive(
        &mut self,
        claim: Id,
        capacity: u64,
    ) -> Option<Result<Id, SendRefusal>> {
        let &Claim { endpoint, envelope: MatchEnvelope { context, tag, .. }, .. } =
            self.endpoints.claims().claims.get(claim)?;
        let selector = Selector { source: None, context, tag, ignore: 0 };
        let made = self.operations.insert_receive(endpoint, &selector, capacity);
        Some(made.ok_or(SendRefusal::OPERATIONS))
    }
}

impl Core {
    /// Removes the message that [`Self::peek`] finds from matching, and returns its handle.
    pub(crate) fn claim(
        &mut self,
        request: &ReceiveRequest,
    ) -> Result<Option<(Id, Arrival)>, SendRefusal> {
        let Some(arrival) = self.peek(request)? else { return Ok(None) };
        let SharedState { peers, endpoints, .. } = &mut self.shared;
        let (selector, _) = request.selector(peers)?;
        let matcher = endpoints.get_mut(request.endpoint);
        let taken = matcher.and_then(|matcher| matcher.take_unexpected(&selector));
        debug_assert!(taken.is_some(), "what is seen can be taken");
        Ok(taken.map(|kept| (endpoints.claims_mut().insert(request.endpoint, kept), arrival)))
    }

    /// Receives a claimed message, which ends the claim.
    pub(crate) fn start_claimed(&mut self, id: Id, claim: Id, effects: &mut impl Effects) {
        let claim = self.shared.endpoints.claims_mut().claims.remove(claim);
        debug_assert!(claim.is_some(), "a claim that is received has not ended");
        let Some(Claim { envelope, what, .. }) = claim else { return };
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
        let Some(claim) = self.shared.endpoints.claims_mut().claims.remove(claim) else {
            return false;
        };
        if let Claimed::Here(message) = claim.what {
            self.drop_unexpected(message, |kind| match *kind {
                Kind::Eager { report: 0, .. } => None,
                Kind::Eager { report, .. } => Some(ControlFrame::matched(report)),
                Kind::Rendezvous { send_operation, .. } => {
                    Some(ControlFrame::done(send_operation, STATUS_OK, 0))
                }
            });
        }
        true
    }

    /// Marks claimed messages that `is_hit` selects, by source and message, as lost.
    pub(super) fn lose_claims(
        &mut self,
        failure: &PeerFailure,
        is_hit: impl Fn(u32, &Message) -> bool,
    ) {
        let hit = self.shared.endpoints.claims().kept().filter(|(_, kept)| {
            let message = self.shared.unexpected.at(kept.message);
            message.is_some_and(|message| is_hit(kept.envelope.source, message))
        });
        for (id, kept) in hit.collect::<Vec<_>>() {
            let name = self.shared.peers.name_of(&self.sessions, kept.envelope.source);
            self.shared.endpoints.claims_mut().lose(id, failure.clone(), name);
            self.drop_unexpected(kept.message, Kind::abandonment);
        }
    }
}
