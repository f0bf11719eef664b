//! Event queues, and their entries one by one.

use std::future::Future;
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::blocking::deadline_of;
use super::endpoint::Endpoint;
use super::engine_ref::EngineRef;
use super::mode::Attached;
use super::queues::Sleeper;
use crate::types::{Error, Event};

/// An event queue (`fi_eq`): events of the endpoints that are bound to it, besides the completions
/// of their operations ([`Endpoint::open_endpoint`], [`Endpoint::event_queue`]). A full queue
/// blocks nothing.
///
/// Events of the engine (sessions, paths, refused connections) go to each queue to which one of its
/// endpoints is bound. A full queue drops the oldest of these, those of sessions last, and counts
/// them ([`Self::lost`]). Events of connections are never dropped: a request that finds the queue
/// full is refused ([`ConnectionRefusal::Busy`](crate::ConnectionRefusal::Busy)), and of the others
/// there are at most as many as connections.
///
/// A clone refers to the same queue. It keeps the engine open.
///
/// ```
/// # let settings = ringrail::settings::Settings::isolated().set("listen_address", "127.0.0.1");
/// # let domain = ringrail::Domain::with_settings(settings.insecure(true).build()?)?;
/// # let (left, right) = (domain.endpoint()?.share()?, domain.endpoint()?.share()?);
/// # let peer = left.insert_peer(&right.address())?;
/// use std::time::Duration;
/// use ringrail::{EndpointOptions, Event};
///
/// // A queue for another endpoint of the engine of `left`.
/// let events = left.open_event_queue(64);
/// let options = EndpointOptions { event_queue: Some(&events), ..Default::default() };
/// let other = left.open_endpoint(options)?;
/// left.connect(peer, None)?;
/// let event = events.wait(Some(Duration::from_secs(60)))?;
/// assert!(matches!(event, Some(Event::Connected { .. })), "{event:?}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct EventQueue<M: Attached> {
    pub(super) engine: M::Engine,
    pub(super) number: u32,
    sleeper: Sleeper,
}

impl<M: Attached> std::fmt::Debug for EventQueue<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventQueue").finish_non_exhaustive()
    }
}

impl<M: Attached> Clone for EventQueue<M> {
    fn clone(&self) -> Self {
        Self::share(&self.engine, self.number)
    }
}

impl<M: Attached> Drop for EventQueue<M> {
    fn drop(&mut self) {
        let number = self.number;
        // Dropped by what the engine calls (a waker, say), it stays open with the engine.
        self.engine
            .with_to_let_go(|engine| engine.state.completions_mut().events_mut().close(number));
    }
}

impl<M: Attached> EventQueue<M> {
    fn share(engine: &M::Engine, number: u32) -> Self {
        engine.with(|engine| engine.state.completions_mut().events_mut().share(number));
        Self { engine: engine.clone(), number, sleeper: Sleeper::default() }
    }

    /// Makes progress once, and returns the oldest event, if there is one.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the driver has failed.
    pub fn read(&self) -> Result<Option<Event>, Error> {
        self.engine.progress()?;
        Ok(self.pop())
    }

    fn pop(&self) -> Option<Event> {
        self.engine.with(|engine| engine.state.completions_mut().events_mut().pop(self.number))
    }

    /// Makes progress until there is an event, and returns it; `None` after `timeout`, which is
    /// without limit if it is `None`.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the driver has failed.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Option<Event>, Error> {
        let number = self.number;
        let pop = |engine: &mut crate::progress::engine::Engine| {
            engine.state.completions_mut().events_mut().pop(number)
        };
        self.engine.wait(deadline_of(timeout), pop)
    }

    /// Returns a future of the next event, for the executors that an
    /// [`Operation`](crate::Operation) can be awaited on.
    pub fn next(&self) -> NextEvent<'_, M> {
        NextEvent { queue: self, spins_until: None }
    }

    /// Like [`CompletionQueue::wait_fd`](crate::CompletionQueue::wait_fd).
    ///
    /// # Errors
    ///
    /// [`Error::System`] if there are no descriptors.
    pub fn wait_fd(&self) -> Result<BorrowedFd<'_>, Error> {
        self.sleeper.wait_object(&self.engine).map(|it| it.fd())
    }

    /// Like [`CompletionQueue::arm`](crate::CompletionQueue::arm), for the events of this queue:
    /// `false` if there are some.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the driver has failed, or there are no descriptors.
    pub fn arm(&self) -> Result<bool, Error> {
        self.engine.progress()?;
        self.engine.arm(self.sleeper.wait_object(&self.engine)?)?;
        Ok(self.engine.with(|engine| engine.state.completions().events().is_empty(self.number)))
    }

    /// Returns the number of events that this queue has dropped because it was full.
    pub fn lost(&self) -> u64 {
        self.engine.with(|engine| engine.state.completions().events().lost(self.number))
    }
}

/// See [`EventQueue::next`].
#[derive(Debug)]
#[must_use = "a future does nothing unless it is polled"]
pub struct NextEvent<'a, M: Attached> {
    queue: &'a EventQueue<M>,
    /// Until then it asks to be polled again at once.
    spins_until: Option<Instant>,
}

impl<M: Attached> Future for NextEvent<'_, M> {
    type Output = Result<Event, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let (queue, waker) = (self.queue, context.waker());
        if let Some(event) = queue.read()? {
            return Poll::Ready(Ok(event));
        }
        let now = Instant::now();
        let spins = now < *self.spins_until.get_or_insert_with(|| now + queue.engine.spin());
        if spins || !queue.engine.wake_when_readable(waker) {
            waker.wake_by_ref();
        } else if let Some(event) = queue.pop() {
            // Another thread has brought it before this task was known.
            return Poll::Ready(Ok(event));
        }
        Poll::Pending
    }
}

impl<M: Attached> Endpoint<M> {
    /// Opens an event queue of the endpoint's engine, with room for `entries_max` events (at least
    /// 1), for endpoints that are opened with it ([`Endpoint::open_endpoint`]).
    pub fn open_event_queue(&self, entries_max: usize) -> EventQueue<M> {
        let engine = self.open().engine.clone();
        let number = engine
            .with(|engine| engine.state.completions_mut().events_mut().open(entries_max.max(1)));
        EventQueue { engine, number, sleeper: Sleeper::default() }
    }

    /// Returns the event queue of this endpoint: that of its engine, with room for 4096 events,
    /// unless it was opened with another one ([`Endpoint::open_endpoint`]).
    pub fn event_queue(&self) -> EventQueue<M> {
        let open = self.open();
        let number = open.number;
        let of_endpoint = |engine: &mut crate::progress::engine::Engine| {
            engine.state.completions().events().of_endpoint(number)
        };
        EventQueue::share(&open.engine, open.engine.with(of_endpoint))
    }

    /// Returns the oldest event of the event queue of this endpoint, without making progress.
    pub fn next_event(&self) -> Option<Event> {
        let open = self.open();
        open.engine.with(|engine| {
            let events = engine.state.completions_mut().events_mut();
            events.pop(events.of_endpoint(open.number))
        })
    }
}
