//! Where the ends of operations are read: by an application that reads a queue, and by counters.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use ringrail::{Completion, CompletionQueue, Shared};

use super::entry::{Entry, entry_of};
use crate::errno::Errno;

/// How many completions a wait, or a drain, takes off the engine at once.
const BATCH: usize = 64;

/// The most entries of `FI_PEEK`, which the engine does not count, that wait to be read.
const PUSHED_MAX: usize = 4096;

/// How long a sleep lasts before it checks for a signal.
const NAP: Duration = Duration::from_millis(5);

/// How long a thread that got `-FI_EAVAIL` has to read the error entry before another one gets it.
const TAKEN_WITHIN: Duration = Duration::from_millis(200);

/// A completion queue of the engine, and the entries made of its completions.
#[derive(Debug)]
pub(crate) struct Sink {
    queue: CompletionQueue<Shared>,
    read: Mutex<Read>,
    /// Whether entries are read; else they are only counted.
    is_read: bool,
    is_signaled: AtomicBool,
    /// Where the engine lives: a child of `fork` takes nothing off the parent's.
    process: u32,
}

#[derive(Debug, Default)]
struct Read {
    /// Entries that were taken off the engine and not by the application, oldest first.
    pending: VecDeque<Entry>,
    /// The last call of [`Sink::read`] gave something.
    is_sated: bool,
    /// The thread that got `-FI_EAVAIL` for the oldest entry, and when.
    reported_to: Option<(ThreadId, Instant)>,
}

impl Sink {
    pub(crate) fn new(queue: CompletionQueue<Shared>, is_read: bool) -> Self {
        let read = Mutex::default();
        let (is_signaled, process) = (AtomicBool::new(false), std::process::id());
        Self { queue, read, is_read, is_signaled, process }
    }

    pub(crate) const fn queue(&self) -> &CompletionQueue<Shared> {
        &self.queue
    }

    /// Whether it is the copy of a child of `fork`.
    pub(crate) fn is_inherited(&self) -> bool {
        self.process != std::process::id()
    }

    fn lock(&self) -> MutexGuard<'_, Read> {
        self.read.lock()
    }

    /// Whether there is room for an entry of `FI_PEEK`.
    ///
    /// # Errors
    ///
    /// [`Errno::AGAIN`]: read entries first.
    pub(crate) fn check_room(&self) -> Result<(), Errno> {
        if self.lock().pending.len() < PUSHED_MAX { Ok(()) } else { Err(Errno::AGAIN) }
    }

    /// An entry that the engine knows nothing of; ask [`Self::check_room`] before.
    pub(crate) fn push(&self, entry: Entry) {
        self.lock().pending.push_back(entry);
    }

    /// Gives up to `count` entries of success to `give`, oldest first; how many.
    ///
    /// Consumers read until nothing is left. The call behind one that gave something makes no
    /// progress: the message is delivered sooner by two system calls.
    ///
    /// # Errors
    ///
    /// [`Errno::AGAIN`] when there is none, [`Errno::AVAIL`] when an error is the next.
    #[inline]
    pub(crate) fn read(&self, count: usize, mut give: impl FnMut(Entry)) -> Result<usize, Errno> {
        let mut read = self.lock();
        let read = &mut *read;
        if !read.pending.is_empty() {
            return read.give(count, give);
        }
        let mut given = 0;
        let pending = &mut read.pending;
        let take = |completion: Completion| {
            // SAFETY: as in `keep`.
            match unsafe { entry_of(&completion) } {
                // What comes behind an error stays behind it.
                Some(entry) if entry.failure.is_some() => {
                    pending.push_back(entry);
                    return false;
                }
                Some(entry) => {
                    give(entry);
                    given += 1;
                }
                None => {}
            }
            true
        };
        match std::mem::take(&mut read.is_sated) {
            false => self.queue.read_each(count, take)?,
            true => self.queue.read_each_ready(count, take),
        };
        match given {
            0 if read.pending.is_empty() => Err(Errno::AGAIN),
            0 => read.report(),
            given => {
                read.is_sated = true;
                Ok(given)
            }
        }
    }

    /// The oldest entry, if it is an error.
    pub(crate) fn take_error(&self) -> Option<Entry> {
        let mut read = self.lock();
        read.pending.front()?.failure?;
        read.reported_to = None;
        read.pending.pop_front()
    }

    /// Waits until something can be read, up to `timeout`.
    ///
    /// # Errors
    ///
    /// [`Errno::AGAIN`] when the time has passed, or [`Self::signal`] was called.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> Result<(), Errno> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut taken = Vec::new();
        loop {
            if self.is_signaled.swap(false, Ordering::AcqRel) {
                return Err(Errno::AGAIN);
            }
            let left = deadline.map(|it| it.saturating_duration_since(Instant::now()));
            let nap = left.map_or(NAP, |left| left.min(NAP));
            // Without the lock: others read meanwhile.
            self.queue.wait(&mut taken, BATCH, Some(nap))?;
            let mut read = self.lock();
            for completion in taken.drain(..) {
                read.keep(&completion, self.is_read);
            }
            if !read.pending.is_empty() {
                return Ok(());
            }
            if left.is_some_and(|left| left.is_zero()) {
                return Err(Errno::AGAIN);
            }
        }
    }

    /// Ends a call of [`Self::wait`], of now or to come.
    pub(crate) fn signal(&self) {
        self.is_signaled.store(true, Ordering::Release);
    }

    /// Reads completions of the engine, so that they are counted. `true`: there were some.
    pub(crate) fn drain(&self) -> Result<bool, Errno> {
        self.drain_where(|_| true)
    }

    /// The same; what was posted with `user_data` has an entry only if `is_wanted`.
    pub(crate) fn drain_where(
        &self,
        mut is_wanted: impl FnMut(u64) -> bool,
    ) -> Result<bool, Errno> {
        let mut read = self.lock();
        let mut happened = false;
        loop {
            let take = |completion: Completion| {
                let is_wanted = is_wanted(completion.user_data);
                read.keep(&completion, self.is_read && is_wanted);
                true
            };
            if self.queue.read_each(BATCH, take)? == 0 {
                return Ok(happened);
            }
            happened = true;
        }
    }

    /// Prepares a sleep by the queue's descriptor.
    ///
    /// # Errors
    ///
    /// [`Errno::AGAIN`]: there is something to read.
    pub(crate) fn arm(&self) -> Result<(), Errno> {
        let is_armed = self.queue.arm()?;
        match is_armed && self.lock().pending.is_empty() {
            true => Ok(()),
            false => Err(Errno::AGAIN),
        }
    }
}

