//! The protocol of one engine: sessions, endpoints, operations and what ties them.
//!
//! # Order of calls
//!
//! An engine loop owns a [`Core`] and calls, from one thread:
//!
//! 1. commands of the user ([`Core::insert_peer`], the sends in [`super::send`], the receives in
//!    [`super::receive`]) at any time;
//! 2. `handle_*` for what came in: [`Core::handle_bytes`] with the bytes of a control lane, the
//!    chunk events in [`super::rendezvous`], connection events;
//! 3. [`Core::poll_waiting`], then [`Core::poll_grants`], then [`Core::poll_action`] until it
//!    returns `None`, then [`Core::poll_runnable`] for the chunks of bulk lanes, then
//!    [`Core::poll_dirty`] and for each of these sessions
//!    [`Core::prepare`] / [`Core::handle_transmitted`].
//!
//! `now_ns` never goes backwards. Nothing here is done later on its own: what has a deadline says
//! so in [`Core::next_deadline_ns`].

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;

use super::bulk::BulkLane;
use super::connection::{Phase, Retry, Step};
use super::credit::ReceiveCredit;
use super::effects::{Effects, Ended, RemoteName};
use super::failure::PeerFailure;
use super::matching::Matcher;
use super::operation::{NO_SESSION, Operation, State};
use super::outbox::StagingPool;
use super::session::{Control, Limits, Session};
use super::table::{Id, Table};
use super::unexpected::{Kind, Message, Unexpected};
use crate::wire::hello::HelloStatus;
use crate::wire::{Frame, FrameError, Frames, SEGMENT_BYTES_MAX};

/// Bit of a 64-bit context that keeps untagged messages apart from tagged ones.
pub(crate) const UNTAGGED: u64 = 1 << 32;

/// Endpoints of one engine, at the most.
pub(crate) const ENDPOINTS_MAX: usize = 1024;

/// Envelope credit that every session gets, however many there are.
pub(super) const ENVELOPES_MIN: u32 = 16;

/// What the protocol needs to know of the settings.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// Longest eager payload, in bytes.
    pub(crate) eager_limit: u32,
    /// Longest message that can be injected, in bytes.
    pub(crate) inject_limit: u32,
    /// Bytes that go with an RTS.
    pub(crate) rts_bytes: u32,
    /// Chunk length while only bulk data flows, in bytes.
    pub(crate) chunk_bytes: u32,
    /// Chunk length while messages arrive as well.
    pub(crate) busy_chunk_bytes: u32,
    /// Chunks granted ahead per lane.
    pub(crate) horizon_chunks: u32,
    /// Bulk lanes per session.
    pub(crate) bulk_lanes: u32,
    /// Bulk lanes of the engine.
    pub(crate) bulk_lanes_max: usize,
    /// Envelope credit per peer.
    pub(crate) envelope_credits: u32,
    /// Eager byte credit per peer.
    pub(crate) eager_credit_bytes: u32,
    /// Bound of all byte credits together.
    pub(crate) unexpected_bytes: u64,
    /// Bound of all envelope credits together.
    pub(crate) unexpected_messages: u64,
    /// Sends that may wait per session.
    pub(crate) send_queue_ops: usize,
    /// Outstanding operations.
    pub(crate) operations_max: usize,
    /// Sessions.
    pub(crate) sessions_max: usize,
    /// Size and number of staging buffers.
    pub(crate) staging_bytes: usize,
    /// Number of staging buffers.
    pub(crate) staging_buffers_max: usize,
    /// Connection attempts.
    pub(crate) retry: Retry,
    /// Idle time after which a bulk lane is closed.
    pub(crate) bulk_idle_ns: u64,
    /// Seed of the hash tables that peers can fill.
    pub(crate) hash_seed: u64,
}

/// A remote endpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Remote {
    /// Slot of its session.
    pub(crate) session: u32,
    /// Its id on the remote engine.
    pub(crate) endpoint: u16,
}

