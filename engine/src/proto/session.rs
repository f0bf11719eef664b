//! The relation of this engine with one remote engine.

use std::collections::VecDeque;
use std::sync::Arc;

use zerocopy::FromBytes;

use super::connection::{Connection, Retry};
pub(crate) use super::control_frame::{ControlFrame, ShortReply};
use super::credit::{ReceiveCredit, SendCredit};
use super::datagram::{PendingAck, PullMethod};
use super::eager_limit::EagerLimit;
use super::failure::PeerFailure;
use super::handshake::JoinWindow;
use super::keys::SessionKeys;
use super::lanes::LaneFailures;
use super::late::{Late, LateQueue};
use super::one_sided::SessionOneSided;
use super::outbox::{Outbox, StagingPool};
use super::question::Questions;
use super::table::Id;
pub(crate) use super::teardown::Sequel;
use crate::wire::FrameError;
use crate::wire::locators::Locators;
use crate::wire::segment::{
    FLAG_ACK_REQUESTED, FLAG_CHECKSUM, SEGMENT_HEADER_BYTES, SEGMENT_SUMS_BYTES, SegmentHeader,
    SegmentSums,
};
use crate::wire::{SEGMENT_BYTES_MAX, hello};

/// Header, body and whole length of a segment.
pub(crate) type Whole<'a> = (&'a SegmentHeader, &'a [u8], usize);

/// Limits exchanged in the hello exchange.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Random id of the session, chosen by the side that connected.
    pub(crate) session: u64,
    /// Initial limit of envelopes.
    pub(crate) envelope_limit: u32,
    /// Initial limit of eager bytes.
    pub(crate) byte_limit: u32,
    /// Longest eager payload that is accepted.
    pub(crate) eager_limit: u32,
    /// Checksums are required.
    pub(crate) checksum: bool,
    /// Bulk data is required in datagrams.
    pub(crate) bulk_in_datagrams: bool,
    /// The engine answers by the control lane although its owner makes no call.
    pub(crate) answers: bool,
    /// The engine answers what others ask of processes of its host.
    pub(crate) process_status: bool,
}

/// Limits of a side that announces none.
pub(crate) const NOTHING: Limits = Limits {
    session: 0,
    envelope_limit: 0,
    byte_limit: 0,
    eager_limit: 0,
    checksum: false,
    bulk_in_datagrams: false,
    answers: false,
    process_status: false,
};

impl Limits {
    /// Returns the flags of a hello or a reply with these limits, without those of the handshake.
    pub(crate) fn flags(&self) -> u8 {
        let checksum = if self.checksum { hello::FLAG_CHECKSUM } else { 0 };
        let bulk = if self.bulk_in_datagrams { hello::FLAG_BULK_IN_DATAGRAMS } else { 0 };
        let answers = if self.answers { hello::FLAG_ANSWERS } else { 0 };
        let status = if self.process_status { hello::FLAG_PROCESS_STATUS } else { 0 };
        checksum | bulk | answers | status
    }
}

/// A session; see the module. Read-only outside `proto`, except for its connection and its lane
/// monitor, which [`super::core::Core`] returns mutably.
#[derive(Debug)]
pub(crate) struct Session {
    /// The remote engine; 0: it is unknown until its address is resolved.
    pub(crate) engine: u64,
    /// Where it listens.
    pub(crate) locators: Locators,
    /// The user inserted only a listener address ([`super::place`]).
    pub(super) place: Option<Box<std::net::SocketAddr>>,
    /// State of the control lane's connection.
    pub(crate) connection: Connection,
    /// It is in the list of sessions whose connection may have a deadline.
    pub(super) is_timed: bool,
    /// Why it failed, while it has.
    pub(crate) failure: Option<PeerFailure>,
    /// A failure not yet reported to the owner, though completed sends may be lost.
    pub(super) unreported: Option<Box<PeerFailure>>,
    /// Number of starts and ends of its connections.
    pub(crate) epoch: u32,
    /// Id of the session, agreed on in the hello exchange.
    pub(crate) id: u64,
    /// Its keys, while it is established; a session with oneself has none.
    pub(crate) keys: Option<SessionKeys>,
    /// Chunks have checksums; segments have them if the outbox adds them.
    pub(super) has_checksums: bool,
    /// No bulk lanes: granted ranges arrive in datagrams.
    pub(crate) bulk_in_datagrams: bool,
    /// Lane numbers that have joined it.
    pub(super) joins: JoinWindow,
    /// Hellos to it have announced a window that is reserved for it.
    pub(super) has_offer: bool,
    /// The latest epoch of the remote engine's hellos that led to a session.
    pub(super) epoch_seen: u32,
    /// Remote endpoints by their id on the remote engine: index in the table of remotes.
    pub(super) remotes: Vec<u32>,

