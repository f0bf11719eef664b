//! An engine that may move from thread to thread.

use std::ops::{Deref, DerefMut};

use crate::driver::AnyDriver;
use crate::driver::traits::{Driver, LaneKey};
use crate::forks::EngineFd;
use crate::progress::engine::{Engine, EngineState};
use crate::types::Error;

/// An engine whose parts are all `Send`, which the type of an engine cannot say: simulated drivers
/// are not.
pub(in crate::progress) struct SendEngine {
    /// Before the engine, so that it is dropped first.
    #[cfg(any(test, feature = "sim"))]
    home: Home,
    engine: Engine,
}

// SAFETY: `attach` makes it of an `EngineState` and a driver that are both `Send`, and what else an
// engine has is plain data. Nothing puts another driver into it. One that `of_world` made ends the
// process when another thread than its own touches or drops it.
unsafe impl Send for SendEngine {}

/// The only thread that may touch an engine of a simulated world; `None`: any may.
#[cfg(any(test, feature = "sim"))]
struct Home(Option<std::thread::ThreadId>);

#[cfg(any(test, feature = "sim"))]
impl Home {
    #[inline]
    fn check(&self) {
        if self.0.is_some_and(|home| home != std::thread::current().id()) {
            std::process::abort();
        }
    }
}

#[cfg(any(test, feature = "sim"))]
impl Drop for Home {
    fn drop(&mut self) {
        self.check();
    }
}

impl SendEngine {
    /// See [`Engine::attach`].
    pub(in crate::progress) fn attach(
        state: Box<EngineState>,
        driver: AnyDriver<dyn Driver + Send>,
        sockets: Vec<(LaneKey, EngineFd)>,
    ) -> Result<Self, Error> {
        const fn is_send<T: Send + ?Sized>() {}
        const { is_send::<EngineState>() };
        let engine = Engine::attach(state, driver, sockets)?;
        Ok(Self {
            #[cfg(any(test, feature = "sim"))]
            home: Home(None),
            engine,
        })
    }

    /// An engine of the world that the calling thread simulates: no other thread may touch it.
    #[cfg(any(test, feature = "sim"))]
    pub(in crate::progress) fn of_world(engine: Engine) -> Self {
        Self { home: Home(Some(std::thread::current().id())), engine }
    }

    pub(in crate::progress) fn into_engine(self) -> Engine {
        #[cfg(any(test, feature = "sim"))]
        self.home.check();
        self.engine
    }
}

impl Deref for SendEngine {
    type Target = Engine;

    #[inline]
    fn deref(&self) -> &Engine {
        #[cfg(any(test, feature = "sim"))]
        self.home.check();
        &self.engine
    }
}

impl DerefMut for SendEngine {
    #[inline]
    fn deref_mut(&mut self) -> &mut Engine {
        #[cfg(any(test, feature = "sim"))]
        self.home.check();
        &mut self.engine
    }
}
