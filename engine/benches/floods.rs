//! What unknown senders cost the thread of an engine that has a session with datagrams: turns
//! that read bogus datagrams and drop them, system calls included, by real sockets on loopback.
//! `cargo bench -p ringrail --bench floods`

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ringrail::settings::Settings;
use ringrail::{Domain, Endpoint, Envelope, Owned, SendOptions};

/// Datagrams that wait when a turn begins: as many as one turn handles.
const BATCH: u64 = 64;
const PATIENCE: Duration = Duration::from_secs(10);

fn endpoint() -> Endpoint<Owned> {
    let settings = Settings::isolated()
        .set("listen_address", "127.0.0.1")
        .set("control_lane", "udp")
        .insecure(true)
        .build()
        .expect("the settings are sound");
    let domain = Domain::with_settings(settings).expect("a domain");
    domain.endpoint().expect("an endpoint").attach().expect("attached")
}

fn turn(ends: &[Endpoint<Owned>]) {
    for end in ends {
        end.progress().expect("progress");
    }
}

/// An endpoint with a peer, so that it reads its socket.
fn pair() -> [Endpoint<Owned>; 2] {
    let ends = [endpoint(), endpoint()];
    let peer = ends[0].insert_peer(&ends[1].address()).expect("a peer");
    let deadline = Instant::now() + PATIENCE;
    let mut is_connected = false;
    while !is_connected {
        assert!(Instant::now() < deadline, "they do not connect");
        is_connected =
            matches!(ends[0].inject(peer, Envelope::new(0, 0), &[1], SendOptions::new()), Ok(()));
        turn(&ends);
    }
    for _ in 0..10_000 {
        turn(&ends);
    }
    ends
}

/// Time of the turns in which so many batches of one datagram are dropped.
fn drop_batches(end: &Endpoint<Owned>, unknown: &UdpSocket, bytes: &[u8], count: u64) -> Duration {
    let mut spent = Duration::ZERO;
    for _ in 0..count {
        let wanted = end.counters().datagrams_dropped + BATCH;
        for _ in 0..BATCH {
            unknown.send(bytes).expect("the socket takes a datagram");
        }
        let begun = Instant::now();
        while end.counters().datagrams_dropped < wanted {
            end.progress().expect("progress");
            assert!(begun.elapsed() < PATIENCE, "datagrams were lost on loopback");
        }
        spent += begun.elapsed();
    }
    spent
}

fn floods(c: &mut Criterion) {
    let [end, _peer] = pair();
    let unknown = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    // The socket of datagrams has the listener's port where that is free.
    unknown.connect(end.address().locator()).expect("an address");
    let mut group = c.benchmark_group("dropped");
    group.throughput(Throughput::Elements(BATCH));
    for length in [32, 64, 1400] {
        let mut bytes = vec![0x5a; length];
        // A packet of a session that is not there.
        bytes[..4].copy_from_slice(&[0x10, 4, 0, 0]);
        group.bench_function(BenchmarkId::new("of no session", length), |b| {
            b.iter_custom(|count| drop_batches(&end, &unknown, &bytes, count));
        });
    }
    group.finish();
}

criterion_group!(benches, floods);
criterion_main!(benches);
