//! What an endpoint reports of its datagrams: whether it takes them, and what came by them.

use std::time::{Duration, Instant};

use crate::common::{self, pair};
use ringrail::{
    CompletionLevel, DatagramState, Endpoint, Envelope, Owned, Peer, ReceiveOptions, Selector,
    SendOptions,
};

const TAG: Envelope = Envelope::tagged(1);
/// Segments by datagram that each side waits for.
const ENOUGH: u64 = 100;

fn send(endpoint: &Endpoint<Owned>, peer: Peer, byte: u8, level: CompletionLevel) {
    endpoint.send_blocking(peer, TAG, &[byte; 8], SendOptions::at(level)).unwrap();
}

fn receive(endpoint: &Endpoint<Owned>, peer: Peer) -> u8 {
    let mut into = [0; 8];
    endpoint
        .receive_blocking(Selector::from_peer(peer, TAG), &mut into, ReceiveOptions::new())
        .unwrap();
    assert_eq!(into, [into[0]; 8]);
    into[0]
}

fn has_enough(endpoint: &Endpoint<Owned>) -> bool {
    let counters = endpoint.counters();
    assert!(counters.segments_by_datagram <= counters.segments_received, "{counters:?}");
    counters.segments_by_datagram >= ENOUGH
}

/// One message there and one back, again and again until `is_over`, which gets what the other side
/// sent: whether it has [`ENOUGH`].
fn lead(endpoint: &Endpoint<Owned>, peer: Peer, is_over: impl Fn(u32, bool) -> bool) {
    let mut is_last = false;
    for round in 1.. {
        send(endpoint, peer, u8::from(is_last), CompletionLevel::Inject);
        let other_has_enough = receive(endpoint, peer) == 1;
        if is_last {
            break;
        }
        is_last = is_over(round, other_has_enough);
    }
    // Neither leaves while the other may wait.
    send(endpoint, peer, 2, CompletionLevel::Match);
}

fn follow(endpoint: &Endpoint<Owned>, peer: Peer) {
    while receive(endpoint, peer) != 2 {
        send(endpoint, peer, u8::from(has_enough(endpoint)), CompletionLevel::Inject);
    }
}

#[test]
fn with_tcp_there_are_none() {
    let check = |endpoint: &Endpoint<Owned>| {
        assert_eq!(endpoint.datagrams(), DatagramState::Off);
        let counters = endpoint.counters();
        assert!(counters.segments_received > 0);
        assert_eq!((counters.segments_by_datagram, counters.datagrams_sent), (0, 0));
    };
    pair(
        &[("control_lane", "tcp")],
        move |endpoint, peer| {
            lead(endpoint, peer, |round, _| round == 10);
            check(endpoint);
        },
        move |endpoint, peer| {
            follow(endpoint, peer);
            check(endpoint);
        },
    );
}

#[test]
fn segments_that_came_by_datagram_are_counted() {
    let check = |endpoint: &Endpoint<Owned>| {
        let state = endpoint.datagrams();
        let DatagramState::Taken { port, receive_buffer_bytes, send_buffer_bytes, .. } = state
        else {
            panic!("{state:?}");
        };
        assert_ne!(port, 0);
        // Whatever the limits of the host, the kernel gives more than a page.
        assert!(receive_buffer_bytes > 4096 && send_buffer_bytes > 4096);
    };
    pair(
        &[("control_lane", "udp")],
        move |endpoint, peer| {
            check(endpoint);
            // The first ones go by TCP, until the path of either side has answered.
            let deadline = Instant::now() + Duration::from_secs(60);
            lead(endpoint, peer, |_, other_has_enough| {
                assert!(Instant::now() < deadline, "{:?}", endpoint.counters());
                other_has_enough && has_enough(endpoint)
            });
        },
        move |endpoint, peer| {
            check(endpoint);
            follow(endpoint, peer);
            assert!(has_enough(endpoint));
        },
    );
}

/// Peers of one engine, and how many of them may answer in one system call each.
const PEERS: usize = 100;

#[test]
fn acknowledgements_that_fall_due_together_leave_together() {
    let domain = common::domain(&[("control_lane", "udp")]);
    let open = || domain.endpoint().unwrap().attach().unwrap();
    let hub = open();
    let peers: Vec<_> = (0..PEERS).map(|_| open()).collect();
    let hub_of: Vec<_> = peers.iter().map(|it| it.insert_peer(&hub.address()).unwrap()).collect();
    let turn = || {
        hub.progress().unwrap();
        for peer in &peers {
            peer.progress().unwrap();
        }
    };
    let send = |number: usize| {
        while peers[number]
            .inject(hub_of[number], TAG, &[1; 8], SendOptions::new())
            .is_err_and(|e| e.is_would_block())
        {
            turn();
        }
    };
    let counts = || (hub.counters().datagrams_sent, hub.counters().syscalls);
    // Until all have paths that are known and nothing is under way.
    (0..PEERS).for_each(send);
    let start = Instant::now();
    let mut is_quiet = false;
    while !is_quiet && start.elapsed() < Duration::from_secs(30) {
        let before = counts().0;
        (0..20).for_each(|_| turn());
        std::thread::sleep(Duration::from_millis(5));
        turn();
        is_quiet = before == counts().0;
    }
    let mut best = (0, u64::MAX);
    // A machine that is busy elsewhere may have some fall due alone.
    for _ in 0..10 {
        (0..PEERS).for_each(send);
        let before = counts();
        for _ in 0..4 {
            hub.progress().unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
        let after = counts();
        let round = (after.0 - before.0, after.1 - before.1);
        if round.0 >= PEERS as u64 && round.1 < best.1 {
            best = round;
        }
        (0..20).for_each(|_| turn());
    }
    let (datagrams, calls) = best;
    println!("{datagrams} datagrams left in {calls} system calls, those that ask included");
    // A call takes 64 datagrams, and what has come is asked for with some more.
    assert!(calls <= 30, "{datagrams} datagrams, {calls} system calls");
}
