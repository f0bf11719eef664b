//! The receiving half of a path: received numbers, and when to acknowledge them.

use super::config::PathConfig;
use super::numbers::{NumberSet, WORD};
use crate::wire::ack::{ACK_BYTES_MAX, AckWriter, NEWEST_WORDS_MAX, NUMBERS_MAX, SWEEP_WORDS_MAX};
use crate::wire::packet::{FLAG_ACK_NOW, FLAG_ELICITS, Packet};

/// Words of the newest numbers that every acknowledgement contains, if there are as many.
const NEWEST_WORDS: u64 = 4;
/// Numbers held before the set grows: the cost of an idle peer.
const NUMBERS_AT_START: u64 = 128;

/// Classification of a received packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplayCheck {
    /// New: its payload is to be used.
    Fresh,
    /// Its number was received before: network duplicate or replay. No effect.
    Duplicate,
    /// Its number is below the cumulative one: a duplicate, or abandoned by its sender. No effect;
    /// its payload arrives under another number.
    Old,
    /// Its number is too far ahead of the floor. No effect, it counts as lost.
    TooFar,
}

/// Received numbers; see the module.
#[derive(Debug)]
pub(super) struct Received {
    set: NumberSet,
    /// All numbers below were received or abandoned by their sender.
    cumulative: u64,
    /// One more than the highest received number.
    end: u64,
    /// The highest ack-eliciting number, and when it arrived.
    newest: u64,
    newest_at_ns: u64,
    /// Ack-eliciting packets since the last acknowledgement.
    waiting: u32,
    /// When an acknowledgement is due; `u64::MAX` while none is.
    due_ns: u64,
    /// `end` as last acknowledged.
    announced_end: u64,
    /// The word at which the sweep continues.
    sweep_word: u64,
}

impl Received {
    pub(super) fn new() -> Self {
        Self {
            set: NumberSet::new(NUMBERS_AT_START),
            cumulative: 0,
            end: 0,
            newest: 0,
            newest_at_ns: 0,
            waiting: 0,
            due_ns: u64::MAX,
            announced_end: 0,
            sweep_word: 0,
        }
    }

    /// Returns the next expected number, from which full numbers are derived.
    #[inline]
    pub(super) fn expected(&self) -> u64 {
        self.end
    }

    /// Classifies a number without a change: the tag of a rejected packet need not be computed.
    ///
    /// RR-PKT-2.
    pub(super) fn judge(&self, number: u64, floor: Option<u64>) -> ReplayCheck {
        let cumulative = self.cumulative.max(floor.unwrap_or(0));
        if number < self.cumulative {
            ReplayCheck::Old
        } else if number < self.end && self.set.contains(number) {
            ReplayCheck::Duplicate
        } else if number - cumulative >= NUMBERS_MAX {
            ReplayCheck::TooFar
        } else {
            ReplayCheck::Fresh
        }
    }

    /// Handles a packet. `floor` is not above `number`. An acknowledgement is due at once when one
    /// is requested, when a gap opens, or when a number arrives late; otherwise with the count or
    /// time of `config`.
    ///
    /// RR-PKT-6.
    pub(super) fn handle(
        &mut self,
        now_ns: u64,
        number: u64,
        floor: Option<u64>,
        wants: Wants,
        config: &PathConfig,
    ) -> ReplayCheck {
        let arrival = self.judge(number, floor);
        if arrival != ReplayCheck::Fresh {
            return arrival;
        }
        let (gap, late) = (number > self.end, number < self.end);
        if let Some(floor) = floor {
            self.raise(floor);
        }
        self.set.reserve(self.cumulative, number.max(self.end));
        self.set.insert(number);
        self.end = self.end.max(number + 1);
        self.advance();
        debug_assert!(self.cumulative <= self.end, "no number above the highest was received");
        debug_assert!(self.end - self.cumulative <= NUMBERS_MAX, "those too far are refused");
        if wants != Wants::Nothing {
            if number >= self.newest {
                (self.newest, self.newest_at_ns) = (number, now_ns);
            }
            self.waiting += 1;
            let at_once = wants == Wants::AckNow
                || late
                || (gap && self.cumulative < number)
                || self.waiting >= config.ack_every;
            let due_ns = if at_once { now_ns } else { now_ns + config.ack_delay_ns };
            self.due_ns = self.due_ns.min(due_ns);
        }
        arrival
    }

