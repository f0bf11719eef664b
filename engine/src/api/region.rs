//! Memory that peers may reach.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::endpoint::Endpoint;
use super::engine_ref::EngineRef;
use super::mode::{Attached, Owned};
use crate::memory::{Buffer, RawSpan, Window};
use crate::progress::engine::Engine;
use crate::progress::leave::LET_GO;
use crate::progress::lent::RegionCounts;
use crate::proto::regions::{KeyName, KeyRequest};
use crate::proto::table::Id;
use crate::types::{Access, Error, Peer};

/// How long the close of a region waits for operations of peers before it aborts them.
const CLOSE_GRACE: Duration = Duration::from_millis(100);

/// A key to memory of a peer: 64 bits that its owner gives away, by any means.
///
/// Who has it may do to the memory what it allows; see SECURITY.md for what that is worth.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RemoteKey(pub u64);

/// A place in memory of a peer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RemoteAddress {
    /// What opens it.
    pub key: RemoteKey,
    /// Where, in bytes from the beginning of what the key opens.
    pub offset: u64,
}

impl RemoteKey {
    /// The place at `offset` of what the key opens, in bytes.
    pub const fn at(self, offset: u64) -> RemoteAddress {
        RemoteAddress { key: self, offset }
    }
}

/// What a key is to open.
#[derive(Clone, Debug)]
pub struct KeyOptions {
    /// What peers may do by it.
    pub access: Access,
    /// Where what it opens begins in the region, in bytes.
    pub offset: usize,
    /// How long that is; `None`: to the end of the region.
    pub length: Option<usize>,
    /// A key that the program chooses; `None`: a random one, which nobody guesses.
    pub key: Option<u64>,
    /// Who may use it; `None`: each peer of the job.
    pub peers: Option<Vec<Peer>>,
}

impl KeyOptions {
    /// A random key to the whole region, for all peers of the job.
    pub const fn new(access: Access) -> Self {
        Self { access, offset: 0, length: None, key: None, peers: None }
    }
}

/// Memory of this process that peers with a key may read and write while the program goes on: a
/// window, in MPI's words.
///
/// Its bytes are copied in and out ([`Self::read`], [`Self::write`]), and words are shared with
/// peers as atomics ([`Self::atomic_u64`]). There is no slice of it: a peer may write at any time.
///
/// # What the owner sees, and when
///
/// * An operation of a peer that has completed there at [`CompletionLevel::Delivery`] is in the
///   memory. Nothing is promised of the order of two operations that are both under way, nor of the
///   order of the bytes of one. A flush, and [`SendOptions`]' levels, order them.
/// * [`Self::counts`] counts operations that are whole in memory; who reads the count sees the
///   bytes. So does who takes the completion of a put with remote data.
/// * Aligned items of 1 to 8 bytes are never seen half.
///
/// # Dropping
///
/// The drop takes back all keys, and gives operations that have the memory 100 ms to end; those
/// that are still under way then are aborted, and fail at their peers. So it returns within little
/// more than 100 ms, whatever peers do: [`Self::revoke`] waits for them. Then the memory is free;
/// what peers have mapped of a shareable region stays theirs.
///
/// If the kernel keeps the memory although its connections are reset, which no kernel is known to
/// do, 2 seconds more are waited. Memory of the library's is left to the kernel then; for memory of
/// the caller's ([`Endpoint::register_raw`]) the driver is closed, which ends all operations of the
/// engine with [`Error::System`]. Where even that does not free it within 2 seconds, or the drop is
/// made by what the engine itself calls, the process is aborted if the memory is the caller's.
///
/// [`CompletionLevel::Delivery`]: crate::CompletionLevel::Delivery
/// [`SendOptions`]: crate::SendOptions
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

/// What peers have done to a region.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct RegionCounters {
    /// Puts that are in place.
    pub puts: u64,
    /// Gets whose bytes were read.
    pub gets: u64,
    /// Atomic operations.
    pub atomics: u64,
    /// Bytes of all of these.
    pub bytes: u64,
}

impl<M: Attached> Endpoint<M> {
    /// Zeroed memory of `length` bytes that peers may reach, in huge pages where the kernel has
    /// some. It belongs to the engine of this endpoint: keys work with peers that address this
    /// endpoint or one beside it.
    ///
    /// # Errors
    ///
    /// [`Error::Memory`]; [`Error::Limit`] where the engine has as many regions as it may have.
    pub fn allocate_region(&self, length: usize) -> Result<Region<M>, Error> {
        self.region_of(Window::allocate(length)?)
    }

