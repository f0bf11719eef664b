//! Engines of one host that share memory: what they say to each other, and what becomes of it when
//! one of them stops, dies or loses the socket between them.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::one_host::{Child, LONG, ON, figures, receive, send, tag, until_shared};
use crate::common::{self, domain, own_process, pair, pattern};
use ringrail::{
    CompletionLevel, Endpoint, ErrorKind, Owned, Peer, ReceiveOptions, Selector, SendOptions,
    SharedMemoryState,
};

const SIZES: [usize; 16] =
    [0, 1, 7, 8, 9, 55, 56, 57, 1000, 1400, 4096, 16_384, 16_385, 65_537, 1 << 20, 4 << 20];

#[test]
fn messages_of_all_sizes_go_both_ways() {
    let side = |is_first: bool| {
        move |endpoint: &Endpoint<Owned>, peer: Peer| {
            until_shared(endpoint, peer, is_first);
            let before = figures(endpoint).received;
            for (number, size) in SIZES.into_iter().enumerate() {
                let (number, bytes) = (number as u64, pattern(number as u64, size));
                for turn in [is_first, !is_first] {
                    if turn {
                        send(endpoint, peer, number, &bytes);
                    } else {
                        assert!(receive(endpoint, peer, number, size) == bytes, "size {size}");
                    }
                }
            }
            let figures = figures(endpoint);
            assert!(figures.received >= before + SIZES.len() as u64, "{figures:?}");
            assert_eq!((figures.strays, figures.broken, figures.refused), (0, 0, 0));
        }
    };
    pair(ON, side(true), side(false));
}

/// RR-SHM-1: more than the ring holds, of a receiver that computes meanwhile.
#[test]
fn a_full_ring_loses_nothing() {
    const COUNT: u64 = 20_000;
    let side = |is_first: bool| {
        move |endpoint: &Endpoint<Owned>, peer: Peer| {
            until_shared(endpoint, peer, is_first);
            let bytes = |number: u64| pattern(number, (number as usize * 37) % 1300);
            if is_first {
                for number in 0..COUNT {
                    let sent = endpoint.send_blocking(
                        peer,
                        tag(0),
                        &bytes(number),
                        SendOptions::at(CompletionLevel::Inject),
                    );
                    sent.unwrap();
                }
                receive(endpoint, peer, 1, 0);
            } else {
                for number in 0..COUNT {
                    let bytes = bytes(number);
                    assert!(receive(endpoint, peer, 0, bytes.len()) == bytes, "{number}");
                    if number % 5000 == 0 {
                        thread::sleep(Duration::from_millis(20));
                    }
                }
                send(endpoint, peer, 1, &[]);
            }
        }
    };
    pair(ON, side(true), side(false));
}

/// RR-SHM-6: a receiver that sleeps is woken, one that computes is acted for.
#[test]
fn sleepers_and_absent_owners_hear_of_it() {
    let side = |is_first: bool| {
        move |endpoint: &Endpoint<Owned>, peer: Peer| {
            until_shared(endpoint, peer, is_first);
            for number in 0..20 {
                if is_first {
                    thread::sleep(Duration::from_millis(5));
                    // Delivered although its receiver makes no call for long.
                    let start = Instant::now();
                    let options = SendOptions::at(CompletionLevel::Delivery);
                    endpoint.send_blocking(peer, tag(number), b"hello", options).unwrap();
                    let took = start.elapsed();
                    assert!(number % 4 != 3 || took < Duration::from_millis(900), "{took:?}");
                } else {
                    if number % 4 == 3 {
                        thread::sleep(Duration::from_secs(1));
                    }
                    assert_eq!(receive(endpoint, peer, number, 5), b"hello");
                }
            }
            if is_first {
                assert!(figures(endpoint).wakes > 0);
            }
        }
    };
    pair(ON, side(true), side(false));
}

/// RR-SHM-1
#[test]
fn without_the_setting_on_both_sides_datagrams_go_by_the_socket() {
    let left = domain(ON).endpoint().unwrap();
    let right = domain(&[("control_lane", "udp")]).endpoint().unwrap();
    common::pair_of(
        [left, right],
        |endpoint, peer| {
            for number in 0..100 {
                send(endpoint, peer, number, &number.to_le_bytes());
            }
            assert_eq!(figures(endpoint).local_peers, 0);
        },
        |endpoint, peer| {
            for number in 0..100 {
                assert_eq!(receive(endpoint, peer, number, 8), number.to_le_bytes());
            }
            assert_eq!(endpoint.shared_memory(), SharedMemoryState::Off);
        },
    );
}

/// Ends the unix sockets of this process between engines, as if the other side had.
fn cut_sockets() -> usize {
    let numbers = fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<libc::c_int>().ok());
    let option = |fd, name| {
        let (mut value, mut bytes) = (0 as libc::c_int, 4 as libc::socklen_t);
        // SAFETY: both pointers are to locals of the stated length.
        let got = unsafe {
            let value = (&raw mut value).cast();
            libc::getsockopt(fd, libc::SOL_SOCKET, name, value, &raw mut bytes)
        };
        (got == 0).then_some(value)
    };
    let mut count = 0;
    for fd in numbers.collect::<Vec<_>>() {
        let is_packets = option(fd, libc::SO_TYPE) == Some(libc::SOCK_SEQPACKET);
        if is_packets && option(fd, libc::SO_ACCEPTCONN) == Some(0) {
            // SAFETY: the call takes no pointer.
            count += usize::from(unsafe { libc::shutdown(fd, libc::SHUT_RDWR) } == 0);
        }
    }
    count
}

