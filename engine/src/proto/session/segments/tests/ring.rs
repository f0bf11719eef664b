//! Segments that only a ring keeps: they are acknowledged, and sent again when the ring ends.

use super::*;
use crate::proto::core::Core;
use crate::proto::session::send::SendRequest;
use crate::proto::sim::{RingEntry, send_request};
use crate::wire::segment::FLAG_ACK_REQUESTED;
use crate::wire::{FrameRange, KeptFrames};

/// The content of a datagram: as long as a segment of a ring.
const ROOM: usize = 2048;

/// Returns two engines with a ring, whose entries the tests carry, and with datagrams.
fn net() -> Net {
    let mut net = Net::new(2, &config(), ROOM, 1);
    for engine in [0, 1] {
        assert!(change_ring(&mut net, engine, Some(7), &[]));
    }
    // What was announced before.
    for (from, to) in [(0, 1), (1, 0)] {
        for entry in net.write_ring(from, to) {
            net.read_ring(from, to, &entry);
        }
    }
    net
}

/// Reports to an engine that its session has a ring, or what that has kept at its end.
fn change_ring(net: &mut Net, engine: usize, ring: Option<u32>, unread: &[RingEntry]) -> bool {
    let kept = |(frames, bytes): &RingEntry| {
        frames.map(|range| KeptFrames { range, bytes: bytes.clone() })
    };
    let unread: Vec<_> = unread.iter().filter_map(kept).collect();
    net.engines[engine].core.with(0, |it, cx| it.use_ring(cx, ring, Some(&unread))).unwrap()
}

/// Sends messages of a flow by the ring: some alone, others together.
fn send_some(net: &mut Net) -> Vec<RingEntry> {
    let mut written: Vec<_> = [0, 1, 200].map(|length| net.send_by_ring(flow(1), length)).into();
    for length in [30, 300, 7] {
        net.send(flow(1), length, CompletionLevel::Inject);
    }
    written.extend(net.write_ring(0, 1));
    written.extend((0..3).map(|_| net.send_by_ring(flow(1), 8)));
    assert!(written.iter().all(|(frames, _)| frames.is_some()), "none has a header");
    written
}

/// Lets an engine acknowledge what it has read. Returns what it writes.
fn acknowledge(net: &mut Net) -> Vec<RingEntry> {
    net.engines[1].core.poll_acknowledgements(0, true);
    let answer = net.write_ring(1, 0);
    for entry in &answer {
        net.read_ring(1, 0, entry);
    }
    answer
}

/// Returns the segments that an engine keeps, and the first frame that was not acknowledged.
fn kept(core: &Core) -> (usize, u32) {
    let segments = &core.session(0).unwrap().segments;
    (segments.outstanding(), segments.frames_received().1)
}

/// RR-SHM-8
#[test]
fn what_lost_datagrams_announced_is_announced_by_a_new_ring() {
    let mut net = Net::new(2, &config(), ROOM, 1);
    net.receive_of(flow(1), 300);
    net.send(flow(1), 100, CompletionLevel::Delivery);
    net.settle(20);
    for ring in [7, 8] {
        assert!(change_ring(&mut net, 1, Some(ring), &[]));
        let entries = net.write_ring(1, 0);
        assert!(matches!(&entries[..], [(None, _)]), "one segment with a header: {entries:?}");
        assert!(change_ring(&mut net, 1, None, &[]));
    }
}

/// RR-SHM-8
#[test]
fn unread_frames_are_sent_again_by_another_transport() {
    const ENTRIES: usize = 7;
    for start in [0, u32::MAX - 5] {
        for reported in 0..=ENTRIES {
            for read in reported..=ENTRIES {
                let mut net = net();
                skip_frames(&mut net, start);
                (0..9).for_each(|_| _ = net.receive_of(flow(1), 300));
                let written = send_some(&mut net);
                assert_eq!(written.len(), ENTRIES);
                for entry in &written[..reported] {
                    net.read_ring(0, 1, entry);
                }
                assert!(change_ring(&mut net, 0, None, &written[reported..]));
                // The peer reads on, beside what comes by datagrams.
                net.step();
                for entry in &written[reported..read] {
                    net.read_ring(0, 1, entry);
                }
                assert!(change_ring(&mut net, 1, None, &[]));
                net.settle(20);
                net.check();
                assert_eq!(net.received(1), (0..9).collect::<Vec<_>>());
            }
        }
    }
}

