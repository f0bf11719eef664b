//! Many threads on few cores against the matching rules of MPI, and threads, endpoints and
//! processes that end in the midst of it.

use std::collections::BTreeMap;
use std::future::Future;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use crate::common::domain;
use ringrail::{
    Address, CompletionLevel, Endpoint, EndpointOptions, Envelope, Error, Operation, OperationKind,
    Peer, ReceiveOptions, Selector, SendOptions, Shared,
};

/// Longer than a busy machine takes for anything here.
const LONG: Duration = Duration::from_secs(60);

fn shared(settings: &[(&str, &str)]) -> Endpoint<Shared> {
    domain(settings).endpoint().unwrap().share().unwrap()
}

/// Two shared endpoints that know each other, and what each calls the other.
fn two(settings: &[(&str, &str)]) -> [(Endpoint<Shared>, Peer); 2] {
    let (left, right) = (shared(settings), shared(settings));
    let to_right = left.insert_peer(&right.address()).unwrap();
    let to_left = right.insert_peer(&left.address()).unwrap();
    [(left, to_right), (right, to_left)]
}

/// A number of a seed's own, as the threads of a test draw them.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) % bound
    }
}

/// A message names its sender and its number among those of its thread, and fills the rest.
fn message(thread: u64, number: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![(thread ^ number) as u8; length.max(16)];
    bytes[..8].copy_from_slice(&thread.to_le_bytes());
    bytes[8..16].copy_from_slice(&number.to_le_bytes());
    bytes
}

fn sender_in(bytes: &[u8]) -> (u64, u64) {
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let (thread, number) = (word(0), word(8));
    assert!(bytes[16..].iter().all(|&byte| byte == (thread ^ number) as u8), "a damaged message");
    (thread, number)
}

/// A waiter at the queue of an endpoint takes what is there for others as well.
fn await_claimed(
    end: &Endpoint<Shared>,
    done: &Mutex<BTreeMap<u64, Vec<u8>>>,
    name: u64,
) -> Vec<u8> {
    let begin = Instant::now();
    loop {
        if let Some(bytes) = done.lock().unwrap().remove(&name) {
            return bytes;
        }
        assert!(begin.elapsed() < LONG, "what is claimed comes");
        let mut completions = Vec::new();
        end.wait(&mut completions, 8, Some(Duration::from_millis(1))).unwrap();
        for completion in completions {
            completion.result.unwrap();
            // Sends of this side end here as well, if they fail.
            assert_eq!(completion.kind, OperationKind::Receive);
            let bytes = completion.buffer.unwrap().as_slice().unwrap().to_vec();
            done.lock().unwrap().insert(completion.user_data, bytes);
        }
    }
}

