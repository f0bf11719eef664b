//! Endpoints: from where they are made to where they are closed, and their peers.

use std::cell::Cell;
use std::fmt;
use std::os::fd::OwnedFd;
use std::rc::{Rc, Weak};

use super::domain::Domain;
use super::hints::Hints;
use crate::driver::lanes::LaneKey;
use crate::driver::{self, ArenaRange, DriverChoice};
use crate::progress::caretaker::EngineCell;
use crate::progress::engine::{Engine, EngineState};
use crate::settings::Lanes;
use crate::types::{Address, Error, Peer};

/// An endpoint that no thread owns: it listens, and can be sent to another thread.
pub struct Detached {
    state: Box<EngineState>,
    sockets: Vec<(LaneKey, OwnedFd)>,
}

/// An endpoint owned by the thread that attached it, which makes all progress: neither `Send`
/// nor `Sync`, and without a lock on the way of a message.
pub struct Owned {
    pub(super) engine: Rc<EngineCell>,
    pub(super) endpoint: u16,
    pub(super) queue: u32,
    pub(super) hints: Hints,
    // Dropped after the hold on the engine above.
    pub(super) guard: Guard,
}

impl Owned {
    fn new(engine: Rc<EngineCell>, endpoint: u16, queue: u32, hints: Hints) -> Self {
        let guard = Guard::new(&engine, endpoint, queue);
        Self { engine, endpoint, queue, hints, guard }
    }
}

/// Closes an endpoint when it is dropped, unless its engine has closed with it.
pub(super) struct Guard {
    engine: Weak<EngineCell>,
    endpoint: u16,
    queue: u32,
    /// Memory of its user has been lent to its operations.
    has_borrowed: Cell<bool>,
}

impl Guard {
    fn new(engine: &Rc<EngineCell>, endpoint: u16, queue: u32) -> Self {
        let (engine, has_borrowed) = (Rc::downgrade(engine), Cell::new(false));
        Self { engine, endpoint, queue, has_borrowed }
    }

    /// From here on the endpoint may not end without its operations.
    pub(super) fn note_borrowed(&self) {
        self.has_borrowed.set(true);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // The last hold on an engine takes it along, with all endpoints.
        let Some(home) = self.engine.upgrade().filter(|home| !home.is_inherited()) else { return };
        match home.try_borrow_mut() {
            Some(mut engine) => engine.close_endpoint(self.endpoint, self.queue),
            // Dropped by what the engine calls (a subscriber of `tracing`, a waker): it goes on,
            // and closes with its engine.
            None if !self.has_borrowed.get() => {}
            None => {
                tracing::error!("an endpoint with lent memory is dropped inside its own engine");
                std::process::abort();
            }
        }
    }
}

