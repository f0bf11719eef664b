//! Path probes in a session with several paths: the failure of a rail is detected by packets, not
//! by TCP.

use super::super::core::Core;
use super::super::rails::segments::{Passing, Reachability};
use super::PathTable;

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
        let paths = self.by_slot.get_mut(session as usize);
        let path = paths.and_then(|paths| paths.all_mut().find(|path| path.at == at));
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

    /// Asks paths that have nothing else under way, as long as TCP lanes of theirs are busy.
    pub(super) fn ask_while_busy(&mut self, core: &Core, now_ns: u64, session: u32) {
        let Some(paths) = self.by_slot.get_mut(session as usize) else { return };
        let streams_at = paths.stream_at;
        let known = core.sessions.at(session as usize);
        let has_stream = known.is_some_and(|known| !known.control_lane.is_lost());
        let is_streaming =
            has_stream && core.session(session).is_some_and(|it| it.segments.holds_long());
        for path in paths.all_mut() {
            let is_streamed = is_streaming && path.at == streams_at;
            if !is_streamed
                && !core
                    .session(session)
                    .is_some_and(|it| it.lanes.are_busy_on(core.lanes(), path.at))
            {
                continue;
            }
            path.packets.apply_deferred_ack();
            let (_, in_flight, _) = path.packets.load();
            if now_ns >= path.busy_question_ns {
                path.busy_question_ns = now_ns + BUSY_QUESTION_NS;
                if in_flight == 0 {
                    path.packets.ask();
                    path.wake_at(now_ns, session, &mut self.timers);
                }
            }
            path.wake_at(path.busy_question_ns, session, &mut self.timers);
        }
    }

    /// Probes the path of the control lane while long segments on it are unacknowledged.
    pub(crate) fn watch_stream(&mut self, now_ns: u64, session: u32) {
        let Some(paths) = self.by_slot.get_mut(session as usize) else { return };
        let streams_at = paths.stream_at;
        if !paths.are_several() {
            return;
        }
        let timers = &mut self.timers;
        for path in paths.all_mut().filter(|path| path.at == streams_at) {
            if now_ns >= path.busy_question_ns {
                path.busy_question_ns = now_ns + BUSY_QUESTION_NS;
            }
            // Another timer may have been set meanwhile.
            path.wake_at(path.busy_question_ns, session, timers);
        }
    }

    /// Probes all paths of a session.
    pub(crate) fn ask_all_paths(&mut self, now_ns: u64, session: u32) {
        let Some(paths) = self.by_slot.get_mut(session as usize) else { return };
        for path in paths.all_mut() {
            path.packets.ask();
            path.wake_at(now_ns, session, &mut self.timers);
        }
    }

    /// Probes those paths of a session that have not answered any packet sent since `since_ns`.
    pub(crate) fn ask_quiet_paths(&mut self, now_ns: u64, session: u32, since_ns: u64) {
        let Some(paths) = self.by_slot.get_mut(session as usize) else { return };
        for path in paths.all_mut() {
            path.packets.apply_deferred_ack();
            if path.packets.answered_sent_ns().is_none_or(|sent_ns| sent_ns < since_ns) {
                path.packets.ask();
                path.wake_at(now_ns, session, &mut self.timers);
            }
        }
    }

    /// Notes chunks given to lanes of sessions: their paths are probed from now on, and the round
    /// trips to the peers are updated.
    pub(crate) fn watch_busy_paths(&mut self, core: &mut Core, now_ns: u64) {
        for (_, bulk) in core.shared.lanes.iter() {
            let Some(paths) = self.by_slot.get_mut(bulk.session() as usize) else { continue };
            if bulk.is_idle() {
                continue;
            }
            if let Some(session) = core.sessions.at_mut(bulk.session() as usize)
                && let Some(known) = session.rails.paths.get_mut(usize::from(bulk.path()))
                && let Some(path) = paths.all().find(|path| path.at == bulk.path())
                && let Some(round_trip_ns) = path.packets.least_round_trip_ns()
            {
                known.round_trip_ns = round_trip_ns;
            }
            if !paths.are_several() {
                continue;
            }
            let timers = &mut self.timers;
            for path in paths.all_mut().filter(|path| path.at == bulk.path()) {
                if now_ns >= path.busy_question_ns {
                    path.wake_at(now_ns, bulk.session(), timers);
                }
            }
        }
    }

    /// Probes the path of the stream, unless a probe was sent just before.
    pub(super) fn ask_stream(&mut self, now_ns: u64, session: u32) {
        let Some(paths) = self.by_slot.get_mut(session as usize) else { return };
        let streams_at = paths.stream_at;
        let timers = &mut self.timers;
        for path in paths.all_mut().filter(|path| path.at == streams_at) {
            if now_ns >= path.busy_question_ns {
                path.busy_question_ns = now_ns + BUSY_QUESTION_NS;
                path.packets.ask();
                path.wake_at(now_ns, session, timers);
            }
        }
    }
}
