//! What an event queue takes events from besides its own list: engines.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rustix::event::epoll;

use crate::errno::Errno;

/// Moves events of an engine into the event queues that they are for.
pub(crate) trait Source: Send + Sync {
    /// Takes what has come.
    fn pump(&self);

    /// Prepares a sleep by its descriptor. `false`: something has come.
    fn arm(&self) -> bool;

    /// Readable when something may have come.
    fn wait_fd(&self) -> Option<BorrowedFd<'_>>;
}

/// The sources of a queue, and one descriptor for them and for its bell.
pub(super) struct Sources {
    epoll: OwnedFd,
    list: Mutex<Vec<Weak<dyn Source>>>,
}

impl Sources {
    pub(super) fn new(bell: BorrowedFd<'_>) -> Result<Self, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(no_descriptor)?;
        watch(&epoll, bell)?;
        Ok(Self { epoll, list: Mutex::default() })
    }

    /// Takes events from `source`, too, while that is there.
    pub(super) fn add(&self, source: &Arc<dyn Source>) -> Result<(), Errno> {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        list.retain(|known| known.strong_count() > 0);
        if list.iter().any(|known| Weak::ptr_eq(known, &Arc::downgrade(source))) {
            return Ok(());
        }
        if let Some(fd) = source.wait_fd() {
            watch(&self.epoll, fd)?;
        }
        list.push(Arc::downgrade(source));
        Ok(())
    }

    fn all(&self) -> Vec<Arc<dyn Source>> {
        let list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        list.iter().filter_map(Weak::upgrade).collect()
    }

    pub(super) fn pump(&self) {
        self.all().iter().for_each(|source| source.pump());
    }

    /// Whether a thread may sleep by the descriptor.
    pub(super) fn arm(&self) -> bool {
        self.all().iter().all(|source| source.arm())
    }

    pub(super) fn wait_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

fn watch(epoll: &OwnedFd, fd: BorrowedFd<'_>) -> Result<(), Errno> {
    let data = epoll::EventData::new_u64(0);
    match epoll::add(epoll, fd, data, epoll::EventFlags::IN) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(error) => Err(no_descriptor(error)),
    }
}

pub(super) fn no_descriptor(error: rustix::io::Errno) -> Errno {
    tracing::warn!(
        "an event queue cannot be waited for (is the limit on open files reached?): {error}"
    );
    Errno::NOMEM
}
