//! What happens to traffic while the program is attached: ours is redirected, the rest flows on.

#[path = "common/mod.rs"]
mod common;

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::thread;

use common::{LIMIT, Xsk, addr, eventually, ip, receive, udp};
use ringrail_tests::lab::{Host, Lab, LabSpec};
use ringrail_tests::require_lab;
use ringrail_xdp::{AttachMode, Mode, Nic};

const PORT: u16 = 7000;

fn lab() -> Lab {
    Lab::build(&LabSpec::rails(1)).unwrap()
}

fn join(lab: &Lab, mode: AttachMode) -> Nic {
    lab.host(Host::B).enter(|| Nic::join("rail0", mode)).unwrap().unwrap()
}

/// A socket of host a that sends to host b.
fn sender(lab: &Lab) -> UdpSocket {
    lab.host(Host::A).enter(|| udp(lab.addr(Host::A, 0), 0)).unwrap()
}

/// Asks host b for an echo and waits for it.
fn ping(lab: &Lab) {
    let IpAddr::V4(target) = lab.addr(Host::B, 0) else { panic!("labs have IPv4 addresses") };
    let work = || {
        // SAFETY: takes no pointer.
        let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_ICMP) };
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        // Only calls that every socket has are made by it.
        // SAFETY: just made for us.
        let socket = UdpSocket::from(unsafe { OwnedFd::from_raw_fd(fd) });
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        // Echo request with its checksum, identifier 0x1234, number 1: RFC 792.
        let request = [8, 0, 0xe5, 0xca, 0x12, 0x34, 0, 1];
        socket.send_to(&request, (target, 0)).unwrap();
        eventually("an echo reply", || {
            let mut reply = [0; 256];
            let length = socket.recv(&mut reply).unwrap();
            reply[..length].ends_with(&[0x12, 0x34, 0, 1]) && reply[20] == 0
        });
    };
    lab.host(Host::A).enter(work).unwrap();
}

/// A connection from host a to host b, with bytes both ways.
fn tcp(lab: &Lab) {
    let bind = || TcpListener::bind((lab.addr(Host::B, 0), 0)).unwrap();
    let listener = lab.host(Host::B).enter(bind).unwrap();
    let target = listener.local_addr().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = listener.accept().unwrap();
            let mut bytes = vec![0; 1 << 20];
            stream.read_exact(&mut bytes).unwrap();
            stream.write_all(&bytes).unwrap();
        });
        let connect = || TcpStream::connect_timeout(&target, LIMIT).unwrap();
        let mut stream = lab.host(Host::A).enter(connect).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let bytes: Vec<u8> = (0..1 << 20).map(|at: u32| (at % 251) as u8).collect();
        stream.write_all(&bytes).unwrap();
        let mut back = vec![0; bytes.len()];
        stream.read_exact(&mut back).unwrap();
        assert!(bytes == back, "TCP carries what it was given");
    });
}

#[test]
fn other_traffic_flows_on() {
    require_lab!();
    for mode in [AttachMode::Auto, AttachMode::Native] {
        let lab = lab();
        let b = lab.host(Host::B);
        let nic = join(&lab, mode);
        let expected = if mode == AttachMode::Auto { Mode::Generic } else { Mode::Native };
        assert_eq!((nic.mode(), nic.driver()), (expected, "veth"));
        let target = addr(lab.addr(Host::B, 0), PORT);
        let xsk = b.enter(|| Xsk::bind(nic.ifindex(), 0)).unwrap().unwrap();
        let claim = nic.claim(0, target, xsk.fd()).unwrap();
        ping(&lab);
        tcp(&lab);
        let sender = sender(&lab);
        let other = b.enter(|| udp(target.ip(), PORT + 1)).unwrap();
        sender.send_to(b"other port", other.local_addr().unwrap()).unwrap();
        assert_eq!(receive(&other), b"other port");
        // Too long for a frame: the kernel's, whoever has claimed the port.
        let same = b.enter(|| udp(target.ip(), PORT)).unwrap();
        let long = vec![7; 4000];
        sender.send_to(&long, target).unwrap();
        assert!(receive(&same) == long);
        let counted = nic.counters().unwrap();
        assert_eq!((counted.redirected, counted.not_claimed), (0, 1), "{counted}");
        assert_eq!(counted.fragment, 3, "{counted}");
        assert!(counted.not_udp > 3, "{counted}");
        assert!(xsk.try_receive().is_none());
        drop(claim);
    }
}

#[test]
fn jumbo_frames_flow_on() {
    require_lab!();
    for mode in [AttachMode::Native, AttachMode::Generic] {
        let lab = lab();
        for host in [Host::A, Host::B] {
            lab.host(host).enter(|| ip("link set dev rail0 mtu 9000")).unwrap();
        }
        // The driver takes only programs that know frames in several buffers at this MTU.
        let nic = join(&lab, mode);
        assert!(nic.has_frags(), "veth says so since Linux 6.3");
        let target = addr(lab.addr(Host::B, 0), PORT);
        let kernel = lab.host(Host::B).enter(|| udp(target.ip(), PORT)).unwrap();
        let long: Vec<u8> = (0..8900).map(|at: u32| (at % 251) as u8).collect();
        sender(&lab).send_to(&long, target).unwrap();
        assert!(receive(&kernel) == long);
        // Its length fits what all its buffers hold together.
        assert_eq!(nic.counters().unwrap().not_claimed, 1);
    }
}

