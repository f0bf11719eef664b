//! What a driver does in the place of an absent owner: the calls come from another thread.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use super::host::{Host, PATIENCE, Variant};
use crate::driver::lanes::{CloseMode, Driver, DriverEvent, Interest};

/// Turns of somebody else until `done`, which gets what has happened since the last one.
fn stand_in(
    driver: &mut (dyn Driver + Send),
    mut done: impl FnMut(&mut dyn Driver, &[DriverEvent]) -> bool + Send,
) {
    thread::scope(|scope| {
        scope.spawn(|| {
            let deadline = Instant::now() + PATIENCE;
            driver.begin_absence();
            let mut events = Vec::new();
            loop {
                events.clear();
                driver.poll(&mut events).unwrap();
                if done(driver, &events) {
                    break;
                }
                assert!(Instant::now() < deadline, "it never happens in the absence");
                thread::sleep(Duration::from_micros(100));
            }
            driver.end_absence();
        });
    });
}

/// Connections are made, accepted and used without the owner, who can go on with them and is told
/// nothing wrong when it is back.
pub(super) fn lanes_are_set_up_and_closed_in_absence(variant: &Variant) {
    let mut host = Host::new(variant);
    let address = host.listen();
    let unused = host.pair();
    let (mut near, mut far) = (None, None);
    let driver = &mut *host.driver;
    driver.watch(unused.0, Interest::Readable).unwrap();
    // As control lanes are when their session ends.
    driver.watch(unused.1, Interest::Readable).unwrap();
    let (mut heard, mut is_connected, mut is_closed) = (false, false, false);
    stand_in(driver, |driver, events| {
        near.get_or_insert_with(|| driver.connect(address, 0, None).unwrap());
        for event in events {
            match event {
                DriverEvent::Accepted { lane, .. } => {
                    far = Some(*lane);
                    driver.close(unused.1, CloseMode::Graceful);
                }
                DriverEvent::Connected { lane } => is_connected |= Some(*lane) == near,
                // The end of the lane that is closed reaches its other side.
                DriverEvent::Readable { lane } => heard |= *lane == unused.0,
                DriverEvent::Closed { lane } => is_closed |= *lane == unused.1,
                _ => {}
            }
        }
        is_connected && far.is_some() && heard
    });
    let (near, far) = (near.unwrap(), far.unwrap());
    let deadline = Instant::now() + PATIENCE;
    let mut events = Vec::new();
    let (mut sent, mut got) = (false, 0);
    while !(is_closed && got == 4) {
        assert!(Instant::now() < deadline);
        driver.poll(&mut events).unwrap();
        for event in events.drain(..) {
            let is_second =
                matches!(event, DriverEvent::Connected { .. } | DriverEvent::Accepted { .. });
            assert!(!is_second, "told twice: {event:?}");
            is_closed |= matches!(event, DriverEvent::Closed { lane } if lane == unused.1);
        }
        if !sent {
            sent = matches!(driver.send(near, b"more"), Ok(4));
        }
        got += driver.recv(far, &mut [0; 8]).unwrap_or(0);
    }
}

/// A full stream is watched for room, and datagrams pass, without the owner.
pub(super) fn bytes_and_datagrams_pass_in_absence(variant: &Variant) {
    let mut host = Host::new(variant);
    let (lane, mut peer) = host.narrow_lane();
    let own = host.open_datagrams("127.0.0.1");
    let driver = &mut *host.driver;
    let mut filled = 0;
    while let Ok(sent) = driver.send(lane, &[7; 4096]) {
        filled += sent;
    }
    driver.watch(lane, Interest::Writable).unwrap();
    driver.watch_datagrams().unwrap();
    let reader = thread::spawn(move || {
        let mut bytes = vec![0; filled];
        peer.read_exact(&mut bytes).unwrap();
        assert!(bytes.iter().all(|&byte| byte == 7));
        peer.write_all(b"!").unwrap();
        peer
    });
    let (mut has_room, mut came, mut is_sent) = (false, false, false);
    stand_in(driver, |driver, events| {
        has_room |= events.iter().any(|event| matches!(event, DriverEvent::Writable { .. }));
        if !is_sent && let Ok(room) = driver.datagram_room() {
            room[..5].copy_from_slice(b"hello");
            driver.send_datagram(own, 0, 5, crate::driver::lanes::Handling::PLAIN);
            driver.flush_datagrams();
            is_sent = true;
        }
        let received = driver.recv_datagram().unwrap();
        came |= received.is_some_and(|(from, bytes)| from == own && bytes == b"hello");
        has_room && came
    });
    let mut peer = reader.join().unwrap();
    // The owner goes on where it was, though it may be told of some of it again.
    assert_eq!(driver.send(lane, b"?").unwrap(), 1);
    let mut byte = [0];
    peer.read_exact(&mut byte).unwrap();
    assert_eq!(byte, *b"?");
}

/// Connections that come and are refused without the owner are over before it is back: nothing of
/// them waits for it, however many there are.
pub(super) fn strangers_leave_nothing_behind_in_absence(variant: &Variant) {
    const STRANGERS: usize = 50;
    let mut host = Host::new(variant);
    let address = host.listen();
    let driver = &mut *host.driver;
    let (mut strangers, mut closed) = (Vec::new(), Vec::new());
    stand_in(driver, |driver, events| {
        for event in events {
            match event {
                DriverEvent::Accepted { lane, .. } => {
                    driver.watch(*lane, Interest::Readable).unwrap()
                }
                DriverEvent::Readable { lane } => driver.close(*lane, CloseMode::Graceful),
                DriverEvent::Closed { lane } => closed.push(*lane),
                other => panic!("{other:?}"),
            }
        }
        if strangers.len() == closed.len() && closed.len() < STRANGERS {
            let mut stranger = TcpStream::connect(address).unwrap();
            stranger.write_all(b"?").unwrap();
            strangers.push(stranger);
        }
        closed.len() == STRANGERS
    });
    for stranger in &mut strangers {
        // A reset, for its byte was not read; the connection is over in any case.
        assert!(matches!(stranger.read(&mut [0]), Ok(0) | Err(_)));
    }
    // The owner hears no more of them.
    let mut events = Vec::new();
    for _ in 0..100 {
        driver.poll(&mut events).unwrap();
        assert!(events.is_empty(), "told again: {events:?}");
    }
}
