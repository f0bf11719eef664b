//! Several rails: source addresses, filtering of connections, and link events.

use std::io::{ErrorKind, Read};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::process::Command;

use rustix::net::netdevice::name_to_index;
use rustix::thread::UnshareFlags;
use socket2::SockRef;

use super::host::{Host, PATIENCE, Variant, pattern};
use crate::driver::tcp;
use crate::driver::traits::{DriverCounters, DriverEvent, Interest};
use crate::types::{RAILS_MAX, Rail, RailRole};

/// A rail for tests.
pub(super) fn rail(address: IpAddr, nic_index: u32) -> Rail {
    let nic = "lo".to_owned();
    Rail { nic, nic_index, address, speed_mbps: None, mtu: None, role: RailRole::Ordinary }
}

fn loopback() -> u32 {
    let any_socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    name_to_index(&any_socket, "lo").unwrap()
}

fn rails_of(addresses: &[&str]) -> Vec<Rail> {
    let index = loopback();
    addresses.iter().map(|address| rail(address.parse().unwrap(), index)).collect()
}

/// Listens on a port of all addresses.
fn listen_everywhere(host: &mut Host) -> u16 {
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    host.driver.listen(listener).unwrap();
    port
}

/// Each datagram is sent from the address of its rail, whatever else is in the same call.
pub(super) fn each_rail_sends_from_its_address(variant: &Variant) {
    for (bound_to, addresses, outside) in [
        ("0.0.0.0", ["127.0.0.1", "127.0.0.2"], ["127.0.0.1", "127.0.0.1"]),
        ("::", ["127.0.0.3", "::1"], ["127.0.0.1", "::1"]),
    ] {
        if bound_to == "::" && UdpSocket::bind("[::1]:0").is_err() {
            println!("RINGRAIL-SKIP: driver::tests::{}: no IPv6", variant.module);
            continue;
        }
        let mut host = Host::new(variant);
        host.driver.set_rails(&rails_of(&addresses)).unwrap();
        let port = host.open_datagrams(bound_to).port();
        let from = addresses.map(|ip| SocketAddr::new(ip.parse().unwrap(), port));
        let outside = outside.map(|ip| {
            let socket = UdpSocket::bind((ip, 0)).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            socket
        });
        let to = outside.each_ref().map(|socket| socket.local_addr().unwrap());
        // Alone, and many in one call.
        for count in [1, 20] {
            for (rail, &to) in (0..).zip(&to) {
                for _ in 0..count {
                    host.datagram_by(to, rail, b"hello");
                }
            }
            host.driver.flush_datagrams();
            for (socket, from) in outside.iter().zip(from) {
                for _ in 0..count {
                    let (length, sender) = socket.recv_from(&mut [0; 16]).unwrap();
                    assert_eq!((length, sender), (5, from));
                }
            }
        }
        // Both ways: the answer is sent to the address of the rail.
        for ((outside, from), to) in outside.iter().zip(from).zip(to) {
            outside.send_to(&pattern(7, 300), from).unwrap();
            assert!(host.expect_datagram() == (to, pattern(7, 300)));
        }
        let before = host.driver.counters();
        assert_eq!(before.datagrams_refused, 0);
        host.datagram_by(to[0], 2, b"by no rail");
        host.driver.flush_datagrams();
        let DriverCounters { datagrams_refused, datagrams_sent, .. } = host.driver.counters();
        assert_eq!((datagrams_refused, datagrams_sent), (1, before.datagrams_sent));
    }
}

/// The numbers mean the new list as soon as there is one; a list of one works as well on a socket
/// that is bound to no address.
pub(super) fn datagrams_follow_a_new_list_of_rails(variant: &Variant) {
    let mut host = Host::new(variant);
    let outside = UdpSocket::bind("127.0.0.1:0").unwrap();
    outside.set_read_timeout(Some(PATIENCE)).unwrap();
    let to = outside.local_addr().unwrap();
    host.open_datagrams("0.0.0.0");
    for (addresses, number) in [
        (&["127.0.0.2", "127.0.0.3"][..], 0),
        (&["127.0.0.3", "127.0.0.2", "127.0.0.4"][..], 2),
        (&["127.0.0.5"][..], 0),
    ] {
        host.driver.set_rails(&rails_of(addresses)).unwrap();
        host.datagram_by(to, number, b"hello");
        host.driver.flush_datagrams();
        let (_, from) = outside.recv_from(&mut [0; 16]).unwrap();
        assert_eq!(from.ip().to_string(), addresses[usize::from(number)]);
    }
}

