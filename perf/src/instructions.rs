//! `ringrail-perf instructions`: what a message costs both sides, in instructions of user code,
//! cache lines, system calls and packets.

mod both;
mod check;
mod log;
mod marks;
mod programs;
mod row;
mod valgrind;

use std::path::PathBuf;
use std::process::Command;

use clap::{Args, Parser, ValueEnum};
use ringrail_tests::lab::{Host, Lab, LabSpec};

use self::programs::Programs;
use self::row::{Figures, Library, Pattern, Row, What};
use crate::cli::Lanes;
use crate::progress::Progress;
use crate::secret;

/// Counts what a message costs both sides together, by valgrind: instructions, system calls,
/// packets and, with --lines, cache lines.
///
/// Both ends are in one thread, in the two hosts of a lab (root), so that no turn is idle but those
/// of --empty-turns. Receives are posted before messages are sent. Instructions are those of user
/// code, without connecting and warming up; packets are those that NICs of the lab send, a train of
/// datagrams (UDP_SEGMENT) as one. Engines see a clock that is slower, so that no timer fires
/// because valgrind is slow. Counts hardly differ between runs and hosts; they do between
/// compilers.
#[derive(Debug, Parser)]
#[command(name = "instructions")]
pub(crate) struct Arguments {
    /// What carries the messages; several are counted one after the other, and those that this host
    /// does not have, or not by these lanes, are skipped with the reason.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "ringrail")]
    library: Vec<Library>,
    /// What moves them; several are counted one after the other.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "auto")]
    lanes: Vec<Lanes>,
    /// The lab, which needs root.
    #[arg(long, default_value = "rails=1")]
    lab: String,
    /// Message size, in bytes.
    #[arg(long, default_value_t = 8)]
    size: usize,
    /// Which messages; all patterns unless given.
    #[arg(long, value_enum)]
    pattern: Option<Pattern>,
    /// Polls of the side that waits that find nothing, before each message; of 64 in a row before
    /// the first one. Between two processes there is at least one.
    #[arg(long, value_name = "N", default_value_t = 0)]
    empty_turns: u32,
    /// Also count the cache lines of code and of data that a round trip touches, or 64 messages in
    /// a row: what misses an empty cache that has room for all, by another run of callgrind. They
    /// are those of user code and of both sides together, which run the same code. A --profile is
    /// of these misses then.
    #[arg(long)]
    lines: bool,
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
    /// ringrail's provider of libfabric, built with its feature `bench`
    /// [default: libringrail_fi.so beside this program].
    #[arg(long, value_name = "FILE")]
    provider: Option<PathBuf>,
    /// One JSON object per line.
    #[arg(long)]
    json: bool,
    /// Count the lines of this file (of --json) again, and fail where a figure is more than 3 %
    /// above, or where idle endpoints make a message cost 1 % more instructions than the same line
    /// without them. Cache lines are counted for those lines that have them.
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = [
            "library", "lanes", "lab", "size", "pattern", "empty_turns", "lines", "peers",
            "endpoints", "shared", "settings", "json"
        ]
    )]
    check: Option<PathBuf>,
    /// Keep what callgrind writes, for `callgrind_annotate`; needs --pattern.
    #[arg(long, value_name = "FILE", requires = "pattern")]
    profile: Option<PathBuf>,
    #[command(flatten)]
    counted: Counted,
}

/// Arguments of the process that is counted.
#[derive(Debug, Args)]
struct Counted {
    /// Messages of a batch, between two marks. Given: this process is the one that is counted.
    #[arg(long, hide = true)]
    messages: Option<u64>,
    #[arg(long, hide = true, default_value_t = 1)]
    batches: u64,
    /// Messages that warm up.
    #[arg(long, hide = true, default_value_t = 0)]
    warm_up: u64,
    /// How many times slower the engines' clock runs.
    #[arg(long, hide = true, default_value_t = 1)]
    slowness: u64,
    /// The networks of both hosts.
    #[arg(long, hide = true, value_delimiter = ',')]
    networks: Vec<PathBuf>,
}

/// Counts rows by valgrind.
struct Counter {
    programs: Programs,
    profile: Option<PathBuf>,
}

