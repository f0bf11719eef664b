//! A stream of messages of all lengths between two hosts with several rails, every byte of which is
//! looked at while somebody disturbs the rails.
#![allow(dead_code, reason = "each test uses some of it")]

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ringrail::{
    Buffer, Completion, CompletionLevel, Endpoint, Envelope, Event, OperationKind, Owned,
    PathCause, PathState, Peer, PeerFailure, ReceiveOptions, Selector, SendOptions,
};
use ringrail_tests::lab::{Host, Lab};

use crate::common::pair;

/// Lengths of messages, by turns: by datagrams, by bulk lanes, in many chunks.
pub(crate) const LENGTHS: [usize; 5] = [8, 3000, 100_000, 1 << 20, 64];
pub(crate) const LONGEST: usize = 1 << 20;
/// Messages under way.
pub(crate) const WINDOW: usize = 10;
/// A stream that does not move for so long has lost something for good.
pub(crate) const STALLED: Duration = Duration::from_secs(30);
pub(crate) const TAG: Envelope = Envelope::tagged(7);
pub(crate) const LAST: Envelope = Envelope::tagged(8);

pub(crate) fn length(number: u64) -> usize {
    LENGTHS[number as usize % LENGTHS.len()]
}

pub(crate) fn fill(number: u64, bytes: &mut [u8]) {
    for (at, word) in bytes.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&(number << 32 | at as u64).to_le_bytes());
    }
}

/// What both sides and the one who disturbs them know of each other.
#[derive(Default)]
pub(crate) struct Shared {
    pub(crate) is_over: AtomicBool,
    /// Messages that came, in their order, as far as none is missing.
    pub(crate) received: AtomicU64,
}

/// What one side saw of its paths.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) events: Vec<(PathState, PathCause)>,
    pub(crate) failures: Vec<String>,
    /// Segments that kernels had sent again on connections that were gone in the end.
    pub(crate) retransmits_before: u64,
}

impl Seen {
    pub(crate) fn look(&mut self, endpoint: &Endpoint<Owned>) {
        while let Some(event) = endpoint.next_event() {
            match event {
                Event::PathChanged { state, cause, .. } => self.events.push((state, cause)),
                Event::Disconnected { failure: PeerFailure::Left, .. } => {}
                Event::Disconnected { failure, .. } => self.failures.push(failure.to_string()),
                _ => {}
            }
        }
    }

    pub(crate) fn count(&self, state: PathState) -> usize {
        self.events.iter().filter(|(seen, _)| *seen == state).count()
    }
}

/// Sends until it is over, and says then how many there were.
pub(crate) fn send_all(endpoint: &Endpoint<Owned>, peer: Peer, shared: &Shared) -> Seen {
    let mut seen = Seen::default();
    let mut room: VecDeque<Vec<u8>> = (0..WINDOW).map(|_| vec![0; LONGEST]).collect();
    let (mut sent, mut moved_at) = (0_u64, Instant::now());
    let mut completions: Vec<Completion> = Vec::new();
    let mut is_told = false;
    loop {
        let is_over = shared.is_over.load(Ordering::SeqCst);
        while !is_over && let Some(mut message) = room.pop_front() {
            message.resize(length(sent), 0);
            fill(sent, &mut message);
            endpoint.post_send(peer, TAG, message, SendOptions::new().user_data(sent)).unwrap();
            sent += 1;
        }
        if is_over && room.len() == WINDOW {
            if is_told {
                let paths = endpoint.paths();
                seen.retransmits_before = paths.iter().map(|path| path.retransmits_before).sum();
                return seen;
            }
            let count = sent.to_le_bytes().to_vec();
            endpoint.post_send(peer, LAST, count, SendOptions::new().user_data(u64::MAX)).unwrap();
            room.pop_front();
            is_told = true;
        }
        let got = endpoint.wait(&mut completions, 64, Some(Duration::from_millis(100))).unwrap();
        if got > 0 {
            moved_at = Instant::now();
        }
        assert!(moved_at.elapsed() < STALLED, "no end of sends; {seen:?}");
        for completion in completions.drain(..) {
            completion.result.unwrap();
            let Some(Buffer::Heap(message)) = completion.buffer else { panic!("no buffer") };
            // Whoever still read from it would send this.
            let mut message = message;
            message.fill(0xee);
            message.resize(LONGEST, 0xee);
            room.push_back(message);
        }
        seen.look(endpoint);
    }
}

