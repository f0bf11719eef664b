//! Memory of a peer on this host, mapped here.

use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::{Duration, Instant};

use super::blocking::{BlockingCall, deadline_of};
use super::endpoint::Endpoint;
use super::engine_ref::EngineRef;
use super::mode::Attached;
use super::region::RemoteKey;
use crate::memory::Window;
use crate::progress::mapped::MEETING_LIMIT;
use crate::types::{Error, Peer, TimeOutOutcome};

/// The range of a key to a peer's shareable region, mapped into this process: loads and stores
/// access the peer's memory without either engine.
///
/// Bytes are copied in and out, and words are accessed as atomics, as in a
/// [`Region`](crate::Region): the owner and other processes that have mapped it access it at the
/// same time. Aligned items of 1 to 8 bytes are read and written atomically. Operations of
/// [`Self::atomic_u64`] and [`Self::atomic_u32`] are atomic with respect to atomic operations that
/// engines execute on the region.
///
/// Accesses are not counted ([`Region::counters`](crate::Region::counters)), and are ordered with
/// completions and messages only by this process: the receiver of a message sees what this process
/// stored before it sent the message.
///
/// The mapping stays valid when the peer revokes the key, drops the region or exits; there is no
/// notification. A child of `fork` inherits it.
#[derive(Debug)]
pub struct MappedRegion {
    window: Window,
}

impl<M: Attached> Endpoint<M> {
    /// Maps the range of a key of a peer on this host that shares memory with this engine (setting
    /// `shared_memory`; [`Endpoint::shared_memory`] returns the state of this engine). The region
    /// has to be one of [`Self::allocate_shareable_region`], and the key has to grant the rights to
    /// read, to write and to operate atomically.
    ///
    /// The peer has to make progress for the call to succeed; `timeout` limits the wait for it.
    /// After connecting, the call waits up to two seconds until memory is shared with the peer.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] with the cause: the key, its rights, or a region that is not shareable.
    /// [`Error::Misuse`] if no memory is shared with the peer; [`Error::System`] if the sharing has
    /// just ended, or the kernel refuses the mapping; [`Error::WouldBlock`] if too many requests
    /// are outstanding; [`Error::TimedOut`]; otherwise as for [`Self::connect`].
    pub fn map_region(
        &self,
        peer: Peer,
        key: RemoteKey,
        timeout: Option<Duration>,
    ) -> Result<MappedRegion, Error> {
        let deadline = deadline_of(timeout);
        let engine = &self.open().engine;
        let late = || {
            let called = BlockingCall::new("map_region", Some(peer));
            called.timed_out(engine, timeout, TimeOutOutcome::NotDone)
        };
        // Before a session is begun for nothing.
        engine.with(|engine| engine.shares_memory(peer))?;
        self.connect(peer, timeout)?;
        let meeting = Instant::now() + MEETING_LIMIT;
        let meeting = deadline.map_or(meeting, |deadline| deadline.min(meeting));
        let met = engine.wait(Some(meeting), |engine| match engine.shares_memory(peer) {
            Ok(false) => None,
            Ok(true) => Some(Ok(())),
            Err(error) => Some(Err(error)),
        })?;
        met.unwrap_or_else(|| match deadline {
            Some(deadline) if Instant::now() >= deadline => Err(late()),
            _ => Err(Error::misuse(
                "no memory is shared with the peer: it is on another host or in another network \
                 namespace, or does without (its settings shared_memory, control_lane); put and \
                 get work with any",
            )),
        })?;
        let token = engine.with(|engine| engine.request_memory(peer, key.0))?;
        let answer = engine.wait(deadline, |engine| engine.take_memory(token));
        if !matches!(answer, Ok(Some(_))) {
            engine.with(|engine| engine.forget_question(token));
        }
        let window = answer?.unwrap_or_else(|| Err(late()))?;
        Ok(MappedRegion { window })
    }
}

impl MappedRegion {
    /// Returns the length of the range of the key in bytes.
    pub fn len(&self) -> usize {
        self.window.len()
    }

    /// Whether its length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies bytes out.
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] for a range that is not in the mapping.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), Error> {
        self.window.load(offset, into).map_err(|fault| Error::misuse(fault.to_string()))
    }

    /// Copies bytes in.
    ///
    /// # Errors
    ///
    /// As for [`Self::read`].
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        self.window.store(offset, bytes).map_err(|fault| Error::misuse(fault.to_string()))
    }

    /// Returns the 8 bytes at `offset` as an atomic. `None`: not in the mapping, or not aligned to
    /// 8 bytes in memory.
    pub fn atomic_u64(&self, offset: usize) -> Option<&AtomicU64> {
        self.window.atomic_u64(offset)
    }

    /// Like [`Self::atomic_u64`], for 4 bytes.
    pub fn atomic_u32(&self, offset: usize) -> Option<&AtomicU32> {
        self.window.atomic_u32(offset)
    }
}
