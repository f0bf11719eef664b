//! Reports which transports this process used, in one line on standard error (setting `verbose`).
//!
//! Engines note what carries a session when it begins, gets a ring and ends; the line is written
//! when the process ends, by `exit` or at the end of `main`. So it is one whatever the number of
//! engines, holds for the whole run, and needs no call: every binding has it. A process that a
//! signal ends writes none, nor does one that calls `_exit`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::{Mutex, Once, PoisonError};

use crate::forks::{Generation, at_exit};

/// The transport of messages to one peer.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum MessageTransport {
    /// Shared memory.
    Memory,
    /// Datagrams and connections.
    Rails {
        /// NICs, in the order of rails, each once.
        nics: Vec<String>,
        /// `udp` or `xdp`, `tcp`.
        protocols: Vec<&'static str>,
    },
}

/// The engines that this process has had sessions with.
#[derive(Debug)]
struct Peers {
    /// The process that they belong to: children of `fork` have a copy.
    of: Generation,
    by_engine: BTreeMap<u64, MessageTransport>,
}

static PEERS: Mutex<Option<Peers>> = Mutex::new(None);

impl Peers {
    fn new() -> Self {
        Self { of: Generation::current(), by_engine: BTreeMap::new() }
    }

    /// Memory stays: what its rails carry is questions and answers, until the ring ends.
    fn note(&mut self, engine: u64, transport: MessageTransport) {
        let known = self.by_engine.entry(engine).or_insert_with(|| transport.clone());
        if *known != MessageTransport::Memory {
            *known = transport;
        }
    }

    fn line(&self) -> String {
        let mut counts: BTreeMap<&MessageTransport, usize> = BTreeMap::new();
        for transport in self.by_engine.values() {
            *counts.entry(transport).or_default() += 1;
        }
        let version =
            concat!(env!("CARGO_PKG_VERSION_MAJOR"), ".", env!("CARGO_PKG_VERSION_MINOR"));
        let mut line = format!("ringrail {version}: ");
        if counts.is_empty() {
            return line + "no traffic with other ranks";
        }
        for (at, (transport, count)) in counts.into_iter().enumerate() {
            // The first entry also names the unit.
            let unit = match (at, count) {
                (0, 1) => " rank",
                (0, _) => " ranks",
                _ => "",
            };
            let mark = if at == 0 { "" } else { ", " };
            let _ = write!(line, "{mark}{count}{unit} by {}", transport.text());
        }
        line
    }
}

impl MessageTransport {
    fn text(&self) -> String {
        match self {
            Self::Memory => "shared memory".to_owned(),
            Self::Rails { nics, protocols } => {
                format!("{} ({})", enumerated(nics), protocols.join(", "))
            }
        }
    }
}

/// `a`, `a and b`, `a, b and c`.
fn enumerated(names: &[String]) -> String {
    match names {
        [] => "no NIC".to_owned(),
        [one] => one.clone(),
        [others @ .., last] => format!("{} and {last}", others.join(", ")),
    }
}

/// Registers the line to be written when the process ends.
pub(crate) fn watch() {
    static WATCHED: Once = Once::new();
    let mut peers = PEERS.lock().unwrap_or_else(PoisonError::into_inner);
    // A child of `fork` has its own peers.
    if peers.as_ref().is_none_or(|peers| !peers.of.is_current()) {
        *peers = Some(Peers::new());
    }
    WATCHED.call_once(|| at_exit(write_line));
}

/// An engine of this process has a session with `engine`, which this carries from now on. One that
/// `is_over`, and that was never noted before, was never there.
pub(crate) fn note(engine: u64, transport: MessageTransport, is_over: bool) {
    let mut peers = PEERS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(peers) = peers.as_mut().filter(|peers| peers.of.is_current())
        && (!is_over || peers.by_engine.contains_key(&engine))
    {
        peers.note(engine, transport);
    }
}

extern "C" fn write_line() {
    // Other threads may run, and in a child of `fork` one that has the lock may be missing.
    let Ok(peers) = PEERS.try_lock() else { return };
    let Some(peers) = peers.as_ref().filter(|peers| peers.of.is_current()) else { return };
    // In one write, so that lines of other processes are not interleaved. A closed pipe is no
    // reason to fail.
    let line = peers.line() + "\n";
    let _ = std::io::stderr().write_all(line.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rails(nics: &[&str], protocols: &[&'static str]) -> MessageTransport {
        let nics = nics.iter().map(|&nic| nic.to_owned()).collect();
        MessageTransport::Rails { nics, protocols: protocols.to_vec() }
    }

    #[test]
    fn ranks_are_counted_by_transport() {
        let mut peers = Peers::new();
        assert_eq!(peers.line(), "ringrail 0.1: no traffic with other ranks");
        peers.note(1, MessageTransport::Memory);
        assert_eq!(peers.line(), "ringrail 0.1: 1 rank by shared memory");
        peers.note(2, MessageTransport::Memory);
        for engine in [3, 4] {
            peers.note(engine, rails(&["rail0", "rail1"], &["udp"]));
            // It has carried long messages at its end.
            peers.note(engine, rails(&["rail0", "rail1"], &["udp", "tcp"]));
        }
        // What the paths of a session with a ring look like does not count.
        peers.note(1, rails(&["rail0"], &["udp"]));
        assert_eq!(
            peers.line(),
            "ringrail 0.1: 2 ranks by shared memory, 2 by rail0 and rail1 (udp, tcp)"
        );
        peers.note(5, rails(&["a", "b", "c"], &["tcp"]));
        assert!(peers.line().ends_with(", 1 by a, b and c (tcp), 2 by rail0 and rail1 (udp, tcp)"));
    }
}
