//! Messages that wait for their receives: a program may receive a later one first, however many
//! have come before it.

use std::thread;
use std::time::Duration;

use crate::common::domain;
use ringrail::{Endpoint, Envelope, ReceiveOptions, Selector, SendOptions, Shared};

const EARLIER: Envelope = Envelope::tagged(1);
const LATER: Envelope = Envelope::tagged(2);
const MESSAGES: u64 = 5000;
/// Longer than a busy machine takes for anything here.
const LIMIT: Duration = Duration::from_secs(60);

fn endpoint(settings: &[(&str, &str)]) -> Endpoint<Shared> {
    domain(settings).endpoint().unwrap().share().unwrap()
}

fn receive_a_later_one_first(settings: &[(&str, &str)], length: usize) {
    let [sends, receives] = [endpoint(settings), endpoint(settings)];
    let to = sends.insert_peer(&receives.address()).unwrap();
    let sender = thread::spawn(move || {
        let message = |number: u64| {
            let mut bytes = vec![0; length];
            bytes[..8].copy_from_slice(&number.to_le_bytes());
            bytes
        };
        let earlier = (0..MESSAGES)
            .map(|number| sends.send(to, EARLIER, message(number), SendOptions::new()).unwrap());
        let mut posted: Vec<_> = earlier.collect();
        posted.push(sends.send(to, LATER, message(MESSAGES), SendOptions::new()).unwrap());
        for mut operation in posted {
            assert!(operation.wait_timeout(LIMIT).unwrap().is_some(), "a send does not end");
        }
    });
    let options = || ReceiveOptions::new().timeout(LIMIT);
    let mut into = vec![0; length];
    let numbers = std::iter::once((LATER, MESSAGES)).chain((0..MESSAGES).map(|it| (EARLIER, it)));
    for (tag, number) in numbers {
        receives.receive_blocking(Selector::from_any(tag), &mut into, options()).unwrap();
        assert_eq!(into[..8], number.to_le_bytes(), "{settings:?}");
    }
    sender.join().unwrap();
}

/// RR-CREDIT-5
#[test]
fn a_receive_of_a_later_message_is_served_whatever_waits_before_it() {
    let few = ("envelope_credits", "16");
    for carrier in [("control_lane", "tcp"), ("control_lane", "udp"), ("shared_memory", "auto")] {
        receive_a_later_one_first(&[few, carrier], 8);
    }
}

/// Their bytes stay with the sender beyond the credit of bytes.
///
/// RR-CREDIT-5
#[test]
fn a_receive_of_a_later_message_is_served_whatever_bytes_wait_before_it() {
    let few =
        [("eager_credit_bytes", "16K"), ("unexpected_bytes", "64K"), ("envelope_credits", "16")];
    for carrier in [("control_lane", "tcp"), ("control_lane", "udp"), ("shared_memory", "auto")] {
        let settings: Vec<_> = few.into_iter().chain([carrier]).collect();
        receive_a_later_one_first(&settings, 1000);
    }
}
