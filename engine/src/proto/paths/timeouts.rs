//! Timeouts of paths.

use super::super::core::Core;
use super::super::effects::Effects;
use super::timers::Timers;
use super::{Index, PathCx, PathTable, SessionPath};

/// An expired timer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeout {
    /// Its time, as [`PathTable::poll_timeout`] returned it.
    pub(crate) at_ns: u64,
    pub(crate) now_ns: u64,
    /// Upper bound of the age of received packets that are not handled.
    pub(crate) late_ns: u64,
    /// All packets received before the turn are handled.
    pub(crate) is_drained: bool,
}

impl PathTable {
    /// Returns whether any session has a timer, so that the time matters.
    #[inline]
    pub(crate) fn has_timers(&self) -> bool {
        !self.shared.timers.is_empty()
    }

    /// Returns the earliest timer of all sessions.
    pub(crate) fn next_timer_ns(&mut self) -> Option<u64> {
        let all = &self.by_slot;
        self.shared.timers.next_ns(|at_ns, session| Timers::stands(all, at_ns, session))
    }

    /// Begins handling all timers up to `until_ns`.
    #[inline]
    pub(crate) fn begin_timeouts(&mut self, until_ns: u64) {
        self.shared.timers.begin(until_ns);
    }

    /// Removes the next timer up to `until_ns`, and returns it with its session.
    #[inline]
    pub(crate) fn poll_timeout(&mut self, until_ns: u64) -> Option<(u64, u32)> {
        self.shared.timers.pop(until_ns)
    }

    /// Sweeps out stale entries, after timers were handled.
    pub(crate) fn end_timeouts(&mut self) {
        let Self { by_slot: all, shared } = self;
        let count = shared.by_session.len() + shared.standing_by;
        shared.timers.sweep(count, |at_ns, session| Timers::stands(all, at_ns, session));
    }

    /// Handles an expired timer of a path. Returns `false` if it is not the path's.
    pub(crate) fn handle_timeout(
        &mut self,
        core: &mut Core,
        (slot, index): (u32, Index),
        timeout: Timeout,
        effects: &mut impl Effects,
    ) -> bool {
        let Some((paths, session, PathCx { cx, shared })) = self.enter(core, slot) else {
            return false;
        };
        paths.note_use(slot, &mut shared.in_use);
        let Some(path) = paths.get_mut(index) else { return false };
        let handled = path.handle_timeout(shared, slot, timeout);
        if handled.is_some() {
            path.deliver_events(session, cx, effects);
        }
        if handled == Some(true) {
            path.try_fallback();
        }
        handled.is_some()
    }

    /// Evaluates the paths of a session that has several, after their timers were handled.
    pub(crate) fn judge_after_timeout(&mut self, core: &mut Core, now_ns: u64, slot: u32) {
        let entered = self.enter(core, slot).filter(|(paths, ..)| paths.are_several());
        if let Some((paths, session, mut cx)) = entered {
            paths.ask_while_busy(session, &mut cx, now_ns);
            paths.judge(session, &mut cx, now_ns);
        }
    }

    /// Schedules acknowledgements to be sent before the loop sleeps, as none will be until it
    /// wakes, and applies deferred ones. Returns the sessions with work since it slept last, in
    /// order, each once; [`Self::end_acknowledge_all`] takes the list back.
    pub(crate) fn begin_acknowledge_all(&mut self) -> Vec<u32> {
        let mut awake = std::mem::take(&mut self.shared.awake);
        awake.sort_unstable();
        awake.dedup();
        for &slot in &awake {
            let entry = debug_assert_some!(self.paths_of(slot), "slots of paths stay");
            if let Some((paths, _)) = entry {
                paths.all_mut().for_each(SessionPath::acknowledge_before_sleep);
            }
        }
        awake
    }

    /// Takes back the list of [`Self::begin_acknowledge_all`] after the acknowledgements were sent.
    pub(crate) fn end_acknowledge_all(&mut self, mut awake: Vec<u32>) {
        awake.clear();
        // Nothing is received meanwhile.
        if self.shared.awake.is_empty() {
            self.shared.awake = awake;
        }
    }
}
