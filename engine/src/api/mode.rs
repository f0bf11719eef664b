//! Modes of attached endpoints.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::engine_ref::EngineRef;
use super::hints::Hints;
use super::queues::Sleeper;
use crate::progress::caretaker::EngineCell;
use crate::progress::engine::Engine;
use crate::progress::shared_engine::SharedEngine;

/// The mode of an endpoint that can send and receive: [`Owned`] or [`Shared`]. Sealed.
pub trait Attached: Sized + sealed::Sealed {
    /// How it reaches its engine.
    #[doc(hidden)]
    type Engine: EngineRef;

    #[doc(hidden)]
    fn open(&self) -> &EndpointParts<Self::Engine>;

    #[doc(hidden)]
    fn open_mut(&mut self) -> &mut EndpointParts<Self::Engine>;

    #[doc(hidden)]
    fn new(open: EndpointParts<Self::Engine>) -> Self;
}

mod sealed {
    pub trait Sealed {}
}

/// An endpoint that is owned by the thread that attached it, which makes all progress: neither
/// `Send` nor `Sync`, and without locks.
pub struct Owned(pub(super) EndpointParts<Rc<EngineCell>>);

impl sealed::Sealed for Owned {}

impl Attached for Owned {
    type Engine = Rc<EngineCell>;

    fn open(&self) -> &EndpointParts<Rc<EngineCell>> {
        &self.0
    }

    fn open_mut(&mut self) -> &mut EndpointParts<Rc<EngineCell>> {
        &mut self.0
    }

    fn new(open: EndpointParts<Rc<EngineCell>>) -> Self {
        Self(open)
    }
}

/// An endpoint that any thread can use at any time: `Send` and `Sync`, as `MPI_THREAD_MULTIPLE`
/// requires.
///
/// No thread waits for another to post: a post that finds the engine in use by another thread is
/// deferred to that thread. Posts of one thread, and posts of several that are ordered by
/// synchronization, match in that order. One of the threads that wait makes progress for all.
///
/// # Deferred posts
///
/// A deferred post returns `Ok`; an error that the call would have returned (a failed peer, or
/// [`Error::WouldBlock`](crate::Error::WouldBlock) at a limit) is reported by its completion or
/// [`Operation`](crate::Operation) instead. A program that bounds its outstanding operations does
/// not meet the latter. A deferred inject waits for credit instead of returning `WouldBlock`; only
/// the number of operations of the engine limits it. A post is refused at once while some thousand
/// posts are deferred.
///
/// # Callbacks
///
/// A waker or a subscriber of `tracing` that the engine calls may post. It must not wait for the
/// engine: such calls panic. Dropping an endpoint holds the engine for up to `close_linger`, for
/// which calls of other threads, except posts, wait.
pub struct Shared(pub(super) EndpointParts<Arc<SharedEngine>>);

impl sealed::Sealed for Shared {}

impl Attached for Shared {
    type Engine = Arc<SharedEngine>;

    fn open(&self) -> &EndpointParts<Arc<SharedEngine>> {
        &self.0
    }

    fn open_mut(&mut self) -> &mut EndpointParts<Arc<SharedEngine>> {
        &mut self.0
    }

    fn new(open: EndpointParts<Arc<SharedEngine>>) -> Self {
        Self(open)
    }
}

/// The parts of an attached endpoint.
pub struct EndpointParts<E: EngineRef> {
    pub(super) engine: E,
    pub(super) number: u16,
    pub(super) queues: Queues<E::Queue>,
    pub(super) hints: Hints,
    pub(super) sleeper: Sleeper,
    // Dropped after the hold on the engine above.
    pub(super) guard: Guard<E>,
}

/// The completion queues of an endpoint: for what it sends, and for what it receives.
#[derive(Clone)]
pub(super) struct Queues<Q> {
    pub(super) transmit: Q,
    pub(super) receive: Q,
}

impl<E: EngineRef> EndpointParts<E> {
    pub(super) fn new(engine: E, number: u16, queues: Queues<E::Queue>, hints: Hints) -> Self {
        let guard = Guard {
            engine: engine.downgrade(),
            number,
            queues: queues.clone(),
            has_borrowed: AtomicBool::new(false),
        };
        Self { engine, number, queues, hints, sleeper: Sleeper::default(), guard }
    }

    /// Both queues, or the one that they are.
    pub(super) fn each_queue(&self) -> impl Iterator<Item = &E::Queue> {
        let Queues { transmit, receive } = &self.queues;
        let other = (!E::is_same_queue(transmit, receive)).then_some(transmit);
        [receive].into_iter().chain(other)
    }
}

/// Closes an endpoint when it is dropped, unless its engine has closed with it.
pub(super) struct Guard<E: EngineRef> {
    engine: E::Weak,
    number: u16,
    queues: Queues<E::Queue>,
    /// Whether its operations have borrowed memory.
    has_borrowed: AtomicBool,
}

impl<E: EngineRef> Guard<E> {
    /// From here on the endpoint may not end without its operations.
    pub(super) fn note_borrowed(&self) {
        // A store would take the cache line from other threads that post.
        if !self.has_borrowed() {
            self.has_borrowed.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn has_borrowed(&self) -> bool {
        self.has_borrowed.load(Ordering::Relaxed)
    }

    /// What it lets go of is `queues` from now on.
    pub(super) fn bind(&mut self, queues: Queues<E::Queue>) {
        let old = std::mem::replace(&mut self.queues, queues);
        if let Some(engine) = E::upgrade(&self.engine) {
            engine.close_queue(&old.transmit);
            engine.close_queue(&old.receive);
        }
    }
}

impl<E: EngineRef> Drop for Guard<E> {
    fn drop(&mut self) {
        // The last hold on an engine takes it along, with all endpoints.
        let Some(engine) = E::upgrade(&self.engine) else { return };
        let close = |engine: &mut Engine| {
            engine.state.report_puts_to(self.number, None);
            engine.close_endpoint(self.number);
            engine.state.completions_mut().counting_mut().unbind(self.number);
        };
        if engine.with_to_let_go(close).is_some() {
            engine.close_queue(&self.queues.transmit);
            engine.close_queue(&self.queues.receive);
        } else if self.has_borrowed() {
            // Dropped in a callback of the engine (a subscriber of `tracing`, a waker).
            tracing::error!(
                "an endpoint with borrowed memory is dropped in a callback of its own engine"
            );
            std::process::abort();
        }
    }
}
