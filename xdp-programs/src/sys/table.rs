//! The table of descriptors of a thread.

use std::io;
use std::os::fd::{BorrowedFd, RawFd};

use rustix::thread::{UnshareFlags, unshare_unsafe};

/// A thread's own table, a copy of the one that all had together: what is in it is closed when the
/// thread ends, and the numbers of others are not touched any more.
#[derive(Debug)]
pub(crate) struct OwnTable(());

impl OwnTable {
    /// Gives the calling thread a table of its own. Whatever owns a descriptor and was brought to
    /// this thread must not be dropped in it, nor anything that was opened in it be taken away.
    ///
    /// # Errors
    ///
    /// No memory for it.
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: no value that owns a descriptor crosses from one table to the other: callers
        // bring numbers, and take nothing away.
        unsafe { unshare_unsafe(UnshareFlags::FILES) }?;
        Ok(Self(()))
    }

    /// The descriptor `number`, which was open when the table was made.
    pub(crate) fn get(&self, number: RawFd) -> BorrowedFd<'_> {
        // SAFETY: no other thread closes anything in this table, and this thread only by its end.
        unsafe { BorrowedFd::borrow_raw(number) }
    }
}