#[test]
fn vlans_flow_on() {
    require_lab!();
    let lab = lab();
    for (host, address) in [(Host::A, "10.5.0.1"), (Host::B, "10.5.0.2")] {
        let made = lab.host(host).enter(|| {
            let add = "link add link rail0 name vlan5 type vlan id 5";
            let made = std::process::Command::new("ip").args(add.split(' ')).output().unwrap();
            if made.status.success() {
                ip("link set dev vlan5 addrgenmode none");
                ip(&format!("addr add {address}/24 dev vlan5"));
                ip("link set dev vlan5 up");
            }
            made.status.success()
        });
        if !made.unwrap() {
            ringrail_tests::skip("traffic", &"this kernel has no VLANs (CONFIG_VLAN_8021Q)");
            return;
        }
    }
    let nic = join(&lab, AttachMode::Auto);
    let receiver = lab.host(Host::B).enter(|| udp("10.5.0.2".parse().unwrap(), PORT)).unwrap();
    let sender = lab.host(Host::A).enter(|| udp("10.5.0.1".parse().unwrap(), 0)).unwrap();
    sender.send_to(b"tagged", ("10.5.0.2", PORT)).unwrap();
    assert_eq!(receive(&receiver), b"tagged");
    assert_eq!(nic.counters().unwrap().not_claimed, 1);
}

#[test]
fn claimed_datagrams_are_redirected_with_their_vlan_tags() {
    require_lab!();
    let lab = lab();
    let nic = join(&lab, AttachMode::Auto);
    let target = addr(lab.addr(Host::B, 0), PORT);
    let b = lab.host(Host::B);
    let xsk = b.enter(|| Xsk::bind(nic.ifindex(), 0)).unwrap().unwrap();
    let _claim = nic.claim(0, target, xsk.fd()).unwrap();
    let plain = datagram();
    for tags in [&[][..], &[0x81, 0, 0, 5], &[0x88, 0xa8, 0, 7, 0x81, 0, 0, 5]] {
        let frame = [&plain[..12], tags, &plain[12..]].concat();
        lab.host(Host::A).enter(|| common::send_raw("rail0", [&frame].into_iter())).unwrap();
        assert_eq!(xsk.receive(), frame);
    }
    assert_eq!(nic.counters().unwrap().redirected, 3);
}