/// Senders on both sides, each with a stream of its own tag; receivers on both sides that take
/// from one sender, from any source or by any tag; receives that are cancelled, messages that are
/// claimed. Each message is taken once, and each taker sees the messages of a sender in their
/// order: receives of one thread that could take both do.
///
/// RR-MATCH-1
#[test]
fn many_threads_match_as_one_would() {
    const SENDERS: u64 = 16;
    const MESSAGES: u64 = 120;
    const LENGTHS: [usize; 6] = [16, 16, 64, 1500, 9000, 120_000];
    let sides = two(&[]);
    let taken: [Mutex<BTreeMap<(u64, u64), usize>>; 2] = Default::default();
    let counts = [AtomicU64::new(0), AtomicU64::new(0)];
    let done: [Mutex<BTreeMap<u64, Vec<u8>>>; 2] = Default::default();
    std::thread::scope(|scope| {
        for side in 0..2 {
            for thread in 0..SENDERS {
                let (end, peer) = &sides[side];
                scope.spawn(move || {
                    let mut random = Random(thread * 977 + side as u64 * 31 + 5);
                    let mut handles: Vec<Operation<Shared>> = Vec::new();
                    for number in 0..MESSAGES {
                        let length = LENGTHS[random.below(LENGTHS.len() as u64) as usize];
                        let bytes = message(thread, number, length);
                        // Half of the senders of a side share a tag with another one.
                        let envelope = Envelope::tagged(thread / 2);
                        match random.below(4) {
                            0 => {
                                let options = SendOptions::new();
                                let sent = end.inject(*peer, envelope, &bytes, options);
                                match sent {
                                    Ok(()) => continue,
                                    Err(error) if error.is_would_block() => {}
                                    // Too long for that.
                                    Err(Error::Misuse(_)) => {}
                                    Err(error) => panic!("{error}"),
                                }
                                end.send_blocking(*peer, envelope, &bytes, options).unwrap();
                            }
                            1 => {
                                let options = SendOptions::at(CompletionLevel::Delivery);
                                end.send_blocking(*peer, envelope, &bytes, options).unwrap();
                            }
                            _ => {
                                let options = SendOptions::new();
                                handles.push(end.send(*peer, envelope, bytes, options).unwrap());
                                if handles.len() > 8 {
                                    handles.remove(0).wait().unwrap();
                                }
                            }
                        }
                    }
                    for handle in handles {
                        handle.wait().unwrap();
                    }
                });
            }
            // Of each pair of senders' tag there is a receiver of its own, and one of all the
            // others together takes by any tag.
            for taker in 0..SENDERS {
                let (end, peer) = &sides[side];
                let (taken, count, claimed_done) = (&taken[side], &counts[side], &done[side]);
                scope.spawn(move || {
                    let mut random = Random(taker * 131 + side as u64 + 77);
                    let begin = Instant::now();
                    let mut claims = 0;
                    let mut latest: BTreeMap<u64, u64> = BTreeMap::new();
                    while count.load(Ordering::Acquire) < SENDERS * MESSAGES {
                        assert!(begin.elapsed() < 3 * LONG, "{count:?} messages of {side}");
                        let envelope = Envelope::tagged(taker / 2);
                        let selector = match taker % 2 {
                            0 => Selector::from_peer(*peer, envelope),
                            _ => Selector::from_any(envelope),
                        };
                        let bytes = match random.below(5) {
                            0 => {
                                let Some(mut claimed) = end.claim(selector).unwrap() else {
                                    continue;
                                };
                                let into = vec![0; claimed.status().length];
                                claims += 1;
                                let name = taker << 32 | claims;
                                let options = ReceiveOptions::new().user_data(name);
                                end.post_receive_claimed(&mut claimed, into, options).unwrap();
                                await_claimed(end, claimed_done, name)
                            }
                            _ => {
                                let into = vec![0; 120_000];
                                let mut operation = end.receive(selector, into).unwrap();
                                let patience = Duration::from_millis(1 + random.below(20));
                                let done = match operation.wait_timeout(patience).unwrap() {
                                    Some(done) => done,
                                    // A cancel that comes too late takes the message.
                                    None if operation.cancel() => {
                                        let ended = operation.wait().unwrap_err();
                                        assert!(matches!(ended.error, Error::Cancelled));
                                        continue;
                                    }
                                    None => operation.wait().unwrap(),
                                };
                                done.buffer.as_slice().unwrap()[..done.status.length].to_vec()
                            }
                        };
                        let (thread, number) = sender_in(&bytes);
                        assert_eq!(thread / 2, taker / 2, "of another tag");
                        // One receive at a time: what comes later was sent later.
                        let before = latest.insert(thread, number);
                        assert!(before < Some(number), "{number} of {thread} after {before:?}");
                        let again = taken.lock().unwrap().insert((thread, number), side);
                        assert!(again.is_none(), "{number} of {thread} came twice");
                        count.fetch_add(1, Ordering::AcqRel);
                    }
                });
            }
        }
    });
    for taken in taken {
        assert_eq!(taken.into_inner().unwrap().len() as u64, SENDERS * MESSAGES);
    }
}

