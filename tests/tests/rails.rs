//! Two hosts with several rails between them, some of which fail while messages are under way.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use crate::rail_stream::{CARRIED, STALLED, assert_moves, came, played, played_in, run};
use ringrail::PathState;
use ringrail_tests::lab::{Host, Lab};
use ringrail_tests::require_lab;

const TWO: &str = "rails=2,rate=2gbit:2gbit";

/// RR-RAIL-4, RR-RAIL-5, RR-RAIL-6
#[test]
fn a_rail_that_swallows_everything_costs_no_message() {
    require_lab!();
    let seen = played(TWO, &[], |lab, shared| {
        for rail in [0, 1, 0, 1] {
            lab.blackhole(rail).unwrap();
            assert_moves(shared, "one rail is cut");
            thread::sleep(Duration::from_millis(200));
            assert_moves(shared, "one rail is still cut");
            lab.heal(rail).unwrap();
            thread::sleep(Duration::from_millis(400));
        }
    });
    for side in seen {
        assert!(side.count(PathState::Suspect) + side.count(PathState::Down) >= 3, "{side:?}");
        assert!(side.count(PathState::Active) >= 5, "{side:?}");
    }
}

/// RR-RAIL-4
#[test]
fn a_rail_that_works_one_way_carries_nothing() {
    require_lab!();
    played(TWO, &[], |lab, shared| {
        for (rail, from) in [(0, Host::A), (1, Host::B), (0, Host::B)] {
            lab.blackhole_one_way(rail, from).unwrap();
            thread::sleep(Duration::from_millis(300));
            assert_moves(shared, "a rail works one way only");
            lab.heal(rail).unwrap();
            thread::sleep(Duration::from_millis(300));
        }
    });
}

#[test]
fn brown_outs_and_flapping_cost_no_message() {
    require_lab!();
    played(TWO, &[], |lab, shared| {
        for rail in [0, 1] {
            lab.brown_out(rail).unwrap();
            thread::sleep(Duration::from_millis(700));
            assert_moves(shared, "half of the packets of a rail are lost");
            lab.heal(rail).unwrap();
            thread::sleep(Duration::from_millis(200));
            lab.flap(rail, Duration::from_millis(100), Duration::from_secs(1)).unwrap();
            assert_moves(shared, "a rail flaps");
        }
    });
}

#[test]
fn an_interface_that_is_switched_off_costs_no_message() {
    require_lab!();
    played(TWO, &[], |lab, shared| {
        for (host, rail) in [(Host::A, 1), (Host::B, 0)] {
            lab.link_down(host, rail).unwrap();
            thread::sleep(Duration::from_millis(300));
            assert_moves(shared, "an interface is down");
            lab.link_up(host, rail).unwrap();
            thread::sleep(Duration::from_millis(500));
        }
    });
}

#[test]
fn both_rails_may_be_dead_for_a_while() {
    require_lab!();
    played(TWO, &[], |lab, shared| {
        for _ in 0..2 {
            for rail in [0, 1] {
                lab.blackhole(rail).unwrap();
            }
            thread::sleep(Duration::from_millis(200));
            for rail in [0, 1] {
                lab.heal(rail).unwrap();
            }
            assert_moves(shared, "both rails are back");
        }
    });
}

/// Longer than the peer timeout the rail of the session's TCP connection is dead, first the one and
/// then the other.
///
/// RR-RAIL-7
#[test]
fn a_session_outlives_the_rail_that_it_was_set_up_by() {
    require_lab!();
    played(TWO, &[("peer_timeout", "1s")], |lab, shared| {
        for rail in [0, 1] {
            lab.blackhole(rail).unwrap();
            thread::sleep(Duration::from_millis(3500));
            assert_moves(shared, "a rail is dead for long");
            lab.heal(rail).unwrap();
            thread::sleep(Duration::from_millis(1500));
        }
    });
}

/// RR-RAIL-3
#[test]
fn bulk_data_goes_by_all_rails() {
    require_lab!();
    for spec in ["rails=3,rate=1gbit:2gbit:500mbit", SAME_SUBNET] {
        let mut shares = Vec::new();
        played(spec, &[], |lab, _| {
            let rails = lab.spec().rails;
            // A busy machine takes its time until all paths have answered.
            let start = Instant::now();
            let carried = |rail| lab.passage(rail, Host::A).unwrap().bytes;
            while start.elapsed() < STALLED && (0..rails).any(|rail| carried(rail) < CARRIED) {
                thread::sleep(Duration::from_millis(10));
            }
            shares.extend((0..rails).map(carried));
        });
        eprintln!("{spec}: bytes by rail {shares:?}");
        assert!(shares.iter().all(|&bytes| bytes >= CARRIED), "{spec}: {shares:?}");
    }
}

