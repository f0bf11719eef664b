//! Who does not know the job's secret: what users see, and what it cannot do.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::handmade::{
    Exchange, HELLO_BYTES, REPLY_BYTES, Secret, WIRE_VERSION, accepting, hello, join, join_key,
    proof, sign_control,
};
use crate::common::relay::Relay;
use crate::common::{SECRET, domain, domain_of, own_process, pattern};
use ringrail::settings::Settings;
use ringrail::{
    Address, CompletionLevel, Domain, Endpoint, Envelope, Error, Event, Owned, PeerFailure,
    ReceiveOptions, Selector, SendOptions,
};

const OTHER: Secret = *b"of another job, or a wrong guess";
const PATIENCE: Duration = Duration::from_secs(20);
const QUICK: [(&str, &str); 2] = [("connect_retries", "2"), ("connect_retry_delay", "1ms")];

const STATUS_ACCEPTED: u8 = 0;
const STATUS_WRONG_SECRET: u8 = 9;
const STATUS_STALE_EPOCH: u8 = 10;

fn attached(secret: Option<&Secret>, settings: &[(&str, &str)]) -> Endpoint<Owned> {
    domain_of(secret, settings).endpoint().unwrap().attach().unwrap()
}

/// The address of an engine that does not run.
fn made_up(near: &Address, engine: u64) -> Address {
    let mut bytes = near.to_bytes();
    bytes[40..48].copy_from_slice(&engine.to_le_bytes());
    Address::from_bytes(&bytes).unwrap()
}

/// The address of an engine that listens at `listener`, as that of `near` does at its own port.
fn made_up_at(listener: &TcpListener, near: &Address, engine: u64) -> Address {
    let mut bytes = near.to_bytes();
    bytes[4..6].copy_from_slice(&listener.local_addr().unwrap().port().to_le_bytes());
    made_up(&Address::from_bytes(&bytes).unwrap(), engine)
}

/// Runs `peer` on a thread of its own while `endpoint` makes progress; gives its result and the
/// events meanwhile.
fn beside<T: Send + 'static>(
    endpoint: &Endpoint<Owned>,
    peer: impl FnOnce() -> T + Send + 'static,
) -> (T, Vec<Event>) {
    let peer = thread::spawn(peer);
    let mut events = Vec::new();
    let deadline = Instant::now() + 3 * PATIENCE;
    while !peer.is_finished() {
        assert!(Instant::now() < deadline, "the other side hangs");
        endpoint.progress().unwrap();
        events.extend(std::iter::from_fn(|| endpoint.next_event()));
    }
    for _ in 0..100 {
        endpoint.progress().unwrap();
        events.extend(std::iter::from_fn(|| endpoint.next_event()));
    }
    (peer.join().unwrap(), events)
}

fn refusals(events: &[Event]) -> Vec<&str> {
    let refused = events.iter().filter_map(|event| match event {
        Event::Refused { cause, .. } => Some(cause.as_str()),
        _ => None,
    });
    refused.collect()
}

fn has_connected(events: &[Event]) -> bool {
    events.iter().any(|event| matches!(event, Event::Connected { .. }))
}

/// A message both ways between `endpoint` and a new endpoint that knows the secret.
fn serves(endpoint: &Endpoint<Owned>, secret: Option<&Secret>) {
    let address = endpoint.address();
    let secret = secret.copied();
    let client = thread::spawn(move || {
        let client = attached(secret.as_ref(), &[]);
        let peer = client.insert_peer(&address).unwrap();
        client
            .send_blocking(
                peer,
                Envelope::tagged(1),
                b"ping",
                SendOptions::at(CompletionLevel::Match),
            )
            .unwrap();
        let mut into = [0; 4];
        client
            .receive_blocking(
                Selector::from_peer(peer, Envelope::tagged(2)),
                &mut into,
                ReceiveOptions::new(),
            )
            .unwrap();
        into
    });
    let mut into = [0; 4];
    let status = endpoint
        .receive_blocking(Selector::from_any(Envelope::tagged(1)), &mut into, ReceiveOptions::new())
        .unwrap();
    let peer = status.peer.unwrap();
    endpoint
        .send_blocking(peer, Envelope::tagged(2), b"pong", SendOptions::at(CompletionLevel::Match))
        .unwrap();
    assert_eq!((&into, &client.join().unwrap()), (b"ping", b"pong"));
}

fn failure(error: Error) -> PeerFailure {
    match error {
        Error::Peer { failure, .. } => failure,
        other => panic!("not a failure of a peer: {other}"),
    }
}

