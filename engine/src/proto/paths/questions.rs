//! Path probes in a session with several paths: the failure of a rail is detected by packets, not
//! by TCP.

use super::super::core::Core;
use super::super::rails::segments::{Passing, Reachability};
use super::context::PathCx;
use super::path::SessionPath;
use super::{PathTable, Paths};
use crate::proto::session::Session;

/// Interval of probes on a path whose TCP lanes are busy and that has no other packets outstanding,
/// in nanoseconds.
const BUSY_QUESTION_NS: u64 = 2_000_000;

/// A path is reachable if a packet sent no longer ago than that was answered, in nanoseconds.
const REACHABLE_NS: u64 = 500_000_000;

impl PathTable {
    /// How long packets may be on the path at a position, as far as datagrams have found out.
    pub(crate) fn passing(&self, session: u32, at: u8) -> Option<Passing> {
        let path = self.of(session)?.all().find(|path| path.position() == at)?;
        let (bytes, is_all) = path.packets().passing();
        path.packets().is_answered().then_some(Passing { bytes, is_all })
    }

    /// Returns whether the path at a position answers datagrams now.
    pub(crate) fn reachability(&mut self, now_ns: u64, session: u32, at: u8) -> Reachability {
        let entry = self.entry(session);
        let path = entry.and_then(|(paths, _)| paths.all_mut().find(|path| path.at == at));
        let Some(path) = path else { return Reachability::Unknown };
        path.packets.apply_deferred_ack();
        match path.packets.answered_sent_ns() {
            None => Reachability::Unknown,
            Some(sent_ns) if now_ns.saturating_sub(sent_ns) <= REACHABLE_NS => {
                Reachability::Reachable
            }
            Some(_) => Reachability::Silent,
        }
    }

    /// Probes the path of the control lane while long segments on it are unacknowledged.
    pub(crate) fn watch_stream(&mut self, now_ns: u64, slot: u32) {
        let entry = debug_assert_some!(self.entry(slot), "a stream is of a session");
        let Some((paths, shared)) = entry.filter(|(paths, _)| paths.are_several()) else { return };
        let streams_at = paths.stream_at;
        for path in paths.all_mut().filter(|path| path.at == streams_at) {
            path.take_busy_question(now_ns);
            // Another timer may have been set meanwhile.
            path.wake_at(path.busy_question_ns, slot, &mut shared.timers);
        }
    }

    /// Probes all paths of a session.
    pub(crate) fn ask_all_paths(&mut self, now_ns: u64, slot: u32) {
        if let Some((paths, shared)) = self.entry(slot) {
            for path in paths.all_mut() {
                path.packets.ask();
                path.wake_at(now_ns, slot, &mut shared.timers);
            }
        }
    }

    /// Probes those paths of a session that have not answered any packet sent since `since_ns`.
    pub(crate) fn ask_quiet_paths(&mut self, now_ns: u64, slot: u32, since_ns: u64) {
        let entry = debug_assert_some!(self.entry(slot), "a control lane is of a session");
        let Some((paths, shared)) = entry else { return };
        for path in paths.all_mut() {
            path.packets.apply_deferred_ack();
            if path.packets.answered_sent_ns().is_none_or(|sent_ns| sent_ns < since_ns) {
                path.packets.ask();
                path.wake_at(now_ns, slot, &mut shared.timers);
            }
        }
    }

    /// Notes chunks given to lanes of sessions: their paths are probed from now on, and the round
    /// trips to the peers are updated.
    pub(crate) fn watch_busy_paths(&mut self, core: &mut Core, now_ns: u64) {
        let Core { sessions, shared: core } = core;
        for (_, bulk) in core.lanes.iter().filter(|(_, bulk)| !bulk.is_idle()) {
            let session = sessions.at_mut(bulk.session as usize);
            let known = debug_assert_some!(session.zip(self.entry(bulk.session)), "it has lanes");
            let Some((session, (paths, shared))) = known else { continue };
            let are_several = paths.are_several();
            for path in paths.all_mut().filter(|path| path.at == bulk.path) {
                if let Some(known) = session.rails.paths.get_mut(usize::from(bulk.path))
                    && let Some(round_trip_ns) = path.packets.least_round_trip_ns()
                {
                    known.round_trip_ns = round_trip_ns;
                }
                if are_several && now_ns >= path.busy_question_ns {
                    path.wake_at(now_ns, bulk.session, &mut shared.timers);
                }
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
        let is_streaming = !session.control_lane.is_lost() && session.holds_long();
        for path in self.all_mut() {
            let is_streamed = is_streaming && path.at == streams_at;
            if !is_streamed && !session.is_path_busy(&cx.cx.shared.lanes, path.at) {
                continue;
            }
            path.packets.apply_deferred_ack();
            let (_, in_flight, _) = path.packets.load();
            if path.take_busy_question(now_ns) && in_flight == 0 {
                path.packets.ask();
                path.wake_at(now_ns, slot, &mut cx.shared.timers);
            }
            path.wake_at(path.busy_question_ns, slot, &mut cx.shared.timers);
        }
    }

    /// Probes the path of the stream, unless a probe was sent just before.
    pub(super) fn ask_stream(&mut self, cx: &mut PathCx<'_, '_>, now_ns: u64) {
        let (slot, streams_at) = (cx.slot(), self.stream_at);
        for path in self.all_mut().filter(|path| path.at == streams_at) {
            if path.take_busy_question(now_ns) {
                path.packets.ask();
                path.wake_at(now_ns, slot, &mut cx.shared.timers);
            }
        }
    }
}

impl SessionPath {
    /// Returns whether it may be probed for the sake of TCP lanes, and defers the next such probe.
    fn take_busy_question(&mut self, now_ns: u64) -> bool {
        let is_due = now_ns >= self.busy_question_ns;
        if is_due {
            self.busy_question_ns = now_ns + BUSY_QUESTION_NS;
        }
        is_due
    }
}
