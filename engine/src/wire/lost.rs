//! Announces that the sender has given up a bulk lane, whose end may never come by its own rail; or
//! the control connection, which the receiver has opened and replaces.
//!
//! ```text
//!  0        1        2                 4                                   8
//! +--------+--------+-----------------+-----------------------------------+
//! |type 12 | flags  | segment bytes   | lane                              |
//! +--------+--------+-----------------+-----------------------------------+
//! ```

use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{FrameError, frame};

/// Length of the frame, in bytes.
pub(crate) const LANE_LOST_BYTES: usize = 8;

/// `flags`: it is the lane alone that fails; nothing is known against its path.
pub(crate) const FLAG_LANE_ALONE: u8 = 1;

/// `flags`: segments of [`LaneLost::segment_bytes`] bytes are lost, and shorter ones may pass.
pub(crate) const FLAG_LANE_LONG: u8 = 2;

/// `flags`: it is the control connection, and `lane` is 0.
pub(crate) const FLAG_LANE_CONTROL: u8 = 4;

/// All flags.
const FLAGS: u8 = FLAG_LANE_ALONE | FLAG_LANE_LONG | FLAG_LANE_CONTROL;

/// The drawing above.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct LaneLost {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    /// 0 without [`FLAG_LANE_LONG`].
    pub(crate) segment_bytes: U16,
    lane: U32,
}

const _: () = assert!(size_of::<LaneLost>() == LANE_LOST_BYTES);

impl LaneLost {
    /// Creates the frame for a bulk lane; `None`: for the control connection.
    pub(crate) fn new(lane: Option<u32>, flags: u8, segment_bytes: u16) -> Self {
        Self {
            kind: frame::KIND_LANE_LOST,
            flags: if lane.is_none() { flags | FLAG_LANE_CONTROL } else { flags },
            segment_bytes: segment_bytes.into(),
            lane: lane.unwrap_or(0).into(),
        }
    }

    /// Returns the number of the bulk lane. `None`: it is the control connection.
    ///
    /// RR-FRAME-1.
    pub(super) fn lane(&self) -> Result<Option<u32>, FrameError> {
        match self.flags {
            flags if flags & !FLAGS != 0 => Err(FrameError::UnknownFlags(flags)),
            flags if flags & FLAG_LANE_CONTROL != 0 => Ok(None),
            _ => Ok(Some(self.lane.get())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RR-FRAME-1
    #[test]
    fn lane_round_trips_and_unknown_flags_are_errors() {
        for lane in [None, Some(0), Some(u32::MAX)] {
            assert_eq!(LaneLost::new(lane, FLAG_LANE_ALONE | FLAG_LANE_LONG, 9).lane(), Ok(lane));
        }
        let unknown = LaneLost::new(Some(1), FLAGS + 1, 0);
        assert_eq!(unknown.lane(), Err(FrameError::UnknownFlags(FLAGS + 1)));
    }
}
