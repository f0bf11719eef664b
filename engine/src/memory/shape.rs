//! Where the bytes of a message lie in memory.

use std::ptr;
use std::slice;

#[cfg(test)]
mod tests;

/// A contiguous piece of a message's memory.
///
/// It is an address, not access: code that reads or writes it justifies that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Span {
    /// Its first byte.
    pub(crate) ptr: *mut u8,
    /// Its length in bytes.
    pub(crate) len: usize,
}

// SAFETY: an address may be known to any thread; every access through it is `unsafe`.
unsafe impl Send for Span {}
// SAFETY: as above.
unsafe impl Sync for Span {}

impl Span {
    /// Bytes `at..at + len` of the span.
    #[inline]
    fn part(self, at: usize, len: usize) -> Self {
        debug_assert!(at <= self.len && len <= self.len - at);
        Self { ptr: self.ptr.wrapping_add(at), len }
    }
}

/// One piece of a list, with where it ends in the message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    span: Span,
    end: usize,
}

/// Where the bytes of a message lie, in message order.
///
/// Like [`Span`] it is only addresses. The maker of a shape keeps the memory alive for as long as
/// it is read or written through.
#[derive(Clone, Debug)]
pub(crate) enum Shape {
    /// One piece.
    Contiguous(Span),
    /// Equal blocks at equal distances; `block` is the first of `count >= 2`, not empty.
    Strided {
        /// The first block.
        block: Span,
        /// From the start of a block to the start of the next, in bytes.
        stride_bytes: usize,
        /// How many blocks.
        count: usize,
    },
    /// At least two pieces, none of them empty.
    List(Box<[Piece]>),
}

impl Shape {
    /// `len` bytes from `ptr` on.
    #[inline]
    pub(crate) const fn contiguous(ptr: *mut u8, len: usize) -> Self {
        Self::Contiguous(Span { ptr, len })
    }

    /// No bytes.
    #[inline]
    pub(crate) const fn empty() -> Self {
        Self::contiguous(ptr::NonNull::dangling().as_ptr(), 0)
    }

    /// `count` blocks of `block_bytes`, the first at `first`, each `stride_bytes` after the last.
    ///
    /// # Panics
    ///
    /// When the message's length overflows a `usize`; a checked layout's never does.
    pub(crate) fn strided(
        first: *mut u8,
        block_bytes: usize,
        stride_bytes: usize,
        count: usize,
    ) -> Self {
        let len = block_bytes.checked_mul(count).expect("the layout was checked");
        if len == 0 || count == 1 || block_bytes == stride_bytes {
            return Self::contiguous(first, len);
        }
        Self::Strided { block: Span { ptr: first, len: block_bytes }, stride_bytes, count }
    }

    /// Pieces one after the other. Empty ones are dropped, and a list of one is contiguous.
    ///
    /// # Panics
    ///
    /// When the message's length overflows a `usize`; a checked layout's never does.
    pub(crate) fn list(spans: impl IntoIterator<Item = Span>) -> Self {
        let mut spans = spans.into_iter().filter(|span| span.len > 0);
        let Some(first) = spans.next() else { return Self::empty() };
        let Some(second) = spans.next() else { return Self::Contiguous(first) };
        let mut end = 0usize;
        let pieces = [first, second].into_iter().chain(spans).map(|span| {
            end = end.checked_add(span.len).expect("the layout was checked");
            Piece { span, end }
        });
        Self::List(pieces.collect())
    }

