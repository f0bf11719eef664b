//! The loss timer of a path: when a packet counts as lost by time, and when a probe is due.

use super::loss::{Loss, PROBE_SLACK_NS};
use super::rtt::Rtt;

/// Probe timeouts without any acknowledgement that make a probe due, however recent the last
/// packet.
const PATIENCE_PROBES: u64 = 4;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct LossTimer {
    /// When the oldest possibly lost packet is lost.
    lost_at_ns: Option<u64>,
    /// When the last ack-eliciting packet was sent.
    asked_at_ns: u64,
    /// That packet requested an immediate acknowledgement.
    asked_at_once: bool,
    /// Since when packets are outstanding and none was acknowledged.
    unanswered_since_ns: u64,
    /// When the last probe timeout fired.
    probed_at_ns: u64,
    /// Probes due.
    probes_due: u32,
}

impl LossTimer {
    /// Handles an ack-eliciting packet that was sent. `is_only`: no other one is outstanding;
    /// `at_once`: it requests an immediate acknowledgement.
    #[inline]
    pub(super) fn handle_sent(&mut self, now_ns: u64, is_only: bool, at_once: bool) {
        if is_only {
            self.unanswered_since_ns = now_ns;
        }
        self.asked_at_ns = now_ns;
        self.asked_at_once = at_once;
    }

    /// Handles an acknowledgement of an outstanding packet.
    #[inline]
    pub(super) fn handle_answer(&mut self, now_ns: u64) {
        self.probes_due = 0;
        self.unanswered_since_ns = now_ns;
        self.lost_at_ns = None;
    }

    /// Notes when the oldest outstanding packet was sent: nothing was unanswered before.
    #[inline]
    pub(super) fn note_oldest(&mut self, sent_at_ns: u64) {
        self.unanswered_since_ns = self.unanswered_since_ns.max(sent_at_ns);
    }

    /// Sets when the oldest possibly lost packet is lost; `None`: none is.
    #[inline]
    pub(super) fn expect_loss(&mut self, at_ns: Option<u64>) {
        self.lost_at_ns = at_ns;
    }

    /// Returns whether a packet may be lost: the timer is for that, and not for a probe.
    #[inline]
    pub(super) fn expects_loss(&self) -> bool {
        self.lost_at_ns.is_some()
    }

    /// Handles a probe timeout, after which so many probes are due.
    pub(super) fn handle_probe_timeout(&mut self, now_ns: u64, probes_due: u32) {
        (self.probed_at_ns, self.probes_due) = (now_ns, probes_due);
    }

    /// Makes a probe due.
    pub(super) fn request_probe(&mut self) {
        self.probes_due = self.probes_due.max(1);
    }

    /// Takes a probe that is due. Returns `false` if none is.
    #[inline]
    pub(super) fn take_probe(&mut self) -> bool {
        let is_due = self.probes_due > 0;
        self.probes_due -= u32::from(is_due);
        is_due
    }

    /// Returns the number of probes due.
    #[inline]
    pub(super) fn probes_due(&self) -> u32 {
        self.probes_due
    }

    /// Returns when a packet counts as lost, or a probe is due, given that any is outstanding.
    ///
    /// RR-PKT-9.
    pub(super) fn due_ns(&self, loss: &Loss, rtt: &Rtt, ack_delay_ns: u64) -> u64 {
        self.lost_at_ns.unwrap_or_else(|| {
            let is_slow = loss.probes() == 0 && !self.asked_at_once;
            let after_ns = loss.probe_after_ns(rtt, if is_slow { ack_delay_ns } else { 0 });
            if loss.probes() > 0 {
                return self.probed_at_ns + after_ns;
            }
            self.probe_at_ns(after_ns)
        })
    }

    /// Returns a time before which no probe is due, whatever the round trip, where none was sent.
    #[inline]
    pub(super) fn rests_until_ns(&self) -> u64 {
        self.probe_at_ns(PROBE_SLACK_NS)
    }

    /// Returns when a probe is due that is due `after_ns` after the last packet. Continuous sending
    /// on a dead path must not defer it.
    #[inline]
    fn probe_at_ns(&self, after_ns: u64) -> u64 {
        let patience_ns = PATIENCE_PROBES * after_ns;
        (self.asked_at_ns + after_ns).min(self.unanswered_since_ns + patience_ns)
    }

    /// Returns when the last probe timeout fired.
    pub(super) fn probed_at_ns(&self) -> u64 {
        self.probed_at_ns
    }

    /// Returns since when outstanding packets are unacknowledged, while there are any.
    pub(super) fn unanswered_since_ns(&self) -> u64 {
        self.unanswered_since_ns
    }

    /// Returns when the last ack-eliciting packet was sent.
    pub(super) fn asked_at_ns(&self) -> u64 {
        self.asked_at_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RR-PKT-9
    #[test]
    fn recent_packets_defer_the_probe_and_not_forever() {
        let (loss, rtt) = (Loss::new(), Rtt::new(1_000_000));
        let after_ns = loss.probe_after_ns(&rtt, 0);
        let mut timer = LossTimer::default();
        timer.handle_sent(10, true, true);
        assert_eq!(timer.due_ns(&loss, &rtt, 5), 10 + after_ns, "it asks for an answer at once");
        for packet in 1..20 {
            timer.handle_sent(10 + packet * after_ns, false, false);
        }
        assert_eq!(timer.due_ns(&loss, &rtt, 0), 10 + PATIENCE_PROBES * after_ns);
        assert!(timer.rests_until_ns() <= timer.due_ns(&loss, &rtt, 0));
        timer.expect_loss(Some(3));
        assert_eq!(timer.due_ns(&loss, &rtt, 0), 3);
        timer.request_probe();
        timer.handle_answer(100);
        assert!(!timer.expects_loss() && !timer.take_probe());
    }
}
