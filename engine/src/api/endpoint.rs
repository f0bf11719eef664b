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
use super::mode::{Attached, EndpointParts, Owned, Queues, Shared};
use super::queues::CompletionQueue;
use crate::driver::traits::{Driver, LaneKey};
use crate::driver::{self, AnyDriver, ArenaRange, DriverChoice};
use crate::forks::{EngineFd, INHERITED};
use crate::progress::caretaker::EngineCell;
use crate::progress::engine::{Engine, EngineState};
use crate::progress::shared_engine::SharedEngine;
use crate::settings::Lanes;
use crate::types::{Address, Error, Peer, SendProtocol, TimeOutOutcome};

/// An endpoint that no thread owns: it listens, and can be sent to another thread.
pub struct Detached {
    state: Box<EngineState>,
    sockets: Vec<(LaneKey, EngineFd)>,
}

/// An endpoint: it has an address, sends and receives messages, and operates on the memory of
/// peers.
///
/// [`Domain::endpoint`] makes an `Endpoint<Detached>`. [`Endpoint::attach`] binds it to the calling
/// thread (`Endpoint<Owned>`), [`Endpoint::share`] and [`Endpoint::dedicate`] open it to all
/// threads (`Endpoint<Shared>`).
///
/// # Example
///
/// ```
/// use ringrail::settings::Settings;
/// use ringrail::{CompletionLevel, Domain, Envelope, ReceiveOptions, Selector, SendOptions};
///
/// let settings = Settings::isolated().set("listen_address", "127.0.0.1").insecure(true);
/// let domain = Domain::with_settings(settings.build()?)?;
/// let receiver = domain.endpoint()?; // detached: another thread can attach it
/// let address = receiver.address();
/// let thread = std::thread::spawn(move || {
///     let receiver = receiver.attach()?; // owned by this thread
///     let mut bytes = [0; 5];
///     let from = Selector::from_any(Envelope::tagged(1));
///     receiver.receive_blocking(from, &mut bytes, ReceiveOptions::new())?;
///     Ok::<_, ringrail::Error>(bytes)
/// });
/// let sender = domain.endpoint()?.attach()?;
/// let peer = sender.insert_peer(&address)?;
/// let options = SendOptions::at(CompletionLevel::Delivery);
/// sender.send_blocking(peer, Envelope::tagged(1), b"hello", options)?;
/// assert_eq!(&thread.join().unwrap()?, b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Order and completion
///
/// Messages from one source to one destination in one context match receives in the order in which
/// they were sent; messages of different contexts are not ordered. Operations complete in any
/// order. Each blocking call ([`Endpoint::wait`], [`Operation::wait`](crate::Operation::wait),
/// `*_blocking`) makes progress on all operations, so exchanges in any order cannot deadlock.
/// Without calls, an owned endpoint that uses datagrams makes limited progress: after a millisecond
/// a background thread of the process replies, acknowledges and retransmits for it. For a shared
/// endpoint that thread makes all progress, and for a dedicated one its own thread does.
///
/// # Failures
///
/// When the session with a peer's engine fails, outstanding operations with that peer end with
/// [`Error::Peer`]. Sends to it and receives from it are then refused with the same cause until
/// [`Endpoint::connect`] or [`Endpoint::forget_failure`] is called, or until the peer connects: a
/// peer that was only stopped is usable again from then on. If the peer connects first, sends that
/// had completed and were not acknowledged may be lost although no operation failed; then the next
/// send to, named receive or [`Endpoint::peek`] from, or connect to a peer of that engine reports
/// the failure, once. Sends that completed at
/// [`CompletionLevel::Delivery`](crate::CompletionLevel::Delivery) or beyond are not lost with a
/// session and need no such report. A peer that was removed has none.
///
/// # Memory
///
/// Outstanding operations keep the buffers that they were posted with, so the caller bounds that
/// memory. Their number is bounded by 16 Mi for each engine, 4 Mi sends that wait for one peer, and
/// the setting `cq_entries`; each takes a few hundred bytes of the engine. There is no bound in
/// bytes on purpose: two sides that each post more than that before either receives would deadlock.
/// Copies made by the engine are bounded: for sends by 64 MiB, and for messages that arrive before
/// their receives by `unexpected_bytes`.
///
/// # Closing
///
/// Dropping an endpoint closes it and ends its operations:
///
/// * Receives end at once, also those whose message is being received. Messages for the endpoint
///   are dropped from then on; a sender that waits for a reply gets
///   [`PeerFailure::Left`](crate::PeerFailure::Left). Its address is reused by another endpoint of
///   the engine only after all 65536 endpoint numbers were used.
/// * Sends go out: the drop makes progress until the peers have received them, up to the setting
///   `close_linger`. Sends that had completed are delivered as if the endpoint were open.
/// * Sends that are not complete by then end, and their receivers get an error. So do, at once,
///   long messages to an endpoint of the same engine that has posted no receive for them, and sends
///   at [`CompletionLevel::Match`](crate::CompletionLevel::Match) that have arrived and are not
///   matched: these may still be received.
///
/// These operations end with [`Error::Cancelled`], in the completion queue if another endpoint
/// shares it, or at the [`Operation`](crate::Operation), which returns its buffer. A queue that
/// only this endpoint uses is dropped with all completions that were not read.
///
/// When the drop has returned, memory that was borrowed by [`Endpoint::post_send_raw`] or
/// [`Endpoint::post_receive_raw`] is neither read nor written any more: lanes that still carry it
/// are reset. If the kernel does not release it within some seconds, the process is aborted.
/// Buffers that operations own are leaked in that case.
///
/// The engine closes with its last endpoint and [`Operation`](crate::Operation): it notifies its
/// peers and takes all buffers back from the kernel.
///
/// # Forks
///
/// A child of `fork` can only drop the endpoints and operations that it inherited; the parent goes
/// on with them undisturbed. In the child, posting, waiting and making progress fail with
/// [`Error::Misuse`]; calls without an error result panic with the same text. The child closes the
/// descriptors of inherited endpoints before `fork` returns, so that peers notice when the parent
/// is killed. (Descriptors returned by `wait_fd` stay open, and never become readable.) The child
/// opens endpoints from a [`Domain`] of its own.
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

    /// Returns the address at which peers reach this endpoint.
    pub fn address(&self) -> Address {
        self.mode.state.address(0)
    }

    /// Binds the endpoint to the calling thread. Pins the thread to the next core of the setting
    /// `pin_cores`, if that is set (a thread keeps its first core), and opens the driver of the
    /// setting `lanes` (`auto`: io_uring, or plain sockets if the kernel refuses it).
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the thread cannot be pinned or the driver cannot be opened; the text
    /// names the cure. The endpoint is closed in that case.
    pub fn attach(self) -> Result<Endpoint<Owned>, Error> {
        let Self { domain, mode } = self;
        domain.check_process()?;
        domain.pin_thread()?;
        let choice = match domain.settings().lanes() {
            Lanes::Auto => DriverChoice::Auto,
            Lanes::Uring => DriverChoice::Uring,
            Lanes::Sockets => DriverChoice::Sockets,
        };
        let driver = mode.state.placement().with_memory(|| open_driver(&domain, choice))?;
        let engine = Rc::new(EngineCell::new(mode.state, driver, mode.sockets)?);
        // It was opened with the engine.
        let queues = Queues { transmit: 0, receive: 0 };
        engine.share_queue(&0);
        Ok(Endpoint::of(domain, engine, 0, queues))
    }
}

