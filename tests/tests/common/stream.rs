//! Messages of mixed sizes, both ways at once, whose numbers are looked at as they come.
//!
//! Each side sends one numbered stream of one tag. Receives of a stream match in the order in
//! which they were posted, so that the receive of number *n* holds message *n* if and only if each
//! message before it came once and in its turn. The last message of a stream is a short one that
//! comes after all counted ones: a late double of theirs would take its place.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ringrail::{
    Buffer, Completion, CompletionLevel, Endpoint, Envelope, OperationKind, Owned, Peer,
    ReceiveOptions, Selector, SendOptions,
};

/// The shortest one has room for its number.
const SHORTEST: usize = 8;
/// The longest one that goes by datagrams, in several.
const LONGEST_EAGER: usize = 8200;
/// Longer than the setting `eager_limit_bytes`: its content goes by a bulk lane.
const RENDEZVOUS: usize = 40_000;
/// Of so many messages one is a rendezvous.
const RENDEZVOUS_EVERY: u64 = 64;
/// Sends under way, and as many receives.
const WINDOW: u64 = 64;
/// Completions taken at once.
const BATCH: usize = 256;
/// A stream that does not move for so long has lost something for good.
const STALLED: Duration = Duration::from_secs(60);

/// One side of the exchange.
pub(crate) struct Side<'a> {
    pub(crate) endpoint: &'a Endpoint<Owned>,
    pub(crate) peer: Peer,
    /// 0 or 1: the streams of both sides differ.
    pub(crate) index: u8,
    /// Messages that each side sends.
    pub(crate) messages: u64,
    /// Sides that have everything; both stay until it is two.
    pub(crate) done: &'a AtomicUsize,
}

/// What came.
#[derive(Clone, Copy, Debug)]
#[allow(dead_code, reason = "not every test asks")]
pub(crate) struct Arrived {
    /// Bytes of messages.
    pub(crate) bytes: u64,
    /// From the first post to the last completion of either side.
    pub(crate) took: Duration,
}

/// Bytes that look alike nowhere, of which each message is a part.
struct Pattern(Vec<u8>);

impl Pattern {
    fn new() -> Self {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let bytes = (0..2 * RENDEZVOUS).map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        });
        Self(bytes.collect())
    }

    /// What follows the number in a message.
    fn rest(&self, stream: u8, number: u64, length: usize) -> &[u8] {
        let from = (mixed(number, 1) ^ u64::from(stream)) as usize % RENDEZVOUS;
        &self.0[from..from + length - SHORTEST]
    }

    fn message(&self, stream: u8, number: u64, length: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(length);
        bytes.extend_from_slice(&number.to_le_bytes());
        bytes.extend_from_slice(self.rest(stream, number, length));
        bytes
    }

    #[track_caller]
    fn check(&self, stream: u8, number: u64, message: &[u8]) {
        let named = message.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        assert_eq!(named, Some(number), "the message that came instead");
        assert_eq!(message.len(), length(number), "length of message {number}");
        let is_intact = message[SHORTEST..] == *self.rest(stream, number, message.len());
        assert!(is_intact, "message {number} of {} bytes is not as it was sent", message.len());
    }
}

/// A number that tells little of `number` (splitmix64).
fn mixed(number: u64, salt: u64) -> u64 {
    let mut bits = number.wrapping_add(salt).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// Length of a message: as many between 8 and 16 bytes as between 4096 and 8192.
fn length(number: u64) -> usize {
    let bits = mixed(number, 0);
    if bits.is_multiple_of(RENDEZVOUS_EVERY) {
        return RENDEZVOUS;
    }
    let floor = SHORTEST << ((bits >> 8) % 10);
    (floor + (bits >> 16) as usize % (floor + SHORTEST)).min(LONGEST_EAGER)
}

fn label(stream: u8) -> Envelope {
    Envelope::tagged(u64::from(stream))
}

/// Sends and receives everything; `seen` hears how many messages have come, now and then.
///
/// # Panics
///
/// When a message does not come, comes twice, out of its turn, or not as it was sent.
pub(crate) fn exchange(side: &Side<'_>, mut seen: impl FnMut(u64)) -> Arrived {
    let pattern = Pattern::new();
    let &Side { endpoint, peer, index, messages, done } = side;
    // One more than is counted: the mark at the end.
    let (total, from) = (messages + 1, Selector::from_peer(peer, label(1 - index)));
    let (mut sent, mut asked, mut send_ends, mut came, mut bytes) = (0, 0, 0, 0, 0);
    let mut room: Vec<Buffer> = (0..WINDOW).map(|_| vec![0; RENDEZVOUS].into()).collect();
    let mut completions: Vec<Completion> = Vec::new();
    let (start, mut moved_at) = (Instant::now(), Instant::now());
    while send_ends < total || came < total {
        while asked < total
            && let Some(buffer) = room.pop()
        {
            endpoint.post_receive(from, buffer, ReceiveOptions::new().user_data(asked)).unwrap();
            asked += 1;
        }
        while sent < total && sent - send_ends < WINDOW {
            let length = if sent == messages { SHORTEST } else { length(sent) };
            let message = pattern.message(index, sent, length);
            let options = SendOptions::at(CompletionLevel::Inject);
            if endpoint.post_send(peer, label(index), message, options.user_data(sent)).is_err() {
                break;
            }
            sent += 1;
        }
        let got = endpoint.wait(&mut completions, BATCH, Some(Duration::from_secs(1))).unwrap();
        if got > 0 {
            moved_at = Instant::now();
        }
        let counted = (send_ends, came, sent);
        assert!(moved_at.elapsed() < STALLED, "no end within {STALLED:?}: {counted:?} of {total}");
        for completion in completions.drain(..) {
            let status = completion.result.unwrap();
            if completion.kind == OperationKind::Send {
                send_ends += 1;
                continue;
            }
            let Some(Buffer::Heap(message)) = completion.buffer else { panic!("no buffer") };
            let (number, arrived) = (completion.user_data, &message[..status.length]);
            if number == messages {
                assert_eq!(arrived, messages.to_le_bytes(), "a message came twice");
            } else {
                pattern.check(1 - index, number, arrived);
                bytes += arrived.len() as u64;
            }
            came += 1;
            if came.is_multiple_of(4096) {
                seen(came);
            }
            room.push(message.into());
        }
    }
    seen(messages);
    done.fetch_add(1, Ordering::SeqCst);
    while done.load(Ordering::SeqCst) < 2 {
        endpoint.progress().unwrap();
        assert!(moved_at.elapsed() < STALLED, "the other side has not got everything");
    }
    Arrived { bytes, took: start.elapsed() }
}
