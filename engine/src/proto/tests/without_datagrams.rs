//! Segments of a session whose only transport is the control connection.

use super::super::session::credit::SendCredits;
use super::*;
use crate::wire::GrantOver;

/// A peer that takes long messages, and many.
fn bench() -> Bench {
    let config = Config { eager_limit: 10_000, eager_credit_bytes: 1 << 16, ..Config::for_tests() };
    let mut bench = Bench::new(config);
    let session = bench.core.sessions.at_mut(bench.slot as usize).unwrap();
    session.segments_mut().set_send_credits(SendCredits::new(1000, 1 << 20), 10_000);
    (bench.there.envelope_limit, bench.there.byte_limit) = (1000, 1 << 20);
    bench
}

/// RR-SEG-2
#[test]
fn short_and_long_segments_go_in_the_order_of_their_frames() {
    let mut bench = bench();
    for length in [8, 5000, 8] {
        bench.send(length, CompletionLevel::Inject);
    }
    stage_empty(&mut bench.core, &mut bench.results);
    let mut bytes = next_bytes(&mut bench.core, bench.slot);
    let mut segments = Vec::new();
    bench.there.read(&mut bytes, |header, _| {
        segments.push((header.first_frame.get(), header.length.get() > 5000));
    });
    assert_eq!(segments, [(0, false), (1, true), (2, false)]);
}

/// Otherwise the peer would not know that this side waits for it.
///
/// RR-SEG-5
#[test]
fn a_sender_without_space_asks_for_an_acknowledgement() {
    let mut bench = bench();
    for round in 0..3 {
        let limit: usize = bench.core.shared.pool.limit().iter().sum();
        let asked = (0..2 * limit).find(|_| {
            bench.send(8, CompletionLevel::Inject);
            assert_eq!(bench.transmit(), [frame::KIND_EAGER]);
            bench.flags & FLAG_ACK_REQUESTED != 0
        });
        assert!(asked.is_some(), "round {round}");
        bench.send(8, CompletionLevel::Inject);
        let sent = bench.transmit().len();
        bench.acknowledge();
        assert_eq!(sent + bench.transmit().len(), 1, "round {round}");
        bench.acknowledge();
    }
    assert_eq!(bench.core.shared.pool.len(), [0; 3]);
}

/// RR-SHM-10
#[test]
fn a_grant_of_a_ring_ends_a_session_without_datagrams() {
    let mut bench = Bench::new(Config::for_tests());
    let send = bench.send(5000, CompletionLevel::Inject);
    assert_eq!(bench.transmit(), [frame::KIND_RTS]);
    let grant = sim::grant(GrantOver::Ring(1), send, 0, 100);
    let refused = bench.deliver(grant.as_bytes());
    assert_eq!(refused, Err(FrameError::BadGrant { offset: 0, length: 100, message: 0 }));
}

/// Segments grow by their checksums when they are passed to the connection.
///
/// RR-SEG-1, RR-SUM-2
#[test]
fn full_segments_with_checksums_are_within_the_limit() {
    const LONG: u32 = 100 << 10;
    for length in (32_600..=32 << 10).step_by(4) {
        let config = Config {
            eager_limit: 128 << 10,
            eager_credit_bytes: 1 << 20,
            staging_bytes: 1 << 20,
            ..Config::for_tests()
        };
        let mut bench = Bench::new(config);
        let session = bench.core.sessions.at_mut(bench.slot as usize).unwrap();
        session.segments_mut().set_send_credits(SendCredits::new(1000, 1 << 20), 128 << 10);
        bench.use_checksums(true);
        bench.send(LONG.into(), CompletionLevel::Inject);
        bench.send(length, CompletionLevel::Inject);
        let mut sent = bench.transmit();
        bench.acknowledge();
        sent.extend(bench.transmit());
        assert_eq!(sent, [frame::KIND_EAGER; 2], "{length}");
    }
}
