//! One measurement: a server in host b and a client in host a.

use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use ringrail_tests::lab::{LabChild, LabCommand};

/// A measurement takes a few seconds; beyond this a program hangs.
const LIMIT: Duration = Duration::from_secs(60);
/// In which a server listens.
const TO_LISTEN: Duration = Duration::from_secs(10);
/// In which a server ends after its client.
const TO_END: Duration = Duration::from_secs(5);
const TURN: Duration = Duration::from_millis(2);
/// The state of a listening socket in `/proc/net/tcp`.
const LISTENS: &str = "0A";

/// A server that a client finds at a port.
pub(super) struct Server {
    pub(super) command: LabCommand,
    pub(super) port: u16,
}

/// Runs both to their ends; what the client wrote on standard output.
pub(super) fn run(server: Option<Server>, mut client: LabCommand) -> Result<String, String> {
    let server = server.map(listening).transpose()?;
    let output = client.stdin(Stdio::null()).output(LIMIT).map_err(|error| error.to_string());
    let said = output.and_then(|output| judged("the client", &output));
    // A server has ended by now, or is about to; otherwise it is killed.
    let served = server.and_then(|child| child.output(TO_END).ok());
    said.map_err(|cause| match served.map(|output| judged("the server", &output)) {
        Some(Err(other)) => format!("{cause}; {other}"),
        _ => cause,
    })
}

/// Starts a server, and waits until it listens.
fn listening(mut server: Server) -> Result<LabChild, String> {
    let command = server.command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    let deadline = Instant::now() + TO_LISTEN;
    while !listens(child.id(), server.port) {
        let ended = child.wait_timeout(TURN).map_err(|error| error.to_string())?;
        if ended.is_some() {
            let output = child.output(TO_END).map_err(|error| error.to_string())?;
            let cause = judged("the server", &output).err();
            return Err(cause.unwrap_or_else(|| "the server ended before it listened".to_owned()));
        }
        if Instant::now() > deadline {
            return Err(format!("the server does not listen on port {}", server.port));
        }
    }
    Ok(child)
}

/// Whether somebody listens on a TCP port in the network namespace of a process. To try would take
/// the connection from the client: most of these servers accept one.
fn listens(process: u32, port: u16) -> bool {
    ["tcp", "tcp6"].iter().any(|family| {
        let table = std::fs::read_to_string(format!("/proc/{process}/net/{family}"));
        table.is_ok_and(|table| has_listener(&table, port))
    })
}

fn has_listener(table: &str, port: u16) -> bool {
    let port = format!(":{port:04X}");
    table.lines().any(|line| {
        let mut columns = line.split_whitespace().skip(1);
        let local = columns.next().is_some_and(|local| local.ends_with(&port));
        local && columns.nth(1) == Some(LISTENS)
    })
}

/// What a program wrote on standard output; of one that failed how it ended, and what it said.
fn judged(who: &str, output: &Output) -> Result<String, String> {
    let said = [&output.stderr, &output.stdout].map(|bytes| String::from_utf8_lossy(bytes));
    if output.status.success() {
        return Ok(said[1].to_string());
    }
    let words = said.iter().find_map(|said| words(said));
    let words = words.unwrap_or_else(|| "it said nothing".to_owned());
    Err(format!("{who} failed ({}): {words}", output.status))
}

/// The first line, which mostly is the cause, and the last one. Lines without a letter are frames.
fn words(said: &str) -> Option<String> {
    let lines = || said.lines().filter(|line| line.contains(char::is_alphabetic)).map(str::trim);
    let (first, last) = (lines().next()?, lines().next_back()?);
    Some(if first == last { first.to_owned() } else { format!("{first} ... {last}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_listener_on_the_port_is_one() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue\n\
             0: 0200004D:1F90 00000000:0000 0A 00000000:00000000 00:00000000\n\
             1: 0200004D:1F91 0100004D:C001 01 00000000:00000000 00:00000000\n";
        assert!(has_listener(table, 8080));
        assert!(!has_listener(table, 8081), "a connection is no listener");
        assert!(!has_listener(table, 8082));
        assert!(!has_listener("", 8080));
    }

    #[test]
    fn the_first_and_the_last_line_tell_why() {
        assert_eq!(words("\n---\n").as_deref(), None);
        assert_eq!(words("one\n-----\n").as_deref(), Some("one"));
        let three = words("no such option\nusage:\n---\n  exit code 1\n---\n");
        assert_eq!(three.as_deref(), Some("no such option ... exit code 1"));
    }
}