/// Endpoints of an engine are dropped in any order by the threads that use them, with operations
/// outstanding and a peer that goes on sending: every operation ends, and those who send hear of
/// it.
#[test]
fn endpoints_that_are_dropped_in_traffic_end_what_they_have() {
    for round in 0..12u64 {
        let ends = AtomicU64::new(0);
        let [(left, _), (right, to_left)] = two(&[("close_linger", "50ms")]);
        std::thread::scope(|scope| {
            for thread in 0..6u64 {
                let (left, right, ends) = (&left, &right, &ends);
                scope.spawn(move || {
                    let mine = left.open_endpoint(EndpointOptions::default()).unwrap();
                    let to_mine = right.insert_peer(&mine.address()).unwrap();
                    let envelope = Envelope::tagged(thread);
                    let mut random = Random(round * 100 + thread + 1);
                    let mut received = Vec::new();
                    let mut sent = Vec::new();
                    for number in 0..12 {
                        let length = [16, 3000, 200_000][random.below(3) as usize];
                        let any = Selector::from_any(envelope);
                        received.push(mine.receive(any, vec![0; 200_000]).unwrap());
                        let bytes = message(thread, number, length);
                        match right.send(to_mine, envelope, bytes, SendOptions::new()) {
                            Ok(operation) => sent.push(operation),
                            Err(failed) => assert!(is_of_the_end(&failed.error), "{failed}"),
                        }
                    }
                    std::thread::sleep(Duration::from_micros(random.below(3000)));
                    drop(mine);
                    for mut operation in received {
                        match operation.wait_timeout(LONG) {
                            Ok(done) => drop(done.expect("it ends with its endpoint")),
                            Err(failed) => assert!(is_of_the_end(&failed.error), "{failed}"),
                        }
                        ends.fetch_add(1, Ordering::Relaxed);
                    }
                    for mut operation in sent {
                        match operation.wait_timeout(LONG) {
                            Ok(done) => drop(done.expect("its peer reports what became of it")),
                            Err(failed) => assert!(is_of_the_end(&failed.error), "{failed}"),
                        }
                    }
                });
            }
        });
        assert_eq!(ends.into_inner(), 72);
        // The rest is usable.
        let mut into = [0; 16];
        right.send_blocking(to_left, Envelope::tagged(99), &[7; 16], SendOptions::new()).unwrap();
        let options = ReceiveOptions::new().timeout(LONG);
        left.receive_blocking(Selector::from_any(Envelope::tagged(99)), &mut into, options)
            .unwrap();
        if round % 2 == 0 {
            drop(left);
            drop(right);
        } else {
            drop(right);
            drop(left);
        }
    }
}

/// Whether an operation may end so when its endpoint, or that of its peer, is dropped.
fn is_of_the_end(error: &Error) -> bool {
    matches!(error, Error::Cancelled | Error::Peer { .. }) || error.is_would_block()
}

struct Panics(AtomicBool);

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
        panic!("a waker of the test");
    }
}

