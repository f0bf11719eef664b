//! What ends with an endpoint, and what others of its engine keep.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{domain, pattern};
use ringrail::{
    Address, CompletionLevel, Endpoint, EndpointOptions, Envelope, Error, Operation, Owned, Peer,
    PeerFailure, RawSpan, ReceiveOptions, Selector, SendOptions,
};

/// Long enough that a transfer is seen under way.
const LONG: usize = 96 << 20;
/// Long enough to be pulled in several pieces.
const SHORT: usize = 6 << 20;

fn tag(tag: u64) -> Envelope {
    Envelope::tagged(tag)
}

/// Memory that operations borrow from its owner, as in MPI programs.
struct Borrowed(Vec<u8>);

impl Borrowed {
    fn span(&mut self) -> RawSpan {
        RawSpan { ptr: self.0.as_mut_ptr(), len: self.0.len() }
    }

    /// The byte at an offset, also while others write.
    fn look_at(&self, offset: usize) -> u8 {
        assert!(offset < self.0.len());
        // SAFETY: it is inside the vector. An engine of this very thread may write it, or the
        // kernel, of whose bytes any value will do.
        unsafe { self.0.as_ptr().add(offset).read_volatile() }
    }
}

/// Makes progress for a while.
fn go_on(endpoint: &Endpoint<Owned>, for_ms: u64) {
    let until = Instant::now() + Duration::from_millis(for_ms);
    while Instant::now() < until {
        endpoint.progress().unwrap();
    }
}

fn is_gone(error: &Error) -> bool {
    matches!(error, Error::Peer { failure: PeerFailure::Left, .. })
}

/// Sends `peer` an address.
fn send_address(endpoint: &Endpoint<Owned>, peer: Peer, address: &Address) {
    endpoint
        .send_blocking(
            peer,
            tag(1000),
            &address.to_bytes(),
            SendOptions::at(CompletionLevel::Delivery),
        )
        .unwrap();
}

/// Receives an address from [`send_address`], and inserts its peer.
fn receive_address(endpoint: &Endpoint<Owned>) -> Peer {
    let mut bytes = [0; Address::BYTES];
    endpoint
        .receive_blocking(Selector::from_any(tag(1000)), &mut bytes, ReceiveOptions::new())
        .unwrap();
    endpoint.insert_peer(&Address::from_bytes(&bytes).unwrap()).unwrap()
}

fn wait_for(endpoint: &Endpoint<Owned>, from: Peer) {
    endpoint
        .receive_blocking(Selector::from_peer(from, tag(999)), &mut [], ReceiveOptions::new())
        .unwrap();
}

fn signal(endpoint: &Endpoint<Owned>, to: Peer) {
    endpoint.send_blocking(to, tag(999), &[], SendOptions::new()).unwrap();
}

/// Who holds the engine when its endpoint with raw operations is dropped.
#[derive(Clone, Copy, PartialEq)]
enum Keeper {
    /// The first endpoint; the one that is dropped is its sibling.
    First,
    /// A sibling; the first one is dropped.
    Sibling,
    /// An operation.
    Operation,
}

const KEEPERS: [Keeper; 3] = [Keeper::First, Keeper::Sibling, Keeper::Operation];

/// Two endpoints of an engine: the one to be dropped, and one that stays.
fn two(keeper: Keeper, domain: &ringrail::Domain) -> (Endpoint<Owned>, Option<Endpoint<Owned>>) {
    let first = domain.endpoint().unwrap().attach().unwrap();
    match keeper {
        Keeper::First => (first.open_endpoint(EndpointOptions::default()).unwrap(), Some(first)),
        Keeper::Sibling => {
            let sibling = first.open_endpoint(EndpointOptions::default()).unwrap();
            (first, Some(sibling))
        }
        Keeper::Operation => (first, None),
    }
}

/// Keeps the engine going for a while without the endpoint that was dropped.
fn go_on_without(other: Option<&Endpoint<Owned>>, operation: Option<Operation>, for_ms: u64) {
    if let Some(other) = other {
        go_on(other, for_ms);
    }
    if let Some(mut operation) = operation {
        let until = Instant::now() + Duration::from_millis(for_ms);
        let failed = operation.wait_deadline(until).expect_err("it ended with its endpoint");
        assert!(matches!(failed.error, Error::Cancelled), "{failed}");
    }
}