/// Receives and looks at everything.
pub(crate) fn receive_all(endpoint: &Endpoint<Owned>, peer: Peer, shared: &Shared) -> Seen {
    let mut seen = Seen::default();
    let last = Selector::from_peer(peer, LAST);
    endpoint.post_receive(last, vec![0_u8; 8], ReceiveOptions::new().user_data(u64::MAX)).unwrap();
    let (mut asked, mut came, mut total) = (0_u64, 0_u64, None);
    // How many came without a gap, and which beyond that.
    let (mut whole, mut ahead) = (0_u64, BTreeSet::new());
    let mut room: VecDeque<Vec<u8>> = (0..WINDOW).map(|_| vec![0; LONGEST]).collect();
    let mut expected = vec![0; LONGEST];
    let mut moved_at = Instant::now();
    let mut completions: Vec<Completion> = Vec::new();
    while total != Some(came) {
        while let Some(message) = room.pop_front() {
            endpoint
                .post_receive(
                    Selector::from_peer(peer, TAG),
                    message,
                    ReceiveOptions::new().user_data(asked),
                )
                .unwrap();
            asked += 1;
        }
        let got = endpoint.wait(&mut completions, 64, Some(Duration::from_millis(100))).unwrap();
        if got > 0 {
            moved_at = Instant::now();
        }
        assert!(moved_at.elapsed() < STALLED, "{came} of {total:?} came; {seen:?}");
        for completion in completions.drain(..) {
            assert_eq!(completion.kind, OperationKind::Receive);
            if total.is_some_and(|total| {
                completion.user_data >= total && completion.user_data != u64::MAX
            }) {
                // Nothing was sent for it.
                continue;
            }
            let status = completion.result.unwrap();
            let Some(Buffer::Heap(mut message)) = completion.buffer else { panic!("no buffer") };
            if completion.user_data == u64::MAX {
                total = Some(u64::from_le_bytes(message[..8].try_into().unwrap()));
                continue;
            }
            let number = completion.user_data;
            assert_eq!(status.length, length(number), "message {number}");
            fill(number, &mut expected[..status.length]);
            let is_intact = message[..status.length] == expected[..status.length];
            assert!(is_intact, "message {number} is not as it was sent");
            // Whatever still wrote to it would be found in the next message.
            message.fill(0xdd);
            room.push_back(message);
            came += 1;
            ahead.insert(number);
            while ahead.remove(&whole) {
                whole += 1;
            }
            shared.received.store(whole, Ordering::SeqCst);
        }
        seen.look(endpoint);
    }
    // The sender hears that the last one came.
    let until = Instant::now() + Duration::from_millis(300);
    while Instant::now() < until {
        endpoint.progress().unwrap();
    }
    seen
}

/// Has messages go by the rails of `spec` while `disturb` does what it does.
pub(crate) fn played(
    spec: &str,
    settings: &[(&str, &str)],
    disturb: impl FnOnce(&Lab, &Shared) + Send,
) -> [Seen; 2] {
    let lab = Lab::build(&spec.parse().unwrap()).unwrap();
    played_in(&lab, Host::A, settings, disturb)
}

/// What the side that is to open the session says to the other one.
pub(crate) const HELLO: Envelope = Envelope::tagged(9);

/// Ends the messages when the disturber is through, or fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// As [`played`]: host a sends to host b, in a session that `opener` opens.
pub(crate) fn played_in(
    lab: &Lab,
    opener: Host,
    settings: &[(&str, &str)],
    disturb: impl FnOnce(&Lab, &Shared) + Send,
) -> [Seen; 2] {
    let shared = Shared::default();
    let mut all = vec![("nics", "rail*")];
    all.extend_from_slice(settings);
    let (a, b) = thread::scope(|scope| {
        let disturber = scope.spawn(|| {
            let start = Instant::now();
            while shared.received.load(Ordering::SeqCst) < 20 {
                assert!(start.elapsed() < STALLED, "nothing came before anything was disturbed");
                thread::sleep(Duration::from_millis(5));
            }
            let _over = Over(&shared.is_over);
            disturb(lab, &shared);
        });
        let ends = pair(
            lab,
            &all,
            |endpoint, peer| {
                if opener == Host::B {
                    let hello = Selector::from_peer(peer, HELLO);
                    endpoint.receive_blocking(hello, &mut [0; 8], ReceiveOptions::new()).unwrap();
                }
                send_all(endpoint, peer, &shared)
            },
            |endpoint, peer| {
                if opener == Host::B {
                    let level = CompletionLevel::Inject;
                    endpoint
                        .send_blocking(peer, HELLO, b"to begin", SendOptions::at(level))
                        .unwrap();
                }
                receive_all(endpoint, peer, &shared)
            },
        );
        disturber.join().unwrap();
        ends
    });
    assert_eq!((&a.failures, &b.failures), (&Vec::new(), &Vec::new()), "{a:?} {b:?}");
    [a, b]
}

/// Messages must go on coming.
pub(crate) fn assert_moves(shared: &Shared, what: &str) {
    let (before, start) = (shared.received.load(Ordering::SeqCst), Instant::now());
    while shared.received.load(Ordering::SeqCst) < before + 15 {
        assert!(start.elapsed() < Duration::from_secs(5), "nothing comes: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Bytes that a rail in use carries: many times what its probes are.
pub(crate) const CARRIED: u64 = 2 << 20;

/// Has a program do something in a host. Returns what it says.
pub(crate) fn run(lab: &Lab, host: Host, program: &str, arguments: &[&str]) -> String {
    let mut command = lab.host(host).command(program);
    let output = command.args(arguments).output(STALLED).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// What has come to a host by a rail's NIC, in bytes.
pub(crate) fn came(lab: &Lab, host: Host, rail: u8) -> u64 {
    let path = format!("/sys/class/net/{}/statistics/rx_bytes", lab.nic(rail));
    let read = || std::fs::read_to_string(path).unwrap().trim().parse().unwrap();
    lab.host(host).enter(read).unwrap()
}
