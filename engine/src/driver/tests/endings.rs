//! Lanes that are closed with something outstanding.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Duration;

use socket2::SockRef;

use super::host::{Host, PATIENCE, Variant, header, pattern};
use crate::driver::traits::{
    CHUNK_HEADER_BYTES, CloseMode, DriverEvent, Interest, LaneKey, SendMode,
};
use crate::memory::{Buffer, alloc_region};

/// More than a narrow lane holds.
const LENGTH: usize = 400_000;

/// Memory on the heap and in the arena, with both modes.
const WAYS: [(bool, SendMode); 4] = [
    (false, SendMode::Copy),
    (false, SendMode::ZeroCopy),
    (true, SendMode::Copy),
    (true, SendMode::ZeroCopy),
];

fn payload(host: &Host, is_registered: bool) -> Buffer {
    let bytes = pattern(8, LENGTH);
    if !is_registered {
        return Buffer::from(bytes);
    }
    let mut region = alloc_region(&host.arena, LENGTH, 64).unwrap();
    assert!(region.is_registered());
    region.copy_from_slice(&bytes);
    Buffer::Region(region)
}

/// A lane with a chunk outstanding in each direction, both started.
fn busy_lane(host: &mut Host, way: (bool, SendMode), token: u64) -> (LaneKey, TcpStream) {
    let (lane, mut peer) = host.narrow_lane();
    let source = payload(host, way.0);
    host.send_chunk(lane, token, source, way.1);
    host.recv_chunk(lane, Buffer::from(vec![0; 1000]));
    peer.write_all(&[&header(1)[..], b"a beginning"].concat()).unwrap();
    host.expect_quiet();
    (lane, peer)
}

/// Reads to the end of the stream, which comes in mid-chunk or by a reset; returns which.
fn is_reset_after_prefix(peer: &mut TcpStream, token: u64) -> bool {
    let mut received = Vec::new();
    let is_reset = match peer.read_to_end(&mut received) {
        Ok(_) => false,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
            true
        }
    };
    let sent = [&header(token)[..], &pattern(8, LENGTH)].concat();
    assert!(received.len() < sent.len() && sent.starts_with(&received));
    is_reset
}

pub(super) fn reset_in_mid_chunk(variant: &Variant) {
    let mut host = Host::new(variant);
    for (token, way) in (0..).zip(WAYS) {
        let (lane, mut peer) = busy_lane(&mut host, way, token);
        host.watch(lane, Interest::Writable);
        host.close(lane, CloseMode::Reset);
        assert_eq!(host.expect_sent(lane).unwrap_err().kind(), ErrorKind::ConnectionAborted);
        host.expect_released(token);
        let (received, _) = host.expect_received(lane);
        assert_eq!(received.unwrap_err().kind(), ErrorKind::ConnectionAborted);
        host.expect_closed(lane);
        assert!(is_reset_after_prefix(&mut peer, token), "{way:?}");
    }
    host.expect_quiet();
}

/// The peer reads nothing for a while: a graceful close waits for it only as long as the kernel
/// needs the memory, and a reset ends the wait.
pub(super) fn graceful_in_mid_chunk_with_a_peer_that_does_not_read(variant: &Variant) {
    let mut host = Host::new(variant);
    for (token, way) in (0..).zip(WAYS) {
        for ends_by_reset in [false, true] {
            let token = token * 2 + u64::from(ends_by_reset);
            let (lane, mut peer) = busy_lane(&mut host, way, token);
            host.close(lane, CloseMode::Graceful);
            assert!(host.expect_sent(lane).is_err());
            assert!(host.expect_received(lane).0.is_err());
            let events = host.events_of(Duration::from_millis(30));
            let is_closed = events.iter().any(|event| matches!(event, DriverEvent::Closed { .. }));
            if way.1 == SendMode::Copy {
                assert!(is_closed, "not closed at once: {events:?}");
            }
            if ends_by_reset && !is_closed {
                host.close(lane, CloseMode::Reset);
                host.expect_closed(lane);
                assert!(is_reset_after_prefix(&mut peer, token), "{way:?}");
            } else {
                // The notifications arrive while the peer reads.
                let reader = std::thread::spawn(move || is_reset_after_prefix(&mut peer, token));
                if !is_closed {
                    host.expect_closed(lane);
                }
                assert!(!reader.join().unwrap(), "{way:?}");
            }
            let is_other =
                |event: &DriverEvent| !matches!(event, DriverEvent::ChunkReleased { .. });
            assert!(!host.events_of(Duration::from_millis(5)).iter().any(is_other));
        }
    }
}

