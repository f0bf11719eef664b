//! Waiting for progress: spinning, then sleeping until the driver has events.

use std::time::{Duration, Instant};

use crossbeam_utils::Backoff;

use super::engine::Engine;
use super::ticks::TICK_NS;
use crate::proto::ready::Work;
use crate::types::Error;

/// The longest sleep while a ring has no space, though its reader announces free space: it may be
/// one that does not.
const FULL_RING: Duration = Duration::from_millis(1);
/// The longest sleep while something is outstanding.
const SLEEP_MAX: Duration = Duration::from_millis(100);
/// The same while nothing is.
pub(super) const NOTHING_DUE: Duration = Duration::from_secs(3600);

impl Engine {
    /// Makes progress until `done` returns a value or `deadline` passes (`Ok(None)` then). Spins
    /// first, then sleeps until the driver has events.
    pub(crate) fn wait<T>(
        &mut self,
        deadline: Option<Instant>,
        mut done: impl FnMut(&mut Self) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let mut idle_since: Option<Instant> = None;
        let mut turns = 0u32;
        let backoff = Backoff::new();
        loop {
            let happened = self.progress()?;
            if let Some(value) = done(self) {
                return Ok(Some(value));
            }
            if happened {
                idle_since = None;
                turns = 0;
                backoff.reset();
                if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                    return Ok(None);
                }
                continue;
            }
            turns += 1;
            if !turns.is_multiple_of(8) {
                std::hint::spin_loop();
                continue;
            }
            let now = Instant::now();
            if deadline.is_some_and(|deadline| now >= deadline) {
                return Ok(None);
            }
            let since = *idle_since.get_or_insert(now);
            if now - since >= self.state.config.spin {
                self.park(deadline.map(|deadline| deadline - now))?;
                turns = 0;
            } else {
                // Where threads outnumber cores, the thread that is waited for gets a time slice.
                backoff.snooze();
            }
        }
    }

    /// Sleeps until the driver has events, a deadline of the protocol is near, or `limit`.
    pub(crate) fn park(&mut self, limit: Option<Duration>) -> Result<(), Error> {
        let sleep = self.prepare_to_sleep(limit.unwrap_or(SLEEP_MAX));
        if let Err(error) = self.driver.park(sleep, &mut self.events) {
            return Err(self.fail_driver("the driver cannot wait", error));
        }
        self.state.read_clock();
        self.state.datagrams.note_sleep();
        self.handle_events();
        Ok(())
    }

    /// Prepares a sleep on the driver's `wake_fd`: returns how long it may last. Later calls on the
    /// engine may shorten it, and are followed by another call of this.
    pub(super) fn arm(&mut self) -> Result<Duration, Error> {
        let mut sleep = self.prepare_to_sleep(SLEEP_MAX);
        if self.state.due_in().is_none() {
            // Nothing is unacknowledged; silent peers are probed.
            sleep = self.state.engines_asked_in().unwrap_or(NOTHING_DUE).min(NOTHING_DUE);
        }
        self.state.datagrams.note_sleep();
        let armed = self.driver.arm(sleep);
        armed.map_err(|error| self.fail_driver("the driver cannot wait", error))
    }

    /// Lets the driver watch everything, sends what must not wait, and returns the next deadline.
    fn prepare_to_sleep(&mut self, limit: Duration) -> Duration {
        self.watch_polled();
        self.state.read_clock();
        self.acknowledge_all();
        let mut cx = self.setup();
        cx.bulk.quickack(u64::MAX, &mut cx.lanes);
        self.state.watch_datagrams(&mut self.driver);
        let state = &mut *self.state;
        let has_pieces =
            state.core.shared().ready().len(Work::Piece) > 0 && !state.rings.is_some_full();
        if state.core.shared().rendezvous().has_readable() || has_pieces {
            // The driver reports neither data to read nor space to write.
            return Duration::ZERO;
        }
        let mut sleep = limit.min(SLEEP_MAX);
        if state.rings.is_some_full() {
            sleep = sleep.min(FULL_RING);
        }
        if let Some(deadline_ns) = state.next_deadline_ns() {
            let left = deadline_ns.saturating_sub(state.now_ns).max(TICK_NS);
            sleep = sleep.min(Duration::from_nanos(left));
        }
        if let Some(timer_ns) = state.paths.next_timer_ns() {
            sleep = sleep.min(Duration::from_nanos(timer_ns.saturating_sub(state.now_ns)));
        }
        // What ends the sleep is handled by the next turn.
        state.deferred.end();
        sleep
    }
}