/// RR-SHM-8
#[test]
fn frames_kept_by_two_rings_in_turn_are_sent_once_more() {
    let mut net = net();
    (0..11).for_each(|_| _ = net.receive_of(flow(1), 300));
    let first = send_some(&mut net);
    net.read_ring(0, 1, &first[0]);
    assert!(change_ring(&mut net, 0, None, &first[1..]));
    assert!(change_ring(&mut net, 0, Some(8), &[]));
    let mut second = net.write_ring(0, 1);
    second.extend((0..2).map(|_| net.send_by_ring(flow(1), 8)));
    for entry in &second[..3] {
        net.read_ring(0, 1, entry);
    }
    let unread = &second[2..];
    assert!(unread.iter().any(|(frames, _)| frames.is_some()), "it keeps some again");
    assert!(change_ring(&mut net, 0, None, unread));
    net.settle(20);
    assert_eq!(net.received(1), (0..11).collect::<Vec<_>>());
}

/// RR-SEG-3, RR-SHM-8
#[test]
fn acknowledged_frames_of_a_kept_segment_are_not_sent_again() {
    for reported in [0, 3] {
        let mut net = net();
        let written: Vec<_> = (0..6).map(|_| net.send_by_ring(flow(1), 8)).collect();
        assert_eq!(kept(&net.engines[0].core), (1, 0), "they share a slot");
        for entry in &written[..3] {
            net.read_ring(0, 1, entry);
        }
        assert_eq!(acknowledge(&mut net).len(), 1);
        assert_eq!(kept(&net.engines[0].core), (1, 3));
        assert!(change_ring(&mut net, 0, None, &written[reported..]));
        let again = net.capture(0, 1);
        assert_eq!(again.len(), 1);
        let header = header_of(&again[0].1);
        assert_eq!(header.range(), FrameRange { first: 3, count: 3 });
        let frames = written[3..].iter().flat_map(|(_, bytes)| bytes).copied();
        assert!(again[0].1[SEGMENT_HEADER_BYTES..].iter().copied().eq(frames));
    }
}

/// RR-SHM-8
#[test]
fn session_fails_if_kept_frames_are_overwritten() {
    type Change = fn(&mut Vec<RingEntry>);
    assert_eq!(send_some(&mut net())[3].0, Some(FrameRange { first: 3, count: 3 }));
    let changes: [Change; 6] = [
        // One is missing, or has no numbers any more.
        |unread| _ = unread.remove(1),
        |unread| unread[5].0 = None,
        |unread| _ = unread.pop(),
        // Other numbers.
        |unread| unread[3].0 = Some(FrameRange { first: 3, count: 2 }),
        |unread| unread.swap(4, 5),
        // Together they are too long.
        |unread| unread[6].1.resize(ROOM, 0),
    ];
    for (at, change) in changes.into_iter().enumerate() {
        let mut net = net();
        let mut unread = send_some(&mut net);
        change(&mut unread);
        assert!(!change_ring(&mut net, 0, None, &unread), "{at}");
        let there = &mut net.engines[0];
        there.core.fail_session(0, PeerFailure::Left, &mut there.memory);
        assert_eq!(there.core.shared.pool.allocated_bytes().1, 0, "{at}");
    }
}

