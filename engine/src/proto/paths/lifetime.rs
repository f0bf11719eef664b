//! Creation and removal of paths, with sessions and with rails.

use std::net::SocketAddr;

use super::super::core::Core;
use super::super::packet::{Path, PathConfig};
use super::super::rails::health::RailHealth;
use super::super::rails::rails_of;
use super::path::{Health, SessionPath};
use super::{Index, PathTable, Paths};
use crate::wire::packet::{FIRST_PATH as FIRST, PACKET_TAG_BYTES};

impl PathTable {
    /// Opens a path in addition to the first one. It carries no segments until it has answered.
    ///
    /// RR-RAIL-3.
    pub(crate) fn open_other_path(
        &mut self,
        core: &Core,
        now_ns: u64,
        session: u32,
        number: u16,
        at: usize,
    ) {
        let known = core.sessions.at(session as usize);
        let known = known.and_then(|it| Some((it, it.rails.paths.get(at)?, it.keys.as_ref()?)));
        let known = debug_assert_some!(known, "a new path is one of a connected session");
        let Some((known, announced, keys)) = known else { return };
        let is_initiator = known.connection.is_initiator();
        let paths = debug_assert_some!(self.of(session), "its first path is open");
        let primary = paths.and_then(|paths| paths.primary.as_deref());
        let Some(primary) = debug_assert_some!(primary, "its first path is open") else { return };
        let (port, takes_trains) = (primary.port, primary.takes_trains);
        let datagram_bytes_max = primary.packets.datagram_bytes_max();
        let (initiators, acceptors) = rails_of(number);
        let rail = if is_initiator { initiators } else { acceptors };
        let remote = match announced.remote {
            Some(address) => self.scoped(rail, SocketAddr::new(address, port)),
            None => SocketAddr::new(known.locators.first().ip(), port),
        };
        let config = PathConfig {
            session: known.id,
            path: number,
            tag_bytes: PACKET_TAG_BYTES,
            datagram_bytes_max,
            ..PathConfig::default()
        };
        let mut path = SessionPath::new(Path::new(config), keys.path(number, is_initiator), remote);
        (path.session_id, path.number, path.rail, path.at) = (known.id, number, rail, at as u8);
        (path.port, path.takes_trains) = (port, takes_trains);
        path.is_held = true;
        let down = self.rails_down;
        let health_of = |rail: u8| {
            let mut health = RailHealth::new(now_ns);
            if down >> (rail % 16) & 1 != 0 {
                health.handle_link(now_ns, false);
            }
            health
        };
        path.rail_health = Some(Box::new(health_of(rail)));
        path.packets.ask();
        path.wake_at(now_ns, session, &mut self.timers);
        let paths = &mut self.by_slot[session as usize];
        debug_assert!(paths.index_of(number).is_none(), "a path is opened once");
        if let Some(primary) = &mut paths.primary {
            primary.rail_health.get_or_insert_with(|| Box::new(health_of(primary.rail)));
        }
        paths.choice.get_or_insert_default();
        if paths.standby.is_empty() {
            self.several.push(session);
        }
        paths.standby.push(Box::new(path));
        self.standing_by += 1;
        paths.is_doubtful = true;
    }

    /// Handles a packet of an unknown path. The peer opened the session, and so decides which paths
    /// exist: the packet itself has to authenticate the path.
    ///
    /// RR-RAIL-2.
    pub(super) fn meet_path(
        &mut self,
        core: &mut Core,
        now_ns: u64,
        session: u32,
        number: u16,
        bytes: &[u8],
    ) -> bool {
        let known = core.sessions.at(session as usize);
        let known = debug_assert_some!(known, "paths are of sessions in the table");
        // It may just have ended.
        let Some((known, keys)) = known.and_then(|it| Some((it, it.keys.as_ref()?))) else {
            return false;
        };
        if known.connection.is_initiator() || !known.rails.are_announced() {
            return false;
        }
        let first = u64::from(u32::from_le_bytes(bytes[4..8].try_into().unwrap_or_default()));
        // Authentication replaces the tag bytes.
        if !keys.path(number, false).receive.open_packet(&mut bytes.to_vec(), first) {
            return false;
        }
        // A bulk lane may have announced it before.
        let at = known.rails.position(number);
        let add = || core.enter(session).and_then(|(it, cx)| it.rails.add_path(&cx, number));
        let Some(at) = at.or_else(add) else { return false };
        self.open_other_path(core, now_ns, session, number, at);
        true
    }

    /// Starts the paths of a newly established session, whose TCP lane uses the path at
    /// `stream_at`; it has no datagram path yet.
    pub(crate) fn begin(&mut self, session: u32, stream_at: u8) {
        *self.of_mut(session) = Paths { stream_at, ..Paths::default() };
    }

