//! How a peer of this host gets a message that its receiver can read from this process's memory, and
//! that could be copied through the ring in pieces.
//!
//! Pieces are copied twice, by two cores at once; a read is one copy, and a system call that visits
//! each page. Which one is faster depends on the machine, on whether both processes share a core,
//! and on what else runs. So both are tried, and the faster one carries the next messages.

use super::super::late::AtRest;
use super::serving::Serving;
use crate::proto::context::Cx;
use crate::proto::faster_of_two::{FasterOfTwo, RunBytes, Way};
use crate::proto::session::Session;

/// Runs of messages: 16 of 64 KiB are timed.
const RUN_BYTES: RunBytes = RunBytes { settle: 256 << 10, timed: 1 << 20 };

/// A message that the peer has pulled.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServedMessage {
    pub(super) length: u64,
    /// The peer could read it.
    pub(super) is_read: bool,
    /// From its RTS to DONE.
    pub(super) elapsed_ns: u64,
}

impl ServedMessage {
    /// Returns the message of a send of `length` bytes, for which DONE has come. `None`: it is not
    /// known when it began.
    pub(super) fn of(serving: &Serving, length: u64, now_ns: u64) -> Option<Self> {
        let (begun_ns, is_read) = (serving.begun_ns(), serving.is_readable());
        let elapsed_ns = now_ns.saturating_sub(begun_ns);
        (begun_ns > 0).then_some(Self { length, is_read, elapsed_ns })
    }
}

/// See the module. Pieces are the first way.
#[derive(Debug)]
pub(super) struct LocalPulls(FasterOfTwo);

impl Default for LocalPulls {
    fn default() -> Self {
        Self(FasterOfTwo::new(RUN_BYTES))
    }
}

impl AtRest for LocalPulls {
    const AT_REST: &'static Self = &Self(FasterOfTwo::new(RUN_BYTES));
}

impl Session {
    /// Handles a message that the peer has pulled: the next ones of such a length go by the faster
    /// way.
    pub(super) fn note_served(&mut self, cx: &Cx<'_>, message: &ServedMessage) {
        let limits = cx.shared.rendezvous.limits();
        if !self.segments.protocol().is_either_way(message.length, limits) {
            return;
        }
        let LocalPulls(faster) = &mut *self.rendezvous.local_pulls;
        let way = if message.is_read { Way::Second } else { Way::First };
        faster.handle_sent(way, message.length, message.elapsed_ns);
        let are_pieces = faster.way() == Way::First;
        self.segments.protocol_mut().set_pieces(are_pieces, limits);
    }
}