/// Counts and prints.
pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    secret::refuse_on_command_line(&arguments.settings)?;
    if let Some(messages) = arguments.counted.messages {
        return both::run(arguments, messages);
    }
    if let Err(error) = Command::new("valgrind").arg("--version").output() {
        let cure = "on Debian: apt-get install valgrind";
        return Err(format!("counting needs valgrind, which does not run ({error}); {cure}"));
    }
    let counter = Counter {
        programs: Programs::new(arguments.provider.as_deref())?,
        profile: arguments.profile.clone(),
    };
    if let Some(file) = &arguments.check {
        return check::check(&counter, file);
    }
    let rows = rows(arguments);
    let progress = Progress::new(rows.len() as u64);
    let mut skipped = Vec::new();
    for what in &rows {
        if let Some(reason) = counter.refuses(what) {
            eprintln!("ringrail-perf: skipped: {what}: {reason}");
            skipped.push(reason);
            continue;
        }
        let figures = counter.count(what, arguments.lines)?;
        progress.advance();
        let row = Row { what: what.clone(), figures };
        match arguments.json {
            true => println!("{}", serde_json::to_string(&row).unwrap_or_default()),
            false => println!("{row}"),
        }
    }
    match skipped.pop() {
        Some(reason) if skipped.len() + 1 == rows.len() => {
            Err(format!("nothing could be counted: {reason}"))
        }
        _ => Ok(()),
    }
}

/// What a command line asks for.
fn rows(arguments: &Arguments) -> Vec<What> {
    let mut rows = Vec::new();
    for &lanes in &arguments.lanes {
        for &library in &arguments.library {
            let all: &[Pattern] = match library {
                Library::Ringrail => Pattern::value_variants(),
                _ => &[Pattern::PingPong, Pattern::Coalesced],
            };
            let patterns = arguments.pattern.as_ref().map_or(all, std::slice::from_ref);
            rows.extend(patterns.iter().map(|&pattern| What {
                test: "instructions".to_owned(),
                library,
                pattern,
                lanes,
                lab: arguments.lab.clone(),
                size_bytes: arguments.size,
                empty_turns: arguments.empty_turns,
                peers: arguments.peers,
                endpoints: arguments.endpoints,
                shared: arguments.shared,
                settings: arguments.settings.clone(),
            }));
        }
    }
    rows
}

impl Counter {
    /// Returns why this host cannot count a row; `None`: it can.
    fn refuses(&self, what: &What) -> Option<String> {
        self.programs.find(what, "").err()
    }

    /// Counts a row, with or without cache lines.
    fn count(&self, what: &What, lines: bool) -> Result<Figures, String> {
        let spec: Result<LabSpec, _> = what.lab.parse();
        let lab = spec.and_then(|spec| Lab::build(&spec)).map_err(|error| error.to_string())?;
        // Shared memory is of one host.
        let other = if what.lanes == Lanes::Shm { Host::A } else { Host::B };
        let networks = [Host::A, other].map(|host| lab.host(host).path().display().to_string());
        let program = self.programs.find(what, &networks.join(","))?;
        let host = lab.host(Host::A);
        let profile = self.profile.as_deref();
        let mut figures = valgrind::count(&host, &program, profile)?;
        if lines {
            let (code, data) = valgrind::count_lines(&host, &program, what.pattern, profile)?;
            (figures.code_lines, figures.data_lines) = (Some(code), Some(data));
        }
        Ok(figures)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_libraries_and_lanes_asked_for_are_counted() {
        let line = "instructions --library ringrail,ucx --lanes shm,sockets --empty-turns 1";
        let arguments = Arguments::try_parse_from(line.split(' ')).unwrap();
        let rows = rows(&arguments);
        // Puts and gets are ringrail's.
        assert_eq!(rows.len(), 2 * (5 + 2));
        assert!(rows.iter().all(|what| what.empty_turns == 1));
        let line = "instructions --pattern put --lanes udp";
        let arguments = Arguments::try_parse_from(line.split(' ')).unwrap();
        let [what] = &super::rows(&arguments)[..] else { panic!("one row") };
        assert_eq!((what.library, what.lanes), (Library::Ringrail, Lanes::Udp));
    }
}
