//! Labs with a switch: rates, loss, faults at run time, and what is beside the rails.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ringrail_tests::lab::{DECOYS, Host, Lab, LabError, STRAY};
use ringrail_tests::require_lab;

const LIMIT: Duration = Duration::from_secs(10);

fn lab(spec: &str) -> Lab {
    Lab::build(&spec.parse().unwrap()).unwrap()
}

/// A UDP socket of `host` on `rail`.
fn socket(lab: &Lab, host: Host, rail: u8) -> UdpSocket {
    let bind = || UdpSocket::bind((lab.addr(host, rail), 0)).unwrap();
    lab.host(host).enter(bind).unwrap()
}

/// Two sockets that are connected with each other, in host a and host b.
fn sockets(lab: &Lab, rail: u8) -> [UdpSocket; 2] {
    let sockets = [Host::A, Host::B].map(|host| socket(lab, host, rail));
    let [a, b] = sockets.each_ref().map(|socket| socket.local_addr().unwrap());
    sockets[0].connect(b).unwrap();
    sockets[1].connect(a).unwrap();
    sockets
}

/// Whether a datagram gets from one to the other. What came before is thrown away.
fn passes([from, to]: [&UdpSocket; 2]) -> bool {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let text = NUMBER.fetch_add(1, Ordering::Relaxed).to_le_bytes();
    let mut into = [0; 64];
    to.set_nonblocking(true).unwrap();
    while to.recv(&mut into).is_ok() {}
    to.set_nonblocking(false).unwrap();
    from.send(&text).unwrap();
    // A veth brings it in the sender's call, unless an address has to be asked for first.
    to.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    match to.recv(&mut into) {
        Ok(length) => into[..length] == text,
        Err(error) if error.kind() == ErrorKind::WouldBlock => false,
        Err(error) => panic!("{error}"),
    }
}

/// Whether datagrams pass from a to b, and from b to a.
fn ways([a, b]: &[UdpSocket; 2]) -> (bool, bool) {
    (passes([a, b]), passes([b, a]))
}

fn carrier(lab: &Lab, host: Host, rail: u8) -> bool {
    let path = format!("/sys/class/net/rail{rail}/operstate");
    lab.host(host).enter(|| std::fs::read_to_string(path).unwrap()).unwrap().trim() == "up"
}

/// Bits per second of a TCP stream over `rail`, from one host to the other, for half a second.
fn rate_bit_s(lab: &Lab, rail: u8, from: Host) -> f64 {
    let to = from.other();
    let listen = || TcpListener::bind((lab.addr(to, rail), 0)).unwrap();
    let listener = lab.host(to).enter(listen).unwrap();
    let target = listener.local_addr().unwrap();
    let connect = || TcpStream::connect_timeout(&target, LIMIT).unwrap();
    thread::scope(|scope| {
        let mut sender = lab.host(from).enter(connect).unwrap();
        let mut receiver = listener.accept().unwrap().0;
        scope.spawn(move || {
            let bytes = vec![0; 1 << 18];
            // Until the receiver has had enough.
            while sender.write_all(&bytes).is_ok() {}
        });
        let mut into = vec![0; 1 << 20];
        let (warm, long) = (Duration::from_millis(200), Duration::from_millis(700));
        let (begin, mut bytes, mut first) = (Instant::now(), 0, None);
        loop {
            let length = receiver.read(&mut into).unwrap();
            let now = begin.elapsed();
            if now >= long {
                return bytes as f64 * 8.0 / (now - first.unwrap_or(warm)).as_secs_f64();
            }
            if now >= warm {
                // The first call after the warm-up only starts the clock.
                bytes += first.map_or(0, |_| length);
                first.get_or_insert(now);
            }
        }
    })
}

#[test]
fn rails_have_their_rates_both_ways() {
    require_lab!();
    let lab = lab("rails=3,rate=200mbit:600mbit");
    for (rail, rate) in [(0, 200e6), (1, 600e6), (2, 600e6)] {
        for from in [Host::A, Host::B] {
            let measured = rate_bit_s(&lab, rail, from);
            // Headers of Ethernet, IP and TCP have 4.4 % of it; a busy machine may take more.
            let is_right = measured > 0.8 * rate && measured < 0.97 * rate;
            assert!(is_right, "rail {rail} from {from:?}: {measured:.3e} of {rate:.0e}");
        }
    }
}

#[test]
fn queues_of_the_switch_are_short() {
    require_lab!();
    let lab = lab("rate=500mbit");
    let pings = sockets(&lab, 0);
    let [a, b] = &pings;
    let round = thread::scope(|scope| {
        let stream = scope.spawn(|| rate_bit_s(&lab, 0, Host::A));
        let mut rounds = Vec::new();
        while !stream.is_finished() {
            let begin = Instant::now();
            if passes([a, b]) {
                rounds.push(begin.elapsed());
            }
            thread::sleep(Duration::from_millis(5));
        }
        rounds.sort();
        rounds[rounds.len() / 2]
    });
    // 2 ms of packets at the most, and what the machine adds.
    assert!(round < Duration::from_millis(20), "{round:?}");
}

