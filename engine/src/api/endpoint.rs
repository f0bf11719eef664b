//! Endpoints: from where they are made to where they are closed, and their peers.

use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::blocking::{BlockingCall, deadline_of};
use super::domain::Domain;
use super::engine_ref::EngineRef;
use super::events::EventQueue;
use super::hints::Hints;
use super::mode::{Attached, Open, Owned, Queues, Shared};
use super::queues::CompletionQueue;
use crate::driver::traits::{Driver, LaneKey};
use crate::driver::{self, AnyDriver, ArenaRange, DriverChoice};
use crate::forks::{EngineFd, INHERITED};
use crate::progress::caretaker::EngineCell;
use crate::progress::engine::{Engine, EngineState};
use crate::progress::shared_engine::SharedEngine;
use crate::settings::Lanes;
use crate::types::{Address, Error, Peer, TimeOutOutcome};

/// An endpoint that no thread owns: it listens, and can be sent to another thread.
pub struct Detached {
    state: Box<EngineState>,
    sockets: Vec<(LaneKey, EngineFd)>,
}

/// A place to send from and to receive at, with an address of its own.
///
/// `Endpoint<Detached>` is made by [`Domain::endpoint`]; [`Endpoint::attach`] binds it to the
/// calling thread as `Endpoint<Owned>`.
///
/// # Order and completion
///
/// Messages of one source to one target in one context match receives in the order in which they
/// were sent; nothing is promised across contexts. Operations complete in any order. Every blocking
/// call ([`Endpoint::wait`], [`Operation::wait`](crate::Operation::wait), `*_blocking`) progresses
/// everything, so exchanges in any order cannot lock up. Of an owned endpoint little else moves
/// anything: after a millisecond without a call a thread of the process answers, acknowledges and
/// resends for it, where it has datagrams. Of a shared one that thread does all that is due, and of
/// a dedicated one its own thread.
///
/// # Failures
///
/// When the session with a peer's engine fails, what is outstanding with that peer ends with
/// [`Error::Peer`], and each send to it and receive from it is refused with the same cause until
/// [`Endpoint::connect`] or [`Endpoint::forget_failure`], or until the peer connects: a peer that
/// answers again, as one that stood still, is usable from then on. So that no gap goes unnoticed
/// when the peer connects before this side calls: where sends had completed of which the peer had
/// not acknowledged all, and no operation ended with the failure, the next send to a peer of that
/// engine, receive or [`Endpoint::peek`] from it by name, or connect reports it, once. What was
/// sent at [`CompletionLevel::Delivery`](crate::CompletionLevel::Delivery) or beyond and has
/// completed is not lost with a session, and needs no such report. A peer that was removed has
/// none.
///
/// # Memory
///
/// The bytes of a send stay in the buffer it was posted with until it completes, and those of a
/// receive go into its own: what outstanding operations hold is the caller's, who may bound it. The
/// settings `send_queue_ops`, `operations_max` and `cq_entries` bound their number, each at some
/// hundred bytes of the engine's. There is no bound in bytes on purpose: two sides that both post
/// more than that before either receives would wait for each other. So they would if both filled
/// `operations_max` with sends, for receives count as well. What the engine copies is
/// bounded: by `staging_buffers_max` of `staging_bytes` on its way out, and by `unexpected_bytes`
/// where messages come before their receives.
///
/// # Closing
///
/// Dropping an endpoint closes it, whichever of its engine it is, and ends its operations:
///
/// * Receives end at once, also those whose message is on its way. Messages for the endpoint are
///   dropped from then on; a sender that waits for an answer is told
///   [`PeerFailure::Left`](crate::PeerFailure::Left). No other endpoint of the engine gets its
///   address before all 65536 that there are have had their turn.
/// * Sends go out: the drop makes progress until their peers have them, up to the setting
///   `close_linger`. What a send reported complete is delivered as if the endpoint were open.
/// * Sends that are not done by then end, and their receivers are told that this side has left. So
///   do at once long messages to an endpoint of the same engine that has posted no receive for
///   them, and sends at [`CompletionLevel::Match`](crate::CompletionLevel::Match) that their
///   peers have and have not matched: these may still be received.
///
/// What ends like this ends as [`Error::Cancelled`], in the completion queue where another endpoint
/// shares it, or at the [`Operation`](crate::Operation), which gives its buffer back. The queue of
/// the endpoint alone goes, with all completions that were not taken.
///
/// When the drop returns nobody reads or writes memory that was lent to
/// [`Endpoint::post_send_raw`] or [`Endpoint::post_receive_raw`]: lanes that still carry it are
/// reset, and if the kernel does not let go of it all the same, within some seconds, the process is
/// aborted. Buffers that operations own are leaked then.
///
/// With its last endpoint and [`Operation`](crate::Operation) the engine closes: it says goodbye to
/// its peers, and takes every buffer back from the kernel.
///
/// # Forks
///
/// A child of `fork` can drop the endpoints and operations that it inherited, and neither use nor
/// attach them: they are the parent's, which goes on undisturbed. Posting, waiting and making
/// progress give [`Error::Misuse`] there; calls that have no such error to give panic with its
/// text. Their descriptors are closed in the child before `fork` returns, so that the parent's
/// peers notice when that is killed, whatever the child does. (Descriptors to sleep by, which users
/// have in their own sets, stay open, and say nothing.) Endpoints of its own it takes from a
/// [`Domain`] of its own.
///
/// # Threads
///
/// A detached endpoint can be sent to another thread, an owned one cannot:
///
/// ```
/// fn send<T: Send>() {}
/// send::<ringrail::Endpoint<ringrail::Detached>>();
/// ```
///
/// ```compile_fail,E0277
/// fn send<T: Send>() {}
/// send::<ringrail::Endpoint<ringrail::Owned>>();
/// ```
///
/// ```compile_fail,E0277
/// fn share<T: Sync>() {}
/// share::<ringrail::Endpoint<ringrail::Owned>>();
/// ```
pub struct Endpoint<Mode> {
    domain: Domain,
    pub(super) mode: Mode,
}

