//! Windows against a model, under threads, and where nothing is mapped.

mod arithmetic;
mod holes;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

use proptest::prelude::*;

use super::*;
use crate::counting;
use crate::memory::{Arena, alloc_region};
use crate::wire::atomic_op::{AtomicOp, Datatype};

const ROUNDS: u64 = 20_000;

/// Bytes around a borrowed window that nothing may change.
const GUARD_BYTES: usize = 24;

/// A window of each kind, `len` bytes long, filled with zeros, in memory that starts at an odd
/// address where that can be chosen; and what guards it.
struct Windows {
    windows: Vec<Window>,
    /// Words, so that the address of a byte in it is known modulo 8.
    guarded: Vec<Vec<u64>>,
}

impl Windows {
    fn new(len: usize, odd: usize) -> Self {
        let mut windows = vec![
            Window::allocate(len).expect("a few bytes"),
            Window::from_buffer(vec![0; len].into()).expect("one piece"),
        ];
        let mut guarded = Vec::new();
        for unmapped in [false, true] {
            let mut memory = vec![u64::MAX; len.div_ceil(8) + 2 * GUARD_BYTES / 8 + 1];
            let base = memory.as_mut_ptr().cast::<u8>().wrapping_add(GUARD_BYTES + odd);
            // SAFETY: inside `memory`, which is not used otherwise.
            unsafe { base.write_bytes(0, len) };
            // SAFETY: `memory` lives as long as the window, and is read when that is gone.
            windows.push(unsafe {
                if unmapped { Window::unmapped(base, len) } else { Window::from_raw(base, len) }
            });
            guarded.push(memory);
        }
        Self { windows, guarded }
    }

    /// Checks that nothing around the windows has changed.
    fn check_guards(self, len: usize, odd: usize) {
        drop(self.windows);
        for memory in self.guarded {
            let bytes: Vec<u8> = memory.iter().flat_map(|word| word.to_ne_bytes()).collect();
            let (start, end) = (GUARD_BYTES + odd, GUARD_BYTES + odd + len);
            assert!(bytes[..start].iter().chain(&bytes[end..]).all(|&byte| byte == 0xff));
        }
    }
}

proptest! {
    #[test]
    fn every_kind_of_window_is_an_array_of_bytes(
        len in 0usize..200,
        odd in 0usize..8,
        steps in prop::collection::vec((0usize..220, 0usize..220, any::<u8>()), 0..40),
    ) {
        let windows = Windows::new(len, odd);
        let mut model = vec![0u8; len];
        for (offset, count, first) in steps {
            let bytes: Vec<u8> = (0..count).map(|at| first.wrapping_add(at as u8)).collect();
            let fits = offset + count <= len;
            if fits {
                model[offset..offset + count].copy_from_slice(&bytes);
            }
            let range = Fault::Range { offset, len: count, window_bytes: len };
            let expected = if fits { Ok(()) } else { Err(range) };
            for window in &windows.windows {
                prop_assert_eq!(window.store(offset, &bytes), expected, "{:?}", window);
                let mut seen = vec![0xee; count];
                prop_assert_eq!(window.load(offset, &mut seen), expected, "{:?}", window);
                if fits {
                    prop_assert_eq!(&seen, &bytes);
                } else {
                    prop_assert!(seen.iter().all(|&byte| byte == 0xee));
                }
                let mut all = vec![0; len];
                window.load(0, &mut all).expect("all of it");
                prop_assert_eq!(&all, &model, "{:?}", window);
            }
        }
        windows.check_guards(len, odd);
    }
}

