//! Two hosts with several rails between them, some of which fail while messages are under way.

mod common;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::pair;
use ringrail::{
    Buffer, Completion, Endpoint, Envelope, Event, OperationKind, Owned, PathState, Peer,
    PeerFailure, Selector, SendOptions,
};
use ringrail_tests::lab::{Host, Lab};
use ringrail_tests::require_lab;

/// Lengths of messages, by turns: by datagrams, by bulk lanes, in many chunks.
const LENGTHS: [usize; 5] = [8, 3000, 100_000, 1 << 20, 64];
const LONGEST: usize = 1 << 20;
/// Messages under way.
const WINDOW: usize = 10;
/// A stream that does not move for so long has lost something for good.
const STALLED: Duration = Duration::from_secs(30);
const TAG: Envelope = Envelope::tag(7);
const LAST: Envelope = Envelope::tag(8);

fn length(number: u64) -> usize {
    LENGTHS[number as usize % LENGTHS.len()]
}

fn fill(number: u64, bytes: &mut [u8]) {
    for (at, word) in bytes.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&(number << 32 | at as u64).to_le_bytes());
    }
}

/// What both sides and the one who disturbs them know of each other.
#[derive(Default)]
struct Shared {
    is_over: AtomicBool,
    received: AtomicU64,
}

/// What one side saw of its paths.
#[derive(Debug, Default)]
struct Seen {
    events: Vec<(PathState, &'static str)>,
    failures: Vec<String>,
}

impl Seen {
    fn look(&mut self, endpoint: &Endpoint<Owned>) {
        while let Some(event) = endpoint.next_event() {
            match event {
                Event::PathChanged { state, cause, .. } => self.events.push((state, cause)),
                Event::Disconnected { failure: PeerFailure::Left, .. } => {}
                Event::Disconnected { failure, .. } => self.failures.push(failure.to_string()),
                _ => {}
            }
        }
    }

