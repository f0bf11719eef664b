//! State that the sessions of an engine share, and what the methods of a session use of it.

use std::collections::VecDeque;

use super::config::CoreConfig;
use super::core::{Action, Core, CoreCounters, REQUESTS};
use super::endpoints::Endpoints;
use super::hint::Hint;
use super::matching::MatchEnvelope;
use super::operations::Operations;
use super::peers::PeerTable;
use super::process_status::Processes;
use super::ready::{Ready, Work};
use super::regions::Regions;
use super::session::Session;
use super::session::eager_limit::EagerPolicy;
use super::session::lanes::BulkLanes;
use super::session::offers::Offers;
use super::session::rails::engine::EngineRails;
use super::session::rendezvous::Rendezvous;
use super::session::segments::segment::SegmentPool;
use super::table::Table;
use super::unexpected::{Unexpected, Waiting};
use crate::wire::FrameError;

/// State that the sessions of an engine share, by owner. Outside `proto` only its methods can be
/// used.
pub(crate) struct SharedState {
    /// The random, non-zero id of the engine.
    engine: u64,
    /// Seed of the hash tables whose keys peers choose.
    hash_seed: u64,
    eager: EagerPolicy,
    pub(super) peers: PeerTable,
    pub(super) endpoints: Endpoints,
    pub(super) operations: Operations,
    pub(super) unexpected: Unexpected,
    /// The segments of all sessions.
    pub(super) pool: SegmentPool,
    pub(super) lanes: BulkLanes,
    /// Messages that are pulled.
    pub(super) rendezvous: Rendezvous,
    rails: EngineRails,
    /// Memory of this engine that peers may access.
    regions: Regions,
    processes: Processes,
    pub(super) actions: VecDeque<Action>,
    /// Sessions with work.
    pub(super) ready: Ready,
    counters: CoreCounters,
    pub(super) offers: Offers,
}