#[test]
fn ranges_that_overflow_are_outside() {
    for window in Windows::new(64, 0).windows {
        assert_eq!(window.len(), 64);
        for (offset, len) in [(65, 0), (usize::MAX, 1), (64, 1), (1, usize::MAX), (1, 64)] {
            let outside = Fault::Range { offset, len, window_bytes: 64 };
            assert_eq!(window.span(offset, len).expect_err("outside"), outside);
        }
        let span = window.span(60, 4).expect("the last four");
        assert_eq!((span.ptr, span.len), (window.base.wrapping_add(60), 4));
        assert_eq!(window.span(64, 0).expect("the end").len, 0);
        assert!(window.store(usize::MAX, &[1, 2]).is_err());
        assert!(window.load(usize::MAX, &mut [0; 2]).is_err());
    }
}

#[test]
fn new_windows_are_zeroed_and_sizes_that_cannot_be_are_refused() {
    for bytes in [0, 1, 4096, 5 << 20] {
        let window = Window::allocate(bytes).expect("a window");
        let mut all = vec![1; bytes];
        window.load(0, &mut all).expect("all of it");
        assert!(all.iter().all(|&byte| byte == 0));
        assert_eq!(window.base.addr() % 4096, 0);
        assert!(bytes < HUGE_PAGE_BYTES || window.base.addr().is_multiple_of(HUGE_PAGE_BYTES));
    }
    let bytes = usize::MAX;
    assert_eq!(Window::allocate(bytes).err(), Some(MemoryError::TooLarge { bytes }));
    let error = Window::allocate(isize::MAX as usize).expect_err("half the address space");
    assert!(matches!(error, MemoryError::OutOfMemory { .. }), "{error:?}");
}

#[test]
fn a_buffer_comes_back_with_what_peers_wrote() {
    let arena = Arena::new(64 << 10).expect("an arena");
    let slice = alloc_region(&arena, 100, 64).expect("it fits");
    for buffer in [Buffer::from(vec![7u8; 100]), Buffer::from(slice)] {
        let window = Arc::new(Window::from_buffer(buffer).expect("one piece"));
        let other = Arc::clone(&window);
        thread::spawn(move || other.store(90, b"peer")).join().expect("no panic").expect("inside");
        let buffer = Arc::into_inner(window).expect("the only owner").into_buffer();
        let buffer = buffer.expect("it was made of one");
        assert_eq!(&buffer.as_slice().expect("one piece")[90..94], b"peer");
        assert_eq!(buffer.len(), 100);
    }
    let list = Buffer::list([vec![1u8].into(), vec![2u8].into()]);
    assert_eq!(Window::from_buffer(list).expect_err("two pieces").len(), 2);
    let own = Window::allocate(8).expect("a word");
    assert_eq!(own.into_buffer().expect_err("no buffer").len(), 8);
}

#[test]
fn words_are_shared_where_they_are_words() {
    let window = Window::allocate(20).expect("a few bytes");
    window.atomic_u64(8).expect("a word").store(0x0807_0605_0403_0201, Ordering::Relaxed);
    let mut bytes = [0; 8];
    window.load(8, &mut bytes).expect("inside");
    assert_eq!(bytes, 0x0807_0605_0403_0201u64.to_ne_bytes());
    window.store(16, &7u32.to_ne_bytes()).expect("inside");
    assert_eq!(window.atomic_u32(16).expect("a word").load(Ordering::Relaxed), 7);
    for offset in [1, 4, 16, 20, usize::MAX] {
        assert!(window.atomic_u64(offset).is_none(), "{offset}");
    }
    for offset in [1, 2, 20, usize::MAX] {
        assert!(window.atomic_u32(offset).is_none(), "{offset}");
    }
    let mut memory = [0u64; 2];
    // SAFETY: `memory` outlives the window and is not used otherwise.
    let odd = unsafe { Window::from_raw(memory.as_mut_ptr().cast::<u8>().wrapping_add(4), 12) };
    assert!(odd.atomic_u64(0).is_none(), "an offset is no address");
    assert!(odd.atomic_u64(4).is_some());
    // SAFETY: as above; the other window is not used.
    let unmapped = unsafe { Window::unmapped(memory.as_mut_ptr().cast(), 16) };
    assert!(unmapped.atomic_u64(0).is_none() && unmapped.atomic_u32(0).is_none());
}

