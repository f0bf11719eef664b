//! A driver that has failed permanently.
//!
//! It is closed at once, by its owner: that ends the kernel's accesses to memory. Then every
//! operation ends with the error of the driver, and every session with it; all later calls that
//! make progress return the same error. If the kernel does not release memory, its operations stay
//! outstanding.

use std::io;

use super::engine::Engine;
use super::leave::LET_GO;
use crate::proto::failure::PeerFailure;
use crate::types::Error;

/// How a driver failed.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    error: Error,
    /// The kernel holds no memory.
    is_released: bool,
}

impl Failure {
    /// Returns whether the kernel holds no memory.
    pub(super) fn is_released(&self) -> bool {
        self.is_released
    }
}

impl Engine {
    /// Handles the failure of the driver in an attempted action; returns the error for its users,
    /// now and later.
    #[cold]
    pub(super) fn fail_driver(&mut self, what: &'static str, error: io::Error) -> Error {
        if let Some(known) = &self.failure {
            let Failure { error, is_released } = (**known).clone();
            self.end_with_driver(&error, is_released);
            return error;
        }
        let error = Error::system(what, error);
        if self.owner_is_absent {
            // Its owner detects it again, and may close the driver.
            return error;
        }
        tracing::error!("driver failed; engine stopped: {error}");
        let is_released = self.driver.shutdown(LET_GO);
        self.failure = Some(Box::new(Failure { error: error.clone(), is_released }));
        self.end_with_driver(&error, is_released);
        error
    }

    /// Ends what is outstanding with the error of the driver, if that holds no memory.
    fn end_with_driver(&mut self, error: &Error, is_released: bool) {
        if !is_released {
            return;
        }
        let state = &mut *self.state;
        self.events.clear();
        state.completions.end_all(error);
        // Later sends are refused. All operations have ended already.
        let why: std::sync::Arc<str> = format!("the driver of this side failed: {error}").into();
        for slot in 0..state.core.sessions().slots() {
            let failure = PeerFailure::Lost(why.clone());
            state.core.fail_session(slot as u32, failure, &mut state.completions);
        }
        while state.core.shared_mut().poll_action().is_some() {}
    }
}

#[cfg(test)]
impl Engine {
    /// Makes the driver fail from its next call on.
    pub(crate) fn stop_driver(&mut self) {
        assert!(self.driver.shutdown(LET_GO));
    }
}
