//! What users see when peers die, lie, leave or never were there.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::handmade::{Exchange, WIRE_VERSION, hello, join, join_key};
use crate::common::{self, SECRET, domain, pair, pattern};
use ringrail::{
    Address, CompletionLevel, Endpoint, Envelope, Error, Event, Failed, Operation, Owned, Peer,
    PeerFailure, ReceiveOptions, Selector, SendOptions,
};

fn failure_of(error: &Error) -> &PeerFailure {
    match error {
        Error::Peer { failure, .. } => failure,
        other => panic!("not a failure of a peer: {other}"),
    }
}

/// Progresses until an event passes `is_it`.
fn wait_event(endpoint: &Endpoint<Owned>, mut is_it: impl FnMut(&Event) -> bool) -> Event {
    let deadline = Instant::now() + Duration::from_secs(20);
    while Instant::now() < deadline {
        endpoint.progress().unwrap();
        while let Some(event) = endpoint.next_event() {
            if is_it(&event) {
                return event;
            }
        }
    }
    panic!("the event did not come");
}

#[test]
fn a_refused_connection_fails_operations_with_peer_and_cause() {
    let domain = domain(&[("connect_retries", "2"), ("connect_retry_delay", "1ms")]);
    let gone = domain.endpoint().unwrap();
    let address = gone.address();
    drop(gone);
    let endpoint = domain.endpoint().unwrap().attach().unwrap();
    let peer = endpoint.insert_peer(&address).unwrap();
    let receive =
        endpoint.receive(Selector::from_peer(peer, Envelope::tagged(1)), vec![0; 8]).unwrap();
    let error = endpoint
        .send_blocking(peer, Envelope::tagged(1), b"hello", SendOptions::new())
        .unwrap_err();
    assert!(matches!(failure_of(&error), PeerFailure::Unreachable { attempts: 3, .. }), "{error}");
    assert!(error.to_string().contains(&address.locator().to_string()), "{error}");
    let error = receive.wait().unwrap_err().error;
    assert!(matches!(failure_of(&error), PeerFailure::Unreachable { .. }), "{error}");
    // Failed for good until the user tries again.
    let again = endpoint.send(peer, Envelope::tagged(1), vec![1], SendOptions::default());
    assert!(matches!(again.unwrap_err().error, Error::Peer { .. }));
    assert!(endpoint.connect(peer, None).is_err());
}

/// RR-CONN-3
#[test]
fn another_process_at_the_same_address_is_distinguished() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    drop(listener);
    let domain = domain(&[("port_range", &port)]);
    let first = domain.endpoint().unwrap();
    let stale = first.address();
    drop(first);
    let second = domain.endpoint().unwrap();
    let fresh = second.address();
    assert_eq!(stale.locator(), fresh.locator());
    let server = std::thread::spawn(move || {
        let second = second.attach().unwrap();
        let mut into = [0; 2];
        second
            .receive_blocking(
                Selector::from_any(Envelope::tagged(1)),
                &mut into,
                ReceiveOptions::new(),
            )
            .unwrap();
    });
    let client = common::domain(&[]).endpoint().unwrap().attach().unwrap();
    let old = client.insert_peer(&stale).unwrap();
    let error = client.connect(old, None).unwrap_err();
    assert_eq!(failure_of(&error), &PeerFailure::Restarted);
    let new = client.insert_peer(&fresh).unwrap();
    client
        .send_blocking(new, Envelope::tagged(1), b"ok", SendOptions::at(CompletionLevel::Match))
        .unwrap();
    server.join().unwrap();
}

/// RR-CONN-1
#[test]
fn garbage_on_the_port_is_refused_and_others_do_not_notice() {
    pair(
        &[("connect_timeout", "500ms")],
        |endpoint, peer| {
            let mut connections = Vec::new();
            for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"RINGRAIN", &[0xff; 300]] {
                let mut connection = TcpStream::connect(endpoint.address().locator()).unwrap();
                connection.write_all(bytes).unwrap();
                wait_event(endpoint, |event| matches!(event, Event::Refused { .. }));
                connections.push(connection);
            }
            // One that sends nothing is dropped in time.
            let silent = TcpStream::connect(endpoint.address().locator()).unwrap();
            wait_event(endpoint, |event| matches!(event, Event::Refused { .. }));
            drop(silent);
            endpoint
                .send_blocking(
                    peer,
                    Envelope::tagged(1),
                    b"x",
                    SendOptions::at(CompletionLevel::Match),
                )
                .unwrap();
        },
        |endpoint, peer| {
            let selector = Selector::from_peer(peer, Envelope::tagged(1));
            endpoint.receive_blocking(selector, &mut [0; 1], ReceiveOptions::new()).unwrap();
        },
    );
}

