//! Peers that the user knows by an IP address and a port alone, without the engine's id.
//!
//! ```text
//!  insert 10.0.0.2:7000      a session with a listener address, but no engine
//!     │  hello for engine 0  ──────────────>  engine that listens there
//!     │                      <──────────────  wrong engine: its own address, with a proof
//!     v
//!  the remote endpoint moves to the session with that engine, which connects as usual
//! ```
//!
//! No session is ever established with engine 0, so the election of RR-CONN-4 and the keys of a
//! session use real ids only. The session that a listener address was resolved to keeps that
//! address: when another engine answers there later the remote endpoint moves to the session with
//! that.
//!
//! An endpoint has one handle, by whichever address it is known first. The engine that listens at a
//! listener address may also connect by itself, or be inserted by its own address: the remote
//! endpoint of the listener address is that of its session then ([`Core::claim_place`]).

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::connection::Phase;
use super::core::{Action, Core};
use super::effects::Effects;
use super::failure::PeerFailure;
use super::operation::Operation;
use super::session::Session;
use super::table::Id;
use crate::proto::ready::Work;
use crate::wire::locators::Locators;

/// The endpoint that a listener address refers to.
const FIRST: u16 = 0;

/// Returns whether an engine with `locators` listens at `place`.
fn listens_at(locators: &Locators, place: SocketAddr) -> bool {
    locators.iter().any(|own| (own.ip(), own.port()) == (place.ip(), place.port()))
}

/// Slots of sessions by an IP address and a port.
type ByPlace = BTreeSet<(IpAddr, u16, u32)>;

/// The slots at a place, in order.
fn slots_at(index: &ByPlace, place: SocketAddr) -> impl Iterator<Item = u32> + '_ {
    let key = |slot| (place.ip(), place.port(), slot);
    index.range(key(0)..=key(u32::MAX)).map(|&(_, _, slot)| slot)
}

/// The sessions of places: an engine may know very many.
#[derive(Debug, Default)]
pub(super) struct Places {
    /// Those that have a place.
    of: ByPlace,
    /// Those with an engine, by where it listens; `None` as long as no place was asked for.
    listening: Option<Box<ByPlace>>,
    /// Sessions that were looked at for a place.
    #[cfg(test)]
    looks: std::cell::Cell<u64>,
}

impl Places {
    /// A session with an engine was made.
    pub(super) fn note_session(&mut self, slot: u32, locators: &Locators) {
        if let Some(listening) = &mut self.listening {
            listening.extend(locators.iter().map(|own| (own.ip(), own.port(), slot)));
        }
    }

    /// A session is gone.
    pub(super) fn forget(&mut self, slot: u32, session: &Session) {
        self.set(slot, session.place.as_deref(), None);
        if let Some(listening) = &mut self.listening {
            for own in session.locators.iter() {
                listening.remove(&(own.ip(), own.port(), slot));
            }
        }
    }

    /// The place of a session is another one.
    fn set(&mut self, slot: u32, before: Option<&SocketAddr>, place: Option<&SocketAddr>) {
        if let Some(before) = before {
            self.of.remove(&(before.ip(), before.port(), slot));
        }
        self.of.extend(place.map(|place| (place.ip(), place.port(), slot)));
    }

    fn note_look(&self) {
        #[cfg(test)]
        self.looks.set(self.looks.get() + 1);
    }
}

impl Session {
    /// Returns whether it waits for nothing: no operation, and no attempt to connect.
    fn waits_for_nothing(&self) -> bool {
        self.waiting.is_empty() && matches!(self.connection.phase(), Phase::Closed | Phase::Failed)
    }

    /// Returns whether it resolves this address, and the engine that answers there is to be the
    /// peer.
    pub(crate) fn is_of_place(&self, answering: &Locators) -> bool {
        self.place.as_deref().is_some_and(|&place| listens_at(answering, place))
    }

    /// Returns the index of the remote endpoint that a listener address refers to.
    fn first_remote(&self) -> Option<u32> {
        let known = self.remotes.get(usize::from(FIRST));
        known.copied().filter(|&remote| remote != u32::MAX)
    }
}

impl Core {
    /// The place of a session, or none.
    fn set_place(&mut self, slot: u32, place: Option<Box<SocketAddr>>) {
        if let Some(session) = self.sessions.at_mut(slot as usize) {
            self.places.set(slot, session.place.as_deref(), place.as_deref());
            session.place = place;
        }
    }

    /// Returns the session with the engine that listens at an address, or a new one that queries
    /// it. `None`: at the limit.
    pub(super) fn session_at(&mut self, place: SocketAddr) -> Option<u32> {
        let known = slots_at(&self.places.of, place).find(|&slot| {
            self.places.note_look();
            let session = self.sessions.at(slot as usize);
            session.is_some_and(|session| session.place.as_deref() == Some(&place))
        });
        if known.is_some() {
            return known;
        }
        if let Some(slot) = self.session_listening_at(place) {
            return Some(slot);
        }
        self.forget_some();
        let session = Session::new(0, place.into(), Arc::clone(&self.retry));
        let slot = self.sessions.insert(session).ok()?.index() as u32;
        self.set_place(slot, Some(Box::new(place)));
        Some(slot)
    }

