//! One engine and a manually driven peer: valid and invalid frames.

use std::collections::HashMap;

use zerocopy::{FromBytes, IntoBytes};

use super::by_hand::{accept, lane_hello, locator};
use super::core::{Action, Config, Core};
use super::effects::{Arrival, CompletionLevel, Effects, Ended};
use super::failure::PeerFailure;
use super::handshake::Initiator;
use super::hint::Hint;
use super::keys::SessionKeys;
use super::receive::ReceiveRequest;
use super::regions::{Access, Refusal};
use super::send::{SendRequest, Staged};
use super::session::{ControlFrame, Limits};
use super::table::Id;
use crate::wire::data::DATAGRAM_LANE;
use crate::wire::hello::HelloStatus;
use crate::wire::segment::{FLAG_ACK_REQUESTED, SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::wire::{
    CHUNK_BYTES_MAX, Eager, Frame, FrameError, Frames, Grant, Hello, Refused, Rts,
    SEGMENT_BYTES_MAX, frame,
};

mod checksums;
mod claims;
mod closing;
mod credit;
mod grants;
mod multi;
mod one_sided;
mod rails;

const PEER: u64 = 9;
const SESSION: u64 = 77;

/// Results of operations, slices of multi-receives, and whether no further end can be reported.
#[derive(Default)]
struct Ends(HashMap<Id, Ended>, Vec<(Id, Id, u64, u64)>, bool, Accesses);

/// Accesses to regions, with the remote data.
type Accesses = Vec<(Access, Option<u64>)>;

impl Effects for Ends {
    fn slice(&mut self, receive: Id, slice: Id, offset: u64, length: u64) {
        self.1.push((receive, slice, offset, length));
    }

    fn has_room(&self, _: Id) -> bool {
        !self.2
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
        self.3.push((access, arrival.data));
    }

    fn copy(&mut self, _: Id, _: Id, _: u64, _: u64) {
        unreachable!("the peer is another engine")
    }

    fn checksum(&self, _: Id, offset: u64, length: u32) -> u32 {
        checksum(offset, length)
    }

    fn complete(&mut self, operation: Id, ended: Ended) {
        assert_eq!(self.0.insert(operation, ended), None, "an operation ends once");
    }
}

/// Returns a fake CRC32C of a range.
fn checksum(offset: u64, length: u32) -> u32 {
    offset as u32 ^ length
}

/// An engine with one endpoint and one session.
struct Bench {
    core: Core,
    ends: Ends,
    slot: u32,
    peer: Id,
    /// State of the peer: frames received and sent.
    frames_received: u32,
    frames_sent: u32,
    flags: u16,
}

impl Bench {
    fn new(config: Config) -> Self {
        let mut core = Core::new(7, config);
        let endpoint = core.open_endpoint().unwrap();
        assert_eq!(endpoint, 0);
        let peer = core.insert_peer(PEER, locator(), 0).unwrap();
        let ours = core.offer(SESSION);
        let theirs = Limits {
            session: SESSION,
            envelope_limit: 2,
            byte_limit: 3000,
            eager_limit: 1000,
            checksum: false,
            bulk_in_datagrams: false,
            answers: true,
        };
        let slot = accept(&mut core, PEER, ours, theirs);
        Self {
            core,
            ends: Ends::default(),
            slot,
            peer,
            frames_received: 0,
            frames_sent: 0,
            flags: 0,
        }
    }

    /// Returns a segment of the peer, with a valid header.
    fn segment(&self, frames: u16, body: &[u8], limits: (u32, u32)) -> Vec<u8> {
        let header = SegmentHeader {
            length: ((SEGMENT_HEADER_BYTES + body.len()) as u32).into(),
            frames: frames.into(),
            flags: 0.into(),
            first_frame: self.frames_sent.into(),
            ack: self.frames_received.into(),
            envelope_limit: limits.0.into(),
            byte_limit: limits.1.into(),
        };
        [header.as_bytes(), body].concat()
    }

    fn handle(&mut self, bytes: &[u8]) -> Result<usize, FrameError> {
        self.core.handle_bytes(self.slot, bytes, 0, &mut self.ends)
    }

    /// Sends one frame of the peer.
    fn say(&mut self, body: &[u8]) -> Result<usize, FrameError> {
        let segment = self.segment(1, body, (2, 3000));
        self.frames_sent = self.frames_sent.wrapping_add(1);
        self.handle(&segment)
    }

    /// Sends a segment of the peer without frames.
    fn acknowledge(&mut self) {
        let segment = self.segment(0, &[], (2, 3000));
        self.handle(&segment).unwrap();
    }

    /// Stages waiting operations, and returns the types of the sent frames.
    fn hear(&mut self) -> Vec<u8> {
        while let Some(id) = self.core.poll_waiting() {
            match self.core.stage(id) {
                Staged::Eager { completes, .. } if completes => {
                    self.ends.complete(id, Ended::Sent { accepted: 0 });
                }
                Staged::Eager { .. } | Staged::Rts { .. } => {}
                Staged::Part { .. } | Staged::Source { .. } => {
                    unreachable!("a stream carries whole messages")
                }
                Staged::Blocked => break,
            }
        }
        self.core.poll_grants(0);
        let mut kinds = Vec::new();
        self.flags = 0;
        while let Some(slot) = self.core.poll_dirty() {
            let bytes = self.core.prepare(slot).to_vec();
            let mut rest = &bytes[..];
            while let Ok((header, body)) = SegmentHeader::ref_from_prefix(rest) {
                let end = header.length.get() as usize - SEGMENT_HEADER_BYTES;
                self.frames_received += u32::from(header.frames.get());
                self.flags |= header.flags.get();
                let mut frames = Frames::new(&body[..end]);
                while let Some(frame) = frames.next_frame().unwrap() {
                    kinds.push(kind_of(&frame));
                }
                rest = &body[end..];
            }
            self.core.handle_transmitted(slot, bytes.len());
        }
        kinds
    }

    fn send(&mut self, length: u64, level: CompletionLevel) -> Id {
        self.send_hinted(length, level, Hint::None)
    }

    fn request(&self, length: u64, level: CompletionLevel, hint: Hint) -> SendRequest {
        let (endpoint, peer, context, tag) = (0, self.peer, 5, 1);
        let (data, fence) = (None, false);
        SendRequest { endpoint, peer, context, tag, length, level, hint, data, fence }
    }

    fn send_hinted(&mut self, length: u64, level: CompletionLevel, hint: Hint) -> Id {
        let request = self.request(length, level, hint);
        let id = self.core.new_send(&request).unwrap();
        self.core.enqueue(id, 0);
        id
    }

    fn receive(&mut self, capacity: u64) -> Id {
        let (peer, context, tag, ignore) = (Some(self.peer), 5, 1, 0);
        let request =
            ReceiveRequest { endpoint: 0, peer, context, tag, ignore, capacity, min_free: None };
        let id = self.core.new_receive(&request).unwrap();
        self.core.start_receive(id, &mut self.ends);
        id
    }

    fn lane(&mut self) -> Id {
        let lane = self.core.handle_lane_hello(&lane_hello(PEER, SESSION, 3), 0).unwrap();
        self.core.lane_ready(lane, 0);
        lane
    }

    fn lanes_to_close(&mut self) -> usize {
        let actions = std::iter::from_fn(|| self.core.poll_action());
        let closes =
            |it: &Action| matches!(it, Action::CloseLane { .. } | Action::AbandonLane { .. });
        actions.filter(closes).count()
    }
}

fn kind_of(frame: &Frame<'_>) -> u8 {
    match frame {
        Frame::Eager(..) => frame::KIND_EAGER,
        Frame::Rts(..) => frame::KIND_RTS,
        Frame::Grant(_) => frame::KIND_GRANT,
        Frame::Done(_) => frame::KIND_DONE,
        Frame::Refused(_) => frame::KIND_REFUSED,
        Frame::Matched(_) => frame::KIND_MATCHED,
        Frame::LanesWanted => frame::KIND_LANES_WANTED,
        Frame::Goodbye(_) => frame::KIND_GOODBYE,
        Frame::EagerParts(..) | Frame::Part(..) => frame::KIND_PART,
        Frame::Data(..) => frame::KIND_DATA,
        Frame::Rail(..) => frame::KIND_RAIL,
        Frame::LaneLost(..) => frame::KIND_LANE_LOST,
        Frame::OneSided(header, ..) => header.kind,
        Frame::Reply(..) => frame::KIND_REPLY,
        Frame::ReplyRts(..) => frame::KIND_REPLY_RTS,
    }
}

fn eager(target: u16, length: u32, operation: u64) -> Vec<u8> {
    let header = Eager {
        kind: frame::KIND_EAGER,
        flags: 0,
        target_endpoint: target.into(),
        source_endpoint: 0.into(),
        predecessor_distance: 0.into(),
        context: 5.into(),
        length: length.into(),
        tag: 1.into(),
        operation: operation.into(),
    };
    [header.as_bytes(), &vec![0; length as usize]].concat()
}

fn rts(target: u16, length: u64) -> Vec<u8> {
    let header = Rts {
        kind: frame::KIND_RTS,
        flags: 0,
        target_endpoint: target.into(),
        source_endpoint: 0.into(),
        predecessor_distance: 0.into(),
        context: 5.into(),
        first_bytes: 0.into(),
        tag: 1.into(),
        operation: 99.into(),
        length: length.into(),
    };
    header.as_bytes().to_vec()
}

fn grant(operation: Id, offset: u64, length: u32, chunk: u32) -> Vec<u8> {
    let grant = Grant {
        kind: frame::KIND_GRANT,
        eager_class: 0,
        reserved: 0.into(),
        lane: 3.into(),
        send_operation: operation.to_u64().into(),
        receive_operation: 42.into(),
        offset: offset.into(),
        length: length.into(),
        chunk: chunk.into(),
    };
    grant.as_bytes().to_vec()
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
        let mut segment = bench.segment(0, &[], (2, 3000));
        segment[..4].copy_from_slice(&length.to_le_bytes());
        assert_eq!(bench.handle(&segment), Err(FrameError::BadSegmentLength(length)));
    }
    let mut bench = Bench::new(Config::for_tests());
    let whole = bench.segment(0, &[], (2, 3000));
    assert_eq!(bench.handle(&whole[..23]), Ok(0), "the rest may arrive");
    assert_eq!(bench.handle(&whole), Ok(24));
}