/// Sends bytes to the endpoint from a thread of its own and returns all that came back.
fn send_raw(to: Address, bytes: Vec<u8>) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut stream = TcpStream::connect(to.locator()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        stream.write_all(&bytes).unwrap();
        let mut answer = Vec::new();
        // What was not read of the bytes may cut the connection off after the answer.
        let _ = stream.read_to_end(&mut answer);
        answer
    })
}

/// RR-CONN-5
#[test]
fn connections_that_say_nothing_are_few_and_do_not_stay() {
    let settings = [("handshake_pending_max", "2"), ("connect_timeout", "300ms")];
    pair(
        &settings,
        |endpoint, peer| {
            let silent = || TcpStream::connect(endpoint.address().locator()).unwrap();
            let mut connections = [silent(), silent(), silent()];
            let mut refused = Vec::new();
            while refused.len() < 3 {
                let event = wait_event(endpoint, |event| matches!(event, Event::Refused { .. }));
                let Event::Refused { cause, .. } = event else { unreachable!() };
                refused.push(cause);
            }
            assert!(refused[0].contains("too many unauthenticated connections"), "{refused:?}");
            assert!(refused[2].contains("no hello received in time"), "{refused:?}");
            for connection in &mut connections {
                connection.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
                assert_eq!(connection.read(&mut [0]).unwrap(), 0, "it is closed");
            }
            endpoint
                .send_blocking(
                    peer,
                    Envelope::tagged(1),
                    b"x",
                    SendOptions::at(CompletionLevel::Match),
                )
                .unwrap();
        },
        |endpoint, peer| {
            let selector = Selector::from_peer(peer, Envelope::tagged(1));
            endpoint.receive_blocking(selector, &mut [0; 1], ReceiveOptions::new()).unwrap();
        },
    );
}

/// RR-LANE-3
#[test]
fn bytes_without_a_grant_close_their_lane_only() {
    pair(
        &[],
        |endpoint, peer| {
            let own = domain(&[]).endpoint().unwrap().address();
            let address = endpoint.address();
            let reader = std::thread::spawn(move || {
                let session = Exchange::honest(&address, &own, &SECRET);
                let key = join_key(&SECRET, &session.hello, &session.reply);
                // The proof may be read after the join, which has a connection of its own.
                std::thread::sleep(Duration::from_millis(50));
                let mut lane = Exchange::new(&address, join(&session.hello, 3, &key));
                assert_eq!(lane.status(), 0);
                lane.stream.write_all(b"!").unwrap();
                assert!(lane.is_closed_within(Duration::from_secs(10)));
                session
            });
            while !reader.is_finished() {
                endpoint.progress().unwrap();
            }
            let mut session = reader.join().unwrap().stream;
            session.set_nonblocking(true).unwrap();
            let still = session.read(&mut [0]).unwrap_err();
            assert_eq!(still.kind(), std::io::ErrorKind::WouldBlock, "the session lives");
            endpoint
                .send_blocking(
                    peer,
                    Envelope::tagged(1),
                    b"x",
                    SendOptions::at(CompletionLevel::Match),
                )
                .unwrap();
        },
        |endpoint, peer| {
            let selector = Selector::from_peer(peer, Envelope::tagged(1));
            endpoint.receive_blocking(selector, &mut [0; 1], ReceiveOptions::new()).unwrap();
        },
    );
}

/// RR-CONN-2
#[test]
fn another_version_is_answered_and_named() {
    let domain = domain(&[]);
    let endpoint = domain.endpoint().unwrap().attach().unwrap();
    let own = domain.endpoint().unwrap().address();
    let mut bytes = hello(&endpoint.address(), &own);
    bytes[8] = 99;
    let answer = send_raw(endpoint.address(), bytes);
    let event = wait_event(&endpoint, |event| matches!(event, Event::Refused { .. }));
    assert!(format!("{event:?}").contains("99"), "{event:?}");
    let answer = answer.join().unwrap();
    assert_eq!((&answer[..8], answer[8], answer[10]), (&b"RINGRAIL"[..], WIRE_VERSION, 4));
}

