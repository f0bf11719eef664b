//! Shared-memory faults: rings are full or end, and are recreated; cross-memory reads fail.

use std::collections::BTreeMap;

use super::Fault;
use crate::driver::traits::LocalPeer;

/// A session whose peer may be on this host.
struct Known {
    peer: LocalPeer,
    /// It has a ring.
    is_up: bool,
    /// The poll at which it reconnects.
    again: Option<u64>,
}

/// All of them, ordered, so that a seed is reproducible.
#[derive(Default)]
pub(super) struct LocalPeers(BTreeMap<u64, Known>);

impl LocalPeers {
    pub(super) fn has_pending(&self) -> bool {
        self.0.values().any(|known| known.again.is_some())
    }

    /// A session of the inner driver has gained or lost its ring.
    pub(super) fn changed(&mut self, session: u64, is_up: bool) {
        if let Some(known) = self.0.get_mut(&session) {
            known.is_up = is_up;
        }
    }
}

impl Fault {
    pub(super) fn connect_inner(&mut self, peer: LocalPeer) {
        let known = Known { peer: peer.clone(), is_up: false, again: None };
        self.local_peers.0.insert(peer.session, known);
        self.inner.connect_peer(peer);
    }

    pub(super) fn disconnect_inner(&mut self, session: u64) {
        self.local_peers.0.remove(&session);
        self.inner.disconnect_peer(session);
    }

    /// Reconnects sessions whose rings have ended.
    pub(super) fn reconnect_due(&mut self, turn: u64) {
        for known in self.local_peers.0.values_mut() {
            if known.again.is_some_and(|due| due <= turn) {
                known.again = None;
                self.inner.connect_peer(known.peer.clone());
            }
        }
    }

    /// Whether a segment may be written to the ring of a session; the ring may end instead.
    pub(super) fn admit_segment(&mut self, session: u64) -> bool {
        if self.chance(self.faults.again) {
            return false;
        }
        if !self.chance(self.faults.ring_end) {
            return true;
        }
        let due = self.soon();
        let known = self.local_peers.0.get_mut(&session);
        let Some(known) = known.filter(|known| known.is_up) else { return true };
        known.again = Some(due);
        self.inner.disconnect_peer(session);
        false
    }
}