/// What the loop does for the protocol, besides [`Effects`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    /// Open a TCP connection for the control lane of a session.
    Connect { session: u32 },
    /// Close the control lane of a session, and any attempt.
    CloseControl { session: u32, is_failure: bool },
    /// Open a bulk lane; the protocol's name for it is `lane`.
    OpenLane { session: u32, lane: Id },
    /// Close a bulk lane; whatever it carried is lost.
    CloseLane { lane: Id, is_failure: bool },
    /// A session was established.
    Established { session: u32 },
    /// A session ended.
    Ended { session: u32, failure: PeerFailure },
}

/// Counts of what was dropped or went wrong, for users to see.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct CoreCounters {
    /// Segments handled.
    pub(crate) segments_received: u64,
    /// Frames handled.
    pub(crate) frames_received: u64,
    /// Messages for an endpoint that is not open.
    pub(crate) unknown_endpoint: u64,
    /// DONE, MATCHED, GRANT or REFUSED for an operation that is not outstanding.
    pub(crate) stale_frames: u64,
    /// Messages that had to wait for their receive.
    pub(crate) unexpected_messages: u64,
    /// Bulk lanes that failed.
    pub(crate) lane_failures: u64,
}

/// See the module.
pub(crate) struct Core {
    pub(crate) config: Config,
    pub(crate) engine: u64,
    pub(crate) sessions: Table<Session>,
    by_engine: HashMap<u64, u32>,
    pub(crate) remotes: Table<Remote>,
    pub(crate) endpoints: Vec<Option<Matcher>>,
    pub(crate) operations: Table<Operation>,
    pub(crate) unexpected: Unexpected,
    pub(crate) staging: StagingPool,
    pub(crate) lanes: Table<BulkLane>,
    /// Lanes that may have a chunk for the driver.
    runnable: VecDeque<Id>,
    pub(crate) actions: VecDeque<Action>,
    /// Sessions with something to send.
    pub(crate) dirty: Vec<u32>,
    /// Sessions whose waiting sends may go on.
    pub(crate) unblocked: Vec<u32>,
    /// Sessions that may grant.
    pub(crate) granting: Vec<u32>,
    /// Sessions that wait for another session's bulk lane to close.
    pub(crate) starved: Vec<u32>,
    pub(crate) counters: CoreCounters,
    reserved_bytes: u64,
    reserved_envelopes: u64,
}

impl Core {
    /// An engine with the random, non-zero id `engine`.
    pub(crate) fn new(engine: u64, config: Config) -> Self {
        let unexpected_max = usize::try_from(config.unexpected_messages).unwrap_or(usize::MAX);
        // A session may always have its minimum, whatever the total says.
        let unexpected_max =
            unexpected_max.saturating_add(config.sessions_max * ENVELOPES_MIN as usize);
        Self {
            engine,
            sessions: Table::new(config.sessions_max),
            by_engine: HashMap::new(),
            remotes: Table::new(config.sessions_max.saturating_mul(ENDPOINTS_MAX)),
            endpoints: Vec::new(),
            operations: Table::new(config.operations_max),
            unexpected: Unexpected::new(unexpected_max),
            staging: StagingPool::new(config.staging_bytes, config.staging_buffers_max),
            lanes: Table::new(config.bulk_lanes_max),
            runnable: VecDeque::new(),
            actions: VecDeque::new(),
            dirty: Vec::new(),
            unblocked: Vec::new(),
            granting: Vec::new(),
            starved: Vec::new(),
            counters: CoreCounters::default(),
            reserved_bytes: 0,
            reserved_envelopes: 0,
            config,
        }
    }

    /// Opens an endpoint and returns its id; `None` at the limit.
    pub(crate) fn open_endpoint(&mut self) -> Option<u16> {
        let seed = self.config.hash_seed;
        let index = self.endpoints.iter().position(Option::is_none).unwrap_or_else(|| {
            self.endpoints.push(None);
            self.endpoints.len() - 1
        });
        if index >= ENDPOINTS_MAX {
            self.endpoints.truncate(ENDPOINTS_MAX);
            return None;
        }
        self.endpoints[index] = Some(Matcher::new(seed));
        Some(index as u16)
    }

