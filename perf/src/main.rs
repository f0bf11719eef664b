//! `ringrail-perf`: what ringrail does on this host, beside the raw floors below it.

mod beside;
mod cli;
mod compare;
mod crossover;
mod diff;
mod floor;
mod info;
mod instructions;
mod lab;
mod link;
mod output;
mod plot;
mod progress;
mod rails;
mod saved;
mod secret;
mod stamp;
mod test;

use std::process::ExitCode;

use clap::Parser;

/// The exit code of a command line that makes no sense, as clap has it.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    // The options of a test would make no sense with these.
    let arguments = || std::env::args_os().skip(1);
    let judged = match arguments().next() {
        Some(first) if first == "compare" => {
            let arguments = compare::Arguments::parse_from(arguments());
            if let Err(error) = arguments.check() {
                eprintln!("ringrail-perf: {error}");
                return ExitCode::from(USAGE);
            }
            return ended(compare::run(&arguments));
        }
        Some(first) if first == "instructions" => {
            return ended(instructions::run(&instructions::Arguments::parse_from(arguments())));
        }
        Some(first) if first == "diff" => {
            Some(diff::run(&diff::Arguments::parse_from(arguments())))
        }
        Some(first) if first == "plot" => {
            let drawn = plot::run(&plot::Arguments::parse_from(arguments()));
            Some(drawn.map(|()| true))
        }
        _ => None,
    };
    if let Some(judged) = judged {
        return match judged {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(error) => {
                eprintln!("ringrail-perf: {error}");
                ExitCode::from(USAGE)
            }
        };
    }
    let cli = cli::Cli::parse();
    if let Err(error) = lab::check(&cli) {
        eprintln!("ringrail-perf: {error}");
        return ExitCode::from(USAGE);
    }
    ended(lab::run(&cli))
}

/// How a measurement ended.
fn ended(result: Result<(), String>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ringrail-perf: {error}");
            ExitCode::FAILURE
        }
    }
}
