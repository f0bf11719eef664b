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
use std::net::IpAddr;
use std::sync::Arc;

use foldhash::fast::FixedState;

use super::bulk::BulkLane;
use super::claims::Claim;
pub(crate) use super::config::Config;
use super::connection::Retry;
use super::effects::{Effects, Ended, RemoteName};
use super::endpoints::Endpoints;
use super::failure::PeerFailure;
use super::lanes::Wait;
use super::operation::Operation;
use super::outbox::StagingPool;
use super::peers::Promise;
use super::pieces::Granted;
use super::rails::health::Transition;
use super::session::{ControlFrame, Session};
use super::table::{Id, Table};
use super::unexpected::{Message, Unexpected};
use crate::wire::CmaSource;
use crate::wire::{Frame, FrameError, Frames, SEGMENT_BYTES_MAX};

/// Bit of a 64-bit context that keeps untagged messages apart from tagged ones.
pub(crate) const UNTAGGED: u64 = 1 << 32;

/// The context of requests for connections, their answers and their ends ([`super::manager`]): no
/// user can name it.
pub(crate) const REQUESTS: u64 = UNTAGGED | 1;

/// Endpoints of one engine that are open at a time, at the most.
pub(crate) const ENDPOINTS_MAX: usize = 1024;

/// Numbers that the endpoints of one engine can have.
const ENDPOINT_NUMBERS: usize = 1 << 16;

/// Envelope credit that every session gets, however many there are.
pub(crate) const ENVELOPES_MIN: u32 = 16;

/// A remote endpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Remote {
    /// Slot of its session.
    pub(crate) session: u32,
    /// Its id on the remote engine.
    pub(crate) endpoint: u16,
    /// The user inserted it; else it was met as the source of a message.
    pub(crate) is_inserted: bool,
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
    /// Close a bulk lane at once: its path is not to be relied on, or the peer (`is_told`) says so.
    AbandonLane { lane: Id, is_told: bool },
    /// The peer says that segments of so many bytes are lost on the path at `at`; `None`: on that
    /// of the control lane.
    SegmentsLost { session: u32, at: Option<u8>, bytes: u16 },
    /// All rails of the peer are known: say which paths there are, if this side opened the session.
    PairRails { session: u32 },
    /// What the peer sends cannot be used: tell it why and fail the session.
    GiveUp { session: u32, failure: PeerFailure },
    /// One of several paths of a session changed; `rail` is this engine's, and the peer is at
    /// `remote` by it.
    PathChanged { peer: RemoteName, rail: u8, remote: IpAddr, change: Transition },
    /// A session was established.
    Established { session: u32 },
    /// A session ended.
    Ended { session: u32, failure: PeerFailure },
    /// Messages wait in the context [`REQUESTS`] of endpoints.
    Requests,
    /// A session that was left has ended, and there is to be another one:
    /// [`Core::want_connection`].
    Reconnect { session: u32 },
}

impl Action {
    /// The session that it is about, if it names one.
    pub(super) fn session(&self) -> Option<u32> {
        match *self {
            Self::Connect { session }
            | Self::CloseControl { session, .. }
            | Self::OpenLane { session, .. }
            | Self::SegmentsLost { session, .. }
            | Self::PairRails { session }
            | Self::GiveUp { session, .. }
            | Self::Established { session }
            | Self::Ended { session, .. }
            | Self::Reconnect { session } => Some(session),
            Self::CloseLane { .. }
            | Self::AbandonLane { .. }
            | Self::PathChanged { .. }
            | Self::Requests => None,
        }
    }
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
    /// Chunks that came whole but not as they were sent.
    pub(crate) corrupted_chunks: u64,
    /// Operations of peers on this engine's memory that were refused.
    pub(crate) refused_accesses: u64,
}