impl Endpoint<Detached> {
    /// Opens the endpoint to all threads of the process. It uses plain sockets: io_uring cancels
    /// the requests of a thread when that thread ends, and completes requests on the thread that
    /// submitted them.
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] with the setting `lanes = uring`; [`Error::System`] if there are no
    /// descriptors. The endpoint is closed in that case.
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
            let text = "a shared endpoint uses plain sockets: set lanes = auto or sockets, or \
                        attach the endpoint to one thread";
            return Err(Error::misuse(text));
        }
        let sockets = DriverChoice::Sockets;
        let driver = mode.state.placement().with_memory(|| open_driver(&domain, sockets))?;
        let mut engine =
            SharedEngine::new(mode.state, driver, mode.sockets, domain.domain_engines())?;
        prepare(&mut engine)?;
        let engine = Arc::new(engine);
        // It was opened with the engine.
        let queue = engine.with(|engine| {
            engine.state.completions_mut().share_queue(0);
            engine.state.completions_mut().move_queue_outside(0)
        });
        let queues = Queues { transmit: Arc::clone(&queue), receive: queue };
        Ok(Endpoint::of(domain, engine, 0, queues))
    }

    /// Like [`Self::share`], with a dedicated thread that makes all progress and sleeps while there
    /// is nothing to do. Messages are matched, acknowledged and pulled while the threads of the
    /// program compute.
    ///
    /// The thread runs on the next core of the setting `pin_cores`, if that is set, else on the
    /// cores of the NUMA node of its NIC ([`Placement::near`](crate::topology::Placement::near)):
    /// within the affinity mask of the thread that made the domain, and without the cores of the
    /// setting `reserved_cores`.
    ///
    /// # Errors
    ///
    /// As for [`Self::share`]; [`Error::System`] if the thread cannot be started.
    pub fn dedicate(self) -> Result<Endpoint<Shared>, Error> {
        let cores = match self.domain.next_core() {
            Some(core) => vec![core],
            None => self.mode.state.placement().near().to_vec(),
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

/// Options of [`Endpoint::open_endpoint`].
#[derive(Debug)]
pub struct EndpointOptions<'a, M: Attached> {
    /// The queue of the completions of its sends; `None`: a new queue.
    pub transmit_queue: Option<&'a CompletionQueue<M>>,
    /// The queue of the completions of its receives; `None`: the same queue as for sends.
    pub receive_queue: Option<&'a CompletionQueue<M>>,
    /// The queue of its events; `None`: the event queue of its engine.
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
        // Puts with remote data of peers are reported there.
        let queue = <M::Engine as EngineRef>::number_of(&queues.receive);
        engine.with(|engine| engine.state.report_puts_to(number, Some(queue)));
        Self { domain, mode: M::new(EndpointParts::new(engine, number, queues, hints)) }
    }

    #[inline]
    pub(super) fn open(&self) -> &EndpointParts<M::Engine> {
        self.mode.open()
    }

    /// Returns the address at which peers reach this endpoint.
    pub fn address(&self) -> Address {
        let EndpointParts { engine, number, .. } = self.open();
        engine.with(|engine| engine.state.address(*number))
    }

    /// Returns the name of its driver: `"uring"` or `"sockets"`.
    pub fn driver(&self) -> &'static str {
        self.open().engine.with(|engine| engine.driver.name())
    }

    /// Returns its domain.
    pub fn domain(&self) -> &Domain {
        &self.domain
    }

    /// Opens another endpoint on the same engine, with an address of its own.
    ///
    /// # Errors
    ///
    /// [`Error::Limit`] at 1024 endpoints; [`Error::Misuse`] if a queue belongs to another engine.
    pub fn open_endpoint(&self, options: EndpointOptions<'_, M>) -> Result<Self, Error> {
        let engine = &self.open().engine;
        let EndpointOptions { transmit_queue, receive_queue, .. } = options;
        let given = [transmit_queue, receive_queue].into_iter().flatten().map(|it| &it.engine);
        let mut given = given.chain(options.event_queue.map(|queue| &queue.engine));
        if given.any(|other| !M::Engine::is_same(other, engine)) {
            return Err(Error::misuse("the queue belongs to another engine"));
        }
        let number = engine.with(|engine| engine.state.open_endpoint());
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

    /// Binds the endpoint to other completion queues, for operations that are posted from now on.
    /// With it the first endpoint of an engine, which is not opened with
    /// [`EndpointOptions`], shares queues with others.
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] if a queue belongs to another engine.
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
        let number = M::Engine::number_of(&queues.receive);
        engine.with(|engine| {
            engine.state.report_puts_to(open.number, Some(number));
        });
        open.queues = queues.clone();
        open.guard.bind(queues);
        Ok(())
    }
}

