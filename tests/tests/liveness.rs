//! Whether a peer of several rails is still there: processes that are stopped or killed, hosts that
//! vanish, rails that work one way.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{Set, attached, pair};
use ringrail::{
    Address, Buffer, Completion, CompletionLevel, Endpoint, Envelope, Error, Event, JobSecret,
    OperationKind, Owned, Peer, PeerFailure, ReceiveOptions, Selector, SendOptions,
};
use ringrail_tests::lab::{Host, Lab, LabChild};
use ringrail_tests::require_lab;
use rustix::process::{Pid, Signal, kill_process};

/// What tells a process that it is the peer of a test: its address, its secret, what it does.
const ROLE: &str = "TEST_OF_RINGRAIL_PEER";
/// The test that such a process runs.
const PROGRAM: &str = "liveness::peer_of_a_test";
/// What lines to the test begin with; the harness writes to the same pipe.
const MARK: &str = "@peer ";
/// How long anything may take.
const LIMIT: Duration = Duration::from_secs(60);
/// The end of a process is known within a second; this machine may be busy with other things.
const KNOWN: Duration = Duration::from_secs(3);
/// A message that takes about a second.
const LONG: usize = 64 << 20;
/// What a stream of messages is made of, by turns.
const LENGTHS: [usize; 4] = [8, 3000, 100_000, 1 << 20];

const SHAPED: &str = "rails=2,rate=300mbit:300mbit";

const TO_PEER: Envelope = Envelope::tagged(1);
const FROM_PEER: Envelope = Envelope::tagged(2);
/// Of what is never received, or never sent.
const NEVER: Envelope = Envelope::tagged(3);

// ---- The other process ----

/// A process in host b that is stopped, killed, and ends with the test.
struct Other {
    child: LabChild,
    address: Address,
}

impl Other {
    /// Starts one that does what `task` says with the engine at `address`.
    fn start(lab: &Lab, secret: &str, task: &str, address: &Address) -> Self {
        let role = format!("{} {secret} {task}", lab.addr(Host::B, 0));
        let mut command = lab.host(Host::B).command(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", PROGRAM, "--nocapture"]).env(ROLE, role);
        command.core(None).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let text: String = address.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(child.inner().stdin.as_mut().unwrap(), "{text}").unwrap();
        let lines = BufReader::new(child.inner().stdout.take().unwrap()).lines();
        let mut said = lines.map_while(Result::ok);
        let said = said.find_map(|line| Some(line.split_once(MARK)?.1.to_owned()));
        let address = address_of(&said.expect("the other process says where it is"));
        Self { child, address }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.child.id() as i32).unwrap(), signal).unwrap();
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
    }
}

fn address_of(text: &str) -> Address {
    let byte = |at: usize| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap();
    Address::from_bytes(&(0..text.len() / 2).map(byte).collect::<Vec<_>>()).unwrap()
}

fn say(address: &Address) {
    let text: String = address.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    println!("{MARK}{text}");
}

/// Nothing of itself: what a process does that is a peer.
#[test]
#[ignore = "started by other tests"]
fn peer_of_a_test() {
    let role = std::env::var(ROLE).expect("other tests start it");
    let [local, secret, task] = role.split(' ').collect::<Vec<_>>()[..] else { panic!("{role}") };
    let settings = [("nics", "rail*"), ("job_secret", secret)];
    let endpoint = attached(local.parse().unwrap(), &settings).unwrap();
    say(&endpoint.address());
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let peer = endpoint.insert_peer(&address_of(line.trim())).unwrap();
    match task {
        "long" => {
            endpoint.connect(peer, None).unwrap();
            let from = Selector::from_peer(peer, TO_PEER);
            endpoint.post_receive(from, vec![0; LONG], ReceiveOptions::new()).unwrap();
            endpoint
                .post_send(peer, FROM_PEER, vec![7; LONG], SendOptions::new().user_data(1))
                .unwrap();
        }
        "echo" => echo(&endpoint, peer),
        other => panic!("what is {other}?"),
    }
    let mut completions = Vec::new();
    loop {
        endpoint.wait(&mut completions, 64, Some(Duration::from_millis(100))).unwrap();
    }
}

