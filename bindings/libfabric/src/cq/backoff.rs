//! What a thread does that polls an empty queue.
//!
//! It polls as fast as it can: that is how a message is had soonest. But where threads outnumber
//! cores, the thread that would send it may wait for this very core, and a time slice of 3 ms would
//! be spent on polls. There it yields. Not so beside other programs: they would have all of the
//! core's time, and each message would wait for the end of their slices.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Empty polls in a row after which a thread may yield: some 20 us, in which the answer to a
/// message comes if its sender runs.
const POLLS: u32 = 32;

/// Of the polls beyond these, how many pass before engines are counted anew: that takes the lock of
/// an engine.
const COUNT_EVERY: u32 = 992;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    /// Empty polls in a row.
    empty: AtomicU32,
    /// Polls beyond [`POLLS`] until engines are counted.
    until_counted: AtomicU32,
    /// Engines outnumbered cores when they were counted last.
    is_crowded: AtomicBool,
}

impl Backoff {
    /// A poll brought something.
    #[inline]
    pub(super) fn reset(&self) {
        if self.empty.load(Ordering::Relaxed) > 0 {
            self.empty.store(0, Ordering::Relaxed);
        }
    }

    /// A poll brought nothing. `engines` counts those of this host, as far as they are known.
    #[inline]
    pub(super) fn note_empty(&self, engines: impl FnOnce() -> usize) {
        let empty = self.empty.load(Ordering::Relaxed) + 1;
        if empty < POLLS {
            self.empty.store(empty, Ordering::Relaxed);
        } else {
            self.yield_if_crowded(engines);
        }
    }

    #[cold]
    fn yield_if_crowded(&self, engines: impl FnOnce() -> usize) {
        let left = self.until_counted.load(Ordering::Relaxed).saturating_sub(1);
        self.until_counted.store(left, Ordering::Relaxed);
        if left == 0 {
            self.until_counted.store(COUNT_EVERY, Ordering::Relaxed);
            self.is_crowded.store(engines() > cores(), Ordering::Relaxed);
        }
        if self.is_crowded.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
    }
}

/// Cores for the threads of all engines on this host, as far as this process knows: its own, or, if
/// it is bound to one, all.
fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| match std::thread::available_parallelism() {
        Ok(own) if own.get() > 1 => own.get(),
        // SAFETY: it reads a number.
        _ => usize::try_from(unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }).unwrap_or(1),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_are_counted_seldom_and_where_they_outnumber_cores_it_yields() {
        let backoff = Backoff::default();
        let mut counted = 0;
        let mut poll = |times: u32, engines: usize| {
            for _ in 0..times {
                backoff.note_empty(|| {
                    counted += 1;
                    engines
                });
            }
            (std::mem::take(&mut counted), backoff.is_crowded.load(Ordering::Relaxed))
        };
        assert_eq!(poll(POLLS - 1, usize::MAX), (0, false));
        assert_eq!(poll(1, usize::MAX), (1, true));
        assert_eq!(poll(COUNT_EVERY, 1), (1, false));
        backoff.reset();
        assert_eq!(poll(POLLS - 1, usize::MAX), (0, false));
        // Nor is each long wait a reason to count.
        assert_eq!(poll(1, usize::MAX), (0, false));
    }
}
