//! Endpoints on two hosts: what the loopback address cannot show.

use std::net::{IpAddr, SocketAddr};
use std::sync::{OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use ringrail::settings::Settings;
use ringrail::{
    Address, Buffer, CompletionLevel, Domain, Endpoint, Envelope, Error, Event, Failed, JobSecret,
    Owned, Peer, PeerFailure, ReceiveOptions, Selector, SendOptions, SharedMemoryState,
};
use ringrail_tests::lab::{Host, Lab, LabSpec};
use ringrail_tests::require_lab;

const DRIVERS: [&str; 2] = ["uring", "sockets"];
const LIMIT: Duration = Duration::from_secs(120);

fn lab() -> Lab {
    Lab::build(&LabSpec::rails(1)).unwrap()
}

/// Both hosts are of one job.
fn secret() -> &'static JobSecret {
    static SECRET: OnceLock<JobSecret> = OnceLock::new();
    SECRET.get_or_init(JobSecret::random)
}

/// An endpoint of the calling thread's host that listens at `local`.
fn attached(local: IpAddr, settings: &[(&str, &str)]) -> Endpoint<Owned> {
    let mut builder = Settings::isolated().set("listen_address", &local.to_string());
    builder = builder.job_secret(Some(secret()));
    for (name, value) in settings {
        builder = builder.set(name, value);
    }
    let domain = Domain::with_settings(builder.build().unwrap()).unwrap();
    domain.endpoint().unwrap().attach().unwrap()
}

/// Runs `left` in host a and `right` in host b, each with the other as its peer.
fn pair<L: Send, R: Send>(
    lab: &Lab,
    settings: &[(&str, &str)],
    left: impl FnOnce(&Endpoint<Owned>, Peer) -> L + Send,
    right: impl FnOnce(&Endpoint<Owned>, Peer) -> R + Send,
) -> (L, R) {
    let (to_left, of_right) = mpsc::channel::<Address>();
    let (to_right, of_left) = mpsc::channel::<Address>();
    let run = |host, to: mpsc::Sender<Address>, of: mpsc::Receiver<Address>| {
        let endpoint = attached(lab.addr(host, 0), settings);
        to.send(endpoint.address()).unwrap();
        let peer = endpoint.insert_peer(&of.recv().unwrap()).unwrap();
        (endpoint, peer)
    };
    thread::scope(|scope| {
        let left = scope.spawn(|| {
            let work = move || {
                let (endpoint, peer) = run(Host::A, to_right, of_right);
                left(&endpoint, peer)
            };
            lab.host(Host::A).enter(work).unwrap()
        });
        let work = move || {
            let (endpoint, peer) = run(Host::B, to_left, of_left);
            right(&endpoint, peer)
        };
        let right = lab.host(Host::B).enter(work).unwrap();
        (left.join().unwrap(), right)
    })
}

fn failure_of(error: &Error) -> (&Address, &PeerFailure) {
    match error {
        Error::Peer { address, failure, .. } => (address, failure),
        other => panic!("not a failure of a peer: {other}"),
    }
}

/// Fills a message so that every page of it is its own.
fn stamp(bytes: &mut [u8], seed: u64) {
    for (page, number) in bytes.chunks_mut(4096).zip(0u64..) {
        let mark = (number ^ seed.rotate_left(40)).to_le_bytes();
        let short = page.len().min(8);
        page[..short].copy_from_slice(&mark[..short]);
        let last = page.len() - short;
        page[last..].copy_from_slice(&mark[..short]);
    }
}

#[test]
fn messages_up_to_256_mib_arrive_whole() {
    require_lab!();
    // Sizes around limits and pages, odd ones, and the longest that the project promises.
    let sizes = [0usize, 1, 4095, 16_384, 16_385, (1 << 20) + 1, (37 << 20) + 11, 256 << 20];
    for driver in DRIVERS {
        pair(
            &lab(),
            &[("lanes", driver)],
            move |endpoint, peer| {
                assert_eq!(endpoint.driver(), driver);
                for size in sizes {
                    // One byte off every alignment.
                    let mut bytes = vec![0; size + 1];
                    stamp(&mut bytes[1..], size as u64);
                    let label = Envelope::tagged(size as u64);
                    endpoint
                        .send_blocking(
                            peer,
                            label,
                            &bytes[1..],
                            SendOptions::at(CompletionLevel::Match),
                        )
                        .unwrap();
                }
            },
            move |endpoint, peer| {
                for size in sizes {
                    let (mut into, mut expected) = (vec![0; size + 3], vec![0; size]);
                    stamp(&mut expected, size as u64);
                    let selector = Selector::from_peer(peer, Envelope::tagged(size as u64));
                    let status = endpoint
                        .receive_blocking(selector, &mut into[3..], ReceiveOptions::new())
                        .unwrap();
                    assert_eq!((status.length, status.peer), (size, Some(peer)));
                    assert!(into[3..] == expected, "{driver}: size {size}");
                }
            },
        );
    }
}

