//! When deadlines are checked, and the health of peers and lanes.

/// Interval of deadline checks, in nanoseconds.
pub(super) const TICK_NS: u64 = 1_000_000;
/// Time between two checks of peers that do not answer and of idle lanes.
pub(super) const HEALTH_NS: u64 = 100_000_000;
/// A loop that comes so much too late has not run: what arrived meanwhile is older than any
/// deadline that passed. Twice the longest sleep of a loop that waits.
const LATE_NS: u64 = 200_000_000;
/// Time for reading data received during a suspension, before deadlines count again.
const CATCH_UP_NS: u64 = 10_000_000;

/// When the next checks are due.
#[derive(Debug, Default)]
pub(crate) struct Ticks {
    next_ns: u64,
    /// The last tick was skipped, because the loop was suspended.
    is_catching_up: bool,
    next_health_ns: u64,
}

impl Ticks {
    /// Returns whether a tick is due.
    #[inline(always)]
    pub(super) fn is_due(&self, now_ns: u64) -> bool {
        now_ns >= self.next_ns
    }

    /// Begins a tick that is due. Returns whether deadlines count in it.
    pub(super) fn begin(&mut self, now_ns: u64) -> bool {
        // Once: a loop that is always late has deadlines, too.
        let is_late = now_ns - self.next_ns > LATE_NS && !self.is_catching_up;
        self.is_catching_up = is_late;
        self.next_ns = now_ns + if is_late { CATCH_UP_NS } else { TICK_NS };
        !is_late
    }

    /// Returns whether the health of peers and lanes is checked in this tick.
    pub(super) fn begin_health(&mut self, now_ns: u64) -> bool {
        let is_due = now_ns >= self.next_health_ns;
        if is_due {
            self.next_health_ns = now_ns + HEALTH_NS;
        }
        is_due
    }
}
