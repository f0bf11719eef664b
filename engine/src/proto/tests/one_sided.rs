//! One-sided operations, and a peer that exceeds its limits, or sends unexpected replies.

use super::super::regions::KeyRequest;
use super::super::session::one_sided::origin::OneSidedRequest;
use super::super::session::one_sided::{REQUESTS_MAX, Verb};
use super::*;
use crate::wire::one_sided::{FLAG_FETCH, FLAG_INVALIDATE, FLAG_NO_OPERANDS};
use crate::wire::{DATA_BYTES, OneSided, Reply, ReplyRts, eager};

const KEY: u64 = 5;
const REGION: u64 = 1 << 20;

/// Creates an engine with a region that permits all accesses of peers.
fn bench() -> Bench {
    let mut bench = Bench::new(Config::for_tests());
    open(&mut bench, KEY, Access::all());
    bench
}

fn open(bench: &mut Bench, key: u64, access: Access) {
    let regions = bench.core.shared_mut().regions_mut();
    let region = regions.open(REGION).unwrap();
    let request = KeyRequest { key: Some(key), offset: 0, length: REGION, access, peers: None };
    regions.add_key(region, request, || unreachable!("it is chosen")).unwrap();
}

fn frame_of(kind: u8, flags: u8, (key, length): (u64, u64), operation: u64) -> Vec<u8> {
    let header = OneSided {
        kind,
        flags,
        target_endpoint: 0.into(),
        source_endpoint: 0.into(),
        atomic: crate::types::AtomicOp::Read.code(),
        datatype: crate::types::Datatype::U64.code(),
        length: length.into(),
        key: key.into(),
        offset: 0.into(),
        operation: operation.into(),
    };
    let data = if flags & eager::FLAG_DATA != 0 { DATA_BYTES } else { 0 };
    let payload = if kind == frame::KIND_PUT { length as usize } else { 0 };
    [header.as_bytes(), &vec![3; data + payload]].concat()
}

fn refused(bench: &Bench) -> u64 {
    bench.core.shared().counters().refused_accesses
}

/// A peer that sends requests without reading replies is disconnected before much state is kept for
/// it, whichever requests it sends.
///
/// RR-RMA-3
#[test]
fn peer_that_requests_without_reading_is_disconnected() {
    let fetches = FLAG_FETCH | FLAG_NO_OPERANDS;
    for (kind, flags, key, length) in [
        (frame::KIND_FLUSH, 0, 0, 0),
        // Refused, and executed.
        (frame::KIND_GET, 0, KEY + 1, 8),
        (frame::KIND_GET, 0, KEY, 8),
        (frame::KIND_PUT, 0, KEY, 8),
        (frame::KIND_PUT_RTS, 0, KEY, REGION),
        // Kept as an operation, and as a frame.
        (frame::KIND_ATOMIC, fetches, KEY, 512),
        (frame::KIND_ATOMIC, fetches, KEY, 8),
    ] {
        let config = Config { operations_max: 10_000, ..Config::for_tests() };
        let mut bench = Bench::new(config);
        open(&mut bench, KEY, Access::all());
        let mut asked = 0;
        let error = loop {
            asked += 1;
            match bench.deliver(&frame_of(kind, flags, (key, length), asked)) {
                Ok(_) => assert!(asked < 10_000, "{kind} is answered for ever"),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, FrameError::TooManyRequests(1024..)), "{kind}: {error}");
        assert!(bench.core.shared.operations.len() <= 1024, "{kind}");
    }
}

/// RR-RMA-3
#[test]
fn requests_within_the_limit_are_answered() {
    let mut bench = bench();
    for _ in 0..20 {
        for operation in 1..=u64::from(REQUESTS_MAX) {
            bench.deliver(&frame_of(frame::KIND_PUT, 0, (KEY, 8), operation)).unwrap();
        }
        let mut replies = 0;
        while replies < REQUESTS_MAX as usize {
            let kinds = bench.transmit();
            assert!(!kinds.is_empty(), "{replies} have come");
            replies += kinds.iter().filter(|&&kind| kind == frame::KIND_REPLY).count();
            bench.acknowledge();
        }
    }
}

