//! Measures how fast this engine copies received data into the memory of receives.

use super::clock::Clock;
use crate::proto::session::eager_limit::CopySpeed;

/// Minimum length of measured copies, in bytes: shorter ones stay in the nearest cache.
const MEASURED_BYTES_MIN: usize = 16 << 10;

/// One out of this many is measured.
const MEASURED_ONE_IN: u8 = 8;

/// Measures the duration of a long copy at intervals.
#[derive(Debug)]
pub(crate) struct CopyMeter {
    clock: Clock,
    unmeasured: u8,
    speed: CopySpeed,
}

impl CopyMeter {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { clock, unmeasured: 0, speed: CopySpeed::default() }
    }

    /// Runs `copy`, which copies this many bytes.
    #[inline(always)]
    pub(crate) fn run(&mut self, bytes: usize, copy: impl FnOnce()) {
        // One call of `copy`, so that what it uses stays in registers.
        let began_ns = if bytes < MEASURED_BYTES_MIN { None } else { self.begin_long() };
        copy();
        if let Some(began_ns) = began_ns {
            self.end_long(bytes, began_ns);
        }
    }

    /// Returns the time at which a long copy begins, if it is measured.
    #[cold]
    fn begin_long(&mut self) -> Option<u64> {
        self.unmeasured += 1;
        if self.unmeasured < MEASURED_ONE_IN {
            return None;
        }
        self.unmeasured = 0;
        Some(self.clock.now_ns())
    }

    #[cold]
    fn end_long(&mut self, bytes: usize, began_ns: u64) {
        self.speed.handle_copy(bytes, self.clock.now_ns().saturating_sub(began_ns));
    }

    #[inline]
    pub(crate) fn speed(&self) -> CopySpeed {
        self.speed
    }
}