/// Sends back whatever comes.
fn echo(endpoint: &Endpoint<Owned>, peer: Peer) {
    let post = |message| {
        endpoint
            .post_receive(Selector::from_peer(peer, TO_PEER), message, ReceiveOptions::new())
            .unwrap()
    };
    (0..4).for_each(|_| {
        post(vec![0; LENGTHS[3]]);
    });
    let mut completions: Vec<Completion> = Vec::new();
    loop {
        endpoint.wait(&mut completions, 64, Some(Duration::from_millis(100))).unwrap();
        for completion in completions.drain(..) {
            let length = completion.result.unwrap().length;
            let Some(Buffer::Heap(mut message)) = completion.buffer else { panic!("no buffer") };
            if completion.kind == OperationKind::Receive {
                message.truncate(length);
                endpoint.post_send(peer, FROM_PEER, message, SendOptions::new()).unwrap();
            } else {
                message.resize(LENGTHS[3], 0);
                post(message);
            }
        }
    }
}

// ---- This side ----

/// An endpoint in host a and a process in host b that does `task`.
fn with_other(
    lab: &Lab,
    settings: &[(&str, &str)],
    task: &str,
    work: impl FnOnce(&Endpoint<Owned>, Peer, &mut Other) + Send,
) {
    let secret = JobSecret::random().to_hex();
    let mut all = vec![("nics", "rail*"), ("job_secret", secret.as_str())];
    all.extend_from_slice(settings);
    let inside = || {
        let endpoint = attached(lab.addr(Host::A, 0), &all).unwrap();
        let mut other = Other::start(lab, secret.as_str(), task, &endpoint.address());
        let peer = endpoint.insert_peer(&other.address).unwrap();
        work(&endpoint, peer, &mut other);
    };
    lab.host(Host::A).enter(inside).unwrap();
}

/// What an endpoint told of peers that are gone without a goodbye.
fn failures(endpoint: &Endpoint<Owned>) -> Vec<String> {
    let mut failures = Vec::new();
    while let Some(event) = endpoint.next_event() {
        match event {
            Event::Disconnected { failure: PeerFailure::Left, .. } => {}
            Event::Disconnected { failure, .. } => failures.push(failure.to_string()),
            _ => {}
        }
    }
    failures
}

/// Makes progress for a while.
fn pass(endpoint: &Endpoint<Owned>, time: Duration, completions: &mut Vec<Completion>) {
    let until = Instant::now() + time;
    while let Some(left) = until.checked_duration_since(Instant::now()) {
        endpoint.wait(completions, 64, Some(left)).unwrap();
    }
}

/// Everything of `pending` ends with an error that names `address`; how long that takes.
fn time_to_fail(endpoint: &Endpoint<Owned>, address: &Address, mut pending: usize) -> Duration {
    let start = Instant::now();
    let mut completions = Vec::new();
    while pending > 0 {
        assert!(start.elapsed() < LIMIT, "{pending} operations are pending still");
        endpoint.wait(&mut completions, 64, Some(Duration::from_millis(100))).unwrap();
        for completion in completions.drain(..) {
            match completion.result {
                Err(Error::Peer { address: named, failure, .. }) => {
                    eprintln!("{:?} {failure}", start.elapsed());
                    assert_eq!(named.locator(), address.locator());
                }
                other => panic!("{:?}: {other:?}", completion.kind),
            }
            pending -= 1;
        }
    }
    start.elapsed()
}

/// Sends messages that come back, until so many have; all of them are whole.
fn echoed(endpoint: &Endpoint<Owned>, peer: Peer, count: usize) {
    let start = Instant::now();
    let mut completions = Vec::new();
    for number in 0..count {
        let length = LENGTHS[number % LENGTHS.len()];
        let message = vec![number as u8; length];
        let from = Selector::from_peer(peer, FROM_PEER);
        endpoint
            .post_receive(from, vec![0; LENGTHS[3]], ReceiveOptions::new().user_data(1))
            .unwrap();
        endpoint.post_send(peer, TO_PEER, message, SendOptions::new()).unwrap();
        let mut has_come = false;
        while !has_come {
            assert!(start.elapsed() < LIMIT, "message {number} does not come back");
            endpoint.wait(&mut completions, 64, Some(Duration::from_millis(100))).unwrap();
            for completion in completions.drain(..) {
                let came = completion.result.unwrap().length;
                if completion.kind == OperationKind::Receive {
                    let Some(Buffer::Heap(message)) = completion.buffer else { panic!() };
                    assert_eq!(came, length);
                    assert!(message[..came].iter().all(|&byte| byte == number as u8));
                    has_come = true;
                }
            }
        }
    }
}

