//! One progress engine, accessed by one thread at a time.

use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;

pub(crate) use super::EngineState;
use super::background::WakeFds;
use super::bulk::{BulkSockets, LaneEnd};
use super::clock::Clock;
use super::completions::Completions;
use super::completions::pieces::Scratch;
use super::context::LaneCx;
use super::control_lanes::ControlLanes;
use super::datagram::{EngineDatagrams, Rings};
use super::handshake::Handshakes;
use super::listeners::Listeners;
use super::manager::Requests;
use super::monitor::EngineQuestions;
use super::rails::LocalRails;
use super::roles::Roles;
use super::setup::SetupCx;
use super::statistics::Reports;
use super::ticks::Ticks;
use super::traits::{DriverEvent, LaneKey};
use super::zero_copy::Policy;
use crate::driver::AnyDriver;
use crate::forks::EngineFd;
use crate::memory::Arena;
use crate::proto::core::{Action, Core, CoreConfig};
use crate::proto::keys::JobKeys;
use crate::proto::paths::PathTable;
use crate::proto::table::Id;
use crate::topology::Placement;
use crate::types::{Address, Error};

/// Polls between two clock reads while no path waits for a timer, and there are no rings.
const POLLS_PER_CLOCK: u64 = 16;

/// Datagrams and entries of rings in whose turns the last steps may be deferred: fewer than a peer
/// may send at first before it needs an acknowledgement.
const DEFERRED_RECEIPTS_MAX: u32 = 8;
/// Time for which these steps may be deferred.
const DEFERRED_NS_MAX: u64 = 100_000;
/// Time for which they may be deferred while rings are polled and have nothing: they cost three
/// times what it takes to poll a ring, and a message that arrives meanwhile waits for their end.
const DEFERRED_IDLE_NS_MAX: u64 = 1_000;
/// Idle turns in which they may be deferred, in case the clock stands still between them.
const DEFERRED_IDLE_TURNS_MAX: u32 = 16;

/// The last steps of a turn (acknowledgements, the driver's events, timers, sends that wait), while
/// turns end before them: with a message for the user, or with nothing, while rings are polled.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DeferredSteps {
    /// Datagrams and entries received since they were last executed, at least one each turn.
    receipts: u32,
    /// Turns since then that have received nothing.
    idle_turns: u32,
    /// When that was.
    done_ns: u64,
}

impl DeferredSteps {
    /// They are executed now.
    fn done(now_ns: u64) -> Self {
        Self { receipts: 0, idle_turns: 0, done_ns: now_ns }
    }

    /// Makes the next turn execute them.
    pub(super) fn end(&mut self) {
        self.receipts = DEFERRED_RECEIPTS_MAX;
    }

    /// Defers them to the next turn, unless they were for too long. Returns whether it does.
    #[inline]
    fn defer(&mut self, receipts: u32, now_ns: u64) -> bool {
        self.receipts += receipts.max(1);
        let since_ns = now_ns.saturating_sub(self.done_ns);
        self.receipts <= DEFERRED_RECEIPTS_MAX && since_ns < DEFERRED_NS_MAX
    }

    /// Defers them after a turn that has received nothing, unless they were for too long. Returns
    /// whether it does.
    #[inline]
    fn defer_idle(&mut self, now_ns: u64) -> bool {
        self.idle_turns += 1;
        let since_ns = now_ns.saturating_sub(self.done_ns);
        self.receipts < DEFERRED_RECEIPTS_MAX
            && self.idle_turns <= DEFERRED_IDLE_TURNS_MAX
            && since_ns < DEFERRED_IDLE_NS_MAX
    }
}

/// Settings that the loop needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoopConfig {
    /// Time of busy polling before sleeping.
    pub(crate) spin: Duration,
    /// Maximum number of polled control connections.
    pub(crate) hot_lanes: usize,
    /// Size of the receive buffer.
    pub(crate) receive_buffer_bytes: usize,
    /// Copy or zero copy.
    pub(crate) zero_copy: Policy,
    /// Silence of a peer's kernel after which the peer counts as lost.
    pub(crate) peer_timeout: Duration,
    /// Silence of a peer's engine, whose kernel answers, that ends a session.
    pub(crate) silent_timeout: crate::proto::session::control_lane::SilentTimeout,
    /// Maximum number of unauthenticated connections.
    pub(crate) handshake_pending_max: usize,
    /// Time for their authentication, and for lanes to join.
    pub(crate) handshake_timeout: Duration,
    /// How long closing waits.
    pub(crate) linger: Duration,
    /// Whether the log has a line for each peer that is lost.
    pub(crate) report_lost_peers: bool,
}