impl<Mode> fmt::Debug for Endpoint<Mode> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").finish_non_exhaustive()
    }
}

impl Endpoint<Detached> {
    pub(crate) fn new(domain: Domain, state: Box<EngineState>) -> Self {
        Self { domain, mode: Detached { state, sockets: Vec::new() } }
    }

    /// Where peers reach it.
    pub fn address(&self) -> Address {
        self.mode.state.address(0)
    }

    /// Binds the endpoint to the calling thread, pins that to the next core of the setting
    /// `pin_cores` where there are some (a thread keeps the core that it got first), and opens
    /// the driver that the setting `lanes` asks for (`auto`: io_uring, or plain sockets where
    /// the kernel refuses it).
    ///
    /// # Errors
    ///
    /// [`Error::System`] when the thread cannot be pinned or the driver cannot be had; the text
    /// says what helps. The endpoint is closed then.
    pub fn attach(self) -> Result<Endpoint<Owned>, Error> {
        let Self { domain, mode } = self;
        domain.check_process()?;
        domain.pin_thread()?;
        let choice = match domain.settings().lanes() {
            Lanes::Auto => DriverChoice::Auto,
            Lanes::Uring => DriverChoice::Uring,
            Lanes::Sockets => DriverChoice::Sockets,
        };
        let driver = mode.state.placement.with_memory(|| open_driver(&domain, choice))?;
        let engine = Rc::new(EngineCell::new(mode.state, driver, mode.sockets)?);
        // It was opened with the engine.
        let queues = Queues { transmit: 0, receive: 0 };
        engine.share_queue(&0);
        Ok(Endpoint::of(domain, engine, 0, queues))
    }
}

