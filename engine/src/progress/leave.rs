//! The end of an engine: goodbyes, and everything is given back.

use std::time::{Duration, Instant};

use super::completions::Completions;
use super::engine::Engine;

impl Engine {
    /// Says goodbye to everybody, waits until it is delivered (`linger` at the most), and gives
    /// everything back. What is outstanding ends with an error or is lost with the caller.
    pub(crate) fn close(mut self) {
        let deadline = Instant::now() + self.state.config.linger;
        let flushed = |engine: &mut Self| {
            let core = &engine.state.core;
            // What waits for a receive of this engine's own waits for ever: nobody posts one now.
            let is_done = core.sessions.iter().all(|(id, session)| {
                !session.is_connected()
                    || session.engine == core.engine
                    || core.is_settled(id.index() as u32)
            });
            let serves = core.operations.iter().any(|(_, operation)| {
                matches!(operation.state, crate::proto::operation::State::Serving(_))
                    && !core.is_loopback(operation.session)
            });
            (is_done && !serves).then_some(())
        };
        let _ = self.wait(Some(deadline), flushed);
        for session in 0..self.state.core.sessions.slots() {
            self.state.core.leave(session as u32);
        }
        let gone = |engine: &mut Self| {
            let mut sessions = engine.state.core.sessions.iter();
            let own = engine.state.core.engine;
            sessions
                .all(|(_, session)| !session.is_connected() || session.engine == own)
                .then_some(())
        };
        let _ = self.wait(Some(deadline), gone);
        self.stop();
    }

    fn stop(mut self) {
        if !self.driver.shutdown(Duration::from_secs(2)) {
            // The kernel may still write there: memory that is never reused cannot be corrupted.
            tracing::warn!("the kernel did not let go of all buffers in time; they are leaked");
            self.state.arena.leak();
            std::mem::forget(std::mem::replace(&mut self.state.completions, Completions::new(0)));
        }
    }
}
