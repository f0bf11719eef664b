//! What providers of other interfaces need of messages besides bytes and tags: remote data, one
//! buffer for many messages, messages claimed before they are received, silent receives.

use std::time::Duration;

use crate::common::{pair, pattern};
use ringrail::{
    Completion, CompletionLevel, Endpoint, Envelope, Error, OperationKind, Owned, ReceiveOptions,
    Selector, SendOptions, Status,
};

/// In a datagram, on the stream, pulled.
const SIZES: [usize; 7] = [0, 8, 1000, 9000, 30_000, 200_000, 3 << 20];

fn data_of(number: usize) -> Option<u64> {
    (number % 3 != 2).then_some(u64::MAX / (number as u64 + 1))
}

/// Waits for one completion.
fn next(endpoint: &Endpoint<Owned>) -> Completion {
    let mut done = Vec::new();
    while endpoint.wait(&mut done, 1, Some(Duration::from_secs(20))).unwrap() == 0 {}
    done.pop().unwrap()
}

fn settings(lane: &str) -> Vec<(&str, &str)> {
    // The control lane of the environment stands, if it is set.
    match std::env::var("TEST_OF_RINGRAIL_CONTROL_LANE") {
        Ok(_) => Vec::new(),
        Err(_) => vec![("control_lane", lane)],
    }
}

fn send_all(endpoint: &Endpoint<Owned>, peer: ringrail::Peer, envelope: Envelope) {
    for (number, size) in SIZES.into_iter().enumerate() {
        let mut options = SendOptions::at(CompletionLevel::Match);
        options.data = data_of(number);
        let sent = endpoint.send(peer, envelope, pattern(number as u64, size), options).unwrap();
        assert_eq!(sent.wait().unwrap().status.data, None, "it is the receiver's");
    }
}

/// RR-DATA-1
#[test]
fn remote_data_comes_with_messages_of_every_size_and_kind() {
    for lane in ["udp", "tcp"] {
        for envelope in [Envelope::tagged(7), Envelope::UNTAGGED] {
            let left = move |endpoint: &Endpoint<Owned>, peer| {
                send_all(endpoint, peer, envelope);
                send_all(endpoint, peer, envelope);
                let options = SendOptions::new().data(5);
                while let Err(error) = endpoint.inject(peer, envelope, b"short", options) {
                    assert!(error.is_would_block(), "{error}");
                    endpoint.progress().unwrap();
                }
                endpoint
                    .receive(Selector::from_peer(peer, envelope), vec![0; 1])
                    .unwrap()
                    .wait()
                    .unwrap();
            };
            let right = move |endpoint: &Endpoint<Owned>, peer| {
                let selector = Selector::from_peer(peer, envelope);
                for (number, size) in SIZES.into_iter().enumerate() {
                    let receive = endpoint.receive(selector, vec![0; size]).unwrap();
                    let done = receive.wait().unwrap();
                    assert_eq!((done.status.length, done.status.data), (size, data_of(number)));
                    assert!(done.buffer.as_slice().unwrap() == pattern(number as u64, size));
                }
                for (number, size) in SIZES.into_iter().enumerate() {
                    let reported = look(endpoint, selector);
                    assert_eq!((reported.length, reported.data), (size, data_of(number)));
                    let receive = endpoint.receive(selector, vec![0; size / 2]).unwrap();
                    let status = match receive.wait() {
                        Ok(done) => done.status,
                        Err(failed) => *failed.error.status().expect("it was cut"),
                    };
                    assert_eq!(status, reported);
                }
                let injected = endpoint.receive(selector, vec![0; 5]).unwrap().wait().unwrap();
                assert_eq!(injected.status.data, Some(5));
                endpoint.send(peer, envelope, vec![1], SendOptions::new()).unwrap().wait().unwrap();
            };
            pair(&settings(lane), left, right);
        }
    }
}

fn look(endpoint: &Endpoint<Owned>, selector: Selector) -> Status {
    loop {
        if let Some(status) = endpoint.peek(selector).unwrap() {
            return status;
        }
    }
}