impl Endpoint<Detached> {
    /// Opens the endpoint for all threads of the process. It goes by plain sockets: a ring of
    /// io_uring cancels what a thread has submitted when that thread ends, and runs what completes
    /// on threads that compute.
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] with the setting `lanes = uring`; [`Error::System`] when descriptors
    /// cannot be had. The endpoint is closed then.
    pub fn share(self) -> Result<Endpoint<Shared>, Error> {
        self.share_with(|_| Ok(()))
    }

    fn share_with(
        self,
        prepare: impl FnOnce(&mut SharedEngine) -> Result<(), Error>,
    ) -> Result<Endpoint<Shared>, Error> {
        let Self { domain, mode } = self;
        domain.check_process()?;
        if domain.settings().lanes() == Lanes::Uring {
            let text = "a shared endpoint goes by plain sockets: set lanes = auto or sockets, or \
                        attach the endpoint to one thread";
            return Err(Error::misuse(text));
        }
        let sockets = DriverChoice::Sockets;
        let driver = mode.state.placement.with_memory(|| open_driver(&domain, sockets))?;
        let mut engine = SharedEngine::new(mode.state, driver, mode.sockets, domain.neighbours())?;
        prepare(&mut engine)?;
        let engine = Arc::new(engine);
        // It was opened with the engine.
        let queue = engine.with(|engine| {
            engine.state.completions.share_queue(0);
            engine.state.completions.move_queue_outside(0)
        });
        let queues = Queues { transmit: Arc::clone(&queue), receive: queue };
        Ok(Endpoint::of(domain, engine, 0, queues))
    }

    /// As [`Self::share`], with a thread of its own that makes all progress. It sleeps while
    /// nothing happens. A thread that computes without a call has its messages matched,
    /// acknowledged and pulled meanwhile.
    ///
    /// The thread runs on the next core of the setting `pin_cores` where there are some, else on
    /// those of the node of its NIC ([`Placement::near`](crate::topology::Placement::near)): within
    /// the cores that the thread had which made the domain, and not on those of the setting
    /// `reserved_cores`.
    ///
    /// # Errors
    ///
    /// As for [`Self::share`]; [`Error::System`] when no thread can be had.
    pub fn dedicate(self) -> Result<Endpoint<Shared>, Error> {
        let cores = match self.domain.next_core() {
            Some(core) => vec![core],
            None => self.mode.state.placement.near().to_vec(),
        };
        self.share_with(|engine| {
            engine
                .dedicate(cores)
                .map_err(|error| Error::system("cannot start a thread for the engine", error))
        })
    }
}

fn open_driver(
    domain: &Domain,
    choice: DriverChoice,
) -> Result<AnyDriver<dyn Driver + Send>, Error> {
    let arena = domain.arena();
    let range =
        ArenaRange { base: arena.base(), len: arena.len(), may_be_huge: arena.may_be_huge() };
    // SAFETY: the engine keeps the arena alive until its driver is shut down, and leaks it
    // if that does not come to an end.
    unsafe { driver::open(choice, &domain.driver_config(), Some(range)) }
        .map_err(|error| Error::system("cannot open the endpoint", error))
}

/// How an endpoint is opened beside another one.
#[derive(Debug)]
pub struct EndpointOptions<'a, M: Attached> {
    /// Where the ends of its sends go; `None`: to a queue of its own.
    pub transmit_queue: Option<&'a CompletionQueue<M>>,
    /// Where the ends of its receives go; `None`: to where those of its sends go.
    pub receive_queue: Option<&'a CompletionQueue<M>>,
    /// Where it reports events; `None`: to the queue of its engine.
    pub event_queue: Option<&'a EventQueue<M>>,
    /// See [`Endpoint::fail_without_peers`].
    pub fail_without_peers: bool,
}

impl<M: Attached> Default for EndpointOptions<'_, M> {
    fn default() -> Self {
        Self {
            transmit_queue: None,
            receive_queue: None,
            event_queue: None,
            fail_without_peers: false,
        }
    }
}

impl<M: Attached> Endpoint<M> {
    fn of(
        domain: Domain,
        engine: M::Engine,
        number: u16,
        queues: Queues<<M::Engine as EngineRef>::Queue>,
    ) -> Self {
        let hints = Hints::new(domain.settings().hint());
        // Where its owner is told of puts with remote data.
        let told_in = <M::Engine as EngineRef>::number_of(&queues.receive);
        engine.with(|engine| engine.state.completions.regions.set_queue(number, Some(told_in)));
        Self { domain, mode: M::new(Open::new(engine, number, queues, hints)) }
    }

    #[inline]
    pub(super) fn open(&self) -> &Open<M::Engine> {
        self.mode.open()
    }

    /// Where peers reach it.
    pub fn address(&self) -> Address {
        let Open { engine, number, .. } = self.open();
        engine.with(|engine| engine.state.address(*number))
    }

