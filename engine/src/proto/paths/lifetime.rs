//! Creation and removal of paths, with sessions and with rails.

use std::net::SocketAddr;

use super::super::core::Core;
use super::super::packet::{Path, PathConfig};
use super::super::session::Session;
use super::super::session::rails::rails_of;
use super::path::{PathId, SessionPath};
use super::{Index, PathCx, PathTable, Paths};
use crate::wire::packet::{FIRST_PATH as FIRST, PACKET_TAG_BYTES};

impl Paths {
    /// Opens a path in addition to the first one. It carries no segments until it has answered.
    fn open_other(
        &mut self,
        session: &Session,
        cx: &mut PathCx<'_, '_>,
        now_ns: u64,
        number: u16,
        at: usize,
    ) {
        let (slot, shared) = (cx.slot(), &mut *cx.shared);
        let known = session.rails().paths.get(at).zip(session.keys());
        let known = debug_assert_some!(known, "a new path is one of a connected session");
        let primary = debug_assert_some!(self.primary.as_deref_mut(), "its first path is open");
        let Some(((announced, keys), primary)) = known.zip(primary) else { return };
        let is_initiator = session.connection().is_initiator();
        let (port, takes_trains) = primary.announced();
        let datagram_bytes_max = primary.packets().datagram_bytes_max();
        let (initiators, acceptors) = rails_of(number);
        let rail = if is_initiator { initiators } else { acceptors };
        let remote = match announced.remote {
            Some(address) => shared.scoped(rail, SocketAddr::new(address, port)),
            None => SocketAddr::new(session.peer().locators().first().ip(), port),
        };
        let config = PathConfig {
            session: session.id(),
            path: number,
            tag_bytes: PACKET_TAG_BYTES,
            datagram_bytes_max,
            ..PathConfig::default()
        };
        let (packets, keys) = (Path::new(config), keys.path(number, is_initiator));
        let id = PathId { session: session.id(), number, rail, at: at as u8 };
        let mut path = SessionPath::new(packets, keys, id, remote, takes_trains);
        path.hold(true);
        for path in [&mut path, primary] {
            path.begin_comparison(now_ns, !shared.is_rail_down(path.id().rail));
        }
        path.probe(now_ns, slot, &mut shared.timers);
        debug_assert!(self.index_of(number).is_none(), "a path is opened once");
        self.choice.get_or_insert_default();
        if self.standby.is_empty() {
            shared.several.push(slot);
        }
        self.standby.push(Box::new(path));
        shared.standing_by += 1;
        self.is_doubtful = true;
    }

    /// Opens the path of a number that is unknown, if its first packet authenticates it: the peer
    /// opened the session, and so decides which paths exist.
    ///
    /// RR-RAIL-2.
    pub(super) fn meet(
        &mut self,
        session: &mut Session,
        cx: &mut PathCx<'_, '_>,
        now_ns: u64,
        number: u16,
        bytes: &[u8],
    ) -> Option<Index> {
        // It may just have ended.
        let keys = session.keys()?;
        if session.connection().is_initiator() || !session.rails().are_announced() {
            return None;
        }
        let first = u64::from(u32::from_le_bytes(bytes[4..8].try_into().unwrap_or_default()));
        // Authentication replaces the tag bytes.
        if !keys.path(number, false).receive.open_packet(&mut bytes.to_vec(), first) {
            return None;
        }
        // A bulk lane may have announced it before.
        let at = session.rails().position(number);
        let at = at.or_else(|| session.rails_mut().add_path(&cx.cx, number))?;
        self.open_other(session, cx, now_ns, number, at);
        self.index_of(number)
    }

    /// Returns the first path of the session.
    pub(super) fn first(&self) -> Option<&SessionPath> {
        self.all().find(|path| path.id().number == FIRST)
    }
}