#[test]
fn one_buffer_takes_many_messages_of_every_size() {
    const TAIL: usize = 100;
    for lane in ["udp", "tcp"] {
        let envelope = Envelope::tagged(7);
        let left = move |endpoint: &Endpoint<Owned>, peer| {
            send_all(endpoint, peer, envelope);
            let last = pattern(99, 2 * TAIL);
            let options = SendOptions::at(CompletionLevel::Match);
            endpoint.send(peer, envelope, last, options).unwrap().wait().unwrap();
        };
        let right = move |endpoint: &Endpoint<Owned>, peer| {
            let selector = Selector::from_any(envelope);
            let whole: usize = SIZES.iter().sum();
            let buffer = vec![0; whole + TAIL];
            let options = ReceiveOptions::new().user_data(3);
            endpoint.post_receive_many(selector, buffer, TAIL, options).unwrap();
            let mut offsets = vec![None; SIZES.len()];
            for _ in SIZES {
                let done = next(endpoint);
                assert!(done.buffer.is_none() && done.user_data == 3);
                assert_eq!(done.kind, OperationKind::Receive);
                let status = done.result.unwrap();
                assert_eq!(status.peer, Some(peer));
                let number = SIZES.iter().position(|&size| size == status.length).unwrap();
                assert_eq!(status.data, data_of(number));
                assert_eq!(offsets[number].replace(done.offset as usize), None);
            }
            let cut = next(endpoint);
            let Err(Error::Truncated { status, capacity }) = cut.result else { panic!("{cut:?}") };
            assert_eq!((status.length, capacity), (2 * TAIL, TAIL as u64));
            assert_eq!(cut.offset as usize, whole);
            let end = next(endpoint);
            assert_eq!((end.kind, end.user_data), (OperationKind::MultiReceive, 3));
            assert_eq!(end.result.unwrap().length, whole + TAIL);
            let buffer = end.buffer.unwrap();
            let bytes = buffer.as_slice().unwrap();
            let mut at = 0;
            for (number, size) in SIZES.into_iter().enumerate() {
                assert_eq!(offsets[number], Some(at), "in the order in which they were sent");
                assert!(bytes[at..at + size] == pattern(number as u64, size), "{size}");
                at += size;
            }
            assert!(bytes[at..] == pattern(99, 2 * TAIL)[..TAIL]);
        };
        pair(&settings(lane), left, right);
    }
}

#[test]
fn claimed_messages_are_received_or_dropped_by_name() {
    for lane in ["udp", "tcp"] {
        let envelope = Envelope::tagged(7);
        let left = move |endpoint: &Endpoint<Owned>, peer| {
            send_all(endpoint, peer, envelope);
            send_all(endpoint, peer, envelope);
        };
        let right = move |endpoint: &Endpoint<Owned>, peer| {
            let selector = Selector::from_peer(peer, envelope);
            for (number, size) in SIZES.into_iter().enumerate() {
                let seen = look(endpoint, selector);
                let mut message = endpoint.claim(selector).unwrap().expect("it was seen");
                assert_eq!((*message.status(), seen.length), (seen, size));
                let options = ReceiveOptions::new();
                endpoint.post_receive_claimed(&mut message, vec![0; size], options).unwrap();
                let done = next(endpoint);
                assert_eq!(done.result.unwrap(), seen);
                let buffer = done.buffer.unwrap();
                assert!(buffer.as_slice().unwrap() == pattern(number as u64, size));
                let again = endpoint.post_receive_claimed(&mut message, vec![0; 1], options);
                assert!(matches!(again.unwrap_err().error, Error::Misuse(_)));
            }
            for size in SIZES {
                assert_eq!(look(endpoint, selector).length, size);
                endpoint.claim(selector).unwrap().expect("it was seen").discard();
            }
            assert_eq!(endpoint.peek(selector).unwrap(), None);
        };
        pair(&settings(lane), left, right);
    }
}

#[test]
fn silent_receives_report_failures_only() {
    let envelope = Envelope::tagged(1);
    let left = move |endpoint: &Endpoint<Owned>, peer| {
        for length in [8, 16, 8] {
            let options = SendOptions::at(CompletionLevel::Match);
            endpoint.send(peer, envelope, vec![1; length], options).unwrap().wait().unwrap();
        }
    };
    let right = move |endpoint: &Endpoint<Owned>, peer| {
        let selector = Selector::from_peer(peer, envelope);
        for (user_data, silent) in [(1, true), (2, true), (3, false)] {
            let options = ReceiveOptions::new().user_data(user_data).silent(silent);
            endpoint.post_receive(selector, vec![0; 8], options).unwrap();
        }
        let cut = next(endpoint);
        assert!(matches!(cut.result, Err(Error::Truncated { .. })), "{cut:?}");
        assert_eq!((cut.user_data, next(endpoint).user_data), (2, 3));
    };
    pair(&[], left, right);
}

#[test]
fn operations_that_fail_with_their_peer_keep_their_status() {
    const LENGTH: usize = 3 << 20;
    let left = move |endpoint: &Endpoint<Owned>, peer| {
        let waiting = Selector::from_peer(peer, Envelope::tagged(4)).ignoring(3);
        endpoint.post_receive(waiting, vec![0; 8], ReceiveOptions::new()).unwrap();
        let options = SendOptions::at(CompletionLevel::Match);
        endpoint.post_send(peer, Envelope::tagged(9), vec![1; LENGTH], options).unwrap();
        for _ in 0..2 {
            let failed = next(endpoint);
            let error = failed.result.unwrap_err();
            assert!(matches!(error, Error::Peer { .. }), "{error}");
            let status = error.status().expect("an operation failed");
            let expected = match failed.kind {
                OperationKind::Send => (9, LENGTH),
                _ => (4, 0),
            };
            assert_eq!((status.envelope.tag(), status.length), expected);
            assert_eq!(status.peer, Some(peer));
        }
    };
    let right = move |endpoint: &Endpoint<Owned>, peer| {
        look(endpoint, Selector::from_peer(peer, Envelope::tagged(9)));
    };
    pair(&[], left, right);
}