/// RR-RAIL-8, RR-END-2
#[test]
fn all_that_waits_for_a_killed_process_fails_and_names_it() {
    require_lab!();
    for cut in [None, Some(0), Some(1)] {
        let lab = Lab::build(&SHAPED.parse().unwrap()).unwrap();
        with_other(&lab, &[], "long", |endpoint, peer, other| {
            let matched = SendOptions::at(CompletionLevel::Match);
            let mut pending = 0;
            let mut completions = Vec::new();
            // Long messages both ways, of which a part has come.
            endpoint
                .post_receive(
                    Selector::from_peer(peer, FROM_PEER),
                    vec![0; LONG],
                    ReceiveOptions::new(),
                )
                .unwrap();
            endpoint.post_send(peer, TO_PEER, vec![5; LONG], matched).unwrap();
            pending += 2;
            let carried = || lab.passage(1, Host::B).unwrap().bytes;
            let start = Instant::now();
            while carried() < 1 << 20 {
                assert!(start.elapsed() < LIMIT, "the long messages do not go");
                pass(endpoint, Duration::from_millis(10), &mut completions);
            }
            // Eager and long ones that nobody receives, and receives that nobody sends for.
            for length in [8, 200, 3000, 10_000, 100_000, 4 << 20] {
                endpoint.post_send(peer, NEVER, vec![1; length], matched).unwrap();
                endpoint
                    .post_receive(
                        Selector::from_peer(peer, NEVER),
                        vec![0; 8],
                        ReceiveOptions::new(),
                    )
                    .unwrap();
                pending += 2;
            }
            pass(endpoint, Duration::from_millis(50), &mut completions);
            if let Some(rail) = cut {
                lab.blackhole(rail).unwrap();
                pass(endpoint, Duration::from_millis(600), &mut completions);
            }
            assert!(completions.is_empty(), "{completions:?}");
            assert_eq!(failures(endpoint), Vec::<String>::new());
            other.kill();
            let took = time_to_fail(endpoint, &other.address, pending);
            eprintln!("cut {cut:?}: known after {took:?}");
            assert!(took < KNOWN, "cut {cut:?}: known after {took:?}");
            assert_eq!(failures(endpoint).len(), 1);
        });
    }
}

/// RR-RAIL-4
#[test]
fn a_process_that_is_stopped_is_not_dead() {
    require_lab!();
    for settings in [&[][..], &[("peer_timeout", "1s")]] {
        let lab = Lab::build(&SHAPED.parse().unwrap()).unwrap();
        with_other(&lab, settings, "echo", |endpoint, peer, other| {
            echoed(endpoint, peer, 8);
            let mut completions = Vec::new();
            // Idle.
            other.signal(Signal::STOP);
            pass(endpoint, Duration::from_secs(1), &mut completions);
            other.signal(Signal::CONT);
            echoed(endpoint, peer, 8);
            // While messages go.
            let continued = thread::scope(|scope| {
                let stopper = scope.spawn(|| {
                    thread::sleep(Duration::from_millis(100));
                    other.signal(Signal::STOP);
                    thread::sleep(Duration::from_secs(1));
                    other.signal(Signal::CONT);
                    Instant::now()
                });
                let until = Instant::now() + Duration::from_millis(1500);
                while Instant::now() < until {
                    echoed(endpoint, peer, 4);
                }
                stopper.join().unwrap()
            });
            echoed(endpoint, peer, 4);
            assert!(continued.elapsed() < LIMIT);
            assert_eq!(failures(endpoint), Vec::<String>::new());
        });
    }
}

/// RR-RAIL-7
#[test]
fn a_host_that_vanishes_is_known_within_the_peer_timeout() {
    require_lab!();
    let timeout = Duration::from_secs(5);
    for sends in [false, true] {
        let lab = Lab::build(&"rails=2,switch".parse().unwrap()).unwrap();
        with_other(&lab, &[("peer_timeout", "5s")], "echo", |endpoint, peer, other| {
            echoed(endpoint, peer, 8);
            let mut pending = 0;
            for _ in 0..3 {
                endpoint
                    .post_receive(
                        Selector::from_peer(peer, NEVER),
                        vec![0; 8],
                        ReceiveOptions::new(),
                    )
                    .unwrap();
                pending += 1;
            }
            pass(endpoint, Duration::from_millis(1500), &mut Vec::new());
            (0..2).for_each(|rail| lab.blackhole(rail).unwrap());
            if sends {
                for length in [8, 10_000, 1 << 20] {
                    let matched = SendOptions::at(CompletionLevel::Match);
                    endpoint.post_send(peer, NEVER, vec![1; length], matched).unwrap();
                    pending += 1;
                }
            }
            let took = time_to_fail(endpoint, &other.address, pending);
            eprintln!("sends {sends}: known after {took:?}");
            assert!(took > Duration::from_millis(500), "known before anybody could know");
            assert!(took < timeout + KNOWN - Duration::from_secs(1), "known after {took:?}");
        });
    }
}

