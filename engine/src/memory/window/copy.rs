//! Copies to and from mapped memory that others access meanwhile, by atomic accesses.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

const WORD_BYTES: usize = size_of::<u64>();

/// The length of the piece that comes next when `len` bytes from `address` on are cut into
/// naturally aligned pieces of 1, 2, 4 and 8 bytes, the fewest there can be.
#[inline]
fn piece(address: usize, len: usize) -> usize {
    let aligned = 1 << address.trailing_zeros().min(WORD_BYTES.trailing_zeros());
    let fits = 1 << len.ilog2();
    usize::min(aligned, fits)
}

/// The length of the last of these pieces.
#[inline]
fn last_piece(end: usize, len: usize) -> usize {
    piece(end, len)
}

/// Stores one piece of 1, 2, 4 or 8 bytes.
///
/// # Safety
///
/// `at` is mapped for writing, a multiple of the length, and only accessed by atomics meanwhile.
#[inline]
unsafe fn store_piece(at: *mut u8, piece: &[u8], order: Ordering) {
    // SAFETY: by the caller's contract, in each arm.
    unsafe {
        match *piece {
            [a] => AtomicU8::from_ptr(at).store(a, order),
            [a, b] => AtomicU16::from_ptr(at.cast()).store(u16::from_ne_bytes([a, b]), order),
            [a, b, c, d] => {
                AtomicU32::from_ptr(at.cast()).store(u32::from_ne_bytes([a, b, c, d]), order);
            }
            _ => AtomicU64::from_ptr(at.cast()).store(word_of(piece), order),
        }
    }
}

#[inline]
fn word_of(bytes: &[u8]) -> u64 {
    u64::from_ne_bytes(bytes.try_into().expect("a piece of eight bytes"))
}

/// Copies `bytes` to `at` in ascending order, the last piece with release.
///
/// # Safety
///
/// `at..at + bytes.len()` is mapped for writing and only accessed by atomics meanwhile.
#[inline]
pub(super) unsafe fn store(at: *mut u8, bytes: &[u8]) {
    let Some(before_last) = bytes.len().checked_sub(1) else { return };
    let last = last_piece(at.addr().wrapping_add(bytes.len()), bytes.len());
    let (head, tail) = bytes.split_at(before_last + 1 - last);
    // SAFETY: pieces of the range, each aligned to its length; see `piece`.
    unsafe {
        store_relaxed(at, head);
        store_piece(at.add(head.len()), tail, Ordering::Release);
    }
    // What this thread stores later, even relaxed, comes after these bytes.
    fence(Ordering::Release);
}

/// # Safety
///
/// As for [`store`].
#[inline]
unsafe fn store_relaxed(mut at: *mut u8, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let len = piece(at.addr(), bytes.len());
        if len == WORD_BYTES {
            let (words, rest) = bytes.as_chunks::<WORD_BYTES>();
            for word in words {
                // SAFETY: eight bytes of the range, at a multiple of eight.
                unsafe {
                    AtomicU64::from_ptr(at.cast()).store(word_of(word), Ordering::Relaxed);
                    at = at.add(WORD_BYTES);
                }
            }
            bytes = rest;
            continue;
        }
        let (head, rest) = bytes.split_at(len);
        // SAFETY: a piece of the range, aligned to its length.
        unsafe {
            store_piece(at, head, Ordering::Relaxed);
            at = at.add(len);
        }
        bytes = rest;
    }
}

/// Copies from `at`. An acquire fence follows: what was stored before anything seen is seen by what
/// this thread loads later.
///
/// # Safety
///
/// `at..at + into.len()` is mapped for reading and only accessed by atomics meanwhile.
#[inline]
pub(super) unsafe fn load(mut at: *mut u8, mut into: &mut [u8]) {
    while !into.is_empty() {
        let len = piece(at.addr(), into.len());
        if len == WORD_BYTES {
            let (words, rest) = into.as_chunks_mut::<WORD_BYTES>();
            for word in words {
                // SAFETY: eight bytes of the range, at a multiple of eight.
                unsafe {
                    *word = AtomicU64::from_ptr(at.cast()).load(Ordering::Relaxed).to_ne_bytes();
                    at = at.add(WORD_BYTES);
                }
            }
            into = rest;
            continue;
        }
        let (head, rest) = into.split_at_mut(len);
        // SAFETY: a piece of the range, aligned to its length.
        unsafe {
            load_piece(at, head);
            at = at.add(len);
        }
        into = rest;
    }
    fence(Ordering::Acquire);
}

/// Loads one piece of 1, 2 or 4 bytes.
///
/// # Safety
///
/// As for [`store_piece`], for reading.
#[inline]
unsafe fn load_piece(at: *mut u8, piece: &mut [u8]) {
    // SAFETY: by the caller's contract, in each arm.
    unsafe {
        match piece {
            [a] => *a = AtomicU8::from_ptr(at).load(Ordering::Relaxed),
            [_, _] => {
                let value = AtomicU16::from_ptr(at.cast()).load(Ordering::Relaxed);
                piece.copy_from_slice(&value.to_ne_bytes());
            }
            _ => {
                let value = AtomicU32::from_ptr(at.cast()).load(Ordering::Relaxed);
                piece.copy_from_slice(&value.to_ne_bytes());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_aligned_and_the_last_is_found_from_the_end() {
        for start in 64..80 {
            for len in 1..=40 {
                let (mut at, mut rest, mut found) = (start, len, 0);
                while rest > 0 {
                    found = piece(at, rest);
                    assert!(found <= WORD_BYTES && at % found == 0 && found <= rest);
                    (at, rest) = (at + found, rest - found);
                }
                assert_eq!(last_piece(start + len, len), found, "{len} bytes at {start}");
            }
        }
    }
}
