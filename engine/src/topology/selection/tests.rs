use std::net::IpAddr;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::types::rail::RAILS_MAX;

fn nic(name: &str, addresses: &[&str]) -> Nic {
    let addresses: Vec<IpAddr> = addresses.iter().map(|address| address.parse().unwrap()).collect();
    Nic {
        name: name.into(),
        index: 1,
        prefixes: vec![24; addresses.len()],
        addresses,
        up: true,
        loopback: name == "lo",
        virtual_: None,
        speed_mbps: None,
        mtu: None,
        numa_node: None,
    }
}

fn fast(name: &str, addresses: &[&str], speed_mbps: u32) -> Nic {
    Nic { speed_mbps: Some(speed_mbps), ..nic(name, addresses) }
}

fn detour(name: &str, address: &str, kind: &str) -> Nic {
    Nic { virtual_: Some(kind.into()), ..nic(name, &[address]) }
}

fn docker() -> Nic {
    detour("docker0", "172.17.0.1", "a bridge")
}

fn lo() -> Nic {
    nic("lo", &["127.0.0.1", "::1"])
}

fn down(name: &str, address: &str) -> Nic {
    Nic { up: false, ..nic(name, &[address]) }
}

/// Settings as `name=value name=value`.
fn settings(text: &str) -> Settings {
    let pairs = text.split_whitespace().map(|pair| pair.split_once('=').unwrap());
    pairs.fold(Settings::isolated(), |it, (name, value)| it.set(name, value)).build().unwrap()
}

fn named(names: &str) -> Settings {
    settings(&format!("nics={names}"))
}

/// Returns the rails as `name address, name address`, after checking that the candidates agree.
fn rails(nics: &[Nic], settings: &Settings) -> String {
    let selection = select(nics, settings).unwrap();
    check(nics, settings, &selection);
    let rails = selection.rails.iter().map(|rail| format!("{} {}", rail.nic, rail.address));
    rails.collect::<Vec<_>>().join(", ")
}

/// What holds for every selection.
fn check(nics: &[Nic], settings: &Settings, selection: &Selection) {
    let names = selection.candidates.iter().map(|one| &one.nic);
    assert!(names.eq(nics), "each NIC once, in order");
    let mut names_of_rails = vec![None; selection.rails.len()];
    for candidate in &selection.candidates {
        assert!(!candidate.reason.is_empty() && candidate.reason != "not usable", "{candidate}");
        assert_eq!(candidate.verdict == Verdict::Chosen, !candidate.rails.is_empty());
        for &rail in &candidate.rails {
            assert_eq!(names_of_rails[rail].replace(&candidate.nic.name), None);
            assert!(candidate.nic.up, "{candidate}");
        }
    }
    let mut addresses = Vec::new();
    for (rail, name) in selection.rails.iter().zip(names_of_rails) {
        assert_eq!(name, Some(&rail.nic));
        assert_eq!(rail.address.is_ipv4(), selection.rails[0].address.is_ipv4());
        assert!(!addresses.contains(&rail.address), "{} twice", rail.address);
        addresses.push(rail.address);
    }
    assert!(selection.rails.len() <= settings.rails_max());
    if let Some(address) = settings.listen_address() {
        assert!(addresses.first().is_none_or(|first| *first == address));
    }
    let first = selection.chosen().map(|(nic, address)| (nic.name.clone(), address));
    let wanted = selection.rails.first().map(|rail| (rail.nic.clone(), rail.address));
    assert_eq!(first, wanted);
}

fn reason(nics: &[Nic], settings: &Settings, name: &str) -> String {
    let selection = select(nics, settings).unwrap();
    let mut candidates = selection.candidates.into_iter();
    candidates.find(|candidate| candidate.nic.name == name).unwrap().to_string()
}

fn assert_reasons(nics: &[Nic], settings: &Settings, wanted: &[(&str, &str)]) {
    for (name, part) in wanted {
        let reason = reason(nics, settings, name);
        assert!(reason.contains(part), "{reason}");
    }
}