/// An attempt to connect with one secret to an endpoint of another one fails on both sides.
fn fails_between(client: Option<Secret>, server: Option<Secret>, cause: &str) {
    let endpoint = attached(server.as_ref(), &[]);
    let address = endpoint.address();
    let (error, events) = beside(&endpoint, move || {
        let client = attached(client.as_ref(), &QUICK);
        let peer = client.insert_peer(&address).unwrap();
        client.connect(peer, None).unwrap_err()
    });
    assert!(error.to_string().contains("does not know this job's secret"), "{error}");
    assert!(error.to_string().contains(&address.locator().to_string()), "{error}");
    assert_eq!(failure(error), PeerFailure::WrongSecret);
    let refusals = refusals(&events);
    assert!(refusals.iter().all(|refusal| refusal.contains(cause)), "{refusals:?}");
    assert_eq!(refusals.len(), 3, "one for each attempt");
    assert!(!has_connected(&events));
    serves(&endpoint, server.as_ref());
}

/// RR-AUTH-1
#[test]
fn a_wrong_secret_is_named_on_both_sides() {
    fails_between(Some(OTHER), Some(SECRET), "does not know this job's secret");
}

/// What is logged as an error in this process.
fn log_of_errors() -> Arc<Mutex<Vec<u8>>> {
    struct Log(Arc<Mutex<Vec<u8>>>);
    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let log: Arc<Mutex<Vec<u8>>> = Arc::default();
    let of_log = Arc::clone(&log);
    let subscriber =
        tracing_subscriber::fmt().with_ansi(false).with_writer(move || Log(Arc::clone(&of_log)));
    subscriber.with_max_level(tracing::Level::ERROR).init();
    log
}

/// Both sides have an operation with the other one pending.
///
/// RR-AUTH-1
#[test]
fn each_side_of_two_secrets_logs_it_once_and_ends_its_operations() {
    const NAME: &str =
        "authentication::each_side_of_two_secrets_logs_it_once_and_ends_its_operations";
    own_process::run(NAME, || {
        let log = log_of_errors();
        let sides = [SECRET, OTHER].map(|secret| attached(Some(&secret), &QUICK));
        let peers = [0, 1].map(|side| sides[side].insert_peer(&sides[1 - side].address()).unwrap());
        let send = |side: usize| {
            let bytes = vec![1; 100];
            sides[side].send(peers[side], Envelope::tagged(1), bytes, SendOptions::new()).unwrap()
        };
        let mut sends = [send(0), send(1)].map(Some);
        let deadline = Instant::now() + 3 * PATIENCE;
        while sends.iter().any(Option::is_some) {
            assert!(Instant::now() < deadline, "an operation does not end");
            for (side, waiting) in sends.iter_mut().enumerate() {
                sides[side].progress().unwrap();
                let Some(send) = waiting else { continue };
                match send.test() {
                    Ok(None) => {}
                    Ok(Some(_)) => panic!("it was sent"),
                    Err(failed) => {
                        let error = failed.error.to_string();
                        let address = sides[1 - side].address().locator().to_string();
                        for part in [&address, "this job's secret", "Give both sides the same"] {
                            assert!(error.contains(part), "{part}: {error}");
                        }
                        *waiting = None;
                    }
                }
            }
        }
        let printed = String::from_utf8(log.lock().unwrap().clone()).unwrap();
        for (side, other) in [(0, 1), (1, 0)] {
            let [own, theirs] = [side, other].map(|at| sides[at].address().locator().to_string());
            let connects = format!("peer {theirs}/");
            let accepts = format!("{own} refused a connection from ");
            for begin in [connects, accepts] {
                let lines: Vec<_> = printed.lines().filter(|line| line.contains(&begin)).collect();
                assert_eq!(lines.len(), 1, "{begin}: {printed}");
                assert!(lines[0].contains("Give both sides the same job_secret"), "{}", lines[0]);
            }
        }
    });
}

#[test]
fn one_insecure_side_is_named_on_both_sides() {
    fails_between(None, Some(SECRET), "insecure = true there");
    fails_between(Some(SECRET), None, "insecure = true here");
}

#[test]
fn two_insecure_sides_work() {
    serves(&attached(None, &[]), None);
}

#[test]
fn a_domain_without_a_secret_names_the_cure() {
    let settings = Settings::isolated().set("listen_address", "127.0.0.1").build().unwrap();
    let error = Domain::with_settings(settings).unwrap_err();
    assert!(matches!(error, Error::Settings(_)), "{error}");
    for cure in ["job_secret_file", "RINGRAIL_JOB_SECRET", "insecure = true"] {
        assert!(error.to_string().contains(cure), "{error}");
    }
}

