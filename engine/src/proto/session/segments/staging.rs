//! Stages messages in segments: whole where they fit, otherwise as a request to send.
//! Messages that do not fit a datagram use the session's stream if permitted, in long segments.

use zerocopy::IntoBytes;

use super::super::Session;
use super::super::rendezvous::serving::Serving;
use super::protocol::{PullMethod, Route};
use super::room::Pushed;
use super::segment::SegmentPool;
use super::{SegmentId, Segments};
use crate::proto::context::Cx;
#[cfg(doc)]
use crate::proto::core::Core;
use crate::proto::data_bytes::DataBytes;
use crate::proto::effects::CompletionLevel;
use crate::proto::hint::Hint;
use crate::proto::operation::OperationState;
use crate::proto::ready::Work;
use crate::proto::session::send::{SendRequest, Staged, eager_header, rts_header};
use crate::proto::table::Id;
use crate::wire::cma_source::{CMA_SOURCE_BYTES, FLAG_CMA};
use crate::wire::eager::{self, EAGER_HEADER_BYTES};
use crate::wire::one_sided::{ONE_SIDED_HEADER_BYTES, OneSided};
use crate::wire::rts::{FLAG_UNSOLICITED, RTS_HEADER_BYTES};
use crate::wire::unsolicited::UNSOLICITED_BYTES;
use crate::wire::{DATA_BYTES, Eager, Rts, UnsolicitedPieces};

/// How the next message of a session travels.
#[derive(Clone, Copy)]
struct Course {
    route: Route,
    /// Payload in the envelope's frame: a [`crate::wire::CmaSource`] if it is read from memory, or
    /// an [`UnsolicitedPieces`].
    payload: usize,
    /// The pieces that follow without a grant.
    unsolicited: Option<UnsolicitedPieces>,
    /// Its frames go on the stream.
    is_long: bool,
}

impl Course {
    fn is_pulled(&self) -> bool {
        matches!(self.route, Route::Pull(_))
    }

    /// Returns whether the receiver reads it from this process's memory.
    fn is_read(&self) -> bool {
        self.route == Route::Pull(PullMethod::Memory)
    }
}

/// A header with the distance from the previous message.
trait Linked: IntoBytes + zerocopy::Immutable {
    fn set_predecessor_distance(&mut self, predecessor_distance: u16);
}

impl Linked for Eager {
    fn set_predecessor_distance(&mut self, predecessor_distance: u16) {
        self.predecessor_distance = predecessor_distance.into();
    }
}

impl Linked for Rts {
    fn set_predecessor_distance(&mut self, predecessor_distance: u16) {
        self.predecessor_distance = predecessor_distance.into();
    }
}

/// Stages a message that fits a segment, as [`Core::stage_now`] does.
#[inline(always)]
pub(crate) fn stage_in_segment<'a>(
    session: &'a mut Session,
    pool: &mut SegmentPool,
    request: &SendRequest,
    target: u16,
) -> Option<&'a mut [u8]> {
    if !session.may_send_now(request.length) {
        return None;
    }
    let data = DataBytes::of(request.data);
    let data = data.as_slice();
    let bytes = (EAGER_HEADER_BYTES + data.len()).saturating_add(request.length as usize);
    let segments = &mut session.segments;
    let route = segments.protocol.route(request.length, data.len());
    let pushed = match route {
        Route::Segment => segments.push_message(pool, bytes, request.hint),
        Route::Stream if segments.pulls(pool, request.length) => None,
        Route::Stream if segments.eager_limit.is_pull_due(request.length) => None,
        Route::Stream => segments.push_long(pool, bytes),
        Route::Pull(_) => None,
    };
    let Pushed { frame, base, id } = pushed?;
    if route == Route::Stream {
        segments.eager_limit.note_message(request.length, false);
    }
    let stream = (request.endpoint, target, request.context);
    let mut header = eager_header(request, target, 0, 0);
    header.set_predecessor_distance(segments.chain.follow(stream, frame, base));
    segments.credits.spend(request.length as u32);
    let segment = debug_assert_some!(segments.slots.at_mut(id), "it was just pushed to")?;
    segment.completes_unacked = true;
    let (head, mut room) = segment.push(bytes).split_at_mut(EAGER_HEADER_BYTES);
    head.copy_from_slice(header.as_bytes());
    if !data.is_empty() {
        let behind;
        (behind, room) = room.split_at_mut(DATA_BYTES);
        behind.copy_from_slice(data);
    }
    Some(room)
}