/// A host with what people have beside their rails.
fn decoys() -> Vec<Nic> {
    vec![
        lo(),
        docker(),
        detour("virbr0", "192.168.122.1", "a bridge, by its name of libvirt"),
        detour("flannel.1", "10.244.0.0", "a vxlan"),
        detour("tun0", "10.8.0.2", "a tunnel or tap device"),
        Nic { up: false, ..detour("br-0", "172.18.0.1", "a bridge") },
        Nic { addresses: vec![], ..detour("vnet0", "10.1.1.1", "by its name made by libvirt") },
        down("eth0", "10.9.0.1"),
        nic("eth1", &[]),
        nic("eth2", &["169.254.7.7", "fe80::7"]),
        nic("eth3", &["8.8.4.4"]),
        nic("eth4", &["fd00::4"]),
        fast("rail0", &["10.0.0.1", "10.0.0.101", "fd00::1", "fe80::1"], 10_000),
        fast("rail1", &["10.0.1.1", "fe80::2"], 25_000),
        // Same network as rail0, and one that leads nowhere: only probing shows that.
        fast("rail2", &["10.0.0.2"], 10_000),
        nic("odd", &["10.99.99.1"]),
    ]
}

#[test]
fn all_ordinary_nics_are_rails_and_decoys_are_not() {
    let (list, settings) = (decoys(), Settings::default());
    let expected = "rail1 10.0.1.1, rail0 10.0.0.1, rail2 10.0.0.2, odd 10.99.99.1";
    assert_eq!(rails(&list, &settings), expected);
    assert_reasons(
        &list,
        &settings,
        &[
            ("lo", "rejected: loopback reaches this host only"),
            ("docker0", "virtual (a bridge); set nics = docker0"),
            ("virbr0", "virtual (a bridge, by its name of libvirt); set nics = virbr0"),
            ("flannel.1", "virtual (a vxlan)"),
            ("tun0", "virtual (a tunnel or tap device)"),
            ("br-0", "virtual (a bridge)"),
            ("vnet0", "virtual (by its name made by libvirt), and has no IP address"),
            ("eth0", "down; cure: ip link set eth0 up"),
            ("eth1", "no IP address; cure: ip address add"),
            ("eth2", "link-local addresses only"),
            ("eth3", "8.8.4.4 is public, and rail0 has a private one, 10.0.0.1"),
            ("eth4", "IPv6 addresses only, and rails are of one family, here IPv4 like 10.0.0.1"),
            ("rail0", "chosen: rail 1: up, with an address"),
            ("rail1", "chosen: rail 0: up"),
        ],
    );
}

/// A named NIC without an address gives no rail.
#[test]
fn unusable_nics_are_not_proposed() {
    let ifb = detour("ifb0", "10.1.1.1", "by its name a queueing helper");
    let ifb = Nic { addresses: vec![], up: false, ..ifb };
    let bridge = Nic { up: false, ..docker() };
    let list = [ifb, bridge, Nic { addresses: vec![], ..lo() }, nic("rail0", &["10.0.0.1"])];
    let reason_of = |name| reason(&list, &Settings::default(), name);
    let wanted = "ifb0: rejected: virtual (by its name a queueing helper), and has no IP address";
    assert_eq!(reason_of("ifb0"), wanted);
    assert_eq!(reason_of("docker0"), "docker0: rejected: virtual (a bridge), and down");
    assert_eq!(reason_of("lo"), "lo: rejected: loopback reaches this host only");
    // If it is named, the reason has the cure.
    assert!(reason(&list, &named("ifb0"), "ifb0").contains("cure: ip address add"));
}

#[test]
fn selection_has_the_nic_of_each_rail() {
    let rail1 = Nic { index: 7, mtu: Some(9000), ..fast("rail1", &["10.0.1.1"], 25_000) };
    let list = [nic("rail0", &["10.0.0.1"]), rail1];
    let selection = select(&list, &settings("backup_nics=rail0")).unwrap();
    let rail = &selection.rails[0];
    assert_eq!((rail.nic_index, rail.mtu, rail.speed_mbps), (7, Some(9000), Some(25_000)));
    assert_eq!((rail.role, selection.rails[1].role), (RailRole::Ordinary, RailRole::Backup));
}

