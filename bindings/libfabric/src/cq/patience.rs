//! What a thread does that reads a queue in vain.
//!
//! It may look as fast as it can: that is how a message is had soonest. But where threads outnumber
//! cores, the one that is waited for may be the one that waits for this core, and a time slice of
//! 3 ms would be spent on looks. There it gives the core away. Not so beside other programs: they
//! would have all of the core's time, and each message wait for the end of their slices.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Looks in vain, in a row, after which the core may be given away: some 20 us, in which the answer
/// to a message comes if its sender runs.
const LOOKS: u32 = 32;

/// Looks after which it is asked anew whether threads outnumber cores.
const ASK_EVERY: u32 = 1024;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Patience {
    /// Looks in vain in a row.
    vain: AtomicU32,
    is_crowded: AtomicBool,
}

impl Patience {
    /// Something was there.
    #[inline]
    pub(super) fn restore(&self) {
        if self.vain.load(Ordering::Relaxed) > 0 {
            self.vain.store(0, Ordering::Relaxed);
        }
    }

    /// Nothing was there. `engines` says how many of them this host has, as far as is known.
    #[inline]
    pub(super) fn lose(&self, engines: impl FnOnce() -> usize) {
        let vain = self.vain.load(Ordering::Relaxed) + 1;
        self.vain.store(vain, Ordering::Relaxed);
        if vain >= LOOKS {
            self.end(vain, engines);
        }
    }

    #[cold]
    fn end(&self, vain: u32, engines: impl FnOnce() -> usize) {
        if vain == LOOKS || vain >= ASK_EVERY {
            self.vain.store(LOOKS, Ordering::Relaxed);
            let is_crowded = engines() > cores();
            self.is_crowded.store(is_crowded, Ordering::Relaxed);
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
    fn it_is_asked_seldom_and_where_threads_outnumber_cores_the_core_is_given_away() {
        let patience = Patience::default();
        let mut asked = 0;
        let mut look = |times: u32, engines: usize| {
            for _ in 0..times {
                patience.lose(|| {
                    asked += 1;
                    engines
                });
            }
            (std::mem::take(&mut asked), patience.is_crowded.load(Ordering::Relaxed))
        };
        assert_eq!(look(LOOKS - 1, usize::MAX), (0, false));
        assert_eq!(look(1, usize::MAX), (1, true));
        assert_eq!(look(ASK_EVERY - LOOKS, 1), (1, false));
        patience.restore();
        assert_eq!(look(LOOKS - 1, usize::MAX), (0, false));
    }
}