/// A place to send from and to receive at, with an address of its own.
///
/// `Endpoint<Detached>` is made by [`Domain::endpoint`]; [`Endpoint::attach`] binds it to the
/// calling thread as `Endpoint<Owned>`.
///
/// # Order and completion
///
/// Messages of one source to one target in one context match receives in the order in which they
/// were sent; nothing is promised across contexts. Operations complete in any order. Nothing
/// moves unless the owning thread calls something that makes progress: every blocking call
/// ([`Endpoint::wait`], [`Operation::wait`](crate::Operation::wait), `*_blocking`) progresses
/// everything, so exchanges in any order cannot lock up.
///
/// # Failures
///
/// When the session with a peer's engine fails, what is outstanding with that peer ends with
/// [`Error::Peer`], and each send to it and receive from it is refused with the same cause until
/// [`Endpoint::connect`], or until the peer connects. So that no gap goes unnoticed when the peer
/// connects before this side calls: where sends had completed of which the peer had not
/// acknowledged all, and no operation ended with the failure, the next send to a peer of that
/// engine, receive or [`Endpoint::peek`] from it by name, or connect reports it, once. What was
/// sent at [`CompletionLevel::Delivery`](crate::CompletionLevel::Delivery) or beyond and has completed is not lost
/// with a session, and needs no such report. A peer that was removed has none.
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
/// Dropping an owned endpoint closes it, whichever of its engine it is, and ends its operations:
///
/// * Receives end at once, also those whose message is on its way. Messages for the endpoint are
///   dropped from then on; a sender that waits for an answer is told
///   [`PeerFailure::Left`](crate::PeerFailure::Left). No other endpoint of the engine gets its
///   address before all 65536 that there are have had their turn.
/// * Sends go out: the drop makes progress until their peers have them, up to the setting
///   `close_linger`. What a send reported complete is delivered as if the endpoint were open.
/// * Sends that are not done by then end, and their receivers are told that this side has left. So
///   do at once long messages to an endpoint of the same engine that has posted no receive for
///   them, and sends at [`CompletionLevel::Match`](crate::CompletionLevel::Match) that their peers have and have
///   not matched: these may still be received.
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
/// attach them: they are the parent's, which goes on undisturbed. Their descriptors stay open in
/// the child until it ends or executes another program: so long the parent's ports are taken, and
/// when the parent is killed its peers find out by `peer_timeout` only. Endpoints of its own it
/// takes from a [`Domain`] of its own.
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
        let settings = domain.settings();
        domain.check_process()?;
        domain.pin_thread()?;
        let choice = match settings.lanes() {
            Lanes::Auto => DriverChoice::Auto,
            Lanes::Uring => DriverChoice::Uring,
            Lanes::Sockets => DriverChoice::Sockets,
        };
        let arena = domain.arena();
        let range =
            ArenaRange { base: arena.base(), len: arena.len(), may_be_huge: arena.may_be_huge() };
        // SAFETY: the engine keeps the arena alive until its driver is shut down, and leaks it
        // if that does not come to an end.
        let driver = unsafe { driver::open(choice, &domain.driver_config(), Some(range)) }
            .map_err(|error| Error::system("cannot attach the endpoint", error))?;
        let engine = Rc::new(EngineCell::new(mode.state, driver, mode.sockets)?);
        let mode = Owned::new(engine, 0, 0, Hints::new(domain.settings().hint()));
        Ok(Endpoint { domain, mode })
    }
}

impl Endpoint<Owned> {
    /// Where peers reach it.
    pub fn address(&self) -> Address {
        self.mode.engine.borrow().state.address(self.mode.endpoint)
    }