#[test]
fn fallbacks_come_in_order_and_alone() {
    let settings = Settings::default();
    let more = [
        detour("virbr0", "192.168.122.1", "a bridge"),
        nic("eth0", &["fe80::1"]),
        nic("eth1", &["169.254.0.1"]),
        nic("eth2", &["fe80::2", "fd00::2"]),
        nic("eth3", &["2600::3"]),
        nic("eth4", &["8.8.4.4"]),
        nic("eth5", &["fe80::5", "10.0.0.5"]),
    ];
    let mut list = [&[lo(), docker()][..], &more].concat();
    for expected in [
        "eth5 10.0.0.5",
        "eth4 8.8.4.4",
        "eth2 fd00::2",
        "eth2 fd00::2",
        "eth1 169.254.0.1",
        "eth0 fe80::1",
        "docker0 172.17.0.1",
        "docker0 172.17.0.1",
        "lo 127.0.0.1",
        "",
    ] {
        assert_eq!(rails(&list, &settings), expected);
        if expected.starts_with("eth1") {
            assert!(reason(&list, &settings, "eth0").contains("only one of its kind"));
        }
        list.pop();
    }
    let both = [docker(), more[0].clone()];
    assert!(reason(&both, &settings, "virbr0").contains("set nics = docker0,virbr0"));
    assert_eq!(rails(&both, &named("docker0,virbr0")).split(", ").count(), 2);
}

#[test]
fn only_public_addresses_are_taken_where_there_are_no_others() {
    let settings = Settings::default();
    let list = [nic("eth0", &["2600::1"]), nic("eth1", &["8.8.4.4", "2600::2"])];
    assert_eq!(rails(&list, &settings), "eth1 8.8.4.4");
    assert_eq!(rails(&list[..1], &settings), "eth0 2600::1");
    // The private one of several is the rail's.
    let list = [nic("eth0", &["8.8.4.4", "10.0.0.1"]), nic("eth1", &["8.8.8.8"])];
    assert_eq!(rails(&list, &settings), "eth0 10.0.0.1");
    assert_eq!(rails(&list, &named("eth*")), "eth0 10.0.0.1, eth1 8.8.8.8");
    for private in ["172.31.0.1", "192.168.9.9", "100.64.0.1", "198.18.0.1"] {
        let list = [nic("eth0", &["8.8.4.4"]), nic("eth1", &[private])];
        assert_eq!(rails(&list, &settings), format!("eth1 {private}"));
    }
    for public in ["203.0.113.1", "100.128.0.1", "172.32.0.1", "198.20.0.1", "11.0.0.1"] {
        let list = [nic("eth0", &[public]), nic("eth1", &["10.0.0.1"])];
        assert_eq!(rails(&list, &settings), "eth1 10.0.0.1");
    }
}