/// Sends messages that come back, one at a time, until one fails; when that was, and its cause.
fn echoed_until_lost(endpoint: &Endpoint<Owned>, peer: Peer) -> Option<(Instant, String)> {
    let until = Instant::now() + LIMIT;
    let mut completions = Vec::new();
    while Instant::now() < until {
        if completions.is_empty() {
            let from = Selector::from_peer(peer, FROM_PEER);
            endpoint
                .post_receive(from, vec![0; LENGTHS[3]], ReceiveOptions::new().user_data(1))
                .unwrap();
            endpoint.post_send(peer, TO_PEER, vec![3; 8], SendOptions::new()).unwrap();
        }
        completions.retain(|done: &Completion| done.kind != OperationKind::Receive);
        while completions.iter().all(|done| done.kind != OperationKind::Receive)
            && Instant::now() < until
        {
            endpoint.wait(&mut completions, 64, Some(Duration::from_millis(100))).unwrap();
            if let Some(error) = completions.iter().find_map(|done| done.result.as_ref().err()) {
                return Some((Instant::now(), error.to_string()));
            }
        }
        completions.clear();
    }
    None
}

/// What is sent to a host behind a NIC without a carrier fails here, and the kernel says so: its
/// timeouts do not grow then as those of packets that vanish.
///
/// RR-END-2
#[test]
fn a_host_that_cannot_be_reached_is_known_within_the_peer_timeout() {
    require_lab!();
    let timeout = Duration::from_secs(10);
    let away = |lab: &Lab, rail| lab.link_down(Host::B, rail).unwrap();
    let here = |lab: &Lab, rail| lab.link_down(Host::A, rail).unwrap();
    let neighbour = |lab: &Lab, rail| {
        lab.blackhole(rail).unwrap();
        // Called in host a.
        let nic = format!("rail{rail}");
        let flush = Command::new("ip").args(["neigh", "flush", "dev", &nic]).status();
        assert!(flush.unwrap().success());
    };
    let by_tcp = &[("control_lane", "tcp")][..];
    type Case<'a> = (&'a str, fn(&Lab, u8), &'a str, &'a Set<'a>);
    let cases: [Case<'_>; 7] = [
        ("away", away, "", &[]),
        ("away", away, "", &[("lanes", "sockets")]),
        ("away", away, "", by_tcp),
        ("here", here, "", &[]),
        ("here", here, "", by_tcp),
        ("away", away, "rails=2", &[]),
        ("neighbour", neighbour, "switch", &[]),
    ];
    let try_case = |&(name, cut, spec, settings): &Case<'_>| {
        let lab = Lab::build(&spec.parse().unwrap()).unwrap();
        let case = format!("{name}, {spec:?}, {settings:?}");
        let mut all = vec![("peer_timeout", "10s")];
        all.extend_from_slice(settings);
        with_other(&lab, &all, "echo", |endpoint, peer, _| {
            echoed(endpoint, peer, 8);
            let lab = &lab;
            thread::scope(|scope| {
                let cutter = scope.spawn(move || {
                    for rail in 0..lab.spec().rails {
                        thread::sleep(Duration::from_secs(2));
                        cut(lab, rail);
                    }
                    Instant::now()
                });
                let lost = echoed_until_lost(endpoint, peer);
                let cut = cutter.join().unwrap();
                let Some((known, cause)) = lost else { panic!("{case}: nobody knows") };
                let took = known.saturating_duration_since(cut);
                eprintln!("{case}: known after {took:?}: {cause}");
                assert!(took > timeout / 2, "{case}: known before anybody could know");
                assert!(took < timeout + KNOWN, "{case}: known after {took:?}");
            });
        });
    };
    thread::scope(|scope| {
        let tries: Vec<_> = cases.iter().map(|case| scope.spawn(|| try_case(case))).collect();
        tries.into_iter().for_each(|it| it.join().unwrap());
    });
}

