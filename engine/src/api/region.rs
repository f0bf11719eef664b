//! Registered memory regions, which peers can access.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::endpoint::Endpoint;
use super::engine_ref::EngineRef;
use super::mode::{Attached, Owned};
use crate::memory::{Buffer, RawSpan, Window};
use crate::progress::engine::Engine;
use crate::progress::leave::LET_GO;
use crate::progress::registered_memory::RegionCounts;
use crate::proto::regions::{KeyName, KeyRequest};
use crate::proto::table::Id;
use crate::types::{Access, Error, Peer};

/// How long closing a region waits for operations of peers before it aborts them.
const CLOSE_GRACE: Duration = Duration::from_millis(100);

/// A key to the memory of a peer: 64 bits that its owner sends to others by any means.
///
/// A peer with the key can access the memory as the key allows; SECURITY.md describes what that
/// protects against.
///
/// ```
/// # let settings = ringrail::settings::Settings::isolated().set("listen_address", "127.0.0.1");
/// # let domain = ringrail::Domain::with_settings(settings.insecure(true).build()?)?;
/// # let (left, right) = (domain.endpoint()?.share()?, domain.endpoint()?.share()?);
/// # let peer = left.insert_peer(&right.address())?;
/// use ringrail::{Access, KeyOptions, RemoteKey, SendOptions};
///
/// let region = right.allocate_region(4096)?;
/// // A key to the second half, for reading only.
/// let options = KeyOptions { offset: 2048, ..KeyOptions::new(Access::REMOTE_READ) };
/// let key = region.key(&options)?;
/// let key = RemoteKey(key.0); // 64 bits, which the owner sends in a message, for example
/// let mut bytes = [1; 8];
/// left.get_blocking(peer, key.at(16), &mut bytes, SendOptions::new())?;
/// assert_eq!(bytes, [0; 8]);
/// left.put_blocking(peer, key.at(16), b"refused", SendOptions::new())?;
/// assert!(left.flush(peer, SendOptions::new()).is_err(), "the key does not permit it");
/// region.revoke(key, None)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RemoteKey(pub u64);

/// An address in the memory of a peer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RemoteAddress {
    /// The key to the region.
    pub key: RemoteKey,
    /// Offset in bytes from the beginning of the range of the key.
    pub offset: u64,
}

impl RemoteKey {
    /// Returns the address at `offset`, in bytes, in the range of the key.
    pub const fn at(self, offset: u64) -> RemoteAddress {
        RemoteAddress { key: self, offset }
    }
}

/// Options of a key.
#[derive(Clone, Debug)]
pub struct KeyOptions {
    /// The access that it grants.
    pub access: Access,
    /// Begin of its range in the region, in bytes.
    pub offset: usize,
    /// Length of its range in bytes; `None`: to the end of the region.
    pub length: Option<usize>,
    /// A key that the program chooses; `None`: a random one, which cannot be guessed.
    pub key: Option<u64>,
    /// The peers that may use it; `None`: all peers of the job.
    pub peers: Option<Vec<Peer>>,
}

impl KeyOptions {
    /// Options of a random key to the whole region, for all peers of the job.
    pub const fn new(access: Access) -> Self {
        Self { access, offset: 0, length: None, key: None, peers: None }
    }
}