/// Reserves space after its header for the bytes of a put that completes locally. It fits a
/// datagram, or uses the stream.
#[inline]
pub(crate) fn stage_put<'a>(
    segments: &'a mut Segments,
    pool: &mut SegmentPool,
    header: &OneSided,
    hint: Hint,
) -> Option<&'a mut [u8]> {
    let bytes = ONE_SIDED_HEADER_BYTES + header.length.get() as usize;
    let pushed = if bytes > segments.frame_bytes_max() {
        segments.push_long(pool, bytes)
    } else {
        segments.push_message(pool, bytes, hint)
    };
    let Pushed { id, .. } = pushed?;
    let segment = debug_assert_some!(segments.slots.at_mut(id), "it was just pushed to")?;
    segment.completes_unacked = true;
    let (head, room) = segment.push(bytes).split_at_mut(ONE_SIDED_HEADER_BYTES);
    head.copy_from_slice(header.as_bytes());
    Some(room)
}

impl Segments {
    /// Writes the frame of a message with space for its payload at the end. Returns its segment.
    /// The caller has checked credit.
    fn push_envelope(
        &mut self,
        cx: &mut Cx<'_>,
        request: &SendRequest,
        target: u16,
        mut header: impl Linked,
        course: Course,
    ) -> Option<SegmentId> {
        let pool = &mut cx.shared.pool;
        let length = header.as_bytes().len();
        let data = DataBytes::of(request.data);
        let data = data.as_slice();
        let room = length + data.len() + course.payload;
        let pushed = if course.is_long {
            self.push_long(pool, room)
        } else if room <= self.frame_bytes_max() {
            self.push_message(pool, room, request.hint)
        } else {
            None
        };
        let Pushed { frame, base, id } = pushed?;
        let stream = (request.endpoint, target, request.context);
        header.set_predecessor_distance(self.chain.follow(stream, frame, base));
        let segment = debug_assert_some!(self.slots.at_mut(id), "it was just pushed to")?;
        let (head, room) = segment.push(room).split_at_mut(length);
        head.copy_from_slice(header.as_bytes());
        room[..data.len()].copy_from_slice(data);
        cx.add_work(Work::Flush);
        Some(id)
    }

    /// Stages the frame of message `id` to endpoint `target`, and returns its segment, where the
    /// caller writes its payload. `None`: no credit or no space now.
    fn stage_frame(
        &mut self,
        cx: &mut Cx<'_>,
        id: Id,
        (request, target): (&SendRequest, u16),
        unsolicited: Option<UnsolicitedPieces>,
    ) -> Option<(SegmentId, Course)> {
        let SendRequest { length, level, .. } = *request;
        let course = self.course_of(cx, request, unsolicited)?;
        let payload = course.payload;
        let is_pulled = course.is_pulled();
        let report = !is_pulled && level == CompletionLevel::Match;
        let (flags, name) = if report { (eager::FLAG_REPORT_MATCH, id.to_u64()) } else { (0, 0) };
        let charged = if is_pulled { payload } else { length as usize };
        let segment = if is_pulled {
            let mut header = rts_header(request, target, id, payload as u32);
            header.flags |= if course.is_read() { FLAG_CMA } else { 0 };
            header.flags |= course.unsolicited.map_or(0, |_| FLAG_UNSOLICITED);
            self.push_envelope(cx, request, target, header, course)?
        } else {
            let header = eager_header(request, target, flags, name);
            self.push_envelope(cx, request, target, header, course)?
        };
        self.credits.spend(charged as u32);
        self.eager_limit.note_message(length, is_pulled);
        Some((segment, course))
    }

