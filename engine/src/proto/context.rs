//! What the methods of a session use besides the session.

use std::collections::VecDeque;

use super::config::Config;
use super::core::{Action, Core, CoreCounters};
use super::lanes::BulkLanes;
use super::offers::Offers;
use super::operations::Operations;
use super::rails::RailInfo;
use super::rails::shares::Shares;
use super::ready::{Ready, Work};
use super::rendezvous::Rendezvous;
use super::segments::segment::SegmentPool;
use super::session::Session;

/// State of the engine that methods of a session use: all sessions share it.
pub(crate) struct Cx<'a> {
    /// The slot of the session.
    pub(super) slot: u32,
    pub(super) pool: &'a mut SegmentPool,
    pub(super) operations: &'a mut Operations,
    pub(super) lanes: &'a mut BulkLanes,
    pub(super) rendezvous: &'a mut Rendezvous,
    pub(super) shares: &'a mut Shares,
    pub(super) offers: &'a mut Offers,
    /// Rails of this engine, if there are several.
    pub(super) rails: &'a [RailInfo],
    ready: &'a mut Ready,
    actions: &'a mut VecDeque<Action>,
    pub(super) counters: &'a mut CoreCounters,
    pub(super) config: &'a Config,
}

impl Cx<'_> {
    /// Adds the session to those with work.
    #[inline]
    pub(super) fn add_work(&mut self, work: Work) {
        self.ready.add(self.slot, work);
    }

    /// Adds the session to those with work, to be served after all others.
    pub(super) fn add_work_last(&mut self, work: Work) {
        self.ready.add_last(self.slot, work);
    }

    /// Gives the next session with work of one kind work of another kind instead.
    pub(super) fn exchange_next_work(&mut self, from: Work, to: Work) {
        self.ready.exchange_next(from, to);
    }

    /// Removes the session from those with such work.
    pub(super) fn remove_work(&mut self, work: Work) {
        self.ready.remove(self.slot, work);
    }

    /// Asks the loop for an action.
    pub(super) fn act(&mut self, action: Action) {
        self.actions.push_back(action);
    }
}

impl Core {
    /// Returns the session in a slot, and what its methods use. `None`: the slot is vacant.
    #[inline(always)]
    pub(crate) fn enter(&mut self, slot: u32) -> Option<(&mut Session, Cx<'_>)> {
        let Self { sessions, pool, operations, lanes, rendezvous, shares, .. } = self;
        let Self { offers, rails, ready, actions, counters, config, .. } = self;
        let session = sessions.at_mut(slot as usize)?;
        let state = Cx {
            slot,
            pool,
            operations,
            lanes,
            rendezvous,
            shares,
            offers,
            rails,
            ready,
            actions,
            counters,
            config,
        };
        Some((session, state))
    }

    /// Calls `call` with the session in a slot, and what its methods use. `None`: the slot is
    /// vacant.
    #[inline]
    pub(crate) fn with<R>(
        &mut self,
        slot: u32,
        call: impl FnOnce(&mut Session, Cx<'_>) -> R,
    ) -> Option<R> {
        self.enter(slot).map(|(session, cx)| call(session, cx))
    }
}
