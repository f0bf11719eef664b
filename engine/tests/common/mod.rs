//! Two endpoints on two threads of this process, over loopback.

#![allow(dead_code, reason = "each test program uses its part")]

use std::sync::mpsc;
use std::thread;

use ringrail::settings::Settings;
use ringrail::{Address, Domain, Endpoint, Owned, Peer};

/// A domain on loopback with settings of its own.
pub(crate) fn domain(settings: &[(&str, &str)]) -> Domain {
    let lanes = std::env::var("TEST_OF_RINGRAIL_LANES").unwrap_or_else(|_| "auto".to_owned());
    let mut builder = Settings::isolated().set("listen_address", "127.0.0.1").set("lanes", &lanes);
    if let Ok(names) = std::env::var("TEST_OF_RINGRAIL_URING_DISABLE") {
        builder = builder.set("uring_disable", &names);
    }
    for (name, value) in settings {
        builder = builder.set(name, value);
    }
    Domain::with_settings(builder.build().unwrap()).unwrap()
}

/// Runs both sides to their end; a panic of either is passed on.
pub(crate) fn pair(
    settings: &[(&str, &str)],
    left: impl FnOnce(&Endpoint<Owned>, Peer) + Send + 'static,
    right: impl FnOnce(&Endpoint<Owned>, Peer) + Send + 'static,
) {
    let domain = domain(settings);
    let endpoints = [domain.endpoint().unwrap(), domain.endpoint().unwrap()];
    let addresses: [Address; 2] = [endpoints[0].address(), endpoints[1].address()];
    let [a, b] = endpoints;
    let (done, finished) = mpsc::channel();
    let done_too = done.clone();
    let threads = [
        thread::spawn(move || {
            let endpoint = a.attach().unwrap();
            let peer = endpoint.insert(&addresses[1]).unwrap();
            left(&endpoint, peer);
            done.send(()).unwrap();
        }),
        thread::spawn(move || {
            let endpoint = b.attach().unwrap();
            let peer = endpoint.insert(&addresses[0]).unwrap();
            right(&endpoint, peer);
            done_too.send(()).unwrap();
        }),
    ];
    for _ in 0..2 {
        // A side that panics drops its sender; one that hangs is caught here.
        match finished.recv_timeout(std::time::Duration::from_secs(120)) {
            Ok(()) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("a side hangs"),
        }
    }
    for thread in threads {
        thread.join().unwrap();
    }
}

/// Bytes that differ from message to message and from place to place.
pub(crate) fn pattern(seed: u64, length: usize) -> Vec<u8> {
    (0..length as u64).map(|at| (at.wrapping_mul(31) ^ (at >> 8) ^ seed) as u8).collect()
}

/// A hello as a peer of this version would send it, to be bent.
pub(crate) fn hello(target: &Address, own: &Address) -> Vec<u8> {
    let engine = |address: &Address| address.to_bytes()[32..40].to_vec();
    let mut hello = b"RINGRAIL".to_vec();
    hello.extend_from_slice(&[1, 0, 1, 0]);
    hello.extend_from_slice(&65_536u32.to_le_bytes());
    hello.extend_from_slice(&engine(own));
    hello.extend_from_slice(&engine(target));
    hello.extend_from_slice(&77u64.to_le_bytes());
    for word in [0u32, 16_384, 16, 4096] {
        hello.extend_from_slice(&word.to_le_bytes());
    }
    hello.extend_from_slice(&own.to_bytes());
    assert_eq!(hello.len(), 96);
    hello
}
