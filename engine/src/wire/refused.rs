//! The sender cannot serve a grant (RR-RDV-5): both sides abort its lane, if it named one.
//!
//! ```text
//!  0        1        2                 4                                   8
//! +--------+--------+-----------------+-----------------------------------+
//! |type 5  |carrier | 0               | lane or ring                      |
//! +--------+--------+-----------------+-----------------------------------+
//! | operation of the receiver                                             | 8
//! +-----------------------------------------------------------------------+
//! ```
//!
//! *Carrier* and what follows it are those of the [grant](super::grant).

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of the frame, in bytes.
pub(crate) const REFUSED_BYTES: usize = 16;

/// The drawing above.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Refused {
    pub(crate) kind: u8,
    pub(super) carrier: u8,
    pub(super) reserved: U16,
    pub(super) number: U32,
    pub(crate) operation: U64,
}

const _: () = assert!(size_of::<Refused>() == REFUSED_BYTES);
