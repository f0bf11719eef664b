//! The contract holds under injected faults.

use std::io::{ErrorKind, Read};

use super::host::{Host, Variant, header, pattern};
use crate::driver::traits::{CloseMode, DriverEvent, Interest, SendMode, Unacked};
use crate::memory::Buffer;
use crate::settings::Faults;

fn host(variant: &Variant, faults: Faults) -> Host {
    let mut config = variant.config();
    config.inject_faults = Some(faults);
    Host::with(variant.choice, &config)
}

/// Every chunk ends once, its memory is released, and received bytes are right.
pub(super) fn chunks_end_under_injected_faults(variant: &Variant) {
    let mut host = host(variant, Faults { seed: 3, late: 0.3, reset: 1.0, ..Faults::default() });
    let (mut arrived, mut lost) = (0, 0);
    for token in 0..60 {
        let (near, far) = host.pair();
        let length = [0, 5000, 900_000][token as usize % 3];
        let mode = if token % 2 == 0 { SendMode::Copy } else { SendMode::ZeroCopy };
        host.recv_chunk(far, Buffer::from(vec![0; length]));
        host.recv_chunk(near, Buffer::from(vec![0; length]));
        // Without a sender, the reset certainly precedes the chunk.
        let is_sent = token % 4 != 3;
        if is_sent {
            host.send_chunk(near, token, Buffer::from(pattern(token, length)), mode);
        }
        let (received, buffer) = host.expect_received(far);
        match received {
            Ok(got) => {
                assert!(is_sent && got == header(token));
                assert!(buffer.as_slice().unwrap() == pattern(token, length), "chunk {token}");
                arrived += 1;
            }
            Err(error) => {
                let kinds = [ErrorKind::ConnectionReset, ErrorKind::UnexpectedEof];
                assert!(kinds.contains(&error.kind()), "{error}");
                lost += 1;
            }
        }
        // Outstanding chunks are cancelled.
        for lane in [far, near] {
            host.close(lane, CloseMode::Reset);
            host.expect_closed(lane);
        }
        if is_sent {
            host.expect_released(token);
            let _ = host.expect_sent(near);
        }
        host.expect_received(near).0.unwrap_err();
    }
    assert!(arrived > 0 && lost >= 15, "{arrived} arrived, {lost} were lost");
    host.expect_quiet();
}

pub(super) fn cut_lanes_look_reset_until_they_are_closed(variant: &Variant) {
    let mut host = host(variant, Faults { cut: 1.0, late: 0.2, ..Faults::default() });
    let (lane, mut peer) = host.lane_to_outside();
    host.watch(lane, Interest::Readable);
    assert_eq!(host.driver.send(lane, b"x").unwrap_err().kind(), ErrorKind::ConnectionReset);
    for interest in [Interest::Readable, Interest::Writable, Interest::Readable] {
        host.watch(lane, interest);
        host.watch(lane, interest);
        host.expect("readiness", |event| match interest {
            Interest::Readable => matches!(event, DriverEvent::Readable { .. }),
            Interest::Writable => matches!(event, DriverEvent::Writable { .. }),
        });
        let error = host.driver.recv(lane, &mut [0; 8]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
    let error = peer.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "the peer has it as well");
    assert_eq!(host.driver.unacked(lane).unwrap(), Unacked::Nothing);
    host.send_chunk(lane, 1, Buffer::from(pattern(1, 100)), SendMode::ZeroCopy);
    host.recv_chunk(lane, Buffer::from(vec![0; 100]));
    assert_eq!(host.expect_sent(lane).unwrap_err().kind(), ErrorKind::ConnectionReset);
    host.expect_released(1);
    assert!(host.expect_received(lane).0.is_err());
    assert_eq!(host.dismantle().unwrap_err().kind(), ErrorKind::WouldBlock);
    // The owner must close it, and it is closed afterwards.
    host.expect_quiet();
    host.close(lane, CloseMode::Graceful);
    host.expect_closed(lane);
    assert!(host.driver.send(lane, b"x").is_err());
    assert_eq!(host.dismantle().unwrap().len(), 0);
}

pub(super) fn refused_attempts_fail_and_close(variant: &Variant) {
    let mut host = host(variant, Faults { refuse: 1.0, ..Faults::default() });
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    for _ in 0..3 {
        let lane = host.connect(address);
        let failed =
            host.expect("ConnectFailed", |e| matches!(e, DriverEvent::ConnectFailed { .. }));
        let DriverEvent::ConnectFailed { lane: failed, error } = failed else { unreachable!() };
        assert_eq!((failed, error.kind()), (lane, ErrorKind::ConnectionRefused));
        host.expect_closed(lane);
    }
    // An attempt that is closed before it fails is closed, and does not fail any more.
    let lane = host.connect(address);
    host.close(lane, CloseMode::Reset);
    host.expect_closed(lane);
    host.expect_quiet();
}

/// The random decisions depend on the seed and on the calls only.
pub(super) fn the_same_seed_fails_in_the_same_way(variant: &Variant) {
    let run = |seed| {
        let faults = Faults { seed, short: 0.3, again: 0.2, ..Faults::default() };
        let mut host = host(variant, faults);
        let (lane, mut peer) = host.lane_to_outside();
        assert_eq!(host.driver.send(lane, &[7; 64]).unwrap(), 64, "the first one is spared");
        let mut sent = Vec::new();
        for _ in 0..64 {
            match host.driver.send(lane, &[7; 64]) {
                Ok(count) => sent.push(count),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    sent.push(0);
                }
            }
        }
        peer.read_exact(&mut vec![0; 64 + sent.iter().sum::<usize>()]).unwrap();
        sent
    };
    let (first, second, other) = (run(5), run(5), run(6));
    assert_eq!(first, second);
    assert_ne!(first, other);
    assert!(first.contains(&0) && first.contains(&64) && first.iter().any(|&n| 0 < n && n < 64));
}