#[test]
fn memory_of_a_receive_is_free_once_its_endpoint_is_dropped() {
    for keeper in KEEPERS {
        let domain = domain(&[("close_linger", "20s")]);
        let (leaving, staying) = two(keeper, &domain);
        let (to, of) = mpsc::channel();
        let address = leaving.address();
        let sender = thread::spawn(move || {
            let endpoint = domain.endpoint().unwrap().attach().unwrap();
            let peer = endpoint.insert_peer(&address).unwrap();
            to.send(endpoint.address()).unwrap();
            let error = endpoint.send_blocking(
                peer,
                tag(1),
                &vec![7; LONG],
                SendOptions::at(CompletionLevel::Match),
            );
            assert!(is_gone(&error.unwrap_err()));
        });
        let peer = leaving.insert_peer(&of.recv().unwrap()).unwrap();
        let mut memory = Borrowed(vec![0; LONG]);
        // SAFETY: no thread accesses the memory before the endpoint is dropped, and it stays until
        // after that.
        let posted = unsafe {
            let selector = Selector::from_peer(peer, tag(1));
            leaving.post_receive_raw(selector, &[memory.span()], ReceiveOptions::new())
        };
        posted.unwrap();
        let operation = (keeper == Keeper::Operation)
            .then(|| leaving.receive(Selector::from_any(tag(2)), vec![0; 8]).unwrap());
        let begun = Instant::now();
        // Far behind what comes with the request to send.
        while memory.look_at(2 << 20) == 0 && begun.elapsed() < Duration::from_secs(60) {
            leaving.progress().unwrap();
        }
        assert_eq!(memory.look_at(LONG - 1), 0, "the message is still under way");
        drop(leaving);
        memory.0.fill(0xee);
        go_on_without(staying.as_ref(), operation, 300);
        assert!(memory.0.iter().all(|&byte| byte == 0xee), "written after the drop");
        drop(staying);
        sender.join().unwrap();
    }
}

#[test]
fn what_was_posted_goes_out_before_its_memory_is_the_callers_again() {
    for keeper in KEEPERS {
        let domain = domain(&[("close_linger", "60s")]);
        let (leaving, staying) = two(keeper, &domain);
        let (to, of) = mpsc::channel();
        let receiver = thread::spawn(move || {
            let endpoint = domain.endpoint().unwrap().attach().unwrap();
            to.send(endpoint.address()).unwrap();
            let mut into = vec![0; SHORT];
            // By then the endpoint is being dropped.
            thread::sleep(Duration::from_millis(100));
            endpoint
                .receive_blocking(Selector::from_any(tag(1)), &mut into, ReceiveOptions::new())
                .unwrap();
            assert!(into == pattern(5, SHORT), "as it was before the drop");
        });
        let peer = leaving.insert_peer(&of.recv().unwrap()).unwrap();
        let mut memory = Borrowed(pattern(5, SHORT));
        // SAFETY: as above.
        let posted = unsafe {
            let options = SendOptions::default();
            leaving.post_send_raw(peer, tag(1), &[memory.span()], options)
        };
        // There is no connection yet.
        assert!(posted.unwrap().is_some());
        let operation = (keeper == Keeper::Operation)
            .then(|| leaving.receive(Selector::from_any(tag(2)), vec![0; 8]).unwrap());
        drop(leaving);
        memory.0.fill(0xee);
        go_on_without(staying.as_ref(), operation, 10);
        receiver.join().unwrap();
    }
}

#[test]
fn undelivered_sends_end_in_time_and_their_receiver_is_notified() {
    for keeper in KEEPERS {
        let domain = domain(&[("close_linger", "50ms")]);
        let (leaving, staying) = two(keeper, &domain);
        let (to, of) = mpsc::channel();
        let (to_too, dropped) = mpsc::channel();
        let receiver = thread::spawn(move || {
            let endpoint = domain.endpoint().unwrap().attach().unwrap();
            to.send(endpoint.address()).unwrap();
            let announced = Selector::from_any(tag(1));
            let status = loop {
                if let Some(status) = endpoint.peek(announced).unwrap() {
                    break status;
                }
            };
            // The engine may be gone by then, and the request with it.
            let announced = Selector::from_peer(status.peer.unwrap(), tag(1));
            dropped.recv().unwrap();
            let mut into = vec![0; LONG];
            let error =
                endpoint.receive_blocking(announced, &mut into, ReceiveOptions::new()).unwrap_err();
            assert!(is_gone(&error), "{error}");
            assert!(into.iter().all(|&byte| byte != 0xee), "memory that was not borrowed was read");
        });
        let peer = leaving.insert_peer(&of.recv().unwrap()).unwrap();
        leaving.connect(peer, None).unwrap();
        let mut memory = Borrowed(vec![7; LONG]);
        // SAFETY: as above.
        let posted = unsafe {
            let options = SendOptions::default();
            leaving.post_send_raw(peer, tag(1), &[memory.span()], options)
        };
        assert!(posted.unwrap().is_some());
        go_on(&leaving, 10);
        let operation = (keeper == Keeper::Operation)
            .then(|| leaving.receive(Selector::from_any(tag(2)), vec![0; 8]).unwrap());
        drop(leaving);
        memory.0.fill(0xee);
        to_too.send(()).unwrap();
        go_on_without(staying.as_ref(), operation, 10);
        if let Some(staying) = &staying {
            while !receiver.is_finished() {
                go_on(staying, 1);
            }
        }
        receiver.join().unwrap();
    }
}