/// See the module.
pub(crate) struct Core {
    pub(super) config: Config,
    pub(super) engine: u64,
    pub(super) sessions: Table<Session>,
    pub(super) by_engine: HashMap<u64, u32>,
    /// Sessions that ended, the last one last; some of them may live again.
    pub(super) over: Vec<u32>,
    /// Hellos said to anybody: their epochs never repeat, whoever is forgotten.
    hellos: u32,
    /// Slots of sessions kept free for peers that have yet to prove themselves.
    pub(super) promised: Vec<Promise>,
    /// Slots of sessions that ask who listens at a place, and of some that did.
    pub(super) places: Vec<u32>,
    /// Of all connections.
    pub(super) retry: Arc<Retry>,
    pub(super) remotes: Table<Remote>,
    pub(super) endpoints: Endpoints,
    pub(super) operations: Table<Operation>,
    pub(super) unexpected: Unexpected,
    /// Messages taken out of matching by name.
    pub(super) claims: Table<Claim>,
    pub(super) staging: StagingPool,
    /// What sessions in datagram mode share.
    pub(super) datagrams: super::datagram::Shared,
    pub(super) lanes: Table<BulkLane>,
    /// Those of this engine, if there are several.
    pub(super) rails: Vec<super::rails::RailInfo>,
    /// What of this engine's memory peers may reach.
    pub(super) regions: super::regions::Regions,
    pub(super) shares: super::rails::shares::Shares,
    pub(super) segment_limits: super::rails::segments::SegmentLimits,
    /// Lanes that may have a chunk for the driver.
    runnable: VecDeque<Id>,
    pub(super) actions: VecDeque<Action>,
    /// The session whose newest frame lacks its payload in the checksum.
    pub(super) unsummed: Option<u32>,
    /// Sessions with something to send.
    pub(super) dirty: Vec<u32>,
    /// Sessions whose waiting sends may go on.
    pub(super) unblocked: Vec<u32>,
    /// Sessions that may grant.
    pub(super) granting: Vec<u32>,
    /// Receives whose messages are read from their senders' memory, in order of their matches.
    pub(super) cma: VecDeque<(Id, CmaSource)>,
    /// What peers granted by rings, by session.
    pub(super) granted: HashMap<u32, Granted, FixedState>,
    /// Sessions with pieces of messages for their rings.
    pub(super) feeding: Vec<u32>,
    /// Sessions whose connection may have a deadline.
    pub(super) timed: Vec<u32>,
    /// Sessions that need a lane and try again later.
    pub(super) starved: Vec<(u32, Wait)>,
    /// A lane went since they last tried.
    pub(super) has_lane_room: bool,
    /// Times that those which wait for room were asked whether they try.
    pub(super) lane_rounds: u64,
    pub(super) counters: CoreCounters,
    /// What has been done about hints.
    pub(super) hinted: super::hint::Hinted,
    pub(super) offers: super::offers::Offers,
    pub(super) reserved_bytes: u64,
    pub(super) reserved_envelopes: u64,
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
            over: Vec::new(),
            hellos: 0,
            promised: Vec::new(),
            places: Vec::new(),
            retry: Arc::new(config.retry),
            remotes: Table::with_own_names(
                config.sessions_max.saturating_mul(ENDPOINT_NUMBERS),
                engine,
            ),
            endpoints: Endpoints::default(),
            operations: Table::new(config.operations_max),
            unexpected: Unexpected::new(unexpected_max),
            claims: Table::new(usize::MAX),
            staging: StagingPool::new(config.staging_bytes, config.staging_buffers_max),
            datagrams: super::datagram::Shared::new(&config),
            lanes: Table::new(config.bulk_lanes_max),
            rails: Vec::new(),
            regions: super::regions::Regions::new(config.regions, config.hash_seed),
            shares: super::rails::shares::Shares::default(),
            segment_limits: super::rails::segments::SegmentLimits::default(),
            runnable: VecDeque::new(),
            actions: VecDeque::new(),
            unsummed: None,
            dirty: Vec::new(),
            unblocked: Vec::new(),
            granting: Vec::new(),
            cma: VecDeque::new(),
            granted: HashMap::default(),
            feeding: Vec::new(),
            timed: Vec::new(),
            starved: Vec::new(),
            has_lane_room: false,
            lane_rounds: 0,
            counters: CoreCounters::default(),
            hinted: super::hint::Hinted::default(),
            offers: super::offers::Offers::default(),
            reserved_bytes: 0,
            reserved_envelopes: 0,
            config,
        }
    }

    /// The epoch of the next hello of a control lane.
    pub(crate) fn next_epoch(&mut self) -> u32 {
        self.hellos = self.hellos.saturating_add(1);
        self.hellos
    }

    /// Byte credit that sessions were given, and that unexpected messages of ended ones hold.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn reserved_bytes(&self) -> u64 {
        self.reserved_bytes
    }

    /// Envelope credit, as [`Self::reserved_bytes`].
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn reserved_envelopes(&self) -> u64 {
        self.reserved_envelopes
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
        while let Some(session) = self.sessions.at_mut(slot as usize) {
            let whole = if session.outbox.has_checksums() {
                Session::split_checked(&bytes[used..])?
            } else {
                Session::split_segment(&bytes[used..])?
            };
            let Some((header, body, length)) = whole else { break };
            if !session.is_connected() {
                break;
            }
            if session.datagram.is_some() {
                session.note_by_stream(header, length);
                self.handle_segment(slot, header, body, now_ns, effects)?;
                used += length;
                continue;
            }
            self.counters.segments_received += 1;
            let has_credit = session.handle_header(header)?;
            // A fence may wait for what this acknowledges.
            if session.has_waiting() && (has_credit || !session.fences.is_empty()) {
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
            && session.has_update()
        {
            self.mark_dirty(slot);
        }
        Ok(used)
    }

    /// RR-SEG-4, RR-MATCH-1
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
                Frame::Eager(header, data, payload) => {
                    self.take_eager::<false>(slot, header, data, payload, now_ns, effects)?;
                }
                Frame::Rts(header, data, first) => {
                    self.take_rts::<false>(slot, header, data, first, effects)?;
                }
                Frame::EagerParts(header, _) => {
                    return Err(FrameError::PartsInStream(header.length.get()));
                }
                Frame::Part(part, bytes) => {
                    let end = part.offset.get().saturating_add(bytes.len() as u32);
                    return Err(FrameError::PartsInStream(end));
                }
                Frame::Data(data, _) => {
                    let (offset, length) = (data.offset.get(), data.length.get());
                    let why = "streams have bulk lanes for that";
                    return Err(FrameError::BadData { offset, length, why });
                }
                Frame::Grant(grant) => self.handle_grant(slot, grant)?,
                Frame::Done(done) => self.handle_done(slot, done, effects),
                Frame::Matched(matched) => self.handle_matched(slot, matched, effects),
                Frame::Refused(refused) => self.handle_refused(slot, refused, effects),
                Frame::LanesWanted => self.handle_lanes_wanted(slot, now_ns),
                Frame::Rail(rail) => self.handle_rail(slot, rail)?,
                Frame::LaneLost(lost) => self.handle_lane_lost(slot, lost),
                Frame::OneSided(header, data, operands) => {
                    let by = (slot, 0);
                    self.handle_one_sided(by, header, data, operands, now_ns, effects)?;
                }
                Frame::Reply(reply, bytes) => self.handle_reply(slot, reply, bytes, effects)?,
                Frame::ReplyRts(reply, source) => {
                    self.handle_reply_rts(slot, reply, source, effects)
                }
                Frame::Goodbye(goodbye) => {
                    let failure = PeerFailure::of_goodbye(goodbye.reason);
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

    /// The payload of the message that was staged last was copied; `sum` continues a CRC32C with
    /// it, out of the memory that it was copied from. Call it after each
    /// [`Self::stage`] and [`Self::stage_now`] that gave room.
    #[inline]
    pub(crate) fn sum_payload(&mut self, sum: impl FnOnce(u32) -> u32) {
        if let Some(slot) = self.unsummed.take()
            && let Some(session) = self.sessions.at_mut(slot as usize)
        {
            session.outbox.add_to_sum(sum);
        }
    }

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

    /// The session has more to send, and has had its turn: the others come first.
    pub(crate) fn mark_dirty_last(&mut self, session: u32) {
        if let Some(known) = self.sessions.at_mut(session as usize)
            && !std::mem::replace(&mut known.is_dirty, true)
        {
            self.dirty.insert(0, session);
        }
    }

    /// Whether no other session than this one has something to send.
    pub(crate) fn is_dirty_alone(&self, session: u32) -> bool {
        match self.dirty[..] {
            [] => true,
            [only] => only == session,
            _ => false,
        }
    }

    /// Whether nothing would come of [`Self::poll_waiting`] and of what follows it in a turn.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.is_at_rest() && (self.starved.is_empty() || !self.has_lane_room)
    }

    /// Whether there is nothing for the loop to do, as far as the protocol knows.
    #[inline]
    pub(crate) fn is_at_rest(&self) -> bool {
        let lists = [&self.dirty, &self.unblocked, &self.granting, &self.feeding];
        lists.iter().all(|list| list.is_empty())
            && self.actions.is_empty()
            && self.runnable.is_empty()
            && self.cma.is_empty()
            && self.datagrams.pulls.is_at_rest()
    }

    /// Sends a control frame on a session, if it is connected.
    pub(crate) fn push_control(&mut self, session: u32, control: ControlFrame) {
        if self.push_control_later(session, control) {
            self.mark_dirty(session);
        }
    }

    /// The same, but it goes with what the session sends next. `false`: the session has ended.
    pub(super) fn push_control_later(&mut self, session: u32, control: ControlFrame) -> bool {
        let Some(known) = self.sessions.at_mut(session as usize) else { return false };
        if known.is_connected() {
            known.push_control(&mut self.staging, control);
        }
        known.is_connected()
    }

    /// Asks the peer of a session for a segment, to learn whether what it sends can be used.
    ///
    /// RR-SEG-6.
    pub(crate) fn ask_for_answer(&mut self, session: u32) {
        let Some(known) = self.sessions.at_mut(session as usize) else { return };
        if known.is_connected() {
            known.questions.ask();
            self.mark_dirty(session);
        }
    }

    /// Credit of a message of a live session that is received, or never had to wait.
    #[inline]
    pub(crate) fn return_credit(&mut self, session: u32, payload_bytes: usize) {
        let Some(known) = self.sessions.at_mut(session as usize) else { return };
        known.envelopes.consume(1);
        known.bytes.consume(payload_bytes as u32);
        if known.has_update() && known.is_connected() {
            self.mark_dirty(session);
        }
    }

    /// Credit of a message that leaves the unexpected store.
    pub(crate) fn return_credit_of(&mut self, message: &Message) {
        let payload_bytes = message.payload().len();
        if planted!(LoseCreditReturn) || message.put_back() != 0 {
            return;
        }
        let session = self.sessions.at(message.session as usize);
        let is_same = |session: &Session| session.epoch == message.epoch || planted!(ForgetEpoch);
        if session.is_some_and(is_same) {
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

    /// A session that was staged last is flushed at once, and need not be in the next turn.
    #[inline]
    pub(crate) fn clean(&mut self, session: u32) {
        if self.dirty.last() == Some(&session) {
            self.poll_dirty();
        }
    }

    /// A session was flushed. What found no staging buffer, because other sessions hold them all,
    /// is tried again in the next poll, behind the others.
    #[inline]
    pub(crate) fn keep_dirty_if_starved(&mut self, session: u32) {
        let Some(known) = self.sessions.at_mut(session as usize) else { return };
        let is_starved = known.is_connected()
            && known.outbox.is_empty()
            && (!known.control.is_empty() || known.has_update() || known.asks_ack);
        if is_starved && !known.is_dirty {
            known.is_dirty = true;
            self.dirty.insert(0, session);
        }
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
        if known.has_waiting() {
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
