//! Sessions without bulk lanes: long messages in datagrams, as AF_XDP frames and by UDP sockets.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::Stdio;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::books::{assert_quiet, figures_of, frames_of};
use crate::common::{attached, pair, pair_of};
use crate::program::detach_program;
use ringrail::{
    Address, Buffer, Endpoint, Envelope, Error, FrameState, Owned, Peer, PeerFailure, Selector,
    SendOptions,
};
use ringrail_tests::lab::{Host, Lab, LabSpec};
use ringrail_tests::require_lab;
use ringrail_xdp::{AttachMode, Fault, Nic};

const HOSTS: [Host; 2] = [Host::A, Host::B];
const LIMIT: Duration = Duration::from_secs(300);
const MIB: usize = 1 << 20;
/// From nothing by way of what goes whole, in parts and pulled, to the longest.
const LENGTHS: [usize; 9] = [0, 1, 1000, 9000, 16 << 10, (16 << 10) + 1, 100_000, MIB, 16 * MIB];

fn lab() -> Lab {
    Lab::build(&LabSpec::rails(1)).unwrap()
}

/// Settings of a session without bulk lanes.
fn settings<'a>(lanes: &'a str, control_lane: &'a str) -> [(&'a str, &'a str); 3] {
    [("lanes", lanes), ("control_lane", control_lane), ("bulk_lane", "datagram")]
}

/// What a side sends under a number.
fn message(number: u64, is_first: bool, length: usize) -> Vec<u8> {
    let mut word = (number << 1 | u64::from(is_first)).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        bytes.extend_from_slice(&word.to_le_bytes());
        word = word.wrapping_mul(0x2545_f491_4f6c_dd1d).rotate_left(17) ^ number;
    }
    bytes.truncate(length);
    bytes
}

/// Both sides send a message and look at the other one's.
fn swap(endpoint: &Endpoint<Owned>, peer: Peer, is_first: bool, number: u64, length: usize) {
    let label = Envelope::tagged(number);
    let into = vec![0x5a; length + 1];
    let mut receive = endpoint.receive(Selector::from_peer(peer, label), into).unwrap();
    let bytes = message(number, is_first, length);
    let send = endpoint.send(peer, label, bytes, SendOptions::default()).unwrap();
    let outcome = receive.wait_deadline(Instant::now() + LIMIT).unwrap();
    let outcome = outcome.unwrap_or_else(|| panic!("message {number} of {length} bytes"));
    assert_eq!(outcome.status.length, length);
    let Buffer::Heap(came) = outcome.buffer else { panic!("another buffer") };
    let is_intact = came[..length] == message(number, !is_first, length) && came[length] == 0x5a;
    assert!(is_intact, "message {number} of {length} bytes is not as it was sent");
    send.wait().unwrap();
}

/// TCP connections of the calling thread's host that are established.
fn connections() -> usize {
    let table = std::fs::read_to_string("/proc/thread-self/net/tcp").unwrap();
    table.lines().filter(|line| line.split_whitespace().nth(3) == Some("01")).count()
}

/// What holds at the end of a run by frames or by a socket.
fn assert_over(endpoint: &Endpoint<Owned>, control_lane: &str) {
    assert_eq!(connections(), 1, "the connection that the session was set up by, and no other");
    if control_lane == "xdp" {
        assert_quiet(endpoint);
        assert_eq!(figures_of(endpoint).unfit, 0);
    } else {
        assert_eq!(frames_of(endpoint), FrameState::Off);
    }
}

#[test]
fn messages_of_all_lengths_need_no_bulk_lane() {
    require_lab!();
    for (lanes, control_lane) in [("uring", "xdp"), ("sockets", "xdp"), ("uring", "udp")] {
        // Neither leaves before both have looked.
        let meeting = Barrier::new(2);
        let side = |is_first: bool| {
            let meeting = &meeting;
            move |endpoint: &Endpoint<Owned>, peer: Peer| {
                for (number, length) in (0..).zip(LENGTHS) {
                    swap(endpoint, peer, is_first, number, length);
                }
                assert_over(endpoint, control_lane);
                let counters = endpoint.counters();
                assert!(counters.segments_by_datagram > 10_000, "{counters:?}");
                meeting.wait();
            }
        };
        pair(&lab(), &settings(lanes, control_lane), side(true), side(false));
    }
}