    /// Closes an endpoint: its receives end as cancelled, its unexpected messages are dropped.
    pub(crate) fn close_endpoint(&mut self, endpoint: u16, effects: &mut impl Effects) {
        let Some(Some(mut matcher)) =
            self.endpoints.get_mut(usize::from(endpoint)).map(Option::take)
        else {
            return;
        };
        let mut receives = Vec::new();
        matcher.drain_all_posted(|receive| receives.push(receive));
        for receive in receives {
            if let Some(id) = self.operations.id_at(receive as usize) {
                self.operations.remove(id);
                effects.complete(id, Ended::Cancelled);
            }
        }
        let mut messages = Vec::new();
        matcher.drain_all_unexpected(|message| messages.push(message));
        for message in messages {
            self.abandon(message);
        }
    }

    /// Drops an unexpected message and tells its sender if that one still waits.
    fn abandon(&mut self, message: u32) {
        let Some(message) = self.unexpected.take(message) else { return };
        self.return_credit_of(&message);
        let operation = match message.kind {
            Kind::Eager { report } => report,
            Kind::Rendezvous { send_operation } => send_operation,
        };
        if operation != 0 {
            let status = crate::wire::done::STATUS_ABANDONED;
            self.push_control(message.session, Control::done(operation, status, 0));
        }
        self.unexpected.recycle(message);
    }

    // ---- Peers ----

    /// What to call a remote endpoint in errors.
    pub(crate) fn name_of(&self, remote: u32) -> Option<RemoteName> {
        let remote = self.remotes.at(remote as usize)?;
        let session = self.sessions.at(remote.session as usize)?;
        let (engine, locator) = (session.engine, session.locator);
        Some(RemoteName { engine, locator, endpoint: remote.endpoint })
    }

    /// The slot of the session with an engine.
    pub(crate) fn session_of(&self, engine: u64) -> Option<u32> {
        self.by_engine.get(&engine).copied()
    }

    /// The session with an engine, made if there is none. `None`: at the limit.
    fn session_with(&mut self, engine: u64, locator: SocketAddr) -> Option<u32> {
        if let Some(&session) = self.by_engine.get(&engine) {
            return Some(session);
        }
        let session = Session::new(engine, locator, self.config.retry);
        let slot = self.sessions.insert(session).ok()?.index() as u32;
        self.by_engine.insert(engine, slot);
        if engine == self.engine {
            self.establish_loopback(slot);
        }
        Some(slot)
    }

    /// The remote endpoint of an address, made if it is new. `None`: a limit is reached.
    pub(crate) fn insert_peer(
        &mut self,
        engine: u64,
        locator: SocketAddr,
        endpoint: u16,
    ) -> Option<Id> {
        let session = self.session_with(engine, locator)?;
        let index = self.remote_of(session, endpoint)?;
        if let Some(known) = self.sessions.at(session as usize)
            && known.failure == Some(PeerFailure::Removed)
        {
            self.reset_failure(session);
        }
        self.remotes.id_at(index as usize)
    }

    /// Index of the remote endpoint `endpoint` of a session.
    pub(crate) fn remote_of(&mut self, session: u32, endpoint: u16) -> Option<u32> {
        let known = self.sessions.at_mut(session as usize)?;
        let slot = usize::from(endpoint);
        if let Some(&remote) = known.remotes.get(slot)
            && remote != u32::MAX
        {
            return Some(remote);
        }
        if slot >= ENDPOINTS_MAX {
            return None;
        }
        let remote = self.remotes.insert(Remote { session, endpoint }).ok()?.index() as u32;
        if known.remotes.len() <= slot {
            known.remotes.resize(slot + 1, u32::MAX);
        }
        known.remotes[slot] = remote;
        Some(remote)
    }

    /// Forgets a remote endpoint. What is outstanding with it fails; a session without remote
    /// endpoints says goodbye.
    pub(crate) fn remove_peer(&mut self, peer: Id, effects: &mut impl Effects) -> bool {
        let Some(remote) = self.remotes.remove(peer) else { return false };
        let index = peer.index() as u32;
        self.fail_operations(|operation| operation.remote == index, &PeerFailure::Removed, effects);
        for endpoint in 0..self.endpoints.len() {
            let mut messages = Vec::new();
            if let Some(matcher) = self.endpoints[endpoint].as_mut() {
                matcher.drain_unexpected_from(index, |message| messages.push(message));
            }
            for message in messages {
                self.abandon(message);
            }
        }
        let Some(session) = self.sessions.at_mut(remote.session as usize) else { return true };
        if let Some(slot) = session.remotes.get_mut(usize::from(remote.endpoint)) {
            *slot = u32::MAX;
        }
        if session.remotes.iter().all(|&remote| remote == u32::MAX) {
            self.leave(remote.session);
        }
        true
    }

