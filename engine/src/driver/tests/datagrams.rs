//! Datagrams by one socket for all peers.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use super::host::{Host, PATIENCE, Variant, pattern};
use crate::driver::traits::{DATAGRAM_BYTES_MAX, DriverEvent};
use crate::driver::udp;

/// Datagrams that fit into any kernel buffer.
const BURST: usize = 100;

fn outside(address: &str) -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind(address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

fn receive(socket: &UdpSocket) -> (Vec<u8>, SocketAddr) {
    let mut into = vec![0; 4096];
    let (length, from) = socket.recv_from(&mut into).unwrap();
    into.truncate(length);
    (into, from)
}

fn is_readable(event: &DriverEvent) -> bool {
    matches!(event, DriverEvent::DatagramsReadable)
}

fn is_writable(event: &DriverEvent) -> bool {
    matches!(event, DriverEvent::DatagramsWritable)
}

pub(super) fn datagrams_of_every_length_round_trip(variant: &Variant) {
    for ip in ["127.0.0.1", "::1"] {
        if ip == "::1" && UdpSocket::bind("[::1]:0").is_err() {
            println!("RINGRAIL-SKIP: driver::tests::{}: no IPv6", variant.module);
            continue;
        }
        let (mut near, mut far) = (Host::new(variant), Host::new(variant));
        let (near_at, far_at) = (near.open_datagrams(ip), far.open_datagrams(ip));
        for length in [0, 1, 32, 1200, 1472, DATAGRAM_BYTES_MAX] {
            let bytes = pattern(length as u64, length);
            near.datagram(far_at, &bytes);
            near.driver.flush_datagrams();
            assert!(far.expect_datagram() == (near_at, bytes.clone()), "{ip}, {length} bytes");
            far.datagram(near_at, &bytes);
            far.driver.flush_datagrams();
            assert!(near.expect_datagram() == (far_at, bytes), "{ip}, {length} bytes");
        }
        let counters = near.driver.counters();
        assert_eq!((counters.datagrams_sent, counters.datagrams_received), (6, 6));
        assert_eq!((counters.datagrams_refused, counters.datagrams_too_long), (0, 0));
    }
}

/// A dual-stack socket serves peers of both families.
pub(super) fn a_socket_of_both_families_reaches_both(variant: &Variant) {
    if UdpSocket::bind("[::1]:0").is_err() {
        return println!("RINGRAIL-SKIP: driver::tests::{}: no IPv6", variant.module);
    }
    let mut host = Host::new(variant);
    let port = host.open_datagrams("::").port();
    for (peer, ip) in [("127.0.0.1:0", "127.0.0.1"), ("[::1]:0", "::1")] {
        let (socket, address) = outside(peer);
        host.datagram(address, b"hello");
        host.driver.flush_datagrams();
        let at = SocketAddr::new(ip.parse().unwrap(), port);
        assert_eq!(receive(&socket), (b"hello".to_vec(), at));
        socket.send_to(b"you too", at).unwrap();
        assert_eq!(host.expect_datagram(), (address, b"you too".to_vec()));
    }
}

/// One call for each batch, and nothing is lost, repeated, joined or out of order.
pub(super) fn bursts_are_batched(variant: &Variant) {
    let (mut near, mut far) = (Host::new(variant), Host::new(variant));
    let (near_at, far_at) = (near.open_datagrams("127.0.0.1"), far.open_datagrams("127.0.0.1"));
    let before = (near.driver.counters().syscalls, far.driver.counters().syscalls);
    let mut received = 0;
    for burst in 0..10 {
        for number in 0..BURST {
            let number = burst * BURST + number;
            near.datagram(far_at, &pattern(number as u64, number % 200));
        }
        near.driver.flush_datagrams();
        while let Some((from, bytes)) = far.take_datagram() {
            assert!(
                from == near_at && bytes == pattern(received as u64, received % 200),
                "{received}"
            );
            received += 1;
        }
    }
    assert_eq!(received, 10 * BURST);
    assert_eq!(near.driver.counters().datagrams_sent, 1000);
    assert_eq!(far.driver.counters().datagrams_received, 1000);
    let calls = near.driver.counters().syscalls - before.0;
    assert_eq!(calls, 20, "64 and 36 in each burst");
    let calls = far.driver.counters().syscalls - before.1;
    assert!(calls <= 10 * 8, "{calls} calls for 1000 datagrams");
}

/// Only the call for room itself flushes what a full queue holds back.
pub(super) fn full_queue_is_flushed_when_room_is_asked_for(variant: &Variant) {
    let mut host = Host::new(variant);
    host.open_datagrams("127.0.0.1");
    let (peer, address) = outside("127.0.0.1:0");
    for number in 0..BURST {
        host.datagram(address, &pattern(number as u64, 40));
    }
    for number in 0..64 {
        assert_eq!(receive(&peer).0, pattern(number, 40));
    }
    peer.set_nonblocking(true).unwrap();
    assert_eq!(peer.recv(&mut [0; 8]).unwrap_err().kind(), ErrorKind::WouldBlock);
    // The last ones are sent by the shutdown.
    assert!(host.driver.shutdown(PATIENCE));
    for number in 64..BURST as u64 {
        assert_eq!(receive(&peer).0, pattern(number, 40));
    }
    assert!(host.driver.datagram_room().is_err());
    assert!(host.driver.recv_datagram().unwrap().is_none());
    assert!(host.driver.watch_datagrams().is_err());
}

/// Closed ports, addresses that cannot be reached, and lengths that no path takes.
pub(super) fn refused_destination_does_not_affect_others(variant: &Variant) {
    let mut host = Host::new(variant);
    let at = host.open_datagrams("127.0.0.1");
    let (peer, address) = outside("127.0.0.1:0");
    let closed = outside("127.0.0.1:0").1;
    // No port, another family, and a network that is unreachable from loopback addresses.
    let wrong = ["127.0.0.1:0", "[2001:db8::1]:9", "255.255.255.255:9"];
    for round in 0..20 {
        host.datagram(closed, b"no receiver");
        for to in wrong {
            host.datagram(to.parse().unwrap(), b"never");
        }
        host.datagram(address, &pattern(round, 60));
        host.driver.flush_datagrams();
        assert_eq!(receive(&peer).0, pattern(round, 60));
        peer.send_to(&pattern(round, 70), at).unwrap();
        assert_eq!(host.expect_datagram(), (address, pattern(round, 70)));
    }
    let counters = host.driver.counters();
    assert_eq!((counters.datagrams_sent, counters.datagrams_refused), (40, 60));
}

pub(super) fn oversized_datagram_is_dropped(variant: &Variant) {
    let mut host = Host::new(variant);
    let at = host.open_datagrams("127.0.0.1");
    let (peer, address) = outside("127.0.0.1:0");
    for round in 0..3 {
        let longest = DATAGRAM_BYTES_MAX;
        for length in [longest + 1, longest, 65_000, 10, 9000] {
            peer.send_to(&pattern(round, length), at).unwrap();
        }
        assert!(host.expect_datagram() == (address, pattern(round, longest)));
        assert!(host.expect_datagram() == (address, pattern(round, 10)));
        assert_eq!(host.take_datagram(), None);
    }
    let counters = host.driver.counters();
    assert_eq!((counters.datagrams_received, counters.datagrams_too_long), (6, 9));
}

pub(super) fn watched_once_and_woken(variant: &Variant) {
    let mut host = Host::new(variant);
    let at = host.open_datagrams("127.0.0.1");
    let (peer, address) = outside("127.0.0.1:0");
    peer.send_to(b"unwatched", at).unwrap();
    host.expect_quiet();
    assert_eq!(host.expect_datagram(), (address, b"unwatched".to_vec()));
    host.watch_datagrams();
    host.watch_datagrams();
    host.expect_quiet();
    let other = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        for number in 0..BURST as u64 {
            peer.send_to(&pattern(number, 30), at).unwrap();
        }
        peer
    });
    let (mut events, begin) = (Vec::new(), Instant::now());
    host.driver.park(PATIENCE * 2, &mut events).unwrap();
    assert!(matches!(events[..], [DriverEvent::DatagramsReadable]), "{events:?}");
    assert!(begin.elapsed() < PATIENCE);
    let peer = other.join().unwrap();
    let mut events = Vec::new();
    host.driver.poll(&mut events).unwrap();
    assert!(events.is_empty(), "once: {events:?}");
    // Datagrams received but not consumed count, without an event of the kernel.
    for number in 0..4 {
        assert_eq!(host.take_datagram().unwrap().1, pattern(number, 30));
    }
    for park in [true, false] {
        host.driver.watch_datagrams().unwrap();
        let (mut events, begin) = (Vec::new(), Instant::now());
        if park {
            host.driver.park(PATIENCE * 2, &mut events).unwrap();
        }
        while events.is_empty() {
            host.driver.poll(&mut events).unwrap();
            assert!(begin.elapsed() < PATIENCE);
        }
        assert!(matches!(events[..], [DriverEvent::DatagramsReadable]), "{events:?}");
        assert!(begin.elapsed() < PATIENCE);
    }
    for number in 4..BURST as u64 {
        assert_eq!(host.take_datagram().unwrap().1, pattern(number, 30));
    }
    // The unanswered watch is still on, and the next datagram ends it.
    assert_eq!(host.take_datagram(), None);
    host.watch_datagrams();
    host.expect_quiet();
    peer.send_to(b"more", at).unwrap();
    host.expect("DatagramsReadable", is_readable);
    host.expect_quiet();
}

