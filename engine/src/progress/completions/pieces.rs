//! Memory of messages that are copied through rings.

use super::Completions;
use crate::progress::traits::PIECE_BYTES_MAX;
use crate::proto::table::Id;

/// Buffer for a piece whose bytes are not contiguous.
#[derive(Debug, Default)]
pub(crate) struct Scratch(Vec<u8>);

impl Completions {
    /// Returns `length` bytes at `offset` of an outstanding send: in place, or gathered in
    /// `scratch`.
    pub(in crate::progress) fn bytes_of<'a>(
        &'a mut self,
        (id, offset, length): (Id, usize, usize),
        scratch: &'a mut Scratch,
    ) -> &'a [u8] {
        let span = self.piece(id, offset, length).filter(|_| !self.is_window(id));
        if let Some(span) = span {
            self.copied_bytes += length as u64;
            // SAFETY: the slot owns the buffer (or its poster guarantees the memory) until
            // the operation ends, which is not while `self` is borrowed; nothing writes a send's
            // memory.
            return unsafe { std::slice::from_raw_parts(span.ptr, length) };
        }
        scratch.0.resize(PIECE_BYTES_MAX, 0);
        self.gather(id, offset, &mut scratch.0[..length]);
        &scratch.0[..length]
    }

    /// Returns `length` bytes at `offset` of an outstanding receive, if contiguous and exclusive.
    pub(in crate::progress) fn room_for(
        &mut self,
        id: Id,
        offset: usize,
        length: usize,
    ) -> Option<&mut [u8]> {
        let span = self.piece(id, offset, length).filter(|_| !self.is_window(id))?;
        self.copied_bytes += length as u64;
        // SAFETY: the slot owns the buffer (or its poster guarantees exclusive memory) until the
        // operation ends, which is not while `self` is borrowed, and no request of the kernel
        // writes a message that comes in pieces.
        Some(unsafe { std::slice::from_raw_parts_mut(span.ptr, length) })
    }
}
