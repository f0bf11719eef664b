//! Engines of one host that read each other's memory: long messages, puts and gets.

use std::thread;
use std::time::{Duration, Instant};

use crate::common::one_host::{Child, LONG, ON, figures, receive, send, tag, until, until_read};
use crate::common::{domain, pair, pattern};
use ringrail::{
    Access, CompletionLevel, Endpoint, ErrorKind, KeyOptions, Owned, Peer, ReceiveOptions, Region,
    RemoteKey, Selector, SendOptions, SharedMemoryState,
};

/// RR-SHM-7: the sender need not run while its message is read.
#[test]
fn long_messages_are_read_from_a_process_that_stands_still() {
    const SIZE: usize = 3 << 20;
    // Where Yama has a say, the child lets its parent read.
    let open = [("shared_memory_ptrace_any", "true")];
    let (child, endpoint, peer) = Child::start_with(&open, |endpoint, peer| {
        until_read(&endpoint, peer, false);
        let bytes = pattern(5, SIZE);
        let pending = endpoint.send(peer, tag(5), &bytes[..], SendOptions::new()).unwrap();
        send(&endpoint, peer, 6, &[]);
        pending.wait().unwrap();
        receive(&endpoint, peer, 7, 0);
    });
    until_read(&endpoint, peer, true);
    receive(&endpoint, peer, 6, 0);
    child.signal(libc::SIGSTOP);
    child.await_stop();
    let before = figures(&endpoint);
    assert!(receive(&endpoint, peer, 5, SIZE) == pattern(5, SIZE));
    let figures = figures(&endpoint);
    assert_eq!(figures.read_bytes - before.read_bytes, SIZE as u64);
    assert_eq!(figures.read_failures, 0);
    child.signal(libc::SIGCONT);
    send(&endpoint, peer, 7, &[]);
    assert_eq!(child.end(), 0);
}

/// Who sees the other's process id reads: the host what a container sends, and not the reverse.
#[test]
fn a_container_shares_rings_and_sends_what_is_read() {
    const SIZE: usize = 2 << 20;
    let exchange = |endpoint: &Endpoint<Owned>, peer: Peer, is_first: bool| {
        for number in 10..20 {
            for turn in [is_first, !is_first] {
                if turn {
                    send(endpoint, peer, number, &pattern(number, SIZE));
                } else {
                    assert!(receive(endpoint, peer, number, SIZE) == pattern(number, SIZE));
                }
            }
        }
    };
    let started = Child::start_contained(|endpoint, peer| {
        until(&endpoint, peer, false, SIZE, |figures| figures.received > 0);
        exchange(&endpoint, peer, false);
        let figures = figures(&endpoint);
        assert_eq!((figures.readable, figures.read_calls), (0, 0), "{figures:?}");
    });
    let (child, endpoint, peer) = match started {
        Ok(started) => started,
        Err(error) => return println!("RINGRAIL-SKIP: one_host_reads: no PID namespace: {error}"),
    };
    until(&endpoint, peer, true, SIZE, |figures| figures.received > 0 && figures.read_calls > 0);
    let before = figures(&endpoint);
    exchange(&endpoint, peer, true);
    let figures = figures(&endpoint);
    assert_eq!(figures.read_bytes - before.read_bytes, 10 * SIZE as u64, "{figures:?}");
    assert_eq!(child.end(), 0);
}

/// RR-SHM-7
#[test]
fn what_a_process_that_is_gone_had_to_send_is_not_received() {
    const SIZE: usize = 2 << 20;
    let (child, endpoint, peer) = Child::start(|endpoint, peer| {
        until_read(&endpoint, peer, false);
        let bytes = pattern(5, SIZE);
        let _pending = endpoint.send(peer, tag(5), &bytes[..], SendOptions::new()).unwrap();
        send(&endpoint, peer, 6, &[]);
        thread::sleep(LONG);
    });
    until_read(&endpoint, peer, true);
    receive(&endpoint, peer, 6, 0);
    child.signal(libc::SIGKILL);
    let mut into = vec![0; SIZE];
    let selector = Selector::from_peer(peer, tag(5));
    // Its memory goes before its sockets close, so that this side may not know yet.
    let received = endpoint.receive_blocking(selector, &mut into, ReceiveOptions::new());
    match received {
        Ok(_) => assert!(into == pattern(5, SIZE), "read before it ended"),
        Err(error) => assert_eq!(error.kind(), ErrorKind::Lost, "{error}"),
    }
    assert_eq!(child.end(), libc::SIGKILL);
}