#[test]
fn both_send_first_and_nobody_waits_for_ever() {
    require_lab!();
    for driver in DRIVERS {
        // Windows of one envelope: credit runs out at once on both sides.
        let settings = [
            ("lanes", driver),
            ("envelope_credits", "1"),
            ("unexpected_messages", "1"),
            ("send_queue_ops", "8"),
        ];
        let exchange = |endpoint: &Endpoint<Owned>, peer: Peer| {
            for round in 0..300u64 {
                let length = [8, 9000, 100_000][round as usize % 3];
                let mut bytes = vec![0; length];
                stamp(&mut bytes, round);
                let label = Envelope::tagged(round);
                let options = SendOptions::default();
                let send = endpoint.send(peer, label, bytes.clone(), options).unwrap();
                let mut into = vec![0; length];
                endpoint
                    .receive_blocking(
                        Selector::from_peer(peer, label),
                        &mut into,
                        ReceiveOptions::new(),
                    )
                    .unwrap();
                assert!(into == bytes, "{driver}: round {round}");
                send.wait().unwrap();
            }
        };
        pair(&lab(), &settings, exchange, exchange);
    }
}

#[test]
fn addresses_that_nobody_has_fail_with_peer_and_cause_in_time() {
    require_lab!();
    for driver in DRIVERS {
        let lab = lab();
        let settings = [
            ("lanes", driver),
            ("connect_timeout", "200ms"),
            ("connect_retries", "2"),
            ("connect_retry_delay", "10ms"),
        ];
        let mut routes = lab.host(Host::A).command("ip");
        routes.args(["route", "add", "blackhole", "10.99.0.0/24"]);
        assert!(routes.output(LIMIT).unwrap().status.success());
        let local = lab.addr(Host::A, 0);
        lab.host(Host::A)
            .enter(|| {
                let endpoint = attached(local, &settings);
                // On the rail's network and silent, routed into nothing, and not routed at all.
                for host in ["10.77.0.99", "10.99.0.1", "192.0.2.1"] {
                    let locator = SocketAddr::new(host.parse().unwrap(), 4711);
                    let mut bytes = endpoint.address().to_bytes();
                    relocate(&mut bytes, locator);
                    let address = Address::from_bytes(&bytes).unwrap();
                    assert_eq!(address.locator(), locator);
                    let peer = endpoint.insert_peer(&address).unwrap();
                    let started = Instant::now();
                    let label = Envelope::tagged(1);
                    let error =
                        endpoint.send_blocking(peer, label, b"?", SendOptions::new()).unwrap_err();
                    let (named, failure) = failure_of(&error);
                    assert_eq!(named.locator(), locator, "{error}");
                    assert!(
                        matches!(failure, PeerFailure::Unreachable { attempts: 3, .. }),
                        "{error}"
                    );
                    assert!(started.elapsed() < Duration::from_secs(20), "{error}");
                }
            })
            .unwrap();
    }
}

/// Another engine's address at `locator`, of the form that this version writes.
fn relocate(bytes: &mut [u8], locator: SocketAddr) {
    let IpAddr::V4(ip) = locator.ip() else { panic!("the lab speaks IPv4") };
    bytes[8..12].copy_from_slice(&ip.octets());
    bytes[4..6].copy_from_slice(&locator.port().to_le_bytes());
    bytes[40] ^= ip.octets()[1] + 1;
}

/// Takes host b's end of the rail down when it is told to.
fn cut_rail(lab: &Lab, is_time: &mpsc::Receiver<()>) {
    is_time.recv_timeout(LIMIT).unwrap();
    let mut down = lab.host(Host::B).command("ip");
    down.args(["link", "set", "rail0", "down"]);
    assert!(down.output(LIMIT).unwrap().status.success());
}

