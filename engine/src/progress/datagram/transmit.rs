//! What goes out by the path of a session.

use std::io::ErrorKind;

use super::DATAGRAMS_PER_FLUSH;
use super::lane::Contents;
use crate::progress::engine::Engine;
use crate::wire::packet::PACKET_TAG_BYTES;

impl Engine {
    /// Whether something waits that fits no datagram of the path.
    pub(in crate::progress) fn is_waiting_too_long_for_path(&self, session: u32) -> bool {
        // Mostly nothing waits.
        if !self.state.core.is_waiting(session) {
            return false;
        }
        let control = self.state.controls.get(session as usize);
        let lane = control.and_then(|control| control.datagram.as_deref());
        lane.is_some_and(|lane| {
            self.state.core.waiting_bytes(session) > lane.path.content_bytes_max()
        })
    }

    /// Sends what was just staged for a session by its path, if nothing else waits and nothing is
    /// uncommon there: [`Self::transmit`] with fewer questions. `false`: nothing happened.
    pub(in crate::progress) fn transmit_lone(&mut self, session: u32) -> bool {
        let state = &mut *self.state;
        let Some(control) = state.controls.get_mut(session as usize) else { return false };
        if !control.unsent.is_empty() || state.datagrams.is_blocked {
            return false;
        }
        let Some(lane) = control.datagram.as_deref_mut() else { return false };
        if !lane.is_open() || lane.is_off || lane.candidate.is_some() {
            return false;
        }
        let Some(mut content) = state.core.lone_content(session) else { return false };
        let Ok(room) = self.driver.datagram_room() else { return false };
        state.now_ns = state.clock.now_ns();
        let packet = lane.path.transmit_lone(state.now_ns, &mut content, room);
        let Some((length, number)) = packet else { return false };
        lane.keys.send.seal_packet(room, length, number);
        let length = length + PACKET_TAG_BYTES;
        self.driver.send_datagram(lane.remote, lane.rail, length, !lane.takes_trains);
        self.driver.flush_datagrams();
        // What the last acknowledgement means is found out while it is on its way.
        let is_calm = lane.tell(&mut state.core, session, &mut state.completions);
        lane.has_news = false;
        lane.set_timer(session, &mut state.datagrams.timers);
        if !is_calm {
            self.flush_what_no_path_takes(session);
        }
        true
    }

    /// Sends what a session has for its peer and what its path wants, as far as both let it; have
    /// the driver flush its datagrams next. `is_last`: no other session follows, so that is done
    /// here, before acknowledgements are applied. `true`: something went.
    pub(in crate::progress) fn transmit(&mut self, session: u32, is_last: bool) -> bool {
        let state = &mut *self.state;
        let Some(control) = state.controls.get_mut(session as usize) else { return false };
        let Some(lane) = control.datagram.as_deref_mut().filter(|lane| !lane.is_off) else {
            return false;
        };
        // A sample of the round trip is as true as this time.
        state.now_ns = state.clock.now_ns();
        let mut happened = false;
        // A question to a new address is the first of what goes.
        let mut asks = lane.candidate.is_some_and(|candidate| candidate.question.is_none());
        let is_open = lane.is_open();
        let mut contents = Contents { core: &mut state.core, session, is_open, is_drained: false };
        for sent in 0..=DATAGRAMS_PER_FLUSH {
            if sent == DATAGRAMS_PER_FLUSH {
                contents.core.mark_dirty_last(session);
                break;
            }
            if state.datagrams.is_blocked {
                break;
            }
            let room = match self.driver.datagram_room() {
                Ok(room) => room,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    state.datagrams.is_blocked = true;
                    break;
                }
                Err(error) => {
                    tracing::warn!("cannot send datagrams: {error}; messages go by TCP");
                    lane.give_up(&mut state.core, session);
                    return false;
                }
            };
            let packet = if asks {
                Some(lane.path.poll_question(state.now_ns, room))
            } else {
                lane.path.poll_transmit(state.now_ns, &mut contents, room)
            };
            let Some((length, number)) = packet else { break };
            lane.keys.send.seal_packet(room, length, number);
            let to = match &mut lane.candidate {
                Some(candidate) if std::mem::take(&mut asks) => {
                    candidate.question = Some(number);
                    candidate.address
                }
                _ => lane.remote,
            };
            let length = length + PACKET_TAG_BYTES;
            self.driver.send_datagram(to, lane.rail, length, !lane.takes_trains);
            happened = true;
            // Usually that was all: what is wanted otherwise went with it, or can wait a turn.
            if contents.is_drained && !lane.path.is_probing() {
                break;
            }
        }
        // Acknowledgements can be applied while it is on its way.
        if happened && is_last {
            self.driver.flush_datagrams();
        }
        // A window may have made room by giving up what held it.
        lane.tell(&mut state.core, session, &mut state.completions);
        lane.has_news = false;
        if !state.datagrams.is_blocked {
            lane.set_timer(session, &mut state.datagrams.timers);
        } else if !std::mem::replace(&mut control.awaits_room, true) {
            // Its time may have come, and it can do nothing until there is room.
            state.datagrams.blocked.push(session);
        }
        happened
    }
}