/// One side that asks for it is enough; frames and sockets understand each other.
#[test]
fn either_side_may_ask_for_it() {
    require_lab!();
    let asks = settings("uring", "xdp");
    let asks_not = [("lanes", "uring"), ("control_lane", "udp")];
    let meeting = Barrier::new(2);
    let side = |is_first: bool| {
        let meeting = &meeting;
        move |endpoint: &Endpoint<Owned>, peer: Peer| {
            for number in 0..4 {
                swap(endpoint, peer, is_first, number, MIB);
            }
            assert_eq!(connections(), 1);
            meeting.wait();
        }
    };
    pair_of(&lab(), [&asks, &asks_not], side(true), side(false));
}

#[test]
fn a_peer_without_datagrams_is_told_what_to_set() {
    require_lab!();
    let asks = settings("uring", "udp");
    let has_none = [("lanes", "uring"), ("control_lane", "tcp")];
    let told = AtomicBool::new(false);
    let side = |endpoint: &Endpoint<Owned>, peer: Peer| {
        let ended = endpoint.connect(peer, None);
        if let Err(Error::Peer { failure: failure @ PeerFailure::Settings(_), .. }) = &ended {
            let text = failure.to_string();
            assert!(text.contains("bulk_lane") && text.contains("control_lane"), "{text}");
            told.store(true, Ordering::SeqCst);
        }
        // The other one may have seen the connection go instead.
        assert!(ended.is_err(), "{ended:?}");
    };
    pair_of(&lab(), [&asks, &has_none], side, |endpoint: &Endpoint<Owned>, _: Peer| {
        let deadline = Instant::now() + LIMIT;
        while !told.load(Ordering::SeqCst) {
            endpoint.progress().unwrap();
            assert!(Instant::now() < deadline, "nobody was told");
        }
    });
}

#[test]
fn packets_that_are_dropped_cost_no_byte() {
    require_lab!();
    let runs = [("xdp", 0.001), ("xdp", 0.01), ("xdp", 0.1), ("udp", 0.01), ("udp", 0.1)];
    for (control_lane, loss) in runs {
        let lab = lab();
        let nics = HOSTS.map(|host| {
            let join = || Nic::join_with_faults("rail0", AttachMode::Auto).unwrap();
            let nic = lab.host(host).enter(join).unwrap();
            nic.set_faults(&[Fault::drop_share(loss)]).unwrap();
            nic
        });
        let meeting = Barrier::new(2);
        let side = |is_first: bool| {
            let meeting = &meeting;
            move |endpoint: &Endpoint<Owned>, peer: Peer| {
                let lengths = LENGTHS.into_iter().filter(|&length| loss < 0.1 || length <= MIB);
                for (number, length) in (0..).zip(lengths.chain([MIB; 4])) {
                    swap(endpoint, peer, is_first, number, length);
                }
                meeting.wait();
                assert_over(endpoint, control_lane);
                meeting.wait();
            }
        };
        pair(&lab, &settings("uring", control_lane), side(true), side(false));
        for nic in nics {
            let report = nic.fault_report(0).unwrap();
            assert!(report.hits > 0, "{control_lane}, {loss}: {report:?}");
        }
    }
}