/// RR-SHM-8
#[test]
fn frames_without_a_header_are_acknowledged_without_a_request() {
    let mut net = net();
    (0..9).for_each(|_| _ = net.receive_of(flow(1), 300));
    for entry in send_some(&mut net) {
        net.read_ring(0, 1, &entry);
    }
    assert!(!net.engines[0].core.session(0).is_some_and(Session::is_settled));
    let answer = acknowledge(&mut net);
    assert_eq!((answer.len(), header_of(&answer[0].1).ack.get()), (1, 9));
    assert!(net.engines[0].core.session(0).is_some_and(Session::is_settled));
    assert_eq!(net.write_ring(0, 1), [], "the acknowledgement needs none");
    net.check();
}

/// RR-SHM-8
#[test]
fn header_acknowledges_many_segments_of_the_peer() {
    let mut net = net();
    for number in 1..=32 {
        let entry = net.send_by_ring(flow(1), 8);
        net.read_ring(0, 1, &entry);
        let answer = net.send_by_ring(Flow { from: 1, to: 0, ..flow(1) }, 8);
        assert_eq!(answer.0.is_none(), number == 32, "{number}");
        net.read_ring(1, 0, &answer);
    }
    assert_eq!(kept(&net.engines[0].core), (0, 32));
    assert_eq!(kept(&net.engines[1].core), (2, 0), "the last one has a buffer");
}

/// RR-SHM-8
#[test]
fn delivery_requests_an_acknowledgement_behind_frames_without_a_header() {
    let mut net = net();
    let first = net.send_by_ring(flow(1), 8);
    let send = net.send(flow(1), 8, CompletionLevel::Delivery).unwrap();
    let written = net.write_ring(0, 1);
    assert_eq!((first.0.is_some(), written.len(), written[0].0), (true, 1, None));
    let asks = |bytes: &[u8]| header_of(bytes).flags.get() & FLAG_ACK_REQUESTED != 0;
    assert!(asks(&written[0].1));
    for entry in [&first, &written[0]] {
        net.read_ring(0, 1, entry);
    }
    let answer = net.write_ring(1, 0);
    assert_eq!(answer.len(), 1, "without a delay");
    net.read_ring(1, 0, &answer[0]);
    assert!(net.end_of(0, send).is_some());
}

/// RR-SHM-8
#[test]
fn fence_opens_when_kept_frames_are_acknowledged() {
    let mut net = net();
    let mut written: Vec<_> = (0..3).map(|_| net.send_by_ring(flow(1), 8)).collect();
    let peer = net.engines[0].peers[&(1, 0)];
    let request = SendRequest { fence: true, ..send_request(peer, 1, 3, 0) };
    let core = &mut net.engines[0].core;
    let fenced = core.new_send(&request).unwrap();
    net.engines[0].memory.bytes.insert(fenced, Vec::new());
    net.engines[0].core.enqueue(fenced, 0);
    // A request alone.
    written.extend(net.write_ring(0, 1));
    let request = header_of(&written[3].1);
    assert_eq!((written.len(), request.frames.get()), (4, 0));
    assert_eq!(request.flags.get() & FLAG_ACK_REQUESTED, FLAG_ACK_REQUESTED);
    for entry in &written {
        assert_eq!(net.write_ring(0, 1), [], "the fence is closed");
        net.read_ring(0, 1, entry);
    }
    let answer = net.write_ring(1, 0);
    assert_eq!(answer.len(), 1, "without a delay");
    net.read_ring(1, 0, &answer[0]);
    let opened = net.write_ring(0, 1);
    assert_eq!((opened.len(), header_of(&opened[0].1).frames.get()), (1, 1));
}

/// RR-END-1, RR-SHM-8
#[test]
fn goodbye_without_a_header_is_acknowledged() {
    let mut net = net();
    let mut written = send_some(&mut net);
    net.engines[0].core.leave(0);
    written.extend(net.write_ring(0, 1));
    assert!(written.last().is_some_and(|(frames, _)| frames.is_some()));
    for entry in &written {
        net.read_ring(0, 1, entry);
    }
    let there = &mut net.engines[1];
    assert_eq!(there.core.sessions.at(0).unwrap().ending.failure(), Some(&PeerFailure::Left));
    let words = there.core.with(0, |it, _| it.segments.take_final_ack()).unwrap();
    let here = &mut net.engines[0];
    assert!(!here.core.session(0).is_some_and(|it| it.goodbye_progress(false).is_done));
    here.core.handle_bytes(0, &words, 0, &mut here.memory).unwrap();
    assert!(here.core.session(0).is_some_and(|it| it.goodbye_progress(false).is_done));
}

