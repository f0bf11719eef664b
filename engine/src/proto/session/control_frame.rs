//! Control frames, which need no credit.

use zerocopy::{Immutable, IntoBytes};

use super::one_sided::SHORT_REPLY_BYTES;
use crate::wire::frame;
use crate::wire::{
    Done, Goodbye, Grant, LaneLost, LanesWanted, Matched, RailFrame, Refused, Reply,
};
use crate::wire::{ProcessQuery, ProcessStatus};

/// A frame that needs no credit. Their number is bounded by operations and lanes, and in time.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ControlFrame {
    Grant(Grant),
    Done(Done),
    Refused(Refused),
    Matched(Matched),
    LanesWanted(LanesWanted),
    Goodbye(Goodbye),
    Rail(RailFrame),
    LaneLost(LaneLost),
    Reply(ShortReply),
    ProcessQuery(ProcessQuery),
    ProcessStatus(ProcessStatus),
}

impl ControlFrame {
    pub(in crate::proto) fn as_frame(&self) -> &[u8] {
        match self {
            Self::Grant(frame) => frame.as_bytes(),
            Self::Done(frame) => frame.as_bytes(),
            Self::Refused(frame) => frame.as_bytes(),
            Self::Matched(frame) => frame.as_bytes(),
            Self::LanesWanted(frame) => frame.as_bytes(),
            Self::Goodbye(frame) => frame.as_bytes(),
            Self::Rail(frame) => frame.as_bytes(),
            Self::LaneLost(frame) => frame.as_bytes(),
            Self::Reply(reply) => reply.as_frame(),
            Self::ProcessQuery(frame) => frame.as_bytes(),
            Self::ProcessStatus(frame) => frame.as_bytes(),
        }
    }

    pub(crate) fn done(operation: u64, status: u8, accepted: u64) -> Self {
        Self::Done(Done {
            kind: frame::KIND_DONE,
            status,
            reserved: 0.into(),
            reserved_2: 0.into(),
            operation: operation.into(),
            accepted: accepted.into(),
        })
    }

    pub(crate) fn matched(operation: u64) -> Self {
        Self::Matched(Matched {
            kind: frame::KIND_MATCHED,
            flags: 0,
            reserved: 0.into(),
            reserved_2: 0.into(),
            operation: operation.into(),
        })
    }

    pub(crate) fn lanes_wanted() -> Self {
        Self::LanesWanted(LanesWanted {
            kind: frame::KIND_LANES_WANTED,
            flags: 0,
            reserved: 0.into(),
            reserved_2: 0.into(),
        })
    }

    pub(crate) fn goodbye(reason: u8) -> Self {
        Self::Goodbye(Goodbye {
            kind: frame::KIND_GOODBYE,
            reason,
            reserved: 0.into(),
            reserved_2: 0.into(),
        })
    }
}

/// A REPLY with few bytes.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct ShortReply {
    header: Reply,
    bytes: [u8; SHORT_REPLY_BYTES],
}

impl ShortReply {
    /// Creates a reply of at most [`SHORT_REPLY_BYTES`] bytes.
    pub(crate) fn new(operation: u64, status: u8, bytes: &[u8]) -> Self {
        let header = Reply {
            kind: frame::KIND_REPLY,
            status,
            reserved: 0.into(),
            length: (bytes.len() as u32).into(),
            operation: operation.into(),
        };
        let mut room = [0; SHORT_REPLY_BYTES];
        room[..bytes.len()].copy_from_slice(bytes);
        Self { header, bytes: room }
    }

    fn as_frame(&self) -> &[u8] {
        &self.as_bytes()[..size_of::<Reply>() + self.header.length.get() as usize]
    }
}