/// Sent bytes are delivered, although received ones were not read.
pub(super) fn graceful_delivers_what_was_sent(variant: &Variant) {
    let mut host = Host::new(variant);
    for (token, way) in (0..).zip(WAYS) {
        let (lane, mut peer) = host.lane_to_outside();
        peer.write_all(b"never read").unwrap();
        let source = payload(&host, way.0);
        host.send_chunk(lane, token, source, way.1);
        let reader = std::thread::spawn(move || {
            let mut received = Vec::new();
            peer.read_to_end(&mut received).unwrap();
            received
        });
        host.expect_sent(lane).unwrap();
        host.watch(lane, Interest::Readable);
        host.close(lane, CloseMode::Graceful);
        host.expect_closed(lane);
        host.expect_released(token);
        let received = reader.join().unwrap();
        assert!(
            received[..CHUNK_HEADER_BYTES] == header(token)
                && received[CHUNK_HEADER_BYTES..] == pattern(8, LENGTH),
            "{way:?}"
        );
    }
}

pub(super) fn peer_resets_in_mid_chunk(variant: &Variant) {
    let mut host = Host::new(variant);
    for (token, way) in (0..).zip(WAYS) {
        let (lane, peer) = busy_lane(&mut host, way, token);
        SockRef::from(&peer).set_linger(Some(Duration::ZERO)).unwrap();
        drop(peer);
        let kinds = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
        // The first direction to notice gets the reset, the other one a consequence.
        assert!(kinds.contains(&host.expect_sent(lane).unwrap_err().kind()));
        host.expect_released(token);
        match host.expect_received(lane).0 {
            Err(error) => assert!(
                [ErrorKind::ConnectionReset, ErrorKind::UnexpectedEof].contains(&error.kind()),
                "{error:?}"
            ),
            Ok(header) => panic!("{header:?}"),
        }
        // The owner must close the lane.
        host.expect_quiet();
        host.close(lane, CloseMode::Graceful);
        host.expect_closed(lane);
    }
}

pub(super) fn peer_ends_in_mid_chunk(variant: &Variant) {
    let mut host = Host::new(variant);
    for count in [0, CHUNK_HEADER_BYTES - 1, CHUNK_HEADER_BYTES, 500] {
        let (lane, mut peer) = host.lane_to_outside();
        host.recv_chunk(lane, Buffer::from(vec![0; 1000]));
        peer.write_all(&pattern(1, count)).unwrap();
        host.turn();
        peer.shutdown(Shutdown::Write).unwrap();
        let (received, _) = host.expect_received(lane);
        assert_eq!(received.unwrap_err().kind(), ErrorKind::UnexpectedEof);
        // The other direction still works.
        host.send_chunk(lane, 1, Buffer::from(pattern(2, 100)), SendMode::ZeroCopy);
        host.expect_sent(lane).unwrap();
        let mut received = [0; CHUNK_HEADER_BYTES + 100];
        peer.read_exact(&mut received).unwrap();
        assert!(
            received[..CHUNK_HEADER_BYTES] == header(1)
                && received[CHUNK_HEADER_BYTES..] == pattern(2, 100)
        );
        host.expect_released(1);
        host.close(lane, CloseMode::Graceful);
        host.expect_closed(lane);
    }
}

pub(super) fn shutdown_releases_all_memory(variant: &Variant) {
    let mut host = Host::new(variant);
    let address = host.listen();
    host.pair();
    let (_, mut peer) = busy_lane(&mut host, (true, SendMode::ZeroCopy), 1);
    let (watched, _other) = host.lane_to_outside();
    host.watch(watched, Interest::Readable);
    let _closing = {
        let (lane, peer) = busy_lane(&mut host, (false, SendMode::ZeroCopy), 2);
        host.close(lane, CloseMode::Graceful);
        peer
    };
    assert!(host.driver.shutdown(PATIENCE));
    let refused = TcpStream::connect(address).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    is_reset_after_prefix(&mut peer, 1);
    let mut events = Vec::new();
    assert!(host.driver.poll(&mut events).is_err());
    assert!(host.driver.park(Duration::ZERO, &mut events).is_err());
    assert!(events.is_empty());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    assert!(host.driver.connect(listener.local_addr().unwrap(), 0, None).is_err());
    assert!(host.driver.listen(listener).is_err());
    assert!(host.driver.adopt(peer.into()).is_err());
    assert!(host.driver.dismantle().is_err());
    assert!(host.driver.shutdown(Duration::ZERO), "there is nothing left to wait for");
}

/// Sent bytes are delivered, on idle lanes and on lanes that are closing.
pub(super) fn shutdown_delivers_what_was_sent(variant: &Variant) {
    let mut host = Host::new(variant);
    let mut peers = Vec::new();
    for is_closing in [false, true] {
        let (lane, mut peer) = host.lane_to_outside();
        peer.write_all(b"never read").unwrap();
        host.turn();
        host.watch(lane, Interest::Writable);
        host.recv_chunk(lane, Buffer::from(vec![0; 1000]));
        assert_eq!(host.driver.send(lane, b"last words").unwrap(), 10);
        if is_closing {
            host.close(lane, CloseMode::Graceful);
        }
        peers.push(peer);
    }
    assert!(host.driver.shutdown(PATIENCE));
    for mut peer in peers {
        let mut received = Vec::new();
        peer.read_to_end(&mut received).unwrap();
        assert_eq!(received, b"last words");
    }
}
