//! A child that `fork` made while endpoints were open: it may drop what it inherited and begin
//! anew, and its parent notices nothing. When the parent is killed its peers notice, although the
//! child goes on.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::own_process::fork;
use crate::common::peer_process::knows_processes_of_sockets;
use crate::common::{domain, own_process};
use ringrail::{
    Address, Attached, CompletionLevel, Domain, Endpoint, EndpointOptions, Envelope, Error, Event,
    Owned, Peer, PeerFailure, ReceiveOptions, Selector, SendOptions, Shared,
};

const TAG: Envelope = Envelope::tagged(3);
/// Longer than a busy machine takes for anything here.
const LONG: Duration = Duration::from_secs(60);

/// The exit status of a child; one that takes too long is killed. `meanwhile` runs until then.
fn await_child(child: libc::pid_t, mut meanwhile: impl FnMut()) -> i32 {
    let deadline = Instant::now() + LONG;
    let mut status = 0;
    loop {
        // SAFETY: the status is a local of this function.
        if unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == child {
            return status;
        }
        if Instant::now() > deadline {
            // SAFETY: a child of this process that was not waited for: its id is not reused.
            unsafe { libc::kill(child, libc::SIGKILL) };
            // SAFETY: as above.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            panic!("the child hangs");
        }
        meanwhile();
        thread::sleep(Duration::from_millis(1));
    }
}

fn has_caretaker() -> bool {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    tasks.into_iter().any(|task| {
        let name = fs::read_to_string(task.unwrap().path().join("comm"));
        name.is_ok_and(|name| name.trim() == "ringrail-care")
    })
}

/// A thread has its name soon after it began.
fn await_caretaker() {
    let deadline = Instant::now() + LONG;
    while !has_caretaker() {
        assert!(Instant::now() < deadline, "the parent's caretaker has no engine here");
        thread::sleep(Duration::from_millis(1));
    }
}

/// An endpoint of its own.
fn endpoint(settings: &[(&str, &str)]) -> (Domain, Endpoint<Owned>) {
    let domain = domain(settings);
    let endpoint = domain.endpoint().unwrap().attach().unwrap();
    (domain, endpoint)
}

fn send_text(endpoint: &Endpoint<Owned>, address: &Address, text: &[u8]) {
    let peer = endpoint.insert_peer(address).unwrap();
    endpoint.send_blocking(peer, TAG, text, SendOptions::at(CompletionLevel::Delivery)).unwrap();
}

/// There is a caretaker, and an exporter has a thread as well.
const THREADS: [(&str, &str); 2] = [("control_lane", "udp"), ("prometheus_address", "0")];

#[test]
fn a_child_drops_what_it_inherited_and_begins_anew() {
    own_process::run(
        "fork::a_child_drops_what_it_inherited_and_begins_anew",
        drop_what_is_inherited,
    );
}

fn drop_what_is_inherited() {
    for control_lane in ["udp", "tcp"] {
        let settings = [("control_lane", control_lane), THREADS[1]];
        let (domain, parent) = endpoint(&settings);
        let (other_domain, other) = endpoint(&settings);
        let sibling = parent.open_endpoint(EndpointOptions::default()).unwrap();
        let own = other.insert_peer(&parent.address()).unwrap();
        let mut sent = other.send(own, TAG, vec![7; 8], SendOptions::default()).unwrap();
        let mut came = parent.receive(Selector::from_any(TAG), vec![0; 8]).unwrap();
        let (mut is_sent, mut is_there) = (false, false);
        while !(is_sent && is_there) {
            is_sent = is_sent || sent.test().unwrap().is_some();
            is_there = is_there || came.test().unwrap().is_some();
            other.progress().unwrap();
        }
        let pending = other.receive(Selector::from_any(Envelope::tagged(9)), vec![0; 8]).unwrap();
        let scraped = domain.prometheus_address().unwrap();
        let address = parent.address();
        let detached = other_domain.endpoint().unwrap();
        // What only the child uses, and the parent drops as it is.
        let inherited = (pending, sibling, detached, other, other_domain);
        let mut inherited = Some(inherited);
        let (mut parent, mut domain) = (Some(parent), Some(domain));
        let child = fork(|| {
            refused(parent.as_ref().unwrap());
            let begun = Instant::now();
            drop(inherited.take());
            drop(parent.take());
            drop(domain.take());
            assert!(begun.elapsed() < Duration::from_secs(5), "it waited for another process");
            for _ in 0..2 {
                let (domain, endpoint) = endpoint(&THREADS);
                await_caretaker();
                let name = endpoint.address().to_string();
                send_text(&endpoint, &address, name.as_bytes());
                let begun = Instant::now();
                drop((endpoint, domain));
                assert!(begun.elapsed() < Duration::from_secs(30), "closing takes for ever");
                assert!(!has_caretaker(), "the thread ends with the last engine");
            }
        });
        let (parent, domain) = (parent.unwrap(), domain.unwrap());
        let mut names = Vec::new();
        let mut due = None;
        let status = await_child(child, || {
            let mut receive = due
                .take()
                .unwrap_or_else(|| parent.receive(Selector::from_any(TAG), vec![0; 256]).unwrap());
            match receive.test().unwrap() {
                Some(outcome) => names.push(outcome.status.length),
                None => due = Some(receive),
            }
        });
        assert_eq!(status, 0);
        assert_eq!(names.len(), 2);
        // All of this process is as it was.
        assert!(has_caretaker());
        TcpStream::connect(scraped).unwrap();
        drop(inherited);
        drop((parent, domain));
    }
}

