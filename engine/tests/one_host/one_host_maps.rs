//! Memory of a process that another one of its host maps.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::one_host::{Child, LONG, ON, receive, send, until_shared};
use crate::common::{domain, pair, pair_of};
use ringrail::{
    Access, CompletionLevel, Endpoint, Error, ErrorKind, KeyOptions, MappedRegion, Owned, Peer,
    Refusal, Region, RemoteKey, SendOptions,
};

/// What a key has to allow that is to be mapped by.
fn all() -> Access {
    Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC
}

fn tell_key(endpoint: &Endpoint<Owned>, peer: Peer, key: RemoteKey) {
    send(endpoint, peer, 1, &key.0.to_le_bytes());
}

fn hear_key(endpoint: &Endpoint<Owned>, peer: Peer) -> RemoteKey {
    let bytes = receive(endpoint, peer, 1, 8);
    RemoteKey(u64::from_le_bytes(bytes.try_into().unwrap()))
}

/// Makes progress until `done`.
fn until(endpoint: &Endpoint<Owned>, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !done() {
        assert!(Instant::now() < deadline, "it does not come");
        endpoint.progress().unwrap();
        thread::yield_now();
    }
}

const SIZE: usize = 20_000;
/// Where what is mapped begins: on no page.
const OFFSET: usize = 5000;

/// The owner's side: a region whose middle a peer maps, and what both do there.
fn own(endpoint: &Endpoint<Owned>, peer: Peer) -> (Region<Owned>, RemoteKey) {
    let region = endpoint.allocate_shareable_region(SIZE).unwrap();
    region.write(OFFSET, b"written before it was mapped").unwrap();
    let options = KeyOptions { offset: OFFSET, length: Some(8000), ..KeyOptions::new(all()) };
    let key = region.key(&options).unwrap();
    tell_key(endpoint, peer, key);
    // 96: a multiple of 8 in memory, with the offset.
    let word = region.atomic_u64(OFFSET + 96).unwrap();
    until(endpoint, || word.load(Ordering::Acquire) == 1);
    let mut seen = [0; 5];
    region.read(OFFSET + 7995, &mut seen).unwrap();
    assert_eq!(&seen, b"there", "what came before the word is there with it");
    word.store(2, Ordering::Release);
    (region, key)
}

/// The peer's side of [`own`], up to where the owner has seen what it wrote.
fn map(endpoint: &Endpoint<Owned>, peer: Peer) -> (MappedRegion, RemoteKey) {
    let key = hear_key(endpoint, peer);
    let mapped = endpoint.map_region(peer, key, Some(LONG)).unwrap();
    assert_eq!(mapped.len(), 8000);
    let mut seen = [0; 28];
    mapped.read(0, &mut seen).unwrap();
    assert_eq!(&seen, b"written before it was mapped");
    mapped.write(7995, b"there").unwrap();
    assert!(mapped.write(7996, b"there").is_err(), "it ends where the key does");
    let word = mapped.atomic_u64(96).unwrap();
    assert_eq!(word.fetch_add(1, Ordering::AcqRel), 0);
    until(endpoint, || word.load(Ordering::Acquire) == 2);
    (mapped, key)
}

/// RR-SHM-9
#[test]
fn a_mapped_region_is_one_memory_of_two_processes_and_outlives_its_owner() {
    let (child, endpoint, peer) = Child::start(|endpoint, peer| {
        let (region, key) = own(&endpoint, peer);
        let error = region.revoke(key, Some(LONG)).unwrap_err().to_string();
        assert!(error.contains("cannot be taken back"), "{error}");
        assert!(region.is_mapped());
        send(&endpoint, peer, 2, b"revoked");
        tell_key(&endpoint, peer, region.key(&KeyOptions::new(all())).unwrap());
        receive(&endpoint, peer, 3, 1);
    });
    let (mapped, key) = map(&endpoint, peer);
    receive(&endpoint, peer, 2, 7);
    match endpoint.map_region(peer, key, Some(LONG)) {
        Err(Error::Refused { cause: Refusal::Key, .. }) => {}
        other => panic!("by a key that was taken back: {other:?}"),
    }
    let key = hear_key(&endpoint, peer);
    let whole = endpoint.map_region(peer, key, Some(LONG)).unwrap();
    assert_eq!(whole.len(), SIZE);
    send(&endpoint, peer, 3, b"!");
    assert_eq!(child.end(), 0);
    // The owner is gone, and what its key opened is still there.
    mapped.write(100, b"alone").unwrap();
    let mut seen = [0; 5];
    mapped.read(100, &mut seen).unwrap();
    assert_eq!(&seen, b"alone");
    whole.read(OFFSET + 100, &mut seen).unwrap();
    assert_eq!(&seen, b"alone", "both are the same memory");
    let error = endpoint.map_region(peer, key, Some(LONG)).unwrap_err();
    assert!(matches!(error, Error::Peer { .. }), "nobody is there to ask: {error}");
}

