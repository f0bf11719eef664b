//! Handles received segments: each frame once, and immediately unless order requires it to wait.

use super::super::Session;
use super::Segments;
use super::fast_path::Taken;
use super::order::{EnvelopeHeader, Held};
use super::split::split_segment;
use super::transport::Transport;
use super::uncommon::Uncommon;
use super::window::{Coming, FRAMES_MAX};
use crate::proto::context::Cx;
use crate::proto::core::Core;
use crate::proto::effects::Effects;
use crate::proto::failure::PeerFailure;
use crate::proto::ready::Work;
use crate::proto::receive::LongMatched;
use crate::wire::FrameRange;
use crate::wire::segment::SegmentHeader;
use crate::wire::{Frame, FrameError, Frames};

/// Parses `bytes` as exactly one segment.
#[inline(always)]
fn only_segment(bytes: &[u8]) -> Result<(&SegmentHeader, &[u8]), FrameError> {
    let whole = split_segment(bytes)?.filter(|&(.., length)| length == bytes.len());
    let (header, body, _) = whole.ok_or(FrameError::BadSegmentLength(bytes.len() as u32))?;
    Ok((header, body))
}

impl Segments {
    /// Notes and classifies a received frame.
    ///
    /// RR-DGRAM-1.
    #[inline]
    fn note_frame(&mut self, number: u32) -> Coming {
        let coming = self.received.note_frame(number);
        if self.received.has_early_frames() {
            self.uncommon.add(Uncommon::EARLY);
        }
        coming
    }

    /// Notes the peer's goodbye in frame `number`; the first one counts.
    fn note_goodbye(&mut self, number: u32, reason: u8) {
        self.received.note_goodbye(number, reason);
        self.uncommon.add(Uncommon::GOODBYE);
    }

    /// Takes a goodbye once everything the peer sent before it has arrived, and returns the failure
    /// that it is for this side. A peer that ends the session for a failure retransmits nothing, so
    /// missing frames stay missing.
    ///
    /// RR-END-1, RR-DGRAM-9.
    fn take_due_goodbye(&mut self) -> Option<PeerFailure> {
        let (reason, is_last) = self.received.goodbye()?;
        let failure = PeerFailure::of_goodbye(reason);
        if failure == PeerFailure::Left && !is_last {
            return None;
        }
        self.answer_goodbye();
        Some(failure)
    }

    /// Sends what the peer waits for with the next segment, or alone.
    #[inline(always)]
    pub(super) fn flush_update(&mut self, cx: &mut Cx<'_>) {
        if self.is_established() && self.has_update() {
            cx.add_work(Work::Flush);
        }
    }

    /// Sends replies. An error: the peer does not read them.
    fn flush_replies(&mut self, cx: &mut Cx<'_>) -> Result<(), FrameError> {
        let operations = cx.shared.operations.limit().min(OPERATIONS_ANSWERED_MAX);
        let answers_max = 4 * operations + 2 * FRAMES_MAX as usize;
        if self.control.len() > answers_max {
            return Err(FrameError::AnswersWait(self.control.len()));
        }
        if self.is_established() && (self.has_update() || !self.control.is_empty()) {
            cx.add_work(Work::Flush);
        }
        Ok(())
    }
}

impl Session {
    /// Handles the header of a segment, but for its acknowledgement: requests of the peer, credit.
    #[inline(always)]
    pub(super) fn handle_header(&mut self, cx: &mut Cx<'_>, header: &SegmentHeader) {
        let segments = &mut self.segments;
        segments.received.handle_requests(header);
        let limits = (header.envelope_limit.get(), header.byte_limit.get());
        let has_more = segments.credits.handle_limits(limits.0, limits.1);
        // Nearly every message carries credit; that alone does not keep a turn going.
        if has_more && (!self.is_free_of(Uncommon::WAITING) || self.one_sided.has_ready()) {
            cx.add_work(Work::Stage);
        }
        cx.shared.note_segment();
    }

    /// Returns whether the peer has left, or frames need replies.
    #[inline(always)]
    pub(super) fn has_replies_due(&mut self) -> bool {
        !self.is_free_of(Uncommon::REPLIES) || self.one_sided.has_flushes()
    }
}

impl EnvelopeHeader {
    /// Lets a session take this message, whose turn it is and whose credit is charged. Returns what
    /// it has matched, if that is to be pulled.
    fn deliver_to(
        &self,
        session: &mut Session,
        cx: &mut Cx<'_>,
        payload: &[u8],
        now_ns: u64,
        effects: &mut impl Effects,
    ) -> LongMatched {
        match self {
            Self::Eager(header, data) => {
                session.take_eager(cx, header, *data, payload, now_ns, effects)?;
                Ok(None)
            }
            Self::Rts(header, data) => session.take_rts(cx, header, *data, payload, effects),
        }
    }
}

