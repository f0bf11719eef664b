//! Holds a lab open: `ringrail-lab SPEC` until standard input ends, or
//! `ringrail-lab SPEC a|b PROGRAM [ARGUMENT]...` while a program runs in one of its hosts.

use std::error::Error;
use std::io::Read as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitCode;

use ringrail_tests::lab::{Host, Lab};

const USAGE: &str = "usage: ringrail-lab SPEC [a|b PROGRAM [ARGUMENT]...], e.g. \
                     `ringrail-lab rails=2 a ip -brief address`";

fn main() -> ExitCode {
    match run(std::env::args().skip(1).collect()) {
        Ok(code) => code,
        Err(cause) => {
            eprintln!("ringrail-lab: {cause}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Vec<String>) -> Result<ExitCode, Box<dyn Error>> {
    let (spec, rest) = arguments.split_first().ok_or(USAGE)?;
    let lab = Lab::build(&spec.parse()?)?;
    match rest {
        [] => hold(&lab),
        [host, program, arguments @ ..] => {
            let host = match host.as_str() {
                "a" => Host::A,
                "b" => Host::B,
                _ => return Err(USAGE.into()),
            };
            let status = lab.host(host).command(program).args(arguments).spawn()?.wait()?;
            let code = status.code().or_else(|| Some(128 + status.signal()?)).unwrap_or(1);
            Ok(ExitCode::from(u8::try_from(code)?))
        }
        [_] => Err(USAGE.into()),
    }
}

/// Says how to get in, and waits for the end of standard input.
fn hold(lab: &Lab) -> Result<ExitCode, Box<dyn Error>> {
    for host in [Host::A, Host::B] {
        let path = lab.host(host).path();
        println!("{}: nsenter --net={} COMMAND", host.name(), path.display());
        for rail in 0..lab.spec().rails {
            println!("  {} {}", lab.nic(rail), lab.addr(host, rail));
        }
    }
    println!("The lab goes when standard input ends.");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(ExitCode::SUCCESS)
}
