//! What a send reported complete arrives although its owner makes no call and datagrams are lost;
//! and the caretaker, who sees to that, costs nothing while there is nothing to do.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::pair;
use ringrail::{
    CompletionLevel, Endpoint, Envelope, Error, Owned, Peer, ReceiveOptions, Selector, SendOptions,
};

const TAG: Envelope = Envelope::tagged(1);
const ANSWER: Envelope = Envelope::tagged(2);
/// Messages that are sent before the owner falls silent.
const MESSAGES: u64 = 2000;
/// For how long it is silent, and how soon everything has arrived on a machine that is busy.
const SILENCE: Duration = Duration::from_secs(6);
const SOON: Duration = Duration::from_secs(4);

/// What the owner does instead of making calls.
#[derive(Clone, Copy)]
enum Away {
    Computing,
    Sleeping,
}

impl Away {
    fn be(self, until: Instant) {
        match self {
            Self::Computing => {
                while Instant::now() < until {
                    std::hint::spin_loop();
                }
            }
            Self::Sleeping => thread::sleep(until.saturating_duration_since(Instant::now())),
        }
    }
}

fn inject(endpoint: &Endpoint<Owned>, peer: Peer, envelope: Envelope, value: u64) {
    loop {
        match endpoint.inject(peer, envelope, &value.to_le_bytes(), SendOptions::new()) {
            Ok(()) => return,
            Err(Error::WouldBlock(_)) => drop(endpoint.progress().unwrap()),
            Err(error) => panic!("{error}"),
        }
    }
}

fn receive(endpoint: &Endpoint<Owned>, peer: Peer, envelope: Envelope) -> u64 {
    let mut bytes = [0; 8];
    endpoint
        .receive_blocking(Selector::from_peer(peer, envelope), &mut bytes, ReceiveOptions::new())
        .unwrap();
    u64::from_le_bytes(bytes)
}

/// Exchanges messages until those of both sides go by datagrams.
fn warm_up(endpoint: &Endpoint<Owned>, peer: Peer, leads: bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    let is_warm = || endpoint.counters().segments_by_datagram > 50;
    loop {
        assert!(Instant::now() < deadline, "{:?}", endpoint.counters());
        let (mine, theirs);
        if leads {
            mine = is_warm();
            inject(endpoint, peer, ANSWER, mine.into());
            theirs = receive(endpoint, peer, ANSWER) == 1;
        } else {
            theirs = receive(endpoint, peer, ANSWER) == 1;
            mine = is_warm();
            inject(endpoint, peer, ANSWER, mine.into());
        }
        if mine && theirs {
            return;
        }
    }
}

fn completed_is_delivered(lanes: &str, lose: &str, away: Away) {
    let (arrived, arrival) = mpsc::channel();
    let settings = [("lanes", lanes), ("control_lane", "udp"), ("inject_faults", lose)];
    pair(
        &settings,
        move |endpoint, peer| {
            warm_up(endpoint, peer, true);
            for value in 0..MESSAGES {
                inject(endpoint, peer, TAG, value);
            }
            let silent_since = Instant::now();
            away.be(silent_since + SILENCE);
            // No call before this line.
            let arrived_at: Instant = arrival.try_recv().expect("all arrived in the silence");
            let took = arrived_at.saturating_duration_since(silent_since);
            assert!(took < SOON, "{took:?} after the last call");
            assert_eq!(receive(endpoint, peer, ANSWER), 7);
        },
        move |endpoint, peer| {
            warm_up(endpoint, peer, false);
            for value in 0..MESSAGES {
                assert_eq!(receive(endpoint, peer, TAG), value);
            }
            arrived.send(Instant::now()).unwrap();
            inject(endpoint, peer, ANSWER, 7);
        },
    );
}

#[test]
fn completed_is_delivered_while_the_owner_computes_uring() {
    completed_is_delivered("auto", "seed=1 lose=0.1", Away::Computing);
}

#[test]
fn completed_is_delivered_while_the_owner_sleeps_uring() {
    completed_is_delivered("auto", "seed=2 lose=0.3", Away::Sleeping);
}

#[test]
fn completed_is_delivered_while_the_owner_computes_sockets() {
    completed_is_delivered("sockets", "seed=3 lose=0.3", Away::Computing);
}

#[test]
fn completed_is_delivered_while_the_owner_sleeps_sockets() {
    completed_is_delivered("sockets", "seed=4 lose=0.1", Away::Sleeping);
}

/// The receiver is silent: what is sent to it is acknowledged all the same, and is there when it
/// comes back.
fn silence_acknowledges(lanes: &str) {
    let settings = [("lanes", lanes), ("control_lane", "udp")];
    let (sent, all_sent) = mpsc::channel();
    pair(
        &settings,
        move |endpoint, peer| {
            warm_up(endpoint, peer, true);
            for value in 0..MESSAGES {
                inject(endpoint, peer, TAG, value);
            }
            // The engine closes when everything is acknowledged.
            sent.send(()).unwrap();
        },
        move |endpoint, peer| {
            warm_up(endpoint, peer, false);
            let before = endpoint.counters();
            all_sent.recv().unwrap();
            thread::sleep(Duration::from_secs(1));
            let after = endpoint.counters();
            let came = after.segments_received - before.segments_received;
            let by_datagram = after.segments_by_datagram - before.segments_by_datagram;
            assert!(by_datagram > 0 && came > 0, "{after:?}");
            for value in 0..MESSAGES {
                assert_eq!(receive(endpoint, peer, TAG), value);
            }
        },
    );
}

#[test]
fn a_silent_receiver_acknowledges_uring() {
    silence_acknowledges("auto");
}

#[test]
fn a_silent_receiver_acknowledges_sockets() {
    silence_acknowledges("sockets");
}

/// A session is set up while the side that is asked for it makes no call.
fn silence_lets_in(lanes: &str) {
    let settings = [("lanes", lanes), ("control_lane", "udp")];
    let (connected, has_connected) = mpsc::channel();
    pair(
        &settings,
        move |endpoint, peer| {
            endpoint.connect(peer, None).unwrap();
            connected.send(()).unwrap();
            endpoint
                .send_blocking(peer, TAG, &[9; 8], SendOptions::at(CompletionLevel::Match))
                .unwrap();
        },
        move |endpoint, peer| {
            let is_in_time = has_connected.recv_timeout(Duration::from_secs(20)).is_ok();
            assert!(is_in_time, "the peer was not accepted");
            assert_eq!(receive(endpoint, peer, TAG), u64::from_le_bytes([9; 8]));
        },
    );
}

#[test]
fn sessions_are_set_up_in_silence_uring() {
    silence_lets_in("auto");
}

#[test]
fn sessions_are_set_up_in_silence_sockets() {
    silence_lets_in("sockets");
}
