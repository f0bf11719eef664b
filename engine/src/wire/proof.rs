//! What the side that connected a control lane sends between the reply and its first segment: only
//! a peer that knows the job's secret can make it, and only for this one exchange of hellos.
//!
//! ```text
//!  0                                   4                                   8
//! +-----------------------------------+-----------------------------------+
//! | "RRPF"                            | 0                                 |
//! +-----------------------------------+-----------------------------------+
//! | proof, 16 bytes                                                       | 8
//! |                                                                       |
//! +-----------------------------------------------------------------------+
//! ```

use zerocopy::byteorder::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The first four bytes.
pub(crate) const PROOF_MAGIC: [u8; 4] = *b"RRPF";
/// Length of the frame, in bytes.
pub(crate) const PROOF_BYTES: usize = 24;

/// The drawing above.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Proof {
    pub(crate) magic: [u8; 4],
    pub(crate) reserved: U32,
    pub(crate) proof: [u8; 16],
}

const _: () = assert!(size_of::<Proof>() == PROOF_BYTES);
