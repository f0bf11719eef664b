//! What becomes of the message of a receive whose handle is dropped.

use std::cell::RefCell;
use std::time::Duration;

use crate::common::domain;
use ringrail::{Attached, Endpoint, Envelope, Hint, Peer, Selector, SendOptions};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::with_default;
use tracing::{Event, Metadata, Subscriber};

const TAG: Envelope = Envelope::tagged(4);
/// Longer than a busy machine takes for anything here.
const LIMIT: Duration = Duration::from_secs(60);

/// Sends to the endpoint itself or to another one. The first byte numbers the messages.
fn send<M: Attached>(from: &Endpoint<M>, to: Peer, number: u8, length: usize) {
    from.send(to, TAG, vec![number; length], SendOptions::new()).unwrap().detach();
}

/// The number of the next message.
fn receive<M: Attached>(by: &Endpoint<M>, meanwhile: &Endpoint<M>, room: usize) -> u8 {
    let mut operation = by.receive(Selector::from_any(TAG), vec![0; room]).unwrap();
    let until = std::time::Instant::now() + LIMIT;
    loop {
        meanwhile.progress().unwrap();
        if let Some(completed) = operation.test().unwrap() {
            let bytes = completed.buffer.into_vec().unwrap();
            assert!(bytes[..completed.status.length].iter().all(|&byte| byte == bytes[0]));
            return bytes[0];
        }
        assert!(std::time::Instant::now() < until, "the message is lost");
    }
}

/// Makes progress until so many messages could be received.
fn await_unexpected<M: Attached>(by: &Endpoint<M>, meanwhile: &Endpoint<M>) {
    let until = std::time::Instant::now() + LIMIT;
    while by.peek(Selector::from_any(TAG)).unwrap().is_none() {
        meanwhile.progress().unwrap();
        assert!(std::time::Instant::now() < until, "no message comes");
    }
}

fn dropped_receives<M: Attached>(sends: &Endpoint<M>, receives: &Endpoint<M>, length: usize) {
    let to = sends.insert_peer(&receives.address()).unwrap();
    receives.insert_peer(&sends.address()).unwrap();
    let any = || Selector::from_any(TAG);
    // It has not matched: the message goes to the next one.
    drop(receives.receive(any(), vec![0; length]).unwrap());
    send(sends, to, 1, length);
    assert_eq!(receive(receives, sends, length), 1);
    // It has ended, and so has the one behind it: both messages are put back in their order, before
    // those that have come since.
    let first = receives.receive(any(), vec![0; length]).unwrap();
    let second = receives.receive(any(), vec![0; length]).unwrap();
    for number in 2..5 {
        send(sends, to, number, length);
    }
    await_unexpected(receives, sends);
    let until = std::time::Instant::now() + Duration::from_millis(50);
    while std::time::Instant::now() < until {
        sends.progress().unwrap();
        receives.progress().unwrap();
    }
    drop(first);
    drop(second);
    // Again and again.
    for _ in 0..3 {
        drop(receives.receive(any(), vec![0; length]).unwrap());
    }
    assert_eq!([0; 3].map(|_| receive(receives, sends, length)), [2, 3, 4]);
    // One that waits gets what another one gives back.
    let first = receives.receive(any(), vec![0; length]).unwrap();
    send(sends, to, 5, length);
    let until = std::time::Instant::now() + Duration::from_millis(50);
    while std::time::Instant::now() < until {
        sends.progress().unwrap();
        receives.progress().unwrap();
    }
    let mut waits = receives.receive(any(), vec![0; length]).unwrap();
    drop(first);
    let got = waits.wait_timeout(LIMIT).unwrap().expect("the message is lost");
    assert_eq!(got.buffer.into_vec().unwrap(), vec![5; length]);
    // One that is detached takes its message along.
    receives.receive(any(), vec![0; length]).unwrap().detach();
    send(sends, to, 6, length);
    send(sends, to, 7, length);
    assert_eq!(receive(receives, sends, length), 7);
}

#[test]
fn the_drop_of_a_receive_loses_no_whole_message() {
    // In one piece, and pulled.
    for length in [8, 1000, 300_000] {
        let domain = domain(&[]);
        let owned = || domain.endpoint().unwrap().attach().unwrap();
        dropped_receives(&owned(), &owned(), length);
        let shared = || domain.endpoint().unwrap().share().unwrap();
        dropped_receives(&shared(), &shared(), length);
    }
}

