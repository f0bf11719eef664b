//! The session of an engine with itself: messages between its own endpoints.
//!
//! It is a session like every other (credit, unexpected messages, levels, order), established
//! from the start, whose control lane is memory: what it stages is handed to its own receiving
//! side. A rendezvous message is copied once, from the send's memory to the receive's.

use super::core::{Core, ENVELOPES_MIN};
use super::effects::{Arrival, Effects, Ended};
use super::failure::PeerFailure;
use super::operation::State;
use super::session::Limits;
use super::table::Id;

impl Core {
    /// Whether a session is the engine's own.
    #[inline]
    pub(crate) fn is_loopback(&self, session: u32) -> bool {
        self.sessions.at(session as usize).is_some_and(|known| known.engine == self.engine)
    }

    /// Makes a new session with this engine's id usable.
    pub(super) fn establish_loopback(&mut self, slot: u32) {
        let offer = self.offer(1);
        // Without credit for the longest eager message nothing could ever arrive: there is no
        // lane to pull by, and the windows of others may have taken everything.
        let limits = Limits {
            envelope_limit: offer.envelope_limit.max(ENVELOPES_MIN),
            byte_limit: offer.byte_limit.max(self.config.eager_limit),
            ..offer
        };
        let Some(session) = self.sessions.at_mut(slot as usize) else { return };
        session.connection.loop_back();
        session.establish(limits, limits);
        self.reserve(limits);
    }

    /// Hands what the loopback session has staged to its receiving side. `true`: there was some.
    pub(crate) fn turn_around(
        &mut self,
        slot: u32,
        now_ns: u64,
        effects: &mut impl Effects,
    ) -> bool {
        let mut happened = false;
        while let Some(session) = self.sessions.at_mut(slot as usize) {
            session.prepare(&mut self.staging);
            let Some((staging, sealed)) = session.outbox.take_sealed() else { break };
            if !session.waiting.is_empty() {
                self.unblocked.push(slot);
            }
            happened = true;
            let handled = self.handle_bytes(slot, &staging[sealed], now_ns, effects);
            self.staging.give(staging);
            if let Err(error) = handled {
                debug_assert!(false, "this engine does not understand itself: {error}");
                let failure = PeerFailure::Protocol(error.to_string().into());
                self.fail_session(slot, failure, effects);
                break;
            }
        }
        happened
    }

    /// The whole rest of a rendezvous message of this engine is at hand. `false`: its send is
    /// over, because the peer was removed meanwhile.
    pub(super) fn copy_rest(
        &mut self,
        id: Id,
        send_operation: u64,
        arrival: Arrival,
        effects: &mut impl Effects,
    ) -> bool {
        let send = Id::from_u64(send_operation);
        let is_serving = self
            .operations
            .get(send)
            .is_some_and(|operation| matches!(operation.state, State::Serving(_)));
        if !is_serving {
            let name = self.name_of(arrival.peer.index() as u32);
            self.operations.remove(id);
            effects.complete(id, Ended::Failed(PeerFailure::Removed, name));
            return false;
        }
        let Some(operation) = self.operations.get_mut(id) else { return false };
        let State::Pulling(pulling) = &mut operation.state else { return false };
        effects.copy(send, id, pulling.arrived, pulling.wanted - pulling.arrived);
        pulling.granted = pulling.wanted;
        pulling.arrived = pulling.wanted;
        true
    }
}