    /// Returns the session with an engine that is known to listen at an address: it is connected,
    /// or was inserted by its own address. Its first endpoint has one handle, by whichever address.
    fn session_listening_at(&mut self, place: SocketAddr) -> Option<u32> {
        let is_known = |session: &Session| {
            session.is_connected() || session.remotes.first().is_some_and(|&it| it != u32::MAX)
        };
        let Self { places, sessions, .. } = &mut *self;
        if places.listening.is_none() {
            places.listening = Some(Box::default());
            for (id, session) in sessions.iter().filter(|(_, session)| session.engine != 0) {
                places.note_session(id.index() as u32, &session.locators);
            }
        }
        let slot = slots_at(places.listening.as_deref()?, place).find(|&slot| {
            places.note_look();
            let session = sessions.at(slot as usize);
            session
                .is_some_and(|session| session.failure_to_report().is_none() && is_known(session))
        })?;
        let remote = self.remote_at(slot).and_then(|remote| self.remotes.at(remote as usize));
        // A peer that was inserted by its own address stays that engine after a restart.
        let is_inserted = remote.is_some_and(|remote| remote.is_inserted);
        let has_place = self.sessions.at(slot as usize).is_some_and(|it| it.place.is_some());
        if !is_inserted && !has_place {
            self.set_place(slot, Some(Box::new(place)));
        }
        Some(slot)
    }

    /// Lets the session of an engine take over a listener address that is being resolved: the
    /// remote endpoint of the address becomes the first one of that engine, so that its messages
    /// arrive from the handle that the user has. `is_connecting`: the session is about to be
    /// established, and waiting operations use it; else an address is left alone that operations
    /// wait for.
    ///
    /// RR-CONN-7.
    pub(super) fn claim_place(&mut self, slot: u32, is_connecting: bool) {
        if self.places.of.is_empty() || self.remote_at(slot).is_some() {
            return;
        }
        let Some(locators) = self.sessions.at(slot as usize).map(|it| it.locators) else { return };
        let at_its_places = locators.iter().flat_map(|own| slots_at(&self.places.of, own));
        let asks = |asking: &u32| {
            self.places.note_look();
            self.sessions.at(*asking as usize).is_some_and(|session| {
                session.engine == 0 && (is_connecting || session.waits_for_nothing())
            })
        };
        // Of several the one with the lowest slot.
        let Some(asking) = at_its_places.filter(asks).min() else { return };
        let remote = self.remote_at(asking).and_then(|it| self.remotes.id_at(it as usize));
        let Some(remote) = remote else { return };
        let place = self.sessions.at(asking as usize).and_then(|session| session.place.clone());
        self.move_remote(remote, asking, slot);
        self.give_place_up(asking);
        self.set_place(slot, place);
    }

    /// Makes `engine` the peer of a session that resolves its address, after an authenticated reply
    /// from there.
    ///
    /// RR-CONN-7.
    pub(crate) fn adopt(
        &mut self,
        slot: u32,
        engine: u64,
        locators: Locators,
        now_ns: u64,
        effects: &mut impl Effects,
    ) {
        let Some(known) = self.sessions.at(slot as usize) else { return };
        let place = known.place.clone();
        let other = self.session_with(engine, locators).filter(|&other| other != slot);
        let Some(other) = other else {
            let attempts = 1;
            return self.fail_session(slot, PeerFailure::Full { attempts }, effects);
        };
        let Some(remote) = self.remote_at(slot).and_then(|it| self.remotes.id_at(it as usize))
        else {
            return self.give_place_up(slot);
        };
        if let Some(there) = self.remote_at(other)
            && there != remote.index() as u32
        {
            self.fail_session(slot, PeerFailure::KnownOtherwise, effects);
            return;
        }
        self.move_remote(remote, slot, other);
        self.give_place_up(slot);
        self.set_place(other, place);
        if self.sessions.at(other as usize).is_some_and(Session::is_connected) {
            self.ready.add(other, Work::Stage);
        } else {
            self.reset_failure(other);
            self.want_connection(other, now_ns);
        }
    }

    /// Returns the index of the remote endpoint that the listener address of a session refers to.
    fn remote_at(&self, slot: u32) -> Option<u32> {
        self.sessions.at(slot as usize)?.first_remote()
    }

    /// Moves a remote endpoint, and the operations with it, to another session.
    fn move_remote(&mut self, remote: Id, from: u32, to: u32) {
        let index = remote.index() as u32;
        if let Some(remote) = self.remotes.get_mut(remote) {
            remote.session = to;
        }
        let mut waiting = Vec::new();
        if let Some(session) = self.sessions.at_mut(from as usize) {
            session.remotes[usize::from(FIRST)] = u32::MAX;
            let operations = &self.operations;
            let is_its = |id: &Id| {
                operations.get(*id).is_some_and(|operation: &Operation| operation.remote == index)
            };
            waiting = session.waiting.iter().copied().filter(is_its).collect();
            session.waiting.retain(|id| !is_its(id));
        }
        for slot in 0..self.operations.index_end() {
            let Some(id) = self.operations.id_at(slot) else { continue };
            let Some(operation) = self.operations.get_mut(id) else { continue };
            if operation.remote == index && operation.session == from {
                operation.session = to;
            }
        }
        if let Some(session) = self.sessions.at_mut(to as usize) {
            if session.remotes.is_empty() {
                session.remotes.push(u32::MAX);
            }
            session.remotes[usize::from(FIRST)] = index;
            session.waiting.extend(waiting);
        }
    }

    /// Detaches the session from its listener address.
    fn give_place_up(&mut self, slot: u32) {
        self.actions.push_back(Action::CloseControl { session: slot, is_failure: false });
        self.end_own_offer(slot);
        self.set_place(slot, None);
        if let Some(session) = self.sessions.at_mut(slot as usize) {
            session.connection.fail();
            session.connection.reset();
        }
        self.note_over(slot);
    }
}

#[cfg(test)]
mod tests;
