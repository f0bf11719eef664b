//! Granted ranges in datagrams.

use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::{CONTENT, config, flow, segment};
use crate::proto::core::Config;
use crate::proto::effects::{CompletionLevel, Ended};
use crate::proto::failure::PeerFailure;
use crate::proto::sim::{self, Flow, Net};
use crate::proto::table::Id;
use crate::wire::segment::{SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::wire::{Data, Frame, FrameError, Frames, GrantOver, frame};

fn bulky() -> Config {
    Config { bulk_in_datagrams: true, rts_bytes: 0, staging_buffers_max: 64, ..config() }
}

fn net(config: &Config) -> Net {
    Net::new(2, config, CONTENT, 1)
}

fn kinds(segment: &[u8]) -> Vec<u8> {
    let mut frames = Frames::new(&segment[SEGMENT_HEADER_BYTES..]);
    let mut kinds = Vec::new();
    while let Some(frame) = frames.next_frame().unwrap() {
        kinds.push(match frame {
            Frame::Data(..) => frame::KIND_DATA,
            Frame::Grant(..) => frame::KIND_GRANT,
            Frame::Eager(..) => frame::KIND_EAGER,
            Frame::Refused(..) => frame::KIND_REFUSED,
            Frame::Done(_) => frame::KIND_DONE,
            _ => 0,
        });
    }
    kinds
}

fn data(operation: u64, offset: u64, length: u32) -> Vec<u8> {
    let header = Data {
        kind: frame::KIND_DATA,
        length: length.into(),
        receive_operation: operation.into(),
        offset: offset.into(),
        ..Data::new_zeroed()
    };
    [header.as_bytes(), &vec![7; length as usize]].concat()
}

fn grant(send: Id, offset: u64, length: u32) -> Vec<u8> {
    sim::grant(GrantOver::Datagrams, send, offset, length).as_bytes().to_vec()
}

/// Creates a message whose envelope has arrived and whose first ranges are granted. Returns the
/// send, the receive, and the number of received frames.
fn granted(net: &mut Net, length: usize) -> (Id, Id, u32) {
    let receive = net.receive_of(flow(1), length);
    let send = net.send(flow(1), length, CompletionLevel::Delivery).unwrap();
    let sent = net.deliver_all(0, 1);
    sent.iter().for_each(|&token| net.acknowledge(0, 1, token));
    let now_ns = net.now_ns();
    net.engines[1].core.poll_grants(now_ns);
    (send, receive, sent.len() as u32)
}

/// RR-BULK-1
#[test]
fn one_side_selects_datagram_bulk_and_no_lane_is_opened() {
    for asks in [[true, false], [false, true], [true, true]] {
        let configs = asks.map(|asks| Config { bulk_in_datagrams: asks, ..bulky() });
        let mut net = Net::of(&configs, CONTENT, 1);
        for (tag, length) in [(1, 3001), (2, 50_000)] {
            net.receive_of(flow(tag), length);
            net.send(flow(tag), length, CompletionLevel::Delivery);
        }
        net.settle(2000);
        net.check();
        assert!(net.engines.iter().all(|engine| engine.core.shared.lanes.len() == 0));
    }
}

/// RR-BULK-4
#[test]
fn ranges_are_accepted_in_any_order_once() {
    let mut net = net(&bulky());
    let (send, receive, _) = granted(&mut net, 5000);
    net.deliver_all(1, 0);
    let mut parts = net.capture(0, 1);
    assert!(parts.len() > 10 && parts.iter().all(|(_, bytes)| kinds(bytes) == [10]));
    parts.reverse();
    for (_, bytes) in &parts {
        assert!(net.end_of(1, receive).is_none());
        net.deliver(0, 1, bytes).unwrap();
        // A duplicate datagram: the frame is known.
        net.deliver(0, 1, bytes).unwrap();
        net.engines[1].core.poll_grants(0);
        net.deliver_all(1, 0);
    }
    net.deliver_all(0, 1);
    assert!(matches!(net.end_of(1, receive), Some(Ended::Received(_))));
    net.deliver_all(1, 0);
    assert_eq!(net.end_of(0, send), Some(&Ended::Sent { accepted: 5000 }));
}

/// RR-BULK-3
#[test]
fn grants_stay_within_the_receive_window() {
    for (window, chunk, horizon) in [(1, 1000, 100), (1500, 1000, 100), (1 << 20, 1000, 3)] {
        let config = Config {
            chunk_bytes: chunk,
            busy_chunk_bytes: chunk,
            horizon_chunks: horizon,
            datagram_window_bytes: window,
            ..bulky()
        };
        let mut net = Net::new(3, &config, CONTENT, 1);
        for from in [0, 2] {
            net.receive((1, 0), Some((from, 0)), 1, 40_000);
            net.send(Flow { from, ..flow(1) }, 40_000, CompletionLevel::Delivery);
        }
        let mut most = 0;
        for _ in 0..5000 {
            net.step();
            let bytes = net.engines[1].core.shared.rendezvous.pulled_bytes();
            most = bytes.max(most);
            if net.is_at_rest() {
                break;
            }
        }
        net.check();
        // Both may always have one chunk.
        let bound = (window + u64::from(chunk)).max(2 * u64::from(chunk));
        assert!(most <= bound.min(u64::from(2 * (horizon + 1) * chunk)), "{window}: {most}");
        assert!(most >= 2 * u64::from(chunk), "{window}: {most}");
    }
}

/// A short message is not delayed by bulk data staged before it.
#[test]
fn short_messages_overtake_bulk_data() {
    let mut net = net(&Config { chunk_bytes: 4096, ..bulky() });
    let (..) = granted(&mut net, 4096);
    net.deliver_all(1, 0);
    net.stage(0);
    net.send(flow(2), 8, CompletionLevel::Inject);
    let all = net.capture(0, 1);
    assert_eq!(kinds(&all[0].1), [frame::KIND_EAGER], "{} segments", all.len());
    assert!(all.len() > 10);
    assert!(all[1..].iter().all(|(_, bytes)| kinds(bytes) == [frame::KIND_DATA]));
}

/// Messages find space, however many peers pull.
#[test]
fn bulk_data_leaves_half_of_the_pool_to_messages() {
    let peers = 7;
    let (sessions_max, chunk_bytes, busy_chunk_bytes) = (peers, 20_000, 20_000);
    let config = Config { sessions_max, chunk_bytes, busy_chunk_bytes, ..bulky() };
    let mut net = Net::new(peers + 1, &config, CONTENT, 1);
    for to in 1..=peers {
        net.receive((to, 0), Some((0, 0)), 1, 40_000);
        net.send(Flow { to, ..flow(1) }, 40_000, CompletionLevel::Delivery);
    }
    let (mut most, mut shares) = (0, vec![0; peers]);
    for _ in 0..5000 {
        net.step();
        let engine = &net.engines[0];
        most = engine.core.shared.pool.len()[0].max(most);
        for (share, to) in shares.iter_mut().zip(1..) {
            let session = engine.core.sessions.at(engine.slots[&to] as usize).unwrap();
            let held = session.segments.outstanding();
            *share = held.max(*share);
        }
        if net.is_at_rest() {
            break;
        }
    }
    net.check();
    let half = net.engines[0].core.shared.pool.limit()[0] / 2;
    assert!(most > half / 2 && most < half + 2 * peers, "{most} of {half}");
    assert!(shares.iter().all(|&share| share > 1), "each has a share: {shares:?}");
}

/// RR-BULK-4
#[test]
fn ungranted_data_closes_the_session() {
    let refusals = |before: &[(u64, u32)], offset, length| {
        let mut net = net(&Config { chunk_bytes: 1000, horizon_chunks: 1, ..bulky() });
        let (_, receive, mut next) = granted(&mut net, 5000);
        for &(offset, length) in before {
            net.deliver(0, 1, &segment(next, 0, &[data(receive.to_u64(), offset, length)]))
                .unwrap();
            next += 1;
        }
        net.deliver(0, 1, &segment(next, 0, &[data(receive.to_u64(), offset, length)]))
    };
    let why = |result| match result {
        Err(FrameError::BadData { why, .. }) => why,
        other => panic!("{other:?}"),
    };
    assert_eq!(refusals(&[], 0, 100), Ok(()));
    assert_eq!(why(refusals(&[], 900, 101)), "range was not granted");
    assert_eq!(why(refusals(&[], 4900, 100)), "range was not granted");
    assert_eq!(why(refusals(&[], u64::MAX, 100)), "range overflows");
    assert_eq!(why(refusals(&[], 0, 0)), "range overflows");
    assert_eq!(why(refusals(&[(100, 100)], 150, 100)), "range overlaps received data");
    assert_eq!(why(refusals(&[(100, 100)], 50, 51)), "range overlaps received data");
    // For a receive that has ended, or never existed.
    let mut net = net(&bulky());
    assert_eq!(net.deliver(0, 1, &segment(0, 0, &[data(77, 0, 10)])), Ok(()));
    assert_eq!(net.engines[1].core.shared.counters().stale_frames, 1);
    let mut lanes = Net::new(2, &config(), CONTENT, 1);
    let refused = lanes.deliver(0, 1, &segment(0, 0, &[data(77, 0, 10)]));
    assert_eq!(why(refused), "this session uses bulk lanes for data");
}

/// RR-BULK-2
#[test]
fn no_range_is_granted_twice() {
    for (grants, is_good) in [
        (&[(0, 1000), (1000, 4000)][..], true),
        (&[(0, 1000), (0, 1000), (1000, 3000)], true),
        (&[(0, 1000), (1000, 4001)], false),
        (&[(0, 5000), (0, 1)], false),
        (&[(0, 0)], false),
    ] {
        let mut net = net(&bulky());
        let send = net.send(flow(1), 5000, CompletionLevel::Delivery).unwrap();
        let _ = net.capture(0, 1);
        let mut last = Ok(());
        for (number, &(offset, length)) in (0..).zip(grants) {
            assert_eq!(last, Ok(()));
            last = net.deliver(1, 0, &segment(number, 0, &[grant(send, offset, length)]));
        }
        assert_eq!(last.is_ok(), is_good, "{grants:?}");
    }
    let mut lanes = Net::new(2, &config(), CONTENT, 1);
    let refused = lanes.deliver(1, 0, &segment(0, 0, &[grant(Id::from_u64(1), 0, 10)]));
    assert!(matches!(refused, Err(FrameError::BadGrant { .. })), "{refused:?}");
}

/// RR-BULK-5, RR-RDV-5
#[test]
fn receive_fails_when_its_send_is_cancelled() {
    for is_granted in [false, true] {
        let mut net = net(&Config { chunk_bytes: 1000, horizon_chunks: 2, ..bulky() });
        let (send, receive, _) = granted(&mut net, 5000);
        let grants = net.capture(1, 0);
        if is_granted {
            for (_, bytes) in &grants {
                net.deliver(1, 0, bytes).unwrap();
            }
        }
        let peer = net.engines[0].peers[&(1, 0)];
        let engine = &mut net.engines[0];
        assert!(engine.core.remove_peer(peer, &mut engine.memory));
        assert!(matches!(net.end_of(0, send), Some(Ended::Failed(PeerFailure::Removed, _))));
        if !is_granted {
            for (_, bytes) in &grants {
                net.deliver(1, 0, bytes).unwrap();
            }
        }
        let sent = net.capture(0, 1);
        assert!(sent.iter().any(|(_, bytes)| kinds(bytes).contains(&frame::KIND_REFUSED)));
        for (_, bytes) in &sent {
            net.deliver(0, 1, bytes).unwrap();
        }
        let ended = net.end_of(1, receive);
        assert!(matches!(ended, Some(Ended::Failed(PeerFailure::Left, _))), "{ended:?}");
        assert_eq!(net.engines[1].core.shared.rendezvous.pulled_bytes(), 0);
        let session = net.engines[1].core.sessions.at(0).unwrap();
        assert!(session.is_connected());
        assert!(SegmentHeader::ref_from_prefix(&sent[0].1).is_ok());
    }
}

#[test]
fn closed_session_releases_its_grants() {
    let config =
        Config { chunk_bytes: 1000, horizon_chunks: 2, datagram_window_bytes: 1, ..bulky() };
    let mut net = Net::new(3, &config, CONTENT, 1);
    for from in [0, 2] {
        net.receive((1, 0), Some((from, 0)), 1, 40_000);
        net.send(Flow { from, ..flow(1) }, 40_000, CompletionLevel::Delivery);
    }
    net.steps(6);
    let slot = net.engines[1].slots[&0];
    let engine = &mut net.engines[1];
    assert!(engine.core.shared.rendezvous.pulled_bytes() > 0);
    engine.core.fail_session(slot, PeerFailure::Lost("gone".into()), &mut engine.memory);
    let left = engine.core.session(engine.slots[&2]).unwrap().rendezvous.pulled_bytes();
    assert_eq!(engine.core.shared.rendezvous.pulled_bytes(), left, "only the other session's");
}