impl Read {
    /// Whether the calling thread is to hear of the error that is the oldest entry. Of several one
    /// does: it calls for the error next, and consumers give up where another one has taken it.
    #[cold]
    fn report_once(&mut self) -> bool {
        let (thread, now) = (std::thread::current().id(), Instant::now());
        let is_reported = self
            .reported_to
            .is_some_and(|(known, when)| known != thread && now < when + TAKEN_WITHIN);
        if !is_reported {
            self.reported_to = Some((thread, now));
        }
        !is_reported
    }

    /// Counts what was taken off the engine, and keeps its entry if that `is_read`.
    fn keep(&mut self, completion: &Completion, is_read: bool) {
        // SAFETY: what is posted to queues of this provider has its `user_data` of a record, and
        // each completion is looked at once.
        let entry = unsafe { entry_of(completion) };
        self.pending.extend(entry.filter(|_| is_read));
    }

    /// Gives up to `count` of the entries that wait, up to an error.
    #[cold]
    fn give(&mut self, count: usize, mut give: impl FnMut(Entry)) -> Result<usize, Errno> {
        let mut given = 0;
        while given < count
            && let Some(&entry) = self.pending.front().filter(|entry| entry.failure.is_none())
        {
            self.pending.pop_front();
            give(entry);
            given += 1;
        }
        self.is_sated = given > 0;
        match given {
            0 if self.pending.front().is_some_and(|entry| entry.failure.is_some()) => self.report(),
            0 => Err(Errno::AGAIN),
            given => Ok(given),
        }
    }

    /// Reports the error that is the oldest entry.
    #[cold]
    fn report(&mut self) -> Result<usize, Errno> {
        match self.report_once() {
            true => Err(Errno::AVAIL),
            false => Err(Errno::AGAIN),
        }
    }
}

impl Drop for Sink {
    /// Nothing is posted to it any more: what is left has records to be freed.
    fn drop(&mut self) {
        if self.is_inherited() {
            return;
        }
        if let Err(errno) = self.drain() {
            tracing::debug!(
                errno = errno.number(),
                "an error of a queue that is closed was not read"
            );
        }
    }
}
