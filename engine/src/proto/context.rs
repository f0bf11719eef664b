//! State that the sessions of an engine share, and what the methods of a session use of it.

use std::collections::VecDeque;

use super::claims::Claims;
use super::config::Config;
use super::core::{Action, Core, CoreCounters, ENVELOPES_MIN};
use super::endpoints::Endpoints;
use super::operations::Operations;
use super::peers::PeerTable;
use super::process_status::Processes;
use super::ready::{Ready, Work};
use super::regions::Regions;
use super::session::Session;
use super::session::lanes::BulkLanes;
use super::session::offers::Offers;
use super::session::rails::RailInfo;
use super::session::rails::segments::SegmentLimits;
use super::session::rails::shares::Shares;
use super::session::rendezvous::Rendezvous;
use super::session::segments::segment::SegmentPool;
use super::unexpected::Unexpected;

/// State that the sessions of an engine share, by owner. Outside `proto` only its methods can be
/// used.
pub(crate) struct SharedState {
    /// The random, non-zero id of the engine.
    pub(super) engine: u64,
    pub(super) config: Config,
    pub(super) peers: PeerTable,
    pub(super) endpoints: Endpoints,
    pub(super) operations: Operations,
    pub(super) unexpected: Unexpected,
    /// Messages removed from matching by handle.
    pub(super) claims: Claims,
    /// The segments of all sessions.
    pub(super) pool: SegmentPool,
    pub(super) lanes: BulkLanes,
    /// Messages that are pulled.
    pub(super) rendezvous: Rendezvous,
    /// Rails of this engine, if there are several.
    pub(super) rails: Vec<RailInfo>,
    /// Memory of this engine that peers may access.
    pub(super) regions: Regions,
    pub(super) shares: Shares,
    pub(super) segment_limits: SegmentLimits,
    pub(super) processes: Processes,
    pub(super) actions: VecDeque<Action>,
    /// Sessions with work.
    pub(super) ready: Ready,
    pub(super) counters: CoreCounters,
    pub(super) offers: Offers,
}

impl SharedState {
    /// Creates the state of the engine `engine`.
    pub(super) fn new(engine: u64, config: Config) -> Self {
        let unexpected_max = usize::try_from(config.unexpected_messages).unwrap_or(usize::MAX);
        // A session always gets its minimum, beyond the total limit.
        let unexpected_max =
            unexpected_max.saturating_add(config.sessions_max * ENVELOPES_MIN as usize);
        Self {
            engine,
            peers: PeerTable::new(engine, config.sessions_max, config.retry),
            endpoints: Endpoints::new(config.hash_seed),
            operations: Operations::new(config.operations_max),
            unexpected: Unexpected::new(unexpected_max),
            claims: Claims::new(),
            pool: SegmentPool::of(&config),
            lanes: BulkLanes::new(config.bulk_lanes_max, config.bulk_lanes.max(1) as usize),
            rendezvous: Rendezvous::default(),
            rails: Vec::new(),
            regions: Regions::new(config.regions, config.hash_seed),
            shares: Shares::default(),
            segment_limits: SegmentLimits::default(),
            processes: Processes::default(),
            actions: VecDeque::new(),
            ready: Ready::default(),
            counters: CoreCounters::default(),
            offers: Offers::default(),
            config,
        }
    }

    /// Returns whether [`Core::poll_waiting`] and the following steps of a turn have no work.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.is_at_rest() && !self.lanes.may_serve_starved()
    }

    /// Returns whether the loop has no work from the protocol.
    #[inline]
    pub(crate) fn is_at_rest(&self) -> bool {
        self.ready.is_empty()
            && self.actions.is_empty()
            && !self.lanes.has_runnable()
            && !self.rendezvous.has_readable()
    }

    /// Returns the next action of the loop.
    #[inline]
    pub(crate) fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Removes a session that is gone from all lists.
    pub(super) fn forget(&mut self, slot: u32) {
        self.ready.forget(slot);
        self.lanes.forget(slot);
        self.processes.forget(slot);
    }
}

/// What the methods of a session use besides the session.
pub(crate) struct Cx<'a> {
    /// The slot of the session.
    pub(super) slot: u32,
    pub(super) shared: &'a mut SharedState,
}

impl Cx<'_> {
    /// Returns the same, for a method that takes it by value.
    #[inline(always)]
    pub(super) fn reborrow(&mut self) -> Cx<'_> {
        Cx { slot: self.slot, shared: self.shared }
    }

    /// Adds the session to those with work.
    #[inline]
    pub(super) fn add_work(&mut self, work: Work) {
        self.shared.ready.add(self.slot, work);
    }

    /// Adds the session to those with work, to be served after all others.
    pub(super) fn add_work_last(&mut self, work: Work) {
        self.shared.ready.add_last(self.slot, work);
    }

    /// Queues the session, which has more to send, after the others, since it has had its turn.
    pub(crate) fn flush_after_others(mut self) {
        self.add_work_last(Work::Flush);
    }

    /// Removes the session from those with such work.
    pub(super) fn remove_work(&mut self, work: Work) {
        self.shared.ready.remove(self.slot, work);
    }

    /// Removes the session from those with such work, if it was added last.
    #[inline(always)]
    pub(super) fn remove_latest_work(&mut self, work: Work) {
        if self.shared.ready.has(self.slot, work) {
            self.shared.ready.take_if_latest(self.slot, work);
        }
    }

    /// Asks the loop for an action.
    pub(super) fn act(&mut self, action: Action) {
        self.shared.actions.push_back(action);
    }
}

impl Core {
    /// Returns the session in a slot, and what its methods use. `None`: the slot is vacant.
    #[inline(always)]
    pub(crate) fn enter(&mut self, slot: u32) -> Option<(&mut Session, Cx<'_>)> {
        let Self { sessions, shared } = self;
        Some((sessions.at_mut(slot as usize)?, Cx { slot, shared }))
    }

    /// Returns the session with an engine, and what its methods use. `None`: there is none.
    pub(super) fn enter_engine(&mut self, engine: u64) -> Option<(&mut Session, Cx<'_>)> {
        self.enter(self.shared.peers.session_of(engine)?)
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
