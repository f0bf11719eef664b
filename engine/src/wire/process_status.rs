//! The answer to a PROCESS QUERY: what the kernel of the sender's host reports of a process.
//!
//! ```text
//!  0        1        2                 4                                   8
//! +--------+--------+-----------------+-----------------------------------+
//! |type 22 | status | 0               | 0                                 |
//! +--------+--------+-----------------+-----------------------------------+
//! | engine of that process                                                | 8
//! +-----------------------------------------------------------------------+
//! ```

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of the frame, in bytes.
pub(crate) const PROCESS_STATUS_BYTES: usize = 16;

/// `status`: this engine does not observe that process.
pub(crate) const UNKNOWN: u8 = 0;
/// `status`: it observes it, and its end was not reported.
pub(crate) const RUNNING: u8 = 1;
/// `status`: its end was reported.
pub(crate) const ENDED: u8 = 2;

/// The drawing above.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct ProcessStatus {
    pub(crate) kind: u8,
    pub(crate) status: u8,
    pub(crate) reserved: U16,
    pub(crate) reserved_2: U32,
    pub(crate) engine: U64,
}

const _: () = assert!(size_of::<ProcessStatus>() == PROCESS_STATUS_BYTES);