#[test]
fn what_a_child_maps_where_the_arena_was_stays() {
    own_process::run("fork::what_a_child_maps_where_the_arena_was_stays", map_where_the_arena_was);
}

fn map_where_the_arena_was() {
    const PAGE: usize = 4096;
    let domain = domain(&[]);
    let mut slice = domain.allocate(2 * PAGE).unwrap();
    assert!(slice.is_registered());
    // A whole page of the arena.
    let at = slice.as_mut_ptr().addr().next_multiple_of(PAGE);
    let mut inherited = Some((domain, slice));
    let child = fork(|| {
        let (domain, slice) = inherited.take().unwrap();
        let (protection, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
        );
        let wish = std::ptr::without_provenance_mut(at);
        // SAFETY: the flags let the kernel map only what is free.
        let mapped = unsafe { libc::mmap(wish, PAGE, protection, flags, -1, 0) };
        assert_eq!(mapped, wish, "the arena is not mapped in a child");
        assert!(matches!(domain.endpoint(), Err(Error::Misuse(_))));
        assert!(matches!(domain.allocate(8), Err(Error::Misuse(_))));
        drop((slice, domain));
        // SAFETY: mapped above, and not unmapped: that is what is tested.
        unsafe { mapped.cast::<u8>().write_volatile(7) };
    });
    assert_eq!(await_child(child, || {}), 0);
    let (domain, mut slice) = inherited.unwrap();
    slice.fill(3);
    drop((domain, slice));
}

/// Calls with an endpoint that was inherited end at once, and say why.
fn refused<M: Attached>(endpoint: &Endpoint<M>) {
    fn check<T>(result: Result<T, Error>) {
        match result {
            Err(Error::Misuse(text)) => assert!(text.contains("forked"), "{text}"),
            Err(other) => panic!("refused with {other}"),
            Ok(_) => panic!("the call worked"),
        }
    }
    let any = Selector::from_any(TAG);
    check(endpoint.progress());
    check(endpoint.receive(any, vec![0; 8]).map_err(|refused| refused.error));
    let mut room = [0; 8];
    check(endpoint.receive_blocking(any, &mut room, ReceiveOptions::new()));
    // There is no error that it could give.
    refused_by_panic(|| endpoint.address());
}

fn refused_by_panic<T>(call: impl FnOnce() -> T) {
    let called = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call));
    let panic = called.err().expect("the call worked");
    let text = panic.downcast_ref::<String>().expect("a text");
    assert!(text.contains("forked"), "{text}");
}

#[test]
fn reads_of_an_inherited_queue_are_refused() {
    own_process::run("fork::reads_of_an_inherited_queue_are_refused", || {
        let domain = domain(&[]);
        read_an_inherited_queue(&domain.endpoint().unwrap().attach().unwrap());
        read_an_inherited_queue(&domain.endpoint().unwrap().share().unwrap());
    });
}