    // Sending.
    pub(super) outbox: Outbox,
    /// Control frames that did not fit the outbox.
    pub(crate) control: LateQueue<ControlFrame>,
    /// Sends that wait for the connection, for credit or for space, in order.
    pub(crate) waiting: VecDeque<Id>,
    /// One-sided state, allocated with the first operation.
    pub(super) one_sided: Option<Box<SessionOneSided>>,
    /// Of these, fenced ones, and what they wait for.
    pub(super) fences: LateQueue<super::fence::Fence>,
    /// Eager sends that complete when the peer acknowledges their frame.
    pub(crate) awaiting_delivery: VecDeque<(u32, Id)>,
    pub(crate) envelope_credit: SendCredit,
    pub(crate) byte_credit: SendCredit,
    /// Longest eager payload that the peer accepts and advises.
    pub(super) eager_limit: EagerLimit,
    /// Eager bytes that the peer lets be under way at once, at least: its first window.
    pub(super) eager_window: u32,
    pub(super) next_frame: u32,
    pub(super) acked_frame: u32,
    /// In stream mode, the newest frame whose send completed before it was acknowledged.
    pub(super) completed_frame: Option<u32>,
    /// The frame for which the peer was last asked to acknowledge these.
    asked_frame: Option<u32>,
    /// The next segment requests an acknowledgement, though no operation waits for it.
    pub(super) asks_ack: bool,
    /// It is in the list of sessions to be flushed.
    pub(super) is_dirty: bool,

    // Receiving.
    pub(crate) envelopes: ReceiveCredit,
    pub(crate) bytes: ReceiveCredit,
    pub(super) expected_frame: u32,
    pub(super) announced_ack: u32,
    pub(super) ack_wanted: bool,
    /// In datagram mode: what streams and rings carried since the last transmission.
    pub(super) pending_ack: PendingAck,
    /// The final segment on the TCP lane, which acknowledges everything received when a goodbye
    /// ended the session.
    pub(super) final_ack: Vec<u8>,
    pub(super) questions: Questions,
    /// The peer's engine answers by the control lane although its owner makes no call.
    pub(super) peer_answers: bool,
    /// The peer's engine answers questions about processes of its host.
    pub(super) answers_process_queries: bool,
    /// When an eager message last arrived.
    pub(super) message_ns: u64,

    // Rendezvous.
    /// Receives with bytes that were never granted.
    pub(crate) pulls: super::pulls::Pulls,
    /// Ranges that were granted and lost with their lane.
    pub(crate) missing: LateQueue<(Id, u64, u64)>,
    /// Its bulk lanes.
    pub(crate) lanes: Vec<Id>,
    /// Lanes were requested (from the loop, or from the peer) and are not there yet.
    pub(super) lanes_requested: bool,
    /// The peer requested lanes, and has granted on none since: lanes that look healthy here may be
    /// lost there.
    pub(super) lanes_wanted: bool,
    /// Lanes with lower numbers were opened before that.
    pub(super) wanted_before_lane: u32,
    /// Lanes lost since a chunk was last received or sent completely.
    pub(super) lane_failures: Late<LaneFailures>,
    pub(crate) next_lane: u32,
    /// Number of the connection that last replaced its control lane.
    pub(super) last_move: Option<u32>,
    /// Monitor of its control lane.
    pub(crate) control_lane: super::control_lane::LaneMonitor,
    /// It is in the list of sessions that may grant.
    pub(super) is_granting: bool,
    /// The goodbye is staged; until the session ends.
    pub(crate) is_leaving: bool,
    /// What follows its end, if it is left.
    pub(super) sequel: Sequel,
    /// Datagram-mode state; `None` in stream mode.
    pub(crate) datagram: Option<Box<super::datagram::Datagram>>,
    /// The rails between the two engines.
    pub(crate) rails: super::rails::Rails,
}

