//! Operations on memory, and a peer that asks for more than it may, or answers what nobody asked.

use super::super::one_sided::origin::OneSidedRequest;
use super::super::one_sided::{REQUESTS_MAX, Verb};
use super::super::regions::KeyRequest;
use super::*;
use crate::wire::one_sided::{FLAG_FETCH, FLAG_INVALIDATE, FLAG_NO_OPERANDS};
use crate::wire::{DATA_BYTES, OneSided, Reply, ReplyRts, eager};

const KEY: u64 = 5;
const REGION: u64 = 1 << 20;

/// An engine with a region that peers may do everything to.
fn bench() -> Bench {
    let mut bench = Bench::new(Config::for_tests());
    open(&mut bench, KEY, Access::all());
    bench
}

fn open(bench: &mut Bench, key: u64, access: Access) {
    let regions = bench.core.regions_mut();
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
    bench.core.counters().refused_accesses
}

/// A peer that asks for ever and reads nothing is given up before much is kept for it, whatever it
/// asks for.
///
/// RR-RMA-3
#[test]
fn a_peer_that_asks_and_reads_nothing_is_given_up() {
    let fetches = FLAG_FETCH | FLAG_NO_OPERANDS;
    for (kind, flags, key, length) in [
        (frame::KIND_FLUSH, 0, 0, 0),
        // Refused, and done.
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
            match bench.say(&frame_of(kind, flags, (key, length), asked)) {
                Ok(_) => assert!(asked < 10_000, "{kind} is answered for ever"),
                Err(error) => break error,
            }
        };
        assert!(matches!(error, FrameError::TooManyRequests(1024..)), "{kind}: {error}");
        assert!(bench.core.operations.len() <= 1024, "{kind}");
    }
}

/// RR-RMA-3
#[test]
fn as_many_as_an_origin_may_have_are_answered_whenever_it_reads() {
    let mut bench = bench();
    for _ in 0..20 {
        for operation in 1..=u64::from(REQUESTS_MAX) {
            bench.say(&frame_of(frame::KIND_PUT, 0, (KEY, 8), operation)).unwrap();
        }
        let mut replies = 0;
        while replies < REQUESTS_MAX as usize {
            let heard = bench.hear();
            assert!(!heard.is_empty(), "{replies} have come");
            replies += heard.iter().filter(|&&kind| kind == frame::KIND_REPLY).count();
            bench.acknowledge();
        }
    }
}

/// Nothing is done whose answer cannot be kept.
///
/// RR-RMA-2
#[test]
fn what_was_done_is_never_refused() {
    let config = Config { operations_max: 16, ..Config::for_tests() };
    let mut bench = Bench::new(config);
    open(&mut bench, KEY, Access::all());
    for _ in 0..16 {
        bench.receive(8);
    }
    let fetches = FLAG_FETCH | FLAG_NO_OPERANDS;
    bench.say(&frame_of(frame::KIND_ATOMIC, fetches, (KEY, 512), 1)).unwrap();
    assert_eq!((bench.ends.3.len(), refused(&bench)), (0, 1));
    // An answer of few bytes needs no place there.
    bench.say(&frame_of(frame::KIND_ATOMIC, fetches, (KEY, 8), 2)).unwrap();
    assert_eq!((bench.ends.3.len(), refused(&bench)), (1, 1));
}

/// RR-RMA-6
#[test]
fn only_puts_have_remote_data() {
    let mut bench = bench();
    let flags = eager::FLAG_DATA;
    bench.say(&frame_of(frame::KIND_PUT, flags, (KEY, 8), 1)).unwrap();
    let fetches = flags | FLAG_FETCH | FLAG_NO_OPERANDS;
    bench.say(&frame_of(frame::KIND_ATOMIC, fetches, (KEY, 8), 2)).unwrap();
    let told: Vec<bool> = bench.ends.3.iter().map(|(_, data)| data.is_some()).collect();
    assert_eq!(told, [true, false]);
}

