//! `ringrail-xdpd`: lends AF_XDP sockets to users without privileges.

use std::error::Error;
use std::io::{Write as _, stderr};
use std::os::fd::AsFd as _;
use std::process::ExitCode;

use ringrail_xdp::Missing;
use ringrail_xdp::lease::{
    DEFAULT_GROUP, DEFAULT_SOCKET, Daemon, DaemonConfig, group_id, termination,
};

const USAGE: &str = "usage: ringrail-xdpd [OPTION VALUE]...

  lends AF_XDP sockets to the members of a group, until SIGTERM or SIGINT

  --socket PATH     where it listens (/run/ringrail/xdpd.sock)
  --group GROUP     a group that is served, by name or number; may be given again (ringrail)
  --user NUMBER     a user who is served besides; may be given again
  --queues NUMBER   queues that one user may have at the same time (16)
  --nic NAME        a NIC whose queues are lent; may be given again (all)
  --trust-clients yes
                    lends queues of NICs that receive without copies, too, though
                    who borrows one can read and stop all that comes in on it

  It needs CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF.";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let config = match configure(&arguments) {
        Ok(config) => config,
        Err(error) => {
            say(&format!("ringrail-xdpd: {error}\n{USAGE}"));
            return ExitCode::from(2);
        }
    };
    match serve(config) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("ringrail-xdpd: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Writes a line for who reads the log. That nobody does any more ends no lease.
fn say(line: &str) {
    let _ = writeln!(stderr(), "{line}");
}

fn configure(arguments: &[String]) -> Result<DaemonConfig, Box<dyn Error>> {
    let mut config = DaemonConfig {
        socket: DEFAULT_SOCKET.into(),
        groups: Vec::new(),
        users: Vec::new(),
        queues_per_user: 16,
        nics: Vec::new(),
        trusts_clients: false,
    };
    for option in arguments.chunks(2) {
        let [name, value] = option else {
            return Err(format!("{} has no value", option[0]).into());
        };
        match name.as_str() {
            "--socket" => config.socket = value.into(),
            "--group" => config.groups.push(group(value)?),
            "--user" => config.users.push(number(name, value)?),
            "--queues" => config.queues_per_user = number(name, value)? as usize,
            "--nic" => config.nics.push(value.clone()),
            "--trust-clients" => {
                config.trusts_clients = match value.as_str() {
                    "yes" => true,
                    "no" => false,
                    _ => return Err(format!("{name} takes yes or no, not {value:?}").into()),
                }
            }
            _ => return Err(format!("no option {name}").into()),
        }
    }
    if config.groups.is_empty() && config.users.is_empty() {
        config.groups.push(group(DEFAULT_GROUP)?);
    }
    Ok(config)
}

fn number(name: &str, value: &str) -> Result<u32, String> {
    value.parse().map_err(|_| format!("{name} takes a number, not {value:?}"))
}

fn group(name: &str) -> Result<u32, Box<dyn Error>> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    let found = group_id(name).map_err(|error| format!("asking for group {name}: {error}"))?;
    Ok(found.ok_or_else(|| {
        format!("no group {name}: `groupadd --system {name}`, or name another one by --group")
    })?)
}

fn serve(config: DaemonConfig) -> Result<(), Box<dyn Error>> {
    if let Some(missing) = Missing::of_this_thread() {
        return Err(missing.to_string().into());
    }
    // Before any thread starts, which then does not get them either.
    let stop = termination()?;
    let daemon = Daemon::listen(config, say)?;
    say("ready");
    Ok(daemon.run(stop.as_fd())?)
}
