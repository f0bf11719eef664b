//! `ringrail-perf instructions`: what a message costs both sides, in instructions of user code.

mod both;

use std::fmt;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use ringrail_tests::lab::{Host, Lab, LabSpec};
use serde::{Deserialize, Serialize};

use crate::cli::Lanes;
use crate::progress::Progress;
use crate::secret;

/// How much slower a program runs under valgrind; about so much slower runs the engines' clock.
const SLOWNESS: u64 = 64;
/// Messages that are counted.
const MESSAGES: u64 = 16_384;
/// A count that is saved may be exceeded by so much.
const MARGIN_PERCENT: u64 = 3;
/// Idle endpoints of the process may change a count by so much.
const IDLE_PERCENT: u64 = 1;
/// How often a message is counted that seems to cost more than it did. A machine that is busy adds
/// to a count, by timers that fire while a program stands still, and never takes from it.
const TRIES: u32 = 3;
/// A run takes some seconds.
const LIMIT: Duration = Duration::from_secs(180);

/// Counts the instructions that a message costs both sides together, by valgrind (callgrind).
///
/// Two engines run in one thread, in the two hosts of a lab (root), so that no turn is idle. The
/// kernel's instructions are not counted, nor those of connecting and warming up. Engines see a
/// clock that is as many times slower as valgrind is, so that no timer fires that would not fire
/// otherwise. Counts hardly differ between runs and hosts; they do between compilers.
#[derive(Debug, Parser)]
#[command(name = "instructions")]
pub(crate) struct Arguments {
    /// What moves ringrail's messages.
    #[arg(long, value_enum, default_value_t = Lanes::Auto)]
    lanes: Lanes,
    /// The lab, which needs root.
    #[arg(long, default_value = "rails=1")]
    lab: String,
    /// Message size, in bytes.
    #[arg(long, default_value_t = 8)]
    size: usize,
    /// Which messages; all patterns unless given.
    #[arg(long, value_enum)]
    pattern: Option<Pattern>,
    /// Engines with which the first one exchanges messages by turns.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    peers: u32,
    /// Endpoints that the first host has, each on an engine of its own: all but one are idle.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    endpoints: u32,
    /// Endpoints are shared ones, used by this one thread; they go by plain sockets.
    #[arg(long)]
    shared: bool,
    /// Set a setting of ringrail, NAME=VALUE; any number of times.
    #[arg(long = "set")]
    settings: Vec<String>,
    /// One JSON object per line.
    #[arg(long)]
    json: bool,
    /// Count what the lines of this file (of --json) say, and fail where it is more than 3 % above,
    /// or where idle endpoints make a message cost 1 % more than the same line without them.
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all =
            ["lanes", "lab", "size", "pattern", "peers", "endpoints", "shared", "settings", "json"]
    )]
    check: Option<PathBuf>,
    /// Keep what callgrind writes, for `callgrind_annotate`; needs --pattern.
    #[arg(long, value_name = "FILE", requires = "pattern")]
    profile: Option<PathBuf>,
    /// How many messages: this process is the one that is counted.
    #[arg(long, hide = true)]
    messages: Option<u64>,
    /// The networks of both hosts.
    #[arg(long, hide = true, value_delimiter = ',')]
    networks: Vec<PathBuf>,
}

/// Which messages are counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Pattern {
    /// One at a time, to and fro.
    PingPong,
    /// 64 in a row, one way.
    Coalesced,
    /// Puts, one at a time, to and fro: who waits looks at its memory.
    Put,
    /// 64 puts in a row, one way.
    PutCoalesced,
    /// Gets, one at a time: a request and an answer, which are two messages.
    Get,
}

/// What one message of a pattern costs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Count {
    test: String,
    pattern: Pattern,
    lanes: Lanes,
    lab: String,
    size_bytes: usize,
    #[serde(default = "one", skip_serializing_if = "is_one")]
    peers: u32,
    #[serde(default = "one", skip_serializing_if = "is_one")]
    endpoints: u32,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    shared: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    settings: Vec<String>,
    instructions: u64,
}

