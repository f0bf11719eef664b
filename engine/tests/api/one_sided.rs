//! Operations on the memory of peers, by every kind of session.

use std::time::Duration;

use crate::common::{self, own_process, pair, pattern};
use ringrail::{
    Access, Atomic, AtomicOp, CompletionLevel, Datatype, Endpoint, Envelope, Error, KeyOptions,
    OperationKind, Owned, Peer, ReceiveOptions, Refusal, Region, RemoteKey, Rows, Selector,
    SendOptions,
};

/// In a datagram, by the stream, pulled, and their borders.
const SIZES: [usize; 12] =
    [0, 1, 8, 100, 1400, 1500, 9000, 32_000, 40_000, 70_000, 200_001, 3 << 20];
const LONGEST: usize = 3 << 20;
const GUARD: usize = 64;
const ALL: Access = Access::all();
const DONE: SendOptions = SendOptions::at(CompletionLevel::Delivery);

type Settings = Vec<(&'static str, &'static str)>;

/// Sessions of datagrams, of datagrams that carry bulk data too, and of one TCP lane.
fn kinds() -> Vec<Settings> {
    vec![
        vec![("control_lane", "udp")],
        vec![("control_lane", "udp"), ("bulk_lane", "datagram")],
        vec![("control_lane", "udp"), ("eager_lane", "datagram")],
        vec![("control_lane", "udp"), ("checksum", "true")],
        vec![("control_lane", "tcp")],
        vec![("control_lane", "tcp"), ("checksum", "true")],
    ]
}

fn send_key(endpoint: &Endpoint<Owned>, peer: Peer, key: RemoteKey) {
    let bytes = key.0.to_le_bytes();
    endpoint.send_blocking(peer, Envelope::tagged(1), &bytes, SendOptions::new()).unwrap();
}

fn receive_key(endpoint: &Endpoint<Owned>, peer: Peer) -> RemoteKey {
    let mut bytes = [0; 8];
    let selector = Selector::from_peer(peer, Envelope::tagged(1));
    endpoint.receive_blocking(selector, &mut bytes, ReceiveOptions::new()).unwrap();
    RemoteKey(u64::from_le_bytes(bytes))
}

/// Serves until the peer reports that it is done.
fn serve(endpoint: &Endpoint<Owned>, peer: Peer) {
    let selector = Selector::from_peer(peer, Envelope::tagged(2));
    endpoint.receive_blocking(selector, &mut [], ReceiveOptions::new()).unwrap();
}

fn finish(endpoint: &Endpoint<Owned>, peer: Peer) {
    endpoint.send_blocking(peer, Envelope::tagged(2), &[], DONE).unwrap();
}

fn bytes_of(region: &Region<Owned>) -> Vec<u8> {
    let mut bytes = vec![0; region.len()];
    region.read(0, &mut bytes).unwrap();
    bytes
}