#[test]
fn a_program_that_is_taken_off_in_mid_message_costs_no_byte() {
    require_lab!();
    let (is_down, is_back) = (AtomicBool::new(false), AtomicBool::new(false));
    let meeting = Barrier::new(2);
    let side = |is_first: bool| {
        let (is_down, is_back, meeting) = (&is_down, &is_back, &meeting);
        move |endpoint: &Endpoint<Owned>, peer: Peer| {
            swap(endpoint, peer, is_first, 0, MIB);
            let label = Envelope::tagged(1);
            let length = 16 * MIB;
            if is_first {
                let sent = endpoint.counters().datagrams_sent;
                let bytes = message(1, true, length);
                let mut send = endpoint.send(peer, label, bytes, SendOptions::default()).unwrap();
                let deadline = Instant::now() + LIMIT;
                while endpoint.counters().datagrams_sent < sent + 1000 {
                    endpoint.progress().unwrap();
                    assert!(Instant::now() < deadline, "{:?}", endpoint.counters());
                }
                detach_program("rail0");
                while !matches!(frames_of(endpoint), FrameState::Down { .. }) {
                    endpoint.progress().unwrap();
                    assert!(Instant::now() < deadline, "{:?}", frames_of(endpoint));
                }
                is_down.store(true, Ordering::SeqCst);
                let outcome = send.wait_deadline(Instant::now() + LIMIT).unwrap();
                outcome.expect("an end");
            } else {
                let into = vec![0; length];
                let mut receive = endpoint.receive(Selector::from_peer(peer, label), into).unwrap();
                let outcome = receive.wait_deadline(Instant::now() + LIMIT).unwrap();
                let Buffer::Heap(came) = outcome.expect("an end").buffer else { panic!() };
                assert!(came == message(1, true, length), "not as it was sent");
            }
            // By the socket meanwhile, then by frames again.
            for number in 2.. {
                swap(endpoint, peer, is_first, number, MIB);
                if is_first && matches!(frames_of(endpoint), FrameState::Up { .. }) {
                    is_back.store(true, Ordering::SeqCst);
                }
                meeting.wait();
                let is_over = is_back.load(Ordering::SeqCst);
                meeting.wait();
                if is_over {
                    break;
                }
            }
            assert_over(endpoint, "xdp");
            meeting.wait();
        }
    };
    pair(&lab(), &settings("uring", "xdp"), side(true), side(false));
    assert!(is_down.load(Ordering::SeqCst));
}

/// Gives the NIC of a host another MTU.
fn set_mtu(lab: &Lab, host: Host, mtu: u32) {
    let mut ip = lab.host(host).command("ip");
    ip.args(["link", "set", "rail0", "mtu", &mtu.to_string()]);
    assert!(ip.output(LIMIT).unwrap().status.success());
}

#[test]
fn jumbo_packets_take_several_frames() {
    require_lab!();
    for (control_lane, mtus) in
        [("xdp", [9000, 9000]), ("udp", [9000, 9000]), ("xdp", [9000, 1500]), ("xdp", [1500, 9000])]
    {
        let lab = lab();
        for (host, mtu) in HOSTS.into_iter().zip(mtus) {
            set_mtu(&lab, host, mtu);
        }
        let meeting = Barrier::new(2);
        let side = |is_first: bool| {
            let meeting = &meeting;
            move |endpoint: &Endpoint<Owned>, peer: Peer| {
                for (number, length) in (0..).zip(LENGTHS) {
                    if length < 16 * MIB {
                        swap(endpoint, peer, is_first, number, length);
                    }
                }
                // A side that does not run for a while loses some, and may try shorter ones then.
                let counted = (100..103).map(|number| {
                    let before = endpoint.counters().datagrams_sent;
                    swap(endpoint, peer, is_first, number, 4 * MIB);
                    endpoint.counters().datagrams_sent - before
                });
                let fewest = counted.min().unwrap_or(0);
                if mtus == [9000, 9000] {
                    assert!(fewest < (4 * MIB / 4096) as u64, "{fewest} datagrams");
                }
                meeting.wait();
                assert_over(endpoint, control_lane);
                if let FrameState::Up { how, .. } = frames_of(endpoint) {
                    let is_jumbo = mtus[usize::from(!is_first)] == 9000;
                    assert_eq!(how.contains("multi-frame packets"), is_jumbo, "{how}");
                }
                meeting.wait();
            }
        };
        pair(&lab, &settings("uring", control_lane), side(true), side(false));
    }
}

/// What tells a process that it is the one to die: its address, the counterpart's, what it does.
const VICTIM: &str = "TEST_OF_RINGRAIL_VICTIM";
const MARK: &str = "@victim ";
const VICTIMS_LENGTH: usize = 256 * MIB;