impl LoopConfig {
    /// Logs a line at the level of the setting `report_lost_peers`.
    pub(super) fn log_failure(&self, text: &str) {
        if self.report_lost_peers {
            tracing::error!("{text}");
        } else {
            tracing::debug!("{text}");
        }
    }
}

/// What an engine is made of.
pub(crate) struct EngineParts {
    /// Its id, unique in the job.
    pub(crate) engine: u64,
    /// Unpredictable, except in tests.
    pub(crate) random: StdRng,
    pub(crate) core: CoreConfig,
    pub(crate) config: LoopConfig,
    pub(crate) keys: Arc<JobKeys>,
    /// Completions that a queue holds.
    pub(crate) entries_max: usize,
    pub(crate) arena: Arc<Arena>,
    pub(crate) listeners: Listeners,
    pub(crate) rails: LocalRails,
    pub(crate) datagrams: EngineDatagrams,
    /// Placement of its threads and its memory.
    pub(crate) placement: Arc<Placement>,
    /// Whom it reports to.
    pub(crate) reports: Reports,
}

impl EngineState {
    /// Creates an engine with endpoint 0, and queue 0.
    pub(crate) fn new(parts: EngineParts) -> Self {
        let EngineParts { engine, random, core, config, keys, arena, datagrams, .. } = parts;
        let EngineParts { entries_max, listeners, rails, placement, reports, .. } = parts;
        let receive_buffer_bytes =
            config.receive_buffer_bytes.max(crate::wire::SEGMENT_BYTES_MAX * 2);
        let mut core = Core::new(engine, core);
        let endpoint = core.shared_mut().endpoints_mut().open();
        debug_assert_eq!(endpoint, Some(0), "the first endpoint of an engine is number 0");
        let mut completions = Completions::new(entries_max);
        completions.open_queue(entries_max);
        Self {
            core,
            completions,
            requests: Requests::default(),
            config,
            handshakes: Handshakes::new(keys, random),
            arena,
            listeners,
            rails,
            placement,
            reports,
            paths: PathTable::default(),
            datagrams,
            roles: Roles::default(),
            controls: ControlLanes::new(receive_buffer_bytes),
            rings: Rings::default(),
            scratch: Scratch::default(),
            bulk: BulkSockets::default(),
            polls: 0,
            now_ns: 0,
            clock: Clock::start(),
            ticks: Ticks::default(),
            deferred: DeferredSteps::default(),
            engine_questions: EngineQuestions::default(),
        }
    }

    #[inline(always)]
    pub(super) fn read_clock(&mut self) {
        self.now_ns = self.clock.now_ns();
    }

    /// Returns whether the user waits for operations completed since there were `finished`
    /// completions, and a later turn can do the rest of this one.
    #[inline]
    fn has_message(&mut self, finished: u64) -> bool {
        self.completions.finished() > finished
            && self.core.shared().is_at_rest()
            && !self.datagrams.has_more()
            && self.deferred.defer(self.datagrams.latest_count(), self.now_ns)
    }

    /// Returns whether a turn that has received nothing ends, so that rings are polled again: a
    /// later turn does the rest, for which no work waits. Counts such turns.
    #[inline]
    fn defers_idle_turn(&mut self) -> bool {
        self.rings.are_up()
            && self.datagrams.is_polled()
            && self.core.shared().is_at_rest()
            && self.deferred.defer_idle(self.now_ns)
    }

    /// Returns the address of one of its endpoints.
    pub(crate) fn address(&self, endpoint: u16) -> Address {
        Address::new(self.core.shared().engine(), self.rails.locators(), endpoint)
    }

    /// Returns whether nothing is outstanding: no operation, no unsent byte, no connection attempt.
    pub(crate) fn is_quiescent(&self) -> bool {
        self.core.shared().operations().len() == 0
            && self.handshakes.pending() == 0
            && self.core.sessions().iter().all(|(_, session)| session.is_settled())
            && self.controls.are_flushed()
            && self.core.shared().lanes().iter().all(|(_, lane)| lane.is_idle() && lane.is_ready())
            && self.roles.iter().all(|(_, role)| {
                matches!(
                    role,
                    super::roles::ConnectionRole::Control { .. }
                        | super::roles::ConnectionRole::Bulk { .. }
                )
            })
    }
}

