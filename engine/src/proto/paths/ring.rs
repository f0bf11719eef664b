//! Sessions whose segments use a ring in shared memory: their paths only send and answer probes
//! until the ring ends.

use super::super::core::Core;
use super::super::effects::{Arrival, Effects};
use super::super::failure::PeerFailure;
use super::PathTable;
use super::arrival::Offence;
use crate::proto::table::Id;
use crate::wire::frame_range::{RingMessage, RingName};
use crate::wire::{FrameRange, KeptFrames};

impl PathTable {
    /// Returns the ring of a session; its packets have the id of the first path.
    #[inline]
    pub(crate) fn ring_of(&self, slot: u32) -> Option<RingName> {
        let paths = self.of(slot)?;
        let number = paths.ring?;
        let session = paths.primary.as_deref()?.id().session;
        Some(RingName { session, number })
    }

    /// Returns whether some session has a ring.
    pub(crate) fn are_rings_up(&self) -> bool {
        self.by_slot.iter().any(|paths| paths.ring.is_some())
    }

    /// Returns the session whose first path has packets with this id.
    #[inline]
    pub(crate) fn session_of(&self, id: u64) -> Option<u32> {
        let latest = self.shared.latest;
        match self.of(latest).is_some_and(|paths| paths.are_of(id)) {
            true => Some(latest),
            false => self.find_session(id),
        }
    }

    #[inline(never)]
    fn find_session(&self, id: u64) -> Option<u32> {
        self.shared.by_session.get(&id).copied()
    }

    /// Sets the ring of a session, or removes it: then all unacknowledged segments are sent again,
    /// on its paths. `unread`: what it kept (`None`: the peer has overwritten it). Returns `false`
    /// if what the session needs was overwritten: fail it.
    ///
    /// RR-SHM-8.
    pub(crate) fn set_ring(
        &mut self,
        core: &mut Core,
        session: u32,
        ring: Option<u32>,
        unread: Option<&[KeptFrames]>,
    ) -> bool {
        self.of_mut(session).ring = ring;
        core.with(session, |it, cx| it.use_ring(cx, ring, unread)).unwrap_or(true)
    }

    /// Matches a message that a session's ring contains. Returns its receive, how many bytes of its
    /// payload fit that, and the message. `None`: nothing has changed, use
    /// [`Self::handle_ring_segment`].
    #[inline]
    pub(crate) fn match_in_ring(
        &mut self,
        core: &mut Core,
        (id, now_ns): (u64, u64),
        message: &RingMessage,
    ) -> Result<Option<(Id, usize, Arrival)>, Offence> {
        let Some(session) = self.session_of(id) else { return Ok(None) };
        let matched = core.match_in_ring(session, message, now_ns);
        let matched =
            matched.map_err(|error| (session, PeerFailure::Protocol(error.to_string().into())))?;
        if matched.is_some() {
            self.shared.latest = session;
            self.shared.segments += 1;
        }
        Ok(matched)
    }

    /// Handles a segment received from a session's ring, or the frames of one that came without its
    /// header. Returns an error if the peer violates the protocol.
    ///
    /// RR-SHM-8.
    #[inline]
    pub(crate) fn handle_ring_segment(
        &mut self,
        core: &mut Core,
        (id, now_ns): (u64, u64),
        (frames, bytes): (Option<FrameRange>, &[u8]),
        effects: &mut impl Effects,
    ) -> Result<(), Offence> {
        let Some(session) = self.session_of(id) else {
            self.shared.dropped.unknown += 1;
            return Ok(());
        };
        self.shared.latest = session;
        self.shared.segments += 1;
        let handled = match frames {
            Some(range) => core.handle_ring_frames(session, (range, bytes), now_ns, effects),
            None => core.handle_ring_segment(session, bytes, now_ns, effects),
        };
        handled.map_err(|error| (session, PeerFailure::Protocol(error.to_string().into())))
    }
}