/// RR-RMA-7
#[test]
fn a_put_that_may_takes_its_key_back() {
    for (kind, length) in [(frame::KIND_PUT, 8), (frame::KIND_PUT_RTS, REGION)] {
        let mut bench = bench();
        let put = |flags, key, operation| frame_of(kind, flags, (key, length), operation);
        // It needs the right.
        open(&mut bench, KEY + 1, Access::REMOTE_WRITE);
        bench.say(&put(FLAG_INVALIDATE, KEY + 1, 1)).unwrap();
        assert_eq!(refused(&bench), 1);
        bench.say(&put(0, KEY + 1, 2)).unwrap();
        assert_eq!(refused(&bench), 1, "the key is as good as before");
        // One that is refused leaves the key.
        if kind == frame::KIND_PUT_RTS {
            bench.say(&frame_of(kind, FLAG_INVALIDATE, (KEY, REGION + 1), 3)).unwrap();
        }
        bench.say(&put(FLAG_INVALIDATE, KEY, 4)).unwrap();
        let before = refused(&bench);
        bench.say(&put(0, KEY, 5)).unwrap();
        assert_eq!(refused(&bench), before + 1, "the key is unknown");
        assert!(bench.core.regions().region_of(KEY).is_none());
        let was_pulled = kind == frame::KIND_PUT_RTS;
        assert_eq!(bench.core.operations.len(), if was_pulled { 2 } else { 0 });
    }
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
fn answers_that_nobody_waits_for_change_nothing() {
    let mut bench = bench();
    let id = get(&mut bench, 100);
    // Before it has gone out, and to what never was.
    for operation in [id.to_u64(), 0, u64::MAX, id.to_u64() + (1 << 32)] {
        bench.say(&reply(operation, 0, 100)).unwrap();
        bench.say(&reply(operation, 1, 0)).unwrap();
        bench.say(&reply_rts(operation)).unwrap();
    }
    assert!(bench.ends.0.is_empty());
    assert!(bench.hear().contains(&frame::KIND_GET));
    bench.say(&reply(id.to_u64(), 0, 100)).unwrap();
    assert!(matches!(bench.ends.0[&id], Ended::Sent { accepted: 100 }));
    // After the end.
    bench.say(&reply(id.to_u64(), 0, 100)).unwrap();
    bench.say(&reply_rts(id.to_u64())).unwrap();
    // A message waits for no such answer.
    let send = bench.send(5000, CompletionLevel::Inject);
    bench.hear();
    bench.say(&reply(send.to_u64(), 0, 100)).unwrap();
    bench.say(&reply(send.to_u64(), 1, 0)).unwrap();
    bench.say(&reply_rts(send.to_u64())).unwrap();
    assert_eq!(bench.ends.0.len(), 1);
}

/// Other than an acknowledgement, an answer may be all that a fence waits for.
#[test]
fn a_fence_behind_a_get_opens_with_its_answer() {
    let mut bench = bench();
    let id = get(&mut bench, 100);
    assert_eq!(bench.hear(), [frame::KIND_GET]);
    let (peer, context, tag, level) = (bench.peer, 5, 1, CompletionLevel::Inject);
    let (length, hint, data) = (8, Hint::None, None);
    let fence = true;
    let request = SendRequest { endpoint: 0, peer, context, tag, length, level, hint, data, fence };
    let send = bench.core.new_send(&request).unwrap();
    bench.core.enqueue(send, 0);
    assert_eq!(bench.hear(), [] as [u8; 0]);
    bench.acknowledge();
    assert_eq!(bench.hear(), [] as [u8; 0]);
    let answer = reply(id.to_u64(), 0, 100);
    let (header, payload) = Reply::ref_from_prefix(&answer).unwrap();
    bench.core.handle_reply(bench.slot, header, payload, &mut bench.ends).unwrap();
    assert_eq!(bench.hear(), [frame::KIND_EAGER]);
}

/// RR-RMA-2
#[test]
fn an_answer_of_another_length_ends_the_session() {
    for length in [0, 99, 101] {
        let mut bench = bench();
        let id = get(&mut bench, 100);
        bench.hear();
        let said = bench.say(&reply(id.to_u64(), 0, length));
        assert_eq!(said, Err(FrameError::BadReply { got: length.into(), wanted: 100 }));
        assert!(bench.ends.0.is_empty());
    }
}

/// What is pulled already is not answered once more.
///
/// RR-RMA-2
#[test]
fn a_get_is_pulled_once() {
    let mut bench = bench();
    bench.lane();
    let id = get(&mut bench, 100_000);
    bench.hear();
    bench.say(&reply_rts(id.to_u64())).unwrap();
    let again = [reply_rts(id.to_u64()), reply(id.to_u64(), 1, 0), reply(id.to_u64(), 0, 8)];
    for answer in again {
        bench.say(&answer).unwrap();
    }
    assert!(bench.ends.0.is_empty(), "it is being pulled");
    assert!(bench.hear().contains(&frame::KIND_DONE), "the second one is told that it is over");
}
