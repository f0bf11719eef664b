//! Rails as hosts have them: behind routers, of IPv6, many, with roles, and some dead from the
//! start. Every byte of long messages is looked at, and every rail that should carry some does.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::common::{pair, pair_at};
use crate::rail_stream::{CARRIED, STALLED, fill, run};
use ringrail::{Endpoint, Envelope, Owned, Peer, ReceiveOptions, Selector, SendOptions};
use ringrail_tests::lab::{Host, Lab};
use ringrail_tests::require_lab;

const LONG: usize = 4 << 20;
/// Messages at the least.
const FEW: u64 = 4;
/// Messages under way.
const WINDOW: usize = 2;
const TAG: Envelope = Envelope::tagged(7);

fn lab(spec: &str) -> Lab {
    Lab::build(&spec.parse().unwrap()).unwrap()
}

/// Bytes of long messages by NIC, both ways.
fn carried(endpoint: &Endpoint<Owned>, nic: &str) -> u64 {
    let paths = endpoint.paths();
    let of_nic = paths.iter().filter(|path| path.nic == nic);
    of_nic.map(|path| path.bytes_sent + path.bytes_received).sum()
}

/// Sends long messages until there is enough of them, which is asked before each.
fn send_until(
    endpoint: &Endpoint<Owned>,
    peer: Peer,
    both: &AtomicU64,
    mut is_enough: impl FnMut() -> bool,
) {
    let mut sends = VecDeque::new();
    let (mut number, start) = (0, Instant::now());
    while number < FEW || !is_enough() {
        assert!(start.elapsed() < STALLED, "not enough after {number}: {:?}", endpoint.paths());
        let mut message = vec![0; LONG];
        fill(number, &mut message);
        sends.push_back(endpoint.send(peer, TAG, message, SendOptions::default()).unwrap());
        number += 1;
        if sends.len() == WINDOW {
            sends.pop_front().unwrap().wait().unwrap();
        }
    }
    for send in sends {
        send.wait().unwrap();
    }
    endpoint.send_blocking(peer, TAG, &number.to_le_bytes(), SendOptions::new()).unwrap();
    part(endpoint, both);
}

/// Receives all of them; `at_end` is asked while there is the session still.
fn receive_all(endpoint: &Endpoint<Owned>, peer: Peer, both: &AtomicU64, at_end: impl FnOnce()) {
    let (mut message, mut expected) = (vec![0; LONG], vec![0; LONG]);
    for number in 0_u64.. {
        message.fill(0xdd);
        let status = endpoint
            .receive_blocking(Selector::from_peer(peer, TAG), &mut message, ReceiveOptions::new())
            .unwrap();
        if status.length == 8 {
            assert_eq!(message[..8], number.to_le_bytes(), "messages that came");
            at_end();
            return part(endpoint, both);
        }
        fill(number, &mut expected);
        assert!(status.length == LONG && message == expected, "message {number}");
    }
}

/// The other one may still want an acknowledgement.
fn part(endpoint: &Endpoint<Owned>, both: &AtomicU64) {
    both.fetch_add(1, Ordering::SeqCst);
    let start = Instant::now();
    while both.load(Ordering::SeqCst) < 2 {
        endpoint.progress().unwrap();
        assert!(start.elapsed() < STALLED, "the other side has not got everything");
    }
}

/// Long messages go by all rails of the lab.
fn all_rails_carry(lab: &Lab, at: [IpAddr; 2], settings: &[(&str, &str)]) {
    let settings = [&[("nics", "rail*")], settings].concat();
    let nics: Vec<String> = (0..lab.spec().rails).map(|rail| lab.nic(rail)).collect();
    let both = AtomicU64::new(0);
    let shares = |endpoint: &Endpoint<Owned>| -> Vec<u64> {
        nics.iter().map(|nic| carried(endpoint, nic)).collect()
    };
    pair_at(
        lab,
        at,
        [&settings; 2],
        |endpoint, peer| {
            assert_eq!(endpoint.rails().len(), nics.len(), "rails");
            // What a lane that is reset has swallowed counts on this side only, and on a busy
            // machine rails are late and suspected in turns.
            let is_all = || shares(endpoint).iter().all(|&bytes| bytes >= 4 * CARRIED);
            send_until(endpoint, peer, &both, is_all);
        },
        |endpoint, peer| {
            receive_all(endpoint, peer, &both, || {
                let shares = shares(endpoint);
                eprintln!("bytes by rail: {shares:?}");
                assert!(shares.iter().all(|&bytes| bytes >= CARRIED), "{shares:?}");
            });
        },
    );
}

/// Where the first rails of both hosts are.
fn first(lab: &Lab) -> [IpAddr; 2] {
    [Host::A, Host::B].map(|host| lab.addr(host, 0))
}

/// RR-RAIL-3
#[test]
fn rails_behind_routers_carry_all() {
    require_lab!();
    let lab = lab("rails=2,routed,rate=1gbit");
    all_rails_carry(&lab, first(&lab), &[]);
}

/// RR-RAIL-3
#[test]
fn rails_of_ipv6_carry_all() {
    require_lab!();
    let lab = lab("rails=2,rate=1gbit");
    for (host, last) in [(Host::A, 1), (Host::B, 2)] {
        for rail in 0..2 {
            let (nic, address) = (lab.nic(rail), format!("fd00:77:{rail}::{last}/64"));
            run(&lab, host, "ip", &["addr", "flush", "dev", &nic]);
            run(&lab, host, "ip", &["addr", "add", &address, "dev", &nic, "nodad"]);
        }
    }
    all_rails_carry(&lab, ["fd00:77::1", "fd00:77::2"].map(|at| at.parse().unwrap()), &[]);
}