#[test]
fn a_secret_file_with_a_loose_mode_stops_the_domain() {
    use std::os::unix::fs::PermissionsExt;
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "{}", "5e".repeat(31) + "01").unwrap();
    let mode = |mode| {
        file.as_file().set_permissions(std::fs::Permissions::from_mode(mode)).unwrap();
        let settings = Settings::isolated().job_secret_file(Some(file.path())).build().unwrap();
        Domain::with_settings(settings)
    };
    let error = mode(0o640).unwrap_err().to_string();
    assert!(error.contains("0640") && error.contains("chmod 600"), "{error}");
    let domain = mode(0o600).unwrap();
    assert!(!format!("{domain:?}").contains("5e5e"));
}

/// RR-AUTH-4
#[test]
fn a_replayed_hello_is_refused_while_its_session_lives_and_afterwards() {
    let endpoint = attached(Some(&SECRET), &[]);
    let target = endpoint.address();
    let own = made_up(&target, 5);
    let (mut live, events) = beside(&endpoint, move || Exchange::honest(&target, &own, &SECRET));
    assert!(has_connected(&events));
    let recorded = live.hello.clone();
    for is_over in [false, true] {
        let hello = recorded.clone();
        let (replay, events) = beside(&endpoint, move || {
            let mut replay = Exchange::new(&target, hello);
            assert!(replay.is_closed_within(PATIENCE));
            replay
        });
        assert_eq!(replay.status(), STATUS_STALE_EPOCH);
        assert!(replay.is_proved(&SECRET), "the refusal is authentic");
        assert!(refusals(&events)[0].contains("replay of an earlier connection"), "{events:?}");
        assert!(!has_connected(&events));
        let ended = events.iter().any(|event| matches!(event, Event::Disconnected { .. }));
        assert!(!ended, "no other session ends: {events:?}");
        if !is_over {
            let alive = Duration::from_millis(50);
            live = beside(&endpoint, move || {
                assert!(!live.is_closed_within(alive));
                live
            })
            .0;
            live.stream.shutdown(std::net::Shutdown::Both).unwrap();
            let (_, events) = beside(&endpoint, || thread::sleep(Duration::from_millis(50)));
            assert!(events.iter().any(|event| matches!(event, Event::Disconnected { .. })));
        }
    }
}

/// RR-AUTH-2
#[test]
fn a_replayed_proof_is_refused_and_its_slot_is_free_again() {
    let endpoint = attached(Some(&SECRET), &[("sessions_max", "1")]);
    let target = endpoint.address();
    let own = made_up(&target, 5);
    let (_, events) = beside(&endpoint, move || {
        // Recorded: a hello and the proof that went with it, on a path that was cut in between.
        let mut hello = hello(&target, &own);
        sign_control(&mut hello, &SECRET);
        let first = Exchange::new(&target, hello.clone());
        let recorded = proof(&SECRET, &first.hello, &first.reply);
        drop(first);
        let mut replay = Exchange::new(&target, hello);
        assert_eq!(replay.status(), STATUS_ACCEPTED, "a tag alone can be replayed");
        replay.stream.write_all(&recorded).unwrap();
        assert!(replay.is_closed_within(PATIENCE));
    });
    assert!(refusals(&events).iter().any(|cause| cause.contains("proof")), "{events:?}");
    assert!(!has_connected(&events));
    serves(&endpoint, Some(&SECRET));
}

/// RR-CONN-4
#[test]
fn a_replayed_hello_of_the_peer_does_not_prevent_connections_to_it() {
    let client = attached(Some(&SECRET), &QUICK);
    let target = client.address();
    // Of two connections that cross, this peer's would be kept.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let own = made_up_at(&listener, &target, u64::MAX);
    // Recorded when the network was cut before the proof.
    let mut recorded = hello(&target, &own);
    sign_control(&mut recorded, &SECRET);
    let peer = thread::spawn(move || {
        let mut replays = Vec::new();
        for stream in listener.incoming().take(3) {
            let mut stream = stream.unwrap();
            let mut hello = [0; HELLO_BYTES];
            stream.read_exact(&mut hello).unwrap();
            let replay = Exchange::new(&target, recorded.clone());
            assert_eq!(replay.status(), STATUS_ACCEPTED, "a tag alone can be replayed");
            replays.push(replay);
            let reply = accepting(&SECRET, &hello, &own);
            stream.write_all(&reply).unwrap();
            let mut proved = [0; 24];
            if stream.read_exact(&mut proved).is_ok() {
                assert_eq!(proved[..], proof(&SECRET, &hello, &reply));
                return (replays.len(), stream);
            }
        }
        panic!("{} attempts were dropped for hellos without a proof", replays.len());
    });
    let handle = client.insert_peer(&own).unwrap();
    let connected = client.connect(handle, None);
    let (attempts, _stream) = peer.join().unwrap();
    connected.unwrap();
    assert_eq!(attempts, 1);
}