fn read_an_inherited_queue<M: Attached>(endpoint: &Endpoint<M>) {
    let queue = endpoint.open_completion_queue(16);
    let child = fork(|| {
        let mut completions = Vec::new();
        refused_by_panic(|| queue.read_ready(&mut completions, 1));
        let read = queue.read(&mut completions, 1);
        assert!(matches!(read, Err(Error::Misuse(_))), "{read:?}");
    });
    assert_eq!(await_child(child, || {}), 0);
    assert_eq!(queue.read_ready(&mut Vec::new(), 1), 0);
}

#[test]
fn calls_with_an_inherited_endpoint_of_all_threads_are_refused() {
    own_process::run(
        "fork::calls_with_an_inherited_endpoint_of_all_threads_are_refused",
        call_an_inherited_shared_endpoint,
    );
}

fn call_an_inherited_shared_endpoint() {
    for control_lane in ["udp", "tcp"] {
        let domain = domain(&[("control_lane", control_lane)]);
        let endpoint = domain.endpoint().unwrap().share().unwrap();
        let peer = endpoint.insert_peer(&endpoint.address()).unwrap();
        let child = fork(|| refused(&endpoint));
        assert_eq!(await_child(child, || {}), 0);
        endpoint.send_blocking(peer, TAG, b"still", SendOptions::default()).unwrap();
    }
}

/// How an endpoint is opened.
type Open<M> = fn(&Domain) -> Endpoint<M>;

/// What one side of a pair has.
struct Side<M: Attached> {
    endpoint: Endpoint<M>,
    peer: Peer,
    link: UnixStream,
    _domain: Domain,
}

/// One side of a pair whose other one is at the other end of `link`; both have sent and received
/// when this returns.
fn meet<M: Attached>(mut link: UnixStream, settings: &[(&str, &str)], open: Open<M>) -> Side<M> {
    let domain = domain(settings);
    let endpoint = open(&domain);
    let own = endpoint.address().to_bytes();
    link.write_all(&own).unwrap();
    let mut theirs = own;
    link.read_exact(&mut theirs).unwrap();
    let peer = endpoint.insert_peer(&Address::from_bytes(&theirs).unwrap()).unwrap();
    // Until what local peers agree on is there as well.
    for _ in 0..50 {
        let pending = endpoint.receive(Selector::from_peer(peer, TAG), vec![0; 8]).unwrap();
        endpoint.send_blocking(peer, TAG, &[7; 8], SendOptions::default()).unwrap();
        pending.wait().unwrap();
        thread::sleep(Duration::from_millis(1));
    }
    Side { endpoint, peer, link, _domain: domain }
}

/// A process with an endpoint, and a child of it that does not use the endpoint: it echoes what
/// comes by a socket, and ends with that socket.
struct Pair<M: Attached> {
    ours: Side<M>,
    process: libc::pid_t,
    to_worker: UnixStream,
}

