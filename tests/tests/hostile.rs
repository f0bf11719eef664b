//! Frames that nobody should have sent, amid traffic.

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::books::{assert_quiet, figures_of};
use crate::common::{pair, pair_of};
use crate::raw::{HEADERS, IP, UDP, Wire, seal, set, with_payload};
use crate::stream::{Side, exchange};
use ringrail::{
    DatagramState, DroppedDatagrams, Endpoint, Event, JobSecret, Owned, Peer, PeerFailure,
};
use ringrail_tests::lab::{Host, Lab, LabSpec};
use ringrail_tests::require_lab;
use ringrail_xdp::{AttachMode, Counters, Nic};

/// The host that is attacked, by the other one.
const HOST_B: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const MESSAGES: u64 = 10_000;
/// Of each kind so many at least have to have been sent for a run to count.
const ENOUGH: u64 = 20;

/// What is wrong with a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wrong {
    /// It was sent already.
    Replayed,
    /// One bit of its content is another one.
    Corrupted,
    /// The datagram ends inside its header.
    Cut,
    /// It belongs to a session of another job.
    OtherJob,
    /// It is one of another job's that names a session of this one.
    Forged,
    /// No socket is at its port.
    ToNobody,
    /// No host has its address.
    ToNoHost,
    /// It ends before the length in its IP header.
    TooShort,
    /// Its UDP length goes beyond its IP packet.
    TooLong,
    /// Its IP header says that it is shorter than itself.
    Malformed,
    /// One fragment of a packet that never comes.
    Fragment,
}

impl Wrong {
    const ALL: [Self; 11] = [
        Self::Replayed,
        Self::Corrupted,
        Self::Cut,
        Self::OtherJob,
        Self::Forged,
        Self::ToNobody,
        Self::ToNoHost,
        Self::TooShort,
        Self::TooLong,
        Self::Malformed,
        Self::Fragment,
    ];

    /// A frame that was sent, with this wrong; `foreign` is one of another job.
    fn made(self, sent: &[u8], foreign: &[u8]) -> Vec<u8> {
        let mut frame = sent.to_vec();
        match self {
            Self::Replayed => {}
            // The tag is over all; this may hit itself.
            Self::Corrupted => *frame.last_mut().unwrap() ^= 0x10,
            Self::Cut => frame = with_payload(sent, &sent[HEADERS..HEADERS + 11]),
            Self::OtherJob => frame = with_payload(sent, &foreign[HEADERS..]),
            Self::Forged => {
                let mut payload = foreign[HEADERS..].to_vec();
                payload[..16].copy_from_slice(&sent[HEADERS..HEADERS + 16]);
                frame = with_payload(sent, &payload);
            }
            Self::ToNobody => set(&mut frame, UDP + 2, 9),
            Self::ToNoHost => frame[IP + 19] = 99,
            Self::TooShort => set(&mut frame, IP + 2, (sent.len() - IP + 1) as u16),
            Self::TooLong => set(&mut frame, UDP + 4, (sent.len() - UDP + 1) as u16),
            Self::Malformed => set(&mut frame, IP + 2, 19),
            // More fragments follow.
            Self::Fragment => set(&mut frame, IP + 6, 0x2000),
        }
        seal(&mut frame);
        frame
    }
}

/// What was sent of each kind, in the order of [`Wrong::ALL`].
type Injected = [u64; Wrong::ALL.len()];

fn of(injected: &Injected, wrong: Wrong) -> u64 {
    injected[wrong as usize]
}

/// Adds a frame of one kind after another to what goes out to `to`, until it is over.
fn attack(mut wire: Wire, to: &AtomicU16, foreign: &[u8], is_over: &AtomicBool) -> Injected {
    let mut injected = Injected::default();
    let mut kinds = Wrong::ALL.into_iter().cycle();
    while !is_over.load(Ordering::SeqCst) {
        let port = to.load(Ordering::SeqCst);
        let Some(sent) = wire.datagram_to((HOST_B, port)) else {
            thread::sleep(Duration::from_micros(100));
            continue;
        };
        let wrong = kinds.next().unwrap();
        if wire.send(&wrong.made(&sent, foreign)) {
            injected[wrong as usize] += 1;
        }
    }
    injected
}

fn port_of(endpoint: &Endpoint<Owned>) -> (u16, DroppedDatagrams) {
    match endpoint.datagrams() {
        DatagramState::Taken { port, dropped, .. } => (port, dropped),
        state => panic!("{state:?}"),
    }
}

/// A frame to host b of a job with a secret of its own.
fn foreign_frame(lab: &Lab) -> Vec<u8> {
    let secret = JobSecret::random().to_hex();
    let settings = [("control_lane", "udp"), ("job_secret", secret.as_str())];
    let mut wire = lab.host(Host::A).enter(|| Wire::open("rail0").without_trains()).unwrap();
    let (done, to) = (AtomicUsize::new(0), AtomicU16::new(0));
    let side = |index| {
        let (done, to) = (&done, &to);
        move |endpoint: &Endpoint<Owned>, peer: Peer| {
            if index == 1 {
                to.store(port_of(endpoint).0, Ordering::SeqCst);
            }
            exchange(&Side { endpoint, peer, index, messages: 500, done }, |_| ());
        }
    };
    let is_over = AtomicBool::new(false);
    let found = thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut found = None;
            while found.is_none() && !is_over.load(Ordering::SeqCst) {
                let to = (HOST_B, to.load(Ordering::SeqCst));
                found = wire.datagram_to(to).filter(|frame| frame.len() > 100);
                // Its buffer would be full of the beginning before the end.
                thread::sleep(Duration::from_micros(if found.is_none() { 50 } else { 0 }));
            }
            found
        });
        let over = Over(&is_over);
        pair(lab, &settings, side(0), side(1));
        drop(over);
        watcher.join().unwrap()
    });
    found.expect("a datagram of the other job")
}

