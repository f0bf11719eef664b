//! What matching costs, in instructions: counts are the same on every run, times are not.
//!
//! The test runs another one under `valgrind --tool=callgrind` once per load and number of rounds;
//! the difference between two numbers of rounds is the cost of a round, with process start-up and
//! the growth of tables cancelled out. Where valgrind is missing it prints that and passes.
//! `cargo test --release -p ringrail --features bench --test memory -- --nocapture matching_cost`
//! shows the figures; the limits hold for unoptimised builds as well.

use std::hint::black_box;
use std::io::Write as _;
use std::process::Command;

use ringrail::bench::{Matching, Post};

const LOAD: &str = "TEST_OF_RINGRAIL_MATCHING_LOAD";
const ROUNDS: &str = "TEST_OF_RINGRAIL_MATCHING_ROUNDS";

/// Matches counted per load, after as many to warm up.
const MATCHES: usize = 10_000;

/// Which side waits for the other.
#[derive(Clone, Copy, PartialEq)]
enum Waits {
    Receives,
    Messages,
}

/// How receives name what they want.
#[derive(Clone, Copy)]
enum Receives {
    Directed,
    AnySource,
    /// Every receive ignores some tag bits, as those of MPICH do.
    Masked,
    /// Directed, and beside them one any-source receive that nothing ever matches.
    BesideAnySource,
    /// Directed and any-source in turn.
    Alternating,
}

/// How the envelopes of one round differ.
#[derive(Clone, Copy)]
enum Differ {
    Tags,
    Sources,
    Nothing,
}

/// `depth` receives or messages wait, then all of them are matched, in an order of its own.
#[derive(Clone, Copy)]
struct Load {
    name: &'static str,
    waits: Waits,
    receives: Receives,
    differ: Differ,
    depth: usize,
}

const fn load(
    name: &'static str,
    waits: Waits,
    receives: Receives,
    differ: Differ,
    depth: usize,
) -> Load {
    Load { name, waits, receives, differ, depth }
}

const LOADS: [Load; 15] = [
    load("posted directed", Waits::Receives, Receives::Directed, Differ::Tags, 100),
    load("posted any-source", Waits::Receives, Receives::AnySource, Differ::Tags, 100),
    load("posted masked", Waits::Receives, Receives::Masked, Differ::Tags, 100),
    load("posted alternating", Waits::Receives, Receives::Alternating, Differ::Tags, 100),
    load("posted beside any", Waits::Receives, Receives::BesideAnySource, Differ::Tags, 100),
    // The only one is in no bin, and costs half.
    load("posted 4", Waits::Receives, Receives::Directed, Differ::Tags, 4),
    load("posted 10 000 tags", Waits::Receives, Receives::Directed, Differ::Tags, 10_000),
    load("posted 10 000 sources", Waits::Receives, Receives::Directed, Differ::Sources, 10_000),
    load("posted 10 000 alike", Waits::Receives, Receives::Directed, Differ::Nothing, 10_000),
    load("unexpected directed", Waits::Messages, Receives::Directed, Differ::Tags, 100),
    load("unexpected any-source", Waits::Messages, Receives::AnySource, Differ::Tags, 100),
    load("unexpected masked", Waits::Messages, Receives::Masked, Differ::Tags, 100),
    load("unexpected 1", Waits::Messages, Receives::Directed, Differ::Tags, 1),
    load("unexpected 10 000 tags", Waits::Messages, Receives::Directed, Differ::Tags, 10_000),
    load("unexpected alternating", Waits::Messages, Receives::Alternating, Differ::Tags, 100),
];

/// (load, the load it is compared with, the greatest ratio of their costs).
const LIMITS: [(&str, &str, f64); 10] = [
    // An any-source receive is as cheap as a directed one.
    ("posted any-source", "posted directed", 1.1),
    ("unexpected any-source", "unexpected directed", 1.1),
    // So is one that ignores bits.
    ("posted masked", "posted directed", 1.1),
    ("unexpected masked", "unexpected directed", 1.1),
    // Depth costs nothing but longer probes in a fuller table, and a growing queue its growth.
    ("posted directed", "posted 4", 1.5),
    ("posted 10 000 tags", "posted directed", 1.5),
    ("posted 10 000 sources", "posted directed", 1.5),
    ("posted 10 000 alike", "posted directed", 1.5),
    ("unexpected 10 000 tags", "unexpected directed", 1.5),
    // A second kind of receive costs a second look-up per arrival.
    ("posted beside any", "posted directed", 2.0),
];

impl Load {
    /// The envelope (source, tag) of the i-th message of a round.
    fn envelope(&self, i: usize) -> (u32, u64) {
        match self.differ {
            Differ::Tags => (i as u32 % 16, i as u64 * 256),
            Differ::Sources => (i as u32, 256),
            Differ::Nothing => (1, 256),
        }
    }

