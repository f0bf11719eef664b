//! What a session has received, and what the next segment to the peer has to announce of it.

use std::mem::offset_of;

use super::super::credit::ReceiveCredits;
use super::order::{EnvelopeHeader, Held, ReorderBuffer};
use super::transport::PendingAck;
use super::window::{Arrivals, Coming, is_before};
use crate::proto::question::Questions;
use crate::proto::unexpected::Unexpected;
use crate::wire::FrameError;
use crate::wire::segment::{FLAG_ACK_REQUESTED, SegmentHeader};

/// The receiving side of a session's [`super::Segments`]. The first two cache lines are those that
/// a segment received in order touches.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Received {
    /// Credit of the peer. It outlives the session until its unexpected messages are received.
    credits: ReceiveCredits,
    /// The cumulative acknowledgement that the peer was sent last.
    announced_ack: u32,
    asked_end: u32,
    /// The peer has requested an acknowledgement of the frames before `asked_end`.
    ack_wanted: bool,
    questions: Questions,

    arrivals: Arrivals,
    /// What streams and rings carried since the last transmission.
    pending_ack: PendingAck,
    /// When a message last arrived.
    message_ns: u64,

    reorder_buffer: ReorderBuffer,
    /// Frame and reason of the peer's goodbye.
    goodbye: Option<(u32, u8)>,
}

const _: () = {
    assert!(offset_of!(Received, arrivals) == 64, "what is announced is in the first line");
    assert!(offset_of!(Received, reorder_buffer) <= 128, "what comes in order is in the second");
};

impl Received {
    pub(super) fn new(seed: u64, credits: ReceiveCredits) -> Self {
        Self {
            arrivals: Arrivals::default(),
            reorder_buffer: ReorderBuffer::new(seed),
            credits,
            announced_ack: 0,
            ack_wanted: false,
            asked_end: 0,
            pending_ack: PendingAck::default(),
            questions: Questions::default(),
            goodbye: None,
            message_ns: 0,
        }
    }

    /// Returns the receiving side of the session that follows, with this credit of its peer.
    pub(super) fn successor(&self, seed: u64, credits: ReceiveCredits) -> Self {
        Self { message_ns: self.message_ns, ..Self::new(seed, credits) }
    }

    /// Returns the first missing frame, which is the cumulative acknowledgement.
    #[inline]
    pub(super) fn expected(&self) -> u32 {
        self.arrivals.expected()
    }

    /// Returns whether a frame has arrived before one that is missing.
    pub(super) fn has_early_frames(&self) -> bool {
        self.arrivals.has_early()
    }

    /// Returns whether a frame or a message has arrived before one that it follows.
    pub(super) fn has_early(&self) -> bool {
        self.has_early_frames() || !self.reorder_buffer.is_empty()
    }

    /// Returns whether no message waits for an earlier one.
    #[cfg(any(test, feature = "sim"))]
    pub(super) fn is_in_order(&self) -> bool {
        self.reorder_buffer.is_empty()
    }

    /// Notes and classifies a frame.
    #[inline]
    pub(super) fn note_frame(&mut self, number: u32) -> Coming {
        self.arrivals.note(number)
    }

    /// Notes the next frames, while none has arrived before one that is missing.
    #[inline]
    pub(super) fn note_next_frames(&mut self, frames: u16, now_ns: u64) {
        self.arrivals.note_next(u32::from(frames));
        self.message_ns = now_ns;
    }

    /// Notes that a message has arrived.
    #[inline]
    pub(super) fn note_message(&mut self, now_ns: u64) {
        self.message_ns = now_ns;
    }

    /// Returns when a message last arrived; 0: none has.
    pub(super) fn message_ns(&self) -> u64 {
        self.message_ns
    }

    /// Returns the credit of the peer.
    pub(super) fn credits(&self) -> &ReceiveCredits {
        &self.credits
    }

    /// Returns the same, mutable.
    #[inline]
    pub(super) fn credits_mut(&mut self) -> &mut ReceiveCredits {
        &mut self.credits
    }

    /// Charges a message with these bytes in its frame, number `number`. Returns whether its turn
    /// has come; else it is kept until the one that it follows has been taken. An error: it has no
    /// credit, or another message follows that one.
    ///
    /// RR-CREDIT-1, RR-DGRAM-4.
    pub(super) fn admit(
        &mut self,
        unexpected: &mut Unexpected,
        number: u32,
        envelope: EnvelopeHeader,
        payload: &[u8],
    ) -> Result<bool, FrameError> {
        let payload_bytes = payload.len();
        self.credits.charge(payload_bytes as u32).map_err(FrameError::NoCredit)?;
        let predecessor = self.reorder_buffer.waits_for(number, &envelope, &self.arrivals);
        let Some(predecessor) = predecessor else { return Ok(true) };
        let held =
            Held { frame: number, envelope, payload: unexpected.keep(payload), payload_bytes };
        match self.reorder_buffer.insert(predecessor, held) {
            Ok(()) => Ok(false),
            Err(held) => {
                self.credits.consume(payload_bytes as u32);
                unexpected.give_back(held.payload);
                Err(FrameError::FollowsTwice(predecessor))
            }
        }
    }

