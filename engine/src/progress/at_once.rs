//! The fast path of sending: a frame that is sent as soon as it is posted, alone in its segment, on
//! the transport of its session.

use super::datagram::transmit::send_datagram;
use super::engine::{Engine, EngineState};
use super::traits::{RingName, RingSegment};
use crate::proto::hint::Hint;
use crate::proto::paths::{PRIMARY, Paths};
use crate::proto::session::segments::PostedFrame;

/// When a posted frame goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Departure {
    /// At once, and alone in its segment if that is possible.
    Alone,
    /// At once, behind what the driver has not taken yet.
    Now,
    /// In this or the next turn, with others.
    WithOthers,
}

impl EngineState {
    /// Returns when a frame goes that is posted now. The first message of a turn does not wait for
    /// the next turn; others coalesce. `more`: its poster has others, to be sent with it.
    #[inline(always)]
    pub(super) fn departure(&mut self, session: u32, hint: Hint, more: bool) -> Departure {
        let control = self.controls.of(session);
        let is_now = match hint {
            Hint::None | Hint::Priority => !more && control.is_unused_in(self.polls),
            Hint::Latency => true,
            Hint::Bulk => false,
        };
        if !is_now {
            return Departure::WithOthers;
        }
        self.datagrams.expect_answer();
        match control.has_unsent() || self.datagrams.waits_for_room() {
            true => Departure::Now,
            false => Departure::Alone,
        }
    }
}

impl Engine {
    /// Sends a frame alone in its segment, if nothing is ahead of it, and its transport is in the
    /// common state. Returns `false`, without effect, if not.
    #[inline(always)]
    pub(super) fn send_at_once<P: PostedFrame>(&mut self, session: u32, frame: &P) -> bool {
        let sent = match self.state.paths.ring_of(session) {
            Some(ring) => self.write_at_once(session, ring, frame),
            None => self.transmit_at_once(session, frame),
        };
        if sent && frame.hint() != Hint::Latency {
            self.state.is_first_of_turn(session);
        }
        sent
    }

    /// Writes a frame into the ring of its session.
    #[inline(always)]
    fn write_at_once<P: PostedFrame>(&mut self, session: u32, ring: RingName, frame: &P) -> bool {
        let EngineState { core, controls, rings, .. } = &mut *self.state;
        let Some(alone) = core.enter(session).and_then(|(it, cx)| it.alone(cx, frame)) else {
            return false;
        };
        let driver = &mut self.driver;
        let sent = alone.send_by_ring(|frames, bytes| {
            driver.write_segment(ring, RingSegment { frames, bytes, is_last: true })
        });
        match sent {
            // Datagrams that were queued before go, too.
            Ok(()) => self.driver.flush_datagrams(),
            Err(token) => rings.refuse(session, token, core, controls),
        }
        true
    }

    /// Sends a frame in a datagram on the primary path of its session.
    #[inline(always)]
    fn transmit_at_once<P: PostedFrame>(&mut self, session: u32, frame: &P) -> bool {
        let EngineState { core, paths, clock, now_ns, .. } = &mut *self.state;
        let Some(packet) = paths.lone_packet(core, session, frame) else {
            let has_datagrams = paths.of(session).is_some_and(Paths::has_datagrams);
            return !has_datagrams && self.stream_at_once(session, frame);
        };
        let Ok(room) = self.driver.datagram_room() else { return false };
        *now_ns = clock.now_ns();
        if !packet.may_go(*now_ns) {
            return false;
        }
        let Some(datagram) = packet.write(*now_ns, room) else { return false };
        send_datagram(&mut self.driver, &datagram);
        self.driver.flush_datagrams();
        // The last acknowledgement is applied while the datagram is in flight.
        let EngineState { core, paths, completions, .. } = &mut *self.state;
        if !paths.end_transmit(core, (session, PRIMARY), false, completions) {
            self.flush_what_no_path_takes(session);
        }
        true
    }

    /// Sends a frame on the control connection of its session, which is its only transport.
    #[inline]
    fn stream_at_once<P: PostedFrame>(&mut self, session: u32, frame: &P) -> bool {
        let EngineState { core, controls, .. } = &mut *self.state;
        let Some(lane) = controls.of(session).writable() else { return false };
        let Some(mut alone) = core.enter(session).and_then(|(it, cx)| it.alone(cx, frame)) else {
            return false;
        };
        let control = controls.of(session);
        let sent = control.send_segment(&mut self.driver, lane, alone.take_for_stream());
        let is_whole = !control.has_unsent();
        controls.await_something(session);
        if sent > 0 {
            core.with(session, |it, _| it.control_lane_mut().expect_answer());
        }
        if !is_whole {
            self.send_rest(session);
        }
        true
    }
}