#[test]
fn a_rail_that_goes_down_in_mid_transfer_ends_everything_in_time() {
    require_lab!();
    for driver in DRIVERS {
        let lab = lab();
        let settings = [("lanes", driver), ("peer_timeout", "1s"), ("connect_retries", "0")];
        let (cut, is_cut) = mpsc::channel();
        let at = &lab;
        let side = |endpoint: &Endpoint<Owned>, peer: Peer, cut: Option<mpsc::Sender<()>>| {
            let label = Envelope::tagged(1);
            let long = |number: u8| vec![number; 64 << 20];
            endpoint.connect(peer, None).unwrap();
            let options = SendOptions::default();
            let sends = (0..4).map(|number| endpoint.send(peer, label, long(number), options));
            let mut pending: Vec<_> = sends.map(Result::unwrap).collect();
            let selector = Selector::from_peer(peer, label);
            pending.extend((0..8).map(|_| endpoint.receive(selector, long(0)).unwrap()));
            for _ in 0..300 {
                endpoint.progress().unwrap();
            }
            if let Some(cut) = cut {
                cut.send(()).unwrap();
            }
            let started = Instant::now();
            let mut failed = 0;
            for operation in pending {
                if let Err(Failed { error, .. }) = operation.wait() {
                    assert!(matches!(failure_of(&error).1, PeerFailure::Lost(_)), "{error}");
                    failed += 1;
                }
            }
            assert!(failed > 0, "the cut came too late to matter");
            // The kernel counts keep-alive in whole seconds.
            assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
        };
        thread::scope(|scope| {
            scope.spawn(move || cut_rail(at, &is_cut));
            pair(
                &lab,
                &settings,
                |endpoint, peer| side(endpoint, peer, Some(cut)),
                |endpoint, peer| side(endpoint, peer, None),
            );
        });
    }
}

/// One process has engines in two network namespaces. Lanes that are opened while an owner computes
/// are of its own.
///
/// RR-PATH-6, RR-LANE-1
#[test]
fn what_opens_lanes_for_a_silent_owner_is_in_its_network() {
    require_lab!();
    const LENGTH: usize = 1 << 20;
    let tag = Envelope::tagged(1);
    for lanes in DRIVERS {
        // Whichever of the two is looked after first.
        for opener in [Host::A, Host::B] {
            let lab = lab();
            let side = |endpoint: &Endpoint<Owned>, peer: Peer, host: Host| {
                let options = SendOptions::default();
                if host == opener {
                    endpoint.connect(peer, None).unwrap();
                    let send = endpoint.send(peer, tag, vec![7; LENGTH], options).unwrap();
                    thread::sleep(Duration::from_millis(300));
                    send.wait().unwrap();
                } else {
                    let mut room = vec![0; LENGTH];
                    let selector = Selector::from_peer(peer, tag);
                    endpoint.receive_blocking(selector, &mut room, ReceiveOptions::new()).unwrap();
                    assert!(room.iter().all(|&byte| byte == 7));
                }
                assert_eq!(endpoint.counters().lane_failures, 0, "{lanes}, {host:?}");
            };
            pair(
                &lab,
                &[("lanes", lanes)],
                |endpoint, peer| side(endpoint, peer, Host::A),
                |endpoint, peer| side(endpoint, peer, Host::B),
            );
        }
    }
}

/// RR-END-2
#[test]
fn a_silent_host_is_found_dead_though_only_receives_wait() {
    require_lab!();
    let lab = lab();
    let settings = [("peer_timeout", "1s")];
    let (cut, is_cut) = mpsc::channel();
    let at = &lab;
    thread::scope(|scope| {
        scope.spawn(move || cut_rail(at, &is_cut));
        let wait = |endpoint: &Endpoint<Owned>, peer: Peer| {
            endpoint.connect(peer, None).unwrap();
            let selector = Selector::from_peer(peer, Envelope::tagged(1));
            let receive = endpoint.receive(selector, vec![0u8; 8]).unwrap();
            let started = Instant::now();
            let error = receive.wait().unwrap_err().error;
            assert!(matches!(failure_of(&error).1, PeerFailure::Lost(_)), "{error}");
            assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
        };
        pair(
            &lab,
            &settings,
            |endpoint, peer| {
                // Both sides know of the session before the silence.
                let hello = Selector::from_peer(peer, Envelope::tagged(2));
                endpoint.receive_blocking(hello, &mut [0; 1], ReceiveOptions::new()).unwrap();
                cut.send(()).unwrap();
                wait(endpoint, peer);
            },
            |endpoint, peer| {
                let label = Envelope::tagged(2);
                endpoint.send_blocking(peer, label, b"x", SendOptions::new()).unwrap();
                wait(endpoint, peer);
            },
        );
    });
}