impl PathTable {
    /// Opens a path of a session in addition to the first one. It carries no segments until it has
    /// answered.
    ///
    /// RR-RAIL-3.
    pub(crate) fn open_other_path(
        &mut self,
        core: &mut Core,
        now_ns: u64,
        slot: u32,
        number: u16,
        at: usize,
    ) {
        let entered = debug_assert_some!(self.enter(core, slot), "it has a first path");
        if let Some((paths, session, mut cx)) = entered {
            paths.open_other(session, &mut cx, now_ns, number, at);
        }
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
        slot: u32,
        port: u16,
        bytes_max: usize,
        takes_trains: bool,
    ) -> bool {
        let entered = self.enter(core, slot).and_then(|(paths, session, cx)| {
            let keys = session.keys()?.path(FIRST, session.connection().is_initiator());
            Some((paths, session, cx, keys))
        });
        let entered = debug_assert_some!(entered, "it was just established, and its paths begun");
        let Some((paths, session, mut cx, keys)) = entered else { return false };
        let id = session.id();
        if cx.shared.by_session.contains_key(&id) {
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
        let packets = Path::new(PathConfig { datagram_bytes_max: bytes_max, ..config });
        let mut remote = session.peer().locators().first();
        remote.set_port(port);
        session.use_datagrams(cx.cx(), packets.payload_bytes_max());
        paths.choose_stream(session, cx.cx());
        cx.shared.by_session.insert(id, slot);
        let id = PathId { session: id, number: FIRST, rail: 0, at: 0 };
        let mut path = SessionPath::new(packets, keys, id, remote, takes_trains);
        path.probe_with_next();
        debug_assert_eq!(paths.count(), 0, "a new session has no path");
        paths.primary = Some(Box::new(path));
        true
    }

    /// Continues with another driver, for datagrams of at most `bytes_max`; `None`: it takes none.
    /// Lengths agreed on before may exceed that.
    pub(crate) fn resume(&mut self, core: &mut Core, bytes_max: Option<usize>) {
        for slot in 0..self.slots() {
            let Some((paths, session, mut cx)) = self.enter(core, slot) else { continue };
            for path in paths.all_mut() {
                path.resume(session, cx.cx(), bytes_max);
            }
        }
    }

    /// Stops a path that the driver no longer serves.
    pub(crate) fn give_up_path(&mut self, core: &mut Core, slot: u32, index: Index) {
        let entered = debug_assert_some!(self.enter(core, slot), "it has sent on a path");
        if let Some((paths, session, PathCx { cx, .. })) = entered
            && let Some(path) = paths.get_mut(index)
        {
            path.give_up(session, cx);
        }
    }

    /// Prepares a final acknowledgement, perhaps with the goodbye, on the primary path of a closed
    /// session. Returns `false` if it has none.
    ///
    /// RR-PATH-5.
    pub(crate) fn prepare_final_ack(&mut self, slot: u32) -> bool {
        let primary = self.of_mut(slot).primary.as_deref_mut();
        primary.map(SessionPath::prepare_final_ack).is_some()
    }

    /// Returns the session's id in packets, and the destination of its first path.
    pub(crate) fn first_path(&self, slot: u32) -> Option<(u64, SocketAddr)> {
        let first = self.of(slot)?.first()?;
        Some((first.id().session, first.remote()))
    }

    /// Removes the paths of a closed session.
    pub(crate) fn close(&mut self, slot: u32) {
        let over = std::mem::take(self.of_mut(slot));
        let shared = &mut self.shared;
        debug_assert!(
            over.primary.is_some() || over.standby.is_empty(),
            "other paths stand by for a first one"
        );
        shared.standing_by -= over.standby.len();
        for path in over.primary.into_iter().chain(over.standby) {
            let removed = shared.by_session.remove(&path.id().session);
            debug_assert!(removed.is_none_or(|it| it == slot), "ids are of one session");
            shared.of_closed = shared.of_closed.with(path.packets());
        }
    }

    /// Sets the NICs of this engine's rails by index, all of which are assumed to have carrier.
    pub(crate) fn set_nics(&mut self, nics: impl Iterator<Item = u32>) {
        self.shared.nics.clear();
        self.shared.nics.extend(nics);
        self.shared.rails_down = 0;
    }

    /// Sets the NIC of a rail.
    pub(crate) fn set_nic(&mut self, rail: u8, nic: u32) {
        if let Some(known) = self.shared.nics.get_mut(usize::from(rail)) {
            *known = nic;
        }
    }

    /// Handles a carrier change of a rail's NIC.
    pub(crate) fn handle_link(&mut self, core: &mut Core, now_ns: u64, rail: u8, is_up: bool) {
        let bit = 1 << (rail % 16);
        match is_up {
            true => self.shared.rails_down &= !bit,
            false => self.shared.rails_down |= bit,
        }
        for slot in self.several() {
            self.with_known(core, slot, |paths, session, mut cx| {
                for path in paths.all_mut().filter(|path| path.id().rail == rail) {
                    path.handle_link(now_ns, is_up);
                }
                paths.judge(session, &mut cx, now_ns);
            });
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