/// Limit on a peer's operations whose replies wait at a time, for a peer that reads none.
const OPERATIONS_ANSWERED_MAX: usize = 1 << 20;

impl Core {
    /// Handles one whole segment, received on any transport of a session. An error means that the
    /// peer violated the protocol, or, as [`FrameError::NoSession`], that this engine has a defect:
    /// fail the session.
    ///
    /// RR-DGRAM-5, RR-SEG-1.
    #[inline(always)]
    pub(crate) fn handle_lone_segment(
        &mut self,
        slot: u32,
        bytes: &[u8],
        now_ns: u64,
        effects: &mut impl Effects,
    ) -> Result<(), FrameError> {
        let (header, body) = only_segment(bytes)?;
        self.handle_segment(slot, (header, body), None, now_ns, effects)
    }

    /// Handles a segment received on a lane that does not acknowledge to the peer.
    ///
    /// RR-SHM-8.
    #[inline]
    pub(crate) fn handle_ring_segment(
        &mut self,
        slot: u32,
        bytes: &[u8],
        now_ns: u64,
        effects: &mut impl Effects,
    ) -> Result<(), FrameError> {
        let (header, body) = only_segment(bytes)?;
        self.handle_segment(slot, (header, body), Some(Transport::Ring), now_ns, effects)
    }

    /// Handles a segment received on any transport of a session. `transport`: the one that it came
    /// on, if that does not acknowledge itself; then an acknowledgement is owed.
    pub(in crate::proto) fn handle_segment(
        &mut self,
        slot: u32,
        (header, body): (&SegmentHeader, &[u8]),
        transport: Option<Transport>,
        now_ns: u64,
        effects: &mut impl Effects,
    ) -> Result<(), FrameError> {
        let (session, mut cx) = self.enter_receiving(slot)?;
        if !session.is_connected() {
            return Ok(());
        }
        if let Some(transport) = transport {
            let frames = (header.range(), body.len());
            session.segments.note_segment_from(&mut cx, transport, frames, now_ns);
        }
        session.handle_header(&mut cx, header);
        session.handle_frame_ack(&mut cx, header.ack.get(), effects);
        let frames = (header.range(), body);
        let taken = session.receive_fast(&mut cx, frames, now_ns, effects);
        if !taken.is_all_of(frames) || session.has_replies_due() {
            return self.handle_rest(slot, frames, taken, now_ns, effects);
        }
        cx.shared.note_frames(taken.frames);
        session.segments.flush_update(&mut cx);
        Ok(())
    }

    /// Handles the frames of a segment without a header, from a ring.
    ///
    /// RR-SHM-8.
    #[inline]
    pub(crate) fn handle_ring_frames(
        &mut self,
        slot: u32,
        frames: (FrameRange, &[u8]),
        now_ns: u64,
        effects: &mut impl Effects,
    ) -> Result<(), FrameError> {
        let (session, mut cx) = self.enter_receiving(slot)?;
        if !session.is_connected() {
            return Ok(());
        }
        let noted = (frames.0, frames.1.len());
        session.segments.note_segment_from(&mut cx, Transport::Ring, noted, now_ns);
        cx.shared.note_segment();
        let taken = session.receive_fast(&mut cx, frames, now_ns, effects);
        if !taken.is_all_of(frames) || session.has_replies_due() {
            return self.handle_rest(slot, frames, taken, now_ns, effects);
        }
        cx.shared.note_frames(taken.frames);
        session.segments.flush_update(&mut cx);
        Ok(())
    }

    /// Handles the frames of a segment that the fast path has left, and what follows them.
    ///
    /// RR-DGRAM-1, RR-DGRAM-2, RR-SEG-4.
    fn handle_rest(
        &mut self,
        slot: u32,
        frames: (FrameRange, &[u8]),
        mut taken: Taken,
        now_ns: u64,
        effects: &mut impl Effects,
    ) -> Result<(), FrameError> {
        let (session, mut cx) = self.enter_receiving(slot)?;
        if !taken.is_all_of(frames) {
            taken = session.receive_puts(&mut cx, frames, taken, now_ns, effects);
        }
        if taken.is_all_of(frames) {
            cx.shared.note_frames(taken.frames);
        } else {
            self.handle_frames_from(slot, frames, taken, now_ns, effects)?;
        }
        let (session, mut cx) = self.enter_receiving(slot)?;
        if session.has_replies_due() {
            session.answer_flushes(&mut cx);
            if let Some(failure) = session.segments.take_due_goodbye() {
                self.fail_session(slot, failure, effects);
            }
        }
        let (session, mut cx) = self.enter_receiving(slot)?;
        session.segments.flush_replies(&mut cx)
    }

