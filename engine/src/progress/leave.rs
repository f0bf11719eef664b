//! Shutdown of an endpoint and of an engine: operations end, goodbyes are sent, and resources are
//! freed.

use std::time::{Duration, Instant};

use super::completions::Completions;
use super::engine::{Engine, EngineState};

/// Time for the kernel to release memory after lanes were reset.
pub(crate) const LET_GO: Duration = Duration::from_secs(2);

impl EngineState {
    fn has_borrowed_memory(&self) -> bool {
        let completions = &self.completions;
        self.core.shared().closed_operations().any(|(id, _)| completions.is_borrowed(id))
    }
}

impl Engine {
    /// Closes an endpoint: its receives end, its sends are sent, for at most `linger`, and then end
    /// as well. No memory is borrowed for its operations when this returns; buffers that the kernel
    /// does not release in time stay with the engine.
    pub(crate) fn close_endpoint(&mut self, endpoint: u16) {
        let deadline = Instant::now() + self.state.config.linger;
        self.with_requests(|it| it.close_endpoint(endpoint));
        let state = &mut *self.state;
        state.completions.events_mut().unbind(endpoint);
        state.core.close_endpoint(endpoint, &mut state.completions);
        if !self.end_operations(deadline) && self.state.has_borrowed_memory() {
            // Lanes are closed already; the only remaining option ends the rest of the engine as
            // well.
            self.shut_down();
        }
    }

    /// Sends goodbyes to all peers, waits for their delivery (at most `linger`), and frees
    /// everything. Outstanding operations end, at the latest then.
    pub(crate) fn close(mut self) {
        self.state.note_transports(&self.driver);
        let linger = self.state.config.linger;
        let deadline = Instant::now() + linger;
        for endpoint in self.state.core.shared().endpoints().numbers() {
            self.with_requests(|it| it.close_endpoint(endpoint));
            let state = &mut *self.state;
            state.core.close_endpoint(endpoint, &mut state.completions);
        }
        self.end_operations(deadline);
        // Peers that read their data must get a goodbye, even if another peer does not.
        let deadline = deadline.max(Instant::now() + linger / 4);
        let flushed = |engine: &mut Self| {
            let EngineState { core, controls, .. } = &*engine.state;
            let is_done = core.sessions().iter().all(|(id, session)| {
                !session.is_connected()
                    || session.peer().id() == core.shared().engine()
                    || (session.is_settled() && !controls.has_unsent(id.index() as u32))
            });
            is_done.then_some(())
        };
        let _ = self.wait(Some(deadline), flushed);
        for session in 0..self.state.core.sessions().slots() {
            self.state.core.leave(session as u32);
        }
        let gone = |engine: &mut Self| {
            let mut sessions = engine.state.core.sessions().iter();
            let own = engine.state.core.shared().engine();
            sessions
                .all(|(_, session)| !session.is_connected() || session.peer().id() == own)
                .then_some(())
        };
        let _ = self.wait(Some(deadline), gone);
        if !self.shut_down() {
            // The kernel may still write there: memory that is never reused cannot be corrupted.
            tracing::warn!("the kernel did not release all buffers in time; they are leaked");
            self.state.arena.leak();
            std::mem::forget(std::mem::replace(&mut self.state.completions, Completions::new(0)));
        }
    }

    /// Ends the operations of closed endpoints. Sends are sent until `deadline`, then their lanes
    /// are reset. Returns `false` if the kernel still has memory of some.
    fn end_operations(&mut self, deadline: Instant) -> bool {
        // Notifications of cancelled receives are sent as well.
        self.work();
        if !self.state.core.shared().has_closed() {
            return true;
        }
        // A driver that fails is detected again below.
        let _ = self.wait(Some(deadline), |engine| {
            (!engine.state.core.shared().is_sending_of_closed()).then_some(())
        });
        let state = &mut *self.state;
        state.core.cancel_closed(|_| true, &mut state.completions);
        self.work();
        if !self.state.core.shared().has_closed() {
            return true;
        }
        self.setup().lanes.reset_closing_lanes();
        let ended = |engine: &mut Self| (!engine.state.core.shared().has_closed()).then_some(());
        matches!(self.wait(Some(Instant::now() + LET_GO), ended), Ok(Some(())))
    }

    /// Ends the driver, and the outstanding operations of closed endpoints. Returns `false` if the
    /// kernel still has memory, all of which the engine owns: with borrowed memory the process
    /// cannot continue.
    fn shut_down(&mut self) -> bool {
        let is_done = match &self.failure {
            Some(failure) => failure.is_released(),
            None => self.driver.shutdown(LET_GO),
        };
        if is_done {
            let state = &mut *self.state;
            state.core.drop_closed(&mut state.completions);
        } else if self.state.has_borrowed_memory() {
            tracing::error!(
                "the kernel does not release memory that was borrowed for an operation, and its \
                 endpoint is closed: the process ends before that memory is used for something else"
            );
            std::process::abort();
        }
        is_done
    }
}
