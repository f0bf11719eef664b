//! What a session knows of the remote engine.

use std::net::SocketAddr;

use crate::proto::effects::RemoteName;
use crate::proto::peers::{PeerTable, SessionRemotes};
use crate::wire::locators::Locators;

/// The remote engine of a session; see the module.
#[derive(Debug)]
pub(crate) struct PeerEngine {
    /// Its id; 0: unknown until its address is resolved.
    id: u64,
    locators: Locators,
    /// The user inserted only a listener address ([`crate::proto::peers`]).
    place: Option<Box<SocketAddr>>,
    /// Its endpoints that are known.
    remotes: SessionRemotes,
    /// Hellos to it have announced a window that is reserved for it.
    has_offer: bool,
    /// It answers by the control lane although its owner makes no call.
    answers: bool,
    /// It answers questions about processes of its host.
    answers_process_queries: bool,
}

impl PeerEngine {
    /// Creates an engine whose endpoints are unknown.
    pub(super) fn new(id: u64, locators: Locators) -> Self {
        Self {
            id,
            locators,
            place: None,
            remotes: SessionRemotes::default(),
            has_offer: false,
            answers: false,
            answers_process_queries: false,
        }
    }

    /// Returns its id; 0: unknown until its address is resolved.
    #[inline(always)]
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Returns where it listens.
    #[inline]
    pub(crate) fn locators(&self) -> &Locators {
        &self.locators
    }

    /// Returns the listener address, if the user inserted only that.
    pub(in crate::proto) fn place(&self) -> Option<&SocketAddr> {
        self.place.as_deref()
    }

    /// Replaces the listener address; the index of [`PeerTable`] has to follow.
    pub(in crate::proto) fn set_place(&mut self, place: Option<SocketAddr>) {
        self.place = place.map(Box::new);
    }

    /// Returns whether the user inserted its listener address alone, and the engine that answers
    /// with `answering` listens there, so that it is to be the peer.
    pub(crate) fn is_at_place(&self, answering: &Locators) -> bool {
        self.place.as_deref().is_some_and(|place| {
            answering.iter().any(|own| (own.ip(), own.port()) == (place.ip(), place.port()))
        })
    }

    /// Returns its endpoints that are known.
    #[inline(always)]
    pub(in crate::proto) fn remotes(&self) -> &SessionRemotes {
        &self.remotes
    }

    /// Returns the same, mutable.
    pub(in crate::proto) fn remotes_mut(&mut self) -> &mut SessionRemotes {
        &mut self.remotes
    }

    /// Returns the name of one of its endpoints for errors.
    pub(in crate::proto) fn name_of(&self, peers: &PeerTable, remote: u32) -> Option<RemoteName> {
        let endpoint = peers.at(remote)?.endpoint;
        Some(RemoteName { engine: self.id, locators: self.locators, endpoint })
    }

    /// Stores what it has announced of itself.
    pub(super) fn set_abilities(&mut self, theirs: super::Limits) {
        self.answers = theirs.answers;
        self.answers_process_queries = theirs.process_status;
    }

    /// Returns whether it answers by the control lane although its owner makes no call.
    pub(super) fn answers(&self) -> bool {
        self.answers
    }

    /// Returns whether it answers questions about processes of its host.
    pub(in crate::proto) fn answers_process_queries(&self) -> bool {
        self.answers_process_queries
    }

    /// Hellos to it announce a window that is reserved for it. Returns whether they did before.
    pub(super) fn begin_offer(&mut self) -> bool {
        std::mem::replace(&mut self.has_offer, true)
    }

    /// No hello does any more. Returns whether one did.
    pub(super) fn end_offer(&mut self) -> bool {
        std::mem::take(&mut self.has_offer)
    }
}
