//! Somebody on the way who knows no secret and meddles with how connections begin: hellos are said
//! again to whom they were for, and connections arrive at another host than the one called.

use zerocopy::FromBytes;

use super::net::Net;
use super::rails::At;
use crate::wire::hello::{Hello, KIND_CONTROL, MAGIC};

/// Where the engines are that it is from and for.
const ENDS: std::ops::Range<usize> = 16..32;
/// Hellos that are remembered.
const HELLOS_MAX: usize = 64;
/// One connection in so many is passed on.
const RELAYED_ONE_IN: usize = 3;

/// Whether these bytes begin with the hello of a control lane.
fn is_control_hello(bytes: &[u8]) -> bool {
    let hello = Hello::ref_from_prefix(bytes);
    hello.is_ok_and(|(hello, _)| hello.magic == MAGIC && hello.kind == KIND_CONTROL)
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct OnPathAttacker {
    /// Hellos still to be said again.
    replays: usize,
    /// Connections still to be passed on.
    relays: usize,
    /// Hellos of control lanes that were seen, the latest last.
    hellos: Vec<Vec<u8>>,
}

impl Net {
    /// So many hellos are said again, and so many connections passed on, from now on.
    pub(crate) fn attack_handshakes(&mut self, replays: usize, relays: usize) {
        self.attacker = OnPathAttacker { replays, relays, hellos: Vec::new() };
    }

    /// Hellos of control lanes that were seen.
    #[cfg(test)]
    pub(crate) fn hellos_seen(&self) -> usize {
        self.attacker.hellos.len()
    }

    /// Where an attempt of `host` to connect arrives that calls `called`.
    pub(super) fn relayed(&mut self, host: usize, called: Option<At>) -> Option<At> {
        if self.attacker.relays == 0 || !self.random.one_in(RELAYED_ONE_IN) {
            return called;
        }
        let is_other = |&other: &usize| {
            let is_called = called.is_some_and(|at| at.host == other);
            other != host && !is_called && self.hosts[other].is_running
        };
        let others: Vec<usize> = (0..self.hosts.len()).filter(is_other).collect();
        if others.is_empty() {
            return called;
        }
        self.attacker.relays -= 1;
        Some(At { host: self.random.pick(&others), link: 0 })
    }

    /// Reads what the side that connected writes first. A hello is answered by an older one of whom
    /// it is for, as if the two crossed.
    pub(super) fn observe_hello(&mut self, connection: usize, bytes: &[u8]) {
        if self.attacker.replays == 0 || !is_control_hello(bytes) {
            return;
        }
        let (source, target) = bytes[ENDS].split_at(ENDS.len() / 2);
        let is_back = |old: &&Vec<u8>| old[ENDS] == [target, source].concat();
        let old = self.attacker.hellos.iter().rfind(is_back).cloned();
        if let (Some(old), Some(host)) = (old, self.connections[connection].ends[0].host) {
            self.attacker.replays -= 1;
            self.visit(host, &old, false);
        }
        if self.attacker.hellos.len() == HELLOS_MAX {
            self.attacker.hellos.remove(0);
        }
        self.attacker.hellos.push(bytes.to_vec());
    }
}