/// RR-RMA-1, RR-RMA-2
#[test]
fn puts_and_gets_of_every_length_by_every_kind_of_session() {
    for kind in kinds() {
        let name = format!("{kind:?}");
        let target = move |endpoint: &Endpoint<Owned>, peer| {
            let region = endpoint.allocate_region(LONGEST + 2 * GUARD).unwrap();
            region.write(0, &vec![0xee; region.len()]).unwrap();
            let (offset, length) = (GUARD, Some(LONGEST));
            let options = KeyOptions { offset, length, ..KeyOptions::new(ALL) };
            send_key(endpoint, peer, region.key(&options).unwrap());
            serve(endpoint, peer);
            let bytes = bytes_of(&region);
            assert!(bytes[..GUARD].iter().all(|&byte| byte == 0xee), "{name}");
            assert!(bytes[LONGEST + GUARD..].iter().all(|&byte| byte == 0xee), "{name}");
            assert!(bytes[GUARD..][..LONGEST] == pattern(11, LONGEST), "{name}");
            let counts = region.counters();
            assert_eq!(counts.puts, 2 * SIZES.len() as u64, "{name}");
        };
        let origin = move |endpoint: &Endpoint<Owned>, peer| {
            let key = receive_key(endpoint, peer);
            for level in [CompletionLevel::Inject, CompletionLevel::Delivery] {
                for (number, size) in SIZES.into_iter().enumerate() {
                    let bytes = pattern(number as u64, size);
                    let at = key.at((LONGEST - size) as u64 / 2);
                    let put = endpoint.put(peer, at, bytes.clone(), SendOptions::at(level));
                    let done = put.unwrap().wait().unwrap();
                    assert_eq!(done.buffer.as_slice().unwrap().len(), size);
                    endpoint.flush(peer, SendOptions::new()).unwrap();
                    let got = endpoint.get(peer, at, vec![0; size], SendOptions::new());
                    let got = got.unwrap().wait().unwrap();
                    assert_eq!(got.status.length, size);
                    assert!(got.buffer.as_slice().unwrap() == bytes, "{size} {level:?}");
                }
                // Once more, many at a time.
                let bytes = pattern(11, LONGEST);
                let gets: Vec<_> = SIZES
                    .into_iter()
                    .map(|size| {
                        let at = key.at((LONGEST - size) as u64);
                        (size, endpoint.get(peer, at, vec![0; size], SendOptions::new()).unwrap())
                    })
                    .collect();
                for (size, get) in gets {
                    let got = get.wait().unwrap();
                    assert!(got.buffer.as_slice().unwrap() == &bytes[LONGEST - size..], "{size}");
                }
            }
            finish(endpoint, peer);
        };
        pair(&kind, target, origin);
    }
}

/// Waits for one completion of the endpoint's queue.
fn next(endpoint: &Endpoint<Owned>) -> ringrail::Completion {
    let mut done = Vec::new();
    while endpoint.wait(&mut done, 1, Some(Duration::from_secs(20))).unwrap() == 0 {}
    done.pop().unwrap()
}

fn refusal(error: Error) -> Refusal {
    match error {
        Error::Refused { cause, .. } => cause,
        other => panic!("{other}"),
    }
}

