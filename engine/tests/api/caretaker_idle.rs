//! What the caretaker costs while there is nothing to do: no time and no wake-up. In a
//! process of its own, for a process has one caretaker.

use std::fs;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{domain, own_process, pair};
use ringrail::{Endpoint, Envelope, Owned, Peer, ReceiveOptions, Selector, SendOptions};

const TAG: Envelope = Envelope::tagged(1);

/// How often the caretaker's thread slept so far; `None`: there is none.
fn sleeps() -> Option<u64> {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let is_caretaker = |path: &std::path::Path| {
        fs::read_to_string(path.join("comm")).is_ok_and(|name| name.trim() == "ringrail-care")
    };
    let task = tasks.map(|task| task.unwrap().path()).find(|task| is_caretaker(task))?;
    let status = fs::read_to_string(task.join("status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    Some(line.unwrap().trim().parse().unwrap())
}

/// Waits until the caretaker rests for `rest`, for as long as a busy machine may need.
fn assert_rests(rest: Duration) {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let before = sleeps().expect("engines with datagrams have a caretaker");
        thread::sleep(rest);
        let after = sleeps().expect("as before");
        if after == before {
            return;
        }
        assert!(Instant::now() < deadline, "woke {} times in {rest:?}", after - before);
    }
}

fn exchange(endpoint: &Endpoint<Owned>, peer: Peer, rounds: u32, leads: bool) {
    let mut into = [0; 8];
    for _ in 0..rounds {
        if leads {
            endpoint.send_blocking(peer, TAG, &[1; 8], SendOptions::new()).unwrap();
        }
        endpoint
            .receive_blocking(Selector::from_peer(peer, TAG), &mut into, ReceiveOptions::new())
            .unwrap();
        if !leads {
            endpoint.send_blocking(peer, TAG, &[1; 8], SendOptions::new()).unwrap();
        }
    }
}

#[test]
fn it_rests_while_owners_are_silent_or_wait() {
    own_process::run("caretaker_idle::it_rests_while_owners_are_silent_or_wait", watch_it_rest);
}

fn watch_it_rest() {
    let tcp = domain(&[("control_lane", "tcp")]).endpoint().unwrap().attach().unwrap();
    // It answers who connects. The thread names itself when it begins.
    let deadline = Instant::now() + Duration::from_secs(30);
    while sleeps().is_none() {
        assert!(Instant::now() < deadline, "an engine without datagrams has no caretaker");
        thread::sleep(Duration::from_millis(1));
    }
    assert_rests(Duration::from_secs(2));
    drop(tcp);
    let (silent, is_silent) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel();
    pair(
        &[("control_lane", "udp")],
        move |endpoint, peer| {
            exchange(endpoint, peer, 1000, true);
            is_silent.recv().unwrap();
            // Both are silent.
            assert_rests(Duration::from_secs(2));
            // One is, the other one waits for a message.
            go_on.send(()).unwrap();
            assert_rests(Duration::from_secs(2));
            exchange(endpoint, peer, 1000, true);
        },
        move |endpoint, peer| {
            exchange(endpoint, peer, 1000, false);
            silent.send(()).unwrap();
            may_go_on.recv().unwrap();
            exchange(endpoint, peer, 1000, false);
        },
    );
    assert_eq!(sleeps(), None, "the thread ends with the last engine");
}