/// In a process of its own, whose sockets are cut.
///
/// RR-SHM-5
#[test]
fn when_the_socket_ends_datagrams_go_by_udp_and_memory_is_shared_anew() {
    own_process::run(
        "one_host::when_the_socket_ends_datagrams_go_by_udp_and_memory_is_shared_anew",
        cut_the_socket,
    );
}

fn cut_the_socket() {
    let side = |is_first: bool| {
        move |endpoint: &Endpoint<Owned>, peer: Peer| {
            until_shared(endpoint, peer, is_first);
            for round in 0..5 {
                for number in 0..300_u64 {
                    let bytes = (round * 1000 + number).to_le_bytes();
                    if is_first {
                        send(endpoint, peer, number, &bytes);
                        if number == 150 {
                            assert!(cut_sockets() > 0 || figures(endpoint).local_peers == 0);
                        }
                    } else {
                        assert_eq!(receive(endpoint, peer, number, 8), bytes);
                    }
                }
                let deadline = Instant::now() + LONG;
                while figures(endpoint).local_peers == 0 {
                    assert!(Instant::now() < deadline, "no other memory is shared");
                    endpoint.progress().unwrap();
                }
                for turn in [is_first, !is_first] {
                    if turn {
                        send(endpoint, peer, 9999, &[]);
                    } else {
                        receive(endpoint, peer, 9999, 0);
                    }
                }
            }
        }
    };
    pair(ON, side(true), side(false));
}

// ---- Another process ----

#[test]
fn two_processes_share_memory() {
    let (child, endpoint, peer) = Child::start(|endpoint, peer| {
        until_shared(&endpoint, peer, false);
        for (number, size) in SIZES.into_iter().enumerate() {
            let bytes = receive(&endpoint, peer, number as u64, size);
            send(&endpoint, peer, number as u64, &bytes);
        }
    });
    until_shared(&endpoint, peer, true);
    for (number, size) in SIZES.into_iter().enumerate() {
        let bytes = pattern(number as u64, size);
        send(&endpoint, peer, number as u64, &bytes);
        assert!(receive(&endpoint, peer, number as u64, size) == bytes, "size {size}");
    }
    assert_eq!(child.end(), 0);
}

#[test]
fn a_peer_that_is_killed_while_it_writes_ends_the_session() {
    let (child, endpoint, peer) = Child::start(|endpoint, peer| {
        until_shared(&endpoint, peer, false);
        for number in 0_u64.. {
            let options = SendOptions::at(CompletionLevel::Inject);
            endpoint.send_blocking(peer, tag(7), &number.to_le_bytes(), options).unwrap();
        }
    });
    until_shared(&endpoint, peer, true);
    let mut due = 0_u64;
    let start = Instant::now();
    let error = loop {
        let mut into = [0; 8];
        let selector = Selector::from_peer(peer, tag(7));
        match endpoint.receive_blocking(selector, &mut into, ReceiveOptions::new()) {
            Ok(_) => assert_eq!(u64::from_le_bytes(into), due),
            Err(error) => break error,
        }
        due += 1;
        if due == 1000 {
            child.signal(libc::SIGKILL);
        }
        assert!(start.elapsed() < LONG, "the end is not noticed");
    };
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert!(due >= 1000);
    assert_eq!(figures(&endpoint).local_peers, 0);
    assert_eq!(child.end(), libc::SIGKILL);
}

#[test]
fn a_peer_that_was_stopped_goes_on() {
    let (child, endpoint, peer) = Child::start(|endpoint, peer| {
        until_shared(&endpoint, peer, false);
        for number in 0..4000_u64 {
            assert_eq!(receive(&endpoint, peer, 3, 100), pattern(number, 100));
        }
        send(&endpoint, peer, 4, &[]);
    });
    until_shared(&endpoint, peer, true);
    for number in 0..4000_u64 {
        if number == 1000 {
            child.signal(libc::SIGSTOP);
        }
        let options = SendOptions::at(CompletionLevel::Inject);
        endpoint.send_blocking(peer, tag(3), &pattern(number, 100), options).unwrap();
        if number == 2000 {
            // What does not fit waits on this side.
            thread::sleep(Duration::from_secs(2));
            child.signal(libc::SIGCONT);
        }
    }
    receive(&endpoint, peer, 4, 0);
    assert_eq!(child.end(), 0);
}

#[test]
fn with_rings_alone_no_memory_of_processes_is_read() {
    let rings: &[(&str, &str)] = &[("shared_memory", "rings"), ("control_lane", "udp")];
    let side = |is_first: bool| {
        move |endpoint: &Endpoint<Owned>, peer: Peer| {
            until_shared(endpoint, peer, is_first);
            for (number, size) in SIZES.into_iter().enumerate() {
                let (number, bytes) = (number as u64, pattern(number as u64, size));
                if is_first {
                    send(endpoint, peer, number, &bytes);
                } else {
                    assert!(receive(endpoint, peer, number, size) == bytes, "size {size}");
                }
            }
            let figures = figures(endpoint);
            assert_eq!((figures.readable, figures.read_calls), (0, 0), "{figures:?}");
        }
    };
    pair(rings, side(true), side(false));
}
