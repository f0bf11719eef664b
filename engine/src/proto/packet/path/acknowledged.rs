//! Acknowledgement processing for sent packets: which arrived, and which are lost.

use std::collections::VecDeque;

use super::super::loss::Loss;
use super::super::numbers::{WORD, numbers};
use super::super::sent::{Purpose, Record};
use super::fast_path::note_acked;
use super::{PacketEvent, Path};
use crate::wire::ack::{Ack, Words};
use crate::wire::packet::{PacketError, expand};

impl Path {
    /// Returns the full cumulative number of an acknowledgement that covers sent packets only.
    ///
    /// RR-PKT-5.
    pub(super) fn check(&self, ack: &Ack<'_>) -> Result<u64, PacketError> {
        let next = self.sent.next();
        let cumulative = expand(ack.cumulative(), next);
        if cumulative > next {
            return Err(PacketError::AckOfUnsent(cumulative - 1));
        }
        for (word, bits) in ack.words() {
            let word = cumulative / WORD + word;
            let unsent = match (word * WORD + WORD).saturating_sub(next) {
                0 => 0,
                above @ 1..WORD => bits >> (WORD - above),
                _ => bits,
            };
            if unsent != 0 {
                return Err(PacketError::AckOfUnsent(word * WORD + u64::from(bits.ilog2())));
            }
        }
        Ok(cumulative)
    }

    pub(super) fn handle_ack(
        &mut self,
        now_ns: u64,
        words: Words<'_>,
        delay_ns: Option<u64>,
        cumulative: u64,
    ) {
        let mut newly_acked = NewlyAcked { sent_from_ns: u64::MAX, ..NewlyAcked::default() };
        debug_assert!(cumulative <= self.sent.next(), "the acknowledgement was checked");
        let floor = self.sent.floor();
        if cumulative > floor {
            for word in floor / WORD..=(cumulative - 1) / WORD {
                let above = (word * WORD + WORD).saturating_sub(cumulative);
                self.handle_acked_word(now_ns, word, u64::MAX >> above, &mut newly_acked);
            }
        }
        for (word, bits) in words {
            self.handle_acked_word(now_ns, cumulative / WORD + word, bits, &mut newly_acked);
        }
        let Some(number) = newly_acked.highest else {
            self.sent.advance_floor();
            // A late one may have restored the window.
            self.note_window();
            return;
        };
        let sent_at_ns = self.handle_answer(now_ns, delay_ns, number);
        self.find_losses(now_ns, false, newly_acked.sent_from_ns);
        self.end_ack(now_ns, number, sent_at_ns);
    }

    /// Handles that packets were newly acknowledged, up to this one. Returns when it was sent.
    #[inline]
    pub(super) fn handle_answer(&mut self, now_ns: u64, delay_ns: Option<u64>, number: u64) -> u64 {
        let Record { bytes, sent_at_ns, .. } = *self.sent.record(number);
        if self.acks.note_number(number) {
            let long = bytes as usize * 2 >= self.mtu.current();
            let raw_ns = now_ns.saturating_sub(sent_at_ns);
            if let Some(delay_ns) = delay_ns {
                self.handle_sample(now_ns, raw_ns, delay_ns, long);
            }
        }
        self.loss.handle_progress();
        self.timer.handle_answer(now_ns);
        sent_at_ns
    }

    /// Completes an acknowledgement, whose highest new number was sent at `sent_at_ns`.
    #[inline]
    pub(super) fn end_ack(&mut self, now_ns: u64, number: u64, sent_at_ns: u64) {
        self.acks.note_sent_at(sent_at_ns);
        self.sent.advance_floor();
        let highest = self.acks.highest().unwrap_or(number);
        if self.congestion.handle_ack_end(highest, self.sent.next(), &self.rtt) {
            self.loss.handle_round();
        }
        self.note_window();
        self.update_pace(now_ns);
    }

    fn handle_acked_word(
        &mut self,
        now_ns: u64,
        word: u64,
        bits: u64,
        newly_acked: &mut NewlyAcked,
    ) {
        let (outstanding, lost) = self.sent.word(word);
        if bits & outstanding != 0 {
            for number in numbers(word, self.sent.take_word(word, bits)) {
                let sent_at_ns = self.handle_acked(now_ns, number, &mut note_acked);
                newly_acked.add(number, sent_at_ns);
            }
        }
        for number in numbers(word, bits & lost) {
            let record = *self.sent.record(number);
            self.sent.forgive(number);
            let highest = self.acks.highest().unwrap_or(number).max(number);
            let age_ns = now_ns.saturating_sub(record.sent_at_ns);
            self.loss.handle_spurious(number, highest, age_ns, &self.rtt);
            self.counters.spurious += 1;
            if record.purpose == Purpose::Payload {
                self.congestion.handle_spurious(number);
            }
        }
    }

