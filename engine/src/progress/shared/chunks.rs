//! A queue with one writer at a time and any number of readers. Neither side waits for the other.
//!
//! ```text
//!  readers: next ──> chunk ──> chunk ──> chunk <── the writer's
//!                    ######    ######    ###...
//!           taken ───┘ (read below)         └─── written (published behind each entry)
//! ```
//!
//! Entries are stored in chunks. The writer fills its last one and publishes each entry by one
//! store, so that an entry costs no read-modify-write; readers take turns, by a lock of their own.
//! A drained chunk returns to the writer: a queue that is read in time allocates nothing.

use std::cell::UnsafeCell;
use std::fmt;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Arc;

use crossbeam_utils::CachePadded;

use super::sync::{self, AtomicPtr, AtomicUsize, Mutex, Ordering, lock};

/// Entries of a chunk.
const ROOM: usize = sync::CHUNK;

struct Chunk<T> {
    /// The next chunk. Stored by the writer, before it publishes an entry there.
    next: AtomicPtr<Self>,
    entries: [UnsafeCell<MaybeUninit<T>>; ROOM],
}

impl<T> Chunk<T> {
    /// Creates an empty chunk on the heap, and not on the stack first, which may be small.
    fn boxed() -> *mut Self {
        let mut chunk = Box::<Self>::new_uninit();
        // SAFETY: the field is within the box, and aligned. Then all of the chunk is initialized:
        // its entries may be without values.
        let chunk = unsafe {
            (&raw mut (*chunk.as_mut_ptr()).next).write(AtomicPtr::new(ptr::null_mut()));
            chunk.assume_init()
        };
        Box::into_raw(chunk)
    }
}

/// The readers' half.
pub(crate) struct Chunks<T> {
    /// Entries published so far. Stored by the writer.
    written: CachePadded<AtomicUsize>,
    /// Entries taken so far. Stored by the holder of `next`.
    taken: CachePadded<AtomicUsize>,
    /// The chunk of the next entry to take, or the full one before it.
    next: Mutex<*mut Chunk<T>>,
    /// A chunk for the writer, or null.
    spare: AtomicPtr<Chunk<T>>,
}

// SAFETY: an entry is written by the writer before it is published, and after that moved out by one
// reader, which has the lock. Chunks are freed by the only thread that knows them.
unsafe impl<T: Send> Send for Chunks<T> {}
// SAFETY: as above; no two threads have a reference to one entry.
unsafe impl<T: Send> Sync for Chunks<T> {}

/// The writer's half: its holder writes.
pub(crate) struct ChunkWriter<T> {
    chunks: Arc<Chunks<T>>,
    /// The last chunk.
    last: *mut Chunk<T>,
    /// As in `chunks`.
    written: usize,
}

// SAFETY: the last chunk is the writer's, and readers' up to the published entries.
unsafe impl<T: Send> Send for ChunkWriter<T> {}
// SAFETY: nothing is done with a shared reference but what `Chunks` allows.
unsafe impl<T: Send> Sync for ChunkWriter<T> {}

impl<T> fmt::Debug for Chunks<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chunks").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for ChunkWriter<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ChunkWriter").field(&self.chunks).finish()
    }
}

/// Creates an empty queue.
pub(crate) fn chunks<T>() -> (ChunkWriter<T>, Arc<Chunks<T>>) {
    let first = Chunk::boxed();
    let chunks = Arc::new(Chunks {
        written: CachePadded::new(AtomicUsize::new(0)),
        taken: CachePadded::new(AtomicUsize::new(0)),
        next: Mutex::new(first),
        spare: AtomicPtr::new(ptr::null_mut()),
    });
    (ChunkWriter { chunks: Arc::clone(&chunks), last: first, written: 0 }, chunks)
}

impl<T> ChunkWriter<T> {
    /// Publishes an entry, without waiting; `make` writes it where it is kept.
    #[inline]
    pub(crate) fn push(&mut self, make: impl FnOnce() -> T) {
        if self.written.is_multiple_of(ROOM) && self.written != 0 {
            return self.push_behind(make());
        }
        self.publish(make);
    }

    /// Publishes an entry in a new chunk, as the last one is full. The entry exists before: a panic
    /// of what makes it leaves no empty chunk.
    #[cold]
    fn push_behind(&mut self, entry: T) {
        self.extend();
        self.publish(|| entry);
    }

    /// Publishes an entry in the last chunk, which has space.
    #[inline(always)]
    fn publish(&mut self, make: impl FnOnce() -> T) {
        let at = self.written % ROOM;
        // SAFETY: the last chunk is freed by readers after its last entry only, which is not
        // published; no thread reads the slot at `written` before it is.
        unsafe { (*(*self.last).entries[at].get()).write(make()) };
        self.written += 1;
        self.chunks.written.store(self.written, Ordering::Release);
    }