/// Two engines: `host` has the thread of the test, and may drop its endpoint.
fn with_guest(
    settings: &[(&str, &str)],
    guest: impl FnOnce(&Endpoint<Owned>, Peer) + Send + 'static,
    host: impl FnOnce(Endpoint<Owned>, Peer),
) {
    let domain = domain(settings);
    let endpoint = domain.endpoint().unwrap().attach().unwrap();
    let address = endpoint.address();
    let (to, of) = mpsc::channel();
    let other = thread::spawn(move || {
        let endpoint = domain.endpoint().unwrap().attach().unwrap();
        to.send(endpoint.address()).unwrap();
        let peer = endpoint.insert_peer(&address).unwrap();
        guest(&endpoint, peer);
    });
    let peer = endpoint.insert_peer(&of.recv().unwrap()).unwrap();
    host(endpoint, peer);
    other.join().unwrap();
}

/// RR-MATCH-3
#[test]
fn a_first_endpoint_that_is_dropped_takes_no_message_and_holds_no_credit() {
    with_guest(
        &[("envelope_credits", "16")],
        |endpoint, first| {
            let sibling = receive_address(endpoint);
            wait_for(endpoint, sibling);
            let error = endpoint
                .send_blocking(first, tag(1), b"?", SendOptions::at(CompletionLevel::Match))
                .unwrap_err();
            assert!(is_gone(&error), "{error}");
            // More than there is credit for.
            for _ in 0..100 {
                endpoint
                    .send_blocking(first, tag(1), b"without a receiver", SendOptions::new())
                    .unwrap();
            }
            endpoint
                .send_blocking(
                    sibling,
                    tag(2),
                    b"to the sibling",
                    SendOptions::at(CompletionLevel::Match),
                )
                .unwrap();
        },
        |first, peer| {
            let sibling = first.open_endpoint(EndpointOptions::default()).unwrap();
            send_address(&first, peer, &sibling.address());
            drop(first);
            signal(&sibling, peer);
            let mut into = [0; 14];
            sibling
                .receive_blocking(
                    Selector::from_peer(peer, tag(2)),
                    &mut into,
                    ReceiveOptions::new(),
                )
                .unwrap();
            assert_eq!(&into, b"to the sibling");
            assert_eq!(sibling.counters().dropped_frames, 101);
        },
    );
}

#[test]
fn a_dropped_sibling_leaves_no_completion_and_no_reservation() {
    let endpoint = domain(&[("cq_entries", "16")]).endpoint().unwrap().attach().unwrap();
    let own = endpoint.insert_peer(&endpoint.address()).unwrap();
    let mut into = [0];
    for round in 0..40 {
        let sibling = endpoint.open_endpoint(EndpointOptions::default()).unwrap();
        let second = sibling
            .open_endpoint(EndpointOptions {
                transmit_queue: Some(&sibling.transmit_queue()),
                ..EndpointOptions::default()
            })
            .unwrap();
        // Completions without a reader, one queue for both.
        for one in [&sibling, &second] {
            let options = SendOptions::default();
            one.post_send(own, tag(1), vec![round; 1], options).unwrap();
            endpoint
                .receive_blocking(Selector::from_any(tag(1)), &mut into, ReceiveOptions::new())
                .unwrap();
        }
        for number in 0..14 {
            sibling
                .post_receive(
                    Selector::from_any(tag(2)),
                    vec![0; 8],
                    ReceiveOptions::new().user_data(number),
                )
                .unwrap();
        }
        let full = sibling
            .post_receive(
                Selector::from_any(tag(2)),
                vec![0; 8],
                ReceiveOptions::new().user_data(99),
            )
            .unwrap_err();
        assert!(full.error.is_would_block());
        // An endpoint that shares its queue still reads it, and gets the results of its receives.
        drop(sibling);
        let mut done = Vec::new();
        assert_eq!(second.completions(&mut done, 10).unwrap(), 10);
        assert_eq!(done.iter().filter(|it| it.result.is_ok()).count(), 2);
        assert!(done[2..].iter().all(|it| matches!(it.result, Err(Error::Cancelled))));
        drop(second);
        let receives = (0..16).map(|_| endpoint.receive(Selector::from_any(tag(2)), vec![0; 8]));
        let receives: Result<Vec<Operation>, _> = receives.collect();
        for mut receive in receives.unwrap() {
            assert!(receive.cancel());
            receive.wait().unwrap_err();
        }
    }
}

