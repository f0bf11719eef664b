//! When the loop visits a path: its timer, and the lists of sessions that have it.

use super::timers::Timers;

/// Interval of probes on a path whose TCP lanes are busy and that has no other packets outstanding,
/// in nanoseconds.
const LANE_PROBE_NS: u64 = 2_000_000;

/// See the module.
#[derive(Debug)]
pub(super) struct PathVisits {
    /// Its earliest entry among the timers.
    timer_ns: u64,
    /// No probe for the sake of TCP lanes before this time.
    lane_probe_ns: u64,
    /// Packets arrived, and it has not been drained since.
    has_update: bool,
    /// It had work since the loop slept, and its session is in that list.
    is_awake: bool,
}

impl PathVisits {
    /// Creates those of a path without work.
    pub(super) fn new() -> Self {
        Self { timer_ns: u64::MAX, lane_probe_ns: 0, has_update: false, is_awake: false }
    }

    /// Returns whether it has a timer at that time.
    #[inline]
    pub(super) fn has_timer_at(&self, at_ns: u64) -> bool {
        self.timer_ns == at_ns
    }

    /// Returns whether its timer expires at that time or before.
    #[inline]
    pub(super) fn is_visited_by(&self, at_ns: u64) -> bool {
        self.timer_ns <= at_ns
    }

    /// Takes the timer that has expired. Returns `false` if it is not the path's.
    pub(super) fn take_timer(&mut self, at_ns: u64) -> bool {
        let is_its = self.has_timer_at(at_ns);
        if is_its {
            self.timer_ns = u64::MAX;
        }
        is_its
    }

    /// Sets a timer at `at_ns` at the latest.
    pub(super) fn wake_at(&mut self, at_ns: u64, slot: u32, timers: &mut Timers) {
        if timers.at(at_ns) < self.timer_ns {
            self.timer_ns = timers.push(at_ns, slot);
            debug_assert!(self.timer_ns != u64::MAX, "a timer that is set expires");
        }
    }

    /// Notes that it has work: the loop visits it before it sleeps.
    #[inline]
    pub(super) fn stay_awake(&mut self, slot: u32, awake: &mut Vec<u32>) {
        if !std::mem::replace(&mut self.is_awake, true) {
            awake.push(slot);
        }
    }

    /// Notes that it is visited before the loop sleeps.
    pub(super) fn end_awake(&mut self) {
        self.is_awake = false;
    }

    /// Notes that a packet has arrived: the path is drained after the packets of this turn.
    #[inline(always)]
    pub(super) fn note_update(&mut self, slot: u32, to_drain: &mut Vec<u32>) {
        if !std::mem::replace(&mut self.has_update, true) {
            to_drain.push(slot);
        }
    }

    /// Takes the note that packets have arrived before the list is visited; if the last entry of
    /// the list is for that, the entry, too.
    #[inline]
    pub(super) fn take_latest_update(&mut self, slot: u32, to_drain: &mut Vec<u32>) {
        if self.take_update() && to_drain.last() == Some(&slot) {
            to_drain.pop();
        }
    }

    /// Takes the note that packets have arrived.
    #[inline]
    pub(super) fn take_update(&mut self) -> bool {
        std::mem::take(&mut self.has_update)
    }

    /// Returns whether it may be probed for the sake of TCP lanes, and defers the next such probe.
    pub(super) fn take_lane_probe(&mut self, now_ns: u64) -> bool {
        let is_due = self.is_lane_probe_due(now_ns);
        if is_due {
            self.lane_probe_ns = now_ns + LANE_PROBE_NS;
        }
        is_due
    }

    /// Returns whether it may be probed for the sake of TCP lanes.
    pub(super) fn is_lane_probe_due(&self, now_ns: u64) -> bool {
        now_ns >= self.lane_probe_ns
    }

    /// Sets a timer for the next probe for the sake of TCP lanes.
    pub(super) fn wake_for_lane_probe(&mut self, slot: u32, timers: &mut Timers) {
        self.wake_at(self.lane_probe_ns, slot, timers);
    }

    /// Returns the time of its timer.
    pub(super) fn timer_ns(&self) -> u64 {
        self.timer_ns
    }

    /// Checks that the lists have its session, where they have to.
    #[cfg(any(test, feature = "sim"))]
    pub(super) fn check(&self, slot: u32, to_drain: &[u32], awake: &[u32], timers: &Timers) {
        assert!(!self.has_update || to_drain.contains(&slot), "it is drained");
        assert!(!self.is_awake || awake.contains(&slot), "it is visited");
        let is_timed = timers.contains(self.timer_ns, slot);
        assert!(self.timer_ns == u64::MAX || is_timed, "a timer that is set expires");
    }

    /// Returns whether packets have arrived since it was drained.
    #[cfg(test)]
    pub(super) fn has_update(&self) -> bool {
        self.has_update
    }
}