#[test]
fn names_patterns_and_networks_are_honoured_in_their_order() {
    let list = decoys();
    for (names, expected) in [
        ("rail1,rail0", "rail1 10.0.1.1, rail0 10.0.0.1"),
        ("rail0,rail1", "rail0 10.0.0.1, rail1 10.0.1.1"),
        ("rail*", "rail1 10.0.1.1, rail0 10.0.0.1, rail2 10.0.0.2"),
        ("rail2,rail*", "rail2 10.0.0.2, rail1 10.0.1.1, rail0 10.0.0.1"),
        ("docker0", "docker0 172.17.0.1"),
        ("lo", "lo 127.0.0.1"),
        ("eth3,rail0", "eth3 8.8.4.4, rail0 10.0.0.1"),
        ("eth2", "eth2 169.254.7.7"),
        ("eth4,rail0", "eth4 fd00::4, rail0 fd00::1"),
        ("10.0.0.0/16", "rail1 10.0.1.1, rail0 10.0.0.1, rail2 10.0.0.2"),
        ("10.0.0.0/24", "rail0 10.0.0.1, rail2 10.0.0.2"),
        ("fd00::/16", "rail0 fd00::1, eth4 fd00::4"),
        // Two networks name two addresses of one NIC, and twice the same is one.
        ("10.0.0.1,10.0.0.101", "rail0 10.0.0.1, rail0 10.0.0.101"),
        ("10.0.0.101,rail0,rail1", "rail0 10.0.0.101, rail1 10.0.1.1"),
        (
            "rail1,10.0.1.0/24,10.0.0.0/22,odd",
            "rail1 10.0.1.1, rail0 10.0.0.1, rail2 10.0.0.2, \
                                          odd 10.99.99.1",
        ),
        // All of 127.0.0.0/8 is the loopback's.
        ("127.0.0.1,127.0.0.2", "lo 127.0.0.1, lo 127.0.0.2"),
        // Exclusions win wherever they stand.
        ("!rail0,rail*", "rail1 10.0.1.1, rail2 10.0.0.2"),
        ("rail*,!10.0.0.1", "rail1 10.0.1.1, rail0 10.0.0.101, rail2 10.0.0.2"),
        ("rail*,!10.0.0.0/24", "rail1 10.0.1.1"),
        // Alone they leave the ordinary ones.
        ("!rail1", "rail0 10.0.0.1, rail2 10.0.0.2, odd 10.99.99.1"),
        ("!10.0.0.0/23,!nothing*", "odd 10.99.99.1"),
        ("!10.0.0.0/8,!eth3", "rail0 fd00::1, eth4 fd00::4"),
    ] {
        assert_eq!(rails(&list, &named(names)), expected, "{names}");
    }
    assert_reasons(
        &list,
        &named("rail*,!rail2"),
        &[
            ("rail0", "chosen: rail 1: named in the setting nics (`rail*`)"),
            ("rail2", "left out by `!rail2` in the setting nics"),
            ("lo", "not named in the setting nics (rail*,!rail2)"),
        ],
    );
    let networks = named("10.0.0.0/16,!10.0.1.0/24");
    assert!(reason(&list, &networks, "rail1").contains("left out by `!10.0.1.0/24`"));
    assert!(reason(&list, &named("eth4,eth3"), "eth3").contains("family, here IPv6 like fd00::4"));
}

#[test]
fn the_slowest_are_beyond_rails_max() {
    let list = decoys();
    let two = settings("rails_max=2");
    assert_eq!(rails(&list, &two), "rail1 10.0.1.1, rail0 10.0.0.1");
    assert_reasons(
        &list,
        &two,
        &[
            ("rail2", "but rail2 (10000 Mb/s) comes after rail0 (10000 Mb/s), and rails_max is 2;"),
            (
                "odd",
                "usable, but odd (of a speed that its driver does not report) comes after rail0",
            ),
        ],
    );
    assert_eq!(rails(&list, &settings("rails_max=1")), "rail1 10.0.1.1");
    let six: Vec<_> = (0..6).map(|n| nic(&format!("rail{n}"), &[&format!("10.0.{n}.1")])).collect();
    let names = |text: &str| text.split(", ").count();
    assert_eq!(names(&rails(&six, &Settings::default())), 4);
    assert_eq!(names(&rails(&six, &settings("rails_max=16"))), 6);
}

#[test]
fn roles_order_rails() {
    let list = decoys();
    let found = rails(&list, &settings("preferred_nics=10.0.0.0/24 backup_nics=rail1,odd"));
    assert_eq!(found, "rail0 10.0.0.1, rail2 10.0.0.2, rail1 10.0.1.1, odd 10.99.99.1");
    let some = settings("preferred_nics=rail0 backup_nics=!rail* rails_max=3");
    assert_eq!(rails(&list, &some), "rail0 10.0.0.1, rail1 10.0.1.1, rail2 10.0.0.2");
    assert!(reason(&list, &some, "rail0").contains("short messages prefer it"));
    let backup = settings("nics=rail0,rail1 backup_nics=rail0");
    assert_eq!(rails(&list, &backup), "rail1 10.0.1.1, rail0 10.0.0.1");
    assert!(reason(&list, &backup, "rail0").contains("when no other is healthy"));
    let both = select(&list, &settings("preferred_nics=rail* backup_nics=rail2")).unwrap_err();
    assert!(both.to_string().contains("both mean rail2 (10.0.0.2)"), "{both}");
}

#[test]
fn named_nic_that_is_down_is_skipped() {
    let list = [down("rail0", "10.0.0.1"), nic("rail1", &["10.0.1.1"])];
    assert_eq!(rails(&list, &named("rail*")), "rail1 10.0.1.1");
    // Never silently another one than was named.
    assert_eq!(rails(&list, &named("rail0")), "");
    assert!(reason(&list, &named("rail0"), "rail0").contains("ip link set rail0 up"));
}

