//! The clock of an engine.

#[cfg(feature = "bench")]
use std::sync::atomic::{AtomicU32, Ordering};

#[cfg(feature = "bench")]
static SLOWNESS: AtomicU32 = AtomicU32::new(0);

/// Makes the clock of engines created from now on slower by this factor, rounded up to a power of
/// two: a shift adds less than a division to the instructions that are counted.
#[cfg(feature = "bench")]
pub(crate) fn slow_down(times: u64) {
    SLOWNESS.store(times.max(1).next_power_of_two().ilog2(), Ordering::Relaxed);
}

/// Returns whether that was called: then time is no measure of an owner's absence.
#[cfg(feature = "bench")]
pub(super) fn is_slowed_down() -> bool {
    SLOWNESS.load(Ordering::Relaxed) > 0
}

/// Time source of an engine.
#[derive(Clone, Debug)]
pub(crate) enum Clock {
    /// A monotonic clock, relative to this tick.
    Since(quanta::Clock, u64),
    /// The same for an engine that is slowed down, by this power of two.
    #[cfg(feature = "bench")]
    Slowed(quanta::Clock, u64, u32),
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
        if let slowness @ 1.. = SLOWNESS.load(Ordering::Relaxed) {
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
                clock.delta_as_nanos(*start, clock.raw()) >> slowness
            }
            #[cfg(any(test, feature = "sim"))]
            Self::Virtual => crate::hooks::simulated::now_ns(),
        }
    }
}
