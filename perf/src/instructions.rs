//! `ringrail-perf instructions`: what a message costs both sides, in instructions of user code.

mod both;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use ringrail_tests::lab::{Host, Lab, LabSpec};
use serde::Serialize;

use crate::cli::Lanes;
use crate::progress::Progress;
use crate::secret;

/// How much slower a program runs under valgrind; about so much slower runs the engines' clock.
const SLOWNESS: u64 = 64;
/// Messages that are counted.
const MESSAGES: u64 = 16_384;
/// A run takes some ten seconds.
const LIMIT: Duration = Duration::from_secs(180);

/// Counts the instructions that a message costs both sides together, by valgrind (callgrind).
///
/// Two engines run in one thread, in the two hosts of a lab (root), so that no turn is idle. The
/// kernel's instructions are not counted, nor those of connecting and warming up. Engines see a
/// clock that is as many times slower as valgrind is, so that no timer fires that would not fire
/// otherwise. Counts hardly differ from run to run and from host to host; they do between compilers.
#[derive(Debug, Parser)]
#[command(name = "ringrail-perf instructions")]
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
    /// Set a setting of ringrail, NAME=VALUE; any number of times.
    #[arg(long = "set")]
    settings: Vec<String>,
    /// One JSON object per line.
    #[arg(long)]
    json: bool,
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
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Pattern {
    /// One at a time, to and fro.
    PingPong,
    /// 64 in a row, one way.
    Coalesced,
}

/// What was counted.
#[derive(Serialize)]
struct Counted {
    test: &'static str,
    pattern: Pattern,
    lanes: Lanes,
    lab: String,
    size_bytes: usize,
    instructions: u64,
}

/// Counts and prints.
pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    secret::refuse_on_command_line(&arguments.settings)?;
    if let Some(messages) = arguments.messages {
        return both::run(arguments, messages);
    }
    let spec: Result<LabSpec, _> = arguments.lab.parse();
    let lab = spec.and_then(|spec| Lab::build(&spec)).map_err(|error| error.to_string())?;
    let patterns = match arguments.pattern {
        Some(ref pattern) => std::slice::from_ref(pattern),
        None => Pattern::value_variants(),
    };
    let progress = Progress::new(patterns.len() as u64);
    for &pattern in patterns {
        let counted = Counted {
            test: "instructions",
            pattern,
            lanes: arguments.lanes,
            lab: arguments.lab.clone(),
            size_bytes: arguments.size,
            instructions: count(arguments, &lab, pattern)? / MESSAGES,
        };
        progress.advance();
        match arguments.json {
            true => println!("{}", serde_json::to_string(&counted).unwrap_or_default()),
            false => println!(
                "{} bytes, {}: {} instructions a message, both sides",
                counted.size_bytes,
                match pattern {
                    Pattern::PingPong => "ping-pong",
                    Pattern::Coalesced => "64 in a row",
                },
                counted.instructions
            ),
        }
    }
    Ok(())
}

/// Instructions of all messages that are counted.
fn count(arguments: &Arguments, lab: &Lab, pattern: Pattern) -> Result<u64, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let networks = [Host::A, Host::B].map(|host| lab.host(host).path().display().to_string());
    let mut command = lab.host(Host::A).command("valgrind");
    let file = arguments.profile.as_ref();
    let file = file.map_or("/dev/null".to_owned(), |file| file.display().to_string());
    command.args(["--tool=callgrind", &format!("--callgrind-out-file={file}")]);
    command.arg(format!("--toggle-collect={}", both::COUNTED)).arg(&program);
    command.args(["instructions", "--messages", &MESSAGES.to_string()]);
    command.args(["--networks", &networks.join(",")]);
    command.args(["--size", &arguments.size.to_string()]);
    for (name, value) in [("--lanes", name(arguments.lanes)), ("--pattern", name(pattern))] {
        command.args([name, &value]);
    }
    for setting in &arguments.settings {
        command.args(["--set", setting]);
    }
    let output = command.output(LIMIT).map_err(|error| {
        format!("{error}; counting needs valgrind (on Debian: apt-get install valgrind)")
    })?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("under valgrind it ends with {}:\n{said}", output.status));
    }
    let count = said.lines().find_map(|line| line.split_once("Collected :"));
    let count = count.and_then(|(_, count)| count.trim().parse().ok());
    count.ok_or_else(|| format!("no count of instructions in what valgrind says:\n{said}"))
}

/// What an option calls a value.
fn name(value: impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}
