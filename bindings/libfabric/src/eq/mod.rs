//! `fi_eq`: what happens besides the ends of operations.
//!
//! A queue of this provider's own, for it belongs to a fabric, while those of the engine belong to
//! an engine. Address vectors and memory regions put into it what they have done; applications put
//! into it what they like (`fi_eq_write`).

mod calls;
mod entry;
mod source;

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub(crate) use calls::eq_open;
use entry::Entry;
pub(crate) use entry::ErrorEntry;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
pub(crate) use source::Source;
use source::Sources;

use crate::abi::consts::FI_CLASS_EQ;
use crate::abi::fids::{fid, fid_eq};
use crate::abi::info::fi_info;
use crate::abi::messages::fi_eq_entry;
use crate::errno::Errno;
use crate::fabric::Fabric;
use crate::fid::{Header, Object};

/// The content of a queue.
#[derive(Default)]
struct Entries {
    list: VecDeque<Entry>,
    /// The data that the last error entry points to.
    error_data: Vec<u8>,
}

/// An event queue.
#[repr(C)]
pub(crate) struct Eq {
    header: Header<fid_eq>,
    fabric: Arc<Fabric>,
    /// `FI_WAIT_*`.
    wait_obj: std::ffi::c_int,
    is_writable: bool,
    entries: Mutex<Entries>,
    /// Readable while there are entries.
    bell: OwnedFd,
    sources: Sources,
}

// SAFETY: it is `repr(C)`, and begins with its header.
unsafe impl Object for Eq {
    type Fid = fid_eq;
    const CLASS: usize = FI_CLASS_EQ;
}

impl Eq {
    fn new_bell() -> Result<OwnedFd, Errno> {
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(source::no_descriptor)
    }

    /// Whether it may be bound to an object of `fabric`.
    ///
    /// # Errors
    ///
    /// [`Errno::INVAL`], with a line in the log.
    pub(crate) fn check_fabric(&self, fabric: &Fabric) -> Result<(), Errno> {
        if std::ptr::eq(&*self.fabric, fabric) {
            return Ok(());
        }
        tracing::warn!(
            "the event queue belongs to another fabric: open it from the fabric of what it is \
             bound to"
        );
        Err(Errno::INVAL)
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, entry: Entry) {
        let mut entries = self.entries();
        entries.list.push_back(entry);
        if entries.list.len() == 1 {
            // It has room for 2^64 - 2: it is 0 here.
            let _written = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        }
    }

    /// The bell is as the list is.
    fn taken(&self, entries: &Entries) {
        if entries.list.is_empty() {
            let mut count = [0; 8];
            let _read = rustix::io::read(&self.bell, &mut count);
        }
    }

    /// An event with the usual entry.
    pub(crate) fn push(&self, event: u32, entry: fi_eq_entry) {
        self.put(Entry::Event { event, bytes: entry::bytes_of(&entry) });
    }

    /// An event of a connection, with the private data of the other side; `info` is the reader's.
    pub(crate) fn push_connection(
        &self,
        event: u32,
        fid: *mut fid,
        info: *mut fi_info,
        data: &[u8],
    ) {
        let mut bytes = entry::bytes_of_connection(fid, info);
        bytes.extend_from_slice(data);
        self.put(Entry::Event { event, bytes });
    }

    /// Takes events from `source`, too.
    pub(crate) fn add_source(&self, source: &Arc<dyn Source>) -> Result<(), Errno> {
        self.sources.add(source)
    }

    /// An error, read by `fi_eq_readerr`.
    pub(crate) fn push_error(&self, entry: ErrorEntry) {
        self.put(Entry::Error(entry));
    }

    /// Whether a thread may sleep by the descriptor now (`fi_trywait`).
    pub(crate) fn trywait(&self) -> Result<(), Errno> {
        self.sources.pump();
        let is_idle = self.sources.arm() && self.entries().list.is_empty();
        if is_idle { Ok(()) } else { Err(Errno::AGAIN) }
    }

    /// The oldest event, up to `into.len()` bytes of it; left where it is with `is_peek`.
    fn read(&self, into: &mut [u8], is_peek: bool) -> Result<(u32, usize), Errno> {
        self.sources.pump();
        let mut entries = self.entries();
        let (event, length) = match entries.list.front() {
            None => return Err(Errno::AGAIN),
            Some(Entry::Error(_)) => return Err(Errno::AVAIL),
            Some(Entry::Event { event, bytes }) => {
                // Of private data as much as there is room for; an entry itself is whole.
                if into.len() < entry::least_bytes(*event, bytes.len()) {
                    return Err(Errno::TOOSMALL);
                }
                let length = bytes.len().min(into.len());
                into[..length].copy_from_slice(&bytes[..length]);
                (*event, length)
            }
        };
        if !is_peek {
            entries.list.pop_front();
            self.taken(&entries);
        }
        Ok((event, length))
    }

    /// As [`Self::read`], once there is something; negative milliseconds: without an end.
    fn wait(
        &self,
        into: &mut [u8],
        is_peek: bool,
        milliseconds: i32,
    ) -> Result<(u32, usize), Errno> {
        let timeout = u64::try_from(milliseconds).ok().map(Duration::from_millis);
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        loop {
            match self.read(into, is_peek) {
                Err(Errno::AGAIN) => {}
                answer => return answer,
            }
            let left = deadline.map(|it| it.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(Errno::AGAIN);
            }
            self.sleep(left)?;
        }
    }

    /// Until something may have come, `left` has passed, or a signal came.
    fn sleep(&self, left: Option<Duration>) -> Result<(), Errno> {
        if !self.sources.arm() {
            return Ok(());
        }
        let left = left.map(|left| rustix::event::Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: left.subsec_nanos().into(),
        });
        let fd = self.sources.wait_fd();
        let mut descriptors = [PollFd::new(&fd, PollFlags::IN)];
        match poll(&mut descriptors, left.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => {
                tracing::warn!("an event queue cannot be waited for: {error}");
                Err(Errno::OTHER)
            }
        }
    }

    fn raw_wait_fd(&self) -> std::ffi::c_int {
        self.sources.wait_fd().as_raw_fd()
    }
}
