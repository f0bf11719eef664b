//! Peers that come once and go: an engine serves more of them than it may have sessions, and keeps
//! nothing of them.

use std::thread;
use std::time::{Duration, Instant};

use crate::common::handmade::{Exchange, hello};
use crate::common::{SECRET, domain};
use crate::counting::live_bytes;
use ringrail::{
    Address, CompletionLevel, Endpoint, Envelope, Error, Event, Owned, PeerFailure, Selector,
    SendOptions,
};

const PATIENCE: Duration = Duration::from_secs(60);

fn server(sessions_max: &str) -> Endpoint<Owned> {
    domain(&[("sessions_max", sessions_max)]).endpoint().unwrap().attach().unwrap()
}

/// A client sends a message with this tag and leaves.
fn pass_by(server: &Endpoint<Owned>, tag: u64) -> Result<ringrail::Peer, Error> {
    let target = server.address();
    let client = thread::spawn(move || {
        let settings = [("connect_retries", "3"), ("connect_retry_delay", "1ms")];
        let client = domain(&settings).endpoint().unwrap().attach().unwrap();
        let peer = client.insert_peer(&target).unwrap();
        client
            .send_blocking(
                peer,
                Envelope::tagged(tag),
                b"once",
                SendOptions::at(CompletionLevel::Match),
            )
            .map(|_| ())
    });
    let mut into = vec![0; 4];
    let receive =
        server.receive(Selector::from_any(Envelope::tagged(tag)), std::mem::take(&mut into));
    let receive = receive.unwrap();
    let deadline = Instant::now() + PATIENCE;
    while !client.is_finished() {
        assert!(Instant::now() < deadline, "a client hangs");
        server.progress().unwrap();
    }
    client.join().unwrap()?;
    Ok(receive.wait().unwrap().status.peer.unwrap())
}

/// RR-END-4
#[test]
fn more_of_them_come_than_there_may_be_sessions() {
    const CLIENTS: u64 = 50;
    let server = server("8");
    let peers: Vec<_> = (0..CLIENTS).map(|tag| pass_by(&server, tag).unwrap()).collect();
    // Who came last is known by name still, who came first is not.
    assert!(server.peer_address(peers[CLIENTS as usize - 1]).is_some());
    assert!(server.peer_address(peers[0]).is_none());
    let error = server.connect(peers[0], None).unwrap_err();
    assert!(matches!(error, Error::UnknownPeer), "{error}");
}

/// RR-END-4
#[test]
fn who_was_inserted_stays_and_the_limit_names_cause_and_cure() {
    let server = server("8");
    let gone = |port: u16| {
        let mut bytes = server.address().to_bytes();
        bytes[4..6].copy_from_slice(&port.to_le_bytes());
        bytes[40..48].copy_from_slice(&u64::from(port).to_le_bytes());
        Address::from_bytes(&bytes).unwrap()
    };
    let inserted: Vec<_> = (1..=8).map(|port| server.insert_peer(&gone(port)).unwrap()).collect();
    let error = server.insert_peer(&gone(9)).unwrap_err().to_string();
    assert!(error.contains("sessions_max") && error.contains("remove"), "{error}");
    let refused = match pass_by(&server, 1) {
        Err(Error::Peer { failure: failure @ PeerFailure::Full { .. }, .. }) => failure.to_string(),
        other => panic!("{other:?}"),
    };
    assert!(refused.contains("sessions_max") && !refused.contains("firewall"), "{refused}");
    let events: Vec<_> = std::iter::from_fn(|| server.next_event()).collect();
    let is_reported = |event: &Event| match event {
        Event::Refused { cause, .. } => cause.contains("sessions_max"),
        _ => false,
    };
    assert!(events.iter().any(is_reported), "{events:?}");
    server.remove_peer(inserted[0]).unwrap();
    pass_by(&server, 2).unwrap();
    assert!(inserted[1..].iter().all(|&peer| server.peer_address(peer).is_some()));
}

/// RR-END-4
#[test]
fn nothing_is_kept_of_peers_that_are_gone() {
    const FEW: u64 = 600;
    const MANY: u64 = 2000;
    let server = server("65536");
    let target = server.address();
    let meet = |engines: std::ops::Range<u64>| {
        let count = engines.end - engines.start;
        let clients = thread::spawn(move || {
            for engine in engines {
                let mut own = target.to_bytes();
                own[40..48].copy_from_slice(&engine.to_le_bytes());
                let own = Address::from_bytes(&own).unwrap();
                drop(Exchange::honest_with(&target, hello(&target, &own), &SECRET));
            }
        });
        let (mut ended, deadline) = (0, Instant::now() + PATIENCE);
        while ended < count {
            assert!(Instant::now() < deadline, "{ended} of {count}");
            server.progress().unwrap();
            while let Some(event) = server.next_event() {
                ended += u64::from(matches!(event, Event::Disconnected { .. }));
            }
        }
        clients.join().unwrap();
    };
    // As many as are known by name for a while, and what tables grow to.
    meet(1..1 + FEW);
    let before = live_bytes();
    meet(1 + FEW..1 + FEW + MANY);
    let each = (live_bytes() - before) / MANY as i64;
    println!("a peer that is gone costs {each} bytes");
    assert!(each < 64, "{each} bytes");
}