/// Memory of this process that peers with a key can read and write at any time (an MPI window).
///
/// The owner copies bytes out and in ([`Self::read`], [`Self::write`]), and shares words with peers
/// as atomics ([`Self::atomic_u64`]). A region has no slice, since peers may write at any time.
///
/// # Visibility
///
/// * The bytes of a peer's operation are in the memory when it has completed there at
///   [`CompletionLevel::Delivery`]. Two concurrent operations, and the bytes of one, are not
///   ordered. A flush, and the levels of [`SendOptions`], order operations.
/// * [`Self::counters`] counts operations whose bytes are in the memory: a thread that reads a
///   count also reads these bytes. The same holds for the completion of a put with remote data.
/// * Aligned items of 1 to 8 bytes are read and written atomically.
///
/// # Dropping
///
/// Dropping a region revokes all of its keys and waits up to 100 ms for operations in progress;
/// then it aborts them, and they fail at their peers. So it returns within little more than 100 ms,
/// also if peers are stopped; [`Self::revoke`] waits for them instead. After that the memory is
/// free.
///
/// If the kernel keeps using the memory although the connections are reset (no kernel is known to),
/// the drop waits 2 more seconds. Then it leaks memory of the library; for memory of the caller
/// ([`Endpoint::register_raw`]) it closes the driver, which ends all operations of the engine with
/// [`Error::System`]. If that does not free the caller's memory within 2 seconds, or the drop is
/// made in a callback of the engine, the process is aborted.
///
/// [`CompletionLevel::Delivery`]: crate::CompletionLevel::Delivery
/// [`SendOptions`]: crate::SendOptions
///
/// # Example
///
/// ```
/// # let settings = ringrail::settings::Settings::isolated().set("listen_address", "127.0.0.1");
/// # let domain = ringrail::Domain::with_settings(settings.insecure(true).build()?)?;
/// # let (left, right) = (domain.endpoint()?.share()?, domain.endpoint()?.share()?);
/// # let peer = left.insert_peer(&right.address())?;
/// use ringrail::{Access, CompletionLevel, KeyOptions, SendOptions};
///
/// let region = right.allocate_region(4096)?;
/// let key = region.key(&KeyOptions::new(Access::REMOTE_READ | Access::REMOTE_WRITE))?;
/// // At this level the put completes when its bytes are in the memory of the region.
/// let options = SendOptions::at(CompletionLevel::Delivery);
/// left.put_blocking(peer, key.at(64), b"written by a peer", options)?;
/// let mut bytes = [0; 17];
/// region.read(64, &mut bytes)?;
/// assert_eq!(&bytes, b"written by a peer");
/// assert_eq!(region.counters().puts, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Region<M: Attached = Owned> {
    engine: M::Engine,
    id: Id,
    window: Option<Arc<Window>>,
    counts: Arc<RegionCounts>,
}

impl<M: Attached> std::fmt::Debug for Region<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Region").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// Counters of the operations of peers on a region.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct RegionCounters {
    /// Puts that were written.
    pub puts: u64,
    /// Gets that were read.
    pub gets: u64,
    /// Atomic operations.
    pub atomics: u64,
    /// Bytes of all operations.
    pub bytes: u64,
}

impl<M: Attached> Endpoint<M> {
    /// Allocates and registers `length` bytes of zeroed memory, in huge pages if the kernel has
    /// some. The region belongs to the engine of this endpoint: its keys are valid for operations
    /// that name this endpoint or another one of the engine.
    ///
    /// # Errors
    ///
    /// [`Error::Memory`]; [`Error::Limit`] at the engine's limit of regions.
    pub fn allocate_region(&self, length: usize) -> Result<Region<M>, Error> {
        self.region_of(Window::allocate(length)?)
    }

