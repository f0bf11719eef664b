//! The sending half of a path: all packets that may still be acknowledged.
//!
//! A number is *outstanding*, then acknowledged or *lost*. A lost one is remembered for some time,
//! in case it was only late, and holds the floor until it is forgotten. No packet allocates once
//! the ring is long enough for the path.

use super::super::session::late::LateQueue;
use super::numbers::{NumberSet, WORD, numbers};
use crate::wire::ack::NUMBERS_MAX;

/// Numbers held before the ring grows: the cost of an idle peer.
const NUMBERS_AT_START: u64 = 2;

/// Content of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Purpose {
    /// An acknowledgement only: not in flight, never acknowledged.
    #[default]
    Ack,
    /// Payload of the layer above, identified by its token.
    Payload,
    /// A probe without payload.
    Ping,
    /// A probe of the path's MTU.
    MtuProbe,
}

/// One packet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Record {
    pub(super) token: u64,
    pub(super) sent_at_ns: u64,
    /// Length of the datagram, tag included.
    pub(super) bytes: u32,
    pub(super) purpose: Purpose,
}

/// Sent packets; see the module.
#[derive(Debug)]
pub(super) struct Sent {
    /// A ring: number `n` is at `n mod len`; the length is a power of two. The sets hold as many
    /// numbers, wherever they begin.
    records: Vec<Record>,
    outstanding: NumberSet,
    lost: NumberSet,
    /// Lost numbers, with the time of the loss, oldest first.
    lost_order: LateQueue<(u64, u64)>,
    /// No number below is outstanding or remembered as lost.
    base: u64,
    /// No number below is outstanding.
    oldest: u64,
    next: u64,
    count: u64,
    bytes_in_flight: u64,
}

impl Sent {
    pub(super) fn new() -> Self {
        Self {
            records: vec![Record::default(); NUMBERS_AT_START as usize],
            outstanding: NumberSet::new(NUMBERS_AT_START),
            lost: NumberSet::new(NUMBERS_AT_START),
            lost_order: LateQueue::default(),
            base: 0,
            oldest: 0,
            next: 0,
            count: 0,
            bytes_in_flight: 0,
        }
    }

    /// Returns the number of the packet that is sent next.
    #[inline]
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Returns the oldest number that needs an acknowledgement.
    #[inline]
    pub(super) fn floor(&self) -> u64 {
        self.base
    }

    /// Returns how many more numbers the receiver accepts: it rejects those too far from the floor.
    #[inline]
    pub(super) fn room(&self) -> u64 {
        NUMBERS_MAX - (self.next - self.base)
    }

    /// Abandons the number that holds the floor, without remembering it. Returns its record if it
    /// was outstanding.
    pub(super) fn give_up_floor(&mut self) -> Option<Record> {
        let outstanding = self.outstanding.contains(self.base) && self.base < self.next;
        let record = outstanding.then(|| self.acknowledge(self.base));
        self.lost.remove(self.base);
        self.advance_floor();
        record
    }

    /// Returns the number of outstanding packets.
    #[inline]
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Returns the bytes of outstanding packets.
    #[inline]
    pub(super) fn bytes_in_flight(&self) -> u64 {
        self.bytes_in_flight
    }

    #[inline]
    fn slot(&self, number: u64) -> usize {
        number as usize & (self.records.len() - 1)
    }

    #[inline]
    pub(super) fn record(&self, number: u64) -> &Record {
        debug_assert!((self.base..self.next).contains(&number), "records are of numbers in use");
        &self.records[self.slot(number)]
    }

    /// Assigns the next number to a packet.
    ///
    /// RR-PKT-1.
    #[inline(always)]
    pub(super) fn push(&mut self, record: Record) -> u64 {
        debug_assert!(self.room() > 0, "the receiver accepts the number");
        let number = self.next;
        self.next += 1;
        if record.purpose == Purpose::Ack {
            self.outstanding.reserve(self.base, number);
            self.lost.reserve(self.base, number);
            self.advance_floor();
            return number;
        }
        if number - self.base >= self.records.len() as u64 {
            self.grow((self.next - self.base).next_power_of_two());
        }
        let span = (number / WORD - self.base / WORD + 1) * WORD;
        debug_assert!(span <= self.outstanding.capacity().min(self.lost.capacity()), "they fit");
        let slot = self.slot(number);
        self.records[slot] = record;
        self.outstanding.insert(number);
        self.count += 1;
        self.bytes_in_flight += u64::from(record.bytes);
        number
    }