/// Keep-alive watches an idle session of one rail: what is shorter than the peer timeout ends
/// nothing, and what is longer is told as what it is.
///
/// RR-END-2
#[test]
fn an_idle_session_outlives_a_cut_that_is_shorter_than_the_peer_timeout() {
    require_lab!();
    let timeout = Duration::from_secs(10);
    let try_case = |settings: &[(&str, &str)]| {
        let lab = Lab::build(&"switch".parse().unwrap()).unwrap();
        let mut all = vec![("peer_timeout", "10s")];
        all.extend_from_slice(settings);
        with_other(&lab, &all, "echo", |endpoint, peer, other| {
            echoed(endpoint, peer, 8);
            let mut completions = Vec::new();
            pass(endpoint, Duration::from_secs(4), &mut completions);
            lab.blackhole(0).unwrap();
            pass(endpoint, Duration::from_secs(6), &mut completions);
            lab.heal(0).unwrap();
            pass(endpoint, Duration::from_secs(3), &mut completions);
            assert!(completions.is_empty(), "{settings:?}: {completions:?}");
            assert_eq!(failures(endpoint), Vec::<String>::new(), "{settings:?}");
            echoed(endpoint, peer, 8);

            endpoint
                .post_receive(Selector::from_peer(peer, NEVER), vec![0; 8], ReceiveOptions::new())
                .unwrap();
            lab.blackhole(0).unwrap();
            let took = time_to_fail(endpoint, &other.address, 1);
            eprintln!("{settings:?}: known after {took:?}");
            assert!(took > timeout / 2 && took < timeout + KNOWN, "{settings:?}: {took:?}");
            let failures = failures(endpoint);
            assert!(failures[0].contains("its host has not answered for 1"), "{failures:?}");
        });
    };
    thread::scope(|scope| {
        let cases: [&[(&str, &str)]; 3] =
            [&[], &[("lanes", "sockets")], &[("control_lane", "tcp")]];
        let tries = cases.map(|case| scope.spawn(move || try_case(case)));
        tries.into_iter().for_each(|it| it.join().unwrap());
    });
}

/// Longer than the peer timeout a rail of an idle session works one way only: that of its control
/// lane, whose end says nothing of the peer then.
///
/// RR-RAIL-7, RR-RAIL-8
#[test]
fn a_rail_that_works_one_way_ends_no_idle_session() {
    require_lab!();
    for (from, connects_first) in [(Host::A, true), (Host::B, true), (Host::A, false)] {
        let lab = Lab::build(&"rails=2,switch".parse().unwrap()).unwrap();
        let settings = [("nics", "rail*"), ("peer_timeout", "4s")];
        let play = |endpoint: &Endpoint<Owned>, peer, is_first: bool, is_holder: bool| {
            let mut completions = Vec::new();
            for round in 0..3 {
                let [out, back] = [Envelope::tagged(round), Envelope::tagged(100 + round)];
                let first = Selector::from_peer(peer, if is_first { back } else { out });
                endpoint.post_receive(first, vec![0; 8], ReceiveOptions::new()).unwrap();
                if is_first {
                    let bytes = vec![1; 8];
                    endpoint.post_send(peer, out, bytes, SendOptions::new().user_data(1)).unwrap();
                }
                let start = Instant::now();
                while !completions.iter().any(|done: &Completion| done.user_data == 0) {
                    assert!(start.elapsed() < LIMIT, "round {round} does not end");
                    let some = Some(Duration::from_millis(100));
                    endpoint.wait(&mut completions, 64, some).unwrap();
                }
                if !is_first {
                    let bytes = vec![2; 8];
                    endpoint.post_send(peer, back, bytes, SendOptions::new().user_data(1)).unwrap();
                }
                completions.drain(..).for_each(|done| {
                    done.result.unwrap();
                });
                pass(endpoint, Duration::from_secs(1), &mut completions);
                if is_holder && round == 0 {
                    lab.blackhole_one_way(0, from).unwrap();
                } else if is_holder && round == 1 {
                    lab.heal(0).unwrap();
                }
                if round == 0 {
                    pass(endpoint, Duration::from_secs(9), &mut completions);
                }
                completions.drain(..).for_each(|done| {
                    done.result.unwrap();
                });
                assert_eq!(failures(endpoint), Vec::<String>::new(), "round {round}");
            }
        };
        pair(
            &lab,
            &settings,
            |endpoint, peer| play(endpoint, peer, connects_first, true),
            |endpoint, peer| play(endpoint, peer, !connects_first, false),
        );
    }
}
