//! Processes without the secret, whose descriptors take long to close.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use socket2::SockRef;

use super::tests::{connect, engine, fake_peer, is_readable, serve};
use super::untrusted::HAS_OLDER_KERNEL;
use super::*;

/// How long closing the descriptor takes.
const LINGER: Duration = Duration::from_secs(60);
/// Limit for an engine on a busy machine.
const SOON: Duration = Duration::from_secs(20);

/// A connection that lingers, and its peer.
fn lingering() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (reader, _) = listener.accept().unwrap();
    stream.set_nonblocking(true).unwrap();
    while stream.write(&[0; 65_536]).is_ok() {}
    SockRef::from(&stream).set_linger(Some(LINGER)).unwrap();
    (stream, reader)
}

/// Passes a lingering descriptor whose only owner is the queue then. Returns whether the kernel
/// accepted it, and the peer that keeps it lingering.
fn pass_lingering(socket: &OwnedFd) -> (bool, TcpStream) {
    let (stream, reader) = lingering();
    let is_in = socket::send(socket.as_fd(), &[0; 8], &[stream.as_fd()]).is_ok();
    if !is_in {
        SockRef::from(&stream).set_linger(None).unwrap();
    }
    (is_in, reader)
}

/// RR-SHM-12
#[test]
fn lingering_descriptor_does_not_block_the_engine() {
    for is_older in [false, true] {
        HAS_OLDER_KERNEL.set(is_older);
        let id = engine();
        let mut shm = Shm::open(id, true, None, false).unwrap();
        let socket = fake_peer(&mut shm, id);
        let (is_in, _reader) = pass_lingering(&socket);
        let start = Instant::now();
        for _ in 0..5 {
            serve(std::slice::from_mut(&mut shm));
        }
        assert!(start.elapsed() < SOON, "reading or rejecting it waited, {is_older}");
        assert!(!is_in || shm.exchanges.is_empty(), "it is rejected");
        assert!(is_in || !is_older, "an older kernel lets it in");
        // A connection that is never accepted.
        let socket = connect(id);
        let (_, _second) = pass_lingering(&socket);
        let start = Instant::now();
        drop(shm);
        assert!(start.elapsed() < SOON, "closing the listener waited, {is_older}");
        drop(Shm::open(id, true, None, false).unwrap());
    }
    HAS_OLDER_KERNEL.set(false);
}

#[test]
fn failed_accept_causes_no_wakeups_during_the_pause() {
    let id = engine();
    let mut shm = Shm::open(id, true, None, false).unwrap();
    shm.pause_accept(Instant::now(), "there are no descriptors left");
    let _socket = connect(id);
    let copy = shm.copy_of_fd().unwrap();
    let is_early = shm.accepts_after.is_some_and(|until| Instant::now() < until);
    let wakes = is_readable(copy.as_fd());
    let is_still_early = shm.accepts_after.is_some_and(|until| Instant::now() < until);
    assert!(!(is_early && is_still_early && wakes), "it wakes the engine during the pause");
    let start = Instant::now();
    while shm.exchanges.is_empty() {
        assert!(start.elapsed() < SOON, "it is not accepted after the pause");
        std::thread::sleep(Duration::from_millis(10));
        serve(std::slice::from_mut(&mut shm));
    }
}

/// The tests run as root, which can become another user.
#[test]
fn other_users_are_rejected_by_default() {
    for others in [false, true] {
        let id = engine();
        let mut shm = Shm::open(id, true, None, others).unwrap();
        let connect_as_another = move || {
            // SAFETY: it takes numbers, and changes the user of this thread alone.
            let failed = unsafe { libc::syscall(libc::SYS_setresuid, 65_534, 65_534, 65_534) };
            assert_eq!(failed, 0);
            connect(id)
        };
        let _socket = std::thread::spawn(connect_as_another).join().unwrap();
        serve(std::slice::from_mut(&mut shm));
        assert_eq!(shm.exchanges.len(), usize::from(others));
        assert_eq!(shm.figures().refused, u64::from(!others));
    }
}