    /// Which driver moves its messages: `"uring"` or `"sockets"`.
    pub fn driver(&self) -> &'static str {
        self.open().engine.with(|engine| engine.driver_name())
    }

    /// The domain it was made from.
    pub fn domain(&self) -> &Domain {
        &self.domain
    }

    /// Another endpoint on the same engine, with an address of its own.
    ///
    /// # Errors
    ///
    /// [`Error::Limit`] at 1024 endpoints; [`Error::Misuse`] when a queue belongs to another
    /// engine.
    pub fn open_endpoint(&self, options: EndpointOptions<'_, M>) -> Result<Self, Error> {
        let engine = &self.open().engine;
        let EndpointOptions { transmit_queue, receive_queue, .. } = options;
        let given = [transmit_queue, receive_queue].into_iter().flatten().map(|it| &it.engine);
        let mut given = given.chain(options.event_queue.map(|queue| &queue.engine));
        if given.any(|other| !M::Engine::is_same(other, engine)) {
            return Err(Error::misuse("the queue belongs to another engine"));
        }
        let number = engine.with(|engine| engine.state.core.open_endpoint());
        let number = number.ok_or(Error::Limit("an engine has 1024 endpoints; drop some"))?;
        let shared = |queue: &CompletionQueue<M>| {
            engine.share_queue(&queue.queue);
            queue.queue.clone()
        };
        let transmit = transmit_queue
            .map_or_else(|| engine.open_queue(self.domain.settings().cq_entries()), shared);
        let receive = receive_queue.map(shared).unwrap_or_else(|| {
            engine.share_queue(&transmit);
            transmit.clone()
        });
        let queues = Queues { transmit, receive };
        let endpoint = Self::of(self.domain.clone(), engine.clone(), number, queues);
        if let Some(queue) = options.event_queue {
            endpoint.report_to(queue);
        }
        endpoint.fail_without_peers(options.fail_without_peers);
        Ok(endpoint)
    }

    /// Where the ends of its sends and of its receives go from now on. What is outstanding ends
    /// where it was to end before. The first endpoint of an engine, which peers know by its port
    /// alone, shares queues with others like this.
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] when a queue belongs to another engine.
    pub fn bind_queues(
        &mut self,
        transmit: &CompletionQueue<M>,
        receive: &CompletionQueue<M>,
    ) -> Result<(), Error> {
        let open = self.mode.open_mut();
        let engine = &open.engine;
        if [transmit, receive].iter().any(|queue| !M::Engine::is_same(&queue.engine, engine)) {
            return Err(Error::misuse("the queue belongs to another engine"));
        }
        let queues = Queues { transmit: transmit.queue.clone(), receive: receive.queue.clone() };
        engine.share_queue(&queues.transmit);
        engine.share_queue(&queues.receive);
        let told_in = M::Engine::number_of(&queues.receive);
        engine.with(|engine| {
            engine.state.completions.regions.set_queue(open.number, Some(told_in));
        });
        open.queues = queues.clone();
        open.guard.bind(queues);
        Ok(())
    }
}

impl Endpoint<Owned> {
    /// Gives the endpoint up for another thread to attach; connections stay open.
    ///
    /// # Errors
    ///
    /// The endpoint comes back when siblings or operations are alive, or anything is outstanding.
    #[allow(clippy::result_large_err, reason = "the endpoint comes back by value, as it came")]
    pub fn detach(self) -> Result<Endpoint<Detached>, (Self, Error)> {
        if self.open().engine.is_inherited() {
            return Err((self, Error::misuse(INHERITED)));
        }
        if Rc::strong_count(&self.open().engine) > 1 || self.open().number != 0 {
            let text = "an engine is detached by its first endpoint, when the others, queues, \
                        listeners and operations are gone";
            return Err((self, Error::misuse(text)));
        }
        let Self { domain, mode } = self;
        let Open { engine, number, queues, hints, sleeper, guard } = mode.0;
        let engine = match Rc::try_unwrap(engine) {
            // Its guard finds nothing to close.
            Ok(engine) => engine.into_engine(),
            Err(engine) => {
                let mode = Owned(Open { engine, number, queues, hints, sleeper, guard });
                return Err((Self { domain, mode }, Error::misuse("the engine is in use")));
            }
        };
        match engine.detach() {
            Ok((mut state, sockets)) => {
                // What it was attached with is taken again by the next.
                state.completions.close_queue(0);
                state.completions.counting.unbind(0);
                Ok(Endpoint { domain, mode: Detached { state, sockets } })
            }
            Err((engine, error)) => {
                let open = Open::new(Rc::new(EngineCell::again(engine)), number, queues, hints);
                // What it has lent is outstanding still.
                if guard.has_borrowed() {
                    open.guard.note_borrowed();
                }
                Err((Self { domain, mode: Owned(open) }, error))
            }
        }
    }
}

impl<M: Attached> Endpoint<M> {
    // ---- Peers ----

