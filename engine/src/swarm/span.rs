//! Which of two posts comes first, where several threads make them.

use super::oracle::Oracle;

/// When a thread called, and when the call returned, in steps of all threads of its bout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Span {
    pub(super) bout: u64,
    pub(super) began: u64,
    pub(super) returned: u64,
}

/// Whether a post, with its index, happened before another one. Within a bout that is so if its
/// call had returned when the other one began; all else is posted in the order of indices.
pub(super) fn is_before(one: (usize, Option<Span>), other: (usize, Option<Span>)) -> bool {
    match (one.1, other.1) {
        (Some(this), Some(that)) if this.bout == that.bout => this.returned < that.began,
        _ => one.0 < other.0,
    }
}

impl Oracle {
    pub(super) fn is_sent_before(&self, early: usize, late: usize) -> bool {
        is_before((early, self.sent[early].span), (late, self.sent[late].span))
    }

    /// Whether the end of a session may have found a message that had arrived waiting for one
    /// before it in its stream, which had not: then both are lost. Threads post in another order
    /// than that of indices, and a process may be killed before a post returns.
    ///
    /// RR-DGRAM-9.
    pub(super) fn may_have_waited(&self, index: usize) -> bool {
        let late = &self.sent[index];
        let stream = (late.from, late.to, late.context);
        self.sent.iter().enumerate().any(|(other, early)| {
            let is_of_stream = (early.from, early.to, early.context) == stream;
            let is_under_way = early.is_threaded && early.span.is_none();
            other != index
                && is_of_stream
                && early.taken_by.is_none()
                && (is_under_way || !self.is_sent_before(index, other))
        })
    }

    /// Checks two messages of a stream and the receives that took them: the later one may not have
    /// been taken by the earlier of two receives that accept both.
    pub(super) fn check_pair(
        &self,
        (early, other): (usize, usize),
        (late, taker): (usize, usize),
    ) -> Result<(), String> {
        let (first, second) = (&self.received[taker], &self.received[other]);
        let is_overtaken = self.is_sent_before(early, late)
            && taker != other
            && is_before((taker, first.span), (other, second.span))
            && first.accepts(&self.sent[early]);
        if is_overtaken {
            return Err(format!(
                "message {late} overtook {early} of its stream: {:?} by {first:?}, {:?} by \
                 {second:?}",
                self.sent[late], self.sent[early]
            ));
        }
        Ok(())
    }
}