/// RR-END-3
#[test]
fn malformed_segments_close_their_session_only() {
    let segment = |frames: u16, body: &[u8]| {
        let mut bytes = (24 + body.len() as u32).to_le_bytes().to_vec();
        bytes.extend_from_slice(&frames.to_le_bytes());
        bytes.extend_from_slice(&[0; 10]);
        bytes.extend_from_slice(&[1, 0, 0, 0, 0, 1, 0, 0]);
        bytes.extend_from_slice(body);
        bytes
    };
    let mut endless_rts = vec![2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    endless_rts.extend_from_slice(&[0; 16]);
    endless_rts.extend_from_slice(&u64::MAX.to_le_bytes());
    let mut long_eager = vec![1u8; 32];
    long_eager[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
    let cases: Vec<Vec<u8>> = vec![
        u32::MAX.to_le_bytes().repeat(6),
        segment(1, &[200; 40]),
        segment(1, &long_eager),
        segment(1, &endless_rts),
        segment(7, &[7, 0, 0, 0, 0, 0, 0, 0]),
    ];
    pair(
        &[],
        move |endpoint, peer| {
            for bytes in cases {
                let own = domain(&[]).endpoint().unwrap().address();
                let to = endpoint.address();
                let peer = std::thread::spawn(move || {
                    let mut peer = Exchange::honest(&to, &own, &SECRET);
                    peer.stream.write_all(&bytes).unwrap();
                    peer.is_closed_within(Duration::from_secs(10))
                });
                let event =
                    wait_event(endpoint, |event| matches!(event, Event::Disconnected { .. }));
                let Event::Disconnected { failure, .. } = event else { unreachable!() };
                assert!(matches!(failure, PeerFailure::Protocol(_)), "{failure}");
                assert!(peer.join().unwrap(), "the session is closed");
            }
            endpoint
                .send_blocking(
                    peer,
                    Envelope::tagged(1),
                    b"x",
                    SendOptions::at(CompletionLevel::Match),
                )
                .unwrap();
        },
        |endpoint, peer| {
            let selector = Selector::from_peer(peer, Envelope::tagged(1));
            endpoint.receive_blocking(selector, &mut [0; 1], ReceiveOptions::new()).unwrap();
        },
    );
}

/// RR-END-1
#[test]
fn a_peer_that_leaves_ends_what_waits_for_it() {
    pair(
        &[],
        |endpoint, peer| {
            endpoint
                .send_blocking(
                    peer,
                    Envelope::tagged(1),
                    b"bye",
                    SendOptions::at(CompletionLevel::Delivery),
                )
                .unwrap();
        },
        |endpoint, peer| {
            let selector = Selector::from_peer(peer, Envelope::tagged(2));
            let never = endpoint.receive(selector, vec![0; 8]).unwrap();
            let error = never.wait().unwrap_err().error;
            assert_eq!(failure_of(&error), &PeerFailure::Left);
            // What it had sent is still there.
            let mut into = [0; 3];
            let selector = Selector::from_peer(peer, Envelope::tagged(1));
            endpoint.receive_blocking(selector, &mut into, ReceiveOptions::new()).unwrap();
            assert_eq!(&into, b"bye");
        },
    );
}

/// RR-END-2
#[test]
fn a_peek_reports_a_dead_peer_after_what_it_had_sent() {
    pair(
        &[],
        |endpoint, peer| {
            endpoint
                .send_blocking(
                    peer,
                    Envelope::tagged(1),
                    b"bye",
                    SendOptions::at(CompletionLevel::Delivery),
                )
                .unwrap();
        },
        |endpoint, peer| {
            let sent = Selector::from_peer(peer, Envelope::tagged(1));
            let never = Selector::from_peer(peer, Envelope::tagged(2));
            let deadline = Instant::now() + Duration::from_secs(60);
            let error = loop {
                match endpoint.peek(never) {
                    Ok(found) => assert_eq!(found, None),
                    Err(error) => break error,
                }
                assert!(Instant::now() < deadline, "it left, and no call reports it");
            };
            assert_eq!(failure_of(&error), &PeerFailure::Left);
            assert_eq!(endpoint.peek(Selector::from_any(Envelope::tagged(2))).unwrap(), None);
            assert_eq!(endpoint.peek(sent).unwrap().map(|status| status.length), Some(3));
            endpoint.receive_blocking(sent, &mut [0; 3], ReceiveOptions::new()).unwrap();
            assert_eq!(failure_of(&endpoint.peek(sent).unwrap_err()), &PeerFailure::Left);
        },
    );
}

/// The other process of the tests that kill one. It listens on the port that the variable names.
#[test]
#[ignore = "started by other tests"]
fn child_that_is_killed() {
    let port = std::env::var("TEST_OF_RINGRAIL_CHILD").expect("other tests start it");
    let settings = [("port_range", &*port)];
    let endpoint = domain(&settings).endpoint().unwrap().attach().unwrap();
    let hex: String = endpoint.address().to_bytes().iter().map(|b| format!("{b:02x}")).collect();
    println!("\nADDRESS {hex}");
    let any = Selector::from_any(Envelope::tagged(1));
    // Long messages back and forth until the end.
    let mut into = vec![0; 32 << 20];
    loop {
        let status = endpoint.receive_blocking(any, &mut into, ReceiveOptions::new()).unwrap();
        let Some(peer) = status.peer else { continue };
        let send =
            endpoint.send(peer, Envelope::tagged(2), vec![1; 32 << 20], SendOptions::default());
        drop(send.unwrap());
    }
}

/// A process that runs [`child_that_is_killed`], killed at the latest when this is dropped.
struct Victim {
    child: Child,
    address: Address,
    /// Kept open: a test that takes long prints that, and ends if it cannot.
    _output: BufReader<ChildStdout>,
}

impl Victim {
    fn start(port: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["faults::child_that_is_killed", "--ignored", "--exact", "--nocapture"])
            .env("TEST_OF_RINGRAIL_CHILD", port)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let hex = loop {
            let mut line = String::new();
            assert_ne!(output.read_line(&mut line).unwrap(), 0, "the child prints its address");
            if let Some(hex) = line.trim_end().strip_prefix("ADDRESS ") {
                break hex.to_owned();
            }
        };
        let digits = (0..hex.len()).step_by(2).map(|at| &hex[at..at + 2]);
        let bytes: Vec<u8> = digits.map(|two| u8::from_str_radix(two, 16).unwrap()).collect();
        Self { child, address: Address::from_bytes(&bytes).unwrap(), _output: output }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        // Nothing to do where it was killed already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const LONG: usize = 32 << 20;

/// Long messages in flight both ways, and some that wait.
fn in_flight(endpoint: &Endpoint<Owned>, peer: Peer) -> Vec<Operation> {
    let receive = |tag| {
        let selector = Selector::from_peer(peer, Envelope::tagged(tag));
        endpoint.receive(selector, vec![0; LONG]).unwrap()
    };
    let send = |tag| {
        let options = SendOptions::at(CompletionLevel::Match);
        endpoint.send(peer, Envelope::tagged(tag), pattern(1, LONG), options).unwrap()
    };
    send(1).wait().unwrap();
    receive(2).wait().unwrap();
    let pending = vec![send(1), receive(2), send(1), send(3), receive(4)];
    for _ in 0..200 {
        endpoint.progress().unwrap();
    }
    pending
}

/// Every operation ends, those that fail because the peer is lost.
fn all_are_lost(pending: Vec<Operation>) {
    for operation in pending {
        // What was through before the kill may have succeeded.
        if let Err(Failed { error, .. }) = operation.wait() {
            assert!(matches!(failure_of(&error), PeerFailure::Lost(_)), "{error}");
        }
    }
}

/// RR-END-2
#[test]
fn a_killed_peer_ends_everything_within_two_seconds() {
    let mut victim = Victim::start("any");
    let endpoint = domain(&[]).endpoint().unwrap().attach().unwrap();
    let peer = endpoint.insert_peer(&victim.address).unwrap();
    let pending = in_flight(&endpoint, peer);
    victim.kill();
    let killed = Instant::now();
    all_are_lost(pending);
    assert!(killed.elapsed() < Duration::from_secs(2), "{:?}", killed.elapsed());
    let error = endpoint.connect(peer, None).unwrap_err();
    assert!(matches!(error, Error::Peer { .. }));
}

#[test]
fn a_peer_restarted_at_its_address_in_mid_transfer_is_another_peer() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    drop(listener);
    let mut first = Victim::start(&port);
    let endpoint = domain(&[]).endpoint().unwrap().attach().unwrap();
    let old = endpoint.insert_peer(&first.address).unwrap();
    let pending = in_flight(&endpoint, old);
    first.kill();
    // The successor is up before this side has looked.
    let second = Victim::start(&port);
    assert_eq!(first.address.locator(), second.address.locator());
    all_are_lost(pending);
    let error = endpoint.connect(old, None).unwrap_err();
    assert_eq!(failure_of(&error), &PeerFailure::Restarted);
    let new = endpoint.insert_peer(&second.address).unwrap();
    assert_ne!(old, new);
    let pending = in_flight(&endpoint, new);
    drop(second);
    all_are_lost(pending);
}