    /// Returns whether `number` is the next one, and none before it is missing.
    #[inline]
    pub(super) fn is_next(&self, number: u64) -> bool {
        number == self.end && self.end == self.cumulative
    }

    /// Handles the next number, for which [`Self::is_next`] returned `true`.
    #[inline(always)]
    pub(super) fn handle_next(
        &mut self,
        now_ns: u64,
        number: u64,
        wants: Wants,
        config: &PathConfig,
    ) {
        debug_assert!(self.is_next(number), "the caller has checked it");
        // A word is cleared when the cumulative number leaves it.
        if number % WORD == WORD - 1 {
            self.set.clear_word(number / WORD);
        } else {
            self.set.insert(number);
        }
        (self.end, self.cumulative) = (number + 1, number + 1);
        if wants == Wants::Nothing {
            return;
        }
        debug_assert!(number >= self.newest, "it is the highest of all");
        (self.newest, self.newest_at_ns) = (number, now_ns);
        self.waiting += 1;
        let at_once = wants == Wants::AckNow || self.waiting >= config.ack_every;
        let due_ns = if at_once { now_ns } else { now_ns + config.ack_delay_ns };
        self.due_ns = self.due_ns.min(due_ns);
    }

    /// Raises the cumulative number to a floor that the sender has sent.
    ///
    /// RR-PKT-4.
    fn raise(&mut self, floor: u64) {
        if floor <= self.cumulative {
            return;
        }
        // Words beyond the ring are empty already; clearing each ring word once is enough.
        let (first, last) = (self.cumulative / WORD, floor / WORD);
        let words = (last - first).min(self.set.capacity() / WORD);
        for word in first..first + words {
            self.set.clear_word(word);
        }
        self.cumulative = floor;
    }

    /// Advances the cumulative number over received ones.
    fn advance(&mut self) {
        while self.cumulative < self.end {
            let word = self.cumulative / WORD;
            let run = (self.set.word(word) >> (self.cumulative % WORD)).trailing_ones();
            if run == 0 {
                return;
            }
            self.cumulative += u64::from(run);
            if self.cumulative / WORD > word {
                self.set.clear_word(word);
            }
        }
    }

    /// Frees memory, if no number is missing.
    pub(super) fn shrink(&mut self) {
        if self.end == self.cumulative && self.set.capacity() > NUMBERS_AT_START {
            let word = self.cumulative / WORD;
            let bits = self.set.word(word);
            self.set = NumberSet::new(NUMBERS_AT_START);
            self.set.set_word(word, bits);
        }
    }

