//! Announces that the sender has given up a bulk lane. Its end may never come by its own rail.
//!
//! ```text
//!  0        1        2                 4                                   8
//! +--------+--------+-----------------+-----------------------------------+
//! |type 12 | flags  | segment bytes   | lane                              |
//! +--------+--------+-----------------+-----------------------------------+
//! ```

use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of the frame, in bytes.
pub(crate) const LANE_LOST_BYTES: usize = 8;

/// `flags`: it is the lane alone that fails; nothing is known against its path.
pub(crate) const FLAG_LANE_ALONE: u8 = 1;

/// `flags`: segments of [`LaneLost::segment_bytes`] bytes are lost, and shorter ones may pass.
pub(crate) const FLAG_LANE_LONG: u8 = 2;

/// Number of the control lane in this frame: no bulk lane has it.
pub(crate) const CONTROL_LANE: u32 = super::LANES_END;

/// The drawing above.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct LaneLost {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    /// 0 without [`FLAG_LANE_LONG`].
    pub(crate) segment_bytes: U16,
    pub(crate) lane: U32,
}

const _: () = assert!(size_of::<LaneLost>() == LANE_LOST_BYTES);
