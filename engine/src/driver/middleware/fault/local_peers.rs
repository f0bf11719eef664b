//! What may happen between engines of one host: rings are full or end, and are made anew; memory
//! cannot be read after all.

use std::collections::BTreeMap;

use super::Fault;
use crate::driver::traits::LocalPeer;

/// A session whose other side may be on this host.
struct Known {
    peer: LocalPeer,
    /// It has a ring.
    is_up: bool,
    /// The poll at which it meets its peer again.
    again: Option<u64>,
}

/// All of them, in an order, so that a seed always does the same.
#[derive(Default)]
pub(super) struct LocalPeers(BTreeMap<u64, Known>);

impl LocalPeers {
    pub(super) fn has_pending(&self) -> bool {
        self.0.values().any(|known| known.again.is_some())
    }

    /// The driver inside says that a session has a ring, or has none any more.
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

    /// Sessions whose rings have ended meet their local_peers again.
    pub(super) fn reconnect_due(&mut self, turn: u64) {
        for known in self.local_peers.0.values_mut() {
            if known.again.is_some_and(|due| due <= turn) {
                known.again = None;
                self.inner.connect_peer(known.peer.clone());
            }
        }
    }

    /// Whether a segment may go by the ring of a session now, which may end over that.
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