    /// The same in ordinary pages of its own that peers on this host may map
    /// ([`Self::map_region`]), if their key gives the rights to read, to write and to operate
    /// atomically. Each of them can then read and write **all of the region** at any time, whatever
    /// part of it the key opens, without the engine, and for as long as it likes: the key is looked
    /// at once. No other region can be mapped.
    ///
    /// Operations of peers on it are those of any region.
    ///
    /// # Errors
    ///
    /// As for [`Self::allocate_region`].
    pub fn allocate_shareable_region(&self, length: usize) -> Result<Region<M>, Error> {
        self.region_of(Window::shareable(length)?)
    }

    /// The memory of `buffer`, with what is in it, for peers to reach. [`Region::into_buffer`]
    /// gives it back.
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] for a list or a shaped buffer: a region is one piece. As above.
    pub fn register(&self, buffer: impl Into<Buffer>) -> Result<Region<M>, Error> {
        let window = Window::from_buffer(buffer.into());
        let text = "a region is one piece of memory: register the pieces of a list one by one";
        self.region_of(window.map_err(|_| Error::misuse(text))?)
    }

    /// Memory of the caller, for peers to reach.
    ///
    /// # Safety
    ///
    /// It is mapped, readable and writable until the drop of the region has returned. The program
    /// accesses it meanwhile by atomics only, or while no peer does (an epoch of MPI).
    ///
    /// # Errors
    ///
    /// As for [`Self::allocate_region`].
    pub unsafe fn register_raw(&self, memory: RawSpan) -> Result<Region<M>, Error> {
        // SAFETY: the caller's promise.
        self.region_of(unsafe { Window::from_raw(memory.ptr, memory.len) })
    }

    /// A range of addresses for peers to reach of which parts may not be mapped, or not yet: MPI's
    /// dynamic windows are all of it, from 0 with `usize::MAX`. An operation on what is not mapped
    /// is refused. Each access costs a system call.
    ///
    /// # Safety
    ///
    /// Peers that have a key may read and write whatever is mapped in it: no memory that they do
    /// access is borrowed meanwhile, and what the program unmaps no operation is under way on.
    ///
    /// # Errors
    ///
    /// As for [`Self::allocate_region`].
    pub unsafe fn register_unmapped(&self, memory: RawSpan) -> Result<Region<M>, Error> {
        // SAFETY: the caller's promise.
        self.region_of(unsafe { Window::unmapped(memory.ptr, memory.len) })
    }

    fn region_of(&self, window: Window) -> Result<Region<M>, Error> {
        let engine = self.open().engine.clone();
        let (window, counts) = (Arc::new(window), Arc::new(RegionCounts::default()));
        let id = engine.with(|engine| {
            let (window, counts) = (Arc::clone(&window), Arc::clone(&counts));
            engine.lend_region(window.len() as u64, window, counts)
        })?;
        Ok(Region { engine, id, window: Some(window), counts })
    }
}

impl<M: Attached> Region<M> {
    fn window(&self) -> &Window {
        self.window.as_deref().expect("it is taken by into_buffer only, which takes the region")
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.window().len()
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A new key. Any number of keys may open a region.
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] for a range that is not inside, no rights, or a chosen key that is in use;
    /// [`Error::UnknownPeer`] for a peer that this engine does not have.
    pub fn key(&self, options: &KeyOptions) -> Result<RemoteKey, Error> {
        let KeyOptions { access, offset, length, key, ref peers } = *options;
        let length = length.unwrap_or_else(|| self.len().saturating_sub(offset));
        self.engine.with(|engine| {
            let peers = peers.as_ref().map(|peers| engine.engines_of(peers)).transpose()?;
            let (offset, length) = (offset as u64, length as u64);
            let request = KeyRequest { key, offset, length, access, peers };
            engine.add_key(self.id, request).map(RemoteKey)
        })
    }

    /// Takes a key back. From the return on nothing begins by it; then this waits until nothing
    /// that began by it reaches the memory, up to `timeout` (without one for as long as it takes).
    ///
    /// # Errors
    ///
    /// [`Error::Busy`] names a peer whose operation is still under way: the key is taken back all
    /// the same. [`Error::Misuse`] for no key of this region, or one that was taken back before, or
    /// of a region that is mapped ([`Self::is_mapped`]): nothing begins by the key any more, and
    /// nothing keeps a peer from what it has mapped.
    pub fn revoke(&self, key: RemoteKey, timeout: Option<Duration>) -> Result<(), Error> {
        let name = self.engine.with(|engine| engine.revoke_key(self.id, key.0))?;
        self.wait_until_unused(Some(name), timeout)?;
        match self.is_mapped() {
            false => Ok(()),
            true => Err(Error::misuse(
                "a peer has mapped the region, and keeps it: memory that was mapped cannot be \
                 taken back. Use another region for what it must not see",
            )),
        }
    }