/// The receiver computes when the sender closes. Then it says what it has room for, while bytes are
/// on their way still.
///
/// RR-END-1
#[test]
fn all_that_was_sent_before_closing_arrives_and_then_a_goodbye() {
    require_lab!();
    const COUNT: u8 = 31;
    const LENGTH: usize = 8000;
    let tag = Envelope::tagged(1);
    let all = DRIVERS.map(|lanes| [("lanes", lanes), ("control_lane", "tcp")]);
    for settings in all {
        let lab = Lab::build(&"rate=20mbit".parse().unwrap()).unwrap();
        let (sent, is_sent) = mpsc::channel();
        pair(
            &lab,
            &settings,
            move |endpoint, peer| {
                let options = SendOptions::default();
                for number in 0..COUNT {
                    endpoint.post_send(peer, tag, vec![number; LENGTH], options).unwrap();
                }
                let mut done = Vec::new();
                while done.len() < usize::from(COUNT) {
                    endpoint.wait(&mut done, 64, None).unwrap();
                }
                assert!(done.iter().all(|done| done.result.is_ok()), "{done:?}");
                sent.send(()).unwrap();
            },
            move |endpoint, peer| {
                endpoint.connect(peer, None).unwrap();
                while !matches!(endpoint.next_event(), Some(Event::Connected { .. })) {
                    endpoint.progress().unwrap();
                }
                let _ = is_sent.recv_timeout(LIMIT);
                thread::sleep(Duration::from_secs(1));
                let start = Instant::now();
                for number in 0..COUNT {
                    let message = vec![0; LENGTH];
                    let received =
                        endpoint.receive(Selector::from_peer(peer, tag), message).unwrap();
                    let outcome = received.wait().unwrap();
                    let Buffer::Heap(message) = outcome.buffer else { panic!() };
                    assert!(message.iter().all(|&byte| byte == number), "{number}");
                }
                let failure = loop {
                    assert!(start.elapsed() < LIMIT, "nobody says goodbye");
                    endpoint.progress().unwrap();
                    if let Some(Event::Disconnected { failure, .. }) = endpoint.next_event() {
                        break failure;
                    }
                };
                assert_eq!(failure, PeerFailure::Left);
            },
        );
    }
}

#[test]
fn lists_and_regions_cross_the_wire() {
    require_lab!();
    for driver in DRIVERS {
        pair(
            &lab(),
            &[("lanes", driver)],
            |endpoint, peer| {
                let mut region = endpoint.domain().allocate(200_000).unwrap();
                stamp(&mut region, 5);
                let tail = region.split_off(100_001);
                let list = Buffer::list([Buffer::from(region), Buffer::from(tail)]);
                let options = SendOptions::at(CompletionLevel::Match);
                let send = endpoint.send(peer, Envelope::tagged(1), list, options).unwrap();
                send.wait().unwrap();
            },
            |endpoint, peer| {
                let pieces = (0..2000).map(|_| Buffer::from(vec![0u8; 100]));
                let selector = Selector::from_peer(peer, Envelope::tagged(1));
                let receive = endpoint.receive(selector, Buffer::list(pieces)).unwrap();
                let mut outcome = receive.wait().unwrap();
                assert_eq!(outcome.status.length, 200_000);
                let mut expected = vec![0; 200_000];
                stamp(&mut expected, 5);
                assert!(outcome.buffer.gather().unwrap() == expected, "{driver}");
            },
        );
    }
}

/// As containers of one host have it.
#[test]
fn network_namespaces_with_one_directory_share_memory_and_without_it_none() {
    require_lab!();
    const LONG: usize = 1 << 20;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    for driver in DRIVERS {
        for settings in
            [&[("lanes", driver)][..], &[("lanes", driver), ("shared_memory_directory", path)]]
        {
            let is_shared = settings.len() > 1;
            let side = |is_first: bool| {
                move |endpoint: &Endpoint<Owned>, peer: Peer| {
                    let (tag, start) = (Envelope::tagged(1), Instant::now());
                    let mut expected = vec![0; LONG];
                    stamp(&mut expected, 7);
                    let mut into = vec![0; LONG];
                    let mut are_all_shared = false;
                    // Until both sides have read, or often enough to be sure that none does.
                    for round in 0.. {
                        let SharedMemoryState::On { figures, .. } = endpoint.shared_memory() else {
                            panic!("not on")
                        };
                        let is_ours = figures.received > 0 && figures.read_calls > 0;
                        assert!(is_shared || (!is_ours && figures.local_peers == 0), "{figures:?}");
                        if are_all_shared || (!is_shared && round == 20) {
                            break;
                        }
                        assert!(start.elapsed() < LIMIT, "no memory is shared: {figures:?}");
                        expected[0] = u8::from(is_ours);
                        let selector = Selector::from_peer(peer, tag);
                        let options = SendOptions::at(CompletionLevel::Match);
                        if is_first {
                            endpoint.send_blocking(peer, tag, &expected, options).unwrap();
                        }
                        endpoint
                            .receive_blocking(selector, &mut into, ReceiveOptions::new())
                            .unwrap();
                        if !is_first {
                            endpoint.send_blocking(peer, tag, &expected, options).unwrap();
                        }
                        assert!(into[1..] == expected[1..]);
                        are_all_shared = into[0] == 1 && is_ours;
                    }
                }
            };
            pair(&lab(), settings, side(true), side(false));
        }
    }
    assert_eq!(std::fs::read_dir(path).unwrap().count(), 0, "nothing is left there");
}
