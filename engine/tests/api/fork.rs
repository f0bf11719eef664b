//! A child that `fork` made while endpoints were open: it may drop what it inherited and begin
//! anew, and its parent notices nothing.

use std::fs;
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{domain, own_process};
use ringrail::{
    Address, CompletionLevel, Domain, Endpoint, EndpointOptions, Envelope, Error, Owned, Selector,
    SendOptions,
};

const TAG: Envelope = Envelope::tagged(3);
/// Longer than a busy machine takes for anything here.
const LONG: Duration = Duration::from_secs(60);

/// Runs `play` in a child, which ends with it: with 0 if it comes back, else with a panic's 101.
fn fork(play: impl FnOnce()) -> libc::pid_t {
    // SAFETY: the child runs one thread, which is what `play` was written for, and never returns
    // to the test runner: it ends here.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "no child");
    if child > 0 {
        return child;
    }
    let played = std::panic::catch_unwind(std::panic::AssertUnwindSafe(play));
    // SAFETY: nothing of the test runner is to be run at the end of the child.
    unsafe { libc::_exit(if played.is_ok() { 0 } else { 101 }) }
}

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
            // SAFETY: a child of this process that was not waited for: nobody else has its id.
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
        assert!(Instant::now() < deadline, "the parent's caretaker looks after nobody here");
        thread::sleep(Duration::from_millis(1));
    }
}

/// An endpoint of its own.
fn endpoint(settings: &[(&str, &str)]) -> (Domain, Endpoint<Owned>) {
    let domain = domain(settings);
    let endpoint = domain.endpoint().unwrap().attach().unwrap();
    (domain, endpoint)
}

fn greet(endpoint: &Endpoint<Owned>, address: &Address, text: &[u8]) {
    let peer = endpoint.insert(address).unwrap();
    endpoint.send_blocking(peer, TAG, text, SendOptions::at(CompletionLevel::Delivery)).unwrap();
}

/// With datagrams there is a caretaker, and an exporter has a thread as well.
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
        let own = other.insert(&parent.address()).unwrap();
        let mut sent = other.send(own, TAG, vec![7; 8], SendOptions::default()).unwrap();
        let mut came = parent.receive(Selector::any(TAG), vec![0; 8]).unwrap();
        let (mut is_sent, mut is_there) = (false, false);
        while !(is_sent && is_there) {
            is_sent = is_sent || sent.test().unwrap().is_some();
            is_there = is_there || came.test().unwrap().is_some();
            other.progress().unwrap();
        }
        let pending = other.receive(Selector::any(Envelope::tagged(9)), vec![0; 8]).unwrap();
        let scraped = domain.prometheus_address().unwrap();
        let address = parent.address();
        let detached = other_domain.endpoint().unwrap();
        // What only the child uses, and the parent drops as it is.
        let inherited = (pending, sibling, detached, other, other_domain);
        let mut inherited = Some(inherited);
        let (mut parent, mut domain) = (Some(parent), Some(domain));
        let child = fork(|| {
            let begun = Instant::now();
            drop(inherited.take());
            drop(parent.take());
            drop(domain.take());
            assert!(begun.elapsed() < Duration::from_secs(5), "it waited for somebody");
            for _ in 0..2 {
                let (domain, endpoint) = endpoint(&THREADS);
                await_caretaker();
                let name = endpoint.address().to_string();
                greet(&endpoint, &address, name.as_bytes());
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
                .unwrap_or_else(|| parent.receive(Selector::any(TAG), vec![0; 256]).unwrap());
            match receive.test().unwrap() {
                Some(outcome) => names.push(outcome.status.length),
                None => due = Some(receive),
            }
        });
        assert_eq!(status, 0);
        assert_eq!(names.len(), 2);
        // All of this process is as it was.
        assert_eq!(has_caretaker(), control_lane == "udp");
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
    let mut slice = domain.alloc(2 * PAGE).unwrap();
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
        assert!(matches!(domain.alloc(8), Err(Error::Misuse(_))));
        drop((slice, domain));
        // SAFETY: mapped above, and nobody unmapped it: that is what is tested.
        unsafe { mapped.cast::<u8>().write_volatile(7) };
    });
    assert_eq!(await_child(child, || {}), 0);
    let (domain, mut slice) = inherited.unwrap();
    slice.fill(3);
    drop((domain, slice));
}