/// What host b counted.
struct Seen {
    dropped: DroppedDatagrams,
    nic: Counters,
    injected: Injected,
}

/// Messages both ways while host a's wire is not its own. Host a sends by its socket, where the
/// wire can see it; host b receives by `lane`.
fn attacked(lane: &str, driver: &str) -> Seen {
    let lab = Lab::build(&LabSpec::rails(1)).unwrap();
    let foreign = foreign_frame(&lab);
    let join = || Nic::join("rail0", AttachMode::Auto).unwrap();
    let nic = lab.host(Host::B).enter(join).unwrap();
    // A train sent as one datagram would be no replay, but a forgery.
    let wire = lab.host(Host::A).enter(|| Wire::open("rail0").without_trains()).unwrap();
    let (done, to, is_over) = (AtomicUsize::new(0), AtomicU16::new(0), AtomicBool::new(false));
    let open = || UdpSocket::bind((lab.addr(Host::A, 0), 0)).unwrap();
    let stranger = lab.host(Host::A).enter(open).unwrap();
    let side = |index: u8| {
        let (done, to, stranger) = (&done, &to, &stranger);
        move |endpoint: &Endpoint<Owned>, peer: Peer| {
            assert_eq!(endpoint.driver(), driver);
            let port = port_of(endpoint).0;
            if index == 1 {
                to.store(port, Ordering::SeqCst);
            }
            exchange(&Side { endpoint, peer, index, messages: MESSAGES, done }, |came| {
                if index == 1 && came < MESSAGES {
                    // In fragments, which the kernel puts together.
                    stranger.send_to(&[0x10; 9000], (HOST_B, port)).unwrap();
                }
            });
            while let Some(event) = endpoint.next_event() {
                // The other side may be through with this, too.
                if let Event::Disconnected { failure, .. } = event {
                    assert_eq!(failure, PeerFailure::Left);
                }
            }
            let counters = endpoint.counters();
            assert!(counters.segments_by_datagram * 2 > counters.segments_received, "{counters:?}");
            if index == 1 && lane == "xdp" {
                assert_quiet(endpoint);
                assert!(figures_of(endpoint).received > 100);
            }
            // More may come between two questions.
            let before = endpoint.counters().datagrams_dropped;
            let dropped = port_of(endpoint).1;
            (dropped, before..=endpoint.counters().datagrams_dropped)
        }
    };
    let settings =
        [[("control_lane", "udp"), ("lanes", driver)], [("control_lane", lane), ("lanes", driver)]];
    let (dropped, injected) = thread::scope(|scope| {
        let attacker = scope.spawn(|| attack(wire, &to, &foreign, &is_over));
        // Also after a panic, or nobody would see it.
        let over = Over(&is_over);
        let (_, (dropped, sum)) = pair_of(&lab, [&settings[0], &settings[1]], side(0), side(1));
        drop(over);
        let DroppedDatagrams { malformed, too_long, unknown, forged, repeated, stray, .. } =
            dropped;
        let all = malformed + too_long + unknown + forged + repeated + stray;
        assert!(sum.contains(&all), "{all} of {sum:?}");
        (dropped, attacker.join().unwrap())
    });
    Seen { dropped, nic: nic.counters().unwrap(), injected }
}

/// Sets a flag when it goes.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// At least half of what was sent was counted (the rest found a queue full), and not more, but for
/// `others` that had the same reason.
#[track_caller]
fn assert_counted(reason: &str, counted: u64, injected: u64, others: u64) {
    assert!(injected >= ENOUGH, "{reason}: only {injected} were sent");
    let range = injected / 2..=injected + others;
    assert!(range.contains(&counted), "{reason}: {counted} of {injected}");
}

#[test]
fn hostile_frames_are_counted_by_reason_and_harm_nothing() {
    require_lab!();
    for (lane, driver) in [("xdp", "uring"), ("xdp", "sockets"), ("udp", "uring")] {
        let Seen { dropped, nic, injected } = attacked(lane, driver);
        let sent = |wrong| of(&injected, wrong);
        let told = format!("{lane} {driver}: {dropped:?} {nic:?} {injected:?}");
        let count = |reason: &str, counted, injected, others| {
            assert_counted(&format!("{reason}, {told}"), counted, injected, others);
        };
        // What the endpoint saw.
        // What is forged may not even be a packet.
        count("malformed", dropped.malformed, sent(Wrong::Cut), sent(Wrong::Forged));
        // A peer's first question may come before its session is one here.
        count("unknown", dropped.unknown, sent(Wrong::OtherJob), 100);
        let forged = sent(Wrong::Corrupted) + sent(Wrong::Forged);
        count("forged", dropped.forged, forged, 0);
        count("repeated", dropped.repeated, sent(Wrong::Replayed), 0);
        assert!(dropped.too_long > 0, "{told}");
        if lane == "xdp" {
            // What the program saw.
            let nowhere = sent(Wrong::ToNobody) + sent(Wrong::ToNoHost);
            count("not claimed", nic.not_claimed, nowhere, nowhere);
            count("too short", nic.too_short, sent(Wrong::TooShort), 0);
            count("too long", nic.too_long, sent(Wrong::TooLong), 0);
            count("not IP", nic.malformed, sent(Wrong::Malformed), 0);
            count("fragment", nic.fragment, sent(Wrong::Fragment), 1000);
        }
    }
}
