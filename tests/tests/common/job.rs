//! Jobs of real processes, that are killed.
//!
//! A job has four ranks in host b and one in host a. In each round every rank sends a message to
//! every other one and looks at what it gets. The one in host a tells the others when it is over:
//! as soon as its standard input ends.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use ringrail::bootstrap::{Bootstrap as _, Member, SharedDirectory, exchange};
use ringrail::{
    Address, Buffer, Endpoint, Envelope, Event, FrameState, JobSecret, Owned, Peer, Selector,
    SendOptions,
};
use ringrail_tests::lab::{Host, Lab, LabChild};

use crate::books::frames_of;
use crate::common::attached;

/// Ranks of a job in host b.
pub(crate) const RANKS: usize = 4;
/// The rank of host a.
const COUNTERPART: usize = RANKS;
/// What tells a process that it is a rank: directory, rank, address, secret.
const RANK: &str = "TEST_OF_RINGRAIL_RANK";
/// The test that processes of a job run.
const PROGRAM: &str = "jobs::rank_of_a_job";
/// What lines to the test begin with; the harness writes to the same pipe.
const MARK: &str = "@rank ";
/// How long anything may take.
const LIMIT: Duration = Duration::from_secs(60);
/// The longest message: by a bulk lane.
const LONGEST: usize = 20_000;

/// A job whose processes end with it.
pub(crate) struct Job {
    ranks: Vec<LabChild>,
    lines: Receiver<(usize, String)>,
    /// Whether and why each rank has frames, once it has said so.
    pub(crate) frames: Vec<String>,
}

impl Job {
    /// Starts one whose ranks meet in `directory`; returns when all have said what they got.
    pub(crate) fn start(lab: &Lab, directory: &Path) -> Self {
        let secret = JobSecret::random().to_hex();
        let (tell, lines) = mpsc::channel();
        let mut ranks = Vec::new();
        for rank in 0..=COUNTERPART {
            let host = if rank == COUNTERPART { Host::A } else { Host::B };
            let (at, local) = (directory.display(), lab.addr(host, 0));
            let task = format!("{at} {rank} {local} {}", secret.as_str());
            let mut command = lab.host(host).command(std::env::current_exe().unwrap());
            command.args(["--ignored", "--exact", PROGRAM, "--nocapture"]).env(RANK, task);
            // Nine processes and more share two cores.
            command.core(None).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = command.spawn().unwrap();
            let out = BufReader::new(child.inner().stdout.take().unwrap());
            let tell = tell.clone();
            thread::spawn(move || {
                for line in out.lines().map_while(Result::ok) {
                    if let Some((_, text)) = line.split_once(MARK) {
                        // The test may have gone.
                        let _ = tell.send((rank, text.to_owned()));
                    }
                }
            });
            ranks.push(child);
        }
        let mut job = Self { ranks, lines, frames: vec![String::new(); RANKS + 1] };
        for _ in 0..=COUNTERPART {
            let (rank, text) = job.line();
            job.frames[rank] = text;
        }
        job
    }

    /// What a rank says next.
    #[track_caller]
    fn line(&self) -> (usize, String) {
        match self.lines.recv_timeout(LIMIT) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => panic!("nothing heard of a job for {LIMIT:?}"),
            Err(RecvTimeoutError::Disconnected) => panic!("all ranks of a job have ended"),
        }
    }

    /// Of the ranks in host b, those that have frames.
    pub(crate) fn owners(&self) -> usize {
        self.frames[..RANKS].iter().filter(|text| *text == "up").count()
    }

    /// Waits until so many more rounds are over: all messages of them have come to all ranks.
    #[track_caller]
    pub(crate) fn see_rounds(&self, count: u64) {
        // What was said meanwhile is about earlier ones.
        while self.lines.try_recv().is_ok() {}
        let (mut first, mut last) = (None, 0);
        while first.is_none_or(|first| last < first + count) {
            let (rank, text) = self.line();
            assert_eq!(rank, COUNTERPART, "{text}");
            last = text.strip_prefix("round ").expect("a round").parse().unwrap();
            first.get_or_insert(last);
        }
    }

    /// Kills all its processes, one after the other.
    pub(crate) fn kill(mut self) {
        for rank in &mut self.ranks {
            rank.kill().unwrap();
        }
        for rank in &mut self.ranks {
            rank.wait().unwrap();
        }
    }

    /// Has it end in order; what ranks said about their frames at the end.
    #[track_caller]
    pub(crate) fn end(mut self) -> Vec<String> {
        drop(self.ranks[COUNTERPART].inner().stdin.take());
        let mut frames = vec![None; RANKS + 1];
        while frames.contains(&None) {
            let (rank, text) = self.line();
            if let Some(text) = text.strip_prefix("over: ") {
                frames[rank] = Some(text.to_owned());
            }
        }
        for rank in &mut self.ranks {
            let status = rank.wait_timeout(LIMIT).unwrap().expect("an end");
            assert!(status.success(), "{status}");
        }
        frames.into_iter().flatten().collect()
    }
}