    /// Says goodbye on a session; the loop closes the lane once that is sent.
    pub(crate) fn leave(&mut self, session: u32) {
        if self.is_loopback(session) {
            return;
        }
        let Some(known) = self.sessions.at_mut(session as usize) else { return };
        if known.is_connected() {
            if !known.is_leaving {
                known.is_leaving = true;
                self.push_control(session, Control::goodbye(crate::wire::goodbye::REASON_CLOSED));
            }
        } else {
            let action = Action::CloseControl { session, is_failure: false };
            self.actions.push_back(action);
            known.connection.fail();
            known.connection.reset();
        }
    }

    // ---- Connections ----

    /// Connects a session if it is not (the user asks, or sends wait).
    pub(crate) fn want_connection(&mut self, session: u32, now_ns: u64) {
        let Some(known) = self.sessions.at_mut(session as usize) else { return };
        if known.connection.want(now_ns) == Step::Connect {
            self.actions.push_back(Action::Connect { session });
        }
    }

    /// The user tries again after a failure.
    pub(crate) fn reset_failure(&mut self, session: u32) {
        if self.is_loopback(session) {
            return;
        }
        if let Some(known) = self.sessions.at_mut(session as usize) {
            known.failure = None;
            known.connection.reset();
        }
    }

    /// What to announce in a hello or a reply, for a session named `id`.
    pub(crate) fn offer(&mut self, id: u64) -> Limits {
        let share = |per_peer: u32, total: u64, reserved: u64, least: u32| -> u32 {
            // An eighth of what is left: many peers find something, few peers find plenty.
            let left = total.saturating_sub(reserved) / 8;
            u32::try_from(left).unwrap_or(u32::MAX).min(per_peer).max(least)
        };
        let config = &self.config;
        Limits {
            session: id,
            envelope_limit: share(
                config.envelope_credits,
                config.unexpected_messages,
                self.reserved_envelopes,
                ENVELOPES_MIN.min(config.envelope_credits),
            ),
            byte_limit: share(
                config.eager_credit_bytes,
                config.unexpected_bytes,
                self.reserved_bytes,
                0,
            ),
            eager_limit: config.eager_limit,
        }
    }

    /// A hello for a control lane came in. With `Accepted` the session of the returned slot is
    /// established and the loop answers with `ours`.
    pub(crate) fn handle_hello(
        &mut self,
        engine: u64,
        locator: SocketAddr,
        ours: Limits,
        theirs: Limits,
    ) -> (HelloStatus, u32) {
        // Nobody else has this engine's id.
        if engine == 0 || engine == self.engine || theirs.session == 0 {
            return (HelloStatus::Malformed, NO_SESSION);
        }
        let Some(slot) = self.session_with(engine, locator) else {
            return (HelloStatus::Busy, NO_SESSION);
        };
        let own_engine = self.engine;
        let Some(session) = self.sessions.at_mut(slot as usize) else {
            return (HelloStatus::Busy, NO_SESSION);
        };
        let was_trying =
            matches!(session.connection.phase(), Phase::Connecting | Phase::ConnectAck);
        let status = session.connection.handle_hello(own_engine, engine);
        if status == HelloStatus::Accepted {
            if was_trying {
                // The loop drops our attempt, which lost the election.
                let action = Action::CloseControl { session: slot, is_failure: false };
                self.actions.push_back(action);
            }
            self.establish(slot, ours, theirs);
        }
        (status, slot)
    }

    /// The peer accepted our hello.
    pub(crate) fn establish(&mut self, session: u32, ours: Limits, theirs: Limits) {
        let Some(known) = self.sessions.at_mut(session as usize) else { return };
        known.establish(ours, theirs);
        self.reserve(ours);
        self.unblocked.push(session);
        self.actions.push_back(Action::Established { session });
    }

    /// Counts the windows of a session among what all sessions may have.
    pub(super) fn reserve(&mut self, ours: Limits) {
        self.reserved_envelopes += u64::from(ours.envelope_limit);
        self.reserved_bytes += u64::from(ours.byte_limit);
    }

