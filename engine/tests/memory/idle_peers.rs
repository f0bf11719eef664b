//! What an idle connected peer costs: less than 64 KiB of memory and two descriptors.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use crate::common::handmade::{Exchange, hello};
use crate::common::{SECRET, domain, own_process};
use ringrail::{Address, Event};

const PEERS: usize = 1000;

/// Resident memory of this process in bytes.
fn resident_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn a_thousand_idle_peers_are_cheap() {
    own_process::run("idle_peers::a_thousand_idle_peers_are_cheap", connect_a_thousand);
}

fn connect_a_thousand() {
    let hub = domain(&[]).endpoint().unwrap().attach().unwrap();
    let address = hub.address();
    let before = (resident_bytes(), descriptors());
    // Peers that say hello and nothing else, from a thread of their own. They take datagrams, and
    // so have a path each, but answer none.
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let peers = std::thread::spawn(move || {
        let mut streams = Vec::with_capacity(PEERS);
        for number in 0..PEERS as u64 {
            let mut own = address.to_bytes();
            own[40..48].copy_from_slice(&(number + 1).to_le_bytes());
            let own = Address::from_bytes(&own).unwrap();
            let mut hello = hello(&address, &own);
            hello[32..40].copy_from_slice(&(number + 1).to_le_bytes());
            hello[116..118].copy_from_slice(&port.to_le_bytes());
            hello[118..120].copy_from_slice(&1472u16.to_le_bytes());
            streams.push(Exchange::honest_with(&address, hello, &SECRET).stream);
        }
        streams
    });
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut connected = 0;
    while connected < PEERS && Instant::now() < deadline {
        hub.progress().unwrap();
        while let Some(event) = hub.next_event() {
            connected += usize::from(matches!(event, Event::Connected { .. }));
        }
    }
    assert_eq!(connected, PEERS);
    let streams = peers.join().unwrap();
    let counters = hub.counters();
    assert!(counters.datagrams_sent >= PEERS as u64, "each was asked: {counters:?}");
    let after = (resident_bytes(), descriptors());
    let each = after.0.saturating_sub(before.0) / PEERS;
    println!("an idle peer costs {each} bytes of resident memory");
    assert!(each < 64 * 1024, "{each} bytes per peer");
    // One descriptor here and one of the other side, which this process holds as well.
    let descriptors = after.1 - before.1 - streams.len();
    assert!(descriptors <= 2 * PEERS, "{descriptors} descriptors for {PEERS} peers");
}