/// RR-SEG-2
#[test]
fn frames_are_accepted_once_in_order() {
    let mut bench = Bench::new(Config::for_tests());
    bench.say(&eager(0, 8, 0)).unwrap();
    for wrong in [0, 2, u32::MAX] {
        bench.frames_sent = wrong;
        let refused = bench.say(&eager(0, 8, 0));
        assert_eq!(refused, Err(FrameError::OutOfOrder { expected: 1, got: wrong }));
    }
}

/// RR-SEG-3, RR-SEG-5
#[test]
fn delivery_completes_with_the_peer_ack() {
    let mut bench = Bench::new(Config::for_tests());
    let send = bench.send(10, CompletionLevel::Delivery);
    assert_eq!(bench.hear(), [frame::KIND_EAGER]);
    assert_eq!(bench.flags, FLAG_ACK_REQUESTED);
    assert!(bench.ends.0.is_empty(), "sent, but not acknowledged");
    let before = std::mem::replace(&mut bench.frames_received, 50);
    bench.acknowledge();
    assert!(bench.ends.0.is_empty(), "more than were sent");
    bench.frames_received = before;
    bench.acknowledge();
    assert_eq!(bench.ends.0[&send], Ended::Sent { accepted: 10 });
    // The other direction: a requested acknowledgement is sent in a segment of its own.
    let mut asks = bench.segment(1, &eager(0, 8, 0), (2, 3000));
    asks[6..8].copy_from_slice(&FLAG_ACK_REQUESTED.to_le_bytes());
    bench.handle(&asks).unwrap();
    let slot = bench.core.poll_dirty().unwrap();
    let answer = SegmentHeader::ref_from_prefix(bench.core.prepare(slot)).unwrap().0;
    assert_eq!((answer.frames.get(), answer.ack.get()), (0, 1));
}