/// A state and the driver of the thread that owns it.
pub struct Engine {
    // Dropped first: the kernel must release memory before it is freed.
    pub(crate) driver: AnyDriver,
    pub(crate) state: Box<EngineState>,
    pub(super) events: Vec<DriverEvent>,
    /// The owner is absent, and the driver moves no chunk without it.
    pub(super) chunks_rest: bool,
    /// The background thread makes this turn.
    pub(super) owner_is_absent: bool,
    pub(super) wake_fds: WakeFds,
    /// The failure that ended the driver.
    pub(super) failure: Option<Box<super::failure::Failure>>,
}

impl Engine {
    /// Attaches a state to the driver of the calling thread; `sockets` are the lanes that the last
    /// driver returned.
    pub(crate) fn attach(
        mut state: Box<EngineState>,
        driver: impl Into<AnyDriver>,
        sockets: Vec<(LaneKey, EngineFd)>,
    ) -> Result<Self, Error> {
        let mut driver = driver.into();
        let failed = |error| Error::system("cannot hand the sockets to the driver", error);
        let listeners = state.listeners.copies().map_err(failed)?;
        state.paths.set_nics(state.rails.used().iter().map(|rail| rail.nic_index));
        state.rings.note_attached();
        driver.set_rails(state.rails.used()).map_err(failed)?;
        state.core.shared_mut().rails_mut().set(state.rails.announced());
        listeners.into_iter().try_for_each(|it| driver.listen(it.into_inner())).map_err(failed)?;
        state.datagrams.attach(&mut *driver)?;
        driver.enable_shared_memory(state.core.shared().engine());
        state.completions.set_cookie(driver.process_cookie());
        let mut roles: Vec<_> = state.roles.take_all();
        let mut renamed = Vec::new();
        for (old, socket) in sockets {
            let key = driver.adopt(socket.into_inner()).map_err(failed)?;
            if let Some(index) = roles.iter().position(|(key, _)| *key == old) {
                let (_, role) = roles.swap_remove(index);
                state.roles.insert(key, role);
                renamed.push((old, key));
            }
        }
        let new_key = |old: LaneKey| renamed.iter().find(|(o, _)| *o == old).map(|&(_, key)| key);
        state.controls.rename(new_key);
        state.bulk.rename(new_key);
        let wake_fds = WakeFds::default();
        let mut engine = Self {
            state,
            driver,
            events: Vec::new(),
            chunks_rest: false,
            owner_is_absent: false,
            failure: None,
            wake_fds,
        };
        let state = &mut *engine.state;
        state.datagrams.fit_window(&mut state.core, &engine.driver.frame_state());
        engine.resume_paths();
        let SetupCx { mut lanes, controls, bulk, .. } = engine.setup();
        for session in 0..controls.slots() {
            controls.watch(session, &mut lanes);
        }
        bulk.watch_all(&mut lanes);
        engine.state.watch_datagrams(&mut engine.driver);
        Ok(engine)
    }

    /// Reverses [`Self::attach`]; on failure the engine is unchanged.
    #[allow(clippy::type_complexity)]
    pub(crate) fn detach(
        mut self,
    ) -> Result<(Box<EngineState>, Vec<(LaneKey, EngineFd)>), (Self, Error)> {
        // Applies the last acknowledgements, and sends those that are due.
        self.state.drain_all_paths();
        self.acknowledge(true);
        if !self.state.is_quiescent() {
            let error = Error::misuse(
                "an endpoint is detached only while nothing is outstanding: wait for its \
                 operations first",
            );
            return Err((self, error));
        }
        match self.driver.dismantle() {
            Ok(sockets) => {
                let sockets = sockets.into_iter().map(|(lane, socket)| (lane, socket.into()));
                Ok((self.state, sockets.collect()))
            }
            Err(error) => {
                let error = Error::system("the driver cannot give its sockets up now", error);
                Err((self, error))
            }
        }
    }

