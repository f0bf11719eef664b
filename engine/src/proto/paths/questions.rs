//! Path probes in a session with several paths: the failure of a rail is detected by packets, not
//! by TCP.

use super::super::core::Core;
use super::super::session::rails::segments::{Passing, Reachability};
use super::{PathCx, PathTable, Paths};
use crate::proto::session::Session;

/// A path is reachable if a packet sent no longer ago than that was answered, in nanoseconds.
const REACHABLE_NS: u64 = 500_000_000;

impl PathTable {
    /// How long packets may be on the path at a position, as far as datagrams have found out.
    pub(crate) fn passing(&self, session: u32, at: u8) -> Option<Passing> {
        let packets = self.of(session)?.at(at)?.packets();
        let (bytes, is_all) = packets.passing();
        packets.is_answered().then_some(Passing { bytes, is_all })
    }

    /// Returns whether the path at a position answers datagrams now.
    pub(crate) fn reachability(&mut self, now_ns: u64, session: u32, at: u8) -> Reachability {
        let entry = self.paths_of(session);
        let path = entry.and_then(|(paths, _)| paths.at_mut(at));
        match path.and_then(|path| path.settle_packets().answered_sent_ns()) {
            None => Reachability::Unknown,
            Some(sent_ns) if now_ns.saturating_sub(sent_ns) <= REACHABLE_NS => {
                Reachability::Reachable
            }
            Some(_) => Reachability::Silent,
        }
    }

    /// Probes the path of the control lane while long segments on it are unacknowledged.
    pub(crate) fn watch_stream(&mut self, now_ns: u64, slot: u32) {
        self.with_paths(slot, |paths, shared| {
            if paths.are_several()
                && let Some(path) = paths.at_mut(paths.stream_at)
            {
                path.visits_mut().take_lane_probe(now_ns);
                // Another timer may have been set meanwhile.
                path.visits_mut().wake_for_lane_probe(slot, &mut shared.timers);
            }
        });
    }

    /// Probes all paths of a session.
    pub(crate) fn ask_all_paths(&mut self, now_ns: u64, slot: u32) {
        if let Some((paths, shared)) = self.paths_of(slot) {
            for path in paths.all_mut() {
                path.probe(now_ns, slot, &mut shared.timers);
            }
        }
    }

    /// Probes those paths of a session that have not answered any packet sent since `since_ns`.
    pub(crate) fn ask_quiet_paths(&mut self, now_ns: u64, slot: u32, since_ns: u64) {
        self.with_paths(slot, |paths, shared| {
            for path in paths.all_mut() {
                let answered_ns = path.settle_packets().answered_sent_ns();
                if answered_ns.is_none_or(|sent_ns| sent_ns < since_ns) {
                    path.probe(now_ns, slot, &mut shared.timers);
                }
            }
        });
    }

    /// Notes chunks given to lanes of sessions: their paths are probed from now on, and the round
    /// trips to the peers are updated.
    pub(crate) fn watch_busy_paths(&mut self, core: &mut Core, now_ns: u64) {
        let Core { sessions, shared: core } = core;
        for (_, bulk) in core.lanes.iter().filter(|(_, bulk)| !bulk.is_idle()) {
            let session = sessions.at_mut(bulk.session() as usize);
            let known =
                debug_assert_some!(session.zip(self.paths_of(bulk.session())), "it has lanes");
            // Without datagrams it has no such path.
            let known = known.and_then(|(session, (paths, shared))| {
                let are_several = paths.are_several();
                Some((session, are_several, paths.at_mut(bulk.path())?, shared))
            });
            let Some((session, are_several, path, shared)) = known else { continue };
            if let Some(known) = session.rails_mut().paths.get_mut(usize::from(bulk.path()))
                && let Some(round_trip_ns) = path.packets().least_round_trip_ns()
            {
                known.round_trip_ns = round_trip_ns;
            }
            if are_several && path.visits().is_lane_probe_due(now_ns) {
                path.visits_mut().wake_at(now_ns, bulk.session(), &mut shared.timers);
            }
        }
    }
}

impl Paths {
    /// Asks paths that have nothing else under way, as long as TCP lanes of theirs are busy.
    pub(super) fn ask_while_busy(
        &mut self,
        session: &Session,
        cx: &mut PathCx<'_, '_>,
        now_ns: u64,
    ) {
        let (slot, streams_at) = (cx.slot(), self.stream_at);
        let is_streaming = !session.control_lane().is_lost() && session.segments().holds_long();
        for path in self.all_mut() {
            let at = path.position();
            let is_streamed = is_streaming && at == streams_at;
            if !is_streamed && !session.lanes().are_busy_on(&cx.cx.shared.lanes, at) {
                continue;
            }
            let (_, in_flight, _) = path.settle_packets().load();
            if path.visits_mut().take_lane_probe(now_ns) && in_flight == 0 {
                path.probe(now_ns, slot, &mut cx.shared.timers);
            }
            path.visits_mut().wake_for_lane_probe(slot, &mut cx.shared.timers);
        }
    }

    /// Probes the path of the stream, unless a probe was sent just before.
    pub(super) fn ask_stream(&mut self, cx: &mut PathCx<'_, '_>, now_ns: u64) {
        let slot = cx.slot();
        if let Some(path) = self.at_mut(self.stream_at)
            && path.visits_mut().take_lane_probe(now_ns)
        {
            path.probe(now_ns, slot, &mut cx.shared.timers);
        }
    }
}
