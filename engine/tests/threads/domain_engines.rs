//! A thread that waits for one shared engine helps the others of its domain.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::domain;
use ringrail::{
    CompletionLevel, Endpoint, Envelope, ReceiveOptions, Selector, SendOptions, Shared,
};

const TAG: Envelope = Envelope::tagged(1);
const LIMIT: Duration = Duration::from_secs(20);
const MESSAGES: usize = 200;

/// Sends messages one by one to an endpoint whose owner computes; each is acknowledged.
fn send_to(endpoint: &Endpoint<Shared>) {
    let quiet = ReceiveOptions::new().silent(true);
    for _ in 0..MESSAGES {
        endpoint.post_receive(Selector::from_any(TAG), vec![0; 8], quiet).unwrap();
    }
    let address = endpoint.address();
    thread::spawn(move || {
        let sender = domain(&[]).endpoint().unwrap().attach().unwrap();
        let peer = sender.insert_peer(&address).unwrap();
        let options = SendOptions::at(CompletionLevel::Delivery).timeout(LIMIT);
        for _ in 0..MESSAGES {
            sender.send_blocking(peer, TAG, &[7; 8], options).unwrap();
        }
    })
    .join()
    .unwrap();
}

#[test]
fn a_waiter_of_one_engine_makes_the_progress_of_its_domain() {
    let own = domain(&[("spin", "5s")]);
    let share = || own.endpoint().unwrap().share().unwrap();
    let (waited_for, left_alone) = (share(), share());
    // Without a waiter: the caretaker alone.
    send_to(&left_alone);
    assert_eq!(left_alone.sharing().helped, 0);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let begin = Instant::now();
            while !is_over.load(Ordering::Relaxed) && begin.elapsed() < LIMIT {
                let timeout = Some(Duration::from_millis(20));
                waited_for.wait(&mut Vec::new(), 1, timeout).unwrap();
            }
        });
        send_to(&left_alone);
        // Engines that come and go meanwhile.
        for _ in 0..20 {
            drop(share());
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(left_alone.sharing().helped > 0, "{:?}", left_alone.sharing());
    assert_eq!(waited_for.sharing().helped, 0);
}

#[test]
fn engines_of_other_domains_are_not_helped() {
    let share = || domain(&[("spin", "5s")]).endpoint().unwrap().share().unwrap();
    let (waited_for, of_other_domain) = (share(), share());
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let timeout = Some(Duration::from_millis(20));
                waited_for.wait(&mut Vec::new(), 1, timeout).unwrap();
            }
        });
        send_to(&of_other_domain);
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(of_other_domain.sharing().helped, 0);
}