/// What programs do with a time limit around a receive.
#[test]
fn a_receive_that_loses_a_select_leaves_its_message_to_the_next() {
    let domain = domain(&[]);
    let endpoint = domain.endpoint().unwrap().share().unwrap();
    let own = endpoint.insert_peer(&endpoint.address()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        for number in 0..20 {
            let receive = endpoint.receive(Selector::from_any(TAG), vec![0; 8]).unwrap();
            let late = tokio::time::timeout(Duration::from_millis(1), receive).await;
            assert!(late.is_err(), "nothing was sent");
            send(&endpoint, own, number, 8);
            let receive = endpoint.receive(Selector::from_any(TAG), vec![0; 8]).unwrap();
            let got = tokio::time::timeout(LIMIT, receive).await.expect("the message is lost");
            assert_eq!(got.unwrap().buffer.into_vec().unwrap(), vec![number; 8]);
        }
    });
}

#[test]
fn a_message_is_put_back_for_an_endpoint_that_is_open() {
    let domain = domain(&[]);
    let endpoint = domain.endpoint().unwrap().attach().unwrap();
    let own = endpoint.insert_peer(&endpoint.address()).unwrap();
    let kept = endpoint.receive(Selector::from_any(TAG), vec![0; 8]).unwrap();
    send(&endpoint, own, 1, 8);
    endpoint.progress().unwrap();
    drop(endpoint);
    drop(kept);
    let endpoint = domain.endpoint().unwrap().attach().unwrap();
    let none = endpoint.receive_blocking(
        Selector::from_any(TAG),
        &mut [0; 8],
        ringrail::ReceiveOptions::new().timeout(Duration::from_millis(1)),
    );
    assert!(matches!(none, Err(error) if error.kind() == ringrail::ErrorKind::TimedOut));
}

thread_local! {
    /// What the next line of the log drops.
    static DROPS: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
}

/// A subscriber of the log that drops something. The engine is at work meanwhile.
struct Dropping;

impl Subscriber for Dropping {
    fn enabled(&self, _metadata: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _attributes: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn event(&self, _event: &Event<'_>) {
        if let Some(drops) = DROPS.take() {
            drops();
        }
    }

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}

fn drop_inside<M: Attached + 'static>(endpoint: &Endpoint<M>) {
    let own = endpoint.insert_peer(&endpoint.address()).unwrap();
    let any = || Selector::from_any(TAG);
    let ended = endpoint.receive(any(), vec![0; 8]).unwrap();
    send(endpoint, own, 1, 8);
    send(endpoint, own, 2, 8);
    await_unexpected(endpoint, endpoint);
    let waits = endpoint.receive(Selector::from_any(Envelope::tagged(9)), vec![0; 8]).unwrap();
    DROPS.set(Some(Box::new(move || drop((ended, waits)))));
    with_default(Dropping, || {
        let hinted = SendOptions::new().hint(Hint::Latency);
        endpoint.send(own, Envelope::tagged(8), vec![0; 8], hinted).unwrap().detach();
    });
    assert!(DROPS.take().is_none(), "no line of the log");
    assert_eq!([0; 2].map(|_| receive(endpoint, endpoint, 8)), [1, 2]);
    // The other one is cancelled, and takes no message.
    endpoint.send(own, Envelope::tagged(9), vec![3; 8], SendOptions::new()).unwrap().detach();
    let operation = endpoint.receive(Selector::from_any(Envelope::tagged(9)), vec![0; 8]).unwrap();
    assert_eq!(operation.wait().unwrap().buffer.into_vec().unwrap(), vec![3; 8]);
}

/// A subscriber of the log runs inside of the engine, and may drop what it likes.
#[test]
fn a_receive_that_is_dropped_inside_of_its_engine_leaves_its_message_to_the_next() {
    for control_lane in ["udp", "tcp"] {
        let domain = domain(&[("control_lane", control_lane)]);
        drop_inside(&domain.endpoint().unwrap().attach().unwrap());
        drop_inside(&domain.endpoint().unwrap().share().unwrap());
    }
}