impl Session {
    pub(crate) fn new(engine: u64, locators: Locators, retry: Arc<Retry>) -> Self {
        Self {
            engine,
            locators,
            place: None,
            connection: Connection::new(retry),
            is_timed: false,
            failure: None,
            unreported: None,
            epoch: 0,
            id: 0,
            keys: None,
            has_checksums: false,
            bulk_in_datagrams: false,
            joins: JoinWindow::default(),
            has_offer: false,
            epoch_seen: 0,
            remotes: Vec::new(),
            outbox: Outbox::default(),
            control: LateQueue::default(),
            waiting: VecDeque::new(),
            one_sided: None,
            fences: LateQueue::default(),
            awaiting_delivery: VecDeque::new(),
            envelope_credit: SendCredit::default(),
            byte_credit: SendCredit::default(),
            eager_limit: EagerLimit::new(0, None),
            eager_window: 0,
            next_frame: 0,
            acked_frame: 0,
            completed_frame: None,
            asked_frame: None,
            asks_ack: false,
            is_dirty: false,
            envelopes: ReceiveCredit::default(),
            bytes: ReceiveCredit::default(),
            expected_frame: 0,
            announced_ack: 0,
            ack_wanted: false,
            pending_ack: PendingAck::default(),
            final_ack: Vec::new(),
            questions: Questions::default(),
            peer_answers: false,
            answers_process_queries: false,
            message_ns: 0,
            pulls: super::pulls::Pulls::default(),
            missing: LateQueue::default(),
            lanes: Vec::new(),
            lanes_requested: false,
            lanes_wanted: false,
            wanted_before_lane: 0,
            lane_failures: Late::NONE,
            next_lane: 0,
            last_move: None,
            control_lane: super::control_lane::LaneMonitor::default(),
            is_granting: false,
            is_leaving: false,
            sequel: Sequel::None,
            datagram: None,
            rails: super::rails::Rails::default(),
        }
    }

    /// Returns whether the RTS carries the address for CMA reads of `length` bytes.
    pub(super) fn offers_source(&self, length: u64) -> bool {
        let method = self.datagram.as_deref().map(|it| it.protocol().pull_method(length));
        method == Some(PullMethod::Memory)
    }

    /// Returns whether the session is established.
    #[inline]
    pub(crate) fn is_connected(&self) -> bool {
        self.connection.is_connected()
    }

    /// Returns whether a message of eager length may be sent before all others, given space.
    ///
    /// RR-CREDIT-1.
    #[inline]
    pub(crate) fn may_send_now(&self, length: u64, eager_limit: u32) -> bool {
        self.is_connected()
            && !self.is_leaving
            && (self.waiting.is_empty() || planted!(OvertakeWaiting))
            && length <= u64::from(eager_limit.min(self.eager_limit.bytes()))
            && self.envelope_credit.available() > 0
            && length <= u64::from(self.byte_credit.available())
    }

    /// Returns whether it continues without a control lane, so that another session with its peer
    /// would show its end.
    pub(crate) fn is_outlived(&self) -> bool {
        self.is_connected() && self.control_lane.is_lost()
    }

    /// Returns whether this side has something to pull, or the peer has announced that it has.
    pub(crate) fn needs_lane(&self) -> bool {
        self.lanes_wanted || !self.pulls.is_empty() || !self.missing.is_empty()
    }

    /// Starts an established connection: `ours` was announced, `theirs` received. `advised_from` is
    /// [`super::core::Config::advised_from`]. RR-SUM-1, RR-BULK-1.
    pub(crate) fn establish(
        &mut self,
        ours: Limits,
        theirs: Limits,
        keys: Option<SessionKeys>,
        advised_from: Option<u32>,
    ) {
        (self.keys, self.joins, self.next_lane) = (keys, JoinWindow::default(), 0);
        self.has_checksums = ours.checksum || theirs.checksum;
        self.outbox.use_checksums(self.has_checksums);
        self.peer_answers = theirs.answers;
        self.answers_process_queries = theirs.process_status;
        self.bulk_in_datagrams = ours.bulk_in_datagrams || theirs.bulk_in_datagrams;
        self.failure = None;
        self.epoch = self.epoch.wrapping_add(1);
        self.id = ours.session;
        self.envelope_credit = SendCredit::new(theirs.envelope_limit);
        self.byte_credit = SendCredit::new(theirs.byte_limit);
        self.eager_limit = EagerLimit::new(theirs.eager_limit, advised_from);
        self.eager_window = theirs.byte_limit;
        self.envelopes = ReceiveCredit::new(ours.envelope_limit, 1);
        // A message without credit is pulled, so a short window need not fit the longest.
        let largest = ours.eager_limit.min(ours.byte_limit / 4);
        self.bytes = ReceiveCredit::new(ours.byte_limit, largest);
        (self.next_frame, self.acked_frame) = (0, 0);
        (self.completed_frame, self.asked_frame, self.asks_ack) = (None, None, false);
        (self.expected_frame, self.announced_ack, self.ack_wanted) = (0, 0, false);
        self.pending_ack.clear();
        self.final_ack.clear();
        self.questions = Questions::default();
        (self.lanes_requested, self.lanes_wanted) = (false, false);
        (self.lane_failures, self.last_move) = (Late::NONE, None);
        self.rails = super::rails::Rails::new();
        (self.is_leaving, self.control_lane) = (false, super::control_lane::LaneMonitor::new());
        self.sequel = Sequel::None;
    }