/// Counts and prints.
pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    secret::refuse_on_command_line(&arguments.settings)?;
    if let Some(messages) = arguments.messages {
        return both::run(arguments, messages);
    }
    if let Some(file) = &arguments.check {
        return check(arguments, file);
    }
    let patterns = match arguments.pattern {
        Some(ref pattern) => std::slice::from_ref(pattern),
        None => Pattern::value_variants(),
    };
    let progress = Progress::new(patterns.len() as u64);
    for &pattern in patterns {
        let counted = Count {
            test: "instructions".to_owned(),
            pattern,
            lanes: arguments.lanes,
            lab: arguments.lab.clone(),
            size_bytes: arguments.size,
            peers: arguments.peers,
            endpoints: arguments.endpoints,
            shared: arguments.shared,
            settings: arguments.settings.clone(),
            instructions: 0,
        };
        let counted = count(arguments, counted)?;
        progress.advance();
        match arguments.json {
            true => println!("{}", serde_json::to_string(&counted).unwrap_or_default()),
            false => println!("{counted}"),
        }
    }
    Ok(())
}

impl fmt::Display for Count {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pattern = match self.pattern {
            Pattern::PingPong => "ping-pong",
            Pattern::Coalesced => "64 in a row",
            Pattern::Put => "ping-pong of puts",
            Pattern::PutCoalesced => "64 puts in a row",
            Pattern::Get => "gets",
        };
        let Self { size_bytes, instructions, lab, peers, endpoints, shared, .. } = self;
        let lanes = name(self.lanes);
        write!(out, "{size_bytes} bytes, {pattern}, {lanes}, {lab}: ")?;
        if *peers > 1 {
            write!(out, "{peers} peers by turns: ")?;
        }
        if *endpoints > 1 {
            write!(out, "{endpoints} endpoints, one of them in use: ")?;
        }
        if *shared {
            write!(out, "shared: ")?;
        }
        write!(out, "{instructions} instructions a message, both sides")
    }
}

impl Count {
    /// Whether `alone` is the same but for idle endpoints, and has none.
    fn is_same_beside_idle(&self, alone: &Self) -> bool {
        let instructions = alone.instructions;
        *alone == Self { endpoints: 1, instructions, ..self.clone() }
    }

    /// Whether it is more than was saved, by more than counts differ.
    fn exceeds(&self, saved: &Self) -> bool {
        self.instructions * 100 > saved.instructions * (100 + MARGIN_PERCENT)
    }

    /// Whether idle endpoints make a difference that counts.
    fn differs_from(&self, alone: &Self) -> bool {
        self.instructions.abs_diff(alone.instructions) * 100 > alone.instructions * IDLE_PERCENT
    }
}

/// Counts again what a file says, and compares.
fn check(arguments: &Arguments, file: &Path) -> Result<(), String> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| format!("cannot read {}: {error}", file.display()))?;
    let saved: Result<Vec<Count>, _> = text.lines().map(serde_json::from_str).collect();
    let saved = saved.map_err(|error| format!("{}: {error}", file.display()))?;
    if saved.is_empty() {
        return Err(format!("{} has no line to compare with", file.display()));
    }
    let mut above = Vec::new();
    let mut counted: Vec<Count> = Vec::new();
    let first = count_all(arguments, &saved);
    for (before, now) in saved.into_iter().zip(first) {
        let mut alone = counted.iter_mut().find(|it| before.is_same_beside_idle(it));
        let mut now = now?;
        for _ in 1..TRIES {
            let alone = alone.as_deref_mut().filter(|alone| now.differs_from(alone));
            let again = match alone {
                Some(alone) if alone.instructions > now.instructions => alone,
                Some(_) => &mut now,
                None if now.exceeds(&before) => &mut now,
                None => break,
            };
            let instructions = count(arguments, again.clone())?.instructions;
            again.instructions = again.instructions.min(instructions);
        }
        println!("{now}, {} before", before.instructions);
        if now.instructions * 100 < before.instructions * (100 - MARGIN_PERCENT) {
            println!("  that is better: put it into {}, or it may be lost again", file.display());
        }
        if now.exceeds(&before) {
            above.push(now.to_string());
        }
        if now.endpoints > 1 {
            let alone = alone.ok_or_else(|| {
                let name = file.display();
                format!("{name} has no line before it with one endpoint to compare with: {now}")
            })?;
            if now.differs_from(alone) {
                return Err(format!(
                    "idle endpoints change what a message costs by more than \
                     {IDLE_PERCENT} %: {now}, and {} with one",
                    alone.instructions
                ));
            }
        }
        counted.push(now);
    }
    match above[..] {
        [] => Ok(()),
        _ => Err(format!(
            "more than {MARGIN_PERCENT} % above what {} says: {}; find out why (--profile), or \
             say in the commit that raises it what it is good for",
            file.display(),
            above.join("; ")
        )),
    }
}