    /// Selects how its next message is sent: the row of its length, or a pull where
    /// the limits of the moment are in the way. `None`: not now.
    ///
    /// RR-CREDIT-1, RR-DGRAM-12.
    fn course_of(
        &self,
        cx: &Cx<'_>,
        request: &SendRequest,
        unsolicited: Option<UnsolicitedPieces>,
    ) -> Option<Course> {
        let SendRequest { length, hint, .. } = *request;
        let data_bytes = request.data_bytes();
        let protocol = &self.protocol;
        let eager_limit = u64::from(self.eager_limit_now());
        let bytes_left = u64::from(self.credits.bytes_left());
        let pull = Route::Pull(protocol.pull_method(length));
        let route = match protocol.route(length, data_bytes) {
            _ if length > hint.eager_limit(eager_limit) || length > bytes_left => pull,
            // A peer may pull messages that could have been sent eagerly.
            _ if rare!("a short message that is pulled", 20) => pull,
            Route::Segment => Route::Segment,
            Route::Stream if self.pulls(&cx.shared.pool, length) => pull,
            _ if self.eager_limit.is_pull_due(length) => pull,
            route => route,
        };
        let route = match route {
            Route::Pull(PullMethod::Memory) if bytes_left < CMA_SOURCE_BYTES as u64 => {
                Route::Pull(protocol.granted_by())
            }
            route => route,
        };
        let may_follow = bytes_left >= UNSOLICITED_BYTES as u64;
        let is_in_pieces = route == Route::Pull(PullMethod::Pieces);
        let unsolicited = unsolicited.filter(|_| is_in_pieces && may_follow);
        let (header, payload, is_long) = match route {
            _ if unsolicited.is_some() => (RTS_HEADER_BYTES, UNSOLICITED_BYTES, false),
            Route::Segment => (EAGER_HEADER_BYTES, length as usize, false),
            Route::Stream => (EAGER_HEADER_BYTES, length as usize, true),
            Route::Pull(PullMethod::Memory) => (RTS_HEADER_BYTES, CMA_SOURCE_BYTES, false),
            Route::Pull(_) => {
                let first = cx.shared.rendezvous.limits().first_of(length).min(bytes_left);
                let room = self.frame_bytes_max() - RTS_HEADER_BYTES - data_bytes;
                (RTS_HEADER_BYTES, (first.min(eager_limit) as usize).min(room), false)
            }
        };
        let pool = &cx.shared.pool;
        let room = header + data_bytes + payload;
        let has_room = if is_long {
            self.has_room_for_long(pool, room)
        } else {
            self.has_room(pool, room, false)
        };
        let course = Course { route, payload, unsolicited, is_long };
        (self.credits.has_envelope() && has_room).then_some(course)
    }
}

impl Session {
    /// Stages a message that completes at `level`, as
    /// [`Core::stage`](crate::proto::core::Core::stage) does.
    pub(in crate::proto) fn stage_message(
        &mut self,
        mut cx: Cx<'_>,
        (id, level): (Id, CompletionLevel),
        now_ns: u64,
    ) -> Staged<'_> {
        let operation = cx.shared.operations.get(id);
        let request = operation.and_then(|it| it.send_request(level, &cx.shared.peers));
        let request = debug_assert_some!(request, "operations end before their peer is removed");
        let Some((request, target)) = request else {
            // Otherwise the sends of other sessions would never be staged.
            cx.remove_work(Work::Stage);
            return Staged::Blocked;
        };
        let unsolicited = self.rendezvous.unsolicited(request.length);
        let staged = self.segments.stage_frame(&mut cx, id, (&request, target), unsolicited);
        let Some(staged) = staged else {
            // Acknowledgements, credit and sent segments resume it.
            self.one_sided.block_messages(&mut cx);
            return Staged::Blocked;
        };
        self.waiting.pop_front();
        let (segment, course) = staged;
        let is_pulled = course.is_pulled();
        let completes = !is_pulled && level == CompletionLevel::Inject;
        let unsolicited_count = match course.unsolicited {
            Some(pieces) => {
                let message = (request.length, request.hint);
                self.rendezvous.send_unsolicited(&mut cx, id, message, pieces);
                pieces.number.get() + 1
            }
            None if is_pulled => self.rendezvous.note_solicited(),
            None => 0,
        };
        let operations = &mut cx.shared.operations;
        if completes {
            operations.remove(id);
        } else if let Some(operation) = debug_assert_some!(operations.get_mut(id), "it waited") {
            operation.state = match (course.route, level) {
                (Route::Pull(_), _) => {
                    let mut serving = Serving::new(course.is_read());
                    serving.note_begun(now_ns);
                    serving.note_unsolicited(course.unsolicited.is_some(), unsolicited_count);
                    OperationState::AwaitPull(serving)
                }
                (_, CompletionLevel::Match) => OperationState::AwaitMatch,
                _ => OperationState::AwaitDelivery,
            };
        }
        let segment = debug_assert_some!(self.segments.segment_mut(segment), "it was just staged");
        let Some(segment) = segment else { return Staged::Blocked };
        if !is_pulled && level == CompletionLevel::Delivery {
            segment.operations.push(id);
        }
        segment.completes_unacked |= completes;
        let room = segment.newest(course.payload);
        if let Some(pieces) = course.unsolicited {
            room.copy_from_slice(pieces.as_bytes());
            return Staged::Rts { room: &mut [] };
        }
        match course.route {
            Route::Pull(PullMethod::Memory) => Staged::Source { room },
            Route::Pull(_) => Staged::Rts { room },
            _ => Staged::Eager { room, completes },
        }
    }
}