/// RR-AUTH-10
#[test]
fn a_hello_relayed_to_another_engine_of_the_job_fakes_no_restart() {
    let other = attached(Some(&SECRET), &[]);
    let at_home = other.address();
    let ((relayed, direct), events) = beside(&other, move || {
        let client = attached(Some(&SECRET), &QUICK);
        let relay = Relay::new(at_home, |_| {});
        // Both engines are gone; at the address of the first one sits a forger.
        let connect = |address, engine| {
            let peer = client.insert_peer(&made_up(&address, engine)).unwrap();
            failure(client.connect(peer, None).unwrap_err())
        };
        (connect(relay.address(), 5), connect(at_home, 6))
    });
    assert!(refusals(&events).len() >= 2, "the other engine answered: {events:?}");
    let PeerFailure::Unreachable { attempts: 3, cause } = relayed else { panic!("{relayed}") };
    assert!(cause.contains("relays"), "{cause}");
    assert_eq!(direct, PeerFailure::Restarted);
}

/// RR-AUTH-3
#[test]
fn forged_replies_cost_an_attempt_each_and_nothing_more() {
    // Its content does not matter: accepted, restarted, left, malformed.
    for status in [0, 3, 7, 8] {
        let server = domain(&[]).endpoint().unwrap();
        let relay = Relay::new(server.address(), move |mut passing| {
            if passing.number < 2 && !passing.forward && passing.at == 0 {
                passing.bytes[10] = status;
                passing.flip(REPLY_BYTES - 10);
            }
        });
        let through = relay.address();
        let server = thread::spawn(move || {
            let server = server.attach().unwrap();
            let mut into = [0; 4];
            server
                .receive_blocking(
                    Selector::from_any(Envelope::tagged(1)),
                    &mut into,
                    ReceiveOptions::new(),
                )
                .unwrap();
            into
        });
        let client = attached(Some(&SECRET), &QUICK);
        let peer = client.insert_peer(&through).unwrap();
        client
            .send_blocking(
                peer,
                Envelope::tagged(1),
                b"ping",
                SendOptions::at(CompletionLevel::Match),
            )
            .unwrap();
        assert_eq!(&server.join().unwrap(), b"ping", "status {status}");
        drop(client);
    }
}

/// RR-AUTH-2
#[test]
fn an_impostor_gets_no_message() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = attached(Some(&SECRET), &QUICK);
    let impostor = made_up_at(&listener, &client.address(), 5);
    let seen = thread::spawn(move || {
        let mut seen = Vec::new();
        for stream in listener.incoming().take(3) {
            let mut stream = stream.unwrap();
            let mut hello = [0; HELLO_BYTES];
            stream.read_exact(&mut hello).unwrap();
            let mut reply = [&b"RINGRAIL"[..], &[WIRE_VERSION, 0, 0, 0]].concat();
            reply.resize(REPLY_BYTES, 0);
            reply[72..80].copy_from_slice(&hello[32..40]);
            stream.write_all(&reply).unwrap();
            stream.read_to_end(&mut seen).unwrap();
        }
        seen
    });
    let peer = client.insert_peer(&impostor).unwrap();
    let error = client
        .send_blocking(peer, Envelope::tagged(1), b"for the peer only", SendOptions::new())
        .unwrap_err();
    assert_eq!(failure(error), PeerFailure::WrongSecret);
    assert_eq!(seen.join().unwrap(), b"", "no proof, no segment");
}

