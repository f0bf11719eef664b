//! Relations between the owners of state, which simulations check as they go.

use super::core::Core;
use super::ready::Work;

impl Core {
    /// Checks that all owners agree with themselves and with each other.
    pub(crate) fn check(&self) {
        let Self { sessions, shared } = self;
        shared.offers.check();
        shared.lanes.check(sessions);
        shared.regions().check_counts();
        shared.unexpected.check();
        shared.peers.check(sessions);
        shared.rendezvous.check(sessions);
        shared.ready.check();
        for (id, session) in sessions.iter() {
            let slot = id.index() as u32;
            let has_deadline = session.connection().deadline_ns().is_some();
            let is_timed = shared.ready.has(slot, Work::Deadline);
            assert!(!has_deadline || is_timed, "session {slot} has a deadline, unlisted");
            let has_keys = session.keys().is_some() || session.peer().id() == shared.engine();
            assert!(!session.is_connected() || has_keys, "session {slot} is connected, with keys");
        }
    }
}
