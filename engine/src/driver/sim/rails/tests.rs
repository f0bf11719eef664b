//! Links with rates and faults of their own, as seen by engines.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};

use super::{LinkImpairments, RailFault};
use crate::driver::sim::net::{Impairments, Net};
use crate::driver::sim::{Shared, SimDriver};
use crate::driver::traits::{ConnectionIo, DatagramIo, Driver, DriverEvent, LaneKey, Unacked};
use crate::types::{Rail, RailRole};

const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;
const DELAY_NS: u64 = 20 * MICROSECOND;
/// 1 Gb/s.
const SLOW: LinkImpairments = LinkImpairments {
    ns_per_kib: 8_192,
    delay_ns: DELAY_NS / 2,
    jitter_ns: 0,
    loss_ppm: 0,
    queue_bytes: 0,
};
/// 4 Gb/s.
const FAST: LinkImpairments = LinkImpairments { ns_per_kib: 2_048, ..SLOW };
const KEEP_ALIVE_NS: u64 = 10 * SECOND;

/// Two hosts with a process each, and one link per entry.
struct Bench {
    net: Shared,
    drivers: Vec<SimDriver>,
    /// Events not consumed yet.
    events: [Vec<DriverEvent>; 2],
}

fn ip(host: usize, link: usize) -> IpAddr {
    Ipv4Addr::new(127, 77 + link as u8, 0, host as u8).into()
}

fn rails(host: usize, links: &[usize]) -> Vec<Rail> {
    let rail = |&link: &usize| Rail {
        nic: format!("sim{link}"),
        nic_index: link as u32 + 1,
        address: ip(host, link),
        speed_mbps: None,
        mtu: None,
        role: RailRole::Ordinary,
    };
    links.iter().map(rail).collect()
}

impl Bench {
    fn new(links: &[LinkImpairments]) -> Self {
        let impairments = Impairments {
            delay_ns: DELAY_NS,
            jitter_ns: 0,
            capacity: 1 << 20,
            keep_alive_ns: KEEP_ALIVE_NS,
            ..Impairments::ideal()
        };
        let net = Net::new(1, impairments);
        let mut drivers = Vec::new();
        for host in 0..2 {
            let mut known = net.borrow_mut();
            known.add_host(SocketAddr::new(ip(host, 0), 20_000));
            known.set_link(host, 0, links[0]);
            for (link, impairments) in links.iter().enumerate().skip(1) {
                assert_eq!(known.add_rail(host, ip(host, link), *impairments), link);
            }
            drop(known);
            let mut driver = SimDriver::new(&net, host);
            let all: Vec<usize> = (0..links.len()).collect();
            driver.set_rails(&rails(host, &all)).unwrap();
            driver.open_datagrams(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()).unwrap();
            drivers.push(driver);
        }
        Self { net, drivers, events: Default::default() }
    }

    fn now_ns(&self) -> u64 {
        self.net.borrow().now_ns()
    }

    fn address(&self, host: usize, link: usize) -> SocketAddr {
        self.net.borrow().rail_address(host, link)
    }

    fn fault(&self, host: usize, link: usize, fault: Option<RailFault>) {
        self.net.borrow_mut().set_rail_fault(host, link, fault);
    }

    /// Lets time pass.
    fn pass(&mut self, for_ns: u64) {
        let until_ns = self.now_ns() + for_ns;
        while self.net.borrow_mut().next(until_ns).is_some() {}
        for (driver, events) in self.drivers.iter_mut().zip(&mut self.events) {
            driver.poll(events).unwrap();
        }
        assert_eq!(self.net.borrow_mut().take_violation(), None);
    }

    fn take(&mut self, host: usize, is_it: impl Fn(&DriverEvent) -> bool) -> Option<DriverEvent> {
        let events = &mut self.events[host];
        let at = events.iter().position(is_it)?;
        Some(events.remove(at))
    }

    /// Connects host 0 by one link to the same one of host 1; returns both lanes.
    fn connect(&mut self, link: usize) -> [LaneKey; 2] {
        let to = self.address(1, link);
        let near = self.drivers[0].connect(to, link as u8, None).unwrap();
        self.pass(4 * DELAY_NS);
        assert!(
            matches!(self.take(0, |_| true), Some(DriverEvent::Connected { lane }) if lane == near)
        );
        let Some(DriverEvent::Accepted { lane: far, remote, rail }) = self.take(1, |_| true) else {
            panic!("nothing was accepted");
        };
        assert_eq!((remote.ip(), usize::from(rail)), (ip(0, link), link));
        assert_eq!(
            self.drivers[1].addresses(far),
            Some((self.address(1, link), self.address(0, link)))
        );
        [near, far]
    }