/// "None" may come without asking the kernel, but not with what was known before the last poll.
pub(super) fn empty_result_is_not_older_than_the_last_poll(variant: &Variant) {
    let mut host = Host::new(variant);
    let at = host.open_datagrams("127.0.0.1");
    let (peer, _) = outside("127.0.0.1:0");
    for count in 1..20 {
        for number in 0..count {
            peer.send_to(&pattern(number, 30), at).unwrap();
        }
        for number in 0..count {
            let (_, bytes) = host.driver.recv_datagram().unwrap().expect("there are more");
            assert_eq!(bytes, pattern(number, 30));
        }
        peer.send_to(b"later", at).unwrap();
        host.driver.poll(&mut Vec::new()).unwrap();
        let (_, bytes) = host.driver.recv_datagram().unwrap().expect("it is there");
        assert_eq!(bytes, b"later");
        assert!(host.driver.recv_datagram().unwrap().is_none());
    }
}

/// A socket outlives its driver, and keeps no options of the driver.
pub(super) fn datagrams_move_to_another_driver(variant: &Variant) {
    let socket = udp::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let at = socket.local_addr().unwrap();
    let (peer, address) = outside("127.0.0.1:0");
    for round in 0..3 {
        let mut host = Host::new(variant);
        assert_eq!(host.driver.datagram_room().unwrap_err().kind(), ErrorKind::Unsupported);
        host.driver.open_datagrams(socket.try_clone().unwrap()).unwrap();
        let second = host.driver.open_datagrams(socket.try_clone().unwrap()).unwrap_err();
        assert_eq!(second.kind(), ErrorKind::AlreadyExists);
        peer.send_to(&pattern(round, 50), at).unwrap();
        assert_eq!(host.expect_datagram(), (address, pattern(round, 50)));
        host.watch_datagrams();
        host.expect_quiet();
        host.datagram(address, b"queued");
        assert_eq!(host.dismantle().unwrap().len(), 0);
        assert_eq!(receive(&peer).0, b"queued");
        assert!(host.driver.datagram_room().is_err());
    }
}