/// RR-RMA-2, RR-RMA-5
#[test]
fn what_is_not_allowed_is_refused_by_name_and_changes_nothing() {
    for kind in kinds() {
        let target = move |endpoint: &Endpoint<Owned>, peer| {
            let region = endpoint.allocate_region(4096).unwrap();
            let of = |access, offset, length| {
                let length = Some(length);
                region.key(&KeyOptions { offset, length, ..KeyOptions::new(access) }).unwrap()
            };
            let keys = [
                of(Access::REMOTE_READ, 8, 80),
                of(Access::REMOTE_WRITE, 8, 80),
                of(Access::REMOTE_ATOMIC, 8, 80),
                of(ALL, 0, 4096),
            ];
            let options = KeyOptions { peers: Some(vec![peer]), ..KeyOptions::new(ALL) };
            let mine = region.key(&options).unwrap();
            let itself = endpoint.insert_peer(&endpoint.address()).unwrap();
            let options = KeyOptions { peers: Some(vec![itself]), ..KeyOptions::new(ALL) };
            let anothers = region.key(&options).unwrap();
            let revoked = region.key(&KeyOptions::new(ALL)).unwrap();
            region.revoke(revoked, None).unwrap();
            assert!(region.revoke(revoked, None).is_err(), "it was revoked");
            let none = KeyOptions::new(Access::empty());
            assert!(matches!(region.key(&none), Err(Error::Misuse(_))));
            let beyond = KeyOptions { offset: 4000, length: Some(97), ..KeyOptions::new(ALL) };
            assert!(matches!(region.key(&beyond), Err(Error::Misuse(_))));
            for key in keys.into_iter().chain([mine, anothers, revoked]) {
                send_key(endpoint, peer, key);
            }
            serve(endpoint, peer);
            let counted = endpoint.counters();
            assert!(counted.accesses_refused > 20, "{counted:?}");
            assert_eq!(counted.wrong_keys, 3 * 3 * 2 + 3);
            let bytes = bytes_of(&region);
            let expected: Vec<u8> = (0..4096).map(|at| if at == 8 { 7 } else { 0 }).collect();
            assert!(bytes == expected, "only one put was allowed");
        };
        let origin = move |endpoint: &Endpoint<Owned>, peer| {
            let keys: Vec<RemoteKey> = (0..7).map(|_| receive_key(endpoint, peer)).collect();
            let [read, write, atomic, all, mine, anothers, revoked] = keys[..] else { panic!() };
            let unknown = RemoteKey(all.0 ^ 1);
            let put = |key: RemoteKey, offset, length| {
                let bytes = vec![7; length];
                endpoint.put_blocking(peer, key.at(offset), &bytes, DONE).map(drop)
            };
            let get = |key: RemoteKey, offset, length| {
                let mut bytes = vec![0; length];
                let got = endpoint.get_blocking(peer, key.at(offset), &mut bytes, DONE);
                got.map(drop)
            };
            let add = |key: RemoteKey, offset, fetches: bool| {
                let mut before = vec![0; if fetches { 8 } else { 0 }];
                let sum = Atomic::new(AtomicOp::Sum, Datatype::U64, &[0; 8]);
                endpoint.atomic_blocking(peer, key.at(offset), &sum, &mut before, DONE)
            };
            put(write, 0, 1).unwrap();
            get(read, 0, 80).unwrap();
            add(atomic, 8, false).unwrap();
            get(mine, 0, 4096).unwrap();
            put(write, 80, 0).unwrap();
            for length in [1, 2000, 300_000] {
                for key in [unknown, revoked, anothers] {
                    assert_eq!(refusal(put(key, 0, length).unwrap_err()), Refusal::Key);
                    assert_eq!(refusal(get(key, 0, length).unwrap_err()), Refusal::Key);
                }
                for key in [read, atomic] {
                    assert_eq!(refusal(put(key, 0, length).unwrap_err()), Refusal::Rights);
                }
                for key in [write, atomic] {
                    assert_eq!(refusal(get(key, 0, length).unwrap_err()), Refusal::Rights);
                }
                for (key, size) in [(write, 80u64), (all, 4096)] {
                    let behind = (size + 1).saturating_sub(length as u64);
                    for offset in [behind, u64::MAX, u64::MAX - 1, 1 << 63] {
                        let error = put(key, offset, length).unwrap_err();
                        assert_eq!(refusal(error), Refusal::Range, "{length} at {offset}");
                        if key == all {
                            let error = get(key, offset, length).unwrap_err();
                            assert_eq!(refusal(error), Refusal::Range, "{length} at {offset}");
                        }
                    }
                }
            }
            assert_eq!(refusal(add(write, 0, false).unwrap_err()), Refusal::Rights);
            assert_eq!(refusal(add(atomic, 0, true).unwrap_err()), Refusal::Rights, "it fetches");
            assert_eq!(refusal(add(all, 4, true).unwrap_err()), Refusal::Misaligned);
            assert_eq!(refusal(add(all, 4089, true).unwrap_err()), Refusal::Range);
            // Without an answer they are counted, and reported once.
            for _ in 0..3 {
                endpoint.inject_put(peer, unknown.at(0), b"x", SendOptions::new()).unwrap();
            }
            let flushed = endpoint.flush(peer, SendOptions::new());
            assert!(matches!(flushed, Err(Error::Unflushed(3))), "{flushed:?}");
            endpoint.flush(peer, SendOptions::new()).unwrap();
            finish(endpoint, peer);
        };
        pair(&kind, target, origin);
    }
}