    /// Host 0 connects by `rail` to a link of host 1.
    fn start_connection(&mut self, link: usize, rail: u8) -> std::io::Result<LaneKey> {
        let to = self.address(1, link);
        self.drivers[0].connect(to, rail, None)
    }

    fn write(&mut self, lane: LaneKey, bytes: &[u8]) -> usize {
        self.drivers[0].send(lane, bytes).unwrap()
    }

    /// All received bytes.
    fn read(&mut self, lane: LaneKey) -> Vec<u8> {
        let mut all = Vec::new();
        let mut into = vec![0; 1 << 16];
        loop {
            match self.drivers[1].recv(lane, &mut into) {
                Ok(count) => all.extend_from_slice(&into[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return all,
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Sends datagrams from host 0 by one link to the same one of host 1.
    fn datagrams(&mut self, link: usize, count: usize, length: usize) {
        let to = self.address(1, link);
        for _ in 0..count {
            self.drivers[0].datagram_room().unwrap()[..length].fill(link as u8);
            self.drivers[0].send_datagram(
                to,
                link as u8,
                length,
                crate::driver::traits::TxFlags::PLAIN,
            );
            self.drivers[0].flush_datagrams();
        }
    }

    /// The links that datagrams arrived by, in order of arrival.
    fn received(&mut self) -> Vec<usize> {
        let mut links = Vec::new();
        while let Some((from, bytes)) = self.drivers[1].recv_datagram().unwrap() {
            let link = usize::from(bytes[0]);
            assert_eq!(from.ip(), ip(0, link));
            links.push(link);
        }
        links
    }
}

/// Bytes of a stream that differ by position.
fn stream(from: usize, count: usize) -> Vec<u8> {
    (from..from + count).map(|at| (at * 7 + (at >> 8)) as u8).collect()
}

#[test]
fn links_have_independent_rates() {
    let mut bench = Bench::new(&[SLOW, FAST]);
    // With headers 1024 bytes: 8.2 and 2.05 µs each.
    bench.datagrams(0, 100, 1024 - 66);
    bench.datagrams(1, 100, 1024 - 66);
    bench.pass(DELAY_NS + 100 * 2_048);
    let links = bench.received();
    let by = |link: usize| links.iter().filter(|&&it| it == link).count();
    assert_eq!((by(0), by(1)), (25, 100));
    bench.pass(75 * 8_192);
    assert_eq!(bench.received().len(), 75);
    assert_eq!(bench.net.borrow().carried_bytes(0, 1), [100 * 1024, 0]);
    assert_eq!(bench.net.borrow().carried_bytes(1, 0), [0, 100 * 1024]);
}

#[test]
fn slower_link_limits_the_rate() {
    let mut bench = Bench::new(&[FAST]);
    bench.net.borrow_mut().set_link(1, 0, SLOW);
    bench.datagrams(0, 100, 1024 - 66);
    bench.pass(DELAY_NS + 100 * 8_192 - 1);
    assert_eq!(bench.received().len(), 99);
    bench.pass(2_048);
    assert_eq!(bench.received().len(), 1);
}

#[test]
fn streams_and_datagrams_share_their_link() {
    let mut bench = Bench::new(&[SLOW, SLOW]);
    let [near, far] = bench.connect(0);
    assert_eq!(bench.write(near, &stream(0, 500_000)), 500_000);
    bench.datagrams(0, 1, 100);
    bench.datagrams(1, 1, 100);
    bench.pass(DELAY_NS + 10 * MICROSECOND);
    assert_eq!(bench.received(), [1]);
    // 500 KB and their headers at 1 Gb/s: a little more than 4 ms.
    bench.pass(3_900 * MICROSECOND);
    assert!(bench.received().is_empty());
    bench.pass(500 * MICROSECOND);
    assert_eq!(bench.received(), [0]);
    assert!(bench.read(far) == stream(0, 500_000));
}

#[test]
fn a_full_queue_loses_datagrams() {
    let mut bench = Bench::new(&[LinkImpairments { queue_bytes: 10 * 1024, ..SLOW }]);
    bench.datagrams(0, 100, 1024 - 66);
    bench.pass(MILLISECOND);
    assert_eq!(bench.received().len(), 10);
    assert_eq!(bench.net.borrow().datagram_counts().queue_drops, 90);
}

#[test]
fn streams_resume_when_a_blackhole_ends() {
    for fault in [
        RailFault::BLACKHOLE,
        RailFault::Blackhole { outward: true, inward: false },
        RailFault::Down,
    ] {
        let mut bench = Bench::new(&[SLOW, SLOW]);
        let [near, far] = bench.connect(0);
        let [other_near, other_far] = bench.connect(1);
        bench.write(near, &stream(0, 1000));
        bench.fault(0, 0, Some(fault));
        bench.write(near, &stream(1000, 5000));
        bench.write(other_near, b"hello");
        bench.datagrams(0, 10, 100);
        bench.pass(2 * SECOND);
        assert!(bench.read(far).is_empty(), "{fault:?}");
        assert_eq!((bench.received(), bench.read(other_far)), (vec![], b"hello".to_vec()));
        let unacked = bench.drivers[0].unacked(near).unwrap();
        assert!(
            matches!(unacked, Unacked::Answer { since_sent, .. } if since_sent.as_secs() == 2),
            "{unacked:?}"
        );
        bench.fault(0, 0, None);
        // Retransmission timeouts double: 0.2, 0.4, 0.8, 1.6 s.
        bench.pass(900 * MILLISECOND);
        assert!(bench.read(far).is_empty(), "{fault:?}");
        bench.pass(500 * MILLISECOND);
        assert!(bench.read(far) == stream(0, 6000), "{fault:?}");
        assert_eq!(bench.drivers[0].unacked(near).unwrap(), Unacked::Nothing);
        bench.datagrams(0, 1, 100);
        bench.pass(MILLISECOND);
        assert_eq!(bench.received(), [0]);
        let quiet = |event: &DriverEvent| matches!(event, DriverEvent::RailChanged { .. });
        assert!(bench.events[0].iter().all(quiet) && bench.events[1].is_empty());
    }
}

#[test]
fn kernels_give_up_after_the_keep_alive_time() {
    let mut bench = Bench::new(&[SLOW, SLOW]);
    let lanes = [bench.connect(0), bench.connect(1)];
    bench.fault(1, 0, Some(RailFault::BLACKHOLE));
    bench.pass(KEEP_ALIVE_NS - MILLISECOND);
    for [near, far] in lanes {
        for (host, lane) in [(0, near), (1, far)] {
            let error = bench.drivers[host].recv(lane, &mut [0; 8]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
        }
    }
    bench.pass(2 * MILLISECOND);
    for (link, [near, far]) in lanes.into_iter().enumerate() {
        let expected = [ErrorKind::ConnectionReset, ErrorKind::WouldBlock][link];
        for (host, lane) in [(0, near), (1, far)] {
            let error = bench.drivers[host].recv(lane, &mut [0; 8]).unwrap_err();
            assert_eq!(error.kind(), expected);
        }
    }
    // The keep-alive time restarts after a fault that ended in time.
    bench.fault(1, 1, Some(RailFault::BLACKHOLE));
    bench.pass(KEEP_ALIVE_NS - SECOND);
    bench.fault(1, 1, None);
    bench.fault(1, 1, Some(RailFault::BLACKHOLE));
    bench.pass(2 * SECOND);
    let error = bench.drivers[0].recv(lanes[1][0], &mut [0; 8]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
}

#[test]
fn cut_return_path_blocks_the_writer() {
    let mut bench = Bench::new(&[SLOW]);
    let [near, far] = bench.connect(0);
    // Acknowledgements are lost, data is sent.
    bench.fault(0, 0, Some(RailFault::Blackhole { outward: false, inward: true }));
    let mut written = 0;
    for _ in 0..100 {
        written += match bench.drivers[0].send(near, &stream(written, 100_000)) {
            Ok(count) => count,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                0
            }
        };
        bench.pass(MILLISECOND);
    }
    assert_eq!(written, 1 << 20);
    assert!(bench.read(far) == stream(0, 1 << 20));
    assert_ne!(bench.drivers[0].unacked(near).unwrap(), Unacked::Nothing);
    let error = bench.drivers[0].send(near, b"more").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    bench.drivers[0].watch(near, crate::driver::traits::Interest::Writable).unwrap();
    bench.pass(MILLISECOND);
    assert!(bench.events[0].is_empty());
    bench.fault(0, 0, None);
    bench.pass(SECOND);
    assert!(
        matches!(bench.take(0, |_| true), Some(DriverEvent::Writable { lane }) if lane == near)
    );
    assert_eq!(bench.write(near, b"more"), 4);
    let zero = std::time::Duration::ZERO;
    let asked_now = Unacked::Answer { since_answer: zero, since_sent: zero, resent: None };
    assert_eq!(bench.drivers[0].unacked(near).unwrap(), asked_now);
    bench.pass(MILLISECOND);
    assert_eq!(bench.read(far), b"more");
}

#[test]
fn brown_out_slows_streams_and_drops_datagrams() {
    let mut bench = Bench::new(&[SLOW, SLOW]);
    let [near, far] = bench.connect(0);
    bench.fault(1, 0, Some(RailFault::BrownOut { loss_ppm: 500_000 }));
    bench.datagrams(0, 1000, 100);
    bench.pass(100 * MILLISECOND);
    let count = bench.received().len();
    assert!((400..600).contains(&count), "{count}");
    for part in 0..20 {
        bench.write(near, &stream(1000 * part, 1000));
        bench.pass(50 * MICROSECOND);
    }
    let mut arrived = bench.read(far);
    assert!(arrived.len() < 20_000, "some were lost and are repeated");
    bench.pass(1000 * SECOND);
    arrived.extend(bench.read(far));
    assert!(arrived == stream(0, 20_000));
}

#[test]
fn delay_fault_applies_and_ends() {
    let mut bench = Bench::new(&[SLOW, SLOW]);
    let [near, far] = bench.connect(1);
    bench.fault(0, 1, Some(RailFault::Delay { extra_ns: 5 * MILLISECOND }));
    bench.datagrams(0, 1, 10);
    bench.datagrams(1, 1, 10);
    bench.write(near, b"late");
    bench.pass(5 * MILLISECOND);
    assert_eq!((bench.received(), bench.read(far)), (vec![0], vec![]));
    bench.pass(100 * MICROSECOND);
    assert_eq!((bench.received(), bench.read(far)), (vec![1], b"late".to_vec()));
    bench.fault(0, 1, None);
    bench.datagrams(1, 1, 10);
    bench.pass(100 * MICROSECOND);
    assert_eq!(bench.received(), [1]);
}

#[test]
fn flapping_links_are_reported_by_rail_number() {
    let mut bench = Bench::new(&[SLOW, SLOW]);
    // The process numbers its rails in another order than the network.
    bench.drivers[0].set_rails(&rails(0, &[1, 0])).unwrap();
    let (begin_ns, period_ns) = (bench.now_ns() + MILLISECOND, 100 * MILLISECOND);
    let flapping = RailFault::Down;
    bench.net.borrow_mut().plan_flapping(begin_ns, (0, 1), flapping, period_ns, 3);
    for _ in 0..3 {
        for expected in [false, true] {
            bench.pass(period_ns / 2);
            let event = bench.take(0, |_| true);
            let Some(DriverEvent::RailChanged { rail: 0, is_up }) = event else {
                panic!("{event:?}")
            };
            assert_eq!(is_up, expected);
        }
    }
    bench.pass(SECOND);
    assert!(bench.events.iter().all(Vec::is_empty));
    // A later process is notified of the current state.
    bench.fault(0, 0, Some(RailFault::Down));
    bench.pass(0);
    assert!(matches!(
        bench.take(0, |_| true),
        Some(DriverEvent::RailChanged { rail: 1, is_up: false })
    ));
    bench.drivers[0].set_rails(&rails(0, &[0, 1])).unwrap();
    bench.pass(0);
    assert!(matches!(
        bench.take(0, |_| true),
        Some(DriverEvent::RailChanged { rail: 0, is_up: false })
    ));
}

#[test]
fn connections_need_a_rail_at_either_end() {
    let mut bench = Bench::new(&[SLOW, SLOW, SLOW]);
    let nowhere = bench.start_connection(0, 3).unwrap_err();
    assert_eq!(nowhere.kind(), ErrorKind::InvalidInput);
    let unknown = bench.drivers[0].set_rails(&rails(7, &[0])).unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::InvalidInput);
    // The third link is no rail of the peer.
    bench.drivers[1].set_rails(&rails(1, &[0, 1])).unwrap();
    let lane = bench.start_connection(2, 2).unwrap();
    bench.pass(MILLISECOND);
    assert!(
        matches!(bench.take(0, |_| true), Some(DriverEvent::Connected { lane: it }) if it == lane)
    );
    let error = bench.drivers[0].recv(lane, &mut [0; 8]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    assert!(bench.events[1].is_empty());
    // Without a carrier the kernel returns an error; into a blackhole attempts are lost until it
    // ends.
    bench.fault(0, 0, Some(RailFault::Down));
    let lane = bench.start_connection(0, 0).unwrap();
    bench.pass(MILLISECOND);
    let failed = bench.take(0, |event| matches!(event, DriverEvent::ConnectFailed { .. }));
    let Some(DriverEvent::ConnectFailed { lane: it, error }) = failed else { panic!("{failed:?}") };
    assert_eq!((it, error.kind()), (lane, ErrorKind::NetworkUnreachable));
    bench.events[0].clear();
    bench.fault(1, 1, Some(RailFault::BLACKHOLE));
    let lane = bench.start_connection(1, 1).unwrap();
    bench.pass(5 * SECOND);
    assert!(bench.events[0].is_empty() && bench.events[1].is_empty());
    bench.fault(1, 1, None);
    bench.pass(2 * SECOND);
    assert!(
        matches!(bench.take(0, |_| true), Some(DriverEvent::Connected { lane: it }) if it == lane)
    );
}