/// RR-SEG-4
#[test]
fn segment_contains_the_announced_frames() {
    for (announced, body) in [(0, eager(0, 8, 0)), (2, eager(0, 8, 0)), (1, Vec::new())] {
        let mut bench = Bench::new(Config::for_tests());
        let segment = bench.segment(announced, &body, (2, 3000));
        assert!(matches!(bench.handle(&segment), Err(FrameError::WrongCount { .. })));
    }
    let mut bench = Bench::new(Config::for_tests());
    assert_eq!(bench.say(&eager(0, 8, 0)[..39]), Err(FrameError::Truncated));
}

/// RR-FRAME-2
#[test]
fn unknown_operation_ids_have_no_effect() {
    let mut bench = Bench::new(Config::for_tests());
    let receive = bench.receive(10);
    let send = bench.send(5000, CompletionLevel::Inject);
    assert_eq!(bench.hear(), [frame::KIND_RTS]);
    // A receive is no send, and these have ended or never existed.
    for name in [0, receive.to_u64(), send.to_u64() + (1 << 32), u64::MAX] {
        bench.say(&done(name, 10)).unwrap();
        match ControlFrame::matched(name) {
            ControlFrame::Matched(frame) => bench.say(frame.as_bytes()).unwrap(),
            _ => unreachable!(),
        };
        let refused = Refused {
            kind: frame::KIND_REFUSED,
            flags: 0,
            reserved: 0.into(),
            lane: 8.into(),
            operation: name.into(),
        };
        bench.say(refused.as_bytes()).unwrap();
    }
    assert!(bench.ends.0.is_empty());
    assert_eq!(bench.hear(), [] as [u8; 0]);
    assert_eq!(bench.core.operations.len(), 2);
}

