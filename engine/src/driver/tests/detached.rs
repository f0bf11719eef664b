//! Detached mode: the calls come from another thread.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use super::host::{Host, PATIENCE, Variant};
use crate::driver::traits::{CloseMode, Driver, DriverEvent, Interest};

/// Turns of another thread until `done`, which gets the events since the last one.
fn stand_in(
    driver: &mut (dyn Driver + Send),
    mut done: impl FnMut(&mut dyn Driver, &[DriverEvent]) -> bool + Send,
) {
    thread::scope(|scope| {
        scope.spawn(|| {
            let deadline = Instant::now() + PATIENCE;
            driver.begin_detached();
            let mut events = Vec::new();
            loop {
                events.clear();
                driver.poll(&mut events).unwrap();
                if done(driver, &events) {
                    break;
                }
                assert!(Instant::now() < deadline, "it does not happen in detached mode");
                thread::sleep(Duration::from_micros(100));
            }
            driver.end_detached();
        });
    });
}

/// Connections are made, accepted and used without the owner, which can go on with them, and gets
/// no wrong events when it is back.
pub(super) fn lanes_are_opened_and_closed_while_detached(variant: &Variant) {
    let mut host = Host::new(variant);
    let address = host.listen();
    let unused = host.pair();
    let (mut near, mut far) = (None, None);
    let driver = &mut *host.driver;
    driver.watch(unused.0, Interest::Readable).unwrap();
    // As control connections are when their session ends.
    driver.watch(unused.1, Interest::Readable).unwrap();
    let (mut has_ended, mut is_connected, mut is_closed) = (false, false, false);
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
                DriverEvent::Readable { lane } => has_ended |= *lane == unused.0,
                DriverEvent::Closed { lane } => is_closed |= *lane == unused.1,
                _ => {}
            }
        }
        is_connected && far.is_some() && has_ended
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
            assert!(!is_second, "reported twice: {event:?}");
            is_closed |= matches!(event, DriverEvent::Closed { lane } if lane == unused.1);
        }
        if !sent {
            sent = matches!(driver.send(near, b"more"), Ok(4));
        }
        got += driver.recv(far, &mut [0; 8]).unwrap_or(0);
    }
}

/// A full stream is watched for room, and datagrams pass, without the owner.
pub(super) fn bytes_and_datagrams_pass_while_detached(variant: &Variant) {
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
            driver.send_datagram(own, 0, 5, crate::driver::traits::TxFlags::PLAIN);
            driver.flush_datagrams();
            is_sent = true;
        }
        let received = driver.recv_datagram().unwrap();
        came |= received.is_some_and(|(from, bytes)| from == own && bytes == b"hello");
        has_room && came
    });
    let mut peer = reader.join().unwrap();
    // The owner continues, though some events may be reported again.
    assert_eq!(driver.send(lane, b"?").unwrap(), 1);
    let mut byte = [0];
    peer.read_exact(&mut byte).unwrap();
    assert_eq!(byte, *b"?");
}

/// Connections that come and are refused without the owner are over before it is back: nothing of
/// them waits for it, however many there are.
pub(super) fn refused_connections_leave_nothing_while_detached(variant: &Variant) {
    const CLIENTS: usize = 50;
    let mut host = Host::new(variant);
    let address = host.listen();
    let driver = &mut *host.driver;
    let (mut clients, mut closed) = (Vec::new(), Vec::new());
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
        if clients.len() == closed.len() && closed.len() < CLIENTS {
            let mut client = TcpStream::connect(address).unwrap();
            client.write_all(b"?").unwrap();
            clients.push(client);
        }
        closed.len() == CLIENTS
    });
    for client in &mut clients {
        // A reset, for its byte was not read; the connection is over in any case.
        assert!(matches!(client.read(&mut [0]), Ok(0) | Err(_)));
    }
    // The owner gets no event of them.
    let mut events = Vec::new();
    for _ in 0..100 {
        driver.poll(&mut events).unwrap();
        assert!(events.is_empty(), "reported again: {events:?}");
    }
}
