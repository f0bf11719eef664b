//! Which NICs of a host are rails, and how peers are reached by them.

use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::pair;
use crate::traffic::{LIMIT, ping_pong};
use ringrail::settings::Settings;
use ringrail::topology::{self, Candidate, Nic, Route, Routes, Selection, Verdict};
use ringrail::{Domain, Endpoint, Owned, Peer};
use ringrail_tests::lab::{DECOYS, Host, HostHandle, Lab, STRAY};
use ringrail_tests::require_lab;

fn lab(spec: &str) -> Lab {
    Lab::build(&spec.parse().unwrap()).unwrap()
}

/// Runs `ip` in a host.
fn ip(host: HostHandle<'_>, arguments: &str) {
    let done = host.command("ip").args(arguments.split(' ')).output(LIMIT).unwrap();
    assert!(done.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&done.stderr));
}

fn nics(host: HostHandle<'_>) -> Vec<Nic> {
    host.enter(|| topology::nics().unwrap()).unwrap()
}

fn select(host: HostHandle<'_>, settings: &[(&str, &str)]) -> Selection {
    let settings = settings
        .iter()
        .fold(Settings::isolated(), |builder, (name, value)| builder.set(name, value));
    topology::select(&nics(host), &settings.build().unwrap()).unwrap()
}

fn rails(selection: &Selection) -> Vec<(&str, IpAddr)> {
    selection.rails.iter().map(|rail| (rail.nic.as_str(), rail.address)).collect()
}

fn candidate<'a>(selection: &'a Selection, name: &str) -> &'a Candidate {
    selection.candidates.iter().find(|candidate| candidate.nic.name == name).unwrap()
}

/// The way from `rail` of host a to an address.
fn route(lab: &Lab, rail: u8, to: IpAddr) -> Route {
    let from = lab.addr(Host::A, rail);
    let index = index(lab, rail);
    let find = || Routes::open().unwrap().find(index, from, to).unwrap();
    lab.host(Host::A).enter(find).unwrap()
}

/// The index of a rail's NIC in host a.
fn index(lab: &Lab, rail: u8) -> u32 {
    let nics = nics(lab.host(Host::A));
    nics.iter().find(|nic| nic.name == lab.nic(rail)).unwrap().index
}

fn direct(usual_nic: Option<u32>) -> Route {
    Route::Direct { mtu: None, usual_nic }
}

/// The address of the rail that leads nowhere.
fn stray(host: Host) -> IpAddr {
    let address = if host == Host::A { "10.66.0.1" } else { "10.67.0.2" };
    address.parse().unwrap()
}

#[test]
fn decoys_are_no_rails_and_it_is_said_why() {
    require_lab!();
    let lab = lab("rails=2,decoys");
    for host in [Host::A, Host::B] {
        let selection = select(lab.host(host), &[]);
        // Only who asks for a way to somebody sees that the first one leads nowhere.
        let wanted =
            [(STRAY, stray(host)), ("rail0", lab.addr(host, 0)), ("rail1", lab.addr(host, 1))];
        assert_eq!(rails(&selection), wanted);
        for name in DECOYS.into_iter().chain(["lo"]) {
            let candidate = candidate(&selection, name);
            assert_eq!(candidate.verdict, Verdict::Rejected, "{candidate}");
            let wanted = match name {
                "lo" => "this host only",
                "down0" => "ip link set down0 up",
                "stray0" => "is public, and stray1 has a private one",
                bridge => &format!(
                    "virtual (a bridge, by its name of {}",
                    match bridge {
                        "docker0" => "Docker",
                        _ => "libvirt",
                    }
                ),
            };
            assert!(candidate.reason.contains(wanted), "{candidate}");
        }
        // They are taken by who asks for them.
        let named = select(lab.host(host), &[("nics", "rail1,virbr0,stray0")]);
        let names: Vec<_> = named.rails.iter().map(|rail| rail.nic.as_str()).collect();
        assert_eq!(names, ["rail1", "virbr0", "stray0"]);
    }
    // Nor does a route lead from one to the other.
    for to in ["198.51.100.2".parse().unwrap(), stray(Host::B)] {
        assert!(matches!(route(&lab, 0, to), Route::Unreachable { .. }), "{to}");
    }
}