    /// Adds a peer to the address vector, at any time. The same address gives the same handle.
    /// Endpoints of the same engine, this one included, are peers like any other; messages to
    /// them are copied in memory.
    ///
    /// # Errors
    ///
    /// [`Error::Limit`] at the bound `sessions_max`, which counts engines that are connected and
    /// those of peers that were inserted and not removed.
    pub fn insert(&self, address: &Address) -> Result<Peer, Error> {
        let error = Error::Limit(
            "this engine has sessions_max sessions, with peers that are connected or were \
             inserted: raise the setting, or remove peers that are gone",
        );
        self.open().engine.with(|engine| engine.insert_peer(address)).ok_or(error)
    }

    /// Removes a peer: what is outstanding with it fails, and the connection is closed when it
    /// was the last peer of its engine. It may be inserted again at once: what is posted then goes
    /// by another connection, when the peer has answered the goodbye.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownPeer`] when it was removed before.
    pub fn remove(&self, peer: Peer) -> Result<(), Error> {
        self.end_connections_with(peer);
        self.open().engine.with(|engine| {
            let state = &mut *engine.state;
            if !state.core.remove_peer(peer.0, &mut state.completions) {
                return Err(Error::UnknownPeer);
            }
            engine.progress()?;
            Ok(())
        })
    }

    /// The address of a peer. One that was met as the source of a message and never inserted is
    /// known while it is connected and while messages of it wait to be received, and after that
    /// until some newer sessions have ended: insert its address to keep it.
    pub fn peer_address(&self, peer: Peer) -> Option<Address> {
        self.open().engine.with(|engine| engine.address_of(peer))
    }

    /// The longest message, in bytes, that may go to a peer with its envelope; longer ones are
    /// pulled. So are shorter ones while there is no credit, and those of more than 32 KiB while
    /// another message that fits no datagram is not acknowledged. That is the setting
    /// `eager_limit_bytes` of the side with the lower one (where it is `auto`, what the peer
    /// advises now, from 16 to 128 KiB: it changes as the peer measures, if that has `auto`, too);
    /// where such a message goes in several datagrams, `datagram_eager_limit_bytes` at the most;
    /// and 32 KiB where both sides have no datagrams. `None`: not connected.
    pub fn eager_limit_bytes(&self, peer: Peer) -> Option<u64> {
        self.open().engine.with(|engine| {
            let core = &engine.state.core;
            core.eager_limit_of(core.remotes().get(peer.0)?.session)
        })
    }

    /// Connects to a peer and waits until the session is up, for `timeout` at the most; without one
    /// until the attempts end. Sending does so by itself; after a failure this is how to try again.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`], while the attempt goes on; [`Error::Peer`] with the cause when all
    /// attempts failed, or once, while the attempt goes on,
    /// when completed sends may be lost (see [Failures](Endpoint#failures));
    /// [`Error::UnknownPeer`] when the peer was removed.
    pub fn connect(&self, peer: Peer, timeout: Option<Duration>) -> Result<(), Error> {
        self.connect_all(&[peer], timeout)
    }

    /// Makes a peer usable again whose session has failed, without connecting to it now: what is
    /// posted next does. [`Endpoint::connect`] does the same and waits for the connection. A peer
    /// that has not failed stays as it is.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownPeer`] when the peer was removed.
    pub fn forget_failure(&self, peer: Peer) -> Result<(), Error> {
        self.open().engine.with(|engine| engine.forget_failure(peer))
    }

    /// Connects to several peers at once and waits for all of them.
    ///
    /// # Errors
    ///
    /// The first failure; the other attempts go on.
    pub fn connect_all(&self, peers: &[Peer], timeout: Option<Duration>) -> Result<(), Error> {
        let deadline = deadline_of(timeout);
        let engine = &self.open().engine;
        let started = {
            let start = |engine: &mut Engine| {
                peers.iter().map(|&peer| engine.start_connect(peer)).collect::<Vec<_>>()
            };
            engine.with(start)
        };
        for outcome in started {
            outcome?;
        }
        for &peer in peers {
            let done = |engine: &mut Engine| match engine.connected(peer) {
                Ok(true) => Some(Ok(())),
                Ok(false) => None,
                Err(error) => Some(Err(error)),
            };
            engine.wait(deadline, done)?.unwrap_or_else(|| {
                let called = BlockingCall::new("connect", Some(peer));
                Err(called.timed_out(engine, timeout, TimeOutOutcome::GoesOn))
            })?;
        }
        Ok(())
    }
}
