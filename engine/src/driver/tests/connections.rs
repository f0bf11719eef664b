//! Opening, refusing and closing lanes.

use std::net::{IpAddr, TcpListener};

use socket2::{Domain, Socket, Type};

use super::host::{Host, Variant, header};
use super::rails::rail;
use crate::driver::DriverConfig;
use crate::driver::traits::{CloseMode, DriverEvent, Interest, LaneKey, OutgoingChunk, SendMode};
use crate::memory::Shape;

pub(super) fn connects_and_accepts(variant: &Variant) {
    let mut host = Host::new(variant);
    let address = host.listen();
    for last in [2, 3] {
        let local: IpAddr = format!("127.0.0.{last}").parse().unwrap();
        host.driver.set_rails(&[rail(local, 0)]).unwrap();
        let near = host.connect(address);
        host.expect("Connected", |e| matches!(e, DriverEvent::Connected { lane } if *lane == near));
        let accepted = host.expect("Accepted", |e| matches!(e, DriverEvent::Accepted { .. }));
        let DriverEvent::Accepted { lane: far, remote, rail: 0 } = accepted else { unreachable!() };
        assert_eq!(remote.ip(), local);
        assert_ne!(near, far);
    }
    host.expect_quiet();
}

pub(super) fn refused_is_reported_and_closed(variant: &Variant) {
    let mut host = Host::new(variant);
    // The port is bound, so that no process listens on it.
    let taken = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    taken.bind(&"127.0.0.1:0".parse::<std::net::SocketAddr>().unwrap().into()).unwrap();
    let address = taken.local_addr().unwrap().as_socket().unwrap();
    let lane = host.connect(address);
    let failed = host.expect("ConnectFailed", |e| matches!(e, DriverEvent::ConnectFailed { .. }));
    let DriverEvent::ConnectFailed { lane: failed, error } = failed else { unreachable!() };
    assert_eq!((failed, error.kind()), (lane, std::io::ErrorKind::ConnectionRefused));
    host.expect_closed(lane);
    host.expect_quiet();
}

pub(super) fn closing_an_attempt_ends_it(variant: &Variant) {
    let mut host = Host::new(variant);
    // A listener with a full backlog leaves further attempts unanswered.
    let full = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    full.bind(&"127.0.0.1:0".parse::<std::net::SocketAddr>().unwrap().into()).unwrap();
    full.listen(0).unwrap();
    let address = full.local_addr().unwrap().as_socket().unwrap();
    let fillers: Vec<Socket> = (0..4)
        .map(|_| {
            let filler = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            filler.set_nonblocking(true).unwrap();
            // Some of these are answered and some are not: both are fine.
            let _ = filler.connect(&address.into());
            filler
        })
        .collect();
    for mode in [CloseMode::Reset, CloseMode::Graceful] {
        let lane = host.connect(address);
        host.expect_quiet();
        assert!(host.driver.watch(lane, Interest::Readable).is_err());
        host.close(lane, mode);
        host.expect_closed(lane);
    }
    host.expect_quiet();
    drop(fillers);
}

pub(super) fn full_table_refuses_one_more(variant: &Variant) {
    let config = DriverConfig { max_lanes: 2, ..variant.config() };
    let mut host = Host::with(variant.choice, &config);
    let (first, _peer) = host.lane_to_outside();
    let (_second, _other) = host.lane_to_outside();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let error = host.driver.connect(address, 0, None).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::QuotaExceeded);
    host.close(first, CloseMode::Reset);
    host.expect_closed(first);
    let third = host.connect(address);
    assert_eq!(third.index, first.index);
    assert_ne!(third.generation, first.generation);
    host.expect("Connected", |e| matches!(e, DriverEvent::Connected { .. }));
}

/// Calls with the key of a closed lane are errors, and do not affect the new lane at its index.
pub(super) fn stale_keys_do_nothing(variant: &Variant) {
    let mut host = Host::new(variant);
    let (stale, _peer) = host.lane_to_outside();
    host.watch(stale, Interest::Readable);
    host.close(stale, CloseMode::Graceful);
    host.close(stale, CloseMode::Reset);
    host.expect_closed(stale);
    let (lane, mut peer) = host.lane_to_outside();
    assert_eq!(lane.index, stale.index);
    let unknown = LaneKey { index: 1_000_000, generation: 0 };
    for key in [stale, unknown] {
        refuses_everything(&mut host, key);
    }
    std::io::Write::write_all(&mut peer, b"here").unwrap();
    host.watch(lane, Interest::Readable);
    host.expect("Readable", |e| matches!(e, DriverEvent::Readable { lane: l } if *l == lane));
    let mut into = [0; 8];
    assert_eq!(host.driver.recv(lane, &mut into).unwrap(), 4);
    host.expect_quiet();
}

fn refuses_everything(host: &mut Host, key: LaneKey) {
    host.close(key, CloseMode::Reset);
    host.close(key, CloseMode::Graceful);
    assert!(host.driver.send(key, b"x").is_err());
    assert!(host.driver.recv(key, &mut [0; 8]).is_err());
    assert!(host.driver.watch(key, Interest::Readable).is_err());
    assert!(host.driver.watch(key, Interest::Writable).is_err());
    assert!(host.driver.unacked(key).is_err());
    // The chunk is answered, although there is no lane.
    let chunk = OutgoingChunk {
        lane: key,
        token: 9,
        header: &header(9),
        source: &Shape::empty(),
        offset: 0,
        length: 0,
        mode: SendMode::ZeroCopy,
    };
    // SAFETY: an empty shape has no memory.
    unsafe {
        host.driver.send_chunk(&chunk);
        host.driver.recv_chunk(key, &Shape::empty(), 0, 0);
    }
    let mut events = Vec::new();
    host.driver.poll(&mut events).unwrap();
    let [
        DriverEvent::ChunkSent { lane: sent, result: Err(_) },
        DriverEvent::ChunkReleased { token: 9 },
        DriverEvent::ChunkReceived { lane: received, result: Err(_) },
    ] = events[..]
    else {
        panic!("{events:?}")
    };
    assert_eq!((sent, received), (key, key));
}
