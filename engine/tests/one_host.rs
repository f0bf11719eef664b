//! Engines of one host that share memory: what they say to each other, and what becomes of it when
//! one of them stops, dies or loses the socket between them.

mod common;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use common::{domain, pair, pattern};
use ringrail::{
    Address, CompletionLevel, Endpoint, Envelope, ErrorKind, Owned, Peer, ReceiveOptions, Selector,
    SendOptions, SharedMemoryFigures, SharedMemoryState,
};

const ON: &[(&str, &str)] = &[("shared_memory", "auto"), ("control_lane", "udp")];
/// Longer than a busy machine takes for anything here.
const LONG: Duration = Duration::from_secs(60);

/// Who cuts sockets cuts those of all tests of this process.
static SOCKETS: RwLock<()> = RwLock::new(());

fn tag(tag: u64) -> Envelope {
    Envelope::tagged(tag)
}

/// What became of shared memory.
fn figures(endpoint: &Endpoint<Owned>) -> SharedMemoryFigures {
    match endpoint.shared_memory() {
        SharedMemoryState::On { figures, .. } => figures,
        other => panic!("no shared memory: {other:?}"),
    }
}

fn send(endpoint: &Endpoint<Owned>, peer: Peer, number: u64, bytes: &[u8]) {
    let options = SendOptions::at(CompletionLevel::Match);
    endpoint.send_blocking(peer, tag(number), bytes, options).unwrap();
}

fn receive(endpoint: &Endpoint<Owned>, peer: Peer, number: u64, size: usize) -> Vec<u8> {
    let mut into = vec![0; size];
    let selector = Selector::from(peer, tag(number));
    let status = endpoint.receive_blocking(selector, &mut into, ReceiveOptions::new()).unwrap();
    assert_eq!((status.length, status.peer), (size, Some(peer)));
    into
}

/// Bounces messages until both sides share memory.
fn until_shared(endpoint: &Endpoint<Owned>, peer: Peer, is_first: bool) {
    until(endpoint, peer, is_first, 1, |figures| figures.received > 0);
}

/// The same until both have read a message from the other's memory.
fn until_read(endpoint: &Endpoint<Owned>, peer: Peer, is_first: bool) {
    until(endpoint, peer, is_first, 100_000, |figures| figures.read_calls > 0);
}

