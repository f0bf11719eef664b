//! Two endpoints on two threads of this process, over loopback.

#![allow(dead_code, reason = "each test program uses its part")]

pub(crate) mod handmade;
pub(crate) mod one_host;
pub(crate) mod own_process;
pub(crate) mod peer_process;
pub(crate) mod relay;

use std::sync::mpsc;
use std::thread;

use ringrail::settings::Settings;
use ringrail::{Address, Detached, Domain, Endpoint, Owned, Peer};

/// The secret of the jobs of all tests.
pub(crate) const SECRET: handmade::Secret = *b"a secret that only tests can use";

fn hex(secret: &handmade::Secret) -> String {
    secret.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A domain on loopback with settings of its own, in the job of [`SECRET`].
pub(crate) fn domain(settings: &[(&str, &str)]) -> Domain {
    domain_of(Some(&SECRET), settings)
}

/// The same in the job of another secret, or `insecure`.
pub(crate) fn domain_of(secret: Option<&handmade::Secret>, settings: &[(&str, &str)]) -> Domain {
    Domain::with_settings(self::settings(secret, settings)).unwrap()
}

/// The settings of [`domain_of`].
pub(crate) fn settings(secret: Option<&handmade::Secret>, settings: &[(&str, &str)]) -> Settings {
    let lanes = std::env::var("TEST_OF_RINGRAIL_LANES").unwrap_or_else(|_| "auto".to_owned());
    // Both sides are on one host, and most tests are of what NICs carry.
    let memory = std::env::var("TEST_OF_RINGRAIL_SHARED_MEMORY");
    let memory = memory.unwrap_or_else(|_| "off".to_owned());
    let mut builder = Settings::isolated()
        .set("listen_address", "127.0.0.1")
        .set("lanes", &lanes)
        .set("shared_memory", &memory);
    if let Ok(names) = std::env::var("TEST_OF_RINGRAIL_URING_DISABLE") {
        builder = builder.set("uring_disable", &names);
    }
    if let Ok(lane) = std::env::var("TEST_OF_RINGRAIL_CONTROL_LANE") {
        builder = builder.set("control_lane", &lane);
    }
    builder = match secret {
        Some(secret) => builder.set("job_secret", &hex(secret)),
        None => builder.insecure(true),
    };
    if let Ok(faults) = std::env::var("TEST_OF_RINGRAIL_FAULTS") {
        builder = builder.set("inject_faults", &faults);
    }
    for (name, value) in settings {
        builder = builder.set(name, value);
    }
    builder.build().unwrap()
}

/// Runs both sides to their end; a panic of either is passed on.
pub(crate) fn pair(
    settings: &[(&str, &str)],
    left: impl FnOnce(&Endpoint<Owned>, Peer) + Send + 'static,
    right: impl FnOnce(&Endpoint<Owned>, Peer) + Send + 'static,
) {
    let domain = domain(settings);
    pair_of([domain.endpoint().unwrap(), domain.endpoint().unwrap()], left, right);
}

/// [`pair`] with an endpoint each.
pub(crate) fn pair_of(
    endpoints: [Endpoint<Detached>; 2],
    left: impl FnOnce(&Endpoint<Owned>, Peer) + Send + 'static,
    right: impl FnOnce(&Endpoint<Owned>, Peer) + Send + 'static,
) {
    let addresses: [Address; 2] = [endpoints[0].address(), endpoints[1].address()];
    let [a, b] = endpoints;
    let (done, finished) = mpsc::channel();
    let done_too = done.clone();
    let threads = [
        thread::spawn(move || {
            let endpoint = a.attach().unwrap();
            let peer = endpoint.insert_peer(&addresses[1]).unwrap();
            left(&endpoint, peer);
            done.send(()).unwrap();
        }),
        thread::spawn(move || {
            let endpoint = b.attach().unwrap();
            let peer = endpoint.insert_peer(&addresses[0]).unwrap();
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
