//! Detection of a segment on a control lane whose rest does not arrive.
//!
//! A corrupted length, on a lane without checksums, makes this side wait for bytes that the peer
//! never sends, while both kernels find no error. A peer that computes may leave a segment
//! incomplete as well. So a segment is requested from the peer: if data arrives, and the segment is
//! still incomplete a peer timeout later, the stream is corrupted, unless the peer was stopped
//! after it had sent that data; a second request decides that. With datagrams the answer may arrive
//! in one; there the control lane is replaced if there are other paths.

use std::time::Duration;

use super::super::late::AtRest;
use super::{Decision, Facts, LaneMonitor, lost};
use crate::proto::failure::PeerFailure;
use crate::proto::paths::Paths;

/// Maximum time between two checks that counts, in nanoseconds: an owner that computes reads
/// nothing.
const LOOK_NS_MAX: u64 = 200_000_000;

/// Requests, each with an answer and a peer timeout without the rest after it, that show that the
/// stream is corrupted. The answer to the first may have been under way before the peer was
/// stopped.
const REQUESTS: u8 = 2;

/// The required action.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Wait,
    /// Request a segment from the peer.
    Ask,
    /// The rest has been missing for half of the limit.
    Overdue,
    /// The peer answered each request, and the rest did not arrive.
    GiveUp,
}

/// An incomplete segment; see the module.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Unfinished {
    looked_ns: u64,
    /// Time that it is incomplete, not counting pauses of this side.
    waited_ns: u64,
    /// When a segment was last requested.
    asked_ns: Option<u64>,
    /// Earlier requests, each of which was answered.
    earlier: u8,
    /// [`Self::waited_ns`] when bytes last arrived, or another answer first did, after that.
    answered_ns: Option<u64>,
}

impl AtRest for Unfinished {
    const AT_REST: &'static Self =
        &Self { looked_ns: 0, waited_ns: 0, asked_ns: None, earlier: 0, answered_ns: None };
}

impl Unfinished {
    /// Returns whether a segment was requested.
    pub(super) fn was_asked(&self) -> bool {
        self.asked_ns.is_some()
    }

    /// Notes more bytes of the segment, after the request.
    pub(super) fn note_bytes(&mut self) {
        self.answered_ns = Some(self.waited_ns);
    }

    /// Returns when a segment was requested, if no answer is known.
    fn unanswered_since_ns(&self) -> Option<u64> {
        self.asked_ns.filter(|_| self.answered_ns.is_none())
    }

    /// Notes an answer of the peer on another lane.
    fn note_answer(&mut self) {
        self.answered_ns.get_or_insert(self.waited_ns);
    }

    /// Notes the time while the rest is missing. `limit`: the peer timeout.
    ///
    /// RR-SEG-6.
    fn observe(&mut self, now_ns: u64, limit: Duration) -> Step {
        debug_assert!(
            self.answered_ns.is_none() || self.asked_ns.is_some(),
            "only what was requested is answered"
        );
        debug_assert!(self.earlier < REQUESTS, "the last request decides");
        let limit_ns = limit.as_nanos() as u64;
        let before_ns = std::mem::replace(&mut self.looked_ns, now_ns);
        if before_ns > 0 {
            let counted_ns_max = LOOK_NS_MAX.min(limit_ns / 4);
            self.waited_ns += now_ns.saturating_sub(before_ns).min(counted_ns_max);
        }
        if self.answered_ns.is_some_and(|since_ns| self.waited_ns - since_ns >= limit_ns) {
            if self.earlier + 1 >= REQUESTS {
                return Step::GiveUp;
            }
            self.earlier += 1;
            (self.asked_ns, self.answered_ns) = (Some(now_ns), None);
            return Step::Ask;
        }
        if self.asked_ns.is_none() && self.waited_ns >= limit_ns / 4 {
            self.asked_ns = Some(now_ns);
            return Step::Ask;
        }
        if self.waited_ns >= limit_ns / 2 { Step::Overdue } else { Step::Wait }
    }
}