    /// Takes the message that follows the one in frame `predecessor`, if it has arrived.
    pub(super) fn take_after(&mut self, predecessor: u32) -> Option<Held> {
        self.reorder_buffer.take_after(predecessor)
    }

    /// Drops messages that wait for earlier ones, which will not arrive.
    pub(super) fn drop_early(&mut self, unexpected: &mut Unexpected) {
        for held in self.reorder_buffer.drain() {
            self.credits.consume(held.payload_bytes as u32);
            unexpected.give_back(held.payload);
        }
    }

    /// Notes the peer's goodbye; the first one counts.
    pub(super) fn note_goodbye(&mut self, number: u32, reason: u8) {
        self.goodbye.get_or_insert((number, reason));
    }

    /// Returns whether the peer's goodbye has arrived.
    pub(super) fn has_goodbye(&self) -> bool {
        self.goodbye.is_some()
    }

    /// Returns the reason of the peer's goodbye, and whether all frames before it have arrived.
    pub(super) fn goodbye(&self) -> Option<(u8, bool)> {
        let (number, reason) = self.goodbye?;
        Some((reason, is_before(number, self.expected())))
    }

    /// Handles what a segment requests of this side: an acknowledgement, an answer.
    #[inline(always)]
    pub(super) fn handle_requests(&mut self, header: &SegmentHeader) {
        if header.flags.get() & FLAG_ACK_REQUESTED != 0 {
            let end = header.first_frame.get().wrapping_add(u32::from(header.frames.get()));
            self.request_ack(end);
        }
        self.questions.note(header.flags.get());
    }

    /// Notes that an acknowledgement is due once all frames before `end` have arrived.
    ///
    /// RR-DGRAM-11.
    pub(super) fn request_ack(&mut self, end: u32) {
        if !self.ack_wanted || is_before(self.asked_end, end) {
            self.asked_end = end;
        }
        self.ack_wanted = true;
    }

    /// Returns what was received from transports that do not acknowledge.
    #[inline]
    pub(super) fn pending_ack(&self) -> &PendingAck {
        &self.pending_ack
    }

    /// Returns the same, mutable.
    #[inline]
    pub(super) fn pending_ack_mut(&mut self) -> &mut PendingAck {
        &mut self.pending_ack
    }

    /// Returns the questions between the two engines.
    pub(super) fn questions(&self) -> &Questions {
        &self.questions
    }

    /// Returns the same, mutable.
    pub(super) fn questions_mut(&mut self) -> &mut Questions {
        &mut self.questions
    }

    /// Returns whether everything received is acknowledged.
    pub(super) fn is_ack_announced(&self) -> bool {
        self.announced_ack == self.expected()
    }

    /// Returns whether acknowledgements, answers or credit should be sent without waiting for
    /// traffic.
    ///
    /// RR-SEG-5.
    #[inline(always)]
    pub(super) fn has_update(&self) -> bool {
        (self.ack_wanted && !self.is_ack_announced())
            || self.questions.are_due()
            || self.credits.is_update_due()
    }

    /// Writes what a segment announces into its header, which is sent now: the acknowledgement,
    /// limits, and a question.
    #[inline(always)]
    pub(super) fn announce(&mut self, header: &mut SegmentHeader) {
        let expected = self.expected();
        self.announced_ack = expected;
        if let Some(end) = self.pending_ack.clear()
            && is_before(expected, end)
        {
            // A frame before those received is still missing.
            self.request_ack(end);
        }
        // Frames before the requested end may still be missing.
        self.ack_wanted &= is_before(expected, self.asked_end);
        let too_much = u32::from(planted!(AckTooMuch) && self.has_early_frames());
        let (envelopes, bytes) = self.credits.announce();
        header.flags |= self.questions.next_flag();
        header.ack = expected.wrapping_add(too_much).into();
        header.envelope_limit = envelopes.into();
        header.byte_limit = bytes.into();
    }

    /// Frees memory that an idle session does not need.
    pub(super) fn shrink(&mut self) {
        self.arrivals.shrink();
        self.reorder_buffer.shrink();
    }

    /// Starts at another number than 0, as after a long session.
    #[cfg(test)]
    pub(super) fn start_at(&mut self, frame: u32) {
        self.arrivals = Arrivals::starting_at(frame);
        self.announced_ack = frame;
    }
}
