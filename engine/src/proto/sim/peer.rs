//! A peer without a core: a test writes its frames, and reads those of the engine.

use zerocopy::{FromZeros, IntoBytes};

use crate::proto::session::segments::append_segment;
use crate::proto::session::segments::split;
use crate::proto::session::segments::window::is_before;
use crate::proto::table::Id;
use crate::wire::segment::{SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::wire::{Eager, Frame, Frames, Grant, GrantOver, Rts, frame};

/// State of the peer of one session.
#[derive(Clone, Default)]
pub(crate) struct ScriptedPeer {
    /// Frames received before the first missing one.
    pub(crate) received: u32,
    /// Frames sent.
    pub(crate) sent: u32,
    /// Limits announced last.
    pub(crate) envelope_limit: u32,
    pub(crate) byte_limit: u32,
    /// Segments have checksums.
    pub(crate) has_checksums: bool,
    /// Frames received after the first missing one.
    early: Vec<u32>,
}

impl ScriptedPeer {
    pub(crate) fn new(envelope_limit: u32, byte_limit: u32) -> Self {
        Self { envelope_limit, byte_limit, ..Self::default() }
    }

    /// Returns a segment with a valid header. Its frames do not count as sent.
    pub(crate) fn segment(&self, frames: u16, flags: u16, body: &[u8]) -> Vec<u8> {
        let header = SegmentHeader {
            length: ((SEGMENT_HEADER_BYTES + body.len()) as u32).into(),
            frames: frames.into(),
            flags: flags.into(),
            first_frame: self.sent.into(),
            ack: self.received.into(),
            envelope_limit: self.envelope_limit.into(),
            byte_limit: self.byte_limit.into(),
        };
        let mut bytes = Vec::new();
        append_segment(&mut bytes, &[header.as_bytes(), body].concat(), self.has_checksums);
        bytes
    }

    /// Receives the complete segments at the begin of the engine's stream, and checks that they are
    /// valid.
    pub(crate) fn read(
        &mut self,
        stream: &mut Vec<u8>,
        mut each: impl FnMut(&SegmentHeader, &[Frame<'_>]),
    ) {
        let mut used = 0;
        while let Some((header, body, length)) =
            split(&stream[used..], self.has_checksums).expect("sent segments are valid")
        {
            let mut frames = Frames::new(body);
            let next = || frames.next_frame().expect("sent frames are valid");
            let all: Vec<Frame<'_>> = std::iter::from_fn(next).collect();
            assert_eq!(usize::from(header.frames.get()), all.len());
            let first = header.first_frame.get();
            for at in 0..all.len() as u32 {
                let frame = first.wrapping_add(at);
                let is_new = !is_before(frame, self.received) && !self.early.contains(&frame);
                assert!(is_new, "frame {frame} is sent once");
                self.early.push(frame);
            }
            while let Some(at) = self.early.iter().position(|&early| early == self.received) {
                self.early.swap_remove(at);
                self.received = self.received.wrapping_add(1);
            }
            each(header, &all);
            used += length;
        }
        stream.drain(..used);
    }
}

/// Returns the header of a short message of context 5 and tag 1 between the first endpoints.
pub(crate) fn eager(length: u32) -> Eager {
    let (kind, context, tag) = (frame::KIND_EAGER, 5.into(), 1.into());
    Eager { kind, context, length: length.into(), tag, ..Eager::new_zeroed() }
}

/// Returns the envelope of a long message of context 5 and tag 1 between the first endpoints.
pub(crate) fn rts(length: u64) -> Rts {
    let (kind, context, tag) = (frame::KIND_RTS, 5.into(), 1.into());
    Rts { kind, context, tag, operation: 99.into(), length: length.into(), ..Rts::new_zeroed() }
}

/// Returns a grant of a range of a send.
pub(crate) fn grant(over: GrantOver, send: Id, offset: u64, length: u32) -> Grant {
    Grant::new(over, send.to_u64(), 1, (offset, length))
}