/// What this side finds wrong does not go to the peer.
#[test]
fn atomic_operations_that_make_no_sense_are_refused_where_they_are_posted() {
    let origin = |endpoint: &Endpoint<Owned>, peer| {
        let at = RemoteKey(1).at(0);
        let post = |op, datatype, operands: &[u8], compare: &[u8]| {
            let atomic = Atomic { op, datatype, operands, compare };
            endpoint.post_atomic(peer, at, &atomic, DONE).map(drop)
        };
        let (eight, long) = ([0; 8], vec![0; Atomic::BYTES_MAX + 8]);
        for posted in [
            post(AtomicOp::BitOr, Datatype::F64, &eight, &[]),
            post(AtomicOp::Sum, Datatype::U64, &eight[1..], &[]),
            post(AtomicOp::Sum, Datatype::U64, &[], &[]),
            post(AtomicOp::Sum, Datatype::U64, &eight, &eight),
            post(AtomicOp::CompareSwap, Datatype::U64, &eight, &[]),
            post(AtomicOp::Read, Datatype::U64, &[], &[]),
            post(AtomicOp::Sum, Datatype::U64, &long, &[]),
        ] {
            assert!(matches!(posted, Err(Error::Misuse(_))), "{posted:?}");
        }
        finish(endpoint, peer);
    };
    pair(&[], serve, origin);
}

/// RR-RMA-6
#[test]
fn a_put_with_remote_data_is_reported_when_all_of_it_is_there() {
    for kind in kinds() {
        let target = move |endpoint: &Endpoint<Owned>, peer| {
            let region = endpoint.register(vec![0; LONGEST]).unwrap();
            send_key(endpoint, peer, region.key(&KeyOptions::new(ALL)).unwrap());
            for (number, size) in SIZES.into_iter().enumerate() {
                let reported = next(endpoint);
                assert_eq!((reported.kind, reported.user_data), (OperationKind::RemotePut, 0));
                let status = reported.result.unwrap();
                assert_eq!((status.length, status.data), (size, Some(!(number as u64))));
                assert_eq!(status.peer, Some(peer));
                let mut bytes = vec![0; size];
                region.read(0, &mut bytes).unwrap();
                assert!(bytes == pattern(number as u64, size), "{size}");
                finish(endpoint, peer);
            }
            let bytes = region.into_buffer().unwrap();
            assert_eq!(bytes.len(), LONGEST);
        };
        let origin = move |endpoint: &Endpoint<Owned>, peer| {
            let key = receive_key(endpoint, peer);
            for (number, size) in SIZES.into_iter().enumerate() {
                let options = SendOptions::new().data(!(number as u64)).user_data(5);
                let bytes = pattern(number as u64, size);
                endpoint.post_put(peer, key.at(0), bytes, options).unwrap();
                serve(endpoint, peer);
                let done = next(endpoint);
                assert_eq!((done.kind, done.user_data), (OperationKind::Put, 5));
                assert_eq!(done.result.unwrap().length, size);
            }
        };
        pair(&kind, target, origin);
    }
}

#[test]
fn atomic_operations_are_exact_while_the_target_adds_too() {
    const EACH: u64 = 3000;
    for kind in kinds().into_iter().step_by(2) {
        let target = move |endpoint: &Endpoint<Owned>, peer| {
            let region = endpoint.allocate_region(4096).unwrap();
            send_key(endpoint, peer, region.key(&KeyOptions::new(ALL)).unwrap());
            let selector = Selector::from_peer(peer, Envelope::tagged(2));
            let mut over = endpoint.receive(selector, Vec::new()).unwrap();
            let word = region.atomic_u64(64).unwrap();
            let mut added = 0;
            while over.test().unwrap().is_none() {
                word.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                added += 1;
            }
            let sum = word.load(std::sync::atomic::Ordering::Relaxed);
            assert_eq!(sum, added + 3 * EACH);
            assert_eq!(region.counters().atomics, 2 * EACH + 3 + 2);
            let mut vector = [0; 512];
            region.read(1024, &mut vector).unwrap();
            assert!(vector.chunks(8).all(|word| word == 3u64.to_ne_bytes()));
        };
        let origin = move |endpoint: &Endpoint<Owned>, peer| {
            let key = receive_key(endpoint, peer);
            let mut last = 0;
            for number in 0..EACH {
                let before = endpoint.fetch_add(peer, key.at(64), 1).unwrap();
                assert!(before >= last.max(number), "it only grows");
                last = before + 1;
                let sum = Atomic::new(AtomicOp::Sum, Datatype::U64, &[2, 0, 0, 0, 0, 0, 0, 0]);
                let options = SendOptions::new().silent(true);
                endpoint.post_atomic(peer, key.at(64), &sum, options).unwrap();
            }
            // Vectors, and what they were before.
            let ones = 1u64.to_ne_bytes().repeat(64);
            for number in 0..3u64 {
                let sum = Atomic::new(AtomicOp::Sum, Datatype::U64, &ones);
                let mut before = vec![0xee; 512];
                endpoint.atomic_blocking(peer, key.at(1024), &sum, &mut before, DONE).unwrap();
                assert!(before.chunks(8).all(|word| word == number.to_ne_bytes()));
            }
            assert_eq!(endpoint.compare_swap(peer, key.at(2048), 0, 9).unwrap(), 0);
            assert_eq!(endpoint.compare_swap(peer, key.at(2048), 0, 8).unwrap(), 9);
            endpoint.flush(peer, SendOptions::new()).unwrap();
            finish(endpoint, peer);
        };
        pair(&kind, target, origin);
    }
}