/// No operation is executed whose reply cannot be kept.
///
/// RR-RMA-2
#[test]
fn executed_operations_are_never_refused() {
    let config = Config { operations_max: 16, ..Config::for_tests() };
    let mut bench = Bench::new(config);
    open(&mut bench, KEY, Access::all());
    for _ in 0..16 {
        bench.receive(8);
    }
    let fetches = FLAG_FETCH | FLAG_NO_OPERANDS;
    bench.deliver(&frame_of(frame::KIND_ATOMIC, fetches, (KEY, 512), 1)).unwrap();
    assert_eq!((bench.results.accesses.len(), refused(&bench)), (0, 1));
    // A short reply needs no space there.
    bench.deliver(&frame_of(frame::KIND_ATOMIC, fetches, (KEY, 8), 2)).unwrap();
    assert_eq!((bench.results.accesses.len(), refused(&bench)), (1, 1));
}

/// RR-RMA-6
#[test]
fn only_puts_carry_remote_data() {
    let mut bench = bench();
    let flags = eager::FLAG_DATA;
    bench.deliver(&frame_of(frame::KIND_PUT, flags, (KEY, 8), 1)).unwrap();
    let fetches = flags | FLAG_FETCH | FLAG_NO_OPERANDS;
    bench.deliver(&frame_of(frame::KIND_ATOMIC, fetches, (KEY, 8), 2)).unwrap();
    let has_data: Vec<bool> =
        bench.results.accesses.iter().map(|(_, data)| data.is_some()).collect();
    assert_eq!(has_data, [true, false]);
}

/// RR-RMA-7
#[test]
fn put_with_the_right_invalidates_its_key() {
    for (kind, length) in [(frame::KIND_PUT, 8), (frame::KIND_PUT_RTS, REGION)] {
        let mut bench = bench();
        let put = |flags, key, operation| frame_of(kind, flags, (key, length), operation);
        // It needs the right.
        open(&mut bench, KEY + 1, Access::REMOTE_WRITE);
        bench.deliver(&put(FLAG_INVALIDATE, KEY + 1, 1)).unwrap();
        assert_eq!(refused(&bench), 1);
        bench.deliver(&put(0, KEY + 1, 2)).unwrap();
        assert_eq!(refused(&bench), 1, "the key is still valid");
        // A refused put leaves the key valid.
        if kind == frame::KIND_PUT_RTS {
            bench.deliver(&frame_of(kind, FLAG_INVALIDATE, (KEY, REGION + 1), 3)).unwrap();
        }
        bench.deliver(&put(FLAG_INVALIDATE, KEY, 4)).unwrap();
        let before = refused(&bench);
        bench.deliver(&put(0, KEY, 5)).unwrap();
        assert_eq!(refused(&bench), before + 1, "the key is unknown");
        assert!(bench.core.shared().regions().region_of(KEY).is_none());
        let was_pulled = kind == frame::KIND_PUT_RTS;
        assert_eq!(bench.core.shared.operations.len(), if was_pulled { 2 } else { 0 });
    }
}

/// Another endpoint of the peer keeps the session, so nothing else ends the operation there.
///
/// RR-RMA-2, RR-RDV-5
#[test]
fn operations_that_a_removed_peer_waits_for_are_answered() {
    let asked = |kind, length| {
        let mut bench = bench();
        bench.lane();
        bench.core.insert_peer(PEER, locator(), 1).unwrap();
        bench.deliver(&frame_of(kind, 0, (KEY, length), 1)).unwrap();
        bench
    };
    for (kind, length, answer) in [
        (frame::KIND_GET, 8, frame::KIND_REPLY),
        (frame::KIND_GET, REGION, frame::KIND_REPLY),
        (frame::KIND_PUT_RTS, REGION, frame::KIND_DONE),
    ] {
        let mut bench = asked(kind, length);
        assert!(bench.core.remove_peer(bench.peer, &mut bench.results));
        assert_eq!(bench.transmit(), [answer], "{kind} of {length} bytes");
        assert_eq!(bench.core.shared.operations.len(), 0);
    }
    // A pull that the origin has begun is refused when it asks for more.
    let mut bench = asked(frame::KIND_GET, REGION);
    assert_eq!(bench.transmit(), [frame::KIND_REPLY_RTS]);
    let (served, _) = bench.core.shared.operations.iter().next().unwrap();
    assert!(bench.core.remove_peer(bench.peer, &mut bench.results));
    bench.deliver(&grant(served, 0, 1, 0)).unwrap();
    assert_eq!(bench.transmit(), [frame::KIND_REFUSED]);
}