    fn count(&self, state: PathState) -> usize {
        self.events.iter().filter(|(seen, _)| *seen == state).count()
    }
}

/// Sends until it is over, and says then how many there were.
fn send_all(endpoint: &Endpoint<Owned>, peer: Peer, shared: &Shared) -> Seen {
    let mut seen = Seen::default();
    let mut room: VecDeque<Vec<u8>> = (0..WINDOW).map(|_| vec![0; LONGEST]).collect();
    let (mut sent, mut moved_at) = (0_u64, Instant::now());
    let mut completions: Vec<Completion> = Vec::new();
    let mut is_told = false;
    loop {
        let is_over = shared.is_over.load(Ordering::SeqCst);
        while !is_over && let Some(mut message) = room.pop_front() {
            message.resize(length(sent), 0);
            fill(sent, &mut message);
            endpoint.post_send(peer, TAG, message, SendOptions::default(), sent).unwrap();
            sent += 1;
        }
        if is_over && room.len() == WINDOW {
            if is_told {
                return seen;
            }
            let count = sent.to_le_bytes().to_vec();
            endpoint.post_send(peer, LAST, count, SendOptions::default(), u64::MAX).unwrap();
            room.pop_front();
            is_told = true;
        }
        let got = endpoint.wait(&mut completions, 64, Some(Duration::from_millis(100))).unwrap();
        if got > 0 {
            moved_at = Instant::now();
        }
        assert!(moved_at.elapsed() < STALLED, "no end of sends; {seen:?}");
        for completion in completions.drain(..) {
            completion.result.unwrap();
            let Some(Buffer::Heap(message)) = completion.buffer else { panic!("no buffer") };
            // Whoever still read from it would send this.
            let mut message = message;
            message.fill(0xee);
            message.resize(LONGEST, 0xee);
            room.push_back(message);
        }
        seen.look(endpoint);
    }
}

/// Receives and looks at everything.
fn receive_all(endpoint: &Endpoint<Owned>, peer: Peer, shared: &Shared) -> Seen {
    let mut seen = Seen::default();
    let last = Selector::from(peer, LAST);
    endpoint.post_receive(last, vec![0_u8; 8], u64::MAX).unwrap();
    let (mut asked, mut came, mut total) = (0_u64, 0_u64, None);
    let mut room: VecDeque<Vec<u8>> = (0..WINDOW).map(|_| vec![0; LONGEST]).collect();
    let mut expected = vec![0; LONGEST];
    let mut moved_at = Instant::now();
    let mut completions: Vec<Completion> = Vec::new();
    while total != Some(came) {
        while let Some(message) = room.pop_front() {
            endpoint.post_receive(Selector::from(peer, TAG), message, asked).unwrap();
            asked += 1;
        }
        let got = endpoint.wait(&mut completions, 64, Some(Duration::from_millis(100))).unwrap();
        if got > 0 {
            moved_at = Instant::now();
        }
        assert!(moved_at.elapsed() < STALLED, "{came} of {total:?} came; {seen:?}");
        for completion in completions.drain(..) {
            assert_eq!(completion.kind, OperationKind::Receive);
            if total
                .is_some_and(|total| completion.context >= total && completion.context != u64::MAX)
            {
                // Nothing was sent for it.
                continue;
            }
            let status = completion.result.unwrap();
            let Some(Buffer::Heap(mut message)) = completion.buffer else { panic!("no buffer") };
            if completion.context == u64::MAX {
                total = Some(u64::from_le_bytes(message[..8].try_into().unwrap()));
                continue;
            }
            let number = completion.context;
            assert_eq!(status.length, length(number), "message {number}");
            fill(number, &mut expected[..status.length]);
            let is_intact = message[..status.length] == expected[..status.length];
            assert!(is_intact, "message {number} is not as it was sent");
            // Whatever still wrote to it would be found in the next message.
            message.fill(0xdd);
            room.push_back(message);
            came += 1;
            shared.received.store(came, Ordering::SeqCst);
        }
        seen.look(endpoint);
    }
    // The sender hears that the last one came.
    let until = Instant::now() + Duration::from_millis(300);
    while Instant::now() < until {
        endpoint.progress().unwrap();
    }
    seen
}

/// Has messages go by the rails of `spec` while `disturb` does what it does.
fn played(
    spec: &str,
    settings: &[(&str, &str)],
    disturb: impl FnOnce(&Lab, &Shared) + Send,
) -> [Seen; 2] {
    let lab = Lab::build(&spec.parse().unwrap()).unwrap();
    if spec.contains("same-subnet") {
        // Otherwise any NIC answers for all addresses of its host, and the first answer counts:
        // `ringrail-perf info` says so.
        for host in [Host::A, Host::B] {
            let set = |name: &str, value: &str| {
                std::fs::write(format!("/proc/sys/net/ipv4/conf/all/{name}"), value).unwrap();
            };
            lab.host(host)
                .enter(|| {
                    set("arp_ignore", "1");
                    set("arp_announce", "2");
                })
                .unwrap();
        }
    }
    let shared = Shared::default();
    let mut all = vec![("nics", "rail*")];
    all.extend_from_slice(settings);
    let (a, b) = thread::scope(|scope| {
        let disturber = scope.spawn(|| {
            let start = Instant::now();
            while shared.received.load(Ordering::SeqCst) < 20 {
                assert!(start.elapsed() < STALLED, "nothing came before anything was disturbed");
                thread::sleep(Duration::from_millis(5));
            }
            disturb(&lab, &shared);
            shared.is_over.store(true, Ordering::SeqCst);
        });
        let ends = pair(
            &lab,
            &all,
            |endpoint, peer| send_all(endpoint, peer, &shared),
            |endpoint, peer| receive_all(endpoint, peer, &shared),
        );
        disturber.join().unwrap();
        ends
    });
    assert_eq!((&a.failures, &b.failures), (&Vec::new(), &Vec::new()), "{a:?} {b:?}");
    [a, b]
}

/// Messages must go on coming.
fn assert_moves(shared: &Shared, what: &str) {
    let (before, start) = (shared.received.load(Ordering::SeqCst), Instant::now());
    while shared.received.load(Ordering::SeqCst) < before + 15 {
        assert!(start.elapsed() < Duration::from_secs(5), "nothing comes: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Bytes that a rail in use carries: many times what its probes are.
const CARRIED: u64 = 2 << 20;
const TWO: &str = "rails=2,rate=2gbit:2gbit";

/// RR-RAIL-4, RR-RAIL-5, RR-RAIL-6
#[test]
fn a_rail_that_swallows_everything_costs_no_message() {
    require_lab!();
    let seen = played(TWO, &[], |lab, shared| {
        for rail in [0, 1, 0, 1] {
            lab.blackhole(rail).unwrap();
            assert_moves(shared, "one rail is cut");
            thread::sleep(Duration::from_millis(200));
            assert_moves(shared, "one rail is still cut");
            lab.heal(rail).unwrap();
            thread::sleep(Duration::from_millis(400));
        }
    });
    for side in seen {
        assert!(side.count(PathState::Suspect) + side.count(PathState::Down) >= 3, "{side:?}");
        assert!(side.count(PathState::Active) >= 5, "{side:?}");
    }
}

/// RR-RAIL-4
#[test]
fn a_rail_that_works_one_way_carries_nothing() {
    require_lab!();
    played(TWO, &[], |lab, shared| {
        for (rail, from) in [(0, Host::A), (1, Host::B), (0, Host::B)] {
            lab.blackhole_one_way(rail, from).unwrap();
            thread::sleep(Duration::from_millis(300));
            assert_moves(shared, "a rail works one way only");
            lab.heal(rail).unwrap();
            thread::sleep(Duration::from_millis(300));
        }
    });
}

#[test]
fn brown_outs_and_flapping_cost_no_message() {
    require_lab!();
    played(TWO, &[], |lab, shared| {
        for rail in [0, 1] {
            lab.brown_out(rail).unwrap();
            thread::sleep(Duration::from_millis(700));
            assert_moves(shared, "half of the packets of a rail are lost");
            lab.heal(rail).unwrap();
            thread::sleep(Duration::from_millis(200));
            lab.flap(rail, Duration::from_millis(100), Duration::from_secs(1)).unwrap();
            assert_moves(shared, "a rail flaps");
        }
    });
}

#[test]
fn an_interface_that_is_switched_off_costs_no_message() {
    require_lab!();
    played(TWO, &[], |lab, shared| {
        for (host, rail) in [(Host::A, 1), (Host::B, 0)] {
            lab.link_down(host, rail).unwrap();
            thread::sleep(Duration::from_millis(300));
            assert_moves(shared, "an interface is down");
            lab.link_up(host, rail).unwrap();
            thread::sleep(Duration::from_millis(500));
        }
    });
}

#[test]
fn both_rails_may_be_dead_for_a_while() {
    require_lab!();
    played(TWO, &[], |lab, shared| {
        for _ in 0..2 {
            for rail in [0, 1] {
                lab.blackhole(rail).unwrap();
            }
            thread::sleep(Duration::from_millis(200));
            for rail in [0, 1] {
                lab.heal(rail).unwrap();
            }
            assert_moves(shared, "both rails are back");
        }
    });
}

/// Longer than the peer timeout the rail of the session's TCP connection is dead, first the one and
/// then the other.
///
/// RR-RAIL-7
#[test]
fn a_session_outlives_the_rail_that_it_was_set_up_by() {
    require_lab!();
    played(TWO, &[("peer_timeout", "1s")], |lab, shared| {
        for rail in [0, 1] {
            lab.blackhole(rail).unwrap();
            thread::sleep(Duration::from_millis(3500));
            assert_moves(shared, "a rail is dead for long");
            lab.heal(rail).unwrap();
            thread::sleep(Duration::from_millis(1500));
        }
    });
}

/// RR-RAIL-3
#[test]
fn bulk_data_goes_by_all_rails() {
    require_lab!();
    for spec in ["rails=3,rate=1gbit:2gbit:500mbit", "rails=2,same-subnet,switch"] {
        let mut shares = Vec::new();
        played(spec, &[], |lab, _| {
            let rails = lab.spec().rails;
            // A busy machine takes its time until all paths have answered.
            let start = Instant::now();
            let carried = |rail| lab.passage(rail, Host::A).unwrap().bytes;
            while start.elapsed() < STALLED && (0..rails).any(|rail| carried(rail) < CARRIED) {
                thread::sleep(Duration::from_millis(10));
            }
            shares.extend((0..rails).map(carried));
        });
        eprintln!("{spec}: bytes by rail {shares:?}");
        assert!(shares.iter().all(|&bytes| bytes >= CARRIED), "{spec}: {shares:?}");
    }
}