#[test]
fn a_blackhole_is_silent_and_heals() {
    require_lab!();
    let lab = lab("rails=2,switch");
    let [first, second] = [0, 1].map(|rail| sockets(&lab, rail));
    assert_eq!(ways(&first), (true, true));
    let before = lab.passage(0, Host::A).unwrap();
    lab.blackhole(0).unwrap();
    assert_eq!(ways(&first), (false, false));
    assert_eq!(ways(&second), (true, true), "the other rail");
    let after = lab.passage(0, Host::A).unwrap();
    assert_eq!((after.packets, after.bytes), (before.packets, before.bytes));
    assert!(after.dropped > before.dropped && before.dropped == 0, "{before:?} {after:?}");
    // Nobody was told.
    assert!([Host::A, Host::B].iter().all(|&host| carrier(&lab, host, 0)));
    lab.heal(0).unwrap();
    assert_eq!(ways(&first), (true, true));
}

#[test]
fn a_blackhole_of_one_way_leaves_the_other_open() {
    require_lab!();
    for spec in ["switch", "same-subnet", "routed"] {
        let lab = lab(spec);
        let sockets = sockets(&lab, 0);
        assert_eq!(ways(&sockets), (true, true), "{spec}");
        lab.blackhole_one_way(0, Host::A).unwrap();
        assert_eq!(ways(&sockets), (false, true), "{spec}");
        lab.heal(0).unwrap();
        lab.blackhole_one_way(0, Host::B).unwrap();
        assert_eq!(ways(&sockets), (true, false), "{spec}");
        lab.heal(0).unwrap();
        assert_eq!(ways(&sockets), (true, true), "{spec}");
    }
}

/// Sends `count` datagrams from a to b; returns the share that the switch says it dropped.
fn dropped_share(lab: &Lab, sockets: &[UdpSocket; 2], count: u32) -> f64 {
    let before = lab.passage(0, Host::A).unwrap();
    for _ in 0..count {
        sockets[0].send(&[0; 8]).unwrap();
    }
    let after = lab.passage(0, Host::A).unwrap();
    let (passed, dropped) = (after.packets - before.packets, after.dropped - before.dropped);
    assert!(passed + dropped >= u64::from(count));
    dropped as f64 / (passed + dropped) as f64
}

#[test]
fn brown_outs_and_losses_drop_their_share() {
    require_lab!();
    let lab = lab("loss=0.02");
    let sockets = sockets(&lab, 0);
    let plain = dropped_share(&lab, &sockets, 20_000);
    // Ten standard deviations.
    assert!((0.01..0.03).contains(&plain), "{plain}");
    lab.brown_out(0).unwrap();
    let brown = dropped_share(&lab, &sockets, 20_000);
    assert!((0.46..0.54).contains(&brown), "{brown}");
    lab.heal(0).unwrap();
    let healed = dropped_share(&lab, &sockets, 20_000);
    assert!((0.01..0.03).contains(&healed), "{healed}");
}

#[test]
fn flapping_ends_whole() {
    require_lab!();
    let lab = lab("switch");
    let sockets = sockets(&lab, 0);
    assert_eq!(ways(&sockets), (true, true));
    let period = Duration::from_millis(100);
    let (mut passed, mut failed) = (0, 0);
    thread::scope(|scope| {
        let flapping = scope.spawn(|| lab.flap(0, period, Duration::from_secs(2)).unwrap());
        let mut into = [0; 8];
        sockets[1].set_nonblocking(true).unwrap();
        while !flapping.is_finished() {
            sockets[0].send(&[0; 8]).unwrap();
            thread::sleep(Duration::from_millis(1));
            match sockets[1].recv(&mut into) {
                Ok(_) => passed += 1,
                Err(_) => failed += 1,
            }
        }
    });
    assert!(passed > 20 && failed > 20, "{passed} {failed}");
    assert_eq!(ways(&sockets), (true, true));
}

#[test]
fn a_link_that_is_off_is_seen_and_comes_back() {
    require_lab!();
    for spec in ["rails=2", "rails=2,switch", "rails=2,routed"] {
        let lab = lab(spec);
        let [first, second] = [0, 1].map(|rail| sockets(&lab, rail));
        assert_eq!(ways(&first), (true, true), "{spec}");
        lab.link_down(Host::A, 0).unwrap();
        assert!(!carrier(&lab, Host::A, 0), "{spec}");
        assert!(first[0].send(&[0]).is_err(), "{spec}: no way out");
        assert_eq!(ways(&second), (true, true), "{spec}");
        lab.link_up(Host::A, 0).unwrap();
        let begin = Instant::now();
        while !(carrier(&lab, Host::A, 0) && ways(&first) == (true, true)) {
            assert!(begin.elapsed() < LIMIT, "{spec}");
        }
    }
}

#[test]
fn faults_need_a_switch() {
    require_lab!();
    let lab = lab("rails=1");
    assert!(matches!(lab.blackhole(0), Err(LabError::NoSwitch { .. })));
    assert!(lab.blackhole(0).unwrap_err().to_string().contains("add `switch`"));
}