#[test]
fn an_engine_reaches_its_own_memory() {
    let domain = common::domain(&[]);
    let endpoint = domain.endpoint().unwrap().attach().unwrap();
    let peer = endpoint.insert_peer(&endpoint.address()).unwrap();
    let region = endpoint.allocate_region(LONGEST).unwrap();
    let key = region.key(&KeyOptions::new(ALL)).unwrap();
    for (number, size) in SIZES.into_iter().enumerate() {
        let bytes = pattern(number as u64, size);
        endpoint.put_blocking(peer, key.at(0), &bytes, DONE).unwrap();
        assert!(bytes_of(&region)[..size] == bytes);
        let mut got = vec![0; size];
        endpoint.get_blocking(peer, key.at(0), &mut got, DONE).unwrap();
        assert!(got == bytes, "{size}");
    }
    assert_eq!(endpoint.fetch_add(peer, key.at(0), 0).unwrap().to_ne_bytes()[..], {
        let mut first = [0; 8];
        region.read(0, &mut first).unwrap();
        first
    });
    let refused = endpoint.put_blocking(peer, RemoteKey(3).at(0), b"x", DONE).unwrap_err();
    assert_eq!(refusal(refused), Refusal::Key);
}

/// `MPI_Win_create_dynamic`: everything is registered, whatever is mapped there.
#[test]
fn unmapped_memory_is_refused_and_kills_no_process() {
    own_process::run(
        "one_sided::unmapped_memory_is_refused_and_kills_no_process",
        access_what_is_not_mapped,
    );
}

fn access_what_is_not_mapped() {
    use std::ptr;
    for kind in kinds() {
        let target = move |endpoint: &Endpoint<Owned>, peer| {
            let all = ringrail::RawSpan { ptr: ptr::null_mut(), len: usize::MAX };
            // SAFETY: nothing borrows the memory whose key the peer gets.
            let region = unsafe { endpoint.register_unmapped(all) }.unwrap();
            send_key(endpoint, peer, region.key(&KeyOptions::new(ALL)).unwrap());
            let bytes = 4 << 20;
            // SAFETY: a new mapping.
            let mapped = unsafe {
                let (protection, flags) =
                    (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
                libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0)
            };
            assert_ne!(mapped, libc::MAP_FAILED);
            send_key(endpoint, peer, RemoteKey(mapped.addr() as u64));
            serve(endpoint, peer);
            // SAFETY: it is not used any more.
            assert_eq!(unsafe { libc::munmap(mapped, bytes) }, 0);
            finish(endpoint, peer);
            serve(endpoint, peer);
        };
        let origin = move |endpoint: &Endpoint<Owned>, peer| {
            let (key, at) = (receive_key(endpoint, peer), receive_key(endpoint, peer).0);
            for size in SIZES {
                let bytes = pattern(3, size);
                endpoint.put_blocking(peer, key.at(at), &bytes, DONE).unwrap();
                let mut got = vec![0; size];
                endpoint.get_blocking(peer, key.at(at), &mut got, DONE).unwrap();
                assert!(got == bytes, "{size}");
            }
            endpoint.fetch_add(peer, key.at(at), 1).unwrap();
            finish(endpoint, peer);
            serve(endpoint, peer);
            for size in SIZES.into_iter().filter(|&size| size > 0) {
                let put = endpoint.put_blocking(peer, key.at(at), &vec![1; size], DONE);
                assert_eq!(refusal(put.unwrap_err()), Refusal::Fault, "{size}");
                let got = endpoint.get_blocking(peer, key.at(at), &mut vec![0; size], DONE);
                assert_eq!(refusal(got.unwrap_err()), Refusal::Fault, "{size}");
            }
            let added = endpoint.fetch_add(peer, key.at(at), 1);
            assert_eq!(refusal(added.unwrap_err()), Refusal::Fault);
            finish(endpoint, peer);
        };
        pair(&kind, target, origin);
    }
}

