//! Networks and hosts without UDP: messages go by TCP, and nobody waits for a datagram.

use std::fmt::{Debug, Write as _};
use std::net::UdpSocket;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};
use std::{fs, iter, thread};

use crate::common::{attached, pair};
use ringrail::settings::Settings;
use ringrail::{
    DatagramState, Domain, Endpoint, Envelope, JobSecret, Owned, Peer, ReceiveOptions, Selector,
    SendOptions,
};
use ringrail_tests::lab::{Host, Lab, LabSpec};
use ringrail_tests::require_lab;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level as LogLevel, Metadata, Subscriber};

const DRIVERS: [&str; 2] = ["uring", "sockets"];
const LIMIT: Duration = Duration::from_secs(60);
/// Around the limits of a datagram, of eager messages and of chunks.
const SIZES: [usize; 7] = [0, 8, 1500, 9000, 16_384, 16_385, 1 << 20];

/// What a host does to UDP.
#[derive(Clone, Copy, Debug)]
enum Wall {
    /// What comes in vanishes.
    Drop,
    /// What goes out is refused to the sender at once (`EACCES`), as by a local firewall.
    Refuse,
}

impl Wall {
    fn rule(self) -> &'static [&'static str] {
        match self {
            Self::Drop => &["pref", "1", "ipproto", "udp", "iif", "rail0", "blackhole"],
            Self::Refuse => &["pref", "1", "ipproto", "udp", "prohibit"],
        }
    }
}