    /// Executes one turn: everything that can be done without waiting, or up to a message for the
    /// user if nothing else waits. Returns `true` if something happened. `false` may mean, where
    /// there are rings, that only these were polled; the rest of a turn is done once in
    /// [`DEFERRED_IDLE_NS_MAX`].
    pub(crate) fn progress(&mut self) -> Result<bool, Error> {
        self.state.polls += 1;
        if self.state.paths.has_timers()
            || self.state.rings.are_up()
            || self.state.polls.is_multiple_of(POLLS_PER_CLOCK)
        {
            self.state.read_clock();
        }
        let began_ns = self.state.now_ns;
        let finished = self.state.completions.finished();
        let mut happened = self.read_polled();
        if happened && self.state.has_message(finished) {
            return Ok(true);
        }
        happened |= self.read_datagrams();
        if self.state.has_message(finished) {
            return Ok(true);
        }
        if !happened && self.state.defers_idle_turn() {
            return Ok(false);
        }
        self.state.deferred = DeferredSteps::done(self.state.now_ns);
        self.acknowledge(false);
        self.state.drain_paths();
        if let Err(error) = self.driver.poll(&mut self.events) {
            return Err(self.fail_driver("the driver cannot make progress", error));
        }
        happened |= self.handle_events();
        self.state.datagrams.note_events_handled(began_ns);
        self.fire_timers(began_ns);
        if self.state.bulk.has_acks_due() {
            let mut cx = self.setup();
            let until_ns = *cx.lanes.now_ns;
            cx.bulk.quickack(until_ns, &mut cx.lanes);
        }
        if self.state.ticks.is_due(self.state.now_ns) {
            let state = &mut *self.state;
            state.paths.watch_busy_paths(&mut state.core, state.now_ns);
            self.tick();
        }
        happened |= self.work();
        Ok(happened)
    }

    /// Executes the protocol's requests: waiting sends, grants, actions, chunks, segments.
    #[inline(always)]
    pub(super) fn work(&mut self) -> bool {
        if self.state.core.shared().is_idle() && shortcut!("an engine without work") {
            self.driver.flush_datagrams();
            return false;
        }
        self.do_pending_work()
    }

    /// Executes them where there are any.
    fn do_pending_work(&mut self) -> bool {
        let mut happened = self.state.core.shared().rendezvous().has_readable()
            && self.setup().lanes.read_by_cma();
        self.state.rings.begin_writes();
        // Each round can create work for the next: a flush frees space for a waiting send. The
        // limit keeps one call short; the rest is done in the next.
        for _ in 0..4 {
            let mut again = self.state.stage_waiting();
            let now_ns = self.state.now_ns;
            if !self.chunks_rest {
                self.state.core.poll_grants(now_ns);
            }
            again |= self.carry_out();
            while !self.chunks_rest
                && let Some(lane) = self.state.core.shared_mut().lanes_mut().poll_runnable()
            {
                let mut cx = self.setup();
                again |= cx.bulk.move_chunks(lane, &mut cx.lanes);
            }
            again |= self.flush_dirty();
            happened |= again;
            if !again || rare!("a turn that ends early", 20) {
                break;
            }
        }
        // After everything that messages need.
        happened |= self.write_pieces();
        happened
    }

    #[inline(always)]
    pub(super) fn handle_events(&mut self) -> bool {
        !self.events.is_empty() && self.handle_pending_events()
    }

    fn handle_pending_events(&mut self) -> bool {
        self.state.read_clock();
        let mut events = std::mem::take(&mut self.events);
        for event in events.drain(..) {
            match event {
                DriverEvent::Accepted { lane, remote, .. } => {
                    let (handshakes, mut cx) = self.handshakes();
                    handshakes.handle_accepted(lane, remote, &mut cx);
                }
                DriverEvent::Connected { lane } => {
                    let (handshakes, mut cx) = self.handshakes();
                    handshakes.handle_connected(lane, &mut cx);
                }
                DriverEvent::ConnectFailed { lane, error } => {
                    self.handle_unreachable(lane, &error);
                }
                DriverEvent::Readable { lane } => self.handle_readable(lane),
                DriverEvent::Writable { lane } => self.handle_writable(lane),
                DriverEvent::ChunkSent { lane, result } => {
                    let mut cx = self.setup();
                    cx.bulk.handle_sent(lane, result, &mut cx.lanes);
                }
                DriverEvent::ChunkReleased { token } => {
                    let state = &mut *self.state;
                    let id = Id::from_u64(token);
                    state.core.handle_chunk_released(id, &mut state.completions);
                }
                DriverEvent::ChunkReceived { lane, result } => {
                    let mut cx = self.setup();
                    cx.bulk.handle_received(lane, result, &mut cx.lanes);
                }
                DriverEvent::DatagramsReadable => self.handle_datagrams_readable(),
                DriverEvent::DatagramsWritable => self.handle_datagrams_writable(),
                DriverEvent::RailChanged { rail, is_up } => self.handle_link(rail, is_up),
                DriverEvent::CmaChanged { session, is_able } => {
                    self.state.handle_cma_changed(session, is_able);
                }
                DriverEvent::RingChanged { session, number, is_up } => {
                    self.handle_ring_changed(session, is_up.then_some(number));
                }
                DriverEvent::ProcessEnded { session } => self.handle_process_ended(session),
                DriverEvent::Closed { lane } => {
                    self.state.roles.remove(lane);
                }
            }
        }
        // Keeps the allocation.
        events.append(&mut self.events);
        self.events = events;
        true
    }

