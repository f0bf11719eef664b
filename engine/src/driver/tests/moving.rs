//! Sockets that move to another driver.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};

use super::host::{Host, Variant, header, pattern};
use crate::driver::traits::{
    CHUNK_HEADER_BYTES, CloseMode, DriverEvent, Interest, LaneKey, SendMode,
};
use crate::driver::{DriverChoice, DriverConfig};
use crate::memory::Buffer;

fn expect_bytes(host: &mut Host, lane: LaneKey, expected: &[u8]) {
    let mut received = Vec::new();
    while received.len() < expected.len() {
        host.watch(lane, Interest::Readable);
        host.expect("Readable", |e| matches!(e, DriverEvent::Readable { lane: l } if *l == lane));
        let mut into = [0; 5];
        match host.driver.recv(lane, &mut into) {
            Ok(count) => received.extend_from_slice(&into[..count]),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }
    assert_eq!(received, expected);
}

/// The stream continues, and pending connections are not lost.
pub(super) fn lanes_move_to_the_other_driver(variant: &Variant) {
    let other = match variant.choice {
        DriverChoice::Sockets => DriverChoice::Auto,
        _ => DriverChoice::Sockets,
    };
    for (choice, config) in [(other, DriverConfig::default()), (variant.choice, variant.config())] {
        let mut host = Host::new(variant);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        host.driver.listen(listener.try_clone().unwrap()).unwrap();
        let (lane, mut peer) = host.lane_to_outside();
        let (idle, _idle_peer) = host.lane_to_outside();
        let (closed, _) = host.lane_to_outside();
        host.close(closed, CloseMode::Reset);
        host.expect_closed(closed);
        // A zero-copy chunk leaves state in the driver, not in the stream.
        host.send_chunk(lane, 1, Buffer::from(pattern(1, 5000)), SendMode::ZeroCopy);
        host.expect_sent(lane).unwrap();
        host.expect_released(1);
        for watched in [lane, idle] {
            host.watch(watched, Interest::Readable);
        }
        host.expect_quiet();
        peer.write_all(b"before").unwrap();
        let waiting = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut sockets = host.dismantle().unwrap();
        assert!(host.driver.poll(&mut Vec::new()).is_err());
        drop(host);
        let at = sockets.iter().position(|(key, _)| *key == lane).unwrap();
        let mut successor = Host::with(choice, &config);
        let lane = successor.adopt(sockets.swap_remove(at).1);
        successor.driver.listen(listener).unwrap();
        let accepted = successor.expect("Accepted", |e| matches!(e, DriverEvent::Accepted { .. }));
        let DriverEvent::Accepted { remote, .. } = accepted else { unreachable!() };
        assert_eq!(remote, waiting.local_addr().unwrap());
        peer.write_all(b" and after").unwrap();
        expect_bytes(&mut successor, lane, b"before and after");
        successor.expect_quiet();
        successor.recv_chunk(lane, Buffer::from(vec![0; 100]));
        successor.send_chunk(lane, 2, Buffer::from(pattern(2, 5000)), SendMode::ZeroCopy);
        peer.write_all(&[&header(7)[..], &pattern(7, 100)].concat()).unwrap();
        let (received, buffer) = successor.expect_received(lane);
        assert_eq!(received.unwrap(), header(7));
        assert_eq!(buffer.as_slice().unwrap(), pattern(7, 100));
        successor.expect_sent(lane).unwrap();
        successor.close(lane, CloseMode::Graceful);
        successor.expect_closed(lane);
        let mut received = Vec::new();
        peer.read_to_end(&mut received).unwrap();
        let (first, second) = received.split_at(CHUNK_HEADER_BYTES + 5000);
        assert!(
            first[..CHUNK_HEADER_BYTES] == header(1)
                && first[CHUNK_HEADER_BYTES..] == pattern(1, 5000)
        );
        assert!(
            second[..CHUNK_HEADER_BYTES] == header(2)
                && second[CHUNK_HEADER_BYTES..] == pattern(2, 5000)
        );
    }
}

/// Outstanding requests prevent dismantling, and continue unaffected.
pub(super) fn busy_driver_is_not_dismantled(variant: &Variant) {
    let mut host = Host::new(variant);
    let (lane, mut peer) = host.lane_to_outside();
    let would_block = |host: &mut Host| {
        assert_eq!(host.dismantle().unwrap_err().kind(), ErrorKind::WouldBlock);
    };
    host.recv_chunk(lane, Buffer::from(vec![0; 10]));
    would_block(&mut host);
    peer.write_all(&[&header(3)[..], &[5; 10]].concat()).unwrap();
    assert_eq!(host.expect_received(lane).0.unwrap(), header(3));
    let (closing, _peer) = host.lane_to_outside();
    host.watch(closing, Interest::Readable);
    host.close(closing, CloseMode::Graceful);
    would_block(&mut host);
    host.expect_closed(closing);
    let address = host.listen();
    let attempt = host.connect(address);
    would_block(&mut host);
    host.expect("Connected", |e| matches!(e, DriverEvent::Connected { lane: l } if *l == attempt));
    host.expect("Accepted", |e| matches!(e, DriverEvent::Accepted { .. }));
    assert_eq!(host.dismantle().unwrap().len(), 3);
}
