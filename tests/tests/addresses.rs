//! Frames between other addresses than the lab's own: IPv6, and those of a VLAN.

use std::net::IpAddr;

use crate::books::{assert_quiet, frames_of};
use crate::common::pair_at;
use crate::traffic::{LIMIT, both, ping_pong, rounds_until, until_frames};
use ringrail::{Endpoint, FrameState, Owned, Peer};
use ringrail_tests::lab::{Host, Lab, LabSpec};
use ringrail_tests::require_lab;

const DRIVERS: [&str; 2] = ["uring", "sockets"];
const HOSTS: [Host; 2] = [Host::A, Host::B];

fn lab() -> Lab {
    Lab::build(&LabSpec::rails(1)).unwrap()
}

/// Runs `ip` in a host.
fn ip(lab: &Lab, host: Host, arguments: &str) {
    let mut ip = lab.host(host).command("ip");
    let done = ip.args(arguments.split(' ')).output(LIMIT).unwrap();
    assert!(done.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&done.stderr));
}

fn parsed(addresses: [&str; 2]) -> [IpAddr; 2] {
    addresses.map(|address| address.parse().unwrap())
}

/// Gives both hosts an address of IPv6.
fn ipv6(lab: &Lab, nic: &str) -> [IpAddr; 2] {
    let addresses = ["fd00:77::1", "fd00:77::2"];
    for (host, address) in HOSTS.into_iter().zip(addresses) {
        ip(lab, host, &format!("-6 addr add {address}/64 dev {nic} nodad"));
    }
    parsed(addresses)
}

/// Whether this kernel has VLANs.
fn has_vlans(lab: &Lab) -> bool {
    let mut ip = lab.host(Host::A).command("ip");
    ip.args("link add link rail0 name probe type vlan id 9".split(' '));
    ip.output(LIMIT).unwrap().status.success()
}

/// A VLAN on the rail of both hosts.
fn vlan(lab: &Lab) -> [IpAddr; 2] {
    let addresses = ["10.78.0.1", "10.78.0.2"];
    for (host, address) in HOSTS.into_iter().zip(addresses) {
        ip(lab, host, "link add link rail0 name rail0.7 type vlan id 7");
        ip(lab, host, &format!("addr add {address}/24 dev rail0.7"));
        ip(lab, host, "link set dev rail0.7 up");
    }
    parsed(addresses)
}

/// Messages of all sizes by frames of `nic`, both ways.
fn assert_frames(lab: &Lab, at: [IpAddr; 2], driver: &'static str, nic: &str) {
    let used = both();
    let work = |first: bool| {
        let used = &used;
        move |endpoint: &Endpoint<Owned>, peer: Peer| {
            assert_eq!(endpoint.address().locator().ip(), at[usize::from(!first)]);
            until_frames(endpoint, peer, first, used);
            assert_quiet(endpoint);
            let FrameState::Up { nic: by, .. } = frames_of(endpoint) else { unreachable!() };
            assert_eq!(by, nic);
            assert!(endpoint.counters().segments_by_datagram > 50, "{:?}", endpoint.counters());
        }
    };
    let settings = [("lanes", driver), ("control_lane", "xdp")];
    pair_at(lab, at, [&settings; 2], work(true), work(false));
}

#[test]
fn addresses_of_ipv6_have_frames() {
    require_lab!();
    for driver in DRIVERS {
        let lab = lab();
        let at = ipv6(&lab, "rail0");
        assert_frames(&lab, at, driver, "rail0");
    }
}

/// A UDP socket of IPv6 drops what has no checksum or a wrong one.
#[test]
fn frames_of_ipv6_and_sockets_understand_each_other() {
    require_lab!();
    let lab = lab();
    let at = ipv6(&lab, "rail0");
    let work = |first: bool| {
        move |endpoint: &Endpoint<Owned>, peer: Peer| {
            ping_pong(endpoint, peer, first, 0..500);
            let counters = endpoint.counters();
            assert!(counters.segments_by_datagram > 100, "{counters:?}");
            if let FrameState::Up { figures, .. } = frames_of(endpoint) {
                assert!(figures.sent > 100 && figures.received > 100, "{figures:?}");
            }
        }
    };
    let by_frames = [("control_lane", "xdp")];
    let by_socket = [("control_lane", "udp")];
    pair_at(&lab, at, [&by_frames, &by_socket], work(true), work(false));
}

#[test]
fn a_vlan_has_frames() {
    require_lab!();
    for driver in DRIVERS {
        let lab = lab();
        if !has_vlans(&lab) {
            ringrail_tests::skip(env!("CARGO_CRATE_NAME"), &"this kernel has no VLANs (8021q)");
            return;
        }
        let at = vlan(&lab);
        assert_frames(&lab, at, driver, "rail0.7");
    }
}

/// As hosts behind the address translation of a hypervisor have it: the first NIC of each has the
/// same address, and what goes there comes back to its sender.
///
/// RR-CONN-6
#[test]
fn hosts_whose_first_address_is_the_same_connect_by_their_second_one() {
    require_lab!();
    for driver in DRIVERS {
        let lab = Lab::build(&LabSpec::rails(2)).unwrap();
        for host in HOSTS {
            ip(&lab, host, "addr add 10.0.2.15/24 dev rail0");
        }
        let used = both();
        let work = |first: bool| {
            let used = &used;
            move |endpoint: &Endpoint<Owned>, peer: Peer| {
                assert_eq!(endpoint.address().locator().ip(), parsed(["10.0.2.15"; 2])[0]);
                // Ends where a receive would wait for ever.
                endpoint.connect(peer, None).unwrap();
                rounds_until(endpoint, peer, first, 0, used, |_| true);
            }
        };
        let settings = [("lanes", driver), ("nics", "rail*")];
        pair_at(&lab, parsed(["10.0.2.15"; 2]), [&settings; 2], work(true), work(false));
    }
}