const SAME_SUBNET: &str = "rails=2,same-subnet,switch";

/// Each host takes the other's NICs for one another, as it may happen where both answer for all
/// addresses of their host, as is the default, and the first answer counts.
fn mistake_nics(lab: &Lab) {
    for host in [Host::A, Host::B] {
        for (rail, other) in [(0, 1), (1, 0)] {
            let path = format!("/sys/class/net/{}/address", lab.nic(other));
            let mac = lab.host(host.other()).enter(|| std::fs::read_to_string(path).unwrap());
            let (mac, address) = (mac.unwrap(), lab.addr(host.other(), rail).to_string());
            for nic in [lab.nic(0), lab.nic(1)] {
                let entry = ["neigh", "replace", &address, "lladdr", mac.trim(), "dev", &nic];
                run(lab, host, "ip", &[&entry[..], &["nud", "stale"]].concat());
            }
        }
    }
}

/// Both NICs of both hosts are used, whatever the hosts believe at first and whoever opens the
/// session.
fn both_nics_carry(lab: &Lab, opener: Host) {
    let mut shares = Vec::new();
    played_in(lab, opener, &[], |lab, shared| {
        let now = || {
            let of_rail =
                |rail| [lab.passage(rail, Host::A).unwrap().bytes, came(lab, Host::B, rail)];
            [0, 1].map(of_rail).concat()
        };
        let (start, before) = (Instant::now(), now());
        let carried = || now().iter().zip(&before).map(|(now, before)| now - before).collect();
        while start.elapsed() < STALLED {
            shares = carried();
            if shares.iter().all(|&bytes| bytes >= CARRIED) {
                break;
            }
            thread::sleep(Duration::from_millis(10));
        }
        assert_moves(shared, "rails of one subnet");
    });
    let is_all = shares.iter().all(|&bytes| bytes >= CARRIED);
    assert!(is_all, "{opener:?} opened; left a, came to b, by rail: {shares:?}");
}

/// RR-RAIL-3
#[test]
fn rails_of_one_subnet_need_no_setting_of_the_kernel() {
    require_lab!();
    for opener in [Host::A, Host::B] {
        let lab = Lab::build(&SAME_SUBNET.parse().unwrap()).unwrap();
        mistake_nics(&lab);
        both_nics_carry(&lab, opener);
    }
}

/// RR-RAIL-3
#[test]
fn rails_of_one_subnet_may_answer_for_their_own_addresses_only() {
    require_lab!();
    let lab = Lab::build(&SAME_SUBNET.parse().unwrap()).unwrap();
    for host in [Host::A, Host::B] {
        let set = |name: &str, value: &str| {
            std::fs::write(format!("/proc/sys/net/ipv4/conf/all/{name}"), value).unwrap();
        };
        lab.host(host)
            .enter(|| {
                set("arp_ignore", "1");
                set("arp_announce", "2");
            })
            .unwrap();
    }
    both_nics_carry(&lab, Host::A);
}

/// No rail has a link for less time than the peer timeout, whatever the kernel calls that.
///
/// RR-LANE-4, RR-END-2
#[test]
fn an_outage_of_all_rails_shorter_than_the_peer_timeout_ends_no_session() {
    require_lab!();
    let try_case = |&(spec, host, settings): &(&str, Host, &[(&str, &str)])| {
        eprintln!("{spec:?}, the links of host {}, {settings:?}", host.name());
        played(spec, settings, |lab, shared| {
            let rails = 0..lab.spec().rails;
            rails.clone().for_each(|rail| lab.link_down(host, rail).unwrap());
            thread::sleep(Duration::from_secs(5));
            rails.for_each(|rail| lab.link_up(host, rail).unwrap());
            // Kernels repeat what they had sent more and more seldom.
            let (before, start) = (shared.received.load(Ordering::SeqCst), Instant::now());
            while shared.received.load(Ordering::SeqCst) < before + 15 {
                assert!(start.elapsed() < STALLED, "nothing comes after the outage");
                thread::sleep(Duration::from_millis(10));
            }
        });
    };
    let by_sockets = &[("lanes", "sockets")][..];
    let by_tcp = &[("control_lane", "tcp")][..];
    let cases = [
        ("", Host::A, &[][..]),
        ("", Host::B, by_sockets),
        ("", Host::A, by_tcp),
        (TWO, Host::A, &[]),
        (TWO, Host::B, by_sockets),
    ];
    thread::scope(|scope| {
        let tries: Vec<_> = cases.iter().map(|case| scope.spawn(|| try_case(case))).collect();
        tries.into_iter().for_each(|it| it.join().unwrap());
    });
}