#[test]
fn sessions_among_decoys_connect_at_once() {
    require_lab!();
    for spec in ["rails=1,decoys", "rails=2,decoys"] {
        let lab = lab(spec);
        // Nothing is said of NICs, and a second try would not be forgiven.
        let settings = [("listen_address", "any"), ("connect_retries", "0")];
        let side = |host: Host| {
            move |endpoint: &Endpoint<Owned>, peer: Peer| {
                let at = endpoint.address().locator().ip();
                assert_eq!(at, stray(host), "the first of equal ones, though nobody gets there");
                let start = Instant::now();
                ping_pong(endpoint, peer, host == Host::A, 0..1);
                eprintln!("{spec}: a message there and back after {:?}", start.elapsed());
                ping_pong(endpoint, peer, host == Host::A, 1..100);
                let paths = endpoint.paths();
                let primary = paths.iter().find(|path| path.carries_messages);
                assert!(primary.is_some_and(|path| path.nic.starts_with("rail")), "{paths:?}");
                let mut strays = paths.iter().filter(|path| path.nic == STRAY);
                assert!(strays.all(|path| path.bytes_sent == 0), "{paths:?}");
                ping_pong(endpoint, peer, host == Host::A, 100..200);
            }
        };
        pair(&lab, &settings, side(Host::A), side(Host::B));
    }
}

#[test]
fn selection_follows_addresses_and_links() {
    require_lab!();
    let lab = lab("rails=3");
    let a = lab.host(Host::A);
    let address = |rail| lab.addr(Host::A, rail);
    let mut wanted = vec![("rail0", address(0)), ("rail1", address(1)), ("rail2", address(2))];
    assert_eq!(rails(&select(a, &[])), wanted);
    ip(a, "link set dev rail1 down");
    wanted.remove(1);
    let begin = Instant::now();
    while rails(&select(a, &[])) != wanted {
        assert!(begin.elapsed() < LIMIT, "{:?}", select(a, &[]));
    }
    ip(a, &format!("addr del {}/24 dev rail0", address(0)));
    ip(a, "addr add 8.8.4.4/24 dev rail0");
    let selection = select(a, &[]);
    assert_eq!(rails(&selection), wanted[1..]);
    let reason = candidate(&selection, "rail0").to_string();
    assert!(reason.contains("8.8.4.4 is public, and rail2 has a private one"), "{reason}");
    // A second network of a NIC is a rail of its own where both are named.
    ip(a, "addr add 10.88.0.1/24 dev rail2");
    let both = select(a, &[("nics", "10.88.0.0/16,10.77.0.0/16"), ("backup_nics", "10.88.0.0/16")]);
    let second = "10.88.0.1".parse().unwrap();
    assert_eq!(rails(&both), [("rail2", address(2)), ("rail2", second)]);
    assert_eq!(candidate(&both, "rail2").nic.prefix_of(second), Some(24));
}

#[test]
fn only_ipv6_is_enough() {
    require_lab!();
    let lab = lab("rails=2");
    let a = lab.host(Host::A);
    for rail in 0..2 {
        ip(a, &format!("addr flush dev rail{rail}"));
        ip(a, &format!("addr add fd00:77:{rail}::1/64 dev rail{rail} nodad"));
    }
    let wanted: [IpAddr; 2] = ["fd00:77:0::1", "fd00:77:1::1"].map(|text| text.parse().unwrap());
    let selection = select(a, &[]);
    assert_eq!(rails(&selection), [("rail0", wanted[0]), ("rail1", wanted[1])]);
    let index = candidate(&selection, "rail1").nic.index;
    let (on_link, elsewhere) = ("fd00:77:1::2".parse().unwrap(), "fd00:77:0::2".parse().unwrap());
    let find =
        |to| a.enter(|| Routes::open().unwrap().find(index, wanted[1], to).unwrap()).unwrap();
    assert_eq!(find(on_link), direct(None));
    assert_eq!(find(elsewhere), Route::OtherNic { nic_index: selection.rails[0].nic_index });
    assert!(matches!(find("fd00:99::1".parse().unwrap()), Route::Unreachable { .. }));
}

/// One rail has IPv4 only, the other one IPv6 only.
#[test]
fn rails_of_two_families_are_refused_with_a_reason() {
    require_lab!();
    let lab = lab("rails=2");
    let a = lab.host(Host::A);
    ip(a, "addr flush dev rail1");
    ip(a, "addr add fd00:77:1::1/64 dev rail1 nodad");
    let (first, second) = (lab.addr(Host::A, 0), "fd00:77:1::1".parse().unwrap());
    for named in [&[][..], &[("nics", "rail*")]] {
        let selection = select(a, named);
        assert_eq!(rails(&selection), [("rail0", first)]);
        let reason = candidate(&selection, "rail1").to_string();
        assert!(reason.contains("IPv6 addresses only, and rails are of one family"), "{reason}");
        assert!(reason.contains("listen_address"), "the cure: {reason}");
    }
    assert_eq!(rails(&select(a, &[("nics", "rail1,rail0")])), [("rail1", second)]);
}