/// A waker that panics takes the call down that woke it, and nothing else: the lock is free, others
/// go on, and the message is there.
#[test]
fn a_waker_that_panics_leaves_the_engine_to_others() {
    let [(left, to_right), (right, to_left)] = two(&[]);
    let mut operation =
        right.receive(Selector::from_peer(to_left, Envelope::tagged(1)), vec![0; 16]).unwrap();
    let panics = Arc::new(Panics(AtomicBool::new(false)));
    let waker = Waker::from(Arc::clone(&panics));
    let begin = Instant::now();
    // Until it does not ask to be polled at once any more.
    let mut polls = 0;
    while begin.elapsed() < Duration::from_millis(20) {
        let mut context = Context::from_waker(&waker);
        let polled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            std::pin::Pin::new(&mut operation).poll(&mut context).is_ready()
        }));
        assert!(!polled.unwrap_or(false), "nothing was sent");
        polls += 1;
    }
    left.send_blocking(to_right, Envelope::tagged(1), &[3; 16], SendOptions::new()).unwrap();
    // The thread that makes progress here may meet the panic.
    while !panics.0.load(Ordering::Acquire) {
        assert!(begin.elapsed() < LONG, "the task is never woken, after {polls} polls");
        let progressed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            right.progress().unwrap();
        }));
        drop(progressed);
        std::thread::sleep(Duration::from_millis(1));
    }
    let done = operation.wait_timeout(LONG).unwrap().expect("it has come");
    assert_eq!(done.buffer.as_slice().unwrap(), [3; 16]);
    // Both ways, by other threads.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let options = SendOptions::at(CompletionLevel::Delivery).timeout(LONG);
            right.send_blocking(to_left, Envelope::tagged(2), &[4; 16], options).unwrap();
        });
        let mut into = [0; 16];
        let selector = Selector::from_peer(to_right, Envelope::tagged(2));
        left.receive_blocking(selector, &mut into, ReceiveOptions::new().timeout(LONG)).unwrap();
    });
}

struct Counts(AtomicU64);

impl Wake for Counts {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Release);
    }
}

/// Polls an operation until it sleeps, then has a message sent to it.
fn sleep(operation: &mut Operation<Shared>, waker: &Waker) {
    let begin = Instant::now();
    // Longer than it asks to be polled at once.
    while begin.elapsed() < Duration::from_millis(30) {
        let mut context = Context::from_waker(waker);
        let polled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            std::pin::Pin::new(&mut *operation).poll(&mut context).is_ready()
        }));
        assert!(!polled.unwrap_or(false), "nothing was sent");
    }
}

/// Only the caretaker is at the engine, or its own thread: a waker that panics ends neither that
/// thread nor the wake-ups of others, of the same turn or later.
#[test]
fn a_waker_that_panics_spares_the_threads_that_others_rely_on() {
    for is_dedicated in [false, true] {
        let endpoint = domain(&[]).endpoint().unwrap();
        let right =
            if is_dedicated { endpoint.dedicate().unwrap() } else { endpoint.share().unwrap() };
        let left = shared(&[]);
        let to_right = left.insert_peer(&right.address()).unwrap();
        let to_left = right.insert_peer(&left.address()).unwrap();
        let receive = |tag| {
            let selector = Selector::from_peer(to_left, Envelope::tagged(tag));
            right.receive(selector, vec![0; 16]).unwrap()
        };
        let send = |tag| {
            let options = SendOptions::at(CompletionLevel::Delivery).timeout(LONG);
            left.send_blocking(to_right, Envelope::tagged(tag), &[3; 16], options).unwrap();
        };
        for round in 0..3 {
            let (mut first, mut second) = (receive(2 * round), receive(2 * round + 1));
            let panics = Arc::new(Panics(AtomicBool::new(false)));
            let counts = Arc::new(Counts(AtomicU64::new(0)));
            sleep(&mut first, &Waker::from(Arc::clone(&panics)));
            sleep(&mut second, &Waker::from(Arc::clone(&counts)));
            let before = counts.0.load(Ordering::Acquire);
            send(2 * round);
            send(2 * round + 1);
            let begin = Instant::now();
            while !panics.0.load(Ordering::Acquire) || counts.0.load(Ordering::Acquire) == before {
                let counted = (panics.0.load(Ordering::Acquire), counts.0.load(Ordering::Acquire));
                assert!(begin.elapsed() < LONG, "{counted:?}, {is_dedicated}, round {round}");
                std::thread::sleep(Duration::from_millis(1));
            }
            first.wait_timeout(LONG).unwrap().expect("it has come");
            second.wait_timeout(LONG).unwrap().expect("it has come");
        }
    }
}

