//! What a message takes that waits for its receive.

use std::time::Duration;

use crate::common::{domain, own_process};
use crate::counting::live_bytes;
use ringrail::{Envelope, SendOptions};

/// A power of two: tables that double have no room to spare.
const MESSAGES: u64 = 1 << 18;
/// Bytes per message.
const BOUND: i64 = 128;
/// Of the engine beside that: hash bins, buffers of lanes.
const OTHERS: i64 = 4 << 20;

/// RR-CREDIT-5
#[test]
fn an_unexpected_header_takes_at_most_128_bytes() {
    own_process::run("unexpected_headers::an_unexpected_header_takes_at_most_128_bytes", || {
        let [sends, receives] = [(); 2].map(|()| domain(&[]).endpoint().unwrap().attach().unwrap());
        let to = sends.insert_peer(&receives.address()).unwrap();
        // Injects: the sender keeps nothing of them.
        let send = |number: u64| {
            let (tag, bytes) = (Envelope::tagged(number), number.to_le_bytes());
            while let Err(error) = sends.inject(to, tag, &bytes, SendOptions::default()) {
                assert!(error.is_would_block(), "{error}");
                sends.progress().unwrap();
                receives.progress().unwrap();
            }
        };
        let wait_for = |count: u64| {
            while receives.counters().unexpected_messages < count {
                sends.progress().unwrap();
                receives.wait(&mut Vec::new(), 1, Some(Duration::ZERO)).unwrap();
            }
        };
        send(0);
        wait_for(1);
        let before = live_bytes();
        for number in 1..MESSAGES {
            send(number);
        }
        wait_for(MESSAGES);
        let grown = live_bytes() - before;
        let bound = BOUND * MESSAGES as i64 + OTHERS;
        assert!(grown <= bound, "{grown} bytes, {} per message", grown / MESSAGES as i64);
    });
}
