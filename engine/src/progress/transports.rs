//! What carries each session, for the line of the setting `verbose`. Never on the path of a
//! message: sessions are looked at when they begin, get a ring and end.

use super::engine::EngineState;
use crate::driver::AnyDriver;
use crate::proto::paths::Paths;
use crate::proto::session::rails::rails_of;
use crate::telemetry::transports::{MessageTransport, note};
use crate::types::FrameState;

impl EngineState {
    /// Notes what carries a session now, or did where it `is_over`; nothing unless `verbose` is
    /// set.
    pub(super) fn note_transport(&self, driver: &AnyDriver, slot: u32, is_over: bool) {
        if !self.reports.is_verbose {
            return;
        }
        let core = &self.core;
        let session =
            core.session(slot).filter(|session| session.peer().id() != core.shared().engine());
        if let Some(session) = session {
            note(session.peer().id(), self.transport_of(driver, slot), is_over);
        }
    }

    /// The same of all sessions, of an engine that is about to close.
    pub(super) fn note_transports(&self, driver: &AnyDriver) {
        let sessions = self.core.sessions().iter();
        let connected = sessions.filter(|(_, session)| session.is_connected());
        connected.for_each(|(id, _)| self.note_transport(driver, id.index() as u32, false));
    }

    fn transport_of(&self, driver: &AnyDriver, slot: u32) -> MessageTransport {
        let paths = self.paths.of(slot);
        if paths.is_some_and(Paths::has_ring) {
            return MessageTransport::Memory;
        }
        let mut nics: Vec<String> = Vec::new();
        let mut has_chunks = false;
        let session = self.core.session(slot);
        for path in session.iter().flat_map(|session| &session.rails().paths) {
            let counters = path.counters();
            has_chunks |= counters.bytes_sent + counters.bytes_received > 0;
            let (initiators, acceptors) = rails_of(path.number);
            let is_initiator = session.is_some_and(|it| it.connection().is_initiator());
            let rail = if is_initiator { initiators } else { acceptors };
            let rail = self.rails.chosen().get(usize::from(rail));
            let nic = rail.map_or("a NIC of the route", |rail| &rail.nic);
            if !nics.iter().any(|known| known == nic) {
                nics.push(nic.to_owned());
            }
        }
        let has_datagrams = paths.is_some_and(|paths| paths.primary_at().is_some());
        let by_frames = matches!(driver.frame_state(), FrameState::Up { .. });
        let datagrams = has_datagrams.then_some(if by_frames { "xdp" } else { "udp" });
        let by_tcp = !has_datagrams || has_chunks || paths.is_some_and(Paths::has_streamed);
        let protocols = datagrams.into_iter().chain(by_tcp.then_some("tcp")).collect();
        MessageTransport::Rails { nics, protocols }
    }
}
