//! Shared engines of a simulated world, where the world is background thread and kernel.

use std::num::NonZeroU32;

use super::*;
use crate::hooks::threads;
use crate::progress::shared::{Doorbell, Keys};
use crate::proto::table::Id;
use crate::types::{OperationId, OperationName};

impl SharedEngine {
    /// Shares an engine of the world that the calling thread simulates, with space for
    /// `requests_max` requests.
    pub(crate) fn of_world(engine: Engine, requests_max: usize) -> Result<Self, Error> {
        let inject_limit = engine.state.core.shared().eager().inject_max() as usize;
        let place = EnginePlace::new(SendEngine::of_world(engine), Arc::default());
        let place = place.map_err(|error| Error::system("cannot share an engine", error))?;
        Ok(Self {
            place: Arc::new(place),
            membership: None,
            thread: None,
            next_request: AtomicU64::new(0),
            is_in_turn: AtomicBool::new(false),
            requests_max,
            injects_max: requests_max.min(INJECTS_MAX),
            inject_limit,
            owner: OwnerProcess::current(),
            gate: None,
        })
    }

    /// Takes the engine back, after all requests. No thread may be inside, or enter later.
    pub(crate) fn take_back(&self) -> Option<Engine> {
        let pending = RefCell::default();
        let engine = self.place.shared().enter(
            |inside| {
                inside.after(&self.place, &pending);
                inside.engine.take()
            },
            |inside, request| inside.apply(request),
        );
        engine.map(SendEngine::into_engine)
    }

    /// Returns the operation of a request's name.
    pub(crate) fn resolve(&self, operation: OperationId) -> Option<Id> {
        match operation.0 {
            OperationName::Posted(id) => Some(id),
            OperationName::Requested(number) => {
                let name = |inside: &mut Inside| inside.names.get(&number).copied();
                self.place.shared().enter(name, |inside, request| inside.apply(request))
            }
        }
    }

    /// Makes the background thread's turn, if no thread is inside.
    pub(crate) fn care(&self) -> Option<Result<(), Error>> {
        self.place.turn().map(|turn| turn.map(drop))
    }

    /// Wakes sleepers on the driver's descriptor, as the driver has an event, or a deadline passed.
    pub(crate) fn driver_is_readable(&self) {
        if self.place.shared().has_sleeping_leader() {
            self.place.shared().bell().ring();
        }
    }

    /// Returns whether a thread leads.
    pub(crate) fn has_leader(&self) -> bool {
        self.place.shared().has_leader()
    }

    /// Returns the number of requests that are not applied.
    pub(crate) fn requests(&self) -> usize {
        self.place.shared().combiner().queue_len()
    }

    /// Lets all waiters check again.
    pub(crate) fn wake_all(&self) {
        self.place.shared().notify(Keys::ALL);
    }
}

impl EnginePlace {
    /// Sleeps as a simulated leader; returns `false` if this thread is none.
    pub(super) fn sleeps_in_world(&self) -> bool {
        if threads::number().is_none() {
            return false;
        }
        let bell = self.shared().bell();
        // Earlier wake-ups.
        if rustix::io::read(&bell.0, &mut [0; 8]).is_err() {
            threads::sleep(bell.gate(), NonZeroU32::MIN);
            let _ = rustix::io::read(&bell.0, &mut [0; 8]);
        }
        true
    }
}