/// RR-SHM-8
#[test]
fn refused_header_is_repeated() {
    let mut net = net();
    let read = net.send_by_ring(flow(1), 8);
    net.read_ring(0, 1, &read);
    net.engines[1].core.poll_acknowledgements(0, true);
    net.send(Flow { from: 1, to: 0, ..flow(1) }, 8, CompletionLevel::Inject);
    net.stage(1);
    let core = &mut net.engines[1].core;
    let refused = core.enter(0).and_then(|(it, cx)| it.poll_for_ring(cx, ROOM)).unwrap();
    let token = refused.token();
    assert_eq!(refused.content().0, None, "it acknowledges");
    core.with(0, |it, cx| it.handle_segment_refused(cx, token));
    let written = net.write_ring(1, 0);
    assert_eq!((written.len(), header_of(&written[0].1).ack.get()), (1, 1));
}

/// A hostile peer.
///
/// RR-SHM-8
#[test]
fn numbers_that_the_peer_has_overwritten_do_not_overflow() {
    let mut net = net();
    let mut unread = vec![net.send_by_ring(flow(1), 8), net.send_by_ring(flow(1), 8)];
    unread[0].0 = Some(FrameRange { first: 1_u32.wrapping_sub(0xffff), count: 0xffff });
    assert!(!change_ring(&mut net, 0, None, &unread));
}

/// RR-SHM-8
#[test]
fn overwritten_ring_ends_a_session_only_if_it_kept_messages() {
    let mut net = net();
    let read = net.send_by_ring(flow(1), 8);
    net.read_ring(0, 1, &read);
    acknowledge(&mut net);
    let core = &mut net.engines[0].core;
    assert_eq!(core.with(0, |it, cx| it.use_ring(cx, None, None)), Some(true));
    assert!(change_ring(&mut net, 0, Some(8), &[]));
    // The first one has a header, as the ring has changed.
    (0..2).for_each(|_| _ = net.send_by_ring(flow(1), 8));
    let core = &mut net.engines[0].core;
    assert_eq!(core.with(0, |it, cx| it.use_ring(cx, None, None)), Some(false));
}

/// RR-SHM-8
#[test]
fn late_acknowledgement_of_a_datagram_does_not_release_later_frames() {
    let mut net = net();
    assert!(change_ring(&mut net, 0, None, &[]));
    (0..2).for_each(|_| _ = net.receive_of(flow(1), 8));
    net.send(flow(1), 8, CompletionLevel::Inject);
    // Sent twice: as a probe, too.
    let sent = net.capture(0, 1);
    net.deliver(0, 1, &sent[0].1).unwrap();
    net.lose(0, 1, sent[0].0);
    assert!(change_ring(&mut net, 0, Some(8), &[]));
    let mut written = net.write_ring(0, 1);
    written.push(net.send_by_ring(flow(1), 8));
    // Nothing was read.
    assert!(change_ring(&mut net, 0, None, &written));
    net.acknowledge(0, 1, sent[0].0);
    net.settle(20);
    net.check();
}

/// RR-SHM-8
#[test]
fn kept_frames_fit_the_path_when_the_ring_ends() {
    let mut net = Net::new(2, &config(), CONTENT, 1);
    assert!(change_ring(&mut net, 0, Some(7), &[]));
    (0..20).for_each(|_| _ = net.receive_of(flow(1), 100));
    let written: Vec<_> = (0..20).map(|_| net.send_by_ring(flow(1), 100)).collect();
    assert!(change_ring(&mut net, 0, None, &written));
    net.settle(100);
    net.check();
}