/// What goes by the ring in a segment, and in pieces, and what is longer than one turn reads.
const SIZES: [usize; 6] = [64, 8192, 9000, 70_000, 1 << 20, 5 << 20];
/// Those that are read.
const READ: usize = 70_000 + (1 << 20) + (5 << 20);
const LONGEST: usize = 5 << 20;

/// Gives the peer a key to all of a region.
fn lend(endpoint: &Endpoint<Owned>, peer: Peer, region: &Region<Owned>) {
    let key = region.key(&KeyOptions::new(Access::all())).unwrap();
    send(endpoint, peer, 2, &key.0.to_le_bytes());
}

fn borrow(endpoint: &Endpoint<Owned>, peer: Peer) -> RemoteKey {
    RemoteKey(u64::from_le_bytes(receive(endpoint, peer, 2, 8).try_into().unwrap()))
}

/// RR-SHM-7
#[test]
fn targets_read_long_puts_and_origins_what_they_get() {
    let target = |endpoint: &Endpoint<Owned>, peer: Peer| {
        until_read(endpoint, peer, false);
        let region = endpoint.register(vec![0; LONGEST]).unwrap();
        let before = figures(endpoint);
        lend(endpoint, peer, &region);
        receive(endpoint, peer, 3, 0);
        let figures = figures(endpoint);
        assert_eq!(figures.read_bytes - before.read_bytes, READ as u64, "{figures:?}");
        assert_eq!(figures.read_failures, before.read_failures);
        let counts = region.counters();
        assert_eq!((counts.puts, counts.gets), (6, 6));
        region.into_buffer().unwrap();
    };
    let origin = |endpoint: &Endpoint<Owned>, peer: Peer| {
        until_read(endpoint, peer, true);
        let before = figures(endpoint);
        let key = borrow(endpoint, peer);
        for (number, size) in SIZES.into_iter().enumerate() {
            let bytes = pattern(number as u64, size);
            let at = key.at(((LONGEST - size) / 2) as u64);
            endpoint.put(peer, at, &bytes[..], SendOptions::new()).unwrap().wait().unwrap();
            endpoint.flush(peer, SendOptions::new()).unwrap();
            let got = endpoint.get(peer, at, vec![0; size], SendOptions::new()).unwrap();
            assert!(got.wait().unwrap().buffer.as_slice() == Some(&bytes[..]), "{size}");
        }
        let figures = figures(endpoint);
        assert_eq!(figures.read_bytes - before.read_bytes, READ as u64, "{figures:?}");
        assert_eq!(figures.read_failures, before.read_failures);
        send(endpoint, peer, 3, &[]);
    };
    pair(ON, target, origin);
}

/// RR-SHM-7: memory borrowed by an operation of a session that ends is released.
#[test]
fn a_region_can_be_closed_after_its_reader_or_writer_was_killed() {
    for puts in [false, true] {
        let (child, endpoint, peer) = Child::start(move |endpoint, peer| {
            until_read(&endpoint, peer, false);
            let key = borrow(&endpoint, peer);
            let bytes = vec![7; LONGEST];
            let options = SendOptions::at(CompletionLevel::Delivery);
            loop {
                if puts {
                    endpoint.put(peer, key.at(0), &bytes[..], options).unwrap().wait().unwrap();
                } else {
                    let got = endpoint.get(peer, key.at(0), vec![0; LONGEST], options).unwrap();
                    assert!(got.wait().unwrap().buffer.as_slice() == Some(&bytes[..]));
                }
            }
        });
        until_read(&endpoint, peer, true);
        let region = endpoint.register(vec![7; LONGEST]).unwrap();
        lend(&endpoint, peer, &region);
        let selector = Selector::from_peer(peer, tag(9));
        let mut end = endpoint.receive(selector, vec![0; 8]).unwrap();
        let (start, mut is_killed) = (Instant::now(), false);
        let failed = loop {
            assert!(start.elapsed() < LONG, "the end is not noticed");
            if let Err(failed) = end.test() {
                break failed;
            }
            let counts = region.counters();
            if !is_killed && counts.puts + counts.gets >= 3 {
                child.signal(libc::SIGKILL);
                is_killed = true;
            }
        };
        assert_eq!(failed.error.kind(), ErrorKind::Lost);
        region.into_buffer().unwrap();
        assert_eq!(child.end(), libc::SIGKILL);
    }
}