pub(super) fn each_rail_connects_from_its_address(variant: &Variant) {
    let mut host = Host::new(variant);
    let addresses = ["127.0.0.1", "127.0.0.2"];
    host.driver.set_rails(&rails_of(&addresses)).unwrap();
    let port = listen_everywhere(&mut host);
    for (number, ip) in addresses.into_iter().enumerate() {
        let ip: IpAddr = ip.parse().unwrap();
        // To the address of the other rail: source and destination are independent.
        let to = SocketAddr::new(addresses[1 - number].parse().unwrap(), port);
        let near = host.connect_by(to, number as u8);
        host.expect("Connected", |e| matches!(e, DriverEvent::Connected { lane } if *lane == near));
        let accepted = host.expect("Accepted", |e| matches!(e, DriverEvent::Accepted { .. }));
        let DriverEvent::Accepted { lane: far, remote, rail } = accepted else { unreachable!() };
        assert_eq!((remote.ip(), usize::from(rail)), (ip, 1 - number));
        assert_eq!(host.driver.addresses(near).unwrap().0.ip(), ip);
        assert_eq!(host.driver.addresses(far).unwrap(), (to, remote));
    }
    let to = SocketAddr::from(([127, 0, 0, 1], port));
    assert_eq!(host.driver.connect(to, 2, None).unwrap_err().kind(), ErrorKind::InvalidInput);
    let other = SocketAddr::new("::1".parse().unwrap(), port);
    assert_eq!(host.driver.connect(other, 1, None).unwrap_err().kind(), ErrorKind::InvalidInput);
    let many: Vec<Rail> = (0..=RAILS_MAX as u32).map(|_| rail(to.ip(), 0)).collect();
    assert_eq!(host.driver.set_rails(&many).unwrap_err().kind(), ErrorKind::InvalidInput);
    host.expect_quiet();
    for (_, socket) in host.dismantle().unwrap() {
        let nic = SockRef::from(&socket).device().unwrap();
        assert_eq!(
            nic.as_deref(),
            Some(&b"lo"[..]),
            "binding to a NIC needs no privileges since Linux 5.7"
        );
    }
}

/// Connections to an address that is no rail's are closed, and disturb no others.
pub(super) fn connections_to_foreign_addresses_are_closed(variant: &Variant) {
    let mut host = Host::new(variant);
    host.driver.set_rails(&rails_of(&["127.0.0.1", "127.0.0.2"])).unwrap();
    let port = listen_everywhere(&mut host);
    let mut foreign = TcpStream::connect(("127.0.0.3", port)).unwrap();
    foreign.set_read_timeout(Some(PATIENCE)).unwrap();
    let _accepted = TcpStream::connect(("127.0.0.2", port)).unwrap();
    let accepted = host.expect("Accepted", |e| matches!(e, DriverEvent::Accepted { .. }));
    let DriverEvent::Accepted { rail, .. } = accepted else { unreachable!() };
    assert_eq!(rail, 1);
    match foreign.read(&mut [0; 1]) {
        Ok(0) => {}
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(host.driver.counters().foreign_connections, 1);
    host.expect_quiet();
}

/// Each rail has a listener of its own, bound to its NIC, also after the NIC changed.
pub(super) fn listeners_of_rails_follow_their_nics(variant: &Variant) {
    if !enter_new_network(variant) {
        return;
    }
    switch_loopback(true);
    if !ip("link add r0 type veth peer name r1") {
        println!("RINGRAIL-SKIP: driver::tests::{}: no veth", variant.module);
        return;
    }
    let any_socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let veth = name_to_index(&any_socket, "r0").unwrap();
    // Accepts connections that no rail's listener accepts.
    let everywhere = TcpListener::bind("0.0.0.0:0").unwrap();
    everywhere.set_nonblocking(true).unwrap();
    let port = everywhere.local_addr().unwrap().port();
    let addresses = ["127.0.0.1", "127.0.0.2"];
    let mut rails = rails_of(&addresses);
    rails[1].nic_index = veth;
    let mut host = Host::new(variant);
    host.driver.set_rails(&rails).unwrap();
    for listener in tcp::listeners_of_rails(&everywhere, &rails) {
        host.driver.listen(listener).unwrap();
    }
    let accepted = |host: &mut Host, ip: &str| {
        let outside = TcpStream::connect((ip, port)).unwrap();
        let event = host.expect("Accepted", |e| matches!(e, DriverEvent::Accepted { .. }));
        let DriverEvent::Accepted { lane, rail, remote } = event else { unreachable!() };
        assert_eq!((remote, ip), (outside.local_addr().unwrap(), addresses[usize::from(rail)]));
        assert_eq!(host.driver.addresses(lane).unwrap().0.port(), port);
    };
    accepted(&mut host, "127.0.0.1");
    // By another NIC than its rail's.
    let stray = TcpStream::connect(("127.0.0.2", port)).unwrap();
    assert_eq!(everywhere.accept().unwrap().1, stray.local_addr().unwrap());
    rails[1].nic_index = rails[0].nic_index;
    host.driver.set_rails(&rails).unwrap();
    let copy = host.driver.rebind_listener(1, &everywhere).unwrap();
    assert_eq!(SockRef::from(&copy).device().unwrap().as_deref(), Some(&b"lo"[..]));
    for ip in ["127.0.0.2", "127.0.0.2", "127.0.0.1", "127.0.0.2"] {
        accepted(&mut host, ip);
    }
    assert!(host.driver.rebind_listener(2, &everywhere).is_none());
    accepted(&mut host, "127.0.0.2");
    host.driver.begin_detached();
    rails[1].nic_index = veth;
    host.driver.set_rails(&rails).unwrap();
    assert!(host.driver.rebind_listener(1, &everywhere).is_some());
    drop(copy);
    host.driver.end_detached();
    accepted(&mut host, "127.0.0.1");
    let stray = TcpStream::connect(("127.0.0.2", port)).unwrap();
    assert_eq!(everywhere.accept().unwrap().1, stray.local_addr().unwrap());
}

fn ip(arguments: &str) -> bool {
    let done = Command::new("ip").args(arguments.split(' ')).status();
    done.is_ok_and(|status| status.success())
}

/// Moves this thread, which ends with the test, to a new network namespace whose loopback is down;
/// `false`: not permitted here.
fn enter_new_network(variant: &Variant) -> bool {
    // SAFETY: no other thread is concerned; sockets that there are stay in their network.
    let entered = unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) };
    if let Err(error) = &entered {
        println!("RINGRAIL-SKIP: driver::tests::{}: no new network: {error}", variant.module);
    }
    entered.is_ok()
}

