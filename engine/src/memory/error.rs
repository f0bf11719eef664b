//! What the memory room refuses, and why.

use std::io;

/// Why memory could not be had, or a layout could not be used.
///
/// Every case is the caller's or the local machine's doing; nothing a peer sends leads here.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// An alignment that is not a power of two was asked for.
    #[error("alignment {align} is not a power of two: ask for 1, 64, 4096 or the like")]
    BadAlignment {
        /// The alignment that was asked for, in bytes.
        align: usize,
    },
    /// More bytes were asked for than an address space can hold.
    #[error("{bytes} bytes are more than any allocation can hold: check the size computation")]
    TooLarge {
        /// The size that was asked for.
        bytes: usize,
    },
    /// The kernel refused the mapping.
    #[error(
        "the kernel refused to map {bytes} bytes ({}): free memory, or raise the limit on \
         address space (ulimit -v) or on mappings (vm.max_map_count)",
        io::Error::from_raw_os_error(*.os_error)
    )]
    OutOfMemory {
        /// The size that was asked for.
        bytes: usize,
        /// The `errno` of the refusal.
        os_error: i32,
    },
    /// A block or segment of a layout ends behind the buffer that it picks bytes from.
    #[error(
        "piece {index} of the layout ends at byte {end}, but its buffer has {memory_bytes}: \
         shrink the layout or pass the whole buffer"
    )]
    LayoutOutOfBounds {
        /// Which block or segment, counted from 0.
        index: usize,
        /// Where it ends, in bytes from the start of the buffer.
        end: usize,
        /// The length of the buffer, in bytes.
        memory_bytes: usize,
    },
    /// Offsets, strides or lengths of a layout add up to more than a `usize` holds.
    #[error("the sizes of the layout overflow: check how its offsets and strides are computed")]
    LayoutOverflow,
    /// Two pieces of a receive would be written to the same bytes.
    #[error(
        "pieces {first} and {second} of a receive overlap, so what arrives would be ambiguous: \
         make them disjoint (overlapping pieces are fine in a send)"
    )]
    Overlap {
        /// Position in the layout of the piece at the lower address.
        first: usize,
        /// Position in the layout of the piece that starts inside it.
        second: usize,
    },
    /// A layout was laid over a list or over another layout.
    #[error(
        "a layout picks bytes from one contiguous buffer, not from a list or another layout: \
         put shaped buffers into a list instead"
    )]
    NotContiguous,
    /// Lists within lists within lists.
    #[error("lists of buffers are nested more than {limit} deep: flatten them")]
    TooNested {
        /// The deepest nesting that is served.
        limit: usize,
    },
    /// A list whose layouts spell out to more pieces than the engine keeps track of.
    #[error("the list has more than {limit} separate pieces: send it as several messages")]
    TooManyPieces {
        /// The largest number of pieces of one message.
        limit: usize,
    },
    /// A raw span has a length but no address, or wraps around the address space.
    #[error("raw span {index} is not memory (null, or it wraps): pass its address and length")]
    BadSpan {
        /// Which span, counted from 0.
        index: usize,
    },
}
