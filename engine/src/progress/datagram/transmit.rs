//! Transmission on the paths of a session.

use std::io::ErrorKind;

use super::DATAGRAMS_PER_FLUSH;
use crate::driver::AnyDriver;
use crate::driver::traits::TxFlags;
use crate::progress::engine::{Engine, EngineState};
use crate::proto::paths::{Index, PRIMARY, Paths, Transmit};

impl Engine {
    /// Sends the segment staged last for a session on its path, if nothing else waits and the path
    /// is in the common state: [`Self::transmit`] with fewer checks. Returns `false`, without
    /// effect, if not.
    pub(in crate::progress) fn transmit_lone(&mut self, session: u32) -> bool {
        let EngineState { core, paths, controls, rings, datagrams, clock, now_ns, .. } =
            &mut *self.state;
        if controls.of(session).has_unsent() || datagrams.is_blocked {
            return false;
        }
        if let Some(ring) = paths.ring_of(session) {
            return rings.write_lone((session, ring), core, controls, &mut self.driver);
        }
        let Some(packet) = paths.lone_packet(core, session) else {
            return !paths.of(session).is_some_and(Paths::has_datagrams)
                && self.send_lone_by_stream(session);
        };
        let Ok(room) = self.driver.datagram_room() else { return false };
        *now_ns = clock.now_ns();
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

    /// Sends a session's segments, if `index` is its primary path, and that path's own packets, as
    /// far as both permit; have the driver flush its datagrams next. `is_last`: no other session
    /// follows, so that is done here, before acknowledgements are applied. Returns `true` if any
    /// was sent.
    pub(in crate::progress) fn transmit(
        &mut self,
        session: u32,
        index: Index,
        is_last: bool,
    ) -> bool {
        let (mut happened, mut is_drained) = (false, false);
        let EngineState { core, paths, controls, rings, .. } = &mut *self.state;
        if index == PRIMARY
            && let Some(ring) = paths.ring_of(session)
        {
            happened = rings.write_segments((session, ring), core, controls, &mut self.driver);
        }
        if !self.state.paths.is_served(session, index) {
            return happened;
        }
        // An RTT sample is as accurate as this time.
        self.state.now_ns = self.state.clock.now_ns();
        for sent in 0..=DATAGRAMS_PER_FLUSH {
            let EngineState { core, paths, datagrams, now_ns, .. } = &mut *self.state;
            if sent == DATAGRAMS_PER_FLUSH {
                core.with(session, |_, cx| cx.flush_after_others());
                break;
            }
            if datagrams.is_blocked {
                break;
            }
            let room = match self.driver.datagram_room() {
                Ok(room) => room,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    datagrams.is_blocked = true;
                    break;
                }
                Err(error) => {
                    tracing::warn!("cannot send datagrams: {error}; messages use TCP");
                    paths.give_up_path(core, session, index);
                    return false;
                }
            };
            let datagram = paths.poll_transmit(core, (session, index), *now_ns, room);
            let Some(datagram) = datagram else { break };
            send_datagram(&mut self.driver, &datagram);
            happened = true;
            is_drained |= datagram.is_drained;
            // Usually that was all: other packets went with it, or can wait a turn.
            if is_drained && !datagram.is_probing {
                break;
            }
        }
        // Acknowledgements can be applied while it is in flight.
        if happened && is_last {
            self.driver.flush_datagrams();
        }
        let EngineState { core, paths, completions, datagrams, controls, .. } = &mut *self.state;
        let is_blocked = datagrams.is_blocked;
        paths.end_transmit(core, (session, index), is_blocked, completions);
        if is_blocked && !controls.of(session).set_awaits_room(true) {
            // Its timer may have expired, and it can send nothing until there is space.
            datagrams.blocked.push(session);
        }
        happened
    }
}

/// Passes a datagram to the driver.
#[inline(always)]
fn send_datagram(driver: &mut AnyDriver, datagram: &Transmit) {
    let Transmit { to, rail, bytes, takes_trains, is_summed, .. } = *datagram;
    driver.send_datagram(to, rail, bytes, TxFlags { no_gso: !takes_trains, is_summed });
}
