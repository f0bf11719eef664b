//! Space for the frames of one-sided operations in the segments of a session.

use super::super::rendezvous::serving::Serving;
use super::super::segments::segment::{LONG_PAYLOAD_BYTES, SegmentPool};
use super::super::segments::{PullMethod, SegmentId, Segments};
use crate::proto::hint::Hint;
use crate::proto::operation::OperationState;
use crate::wire::cma_source::{CMA_SOURCE_BYTES, FLAG_CMA};

/// How the data of a put, or of a reply, goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum DataForm {
    /// All of these bytes follow the header.
    Whole(usize),
    /// The other side reads it; its location follows the header.
    Located,
    /// The other side grants ranges of it.
    Granted,
}

impl DataForm {
    /// Returns the bytes after the header.
    pub(super) fn payload(self) -> usize {
        match self {
            Self::Whole(bytes) => bytes,
            Self::Located => CMA_SOURCE_BYTES,
            Self::Granted => 0,
        }
    }

    /// Returns the flag of what follows the header.
    pub(super) fn flag(self) -> u8 {
        match self {
            Self::Located => FLAG_CMA,
            Self::Whole(_) | Self::Granted => 0,
        }
    }

    /// Returns the state of the operation whose data the other side pulls.
    pub(super) fn serving(self) -> OperationState {
        OperationState::AwaitPull(Serving::new(self == Self::Located))
    }
}

impl Segments {
    /// Returns the longest put, or reply to a get, that is sent with its header, in bytes: in one
    /// datagram, and at all.
    #[inline]
    pub(super) fn whole_max(&self, header: usize) -> (u64, u64) {
        let eager = u64::from(self.eager_limit().own_bytes()).min(LONG_PAYLOAD_BYTES as u64);
        let short = (self.frame_bytes_max() - header) as u64;
        (short, self.protocol().payload_max(short, eager))
    }

    /// Returns how `length` bytes go, the longest of which that go whole are `whole_max`.
    pub(super) fn data_form(&self, length: u64, whole_max: u64) -> DataForm {
        match self.protocol().one_sided_method(length) {
            _ if length <= whole_max => DataForm::Whole(length as usize),
            PullMethod::Memory => DataForm::Located,
            PullMethod::Pieces | PullMethod::Lanes | PullMethod::Datagrams => DataForm::Granted,
        }
    }

    /// Reserves a frame of a one-sided operation: `pieces`, and `payload` bytes of space after
    /// them. Returns its segment; `None`: no space now.
    pub(super) fn push_one_sided(
        &mut self,
        pool: &mut SegmentPool,
        pieces: [&[u8]; 2],
        payload: usize,
        hint: Hint,
        is_long: bool,
    ) -> Option<SegmentId> {
        let head = pieces[0].len() + pieces[1].len();
        let length = head + payload;
        let id = self.push_for(pool, length, hint, is_long)?;
        let pushed = debug_assert_some!(self.segment_mut(id), "the segment was just pushed to");
        let room = pushed?.push(length);
        let (first, second) = room[..head].split_at_mut(pieces[0].len());
        first.copy_from_slice(pieces[0]);
        second.copy_from_slice(pieces[1]);
        Some(id)
    }
}