    /// Returns why it cannot be used, or an interruption not yet reported to the owner.
    #[inline]
    pub(super) fn failure_to_report(&self) -> Option<&PeerFailure> {
        self.failure.as_ref().or(self.unreported.as_deref())
    }

    /// Returns whether a send has completed whose frame is not acknowledged, in stream mode.
    pub(super) fn has_unacked_completed_sends(&self) -> bool {
        self.completed_frame.is_some_and(|frame| !self.is_acknowledged(frame))
    }

    /// Requests, once, the acknowledgement that an idle peer's traffic has not carried. Returns
    /// `false` if there is nothing to request.
    ///
    /// RR-END-5.
    pub(super) fn ask_for_ack(&mut self) -> bool {
        self.asks_ack = self.is_connected()
            && self.datagram.is_none()
            && self.asked_frame != self.completed_frame
            && self.has_unacked_completed_sends();
        self.asks_ack
    }

    /// Reserves one frame that carries a message in the outbox; `None`: no space now.
    #[inline]
    pub(crate) fn push_message(
        &mut self,
        pool: &mut StagingPool,
        length: usize,
    ) -> Option<&mut [u8]> {
        let room = self.outbox.push(pool, length, false)?;
        self.next_frame = self.next_frame.wrapping_add(1);
        Some(room)
    }

    /// Returns the number of the frame that was pushed last.
    #[inline]
    pub(crate) fn last_frame(&self) -> u32 {
        self.next_frame.wrapping_sub(1)
    }

    /// Sends a control frame, now or as soon as there is space.
    ///
    /// RR-CREDIT-3.
    pub(crate) fn push_control(&mut self, pool: &mut StagingPool, control: ControlFrame) {
        let waits = self.datagram.is_some() || !self.control.is_empty();
        if waits || !self.try_push_control(pool, &control) {
            if let (ControlFrame::Reply(_), Some(it)) = (&control, &mut self.one_sided) {
                it.answers += 1;
            }
            self.control.push_back(control);
        }
    }

    fn try_push_control(&mut self, pool: &mut StagingPool, control: &ControlFrame) -> bool {
        let bytes = control.as_frame();
        let Some(room) = self.outbox.push(pool, bytes.len(), true) else { return false };
        room.copy_from_slice(bytes);
        if self.outbox.has_checksums() {
            self.outbox.add_to_sum(|sum| crc32c::crc32c_append(sum, bytes));
        }
        self.next_frame = self.next_frame.wrapping_add(1);
        true
    }

    /// Makes all staged frames pending, with acknowledgement and credit. Call it, send
    /// [`Outbox::pending`], and repeat until nothing is pending.
    #[inline]
    pub(crate) fn prepare(&mut self, pool: &mut StagingPool) {
        if self.datagram.is_some() {
            return;
        }
        while let Some(&control) = self.control.front() {
            if !self.try_push_control(pool, &control) {
                break;
            }
            self.control.pop_front();
            SessionOneSided::note_reply_staged(&mut self.one_sided, &control);
        }
        let is_open = self.outbox.has_open_segment();
        let speaks = is_open || self.has_update() || self.asks_ack;
        if !speaks || (!is_open && !self.outbox.push_empty(pool)) {
            return;
        }
        if self.asks_ack {
            self.asked_frame = self.completed_frame;
        }
        let wants_ack = std::mem::take(&mut self.asks_ack) || !self.awaiting_delivery.is_empty();
        let ack = if wants_ack { FLAG_ACK_REQUESTED } else { 0 };
        let question = self.questions.next_flag();
        let header = SegmentHeader {
            length: 0.into(),
            frames: 0.into(),
            flags: (ack | question).into(),
            first_frame: self.first_open_frame().into(),
            ack: self.expected_frame.into(),
            envelope_limit: self.envelopes.announce().into(),
            byte_limit: self.bytes.announce().into(),
        };
        self.announced_ack = self.expected_frame;
        self.ack_wanted = false;
        self.outbox.seal(header);
    }

    fn first_open_frame(&self) -> u32 {
        self.next_frame.wrapping_sub(u32::from(self.outbox.open_frames()))
    }

