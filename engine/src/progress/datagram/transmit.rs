//! Transmission on the paths of a session.

use std::io::ErrorKind;

use super::DATAGRAMS_PER_FLUSH;
use crate::driver::AnyDriver;
use crate::driver::traits::TxFlags;
use crate::progress::engine::{Engine, EngineState};
use crate::proto::paths::{Index, PRIMARY, Transmit};

impl Engine {
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
pub(in crate::progress) fn send_datagram(driver: &mut AnyDriver, datagram: &Transmit) {
    let Transmit { to, rail, bytes, takes_trains, is_summed, .. } = *datagram;
    driver.send_datagram(to, rail, bytes, TxFlags { no_gso: !takes_trains, is_summed });
}
