//! Where the ends of operations are read: by an application that reads a queue, and by counters.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use ringrail::{Completion, CompletionQueue, Shared};

use super::entry::{Entry, entry_of};
use crate::errno::Errno;

/// How many completions are taken off the engine at once.
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
    /// Empty between two calls.
    taken: Vec<Completion>,
    /// The last call of [`Sink::read`] gave something.
    is_sated: bool,
    /// The thread that got `-FI_EAVAIL` for the oldest entry, and when.
    reported_to: Option<(ThreadId, Instant)>,
}

impl Sink {
    pub(crate) fn new(queue: CompletionQueue<Shared>, is_read: bool) -> Self {
        let read = Mutex::new(Read { taken: Vec::with_capacity(BATCH), ..Read::default() });
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
        self.read.lock().unwrap_or_else(PoisonError::into_inner)
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
    pub(crate) fn read(&self, count: usize, give: impl FnMut(Entry)) -> Result<usize, Errno> {
        let mut read = self.lock();
        if read.pending.is_empty() {
            let Read { taken, is_sated, .. } = &mut *read;
            let limit = count.min(BATCH);
            if !std::mem::take(is_sated) {
                self.queue.read(taken, limit)?;
            } else if self.queue.read_ready(taken, limit) == 0 {
                return Err(Errno::AGAIN);
            }
        }
        let given = read.give(count, give);
        read.is_sated = given.is_ok();
        match given {
            Err(Errno::AVAIL) if !read.report_once() => Err(Errno::AGAIN),
            given => given,
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
            read.keep(taken.drain(..), self.is_read, |_| true);
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
            let Read { taken, .. } = &mut *read;
            if self.queue.read(taken, BATCH)? == 0 {
                return Ok(happened);
            }
            happened = true;
            let mut taken = std::mem::take(&mut read.taken);
            read.keep(taken.drain(..), self.is_read, &mut is_wanted);
            read.taken = taken;
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

    /// Keeps what was taken off the engine.
    fn keep(
        &mut self,
        taken: impl Iterator<Item = Completion>,
        is_read: bool,
        mut is_wanted: impl FnMut(u64) -> bool,
    ) {
        for completion in taken {
            let is_wanted = is_wanted(completion.user_data);
            // SAFETY: what is posted to queues of this provider has its `user_data` of a record,
            // and each completion is looked at once.
            let entry = unsafe { entry_of(&completion) };
            self.pending.extend(entry.filter(|_| is_read && is_wanted));
        }
    }

    #[inline]
    fn give(&mut self, count: usize, mut give: impl FnMut(Entry)) -> Result<usize, Errno> {
        let mut given = 0;
        let Self { pending, taken, .. } = self;
        while given < count
            && let Some(&entry) = pending.front().filter(|entry| entry.failure.is_none())
        {
            pending.pop_front();
            give(entry);
            given += 1;
        }
        for completion in taken.drain(..) {
            // SAFETY: as in `keep`.
            match unsafe { entry_of(&completion) } {
                // What comes behind an error stays behind it.
                Some(entry) if entry.failure.is_some() || !pending.is_empty() => {
                    pending.push_back(entry);
                }
                Some(entry) => {
                    give(entry);
                    given += 1;
                }
                None => {}
            }
        }
        match given {
            0 if pending.front().is_some_and(|entry| entry.failure.is_some()) => Err(Errno::AVAIL),
            0 => Err(Errno::AGAIN),
            given => Ok(given),
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
