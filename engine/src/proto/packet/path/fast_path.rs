//! Deferred acknowledgement processing, after the payload in the same packet is delivered; and the
//! receive fast path for the common case: the next packet, with an acknowledgement of the next sent
//! packet, where none is missing and none was lost. It has the same effects as the general path,
//! and leaves all other packets to that, unchanged.

use super::super::received::Wants;
use super::super::sent::Purpose;
use super::Path;
use crate::wire::ack::{Ack, Words};
use crate::wire::packet::{Packet, expand};

/// Maximum number of deferred acknowledgements. Applying the last of them costs as much as applying
/// any one, and one RTT sample out of eight is enough.
const DEFERRED_ACKS_MAX: u8 = 8;

/// A cumulative acknowledgement that was validated, and whose effects are deferred. It replaces
/// earlier ones.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeferredAck {
    /// Number of acknowledgements that it replaces, itself included.
    count: u8,
    cumulative: u64,
    delay_ns: Option<u64>,
    /// When it arrived, and how late the turn was.
    at_ns: u64,
    late_ns: u64,
}

impl Path {
    /// Defers an acknowledgement without gaps to [`Self::apply_deferred_ack`].
    #[inline]
    pub(super) fn defer_ack(&mut self, at_ns: u64, delay_ns: Option<u64>, cumulative: u64) {
        let count = self.deferred_ack.map_or(0, |before| before.count).saturating_add(1);
        let late_ns = self.late_ns;
        let latest = DeferredAck { count, cumulative, delay_ns, at_ns, late_ns };
        // A reordered one is no evidence of when the newest packet was answered.
        let newest = self.deferred_ack.filter(|before| cumulative <= before.cumulative);
        self.deferred_ack = Some(newest.map_or(latest, |before| DeferredAck { count, ..before }));
    }

    /// Applies deferred acknowledgements to sent packets, window, pacing and round trip.
    #[inline]
    pub(crate) fn apply_deferred_ack(&mut self) {
        if let Some(deferred) = self.deferred_ack.take() {
            self.apply_ack(&deferred);
        }
    }

    /// Applies them once they are many. Sending applies them earlier, where they affect it.
    #[inline]
    pub(super) fn apply_deferred_ack_if_due(&mut self) {
        if self.is_deferred_ack_due() {
            self.apply_deferred_ack();
        }
    }

    #[inline]
    pub(super) fn is_deferred_ack_due(&self) -> bool {
        self.deferred_ack.is_some_and(|it| it.count >= DEFERRED_ACKS_MAX)
    }

    fn apply_ack(&mut self, deferred: &DeferredAck) {
        let late_ns = std::mem::replace(&mut self.late_ns, deferred.late_ns);
        let DeferredAck { at_ns, delay_ns, cumulative, .. } = *deferred;
        if !self.handle_next_ack(at_ns, delay_ns, cumulative) {
            self.handle_ack(at_ns, Words::none(), delay_ns, cumulative);
        }
        self.late_ns = late_ns;
        // Packets outstanding now may have been sent long after that acknowledgement arrived.
        if let Some(oldest) = self.sent.oldest() {
            self.timer.note_oldest(self.sent.record(oldest).sent_at_ns);
        }
    }

    /// Returns whether an acknowledgement may be deferred: it has no gaps, its packet carries
    /// payload that is waited for, it is not the first, which opens the path, and no packet is
    /// declared lost.
    #[inline]
    pub(super) fn may_defer(&self, ack: &Ack<'_>, packet: &Packet<'_>) -> bool {
        let is_calm = !self.sent.has_lost() && self.loss.probes() == 0;
        ack.is_cumulative() && !packet.payload.is_empty() && self.is_answered() && is_calm
    }

    /// Handles the next packet in order with an acknowledgement without gaps, as
    /// [`Self::handle_packet`] does. Returns `false`, without effect, if it is another one, or an
    /// error.
    #[inline(always)]
    pub(super) fn handle_next(&mut self, now_ns: u64, number: u64, packet: &Packet<'_>) -> bool {
        if !self.received.is_next(number) || !shortcut!("the next packet") {
            return false;
        }
        if packet.floor.is_some_and(|low| expand(low, number) > number) {
            return false;
        }
        if let Some(ack) = packet.ack {
            let cumulative = expand(ack.cumulative(), self.sent.next());
            if !self.may_defer(&ack, packet) || cumulative > self.sent.next() {
                return false;
            }
            self.acks.note_cumulative(cumulative);
            self.defer_ack(now_ns, ack.delay_ns(), cumulative);
        } else {
            self.apply_deferred_ack();
        }
        self.received.handle_next(now_ns, number, Wants::of(packet), &self.config);
        true
    }

    /// Handles an acknowledgement of everything below `cumulative` if that newly acknowledges
    /// exactly the oldest packet. Returns `false`, without effect, if not.
    #[inline]
    pub(super) fn handle_next_ack(
        &mut self,
        now_ns: u64,
        delay_ns: Option<u64>,
        cumulative: u64,
    ) -> bool {
        let number = self.sent.floor();
        if cumulative != number + 1
            || !self.sent.is_in_order()
            || !shortcut!("the next acknowledgement")
        {
            return false;
        }
        if self.sent.record(number).purpose != Purpose::Payload {
            return false;
        }
        let record = self.sent.acknowledge(number);
        self.handle_acked(now_ns, number, &record);
        if self.acks.note_number(number) {
            let long = record.bytes as usize * 2 >= self.mtu.current();
            let raw_ns = now_ns.saturating_sub(record.sent_at_ns);
            if let Some(delay_ns) = delay_ns {
                self.handle_sample(now_ns, raw_ns, delay_ns, long);
            }
        }
        // A packet is lost only if a later one is acknowledged: this was the oldest.
        self.loss.handle_progress();
        self.timer.handle_answer(now_ns);
        if self.sent.count() > 0 && self.acks.highest() != Some(number) {
            self.find_losses(now_ns, false, record.sent_at_ns);
        }
        self.acks.note_sent_at(record.sent_at_ns);
        self.sent.advance_floor();
        let highest = self.acks.highest().unwrap_or(number);
        if self.congestion.handle_ack_end(highest, self.sent.next(), &self.rtt) {
            self.loss.handle_round();
        }
        self.update_pace(now_ns);
        true
    }

    /// Returns a time before which no turn is due, at less cost than [`Self::poll_timeout`].
    #[inline]
    pub(crate) fn rests_until_ns(&self) -> u64 {
        let is_timed = self.pacer.holds_until_ns().is_some() || self.timer.expects_loss();
        if is_timed || self.loss.probes() > 0 {
            return 0;
        }
        let lost_ns = match self.sent.count() {
            0 => u64::MAX,
            _ => self.timer.rests_until_ns(),
        };
        lost_ns.min(self.received.due_ns().unwrap_or(u64::MAX))
    }
}