    /// Carries out what a connection decided.
    pub(crate) fn apply(&mut self, session: u32, step: Step, effects: &mut impl Effects) {
        match step {
            Step::Nothing => {}
            Step::Connect => self.actions.push_back(Action::Connect { session }),
            Step::Fail(failure) => self.fail_session(session, failure, effects),
        }
    }

    /// The earliest deadline of all connections.
    pub(crate) fn next_deadline_ns(&self) -> Option<u64> {
        self.sessions.iter().filter_map(|(_, session)| session.connection.deadline_ns()).min()
    }

    /// Handles the deadlines that have passed. The loop closes the attempts that timed out when
    /// it is asked to connect anew or told that the session ended.
    pub(crate) fn handle_timeouts(&mut self, now_ns: u64, effects: &mut impl Effects) {
        for slot in 0..self.sessions.slots() {
            let Some(session) = self.sessions.at_mut(slot) else { continue };
            if session.connection.deadline_ns().is_none_or(|deadline| now_ns < deadline) {
                continue;
            }
            let slot = slot as u32;
            let was_trying =
                matches!(session.connection.phase(), Phase::Connecting | Phase::ConnectAck);
            let step = session.connection.handle_timeout(now_ns);
            if was_trying {
                let action = Action::CloseControl { session: slot, is_failure: false };
                self.actions.push_back(action);
            }
            self.apply(slot, step, effects);
        }
    }

    /// The session is over: everything that is outstanding with the peer fails, at once or as
    /// soon as the kernel has let go of the memory.
    pub(crate) fn fail_session(
        &mut self,
        slot: u32,
        failure: PeerFailure,
        effects: &mut impl Effects,
    ) {
        let Some(session) = self.sessions.at_mut(slot as usize) else { return };
        let was_connected = session.is_connected();
        session.connection.fail();
        session.failure = Some(failure.clone());
        session.outbox.clear(&mut self.staging);
        session.control.clear();
        session.waiting.clear();
        session.awaiting_delivery.clear();
        session.pulls.clear();
        session.missing.clear();
        let lanes = std::mem::take(&mut session.lanes);
        let remotes: Vec<u32> =
            session.remotes.iter().copied().filter(|&remote| remote != u32::MAX).collect();
        for lane in lanes {
            self.actions.push_back(Action::CloseLane { lane, is_failure: true });
        }
        self.actions.push_back(Action::CloseControl { session: slot, is_failure: true });
        self.actions.push_back(Action::Ended { session: slot, failure: failure.clone() });
        self.drop_unexpected_rendezvous(&remotes);
        if was_connected {
            self.release_windows(slot);
        }
        self.fail_operations(|operation| operation.session == slot, &failure, effects);
    }

    /// The windows of a session that ended are free for others, except for what its unexpected
    /// messages hold until they are received ([`Self::return_credit_of`]).
    fn release_windows(&mut self, slot: u32) {
        let Some(session) = self.sessions.at_mut(slot as usize) else { return };
        session.epoch = session.epoch.wrapping_add(1);
        let unused = |credit: &ReceiveCredit| u64::from(credit.window() - credit.held());
        self.reserved_envelopes -= unused(&session.envelopes);
        self.reserved_bytes -= unused(&session.bytes);
    }

    /// Whole messages of a dead peer can still be received; what would have to be pulled cannot.
    fn drop_unexpected_rendezvous(&mut self, remotes: &[u32]) {
        for endpoint in 0..self.endpoints.len() {
            for &remote in remotes {
                let mut messages = Vec::new();
                if let Some(matcher) = self.endpoints[endpoint].as_mut() {
                    matcher.drain_unexpected_from(remote, |message| messages.push(message));
                }
                for index in messages {
                    let Some(message) = self.unexpected.at(index) else { continue };
                    if matches!(message.kind, Kind::Rendezvous { .. }) {
                        if let Some(message) = self.unexpected.take(index) {
                            self.return_credit_of(&message);
                            self.unexpected.recycle(message);
                        }
                    } else if let Some(matcher) = self.endpoints[endpoint].as_mut() {
                        let envelope = super::matching::Envelope {
                            source: message.remote,
                            context: message.context,
                            tag: message.tag,
                        };
                        matcher.insert_unexpected(&envelope, index);
                    }
                }
            }
        }
    }

