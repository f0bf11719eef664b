//! Measures how fast this engine copies received data into the memory of receives.

use super::clock::Clock;
use crate::proto::eager_limit::CopySpeed;

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
        match bytes < MEASURED_BYTES_MIN {
            true => copy(),
            false => self.run_long(bytes, copy),
        }
    }

    #[cold]
    fn run_long(&mut self, bytes: usize, copy: impl FnOnce()) {
        self.unmeasured += 1;
        if self.unmeasured < MEASURED_ONE_IN {
            return copy();
        }
        self.unmeasured = 0;
        let before_ns = self.clock.now_ns();
        copy();
        self.speed.handle_copy(bytes, self.clock.now_ns().saturating_sub(before_ns));
    }

    #[inline]
    pub(crate) fn speed(&self) -> CopySpeed {
        self.speed
    }
}