    /// Opens the first path of a newly established session, to an announced UDP port. `bytes_max`:
    /// the longest datagram that both sides take; `takes_trains`: as [`SessionPath::takes_trains`].
    /// Returns `false` if its id is in use, by a collision or an attack: then the session has no
    /// datagrams.
    ///
    /// RR-PATH-1.
    pub(crate) fn open_first_path(
        &mut self,
        core: &mut Core,
        session: u32,
        port: u16,
        bytes_max: usize,
        takes_trains: bool,
    ) -> bool {
        let known = core.sessions.at(session as usize);
        let known = known.and_then(|it| Some((it, it.keys.as_ref()?)));
        let known = debug_assert_some!(known, "the session was just established");
        let Some((known, keys)) = known else { return false };
        let (id, is_initiator) = (known.id, known.connection.is_initiator());
        if self.by_session.contains_key(&id) {
            return false;
        }
        let config = PathConfig {
            session: id,
            path: FIRST,
            tag_bytes: PACKET_TAG_BYTES,
            datagram_bytes_max: bytes_max,
            ..PathConfig::default()
        };
        let bytes_max = bytes_max.max(config.datagram_bytes_min);
        let mut packets = Path::new(PathConfig { datagram_bytes_max: bytes_max, ..config });
        packets.ask();
        let mut remote = known.locators.first();
        remote.set_port(port);
        let keys = keys.path(FIRST, is_initiator);
        core.with(session, |it, cx| it.use_datagrams(cx, packets.payload_bytes_max()));
        let has_stream = core.shared.config.eager_by_stream;
        core.with(session, |it, cx| it.use_stream(cx, has_stream));
        self.by_session.insert(id, session);
        let mut path = SessionPath::new(packets, keys, remote);
        path.session_id = id;
        path.takes_trains = takes_trains;
        let paths = self.of_mut(session);
        debug_assert_eq!(paths.count(), 0, "a new session has no path");
        paths.primary = Some(Box::new(path));
        true
    }

    /// Continues with another driver, for datagrams of at most `bytes_max`; `None`: it takes none.
    /// Lengths agreed on before may exceed that.
    pub(crate) fn resume(&mut self, core: &mut Core, bytes_max: Option<usize>) {
        for session in 0..self.slots() {
            for path in self.of_mut(session).all_mut() {
                path.is_off = false;
                if bytes_max.is_some_and(|bytes| path.packets.datagram_bytes_max() <= bytes) {
                    path.packets.ask();
                } else {
                    path.give_up(core, session);
                }
            }
        }
    }

    /// Stops a path that the driver no longer serves.
    pub(crate) fn give_up_path(&mut self, core: &mut Core, session: u32, index: Index) {
        if let Some(path) = self.of_mut(session).get_mut(index) {
            path.give_up(core, session);
        }
    }

    /// Prepares a final acknowledgement, perhaps with the goodbye, on the primary path of a closed
    /// session. Returns `false` if it has none.
    ///
    /// RR-PATH-5.
    pub(crate) fn prepare_final_ack(&mut self, session: u32) -> bool {
        let Some(primary) = self.of_mut(session).primary.as_deref_mut() else { return false };
        primary.packets.quickack();
        primary.health = Health::Untried;
        true
    }

    /// Returns the session's id in packets, and the destination of its first path.
    pub(crate) fn first_path(&self, session: u32) -> Option<(u64, SocketAddr)> {
        let all = self.of(session)?;
        let first = all.primary.iter().chain(&all.standby).find(|path| path.number == FIRST)?;
        Some((first.session_id, first.remote))
    }

    /// Removes the paths of a closed session.
    pub(crate) fn close(&mut self, session: u32) {
        let over = std::mem::take(self.of_mut(session));
        debug_assert!(
            over.primary.is_some() || over.standby.is_empty(),
            "other paths stand by for a first one"
        );
        self.standing_by -= over.standby.len();
        for path in over.primary.into_iter().chain(over.standby) {
            let removed = self.by_session.remove(&path.session_id);
            debug_assert!(removed.is_none_or(|it| it == session), "ids are of one session");
            self.of_closed = self.of_closed.with(&path.packets);
        }
    }

    /// Sets the NICs of this engine's rails by index, all of which are assumed to have carrier.
    pub(crate) fn set_nics(&mut self, nics: impl Iterator<Item = u32>) {
        self.nics.clear();
        self.nics.extend(nics);
        self.rails_down = 0;
    }

    /// Sets the NIC of a rail.
    pub(crate) fn set_nic(&mut self, rail: u8, nic: u32) {
        if let Some(known) = self.nics.get_mut(usize::from(rail)) {
            *known = nic;
        }
    }

    /// Handles a carrier change of a rail's NIC.
    pub(crate) fn handle_link(&mut self, core: &mut Core, now_ns: u64, rail: u8, is_up: bool) {
        let bit = 1 << (rail % 16);
        match is_up {
            true => self.rails_down &= !bit,
            false => self.rails_down |= bit,
        }
        for session in self.several() {
            let paths = self.of_mut(session);
            for path in paths.all_mut().filter(|path| path.rail == rail) {
                if let Some(health) = &mut path.rail_health {
                    health.handle_link(now_ns, is_up);
                }
            }
            self.judge_paths(core, now_ns, session);
        }
    }

    /// Sets the path that the TCP lane of a session uses.
    pub(crate) fn set_stream(&mut self, session: u32, at: u8) {
        self.of_mut(session).stream_at = at;
    }

    /// Notes that long segments were sent or received on the TCP lane of a session.
    pub(crate) fn note_streamed(&mut self, session: u32) {
        self.of_mut(session).has_streamed = true;
    }
}