    /// Fails the operations that `is_hit` selects.
    fn fail_operations(
        &mut self,
        is_hit: impl Fn(&Operation) -> bool,
        failure: &PeerFailure,
        effects: &mut impl Effects,
    ) {
        for slot in 0..self.operations.slots() {
            let Some(id) = self.operations.id_at(slot) else { continue };
            let Some(operation) = self.operations.get_mut(id) else { continue };
            if !is_hit(operation) {
                continue;
            }
            match &mut operation.state {
                State::Serving(serving) if serving.unreleased > 0 => {
                    // After DONE the message has arrived, whatever becomes of the peer.
                    if serving.done.is_none() {
                        serving.failed = Some(failure.clone());
                    }
                    continue;
                }
                State::Pulling(pulling) if pulling.targeted > 0 => {
                    pulling.failed = Some(failure.clone());
                    continue;
                }
                State::Posted { key: Some(key), .. } => {
                    let (key, endpoint) = (*key, usize::from(operation.endpoint));
                    if let Some(Some(matcher)) = self.endpoints.get_mut(endpoint) {
                        matcher.cancel_posted(key);
                    }
                }
                _ => {}
            }
            let name = self.operations.get(id).and_then(|found| self.name_of(found.remote));
            self.forget_waiting(id);
            self.operations.remove(id);
            effects.complete(id, Ended::Failed(failure.clone(), name));
        }
    }

    fn forget_waiting(&mut self, id: Id) {
        let Some(operation) = self.operations.get(id) else { return };
        let session = operation.session as usize;
        let is_queued = matches!(operation.state, State::Queued { .. });
        let Some(session) = self.sessions.at_mut(session) else { return };
        if is_queued {
            session.waiting.retain(|&waiting| waiting != id);
        }
        session.pulls.retain(|&pull| pull != id);
        session.missing.retain(|&(pull, ..)| pull != id);
    }

    // ---- Incoming bytes ----

    /// Handles the whole segments at the front of `bytes`, which came by the control lane of
    /// `session`; returns how many bytes these were. An error means that the peer broke the
    /// protocol: fail the session.
    pub(crate) fn handle_bytes(
        &mut self,
        slot: u32,
        bytes: &[u8],
        now_ns: u64,
        effects: &mut impl Effects,
    ) -> Result<usize, FrameError> {
        let mut used = 0;
        while let Some((header, body, length)) = Session::split_segment(&bytes[used..])? {
            let Some(session) = self.sessions.at_mut(slot as usize) else { break };
            if !session.is_connected() {
                break;
            }
            self.counters.segments_received += 1;
            if session.handle_header(header)? {
                self.unblocked.push(slot);
            }
            while let Some(operation) = session.pop_delivered() {
                if let Some(operation_) = self.operations.remove(operation) {
                    effects.complete(operation, Ended::Sent { accepted: operation_.length });
                }
            }
            self.handle_frames(slot, header.frames.get(), body, now_ns, effects)?;
            used += length;
        }
        if let Some(session) = self.sessions.at_mut(slot as usize)
            && session.has_news()
        {
            self.mark_dirty(slot);
        }
        Ok(used)
    }

    fn handle_frames(
        &mut self,
        slot: u32,
        announced: u16,
        body: &[u8],
        now_ns: u64,
        effects: &mut impl Effects,
    ) -> Result<(), FrameError> {
        debug_assert!(body.len() <= SEGMENT_BYTES_MAX, "split_segment bounds the length");
        let mut frames = Frames::new(body);
        let mut held = 0u16;
        while let Some(frame) = frames.next_frame()? {
            held = held.wrapping_add(1);
            match frame {
                Frame::Eager(header, payload) => {
                    self.handle_eager(slot, header, payload, now_ns, effects)?;
                }
                Frame::Rts(header, first) => self.handle_rts(slot, header, first, effects)?,
                Frame::Grant(grant) => self.handle_grant(slot, grant)?,
                Frame::Done(done) => self.handle_done(slot, done, effects),
                Frame::Matched(matched) => self.handle_matched(slot, matched, effects),
                Frame::Refused(refused) => self.handle_refused(slot, refused, effects),
                Frame::LanesWanted => self.handle_lanes_wanted(slot, now_ns),
                Frame::Goodbye(goodbye) => {
                    let failure = match goodbye.reason {
                        crate::wire::goodbye::REASON_PROTOCOL => PeerFailure::Rejected,
                        _ => PeerFailure::Left,
                    };
                    self.fail_session(slot, failure, effects);
                    return Ok(());
                }
            }
        }
        self.counters.frames_received += u64::from(held);
        if held != announced {
            return Err(FrameError::WrongCount { announced, held });
        }
        Ok(())
    }

