//! Once warm, no message allocates: neither small ones nor long ones.

use std::time::{Duration, Instant};

use crate::counting::allocations;
use ringrail::settings::Settings;
use ringrail::{
    Buffer, Completion, Domain, Endpoint, Envelope, Hint, JobSecret, OperationKind, Owned, Peer,
    ReceiveOptions, Selector, SendOptions,
};

/// Times that messages may allocate in a row: what a message needs it needs each time.
const TRIES: usize = 4;
/// How long two engines may take until they read each other's memory.
const AGREED: Duration = Duration::from_secs(30);

/// Two engines on this thread, so that every allocation is counted.
struct Two {
    left: Endpoint<Owned>,
    right: Endpoint<Owned>,
    to_right: Peer,
    from_left: Peer,
    done: Vec<Completion>,
}

impl Two {
    fn new(memory: &str) -> Self {
        let mut builder = Settings::isolated().set("listen_address", "127.0.0.1");
        builder = builder.set("shared_memory", memory);
        builder = builder.job_secret(Some(&JobSecret::random()));
        if let Ok(lanes) = std::env::var("TEST_OF_RINGRAIL_LANES") {
            builder = builder.set("lanes", &lanes);
        }
        if let Ok(lane) = std::env::var("TEST_OF_RINGRAIL_CONTROL_LANE") {
            builder = builder.set("control_lane", &lane);
        }
        let domain = Domain::with_settings(builder.build().unwrap()).unwrap();
        let left = domain.endpoint().unwrap().attach().unwrap();
        let right = domain.endpoint().unwrap().attach().unwrap();
        let to_right = left.insert_peer(&right.address()).unwrap();
        let from_left = right.insert_peer(&left.address()).unwrap();
        Self { left, right, to_right, from_left, done: Vec::with_capacity(64) }
    }

    /// Sends `count` messages in turn; the buffers come back and are returned.
    fn exchange(
        &mut self,
        (mut send, mut receive): (Buffer, Buffer),
        hint: Hint,
        count: u64,
    ) -> (Buffer, Buffer) {
        for number in 0..count {
            let envelope = Envelope::tagged(number % 5);
            let selector = Selector::from_peer(self.from_left, envelope);
            self.right
                .post_receive(selector, receive, ReceiveOptions::new().user_data(number))
                .unwrap();
            let options = SendOptions::default().hint(hint);
            self.left.post_send(self.to_right, envelope, send, options.user_data(number)).unwrap();
            let (mut sent, mut received) = (None, None);
            while sent.is_none() || received.is_none() {
                self.left.completions(&mut self.done, 8).unwrap();
                self.right.completions(&mut self.done, 8).unwrap();
                for completion in self.done.drain(..) {
                    assert_eq!(completion.user_data, number);
                    completion.result.unwrap();
                    match completion.kind {
                        OperationKind::Send => sent = completion.buffer,
                        OperationKind::Receive | OperationKind::MultiReceive => {
                            received = completion.buffer;
                        }
                        other => panic!("{other:?} is no message"),
                    }
                }
            }
            (send, receive) = (sent.unwrap(), received.unwrap());
        }
        (send, receive)
    }

    /// Local peers agree on how they reach each other's memory beside their first messages.
    fn exchange_until_kernel_copies(&mut self, mut buffers: (Buffer, Buffer)) -> (Buffer, Buffer) {
        let start = Instant::now();
        loop {
            let before = self.left.counters().copied_bytes;
            buffers = self.exchange(buffers, Hint::None, 10);
            if self.left.counters().copied_bytes == before {
                return buffers;
            }
            assert!(start.elapsed() < AGREED, "no memory of the local peer is read");
        }
    }
}

#[test]
fn warm_messages_do_not_allocate() {
    exchange_all("off");
    // Local peers discover each other by datagrams.
    if std::env::var("TEST_OF_RINGRAIL_CONTROL_LANE").as_deref() != Ok("tcp") {
        exchange_all("auto");
    }
}

/// `memory`: the setting `shared_memory`.
fn exchange_all(memory: &str) {
    let mut two = Two::new(memory);
    // By shared memory 20 000 bytes go in pieces, 40 000 either way, and 2 MiB are read.
    let (middle, lengths) = match memory {
        "auto" => (2 << 20, &[8, 20_000, 40_000, 2 << 20][..]),
        _ => (16_000, &[8, 16_000, 1 << 20][..]),
    };
    for &length in lengths {
        let region = two.left.domain().allocate(length).unwrap();
        let mut buffers = (Buffer::from(region), Buffer::from(vec![0u8; length]));
        if memory == "auto" && length == middle {
            buffers = two.exchange_until_kernel_copies(buffers);
        }
        for hint in [Hint::None, Hint::Latency, Hint::Priority, Hint::Bulk] {
            let count = if hint == Hint::None { 500 } else { 100 };
            buffers = two.exchange(buffers, hint, count);
            let mut least = u64::MAX;
            let mut copied = 0;
            // If a process is away for long, as on a busy machine, others send again what seems to
            // be lost, now and then with more than there ever was under way.
            for _ in 0..TRIES {
                let before = allocations();
                copied = two.left.counters().copied_bytes;
                buffers = two.exchange(buffers, hint, count);
                least = least.min(allocations() - before);
                if least == 0 {
                    break;
                }
            }
            let what = format!("{count} messages of {length} bytes ({hint}, memory {memory})");
            assert_eq!(least, 0, "allocations in {what}");
            let copied = two.left.counters().copied_bytes - copied;
            let eager_bytes = if hint == Hint::Bulk { 1024 } else { 16_384 };
            let expected = if length <= eager_bytes { count * length as u64 } else { 0 };
            if memory == "off" {
                assert_eq!(copied, expected, "bytes copied for {what}");
            } else if length >= middle {
                assert_eq!(copied, 0, "bytes copied for {what}: the kernel does that");
            }
        }
    }
}
