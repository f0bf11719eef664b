//! One engine and a manually driven peer: valid and invalid frames.

use std::collections::HashMap;

use zerocopy::{FromBytes, IntoBytes};

use super::core::{Action, Config, Core};
use super::effects::{Arrival, CompletionLevel, Effects, Ended};
use super::failure::PeerFailure;
use super::handshake::Initiator;
use super::hint::Hint;
use super::keys::SessionKeys;
use super::receive::ReceiveRequest;
use super::regions::{Access, Refusal};
use super::session::segments::window::FRAMES_MAX;
use super::session::send::SendRequest;
use super::session::{ControlFrame, Limits, NOTHING};
use super::sim::{
    self, ScriptedPeer, accept, lane_hello, locator, next_bytes, receive_request, send_request,
    stage_empty,
};
use super::table::Id;
use crate::proto::ready::Work;
use crate::wire::hello::HelloStatus;
use crate::wire::segment::{FLAG_ACK_REQUESTED, SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::wire::{
    CHUNK_BYTES_MAX, Eager, Frame, FrameError, GrantOver, Hello, Refused, Rts, SEGMENT_BYTES_MAX,
    frame,
};

mod advice;
mod checksums;
mod claims;
mod closing;
mod credit;
mod grants;
mod multi;
mod one_sided;
mod process_status;
mod rails;
mod without_datagrams;

const PEER: u64 = 9;
const SESSION: u64 = 77;

/// Results of operations.
#[derive(Default)]
struct Results {
    ended: HashMap<Id, Ended>,
    /// Slices of multi-receives.
    slices: Vec<(Id, Id, u64, u64)>,
    /// No further end can be reported.
    is_full: bool,
    accesses: Accesses,
}

/// Accesses to regions, with the remote data.
type Accesses = Vec<(Access, Option<u64>)>;

impl Effects for Results {
    fn slice(&mut self, receive: Id, slice: Id, offset: u64, length: u64) {
        self.slices.push((receive, slice, offset, length));
    }

    fn has_room(&self, _: Id) -> bool {
        !self.is_full
    }

    fn place(&mut self, _: Id, _: usize, _: &[u8]) {}

    fn put(&mut self, _: Id, _: u64, _: &[u8]) -> Result<(), Refusal> {
        Ok(())
    }

    fn atomic(
        &mut self,
        _: Id,
        _: u64,
        _: (u8, u8),
        _: (&[u8], &[u8]),
        _: Option<&mut [u8]>,
    ) -> Result<(), Refusal> {
        Ok(())
    }

    fn bind_region(&mut self, _: Id, _: Id, _: u64, _: u64, _: (u16, bool)) -> Result<(), Refusal> {
        Ok(())
    }

    fn accessed(&mut self, _: Id, access: Access, _: u16, arrival: &Arrival) {
        self.accesses.push((access, arrival.data));
    }

    fn copy(&mut self, _: Id, _: Id, _: u64, _: u64) {
        unreachable!("the peer is another engine")
    }

    fn checksum(&self, _: Id, offset: u64, length: u32) -> u32 {
        checksum(offset, length)
    }

    fn complete(&mut self, operation: Id, ended: Ended) {
        assert_eq!(self.ended.insert(operation, ended), None, "an operation ends once");
    }
}

/// Returns a fake CRC32C of a range.
fn checksum(offset: u64, length: u32) -> u32 {
    offset as u32 ^ length
}

/// An engine with one endpoint and one session.
impl Core {
    /// Joins a lane, as the loop does at the hello of one.
    pub(super) fn join_as_lane(&mut self, hello: &Hello, now_ns: u64) -> Result<Id, HelloStatus> {
        let (session, mut cx) = self.enter_joined(hello)?;
        session.handle_lane_hello(&mut cx, hello, now_ns)
    }

    /// Makes a lane ready, as the loop does when both sides agree on it.
    pub(super) fn make_lane_ready(&mut self, lane: Id, now_ns: u64) {
        self.with_lane(lane, |it, mut cx| it.lanes_mut().handle_ready(&mut cx, lane, now_ns));
    }

    /// Ends a lane, as the loop does when the peer has no space for it.
    pub(super) fn refuse_lane(&mut self, lane: Id, now_ns: u64) {
        self.with_lane(lane, |it, mut cx| it.handle_lane_refused(&mut cx, lane, now_ns));
    }
}

struct Bench {
    core: Core,
    results: Results,
    slot: u32,
    peer: Id,
    /// The engine of the peer.
    there: ScriptedPeer,
    /// Flags of the segments read last.
    flags: u16,
}

impl Bench {
    fn new(config: Config) -> Self {
        let mut core = Core::new(7, config.into());
        let endpoint = core.shared_mut().endpoints_mut().open().unwrap();
        assert_eq!(endpoint, 0);
        let peer = core.insert_peer(PEER, locator(), 0).unwrap();
        let ours = core.shared().offer(SESSION);
        let theirs = Limits {
            session: SESSION,
            envelope_limit: 2,
            byte_limit: 3000,
            eager_limit: 1000,
            answers: true,
            process_status: true,
            ..NOTHING
        };
        let slot = accept(&mut core, PEER, ours, theirs);
        let there = ScriptedPeer::new(2, 3000);
        Self { core, results: Results::default(), slot, peer, there, flags: 0 }
    }

    /// Lets segments and chunks have checksums, or not.
    fn use_checksums(&mut self, has_checksums: bool) {
        let session = self.core.sessions.at_mut(self.slot as usize).unwrap();
        session.segments_mut().set_checksums(has_checksums);
        self.there.has_checksums = has_checksums;
    }

    /// Returns a segment of the peer, with a valid header.
    fn segment(&self, frames: u16, body: &[u8]) -> Vec<u8> {
        self.there.segment(frames, 0, body)
    }

    fn handle(&mut self, bytes: &[u8]) -> Result<usize, FrameError> {
        self.core.handle_bytes(self.slot, bytes, 0, &mut self.results)
    }

    /// Delivers one frame of the peer.
    fn deliver(&mut self, frame: &[u8]) -> Result<usize, FrameError> {
        let segment = self.segment(1, frame);
        self.there.sent = self.there.sent.wrapping_add(1);
        self.handle(&segment)
    }

    /// Delivers a segment of the peer without frames, which announces these limits.
    fn announce(&mut self, envelope_limit: u32, byte_limit: u32) {
        (self.there.envelope_limit, self.there.byte_limit) = (envelope_limit, byte_limit);
        self.acknowledge();
    }

    /// Delivers a segment of the peer without frames.
    fn acknowledge(&mut self) {
        let segment = self.segment(0, &[]);
        self.handle(&segment).unwrap();
    }

    /// Stages waiting operations, and returns the types of the sent frames.
    fn transmit(&mut self) -> Vec<u8> {
        stage_empty(&mut self.core, &mut self.results);
        self.core.poll_grants(0);
        let mut kinds = Vec::new();
        self.flags = 0;
        while let Some(slot) = self.core.shared_mut().ready_mut().take(Work::Flush) {
            let mut bytes = next_bytes(&mut self.core, slot);
            self.there.read(&mut bytes, |header, frames| {
                self.flags |= header.flags.get();
                kinds.extend(frames.iter().map(kind_of));
            });
        }
        kinds
    }

    fn send(&mut self, length: u64, level: CompletionLevel) -> Id {
        self.send_hinted(length, level, Hint::None)
    }

    fn request(&self, length: u64, level: CompletionLevel, hint: Hint) -> SendRequest {
        SendRequest { level, hint, ..send_request(self.peer, 5, 1, length) }
    }

    fn send_hinted(&mut self, length: u64, level: CompletionLevel, hint: Hint) -> Id {
        let request = self.request(length, level, hint);
        let id = self.core.new_send(&request).unwrap();
        self.core.enqueue(id, 0);
        id
    }

    fn receive(&mut self, capacity: u64) -> Id {
        let request = receive_request(Some(self.peer), 5, 1, capacity);
        let id = self.core.shared_mut().new_receive(&request).unwrap();
        self.core.start_receive(id, &mut self.results);
        id
    }

    fn lane(&mut self) -> Id {
        let lane = self.core.join_as_lane(&lane_hello(PEER, SESSION, 3), 0).unwrap();
        self.core.make_lane_ready(lane, 0);
        lane
    }

    fn lanes_to_close(&mut self) -> usize {
        let actions = std::iter::from_fn(|| self.core.shared_mut().poll_action());
        let closes =
            |it: &Action| matches!(it, Action::CloseLane { .. } | Action::AbandonLane { .. });
        actions.filter(closes).count()
    }
}

fn kind_of(frame: &Frame<'_>) -> u8 {
    match frame {
        Frame::Eager(..) => frame::KIND_EAGER,
        Frame::Rts(..) => frame::KIND_RTS,
        Frame::Grant(..) => frame::KIND_GRANT,
        Frame::Done(_) => frame::KIND_DONE,
        Frame::Refused(..) => frame::KIND_REFUSED,
        Frame::Matched(_) => frame::KIND_MATCHED,
        Frame::LanesWanted => frame::KIND_LANES_WANTED,
        Frame::Goodbye(_) => frame::KIND_GOODBYE,
        Frame::Data(..) => frame::KIND_DATA,
        Frame::Rail(..) => frame::KIND_RAIL,
        Frame::LaneLost(..) => frame::KIND_LANE_LOST,
        Frame::OneSided(header, ..) => header.kind,
        Frame::Reply(..) => frame::KIND_REPLY,
        Frame::ReplyRts(..) => frame::KIND_REPLY_RTS,
        Frame::ProcessQuery(..) => frame::KIND_PROCESS_QUERY,
        Frame::ProcessStatus(..) => frame::KIND_PROCESS_STATUS,
    }
}

fn eager(target: u16, length: u32, operation: u64) -> Vec<u8> {
    let (target_endpoint, operation) = (target.into(), operation.into());
    let header = Eager { target_endpoint, operation, ..sim::eager(length) };
    [header.as_bytes(), &vec![0; length as usize]].concat()
}

fn rts(target: u16, length: u64) -> Vec<u8> {
    Rts { target_endpoint: target.into(), ..sim::rts(length) }.as_bytes().to_vec()
}

fn grant(operation: Id, offset: u64, length: u32, chunk: u32) -> Vec<u8> {
    let over = GrantOver::Lane { lane: 3, chunk };
    sim::grant(over, operation, offset, length).as_bytes().to_vec()
}

fn done(operation: u64, accepted: u64) -> Vec<u8> {
    match ControlFrame::done(operation, 0, accepted) {
        ControlFrame::Done(frame) => frame.as_bytes().to_vec(),
        _ => unreachable!(),
    }
}

/// RR-SEG-1
#[test]
fn invalid_segment_lengths_are_rejected_at_the_header() {
    for length in [0, SEGMENT_HEADER_BYTES as u32 - 1, SEGMENT_BYTES_MAX as u32 + 1, u32::MAX] {
        let mut bench = Bench::new(Config::for_tests());
        let mut segment = bench.segment(0, &[]);
        segment[..4].copy_from_slice(&length.to_le_bytes());
        assert_eq!(bench.handle(&segment), Err(FrameError::BadSegmentLength(length)));
    }
    let mut bench = Bench::new(Config::for_tests());
    let whole = bench.segment(0, &[]);
    assert_eq!(bench.handle(&whole[..23]), Ok(0), "the rest may arrive");
    assert_eq!(bench.handle(&whole), Ok(24));
}

/// RR-SEG-2, RR-DGRAM-1, RR-DGRAM-2
#[test]
fn frames_are_handled_once_within_the_window() {
    let mut bench = Bench::new(Config::for_tests());
    let expected = |bench: &Bench| {
        bench.core.sessions.at(bench.slot as usize).unwrap().segments().expected_frame()
    };
    bench.deliver(&eager(0, 8, 0)).unwrap();
    // The first one comes again; one is early, and the one before it arrives.
    for (number, next) in [(0, 1), (2, 1), (1, 3), (u32::MAX, 3)] {
        bench.there.sent = number;
        bench.deliver(&done(0, 0)).unwrap();
        assert_eq!(expected(&bench), next, "{number}");
    }
    assert_eq!(bench.core.shared.counters().unexpected_messages, 1);
    bench.there.sent = 3 + FRAMES_MAX;
    let refused = bench.deliver(&done(0, 0));
    assert_eq!(refused, Err(FrameError::BeyondWindow { expected: 3, got: 3 + FRAMES_MAX }));
}

/// RR-SEG-3, RR-SEG-5
#[test]
fn delivery_completes_with_the_peer_ack() {
    let mut bench = Bench::new(Config::for_tests());
    let send = bench.send(10, CompletionLevel::Delivery);
    assert_eq!(bench.transmit(), [frame::KIND_EAGER]);
    assert_eq!(bench.flags, FLAG_ACK_REQUESTED);
    assert!(bench.results.ended.is_empty(), "sent, but not acknowledged");
    let before = std::mem::replace(&mut bench.there.received, 50);
    bench.acknowledge();
    assert!(bench.results.ended.is_empty(), "more than were sent");
    bench.there.received = before;
    bench.acknowledge();
    assert_eq!(bench.results.ended[&send], Ended::Sent { accepted: 10 });
    // The other direction: a requested acknowledgement is sent in a segment of its own.
    let mut asks = bench.segment(1, &eager(0, 8, 0));
    asks[6..8].copy_from_slice(&FLAG_ACK_REQUESTED.to_le_bytes());
    bench.handle(&asks).unwrap();
    let slot = bench.core.shared_mut().ready_mut().take(Work::Flush).unwrap();
    let answer = next_bytes(&mut bench.core, slot);
    let answer = SegmentHeader::ref_from_prefix(&answer).unwrap().0;
    assert_eq!((answer.frames.get(), answer.ack.get()), (0, 1));
}

/// RR-SEG-4
#[test]
fn segment_contains_the_announced_frames() {
    for (announced, body) in [(0, eager(0, 8, 0)), (2, eager(0, 8, 0)), (1, Vec::new())] {
        let mut bench = Bench::new(Config::for_tests());
        let segment = bench.segment(announced, &body);
        assert!(matches!(bench.handle(&segment), Err(FrameError::WrongCount { .. })));
    }
    let mut bench = Bench::new(Config::for_tests());
    assert_eq!(bench.deliver(&eager(0, 8, 0)[..39]), Err(FrameError::Truncated));
}

/// RR-FRAME-2
#[test]
fn unknown_operation_ids_have_no_effect() {
    let mut bench = Bench::new(Config::for_tests());
    let receive = bench.receive(10);
    let send = bench.send(5000, CompletionLevel::Inject);
    assert_eq!(bench.transmit(), [frame::KIND_RTS]);
    // A receive is no send, and these have ended or never existed.
    for name in [0, receive.to_u64(), send.to_u64() + (1 << 32), u64::MAX] {
        bench.deliver(&done(name, 10)).unwrap();
        match ControlFrame::matched(name) {
            ControlFrame::Matched(frame) => bench.deliver(frame.as_bytes()).unwrap(),
            _ => unreachable!(),
        };
        let refused = Refused::new(GrantOver::Lane { lane: 8, chunk: 0 }, name);
        bench.deliver(refused.as_bytes()).unwrap();
    }
    assert!(bench.results.ended.is_empty());
    assert_eq!(bench.transmit(), [] as [u8; 0]);
    assert_eq!(bench.core.shared.operations.len(), 2);
}

/// RR-MATCH-3
#[test]
fn messages_to_closed_endpoints_are_dropped_and_answered() {
    let mut bench = Bench::new(Config::for_tests());
    bench.deliver(&eager(1, 8, 0)).unwrap();
    assert_eq!(bench.transmit(), [] as [u8; 0]);
    bench.deliver(&eager(1, 8, 55)).unwrap();
    bench.deliver(&rts(1, 1 << 20)).unwrap();
    assert_eq!(bench.transmit(), [frame::KIND_DONE, frame::KIND_DONE]);
    assert_eq!(bench.core.shared.operations.len(), 0);
}

/// RR-CREDIT-1
#[test]
fn credit_limits_are_enforced_on_both_sides() {
    let mut bench = Bench::new(Config::for_tests());
    for _ in 0..3 {
        bench.send(10, CompletionLevel::Inject);
    }
    assert_eq!(bench.transmit(), [frame::KIND_EAGER; 2], "the peer's limit is two envelopes");
    assert_eq!(bench.transmit(), [] as [u8; 0]);
    bench.announce(3, 3000);
    assert_eq!(bench.transmit(), [frame::KIND_EAGER]);
    // The other direction.
    let mut bench = Bench::new(Config { envelope_credits: 16, ..Config::for_tests() });
    for _ in 0..16 {
        bench.deliver(&eager(0, 0, 0)).unwrap();
    }
    assert_eq!(bench.deliver(&eager(0, 0, 0)), Err(FrameError::NoCredit("envelope")));
    let mut bench = Bench::new(Config { eager_credit_bytes: 1500, ..Config::for_tests() });
    bench.deliver(&eager(0, 1000, 0)).unwrap();
    assert_eq!(bench.deliver(&eager(0, 501, 0)), Err(FrameError::NoCredit("eager byte")));
}

/// RR-CREDIT-4
#[test]
fn dropped_messages_return_their_credit() {
    let mut bench = Bench::new(Config { eager_credit_bytes: 1500, ..Config::for_tests() });
    // From one of the numbers that endpoints have over time.
    let mut late = eager(0, 8, 0);
    late[4..6].copy_from_slice(&u16::MAX.to_le_bytes());
    bench.deliver(&late).unwrap();
    bench.core.close_endpoint(0, &mut bench.results);
    assert!(bench.deliver(&eager(0, 1501, 0)).is_err());
    let failure = PeerFailure::Protocol("it lies".into());
    bench.core.fail_session(bench.slot, failure, &mut bench.results);
    assert_eq!(bench.core.shared().reserved(), (0, 0));
}

/// RR-CREDIT-3
#[test]
fn control_frames_overtake_messages_that_wait_for_credit() {
    let mut bench = Bench::new(Config::for_tests());
    for _ in 0..10 {
        bench.send(1000, CompletionLevel::Inject);
    }
    assert_eq!(bench.transmit(), [frame::KIND_EAGER; 2]);
    bench.receive(10);
    bench.deliver(&eager(0, 8, 66)).unwrap();
    assert_eq!(bench.transmit(), [frame::KIND_MATCHED]);
}

/// RR-RDV-1
#[test]
fn grants_beyond_the_message_close_session() {
    let wrong = [(0, 5001), (4999, 2), (5000, 1), (u64::MAX, 2), (0, 0), (0, CHUNK_BYTES_MAX + 1)];
    for (offset, length) in wrong {
        let mut bench = Bench::new(Config::for_tests());
        bench.lane();
        let send = bench.send(5000, CompletionLevel::Inject);
        bench.transmit();
        let refused = bench.deliver(&grant(send, offset, length, 0));
        assert_eq!(refused, Err(FrameError::BadGrant { offset, length, message: 5000 }));
        assert!(
            bench
                .core
                .shared_mut()
                .lanes_mut()
                .poll_runnable()
                .and_then(|lane| bench.core.next_send(lane, &bench.results))
                .is_none()
        );
    }
}

/// RR-RDV-2, RR-DGRAM-10
#[test]
fn chunks_are_sent_in_the_order_of_their_numbers() {
    let mut bench = Bench::new(Config::for_tests());
    let lane = bench.lane();
    let send = bench.send(5000, CompletionLevel::Inject);
    bench.transmit();
    bench.deliver(&grant(send, 4000, 1000, 0)).unwrap();
    bench.deliver(&grant(send, 0, 4000, 1)).unwrap();
    // The grant before it may follow, once.
    bench.deliver(&grant(send, 0, 1, 3)).unwrap();
    let refused = bench.deliver(&grant(send, 0, 1, 3));
    assert_eq!(refused, Err(FrameError::BadChunkNumber { expected: 2, got: 3 }));
    bench.deliver(&grant(send, 1, 1, 2)).unwrap();
    for range in [(4000, 1000), (0, 4000), (1, 1), (0, 1)] {
        let chunk = bench.core.next_send(lane, &bench.results).unwrap();
        assert_eq!((chunk.offset, chunk.length), range);
        assert!(bench.core.next_send(lane, &bench.results).is_none(), "one at a time");
        bench.core.with_lane(lane, |it, cx| it.handle_chunk_sent(cx, lane, 0));
    }
}

/// RR-RDV-4
#[test]
fn rendezvous_send_waits_for_done_and_for_the_kernel() {
    for is_answer_first in [true, false] {
        let mut bench = Bench::new(Config::for_tests());
        let lane = bench.lane();
        let send = bench.send(5000, CompletionLevel::Inject);
        bench.transmit();
        bench.deliver(&grant(send, 0, 5000, 0)).unwrap();
        bench.core.next_send(lane, &bench.results).unwrap();
        bench.core.with_lane(lane, |it, cx| it.handle_chunk_sent(cx, lane, 0));
        for step in [is_answer_first, !is_answer_first] {
            assert!(bench.results.ended.is_empty());
            if step {
                bench.deliver(&done(send.to_u64(), 4000)).unwrap();
            } else {
                bench.core.handle_chunk_released(send, &mut bench.results);
            }
        }
        assert_eq!(bench.results.ended[&send], Ended::Sent { accepted: 4000 });
    }
}

/// RR-RDV-5
#[test]
fn unserviceable_grant_is_refused_and_closes_its_lane() {
    let mut bench = Bench::new(Config::for_tests());
    bench.lane();
    let send = bench.send(5000, CompletionLevel::Inject);
    bench.transmit();
    bench.deliver(&done(send.to_u64(), 0)).unwrap();
    assert_eq!(bench.lanes_to_close(), 0);
    bench.deliver(&grant(send, 0, 100, 0)).unwrap();
    assert_eq!(bench.transmit(), [frame::KIND_REFUSED]);
    assert_eq!(bench.lanes_to_close(), 1);
}

/// RR-RDV-5
#[test]
fn invalid_grants_do_not_accumulate_replies() {
    let mut bench = Bench::new(Config::for_tests());
    let send = bench.send(5000, CompletionLevel::Inject);
    bench.transmit();
    bench.deliver(&done(send.to_u64(), 0)).unwrap();
    for has_lane in [false, true] {
        if has_lane {
            bench.lane();
        }
        for _ in 0..20 {
            let many = grant(send, 0, 100, 0).repeat(1000);
            let segment = bench.segment(1000, &many);
            bench.there.sent += 1000;
            bench.handle(&segment).unwrap();
        }
        let session = bench.core.sessions.at(bench.slot as usize).unwrap();
        assert!(
            session.segments().control().len() <= 1,
            "{} answers wait",
            session.segments().control().len()
        );
    }
    assert_eq!(bench.transmit(), [frame::KIND_REFUSED]);
    assert_eq!(bench.lanes_to_close(), 1);
}

/// RR-RDV-6, RR-RDV-7
#[test]
fn ranges_of_a_failed_lane_are_granted_again_within_the_buffer() {
    let mut bench = Bench::new(Config::for_tests());
    let lane = bench.lane();
    let receive = bench.receive(6000);
    bench.deliver(&rts(0, 9000)).unwrap();
    assert_eq!(bench.transmit(), [frame::KIND_GRANT; 2], "4096 and the rest of 6000");
    let chunk = bench.core.shared_mut().next_receive(lane).unwrap();
    assert_eq!((chunk.offset, chunk.length), (0, 4096));
    bench.core.lane_lost(lane, true, "cut", 0, &mut bench.results);
    let lane = bench.core.join_as_lane(&lane_hello(PEER, SESSION, 4), 0).unwrap();
    bench.core.make_lane_ready(lane, 0);
    assert_eq!(bench.transmit(), [frame::KIND_GRANT], "the kernel may still write the first one");
    let still = bench.core.shared_mut().next_receive(lane).unwrap();
    assert_eq!((still.offset, still.length), (4096, 1904));
    bench.core.handle_chunk_received(Id::from_u64(0), chunk, None, 0, &mut bench.results);
    assert_eq!(bench.transmit(), [frame::KIND_GRANT]);
    assert!(!bench.results.ended.contains_key(&receive));
}

#[test]
fn grants_are_batched() {
    let mut bench = Bench::new(Config { horizon_chunks: 4, ..Config::for_tests() });
    bench.use_checksums(true);
    let lane = bench.lane();
    let receive = bench.receive(9 * 4096);
    bench.deliver(&rts(0, 9 * 4096)).unwrap();
    assert_eq!(bench.transmit(), [frame::KIND_GRANT; 4]);
    for grants in [0, 2, 0, 2, 0, 1, 0, 0] {
        assert!(checksums::chunk_comes(&mut bench, lane, true));
        assert_eq!(bench.transmit(), [frame::KIND_GRANT].repeat(grants));
    }
    assert!(checksums::chunk_comes(&mut bench, lane, true));
    assert_eq!(bench.transmit(), [frame::KIND_DONE]);
    assert!(matches!(bench.results.ended[&receive], Ended::Received(_)));
}

/// RR-LANE-1
#[test]
fn lanes_join_only_their_session() {
    let mut bench = Bench::new(Config::for_tests());
    for (engine, session) in [(PEER, SESSION + 1), (PEER + 1, SESSION), (7, SESSION), (0, 0)] {
        let joined = bench.core.join_as_lane(&lane_hello(engine, session, 3), 0);
        assert_eq!(joined.unwrap_err(), HelloStatus::UnknownSession);
    }
    let mut forged = lane_hello(PEER, SESSION, 3);
    forged.lane = 5.into();
    let joined = bench.core.join_as_lane(&forged, 0);
    assert_eq!(joined.unwrap_err(), HelloStatus::WrongSecret);
    bench.lane();
    let again = bench.core.join_as_lane(&lane_hello(PEER, SESSION, 3), 0);
    assert_eq!(again.unwrap_err(), HelloStatus::StaleEpoch);
}

/// RR-BULK-1
#[test]
fn no_lane_joins_a_session_with_datagram_bulk() {
    let mut bench = Bench::new(Config::for_tests());
    bench.core.sessions.at_mut(bench.slot as usize).unwrap().set_bulk_in_datagrams(true);
    let joined = bench.core.join_as_lane(&lane_hello(PEER, SESSION, 3), 0);
    assert_eq!(joined.unwrap_err(), HelloStatus::Malformed);
    assert_eq!(bench.core.shared.lanes.len(), 0);
    // A peer without keys learns nothing of either.
    let mut forged = lane_hello(PEER, SESSION, 4);
    forged.lane = 5.into();
    let joined = bench.core.join_as_lane(&forged, 0);
    assert_eq!(joined.unwrap_err(), HelloStatus::WrongSecret);
    // And no number is used up.
    bench.core.sessions.at_mut(bench.slot as usize).unwrap().set_bulk_in_datagrams(false);
    bench.lane();
}