/// Set for the child of a test: the address that it sends to, in hexadecimal.
const CHILD: &str = "TEST_OF_RINGRAIL_CHILD_OF_EXIT";

/// A process that calls `exit` while its threads send, receive and wait: it ends, without a crash,
/// and its peer is notified.
#[test]
fn a_process_may_exit_in_traffic() {
    if let Ok(address) = std::env::var(CHILD) {
        exit_in_traffic(&address);
    }
    for how in ["exit", "return"] {
        let endpoint = shared(&[("peer_timeout", "3s")]);
        let bytes = endpoint.address().to_bytes();
        let address: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "shared_threads::a_process_may_exit_in_traffic", "--nocapture"])
            .env(CHILD, format!("{how} {address}"))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        // Until it has sent its name, and messages come.
        let mut into = vec![0; 16];
        for _ in 0..50 {
            let options = ReceiveOptions::new().timeout(LONG);
            let any = Selector::from_any(Envelope::tagged(1));
            endpoint.receive_blocking(any, &mut into, options).unwrap();
        }
        let mut named = vec![0; Address::BYTES];
        let any = Selector::from_any(Envelope::tagged(2));
        let options = ReceiveOptions::new().timeout(LONG);
        endpoint.receive_blocking(any, &mut named, options).unwrap();
        let address = Address::from_bytes(&named[..Address::BYTES]).unwrap();
        let peer = endpoint.insert_peer(&address).unwrap();
        let from_it = Selector::from_peer(peer, Envelope::tagged(3));
        let never = endpoint.receive(from_it, vec![0; 16]).unwrap();
        // It exits about now.
        let ended = never.wait().unwrap_err();
        assert!(matches!(ended.error, Error::Peer { .. }), "{}", ended.error);
        let begin = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if begin.elapsed() > LONG {
                child.kill().unwrap();
                panic!("the child hangs ({how})");
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        assert!(status.success(), "{how}: {status}");
    }
}

/// The child's part; it does not return.
fn exit_in_traffic(command: &str) -> ! {
    let (how, address) = command.split_once(' ').unwrap();
    let byte = |at: usize| u8::from_str_radix(&address[at..at + 2], 16).unwrap();
    let bytes: Vec<u8> = (0..address.len()).step_by(2).map(byte).collect();
    let endpoint = Arc::new(shared(&[]));
    let address = Address::from_bytes(&bytes).unwrap();
    let peer = endpoint.insert_peer(&address).unwrap();
    let own = endpoint.insert_peer(&endpoint.address()).unwrap();
    for thread in 0..4u64 {
        let endpoint = Arc::clone(&endpoint);
        std::thread::spawn(move || {
            let silent = SendOptions::new().silent(true);
            for number in 0.. {
                let sent = match thread {
                    0 if number < 200 => {
                        let bytes = vec![1; 16];
                        endpoint.post_send(peer, Envelope::tagged(1), bytes, silent).map(drop)
                    }
                    1 => {
                        let bytes = vec![1; 100_000];
                        endpoint.post_send(own, Envelope::tagged(9), bytes, silent).map(drop)
                    }
                    2 => {
                        let into = vec![0; 100_000];
                        let any = Selector::from_any(Envelope::tagged(9));
                        endpoint.receive(any, into).map(|operation| drop(operation.wait()))
                    }
                    _ => {
                        let _ = endpoint.wait(&mut Vec::new(), 1, Some(Duration::from_millis(1)));
                        Ok(())
                    }
                };
                if sent.is_err() {
                    std::thread::yield_now();
                }
            }
        });
    }
    std::thread::sleep(Duration::from_millis(100));
    let name = endpoint.address().to_bytes();
    endpoint.send_blocking(peer, Envelope::tagged(2), &name, SendOptions::new()).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    if how == "exit" {
        std::process::exit(0);
    }
    // As `main` that returns: destructors of this thread, and `exit`, with the others at work.
    drop(endpoint);
    std::process::exit(0);
}