    /// The length of the message, in bytes.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Contiguous(span) => span.len,
            Self::Strided { block, count, .. } => block.len * count,
            Self::List(pieces) => pieces.last().map_or(0, |piece| piece.end),
        }
    }

    #[cfg(test)]
    /// Whether the message has no bytes.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it is one piece.
    #[inline]
    pub(crate) fn is_contiguous(&self) -> bool {
        matches!(self, Self::Contiguous(_))
    }

    /// The one piece of a contiguous message.
    #[inline]
    pub(crate) fn as_span(&self) -> Option<Span> {
        match self {
            Self::Contiguous(span) => Some(*span),
            _ => None,
        }
    }

    /// The pieces that hold bytes `offset..offset + length` of the message, in order, none empty.
    ///
    /// Finding the first takes constant time, and time logarithmic in the pieces of a list.
    ///
    /// # Panics
    ///
    /// When the range is not inside the message.
    #[inline]
    pub(crate) fn spans(&self, offset: usize, length: usize) -> Spans<'_> {
        check_range(self.len(), offset, length);
        let rest = match self {
            Self::Contiguous(span) => Rest::Contiguous(span.ptr.wrapping_add(offset)),
            Self::Strided { block, stride_bytes, .. } => {
                let skipped = (offset / block.len).wrapping_mul(*stride_bytes);
                Rest::Strided {
                    block: Span { ptr: block.ptr.wrapping_add(skipped), len: block.len },
                    within: offset % block.len,
                    stride_bytes: *stride_bytes,
                }
            }
            Self::List(pieces) => {
                let first = pieces.partition_point(|piece| piece.end <= offset);
                let within = pieces.get(first).map_or(0, |piece| {
                    let start = piece.end - piece.span.len;
                    offset - start
                });
                Rest::List { pieces: pieces[first..].iter(), within }
            }
        };
        Spans { rest, remaining: length }
    }

    /// The shape of bytes `offset..offset + length` of the message.
    ///
    /// # Panics
    ///
    /// When the range is not inside the message.
    pub(crate) fn part(&self, offset: usize, length: usize) -> Self {
        Self::list(self.spans(offset, length))
    }

    /// Places `src` at byte `offset` of the message.
    ///
    /// # Safety
    ///
    /// The memory of the message is live and writable, and nothing else accesses the bytes
    /// `offset..offset + src.len()` of it meanwhile, `src` included.
    ///
    /// # Panics
    ///
    /// When the range is not inside the message.
    #[inline]
    pub(crate) unsafe fn copy_from(&self, offset: usize, src: &[u8]) {
        if let Self::Contiguous(span) = self {
            check_range(span.len, offset, src.len());
            // SAFETY: the range is inside the span (just checked); the caller vouches for the
            // memory, and that `src` is elsewhere.
            unsafe { ptr::copy_nonoverlapping(src.as_ptr(), span.ptr.add(offset), src.len()) };
        } else {
            // SAFETY: the caller upholds the contract.
            unsafe { self.scatter(offset, src) };
        }
    }

    /// Fills `dst` with the message's bytes from `offset` on.
    ///
    /// # Safety
    ///
    /// The memory of the message is live and initialised, and nothing writes the bytes
    /// `offset..offset + dst.len()` of it meanwhile, `dst` included.
    ///
    /// # Panics
    ///
    /// When the range is not inside the message.
    #[inline]
    pub(crate) unsafe fn copy_to(&self, offset: usize, dst: &mut [u8]) {
        if let Self::Contiguous(span) = self {
            check_range(span.len, offset, dst.len());
            // SAFETY: the range is inside the span (just checked); the caller vouches for the
            // memory, and that `dst` is elsewhere.
            unsafe { ptr::copy_nonoverlapping(span.ptr.add(offset), dst.as_mut_ptr(), dst.len()) };
        } else {
            // SAFETY: the caller upholds the contract.
            unsafe { self.gather(offset, dst) };
        }
    }

    /// Copies `length` bytes at `offset` of another message to the same place of this one.
    ///
    /// # Safety
    ///
    /// The memory of both messages is live and initialised, they share no byte, and nothing else
    /// accesses these ranges meanwhile, except to read `source`.
    ///
    /// # Panics
    ///
    /// When the range is not inside both messages.
    pub(crate) unsafe fn copy_of(&self, source: &Self, offset: usize, length: usize) {
        let mut at = offset;
        for span in source.spans(offset, length) {
            // SAFETY: `spans` yields pieces of the source's memory, which is live and not written.
            let piece = unsafe { slice::from_raw_parts(span.ptr, span.len) };
            // SAFETY: the caller upholds the contract.
            unsafe { self.copy_from(at, piece) };
            at += span.len;
        }
    }

    /// Continues the CRC32C `before` with `length` bytes at `offset` of the message.
    ///
    /// # Safety
    ///
    /// The memory of the message is live and initialised, and nothing writes the bytes
    /// `offset..offset + length` of it meanwhile.
    ///
    /// # Panics
    ///
    /// When the range is not inside the message.
    pub(crate) unsafe fn checksum(&self, offset: usize, length: usize, before: u32) -> u32 {
        self.spans(offset, length).fold(before, |sum, span| {
            // SAFETY: `spans` yields pieces of the message's memory, which the caller vouches for.
            crc32c::crc32c_append(sum, unsafe { slice::from_raw_parts(span.ptr, span.len) })
        })
    }

    /// [`Self::copy_from`] for more than one piece.
    #[inline(never)]
    unsafe fn scatter(&self, offset: usize, mut src: &[u8]) {
        for span in self.spans(offset, src.len()) {
            let (now, later) = src.split_at(span.len);
            // SAFETY: `spans` yields pieces of the message's memory, which the caller vouches for.
            unsafe { ptr::copy_nonoverlapping(now.as_ptr(), span.ptr, span.len) };
            src = later;
        }
    }

    /// [`Self::copy_to`] for more than one piece.
    #[inline(never)]
    unsafe fn gather(&self, offset: usize, mut dst: &mut [u8]) {
        for span in self.spans(offset, dst.len()) {
            let (now, later) = dst.split_at_mut(span.len);
            // SAFETY: `spans` yields pieces of the message's memory, which the caller vouches for.
            unsafe { ptr::copy_nonoverlapping(span.ptr, now.as_mut_ptr(), span.len) };
            dst = later;
        }
    }
}

