//! Programs below callgrind: what is counted of them.

use std::path::Path;
use std::time::Duration;

use ringrail_tests::lab::{HostHandle, LabCommand};

use super::log;
use super::programs::Program;
use super::row::{Figures, Pattern};

/// A run takes some seconds, on a busy host a minute.
const LIMIT: Duration = Duration::from_secs(300);

/// How much a program does before and while it is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Load {
    /// Messages that warm up.
    pub(super) warm_up: u64,
    /// Messages of a batch, and how many batches there are.
    pub(super) messages: u64,
    pub(super) batches: u64,
    /// How many times slower the engines' clock runs. Callgrind makes a program 50 to 100 times
    /// slower, and a busy machine adds to that: timers that fire meanwhile would be counted.
    pub(super) slowness: u64,
}

impl Load {
    /// Many messages in one batch. The clock is no slower, for what a new session waits for has to
    /// end before the count begins.
    const MESSAGES: Self = Self { warm_up: 2_048, messages: 8_192, batches: 1, slowness: 256 };

    /// A round in each batch, which begins with an empty cache.
    fn of_rounds(pattern: Pattern) -> Self {
        // Code is translated again in each batch, which takes longer than what it does.
        Self { warm_up: 1_024, messages: pattern.round(), batches: 16, slowness: 4_096 }
    }
}

/// Counts all but cache lines. callgrind writes a profile into a file if one is named.
pub(super) fn count(
    host: &HostHandle<'_>,
    program: &Program,
    profile: Option<&Path>,
) -> Result<Figures, String> {
    let load = Load::MESSAGES;
    let (log, packets) = run(&mut callgrind(host, program, profile), program, load)?;
    let [instructions] = totals(&log, ["Ir"])?;
    let (syscalls, _) = log::syscalls(&log).ok_or_else(|| {
        let log = log::tail(&log);
        format!("no marks in the system calls that valgrind lists:\n{log}")
    })?;
    if instructions < load.messages {
        return Err("valgrind sees no marks, so that nothing is counted".to_owned());
    }
    // Two digits: a timer in a thousand messages is none of what each costs.
    let a_message =
        |count: u64| Some((100.0 * count as f64 / load.messages as f64).round() / 100.0);
    Ok(Figures {
        instructions: instructions / load.messages,
        syscalls: a_message(syscalls),
        packets: a_message(packets),
        ..Figures::default()
    })
}

/// Counts the cache lines of code and of data that a round touches: what misses an empty cache in
/// which everything has room.
pub(super) fn count_lines(
    host: &HostHandle<'_>,
    program: &Program,
    pattern: Pattern,
    profile: Option<&Path>,
) -> Result<(u64, u64), String> {
    let load = Load::of_rounds(pattern);
    let mut command = callgrind(host, program, profile);
    command.args(["--cache-sim=yes", "--LL=67108864,16,64"]);
    let (log, _) = run(&mut command, program, load)?;
    let [code, loads, stores] = totals(&log, ["ILmr", "DLmr", "DLmw"])?;
    let a_round = |count: u64| (count + load.batches / 2) / load.batches;
    Ok((a_round(code), a_round(loads + stores)))
}

fn totals<const N: usize>(log: &str, events: [&str; N]) -> Result<[u64; N], String> {
    log::totals(log, events).ok_or_else(|| {
        let (events, log) = (events.join(", "), log::tail(log));
        format!("valgrind's output has no counts of {events}; its end:\n{log}")
    })
}

fn callgrind(host: &HostHandle<'_>, program: &Program, profile: Option<&Path>) -> LabCommand {
    let file = profile.map_or("/dev/null".into(), |file| file.display().to_string());
    let (first, rest) = program.launcher();
    let mut command = host.command(first);
    command.args(rest);
    command.args(["--tool=callgrind", "--instr-atstart=no", "--trace-syscalls=yes"]);
    command.arg(format!("--callgrind-out-file={file}"));
    command
}

/// Runs a program to its end. Returns valgrind's output, and the packets that the program counts.
fn run(command: &mut LabCommand, program: &Program, load: Load) -> Result<(String, u64), String> {
    // A pipe would make the program wait for its reader, at each system call.
    let log = tempfile::NamedTempFile::new().map_err(|error| format!("a file: {error}"))?;
    command.arg(format!("--log-file={}", log.path().display()));
    command.arg(&program.path).args(program.arguments(load));
    for (name, value) in program.environment(load) {
        command.env(name, value);
    }
    let output = command.output(LIMIT).map_err(|error| error.to_string())?;
    let log =
        std::fs::read(log.path()).map_err(|error| format!("the output of valgrind: {error}"))?;
    let log = String::from_utf8_lossy(&log).into_owned();
    if !output.status.success() {
        let printed = String::from_utf8_lossy(&output.stderr);
        let reason = match printed.trim() {
            "" => log::tail(&log),
            printed => printed.to_owned(),
        };
        return Err(format!("under valgrind it ends with {}: {reason}", output.status));
    }
    let printed = String::from_utf8_lossy(&output.stdout);
    let packets = printed.lines().find_map(|line| line.strip_prefix("packets "));
    let packets = packets.and_then(|count| count.trim().parse().ok());
    packets.map(|packets| (log, packets)).ok_or_else(|| format!("no count of packets: {printed}"))
}