/// Not a test: what the process does that dies in [`a_peer_that_dies_in_mid_message_is_mourned`].
#[test]
#[ignore = "started by other tests"]
fn victim() {
    let task = std::env::var(VICTIM).expect("other tests start it");
    let [local, secret, other, work] = task.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{task}");
    };
    let mut all = settings("uring", "xdp").to_vec();
    all.push(("job_secret", secret));
    let endpoint = attached(local.parse().unwrap(), &all).unwrap();
    println!("\n{MARK}{}", hex(&endpoint.address().to_bytes()));
    std::io::stdout().flush().unwrap();
    let peer = endpoint.insert_peer(&Address::from_bytes(&unhex(other)).unwrap()).unwrap();
    let label = Envelope::tagged(7);
    if work == "receives" {
        let into = vec![0; VICTIMS_LENGTH];
        endpoint.receive(Selector::from_peer(peer, label), into).unwrap().wait().unwrap();
    } else {
        let bytes = vec![7; VICTIMS_LENGTH];
        let send = endpoint.send(peer, label, bytes, SendOptions::default()).unwrap();
        send.wait().unwrap();
    }
    panic!("nobody killed it");
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(byte).collect()
}

#[test]
fn a_peer_that_dies_in_mid_message_is_mourned() {
    require_lab!();
    for work in ["receives", "sends"] {
        let lab = lab();
        let secret = ringrail::JobSecret::random().to_hex();
        let mut all = settings("uring", "xdp").to_vec();
        all.push(("job_secret", secret.as_str()));
        // The process is not started by the thread inside the host, with which it would end.
        let (tell, told) = std::sync::mpsc::channel::<String>();
        let (answer, answered) = std::sync::mpsc::channel::<String>();
        let (kill, killed) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let (lab, secret) = (&lab, &secret);
            scope.spawn(move || {
                let other = told.recv_timeout(LIMIT).unwrap();
                let local = lab.addr(Host::B, 0);
                let task = format!("{local} {} {other} {work}", secret.as_str());
                let mut command = lab.host(Host::B).command(std::env::current_exe().unwrap());
                command
                    .args(["--ignored", "--exact", "datagrams_only::victim", "--nocapture"])
                    .env(VICTIM, task);
                command.stdout(Stdio::piped());
                let mut child = command.spawn().unwrap();
                let out = BufReader::new(child.inner().stdout.take().unwrap());
                let mut lines = out.lines().map_while(Result::ok);
                let line = lines.find(|line| line.contains(MARK)).expect("an address");
                answer.send(line.split_once(MARK).unwrap().1.to_owned()).unwrap();
                let heard = killed.recv_timeout(LIMIT);
                child.kill().unwrap();
                child.wait().unwrap();
                heard.unwrap();
            });
            let work = move || {
                let endpoint = attached(lab.addr(Host::A, 0), &all).unwrap();
                tell.send(hex(&endpoint.address().to_bytes())).unwrap();
                let address = unhex(&answered.recv_timeout(LIMIT).unwrap());
                let peer = endpoint.insert_peer(&Address::from_bytes(&address).unwrap()).unwrap();
                mourn(&endpoint, peer, work == "receives", || kill.send(()).unwrap());
                assert_quiet(&endpoint);
            };
            lab.host(Host::A).enter(work).unwrap();
        });
    }
}

/// Moves a message with a peer that is killed when some of it has moved.
fn mourn(endpoint: &Endpoint<Owned>, peer: Peer, is_sender: bool, kill: impl FnOnce()) {
    let label = Envelope::tagged(7);
    let (mut send, mut receive) = (None, None);
    if is_sender {
        let bytes = vec![7; VICTIMS_LENGTH];
        send = Some(endpoint.send(peer, label, bytes, SendOptions::default()).unwrap());
    } else {
        let into = vec![0; VICTIMS_LENGTH];
        receive = Some(endpoint.receive(Selector::from_peer(peer, label), into).unwrap());
    }
    let deadline = Instant::now() + LIMIT;
    let moved = |endpoint: &Endpoint<Owned>| {
        let figures = figures_of(endpoint);
        if is_sender { figures.sent } else { figures.received }
    };
    while moved(endpoint) < 2000 {
        endpoint.progress().unwrap();
        assert!(Instant::now() < deadline, "{:?}", frames_of(endpoint));
    }
    kill();
    let until = Instant::now() + LIMIT;
    let ended = match (&mut send, &mut receive) {
        (Some(send), _) => send.wait_deadline(until),
        (_, Some(receive)) => receive.wait_deadline(until),
        _ => unreachable!("one of both was begun"),
    };
    let failed = ended.expect_err("it ends with its peer");
    assert!(matches!(failed.error, Error::Peer { .. }), "{failed}");
}