#[test]
fn operations_that_outlive_their_endpoint_have_ended_with_it() {
    let endpoint = domain(&[]).endpoint().unwrap().attach().unwrap();
    let own = endpoint.insert_peer(&endpoint.address()).unwrap();
    let sibling = endpoint.open_endpoint(EndpointOptions::default()).unwrap();
    let receive = sibling.receive(Selector::from_any(tag(1)), vec![9; 8]).unwrap();
    let options = SendOptions::at(CompletionLevel::Match);
    let unmatched = sibling.send(own, tag(2), vec![8; 8], options).unwrap();
    let unpulled = sibling.send(own, tag(3), vec![7; 1 << 20], options).unwrap();
    let sent =
        sibling.send(own, tag(4), vec![6; 8], SendOptions::at(CompletionLevel::Delivery)).unwrap();
    drop(sibling);
    assert_eq!(sent.wait().unwrap().status.length, 8);
    for (operation, byte) in [(receive, 9), (unmatched, 8), (unpulled, 7)] {
        let outcome = operation.wait().unwrap_err();
        assert!(matches!(outcome.error, Error::Cancelled), "{outcome}");
        assert_eq!(outcome.buffer.as_slice().unwrap()[0], byte, "the buffer comes back");
    }
    // What was in memory already is still received; what had to be pulled is not.
    let mut into = [0; 8];
    endpoint
        .receive_blocking(Selector::from_any(tag(2)), &mut into, ReceiveOptions::new())
        .unwrap();
    endpoint
        .receive_blocking(Selector::from_any(tag(4)), &mut into, ReceiveOptions::new())
        .unwrap();
    let error = endpoint
        .receive_blocking(Selector::from_any(tag(3)), &mut into, ReceiveOptions::new())
        .unwrap_err();
    assert!(is_gone(&error), "{error}");
}

/// RR-MATCH-3
#[test]
fn a_message_for_a_dropped_sibling_is_not_the_next_ones() {
    with_guest(
        &[],
        |endpoint, first| {
            let old = receive_address(endpoint);
            wait_for(endpoint, first);
            let new = receive_address(endpoint);
            assert_ne!(old, new);
            for length in [8, 1 << 20] {
                let bytes = pattern(1, length);
                let error = endpoint.send_blocking(
                    old,
                    tag(1),
                    &bytes,
                    SendOptions::at(CompletionLevel::Match),
                );
                let error = error.unwrap_err();
                assert!(is_gone(&error), "{error}");
            }
            endpoint.send_blocking(old, tag(1), b"without a receiver", SendOptions::new()).unwrap();
            endpoint
                .send_blocking(new, tag(1), b"for it", SendOptions::at(CompletionLevel::Match))
                .unwrap();
        },
        |first, peer| {
            let sibling = first.open_endpoint(EndpointOptions::default()).unwrap();
            send_address(&first, peer, &sibling.address());
            let before = sibling.address();
            drop(sibling);
            let next = first.open_endpoint(EndpointOptions::default()).unwrap();
            assert_ne!(next.address(), before);
            signal(&first, peer);
            send_address(&first, peer, &next.address());
            let mut into = [0; 16];
            let status = next
                .receive_blocking(Selector::from_any(tag(1)), &mut into, ReceiveOptions::new())
                .unwrap();
            assert_eq!(&into[..status.length], b"for it");
            assert_eq!(next.counters().dropped_frames, 3);
        },
    );
}
