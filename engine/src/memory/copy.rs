//! Copies of bytes.

/// Copies `from` to `to`, which has the same length. Copies of 8 to 16 bytes, which most short
/// messages are, take no call.
///
/// # Panics
///
/// If the lengths differ.
#[inline(always)]
pub(crate) fn copy_bytes(to: &mut [u8], from: &[u8]) {
    assert_eq!(to.len(), from.len(), "source and destination differ in length");
    // SAFETY: `to` is valid for writes of its length, and exclusive.
    unsafe { copy_bytes_to(to.as_mut_ptr(), from) };
}

/// Copies `from` to the bytes at `to`, which need not be initialized.
///
/// # Safety
///
/// `to` is valid for writes of `from.len()` bytes, which do not overlap `from`.
#[inline(always)]
pub(crate) unsafe fn copy_bytes_to(to: *mut u8, from: &[u8]) {
    let length = from.len();
    if let 8..=16 = length
        && let (Some(first), Some(last)) = (from.first_chunk::<8>(), from.last_chunk::<8>())
    {
        // SAFETY: both ends are 8 bytes inside the destination.
        unsafe {
            to.cast::<[u8; 8]>().write_unaligned(*first);
            to.add(length - 8).cast::<[u8; 8]>().write_unaligned(*last);
        }
        return;
    }
    // SAFETY: the caller guarantees the destination, and that it does not overlap.
    unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, length) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_every_length_are_copied_and_no_others() {
        for length in 0..40 {
            let from: Vec<u8> = (1..=length).collect();
            let mut to = vec![0; from.len() + 2];
            copy_bytes(&mut to[1..=from.len()], &from);
            assert_eq!(to[1..=from.len()], from);
            assert_eq!((to[0], to[from.len() + 1]), (0, 0));
        }
    }

    #[test]
    #[should_panic(expected = "differ in length")]
    fn other_lengths_are_refused() {
        copy_bytes(&mut [0; 9], &[0; 8]);
    }
}