/// RR-AUTH-6
#[test]
fn forged_and_replayed_joins_are_refused_and_the_session_lives_on() {
    let endpoint = attached(Some(&SECRET), &[]);
    let target = endpoint.address();
    let own = made_up(&target, 5);
    let (_, events) = beside(&endpoint, move || {
        let mut live = Exchange::honest(&target, &own, &SECRET);
        let key = join_key(&SECRET, &live.hello, &live.reply);
        // The proof may be read after the join, on its connection of its own.
        thread::sleep(Duration::from_millis(50));
        let forged = Exchange::new(&target, join(&live.hello, 0, &[1; 32]));
        assert_eq!(forged.status(), STATUS_WRONG_SECRET);
        let first = Exchange::new(&target, join(&live.hello, 0, &key));
        assert_eq!(first.status(), STATUS_ACCEPTED);
        let replay = Exchange::new(&target, first.hello.clone());
        assert_eq!(replay.status(), STATUS_STALE_EPOCH);
        let second = Exchange::new(&target, join(&live.hello, 1, &key));
        assert_eq!(second.status(), STATUS_ACCEPTED);
        // A number stays used when its lane is gone.
        drop((first, second));
        thread::sleep(Duration::from_millis(50));
        let replay = Exchange::new(&target, join(&live.hello, 1, &key));
        assert_eq!(replay.status(), STATUS_STALE_EPOCH);
        assert!(!live.is_closed_within(Duration::from_millis(50)));
    });
    let refusals = refusals(&events);
    assert_eq!(refusals.len(), 3, "{refusals:?}");
    assert!(refusals[0].contains("forged") && refusals[1].contains("replay"), "{refusals:?}");
}

/// RR-AUTH-7
#[test]
fn a_tampered_chunk_header_costs_its_lane_and_the_message_arrives_whole() {
    // Of the first lane a bit of the tag, of the second one a bit of the offset; connection 0 is
    // the control lane.
    let server = domain(&[]).endpoint().unwrap();
    let lanes = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&lanes);
    let relay = Relay::new(server.address(), move |mut passing| {
        if passing.forward {
            seen.fetch_max(passing.number, Ordering::SeqCst);
            match passing.number {
                1 => passing.flip(HELLO_BYTES + 32),
                2 => passing.flip(HELLO_BYTES + 16),
                _ => {}
            }
        }
    });
    let through = relay.address();
    const LONG: usize = 3 << 20;
    let server = thread::spawn(move || {
        let server = server.attach().unwrap();
        let mut into = vec![0; LONG];
        server
            .receive_blocking(
                Selector::from_any(Envelope::tagged(1)),
                &mut into,
                ReceiveOptions::new(),
            )
            .unwrap();
        assert!(into == pattern(1, LONG), "every byte is right");
        server.counters().lane_failures
    });
    let client = attached(Some(&SECRET), &[]);
    let peer = client.insert_peer(&through).unwrap();
    let bytes = pattern(1, LONG);
    client
        .send_blocking(peer, Envelope::tagged(1), &bytes, SendOptions::at(CompletionLevel::Match))
        .unwrap();
    assert!(server.join().unwrap() >= 2, "both lanes were given up");
    assert!(lanes.load(Ordering::SeqCst) >= 3, "a third lane carried the message");
    drop(client);
}

#[test]
fn a_thousand_half_open_connections_do_not_touch_a_live_session() {
    const HALF_OPEN: usize = 1000;
    let endpoint = attached(Some(&SECRET), &[("connect_timeout", "3s")]);
    let target = endpoint.address();
    let ((), events) = beside(&endpoint, move || {
        // Half of them send nothing, half replay the hello of an engine that knows the secret.
        let unauthenticated: Vec<TcpStream> = (0..HALF_OPEN)
            .map(|number| {
                if number % 2 == 0 {
                    return TcpStream::connect(target.locator()).unwrap();
                }
                let own = made_up(&target, 100 + number as u64);
                let mut hello = hello(&target, &own);
                sign_control(&mut hello, &SECRET);
                let exchange = Exchange::new(&target, hello);
                assert_eq!(exchange.status(), STATUS_ACCEPTED);
                exchange.stream
            })
            .collect();
        assert_eq!(unauthenticated.len(), HALF_OPEN);
        // They stay while others connect, work, and leave.
        let mut live = Exchange::honest(&target, &made_up(&target, 5), &SECRET);
        assert!(!live.is_closed_within(Duration::from_millis(100)));
        let client = attached(Some(&SECRET), &[]);
        let peer = client.insert_peer(&target).unwrap();
        client.connect(peer, None).unwrap();
        drop(client);
        for mut connection in unauthenticated {
            connection.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut rest = Vec::new();
            // Either way of ending it is an end.
            let _ = connection.read_to_end(&mut rest);
        }
        assert!(!live.is_closed_within(Duration::from_millis(100)));
    });
    let refusals = refusals(&events);
    assert_eq!(refusals.len(), HALF_OPEN, "all were dropped in time");
    let proofs = refusals.iter().filter(|cause| cause.contains("no proof")).count();
    assert_eq!(proofs, HALF_OPEN / 2);
    let connected = events.iter().filter(|event| matches!(event, Event::Connected { .. }));
    assert_eq!(connected.count(), 2);
}
