//! The receiving half of a path: which numbers arrived, and when to say so.

use super::config::PathConfig;
use super::numbers::{NumberSet, WORD};
use crate::wire::ack::{ACK_BYTES_MAX, AckWriter, NEWEST_WORDS_MAX, NUMBERS_MAX, SWEEP_WORDS_MAX};
use crate::wire::packet::{FLAG_ACK_NOW, FLAG_ELICITS, Packet};

/// Words of the newest numbers that every acknowledgement has, where there are so many.
const NEWEST_WORDS: u64 = 4;
/// Numbers held before the set grows: what an idle peer costs.
const NUMBERS_AT_START: u64 = 128;

/// What became of a packet that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// Seen for the first time: its payload is to be used.
    Fresh,
    /// Its number arrived before: network duplicate or replay. Nothing happened.
    Duplicate,
    /// Its number is below the cumulative one: a duplicate, or its sender gave it up. Nothing
    /// happened; what it carried came or comes under another number.
    Old,
    /// Its number is too far ahead of what was told. Nothing happened, it counts as lost.
    TooFar,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Received {
    set: NumberSet,
    /// All numbers below arrived or were given up by their sender.
    cumulative: u64,
    /// One more than the highest number that arrived.
    end: u64,
    /// The highest number that wants an acknowledgement, and when it arrived.
    newest: u64,
    newest_at_ns: u64,
    /// Packets that want an acknowledgement since the last one.
    waiting: u32,
    /// When an acknowledgement is due; `None` while nothing waits.
    due_ns: Option<u64>,
    /// `end` when last acknowledged.
    announced_end: u64,
    /// The word where the sweep goes on.
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
            due_ns: None,
            announced_end: 0,
            sweep_word: 0,
        }
    }

    /// The number that is expected next: full numbers are found from their low half by this.
    #[inline]
    pub(super) fn expected(&self) -> u64 {
        self.end
    }

    /// Whether a number would be taken, without any change: what is refused here need not have
    /// its tag computed.
    ///
    /// RR-PKT-2.
    pub(super) fn judge(&self, number: u64, floor: Option<u64>) -> Arrival {
        let cumulative = self.cumulative.max(floor.unwrap_or(0));
        if number < self.cumulative {
            Arrival::Old
        } else if number < self.end && self.set.contains(number) {
            Arrival::Duplicate
        } else if number - cumulative >= NUMBERS_MAX {
            Arrival::TooFar
        } else {
            Arrival::Fresh
        }
    }

    /// Takes a packet. `floor` is not above `number`. An acknowledgement is due at once when one
    /// is asked for, when a gap opens, or when a number comes late; else with the count or time
    /// of `config`.
    ///
    /// RR-PKT-6.
    pub(super) fn handle(
        &mut self,
        now_ns: u64,
        number: u64,
        floor: Option<u64>,
        wants: Wants,
        config: &PathConfig,
    ) -> Arrival {
        let arrival = self.judge(number, floor);
        if arrival != Arrival::Fresh {
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
            self.due_ns = Some(self.due_ns.map_or(due_ns, |due| due.min(due_ns)));
        }
        arrival
    }

    /// Whether `number` is the next one, and none before it is missing.
    #[inline]
    pub(super) fn is_next(&self, number: u64) -> bool {
        number == self.end && self.end == self.cumulative
    }

    /// [`Self::handle`] of the next number, of which [`Self::is_next`].
    #[inline]
    pub(super) fn handle_next(
        &mut self,
        now_ns: u64,
        number: u64,
        wants: Wants,
        config: &PathConfig,
    ) {
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
        if number >= self.newest {
            (self.newest, self.newest_at_ns) = (number, now_ns);
        }
        self.waiting += 1;
        let at_once = wants == Wants::AckNow || self.waiting >= config.ack_every;
        let due_ns = if at_once { now_ns } else { now_ns + config.ack_delay_ns };
        self.due_ns = Some(self.due_ns.map_or(due_ns, |due| due.min(due_ns)));
    }

    /// Moves the cumulative number up to a floor that the sender stated.
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

    /// Moves the cumulative number over what arrived.
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

    /// Gives memory back, if nothing is missing.
    pub(super) fn shrink(&mut self) {
        if self.end == self.cumulative && self.set.capacity() > NUMBERS_AT_START {
            let word = self.cumulative / WORD;
            let bits = self.set.word(word);
            self.set = NumberSet::new(NUMBERS_AT_START);
            self.set.set_word(word, bits);
        }
    }

    /// Numbers held before the set grows.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> u64 {
        self.set.capacity()
    }

    /// When an acknowledgement is due.
    #[inline]
    pub(super) fn due_ns(&self) -> Option<u64> {
        self.due_ns
    }

    /// An acknowledgement that would be due later is due now.
    pub(super) fn hasten(&mut self) {
        self.due_ns = self.due_ns.map(|_| 0);
    }

    /// Whether there is anything to tell, so that a packet that goes anyhow takes it along.
    #[inline]
    pub(super) fn has_unacknowledged(&self) -> bool {
        self.waiting > 0
    }

    /// When the newest number came is not to be told.
    pub(super) fn forget_time(&mut self) {
        self.newest_at_ns = 0;
    }

    /// Writes the acknowledgement into `out`, which has [`ACK_BYTES_MAX`], and gives its length.
    #[inline(always)]
    pub(super) fn write(&mut self, now_ns: u64, out: &mut [u8]) -> usize {
        debug_assert!(out.len() >= ACK_BYTES_MAX, "the caller reserves the longest one");
        let delay_ns = now_ns.saturating_sub(self.newest_at_ns);
        let mut writer = AckWriter::new(out, self.cumulative, delay_ns);
        if self.end > self.cumulative {
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
            }
        }
        self.announced_end = self.end;
        self.waiting = 0;
        self.due_ns = None;
        writer.finish()
    }
}

