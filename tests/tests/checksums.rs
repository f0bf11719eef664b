//! UDP checksums of datagrams, as somebody between the hosts sees them.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::Duration;

use crate::books::{assert_quiet, figures_of};
use crate::common::pair_of;
use crate::raw::{HEADERS, IP, UDP, Wire, sum};
use ringrail::{Endpoint, Envelope, Owned, Peer, ReceiveOptions, Selector, SendOptions};
use ringrail_tests::lab::{Host, Lab};
use ringrail_tests::require_lab;

const HOSTS: [Host; 2] = [Host::A, Host::B];
const DRIVERS: [&str; 2] = ["uring", "sockets"];
const LABEL: Envelope = Envelope::tagged(7);
/// What each side hears by datagrams, and hears again where the network fails after that.
const MESSAGES: u64 = 100;
/// Far enough for several packets before the first answer, and for a machine that is busy for some
/// milliseconds to make no path silent.
const FAR: &str = "delay=5ms";
/// How long the network fails: a path of that length is silent after 0.4 s.
const CUT: Duration = Duration::from_millis(1500);
/// First byte of a datagram of a path; the second has flags.
const KIND_PACKET: u8 = 0x10;
const FLAG_ACK: u8 = 1;

/// The UDP checksum of a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sum {
    /// It says that there is none.
    Absent,
    Right,
    Wrong,
    /// The sender's kernel leaves it to the NIC: the datagram went by a socket.
    Offloaded,
}

/// A datagram that was seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Seen {
    by: Host,
    sum: Sum,
    /// It acknowledges something.
    has_ack: bool,
}

impl Seen {
    /// What a frame is, if it is a datagram of a path.
    fn of((frame, is_partial): (&[u8], bool), host_a: IpAddr) -> Option<Self> {
        let is_udp = frame.len() > HEADERS + 1 && frame[12..15] == [8, 0, 0x45] && frame[23] == 17;
        if !is_udp || frame[HEADERS] != KIND_PACKET {
            return None;
        }
        let end = IP + usize::from(u16::from_be_bytes([frame[IP + 2], frame[IP + 3]]));
        let datagram = &frame[UDP..end];
        let checksum = &datagram[6..8];
        // Addresses, protocol, length; the checksum among the rest makes the sum all ones.
        let total = sum(&[&frame[IP + 12..UDP], &[0, 17], &datagram[4..6], datagram]);
        let sum = match (is_partial, checksum) {
            (true, _) => Sum::Offloaded,
            (false, [0, 0]) => Sum::Absent,
            (false, _) if total == 0xffff => Sum::Right,
            (false, _) => Sum::Wrong,
        };
        let from = IpAddr::from(<[u8; 4]>::try_from(&frame[IP + 12..IP + 16]).unwrap());
        let by = if from == host_a { Host::A } else { Host::B };
        Some(Self { by, sum, has_ack: frame[HEADERS + 1] & FLAG_ACK != 0 })
    }
}

/// Sets a flag when it goes, also in a panic.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// What was seen where a host's NIC ends, in order.
struct Port {
    host: Host,
    seen: Vec<Seen>,
    /// Of these, before the network was healed.
    before_heal: usize,
}

impl Port {
    /// The frames of the host among what was seen in a range, without what went by a socket: long
    /// probes do, and all before the neighbour is known.
    fn frames(&self, range: impl std::slice::SliceIndex<[Seen], Output = [Seen]>) -> Vec<Sum> {
        let own = self.seen[range].iter().filter(|it| it.by == self.host);
        own.map(|it| it.sum).filter(|&sum| sum != Sum::Offloaded).collect()
    }

    /// Where the first acknowledgement for the host is.
    fn answered_at(&self) -> usize {
        self.seen.iter().position(|it| it.by != self.host && it.has_ack).unwrap()
    }
}

/// Both say something, then hear what the other said, until both have heard so many more messages
/// by datagrams.
fn talk(endpoint: &Endpoint<Owned>, peer: Peer, count: u64) {
    let by_datagram = || endpoint.counters().segments_by_datagram;
    let enough = by_datagram() + count;
    loop {
        let has_enough = by_datagram() >= enough;
        endpoint.send_blocking(peer, LABEL, &[has_enough.into()], SendOptions::new()).unwrap();
        let mut theirs = [0; 1];
        endpoint
            .receive_blocking(Selector::from_peer(peer, LABEL), &mut theirs, ReceiveOptions::new())
            .unwrap();
        if has_enough && theirs == [1] {
            return;
        }
    }
}

/// One side of a session, whose network fails after some messages if there is `fail`.
fn play(endpoint: &Endpoint<Owned>, peer: Peer, lane: &str, fail: Option<impl FnOnce()>) {
    talk(endpoint, peer, MESSAGES);
    if let Some(fail) = fail {
        fail();
        talk(endpoint, peer, MESSAGES);
    }
    if lane == "xdp" {
        assert_quiet(endpoint);
        assert!(figures_of(endpoint).sent > MESSAGES / 2, "{:?}", figures_of(endpoint));
    }
}

/// Takes down what passes a port, until it is over.
fn watch(mut wire: Wire, host_a: IpAddr, seen: &Mutex<Vec<Seen>>, is_over: &AtomicBool) {
    while !is_over.load(Ordering::SeqCst) {
        match wire.receive_marked() {
            Some(frame) => seen.lock().unwrap().extend(Seen::of(frame, host_a)),
            None => thread::sleep(Duration::from_micros(200)),
        }
    }
}