    /// Which driver moves its messages: `"uring"` or `"sockets"`.
    pub fn driver(&self) -> &'static str {
        self.mode.engine.borrow().driver_name()
    }

    /// The domain it was made from.
    pub fn domain(&self) -> &Domain {
        &self.domain
    }

    /// Another endpoint on the same engine and thread, with an address of its own. It shares
    /// this endpoint's completion queue if `shares_queue`, else it has its own.
    ///
    /// # Errors
    ///
    /// [`Error::Limit`] at 1024 endpoints.
    pub fn open_sibling(&self, shares_queue: bool) -> Result<Self, Error> {
        let mut engine = self.mode.engine.borrow_mut();
        let endpoint = engine
            .state
            .core
            .open_endpoint()
            .ok_or(Error::Limit("an engine has 1024 endpoints; drop some"))?;
        let completions = &mut engine.state.completions;
        let queue = if shares_queue {
            completions.share_queue(self.mode.queue);
            self.mode.queue
        } else {
            completions.open_queue()
        };
        let hints = Hints::new(self.domain.settings().hint());
        let mode = Owned::new(Rc::clone(&self.mode.engine), endpoint, queue, hints);
        Ok(Self { domain: self.domain.clone(), mode })
    }

    /// Gives the endpoint up for another thread to attach; connections stay open.
    ///
    /// # Errors
    ///
    /// The endpoint comes back when siblings or operations are alive, or anything is outstanding.
    pub fn detach(self) -> Result<Endpoint<Detached>, (Self, Error)> {
        if Rc::strong_count(&self.mode.engine) > 1 || self.mode.endpoint != 0 {
            let text = "an engine is detached by its first endpoint, when siblings and operations \
                        are gone";
            return Err((self, Error::misuse(text)));
        }
        let Self { domain, mode } = self;
        let Owned { engine, endpoint, queue, hints, guard } = mode;
        let engine = match Rc::try_unwrap(engine) {
            // Its guard finds nothing to close.
            Ok(engine) => engine.into_engine(),
            Err(engine) => {
                let mode = Owned { engine, endpoint, queue, hints, guard };
                return Err((Self { domain, mode }, Error::misuse("the engine is in use")));
            }
        };
        match engine.detach() {
            Ok((state, sockets)) => Ok(Endpoint { domain, mode: Detached { state, sockets } }),
            Err((engine, error)) => {
                let mode = Owned::new(Rc::new(EngineCell::again(engine)), endpoint, queue, hints);
                // What it has lent is outstanding still.
                mode.guard.has_borrowed.set(guard.has_borrowed.get());
                Err((Self { domain, mode }, error))
            }
        }
    }

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
        self.mode.engine.borrow_mut().insert_peer(address).ok_or(error)
    }

    /// Removes a peer: what is outstanding with it fails, and the connection is closed when it
    /// was the last peer of its engine. It may be inserted again at once: what is posted then goes
    /// by another connection, when the peer has answered the goodbye.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownPeer`] when it was removed before.
    pub fn remove(&self, peer: Peer) -> Result<(), Error> {
        let mut engine = self.mode.engine.borrow_mut();
        let state = &mut *engine.state;
        if !state.core.remove_peer(peer.0, &mut state.completions) {
            return Err(Error::UnknownPeer);
        }
        engine.progress()?;
        Ok(())
    }

    /// The address of a peer. One that was met as the source of a message and never inserted is
    /// known while it is connected and while messages of it wait to be received, and after that
    /// until some newer sessions have ended: insert its address to keep it.
    pub fn peer_address(&self, peer: Peer) -> Option<Address> {
        let engine = self.mode.engine.borrow();
        engine.state.core.remotes().get(peer.0)?;
        let name = engine.state.core.name_of(peer.0.index() as u32)?;
        Some(Address::new(name.engine, name.locators, name.endpoint))
    }

    /// The longest message, in bytes, that may go to a peer with its envelope; longer ones are
    /// pulled. So are shorter ones while there is no credit, and those of more than 32 KiB while
    /// another message that fits no datagram is not acknowledged. That is the setting
    /// `eager_limit_bytes` of the side with the lower one (where it is `auto`, what the peer
    /// advises now, from 16 to 128 KiB: it changes as the peer measures, if that has `auto`, too);
    /// where such a message goes in several datagrams, `datagram_eager_limit_bytes` at the most;
    /// and 32 KiB where both sides have no datagrams. `None`: not connected.
    pub fn eager_limit_bytes(&self, peer: Peer) -> Option<u64> {
        let core = &self.mode.engine.borrow().state.core;
        core.eager_limit_of(core.remotes().get(peer.0)?.session)
    }

    /// Connects to a peer and waits until the session is up. Sending does so by itself; after a
    /// failure this is how to try again.
    ///
    /// # Errors
    ///
    /// [`Error::Peer`] with the cause when all attempts failed, or once, while the attempt goes on,
    /// when completed sends may be lost (see [Failures](Endpoint#failures));
    /// [`Error::UnknownPeer`] when the peer was removed.
    pub fn connect(&self, peer: Peer) -> Result<(), Error> {
        self.connect_all(&[peer])
    }

    /// Connects to several peers at once and waits for all of them.
    ///
    /// # Errors
    ///
    /// The first failure; the other attempts go on.
    pub fn connect_all(&self, peers: &[Peer]) -> Result<(), Error> {
        let mut engine = self.mode.engine.borrow_mut();
        let started: Vec<_> = peers.iter().map(|&peer| engine.start_connect(peer)).collect();
        for outcome in started {
            outcome?;
        }
        for &peer in peers {
            let done = |engine: &mut Engine| match engine.connected(peer) {
                Ok(true) => Some(Ok(())),
                Ok(false) => None,
                Err(error) => Some(Err(error)),
            };
            engine.wait(None, done)?.unwrap_or(Err(Error::TimedOut))?;
        }
        Ok(())
    }
}
