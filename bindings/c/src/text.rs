//! Texts for C.

use std::ffi::{c_char, c_int};

use crate::check;
use crate::fault::Fault;

/// Copies a text, cut to `capacity` and closed by a zero byte, and gives its whole length.
///
/// # Safety
///
/// `capacity` bytes can be written at `buffer`.
pub(crate) unsafe fn give(
    text: &str,
    buffer: *mut c_char,
    capacity: usize,
) -> Result<c_int, Fault> {
    // SAFETY: the caller guarantees it.
    let room = unsafe { check::bytes_mut(buffer.cast(), capacity, "buffer") }?;
    if let Some(most) = room.len().checked_sub(1) {
        let mut length = text.len().min(most);
        while !text.is_char_boundary(length) {
            length -= 1;
        }
        room[..length].copy_from_slice(&text.as_bytes()[..length]);
        room[length] = 0;
    }
    c_int::try_from(text.len()).map_err(|_| Fault::invalid("the text has more than 2 GiB"))
}
