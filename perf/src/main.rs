//! `ringrail-perf`: what ringrail does on this host, beside the raw floors below it.

mod cli;
mod floor;
mod lab;
mod link;
mod output;
mod progress;
mod stamp;
mod test;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    let cli = cli::Cli::parse();
    match lab::run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ringrail-perf: {error}");
            ExitCode::FAILURE
        }
    }
}