    /// Returns the numbers held before the set grows.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> u64 {
        self.set.capacity()
    }

    /// Returns when an acknowledgement is due; `u64::MAX`: none is.
    #[inline]
    pub(super) fn due_ns(&self) -> u64 {
        self.due_ns
    }

    /// Makes a delayed acknowledgement due now.
    pub(super) fn make_due(&mut self) {
        if self.due_ns != u64::MAX {
            self.due_ns = 0;
        }
    }

    /// Returns whether there is anything to acknowledge, so that the next packet includes it.
    #[inline]
    pub(super) fn has_unacknowledged(&self) -> bool {
        self.waiting > 0
    }

    /// Drops the arrival time of the newest number.
    pub(super) fn forget_time(&mut self) {
        self.newest_at_ns = 0;
    }

    /// Writes the acknowledgement into `out`, which has [`ACK_BYTES_MAX`], and returns its length.
    #[inline(always)]
    pub(super) fn write(&mut self, now_ns: u64, out: &mut [u8]) -> usize {
        debug_assert!(out.len() >= ACK_BYTES_MAX, "the caller reserves the longest one");
        let is_due = self.due_ns != u64::MAX;
        debug_assert_eq!(self.waiting > 0, is_due, "what waits is due some time");
        let delay_ns = now_ns.saturating_sub(self.newest_at_ns);
        let bytes = match self.end > self.cumulative {
            true => self.write_windows(delay_ns, out),
            false => AckWriter::new(out, self.cumulative, delay_ns).finish(),
        };
        self.announced_end = self.end;
        self.waiting = 0;
        self.due_ns = u64::MAX;
        bytes
    }

    /// Writes an acknowledgement of numbers with gaps.
    #[inline(never)]
    fn write_windows(&mut self, delay_ns: u64, out: &mut [u8]) -> usize {
        let mut writer = AckWriter::new(out, self.cumulative, delay_ns);
        let base = self.cumulative / WORD;
        let last = (self.end - 1) / WORD;
        let fresh = last.saturating_sub(self.announced_end / WORD) + 1;
        let words = fresh.clamp(NEWEST_WORDS, NEWEST_WORDS_MAX as u64).min(last - base + 1);
        let newest = last + 1 - words;
        let slots = 0..words as usize;
        writer.window(newest - base, slots.map(|at| self.set.word(newest + at as u64)));
        if newest > base {
            if self.sweep_word < base || self.sweep_word >= newest {
                self.sweep_word = base;
            }
            let from = self.sweep_word;
            let words = (newest - from).min(SWEEP_WORDS_MAX as u64);
            let slots = 0..words as usize;
            writer.window(from - base, slots.map(|at| self.set.word(from + at as u64)));
            self.sweep_word = from + words;
            debug_assert!(self.sweep_word <= newest, "the sweep ends before the newest words");
        }
        writer.finish()
    }
}

/// Acknowledgement that a packet requires from its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wants {
    /// None: it carries an acknowledgement only.
    Nothing,
    /// An acknowledgement after the usual delay.
    Ack,
    /// An immediate acknowledgement.
    AckNow,
}