/// Who asks hears of it when the owner ends before it answers.
#[test]
fn an_owner_that_is_killed_leaves_no_question_open() {
    let (child, endpoint, peer) = Child::start(|endpoint, peer| {
        until_shared(&endpoint, peer, true);
        let region = endpoint.allocate_shareable_region(SIZE).unwrap();
        tell_key(&endpoint, peer, region.key(&KeyOptions::new(all())).unwrap());
        receive(&endpoint, peer, 3, 1);
    });
    until_shared(&endpoint, peer, false);
    let key = hear_key(&endpoint, peer);
    child.signal(libc::SIGSTOP);
    child.await_stop();
    let soon = Some(Duration::from_millis(100));
    let error = endpoint.map_region(peer, key, soon).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(100));
            child.signal(libc::SIGKILL);
        });
        let start = Instant::now();
        endpoint.map_region(peer, key, Some(LONG)).unwrap_err();
        assert!(start.elapsed() < LONG, "it was told");
    });
    assert_ne!(child.end(), 0);
}

/// RR-SHM-9
#[test]
fn only_shareable_memory_is_mapped_and_by_a_key_that_allows_everything() {
    let lend = |endpoint: &Endpoint<Owned>, peer: Peer| {
        until_shared(endpoint, peer, true);
        let plain = endpoint.allocate_region(4096).unwrap();
        tell_key(endpoint, peer, plain.key(&KeyOptions::new(all())).unwrap());
        let region = endpoint.allocate_shareable_region(4096).unwrap();
        let reads = KeyOptions::new(Access::REMOTE_READ | Access::REMOTE_WRITE);
        tell_key(endpoint, peer, region.key(&reads).unwrap());
        let key = region.key(&KeyOptions::new(all())).unwrap();
        tell_key(endpoint, peer, RemoteKey(key.0 ^ 1));
        tell_key(endpoint, peer, key);
        // Operations by the engine reach the same memory.
        let word = region.atomic_u64(8).unwrap();
        until(endpoint, || word.load(Ordering::Acquire) == 7);
        assert_eq!(region.counters().puts, 1);
        send(endpoint, peer, 2, b"seen");
        receive(endpoint, peer, 3, 1);
    };
    let borrow = |endpoint: &Endpoint<Owned>, peer: Peer| {
        until_shared(endpoint, peer, false);
        for expected in [Refusal::NotShareable, Refusal::Rights, Refusal::Key] {
            let key = hear_key(endpoint, peer);
            match endpoint.map_region(peer, key, Some(LONG)) {
                Err(Error::Refused { cause, .. }) => assert_eq!(cause, expected),
                other => panic!("{expected:?}: {other:?}"),
            }
        }
        let key = hear_key(endpoint, peer);
        let mapped = endpoint.map_region(peer, key, Some(LONG)).unwrap();
        let options = SendOptions::at(CompletionLevel::Delivery);
        endpoint.put_blocking(peer, key.at(8), &7_u64.to_le_bytes(), options).unwrap();
        assert_eq!(mapped.atomic_u64(8).unwrap().load(Ordering::Acquire), 7);
        receive(endpoint, peer, 2, 4);
        send(endpoint, peer, 3, b"!");
    };
    pair(ON, lend, borrow);
}

/// Many mappings of one region, by one question after the other, are all the same memory.
#[test]
fn a_region_is_mapped_again_and_again() {
    const TIMES: u64 = 200;
    let lend = |endpoint: &Endpoint<Owned>, peer: Peer| {
        let region = endpoint.allocate_shareable_region(1).unwrap();
        tell_key(endpoint, peer, region.key(&KeyOptions::new(all())).unwrap());
        receive(endpoint, peer, 3, 1);
        let mut seen = [0];
        region.read(0, &mut seen).unwrap();
        assert_eq!(u64::from(seen[0]), TIMES);
    };
    let borrow = |endpoint: &Endpoint<Owned>, peer: Peer| {
        let key = hear_key(endpoint, peer);
        let mut all = Vec::new();
        for time in 1..=TIMES {
            let mapped = endpoint.map_region(peer, key, Some(LONG)).unwrap();
            let mut seen = [0];
            mapped.read(0, &mut seen).unwrap();
            assert_eq!(u64::from(seen[0]), time - 1);
            mapped.write(0, &[time as u8]).unwrap();
            all.push(mapped);
        }
        send(endpoint, peer, 3, b"!");
    };
    pair(ON, lend, borrow);
}

#[test]
fn who_shares_no_memory_is_told_so() {
    let talk = |endpoint: &Endpoint<Owned>, peer: Peer| {
        let error = endpoint.map_region(peer, RemoteKey(1), Some(LONG)).unwrap_err().to_string();
        assert!(error.contains("set shared_memory to"), "{error}");
    };
    pair(&[("shared_memory", "off")], talk, talk);
    let with = |endpoint: &Endpoint<Owned>, peer: Peer| {
        let error = endpoint.map_region(peer, RemoteKey(1), Some(Duration::from_secs(3)));
        let error = error.unwrap_err().to_string();
        assert!(error.contains("no memory is shared with the peer"), "{error}");
        send(endpoint, peer, 1, b"done");
    };
    let without = |endpoint: &Endpoint<Owned>, peer: Peer| {
        receive(endpoint, peer, 1, 4);
    };
    // As if it were in another network namespace.
    let off: &[(&str, &str)] = &[("shared_memory", "off"), ("control_lane", "udp")];
    let endpoints = [ON, off].map(|settings| domain(settings).endpoint().unwrap());
    pair_of(endpoints, with, without);
}