/// What [`PROGRAM`] does, which is started as a rank.
pub(crate) fn be_a_rank() {
    let task = std::env::var(RANK).expect("other tests start it");
    let [directory, rank, local, secret] = task.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{task}");
    };
    let rank: usize = rank.parse().unwrap();
    let settings = [("job_secret", secret), ("control_lane", "auto")];
    let endpoint = attached(local.parse().unwrap(), &settings).unwrap();
    say(&frames(&endpoint));
    let member = Member::new(rank, RANKS + 1);
    let mut meeting = SharedDirectory::join(directory, &member).unwrap();
    let addresses = exchange(&mut meeting, "address", &endpoint.address().to_bytes()).unwrap();
    let peers: Vec<(usize, Peer)> = addresses
        .iter()
        .enumerate()
        .filter(|&(other, _)| other != rank)
        .map(|(other, bytes)| {
            let address = Address::from_bytes(bytes).unwrap();
            (other, endpoint.insert_peer(&address).unwrap())
        })
        .collect();
    let is_over = Arc::new(AtomicBool::new(false));
    if rank == COUNTERPART {
        let is_over = Arc::clone(&is_over);
        thread::spawn(move || {
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            is_over.store(true, Ordering::SeqCst);
        });
    }
    play(&endpoint, rank, &peers, &is_over);
    while let Some(event) = endpoint.next_event() {
        assert!(!matches!(event, Event::Disconnected { .. }), "{event:?}");
    }
    // Nobody leaves before all have got everything, and have looked.
    meeting.barrier().unwrap();
    say(&format!("over: {}", frames(&endpoint)));
}

/// Rounds, until the counterpart says that this was the last one.
fn play(endpoint: &Endpoint<Owned>, rank: usize, peers: &[(usize, Peer)], is_over: &AtomicBool) {
    for round in 0_u64.. {
        let is_last = is_over.load(Ordering::SeqCst);
        let label = Envelope::tagged(round);
        let receives: Vec<_> = peers
            .iter()
            .map(|&(other, peer)| {
                let receive =
                    endpoint.receive(Selector::from_peer(peer, label), vec![0; LONGEST + 1]);
                (other, receive.unwrap())
            })
            .collect();
        let sends: Vec<_> = peers
            .iter()
            .map(|&(other, peer)| {
                let bytes = message(round, rank, other, is_last);
                endpoint.send(peer, label, bytes, SendOptions::default()).unwrap()
            })
            .collect();
        let mut was_last = is_last;
        for (other, mut receive) in receives {
            let deadline = Instant::now() + LIMIT;
            let outcome = receive.wait_deadline(deadline).unwrap();
            let outcome = outcome.unwrap_or_else(|| panic!("round {round}: nothing of {other}"));
            let length = outcome.status.length;
            let Buffer::Heap(bytes) = outcome.buffer else { panic!("another buffer") };
            let says_last = bytes[0] == 1;
            assert!(bytes[..length] == message(round, other, rank, says_last), "round {round}");
            was_last |= says_last && other == COUNTERPART;
        }
        for send in sends {
            send.wait().unwrap();
        }
        if rank == COUNTERPART {
            say(&format!("round {round}"));
        }
        if was_last {
            return;
        }
    }
}

/// What `from` sends to `to` in a round.
fn message(round: u64, from: usize, to: usize, is_last: bool) -> Vec<u8> {
    const LENGTHS: [usize; 7] = [8, 1, 64, 1000, 3000, 9000, LONGEST];
    let seed = round * 25 + (from * 5 + to) as u64;
    let length = LENGTHS[seed as usize % LENGTHS.len()];
    let mut bytes: Vec<u8> =
        (0..length as u64).map(|at| (at.wrapping_mul(29) ^ seed) as u8).collect();
    bytes[0] = u8::from(is_last);
    bytes
}

/// `up`, or why not.
fn frames(endpoint: &Endpoint<Owned>) -> String {
    match frames_of(endpoint) {
        FrameState::Up { .. } => "up".to_owned(),
        FrameState::Refused { cause, .. } => cause.replace('\n', " "),
        state => panic!("{state:?}"),
    }
}

fn say(text: &str) {
    println!("{MARK}{text}");
}