/// Counts each line, as many at a time as there are cores. Returns the counts in the same order.
fn count_all(arguments: &Arguments, lines: &[Count]) -> Vec<Result<Count, String>> {
    let cores = thread::available_parallelism().map_or(1, |cores| cores.get());
    let next = AtomicUsize::new(0);
    let work = || {
        let mut counts = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(line) = lines.get(at) else { return counts };
            counts.push((at, count(arguments, line.clone())));
        }
    };
    let mut counts: Vec<_> = thread::scope(|scope| {
        let workers: Vec<_> = (0..cores.min(lines.len())).map(|_| scope.spawn(work)).collect();
        let counts = workers.into_iter().map(|worker| worker.join());
        counts.flat_map(|counts| counts.unwrap_or_else(|panic| resume_unwind(panic))).collect()
    });
    counts.sort_by_key(|(at, _): &(usize, _)| *at);
    counts.into_iter().map(|(_, count)| count).collect()
}

/// Counts what `what` names but for its instructions, which come with it.
fn count(arguments: &Arguments, what: Count) -> Result<Count, String> {
    if let Err(error) = Command::new("valgrind").arg("--version").output() {
        let cure = "on Debian: apt-get install valgrind";
        return Err(format!("counting needs valgrind, which does not run ({error}); {cure}"));
    }
    let spec: Result<LabSpec, _> = what.lab.parse();
    let lab = spec.and_then(|spec| Lab::build(&spec)).map_err(|error| error.to_string())?;
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    // Neighbours are of one host.
    let other = if what.lanes == Lanes::Shm { Host::A } else { Host::B };
    let networks = [Host::A, other].map(|host| lab.host(host).path().display().to_string());
    let mut command = lab.host(Host::A).command("valgrind");
    let file = arguments.profile.as_ref();
    let file = file.map_or("/dev/null".to_owned(), |file| file.display().to_string());
    command.args(["--tool=callgrind", &format!("--callgrind-out-file={file}")]);
    command.arg(format!("--toggle-collect={}", both::COUNTED)).arg(&program);
    command.args(["instructions", "--messages", &MESSAGES.to_string()]);
    command.args(["--networks", &networks.join(",")]);
    command.args(["--size", &what.size_bytes.to_string(), "--peers", &what.peers.to_string()]);
    command.args(["--endpoints", &what.endpoints.to_string()]);
    if what.shared {
        command.arg("--shared");
    }
    for (name, value) in [("--lanes", name(what.lanes)), ("--pattern", name(what.pattern))] {
        command.args([name, &value]);
    }
    for setting in &what.settings {
        command.args(["--set", setting]);
    }
    let output = command.output(LIMIT).map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("under valgrind it ends with {}:\n{said}", output.status));
    }
    let count = said.lines().find_map(|line| line.split_once("Collected :"));
    let count: Option<u64> = count.and_then(|(_, count)| count.trim().parse().ok());
    let count =
        count.ok_or_else(|| format!("no count of instructions in what valgrind says:\n{said}"))?;
    if count < MESSAGES {
        let function = both::COUNTED;
        return Err(format!("valgrind finds no function {function}, so that nothing is counted"));
    }
    Ok(Count { instructions: count / MESSAGES, ..what })
}

fn one() -> u32 {
    1
}

fn is_one(count: &u32) -> bool {
    *count == 1
}

/// What an option calls a value.
fn name(value: impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_endpoints_are_compared_with_the_line_that_has_none() {
        let line = |pattern: &str, more: &str, count: u64| -> Count {
            let text = format!(
                r#"{{"test":"instructions","pattern":"{pattern}","lanes":"udp","lab":"rails=1",
                   "size_bytes":8,{more}"instructions":{count}}}"#
            );
            serde_json::from_str(&text).unwrap()
        };
        let idle = line("ping-pong", r#""endpoints":64,"#, 1010);
        let (alone, other) = (line("ping-pong", "", 1000), line("coalesced", "", 1000));
        assert!(idle.is_same_beside_idle(&alone) && !idle.is_same_beside_idle(&other));
        assert!(!idle.is_same_beside_idle(&idle), "it is not compared with itself");
        assert!(!idle.differs_from(&alone));
        assert!(!line("ping-pong", "", 1030).exceeds(&alone));
        assert!(line("ping-pong", "", 1031).exceeds(&alone));
        for count in [1011, 989] {
            assert!(line("ping-pong", r#""endpoints":64,"#, count).differs_from(&alone));
        }
    }
}
