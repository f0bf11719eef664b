//! Holds a lab open: `ringrail-lab SPEC` until standard input ends, or
//! `ringrail-lab SPEC a|b PROGRAM [ARGUMENT]...` while a program runs in one of its hosts.
//!
//! While it holds one open it takes faults from standard input, a line each.

use std::error::Error;
use std::io::BufRead as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitCode;

use ringrail_tests::lab::{Host, Lab};

const USAGE: &str = "usage: ringrail-lab SPEC [a|b PROGRAM [ARGUMENT]...], e.g. \
                     `ringrail-lab rails=2 a ip -brief address`";

const FAULTS: &str = "blackhole RAIL | blackhole RAIL a|b (what that host sends) | \
                      brown-out RAIL | heal RAIL | down RAIL a|b | up RAIL a|b \
                      (that host's interface)";

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
            let host = host_of(host).ok_or(USAGE)?;
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
    println!("The lab goes when standard input ends. It takes {FAULTS}");
    for line in std::io::stdin().lock().lines() {
        if let Err(cause) = happen(lab, &line?) {
            eprintln!("ringrail-lab: {cause}");
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn host_of(name: &str) -> Option<Host> {
    match name {
        "a" => Some(Host::A),
        "b" => Some(Host::B),
        _ => None,
    }
}

/// Does what a line says.
fn happen(lab: &Lab, line: &str) -> Result<(), Box<dyn Error>> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (Some(what), Some(rail)) = (words.first(), words.get(1)) else {
        return Err(FAULTS.into());
    };
    let rail: u8 =
        rail.parse().ok().filter(|rail| *rail < lab.spec().rails).ok_or("no such rail")?;
    match (*what, words.get(2).and_then(|name| host_of(name))) {
        ("blackhole", None) if words.len() == 2 => lab.blackhole(rail)?,
        ("blackhole", Some(from)) => lab.blackhole_one_way(rail, from)?,
        ("brown-out", None) => lab.brown_out(rail)?,
        ("heal", None) => lab.heal(rail)?,
        ("down", Some(host)) => lab.link_down(host, rail)?,
        ("up", Some(host)) => lab.link_up(host, rail)?,
        _ => return Err(FAULTS.into()),
    }
    Ok(())
}
