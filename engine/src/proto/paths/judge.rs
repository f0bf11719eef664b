//! Evaluation of paths in sessions with several.

use super::super::context::Cx;
use super::super::core::{Action, Core};
use super::super::effects::RemoteName;
use super::super::session::rails::health::{PathPhase, Transition};
use super::super::session::rails::{LAST_RESORT_NS, rails_of};
use super::super::table::Id;
use super::path::SessionPath;
use super::{PathCx, PathTable, Paths};
use crate::proto::session::Session;

impl PathTable {
    /// Notes data received on a session's stream: its throughput counts like that of datagrams. It
    /// gives no round-trip sample: while long messages are exchanged, acknowledgements of short
    /// ones are delayed.
    pub(crate) fn note_stream(&mut self, core: &mut Core, now_ns: u64, slot: u32) {
        self.with_known(core, slot, |paths, session, mut cx| {
            if paths.are_several() {
                paths.note_stream(session, &mut cx, now_ns);
            }
        });
    }

    /// Selects the control lane of a session for long messages where it uses the primary path: it
    /// is as near and as fast then, and known to work.
    ///
    /// RR-DGRAM-12.
    pub(crate) fn choose_stream(&mut self, core: &mut Core, slot: u32) {
        self.with_known(core, slot, |paths, session, PathCx { cx, .. }| {
            paths.choose_stream(session, cx);
        });
    }

    /// Suspects the path of a lane that the peer has abandoned because the path fails there.
    ///
    /// RR-RAIL-5.
    pub(crate) fn suspect_path_of(&mut self, core: &mut Core, now_ns: u64, lane: Id) {
        // The peer names the lane, which may have ended.
        let Some(bulk) = core.shared.lanes.get(lane) else { return };
        let (slot, at) = (bulk.session(), bulk.path());
        self.with_known(core, slot, |paths, session, mut cx| {
            if paths.at_mut(at).is_some_and(SessionPath::suspect) {
                paths.judge(session, &mut cx, now_ns);
            }
        });
    }
}

impl Paths {
    fn note_stream(&mut self, session: &mut Session, cx: &mut PathCx<'_, '_>, now_ns: u64) {
        self.streamed_ns = now_ns;
        let streams_at = self.stream_at;
        let is_elsewhere = self.primary_at() != Some(streams_at);
        let is_led = self.note_segments(usize::MAX, is_elsewhere);
        let path = self.at(streams_at).map(|path| path.id().number);
        self.compare_deliveries(session, cx, now_ns, path.filter(|_| is_led));
    }

    /// Compares the throughput of paths when it is time to. `theirs`: the path chosen by the peer.
    pub(super) fn compare_deliveries(
        &mut self,
        session: &mut Session,
        cx: &mut PathCx<'_, '_>,
        now_ns: u64,
        theirs: Option<u16>,
    ) {
        let is_reading = self.choice.as_ref().is_some_and(|it| it.trial.is_due(now_ns));
        if let Some(theirs) = theirs {
            self.follow(session, cx, now_ns, theirs);
        }
        if is_reading {
            self.try_others(session, cx, now_ns);
        }
    }

    /// Evaluates all paths of a session that has several: their state, and which one carries the
    /// segments.
    ///
    /// RR-RAIL-4, RR-RAIL-6.
    pub(super) fn judge(&mut self, session: &mut Session, cx: &mut PathCx<'_, '_>, now_ns: u64) {
        if !self.are_several() {
            return;
        }
        let slot = cx.slot();
        let streamed_bytes = session.segments().delivered_by_stream();
        if std::mem::replace(&mut self.streamed_bytes, streamed_bytes) != streamed_bytes {
            self.streamed_ns = now_ns;
        }
        let (streams_at, streamed_ns) = (self.stream_at, self.streamed_ns);
        let mut changes = Vec::new();
        let was_open = self.primary_at().is_some();
        self.is_doubtful = false;
        let mut active = self.all().filter(|path| path.is_active()).count();
        for index in 0..=self.standby.len() {
            let reference = self
                .all()
                .enumerate()
                .filter(|&(other, _)| other != index)
                .filter_map(|(_, path)| path.reference())
                .max_by_key(|reference| reference.sent_ns);
            let path = debug_assert_some!(self.get_mut(index), "the paths stay where they are");
            let Some(path) = path else { break };
            let mut evidence = path.evidence();
            (evidence.bulk_ns, evidence.is_stalled) = session.lanes().evidence(
                session.rails(),
                &cx.cx.shared.lanes,
                path.position(),
                now_ns,
            );
            if path.position() == streams_at {
                evidence.bulk_ns = evidence.bulk_ns.max(streamed_ns);
            }
            if let Some(change) = path.observe(now_ns, &evidence, reference, active == 0) {
                if path.is_served() {
                    active += usize::from(change.to == PathPhase::Active);
                    active -= usize::from(change.from == PathPhase::Active);
                }
                changes.push((path.position(), path.id().number, change));
            }
            let timers = (slot, &mut cx.shared.timers);
            path.schedule_evaluation(now_ns, &evidence, reference.is_some(), timers);
            let is_settled = path.is_settled(evidence.probes);
            self.is_doubtful |= !is_settled;
        }
        debug_assert_eq!(
            active,
            self.all().filter(|path| path.is_active()).count(),
            "changes are counted"
        );
        self.silent_since_ns = match self.silent_since_ns {
            _ if active > 0 => None,
            since => Some(since.unwrap_or(now_ns)),
        };
        // The others provide reference acknowledgements.
        let probed = self.all().filter(|path| path.packets().load().2 > 0);
        if let Some(probed_ns) = probed.map(|path| path.packets().probed_ns()).max() {
            let timers = &mut cx.shared.timers;
            for path in self.all_mut() {
                let (_, _, probes) = path.packets().load();
                if probes == 0 && path.packets().asked_ns() < probed_ns {
                    path.probe(now_ns, slot, timers);
                }
            }
        }
        for (at, number, change) in changes {
            self.path_changed(session, &mut cx.cx, now_ns, (at, number), change);
        }
        if active > 0 {
            self.leave_mute(session, &mut cx.cx, now_ns);
        } else {
            self.try_mute(session, &mut cx.cx, now_ns);
        }
        self.choose_primary(session, cx, now_ns);
        if was_open && self.primary_at().is_none() {
            // By TCP, as far as possible: segments in flight may be lost with the path.
            session.segments_mut().resend_all(cx.cx());
        }
    }