    /// Frees memory, if nothing is outstanding or remembered as lost.
    pub(super) fn shrink(&mut self) {
        self.advance_floor();
        if self.base == self.next {
            self.records = vec![Record::default(); NUMBERS_AT_START as usize];
            self.outstanding = NumberSet::new(NUMBERS_AT_START);
            self.lost = NumberSet::new(NUMBERS_AT_START);
            self.lost_order.shrink();
        }
    }

    #[cold]
    fn grow(&mut self, length: u64) {
        let length = length as usize;
        debug_assert!(length > self.records.len(), "the ring grows");
        let mut records = vec![Record::default(); length];
        for number in self.base..self.next {
            records[number as usize & (length - 1)] = *self.record(number);
        }
        self.records = records;
        // The last of so many numbers, if the first one is the highest of its word.
        let first = self.base / WORD * WORD;
        let last = first + WORD - 1 + (length as u64 - 1);
        self.outstanding.reserve(first, last);
        self.lost.reserve(first, last);
    }

    /// Returns the outstanding numbers of a word, and those remembered as lost.
    #[inline]
    pub(super) fn word(&self, word: u64) -> (u64, u64) {
        if word < self.base / WORD || word * WORD >= self.next {
            return (0, 0);
        }
        (self.outstanding.word(word), self.lost.word(word))
    }

    /// Removes an outstanding number that was acknowledged.
    #[inline]
    pub(super) fn acknowledge(&mut self, number: u64) -> Record {
        debug_assert!(self.outstanding.contains(number), "it is outstanding");
        self.outstanding.remove(number);
        self.end(number)
    }

    /// Takes the outstanding numbers of a word out of `bits`, and returns their bits;
    /// [`Self::end`] ends each of them. Their records remain unchanged.
    #[inline]
    pub(super) fn take_word(&mut self, word: u64, bits: u64) -> u64 {
        debug_assert!(word * WORD < self.next && word >= self.base / WORD, "it is in use");
        self.outstanding.take(word, bits)
    }

    /// Ends an outstanding number that was removed from their set.
    #[inline]
    pub(super) fn end(&mut self, number: u64) -> Record {
        let record = *self.record(number);
        self.count -= 1;
        self.bytes_in_flight -= u64::from(record.bytes);
        debug_assert!(self.count > 0 || self.bytes_in_flight == 0, "packets have bytes");
        record
    }

    /// Marks an outstanding number as lost; it is remembered.
    pub(super) fn lose(&mut self, number: u64, now_ns: u64) -> Record {
        let record = self.acknowledge(number);
        debug_assert!(!self.lost.contains(number), "a packet is lost once");
        self.lost.insert(number);
        self.lost_order.push_back((number, now_ns));
        record
    }

    /// Drops a number remembered as lost that was only late.
    pub(super) fn forgive(&mut self, number: u64) {
        debug_assert!(self.lost.contains(number), "it is remembered as lost");
        self.lost.remove(number);
    }

    /// Returns whether numbers are remembered as lost.
    #[inline]
    pub(super) fn has_lost(&self) -> bool {
        !self.lost_order.is_empty()
    }

    /// Forgets numbers lost at `until_ns` or before, then advances the floor.
    pub(super) fn forget_lost(&mut self, until_ns: u64) {
        while let Some(&(number, lost_at_ns)) = self.lost_order.front() {
            let forgiven = number < self.base || !self.lost.contains(number);
            if lost_at_ns > until_ns && !forgiven {
                break;
            }
            if !forgiven {
                self.lost.remove(number);
            }
            self.lost_order.pop_front();
        }
        self.advance_floor();
    }

    /// Advances the floor over completed numbers. Their bits are clear already.
    #[inline]
    pub(super) fn advance_floor(&mut self) {
        if self.count == 0 && self.lost_order.is_empty() {
            (self.base, self.oldest) = (self.next, self.next);
        } else {
            self.advance_floor_slowly();
        }
    }

    fn advance_floor_slowly(&mut self) {
        self.base = self.first_at_or_above(self.base, |at| {
            let (outstanding, lost) = self.word(at);
            outstanding | lost
        });
        self.oldest = self.oldest.max(self.base);
        debug_assert!(self.count == 0 || self.base < self.next, "what is outstanding is above");
    }

    /// Returns the first number at or above `from` that is set in `bits`, else `next`.
    fn first_at_or_above(&self, from: u64, bits: impl Fn(u64) -> u64) -> u64 {
        let mut at = from;
        while at < self.next {
            let rest = bits(at / WORD) >> (at % WORD);
            if rest != 0 {
                return at + u64::from(rest.trailing_zeros());
            }
            at = (at / WORD + 1) * WORD;
        }
        self.next
    }