impl Wants {
    /// Returns the acknowledgement that `packet` requires.
    #[inline]
    pub(super) fn of(packet: &Packet<'_>) -> Self {
        match (packet.has(FLAG_ELICITS), packet.has(FLAG_ACK_NOW)) {
            (false, _) => Self::Nothing,
            (true, false) => Self::Ack,
            (true, true) => Self::AckNow,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::wire::ack::Ack;

    fn take(received: &mut Received, now_ns: u64, number: u64) -> ReplayCheck {
        received.handle(now_ns, number, None, Wants::Ack, &PathConfig::default())
    }

    /// Returns the acknowledged numbers below `end`.
    fn acknowledged(received: &mut Received, end: u64) -> BTreeSet<u64> {
        let mut out = [0; ACK_BYTES_MAX];
        received.write(0, &mut out);
        let (ack, _) = Ack::decode(&out).unwrap();
        let cumulative = u64::from(ack.cumulative());
        let words = ack.words().flat_map(|(word, bits)| {
            super::super::numbers::numbers(cumulative / WORD + word, bits)
        });
        (cumulative.saturating_sub(800)..cumulative)
            .chain(words)
            .filter(|&number| number < end)
            .collect()
    }

    /// RR-PKT-6
    #[test]
    fn acks_are_delayed_by_time_and_count() {
        let config = PathConfig::default();
        let mut received = Received::new();
        take(&mut received, 100, 0);
        take(&mut received, 200, 1);
        assert_eq!(received.due_ns(), 100 + config.ack_delay_ns);
        for number in 2..u64::from(config.ack_every) {
            take(&mut received, 300, number);
        }
        assert_eq!(received.due_ns(), 300);
        acknowledged(&mut received, 0);
        assert_eq!((received.due_ns(), received.has_unacknowledged()), (u64::MAX, false));
    }

    /// RR-PKT-6
    #[test]
    fn gap_late_number_and_request_are_acked_at_once() {
        let config = PathConfig::default();
        let mut received = Received::new();
        take(&mut received, 10, 0);
        take(&mut received, 20, 2);
        assert_eq!(received.due_ns(), 20);
        acknowledged(&mut received, 0);
        take(&mut received, 30, 1);
        assert_eq!(received.due_ns(), 30);
        acknowledged(&mut received, 0);
        received.handle(40, 3, None, Wants::AckNow, &config);
        assert_eq!(received.due_ns(), 40);
        acknowledged(&mut received, 0);
        received.handle(50, 4, None, Wants::Nothing, &config);
        assert_eq!(received.due_ns(), u64::MAX);
    }

    /// RR-PKT-4
    #[test]
    fn gap_below_the_floor_is_ignored() {
        let config = PathConfig::default();
        let mut received = Received::new();
        take(&mut received, 10, 0);
        received.handle(20, 5, Some(5), Wants::Ack, &config);
        assert_eq!(received.due_ns(), 10 + config.ack_delay_ns);
        assert_eq!(received.cumulative, 6);
        assert_eq!(take(&mut received, 30, 3), ReplayCheck::Old);
    }

    /// RR-PKT-2
    #[test]
    fn number_too_far_ahead_is_rejected_until_the_floor_rises() {
        let config = PathConfig::default();
        let mut received = Received::new();
        assert_eq!(take(&mut received, 0, NUMBERS_MAX), ReplayCheck::TooFar);
        assert_eq!(take(&mut received, 0, NUMBERS_MAX - 1), ReplayCheck::Fresh);
        let floor = Some(NUMBERS_MAX - 1);
        let arrival = received.handle(0, NUMBERS_MAX, floor, Wants::Ack, &config);
        assert_eq!(arrival, ReplayCheck::Fresh);
        assert_eq!(received.cumulative, NUMBERS_MAX + 1);
        assert!(received.set.capacity() <= NUMBERS_MAX);
    }

    #[test]
    fn sweep_repeats_acks_lost_in_an_outage() {
        let mut received = Received::new();
        for number in (1..20_000).filter(|number| number % 7 != 3) {
            take(&mut received, 0, number);
        }
        // Number 0 never arrived: nothing is cumulative. 313 words by 8 are 40 steps.
        let mut seen = BTreeSet::new();
        for _ in 0..40 {
            seen.extend(acknowledged(&mut received, 20_000));
        }
        let all: BTreeSet<u64> = (1..20_000).filter(|number| number % 7 != 3).collect();
        assert_eq!(seen, all);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

        #[test]
        fn agrees_with_a_simple_set(
            steps in proptest::collection::vec((0u64..700, any::<u8>(), any::<bool>()), 1..300),
        ) {
            let config = PathConfig::default();
            let mut received = Received::new();
            let (mut seen, mut floor, mut base) = (BTreeSet::new(), 0, 0u64);
            for (ahead, back, raise) in steps {
                let number = (base + ahead).saturating_sub(u64::from(back));
                base += 3;
                let stated = raise.then(|| number.saturating_sub(200)).filter(|&at| at > floor);
                let arrival = received.handle(0, number, stated, Wants::Ack, &config);
                let known = seen.contains(&number);
                if arrival == ReplayCheck::Fresh {
                    prop_assert!(!known && number >= floor);
                    seen.insert(number);
                    floor = floor.max(stated.unwrap_or(0));
                } else {
                    prop_assert!(known || number < floor);
                }
                let mut naive = floor;
                while seen.contains(&naive) {
                    naive += 1;
                }
                prop_assert_eq!(received.cumulative, naive);
                let numbers = acknowledged(&mut received, u64::MAX);
                for number in naive..=base + 700 {
                    prop_assert!(!numbers.contains(&number) || seen.contains(&number));
                }
                let newest = seen.last().copied().unwrap_or(0);
                let high: Vec<u64> = seen.range(newest.saturating_sub(190)..).copied().collect();
                prop_assert!(high.iter().all(|number| numbers.contains(number)));
            }
        }
    }
}
