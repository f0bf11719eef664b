//! The engines of this process, by what lets threads in.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::{Part, install};

/// Something that can be closed for good in a child.
pub(crate) trait Closable: Send + Sync {
    /// No thread of this process, a child that has just begun, comes in any more. Stores to memory
    /// and nothing else.
    fn close_in_child(&self);
}

type Entry = Arc<dyn Closable>;

/// Entries of one block of the list.
const BLOCK: usize = 64;

/// A block of the list; blocks are never freed.
struct Block {
    entries: [AtomicPtr<Entry>; BLOCK],
    next: Part<Self>,
}

impl Block {
    const fn new() -> Self {
        Self { entries: [const { AtomicPtr::new(ptr::null_mut()) }; BLOCK], next: Part::new() }
    }
}

static FIRST: Block = Block::new();

/// Has an engine closed in children for as long as this lives.
pub(crate) struct Gate {
    place: &'static AtomicPtr<Entry>,
    entry: *mut Entry,
}

// SAFETY: what it points to may be dropped by any thread.
unsafe impl Send for Gate {}
// SAFETY: a shared reference to it gives nothing.
unsafe impl Sync for Gate {}

impl Gate {
    pub(crate) fn new(engine: Entry) -> Self {
        install();
        let entry = Box::into_raw(Box::new(engine));
        let null = ptr::null_mut();
        let mut block = &FIRST;
        loop {
            let free = block.entries.iter().find(|place| {
                place.compare_exchange(null, entry, Ordering::Release, Ordering::Relaxed).is_ok()
            });
            if let Some(place) = free {
                return Self { place, entry };
            }
            block = block.next.get_or_make(|| Box::new(Block::new()));
        }
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        // In a child the place may be that of an engine of its own.
        let null = ptr::null_mut();
        let _ = self.place.compare_exchange(self.entry, null, Ordering::Release, Ordering::Relaxed);
        // SAFETY: `new` made it of a box. The list leads there no more; a child that was made
        // before has memory of its own.
        drop(unsafe { Box::from_raw(self.entry) });
    }
}

/// In a child: closes all engines of its parent.
pub(super) fn close_all() {
    let mut block = Some(&FIRST);
    while let Some(known) = block {
        for place in &known.entries {
            // Left empty, for engines of the child: what is closed stays so.
            let entry = place.swap(ptr::null_mut(), Ordering::Acquire);
            // SAFETY: an entry in the list is freed by its gate alone, of a thread that is missing
            // in this process or that runs this.
            if let Some(entry) = unsafe { entry.as_ref() } {
                entry.close_in_child();
            }
        }
        block = known.next.get();
    }
}
