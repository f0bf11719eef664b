//! The end of an endpoint and of an engine: operations end, goodbyes, and everything is given back.

use std::time::{Duration, Instant};

use super::completions::Completions;
use super::engine::Engine;
use super::roles::Role;
use super::traits::CloseMode;

/// Time for the kernel to let go of memory once lanes were reset.
pub(crate) const LET_GO: Duration = Duration::from_secs(2);

impl Engine {
    /// Closes an endpoint: its receives end, its sends go out, for `linger` at the most, and then
    /// end as well. No memory is lent for its operations
    /// when this returns; buffers that the kernel does not let go of in time stay with the engine.
    pub(crate) fn close_endpoint(&mut self, endpoint: u16) {
        let deadline = Instant::now() + self.state.config.linger;
        self.close_connections_of(endpoint);
        let state = &mut *self.state;
        state.completions.events.unbind(endpoint);
        state.core.close_endpoint(endpoint, &mut state.completions);
        if !self.end_operations(deadline) && self.is_memory_lent() {
            // Lanes are closed already; what is left to try takes the rest of the engine along.
            self.shut_down();
        }
    }

    /// Says goodbye to everybody, waits until it is delivered (`linger` at the most), and gives
    /// everything back. What is outstanding ends, at the latest then.
    pub(crate) fn close(mut self) {
        let linger = self.state.config.linger;
        let deadline = Instant::now() + linger;
        for endpoint in self.state.core.endpoints().numbers() {
            self.close_connections_of(endpoint);
            let state = &mut *self.state;
            state.core.close_endpoint(endpoint, &mut state.completions);
        }
        self.end_operations(deadline);
        // Those whose peers take what they get are not to go without a goodbye for another one.
        let deadline = deadline.max(Instant::now() + linger / 4);
        let flushed = |engine: &mut Self| {
            let core = &engine.state.core;
            let is_done = core.sessions().iter().all(|(id, session)| {
                !session.is_connected()
                    || session.engine == core.engine()
                    || core.is_settled(id.index() as u32)
            });
            is_done.then_some(())
        };
        let _ = self.wait(Some(deadline), flushed);
        for session in 0..self.state.core.sessions().slots() {
            self.state.core.leave(session as u32);
        }
        let gone = |engine: &mut Self| {
            let mut sessions = engine.state.core.sessions().iter();
            let own = engine.state.core.engine();
            sessions
                .all(|(_, session)| !session.is_connected() || session.engine == own)
                .then_some(())
        };
        let _ = self.wait(Some(deadline), gone);
        if !self.shut_down() {
            // The kernel may still write there: memory that is never reused cannot be corrupted.
            tracing::warn!("the kernel did not let go of all buffers in time; they are leaked");
            self.state.arena.leak();
            std::mem::forget(std::mem::replace(&mut self.state.completions, Completions::new(0)));
        }
    }

    /// Ends the operations of endpoints that are closed. Sends go out until `deadline`, then their
    /// lanes are reset. `false`: the kernel still has memory of some.
    fn end_operations(&mut self, deadline: Instant) -> bool {
        // News of receives that were given up go out as well.
        self.work();
        if !self.state.core.has_closed() {
            return true;
        }
        // A driver that fails is found again below.
        let _ = self.wait(Some(deadline), |engine| {
            (!engine.state.core.is_sending_of_closed()).then_some(())
        });
        let state = &mut *self.state;
        state.core.cancel_closed(&mut state.completions);
        self.work();
        if !self.state.core.has_closed() {
            return true;
        }
        self.reset_closing_lanes();
        let ended = |engine: &mut Self| (!engine.state.core.has_closed()).then_some(());
        matches!(self.wait(Some(Instant::now() + LET_GO), ended), Ok(Some(())))
    }

    /// Lanes that wait for their last bytes to be taken may hold memory.
    pub(super) fn reset_closing_lanes(&mut self) {
        let closing = self.state.roles.iter();
        let closing = closing.filter(|(_, role)| matches!(role, Role::Closing { .. }));
        let keys: Vec<_> = closing.map(|(key, _)| key).collect();
        for key in keys {
            self.driver.close(key, CloseMode::Reset);
        }
    }

    fn is_memory_lent(&self) -> bool {
        let completions = &self.state.completions;
        self.state.core.closed_operations().any(|(id, _)| completions.is_lent(id))
    }

    /// Ends the driver, and with it what is outstanding at endpoints that are closed. `false`: the
    /// kernel still has memory, all of which the engine owns: with memory that was lent nobody can
    /// go on.
    fn shut_down(&mut self) -> bool {
        let is_done = match &self.failure {
            Some(failure) => failure.is_released(),
            None => self.driver.shutdown(LET_GO),
        };
        if is_done {
            let state = &mut *self.state;
            state.core.drop_closed(&mut state.completions);
        } else if self.is_memory_lent() {
            tracing::error!(
                "the kernel does not let go of memory that was lent for an operation, and its \
                 endpoint is closed: the process ends before that memory is used for something else"
            );
            std::process::abort();
        }
        is_done
    }
}
