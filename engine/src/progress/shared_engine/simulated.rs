//! Shared engines of a simulated world, where the world is caretaker and kernel.

use std::num::NonZeroU32;

use super::*;
use crate::hooks::threads;
use crate::progress::shared::{Doorbell, Keys};
use crate::proto::table::Id;

impl SharedEngine {
    /// Shares an engine of the world that the calling thread simulates, with room for
    /// `requests_max` requests.
    pub(crate) fn of_world(engine: Engine, requests_max: usize) -> Result<Self, Error> {
        let inject_limit = engine.state.core.config().inject_limit as usize;
        let place = Place::new(SendEngine::of_world(engine), Arc::default());
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
            process: getpid(),
            gate: None,
            generation: Generation::current(),
        })
    }

    /// Takes the engine back, behind all requests. Nobody may be inside, or come later.
    pub(crate) fn take_back(&self) -> Option<Engine> {
        let news = RefCell::default();
        let engine = self.place.shared.enter(
            |inside| {
                inside.after(&self.place, &news);
                inside.engine.take()
            },
            |inside, request| inside.apply(request),
        );
        engine.map(SendEngine::into_engine)
    }

    /// What an operation is called without the name of its request.
    pub(crate) fn resolve(&self, operation: OperationId) -> Option<Id> {
        match operation.0 {
            OperationName::Posted(id) => Some(id),
            OperationName::Requested(number) => {
                let name = |inside: &mut Inside| inside.names.get(&number).copied();
                self.place.shared.enter(name, |inside, request| inside.apply(request))
            }
        }
    }

    /// The caretaker's turn, if nobody is inside.
    pub(crate) fn care(&self) -> Option<Result<(), Error>> {
        self.place.turn().map(|turn| turn.map(drop))
    }

    /// The driver has something, or what was due is: who sleeps by its descriptor wakes.
    pub(crate) fn driver_is_readable(&self) {
        if self.place.shared.has_sleeping_leader() {
            self.place.shared.bell().ring();
        }
    }

    /// Whether a thread leads.
    pub(crate) fn has_leader(&self) -> bool {
        self.place.shared.has_leader()
    }

    /// Requests that nobody has applied.
    pub(crate) fn requests(&self) -> usize {
        self.place.shared.combiner().queue_len()
    }

    /// All that wait look again.
    pub(crate) fn wake_all(&self) {
        self.place.shared.notify(Keys::ALL);
    }
}

impl Place {
    /// The sleep of a simulated leader; `false`: this thread is none.
    pub(super) fn sleeps_in_world(&self) -> bool {
        if threads::number().is_none() {
            return false;
        }
        let bell = self.shared.bell();
        // What was rung before.
        if rustix::io::read(&bell.0, &mut [0; 8]).is_err() {
            threads::sleep(bell.gate(), NonZeroU32::MIN);
            let _ = rustix::io::read(&bell.0, &mut [0; 8]);
        }
        true
    }
}