/// The interfaces that a host shows.
fn interfaces(lab: &Lab, host: Host) -> Vec<String> {
    let list = || {
        let entries = std::fs::read_dir("/sys/class/net").unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    lab.host(host).enter(list).unwrap()
}

#[test]
fn decoys_stand_beside_the_rails() {
    require_lab!();
    let lab = lab("rails=2,decoys");
    for host in [Host::A, Host::B] {
        let there = interfaces(&lab, host);
        let wanted = DECOYS.into_iter().chain(["lo", "rail0", "rail1", STRAY]);
        assert!(wanted.into_iter().all(|nic| there.iter().any(|one| one == nic)), "{there:?}");
    }
    for rail in 0..2 {
        assert_eq!(ways(&sockets(&lab, rail)), (true, true));
    }
    // The addresses are there, and none gets to the other host.
    let listen = || UdpSocket::bind("192.168.122.1:0").unwrap();
    let [a, b] = [Host::A, Host::B].map(|host| lab.host(host).enter(listen).unwrap());
    a.connect(b.local_addr().unwrap()).unwrap();
    b.connect(a.local_addr().unwrap()).unwrap();
    assert!(!passes([&a, &b]));
    for (from, to) in [("203.0.113.1:0", "198.51.100.2:9"), ("10.66.0.1:0", "10.67.0.2:9")] {
        let to: SocketAddr = to.parse().unwrap();
        let unreachable = || UdpSocket::bind(from).unwrap().connect(to).unwrap_err();
        let error = lab.host(Host::A).enter(unreachable).unwrap();
        assert_eq!(error.kind(), ErrorKind::NetworkUnreachable, "{from}");
    }
}

#[test]
fn rails_of_one_subnet_and_of_a_router_have_addresses_of_their_own() {
    require_lab!();
    for spec in ["rails=3,same-subnet", "rails=3,routed"] {
        let lab = lab(spec);
        let net = |address: IpAddr| match address {
            IpAddr::V4(address) => [address.octets()[1], address.octets()[2]],
            IpAddr::V6(_) => unreachable!("rails have IPv4"),
        };
        for rail in 0..3 {
            assert_eq!(ways(&sockets(&lab, rail)), (true, true), "{spec}");
            let [a, b] = [Host::A, Host::B].map(|host| net(lab.addr(host, rail)));
            assert_eq!(a == b, spec.contains("same"), "{spec}");
        }
    }
}

#[test]
fn two_labs_with_switches_live_side_by_side() {
    require_lab!();
    let [one, two] = [lab("rails=2,rate=1gbit"), lab("rails=2,rate=1gbit")];
    let of = [&one, &two].map(|lab| sockets(lab, 1));
    one.blackhole(1).unwrap();
    assert_eq!(of.each_ref().map(ways), [(false, false), (true, true)]);
    drop(one);
    assert_eq!(ways(&of[1]), (true, true));
}

#[test]
fn a_killed_holder_leaves_no_switch() {
    require_lab!();
    let mut holder = Command::new(env!("CARGO_BIN_EXE_ringrail-lab"))
        .args(["rails=2,rate=1gbit,decoys", "a", "sh", "-c", "echo up; sleep 1000"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut up = [0; 3];
    holder.stdout.take().unwrap().read_exact(&mut up).unwrap();
    let pid = holder.id();
    let opened = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let links = opened.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
    let links: Vec<_> = links.map(|link| link.to_string_lossy().into_owned()).collect();
    holder.kill().unwrap();
    holder.wait().unwrap();
    let inodes: Vec<u64> = links
        .iter()
        .filter_map(|link| link.strip_prefix("net:[")?.strip_suffix(']')?.parse().ok())
        .collect();
    assert_eq!(inodes.len(), 4, "two hosts, a switch, and where decoys end: {links:?}");
    let begin = Instant::now();
    while inodes.iter().any(|&inode| !ringrail_tests::lab::users(inode).is_empty()) {
        assert!(begin.elapsed() < LIMIT, "somebody keeps a namespace of a killed holder");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Prints how long a fault takes until it is there.
#[test]
fn faults_take_effect_at_once() {
    require_lab!();
    let lab = lab("switch");
    let sockets = sockets(&lab, 0);
    assert_eq!(ways(&sockets), (true, true));
    let mut took = Vec::new();
    for _ in 0..1000 {
        let begin = Instant::now();
        lab.blackhole(0).unwrap();
        took.push(begin.elapsed());
        let before = lab.passage(0, Host::A).unwrap().dropped;
        sockets[0].send(&[0]).unwrap();
        // The very next packet.
        assert!(lab.passage(0, Host::A).unwrap().dropped > before);
        lab.heal(0).unwrap();
    }
    took.sort();
    eprintln!("a blackhole takes {:?} (median)", took[took.len() / 2]);
    assert!(took[took.len() / 2] < Duration::from_millis(1), "{:?}", took[took.len() / 2]);
    let begin = Instant::now();
    lab.link_down(Host::A, 0).unwrap();
    eprintln!("a link goes down in {:?}", begin.elapsed());
}