/// Peers on one host have NICs between them only by name: what they send goes by the loopback.
pub(super) fn engines_of_one_host_connect_by_any_rail(variant: &Variant) {
    if !enter_new_network(variant) {
        return;
    }
    switch_loopback(true);
    if !ip("link add r0 type veth peer name r1") {
        println!("RINGRAIL-SKIP: driver::tests::{}: no veth", variant.module);
        return;
    }
    let addresses = ["192.0.2.1", "198.51.100.1"];
    let mut rails = Vec::new();
    for (nic, address) in ["r0", "r1"].into_iter().zip(addresses) {
        assert!(ip(&format!("addr add {address}/24 dev {nic}")));
        assert!(ip(&format!("link set {nic} up")));
        let any_socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let index = name_to_index(&any_socket, nic).unwrap();
        rails.push(rail(address.parse().unwrap(), index));
    }
    let mut host = Host::new(variant);
    host.driver.set_rails(&rails).unwrap();
    let port = listen_everywhere(&mut host);
    let own = host.open_datagrams("0.0.0.0").port();
    for (number, from) in (0..).zip(addresses) {
        for to in addresses {
            let to: IpAddr = to.parse().unwrap();
            let near = host.connect_by(SocketAddr::new(to, port), number);
            host.expect(
                "Connected",
                |e| matches!(e, DriverEvent::Connected { lane } if *lane == near),
            );
            let accepted = host.expect("Accepted", |e| matches!(e, DriverEvent::Accepted { .. }));
            let DriverEvent::Accepted { lane: far, remote, rail } = accepted else {
                unreachable!()
            };
            assert_eq!(remote.ip().to_string(), from);
            assert_eq!(rails[usize::from(rail)].address, to);
            assert_eq!(host.driver.send(near, b"x").unwrap(), 1);
            host.watch(far, Interest::Readable);
            host.expect(
                "Readable",
                |e| matches!(e, DriverEvent::Readable { lane } if *lane == far),
            );
        }
        let to = SocketAddr::new(from.parse().unwrap(), own);
        host.datagram_by(to, number, b"hello");
        host.driver.flush_datagrams();
        assert!(host.expect_datagram() == (to, b"hello".to_vec()));
    }
}

/// In a network of its own, whose loopback is off at first.
pub(super) fn link_changes_are_reported(variant: &Variant) {
    if !enter_new_network(variant) {
        return;
    }
    let mut host = Host::new(variant);
    host.driver.set_rails(&rails_of(&["127.0.0.1", "127.0.0.2"])).unwrap();
    let expect = |host: &mut Host, expected: bool| {
        for number in 0..2 {
            let event =
                host.expect("RailChanged", |e| matches!(e, DriverEvent::RailChanged { .. }));
            let DriverEvent::RailChanged { rail, is_up } = event else { unreachable!() };
            assert_eq!((rail, is_up), (number, expected));
        }
        host.expect_quiet();
    };
    expect(&mut host, false);
    switch_loopback(true);
    expect(&mut host, true);
    host.driver.begin_detached();
    switch_loopback(false);
    let mut events = Vec::new();
    let until = std::time::Instant::now() + PATIENCE;
    while events.len() < 2 {
        assert!(std::time::Instant::now() < until, "{events:?}");
        host.driver.poll(&mut events).unwrap();
    }
    host.driver.end_detached();
    switch_loopback(true);
    expect(&mut host, true);
}

/// Sets the loopback of this thread's network up or down.
fn switch_loopback(is_on: bool) {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    // SAFETY: integers and bytes, for which zero bytes are a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = if is_on { libc::IFF_UP as libc::c_short } else { 0 };
    // SAFETY: the request is what the call takes, and outlives it.
    let rc = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) };
    assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
}