    /// Returns the oldest outstanding number.
    pub(super) fn oldest(&mut self) -> Option<u64> {
        self.oldest = self.first_at_or_above(self.oldest, |at| self.word(at).0);
        (self.oldest < self.next).then_some(self.oldest)
    }

    /// Returns the outstanding number that follows `number`.
    pub(super) fn after(&self, number: u64) -> Option<u64> {
        let found = self.first_at_or_above(number + 1, |at| self.word(at).0);
        (found < self.next).then_some(found)
    }

    /// Returns the lengths of everything that may grow: the ring, and the order of losses.
    #[cfg(test)]
    pub(super) fn capacities(&self) -> [u64; 2] {
        [self.records.len() as u64, self.lost_order.capacity() as u64]
    }

    /// Returns the `nth` newest outstanding packet with payload, 0 for the newest.
    pub(super) fn newest_payload(&self, nth: usize) -> Option<Record> {
        let words = (self.oldest / WORD..=self.next.saturating_sub(1) / WORD).rev();
        let newest_first = words.flat_map(|word| {
            let bits = self.word(word).0.reverse_bits();
            numbers(0, bits).map(move |at| word * WORD + (WORD - 1 - at))
        });
        let payload = newest_first
            .map(|number| *self.record(number))
            .filter(|record| record.purpose == Purpose::Payload);
        payload.take(nth + 1).last()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn record(purpose: Purpose, token: u64) -> Record {
        Record { token, sent_at_ns: 0, bytes: 100, purpose }
    }

    #[test]
    fn ack_only_packets_do_not_hold_the_floor() {
        let mut sent = Sent::new();
        for number in 0..1000 {
            assert_eq!(sent.push(record(Purpose::Ack, 0)), number);
        }
        assert_eq!((sent.floor(), sent.count(), sent.oldest()), (1000, 0, None));
    }

    #[test]
    fn probe_repeats_the_newest_payload() {
        let mut sent = Sent::new();
        assert!(sent.newest_payload(0).is_none());
        for token in 0..200 {
            sent.push(record(Purpose::Payload, token));
        }
        sent.push(record(Purpose::Ping, 0));
        sent.acknowledge(199);
        assert_eq!(sent.newest_payload(0).unwrap().token, 198);
        assert_eq!(sent.newest_payload(1).unwrap().token, 197);
        assert_eq!(sent.newest_payload(500).unwrap().token, 0);
    }

    #[derive(Clone, Copy, Debug, PartialEq)]
    enum State {
        Outstanding,
        Lost(u64),
    }

    proptest! {
        #[test]
        fn agrees_with_a_simple_map(
            steps in proptest::collection::vec((0u8..8, any::<prop::sample::Index>()), 1..600),
        ) {
            let mut sent = Sent::new();
            let mut model: BTreeMap<u64, State> = BTreeMap::new();
            for (now_ns, (what, which)) in steps.into_iter().enumerate() {
                let now_ns = now_ns as u64;
                let open: Vec<u64> = model.iter()
                    .filter(|(_, state)| **state == State::Outstanding)
                    .map(|(number, _)| *number)
                    .collect();
                match what {
                    0..=3 => {
                        let number = sent.push(record(Purpose::Payload, now_ns));
                        model.insert(number, State::Outstanding);
                    }
                    4 => { sent.push(record(Purpose::Ack, 0)); }
                    5 if !open.is_empty() => {
                        let number = *which.get(&open);
                        sent.acknowledge(number);
                        model.remove(&number);
                    }
                    6 if !open.is_empty() => {
                        let number = *which.get(&open);
                        sent.lose(number, now_ns);
                        model.insert(number, State::Lost(now_ns));
                    }
                    _ => {
                        let until_ns = now_ns.saturating_sub(20);
                        sent.forget_lost(until_ns);
                        model.retain(|_, state| {
                            !matches!(state, State::Lost(at) if *at <= until_ns)
                        });
                    }
                }
                sent.advance_floor();
                let floor = model.keys().next().copied().unwrap_or(sent.next());
                prop_assert_eq!(sent.floor(), floor);
                let open: Vec<u64> = model.iter()
                    .filter(|(_, state)| **state == State::Outstanding)
                    .map(|(number, _)| *number)
                    .collect();
                prop_assert_eq!(sent.count(), open.len() as u64);
                prop_assert_eq!(sent.bytes_in_flight(), 100 * open.len() as u64);
                let mut found = Vec::new();
                let mut at = sent.oldest();
                while let Some(number) = at {
                    found.push(number);
                    at = sent.after(number);
                }
                prop_assert_eq!(found, open);
            }
        }
    }
}