    /// Appends a chunk.
    fn extend(&mut self) {
        let spare = self.chunks.spare.swap(ptr::null_mut(), Ordering::Acquire);
        let new = if spare.is_null() { Chunk::boxed() } else { spare };
        // SAFETY: a new or a spare chunk is known here alone. The full one is freed by readers when
        // they advance to the next, after the entry that is published later.
        unsafe {
            (*new).next.store(ptr::null_mut(), Ordering::Relaxed);
            (*self.last).next.store(new, Ordering::Release);
        }
        self.last = new;
    }

    /// Returns the number of entries not taken yet, including those being taken.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.written - self.chunks.taken.load(Ordering::Relaxed)
    }
}

impl<T> Chunks<T> {
    /// Returns whether it is empty. Never true while an entry published before is present.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        // Entries taken meanwhile were present, and do not count.
        self.written.load(Ordering::Acquire) == self.taken.load(Ordering::Relaxed)
    }

    fn len(&self) -> usize {
        let taken = self.taken.load(Ordering::Relaxed);
        self.written.load(Ordering::Relaxed).saturating_sub(taken)
    }

    /// Moves the oldest entries into `into`, at most `limit`, and returns their number. May wait
    /// for another reader.
    #[inline]
    pub(crate) fn take(&self, into: &mut Vec<T>, limit: usize) -> usize {
        if self.is_empty() || limit == 0 {
            return 0;
        }
        self.take_now(into, limit)
    }

    /// Passes the oldest entries to `take`, at most `limit`, until it returns `false`, and returns
    /// their number. May wait for another reader. `take` must not read this queue.
    #[inline]
    pub(crate) fn take_each(&self, limit: usize, take: impl FnMut(T) -> bool) -> usize {
        if self.is_empty() || limit == 0 {
            return 0;
        }
        self.take_each_now(limit, take)
    }

    fn take_each_now(&self, limit: usize, mut take: impl FnMut(T) -> bool) -> usize {
        let mut next = lock(&self.next);
        let first = self.taken.load(Ordering::Relaxed);
        let end = first + (self.written.load(Ordering::Acquire) - first).min(limit);
        // Stores how far it came, also if `take` panics.
        let mut reading = Reading { taken: &self.taken, at: first };
        while reading.at < end {
            let at = reading.at;
            if at != 0 && at.is_multiple_of(ROOM) {
                self.advance(&mut next);
            }
            reading.at += 1;
            // SAFETY: the entries up to `end` are published, and none of them was taken: `taken` is
            // protected by the lock. It is moved: `taken` is updated before another reader reads
            // it, by `reading`, which is dropped before the lock.
            let entry = unsafe { (*(*(*next)).entries[at % ROOM].get()).assume_init_read() };
            if !take(entry) {
                break;
            }
        }
        reading.at - first
    }

    fn take_now(&self, into: &mut Vec<T>, limit: usize) -> usize {
        let mut next = lock(&self.next);
        let first = self.taken.load(Ordering::Relaxed);
        let count = (self.written.load(Ordering::Acquire) - first).min(limit);
        // Nothing panics after this.
        into.reserve(count);
        let end = first + count;
        let mut at = first;
        while at < end {
            if at != 0 && at.is_multiple_of(ROOM) {
                self.advance(&mut next);
            }
            let piece = (ROOM - at % ROOM).min(end - at);
            // SAFETY: the entries up to `end` are published, and none of them was taken: `taken` is
            // protected by the lock. `into` has space for `count`. They are moved: `taken` is
            // updated before another reader reads it.
            unsafe {
                let from = (&raw const (*(*next)).entries[at % ROOM]).cast::<T>();
                let to = into.as_mut_ptr().add(into.len());
                ptr::copy_nonoverlapping(from, to, piece);
                into.set_len(into.len() + piece);
            }
            at += piece;
        }
        self.taken.store(end, Ordering::Release);
        count
    }

    /// Advances from a drained chunk to the next.
    fn advance(&self, next: &mut *mut Chunk<T>) {
        let old = *next;
        // SAFETY: it is freed here only. The writer has linked the next one before it published an
        // entry of that, and does not access the old one any more.
        *next = unsafe { (*old).next.load(Ordering::Acquire) };
        let spare = self.spare.swap(old, Ordering::AcqRel);
        if !spare.is_null() {
            // SAFETY: it came from `Box::into_raw`, and no other thread knows it since the swap. It
            // has no entries.
            drop(unsafe { Box::from_raw(spare) });
        }
    }
}

/// A reader's progress, which is published when it is dropped.
struct Reading<'a> {
    taken: &'a AtomicUsize,
    at: usize,
}

impl Drop for Reading<'_> {
    #[inline]
    fn drop(&mut self) {
        self.taken.store(self.at, Ordering::Release);
    }
}

impl<T> Drop for Chunks<T> {
    fn drop(&mut self) {
        let mut left = Vec::new();
        self.take(&mut left, usize::MAX);
        drop(left);
        let last = *lock(&self.next);
        let spare = self.spare.load(Ordering::Relaxed);
        // SAFETY: all other references are dropped, the writer's included. Entries are gone. The
        // chunk of the readers is the last one: the writer links another one only before an entry.
        unsafe {
            drop(Box::from_raw(last));
            if !spare.is_null() {
                drop(Box::from_raw(spare));
            }
        }
    }
}
