//! Receives from any source that end when no peer is left that could send to them.
//!
//! Only at endpoints that enable it. A remote endpoint counts while the session with its engine has
//! not failed: one that was inserted and never connected may yet connect. An engine that is its own
//! peer always has one. Before an engine knows any peer, receives wait.

use super::core::Core;
use super::effects::Effects;
use super::operation::Cause;

impl Core {
    /// Sets whether receives from any source at an endpoint end when no peer is left.
    pub(crate) fn set_needs_peers(
        &mut self,
        endpoint: u16,
        needs_peers: bool,
        effects: &mut impl Effects,
    ) {
        self.shared.endpoints.set_needs_peers(endpoint, needs_peers);
        self.end_receives_without_sender(effects);
    }

    /// Ends receives without any possible sender, after a session ended, a peer was removed, or
    /// such a receive was posted.
    pub(super) fn end_receives_without_sender(&mut self, effects: &mut impl Effects) {
        if !self.shared.endpoints.need_peers() || !self.shared.peers.are_all_lost(&self.sessions) {
            return;
        }
        let posted = self.shared.operations.slots.iter().filter(|(_, receive)| receive.is_posted());
        let from_any = posted.filter(|(_, receive)| receive.source().is_none());
        let from_any: Vec<_> = from_any.map(|(id, receive)| (id, receive.endpoint())).collect();
        for (id, endpoint) in from_any {
            let matcher = self.shared.endpoints.with_needs(endpoint);
            if matcher.is_some_and(|(_, needs_peers)| needs_peers) {
                self.fail_operation(id, &Cause::NoPeerLeft, effects);
            }
        }
    }
}
