//! Which messages of a stream arrived, and how.

use std::collections::BTreeSet;

use crate::stamp;

/// What has arrived of messages that are numbered from 0 and arrive in order if all is well.
#[derive(Default, Debug)]
pub(super) struct Tally {
    /// All numbers below arrived.
    complete: u64,
    /// Those above that arrived.
    beyond: BTreeSet<u64>,
    pub(super) duplicated: u64,
    /// Those that came in another one's receive.
    pub(super) reordered: u64,
    /// Those whose content is not that of one message.
    pub(super) corrupted: u64,
}

impl Tally {
    /// Takes in what the receive posted as the `receive`-th got. `is_right` says whether its
    /// content is that of this number. Receives may end in any order; what they hold may not.
    pub(super) fn take(&mut self, receive: u64, first: u64, is_right: impl FnOnce(u64) -> bool) {
        let number = stamp::number(first);
        if !is_right(number) {
            self.corrupted += 1;
            return;
        }
        if number < self.complete || !self.beyond.insert(number) {
            self.duplicated += 1;
            return;
        }
        if number != receive {
            self.reordered += 1;
        }
        while self.beyond.remove(&self.complete) {
            self.complete += 1;
        }
    }

    /// Receives that got something.
    pub(super) fn arrived(&self) -> u64 {
        self.complete + self.beyond.len() as u64 + self.duplicated + self.corrupted
    }

    /// How many of the numbers below `sent` did not arrive whole.
    pub(super) fn lost(&self, sent: u64) -> u64 {
        sent - self.complete.min(sent) - self.beyond.range(..sent).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(numbers: &[u64]) -> Tally {
        let mut tally = Tally::default();
        for (receive, &number) in (0..).zip(numbers) {
            tally.take(receive, stamp::stamp_at(number, 0), |_| true);
        }
        tally
    }

    #[test]
    fn what_is_missing_twice_or_late_is_told_apart() {
        let all = |tally: &Tally, sent| {
            (tally.lost(sent), tally.duplicated, tally.reordered, tally.corrupted)
        };
        assert_eq!(all(&tally(&[0, 1, 2, 3]), 4), (0, 0, 0, 0));
        assert_eq!(all(&tally(&[0, 1, 3]), 4), (1, 0, 1, 0));
        assert_eq!(all(&tally(&[0, 2, 1, 3]), 4), (0, 0, 2, 0));
        assert_eq!(all(&tally(&[0, 1, 1, 2, 3]), 4), (0, 1, 2, 0));
        let mut late = Tally::default();
        for number in [1, 0] {
            late.take(number, stamp::stamp_at(number, 0), |_| true);
        }
        assert_eq!(all(&late, 2), (0, 0, 0, 0), "receives may end in any order");
        let mut bad = tally(&[0]);
        bad.take(1, 12, |_| false);
        assert_eq!((all(&bad, 2), bad.arrived()), ((1, 0, 0, 1), 2));
    }
}