impl<M: Attached> Pair<M> {
    fn start(
        settings: &[(&str, &str)],
        open: Open<M>,
        fork_worker: impl FnOnce(&mut dyn FnMut()) -> libc::pid_t,
    ) -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (to_worker, mut of_worker) = UnixStream::pair().unwrap();
        let mut of_process = Some((theirs, fork_worker));
        let (mut ours, mut to_worker) = (Some(ours), Some(to_worker));
        let process = fork(|| {
            drop((ours.take(), to_worker.take()));
            let (theirs, fork_worker) = of_process.take().unwrap();
            let mut side = meet(theirs, settings, open);
            fork_worker(&mut || {
                let mut word = [0];
                while of_worker.read(&mut word).unwrap() > 0 {
                    of_worker.write_all(&word).unwrap();
                }
            });
            side.link.write_all(b"!").unwrap();
            side.link.set_nonblocking(true).unwrap();
            loop {
                let options = SendOptions::default();
                match side.link.read(&mut [0]) {
                    Ok(0) => break,
                    Ok(_) => {
                        side.endpoint.send_blocking(side.peer, TAG, &[3; 8], options).unwrap();
                    }
                    Err(_) => {
                        side.endpoint.progress().unwrap();
                    }
                }
                thread::sleep(Duration::from_millis(1));
            }
        });
        drop((of_process, of_worker));
        let (ours, to_worker) = (ours.take().unwrap(), to_worker.take().unwrap());
        let mut ours = meet(ours, settings, open);
        ours.link.read_exact(&mut [0]).unwrap();
        Self { ours, process, to_worker }
    }

    /// Whether the worker runs.
    fn ask_worker(&mut self) {
        self.to_worker.write_all(b"?").unwrap();
        self.to_worker.read_exact(&mut [0]).unwrap();
    }

    /// Ends the process without a last word.
    fn kill(&self) {
        // SAFETY: a child of this process that was not waited for: its id is not reused.
        assert_eq!(unsafe { libc::kill(self.process, libc::SIGKILL) }, 0);
        let status = await_child(self.process, || {});
        assert!(libc::WIFSIGNALED(status), "{status}");
    }

    /// Waits until the engine reports that its peer is gone, and why.
    fn await_loss(&self) -> String {
        let deadline = Instant::now() + LONG;
        while Instant::now() < deadline {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.ours.endpoint.event_queue().wait(Some(left)).unwrap() {
                Some(Event::Disconnected { failure: PeerFailure::Lost(why), .. }) => {
                    return why.to_string();
                }
                Some(Event::Disconnected { failure, .. }) => panic!("it ended with {failure}"),
                Some(_) => {}
                None => break,
            }
        }
        panic!("the peer was killed, and its engine is taken to be there");
    }
}

/// All ways in which messages of one host go.
fn ways() -> impl Iterator<Item = [(&'static str, &'static str); 3]> {
    let all = ["auto", "off"].into_iter().flat_map(|memory| {
        ["udp", "tcp"].map(|lane| (memory, lane)).into_iter().flat_map(|(memory, lane)| {
            ["sockets", "uring"]
                .map(|lanes| [("shared_memory", memory), ("control_lane", lane), ("lanes", lanes)])
        })
    });
    let has_uring = domain(&[("lanes", "uring")]).endpoint().unwrap().attach().is_ok();
    all.filter(move |way| has_uring || way[2].1 != "uring")
}

/// Kills a process whose child goes on, and has its peer notice.
fn kill_a_parent<M: Attached>(
    way: &[(&str, &str)],
    open: Open<M>,
    fork_worker: fn(&mut dyn FnMut()) -> libc::pid_t,
) {
    for is_pending in [true, false] {
        let mut pair = Pair::start(way, open, fork_worker);
        let Side { endpoint, peer, .. } = &pair.ours;
        let from_it = Selector::from_peer(*peer, TAG);
        let pending =
            is_pending.then(|| endpoint.receive(from_it, vec![0; 8]).map_err(drop).unwrap());
        pair.ask_worker();
        pair.kill();
        let why = pair.await_loss();
        println!("{way:?}, a receive is pending: {is_pending}: {why}");
        if let Some(mut pending) = pending {
            let ended = pending.wait_timeout(LONG);
            let failed = ended.expect_err("the peer is gone");
            assert!(matches!(failed.error, Error::Peer { .. }), "{}", failed.error);
        }
        pair.ask_worker();
    }
}

fn attach(domain: &Domain) -> Endpoint<Owned> {
    domain.endpoint().unwrap().attach().unwrap()
}

fn share(domain: &Domain) -> Endpoint<Shared> {
    domain.endpoint().unwrap().share().unwrap()
}

fn fork_worker(work: &mut dyn FnMut()) -> libc::pid_t {
    fork(work)
}

/// As [`fork`], past the C library: no handler of a fork runs.
fn clone_worker(work: &mut dyn FnMut()) -> libc::pid_t {
    // SAFETY: without a stack of its own the child goes on here, with a copy of this memory; it
    // reads and writes a socket, allocates nothing, and ends.
    let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
    assert!(child >= 0, "no child");
    if child > 0 {
        return child as libc::pid_t;
    }
    work();
    // SAFETY: as in `fork`.
    unsafe { libc::_exit(0) }
}