/// What a packet wants of its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wants {
    /// Nothing: it carries an acknowledgement and no more.
    Nothing,
    /// An acknowledgement in due time.
    Ack,
    /// An acknowledgement at once.
    AckNow,
}

impl Wants {
    /// What `packet` wants.
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

    fn take(received: &mut Received, now_ns: u64, number: u64) -> Arrival {
        received.handle(now_ns, number, None, Wants::Ack, &PathConfig::default())
    }

    /// What an acknowledgement says arrived, below `end`.
    fn told(received: &mut Received, end: u64) -> BTreeSet<u64> {
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
    fn delayed_by_time_and_by_count() {
        let config = PathConfig::default();
        let mut received = Received::new();
        take(&mut received, 100, 0);
        take(&mut received, 200, 1);
        assert_eq!(received.due_ns(), Some(100 + config.ack_delay_ns));
        for number in 2..u64::from(config.ack_every) {
            take(&mut received, 300, number);
        }
        assert_eq!(received.due_ns(), Some(300));
        told(&mut received, 0);
        assert_eq!((received.due_ns(), received.has_unacknowledged()), (None, false));
    }

    /// RR-PKT-6
    #[test]
    fn a_gap_a_late_number_and_a_request_are_answered_at_once() {
        let config = PathConfig::default();
        let mut received = Received::new();
        take(&mut received, 10, 0);
        take(&mut received, 20, 2);
        assert_eq!(received.due_ns(), Some(20));
        told(&mut received, 0);
        take(&mut received, 30, 1);
        assert_eq!(received.due_ns(), Some(30));
        told(&mut received, 0);
        received.handle(40, 3, None, Wants::AckNow, &config);
        assert_eq!(received.due_ns(), Some(40));
        told(&mut received, 0);
        received.handle(50, 4, None, Wants::Nothing, &config);
        assert_eq!(received.due_ns(), None);
    }

    /// RR-PKT-4
    #[test]
    fn a_gap_below_the_floor_is_none() {
        let config = PathConfig::default();
        let mut received = Received::new();
        take(&mut received, 10, 0);
        received.handle(20, 5, Some(5), Wants::Ack, &config);
        assert_eq!(received.due_ns(), Some(10 + config.ack_delay_ns));
        assert_eq!(received.cumulative, 6);
        assert_eq!(take(&mut received, 30, 3), Arrival::Old);
    }

    /// RR-PKT-2
    #[test]
    fn what_is_too_far_is_refused_until_the_floor_comes_closer() {
        let config = PathConfig::default();
        let mut received = Received::new();
        assert_eq!(take(&mut received, 0, NUMBERS_MAX), Arrival::TooFar);
        assert_eq!(take(&mut received, 0, NUMBERS_MAX - 1), Arrival::Fresh);
        let floor = Some(NUMBERS_MAX - 1);
        let arrival = received.handle(0, NUMBERS_MAX, floor, Wants::Ack, &config);
        assert_eq!(arrival, Arrival::Fresh);
        assert_eq!(received.cumulative, NUMBERS_MAX + 1);
        assert!(received.set.capacity() <= NUMBERS_MAX);
    }

    #[test]
    fn an_outage_of_acknowledgements_is_made_good_by_the_sweep() {
        let mut received = Received::new();
        for number in (1..20_000).filter(|number| number % 7 != 3) {
            take(&mut received, 0, number);
        }
        // Number 0 never came: nothing is cumulative. 313 words by 8 are 40 steps.
        let mut seen = BTreeSet::new();
        for _ in 0..40 {
            seen.extend(told(&mut received, 20_000));
        }
        let all: BTreeSet<u64> = (1..20_000).filter(|number| number % 7 != 3).collect();
        assert_eq!(seen, all);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

        #[test]
        fn it_agrees_with_a_plain_set(
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
                if arrival == Arrival::Fresh {
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
                let told = told(&mut received, u64::MAX);
                for number in naive..=base + 700 {
                    prop_assert!(!told.contains(&number) || seen.contains(&number));
                }
                let newest = seen.last().copied().unwrap_or(0);
                let high: Vec<u64> = seen.range(newest.saturating_sub(190)..).copied().collect();
                prop_assert!(high.iter().all(|number| told.contains(number)));
            }
        }
    }
}
