//! An engine that may move from thread to thread.

use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;

use crate::driver::AnyDriver;
use crate::driver::lanes::{Driver, LaneKey};
use crate::progress::engine::{Engine, EngineState};
use crate::types::Error;

/// An engine whose parts are all `Send`, which the type of an engine cannot say: simulated drivers
/// are not.
pub(in crate::progress) struct SendEngine(Engine);

// SAFETY: `attach` makes it of an `EngineState` and a driver that are both `Send`, and what else an
// engine has is plain data. Nothing puts another driver into it.
unsafe impl Send for SendEngine {}

impl SendEngine {
    /// See [`Engine::attach`].
    pub(in crate::progress) fn attach(
        state: Box<EngineState>,
        driver: AnyDriver<dyn Driver + Send>,
        sockets: Vec<(LaneKey, OwnedFd)>,
    ) -> Result<Self, Error> {
        const fn is_send<T: Send + ?Sized>() {}
        const { is_send::<EngineState>() };
        Engine::attach(state, driver, sockets).map(Self)
    }

    pub(in crate::progress) fn into_engine(self) -> Engine {
        self.0
    }
}

impl Deref for SendEngine {
    type Target = Engine;

    #[inline]
    fn deref(&self) -> &Engine {
        &self.0
    }
}

impl DerefMut for SendEngine {
    #[inline]
    fn deref_mut(&mut self) -> &mut Engine {
        &mut self.0
    }
}
