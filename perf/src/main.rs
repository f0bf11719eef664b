//! `ringrail-perf`: what ringrail does on this host, beside the raw floors below it.

mod beside;
mod busy;
mod cli;
mod commands;
mod compare;
mod crossover;
mod diff;
mod floor;
mod info;
mod instructions;
mod interrupt;
mod lab;
mod link;
mod output;
mod pages;
mod plot;
mod progress;
mod rails;
mod saved;
mod secret;
mod stamp;
mod test;

use std::process::ExitCode;

use commands::Asked;

/// The exit code of a command line that makes no sense, as clap has it.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    match commands::parse() {
        Asked::Test(cli) => match lab::check(&cli) {
            Ok(()) => ended(lab::run(&cli)),
            Err(error) => refused(&error),
        },
        Asked::Compare(arguments) => match arguments.check() {
            Ok(()) => {
                let busy = busy::Busy::look();
                busy.warn_terminal();
                let done = compare::run(&arguments);
                if done.is_ok() {
                    busy.warn_reader();
                }
                ended(done)
            }
            Err(error) => refused(&error),
        },
        Asked::Instructions(arguments) => ended(instructions::run(&arguments)),
        Asked::Diff(arguments) => judged(diff::run(&arguments)),
        Asked::Plot(arguments) => judged(plot::run(&arguments).map(|()| true)),
        Asked::Pages(folder) => ended(pages::write(&folder)),
    }
}

/// A command line that makes no sense.
fn refused(error: &str) -> ExitCode {
    eprintln!("ringrail-perf: {error}");
    ExitCode::from(USAGE)
}

/// What became of results that were compared or drawn.
fn judged(result: Result<bool, String>) -> ExitCode {
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => refused(&error),
    }
}

/// How a measurement ended.
fn ended(result: Result<(), String>) -> ExitCode {
    if interrupt::was_left_to_others() {
        return ExitCode::from(interrupt::EXIT_CODE);
    }
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ringrail-perf: {error}");
            ExitCode::FAILURE
        }
    }
}