impl SharedState {
    /// Creates the state of the engine `engine`.
    pub(super) fn new(engine: u64, config: CoreConfig) -> Self {
        let CoreConfig { hash_seed, sessions_max, operations_max, waiting_max, .. } = config;
        let CoreConfig { retry, regions, credit, eager, pull, lanes, staging, .. } = config;
        Self {
            engine,
            hash_seed,
            eager,
            peers: PeerTable::new(engine, sessions_max, retry),
            endpoints: Endpoints::new(hash_seed),
            operations: Operations::new(operations_max, waiting_max),
            unexpected: Unexpected::new(credit.unexpected_max(sessions_max)),
            pool: SegmentPool::new(staging),
            lanes: BulkLanes::new(lanes, hash_seed ^ engine.rotate_left(32)),
            rendezvous: Rendezvous::new(pull),
            rails: EngineRails::default(),
            regions: Regions::new(regions, hash_seed),
            processes: Processes::default(),
            actions: VecDeque::new(),
            ready: Ready::default(),
            counters: CoreCounters::default(),
            offers: Offers::new(credit),
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

    /// Asks the loop for an action.
    pub(super) fn act(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    /// Counts a frame for an operation that is not outstanding, or a lane that has failed here.
    pub(super) fn note_stale_frame(&mut self) {
        self.counters.stale_frames += 1;
    }

    /// Counts a segment that is handled.
    #[inline(always)]
    pub(super) fn note_segment(&mut self) {
        self.counters.segments_received += 1;
    }

    /// Counts frames that are handled.
    #[inline(always)]
    pub(super) fn note_frames(&mut self, count: u16) {
        self.counters.frames_received += u64::from(count);
    }

    /// Counts a message for an endpoint that is not open.
    pub(super) fn note_unknown_endpoint(&mut self) {
        self.counters.unknown_endpoint += 1;
    }

    /// Counts a bulk lane that has failed.
    pub(super) fn note_lane_failure(&mut self) {
        self.counters.lane_failures += 1;
    }

    /// Counts a chunk that arrived completely but corrupted.
    pub(super) fn note_corrupted_chunk(&mut self) {
        self.counters.corrupted_chunks += 1;
    }

    /// Counts an operation of a peer on this engine's memory that was refused.
    pub(super) fn note_refused_access(&mut self) {
        self.counters.refused_accesses += 1;
    }

    /// Keeps a message that no receive accepts yet: it waits for one, or for the connection
    /// manager. Returns `false`, without effect, if there is no space or no such endpoint.
    #[inline]
    pub(super) fn keep_unexpected(
        &mut self,
        target: u16,
        envelope: &MatchEnvelope,
        message: Waiting,
        payload: &[u8],
    ) -> bool {
        let matcher = self.endpoints.get_mut(target);
        let kept = matcher.and_then(|it| Some((it, self.unexpected.insert(message, payload)?)));
        let Some((matcher, id)) = kept else { return false };
        matcher.insert_unexpected(envelope, id.index() as u32);
        self.counters.unexpected_messages += 1;
        if envelope.context == REQUESTS && self.actions.back() != Some(&Action::Requests) {
            self.act(Action::Requests);
        }
        true
    }

    /// Splits the rails of this engine among the sessions that pull over them.
    pub(super) fn split_rails(&mut self, sessions: &Table<Session>, now_ns: u64) {
        self.rails.split(sessions, &self.lanes, now_ns);
    }

    /// Removes a session that is gone from all lists.
    pub(super) fn forget(&mut self, slot: u32) {
        self.ready.forget(slot);
        self.lanes.forget(slot);
        self.processes.forget(slot);
    }
}

/// What the loop reads and changes of the owners.
impl SharedState {
    /// Returns the id of this engine.
    #[inline]
    pub(crate) fn engine(&self) -> u64 {
        self.engine
    }

    /// Returns the seed of the hash tables whose keys peers choose.
    pub(super) fn hash_seed(&self) -> u64 {
        self.hash_seed
    }

    /// Returns how messages are sent eagerly.
    #[inline]
    pub(crate) fn eager(&self) -> EagerPolicy {
        self.eager
    }

    /// Returns all outstanding operations.
    #[inline]
    pub(crate) fn operations(&self) -> &Operations {
        &self.operations
    }

    /// Returns the sessions with work.
    #[inline]
    pub(crate) fn ready(&self) -> &Ready {
        &self.ready
    }

    /// Returns the same, for the loop to take sessions from it.
    #[inline]
    pub(crate) fn ready_mut(&mut self) -> &mut Ready {
        &mut self.ready
    }

    /// Returns all bulk lanes.
    #[inline]
    pub(crate) fn lanes(&self) -> &BulkLanes {
        &self.lanes
    }

    /// Returns the same, mutable.
    #[inline]
    pub(crate) fn lanes_mut(&mut self) -> &mut BulkLanes {
        &mut self.lanes
    }

    #[inline]
    pub(crate) fn counters(&self) -> CoreCounters {
        self.counters
    }

    /// Returns the directory of peers.
    #[inline]
    pub(crate) fn peers(&self) -> &PeerTable {
        &self.peers
    }

    /// Returns the same, mutable.
    pub(crate) fn peers_mut(&mut self) -> &mut PeerTable {
        &mut self.peers
    }

    /// Returns the endpoints of this engine.
    #[inline]
    pub(crate) fn endpoints(&self) -> &Endpoints {
        &self.endpoints
    }

    /// Returns the same, mutable.
    pub(crate) fn endpoints_mut(&mut self) -> &mut Endpoints {
        &mut self.endpoints
    }

    /// Returns what is known of processes of peers.
    pub(crate) fn processes(&self) -> &Processes {
        &self.processes
    }

    /// Returns the same, mutable.
    pub(crate) fn processes_mut(&mut self) -> &mut Processes {
        &mut self.processes
    }

    /// Returns the registered memory that peers may access.
    pub(crate) fn regions(&self) -> &Regions {
        &self.regions
    }

    /// Returns the same, mutable.
    pub(crate) fn regions_mut(&mut self) -> &mut Regions {
        &mut self.regions
    }

    /// Returns the store of unexpected messages.
    #[inline]
    pub(crate) fn unexpected(&self) -> &Unexpected {
        &self.unexpected
    }

    /// Returns the segments of all sessions.
    #[inline]
    pub(crate) fn pool(&self) -> &SegmentPool {
        &self.pool
    }

    /// Returns the rendezvous state of all sessions.
    #[inline]
    pub(crate) fn rendezvous(&self) -> &Rendezvous {
        &self.rendezvous
    }

    /// Counts a send with a hint.
    #[inline]
    pub(crate) fn note_hinted_send(&mut self, hint: Hint) {
        self.rendezvous.note_hinted_send(hint);
    }

    /// Sets the limit on bulk bytes outstanding in datagrams, of all peers.
    pub(crate) fn set_datagram_window(&mut self, bytes: u64) {
        self.rendezvous.set_window_bytes(bytes);
    }

    /// Returns the envelopes and bytes of the windows of sessions, and of unexpected messages of
    /// closed ones.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn reserved(&self) -> (u64, u64) {
        self.offers.reserved()
    }

    /// Returns the rails of this engine.
    pub(crate) fn rails(&self) -> &EngineRails {
        &self.rails
    }

    /// Returns the same, mutable.
    pub(crate) fn rails_mut(&mut self) -> &mut EngineRails {
        &mut self.rails
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
        self.shared.act(action);
    }
}

impl Core {
    /// Returns the session in a slot, and what its methods use. `None`: the slot is vacant.
    #[inline(always)]
    pub(crate) fn enter(&mut self, slot: u32) -> Option<(&mut Session, Cx<'_>)> {
        let Self { sessions, shared } = self;
        Some((sessions.at_mut(slot as usize)?, Cx { slot, shared }))
    }

    /// Returns the session of a received frame, and what its methods use. Frames are read for
    /// sessions that exist, and remove none, so a vacant slot is a defect; the error reports it.
    #[inline(always)]
    pub(super) fn enter_receiving(
        &mut self,
        slot: u32,
    ) -> Result<(&mut Session, Cx<'_>), FrameError> {
        let entered = self.enter(slot);
        debug_assert!(entered.is_some(), "a frame removes no session");
        entered.ok_or(FrameError::NoSession)
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

    /// Calls `call` with a session that is in the table, and what its methods use. A vacant slot is
    /// a defect, of which nothing but the default result follows.
    pub(super) fn with_known<R: Default>(
        &mut self,
        slot: u32,
        call: impl FnOnce(&mut Session, Cx<'_>) -> R,
    ) -> R {
        let entered = self.enter(slot);
        debug_assert!(entered.is_some(), "slot {slot} is of a session");
        entered.map(|(session, cx)| call(session, cx)).unwrap_or_default()
    }
}