#[test]
fn an_address_on_two_nics_is_one_rail() {
    let list = [nic("rail0", &["10.0.0.1"]), nic("rail1", &["10.0.0.1"])];
    assert_eq!(rails(&list, &Settings::default()), "rail0 10.0.0.1");
    assert!(reason(&list, &Settings::default(), "rail1").contains("same address as rail0"));
}

#[test]
fn pattern_without_match_is_an_error() {
    let list = [lo(), nic("rail0", &["10.0.0.1"])];
    for setting in ["nics", "preferred_nics", "backup_nics"] {
        for (name, known) in
            [("rail7", "lo, rail0"), ("eth*", "lo, rail0"), ("10.2.0.0/16", "rail0 10.0.0.1")]
        {
            let error = select(&list, &settings(&format!("{setting}={name}"))).unwrap_err();
            let text = error.to_string();
            let start = format!("the setting {setting} names `{name}`, but");
            assert!(text.starts_with(&start) && text.contains(known), "{text}");
        }
        assert!(select(&list, &settings(&format!("{setting}=!eth*"))).is_ok());
    }
    assert!(select(&[], &named("x")).unwrap_err().to_string().contains("none"));
}

#[test]
fn the_listen_address_is_the_first_rails_and_alone_the_only_one() {
    let list = [lo(), nic("rail0", &["10.0.0.1"]), nic("rail1", &["10.0.1.1", "10.0.1.2"])];
    for (text, expected) in [
        ("listen_address=10.0.1.2", "rail1 10.0.1.2"),
        ("listen_address=127.0.0.9", "lo 127.0.0.9"),
        ("listen_address=10.0.1.2 nics=!lo", "rail1 10.0.1.2"),
        ("listen_address=10.0.1.2 nics=rail*", "rail1 10.0.1.2, rail0 10.0.0.1"),
        ("listen_address=10.0.1.2 nics=rail0,rail1", "rail1 10.0.1.2, rail0 10.0.0.1"),
        ("listen_address=10.0.1.2 nics=rail1", "rail1 10.0.1.2"),
        ("listen_address=10.0.1.2 nics=10.0.0.0/16", "rail1 10.0.1.2, rail0 10.0.0.1"),
        ("listen_address=10.0.1.2 nics=10.0.1.1,10.0.1.2", "rail1 10.0.1.2, rail1 10.0.1.1"),
        ("listen_address=127.0.0.9 nics=lo", "lo 127.0.0.9"),
        ("listen_address=127.0.0.9 nics=127.0.0.0/8", "lo 127.0.0.9"),
        ("listen_address=10.0.0.1 nics=rail* backup_nics=rail0", "rail0 10.0.0.1, rail1 10.0.1.1"),
    ] {
        assert_eq!(rails(&list, &settings(text)), expected, "{text}");
    }
    let alone = settings("listen_address=10.0.1.2");
    assert!(reason(&list, &alone, "rail0").contains("alone means one rail"));
    assert!(reason(&list, &alone, "rail1").contains("has the address"));
    let absent = select(&list, &settings("listen_address=10.0.2.1")).unwrap_err();
    assert!(absent.to_string().contains("rail1 10.0.1.2"), "{absent}");
    for text in ["nics=rail0", "nics=!rail1", "nics=rail*,!10.0.1.1", "nics=10.0.1.2"] {
        let both = select(&list, &settings(&format!("listen_address=10.0.1.1 {text}")));
        assert!(matches!(both, Err(SelectionError::Disagreement { .. })), "{text}");
    }
    let list = [nic("rail0", &["10.0.0.1"]), down("rail1", "10.0.1.1")];
    let both = settings("listen_address=10.0.1.1 nics=rail*");
    assert_eq!(rails(&list, &both), "");
    assert!(reason(&list, &both, "rail0").contains("whose NIC is not"));
}

fn any_address() -> impl Strategy<Value = IpAddr> {
    let pool = [
        "10.0.0.1",
        "10.0.0.2",
        "10.0.1.1",
        "8.8.4.4",
        "169.254.1.1",
        "127.0.0.1",
        "fd00::1",
        "fe80::1",
        "2600::1",
        "::1",
    ];
    proptest::sample::select(pool.map(|text| text.parse().unwrap()).to_vec())
}

