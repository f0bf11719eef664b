//! The receiver of a rendezvous message asks for one byte range: on a bulk lane, on a ring in
//! shared memory, or in datagrams.
//!
//! ```text
//!  0        1        2                 4                                   8
//! +--------+--------+-----------------+-----------------------------------+
//! |type 3  | class  |carrier | 0      | lane or ring                      |
//! +--------+--------+-----------------+-----------------------------------+
//! | operation of the sender                                               | 8
//! +-----------------------------------------------------------------------+
//! | operation of the receiver                                             | 16
//! +-----------------------------------------------------------------------+
//! | offset in the message                                                 | 24
//! +-----------------------------------+-----------------------------------+
//! | length                            | chunk                             | 32
//! +-----------------------------------+-----------------------------------+
//! ```
//!
//! *Carrier* states what is to carry the range:
//!
//! | carrier | carried by | lane or ring | chunk |
//! |---|---|---|---|
//! | 0 | a bulk lane | number of the lane | number of the chunk on the lane |
//! | 1 | a ring | number of the ring | 0 |
//! | 2 | datagrams | 0 | 0 |
//!
//! *Class*: the logarithm to base 2 of the longest message, in bytes, that the receiver prefers to
//! get eagerly; 0: unspecified.

use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{FrameError, Refused, frame};

/// `carrier` of a range on a bulk lane.
const LANE: u8 = 0;

/// `carrier` of a range on a ring.
const RING: u8 = 1;

/// `carrier` of a range in datagrams.
const DATAGRAMS: u8 = 2;

/// Length of the frame, in bytes.
pub(crate) const GRANT_BYTES: usize = 40;

/// What carries the bytes of a granted range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum GrantOver {
    /// The bulk lane `lane`, as its chunk `chunk`.
    Lane { lane: u32, chunk: u32 },
    /// The ring of this number.
    Ring(u32),
    /// Datagrams.
    Datagrams,
}

impl GrantOver {
    /// Returns the carrier, its number and the number of the chunk, as frames state them.
    fn to_wire(self) -> (u8, u32, u32) {
        match self {
            Self::Lane { lane, chunk } => (LANE, lane, chunk),
            Self::Ring(ring) => (RING, ring, 0),
            Self::Datagrams => (DATAGRAMS, 0, 0),
        }
    }

    /// Returns what frames state so.
    ///
    /// RR-FRAME-1.
    fn from_wire(carrier: u8, number: u32, chunk: u32) -> Result<Self, FrameError> {
        match carrier {
            LANE => Ok(Self::Lane { lane: number, chunk }),
            RING => Ok(Self::Ring(number)),
            DATAGRAMS => Ok(Self::Datagrams),
            other => Err(FrameError::UnknownCarrier(other)),
        }
    }
}

/// The drawing above.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Grant {
    pub(crate) kind: u8,
    pub(crate) eager_class: u8,
    pub(crate) carrier: u8,
    pub(crate) reserved: u8,
    pub(crate) number: U32,
    pub(crate) send_operation: U64,
    pub(crate) receive_operation: U64,
    pub(crate) offset: U64,
    pub(crate) length: U32,
    pub(crate) chunk: U32,
}

const _: () = assert!(size_of::<Grant>() == GRANT_BYTES);

impl Grant {
    /// Creates a grant, without advice, of `length` bytes at `offset`.
    #[inline]
    pub(crate) fn new(
        over: GrantOver,
        send_operation: u64,
        receive_operation: u64,
        (offset, length): (u64, u32),
    ) -> Self {
        let (carrier, number, chunk) = over.to_wire();
        Self {
            kind: frame::KIND_GRANT,
            eager_class: 0,
            carrier,
            reserved: 0,
            number: number.into(),
            send_operation: send_operation.into(),
            receive_operation: receive_operation.into(),
            offset: offset.into(),
            length: length.into(),
            chunk: chunk.into(),
        }
    }

    /// Returns what is to carry the range.
    pub(crate) fn over(&self) -> Result<GrantOver, FrameError> {
        GrantOver::from_wire(self.carrier, self.number.get(), self.chunk.get())
    }

    /// Returns the number of the chunk, if a bulk lane is to carry the range.
    pub(crate) fn chunk(&self) -> u32 {
        self.chunk.get()
    }

    /// Checks that the range has 1 to `longest` bytes, all of them in a message of `message` bytes.
    ///
    /// RR-RDV-1.
    pub(crate) fn check_range(&self, message: u64, longest: u32) -> Result<(), FrameError> {
        let (offset, length) = (self.offset.get(), self.length.get());
        let is_in = offset.checked_add(length.into()).is_some_and(|end| end <= message);
        if is_in && (1..=longest).contains(&length) { Ok(()) } else { Err(self.error(message)) }
    }

    /// Returns the error of a grant that its receiver may not send, of a message of `message`
    /// bytes; 0: whatever its length is.
    #[cold]
    pub(crate) fn error(&self, message: u64) -> FrameError {
        let (offset, length) = (self.offset.get(), self.length.get());
        FrameError::BadGrant { offset, length, message }
    }
}

impl Refused {
    /// Creates the answer to a grant of the receive `operation` that cannot be served.
    pub(crate) fn new(over: GrantOver, operation: u64) -> Self {
        let (carrier, number, _) = over.to_wire();
        Self {
            kind: frame::KIND_REFUSED,
            carrier,
            reserved: 0.into(),
            number: number.into(),
            operation: operation.into(),
        }
    }

    /// Returns the bulk lane of the grant, on which nothing can follow. `None`: datagrams and rings
    /// have no order to lose.
    pub(super) fn lane_to_abort(&self) -> Result<Option<u32>, FrameError> {
        Ok(match GrantOver::from_wire(self.carrier, self.number.get(), 0)? {
            GrantOver::Lane { lane, .. } => Some(lane),
            GrantOver::Ring(_) | GrantOver::Datagrams => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grant_over_round_trips() {
        for over in [
            GrantOver::Lane { lane: 0, chunk: 0 },
            GrantOver::Lane { lane: u32::MAX, chunk: u32::MAX },
            GrantOver::Ring(7),
            GrantOver::Datagrams,
        ] {
            assert_eq!(Grant::new(over, 1, 2, (3, 4)).over(), Ok(over));
            let lane = match over {
                GrantOver::Lane { lane, .. } => Some(lane),
                GrantOver::Ring(_) | GrantOver::Datagrams => None,
            };
            assert_eq!(Refused::new(over, 2).lane_to_abort(), Ok(lane));
        }
    }

    /// RR-FRAME-1
    #[test]
    fn unknown_carriers_are_errors() {
        for carrier in DATAGRAMS + 1..=u8::MAX {
            let error = FrameError::UnknownCarrier(carrier);
            let grant = Grant { carrier, ..Grant::new(GrantOver::Ring(7), 1, 2, (3, 4)) };
            assert_eq!(grant.over(), Err(error));
            let refused = Refused { carrier, ..Refused::new(GrantOver::Ring(7), 2) };
            assert_eq!(refused.lane_to_abort(), Err(error));
        }
    }

    /// RR-RDV-1
    #[test]
    fn range_is_not_empty_and_lies_in_the_message() {
        let check = |offset, length| {
            let grant = Grant::new(GrantOver::Datagrams, 1, 2, (offset, length));
            grant.check_range(1000, 100).is_ok()
        };
        assert!(check(0, 1) && check(0, 100) && check(900, 100) && check(999, 1));
        for (offset, length) in [(0, 0), (0, 101), (901, 100), (1000, 1), (u64::MAX, 2)] {
            assert!(!check(offset, length), "{length} bytes at {offset}");
        }
    }
}
