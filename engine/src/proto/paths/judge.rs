//! Evaluation of paths in sessions with several.

use super::super::core::{Action, Core};
use super::super::effects::RemoteName;
use super::super::rails::health::{PathPhase, RailHealth, Transition};
use super::super::rails::{LAST_RESORT_NS, rails_of};
use super::super::table::Id;
use super::PathTable;
use super::path::SessionPath;

impl PathTable {
    /// Notes data received on a session's stream: its throughput counts like that of datagrams. It
    /// gives no round-trip sample: while long messages are exchanged, acknowledgements of short
    /// ones are delayed.
    pub(crate) fn note_stream(&mut self, core: &mut Core, now_ns: u64, session: u32) {
        let paths = self.by_slot.get_mut(session as usize);
        let Some(paths) = paths.filter(|paths| paths.are_several()) else { return };
        paths.streamed_ns = now_ns;
        let streams_at = paths.stream_at;
        let is_elsewhere = paths.primary_at() != Some(streams_at);
        let is_led = paths.note_segments(usize::MAX, is_elsewhere);
        let path = paths.all().find(|path| path.at == streams_at).map(|path| path.number);
        self.compare_deliveries(core, now_ns, session, path.filter(|_| is_led));
    }

    /// Compares the throughput of paths when it is time to. `theirs`: the path chosen by the peer.
    pub(super) fn compare_deliveries(
        &mut self,
        core: &mut Core,
        now_ns: u64,
        session: u32,
        theirs: Option<u16>,
    ) {
        let paths = debug_assert_some!(self.of(session), "something came on one of them");
        let choice = paths.and_then(|paths| paths.choice.as_ref());
        let is_reading = choice.is_some_and(|it| it.trial.is_due(now_ns));
        if let Some(theirs) = theirs {
            self.follow(core, now_ns, session, theirs);
        }
        if is_reading {
            self.try_paths(core, now_ns, session);
        }
    }

    /// Evaluates all paths of a session that has several: their state, and which one carries the
    /// segments.
    ///
    /// RR-RAIL-4, RR-RAIL-6.
    pub(super) fn judge_paths(&mut self, core: &mut Core, now_ns: u64, session: u32) {
        let Some(paths) = self.by_slot.get_mut(session as usize) else { return };
        if !paths.are_several() {
            return;
        }
        let streamed_bytes =
            core.session(session).map_or(0, |it| it.segments.delivered_by_stream());
        if std::mem::replace(&mut paths.streamed_bytes, streamed_bytes) != streamed_bytes {
            paths.streamed_ns = now_ns;
        }
        let (streams_at, streamed_ns) = (paths.stream_at, paths.streamed_ns);
        let mut changes = Vec::new();
        let was_open = paths.primary_at().is_some();
        paths.is_doubtful = false;
        let mut active = paths.all().filter(|path| path.is_active()).count();
        for index in 0..=paths.standby.len() {
            let reference = paths
                .all()
                .enumerate()
                .filter(|&(other, _)| other != index)
                .filter_map(|(_, path)| path.rail_health.as_deref()?.reference())
                .max_by_key(|reference| reference.sent_ns);
            let path = debug_assert_some!(paths.get_mut(index), "the paths stay where they are");
            let Some(path) = path else { break };
            let mut evidence = path.evidence();
            (evidence.bulk_ns, evidence.is_stalled) =
                core.session(session).map_or((0, false), |it| {
                    it.lanes.evidence(&it.rails, core.lanes(), path.at, now_ns)
                });
            if path.at == streams_at {
                evidence.bulk_ns = evidence.bulk_ns.max(streamed_ns);
            }
            let health = debug_assert_some!(&mut path.rail_health, "each of several has a health");
            let Some(health) = health else { continue };
            let is_needed = active == 0;
            if let Some(change) = health.observe(now_ns, &evidence, reference, is_needed) {
                if !path.is_off {
                    active += usize::from(change.to == PathPhase::Active);
                    active -= usize::from(change.from == PathPhase::Active);
                }
                changes.push((path.at, path.number, change));
                path.is_held |= matches!(change.to, PathPhase::Suspect | PathPhase::Down);
                path.needs_sum |= change.to == PathPhase::Down;
            }
            let timers = &mut self.timers;
            if health.take_probe(now_ns) {
                path.packets.ask();
                path.wake_at(now_ns, session, timers);
            }
            if let Some(next_ns) = path.rail_health.as_deref().and_then(RailHealth::next_ns) {
                path.wake_at(next_ns.max(now_ns + 100_000), session, timers);
            } else if evidence.probes > 0 && reference.is_some() {
                let soon_ns = now_ns + evidence.round_trip_max_ns.max(500_000);
                path.wake_at(soon_ns, session, timers);
            }
            // A path that is down, or never was up, is probed by its own timers; others need no
            // probes for it.
            let health = path.rail_health.as_deref();
            let is_settled = health.is_some_and(|health| {
                health.is_down()
                    || health.has_never_answered()
                    || (health.is_active() && evidence.probes == 0)
            });
            paths.is_doubtful |= !is_settled;
        }
        debug_assert_eq!(
            active,
            paths.all().filter(|path| path.is_active()).count(),
            "changes are counted"
        );
        paths.silent_since_ns = match paths.silent_since_ns {
            _ if active > 0 => None,
            since => Some(since.unwrap_or(now_ns)),
        };
        // The others provide reference acknowledgements.
        let probed = paths.all().filter(|path| path.packets.load().2 > 0);
        if let Some(probed_ns) = probed.map(|path| path.packets.probed_ns()).max() {
            let timers = &mut self.timers;
            for path in paths.all_mut() {
                let (_, _, probes) = path.packets.load();
                if probes == 0 && path.packets.asked_ns() < probed_ns {
                    path.packets.ask();
                    path.wake_at(now_ns, session, timers);
                }
            }
        }
        for (at, number, change) in changes {
            self.path_changed(core, now_ns, session, (at, number), change);
        }
        if active > 0 {
            self.leave_mute_paths(core, now_ns, session);
        } else {
            self.try_mute_paths(core, now_ns, session);
        }
        self.choose_primary(core, now_ns, session);
        let paths = self.by_slot.get(session as usize);
        if was_open && paths.is_some_and(|paths| paths.primary_at().is_none()) {
            // By TCP, as far as possible: segments in flight may be lost with the path.
            core.with(session, |it, cx| it.segments.resend_all(cx, false));
        }
    }

