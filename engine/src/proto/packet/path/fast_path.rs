//! Deferred acknowledgement processing, after the payload in the same packet is delivered; and fast
//! paths for the common cases: the next packet, where none is missing, and an acknowledgement of
//! the oldest sent packets, where none was lost. They have the same effects as the general path,
//! and leave all others to that, unchanged.

use std::collections::VecDeque;

use super::super::numbers::{WORD, numbers};
use super::super::received::Wants;
use super::{PacketEvent, Path};
use crate::wire::ack::{Ack, Words};
use crate::wire::packet::{Packet, expand};

/// Maximum number of deferred acknowledgements. Applying the last of them costs as much as applying
/// any one, and one RTT sample out of eight is enough.
const DEFERRED_ACKS_MAX: u8 = 8;

/// A cumulative acknowledgement that was validated, and whose effects are deferred. It replaces
/// earlier ones.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DeferredAck {
    /// Number of acknowledgements that it replaces, itself included; 0: none is deferred.
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
        let (deferred, late_ns) = (&mut self.deferred_ack, self.late_ns);
        let count = deferred.count.saturating_add(1);
        // A reordered one is no evidence of when the newest packet was answered.
        if count == 1 || cumulative > deferred.cumulative {
            *deferred = DeferredAck { count, cumulative, delay_ns, at_ns, late_ns };
        }
        deferred.count = count;
    }

    /// Applies deferred acknowledgements to sent packets, window, pacing and round trip.
    #[inline]
    pub(crate) fn apply_deferred_ack(&mut self) {
        if self.deferred_ack.count > 0 {
            self.apply_ack(note_acked);
        }
    }

    /// Applies them once they are many. Sending applies them earlier, where they affect it.
    /// `handle_acked` is called with the tokens of acknowledged packets that no event precedes.
    #[inline]
    pub(crate) fn apply_deferred_ack_if_due(&mut self, mut handle_acked: impl FnMut(u64)) {
        if self.is_deferred_ack_due() {
            self.apply_ack(|events, token| match events.is_empty() {
                true => handle_acked(token),
                false => note_acked(events, token),
            });
        }
    }

    #[inline]
    pub(super) fn is_deferred_ack_due(&self) -> bool {
        self.deferred_ack.count >= DEFERRED_ACKS_MAX
    }

    fn apply_ack(&mut self, handle_acked: impl FnMut(&mut VecDeque<PacketEvent>, u64)) {
        let DeferredAck { at_ns, delay_ns, cumulative, late_ns, .. } = self.deferred_ack;
        self.deferred_ack.count = 0;
        let late_ns = std::mem::replace(&mut self.late_ns, late_ns);
        if !self.handle_plain_ack(at_ns, delay_ns, cumulative, handle_acked) {
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
    /// [`Self::handle_any`] does. Returns `false`, without effect, if it is another one, or an
    /// error.
    #[inline(always)]
    pub(crate) fn handle_next(&mut self, now_ns: u64, number: u64, packet: &Packet<'_>) -> bool {
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

    /// Handles an acknowledgement of everything below `cumulative`, and of more than before, where
    /// no packet is remembered as lost. Passes the tokens of newly acknowledged packets to
    /// `handle_acked`. Returns `false`, without effect, if it is another one.
    #[inline]
    fn handle_plain_ack(
        &mut self,
        now_ns: u64,
        delay_ns: Option<u64>,
        cumulative: u64,
        mut handle_acked: impl FnMut(&mut VecDeque<PacketEvent>, u64),
    ) -> bool {
        let floor = self.sent.floor();
        if cumulative <= floor
            || self.sent.has_lost()
            || self.acks.highest().is_some_and(|highest| highest >= cumulative)
            || !shortcut!("the next acknowledgement")
        {
            return false;
        }
        let mut highest = None;
        for word in floor / WORD..=(cumulative - 1) / WORD {
            let above = (word * WORD + WORD).saturating_sub(cumulative);
            for number in numbers(word, self.sent.take_word(word, u64::MAX >> above)) {
                self.handle_acked(now_ns, number, &mut handle_acked);
                highest = Some(number);
            }
        }
        match highest {
            // A packet is lost only if a later one is acknowledged: these were the oldest.
            Some(number) => {
                let sent_at_ns = self.handle_answer(now_ns, delay_ns, number);
                self.end_ack(now_ns, number, sent_at_ns);
            }
            None => self.sent.advance_floor(),
        }
        true
    }

    /// Returns a time before which no turn is due, at less cost than [`Self::poll_timeout`].
    #[inline(always)]
    pub(crate) fn rests_until_ns(&self) -> u64 {
        let is_timed = self.pacer.holds_until_ns().is_some() || self.timer.expects_loss();
        if is_timed || self.loss.probes() > 0 {
            return 0;
        }
        let lost_ns = match self.sent.count() {
            0 => u64::MAX,
            _ => self.timer.rests_until_ns(),
        };
        lost_ns.min(self.received.due_ns())
    }
}

/// Notes the token of an acknowledged packet as an event.
#[inline]
pub(super) fn note_acked(events: &mut VecDeque<PacketEvent>, token: u64) {
    events.push_back(PacketEvent::Acked { token });
}
