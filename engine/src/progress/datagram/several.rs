//! Loop actions for sessions with several paths.

use crate::progress::context::LaneCx;
use crate::progress::engine::{Engine, EngineState};
use crate::proto::effects::RemoteName;
use crate::proto::session::rails::health::{PathPhase, Transition};
use crate::proto::session::rails::pairing::pairs;
use crate::proto::session::rails::path_number;
use crate::types::{Address, Event, PathState};

/// Returns the public state of a phase.
pub(in crate::progress) fn state_of(phase: PathPhase) -> PathState {
    match phase {
        PathPhase::Probing => PathState::Probing,
        PathPhase::Active => PathState::Active,
        PathPhase::Suspect => PathState::Suspect,
        PathPhase::Down => PathState::Down,
    }
}

impl LaneCx<'_> {
    /// Pairs the known rails of both sides. The side that opened the session decides which paths
    /// exist, by using them.
    ///
    /// RR-RAIL-2.
    pub(in crate::progress) fn pair_rails(&mut self, session: u32) {
        self.core.with(session, |it, cx| it.rails_mut().describe_first_path(&cx));
        let core = &self.core;
        let Some(known) = core.session(session) else {
            debug_assert!(false, "an outstanding action keeps the slot of its session in use");
            return;
        };
        let Some(theirs) = known.rails().theirs() else { return };
        if !known.connection().is_initiator() || !known.is_connected() {
            return;
        }
        let ours = core.shared().rails().infos();
        let driver = &mut self.driver;
        let reach = |our: usize, their: usize| {
            // At most 16 each, as frames limit them.
            driver.reach(our as u8, theirs[their].address)
        };
        for (our, their) in pairs(ours, &theirs, reach) {
            let number = path_number(our as u8, their as u8);
            let Some(at) =
                self.core.enter(session).and_then(|(it, cx)| it.rails_mut().add_path(&cx, number))
            else {
                continue;
            };
            if self.core.session(session).is_some_and(|it| it.segments().has_datagrams()) {
                self.paths.open_other_path(self.core, *self.now_ns, session, number, at);
            } else {
                // Without datagrams no probe is possible: a lane that connects proves its path.
                self.core.with(session, |it, mut cx| it.path_ready(&mut cx, at, *self.now_ns));
            }
        }
    }
}

impl EngineState {
    /// Reports a change of one of several paths of a session to its user and the log.
    pub(in crate::progress) fn report_path_change(
        &mut self,
        peer: &RemoteName,
        rail: u8,
        remote: std::net::IpAddr,
        change: Transition,
    ) {
        let address = Address::new(peer.engine, peer.locators, peer.endpoint);
        let rail = usize::from(rail);
        let nic = self.rails.used().get(rail).map_or("", |rail| &rail.nic);
        let Transition { from, to, cause } = change;
        tracing::info!(peer = %address, nic, %remote, ?from, ?to, "path state changed: {cause}");
        let event = Event::PathChanged { address, rail, remote, state: state_of(to), cause };
        self.completions.events_mut().push(&event);
    }
}

impl Engine {
    /// Handles a carrier change of a NIC of this host.
    pub(in crate::progress) fn handle_link(&mut self, rail: u8, is_up: bool) {
        let state = &mut *self.state;
        if let Some(index) = self.driver.nic_of(rail)
            && let Some(is_moved) = state.rails.set_nic(rail, index)
        {
            state.paths.set_nic(rail, index);
            if is_moved {
                state.listeners.note_moved(rail);
                self.rebind_listeners();
            }
        }
        let state = &mut *self.state;
        state.paths.handle_link(&mut state.core, state.now_ns, rail, is_up);
    }

    /// Replaces the listeners of rails that have another NIC. Called by the owner, as without
    /// `/proc` the background thread may be in another network namespace.
    pub(in crate::progress) fn rebind_listeners(&mut self) {
        if !self.owner_is_absent && self.state.listeners.replace_moved(&mut *self.driver) {
            self.wake_fds.renew(&self.state, &self.driver);
        }
    }
}