/// RR-SHM-13
#[test]
fn local_peers_detect_a_killed_process_although_a_raw_clone_of_it_lives() {
    if !knows_processes_of_sockets() {
        return println!("RINGRAIL-SKIP: fork: this kernel does not know processes of sockets");
    }
    own_process::run(
        "fork::local_peers_detect_a_killed_process_although_a_raw_clone_of_it_lives",
        || {
            for way in ways().filter(|way| way[0].1 == "auto" && way[1].1 == "udp") {
                kill_a_parent(&way, attach, clone_worker);
                if way[2].1 == "sockets" {
                    kill_a_parent(&way, share, clone_worker);
                }
            }
        },
    );
}

#[test]
fn peers_of_a_killed_process_notice_although_its_child_goes_on() {
    own_process::run("fork::peers_of_a_killed_process_notice_although_its_child_goes_on", || {
        for way in ways() {
            kill_a_parent(&way, attach, fork_worker);
        }
        for way in ways().filter(|way| way[2].1 == "sockets") {
            kill_a_parent(&way, share, fork_worker);
        }
    });
}

/// RR-END-6
#[test]
fn a_host_that_answers_for_a_killed_process_is_believed_for_the_silent_timeout() {
    own_process::run(
        "fork::a_host_that_answers_for_a_killed_process_is_believed_for_the_silent_timeout",
        || {
            for way in ways().filter(|way| way[0].1 == "off" && way[1].1 == "udp") {
                let way = [&way[..], &[("silent_timeout", "4s")]].concat();
                let pair = Pair::start(&way, attach, clone_worker);
                pair.kill();
                let why = pair.await_loss();
                assert!(why.contains("its host answers"), "{why}");
                // The listener is open still, and sends no hello.
                let Side { endpoint, peer, .. } = &pair.ours;
                let error = endpoint.connect(*peer, Some(LONG)).unwrap_err();
                assert!(error.to_string().contains("silent_timeout"), "{error}");
            }
        },
    );
}

/// RR-END-6
#[test]
fn a_process_that_is_stopped_keeps_its_sessions() {
    own_process::run("fork::a_process_that_is_stopped_keeps_its_sessions", || {
        for way in ways() {
            let way = [&way[..], &[("peer_timeout", "1s"), ("silent_timeout", "60s")]].concat();
            let mut pair = Pair::start(&way, attach, |_| 0);
            let signal = |signal| {
                // SAFETY: a child of this process that was not waited for: its id is not reused.
                assert_eq!(unsafe { libc::kill(pair.process, signal) }, 0);
            };
            signal(libc::SIGSTOP);
            let Side { endpoint, peer, .. } = &pair.ours;
            let from_it = Selector::from_peer(*peer, TAG);
            let mut pending = endpoint.receive(from_it, vec![0; 8]).map_err(drop).unwrap();
            // Three times what a host may be silent for.
            assert!(pending.wait_timeout(Duration::from_secs(3)).unwrap().is_none(), "{way:?}");
            signal(libc::SIGCONT);
            pair.ours.link.write_all(b"?").unwrap();
            assert!(pending.wait_timeout(LONG).unwrap().is_some(), "{way:?}");
            drop(pending);
            let process = pair.process;
            drop(pair);
            assert_eq!(await_child(process, || {}), 0);
        }
    });
}

#[test]
fn a_child_that_lets_go_and_ends_leaves_the_sessions_of_its_parent() {
    own_process::run(
        "fork::a_child_that_lets_go_and_ends_leaves_the_sessions_of_its_parent",
        || {
            for way in ways() {
                let way = [&way[..], &[("peer_timeout", "2s")]].concat();
                let Pair { ours, process, .. } = Pair::start(&way, attach, |_| 0);
                let mut ours = Some(ours);
                let child = fork(|| drop(ours.take()));
                assert_eq!(await_child(child, || {}), 0);
                let mut ours = ours.unwrap();
                // Longer than a peer has to answer.
                let until = Instant::now() + Duration::from_secs(3);
                while Instant::now() < until {
                    ours.link.write_all(b"?").unwrap();
                    let from_it = Selector::from_peer(ours.peer, TAG);
                    let (mut room, options) = ([0; 8], ReceiveOptions::new());
                    ours.endpoint.receive_blocking(from_it, &mut room, options).unwrap();
                    assert_eq!(room, [3; 8]);
                    thread::sleep(Duration::from_millis(100));
                }
                drop(ours);
                assert_eq!(await_child(process, || {}), 0);
            }
        },
    );
}
