//! The memory of doorbells, on the side of its owner and on that of its peers.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{Ordering, fence};

use super::doorbell::{self, DOORBELL_BYTES, DOORBELLS, DoorbellWords, PendingDoorbells};
use super::mapping::SharedMapping;
use crate::forks::EngineFd;

type Page = SharedMapping<DOORBELL_BYTES>;

impl DoorbellWords for Page {
    #[inline]
    fn load(&self, word: usize, order: Ordering) -> u64 {
        self.words()[word].load(order)
    }

    #[inline]
    fn fetch_or(&self, word: usize, bits: u64, order: Ordering) -> u64 {
        self.words()[word].fetch_or(bits, order)
    }

    #[inline]
    fn swap(&self, word: usize, value: u64, order: Ordering) -> u64 {
        self.words()[word].swap(value, order)
    }

    #[inline]
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

/// The doorbells of this engine.
#[derive(Debug)]
pub(super) struct Doorbells {
    page: Page,
    memory: EngineFd,
    /// Those that have been rung and not been served.
    pub(super) pending: PendingDoorbells,
}

impl Doorbells {
    pub(super) fn create() -> io::Result<Self> {
        let (page, memory) = Page::create("ringrail-doorbells")?;
        let memory = EngineFd::new(memory);
        Ok(Self { page, memory, pending: PendingDoorbells::default() })
    }

    /// The memory as passed to peers.
    pub(super) fn memory(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }

    /// Collects newly set doorbells; returns whether any is pending.
    #[inline]
    pub(super) fn collect(&mut self) -> bool {
        self.pending.collect(&self.page)
    }
}

/// One doorbell of a peer.
#[derive(Debug)]
pub(super) struct PeerDoorbell {
    page: Page,
    number: u32,
}

impl PeerDoorbell {
    /// Doorbell `number` in memory that a peer created.
    ///
    /// # Errors
    ///
    /// As for [`SharedMapping::open`]; there is no such doorbell.
    pub(super) fn open(memory: BorrowedFd<'_>, number: u32) -> io::Result<Self> {
        if number >= DOORBELLS {
            let why = "the peer has no doorbell of that number";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        Ok(Self { page: Page::open(memory)?, number })
    }

    /// Sets it. The caller has passed a fence since it wrote the ring entry.
    #[inline]
    pub(super) fn set(&self) {
        doorbell::set_doorbell(&self.page, self.number);
    }

    /// Overwrites all words of the page.
    #[cfg(test)]
    pub(super) fn corrupt(&self, value: u64) {
        self.page.words().iter().for_each(|word| word.store(value, Ordering::Relaxed));
    }
}
