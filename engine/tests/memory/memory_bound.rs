//! What peers send without being asked takes no more memory than the settings say.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{domain, pattern};
use crate::counting::live_bytes;
use ringrail::{Endpoint, Envelope, Owned, ReceiveOptions, Selector, SendOptions};

const UNEXPECTED_BYTES: u64 = 1 << 20;
const UNEXPECTED_MESSAGES: u64 = 2000;
const SENDERS: usize = 6;
const MESSAGES: u64 = 1500;
/// Longer than a busy machine takes for anything here.
const LIMIT: Duration = Duration::from_secs(60);

const SETTINGS: [(&str, &str); 6] = [
    ("close_linger", "50ms"),
    ("unexpected_bytes", "1048576"),
    ("unexpected_messages", "2000"),
    ("eager_credit_bytes", "262144"),
    ("envelope_credits", "400"),
    ("send_queue_ops", "100"),
];

/// Lengths on both sides of the eager limit, and empty messages.
fn length_of(number: u64) -> usize {
    [0, 8, 700, 5000, 16_384, 40_000][number as usize % 6]
}

/// Sends everything, waiting where the engine refuses; returns how often it did.
fn flood(endpoint: &Endpoint<Owned>, target: &ringrail::Address, rank: u64) -> u64 {
    let peer = endpoint.insert_peer(target).unwrap();
    let (mut refusals, mut done) = (0, Vec::new());
    let (mut number, mut over) = (0, 0);
    while over < MESSAGES {
        if number < MESSAGES {
            let bytes = pattern(rank * MESSAGES + number, length_of(number));
            let options = SendOptions::default();
            match endpoint.post_send(peer, Envelope::tagged(rank), bytes, options.user_data(number))
            {
                Ok(_) => number += 1,
                Err(rejected) => {
                    assert!(rejected.error.is_would_block(), "{}", rejected.error);
                    refusals += 1;
                }
            }
        }
        let patience = Some(Duration::from_millis(1));
        over += endpoint.wait(&mut done, 100, patience).unwrap() as u64;
        for completion in done.drain(..) {
            completion.result.unwrap();
        }
    }
    refusals
}

/// RR-CREDIT-4
#[test]
fn floods_of_many_peers_stay_within_the_bound_and_arrive_whole() {
    static REFUSED: AtomicUsize = AtomicUsize::new(0);
    let domain = domain(&SETTINGS);
    let receiver = domain.endpoint().unwrap();
    let target = receiver.address();
    let threads: Vec<_> = (0..SENDERS as u64)
        .map(|rank| {
            let sender = domain.endpoint().unwrap();
            thread::spawn(move || {
                let endpoint = sender.attach().unwrap();
                if flood(&endpoint, &target, rank) > 0 {
                    REFUSED.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let endpoint = receiver.attach().unwrap();
    let before = live_bytes();
    // Nothing is received until every sender had to wait, or has nothing left to send.
    let mut quiet = 0;
    let mut last = 0;
    while quiet < 20 {
        endpoint.wait(&mut Vec::new(), 1, Some(Duration::from_millis(10))).unwrap();
        let now = endpoint.counters().unexpected_messages;
        quiet = if now == last && now > 0 { quiet + 1 } else { 0 };
        last = now;
    }
    let counters = endpoint.counters();
    let grown = live_bytes() - before;
    // A session may always have 16 envelopes; a payload takes less than twice its length.
    let messages_max = UNEXPECTED_MESSAGES + 16 * SENDERS as u64;
    assert!(counters.unexpected_messages <= messages_max, "{counters:?}");
    assert!(counters.unexpected_bytes_max <= 2 * UNEXPECTED_BYTES, "{counters:?}");
    // Envelopes and hash bins, staging for answers: well below a kilobyte per message.
    let bound = 2 * UNEXPECTED_BYTES + 1024 * messages_max + (SENDERS as u64 * (64 << 10));
    assert!(grown <= bound as i64, "{grown} bytes of {bound}, {counters:?}");
    assert!(counters.unexpected_messages >= 16 * SENDERS as u64, "{counters:?}");
    for number in 0..MESSAGES {
        for rank in 0..SENDERS as u64 {
            let mut into = vec![0; length_of(number)];
            let selector = Selector::from_any(Envelope::tagged(rank));
            let status =
                endpoint.receive_blocking(selector, &mut into, ReceiveOptions::new()).unwrap();
            assert_eq!(status.length, into.len());
            assert!(into == pattern(rank * MESSAGES + number, into.len()), "{rank}: {number}");
        }
    }
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(REFUSED.load(Ordering::Relaxed), SENDERS, "senders beyond a bound are refused");
}

#[test]
fn peers_that_come_flood_and_go_do_not_add_up() {
    let domain = domain(&SETTINGS);
    let endpoint = domain.endpoint().unwrap().attach().unwrap();
    let target = endpoint.address();
    let mut injected = 0;
    for rank in 0..40 {
        let sender = domain.endpoint().unwrap();
        let thread = thread::spawn(move || {
            let endpoint = sender.attach().unwrap();
            let peer = endpoint.insert_peer(&target).unwrap();
            endpoint.connect(peer, None).unwrap();
            // As much as goes out at once; then it leaves.
            let mut sent = 0u64;
            while sent < 400
                && endpoint
                    .inject(peer, Envelope::tagged(rank), &pattern(rank, 4096), SendOptions::new())
                    .is_ok()
            {
                sent += 1;
            }
            sent
        });
        while !thread.is_finished() {
            endpoint.wait(&mut Vec::new(), 1, Some(Duration::from_millis(1))).unwrap();
        }
        injected += thread.join().unwrap();
    }
    let held = endpoint.counters();
    assert!(held.unexpected_bytes_max <= 2 * UNEXPECTED_BYTES, "{held:?}");
    // What arrived is there, and with that received there is room for others again.
    let mut received = 0;
    let everything = Selector::from_any(Envelope::tagged(0)).ignoring(u64::MAX);
    while endpoint.peek(everything).unwrap().is_some() {
        let mut into = vec![0; 4096];
        let status =
            endpoint.receive_blocking(everything, &mut into, ReceiveOptions::new()).unwrap();
        assert!(into == pattern(status.envelope.tag(), 4096));
        received += 1;
    }
    // Those who found no window any more kept their messages and took them along.
    assert!(received <= injected, "{received} of {injected}");
    assert!(received * 4096 > UNEXPECTED_BYTES / 2, "{received} messages are no flood");
    // The session of the last one may be about to end.
    let window = UNEXPECTED_BYTES / 8 / 4096;
    let until = Instant::now() + LIMIT;
    loop {
        let sender = domain.endpoint().unwrap();
        let thread = thread::spawn(move || {
            let endpoint = sender.attach().unwrap();
            let peer = endpoint.insert_peer(&target).unwrap();
            endpoint.connect(peer, None).unwrap();
            let (tag, mut sent) = (Envelope::tagged(99), 0);
            while sent < 400 && endpoint.inject(peer, tag, &[1; 4096], SendOptions::new()).is_ok() {
                sent += 1;
            }
            sent
        });
        while !thread.is_finished() {
            endpoint.wait(&mut Vec::new(), 1, Some(Duration::from_millis(1))).unwrap();
        }
        let sent = thread.join().unwrap();
        if sent >= window {
            break;
        }
        let is_late = Instant::now() > until;
        assert!(!is_late, "{sent} of {window}: the windows of peers that left are free again");
        while endpoint.peek(everything).unwrap().is_some() {
            let mut into = vec![0; 4096];
            endpoint.receive_blocking(everything, &mut into, ReceiveOptions::new()).unwrap();
        }
    }
}