/// A session in a lab, with a control lane of each host. `is_cut`: its network fails once.
fn run(lab: &str, driver: &str, lanes: [&str; 2], is_cut: bool) -> [Port; 2] {
    let lab = &Lab::build(&lab.parse().unwrap()).unwrap();
    let open = |host| Wire::open(&lab.port(host, 0)).with_room(16 << 20).with_marks();
    let wires = HOSTS.map(|host| lab.enter_switch(|| open(host)).unwrap());
    let seen = &[const { Mutex::new(Vec::new()) }; 2];
    let lengths = move || seen.each_ref().map(|seen| seen.lock().unwrap().len());
    let before_heal = &Mutex::new([0; 2]);
    // Both have something under way then: who has sent nothing does not see that his path fails.
    let (cut, is_time) = mpsc::channel();
    let (begin, begun) = mpsc::channel();
    let settings = lanes.map(|lane| [("lanes", driver), ("control_lane", lane)]);
    let is_over = &AtomicBool::new(false);
    thread::scope(|scope| {
        let host_a = lab.addr(Host::A, 0);
        for (wire, seen) in wires.into_iter().zip(seen) {
            scope.spawn(move || watch(wire, host_a, seen, is_over));
        }
        let _over = Over(is_over);
        let fail = move || {
            lab.blackhole(0).unwrap();
            cut.send(()).unwrap();
            begin.send(()).unwrap();
        };
        scope.spawn(move || {
            if begun.recv().is_ok() {
                thread::sleep(CUT);
                *before_heal.lock().unwrap() = lengths();
                lab.heal(0).unwrap();
            }
        });
        let wait = move || is_time.recv().unwrap();
        pair_of(
            lab,
            [&settings[0], &settings[1]],
            |endpoint, peer| play(endpoint, peer, lanes[0], is_cut.then_some(fail)),
            |endpoint, peer| play(endpoint, peer, lanes[1], is_cut.then_some(wait)),
        );
    });
    let marks = *before_heal.lock().unwrap();
    [0, 1].map(|at| {
        let seen = std::mem::take(&mut *seen[at].lock().unwrap());
        assert!(seen.iter().all(|it| it.sum != Sum::Wrong));
        Port { host: HOSTS[at], seen, before_heal: marks[at] }
    })
}

/// RR-PATH-8
#[test]
fn frames_have_checksums_until_their_path_has_answered() {
    require_lab!();
    for driver in DRIVERS {
        for port in run(FAR, driver, ["xdp", "xdp"], false) {
            let answered_at = port.answered_at();
            let told = format!("{driver} {:?}", port.host);
            let before = port.frames(..answered_at);
            assert!(!before.is_empty() && before.iter().all(|&sum| sum == Sum::Right), "{told}");
            // Where the answer is seen it is not there yet. What a session says last, when it is
            // over, goes as by a path that is new.
            let mut after = port.frames(answered_at..);
            after.pop_if(|sum| *sum == Sum::Right);
            let is_summed = |sum: &&Sum| **sum == Sum::Right;
            let (count, with) = (after.len(), after.iter().filter(is_summed).count());
            let first = after.iter().take_while(is_summed).count();
            assert_eq!(with, first, "{told}: {after:?}");
            assert!((count - with) as u64 >= MESSAGES / 2, "{told}: {after:?}");
        }
    }
}

/// RR-PATH-8
#[test]
fn frames_have_checksums_again_once_their_path_has_failed() {
    require_lab!();
    for driver in DRIVERS {
        for port in run(FAR, driver, ["xdp", "xdp"], true) {
            let told = format!("{driver} {:?}", port.host);
            let of = |frames: &[Sum], sum| frames.iter().filter(|&&it| it == sum).count() as u64;
            let (before, after) =
                (port.frames(..port.before_heal), port.frames(port.before_heal..));
            assert!(of(&before, Sum::Absent) >= MESSAGES / 2, "{told}: {before:?}");
            assert_eq!(before.last(), Some(&Sum::Right), "{told}: probes of a silent path");
            assert!(of(&after, Sum::Right) >= MESSAGES / 2, "{told}: {after:?}");
            assert_eq!(of(&after, Sum::Absent), 0, "{told}: {after:?}");
        }
    }
}

/// RR-PATH-8: what a kernel receives may be joined with others only with checksums.
#[test]
fn what_a_socket_sends_or_receives_has_checksums() {
    require_lab!();
    for driver in DRIVERS {
        for lanes in [["udp", "udp"], ["xdp", "udp"], ["udp", "xdp"]] {
            let ports = run("switch", driver, lanes, false);
            for (port, lane) in ports.iter().zip(lanes) {
                let told = format!("{driver} {lanes:?} {:?}", port.host);
                assert!(port.seen.iter().all(|it| it.sum != Sum::Absent), "{told}");
                let own = port.seen.iter().filter(|it| it.by == port.host).count() as u64;
                assert!(own >= MESSAGES / 2, "{told}: {own}");
                let frames = port.frames(..).len() as u64;
                assert!(lane != "xdp" || frames >= MESSAGES / 2, "{told}: {frames} frames");
            }
        }
    }
}
