//! Sessions with several paths: what the loop does for them.

use std::net::TcpListener;

use crate::progress::engine::Engine;
use crate::proto::effects::RemoteName;
use crate::proto::rails::health::{Phase, Transition};
use crate::proto::rails::pairing::pairs;
use crate::proto::rails::path_number;
use crate::types::{Address, Event, PathState};

/// A phase as users know it.
pub(in crate::progress) fn state_of(phase: Phase) -> PathState {
    match phase {
        Phase::Probing => PathState::Probing,
        Phase::Active => PathState::Active,
        Phase::Suspect => PathState::Suspect,
        Phase::Down => PathState::Down,
    }
}

impl Engine {
    /// The rails of both sides are known. The side that opened the session says which paths there
    /// are, by using them.
    ///
    /// RR-RAIL-2.
    pub(in crate::progress) fn pair_rails(&mut self, session: u32) {
        self.state.core.describe_first_path(session);
        let core = &self.state.core;
        let Some(known) = core.session(session) else { return };
        let Some(theirs) = known.rails.theirs() else { return };
        if !known.connection.is_initiator() || !known.is_connected() {
            return;
        }
        let ours = core.rails();
        let driver = &mut self.driver;
        let reach = |our: usize, their: usize| {
            // No more than 16 each, as frames bound them.
            driver.reach(our as u8, theirs[their].address)
        };
        for (our, their) in pairs(ours, &theirs, reach) {
            let number = path_number(our as u8, their as u8);
            let Some(at) = self.state.core.add_path(session, number) else { continue };
            let has_datagram_mode = self.control(session).has_datagram_mode;
            let state = &mut *self.state;
            if has_datagram_mode {
                state.paths.open_other_path(&state.core, state.now_ns, session, number, at);
            } else {
                // There are no datagrams to ask by: a lane that comes shows that it is a path.
                state.core.path_ready(session, at, state.now_ns);
            }
        }
    }

    /// The link of a NIC of this host came or went.
    pub(in crate::progress) fn handle_link(&mut self, rail: u8, is_up: bool) {
        let state = &mut *self.state;
        if let (Some(index), Some(known)) =
            (self.driver.nic_of(rail), state.rails.get_mut(usize::from(rail)))
        {
            let is_moved = std::mem::replace(&mut known.nic_index, index) != index;
            // The same rail, for whoever asks for statistics.
            if let Some(chosen) = state.rails_chosen.get_mut(usize::from(rail)) {
                chosen.nic_index = index;
            }
            state.paths.set_nic(rail, index);
            if is_moved && state.rails.len() > 1 {
                state.listeners_due |= 1 << (rail % 16);
                self.rebind_listener();
            }
        }
        let state = &mut *self.state;
        state.paths.handle_link(&mut state.core, state.now_ns, rail, is_up);
    }

    /// Rails that have another NIC get another listener. From the owner, as without `/proc` the
    /// caretaker may be in another network namespace; until then the listener at the wildcard
    /// address takes what comes.
    pub(in crate::progress) fn rebind_listener(&mut self) {
        while self.state.listeners_due != 0 && !self.owner_is_absent {
            let rail = self.state.listeners_due.trailing_zeros();
            self.state.listeners_due &= self.state.listeners_due - 1;
            self.replace_listener(rail as u8);
        }
    }

    fn replace_listener(&mut self, rail: u8) {
        let state = &mut *self.state;
        let Some(fresh) = self.driver.rebind_listener(rail, &state.listener) else { return };
        let ip = |listener: &TcpListener| listener.local_addr().map(|local| local.ip()).ok();
        let all = &mut state.listeners_of_rails;
        match all.iter_mut().find(|it| ip(it) == ip(&fresh)) {
            Some(old) => *old = fresh.into(),
            None => all.push(fresh.into()),
        }
        self.renew_wake_fds();
    }

    /// One of several paths of a session changed: its user and the log are told.
    pub(in crate::progress) fn report_path_change(
        &mut self,
        peer: &RemoteName,
        rail: u8,
        remote: std::net::IpAddr,
        change: Transition,
    ) {
        let state = &mut *self.state;
        let address = Address::new(peer.engine, peer.locators, peer.endpoint);
        let rail = usize::from(rail);
        let nic = state.rails.get(rail).map_or("", |rail| &rail.nic);
        let Transition { from, to, cause } = change;
        tracing::info!(peer = %address, nic, %remote, ?from, ?to, "a path changed: {cause}");
        let event = Event::PathChanged { address, rail, remote, state: state_of(to), cause };
        state.completions.events.push(&event);
    }
}