/// RR-MATCH-3
#[test]
fn messages_to_closed_endpoints_are_dropped_and_answered() {
    let mut bench = Bench::new(Config::for_tests());
    bench.say(&eager(1, 8, 0)).unwrap();
    assert_eq!(bench.hear(), [] as [u8; 0]);
    bench.say(&eager(1, 8, 55)).unwrap();
    bench.say(&rts(1, 1 << 20)).unwrap();
    assert_eq!(bench.hear(), [frame::KIND_DONE, frame::KIND_DONE]);
    assert_eq!(bench.core.operations.len(), 0);
}

/// RR-CREDIT-1
#[test]
fn credit_limits_are_enforced_on_both_sides() {
    let mut bench = Bench::new(Config::for_tests());
    for _ in 0..3 {
        bench.send(10, CompletionLevel::Inject);
    }
    assert_eq!(bench.hear(), [frame::KIND_EAGER; 2], "the peer's limit is two envelopes");
    assert_eq!(bench.hear(), [] as [u8; 0]);
    let more = bench.segment(0, &[], (3, 3000));
    bench.handle(&more).unwrap();
    assert_eq!(bench.hear(), [frame::KIND_EAGER]);
    // The other direction.
    let mut bench = Bench::new(Config { envelope_credits: 16, ..Config::for_tests() });
    for _ in 0..16 {
        bench.say(&eager(0, 0, 0)).unwrap();
    }
    assert_eq!(bench.say(&eager(0, 0, 0)), Err(FrameError::NoCredit("envelope")));
    let mut bench = Bench::new(Config { eager_credit_bytes: 1500, ..Config::for_tests() });
    bench.say(&eager(0, 1000, 0)).unwrap();
    assert_eq!(bench.say(&eager(0, 501, 0)), Err(FrameError::NoCredit("eager byte")));
}

/// RR-CREDIT-4
#[test]
fn dropped_messages_return_their_credit() {
    let mut bench = Bench::new(Config { eager_credit_bytes: 1500, ..Config::for_tests() });
    // From one of the numbers that endpoints have over time.
    let mut late = eager(0, 8, 0);
    late[4..6].copy_from_slice(&u16::MAX.to_le_bytes());
    bench.say(&late).unwrap();
    bench.core.close_endpoint(0, &mut bench.ends);
    assert!(bench.say(&eager(0, 1501, 0)).is_err());
    let failure = PeerFailure::Protocol("it lies".into());
    bench.core.fail_session(bench.slot, failure, &mut bench.ends);
    assert_eq!((bench.core.reserved_envelopes, bench.core.reserved_bytes), (0, 0));
}

/// RR-CREDIT-3
#[test]
fn control_frames_overtake_messages_that_wait_for_credit() {
    let mut bench = Bench::new(Config::for_tests());
    for _ in 0..10 {
        bench.send(1000, CompletionLevel::Inject);
    }
    assert_eq!(bench.hear(), [frame::KIND_EAGER; 2]);
    bench.receive(10);
    bench.say(&eager(0, 8, 66)).unwrap();
    assert_eq!(bench.hear(), [frame::KIND_MATCHED]);
}