impl LaneMonitor {
    /// Evaluates an incomplete segment.
    ///
    /// RR-SEG-6, RR-RAIL-8.
    pub(super) fn judge_unfinished(&mut self, facts: &Facts<'_>, paths: &mut Paths) -> Decision {
        // Another lane may replace it.
        let is_replaceable = paths.has_datagrams() && facts.may_drop(paths);
        let unfinished = &mut self.unfinished;
        if let Some(since_ns) = unfinished.unanswered_since_ns()
            && paths.have_answered_since(since_ns)
        {
            unfinished.note_answer();
        }
        match unfinished.observe(facts.now_ns, facts.peer_timeout) {
            Step::Ask if !is_replaceable => Decision::AskForAnswer,
            Step::Overdue | Step::GiveUp if is_replaceable && paths.can_reach_peer() => {
                Decision::DropLane
            }
            Step::Overdue | Step::GiveUp if is_replaceable => {
                self.suspect("the rest of a segment does not come", facts)
            }
            // The request may have been in a datagram that was lost.
            Step::Overdue if unfinished.unanswered_since_ns().is_some() => Decision::AskForAnswer,
            Step::GiveUp if paths.has_datagrams() => lost(
                "the rest of a segment does not come by TCP, though its sender is there: TCP does \
                 not get through, or bytes were changed on the way (`checksum = true` finds out \
                 at once)",
            ),
            Step::GiveUp => {
                let cause = "the rest of a segment does not come, though its sender is there: \
                             bytes were changed on the way (`checksum = true` finds out at once)";
                Decision::GiveUp(PeerFailure::Corrupted(cause.into()))
            }
            Step::Wait | Step::Ask | Step::Overdue => Decision::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);
    const LOOK_NS: u64 = 100_000_000;

    /// Checks ten times a second for this many seconds; returns the first action, and its time.
    fn look(
        unfinished: &mut Unfinished,
        now_ns: &mut u64,
        seconds: u64,
        not: Step,
    ) -> Option<Step> {
        (0..seconds * 10).find_map(|_| {
            *now_ns += LOOK_NS;
            let step = unfinished.observe(*now_ns, LIMIT);
            (step != Step::Wait && step != not).then_some(step)
        })
    }

    /// RR-SEG-6
    #[test]
    fn answer_without_the_rest_ends_the_lane() {
        let (mut unfinished, mut now_ns) = (Unfinished::default(), LOOK_NS);
        assert_eq!(look(&mut unfinished, &mut now_ns, 4, Step::Overdue), Some(Step::Ask));
        assert!((2_500_000_000..2_800_000_000).contains(&now_ns), "{now_ns}");
        // A peer that computes does not answer.
        assert_eq!(look(&mut unfinished, &mut now_ns, 100, Step::Overdue), None);
        unfinished.note_bytes();
        assert_eq!(look(&mut unfinished, &mut now_ns, 9, Step::Overdue), None);
        unfinished.note_bytes();
        // What has arrived may have been under way before the peer was stopped.
        let before_ns = now_ns;
        assert_eq!(look(&mut unfinished, &mut now_ns, 20, Step::Overdue), Some(Step::Ask));
        assert_eq!(now_ns - before_ns, 10_000_000_000);
        assert_eq!(look(&mut unfinished, &mut now_ns, 100, Step::Overdue), None);
        unfinished.note_bytes();
        let before_ns = now_ns;
        assert_eq!(look(&mut unfinished, &mut now_ns, 20, Step::Overdue), Some(Step::GiveUp));
        assert_eq!(now_ns - before_ns, 10_000_000_000);
    }

    /// RR-SEG-6
    #[test]
    fn late_rest_clears_the_state() {
        let mut now_ns = LOOK_NS;
        for _ in 0..3 {
            let mut unfinished = Unfinished::default();
            assert_eq!(look(&mut unfinished, &mut now_ns, 4, Step::Overdue), Some(Step::Ask));
            unfinished.note_bytes();
            assert_eq!(look(&mut unfinished, &mut now_ns, 8, Step::Overdue), None);
        }
    }

    #[test]
    fn unobserved_time_does_not_count() {
        let (mut unfinished, hour_ns) = (Unfinished::default(), 3_600_000_000_000);
        assert_eq!(unfinished.observe(1, LIMIT), Step::Wait);
        assert_eq!(unfinished.observe(hour_ns, LIMIT), Step::Wait);
        assert_eq!(unfinished.observe(2 * hour_ns, LIMIT), Step::Wait);
    }
}