/// A datagram from host a to the port that is claimed, with its Ethernet header.
fn datagram() -> Vec<u8> {
    let mut frame = vec![0x02, 0x52, 0x52, 0, 0, 2, 0x02, 0x52, 0x52, 0, 0, 1, 8, 0];
    frame.extend([0x45, 0, 0, 36, 0, 1, 0, 0, 64, 17, 0, 0, 10, 77, 0, 1, 10, 77, 0, 2]);
    frame.extend([0x0f, 0xa0, 0x1b, 0x58, 0, 16, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
    frame
}

#[test]
fn claimed_datagrams_are_redirected() {
    require_lab!();
    for mode in [AttachMode::Generic, AttachMode::Native] {
        let lab = lab();
        let b = lab.host(Host::B);
        lab.host(Host::A).enter(|| ip("-6 addr add fd00::1/64 dev rail0 nodad")).unwrap();
        b.enter(|| ip("-6 addr add fd00::2/64 dev rail0 nodad")).unwrap();
        let nic = join(&lab, mode);
        let xsk = b.enter(|| Xsk::bind(nic.ifindex(), 0)).unwrap().unwrap();
        for (from, to) in [
            (lab.addr(Host::A, 0), lab.addr(Host::B, 0)),
            ("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap()),
        ] {
            let sender = lab.host(Host::A).enter(|| udp(from, 0)).unwrap();
            let kernel = b.enter(|| udp(to, PORT)).unwrap();
            let before = nic.counters().unwrap();
            let claim = nic.claim(0, addr(to, PORT), xsk.fd()).unwrap();
            assert_eq!((claim.queue(), claim.addr()), (0, addr(to, PORT)));
            for number in 0..200_u32 {
                sender.send_to(&number.to_be_bytes(), (to, PORT)).unwrap();
                let frame = xsk.receive();
                assert!(frame.ends_with(&number.to_be_bytes()), "{frame:?}");
            }
            drop(claim);
            sender.send_to(b"kernel", (to, PORT)).unwrap();
            // The first that it gets at all.
            assert_eq!(receive(&kernel), b"kernel");
            assert!(xsk.try_receive().is_none());
            let counted = nic.counters().unwrap() - before;
            assert_eq!((counted.redirected, counted.not_claimed), (200, 1), "{counted}");
        }
    }
}

#[test]
fn a_closed_socket_leaves_its_datagrams_to_the_kernel() {
    require_lab!();
    let lab = lab();
    let b = lab.host(Host::B);
    let nic = join(&lab, AttachMode::Auto);
    let target = addr(lab.addr(Host::B, 0), PORT);
    let xsk = b.enter(|| Xsk::bind(nic.ifindex(), 0)).unwrap().unwrap();
    let kernel = b.enter(|| udp(target.ip(), PORT)).unwrap();
    let claim = nic.claim(0, target, xsk.fd()).unwrap();
    drop(xsk);
    let sender = sender(&lab);
    sender.send_to(b"nobody there", target).unwrap();
    assert_eq!(receive(&kernel), b"nobody there");
    assert_eq!(nic.counters().unwrap().no_socket, 1);
    drop(claim);
}

#[test]
fn malformed_frames_reach_the_kernel_and_are_counted() {
    require_lab!();
    let lab = lab();
    let nic = join(&lab, AttachMode::Auto);
    let target = addr(lab.addr(Host::B, 0), PORT);
    let b = lab.host(Host::B);
    let xsk = b.enter(|| Xsk::bind(nic.ifindex(), 0)).unwrap().unwrap();
    let _claim = nic.claim(0, target, xsk.fd()).unwrap();
    let good = datagram();
    let with = |at: usize, byte: u8| {
        let mut frame = good.clone();
        frame[at] = byte;
        frame
    };
    // Version 5; a UDP length of 3; one beyond the packet; a packet longer than the frame; a stump.
    let bad = [with(14, 0x55), with(39, 3), with(39, 17), with(17, 200), good[..30].to_vec()];
    let frames = bad.iter().chain([&good]);
    lab.host(Host::A).enter(|| common::send_raw("rail0", frames)).unwrap();
    assert_eq!(xsk.receive(), good, "only the good one");
    let counted = nic.counters().unwrap();
    assert_eq!((counted.redirected, counted.too_short), (1, 2), "{counted}");
    assert_eq!((counted.malformed, counted.too_long), (2, 1), "{counted}");
    ping(&lab);
}

#[cfg(feature = "faults")]
#[test]
fn faults_are_shared_by_all_who_join() {
    use ringrail_xdp::{Effect, Fault, FaultError};
    require_lab!();
    let lab = lab();
    let b = lab.host(Host::B);
    let auto = AttachMode::Auto;
    let faulty = b.enter(|| Nic::join_with_faults("rail0", auto)).unwrap().unwrap();
    let nic = join(&lab, auto);
    let target = addr(lab.addr(Host::B, 0), PORT);
    let xsk = b.enter(|| Xsk::bind(nic.ifindex(), 0)).unwrap().unwrap();
    let claim = nic.claim(0, target, xsk.fd()).unwrap();
    let flip = Fault { to_port: PORT, ..Fault::flip_every(5, 0) };
    faulty.set_faults(&[Fault { to_port: PORT, ..Fault::drop_every(3) }, flip]).unwrap();
    let sender = sender(&lab);
    for number in 0..30_u8 {
        sender.send_to(&[number], target).unwrap();
    }
    // One of three is gone, and of those that are left each fifth has another last bit.
    let left = (0..30_u8).filter(|number| number % 3 != 2).enumerate();
    let expected = left.map(|(at, number)| if at % 5 == 4 { number ^ 1 } else { number });
    for number in expected {
        assert_eq!(xsk.receive().last(), Some(&number));
    }
    assert!(xsk.try_receive().is_none());
    let counted = nic.counters().unwrap();
    assert_eq!((counted.fault, counted.redirected), (10, 20), "{counted}");
    assert_eq!(faulty.fault_report(0).unwrap().hits, 10);
    assert_eq!(faulty.fault_report(1).unwrap().hits, 4);
    // What goes to UDP sockets is hit, too.
    drop(claim);
    faulty.set_faults(&[Fault { skip: 1, ..Fault::drop_every(1) }]).unwrap();
    let kernel = b.enter(|| udp(target.ip(), PORT)).unwrap();
    sender.send_to(b"first", target).unwrap();
    sender.send_to(b"second", target).unwrap();
    assert_eq!(receive(&kernel), b"first");
    eventually("a dropped datagram", || nic.counters().unwrap().fault == 11);
    faulty.set_faults(&[]).unwrap();
    sender.send_to(b"third", target).unwrap();
    assert_eq!(receive(&kernel), b"third");
    let many = [Fault { effect: Effect::Drop, ..Fault::drop_share(0.5) }; 9];
    assert!(matches!(faulty.set_faults(&many), Err(FaultError::TooMany { asked: 9 })));
    drop((faulty, nic));
    let plain = join(&lab, auto);
    assert!(matches!(plain.set_faults(&[]), Err(FaultError::PlainProgram { .. })));
}