/// RR-RDV-1
#[test]
fn grants_beyond_the_message_close_session() {
    let wrong = [(0, 5001), (4999, 2), (5000, 1), (u64::MAX, 2), (0, 0), (0, CHUNK_BYTES_MAX + 1)];
    for (offset, length) in wrong {
        let mut bench = Bench::new(Config::for_tests());
        bench.lane();
        let send = bench.send(5000, CompletionLevel::Inject);
        bench.hear();
        let refused = bench.say(&grant(send, offset, length, 0));
        assert_eq!(refused, Err(FrameError::BadGrant { offset, length, message: 5000 }));
        assert!(
            bench
                .core
                .poll_runnable()
                .and_then(|lane| bench.core.next_send(lane, &bench.ends))
                .is_none()
        );
    }
}

/// RR-RDV-2
#[test]
fn chunks_are_sent_in_grant_order() {
    let mut bench = Bench::new(Config::for_tests());
    let lane = bench.lane();
    let send = bench.send(5000, CompletionLevel::Inject);
    bench.hear();
    bench.say(&grant(send, 4000, 1000, 0)).unwrap();
    bench.say(&grant(send, 0, 4000, 1)).unwrap();
    let refused = bench.say(&grant(send, 0, 1, 3));
    assert_eq!(refused, Err(FrameError::BadChunkNumber { expected: 2, got: 3 }));
    for range in [(4000, 1000), (0, 4000)] {
        let chunk = bench.core.next_send(lane, &bench.ends).unwrap();
        assert_eq!((chunk.offset, chunk.length), range);
        assert!(bench.core.next_send(lane, &bench.ends).is_none(), "one at a time");
        bench.core.handle_chunk_sent(lane, 0);
    }
}

/// RR-RDV-4
#[test]
fn rendezvous_send_waits_for_done_and_for_the_kernel() {
    for is_answer_first in [true, false] {
        let mut bench = Bench::new(Config::for_tests());
        let lane = bench.lane();
        let send = bench.send(5000, CompletionLevel::Inject);
        bench.hear();
        bench.say(&grant(send, 0, 5000, 0)).unwrap();
        bench.core.next_send(lane, &bench.ends).unwrap();
        bench.core.handle_chunk_sent(lane, 0);
        for step in [is_answer_first, !is_answer_first] {
            assert!(bench.ends.0.is_empty());
            if step {
                bench.say(&done(send.to_u64(), 4000)).unwrap();
            } else {
                bench.core.handle_chunk_released(send, &mut bench.ends);
            }
        }
        assert_eq!(bench.ends.0[&send], Ended::Sent { accepted: 4000 });
    }
}

/// RR-RDV-5
#[test]
fn unserviceable_grant_is_refused_and_closes_its_lane() {
    let mut bench = Bench::new(Config::for_tests());
    bench.lane();
    let send = bench.send(5000, CompletionLevel::Inject);
    bench.hear();
    bench.say(&done(send.to_u64(), 0)).unwrap();
    assert_eq!(bench.lanes_to_close(), 0);
    bench.say(&grant(send, 0, 100, 0)).unwrap();
    assert_eq!(bench.hear(), [frame::KIND_REFUSED]);
    assert_eq!(bench.lanes_to_close(), 1);
}

/// RR-RDV-5
#[test]
fn invalid_grants_do_not_accumulate_replies() {
    let mut bench = Bench::new(Config::for_tests());
    let send = bench.send(5000, CompletionLevel::Inject);
    bench.hear();
    bench.say(&done(send.to_u64(), 0)).unwrap();
    for has_lane in [false, true] {
        if has_lane {
            bench.lane();
        }
        for _ in 0..20 {
            let many = grant(send, 0, 100, 0).repeat(1000);
            let segment = bench.segment(1000, &many, (2, 3000));
            bench.frames_sent += 1000;
            bench.handle(&segment).unwrap();
        }
        let session = bench.core.sessions.at(bench.slot as usize).unwrap();
        assert!(session.control.is_empty(), "{} answers wait", session.control.len());
    }
    assert_eq!(bench.hear(), [frame::KIND_REFUSED]);
    assert_eq!(bench.lanes_to_close(), 1);
}