    /// Selects the control lane for long messages, or not.
    pub(super) fn choose_stream(&self, session: &mut Session, cx: Cx<'_>) {
        let is_there = !session.control_lane().is_lost()
            && (!self.are_several() || self.primary_at() == Some(self.stream_at));
        let is_chosen = is_there && cx.shared.eager().uses_stream();
        session.use_stream(cx, is_chosen);
    }

    /// Enables bulk lanes on all paths where none has ever answered, since the network may drop
    /// datagrams: a lane that connects proves its path.
    ///
    /// RR-RAIL-3.
    fn try_mute(&self, session: &mut Session, cx: &mut Cx<'_>, now_ns: u64) {
        let is_long = |since: u64| now_ns.saturating_sub(since) >= LAST_RESORT_NS;
        let are_mute = self.all().all(SessionPath::has_never_answered);
        if are_mute && self.silent_since_ns.is_some_and(is_long) {
            for path in self.all() {
                session.path_ready(cx, usize::from(path.position()), now_ns);
            }
        }
    }

    /// Disables paths that never answered, once another one answers and so datagrams pass: they are
    /// no last resort any more, and their failure would not be detected.
    ///
    /// RR-RAIL-3.
    fn leave_mute(&self, session: &mut Session, cx: &mut Cx<'_>, now_ns: u64) {
        let has_answered = |at: usize| {
            let path = self.all().find(|path| usize::from(path.position()) == at);
            path.is_some_and(|path| path.phase().is_some() && !path.has_never_answered())
        };
        // The first path exists from the start where the control lane uses it.
        let is_by_tcp = |at: usize| usize::from(self.stream_at) == at;
        let all = session.rails().paths.iter().enumerate();
        let mute = all.filter(|&(at, path)| path.is_usable && !has_answered(at) && !is_by_tcp(at));
        let mute: Vec<usize> = mute.map(|(at, _)| at).collect();
        for at in mute {
            session.path_lost(cx, at, now_ns);
        }
    }

    fn path_changed(
        &self,
        session: &mut Session,
        cx: &mut Cx<'_>,
        now_ns: u64,
        (at, number): (u8, u16),
        change: Transition,
    ) {
        // A path that never answered carries nothing, or is the last resort in a network that drops
        // datagrams: for diagnostics only.
        let is_mute = self.at(at).is_some_and(SessionPath::has_never_answered);
        match change.to {
            _ if is_mute => {}
            PathPhase::Active => session.path_ready(cx, at.into(), now_ns),
            PathPhase::Suspect | PathPhase::Down => session.path_lost(cx, at.into(), now_ns),
            PathPhase::Probing => {}
        }
        session.rails_mut().note_change(usize::from(at), change.cause, now_ns);
        let remote = session.rails().paths.get(usize::from(at)).and_then(|path| path.remote);
        let (initiators, acceptors) = rails_of(number);
        let rail = if session.connection().is_initiator() { initiators } else { acceptors };
        let peer = RemoteName {
            engine: session.peer().id(),
            locators: *session.peer().locators(),
            endpoint: 0,
        };
        let remote = remote.unwrap_or(session.peer().locators().first().ip());
        cx.act(Action::PathChanged { peer, rail, remote, change });
    }
}