fn ip_rule(lab: &Lab, host: Host, arguments: &[&str]) {
    let mut command = lab.host(host).command("ip");
    let output = command.arg("rule").args(arguments).output(LIMIT).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A lab whose routing rules can be put before the one for local addresses.
fn lab() -> Lab {
    let lab = Lab::build(&LabSpec::rails(1)).unwrap();
    for host in [Host::A, Host::B] {
        ip_rule(&lab, host, &["add", "pref", "10", "lookup", "local"]);
        ip_rule(&lab, host, &["del", "pref", "0"]);
    }
    lab
}

fn raise(lab: &Lab, host: Host, wall: Wall) {
    ip_rule(lab, host, &[&["add"], wall.rule()].concat());
}

fn remove(lab: &Lab, host: Host, wall: Wall) {
    ip_rule(lab, host, &[&["del"], wall.rule()].concat());
}

/// Both send and both receive, several at a time; every byte is looked at.
fn exchange(endpoint: &Endpoint<Owned>, peer: Peer, rounds: u64) {
    for round in 0..rounds {
        let label = Envelope::tagged(round);
        let bytes = |size: usize| vec![(size as u64 ^ round) as u8; size];
        let send = |size| endpoint.send(peer, label, bytes(size), SendOptions::default()).unwrap();
        let sends: Vec<_> = SIZES.map(send).into();
        for size in SIZES {
            let mut into = vec![!((size as u64 ^ round) as u8); size];
            let status = endpoint
                .receive_blocking(
                    Selector::from_peer(peer, label),
                    &mut into,
                    ReceiveOptions::new(),
                )
                .unwrap();
            assert_eq!(status.length, size, "round {round}");
            assert!(into == bytes(size), "round {round}, {size} bytes");
        }
        for send in sends {
            send.wait().unwrap();
        }
    }
}

/// RR-PATH-2
#[test]
fn a_network_without_udp_costs_no_message() {
    require_lab!();
    let walls: [&[(Host, Wall)]; 3] = [
        &[(Host::A, Wall::Drop), (Host::B, Wall::Drop)],
        &[(Host::B, Wall::Drop)],
        &[(Host::A, Wall::Refuse)],
    ];
    for (driver, walls) in DRIVERS.into_iter().flat_map(|name| walls.map(|walls| (name, walls))) {
        let lab = lab();
        walls.iter().for_each(|&(host, wall)| raise(&lab, host, wall));
        let side = |endpoint: &Endpoint<Owned>, peer: Peer| {
            let state = endpoint.datagrams();
            assert!(matches!(state, DatagramState::Taken { .. }), "{state:?}");
            let started = Instant::now();
            exchange(endpoint, peer, 20);
            assert!(started.elapsed() < LIMIT, "{walls:?}: {:?}", started.elapsed());
            let counters = endpoint.counters();
            assert_eq!(counters.segments_by_datagram, 0, "{walls:?}: {counters:?}");
            assert!(counters.datagrams_sent > 0, "nothing was probed: {counters:?}");
        };
        pair(&lab, &[("lanes", driver)], side, side);
    }
}

/// Messages there and back until `is_over`, which sees how many datagrams brought something.
fn talk(endpoint: &Endpoint<Owned>, peer: Peer, leads: bool, is_over: impl Fn(u64) -> bool) {
    let (label, started) = (Envelope::tagged(1), Instant::now());
    let selector = Selector::from_peer(peer, label);
    let send = |over: bool| {
        endpoint.send_blocking(peer, label, &[u8::from(over)], SendOptions::new()).unwrap();
    };
    let mut into = [0; 1];
    loop {
        assert!(started.elapsed() < LIMIT, "{:?}", endpoint.counters());
        let over = is_over(endpoint.counters().segments_by_datagram);
        if leads {
            send(over);
        }
        endpoint.receive_blocking(selector, &mut into, ReceiveOptions::new()).unwrap();
        if !leads {
            send(over);
        }
        if over && into == [1] {
            return;
        }
    }
}

/// RR-PATH-3
#[test]
fn a_firewall_in_mid_life_costs_no_message_and_its_end_is_noticed() {
    require_lab!();
    for (driver, wall) in iter::zip(DRIVERS, [Wall::Drop, Wall::Refuse]) {
        let lab = lab();
        let side = |endpoint: &Endpoint<Owned>, peer: Peer, leads: bool, turn: &dyn Fn()| {
            talk(endpoint, peer, leads, |count| count > 50);
            turn();
            // From here on nothing that one side sends gets through, and no answer to the other.
            exchange(endpoint, peer, 20);
            turn();
            let before = endpoint.counters().segments_by_datagram;
            talk(endpoint, peer, leads, |count| count > before + 50);
        };
        // Programs are started from outside of a host.
        let (ask, asked) = mpsc::sync_channel(0);
        let (answer, answered) = mpsc::channel();
        thread::scope(|scope| {
            let at = &lab;
            scope.spawn(move || {
                for change in [raise, remove] {
                    if asked.recv().is_ok() {
                        change(at, Host::A, wall);
                        answer.send(()).unwrap();
                    }
                }
            });
            pair(
                &lab,
                &[("lanes", driver)],
                move |endpoint, peer| {
                    let turn = || {
                        ask.send(()).unwrap();
                        answered.recv_timeout(LIMIT).unwrap();
                    };
                    side(endpoint, peer, true, &turn);
                },
                |endpoint, peer| side(endpoint, peer, false, &|| {}),
            );
        });
    }
}

/// Keeps the lines that this thread's engines log.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, "{}={value:?} ", field.name()).unwrap();
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= LogLevel::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// A host all of whose UDP ports are taken.
#[test]
fn a_host_without_udp_sockets_goes_by_tcp_and_says_so_once() {
    require_lab!();
    let (lab, log) = (lab(), Log::default());
    let local = lab.addr(Host::A, 0);
    let ports = 40_000..40_010u16;
    let takes = || {
        let range = format!("{} {}", ports.start, ports.end - 1);
        fs::write("/proc/sys/net/ipv4/ip_local_port_range", range).unwrap();
        ports.clone().map(|port| UdpSocket::bind((local, port)).unwrap()).collect::<Vec<_>>()
    };
    let taken = lab.host(Host::A).enter(takes).unwrap();
    let talk = || {
        let _guard = tracing::subscriber::set_default(log.clone());
        let left = attached(local, &[("port_range", "40000-40009")]).unwrap();
        let right = attached(local, &[]).unwrap();
        for endpoint in [&left, &right] {
            let DatagramState::Refused { cause, .. } = endpoint.datagrams() else {
                panic!("{:?}", endpoint.datagrams());
            };
            assert!(cause.contains(&local.to_string()), "{cause}");
        }
        let (to, from) =
            (left.insert_peer(&right.address()).unwrap(), right.insert_peer(&left.address()));
        let label = Envelope::tagged(1);
        let selector = Selector::from_peer(from.unwrap(), label);
        let mut receive = right.receive(selector, vec![0u8; 8]).unwrap();
        let options = SendOptions::default();
        let send = left.send(to, label, b"by TCP !".to_vec(), options).unwrap();
        let started = Instant::now();
        let mut outcome = loop {
            left.progress().unwrap();
            if let Some(outcome) = receive.test().unwrap() {
                break outcome;
            }
            assert!(started.elapsed() < LIMIT);
        };
        assert_eq!(outcome.status.length, 8);
        assert_eq!(outcome.buffer.gather().unwrap(), b"by TCP !");
        send.wait().unwrap();
    };
    lab.host(Host::A).enter(talk).unwrap();
    let lines = log.0.lock().unwrap().clone();
    assert_eq!(lines.len(), 2, "one for each engine: {lines:?}");
    for line in lines {
        assert!(
            line.contains("cannot bind a datagram socket") && line.contains("messages use TCP"),
            "{line}"
        );
    }
    // Only a program that insists on frames is told by an error.
    let settings = Settings::isolated()
        .set("listen_address", &local.to_string())
        .set("control_lane", "xdp")
        .job_secret(Some(&JobSecret::random()));
    let domain = Domain::with_settings(settings.build().unwrap()).unwrap();
    let refused = lab.host(Host::A).enter(move || domain.endpoint().map(drop)).unwrap();
    let error = refused.unwrap_err().to_string();
    assert!(
        error.contains("control_lane = xdp") && error.contains("cannot bind a datagram socket"),
        "{error}"
    );
    drop(taken);
}