#[test]
fn routes_lead_by_one_nic_or_another() {
    require_lab!();
    let lab = lab("rails=2");
    let [first, second] = [0, 1].map(|rail| lab.addr(Host::B, rail));
    assert_eq!(route(&lab, 0, first), direct(None));
    assert_eq!(route(&lab, 1, second), direct(None));
    assert_eq!(route(&lab, 0, second), Route::OtherNic { nic_index: index(&lab, 1) });
    assert_eq!(route(&lab, 0, lab.addr(Host::A, 0)), Route::Local);
    // Somewhere else: by a router, whose route is narrower, and only from the NIC it is at.
    let far = "10.99.0.1".parse().unwrap();
    assert!(matches!(route(&lab, 0, far), Route::Unreachable { .. }));
    ip(lab.host(Host::A), &format!("route add 10.99.0.0/16 via {first} mtu 1400"));
    let routed = Route::Routed { gateway: first, mtu: Some(1400), usual_nic: None };
    assert_eq!(route(&lab, 0, far), routed);
    assert_eq!(route(&lab, 1, far), Route::OtherNic { nic_index: index(&lab, 0) });
    ip(lab.host(Host::A), "route add unreachable 10.99.0.0/24");
    assert!(matches!(route(&lab, 0, far), Route::Unreachable { .. }));
}

#[test]
fn one_subnet_is_reached_from_each_of_its_nics() {
    require_lab!();
    let lab = lab("rails=2,same-subnet");
    let [first, second] = [0, 1].map(|rail| lab.addr(Host::B, rail));
    assert_eq!(rails(&select(lab.host(Host::A), &[])).len(), 2);
    // One of the two has the route; from the other one it takes a socket that is bound to it.
    let usual = index(&lab, 0);
    for to in [first, second] {
        assert_eq!(route(&lab, 0, to), direct(None));
        assert_eq!(route(&lab, 1, to), direct(Some(usual)));
    }
}

#[test]
fn routers_are_named() {
    require_lab!();
    let lab = lab("rails=2,routed");
    for rail in 0..2 {
        let found = route(&lab, rail, lab.addr(Host::B, rail));
        assert!(matches!(found, Route::Routed { usual_nic: None, .. }), "{found:?}");
    }
    let crossed = route(&lab, 1, lab.addr(Host::B, 0));
    assert!(!crossed.leaves() && crossed.to_string().starts_with("by NIC"), "{crossed}");
}

/// The first address of an endpoint of host a, made with no NIC named, and how long that took.
fn opened(lab: &Lab, settings: &[(&str, &str)]) -> (Result<IpAddr, String>, Duration) {
    let all = settings.iter().fold(Settings::isolated(), |it, (name, value)| it.set(name, value));
    let settings = all.set("insecure", "true").build().unwrap();
    let open = || {
        let start = Instant::now();
        let domain = Domain::with_settings(settings).unwrap();
        let opened = domain.endpoint().map(|endpoint| endpoint.address().locator().ip());
        (opened.map_err(|error| error.to_string()), start.elapsed())
    };
    lab.host(Host::A).enter(open).unwrap()
}

#[test]
fn a_rail_that_is_coming_up_is_waited_for() {
    require_lab!();
    let lab = lab("");
    let patient = [("connect_timeout", "60s")];
    for settings in [&patient[..], &[patient[0], ("nics", "rail0")]] {
        lab.link_down(Host::A, 0).unwrap();
        let opened = thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_secs(1));
                lab.link_up(Host::A, 0).unwrap();
            });
            opened(&lab, settings).0
        });
        assert_eq!(opened, Ok(lab.addr(Host::A, 0)), "{settings:?}");
    }
}

#[test]
fn a_rail_that_does_not_come_up_is_named_and_loopback_is_taken_by_name_only() {
    require_lab!();
    let lab = lab("");
    lab.link_down(Host::A, 0).unwrap();
    let brief = ("connect_timeout", "500ms");
    let (opened_by_default, took) = opened(&lab, &[brief]);
    let error = opened_by_default.unwrap_err();
    assert!(took >= Duration::from_millis(500), "{took:?}");
    for part in ["only loopback is up", "set nics = lo", "connect_timeout", "rail0: rejected: down"]
    {
        assert!(error.contains(part), "{part}: {error}");
    }
    let loopback: IpAddr = "127.0.0.1".parse().unwrap();
    assert_eq!(opened(&lab, &[brief, ("nics", "lo")]).0, Ok(loopback));
    assert_eq!(opened(&lab, &[brief, ("listen_address", "127.0.0.1")]).0, Ok(loopback));
    let error = opened(&lab, &[brief, ("nics", "rail0")]).0.unwrap_err();
    assert!(error.contains("rail0: rejected: down"), "{error}");
    // There is no other NIC.
    ip(lab.host(Host::A), "link delete rail0");
    assert_eq!(opened(&lab, &[brief]).0, Ok(loopback));
}
