//! Counts what tests allocate: unit tests as this module, a test program by its path.

#![allow(dead_code, reason = "each of them counts its part")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static LIVE_BYTES: Cell<i64> = const { Cell::new(0) };
}

/// The system's allocator, counting what each thread asks of it.
struct Counting;

// SAFETY: every call is passed on to the system's allocator unchanged; counting touches no memory
// that the allocator manages.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(1, layout.size() as i64);
        // SAFETY: the caller keeps to the contract of `alloc`, which is the same here.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(0, -(layout.size() as i64));
        // SAFETY: `pointer` came from `System` with this layout, as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count(1, bytes as i64 - layout.size() as i64);
        // SAFETY: `pointer` came from `System` with this layout, as the caller promises.
        unsafe { System.realloc(pointer, layout, bytes) }
    }
}

fn count(allocations: u64, bytes: i64) {
    // A thread that is being torn down may still allocate; its counts are not read.
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + allocations));
    let _ = LIVE_BYTES.try_with(|live| live.set(live.get() + bytes));
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of this thread so far.
pub(crate) fn allocations() -> u64 {
    ALLOCATIONS.with(Cell::get)
}

/// Bytes that this thread allocated, less those that it freed: below zero where it frees what
/// others allocated.
pub(crate) fn live_bytes() -> i64 {
    LIVE_BYTES.with(Cell::get)
}