/// RR-RAIL-3
#[test]
fn eight_rails_carry_all() {
    require_lab!();
    let lab = lab("rails=8,rate=200mbit");
    all_rails_carry(&lab, first(&lab), &[("rails_max", "8")]);
}

/// Long messages come by the second rail, though the first one is dead in some way.
fn the_second_rail_carries(lab: &Lab, at: [IpAddr; 2], opener: Host, control_lane: &str) {
    let both = AtomicU64::new(0);
    let side = |endpoint: &Endpoint<Owned>, peer, host| {
        assert_eq!(endpoint.rails().len(), 2, "rails");
        let start = Instant::now();
        if host == opener {
            send_until(endpoint, peer, &both, || true);
        } else {
            receive_all(endpoint, peer, &both, || {
                eprintln!("{opener:?} opened: all came after {:?}", start.elapsed());
                assert!(carried(endpoint, "rail1") >= FEW * LONG as u64);
                assert_eq!(primary_nic(endpoint).as_deref(), Some("rail1"), "messages go by it");
            });
        }
    };
    pair_at(
        lab,
        at,
        [&[("listen_address", "any"), ("control_lane", control_lane)]; 2],
        |endpoint, peer| side(endpoint, peer, Host::A),
        |endpoint, peer| side(endpoint, peer, Host::B),
    );
}

/// Nobody says which rail is dead, and no setting helps.
///
/// RR-ADDR-3, RR-CONN-6
#[test]
fn a_first_rail_that_is_dead_from_the_start_keeps_nobody_from_the_peer() {
    require_lab!();
    for (opener, control_lane) in [(Host::A, "auto"), (Host::B, "auto"), (Host::A, "tcp")] {
        let lab = lab("rails=2,switch");
        lab.blackhole(0).unwrap();
        the_second_rail_carries(&lab, first(&lab), opener, control_lane);
    }
}

/// All routes lead by the dead rail: only what is bound to the other one gets through.
///
/// RR-ADDR-3, RR-CONN-6
#[test]
fn a_dead_first_rail_of_one_subnet_keeps_nobody_from_the_peer() {
    require_lab!();
    for (opener, control_lane) in [(Host::A, "auto"), (Host::B, "auto"), (Host::A, "tcp")] {
        let lab = lab("rails=2,same-subnet,switch");
        lab.blackhole(0).unwrap();
        the_second_rail_carries(&lab, first(&lab), opener, control_lane);
    }
    for deaf in [Host::A, Host::B] {
        let lab = lab("rails=2,same-subnet,switch");
        // Its peer is heard by the first rail, and never hears an answer.
        lab.blackhole_one_way(0, deaf.other()).unwrap();
        the_second_rail_carries(&lab, first(&lab), deaf, "auto");
    }
}

/// The same of IPv6.
///
/// RR-ADDR-3, RR-CONN-6
#[test]
fn a_dead_first_rail_of_one_ipv6_subnet_keeps_nobody_from_the_peer() {
    require_lab!();
    for opener in [Host::A, Host::B] {
        let lab = lab("rails=2,same-subnet,switch");
        for (host, last) in [(Host::A, 1), (Host::B, 101)] {
            for rail in 0..2 {
                let (nic, address) = (lab.nic(rail), format!("fd00:77::{}/64", last + rail));
                run(&lab, host, "ip", &["addr", "flush", "dev", &nic]);
                run(&lab, host, "ip", &["addr", "add", &address, "dev", &nic, "nodad"]);
            }
        }
        lab.blackhole(0).unwrap();
        let at = ["fd00:77::1", "fd00:77::101"].map(|at| at.parse().unwrap());
        the_second_rail_carries(&lab, at, opener, "auto");
    }
}

/// The NIC that messages go by.
fn primary_nic(endpoint: &Endpoint<Owned>) -> Option<String> {
    endpoint.paths().into_iter().find(|path| path.carries_messages).map(|path| path.nic)
}

/// Whether rails 0 and 1 carried enough while rail 2 carried nothing at all.
///
/// On a busy machine a stall makes both suspect, and then what waits for others to fail is rightly
/// used for a moment. So it is not asked of the whole time but of a window, and a new one begins
/// with each byte of rail 2.
fn backup_waits(now: [u64; 3], window: &mut [u64; 3]) -> bool {
    if now[2] != window[2] {
        *window = now;
    }
    (0..2).all(|rail| now[rail].saturating_sub(window[rail]) >= CARRIED)
}

/// One rail is preferred, and one waits for the others to fail.
#[test]
fn roles_decide_what_goes_by_which_rail() {
    require_lab!();
    let (lab, both) = (lab("rails=3,rate=500mbit"), AtomicU64::new(0));
    let settings = [("nics", "rail*"), ("preferred_nics", "rail1"), ("backup_nics", "rail2")];
    pair(
        &lab,
        &settings,
        |endpoint, peer| {
            let (mut window, mut cut_at) = ([0; 3], None);
            send_until(endpoint, peer, &both, || {
                let now = ["rail0", "rail1", "rail2"].map(|nic| carried(endpoint, nic));
                let primary_nic = primary_nic(endpoint);
                match cut_at {
                    None if backup_waits(now, &mut window)
                        && primary_nic.as_deref() == Some("rail1") =>
                    {
                        (0..2).for_each(|rail| lab.blackhole(rail).unwrap());
                        (window, cut_at) = (now, Some(Instant::now()));
                        false
                    }
                    Some(at)
                        if now[2].saturating_sub(window[2]) >= CARRIED
                            && primary_nic.as_deref() == Some("rail2") =>
                    {
                        eprintln!("the backup is used after {:?}", at.elapsed());
                        true
                    }
                    _ => false,
                }
            });
        },
        |endpoint, peer| receive_all(endpoint, peer, &both, || {}),
    );
}
