//! The whole command line: a subcommand for each test, with the options that the test uses.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Args as _, Command, CommandFactory as _, FromArgMatches, ValueEnum};

use crate::cli::{Cli, FloorName, TestName};
use crate::{compare, diff, instructions, plot};

/// What a command line asks for.
pub(crate) enum Asked {
    Test(Box<Cli>),
    Compare(Box<compare::Arguments>),
    Instructions(instructions::Arguments),
    Diff(diff::Arguments),
    Plot(plot::Arguments),
    /// Manual pages and completions, into this folder.
    Pages(PathBuf),
}

/// Options that every test takes, so that scripts may give the same ones to all of them. Where one
/// changes nothing, standard error says so.
const COMMON: [&str; 15] = [
    "size",
    "iters",
    "window",
    "threads",
    "buffers",
    "verify",
    "json",
    "csv",
    "nics",
    "lanes",
    "listen",
    "connect",
    "lab",
    "loopback",
    "keep_root",
];

/// Options that a process of this program gives to another one.
const INTERNAL: [&str; 3] = ["lab_rails", "lab_decoys", "child"];

impl TestName {
    /// Whether the test uses an option, which is given by its name in [`Cli`].
    fn uses(self, option: &str) -> bool {
        let is_one_sided = matches!(
            self,
            Self::PutLatency
                | Self::PutBw
                | Self::GetLatency
                | Self::GetBw
                | Self::AtomicLatency
                | Self::PutMr
        );
        let has_settings = !matches!(self, Self::Floor);
        let is_swept = matches!(self, Self::Rails | Self::Crossover);
        match option {
            "threads" => matches!(self, Self::Mr | Self::Bw | Self::Bibw | Self::LatencyMt),
            "shared" => {
                matches!(self, Self::Mr | Self::Bw | Self::Bibw | Self::Latency | Self::LatencyMt)
            }
            "window" => matches!(
                self,
                Self::Bw
                    | Self::Bibw
                    | Self::Mr
                    | Self::PutBw
                    | Self::GetBw
                    | Self::PutMr
                    | Self::Failover
                    | Self::Incast
                    | Self::Rails
                    | Self::Floor
            ),
            "size" | "iters" | "buffers" | "verify" | "csv" | "loopback" => self != Self::Info,
            "listen" | "connect" => !matches!(self, Self::Info | Self::Failover | Self::Rails),
            "bulk_size" => self == Self::LatencyUnderLoad,
            "pause_us" => matches!(self, Self::Latency | Self::Floor),
            "reuse" => matches!(self, Self::Bw | Self::Bibw),
            "hint" => has_settings && self != Self::Info,
            "settings" => has_settings,
            "rounds" => !matches!(self, Self::Info | Self::Failover),
            "brief" => self != Self::Info,
            "peer" => self == Self::Info,
            "fault" => self == Self::Failover,
            "senders" => self == Self::Incast,
            "ranks" => self == Self::Alltoall,
            "plot" => matches!(self, Self::Failover | Self::Rails),
            "pcap" => {
                let is_one_measurement = !is_one_sided && !is_swept;
                let is_of_one = !matches!(self, Self::Incast | Self::Alltoall);
                is_one_measurement && is_of_one && !matches!(self, Self::Floor | Self::Info)
            }
            // Those that are common, and the lab of whoever calls.
            _ => true,
        }
    }

    fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

/// All subcommands.
pub(crate) fn command() -> Command {
    let command = Command::new("ringrail-perf")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Measures ringrail and the raw floors below it")
        .long_about(
            "Measures ringrail and the raw floors below it.\n\nTwo processes: --listen ADDR on one \
             side, --connect ADDR on the other; or both at once with --lab (two network \
             namespaces, root) or --loopback. Whatever test the server was started with, it runs \
             those that its clients ask for.\n\nA test that is interrupted by Ctrl-C prints the \
             rounds that it has. A busy host is said on standard error.",
        )
        .subcommand_value_name("TEST")
        .arg_required_else_help(true)
        .arg(
            Arg::new("write_pages")
                .long("write-pages")
                .value_name("DIR")
                .help("Writes manual pages and completions of shells, for installers")
                .value_parser(clap::value_parser!(PathBuf))
                .hide(true)
                .exclusive(true),
        );
    let tests = TestName::value_variants().iter().map(|&test| subcommand(test));
    command.subcommands(tests).subcommands([
        compare::Arguments::command().name("compare"),
        instructions::Arguments::command().name("instructions"),
        diff::Arguments::command().name("diff"),
        plot::Arguments::command().name("plot"),
    ])
}

/// A test with its options; those that it does not use are there to be refused with a reason.
fn subcommand(test: TestName) -> Command {
    let about = test.to_possible_value().and_then(|value| value.get_help().cloned());
    let mut command = Cli::augment_args(Command::new(test.name()));
    if test == TestName::Floor {
        command = command.arg(
            Arg::new("floor")
                .value_name("NAME")
                .help("Which floor")
                .value_parser(clap::value_parser!(FloorName)),
        );
    }
    // After the arguments, which bring the text of all of them.
    command = command.about(about.unwrap_or_default()).long_about(None);
    command.mut_args(|arg| match test.uses(arg.get_id().as_str()) {
        true => arg,
        false => arg.hide(true),
    })
}

/// Reads a command line; one that makes no sense ends the process with a reason.
pub(crate) fn parse() -> Asked {
    match read(std::env::args_os()) {
        Ok(asked) => asked,
        Err(error) => error.exit(),
    }
}

fn read(line: impl IntoIterator<Item = OsString>) -> Result<Asked, clap::Error> {
    let mut command = command();
    let mut matches = command.try_get_matches_from_mut(line)?;
    if let Some(folder) = matches.remove_one("write_pages") {
        return Ok(Asked::Pages(folder));
    }
    let (name, mut matches) = matches
        .remove_subcommand()
        .ok_or_else(|| command.error(ErrorKind::MissingSubcommand, "which test?"))?;
    Ok(match &*name {
        "compare" => {
            Asked::Compare(Box::new(compare::Arguments::from_arg_matches_mut(&mut matches)?))
        }
        "instructions" => {
            Asked::Instructions(instructions::Arguments::from_arg_matches_mut(&mut matches)?)
        }
        "diff" => Asked::Diff(diff::Arguments::from_arg_matches_mut(&mut matches)?),
        "plot" => Asked::Plot(plot::Arguments::from_arg_matches_mut(&mut matches)?),
        name => {
            let test = TestName::from_str(name, false)
                .map_err(|error| command.error(ErrorKind::InvalidSubcommand, error))?;
            let sub = command.find_subcommand_mut(name);
            let notes = match (unused(test, &matches), sub) {
                (Ok(notes), _) => notes,
                (Err(text), Some(sub)) => return Err(sub.error(ErrorKind::UnknownArgument, text)),
                (Err(text), None) => return Err(command.error(ErrorKind::UnknownArgument, text)),
            };
            let floor = match test {
                TestName::Floor => matches.remove_one("floor"),
                _ => None,
            };
            let mut cli = Cli::from_arg_matches_mut(&mut matches)?;
            (cli.test, cli.floor, cli.notes) = (test, floor, notes);
            Asked::Test(Box::new(cli))
        }
    })
}

/// What to note about common options that change nothing; an error says why another one is none of
/// this test.
fn unused(test: TestName, matches: &ArgMatches) -> Result<Vec<String>, String> {
    let mut notes = Vec::new();
    let given = |id: &&str| matches.value_source(id) == Some(ValueSource::CommandLine);
    let is_child = matches.get_flag("child");
    let ids: Vec<&str> = matches.ids().map(clap::Id::as_str).filter(given).collect();
    for id in ids {
        if test.uses(id) || INTERNAL.contains(&id) || id == "Cli" {
            continue;
        }
        let option = format!("--{}", long(id));
        if COMMON.contains(&id) {
            // Values that no test but some takes are refused where all values are looked at.
            if !is_child && !matches!(id, "listen" | "connect" | "threads" | "loopback") {
                notes.push(format!("{} does not use {option}", test.name()));
            }
            continue;
        }
        let those = TestName::value_variants().iter().filter(|other| other.uses(id));
        let those: Vec<String> = those.map(|other| other.name()).collect();
        return Err(format!(
            "{option} is no option of {}: it is of {}",
            test.name(),
            those.join(", ")
        ));
    }
    Ok(notes)
}

/// An option as it is written.
fn long(id: &str) -> String {
    if id == "settings" { "set".to_owned() } else { id.replace('_', "-") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(line: &str) -> Result<Box<Cli>, String> {
        let words = ["ringrail-perf"].into_iter().chain(line.split_whitespace());
        match read(words.map(OsString::from)).map_err(|error| error.to_string())? {
            Asked::Test(cli) => Ok(cli),
            _ => Err("no test".to_owned()),
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        command().debug_assert();
    }

    /// What scripts rely on.
    #[test]
    fn common_options_are_of_every_test() {
        for test in TestName::value_variants() {
            let name = match test {
                TestName::Floor => "floor tcp-latency".to_owned(),
                test => test.name(),
            };
            for options in [
                "--size 8:64 --iters 10 --window 4 --threads 1 --buffers heap --verify --json",
                "--csv --nics a,b --lanes udp --lab rails=2 --keep-root",
                "--listen 127.0.0.1:7000",
                "--connect 127.0.0.1:7000",
                "--loopback",
            ] {
                let line = format!("{name} {options}");
                let cli = asked(&line).unwrap_or_else(|error| panic!("{line}: {error}"));
                assert_eq!(cli.test, *test, "{line}");
            }
        }
        let cli = asked("latency --window 4 --lanes udp").unwrap();
        assert_eq!(cli.notes, ["latency does not use --window"]);
        let cli = asked("floor memcpy --json").unwrap();
        assert_eq!(cli.floor, Some(FloorName::Memcpy));
        assert!(asked("mr --threads 4 --shared --lanes sockets --loopback").is_ok());
        assert!(asked("latency-under-load --bulk-size 64K --loopback").is_ok());
    }

    /// Each was taken before, and changed nothing.
    #[test]
    fn an_option_that_a_test_does_not_use_is_refused_with_the_tests_that_do() {
        for (line, cause) in [
            ("bw --pause-us 5", "--pause-us is no option of bw: it is of latency, floor"),
            ("latency --reuse same", "it is of bw, bibw"),
            ("latency --senders 4", "it is of incast"),
            ("mr --ranks 8", "it is of alltoall"),
            ("bw --fault flap", "it is of failover"),
            ("latency --peer 10.0.0.1", "it is of info"),
            ("floor tcp-latency --set nics=a", "--set is no option of floor"),
            ("latency --plot x.svg", "it is of failover, rails"),
            ("put-bw --pcap x", "--pcap is no option of put-bw"),
            ("info --rounds 3", "--rounds is no option of info"),
        ] {
            let error = asked(line).map(|_| line).unwrap_err();
            assert!(error.contains(cause), "{line}: {error}");
        }
    }

    /// Help has what a test uses, and no more.
    #[test]
    fn help_lists_the_options_of_the_test() {
        let help = |test| subcommand(test).render_long_help().to_string();
        let latency = help(TestName::Latency);
        assert!(latency.contains("Tagged ping-pong, half round trip"), "{latency}");
        assert!(latency.contains("--pause-us") && !latency.contains("--senders"), "{latency}");
        let incast = help(TestName::Incast);
        assert!(incast.contains("--senders") && !incast.contains("--pause-us"), "{incast}");
        assert!(!incast.contains("--lab-rails"), "{incast}");
    }
}