/// A queue of the kernel that is slow to empty: nothing is lost, and the room is reported once.
pub(super) fn full_send_buffer_is_waited_for(variant: &Variant) {
    let config = variant.config();
    let choice = variant.choice;
    // A network namespace of the thread, which ends with it.
    let other = std::thread::spawn(move || {
        slow_loopback()?;
        slow_path(Host::with(choice, &config));
        Ok::<(), String>(())
    });
    if let Err(why) = other.join().unwrap() {
        println!("RINGRAIL-SKIP: driver::tests::{}: {why}", variant.module);
    }
}

/// Moves the calling thread to a network whose loopback takes 1 MB/s.
fn slow_loopback() -> Result<(), String> {
    // SAFETY: the call takes no pointer, and changes this thread alone.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        return Err("needs root, for a network namespace".to_owned());
    }
    for command in [
        &["ip", "link", "set", "lo", "mtu", "1500", "up"][..],
        &[
            "tc", "qdisc", "add", "dev", "lo", "root", "tbf", "rate", "8mbit", "burst", "3000",
            "limit", "4m",
        ],
    ] {
        let status = std::process::Command::new(command[0]).args(&command[1..]).status();
        if !status.as_ref().is_ok_and(|status| status.success()) {
            return Err(format!("`{}` does not run: {status:?}", command.join(" ")));
        }
    }
    Ok(())
}

fn slow_path(mut host: Host) {
    host.open_datagrams("127.0.0.1");
    let (peer, address) = outside("127.0.0.1:0");
    // It holds all of them, should the reader not run for a while.
    rustix::net::sockopt::set_socket_recv_buffer_size_force(&peer, 4 << 20).unwrap();
    let reader = std::thread::spawn(move || {
        let mut numbers = Vec::new();
        loop {
            let (bytes, _) = receive(&peer);
            let number = u32::from_le_bytes(bytes[..4].try_into().unwrap());
            if number == u32::MAX {
                return numbers;
            }
            numbers.push(number);
        }
    });
    let (mut sent, mut refusals) = (0u32, 0);
    while sent < 1000 {
        let mut bytes = [7; 1400];
        bytes[..4].copy_from_slice(&sent.to_le_bytes());
        if host.try_datagram(address, &bytes) {
            sent += 1;
            continue;
        }
        refusals += 1;
        // May succeed if this thread did not run meanwhile; room is reported once in any case.
        let is_sent = host.try_datagram(address, &bytes);
        host.expect("DatagramsWritable", is_writable);
        assert!(is_sent || host.try_datagram(address, &bytes), "no room after the event");
        sent += 1;
    }
    host.datagram(address, &[0xff; 4]);
    host.driver.flush_datagrams();
    // Queued datagrams are sent without further calls.
    let deadline = Instant::now() + PATIENCE;
    while host.driver.counters().datagrams_sent < 1001 {
        assert!(host.events_of(Duration::from_millis(1)).is_empty());
        assert!(Instant::now() < deadline);
    }
    assert!(refusals > 2, "the kernel took everything at once");
    // Two cores that serve the slow queue in turn change the order.
    let mut received = reader.join().unwrap();
    received.sort_unstable();
    assert_eq!(received, (0..1000).collect::<Vec<_>>());
    assert_eq!(host.driver.counters().datagrams_refused, 0);
}