    /// Returns whether acknowledgements or credit should be sent without waiting for traffic.
    ///
    /// RR-SEG-5.
    #[inline(always)]
    pub(crate) fn has_update(&self) -> bool {
        if self.datagram.as_ref().is_some_and(|datagram| datagram.update_due) {
            return true;
        }
        (self.ack_wanted && self.announced_ack != self.expected_frame)
            || self.questions.are_due()
            || (!planted!(LoseCreditNews)
                && (self.envelopes.is_update_due() || self.bytes.is_update_due()))
    }

    /// Splits the first complete segment off `bytes`; `None`: more bytes are needed.
    ///
    /// RR-SEG-1.
    #[inline]
    pub(crate) fn split_segment(bytes: &[u8]) -> Result<Option<Whole<'_>>, FrameError> {
        let Ok((header, rest)) = SegmentHeader::ref_from_prefix(bytes) else { return Ok(None) };
        let length = header.length.get() as usize;
        if !(SEGMENT_HEADER_BYTES..=SEGMENT_BYTES_MAX).contains(&length) {
            return Err(FrameError::BadSegmentLength(header.length.get()));
        }
        match rest.get(..length - SEGMENT_HEADER_BYTES) {
            Some(body) => Ok(Some((header, body, length))),
            None => Ok(None),
        }
    }

    /// Splits a segment in a session with checksums. The header's checksum is verified as soon as
    /// it is there: with a wrong length the rest would never arrive.
    ///
    /// RR-SUM-3.
    pub(crate) fn split_checked(bytes: &[u8]) -> Result<Option<Whole<'_>>, FrameError> {
        let Ok((header, rest)) = SegmentHeader::ref_from_prefix(bytes) else { return Ok(None) };
        let Ok((sums, _)) = SegmentSums::ref_from_prefix(rest) else { return Ok(None) };
        let frames = sums.frames.get();
        let expected = SegmentSums::new(header, frames);
        let has_sums = header.flags.get() & FLAG_CHECKSUM != 0;
        if expected.header != sums.header || !has_sums {
            let (sent, computed) = (sums.header.get(), expected.header.get());
            return Err(FrameError::Corrupted { sent, computed, what: " with its header" });
        }
        let Some((header, body, length)) = Self::split_segment(bytes)? else { return Ok(None) };
        let Some(body) = body.get(SEGMENT_SUMS_BYTES..) else {
            return Err(FrameError::BadSegmentLength(header.length.get()));
        };
        let computed = crc32c::crc32c(body);
        if computed != frames && !planted!(SkipSegmentSum) {
            return Err(FrameError::Corrupted { sent: frames, computed, what: "" });
        }
        Ok(Some((header, body, length)))
    }

    /// Handles a segment's header. Returns `true` if there is more credit than before.
    ///
    /// RR-SEG-2.
    #[inline]
    pub(crate) fn handle_header(&mut self, header: &SegmentHeader) -> Result<bool, FrameError> {
        let got = header.first_frame.get();
        if got != self.expected_frame {
            return Err(FrameError::OutOfOrder { expected: self.expected_frame, got });
        }
        self.expected_frame = got.wrapping_add(u32::from(header.frames.get()));
        self.ack_wanted |= header.flags.get() & FLAG_ACK_REQUESTED != 0;
        self.questions.note(header.flags.get());
        let ack = header.ack.get();
        // An acknowledgement of unsent frames is ignored.
        if self.next_frame.wrapping_sub(ack) <= self.next_frame.wrapping_sub(self.acked_frame) {
            self.acked_frame = ack;
        }
        let lost = if planted!(LoseCredit) { self.envelope_credit.available() / 2 } else { 0 };
        self.envelope_credit.spend(lost);
        let more = self.envelope_credit.handle_limit(header.envelope_limit.get());
        Ok(self.byte_credit.handle_limit(header.byte_limit.get()) || more)
    }

    /// Returns whether the peer has acknowledged a frame that was sent in stream mode.
    #[inline]
    fn is_acknowledged(&self, frame: u32) -> bool {
        let outstanding = self.next_frame.wrapping_sub(frame);
        self.next_frame.wrapping_sub(self.acked_frame) < outstanding
    }

    /// Returns the next eager send whose frame the peer has acknowledged.
    ///
    /// RR-SEG-3.
    #[inline]
    pub(crate) fn pop_delivered(&mut self) -> Option<Id> {
        let &(frame, operation) = self.awaiting_delivery.front()?;
        if !self.is_acknowledged(frame) && !planted!(EarlyDelivered) {
            return None;
        }
        self.awaiting_delivery.pop_front();
        Some(operation)
    }
}
