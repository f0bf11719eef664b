//! The clock of an engine.

#[cfg(feature = "bench")]
use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(feature = "bench")]
static SLOWNESS: AtomicU64 = AtomicU64::new(1);

/// Makes the clock of engines created from now on slower by this factor.
#[cfg(feature = "bench")]
pub(crate) fn slow_down(times: u64) {
    SLOWNESS.store(times, Ordering::Relaxed);
}

/// Returns whether that was called: then time is no measure of an owner's absence.
#[cfg(feature = "bench")]
pub(super) fn is_slowed_down() -> bool {
    SLOWNESS.load(Ordering::Relaxed) > 1
}

/// Time source of an engine.
#[derive(Clone, Debug)]
pub(crate) enum Clock {
    /// A monotonic clock, relative to this tick.
    Since(quanta::Clock, u64),
    /// The same for an engine that is slowed down by this factor.
    #[cfg(feature = "bench")]
    Slowed(quanta::Clock, u64, u64),
    /// The virtual time of the world that this thread simulates.
    #[cfg(any(test, feature = "sim"))]
    Virtual,
}

impl Clock {
    /// Starts a clock.
    pub(super) fn start() -> Self {
        let clock = quanta::Clock::new();
        let start = clock.raw();
        #[cfg(feature = "bench")]
        if let slowness @ 2.. = SLOWNESS.load(Ordering::Relaxed) {
            return Self::Slowed(clock, start, slowness);
        }
        Self::Since(clock, start)
    }

    #[inline(always)]
    pub(super) fn now_ns(&self) -> u64 {
        match self {
            Self::Since(clock, start) => clock.delta_as_nanos(*start, clock.raw()),
            #[cfg(feature = "bench")]
            Self::Slowed(clock, start, slowness) => {
                clock.delta_as_nanos(*start, clock.raw()) / slowness
            }
            #[cfg(any(test, feature = "sim"))]
            Self::Virtual => crate::hooks::simulated::now_ns(),
        }
    }
}
