//! When paths want a turn.

use super::super::core::Core;
use super::super::effects::Effects;
use super::path::Health;
use super::timers::Timers;
use super::{Index, PathTable, Paths};

/// A time that has come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeout {
    /// As [`PathTable::poll_timeout`] gave it.
    pub(crate) at_ns: u64,
    pub(crate) now_ns: u64,
    /// How long ago what is not handled may have come, at the most.
    pub(crate) late_ns: u64,
    /// Nothing is left that came before the turn began.
    pub(crate) is_drained: bool,
}

impl PathTable {
    /// Whether some session wants a turn, so that the time counts.
    #[inline]
    pub(crate) fn has_timers(&self) -> bool {
        !self.timers.is_empty()
    }

    /// The earliest time at which a session wants a turn.
    pub(crate) fn next_timer_ns(&mut self) -> Option<u64> {
        let all = &self.by_slot;
        self.timers.next_ns(|at_ns, session| Timers::stands(all, at_ns, session))
    }

    /// The turns of all times up to `until_ns` begin.
    #[inline]
    pub(crate) fn begin_timeouts(&mut self, until_ns: u64) {
        self.timers.begin(until_ns);
    }

    /// The next session that a time up to `until_ns` was set for, and that time.
    #[inline]
    pub(crate) fn poll_timeout(&mut self, until_ns: u64) -> Option<(u64, u32)> {
        self.timers.pop(until_ns)
    }

    /// Times were handled: those that stand for nothing any more are swept out.
    pub(crate) fn end_timeouts(&mut self) {
        let (all, count) = (&self.by_slot, self.by_session.len() + self.standing_by);
        self.timers.sweep(count, |at_ns, session| Timers::stands(all, at_ns, session));
    }

    /// Does what a path wants at a time that has come. `false`: it is none of its.
    pub(crate) fn handle_timeout(
        &mut self,
        core: &mut Core,
        (session, index): (u32, Index),
        timeout: Timeout,
        effects: &mut impl Effects,
    ) -> bool {
        let Timeout { at_ns, now_ns, late_ns, is_drained } = timeout;
        let Some(paths) = self.by_slot.get_mut(session as usize) else { return false };
        paths.note_use(session, &mut self.in_use);
        let path = paths.get_mut(index);
        let Some(path) = path.filter(|path| path.timer_ns == at_ns) else { return false };
        path.timer_ns = u64::MAX;
        path.stay_awake(session, &mut self.awake);
        path.packets.start_turn(late_ns);
        let is_probe_due = path.handle_timeout(now_ns, is_drained);
        path.tell(core, session, effects);
        if is_probe_due && path.health == Health::Silent {
            // One of the two may answer.
            std::mem::swap(&mut path.remote, &mut path.fallback);
        }
        true
    }

    /// The times of a session's paths were handled: where there are several all are looked at.
    pub(crate) fn judge_after_timeout(&mut self, core: &mut Core, now_ns: u64, session: u32) {
        if self.of(session).is_some_and(Paths::are_several) {
            self.ask_while_busy(core, now_ns, session);
            self.judge_paths(core, now_ns, session);
        }
    }

    /// Before the loop sleeps: what arrived is acknowledged with what is sent next, as nobody
    /// answers until it wakes, and what was put off is applied. The sessions with something to do
    /// since it slept last, in order, each once; [`Self::end_hasten_acks`] takes the list back.
    pub(crate) fn hasten_acks(&mut self) -> Vec<u32> {
        let mut awake = std::mem::take(&mut self.awake);
        awake.sort_unstable();
        awake.dedup();
        for &session in &awake {
            let Some(paths) = self.by_slot.get_mut(session as usize) else { continue };
            for path in paths.all_mut() {
                path.is_awake = false;
                path.packets.apply_deferred_ack();
                path.packets.quickack();
            }
        }
        awake
    }

    /// What [`Self::hasten_acks`] gave was sent.
    pub(crate) fn end_hasten_acks(&mut self, mut awake: Vec<u32>) {
        awake.clear();
        // Nothing is read meanwhile.
        if self.awake.is_empty() {
            self.awake = awake;
        }
    }
}
