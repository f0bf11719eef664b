//! The memory of one chunk as the kernel takes it: a list of `iovec`s that partial transfers
//! consume from the front.

use std::{io, ptr};

use super::beyond_shape;
use crate::memory::{Shape, Span};

/// Entries per call (`IOV_MAX`).
const PIECES_PER_CALL: usize = 1024;

/// Entries still to be transferred. The allocation is reused for the next chunk.
///
/// The kernel may read the list while a call is outstanding: nothing changes or moves it between
/// [`Self::window`] and [`Self::advance`].
#[derive(Debug, Default)]
pub(crate) struct PieceList {
    list: Vec<libc::iovec>,
    first: usize,
    /// Index of the entry that was shortened for a call, and its true length.
    clipped: Option<(usize, usize)>,
}

// SAFETY: the pointers are only handed to the kernel; the callers of `send_chunk` and `recv_chunk`
// guarantee the memory behind them.
unsafe impl Send for PieceList {}

impl PieceList {
    /// Starts a chunk: the header, then `length` bytes of `shape` from `offset`. Fails if the shape
    /// is shorter.
    pub(crate) fn begin(
        &mut self,
        header: &mut [u8],
        shape: &Shape,
        offset: usize,
        length: usize,
    ) -> io::Result<()> {
        if offset.checked_add(length).is_none_or(|end| end > shape.len()) {
            return Err(beyond_shape());
        }
        self.clear();
        self.push(Span { ptr: header.as_mut_ptr(), len: header.len() });
        for span in shape.spans(offset, length) {
            self.push(span);
        }
        Ok(())
    }

    /// Removes all entries.
    pub(crate) fn clear(&mut self) {
        self.list.clear();
        self.first = 0;
        self.clipped = None;
    }

    /// Appends an entry; an empty one is skipped.
    pub(crate) fn push(&mut self, span: Span) {
        if span.len > 0 {
            self.list.push(libc::iovec { iov_base: span.ptr.cast(), iov_len: span.len });
        }
    }

    /// All remaining entries.
    pub(crate) fn remaining(&self) -> &[libc::iovec] {
        debug_assert!(self.clipped.is_none(), "read while a call is outstanding");
        &self.list[self.first..]
    }

    /// The entries of the next call, at most [`PIECES_PER_CALL`] and `max_bytes` bytes: pointer and
    /// count.
    pub(crate) fn window(&mut self, max_bytes: usize) -> (*mut libc::iovec, usize) {
        debug_assert!(self.clipped.is_none(), "one call at a time");
        let mut room = max_bytes;
        let mut count = 0;
        let left = self.list.len() - self.first;
        while count < left.min(PIECES_PER_CALL) && room > 0 {
            let index = self.first + count;
            let length = self.list[index].iov_len;
            if length > room {
                self.clipped = Some((index, length));
                self.list[index].iov_len = room;
            }
            room -= length.min(room);
            count += 1;
        }
        // One pointer into the whole list, so that it stays valid for all `count` pieces.
        let begin = self.list.as_mut_ptr().wrapping_add(self.first);
        (if count == 0 { ptr::null_mut() } else { begin }, count)
    }

    /// Consumes `bytes` bytes from the front, at the end of a call.
    pub(crate) fn advance(&mut self, mut bytes: usize) {
        if let Some((index, length)) = self.clipped.take() {
            self.list[index].iov_len = length;
        }
        while bytes > 0 {
            let Some(piece) = self.list.get_mut(self.first) else {
                debug_assert!(false, "more bytes than pieces");
                return;
            };
            if bytes < piece.iov_len {
                piece.iov_base = piece.iov_base.cast::<u8>().wrapping_add(bytes).cast();
                piece.iov_len -= bytes;
                return;
            }
            bytes -= piece.iov_len;
            self.first += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes_of(begin: *mut libc::iovec, count: usize) -> Vec<(usize, usize)> {
        // SAFETY: `window` returned a pointer to `count` pieces of a list that is still alive.
        (0..count)
            .map(|i| unsafe { *begin.add(i) })
            .map(|p| (p.iov_base as usize, p.iov_len))
            .collect()
    }

    proptest! {
        // However much the kernel takes of each window, every byte comes once and in order.
        #[test]
        fn windows_cover_every_byte_once(
            lengths in prop::collection::vec(0usize..50, 0..3000),
            limit in 1usize..4000,
            takes in prop::collection::vec(1usize..4000, 1..20),
        ) {
            let mut pieces = PieceList::default();
            let mut expected: Vec<usize> = Vec::new();
            for (i, &len) in lengths.iter().enumerate() {
                let base = 0x1000 * (i + 1);
                pieces.push(Span { ptr: ptr::without_provenance_mut(base), len });
                expected.extend(base..base + len);
            }
            let mut seen: Vec<usize> = Vec::new();
            for round in 0.. {
                let (begin, count) = pieces.window(limit);
                prop_assert!(count <= PIECES_PER_CALL);
                let offered: Vec<_> = bytes_of(begin, count)
                    .into_iter()
                    .flat_map(|(base, len)| base..base + len)
                    .collect();
                prop_assert!(offered.len() <= limit);
                if offered.is_empty() {
                    pieces.advance(0);
                    break;
                }
                let taken = takes[round % takes.len()].min(offered.len());
                seen.extend(&offered[..taken]);
                pieces.advance(taken);
            }
            prop_assert!(pieces.remaining().is_empty());
            prop_assert_eq!(seen, expected);
        }
    }

    #[test]
    fn cleared_list_keeps_its_capacity() {
        let mut pieces = PieceList::default();
        for _ in 0..5000 {
            pieces.push(Span { ptr: ptr::without_provenance_mut(1), len: 1 });
        }
        let before = pieces.list.capacity();
        pieces.clear();
        assert!(pieces.remaining().is_empty());
        assert_eq!(pieces.list.capacity(), before);
    }
}