    /// Registers the memory of `buffer`, with its contents. [`Region::into_buffer`] returns it.
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] for a list or a shaped buffer, since a region is contiguous; otherwise as
    /// for [`Self::allocate_region`].
    pub fn register(&self, buffer: impl Into<Buffer>) -> Result<Region<M>, Error> {
        let window = Window::from_buffer(buffer.into());
        let text = "a region is one piece of memory: register the pieces of a list one by one";
        self.region_of(window.map_err(|_| Error::misuse(text))?)
    }

    /// Registers memory of the caller.
    ///
    /// # Safety
    ///
    /// The memory stays mapped, readable and writable until the drop of the region has returned.
    /// Until then the program accesses it with atomics only, or while no peer does (MPI epochs).
    ///
    /// # Errors
    ///
    /// As for [`Self::allocate_region`].
    pub unsafe fn register_raw(&self, memory: RawSpan) -> Result<Region<M>, Error> {
        // SAFETY: the caller guarantees it.
        self.region_of(unsafe { Window::from_raw(memory.ptr, memory.len) })
    }

    /// Registers a range of addresses that need not be mapped, for example the whole address space
    /// for MPI's dynamic windows (0 and `usize::MAX`). Operations on addresses that are not mapped
    /// are refused. Each access costs a system call.
    ///
    /// # Safety
    ///
    /// Peers with a key can read and write everything that is mapped in the range: memory that they
    /// access must not be borrowed at that time, nor be unmapped during an operation.
    ///
    /// # Errors
    ///
    /// As for [`Self::allocate_region`].
    pub unsafe fn register_unmapped(&self, memory: RawSpan) -> Result<Region<M>, Error> {
        // SAFETY: the caller guarantees it.
        self.region_of(unsafe { Window::unmapped(memory.ptr, memory.len) })
    }

    fn region_of(&self, window: Window) -> Result<Region<M>, Error> {
        let engine = self.open().engine.clone();
        let (window, counts) = (Arc::new(window), Arc::new(RegionCounts::default()));
        let id = engine.with(|engine| {
            let (window, counts) = (Arc::clone(&window), Arc::clone(&counts));
            engine.state.lend_region(window.len() as u64, window, counts)
        })?;
        Ok(Region { engine, id, window: Some(window), counts })
    }
}

impl<M: Attached> Region<M> {
    fn window(&self) -> &Window {
        self.window.as_deref().expect("it is taken by into_buffer only, which takes the region")
    }

    /// Returns its length in bytes.
    pub fn len(&self) -> usize {
        self.window().len()
    }