/// Each fault of the network occurs; all other datagrams are right.
pub(super) fn datagram_faults_are_injected(variant: &Variant) {
    const COUNT: u32 = 1000;
    let lossy = Faults { seed: 5, late: 0.2, again: 0.2, lose: 0.1, ..Faults::default() };
    let corrupting = Faults { flip: 0.1, truncate: 0.1, ..lossy };
    let mut host = host(variant, Faults { repeat: 0.1, reorder: 0.1, ..corrupting });
    host.open_datagrams("127.0.0.1");
    let peer = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    peer.set_nonblocking(true).unwrap();
    let address = peer.local_addr().unwrap();
    let mut arrived = Vec::new();
    for number in 0..COUNT {
        let mut bytes = pattern(u64::from(number), 40);
        bytes[..4].copy_from_slice(&number.to_le_bytes());
        host.datagram(address, &bytes);
        host.driver.flush_datagrams();
        if number % 16 == 0 || number == COUNT - 1 {
            // Long enough for datagrams delayed at the end.
            let turns = if number == COUNT - 1 { 40 } else { 1 };
            (0..turns).for_each(|_| host.turn());
            let mut into = [0; 64];
            while let Ok(length) = peer.recv(&mut into) {
                arrived.push(into[..length].to_vec());
            }
        }
    }
    let (mut counts, mut corrupted, mut cut, mut late) = (vec![0; COUNT as usize], 0, 0, 0);
    let mut last = 0;
    for bytes in &arrived {
        if bytes.len() < 40 {
            cut += 1;
            continue;
        }
        let number = u32::from_le_bytes(bytes[..4].try_into().unwrap());
        let expected = pattern(u64::from(number), 40);
        if number >= COUNT || bytes[4..] != expected[4..] {
            corrupted += 1;
            continue;
        }
        counts[number as usize] += 1;
        late += u32::from(number < last);
        last = number;
    }
    let twice = counts.iter().filter(|&&count| count > 1).count();
    let missing = counts.iter().filter(|&&count| count == 0).count();
    for (what, count) in [("corrupted", corrupted), ("cut", cut), ("late", late as usize)] {
        assert!((20..300).contains(&count), "{count} {what}");
    }
    assert!(twice > 20 && missing > 100 && missing < 500, "{twice} twice, {missing} missing");
    assert!(arrived.len() < COUNT as usize + 100);
    host.expect_quiet();
}

/// An injected refusal is followed by an event, as one of the kernel.
pub(super) fn injected_full_queue_is_reported_once(variant: &Variant) {
    let mut host = host(variant, Faults { again: 1.0, late: 0.3, ..Faults::default() });
    let at = host.open_datagrams("127.0.0.1");
    let peer = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    for _ in 0..5 {
        assert!(!host.try_datagram(peer.local_addr().unwrap(), b"never"));
        assert!(!host.try_datagram(peer.local_addr().unwrap(), b"never"));
        host.expect("DatagramsWritable", |e| matches!(e, DriverEvent::DatagramsWritable));
        host.expect_quiet();
    }
    peer.send_to(b"there", at).unwrap();
    for _ in 0..5 {
        assert_eq!(host.take_datagram(), None);
        host.watch_datagrams();
        host.expect("DatagramsReadable", |e| matches!(e, DriverEvent::DatagramsReadable));
        host.expect_quiet();
    }
}
