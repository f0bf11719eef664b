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

use super::{PeerTable, SessionRemotes};
use crate::proto::context::SharedState;
use crate::proto::core::Core;
use crate::proto::effects::Effects;
use crate::proto::failure::PeerFailure;
use crate::proto::operation::NO_REMOTE;
use crate::proto::ready::Work;
use crate::proto::session::Session;
use crate::proto::session::connection::Phase;
use crate::proto::table::{Id, Table};
use crate::wire::locators::Locators;

/// The endpoint that a listener address refers to.
const FIRST: u16 = 0;

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
        self.set(slot, session.peer().place(), None);
        if let Some(listening) = &mut self.listening {
            for own in session.peer().locators().iter() {
                listening.remove(&(own.ip(), own.port(), slot));
            }
        }
    }

    /// The place of a session is another one.
    fn set(&mut self, slot: u32, before: Option<&SocketAddr>, place: Option<&SocketAddr>) {
        if let Some(before) = before {
            let was_there = self.of.remove(&(before.ip(), before.port(), slot));
            debug_assert!(was_there, "a session is found by its place");
        }
        self.of.extend(place.map(|place| (place.ip(), place.port(), slot)));
    }

    fn note_look(&self) {
        #[cfg(test)]
        self.looks.set(self.looks.get() + 1);
    }
}

impl SessionRemotes {
    /// Returns the index of the remote endpoint that a listener address refers to.
    fn first(&self) -> Option<u32> {
        Some(self.index_of(FIRST)).filter(|&remote| remote != NO_REMOTE)
    }
}

impl PeerTable {
    /// Sets the place of a session.
    fn set_place(&mut self, slot: u32, session: &mut Session, place: Option<SocketAddr>) {
        self.places.set(slot, session.peer().place(), place.as_ref());
        session.peer_mut().set_place(place);
    }

    /// Returns the session of a place, or that with an engine which is known to listen there.
    fn session_at(&mut self, sessions: &mut Table<Session>, place: SocketAddr) -> Option<u32> {
        let known = slots_at(&self.places.of, place).find(|&slot| {
            self.places.note_look();
            let session = sessions.at(slot as usize);
            session.is_some_and(|session| session.peer().place() == Some(&place))
        });
        known.or_else(|| self.session_listening_at(sessions, place))
    }

    /// Returns the session with an engine that is known to listen at an address: it is connected,
    /// or was inserted by its own address. Its first endpoint has one handle, by whichever address.
    fn session_listening_at(
        &mut self,
        sessions: &mut Table<Session>,
        place: SocketAddr,
    ) -> Option<u32> {
        let is_known = |session: &Session| {
            session.ending().to_report().is_none()
                && (session.is_connected() || session.peer().remotes().first().is_some())
        };
        let places = &mut self.places;
        if places.listening.is_none() {
            places.listening = Some(Box::default());
            for (id, session) in sessions.iter().filter(|(_, session)| session.peer().id() != 0) {
                places.note_session(id.index() as u32, session.peer().locators());
            }
        }
        let slot = slots_at(places.listening.as_deref()?, place).find(|&slot| {
            places.note_look();
            sessions.at(slot as usize).is_some_and(is_known)
        })?;
        let session = sessions.at_mut(slot as usize)?;
        let remote = self.at(session.peer().remotes().index_of(FIRST));
        // A peer that was inserted by its own address stays that engine after a restart.
        let is_inserted = remote.is_some_and(|remote| remote.is_inserted);
        if !is_inserted && session.peer().place().is_none() {
            self.set_place(slot, session, Some(place));
        }
        Some(slot)
    }