/// Bounces messages of `size` bytes until `is_so` on both sides.
fn until(
    endpoint: &Endpoint<Owned>,
    peer: Peer,
    is_first: bool,
    size: usize,
    is_so: impl Fn(SharedMemoryFigures) -> bool,
) {
    let deadline = Instant::now() + LONG;
    loop {
        let is_ours = u8::from(is_so(figures(endpoint)));
        assert!(Instant::now() < deadline, "nothing comes by shared memory");
        let ours = vec![is_ours; size];
        let theirs = match is_first {
            true => {
                send(endpoint, peer, 1 << 40, &ours);
                receive(endpoint, peer, 1 << 40, size)[0]
            }
            false => {
                let theirs = receive(endpoint, peer, 1 << 40, size)[0];
                send(endpoint, peer, 1 << 40, &ours);
                theirs
            }
        };
        if theirs + is_ours == 2 {
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

const SIZES: [usize; 16] =
    [0, 1, 7, 8, 9, 55, 56, 57, 1000, 1400, 4096, 16_384, 16_385, 65_537, 1 << 20, 4 << 20];

#[test]
fn messages_of_all_sizes_go_both_ways() {
    let _others = SOCKETS.read().unwrap_or_else(PoisonError::into_inner);
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
    let _others = SOCKETS.read().unwrap_or_else(PoisonError::into_inner);
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
    let _others = SOCKETS.read().unwrap_or_else(PoisonError::into_inner);
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
    let _others = SOCKETS.read().unwrap_or_else(PoisonError::into_inner);
    let left = domain(ON).endpoint().unwrap();
    let right = domain(&[("control_lane", "udp")]).endpoint().unwrap();
    common::pair_of(
        [left, right],
        |endpoint, peer| {
            for number in 0..100 {
                send(endpoint, peer, number, &number.to_le_bytes());
            }
            assert_eq!(figures(endpoint).neighbours, 0);
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

/// RR-SHM-5
#[test]
fn when_the_socket_ends_datagrams_go_by_udp_and_memory_is_shared_anew() {
    let _alone = SOCKETS.write().unwrap_or_else(PoisonError::into_inner);
    let side = |is_first: bool| {
        move |endpoint: &Endpoint<Owned>, peer: Peer| {
            until_shared(endpoint, peer, is_first);
            for round in 0..5 {
                for number in 0..300_u64 {
                    let bytes = (round * 1000 + number).to_le_bytes();
                    if is_first {
                        send(endpoint, peer, number, &bytes);
                        if number == 150 {
                            assert!(cut_sockets() > 0 || figures(endpoint).neighbours == 0);
                        }
                    } else {
                        assert_eq!(receive(endpoint, peer, number, 8), bytes);
                    }
                }
                let deadline = Instant::now() + LONG;
                while figures(endpoint).neighbours == 0 {
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

/// A child with an endpoint, and what it is told by.
struct Child {
    pid: libc::pid_t,
    link: UnixStream,
}

impl Child {
    /// Begins one, in which `play` has its endpoint and the way to its parent.
    fn start(play: impl FnOnce(Endpoint<Owned>, Peer)) -> (Self, Endpoint<Owned>, Peer) {
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        // SAFETY: the child runs one thread, which is what `play` was written for, and never
        // returns to the test runner: it ends here.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "no child");
        if pid == 0 {
            drop(ours);
            let played = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let (endpoint, peer) = meet(&mut theirs);
                play(endpoint, peer);
            }));
            // SAFETY: nothing of the test runner is to be run at the end of the child.
            unsafe { libc::_exit(if played.is_ok() { 0 } else { 101 }) }
        }
        drop(theirs);
        let (endpoint, peer) = meet(&mut ours);
        (Self { pid, link: ours }, endpoint, peer)
    }

    fn signal(&self, signal: libc::c_int) {
        // SAFETY: a child of this process that was not waited for: nobody else has its id.
        assert_eq!(unsafe { libc::kill(self.pid, signal) }, 0);
    }

    /// Waits until it stands still.
    fn await_stop(&self) {
        let mut status = 0;
        // SAFETY: the status is a local of this function.
        let pid = unsafe { libc::waitpid(self.pid, &raw mut status, libc::WUNTRACED) };
        assert!(pid == self.pid && libc::WIFSTOPPED(status));
    }

    /// How it ended.
    fn end(self) -> libc::c_int {
        let deadline = Instant::now() + LONG;
        let mut status = 0;
        // SAFETY: the status is a local of this function.
        while unsafe { libc::waitpid(self.pid, &raw mut status, libc::WNOHANG) } != self.pid {
            if Instant::now() > deadline {
                self.signal(libc::SIGKILL);
                panic!("the child hangs");
            }
            thread::sleep(Duration::from_millis(1));
        }
        drop(self.link);
        status
    }
}

/// An endpoint, and that of the process at the other end of `link`.
fn meet(link: &mut UnixStream) -> (Endpoint<Owned>, Peer) {
    let domain = domain(&[ON, &[("peer_timeout", "4s")]].concat());
    let endpoint = domain.endpoint().unwrap().attach().unwrap();
    let own = endpoint.address().to_bytes();
    link.write_all(&own).unwrap();
    let mut theirs = own;
    link.read_exact(&mut theirs).unwrap();
    let peer = endpoint.insert(&Address::from_bytes(&theirs).unwrap()).unwrap();
    (endpoint, peer)
}

#[test]
fn two_processes_share_memory() {
    let _others = SOCKETS.read().unwrap_or_else(PoisonError::into_inner);
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
    let _others = SOCKETS.read().unwrap_or_else(PoisonError::into_inner);
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
        let selector = Selector::from(peer, tag(7));
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
    assert_eq!(figures(&endpoint).neighbours, 0);
    assert_eq!(child.end(), libc::SIGKILL);
}

#[test]
fn a_peer_that_was_stopped_goes_on() {
    let _others = SOCKETS.read().unwrap_or_else(PoisonError::into_inner);
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

/// RR-SHM-7: the sender need not run while its message is read.
#[test]
fn long_messages_are_read_from_a_process_that_stands_still() {
    let _others = SOCKETS.read().unwrap_or_else(PoisonError::into_inner);
    const SIZE: usize = 3 << 20;
    let (child, endpoint, peer) = Child::start(|endpoint, peer| {
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

/// RR-SHM-7
#[test]
fn what_a_process_that_is_gone_had_to_send_is_not_received() {
    let _others = SOCKETS.read().unwrap_or_else(PoisonError::into_inner);
    const SIZE: usize = 1 << 20;
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
    let selector = Selector::from(peer, tag(5));
    // Its memory goes before its sockets close, so that this side may not know yet.
    let received = endpoint.receive_blocking(selector, &mut into, ReceiveOptions::new());
    match received {
        Ok(_) => assert!(into == pattern(5, SIZE), "read before it ended"),
        Err(error) => assert_eq!(error.kind(), ErrorKind::Lost, "{error}"),
    }
    assert_eq!(child.end(), libc::SIGKILL);
}

#[test]
fn with_rings_alone_no_memory_of_processes_is_read() {
    let _others = SOCKETS.read().unwrap_or_else(PoisonError::into_inner);
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

/// What is read in pieces goes on while its receiver sleeps: nobody sends anything that wakes it.
#[test]
fn long_messages_are_read_to_their_end_for_who_sleeps_by_a_descriptor() {
    let _others = SOCKETS.read().unwrap_or_else(PoisonError::into_inner);
    const SIZE: usize = 16 << 20;
    const WARM: u64 = 50;
    let receiver = domain(ON).endpoint().unwrap().share().unwrap();
    let address = receiver.address();
    let sender = thread::spawn(move || {
        let sender = domain(ON).endpoint().unwrap().attach().unwrap();
        let peer = sender.insert(&address).unwrap();
        for number in 0..WARM {
            send(&sender, peer, 0, &pattern(number, 100_000));
            thread::sleep(Duration::from_millis(1));
        }
        send(&sender, peer, 1, &pattern(7, SIZE));
    });
    for number in 0..WARM {
        let mut into = vec![0; 100_000];
        let selector = Selector::any(tag(0));
        receiver.receive_blocking(selector, &mut into, ReceiveOptions::new()).unwrap();
        assert!(into == pattern(number, 100_000));
    }
    let selector = Selector::any(tag(1));
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
