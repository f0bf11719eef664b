//! Control connections: direct reads and writes, and watching.

use std::io::{ErrorKind, Read, Write};

use socket2::SockRef;

use super::host::{Host, Variant, pattern};
use crate::driver::traits::{CloseMode, DriverEvent, Interest, LaneKey};

fn is_readable(event: &DriverEvent, lane: LaneKey) -> bool {
    matches!(event, DriverEvent::Readable { lane: l } if *l == lane)
}

fn is_writable(event: &DriverEvent, lane: LaneKey) -> bool {
    matches!(event, DriverEvent::Writable { lane: l } if *l == lane)
}

/// Writes until the socket is full; returns the number of bytes.
fn fill(host: &mut Host, lane: LaneKey, bytes: &[u8]) -> usize {
    let mut total = 0;
    loop {
        match host.driver.send(lane, &bytes[total % bytes.len()..]) {
            Ok(count) => total += count,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                return total;
            }
        }
    }
}

pub(super) fn bytes_arrive_in_order_until_the_stream_ends(variant: &Variant) {
    let mut host = Host::new(variant);
    let (near, far) = host.pair();
    let mut into = [0; 64];
    assert_eq!(host.driver.recv(far, &mut into).unwrap_err().kind(), ErrorKind::WouldBlock);
    for round in 0..100u64 {
        let bytes = pattern(round, 1 + round as usize % 64);
        assert_eq!(host.driver.send(near, &bytes).unwrap(), bytes.len());
        host.watch(far, Interest::Readable);
        host.expect("Readable", |e| is_readable(e, far));
        assert_eq!(host.driver.recv(far, &mut into).unwrap(), bytes.len());
        assert_eq!(into[..bytes.len()], bytes);
    }
    host.close(near, CloseMode::Graceful);
    host.expect_closed(near);
    host.watch(far, Interest::Readable);
    host.expect("Readable", |e| is_readable(e, far));
    assert_eq!(host.driver.recv(far, &mut into).unwrap(), 0);
    host.expect_quiet();
}

pub(super) fn full_socket_takes_no_more(variant: &Variant) {
    let mut host = Host::new(variant);
    let (lane, mut peer) = host.lane_to_outside();
    let bytes = pattern(1, 1 << 20);
    let total = fill(&mut host, lane, &bytes);
    host.close(lane, CloseMode::Graceful);
    let mut received = Vec::new();
    peer.read_to_end(&mut received).unwrap();
    assert_eq!(received.len(), total);
    assert!(received.chunks(bytes.len()).all(|part| part == &bytes[..part.len()]));
    host.expect_closed(lane);
}

pub(super) fn watched_for_reading_once(variant: &Variant) {
    let mut host = Host::new(variant);
    let (lane, mut peer) = host.lane_to_outside();
    // Nothing has arrived: no event, even if requested twice.
    host.watch(lane, Interest::Readable);
    host.watch(lane, Interest::Readable);
    host.expect_quiet();
    peer.write_all(b"12345678").unwrap();
    host.expect("Readable", |e| is_readable(e, lane));
    // Data is present all the time, but no event was requested.
    host.expect_quiet();
    host.watch(lane, Interest::Readable);
    host.expect("Readable", |e| is_readable(e, lane));
    assert_eq!(host.driver.recv(lane, &mut [0; 4]).unwrap(), 4);
    host.watch(lane, Interest::Readable);
    host.expect("Readable", |e| is_readable(e, lane));
    assert_eq!(host.driver.recv(lane, &mut [0; 8]).unwrap(), 4);
    let error = host.driver.recv(lane, &mut [0; 8]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    host.watch(lane, Interest::Readable);
    host.expect_quiet();
    // A watch outstanding at the close reports nothing.
    host.close(lane, CloseMode::Graceful);
    host.expect_closed(lane);
    peer.write_all(b"late").unwrap();
    host.expect_quiet();
}

/// A lane may be read without a watch, and be watched when it has nothing more.
pub(super) fn watched_after_its_event(variant: &Variant) {
    let mut host = Host::new(variant);
    let (lane, mut peer) = host.lane_to_outside();
    for round in 0..3 {
        peer.write_all(b"12345678").unwrap();
        host.expect_quiet();
        if round > 0 {
            host.watch(lane, Interest::Readable);
            host.expect("Readable", |e| is_readable(e, lane));
        }
        assert_eq!(host.driver.recv(lane, &mut [0; 16]).unwrap(), 8);
        let error = host.driver.recv(lane, &mut [0; 16]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        host.watch(lane, Interest::Readable);
        host.expect_quiet();
        peer.write_all(b"1234").unwrap();
        host.expect("Readable", |e| is_readable(e, lane));
        host.expect_quiet();
        assert_eq!(host.driver.recv(lane, &mut [0; 16]).unwrap(), 4);
        let error = host.driver.recv(lane, &mut [0; 16]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
    }
    host.close(lane, CloseMode::Graceful);
    host.expect_closed(lane);
}

pub(super) fn watched_for_writing_once(variant: &Variant) {
    let mut host = Host::new(variant);
    let (lane, mut peer) = host.lane_to_outside();
    host.watch(lane, Interest::Writable);
    host.expect("Writable", |e| is_writable(e, lane));
    host.expect_quiet();
    let bytes = pattern(2, 1 << 16);
    for _ in 0..2 {
        // The kernel finds more room at times, until both sockets are full for good.
        let mut total = 0;
        let is_full = (0..100).any(|_| {
            total += fill(&mut host, lane, &bytes);
            host.watch(lane, Interest::Writable);
            host.watch(lane, Interest::Writable);
            host.events_of(std::time::Duration::from_millis(30)).is_empty()
        });
        assert!(is_full, "room is reported without end");
        peer.read_exact(&mut vec![0; total]).unwrap();
        host.expect("Writable", |e| is_writable(e, lane));
        host.expect_quiet();
    }
}

pub(super) fn end_and_reset_are_readable(variant: &Variant) {
    let mut host = Host::new(variant);
    for is_reset in [false, true] {
        let (lane, peer) = host.lane_to_outside();
        host.watch(lane, Interest::Readable);
        if is_reset {
            SockRef::from(&peer).set_linger(Some(std::time::Duration::ZERO)).unwrap();
        }
        drop(peer);
        host.expect("Readable", |e| is_readable(e, lane));
        let received = host.driver.recv(lane, &mut [0; 8]);
        match is_reset {
            false => assert_eq!(received.unwrap(), 0),
            true => assert_eq!(received.unwrap_err().kind(), ErrorKind::ConnectionReset),
        }
        host.close(lane, CloseMode::Graceful);
        host.expect_closed(lane);
    }
    host.expect_quiet();
}