    /// Returns the session that resolves one of these addresses, if there is one, and the remote
    /// endpoint of that.
    fn session_resolving(
        &self,
        sessions: &Table<Session>,
        locators: &Locators,
        is_connecting: bool,
    ) -> Option<(u32, Id)> {
        let at_its_places = locators.iter().flat_map(|own| slots_at(&self.places.of, own));
        let waits_for_nothing = |session: &Session| {
            session.waiting().is_empty()
                && matches!(session.connection().phase(), Phase::Closed | Phase::Failed)
        };
        let asking = |slot: u32| {
            self.places.note_look();
            let session = sessions.at(slot as usize)?;
            let asks = session.peer().id() == 0 && (is_connecting || waits_for_nothing(session));
            asks.then(|| (slot, session.peer().remotes().first()))
        };
        // Of several the one with the lowest slot.
        let (slot, remote) = at_its_places.filter_map(asking).min()?;
        Some((slot, self.id_at(remote?)?))
    }
}

impl SharedState {
    /// Moves a remote endpoint, the operations with it and the place of a session to another
    /// session, after which the first one gives the place up ([`Core::give_place_up`]).
    fn move_place(&mut self, remote: Id, slots: [u32; 2], pair: [&mut Session; 2]) {
        let ([from, to], [asking, found]) = (slots, pair);
        let index = remote.index() as u32;
        found.add_waiting(asking.take_waiting_with(index, &self.operations));
        self.peers.move_remote(remote, asking, (to, found));
        self.operations.move_to_session(index, from, to);
        let place = asking.peer().place().copied();
        self.peers.set_place(to, found, place);
    }
}

impl Core {
    /// Returns the session with the engine that listens at an address, or a new one that queries
    /// it. `None`: at the limit.
    pub(super) fn session_at(&mut self, place: SocketAddr) -> Option<u32> {
        if let Some(slot) = self.shared.peers.session_at(&mut self.sessions, place) {
            return Some(slot);
        }
        self.evict_some();
        let made = self.shared.peers.new_session(&mut self.sessions, 0, place.into());
        let (slot, session) = made?;
        self.shared.peers.set_place(slot, session, Some(place));
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
        if self.shared.peers.places.of.is_empty() {
            return;
        }
        let Self { sessions, shared } = self;
        let session = debug_assert_some!(sessions.at(slot as usize), "the session exists");
        let unnamed = session.filter(|it| it.peer().remotes().first().is_none());
        let resolving = unnamed.and_then(|it| {
            shared.peers.session_resolving(sessions, it.peer().locators(), is_connecting)
        });
        if let Some((asking, remote)) = resolving {
            let pair = sessions.two_at_mut([asking as usize, slot as usize]);
            let pair = debug_assert_some!(pair, "both were found, and one has no engine");
            if let Some(pair) = pair {
                shared.move_place(remote, [asking, slot], pair);
                self.give_place_up(asking);
            }
        }
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
        let other = self.session_with(engine, locators).filter(|&other| other != slot);
        let Some(other) = other else {
            let attempts = 1;
            return self.fail_session(slot, PeerFailure::Full { attempts }, effects);
        };
        let pair = self.sessions.two_at_mut([slot as usize, other as usize]);
        let pair = debug_assert_some!(pair, "one resolves the address, the other has an engine");
        let Some([asking, found]) = pair else { return };
        let remote = asking.peer().remotes().first();
        let Some(remote) = remote.and_then(|remote| self.shared.peers.id_at(remote)) else {
            return self.give_place_up(slot);
        };
        if found.peer().remotes().first().is_some_and(|there| there != remote.index() as u32) {
            return self.fail_session(slot, PeerFailure::KnownOtherwise, effects);
        }
        self.shared.move_place(remote, [slot, other], [asking, found]);
        self.give_place_up(slot);
        self.with_known(other, |it, mut cx| {
            if it.is_connected() {
                cx.add_work(Work::Stage);
            } else {
                it.reset_failure();
                it.connection_mut().connect(&mut cx, now_ns);
            }
        });
    }

    /// Detaches the session from its listener address.
    fn give_place_up(&mut self, slot: u32) {
        self.with_known(slot, |it, mut cx| {
            it.connection_mut().stop(&mut cx);
            cx.shared.peers.set_place(slot, it, None);
            cx.shared.peers.note_closed(slot, it.peer().id());
        });
        self.end_own_offer(slot);
    }
}

#[cfg(test)]
mod tests;