/// RR-RDV-6, RR-RDV-7
#[test]
fn ranges_of_a_failed_lane_are_granted_again_within_the_buffer() {
    let mut bench = Bench::new(Config::for_tests());
    let lane = bench.lane();
    let receive = bench.receive(6000);
    bench.say(&rts(0, 9000)).unwrap();
    assert_eq!(bench.hear(), [frame::KIND_GRANT; 2], "4096 and the rest of 6000");
    let chunk = bench.core.next_receive(lane).unwrap();
    assert_eq!((chunk.offset, chunk.length), (0, 4096));
    bench.core.lane_lost(lane, true, "cut", 0, &mut bench.ends);
    let lane = bench.core.handle_lane_hello(&lane_hello(PEER, SESSION, 4), 0).unwrap();
    bench.core.lane_ready(lane, 0);
    assert_eq!(bench.hear(), [frame::KIND_GRANT], "the kernel may still write the first one");
    let still = bench.core.next_receive(lane).unwrap();
    assert_eq!((still.offset, still.length), (4096, 1904));
    bench.core.handle_chunk_received(Id::from_u64(0), chunk, None, 0, &mut bench.ends);
    assert_eq!(bench.hear(), [frame::KIND_GRANT]);
    assert!(!bench.ends.0.contains_key(&receive));
}

#[test]
fn grants_are_batched() {
    let mut bench = Bench::new(Config { horizon_chunks: 4, ..Config::for_tests() });
    bench.core.sessions.at_mut(bench.slot as usize).unwrap().has_checksums = true;
    let lane = bench.lane();
    let receive = bench.receive(9 * 4096);
    bench.say(&rts(0, 9 * 4096)).unwrap();
    assert_eq!(bench.hear(), [frame::KIND_GRANT; 4]);
    for grants in [0, 2, 0, 2, 0, 1, 0, 0] {
        assert!(checksums::chunk_comes(&mut bench, lane, true));
        assert_eq!(bench.hear(), [frame::KIND_GRANT].repeat(grants));
    }
    assert!(checksums::chunk_comes(&mut bench, lane, true));
    assert_eq!(bench.hear(), [frame::KIND_DONE]);
    assert!(matches!(bench.ends.0[&receive], Ended::Received(_)));
}

/// RR-LANE-1
#[test]
fn lanes_join_only_their_session() {
    let mut bench = Bench::new(Config::for_tests());
    for (engine, session) in [(PEER, SESSION + 1), (PEER + 1, SESSION), (7, SESSION), (0, 0)] {
        let joined = bench.core.handle_lane_hello(&lane_hello(engine, session, 3), 0);
        assert_eq!(joined.unwrap_err(), HelloStatus::UnknownSession);
    }
    let mut forged = lane_hello(PEER, SESSION, 3);
    forged.lane = 5.into();
    let joined = bench.core.handle_lane_hello(&forged, 0);
    assert_eq!(joined.unwrap_err(), HelloStatus::WrongSecret);
    bench.lane();
    let again = bench.core.handle_lane_hello(&lane_hello(PEER, SESSION, 3), 0);
    assert_eq!(again.unwrap_err(), HelloStatus::StaleEpoch);
}

/// RR-BULK-1
#[test]
fn no_lane_joins_a_session_with_datagram_bulk() {
    let mut bench = Bench::new(Config::for_tests());
    let lane_of_datagrams = lane_hello(PEER, SESSION, DATAGRAM_LANE);
    let joined = bench.core.handle_lane_hello(&lane_of_datagrams, 0);
    assert_eq!(joined.unwrap_err(), HelloStatus::Malformed);
    bench.core.sessions.at_mut(bench.slot as usize).unwrap().bulk_in_datagrams = true;
    let joined = bench.core.handle_lane_hello(&lane_hello(PEER, SESSION, 3), 0);
    assert_eq!(joined.unwrap_err(), HelloStatus::Malformed);
    assert_eq!(bench.core.lanes.len(), 0);
    // A peer without keys learns nothing of either.
    let mut forged = lane_hello(PEER, SESSION, 4);
    forged.lane = DATAGRAM_LANE.into();
    let joined = bench.core.handle_lane_hello(&forged, 0);
    assert_eq!(joined.unwrap_err(), HelloStatus::WrongSecret);
    // And no number is used up.
    bench.core.sessions.at_mut(bench.slot as usize).unwrap().bulk_in_datagrams = false;
    bench.lane();
}