    fn post(&self, matching: &mut Matching, i: usize) -> Option<u32> {
        let (source, tag) = self.envelope(i);
        let (source, ignore) = match self.receives {
            Receives::Directed | Receives::BesideAnySource => (Some(source), 0),
            Receives::AnySource => (None, 0),
            Receives::Masked => (Some(source), 0x7f),
            Receives::Alternating => ((i & 1 == 0).then_some(source), 0),
        };
        match matching.post(black_box(source), 1, tag, black_box(ignore), i as u32) {
            Post::Matched(message) => Some(message),
            Post::Waiting(_) => None,
        }
    }

    fn arrive(&self, matching: &mut Matching, i: usize) -> Option<u32> {
        let (source, tag) = self.envelope(i);
        matching.arrive(black_box(source), 1, tag, i as u32)
    }

    fn run(&self, rounds: usize) {
        let mut matching = Matching::new(42);
        if let Receives::BesideAnySource = self.receives {
            let _ = matching.post(None, 1, u64::MAX, 0, u32::MAX);
        }
        let left_over = matching.posted_len();
        // Neither the first nor the last that waits, and every one once: depth and step are
        // coprime.
        let step = if self.depth > 1 { self.depth / 3 * 2 + 1 } else { 1 };
        for _ in 0..rounds {
            for i in 0..self.depth {
                let early = match self.waits {
                    Waits::Receives => self.post(&mut matching, i),
                    Waits::Messages => self.arrive(&mut matching, i),
                };
                assert_eq!(early, None);
            }
            for i in 0..self.depth {
                let i = i * step % self.depth;
                let matched = match self.waits {
                    Waits::Receives => self.arrive(&mut matching, i),
                    Waits::Messages => self.post(&mut matching, i),
                };
                assert!(matched.is_some(), "{}: {i} finds nothing", self.name);
            }
            assert_eq!(matching.posted_len() + matching.unexpected_len(), left_over);
        }
    }

    /// Instructions that the process executes in `rounds` rounds, all included.
    fn count(&self, rounds: usize) -> Result<u64, String> {
        let me = std::env::current_exe().map_err(|e| format!("own executable: {e}"))?;
        let output = Command::new("valgrind")
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
            .arg(me)
            .args(["--exact", "--ignored", "matching_cost::rounds_of_one_load"])
            .env(LOAD, self.name)
            .env(ROUNDS, rounds.to_string())
            .output()
            .map_err(|e| format!("valgrind: {e}"))?;
        let printed = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            return Err(format!("{}: {}\n{printed}", self.name, output.status));
        }
        printed
            .lines()
            .find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok())
            .ok_or_else(|| format!("no count of instructions in what valgrind prints:\n{printed}"))
    }

    /// Instructions per pair of a receive and a message.
    fn cost(&self) -> Result<f64, String> {
        let rounds = MATCHES.div_ceil(self.depth);
        let difference = self.count(2 * rounds)? - self.count(rounds)?;
        Ok(difference as f64 / (rounds * self.depth) as f64)
    }
}

fn check() -> Result<(), String> {
    let mut costs = Vec::new();
    for load in LOADS {
        let cost = load.cost()?;
        println!("{:<24} {cost:>7.1} instructions per match", load.name);
        costs.push((load.name, cost));
    }
    let cost_of = |name| costs.iter().find(|(load, _)| *load == name).map(|(_, cost)| *cost);
    let mut broken = Vec::new();
    for (name, than, limit) in LIMITS {
        let ratio = cost_of(name).zip(cost_of(than)).map(|(a, b)| a / b).ok_or("no such load")?;
        println!("{name} / {than}: {ratio:.3} (at most {limit})");
        if ratio > limit {
            broken.push(format!("{name} costs {ratio:.3} times {than}, more than {limit}"));
        }
    }
    if broken.is_empty() { Ok(()) } else { Err(broken.join("\n")) }
}

/// What valgrind counts: a load and a number of rounds, which the variables name.
#[test]
#[ignore = "started by other tests"]
fn rounds_of_one_load() {
    let name = std::env::var(LOAD).expect("the test that starts this one sets it");
    let rounds = std::env::var(ROUNDS).expect("the test that starts this one sets it");
    let load = LOADS.iter().find(|load| load.name == name).expect("a load of the table");
    load.run(rounds.parse().unwrap());
}

#[test]
fn matches_cost_no_more_than_they_may() {
    if let Err(error) = Command::new("valgrind").arg("--version").output() {
        // Past libtest's capture, so that it is counted when the test passes.
        let _ = writeln!(
            std::io::stdout(),
            "RINGRAIL-SKIP: matching_cost: valgrind does not run ({error}); install valgrind"
        );
        return;
    }
    if let Err(error) = check() {
        panic!("{error}");
    }
}