/// RR-SHM-7
#[test]
fn a_target_that_is_killed_ends_what_reads_from_it() {
    let (child, endpoint, peer) = Child::start(|endpoint, peer| {
        until_read(&endpoint, peer, false);
        let region = endpoint.allocate_region(LONGEST).unwrap();
        lend(&endpoint, peer, &region);
        receive(&endpoint, peer, 3, 0);
    });
    until_read(&endpoint, peer, true);
    let (key, start) = (borrow(&endpoint, peer), Instant::now());
    let mut gets = 0;
    let error = loop {
        assert!(start.elapsed() < LONG, "the end is not noticed");
        let got = endpoint.get(peer, key.at(0), vec![1; LONGEST], SendOptions::new());
        gets += 1;
        if gets == 20 {
            child.signal(libc::SIGKILL);
        }
        match got.map_err(|failed| failed.error).and_then(|got| Ok(got.wait()?)) {
            Ok(got) => assert!(got.buffer.as_slice() == Some(&vec![0; LONGEST][..])),
            Err(error) => break error,
        }
    };
    assert!(gets >= 20);
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert_eq!(child.end(), libc::SIGKILL);
}

/// What is read in pieces goes on while its receiver sleeps: no message wakes it.
#[test]
fn long_messages_are_read_to_their_end_for_who_sleeps_by_a_descriptor() {
    const SIZE: usize = 16 << 20;
    const WARM: u64 = 50;
    let receiver = domain(ON).endpoint().unwrap().share().unwrap();
    let address = receiver.address();
    let sender = thread::spawn(move || {
        let sender = domain(ON).endpoint().unwrap().attach().unwrap();
        let peer = sender.insert_peer(&address).unwrap();
        for number in 0..WARM {
            send(&sender, peer, 0, &pattern(number, 100_000));
            thread::sleep(Duration::from_millis(1));
        }
        send(&sender, peer, 1, &pattern(7, SIZE));
    });
    for number in 0..WARM {
        let mut into = vec![0; 100_000];
        let selector = Selector::from_any(tag(0));
        receiver.receive_blocking(selector, &mut into, ReceiveOptions::new()).unwrap();
        assert!(into == pattern(number, 100_000));
    }
    let selector = Selector::from_any(tag(1));
    receiver.post_receive(selector, vec![0; SIZE], ReceiveOptions::new()).unwrap();
    let (mut done, deadline) = (Vec::new(), Instant::now() + LONG);
    let queue = receiver.receive_queue();
    while done.is_empty() {
        assert!(Instant::now() < deadline, "it is read no further");
        if queue.arm().unwrap() {
            let mut fd = libc::pollfd {
                fd: std::os::fd::AsRawFd::as_raw_fd(&queue.wait_fd().unwrap()),
                events: libc::POLLIN,
                revents: 0,
            };
            // SAFETY: one descriptor, which lives as long as the queue.
            unsafe { libc::poll(&raw mut fd, 1, 1000) };
        }
        queue.read_ready(&mut done, 1);
    }
    let buffer = done.pop().unwrap().buffer.unwrap();
    assert!(buffer.as_slice() == Some(&pattern(7, SIZE)[..]));
    let SharedMemoryState::On { figures, .. } = receiver.shared_memory() else { panic!() };
    assert!(figures.read_bytes >= SIZE as u64, "{figures:?}");
    sender.join().unwrap();
}