fn any_nic() -> impl Strategy<Value = Nic> {
    let name = proptest::sample::select(vec!["lo", "rail0", "rail1", "rail2", "docker0", "eth0"]);
    let kind = proptest::option::weighted(0.2, Just("a bridge".to_owned()));
    let speed = proptest::option::of(1_u32..3);
    (name, vec(any_address(), 0..4), proptest::bool::weighted(0.8), kind, speed).prop_map(
        |(name, mut addresses, up, virtual_, speed_mbps)| {
            addresses.sort_by_key(crate::topology::address_rank);
            addresses.dedup();
            let prefixes = vec![24; addresses.len()];
            Nic { addresses, prefixes, up, virtual_, speed_mbps, ..nic(name, &[]) }
        },
    )
}

/// Names of what would be better if it had a link.
fn awaited(nics: &[Nic], settings: &Settings) -> String {
    let selection = select(nics, settings).unwrap();
    let names = selection.awaited.iter().map(|&at| selection.candidates[at].nic.name.as_str());
    names.collect::<Vec<_>>().join(" ")
}

#[test]
fn a_nic_that_lacks_only_a_link_is_awaited_where_it_would_be_better() {
    let (none, eth) = (Settings::default(), down("eth0", "10.0.0.1"));
    let bare = Nic { up: false, ..nic("eth1", &[]) };
    assert_eq!(awaited(&[lo(), eth.clone()], &none), "eth0");
    assert_eq!(awaited(std::slice::from_ref(&eth), &none), "eth0", "there is no other");
    assert_eq!(awaited(&[lo(), docker(), eth.clone()], &none), "eth0");
    assert_eq!(awaited(&[lo(), nic("eth2", &["fe80::7"]), eth.clone()], &none), "eth0");
    // Another rail is as good; a bridge without containers, or what has no address, is no rail.
    assert_eq!(awaited(&[lo(), nic("eth2", &["10.0.0.2"]), eth.clone()], &none), "");
    assert_eq!(awaited(&[lo(), Nic { up: false, ..docker() }, bare], &none), "");
    // What the settings say.
    assert_eq!(awaited(&[lo(), eth.clone()], &named("lo")), "");
    assert_eq!(awaited(&[lo(), eth.clone()], &named("eth0")), "eth0");
    assert_eq!(awaited(&[lo(), eth.clone()], &named("!eth0")), "");
    assert_eq!(awaited(&[lo(), eth.clone()], &settings("listen_address=127.0.0.1")), "");
    assert_eq!(awaited(&[lo(), eth], &settings("listen_address=10.0.0.1")), "eth0");
}

proptest! {
    #[test]
    fn any_host_and_settings_give_rails_that_add_up(
        nics in vec(any_nic(), 0..7),
        names in vec(
            "!?(lo|rail[0-2*]|\\*|docker0|10\\.0\\.(0\\.0/16|0\\.1|1\\.0/24)|fd00::/8)", 0..4,
        ),
        listen in proptest::option::weighted(0.3, any_address()),
        backup in proptest::option::weighted(0.3, "rail[01*]"),
        rails_max in 1..=RAILS_MAX,
    ) {
        // A namespace has each name once.
        let mut nics = nics;
        nics.sort_by(|one, other| one.name.cmp(&other.name));
        nics.dedup_by(|one, other| one.name == other.name);
        let mut names = names;
        names.sort();
        names.dedup();
        let mut builder = Settings::isolated().rails_max(rails_max).listen_address(listen);
        if !names.is_empty() {
            builder = builder.set("nics", &names.join(","));
        }
        if let Some(backup) = backup {
            builder = builder.set("backup_nics", &backup);
        }
        let settings = builder.build().unwrap();
        match select(&nics, &settings) {
            Ok(selection) => {
                check(&nics, &settings, &selection);
                // With nothing set, a NIC that is up and has an address is enough.
                let is_usable = |nic: &Nic| nic.up && !nic.addresses.is_empty();
                if names.is_empty() && listen.is_none() {
                    prop_assert_eq!(selection.rails.is_empty(), !nics.iter().any(is_usable));
                }
            }
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }
}
