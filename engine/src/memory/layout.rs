//! The bytes of a buffer that form a message.

use super::error::MemoryError;
use super::shape::{Shape, Span};

/// A contiguous piece of a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// Its offset in bytes from the start of the buffer.
    pub offset: usize,
    /// Its length, in bytes.
    pub len: usize,
}

/// Selects the bytes of a message from one contiguous buffer, in message order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Layout {
    /// Equal blocks at equal distances: a column of a matrix, a face of a grid (an MPI vector).
    Strided {
        /// The offset of the first block, in bytes from the start of the buffer.
        offset: usize,
        /// The length of each block, in bytes.
        block_bytes: usize,
        /// The distance between the starts of two blocks, in bytes.
        stride_bytes: usize,
        /// The number of blocks.
        count: usize,
    },
    /// Any number of pieces in any order (an MPI indexed type).
    Segments(Vec<Segment>),
}

/// The purpose of a shape.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ShapePurpose {
    /// Pieces may overlap.
    Send,
    /// Pieces have to be disjoint.
    Recv,
}

impl Layout {
    /// Returns the length of the message in bytes; `usize::MAX` if the sizes overflow, in which
    /// case all operations refuse the layout.
    pub fn len(&self) -> usize {
        match self {
            Self::Strided { block_bytes, count, .. } => block_bytes.saturating_mul(*count),
            Self::Segments(segments) => {
                segments.iter().fold(0, |sum, segment| sum.saturating_add(segment.len))
            }
        }
    }

    /// Whether the message has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Checks the layout against a buffer of `memory_bytes`; returns the length of the message.
    ///
    /// Empty blocks and segments, too, must be inside the buffer or at its end.
    pub(super) fn check(
        &self,
        memory_bytes: usize,
        purpose: ShapePurpose,
    ) -> Result<usize, MemoryError> {
        match self {
            Self::Strided { offset, block_bytes, stride_bytes, count } => {
                let last = count.saturating_sub(1);
                let end = stride_bytes.checked_mul(last).and_then(|at| at.checked_add(*offset));
                let block = if *count > 0 { *block_bytes } else { 0 };
                let end = end.and_then(|at| at.checked_add(block));
                let end = end.ok_or(MemoryError::LayoutOverflow)?;
                if end > memory_bytes {
                    return Err(MemoryError::LayoutOutOfBounds { index: last, end, memory_bytes });
                }
                if purpose == ShapePurpose::Recv && *count > 1 && stride_bytes < block_bytes {
                    return Err(MemoryError::Overlap { first: 0, second: 1 });
                }
                block_bytes.checked_mul(*count).ok_or(MemoryError::LayoutOverflow)
            }
            Self::Segments(segments) => {
                let mut len = 0usize;
                for (index, segment) in segments.iter().enumerate() {
                    let end = segment.offset.checked_add(segment.len);
                    let end = end.ok_or(MemoryError::LayoutOverflow)?;
                    if end > memory_bytes {
                        return Err(MemoryError::LayoutOutOfBounds { index, end, memory_bytes });
                    }
                    len = len.checked_add(segment.len).ok_or(MemoryError::LayoutOverflow)?;
                }
                if purpose == ShapePurpose::Recv {
                    check_disjoint(segments)?;
                }
                Ok(len)
            }
        }
    }

    /// How many pieces the message has at most.
    pub(super) fn pieces(&self) -> usize {
        match self {
            Self::Strided { block_bytes: 0, .. } => 0,
            Self::Strided { count, .. } => *count,
            Self::Segments(segments) => segments.len(),
        }
    }

    /// The shape of the message in memory that starts at `base`, after [`Self::check`].
    pub(super) fn shape(&self, base: *mut u8) -> Shape {
        match self {
            Self::Strided { offset, block_bytes, stride_bytes, count } => {
                Shape::strided(base.wrapping_add(*offset), *block_bytes, *stride_bytes, *count)
            }
            Self::Segments(segments) => {
                Shape::list(segments.iter().map(|segment| Span {
                    ptr: base.wrapping_add(segment.offset),
                    len: segment.len,
                }))
            }
        }
    }
}

/// Refuses segments that share a byte. They were checked against the buffer already.
fn check_disjoint(segments: &[Segment]) -> Result<(), MemoryError> {
    // In address order, as they nearly always are, this needs no memory.
    let mut end = 0;
    let ascending = segments.iter().filter(|segment| segment.len > 0).all(|segment| {
        let follows = segment.offset >= end;
        end = segment.offset + segment.len;
        follows
    });
    if ascending {
        return Ok(());
    }
    let occupied = segments.iter().enumerate().filter(|(_, segment)| segment.len > 0);
    let mut order: Vec<(usize, &Segment)> = occupied.collect();
    order.sort_unstable_by_key(|(index, segment)| (segment.offset, *index));
    for pair in order.windows(2) {
        let [(first, low), (second, high)] = [pair[0], pair[1]];
        if low.offset + low.len > high.offset {
            return Err(MemoryError::Overlap { first, second });
        }
    }
    Ok(())
}