impl Endpoint<Owned> {
    /// Detaches the endpoint from this thread, so that another one can attach it; connections stay
    /// open. While it is detached its engine answers nothing, so peers end their sessions with it
    /// after their `silent_timeout`.
    ///
    /// # Errors
    ///
    /// Returns the endpoint if other endpoints, queues or operations of its engine exist, or
    /// operations are outstanding.
    #[allow(clippy::result_large_err, reason = "the endpoint is returned by value")]
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
        let EndpointParts { engine, number, queues, hints, sleeper, guard } = mode.0;
        let engine = match Rc::try_unwrap(engine) {
            // Its guard finds nothing to close.
            Ok(engine) => engine.into_engine(),
            Err(engine) => {
                let mode = Owned(EndpointParts { engine, number, queues, hints, sleeper, guard });
                return Err((Self { domain, mode }, Error::misuse("the engine is in use")));
            }
        };
        match engine.detach() {
            Ok((mut state, sockets)) => {
                // The next thread that attaches it opens them again.
                state.completions_mut().close_queue(0);
                state.completions_mut().counting_mut().unbind(0);
                Ok(Endpoint { domain, mode: Detached { state, sockets } })
            }
            Err((engine, error)) => {
                let open =
                    EndpointParts::new(Rc::new(EngineCell::again(engine)), number, queues, hints);
                // Operations on borrowed memory are still outstanding.
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

    /// Inserts the address of a peer into the address vector (`fi_av_insert`), and returns its
    /// handle; the same address gives the same handle. It does not connect. Endpoints of the same
    /// engine, this one included, are peers like any other; messages to them are copied in memory.
    ///
    /// # Errors
    ///
    /// [`Error::Limit`] at the limit `sessions_max`, which counts connected engines and those of
    /// peers that were inserted and not removed.
    ///
    /// ```
    /// # let settings = ringrail::settings::Settings::isolated().insecure(true);
    /// # let settings = settings.set("listen_address", "127.0.0.1").build()?;
    /// # let domain = ringrail::Domain::with_settings(settings)?;
    /// # let (left, right) = (domain.endpoint()?.share()?, domain.endpoint()?.share()?);
    /// use ringrail::Address;
    ///
    /// let bytes = right.address().to_bytes(); // sent to the other process by any means
    /// let address = Address::from_bytes(&bytes)?;
    /// let peer = left.insert_peer(&address)?;
    /// assert_eq!(left.insert_peer(&address)?, peer);
    /// assert_eq!(left.peer_address(peer), Some(address));
    /// left.connect(peer, None)?; // optional: the first operation connects, too
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn insert_peer(&self, address: &Address) -> Result<Peer, Error> {
        let error = Error::Limit(
            "this engine has sessions_max sessions, with peers that are connected or were \
             inserted: raise the setting, or remove peers that are gone",
        );
        self.open().engine.with(|engine| engine.insert_peer(address)).ok_or(error)
    }

    /// Removes a peer from the address vector (`fi_av_remove`): outstanding operations with it
    /// fail, and the session is closed if it was the last peer of its engine. Its address may be
    /// inserted again at once; operations then use a new session, once the peer has confirmed the
    /// end of the old one.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownPeer`] if it was removed before.
    pub fn remove_peer(&self, peer: Peer) -> Result<(), Error> {
        self.end_connections_with(peer);
        self.open().engine.with(|engine| {
            if !engine.state.with_core(|core, ended| core.remove_peer(peer.0, ended)) {
                return Err(Error::UnknownPeer);
            }
            engine.progress()?;
            Ok(())
        })
    }

    /// Returns the address of a peer; `None` if the handle is not valid. A peer that connected by
    /// itself is known while it is connected and while messages from it wait to be received: insert
    /// its address to keep it.
    pub fn peer_address(&self, peer: Peer) -> Option<Address> {
        self.open().engine.with(|engine| engine.state.address_of(peer))
    }

    /// Returns the length in bytes of the longest message that is sent eagerly to a peer now;
    /// longer ones are sent by rendezvous (pulled by the receiver). `None`: not connected.
    ///
    /// It is the lower of both sides' settings `eager_limit_bytes` (`auto`: what the peer advises,
    /// 16 to 256 KiB), and what one segment takes: 256 KiB on a TCP connection, 8 KiB in shared
    /// memory, a datagram without either. Shorter ones are pulled, too, while there is no credit,
    /// and above 32 KiB while another one that fits no datagram is not acknowledged.
    pub fn eager_limit_bytes(&self, peer: Peer) -> Option<u64> {
        self.open().engine.with(|engine| {
            let core = engine.state.core();
            let session = core.session(core.shared().peers().get(peer.0)?.session)?;
            session.segments().eager_limit_if_connected()
        })
    }

    /// Returns how messages to a peer travel now, by length: as datagrams, on the TCP connection,
    /// through shared memory, or pulled by the receiver. `None`: not connected.
    ///
    /// It changes when shared memory is set up or lost, when the path takes longer datagrams, and
    /// while no path answers. In these cases the receiver pulls a message that would be sent
    /// eagerly: there is no credit for it; its [`Hint`](crate::Hint) is `Bulk` and it has more than
    /// 1 KiB; it has more than 32 KiB while another one that fits no datagram is not acknowledged,
    /// or many peers have such messages under way; and one in 64 messages above 64 KiB, by which
    /// the receiver advises the eager limit. Messages of one source to one target in one context
    /// match in the order of sending in any case.
    ///
    /// ```
    /// # use ringrail::{Domain, SendTransport, settings::Settings};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let settings = Settings::builder().set("listen_address", "127.0.0.1").insecure(true);
    /// let endpoint = Domain::with_settings(settings.build()?)?.endpoint()?.attach()?;
    /// let myself = endpoint.insert_peer(&endpoint.address())?;
    /// endpoint.connect(myself, None)?;
    /// let protocol = endpoint.send_protocol(myself).expect("connected");
    /// assert_eq!(protocol.ranges[0].transport, SendTransport::Loopback);
    /// println!("{protocol}");
    /// # Ok(())
    /// # }
    /// ```
    pub fn send_protocol(&self, peer: Peer) -> Option<SendProtocol> {
        self.open().engine.with(|engine| engine.state.send_protocol(peer.0))
    }

    /// Connects to a peer and waits until the session is established, up to `timeout`; without one,
    /// until the attempts end. The first send connects by itself; call this after a failure.
    ///
    /// # Errors
    ///
    /// [`Error::TimedOut`] while the attempt goes on; [`Error::Peer`] with the cause if all
    /// attempts failed, or, once and while the attempt goes on, if completed sends may be lost (see
    /// [Failures](Endpoint#failures)); [`Error::UnknownPeer`] if the peer was removed.
    pub fn connect(&self, peer: Peer, timeout: Option<Duration>) -> Result<(), Error> {
        self.connect_all(&[peer], timeout)
    }

    /// Makes a peer usable again whose session has failed; the next operation connects to it.
    /// [`Endpoint::connect`] does the same and waits for the connection. It has no effect on a peer
    /// that has not failed.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownPeer`] if the peer was removed.
    pub fn forget_failure(&self, peer: Peer) -> Result<(), Error> {
        self.open().engine.with(|engine| engine.state.forget_failure(peer))
    }

    /// Connects to several peers at once and waits for all of them.
    ///
    /// # Errors
    ///
    /// Returns the first failure; the other attempts go on.
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
            let done = |engine: &mut Engine| match engine.state.connected(peer) {
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