#[inline]
fn check_range(len: usize, offset: usize, length: usize) {
    if offset > len || length > len - offset {
        outside(len, offset, length);
    }
}

#[cold]
#[inline(never)]
fn outside(len: usize, offset: usize, length: usize) -> ! {
    panic!("{length} bytes at {offset} are not inside a message of {len} bytes");
}

/// The pieces of a range of a message; see [`Shape::spans`].
#[derive(Clone, Debug)]
pub(crate) struct Spans<'a> {
    rest: Rest<'a>,
    /// Bytes that were not yielded yet.
    remaining: usize,
}

/// The rest of a shape.
#[derive(Clone, Debug)]
enum Rest<'a> {
    Contiguous(*mut u8),
    /// The next block, of which `within` bytes are skipped.
    Strided {
        block: Span,
        within: usize,
        stride_bytes: usize,
    },
    /// The next pieces, of the first of which `within` bytes are skipped.
    List {
        pieces: slice::Iter<'a, Piece>,
        within: usize,
    },
}

impl Iterator for Spans<'_> {
    type Item = Span;

    #[inline]
    fn next(&mut self) -> Option<Span> {
        if self.remaining == 0 {
            return None;
        }
        let span = match &mut self.rest {
            Rest::Contiguous(ptr) => Span { ptr: *ptr, len: self.remaining },
            Rest::Strided { block, within, stride_bytes } => {
                let span = block.part(*within, (block.len - *within).min(self.remaining));
                block.ptr = block.ptr.wrapping_add(*stride_bytes);
                *within = 0;
                span
            }
            Rest::List { pieces, within } => {
                let piece = pieces.next()?.span;
                let span = piece.part(*within, (piece.len - *within).min(self.remaining));
                *within = 0;
                span
            }
        };
        self.remaining -= span.len;
        Some(span)
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        match &self.rest {
            _ if self.remaining == 0 => (0, Some(0)),
            Rest::Contiguous(_) => (1, Some(1)),
            Rest::Strided { block, within, .. } => {
                let blocks = self.remaining.saturating_add(*within).div_ceil(block.len);
                (blocks, Some(blocks))
            }
            Rest::List { pieces, .. } => (1, Some(pieces.len())),
        }
    }
}

impl std::iter::FusedIterator for Spans<'_> {}