    /// Handles the acknowledgement of a number that was taken from those outstanding, and passes
    /// its token on. Returns when it was sent.
    #[inline]
    pub(super) fn handle_acked(
        &mut self,
        now_ns: u64,
        number: u64,
        handle_acked: &mut impl FnMut(&mut VecDeque<PacketEvent>, u64),
    ) -> u64 {
        let Record { token, sent_at_ns, bytes, purpose } = self.sent.end(number);
        if purpose == Purpose::MtuProbe {
            if self.mtu.handle_probe_acked(bytes as usize, now_ns) {
                self.handle_mtu_changed();
            }
            return sent_at_ns;
        }
        if purpose == Purpose::Payload {
            self.congestion.handle_ack(u64::from(bytes));
            self.delivery.add(u64::from(bytes));
            handle_acked(&mut self.events, token);
        }
        if self.mtu.handle_acked(number, bytes as usize, now_ns) {
            self.handle_mtu_changed();
        }
        sent_at_ns
    }

    #[cold]
    fn handle_mtu_changed(&mut self) {
        self.congestion.set_datagram(self.mtu.current() as u64);
        self.rtt.forget_long();
        self.events.push_back(PacketEvent::PayloadBytesMax { bytes: self.payload_bytes_max() });
    }

    pub(super) fn handle_sample(
        &mut self,
        now_ns: u64,
        raw_ns: u64,
        ack_delay_ns: u64,
        long: bool,
    ) {
        // The time until this loop handled it is unknown: no sample of the path.
        if self.late_ns > raw_ns / 8 && self.is_late() {
            return;
        }
        let (queue_ns, epoch) = self.rtt.handle_sample(now_ns, raw_ns, ack_delay_ns, long);
        self.congestion.handle_sample(queue_ns, epoch);
    }

    /// Detects losses by count and, if requested, by time. Only packets sent before `acked_from_ns`
    /// can be part of a persistent congestion period.
    pub(super) fn find_losses(&mut self, now_ns: u64, by_time: bool, acked_from_ns: u64) {
        self.timer.expect_loss(None);
        let Some(highest) = self.acks.highest() else { return };
        debug_assert!(highest < self.sent.next(), "only sent packets are acknowledged");
        let delay_ns = self.loss.delay_ns(&self.rtt);
        let (mut first_ns, mut last_ns) = (u64::MAX, 0);
        let mut at = self.sent.oldest();
        while let Some(number) = at.filter(|&number| number < highest) {
            let sent_at_ns = self.sent.record(number).sent_at_ns;
            let due_ns = sent_at_ns + delay_ns;
            let is_lost_by_time = by_time && due_ns <= now_ns;
            if !is_lost_by_time && !self.loss.is_lost_by_count(number, highest) {
                // Later packets were sent later: they are not lost either.
                self.timer.expect_loss(Some(due_ns));
                break;
            }
            let record = self.sent.lose(number, now_ns);
            self.handle_lost(now_ns, number, &record);
            if sent_at_ns > self.acks.sent_ns() && sent_at_ns < acked_from_ns {
                first_ns = first_ns.min(sent_at_ns);
                last_ns = last_ns.max(sent_at_ns);
            }
            at = self.sent.after(number);
        }
        let persistent_ns = Loss::persistent_ns(&self.rtt, self.config.ack_delay_ns);
        if last_ns.saturating_sub(first_ns) > persistent_ns {
            self.congestion.handle_persistent_congestion(self.sent.next());
        }
    }

    pub(super) fn handle_lost(&mut self, now_ns: u64, number: u64, record: &Record) {
        self.counters.lost += 1;
        match record.purpose {
            Purpose::MtuProbe => self.mtu.handle_probe_lost(record.bytes as usize, now_ns),
            Purpose::Payload => {
                self.mtu.handle_lost(number, record.bytes as usize);
                self.congestion.handle_loss();
                self.events.push_back(PacketEvent::Lost { token: record.token });
            }
            Purpose::Ping | Purpose::Ack => {}
        }
    }
}

/// New information of one acknowledgement.
#[derive(Debug, Default)]
struct NewlyAcked {
    /// The highest newly acknowledged number.
    highest: Option<u64>,
    /// When the oldest newly acknowledged packet was sent.
    sent_from_ns: u64,
}

impl NewlyAcked {
    fn add(&mut self, number: u64, sent_at_ns: u64) {
        self.highest = self.highest.max(Some(number));
        self.sent_from_ns = self.sent_from_ns.min(sent_at_ns);
    }
}
