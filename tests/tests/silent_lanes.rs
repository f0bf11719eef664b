//! Rails that swallow what bulk lanes carry while nothing else tells of it.

use std::time::{Duration, Instant};
use std::{fs, thread};

use crate::rail_stream::{STALLED, assert_moves, came, played, played_in, run};
use ringrail_tests::lab::{Host, Lab};
use ringrail_tests::require_lab;

const TWO: &str = "rails=2,rate=1gbit:1gbit";
/// Bytes that a rail which carries chunks gets beyond what it is asked by.
const CHUNKS: u64 = 1 << 20;

/// Without datagrams no path is asked: the sender's kernel knows that nobody acknowledges.
///
/// RR-LANE-7
#[test]
fn a_rail_that_dies_without_a_word_costs_no_message() {
    require_lab!();
    let [sender, _] = played(TWO, &[("control_lane", "tcp")], |lab, shared| {
        // The first one has the control lane, on which all depends without datagrams.
        for _ in 0..2 {
            lab.blackhole(1).unwrap();
            for _ in 0..3 {
                assert_moves(shared, "the second rail is dead");
                thread::sleep(Duration::from_millis(700));
            }
            lab.heal(1).unwrap();
            let (start, before) = (Instant::now(), came(lab, Host::B, 1));
            while came(lab, Host::B, 1) < before + CHUNKS {
                assert!(start.elapsed() < STALLED, "the second rail is not used again");
                thread::sleep(Duration::from_millis(10));
            }
        }
    });
    assert!(sender.retransmits_before > 0, "the kernel tried: {sender:?}");
}

/// Lets the local table be asked after other rules, for connections, too.
fn prepare(lab: &Lab) {
    for host in [Host::A, Host::B] {
        run(lab, host, "ip", &["rule", "add", "pref", "10", "lookup", "local"]);
        run(lab, host, "ip", &["rule", "del", "pref", "0"]);
        let known = || fs::write("/proc/sys/net/ipv4/tcp_early_demux", "0");
        lab.host(host).enter(known).unwrap().unwrap();
    }
}

/// A firewall forgets connections; datagrams pass.
///
/// RR-LANE-7
#[test]
fn a_path_that_swallows_connections_alone_costs_no_message() {
    require_lab!();
    let lab = Lab::build(&TWO.parse().unwrap()).unwrap();
    prepare(&lab);
    played_in(&lab, Host::A, &[], |lab, shared| {
        let wall = |what| {
            for host in [Host::A, Host::B] {
                let rule = ["pref", "1", "ipproto", "tcp", "iif", "rail1", "blackhole"];
                run(lab, host, "ip", &[&["rule", what], &rule[..]].concat());
            }
        };
        wall("add");
        for _ in 0..4 {
            assert_moves(shared, "connections of a rail are dead");
            thread::sleep(Duration::from_millis(700));
        }
        wall("del");
        assert_moves(shared, "they live again");
    });
}
