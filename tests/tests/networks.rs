//! Networks that are not as they should be: translators of addresses, delays that jump, no UDP,
//! NICs that are made anew, rails of two families.

use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{attached, pair};
use crate::rail_stream::{CARRIED, STALLED, assert_moves, came, played, played_in, run};
use ringrail::{
    Endpoint, Envelope, Owned, PathState, Peer, ReceiveOptions, Selector, SendOptions,
    SharedMemoryState,
};
use ringrail_tests::lab::{Host, Lab};
use ringrail_tests::require_lab;

fn lab(spec: &str) -> Lab {
    Lab::build(&spec.parse().unwrap()).unwrap()
}

/// Waits until each figure has grown by what a rail in use carries, and says by how much at last.
fn grown(figures: impl Fn() -> Vec<u64>) -> Vec<u64> {
    let (start, before) = (Instant::now(), figures());
    loop {
        let now = figures();
        let grown: Vec<u64> = now.iter().zip(&before).map(|(now, before)| now - before).collect();
        if grown.iter().all(|&bytes| bytes >= CARRIED) || start.elapsed() > STALLED {
            return grown;
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Messages of both sides at once, short and long.
fn exchange(endpoint: &Endpoint<Owned>, peer: Peer, both: &AtomicU64) {
    const SIZES: [usize; 4] = [8, 3000, 100_000, 1 << 20];
    for round in 0..10 {
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
    // The other one may still want an acknowledgement.
    both.fetch_add(1, Ordering::SeqCst);
    let start = Instant::now();
    while both.load(Ordering::SeqCst) < 2 {
        endpoint.progress().unwrap();
        assert!(start.elapsed() < STALLED, "the other side has not got everything");
    }
}

/// Host b sees host a by addresses that its hello does not name, and cannot open a connection.
///
/// RR-PATH-2
#[test]
fn a_session_by_a_translator_of_addresses_works_both_ways() {
    require_lab!();
    for spec in ["nat", "rails=2,nat"] {
        let (lab, both) = (lab(spec), AtomicU64::new(0));
        pair(
            &lab,
            &[("nics", "rail*")],
            |endpoint, peer| {
                // Until then host b asks in vain.
                thread::sleep(Duration::from_millis(300));
                exchange(endpoint, peer, &both);
                let by_datagram = endpoint.counters().segments_by_datagram;
                assert!(by_datagram > 0, "{spec}: {:?}", endpoint.counters());
            },
            |endpoint, peer| exchange(endpoint, peer, &both),
        );
    }
}

/// RR-RAIL-4
#[test]
fn rails_by_a_translator_fail_and_return_as_any() {
    require_lab!();
    let lab = lab("rails=2,nat");
    played_in(&lab, Host::A, &[], |lab, shared| {
        let by_rail = || [0, 1].map(|rail| came(lab, Host::B, rail)).to_vec();
        let shares = grown(by_rail);
        assert!(shares.iter().all(|&bytes| bytes >= CARRIED), "{shares:?}");
        lab.blackhole(0).unwrap();
        assert_moves(shared, "one rail is cut");
        lab.heal(0).unwrap();
        let shares = grown(by_rail);
        assert!(shares.iter().all(|&bytes| bytes >= CARRIED), "{shares:?}");
    });
}

/// Longer than any timer of before believes in.
#[test]
fn a_delay_that_jumps_in_mid_transfer_loses_nothing() {
    require_lab!();
    for spec in ["delay=200us", "rails=2,delay=200us"] {
        let lab = lab(spec);
        let rails = lab.spec().rails;
        let seen = played_in(&lab, Host::A, &[], |lab, shared| {
            let (long, short) = (Duration::from_millis(20), Duration::from_micros(200));
            for delay in [long, short, long] {
                (0..rails).for_each(|rail| lab.set_delay(rail, delay).unwrap());
                assert_moves(shared, "all rails have another delay");
                thread::sleep(Duration::from_millis(300));
            }
            for rail in 0..rails {
                lab.set_delay(rail, short).unwrap();
                assert_moves(shared, "a rail has another delay");
                thread::sleep(Duration::from_millis(300));
            }
        });
        // A path that is much slower than the other may be left out for a moment.
        for side in seen {
            let mut states: Vec<_> = side.events.iter().map(|(state, _)| *state).collect();
            let last = states.pop();
            assert!(last.is_none_or(|last| last == PathState::Active), "{spec}: {side:?}");
        }
    }
}

/// Routing rules come before the one for local addresses.
fn drop_datagrams(lab: &Lab) {
    for host in [Host::A, Host::B] {
        run(lab, host, "ip", &["rule", "add", "pref", "10", "lookup", "local"]);
        run(lab, host, "ip", &["rule", "del", "pref", "0"]);
        for rail in 0..lab.spec().rails {
            let (nic, pref) = (lab.nic(rail), (rail + 1).to_string());
            let rule = ["rule", "add", "pref", &pref, "ipproto", "udp", "iif", &nic, "blackhole"];
            run(lab, host, "ip", &rule);
        }
    }
}

/// RR-RAIL-2, RR-RAIL-3
#[test]
fn without_datagrams_bulk_goes_by_all_rails_too() {
    require_lab!();
    for opener in [Host::A, Host::B] {
        let lab = lab("rails=2,rate=1gbit:1gbit");
        drop_datagrams(&lab);
        played_in(&lab, opener, &[], |lab, _| {
            let by_rail = || [0, 1].map(|rail| lab.passage(rail, Host::A).unwrap().bytes).to_vec();
            let shares = grown(by_rail);
            let is_all = shares.iter().all(|&bytes| bytes >= CARRIED);
            assert!(is_all, "{opener:?} opened; bytes by rail {shares:?}");
        });
    }
}

/// Waits until a host listens at the address of each rail, bound to the NIC that the rail has now,
/// and by no NIC that is gone, which `ss` has no name for. Messages may flow by a rail again before
/// its listener is replaced.
fn assert_listens_by_nics(lab: &Lab, host: Host) {
    let start = Instant::now();
    loop {
        let listeners = run(lab, host, "ss", &["-Hltn"]);
        let is_bound = |rail| {
            let bound = format!("{}%{}:", lab.addr(host, rail), lab.nic(rail));
            listeners.contains(&bound)
        };
        if (0..2).all(is_bound) && !listeners.contains("%if") {
            return;
        }
        assert!(start.elapsed() < STALLED, "{host:?} listens at: {listeners}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// As when a driver is loaded anew, or a container gets its NIC back.
///
/// RR-RAIL-6
#[test]
fn a_rail_whose_nic_is_made_anew_returns() {
    require_lab!();
    played("rails=2", &[], |lab, shared| {
        for rail in [1, 0] {
            lab.remove_nics(rail).unwrap();
            assert_moves(shared, "a NIC is deleted");
            lab.remake_nics(rail).unwrap();
            let shares = grown(|| vec![came(lab, Host::B, rail)]);
            assert!(shares[0] >= CARRIED, "{shares:?} by rail {rail}");
            for host in [Host::A, Host::B] {
                assert_listens_by_nics(lab, host);
            }
        }
    });
}

/// One rail has IPv4 only, the other one IPv6 only: it is no rail, and not in the way.
#[test]
fn a_nic_of_the_other_address_family_is_left_out() {
    require_lab!();
    let lab = lab("rails=2,switch");
    for (host, address) in [(Host::A, "fd00:77::1/64"), (Host::B, "fd00:77::2/64")] {
        run(&lab, host, "ip", &["addr", "flush", "dev", "rail1"]);
        run(&lab, host, "ip", &["addr", "add", address, "dev", "rail1", "nodad"]);
    }
    played_in(&lab, Host::A, &[], |lab, shared| {
        let before = came(lab, Host::B, 1);
        assert_moves(shared, "one rail is of another family");
        assert!(came(lab, Host::B, 1) < before + 4096, "nothing goes by the other one");
    });
}

/// Two endpoints of one host whose NIC loses its address, or is no more, for longer than the peer
/// timeout.
///
/// RR-END-2, RR-SHM-8
#[test]
fn endpoints_of_one_host_need_no_nic_to_stay_connected() {
    require_lab!();
    let try_case = |&(driver, away): &(&str, &[&str])| {
        let lab = lab("");
        let settings = [("nics", "rail*"), ("peer_timeout", "4s"), ("lanes", driver)];
        let play = || {
            let ends = [0, 1].map(|_| attached(lab.addr(Host::A, 0), &settings).unwrap());
            let peers = [0, 1].map(|at| ends[at].insert_peer(&ends[1 - at].address()).unwrap());
            let exchange = |number: u64| {
                for (at, size) in [(0, 8), (1, 3000), (0, 100_000), (1, 8)] {
                    let (label, bytes) = (Envelope::tagged(number), vec![number as u8; size]);
                    let from = Selector::from_peer(peers[1 - at], label);
                    let asked = ReceiveOptions::new().user_data(1);
                    ends[1 - at].post_receive(from, vec![0; size], asked).unwrap();
                    ends[at].post_send(peers[at], label, bytes, SendOptions::new()).unwrap();
                    let (start, mut has_come) = (Instant::now(), false);
                    while !has_come {
                        assert!(start.elapsed() < STALLED, "{driver}, {away:?}: nothing comes");
                        for end in &ends {
                            let mut done = Vec::new();
                            end.wait(&mut done, 64, Some(Duration::ZERO)).unwrap();
                            for done in done {
                                has_come |= done.user_data == 1;
                                if let Err(error) = done.result {
                                    panic!("{driver}, {away:?}: {error}");
                                }
                            }
                        }
                    }
                }
            };
            let start = Instant::now();
            let shares = |end: &Endpoint<Owned>| match end.shared_memory() {
                SharedMemoryState::On { figures, .. } => figures.received > 0,
                other => panic!("no shared memory: {other:?}"),
            };
            while !ends.iter().all(shares) {
                exchange(0);
                assert!(start.elapsed() < STALLED, "no memory is shared");
            }
            // Called in host a.
            assert!(Command::new("ip").args(away).status().unwrap().success());
            let start = Instant::now();
            for number in 1.. {
                exchange(number);
                thread::sleep(Duration::from_millis(20));
                if start.elapsed() > Duration::from_secs(12) {
                    break;
                }
            }
        };
        lab.host(Host::A).enter(play).unwrap();
    };
    let cases: [(&str, &[&str]); 3] = [
        ("uring", &["addr", "flush", "dev", "rail0"]),
        ("sockets", &["addr", "flush", "dev", "rail0"]),
        ("uring", &["link", "delete", "rail0"]),
    ];
    thread::scope(|scope| {
        let tries: Vec<_> = cases.iter().map(|case| scope.spawn(|| try_case(case))).collect();
        tries.into_iter().for_each(|it| it.join().unwrap());
    });
}
