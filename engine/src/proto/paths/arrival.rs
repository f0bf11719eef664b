//! Received datagrams: their session, their authenticity, and their content.

use std::net::SocketAddr;

use super::super::core::Core;
use super::super::effects::Effects;
use super::super::failure::PeerFailure;
use super::super::session::Session;
use super::{PRIMARY, PathCx, PathTable, Paths};
use crate::wire::packet::{PACKET_HEADER_BYTES, PACKET_TAG_BYTES};

/// A session whose peer violates the protocol, and how.
pub(crate) type Offence = (u32, PeerFailure);

/// Where a datagram came from, and when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceiveInfo {
    pub(crate) from: SocketAddr,
    pub(crate) now_ns: u64,
    /// Upper bound of the time between its arrival and `now_ns`.
    pub(crate) late_ns: u64,
}

/// Result of handling a datagram.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It was dropped without effect.
    Dropped,
    /// It is authentic.
    Genuine {
        /// It carried a segment.
        is_segment: bool,
    },
}

impl PathTable {
    /// Handles one datagram. Returns an error if its sender, the peer of a session, violates the
    /// protocol.
    ///
    /// RR-AUTH-8, RR-PKT-14, RR-PATH-4.
    #[inline(always)]
    pub(crate) fn handle_packet(
        &mut self,
        core: &mut Core,
        info: ReceiveInfo,
        bytes: &mut [u8],
        effects: &mut impl Effects,
    ) -> Result<(), Offence> {
        let Some(length) = bytes.len().checked_sub(PACKET_TAG_BYTES) else {
            self.shared.dropped.malformed += 1;
            return Ok(());
        };
        if length < PACKET_HEADER_BYTES {
            self.shared.dropped.malformed += 1;
            return Ok(());
        }
        let id = u64::from_le_bytes(bytes[8..16].try_into().unwrap_or_default());
        let number = u16::from_le_bytes([bytes[2], bytes[3]]);
        // Usually it belongs to the previous datagram's session, which has a single path.
        let Self { by_slot, shared } = self;
        let mut slot = shared.latest;
        let mut paths = by_slot.get_mut(slot as usize);
        if !paths.as_ref().is_some_and(|paths| paths.are_of(id)) {
            let Some(&found) = shared.by_session.get(&id) else {
                shared.dropped.unknown += 1;
                return Ok(());
            };
            (slot, shared.latest) = (found, found);
            paths = by_slot.get_mut(slot as usize);
        }
        if let Some(path) = paths.and_then(|paths| paths.only_one(id, number)) {
            return path.handle_packet(shared, core, (slot, &info), bytes, effects).map(drop);
        }
        self.handle_on_one_of_several(core, (slot, info), number, bytes, effects)
    }

    /// Handles a packet of one of several paths, or of an unknown path.
    fn handle_on_one_of_several(
        &mut self,
        core: &mut Core,
        (slot, info): (u32, ReceiveInfo),
        number: u16,
        bytes: &mut [u8],
        effects: &mut impl Effects,
    ) -> Result<(), Offence> {
        let now_ns = info.now_ns;
        let entered = debug_assert_some!(self.enter(core, slot), "its id is of a session");
        let Some((paths, session, mut cx)) = entered else { return Ok(()) };
        let known = paths.index_of(number);
        let met = known.or_else(|| paths.meet(session, &mut cx, now_ns, number, bytes));
        let PathCx { shared, .. } = cx;
        let Some((index, path)) = met.and_then(|index| Some((index, paths.get_mut(index)?))) else {
            debug_assert!(met.is_none(), "a path is known, or was just opened");
            shared.dropped.unknown += 1;
            return Ok(());
        };
        let length = bytes.len() - PACKET_TAG_BYTES;
        let handled = path.handle_packet_of_several(shared, core, (slot, &info), bytes, effects);
        let (is_segment, handled) = match handled {
            Ok(Outcome::Dropped) => return Ok(()),
            Ok(Outcome::Genuine { is_segment }) => (is_segment, Ok(())),
            Err(offence) => (false, Err(offence)),
        };
        let is_active = path.is_active();
        core.with_known(slot, |session, cx| {
            let cx = &mut PathCx { cx, shared };
            let is_led = is_segment && paths.note_segments(length, index != PRIMARY);
            if paths.is_doubtful || !is_active {
                paths.judge(session, cx, now_ns);
            }
            if paths.choice.as_ref().is_some_and(|it| it.preference.is_due(now_ns)) {
                paths.compare(session, cx, now_ns);
            }
            let is_on_stream = paths.primary_at() == Some(paths.stream_at);
            if index != PRIMARY && paths.has_streamed && is_on_stream {
                // The peer sends on another path than the stream's, perhaps because that failed.
                paths.ask_stream(cx, now_ns);
            }
            paths.compare_deliveries(session, cx, now_ns, is_led.then_some(number));
        });
        handled
    }

    /// Delivers the events of sent packets, once the content of received ones is delivered.
    #[inline]
    pub(crate) fn drain(&mut self, core: &mut Core, effects: &mut impl Effects) {
        while let Some(slot) = self.shared.to_drain.pop() {
            if let Some((paths, session, cx)) = self.enter(core, slot) {
                paths.drain(session, cx, effects);
            }
        }
    }

    /// Does the same for all sessions, and for deferred work of paths.
    pub(crate) fn drain_all(&mut self, core: &mut Core, effects: &mut impl Effects) {
        self.drain(core, effects);
        for slot in 0..self.slots() {
            if let Some((paths, session, mut cx)) = self.enter(core, slot) {
                for path in paths.all_mut() {
                    path.drain_deferred(session, &mut cx, effects);
                }
                if paths.has_datagrams() {
                    session.segments().flush_if_waiting(cx.cx());
                }
            }
        }
    }
}

impl Paths {
    /// Delivers the events of sent packets.
    #[inline(always)]
    fn drain(&mut self, session: &mut Session, mut cx: PathCx<'_, '_>, effects: &mut impl Effects) {
        let mut had_update = false;
        if let Some(primary) = self.primary.as_deref_mut() {
            had_update |= primary.drain(session, &mut cx, effects);
        }
        for path in &mut self.standby {
            had_update |= path.drain(session, &mut cx, effects);
        }
        if had_update {
            session.segments().flush_if_waiting(cx.cx());
        }
    }
}