    /// Selects the control lane for long messages where it uses the primary path: it is as near and
    /// as fast then, and known to work.
    ///
    /// RR-DGRAM-12.
    pub(crate) fn choose_stream(&self, core: &mut Core, session: u32) {
        let Some(paths) = self.by_slot.get(session as usize) else { return };
        let known = core.sessions.at(session as usize);
        let is_there = known.is_some_and(|known| !known.control_lane.is_lost())
            && (!paths.are_several() || paths.primary_at() == Some(paths.stream_at));
        let has_stream = is_there && core.shared.config.eager_by_stream;
        core.with(session, |it, cx| it.use_stream(cx, has_stream));
    }

    /// Suspects the path of a lane that the peer has abandoned because the path fails there.
    ///
    /// RR-RAIL-5.
    pub(crate) fn suspect_path_of(&mut self, core: &mut Core, now_ns: u64, lane: Id) {
        let Some(bulk) = core.shared.lanes.get(lane) else { return };
        let (session, at) = (bulk.session(), bulk.path());
        let Some(paths) = self.by_slot.get_mut(session as usize) else { return };
        let doubted = paths.all_mut().find(|path| path.at == at);
        if let Some(health) = doubted.and_then(|path| path.rail_health.as_deref_mut()) {
            health.suspect();
            self.judge_paths(core, now_ns, session);
        }
    }

    /// Enables bulk lanes on all paths where none has ever answered, since the network may drop
    /// datagrams: a lane that connects proves its path.
    ///
    /// RR-RAIL-3.
    fn try_mute_paths(&self, core: &mut Core, now_ns: u64, session: u32) {
        let paths = debug_assert_some!(self.of(session), "its paths were judged");
        let Some(paths) = paths else { return };
        let is_long = |since: u64| now_ns.saturating_sub(since) >= LAST_RESORT_NS;
        let is_mute = |path: &SessionPath| {
            path.rail_health.as_deref().is_some_and(RailHealth::has_never_answered)
        };
        if paths.silent_since_ns.is_some_and(is_long) && paths.all().all(is_mute) {
            for path in paths.all() {
                let at = usize::from(path.at);
                core.with(session, |it, mut cx| it.path_ready(&mut cx, at, now_ns));
            }
        }
    }

    /// Disables paths that never answered, once another one answers and so datagrams pass: they are
    /// no last resort any more, and their failure would not be detected.
    ///
    /// RR-RAIL-3.
    fn leave_mute_paths(&self, core: &mut Core, now_ns: u64, session: u32) {
        let known = core.sessions.at(session as usize).zip(self.of(session));
        let known = debug_assert_some!(known, "paths are of sessions in the table");
        let Some((known, paths)) = known else { return };
        let has_answered = |at: usize| {
            let mut paths = paths.all().filter(|path| usize::from(path.at) == at);
            paths.any(|path| path.rail_health.as_deref().is_some_and(|it| !it.has_never_answered()))
        };
        // The first path exists from the start where the control lane uses it.
        let is_by_tcp = |at: usize| usize::from(paths.stream_at) == at;
        let all = known.rails.paths.iter().enumerate();
        let mute = all.filter(|&(at, path)| path.is_usable && !has_answered(at) && !is_by_tcp(at));
        let mute: Vec<usize> = mute.map(|(at, _)| at).collect();
        for at in mute {
            core.with(session, |it, mut cx| it.path_lost(&mut cx, at, now_ns));
        }
    }

    fn path_changed(
        &self,
        core: &mut Core,
        now_ns: u64,
        session: u32,
        (at, number): (u8, u16),
        change: Transition,
    ) {
        let path = self.of(session).and_then(|paths| paths.all().find(|path| path.at == at));
        // A path that never answered carries nothing, or is the last resort in a network that drops
        // datagrams: for diagnostics only.
        let health = path.and_then(|path| path.rail_health.as_deref());
        let is_mute = health.is_some_and(RailHealth::has_never_answered);
        match change.to {
            _ if is_mute => {}
            PathPhase::Active => {
                core.with(session, |it, mut cx| it.path_ready(&mut cx, at.into(), now_ns));
            }
            PathPhase::Suspect | PathPhase::Down => {
                core.with(session, |it, mut cx| it.path_lost(&mut cx, at.into(), now_ns));
            }
            PathPhase::Probing => {}
        }
        let known = core.sessions.at_mut(session as usize);
        let known = debug_assert_some!(known, "paths are of sessions in the table");
        let Some(known) = known else { return };
        known.rails.note_change(usize::from(at), change.cause, now_ns);
        let remote = known.rails.paths.get(usize::from(at)).and_then(|path| path.remote);
        let (initiators, acceptors) = rails_of(number);
        let rail = if known.connection.is_initiator() { initiators } else { acceptors };
        let peer = RemoteName { engine: known.engine, locators: known.locators, endpoint: 0 };
        let remote = remote.unwrap_or(known.locators.first().ip());
        core.shared.actions.push_back(Action::PathChanged { peer, rail, remote, change });
    }
}
