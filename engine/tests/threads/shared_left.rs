//! What is posted while another thread is inside a shared engine: left to that thread, in its
//! order, and not lost.

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use crate::common::domain;
use ringrail::{
    Access, Atomic, AtomicOp, Completion, Datatype, Endpoint, EndpointOptions, Envelope,
    KeyOptions, OperationKind, Peer, ReceiveOptions, Selector, SendOptions, Shared,
};

/// Longer than a busy machine takes for anything here.
const LONG: Duration = Duration::from_secs(60);

/// Two shared endpoints that know each other, and what each calls the other.
fn two(settings: &[(&str, &str)]) -> [(Endpoint<Shared>, Peer); 2] {
    let shared = || domain(settings).endpoint().unwrap().share().unwrap();
    let (left, right) = (shared(), shared());
    let to_right = left.insert_peer(&right.address()).unwrap();
    let to_left = right.insert_peer(&left.address()).unwrap();
    left.connect(to_right, Some(LONG)).unwrap();
    [(left, to_right), (right, to_left)]
}

/// Makes a call while another thread is held up inside the engine of `of`.
fn while_held<R>(of: &Endpoint<Shared>, call: impl FnOnce() -> R) -> R {
    const NEVER: u64 = u64::MAX;
    // With a queue of its own.
    let end = &of.open_endpoint(EndpointOptions::default()).unwrap();
    let receive = end
        .post_receive(
            Selector::from_any(Envelope::tagged(NEVER)),
            vec![0; 8],
            ReceiveOptions::new().user_data(NEVER),
        )
        .unwrap();
    let (inside, is_inside) = channel();
    let (leave, may_leave) = channel::<()>();
    let answer = std::thread::scope(|scope| {
        scope.spawn(move || {
            let is_wanted = |_| {
                inside.send(()).unwrap();
                may_leave.recv().unwrap();
                false
            };
            let mut is_wanted = Some(is_wanted);
            end.cancel_where(|user_data| is_wanted.take().is_some_and(|it| it(user_data)));
        });
        is_inside.recv().unwrap();
        let answer = call();
        leave.send(()).unwrap();
        answer
    });
    assert!(end.cancel(receive));
    answer
}

fn next(end: &Endpoint<Shared>) -> Completion {
    let mut completions = Vec::new();
    assert_eq!(end.wait(&mut completions, 1, Some(LONG)).unwrap(), 1, "something ends in time");
    completions.pop().unwrap()
}

/// The end of an inject is not reported: what was taken is sent, however small the bounds are, and
/// as many are taken as the bound permits.
#[test]
fn injects_that_are_left_are_not_lost() {
    let settings = [("send_queue_ops", "8"), ("envelope_credits", "16"), ("cq_entries", "16")];
    let [(left, to_right), (right, to_left)] = two(&settings);
    let mut sent = 0u64;
    for _ in 0..6 {
        let taken = while_held(&left, || {
            let begin = sent;
            while sent < begin + 100_000 {
                let bytes = sent.to_le_bytes();
                match left.inject(to_right, Envelope::tagged(1), &bytes, SendOptions::new()) {
                    Ok(()) => sent += 1,
                    Err(error) => {
                        assert!(error.is_would_block(), "{error}");
                        return sent - begin;
                    }
                }
            }
            panic!("no bound");
        });
        assert!(taken < 2_000, "{taken}");
        assert!(taken > 0 || sent > 0);
    }
    // Those that waited all the time.
    for number in 0..sent {
        let receive = right.receive(Selector::from_peer(to_left, Envelope::tagged(1)), vec![0; 8]);
        let mut receive = receive.unwrap();
        let begin = Instant::now();
        let received = loop {
            left.progress().unwrap();
            if let Some(received) = receive.wait_timeout(Duration::from_millis(1)).unwrap() {
                break received;
            }
            assert!(begin.elapsed() < LONG, "message {number} of {sent} comes");
        };
        assert_eq!(received.buffer.as_slice().unwrap(), number.to_le_bytes());
    }
    let mut failed = Vec::new();
    while left.completions(&mut failed, 16).unwrap() > 0 {}
    assert!(failed.is_empty(), "{failed:?}");
}

/// Posts on the memory of a peer wait for no thread either, and are done in the order that fences
/// require.
#[test]
fn posts_on_memory_are_left_as_well() {
    let [(left, to_right), (right, _)] = two(&[]);
    let region = right.allocate_region(64).unwrap();
    region.write(0, &[0; 64]).unwrap();
    let key = region.key(&KeyOptions::new(Access::all())).unwrap();
    let fenced = |user_data| SendOptions::new().user_data(user_data).fence(true);
    let one = 1u64.to_ne_bytes();
    let add = Atomic::new(AtomicOp::Sum, Datatype::U64, &one);
    let mut get = while_held(&left, || {
        let user_data = |user_data| SendOptions::new().user_data(user_data);
        left.post_put(to_right, key.at(0), vec![7; 8], user_data(1)).unwrap();
        left.post_atomic(to_right, key.at(8), &add, user_data(2)).unwrap();
        left.inject_put(to_right, key.at(16), &[9; 8], SendOptions::new()).unwrap();
        // Too long for the request itself.
        left.inject_put(to_right, key.at(32), &[5; 32], SendOptions::new()).unwrap();
        left.post_fetch_atomic(to_right, key.at(8), &add, vec![0; 8], fenced(3)).unwrap();
        left.post_get(to_right, key.at(0), vec![0; 64], fenced(4)).unwrap();
        left.post_flush(to_right, user_data(5)).unwrap();
        left.inject_put(to_right, key.at(16), &[8; 8], fenced(0)).unwrap();
        left.get(to_right, key.at(16), vec![0; 8], fenced(0)).unwrap()
    });
    assert!(left.sharing().combined >= 9, "{:?}", left.sharing());
    let mut ended: Vec<_> = Vec::new();
    while ended.len() < 5 {
        let completion = next(&left);
        completion.result.unwrap();
        ended.push((completion.user_data, completion.kind, completion.buffer));
    }
    ended.sort_by_key(|(user_data, ..)| *user_data);
    let kinds: Vec<_> = ended.iter().map(|(user_data, kind, _)| (*user_data, *kind)).collect();
    assert_eq!(
        kinds,
        [
            (1, OperationKind::Put),
            (2, OperationKind::Atomic),
            (3, OperationKind::Atomic),
            (4, OperationKind::Get),
            (5, OperationKind::Flush),
        ]
    );
    let bytes = |buffer: &Option<ringrail::Buffer>| {
        buffer.as_ref().and_then(ringrail::Buffer::as_slice).unwrap().to_vec()
    };
    assert_eq!(bytes(&ended[2].2), one, "behind the first addition");
    let got = bytes(&ended[3].2);
    assert_eq!(got[..8], [7; 8]);
    assert_eq!(got[8..16], 2u64.to_ne_bytes());
    assert_eq!(got[16..24], [9; 8]);
    assert_eq!(got[32..], [5; 32]);
    let got = get.wait_timeout(LONG).unwrap().expect("the get ends in time");
    assert_eq!(got.buffer.as_slice().unwrap(), [8; 8]);
}
