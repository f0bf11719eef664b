//! An on-path attacker without the secret that interferes with handshakes: it replays hellos to
//! their receivers, and forwards connections to other hosts.

use zerocopy::FromBytes;

use super::net::Net;
use super::rails::At;
use crate::wire::hello::{Hello, KIND_CONTROL, MAGIC};

/// The engine ids of sender and receiver in a hello.
const ENDS: std::ops::Range<usize> = 16..32;
/// Number of recorded hellos.
const HELLOS_MAX: usize = 64;
/// One in so many connections is forwarded.
const RELAYED_ONE_IN: usize = 3;

/// Whether these bytes begin with the hello of a control connection.
fn is_control_hello(bytes: &[u8]) -> bool {
    let hello = Hello::ref_from_prefix(bytes);
    hello.is_ok_and(|(hello, _)| hello.magic == MAGIC && hello.kind == KIND_CONTROL)
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct OnPathAttacker {
    /// Remaining replays.
    replays: usize,
    /// Remaining forwarded connections.
    relays: usize,
    /// Recorded hellos of control connections, the latest last.
    hellos: Vec<Vec<u8>>,
}

impl Net {
    /// Enables a number of replays and forwarded connections.
    pub(crate) fn attack_handshakes(&mut self, replays: usize, relays: usize) {
        self.attacker = OnPathAttacker { replays, relays, hellos: Vec::new() };
    }

    /// Number of recorded hellos of control connections.
    #[cfg(test)]
    pub(crate) fn hellos_seen(&self) -> usize {
        self.attacker.hellos.len()
    }

    /// Where a connection attempt of `host` to `called` arrives.
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

    /// Inspects the first bytes of a client. A hello is answered by an older one of its receiver,
    /// as if the two crossed.
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
