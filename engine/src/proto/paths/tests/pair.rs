//! Two engines with a session whose segments use paths, and a look into these paths.

use super::super::*;
pub(super) use crate::proto::sim::{
    Datagram, Engine, Flow, Gate, LATENCY_NS, Net, PACKET_BYTES_MAX, RAILS, SESSION, STREAM_NS,
    address_of, keys_of,
};

/// The engine that opens sessions, and the other one.
pub(in crate::proto::paths) const OPENER: usize = 0;
pub(super) const ACCEPTOR: usize = 1;
/// The slot of the session at both.
pub(in crate::proto::paths) const SLOT: u32 = 0;
pub(super) const MILLI: u64 = 1_000_000;
/// Number of the path between the second rails of both.
pub(super) const OTHER: u16 = 0x0101;

/// Returns engines with a new session and one path.
pub(in crate::proto::paths) fn one_path() -> Net {
    let mut net = Net::with_rails(&[0]);
    net.begin(SESSION, 1);
    net
}

/// Returns engines with a new session and two rails each.
pub(super) fn two_rails(roles: [u8; RAILS]) -> Net {
    let mut net = Net::with_rails(&roles);
    net.begin(SESSION, 1);
    net
}

/// Returns engines with a session and two paths, once both can carry segments.
pub(super) fn two_paths(roles: [u8; RAILS]) -> Net {
    let mut net = two_rails(roles);
    net.run_for(5 * MILLI);
    for engine in &net.engines {
        assert!(engine.paths().count() == 2 && engine.paths().all().all(SessionPath::is_active));
    }
    net
}

/// Returns the number of messages that an engine has sent to the other.
pub(super) fn messages(net: &Net, from: usize) -> u64 {
    net.messages(&Flow::between(from, 1 - from))
}

/// Returns what both engines have.
pub(super) fn both<T>(net: &Net, of: impl Fn(&Engine) -> T) -> [T; 2] {
    [OPENER, ACCEPTOR].map(|number| of(&net.engines[number]))
}

/// Returns all state of an engine that a packet could have changed, except the drop counters.
pub(super) fn fingerprint(net: &Net, number: usize) -> String {
    let engine = &net.engines[number];
    let paths = engine.paths();
    let mut all =
        format!("{paths:?} {:?} {:?}", engine.core.shared.counters(), engine.core.shared.ready);
    for path in paths.all() {
        all += &path.fingerprint();
    }
    let SharedPathState { to_drain, timers, standing_by, segments, .. } = &engine.paths.shared;
    let received = net.received(number);
    all + &format!("{to_drain:?} {timers:?} {standing_by} {segments} {received:?}")
}

impl Engine {
    pub(super) fn paths(&self) -> &Paths {
        self.paths.of(SLOT).unwrap()
    }

    /// Returns the path of a number.
    pub(super) fn path(&self, number: u16) -> &SessionPath {
        self.paths().all().find(|path| path.id().number == number).unwrap()
    }

    /// Returns the number of the path that carries segments now.
    pub(super) fn primary(&self) -> Option<u16> {
        self.paths().primary.as_ref().filter(|path| path.is_open()).map(|path| path.id().number)
    }
}