fn get(bench: &mut Bench, length: u64) -> Id {
    let request = OneSidedRequest {
        endpoint: 0,
        peer: bench.peer,
        verb: Verb::Get,
        key: 1,
        offset: 0,
        length,
        level: CompletionLevel::Delivery,
        hint: Hint::None,
        data: None,
        fence: false,
        invalidates: false,
        operands: Box::default(),
    };
    let id = bench.core.new_one_sided(request, length).unwrap();
    bench.core.enqueue_one_sided(id, 0);
    id
}

fn reply(operation: u64, status: u8, length: u32) -> Vec<u8> {
    let header = Reply {
        kind: frame::KIND_REPLY,
        status,
        reserved: 0.into(),
        length: length.into(),
        operation: operation.into(),
    };
    [header.as_bytes(), &vec![4; length as usize]].concat()
}

fn reply_rts(operation: u64) -> Vec<u8> {
    let header = ReplyRts {
        kind: frame::KIND_REPLY_RTS,
        flags: 0,
        reserved: 0.into(),
        reserved_2: 0.into(),
        operation: operation.into(),
        send_operation: 77.into(),
    };
    header.as_bytes().to_vec()
}

/// RR-RMA-2
#[test]
fn unexpected_replies_have_no_effect() {
    let mut bench = bench();
    let id = get(&mut bench, 100);
    // Before it was sent, and to operations that never existed.
    for operation in [id.to_u64(), 0, u64::MAX, id.to_u64() + (1 << 32)] {
        bench.deliver(&reply(operation, 0, 100)).unwrap();
        bench.deliver(&reply(operation, 1, 0)).unwrap();
        bench.deliver(&reply_rts(operation)).unwrap();
    }
    assert!(bench.results.ended.is_empty());
    assert!(bench.transmit().contains(&frame::KIND_GET));
    bench.deliver(&reply(id.to_u64(), 0, 100)).unwrap();
    assert!(matches!(bench.results.ended[&id], Ended::Sent { accepted: 100 }));
    // After the end.
    bench.deliver(&reply(id.to_u64(), 0, 100)).unwrap();
    bench.deliver(&reply_rts(id.to_u64())).unwrap();
    // A message waits for no such reply.
    let send = bench.send(5000, CompletionLevel::Inject);
    bench.transmit();
    bench.deliver(&reply(send.to_u64(), 0, 100)).unwrap();
    bench.deliver(&reply(send.to_u64(), 1, 0)).unwrap();
    bench.deliver(&reply_rts(send.to_u64())).unwrap();
    assert_eq!(bench.results.ended.len(), 1);
}

/// Instead of an acknowledgement, a reply may be all that a fence waits for.
#[test]
fn fence_after_a_get_opens_with_its_reply() {
    let mut bench = bench();
    let id = get(&mut bench, 100);
    assert_eq!(bench.transmit(), [frame::KIND_GET]);
    let request = bench.request(8, CompletionLevel::Inject, Hint::None);
    let request = SendRequest { fence: true, ..request };
    let send = bench.core.new_send(&request).unwrap();
    bench.core.enqueue(send, 0);
    assert_eq!(bench.transmit(), [] as [u8; 0]);
    bench.acknowledge();
    assert_eq!(bench.transmit(), [] as [u8; 0]);
    let answer = reply(id.to_u64(), 0, 100);
    let (header, payload) = Reply::ref_from_prefix(&answer).unwrap();
    bench.core.handle_reply(bench.slot, header, payload, &mut bench.results).unwrap();
    assert_eq!(bench.transmit(), [frame::KIND_EAGER]);
}

/// RR-RMA-2
#[test]
fn reply_of_wrong_length_closes_the_session() {
    for length in [0, 99, 101] {
        let mut bench = bench();
        let id = get(&mut bench, 100);
        bench.transmit();
        let answer = bench.deliver(&reply(id.to_u64(), 0, length));
        assert_eq!(answer, Err(FrameError::BadReply { got: length.into(), wanted: 100 }));
        assert!(bench.results.ended.is_empty());
    }
}

/// A get that is being pulled is not answered again.
///
/// RR-RMA-2
#[test]
fn get_is_pulled_once() {
    let mut bench = bench();
    bench.lane();
    let id = get(&mut bench, 100_000);
    bench.transmit();
    bench.deliver(&reply_rts(id.to_u64())).unwrap();
    let again = [reply_rts(id.to_u64()), reply(id.to_u64(), 1, 0), reply(id.to_u64(), 0, 8)];
    for answer in again {
        bench.deliver(&answer).unwrap();
    }
    assert!(bench.results.ended.is_empty(), "the pull is in progress");
    assert!(bench.transmit().contains(&frame::KIND_DONE), "the second one gets DONE");
}
