//! Engines of one host, and processes that have one.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Once;
use std::thread;
use std::time::{Duration, Instant};

use super::domain;
use ringrail::{
    Address, CompletionLevel, Endpoint, Envelope, Owned, Peer, ReceiveOptions, Selector,
    SendOptions, SharedMemoryFigures, SharedMemoryState,
};

pub(crate) const ON: &[(&str, &str)] = &[("shared_memory", "auto"), ("control_lane", "udp")];
/// Longer than a busy machine takes for anything here.
pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) fn tag(tag: u64) -> Envelope {
    Envelope::tagged(tag)
}

/// What became of shared memory.
pub(crate) fn figures(endpoint: &Endpoint<Owned>) -> SharedMemoryFigures {
    match endpoint.shared_memory() {
        SharedMemoryState::On { figures, .. } => figures,
        other => panic!("no shared memory: {other:?}"),
    }
}

pub(crate) fn send(endpoint: &Endpoint<Owned>, peer: Peer, number: u64, bytes: &[u8]) {
    let options = SendOptions::at(CompletionLevel::Match);
    endpoint.send_blocking(peer, tag(number), bytes, options).unwrap();
}

pub(crate) fn receive(endpoint: &Endpoint<Owned>, peer: Peer, number: u64, size: usize) -> Vec<u8> {
    let mut into = vec![0; size];
    let selector = Selector::from_peer(peer, tag(number));
    let status = endpoint.receive_blocking(selector, &mut into, ReceiveOptions::new()).unwrap();
    assert_eq!((status.length, status.peer), (size, Some(peer)));
    into
}

/// Bounces messages until both sides share memory.
pub(crate) fn until_shared(endpoint: &Endpoint<Owned>, peer: Peer, is_first: bool) {
    until(endpoint, peer, is_first, 1, |figures| figures.received > 0);
}

/// The same until both have read a message from the other's memory.
pub(crate) fn until_read(endpoint: &Endpoint<Owned>, peer: Peer, is_first: bool) {
    until(endpoint, peer, is_first, 100_000, |figures| figures.read_calls > 0);
}

/// Bounces messages of `size` bytes until `is_so` on both sides.
pub(crate) fn until(
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

/// A child with an endpoint, and the channel of its commands.
pub(crate) struct Child {
    pid: libc::pid_t,
    link: UnixStream,
}

impl Child {
    /// Begins one, in which `play` has its endpoint and the way to its parent.
    pub(crate) fn start(play: impl FnOnce(Endpoint<Owned>, Peer)) -> (Self, Endpoint<Owned>, Peer) {
        Self::start_with(&[], play)
    }

    /// The same with more settings.
    pub(crate) fn start_with(
        settings: &[(&str, &str)],
        play: impl FnOnce(Endpoint<Owned>, Peer),
    ) -> (Self, Endpoint<Owned>, Peer) {
        let (child, mut ours) = Self::fork(|| {}, settings, play);
        let (endpoint, peer) = meet(&mut ours, settings);
        (Self { pid: child, link: ours }, endpoint, peer)
    }

    /// Begins one with process ids, mounts and System V objects of its own, as a container has that
    /// shares the network of its host. `Err`: why this process may not.
    pub(crate) fn start_contained(
        play: impl FnOnce(Endpoint<Owned>, Peer),
    ) -> io::Result<(Self, Endpoint<Owned>, Peer)> {
        let own = File::open("/proc/self/ns/pid")?;
        // SAFETY: these calls get numbers alone. Children of this thread are in the new namespace
        // until it changes that; threads it could not start meanwhile.
        if unsafe { libc::unshare(libc::CLONE_NEWPID) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let (child, mut ours) = Self::fork(contain, &[], play);
        // SAFETY: as above.
        assert_eq!(unsafe { libc::setns(own.as_raw_fd(), libc::CLONE_NEWPID) }, 0);
        let (endpoint, peer) = meet(&mut ours, &[]);
        Ok((Self { pid: child, link: ours }, endpoint, peer))
    }

    /// A child that does `prepare` and `play` and ends, and the link to it.
    fn fork(
        prepare: impl FnOnce(),
        settings: &[(&str, &str)],
        play: impl FnOnce(Endpoint<Owned>, Peer),
    ) -> (libc::pid_t, UnixStream) {
        // What a process does once, as measuring its clock, another test's thread may be doing: the
        // child would wait for that thread for ever.
        static ONCE: Once = Once::new();
        ONCE.call_once(|| drop(domain(&[]).endpoint().unwrap()));
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        // SAFETY: the child runs one thread, which is what `play` was written for, and never
        // returns to the test runner: it ends here.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "no child");
        if pid == 0 {
            drop(ours);
            let played = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                prepare();
                let (endpoint, peer) = meet(&mut theirs, settings);
                play(endpoint, peer);
            }));
            // SAFETY: nothing of the test runner is to be run at the end of the child.
            unsafe { libc::_exit(if played.is_ok() { 0 } else { 101 }) }
        }
        (pid, ours)
    }

    pub(crate) fn signal(&self, signal: libc::c_int) {
        // SAFETY: a child of this process that was not waited for: no other process has its id.
        assert_eq!(unsafe { libc::kill(self.pid, signal) }, 0);
    }

    /// Waits until it stands still.
    pub(crate) fn await_stop(&self) {
        let mut status = 0;
        // SAFETY: the status is a local of this function.
        let pid = unsafe { libc::waitpid(self.pid, &raw mut status, libc::WUNTRACED) };
        assert!(pid == self.pid && libc::WIFSTOPPED(status));
    }

    /// How it ended.
    pub(crate) fn end(self) -> libc::c_int {
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

/// The rest of a container, for a process that has its process id already.
fn contain() {
    let (proc, none) = (c"proc".as_ptr(), std::ptr::null());
    // SAFETY: the texts are constants, and the kernel takes no pointer but to them.
    unsafe {
        assert_eq!(libc::getpid(), 1);
        assert_eq!(libc::unshare(libc::CLONE_NEWNS | libc::CLONE_NEWIPC), 0);
        let private = libc::MS_REC | libc::MS_PRIVATE;
        assert_eq!(libc::mount(none, c"/".as_ptr(), none, private, none.cast()), 0);
        assert_eq!(libc::mount(proc, c"/proc".as_ptr(), proc, 0, none.cast()), 0);
    }
}

/// An endpoint, and that of the process at the other end of `link`.
pub(crate) fn meet(link: &mut UnixStream, settings: &[(&str, &str)]) -> (Endpoint<Owned>, Peer) {
    let domain = domain(&[ON, &[("peer_timeout", "4s")], settings].concat());
    let endpoint = domain.endpoint().unwrap().attach().unwrap();
    let own = endpoint.address().to_bytes();
    link.write_all(&own).unwrap();
    let mut theirs = own;
    link.read_exact(&mut theirs).unwrap();
    let peer = endpoint.insert_peer(&Address::from_bytes(&theirs).unwrap()).unwrap();
    (endpoint, peer)
}