    /// Handles the frames after those that the fast path has taken.
    fn handle_frames_from(
        &mut self,
        slot: u32,
        (range, body): (FrameRange, &[u8]),
        fast: Taken,
        now_ns: u64,
        effects: &mut impl Effects,
    ) -> Result<(), FrameError> {
        let mut frames = Frames::new(&body[fast.bytes..]);
        let mut held = fast.frames;
        let mut number = range.first.wrapping_add(u32::from(held));
        while let Some(frame) = frames.next_frame()? {
            let (session, mut cx) = self.enter_receiving(slot)?;
            if !session.segments.is_established() {
                return Ok(());
            }
            held = held.wrapping_add(1);
            match session.segments.note_frame(number) {
                Coming::Again if !planted!(RepeatFrames) => {}
                Coming::Fresh | Coming::Again => match EnvelopeHeader::of_frame(&frame) {
                    None => {
                        self.handle_other(slot, number, &frame, now_ns, effects)?;
                        self.take_early_after(slot, number, now_ns, effects)?;
                    }
                    Some((envelope, bytes)) => {
                        let unexpected = &mut cx.shared.unexpected;
                        let received = &mut session.segments.received;
                        if received.admit(unexpected, number, envelope, bytes)? {
                            let taken =
                                envelope.deliver_to(session, &mut cx, bytes, now_ns, effects)?;
                            self.pull_long(slot, taken, effects);
                            self.take_early_after(slot, number, now_ns, effects)?;
                        } else {
                            session.segments.uncommon.add(Uncommon::EARLY);
                        }
                    }
                },
                Coming::Beyond => {
                    let expected = session.segments.expected_frame();
                    return Err(FrameError::BeyondWindow { expected, got: number });
                }
            }
            number = number.wrapping_add(1);
        }
        self.shared.note_frames(held);
        let announced = range.count;
        if held != announced {
            return Err(FrameError::WrongCount { announced, held });
        }
        Ok(())
    }

    /// Takes the messages that have waited for frame `number`, and for each other.
    ///
    /// RR-DGRAM-4.
    fn take_early_after(
        &mut self,
        slot: u32,
        mut number: u32,
        now_ns: u64,
        effects: &mut impl Effects,
    ) -> Result<(), FrameError> {
        while !planted!(KeepHeld)
            && let (session, mut cx) = self.enter_receiving(slot)?
            && let Some(held) = session.segments.received.take_after(number)
        {
            number = held.frame;
            let Held { envelope, payload, payload_bytes, .. } = held;
            let bytes = &payload[..payload_bytes];
            let taken = envelope.deliver_to(session, &mut cx, bytes, now_ns, effects);
            cx.shared.unexpected.give_back(payload);
            self.pull_long(slot, taken?, effects);
        }
        Ok(())
    }

    fn handle_other(
        &mut self,
        slot: u32,
        number: u32,
        frame: &Frame<'_>,
        now_ns: u64,
        effects: &mut impl Effects,
    ) -> Result<(), FrameError> {
        match frame {
            Frame::Data(data, bytes) => self.handle_data(slot, data, bytes, effects)?,
            Frame::Grant(grant, over) => {
                let (session, mut cx) = self.enter_receiving(slot)?;
                session.handle_grant(&mut cx, grant, *over)?;
            }
            Frame::Done(done) => self.handle_done(slot, done, now_ns, effects),
            Frame::Matched(matched) => {
                self.with(slot, |it, mut cx| cx.handle_matched(&it.fences, matched, effects));
            }
            Frame::Refused(refused, lane) => {
                self.handle_refused(slot, refused.operation.get(), *lane, effects);
            }
            Frame::LanesWanted => {
                self.with(slot, |it, mut cx| it.handle_lanes_wanted(&mut cx, now_ns));
            }
            Frame::Rail(rail) => {
                let (session, mut cx) = self.enter_receiving(slot)?;
                session.handle_rail(&mut cx, rail)?;
            }
            Frame::LaneLost(lost, lane) => {
                self.with(slot, |it, mut cx| it.lanes.handle_lost(&mut cx, &it.rails, lost, *lane));
            }
            Frame::OneSided(header, data, operands) => {
                let (request, with) = ((number, *header), (*data, *operands));
                self.pull_matched(slot, effects, |it, cx, effects| {
                    it.handle_one_sided(cx, request, with, now_ns, effects)
                })?;
            }
            Frame::Reply(reply, bytes) => self.handle_reply(slot, reply, bytes, effects)?,
            Frame::ReplyRts(reply, source) => self.pull_matched(slot, effects, |it, cx, _| {
                Ok(it.handle_reply_rts(cx, reply, source))
            })?,
            Frame::ProcessQuery(query) => self.handle_process_query(slot, query, now_ns),
            Frame::ProcessStatus(status) => {
                let (session, mut cx) = self.enter_receiving(slot)?;
                let from = (session.id, session.peer.locators().first());
                cx.handle_process_status(from, status)?;
            }
            Frame::Goodbye(goodbye) => {
                self.with(slot, |it, _| it.segments.note_goodbye(number, goodbye.reason));
            }
            Frame::Eager(..) | Frame::Rts(..) => {}
        }
        Ok(())
    }
}