    pub(super) fn carry_out(&mut self) -> bool {
        let mut happened = false;
        while let Some(action) = self.state.core.shared_mut().poll_action() {
            happened = true;
            match action {
                Action::Connect { session } => self.setup().connect(session),
                Action::CloseControl { session, is_failure } => {
                    self.close_control(session, is_failure);
                }
                Action::OpenLane { lane, .. } => {
                    let mut cx = self.setup();
                    cx.bulk.connect(lane, &mut cx.lanes);
                }
                Action::CloseLane { lane, is_failure } => {
                    let mut cx = self.setup();
                    match is_failure {
                        false => cx.bulk.close_unused(lane, &mut cx.lanes),
                        true => {
                            let end = LaneEnd::Failed("abandoned by the session");
                            cx.bulk.close(lane, end, &mut cx.lanes);
                        }
                    }
                }
                Action::AbandonLane { lane, is_reported } => {
                    let mut cx = self.setup();
                    cx.bulk.abandon(lane, is_reported, &mut cx.lanes);
                }
                Action::SegmentsLost { session, at, bytes } => {
                    self.handle_segments_lost(session, at, bytes);
                }
                Action::ProcessEnded { session, session_id, observer } => {
                    self.handle_reported_end(session, session_id, observer);
                }
                Action::PairRails { session } => self.setup().lanes.pair_rails(session),
                Action::GiveUp { session, failure } => self.give_up(session, failure),
                Action::PathChanged { peer, rail, remote, change } => {
                    self.state.report_path_change(&peer, rail, remote, change);
                }
                Action::Established { session } => self.report_established(session),
                Action::Ended { session, failure } => {
                    let state = &mut *self.state;
                    state.requests.end_of_session(&state.core, session, &failure);
                    self.carry_out_requests();
                    let has_driver_failed = self.failure.is_some();
                    self.state.report_ended(session, failure, has_driver_failed);
                }
                Action::Requests => self.take_requests(),
                Action::Reconnect { session } => {
                    let now_ns = self.state.now_ns;
                    self.state
                        .core
                        .with(session, |it, mut cx| it.connection_mut().connect(&mut cx, now_ns));
                }
            }
        }
        happened
    }

    fn tick(&mut self) {
        let state = &mut *self.state;
        if !state.ticks.begin(state.now_ns) {
            return;
        }
        state.core.handle_timeouts(state.now_ns, &mut state.completions);
        if state.requests.next_deadline_ns().is_some() {
            self.tick_requests();
        }
        let state = &mut *self.state;
        if state.ticks.begin_health(state.now_ns) {
            let now_ns = state.now_ns;
            state.core.close_idle_lanes(now_ns);
            let (handshakes, mut cx) = self.handshakes();
            handshakes.drop_silent(&mut cx);
            self.check_peers();
            let mut cx = self.setup();
            cx.bulk.check(&mut cx.lanes);
            self.tick_control_lanes();
            self.ask_engines();
            self.state.shrink_idle();
            let state = &mut *self.state;
            state.datagrams.fit_window(&mut state.core, &self.driver.frame_state());
            self.rebind_listeners();
            self.state.publish(&mut self.driver);
        }
    }

    /// Returns the handshakes, and what their methods use: the owners of connections.
    #[inline]
    pub(super) fn handshakes(&mut self) -> (&mut Handshakes, SetupCx<'_>) {
        let state = &mut *self.state;
        let lanes = LaneCx {
            driver: &mut self.driver,
            core: &mut state.core,
            completions: &mut state.completions,
            paths: &mut state.paths,
            roles: &mut state.roles,
            config: &state.config,
            clock: &state.clock,
            now_ns: &mut state.now_ns,
        };
        let EngineState { handshakes, bulk, controls, rails, .. } = state;
        let announced = state.datagrams.announced();
        (handshakes, SetupCx { lanes, controls, bulk, rails, announced })
    }

    /// Returns the owners of connections.
    #[inline]
    pub(crate) fn setup(&mut self) -> SetupCx<'_> {
        self.handshakes().1
    }
}

#[cfg(test)]
#[path = "deferred_tests.rs"]
mod deferred_tests;