/// More than may be outstanding on the wire wait with their origin, and all of them end.
///
/// RR-RMA-3
#[test]
fn any_number_of_operations_may_be_posted_at_once() {
    const GETS: usize = 3000;
    for kind in kinds() {
        let target = move |endpoint: &Endpoint<Owned>, peer| {
            let region = endpoint.register(pattern(5, 4096)).unwrap();
            send_key(endpoint, peer, region.key(&KeyOptions::new(Access::REMOTE_READ)).unwrap());
            serve(endpoint, peer);
            assert_eq!(region.counters().gets, GETS as u64);
        };
        let origin = move |endpoint: &Endpoint<Owned>, peer| {
            let key = receive_key(endpoint, peer);
            let expected = pattern(5, 4096);
            let mut gets = Vec::new();
            for number in 0..GETS {
                let (at, more) = (number % 4000, number % 100 != 99);
                let options = SendOptions::new().more(more);
                gets.push(endpoint.get(peer, key.at(at as u64), vec![0; 16], options).unwrap());
            }
            for (number, get) in gets.into_iter().enumerate() {
                let got = get.wait().unwrap();
                assert_eq!(got.buffer.as_slice().unwrap(), &expected[number % 4000..][..16]);
            }
            finish(endpoint, peer);
        };
        pair(&kind, target, origin);
    }
}

/// A block of a matrix, whose rows are nearer to each other on this side than there.
#[test]
fn rows_are_put_and_got_with_strides_on_both_sides() {
    for kind in kinds() {
        for (bytes, count) in [(16, 500), (3000, 100), (50_000, 5), (8, 0), (0, 3)] {
            let (stride, remote_stride) = (bytes + 3, 2 * bytes + 40);
            let rows = Rows { count, bytes, stride, remote_stride: remote_stride as u64 };
            let (length, there) = (stride * count + bytes, remote_stride * count + bytes);
            let target = move |endpoint: &Endpoint<Owned>, peer| {
                let region = endpoint.allocate_region(there + GUARD).unwrap();
                send_key(endpoint, peer, region.key(&KeyOptions::new(ALL)).unwrap());
                serve(endpoint, peer);
                let mut expected = vec![0; region.len()];
                for row in 0..count {
                    let from = &pattern(9, length)[row * stride..][..bytes];
                    expected[GUARD + row * remote_stride..][..bytes].copy_from_slice(from);
                }
                assert!(bytes_of(&region) == expected, "{rows:?}");
            };
            let origin = move |endpoint: &Endpoint<Owned>, peer| {
                let at = receive_key(endpoint, peer).at(GUARD as u64);
                let whole = pattern(9, length);
                endpoint.put_rows_blocking(peer, at, &whole, rows, DONE).unwrap();
                let mut got = vec![0xee; length];
                endpoint.get_rows_blocking(peer, at, &mut got, rows, DONE.fence(true)).unwrap();
                for (at, byte) in got.into_iter().enumerate() {
                    let is_in_row = at / stride < count && at % stride < bytes;
                    assert_eq!(byte, if is_in_row { whole[at] } else { 0xee }, "{rows:?} {at}");
                }
                for wrong in [
                    Rows { stride: usize::MAX / 2, ..rows },
                    Rows { count: count + 2, ..rows },
                    Rows { remote_stride: u64::MAX / 2, count: 4, stride: 0, ..rows },
                ] {
                    let put = endpoint.put_rows_blocking(peer, at, &whole[..length], wrong, DONE);
                    let is_in = count < 2 && wrong.stride > length;
                    assert!(is_in || matches!(put, Err(Error::Misuse(_))), "{put:?} {wrong:?}");
                }
                finish(endpoint, peer);
            };
            pair(&kind, target, origin);
        }
    }
}