    /// Whether its length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Makes a key. A region can have any number of keys.
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] for a range outside of the region, no access, or a chosen key that is in
    /// use; [`Error::UnknownPeer`] for a peer that this engine does not have.
    pub fn key(&self, options: &KeyOptions) -> Result<RemoteKey, Error> {
        let KeyOptions { access, offset, length, key, ref peers } = *options;
        let length = length.unwrap_or_else(|| self.len().saturating_sub(offset));
        self.engine.with(|engine| {
            let peers = peers.as_ref().map(|peers| engine.state.engines_of(peers)).transpose()?;
            let (offset, length) = (offset as u64, length as u64);
            let request = KeyRequest { key, offset, length, access, peers };
            engine.state.add_key(self.id, request).map(RemoteKey)
        })
    }

    /// Revokes a key: no operation begins with it any more. Waits until the operations that began
    /// with it have ended, up to `timeout` (without one, without limit).
    ///
    /// # Errors
    ///
    /// [`Error::Busy`] names a peer whose operation is in progress; the key is revoked all the
    /// same. [`Error::Misuse`] if it is no key of this region or was revoked before.
    pub fn revoke(&self, key: RemoteKey, timeout: Option<Duration>) -> Result<(), Error> {
        let name = self.engine.with(|engine| engine.state.revoke_key(self.id, key.0))?;
        self.wait_until_unused(Some(name), timeout)
    }

    fn wait_until_unused(
        &self,
        by: Option<KeyName>,
        timeout: Option<Duration>,
    ) -> Result<(), Error> {
        let deadline = super::blocking::deadline_of(timeout);
        let unused = self.engine.wait(deadline, |engine| {
            engine.state.user_of_region(self.id, by).is_none().then_some(())
        })?;
        match unused {
            Some(()) => Ok(()),
            None => Err(self.engine.with(|engine| engine.state.busy_region(self.id, by))),
        }
    }

    /// Copies bytes out of the region.
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] for a range that is not in the region, or not mapped.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), Error> {
        self.window().load(offset, into).map_err(|fault| Error::misuse(fault.to_string()))
    }

    /// Copies bytes into the region.
    ///
    /// # Errors
    ///
    /// As for [`Self::read`].
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        self.window().store(offset, bytes).map_err(|fault| Error::misuse(fault.to_string()))
    }

    /// Returns the 8 bytes at `offset` as an atomic, consistent with atomic operations of peers on
    /// `U64` and `I64`. `None`: outside of the region, not aligned to 8 bytes, or possibly not
    /// mapped.
    pub fn atomic_u64(&self, offset: usize) -> Option<&AtomicU64> {
        self.window().atomic_u64(offset)
    }

    /// Like [`Self::atomic_u64`], for 4 bytes.
    pub fn atomic_u32(&self, offset: usize) -> Option<&AtomicU32> {
        self.window().atomic_u32(offset)
    }

    /// Returns the counters of the operations of peers. The bytes of operations that are counted
    /// are visible to the thread that reads the count.
    pub fn counters(&self) -> RegionCounters {
        let RegionCounts { puts, gets, atomics, bytes } = &*self.counts;
        RegionCounters {
            puts: puts.load(Ordering::Acquire),
            gets: gets.load(Ordering::Acquire),
            atomics: atomics.load(Ordering::Acquire),
            bytes: bytes.load(Ordering::Acquire),
        }
    }

    /// Makes progress until `done` returns `true` for the counters, or `timeout` has passed
    /// (`false`).
    ///
    /// # Errors
    ///
    /// [`Error::System`] if the driver has failed.
    pub fn wait(
        &self,
        timeout: Option<Duration>,
        mut done: impl FnMut(&RegionCounters) -> bool,
    ) -> Result<bool, Error> {
        let deadline = super::blocking::deadline_of(timeout);
        let is_done = self.engine.wait(deadline, |_| done(&self.counters()).then_some(()))?;
        Ok(is_done.is_some())
    }

    /// Closes the region, as the drop does, and returns the buffer that was registered.
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] if the region was not made by [`Endpoint::register`].
    pub fn into_buffer(mut self) -> Result<Buffer, Error> {
        self.close();
        let text = "only a region that was registered with a buffer can return it";
        let window = self.window.take().and_then(Arc::into_inner);
        let buffer = window.and_then(|window| window.into_buffer().ok());
        buffer.ok_or_else(|| Error::misuse(text))
    }

    /// Ends all access to the memory.
    fn close(&self) {
        if M::Engine::upgrade(&self.engine.downgrade()).is_none() {
            // Inherited by `fork`: it belongs to the parent, and its memory is not mapped here.
            return;
        }
        if self
            .engine
            .with_to_let_go(|engine| {
                engine.state.core_mut().shared_mut().regions_mut().close(self.id)
            })
            .is_none()
        {
            return self.end_with_borrowed("it is dropped inside its own engine");
        }
        if self.wait_until_unused(None, Some(CLOSE_GRACE)).is_err() {
            self.abort_accesses();
        }
        self.engine
            .with_to_let_go(|engine| engine.state.completions_mut().regions_mut().remove(self.id));
    }
}

impl<M: Attached> Region<M> {
    /// Peers may take any time for operations in progress, or be stopped.
    fn abort_accesses(&self) {
        let busy = self.engine.with(|engine| engine.state.busy_region(self.id, None));
        tracing::debug!("aborting operations on a closed region: {busy}");
        self.engine.with(|engine| engine.abort_accesses(self.id));
        let is_used = |engine: &mut Engine| engine.state.user_of_region(self.id, None).is_some();
        if self.wait_until_unused(None, Some(LET_GO)).is_ok() || !self.engine.with(is_used) {
            return;
        }
        if self.window().is_borrowed() {
            self.engine.with(Engine::release_by_force);
            if self.engine.with(is_used) {
                self.end_with_borrowed("the kernel does not release it");
            }
        }
    }

    /// Memory of the engine is leaked. That of the caller would be reused while a peer, or the
    /// kernel, may write it.
    fn end_with_borrowed(&self, cause: &str) {
        if self.window().is_borrowed() {
            tracing::error!(
                "a region of borrowed memory cannot be closed, and the process is aborted: {cause}"
            );
            std::process::abort();
        }
    }
}

impl<M: Attached> Drop for Region<M> {
    fn drop(&mut self) {
        if self.window.is_some() {
            self.close();
        }
    }
}