    /// Whether some peer has mapped the region ([`Endpoint::map_region`]), by whichever key, and
    /// whatever became of that and of the peer. No key of it protects anything then.
    pub fn is_mapped(&self) -> bool {
        self.engine.with(|engine| engine.is_region_mapped(self.id))
    }

    fn wait_until_unused(
        &self,
        by: Option<KeyName>,
        timeout: Option<Duration>,
    ) -> Result<(), Error> {
        let deadline = super::blocking::deadline_of(timeout);
        let unused = self
            .engine
            .wait(deadline, |engine| engine.user_of_region(self.id, by).is_none().then_some(()))?;
        match unused {
            Some(()) => Ok(()),
            None => Err(self.engine.with(|engine| engine.busy_region(self.id, by))),
        }
    }

    /// Copies bytes out.
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] for what is not inside, or not mapped.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), Error> {
        self.window().load(offset, into).map_err(|fault| Error::misuse(fault.to_string()))
    }

    /// Copies bytes in.
    ///
    /// # Errors
    ///
    /// As for [`Self::read`].
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        self.window().store(offset, bytes).map_err(|fault| Error::misuse(fault.to_string()))
    }

    /// The 8 bytes at `offset` as an atomic, which operations of peers on `U64` and `I64` go
    /// together with. `None`: not inside, not at a multiple of 8 in memory, or it may be unmapped.
    pub fn atomic_u64(&self, offset: usize) -> Option<&AtomicU64> {
        self.window().atomic_u64(offset)
    }

    /// The same, of 4 bytes.
    pub fn atomic_u32(&self, offset: usize) -> Option<&AtomicU32> {
        self.window().atomic_u32(offset)
    }

    /// What peers have done to it so far. Who sees a count sees what was counted.
    pub fn counts(&self) -> RegionCounters {
        let RegionCounts { puts, gets, atomics, bytes } = &*self.counts;
        RegionCounters {
            puts: puts.load(Ordering::Acquire),
            gets: gets.load(Ordering::Acquire),
            atomics: atomics.load(Ordering::Acquire),
            bytes: bytes.load(Ordering::Acquire),
        }
    }

    /// Makes progress until `done` says so of the counts, up to `timeout`. `false`: it passed.
    ///
    /// # Errors
    ///
    /// The driver failed for good.
    pub fn wait(
        &self,
        timeout: Option<Duration>,
        mut done: impl FnMut(&RegionCounters) -> bool,
    ) -> Result<bool, Error> {
        let deadline = super::blocking::deadline_of(timeout);
        let is_done = self.engine.wait(deadline, |_| done(&self.counts()).then_some(()))?;
        Ok(is_done.is_some())
    }

    /// Takes the memory back, as the drop does, and gives the buffer that was registered.
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] for memory that was no buffer.
    pub fn into_buffer(mut self) -> Result<Buffer, Error> {
        self.close();
        let text = "only a region that was made of a buffer has one to give back";
        let window = self.window.take().and_then(Arc::into_inner);
        let buffer = window.and_then(|window| window.into_buffer().ok());
        buffer.ok_or_else(|| Error::misuse(text))
    }

    /// Nobody reaches the memory any more.
    fn close(&self) {
        if M::Engine::upgrade(&self.engine.downgrade()).is_none() {
            // Inherited by `fork`: it is the parent's, as its memory here is nobody's.
            return;
        }
        if self.engine.with_to_let_go(|engine| engine.close_region(self.id)).is_none() {
            return self.end_with_borrowed("it is dropped inside its own engine");
        }
        if self.wait_until_unused(None, Some(CLOSE_GRACE)).is_err() {
            self.abort_accesses();
        }
        self.engine.with_to_let_go(|engine| engine.forget_region(self.id));
    }
}

impl<M: Attached> Region<M> {
    /// Peers may take any time for what they have begun, and some never go on.
    fn abort_accesses(&self) {
        let busy = self.engine.with(|engine| engine.busy_region(self.id, None));
        tracing::debug!("operations on a region that is closed are aborted: {busy}");
        self.engine.with(|engine| engine.abort_accesses(self.id));
        let is_used = |engine: &mut Engine| engine.user_of_region(self.id, None).is_some();
        if self.wait_until_unused(None, Some(LET_GO)).is_ok() || !self.engine.with(is_used) {
            return;
        }
        if self.window().is_borrowed() {
            self.engine.with(Engine::release_by_force);
            if self.engine.with(is_used) {
                self.end_with_borrowed("the kernel does not let go of it");
            }
        }
    }

    /// Memory of the engine's own is leaked; that of the caller is about to be used for something
    /// else, while a peer, or the kernel, may write it.
    fn end_with_borrowed(&self, cause: &str) {
        if self.window().is_borrowed() {
            tracing::error!(
                "a region of lent memory cannot be closed, and the process ends: {cause}"
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