/// RR-RMA-7
#[test]
fn a_put_may_take_its_key_back() {
    for kind in kinds() {
        for length in [0, 8, 40_000, 300_000] {
            let target = move |endpoint: &Endpoint<Owned>, peer| {
                let region = endpoint.allocate_region(LONGEST).unwrap();
                let lasts = Access::REMOTE_READ | Access::REMOTE_WRITE;
                let key = region.key(&KeyOptions::new(lasts | Access::REMOTE_INVALIDATE)).unwrap();
                send_key(endpoint, peer, key);
                send_key(endpoint, peer, region.key(&KeyOptions::new(lasts)).unwrap());
                let reported = next(endpoint);
                assert_eq!(reported.result.unwrap().data, Some(6));
                let mut bytes = vec![0; length];
                region.read(0, &mut bytes).unwrap();
                assert!(bytes == pattern(2, length), "all of it is there");
                assert!(matches!(region.revoke(key, None), Err(Error::Misuse(_))), "it is gone");
                serve(endpoint, peer);
            };
            let origin = move |endpoint: &Endpoint<Owned>, peer| {
                let (key, other) = (receive_key(endpoint, peer), receive_key(endpoint, peer));
                let last = |key: RemoteKey| {
                    let bytes = pattern(2, length);
                    let options = DONE.data(6).fence(true);
                    endpoint.post_put_invalidate(peer, key.at(0), bytes, options).unwrap();
                    next(endpoint).result.map(drop)
                };
                assert_eq!(refusal(last(other).unwrap_err()), Refusal::Rights);
                endpoint.put_blocking(peer, other.at(0), &[1], DONE).unwrap();
                last(key).unwrap();
                let put = endpoint.put_blocking(peer, key.at(0), &[1], DONE);
                assert_eq!(refusal(put.unwrap_err()), Refusal::Key);
                finish(endpoint, peer);
            };
            pair(&kind, target, origin);
        }
    }
}

/// Each of the peers is flushed, and what they refused is summed.
///
/// RR-RMA-5
#[test]
fn all_peers_are_flushed_at_once() {
    let domain = common::domain(&[]);
    let origin = domain.endpoint().unwrap().attach().unwrap();
    let (is_over, served) = (std::sync::atomic::AtomicBool::new(false), 3);
    origin.flush_all(SendOptions::new()).unwrap();
    std::thread::scope(|scope| {
        let targets: Vec<_> = (0..served).map(|_| domain.endpoint().unwrap()).collect();
        let peers: Vec<_> =
            targets.iter().map(|it| origin.insert_peer(&it.address()).unwrap()).collect();
        for target in targets {
            scope.spawn(|| {
                let target = target.attach().unwrap();
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    target.progress().unwrap();
                }
            });
        }
        for (number, &peer) in peers.iter().enumerate() {
            for _ in 0..=number {
                let wrong = RemoteKey(5).at(0);
                origin.inject_put(peer, wrong, b"x", SendOptions::new()).unwrap();
            }
        }
        let flushed = origin.flush_all(SendOptions::new());
        let again = origin.flush_all(SendOptions::new());
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(matches!(flushed, Err(Error::Unflushed(6))), "{flushed:?}");
        again.unwrap();
    });
}
