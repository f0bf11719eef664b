//! What acknowledgements mean, once the payload beside them is delivered; and the
//! common case of what comes in, on a path of its own: the next packet, with an acknowledgement of
//! the next packet that was sent, where none is missing and none was lost. It leaves everything
//! as the general path does; whatever is not as common is left to that path, untouched.

use super::loss::PROBE_SLACK_NS;
use super::path::{PATIENCE_PROBES, Path};
use super::received::Wants;
use super::sent::Purpose;
use crate::wire::ack::{Ack, Words};
use crate::wire::packet::{Packet, expand};

/// Acknowledgements that are deferred at the most. To apply the last of them costs as much as to
/// apply any one, and a round trip of eight is sample enough.
const DEFERRED_ACKS_MAX: u8 = 8;

/// A cumulative acknowledgement that was checked, and whose consequences are deferred. It has taken
/// the place of those before it.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeferredAck {
    /// How many it stands for.
    count: u8,
    cumulative: u64,
    delay_ns: Option<u64>,
    /// When it came, and how late the turn was.
    at_ns: u64,
    late_ns: u64,
}

impl Path {
    /// What an acknowledgement without gaps means comes with [`Self::apply_deferred_ack`].
    #[inline]
    pub(super) fn defer_ack(&mut self, at_ns: u64, delay_ns: Option<u64>, cumulative: u64) {
        let count = self.deferred_ack.map_or(0, |before| before.count).saturating_add(1);
        let late_ns = self.late_ns;
        let latest = DeferredAck { count, cumulative, delay_ns, at_ns, late_ns };
        // One that was overtaken says nothing of when the newest packet was answered.
        let newest = self.deferred_ack.filter(|before| cumulative <= before.cumulative);
        self.deferred_ack = Some(newest.map_or(latest, |before| DeferredAck { count, ..before }));
    }

    /// What the last acknowledgements mean for packets sent, window, pace and round trip.
    #[inline]
    pub(crate) fn apply_deferred_ack(&mut self) {
        if let Some(deferred) = self.deferred_ack.take() {
            self.apply_ack(&deferred);
        }
    }

    /// The same once they are many. Sending applies them before, where they change what may go.
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
        // What is outstanding now may have been sent long after that answer came.
        if let Some(oldest) = self.sent.oldest() {
            let sent_at_ns = self.sent.record(oldest).sent_at_ns;
            self.unanswered_since_ns = self.unanswered_since_ns.max(sent_at_ns);
        }
    }

    /// Whether what an acknowledgement means can wait: it has no gaps, somebody waits for what came
    /// beside it, it is not the first, which opens the path, and it ends no doubt about packets
    /// that were taken for lost.
    #[inline]
    pub(super) fn may_defer(&self, ack: &Ack<'_>, packet: &Packet<'_>) -> bool {
        let is_calm = !self.sent.has_lost() && self.loss.probes() == 0;
        ack.is_cumulative() && !packet.payload.is_empty() && self.is_answered() && is_calm
    }

    /// [`Self::handle_packet`] of the next packet of all, whose acknowledgement has no gaps.
    /// `false`: it is another one, or an error, and nothing happened.
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
            self.peer_cumulative = self.peer_cumulative.max(cumulative);
            self.defer_ack(now_ns, ack.delay_ns(), cumulative);
        } else {
            self.apply_deferred_ack();
        }
        self.received.handle_next(now_ns, number, Wants::of(packet), &self.config);
        true
    }

    /// What an acknowledgement of everything below `cumulative` means if that is the oldest packet
    /// and no other. `false`: it is not, and nothing happened.
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
        if self.highest_acked.is_none_or(|highest| number > highest) {
            self.highest_acked = Some(number);
            let long = record.bytes as usize * 2 >= self.mtu.current();
            let raw_ns = now_ns.saturating_sub(record.sent_at_ns);
            if let Some(delay_ns) = delay_ns {
                self.handle_sample(now_ns, raw_ns, delay_ns, long);
            }
        }
        self.loss.handle_progress();
        self.probes_due = 0;
        self.unanswered_since_ns = now_ns;
        // Without one that is older than an acknowledged one nothing can be lost: this was the
        // oldest.
        self.lost_at_ns = None;
        if self.sent.count() > 0 && self.highest_acked != Some(number) {
            self.find_losses(now_ns, false, record.sent_at_ns);
        }
        self.acked_sent_ns = self.acked_sent_ns.max(record.sent_at_ns);
        self.sent.advance_floor();
        let highest = self.highest_acked.unwrap_or(number);
        if self.congestion.handle_ack_end(highest, self.sent.next(), &self.rtt) {
            self.loss.handle_round();
        }
        self.update_pace(now_ns);
        true
    }

    /// A time before which no turn is due, found with less work than [`Self::poll_timeout`].
    #[inline]
    pub(crate) fn rests_until_ns(&self) -> u64 {
        if self.paced_until_ns.is_some() || self.lost_at_ns.is_some() || self.loss.probes() > 0 {
            return 0;
        }
        // No probe comes sooner than this, whatever the round trip.
        let least_ns = PROBE_SLACK_NS;
        let lost_ns = match self.sent.count() {
            0 => u64::MAX,
            _ => {
                let patience_ns = self.unanswered_since_ns + PATIENCE_PROBES * least_ns;
                patience_ns.min(self.asked_at_ns + least_ns)
            }
        };
        lost_ns.min(self.received.due_ns().unwrap_or(u64::MAX))
    }
}