#[test]
fn aligned_items_are_never_seen_half() {
    // From 3 to 29: pieces of 1, 4, 8, 8, 4 and 1 bytes; items of 4 and 8 in all of them.
    const FROM: usize = 3;
    const TO: usize = 29;
    let window = Window::allocate(32).expect("a few bytes");
    let go = Barrier::new(2);
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            go.wait();
            for round in 0..ROUNDS {
                let bytes = [if round % 2 == 0 { 0xff } else { 0 }; TO - FROM];
                window.store(FROM, &bytes).expect("inside");
            }
        });
        go.wait();
        while !writer.is_finished() {
            for offset in [8, 16] {
                let word = window.atomic_u64(offset).expect("a word").load(Ordering::Relaxed);
                assert!(word == 0 || word == u64::MAX, "{word:#x} at {offset}");
                let mut item = [0; 8];
                window.load(offset, &mut item).expect("inside");
                assert!(item == [0; 8] || item == [0xff; 8], "{item:?} at {offset}");
            }
            for offset in [4, 8, 12, 20, 24] {
                let word = window.atomic_u32(offset).expect("a word").load(Ordering::Relaxed);
                assert!(word == 0 || word == u32::MAX, "{word:#x} at {offset}");
            }
        }
    });
}

#[test]
fn a_notification_publishes_the_bytes_before_it() {
    const BYTES: usize = 203;
    let window = Window::allocate(BYTES + 8).expect("a few bytes");
    let (published, taken) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=ROUNDS {
                while taken.load(Ordering::Acquire) != round - 1 {
                    thread::yield_now();
                }
                // A message in two packets, then the notification, without an order of its own.
                let bytes = [round as u8; BYTES];
                window.store(1, &bytes[..100]).expect("inside");
                window.store(101, &bytes[100..]).expect("inside");
                published.store(round, Ordering::Relaxed);
            }
        });
        for round in 1..=ROUNDS {
            while published.load(Ordering::Acquire) != round {
                thread::yield_now();
            }
            let mut seen = [0; BYTES];
            window.load(1, &mut seen).expect("inside");
            assert!(seen.iter().all(|&byte| byte == round as u8), "round {round}: {seen:?}");
            taken.store(round, Ordering::Release);
        }
    });
}

#[test]
fn the_last_word_publishes_those_before() {
    const WORDS: usize = 33;
    let window = Window::allocate(8 * WORDS).expect("a few words");
    let go = Barrier::new(2);
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            go.wait();
            for round in 1..=ROUNDS {
                let bytes: Vec<u8> = (0..WORDS).flat_map(|_| round.to_ne_bytes()).collect();
                window.store(0, &bytes).expect("inside");
            }
        });
        go.wait();
        while !writer.is_finished() {
            let last = window.atomic_u64(8 * (WORDS - 1)).expect("a word");
            let last = last.load(Ordering::Acquire);
            for word in 0..WORDS - 1 {
                let word = window.atomic_u64(8 * word).expect("a word").load(Ordering::Relaxed);
                assert!(word >= last, "{word} is older than {last}");
            }
        }
    });
}

#[test]
fn copies_do_not_allocate() {
    let window = Window::allocate(4096).expect("a page");
    let (bytes, mut fetched) = ([1; 1000], [0; 64]);
    let before = counting::allocations();
    window.store(5, &bytes).expect("inside");
    window.load(5, &mut [0; 1000]).expect("inside");
    for &op in AtomicOp::ALL {
        for &datatype in Datatype::ALL {
            let operands = if op.takes_operands() { &bytes[..64] } else { &[] };
            let compare = if op.takes_compare() { &bytes[..64] } else { &[] };
            let done = window.atomic(64, op, datatype, operands, compare, Some(&mut fetched));
            assert_eq!(done.is_ok(), op.is_valid_for(datatype));
        }
    }
    assert_eq!(counting::allocations(), before);
}