    // ---- Outgoing bytes ----

    /// The session has something to send.
    #[inline]
    pub(crate) fn mark_dirty(&mut self, session: u32) {
        if let Some(known) = self.sessions.at_mut(session as usize)
            && !known.is_dirty
        {
            known.is_dirty = true;
            self.dirty.push(session);
        }
    }

    /// Sends a control frame on a session, if it is connected.
    pub(crate) fn push_control(&mut self, session: u32, control: Control) {
        let Some(known) = self.sessions.at_mut(session as usize) else { return };
        if !known.is_connected() {
            return;
        }
        known.push_control(&mut self.staging, control);
        self.mark_dirty(session);
    }

    /// Credit of a message of a live session that is received, or never had to wait.
    #[inline]
    pub(crate) fn return_credit(&mut self, session: u32, payload_bytes: usize) {
        let Some(known) = self.sessions.at_mut(session as usize) else { return };
        known.envelopes.consume(1);
        known.bytes.consume(payload_bytes as u32);
        if known.has_news() && known.is_connected() {
            self.mark_dirty(session);
        }
    }

    /// Credit of a message that leaves the unexpected store.
    pub(crate) fn return_credit_of(&mut self, message: &Message) {
        let payload_bytes = message.payload().len();
        let session = self.sessions.at(message.session as usize);
        if session.is_some_and(|session| session.epoch == message.epoch) {
            self.return_credit(message.session, payload_bytes);
        } else {
            // Its session is over, but its memory counted until now.
            self.reserved_envelopes -= 1;
            self.reserved_bytes -= payload_bytes as u64;
        }
    }

    /// The next session to flush, taken off the list.
    #[inline]
    pub(crate) fn poll_dirty(&mut self) -> Option<u32> {
        let session = self.dirty.pop()?;
        if let Some(known) = self.sessions.at_mut(session as usize) {
            known.is_dirty = false;
        }
        Some(session)
    }

    /// The bytes to send next on the control lane of a session; empty when there are none.
    #[inline]
    pub(crate) fn prepare(&mut self, session: u32) -> &[u8] {
        let Some(known) = self.sessions.at_mut(session as usize) else { return &[] };
        if !known.is_connected() {
            return &[];
        }
        known.prepare(&mut self.staging);
        known.outbox.pending()
    }

    /// The kernel took `count` of these bytes.
    #[inline]
    pub(crate) fn handle_transmitted(&mut self, session: u32, count: usize) {
        let Some(known) = self.sessions.at_mut(session as usize) else { return };
        known.outbox.advance(&mut self.staging, count);
        if !known.waiting.is_empty() {
            self.unblocked.push(session);
        }
    }

    /// A lane may have a chunk for the driver.
    #[inline]
    pub(crate) fn mark_runnable(&mut self, lane: Id) {
        if let Some(bulk) = self.lanes.get_mut(lane)
            && !bulk.is_runnable
        {
            bulk.is_runnable = true;
            self.runnable.push_back(lane);
        }
    }

    /// The next lane that may have a chunk for the driver ([`Self::next_receive`],
    /// [`Self::next_send`]), taken off the list.
    #[inline]
    pub(crate) fn poll_runnable(&mut self) -> Option<Id> {
        while let Some(lane) = self.runnable.pop_front() {
            if let Some(bulk) = self.lanes.get_mut(lane) {
                bulk.is_runnable = false;
                return Some(lane);
            }
        }
        None
    }

    /// What the loop has to do next.
    #[inline]
    pub(crate) fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }
}
