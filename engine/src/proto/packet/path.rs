//! One path of a session: receiving, and timers. Sending is in [`transmit`], acknowledgements are
//! handled in [`acknowledged`].

mod acknowledged;
mod fast_path;
mod transmit;

use std::collections::VecDeque;

use self::fast_path::DeferredAck;
pub(crate) use self::transmit::{Filled, PayloadSource};
use super::config::PathConfig;
use super::congestion::Congestion;
use super::delivery::Delivered;
use super::loss::Loss;
use super::loss_timer::LossTimer;
use super::mtu::Mtu;
use super::numbers::WORD;
use super::pacing::Pacer;
use super::peer_acks::PeerAcks;
use super::received::{Received, ReplayCheck, Wants};
use super::rtt::Rtt;
use super::sent::Sent;
use crate::wire::ack::NUMBERS_MAX;
use crate::wire::packet::{Packet, PacketError, expand};

/// A loop that is later than this, and than an eighth of a round trip, first handles received
/// packets: they may contain acknowledgements that stop its timers.
const LATE_NS: u64 = 50_000;
/// Lost packets are remembered for half a round trip, and at least for this time.
const REMEMBER_NS: u64 = 50_000;
/// Consecutive probe timeouts, the last ones a thousand round trips apart, after which a path
/// counts as dead and not as slow.
const DEAD_PROBES: u32 = 16;
/// Maximum number of packets that stay outstanding on a dead path.
const DEAD_NUMBERS: u64 = 128;

/// Events for the layer above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PacketEvent {
    /// A packet with this token was acknowledged.
    Acked {
        /// As given with the payload.
        token: u64,
    },
    /// A packet with this token was declared lost. Exactly one of both events is reported for a
    /// packet; a token that was sent in two packets is reported for both.
    Lost {
        /// As given with the payload.
        token: u64,
    },
    /// New maximum payload; retransmitted payload may have to be split again.
    PayloadBytesMax {
        /// The new maximum, without an acknowledgement in the same packet.
        bytes: usize,
    },
}

/// Counters of a path since it began.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PacketCounters {
    /// Datagrams sent.
    pub(crate) sent: u64,
    /// Of these, those that carry an acknowledgement only.
    pub(crate) acks_alone: u64,
    /// Packets declared lost.
    pub(crate) lost: u64,
    /// Of these, those acknowledged later (spurious losses).
    pub(crate) spurious: u64,
    /// Probes sent on a timeout.
    pub(crate) probes: u64,
    /// Packets that arrived twice, or too late to be recognised.
    pub(crate) duplicates: u64,
}

/// A path; see the module and [`super`], which has the order of calls.
#[derive(Debug)]
pub(crate) struct Path {
    config: PathConfig,
    sent: Sent,
    acks: PeerAcks,
    received: Received,
    rtt: Rtt,
    loss: Loss,
    timer: LossTimer,
    congestion: Congestion,
    pacer: Pacer,
    mtu: Mtu,
    counters: PacketCounters,
    delivery: Delivered,
    events: VecDeque<PacketEvent>,
    /// Payload is delivered before the acknowledgement in the same packet takes effect: that
    /// happens in [`Self::apply_deferred_ack`], which every call that depends on it makes.
    deferred_ack: DeferredAck,
    /// How late this turn is.
    late_ns: u64,
    /// [`Self::uncontrolled_bytes`], as last computed.
    uncontrolled_below: u64,
}

impl Path {
    /// Creates a path with nothing sent and nothing received.
    pub(crate) fn new(config: PathConfig) -> Self {
        let datagram = config.datagram_bytes_min;
        let packets = config.window_initial_packets;
        let mut path = Self {
            sent: Sent::new(),
            acks: PeerAcks::default(),
            received: Received::new(),
            rtt: Rtt::new(config.rtt_initial_ns),
            loss: Loss::new(),
            timer: LossTimer::default(),
            congestion: Congestion::new(datagram as u64, packets, config.queue_target_ns),
            pacer: Pacer::new(),
            mtu: Mtu::new(datagram, config.datagram_bytes_max),
            counters: PacketCounters::default(),
            delivery: Delivered::default(),
            events: VecDeque::new(),
            deferred_ack: DeferredAck::default(),
            late_ns: 0,
            uncontrolled_below: 0,
            config,
        };
        path.note_window();
        path
    }

    /// Begins a turn. `late_ns`: how much later than it was due, or than when the datagrams to be
    /// handled may have arrived; 0 for a loop that polls continuously.
    pub(crate) fn start_turn(&mut self, late_ns: u64) {
        self.late_ns = late_ns;
    }

    fn is_late(&self) -> bool {
        self.late_ns > LATE_NS.max(self.rtt.smoothed_ns() / 8)
    }

    /// Returns the full number of a received packet from its low half: the tag is verified with it,
    /// before any content is trusted.
    #[inline]
    pub(crate) fn number_of(&self, low: u32) -> u64 {
        expand(low, self.received.expected())
    }

    /// Handles a decoded packet, as a session's path does.
    #[cfg(test)]
    pub(crate) fn handle_packet(
        &mut self,
        now_ns: u64,
        packet: &Packet<'_>,
    ) -> Result<ReplayCheck, PacketError> {
        let number = self.number_of(packet.header.number.get());
        match self.handle_next(now_ns, number, packet) {
            true => Ok(ReplayCheck::Fresh),
            false => self.handle_any(now_ns, number, packet),
        }
    }

    /// Handles an authenticated packet, with its full number. Only the payload of a
    /// [`ReplayCheck::Fresh`] one counts. An error is the peer's fault; the packet had no effect.
    pub(crate) fn handle_any(
        &mut self,
        now_ns: u64,
        number: u64,
        packet: &Packet<'_>,
    ) -> Result<ReplayCheck, PacketError> {
        let floor = packet.floor.map(|low| expand(low, number));
        if let Some(floor) = floor.filter(|&floor| floor > number) {
            return Err(PacketError::FloorBeyond { floor, number });
        }
        let arrival = self.received.judge(number, floor);
        if arrival != ReplayCheck::Fresh {
            self.counters.duplicates += u64::from(arrival != ReplayCheck::TooFar);
            return Ok(arrival);
        }
        let may_defer = packet.ack.is_some_and(|ack| self.may_defer(&ack, packet));
        if !may_defer {
            self.apply_deferred_ack();
        }
        let cumulative = packet.ack.map(|ack| self.check(&ack)).transpose()?;
        let handled = self.received.handle(now_ns, number, floor, Wants::of(packet), &self.config);
        debug_assert!(handled == arrival, "it was judged before");
        if let (Some(ack), Some(cumulative)) = (packet.ack, cumulative) {
            self.acks.note_cumulative(cumulative);
            if may_defer {
                self.defer_ack(now_ns, ack.delay_ns(), cumulative);
            } else {
                self.handle_ack(now_ns, ack.words(), ack.delay_ns(), cumulative);
            }
        }
        Ok(arrival)
    }

    /// Handles an authenticated probe from an address that is not known to be the peer's: it is
    /// answered, without any other effect. An attacker may have forwarded it from another address,
    /// so neither its arrival time nor its acknowledgement is evidence about this path.
    ///
    /// RR-PATH-4.
    pub(crate) fn handle_stray_probe(
        &mut self,
        now_ns: u64,
        number: u64,
        packet: &Packet<'_>,
    ) -> Result<ReplayCheck, PacketError> {
        let arrival = self.handle_any(now_ns, number, &Packet { ack: None, ..*packet })?;
        if arrival == ReplayCheck::Fresh {
            self.received.forget_time();
        }
        Ok(arrival)
    }

    /// Returns whether probes are to be sent now.
    pub(crate) fn is_probing(&self) -> bool {
        self.timer.probes_due() > 0
    }

    /// Returns whether a packet of the peer acknowledges this number of ours. One declared lost may
    /// be below our floor, so that the peer skips over it.
    pub(crate) fn is_answer(&self, packet: &Packet<'_>, number: u64) -> bool {
        let (outstanding, _) = self.sent.word(number / WORD);
        let Some(ack) = packet.ack.filter(|_| outstanding >> (number % WORD) & 1 == 1) else {
            return false;
        };
        let cumulative = expand(ack.cumulative(), self.sent.next());
        let word = (number / WORD).wrapping_sub(cumulative / WORD);
        let mut words = ack.words();
        number < cumulative
            || words.any(|(at, bits)| at == word && bits >> (number % WORD) & 1 == 1)
    }

    /// Returns how long lost packets are remembered.
    fn remember_ns(&self) -> u64 {
        (self.rtt.smoothed_ns() / 2).max(REMEMBER_NS)
    }

    /// Advances the window of numbers that the receiver accepts: packets that have blocked it for
    /// that long count as lost. Forgets old losses.
    ///
    /// RR-PKT-4.
    pub(super) fn make_room(&mut self, now_ns: u64) {
        if self.sent.has_lost() {
            self.sent.forget_lost(now_ns.saturating_sub(self.remember_ns()));
        }
        self.give_up_beyond(now_ns, 1);
    }

    /// Declares the oldest packets lost until `room` numbers are available.
    fn give_up_beyond(&mut self, now_ns: u64, room: u64) {
        while self.sent.room() < room {
            let number = self.sent.floor();
            if let Some(record) = self.sent.give_up_floor() {
                self.handle_lost(now_ns, number, &record);
            }
            debug_assert!(self.sent.floor() > number, "the floor rises");
        }
    }

    /// Requests an acknowledgement with the next packet, or with a probe, to learn whether the path
    /// works.
    pub(crate) fn ask(&mut self) {
        self.timer.request_probe();
    }

    /// Returns whether a packet on the path was ever acknowledged.
    pub(crate) fn is_answered(&self) -> bool {
        self.acks.highest().is_some()
    }

    /// Returns when the most recently sent acknowledged packet was sent.
    pub(crate) fn answered_sent_ns(&self) -> Option<u64> {
        self.acks.highest().map(|_| self.acks.sent_ns())
    }

    /// Returns when the last probe timeout fired, after which a probe was sent.
    pub(crate) fn probed_ns(&self) -> u64 {
        self.timer.probed_at_ns()
    }

    /// Returns since when outstanding packets are unacknowledged, while there are any.
    pub(crate) fn unanswered_since_ns(&self) -> u64 {
        self.timer.unanswered_since_ns()
    }

    /// Returns when the last ack-eliciting packet was sent.
    pub(crate) fn asked_ns(&self) -> u64 {
        self.timer.asked_at_ns()
    }

    /// Returns an upper bound of an ordinary round trip.
    pub(crate) fn round_trip_max_ns(&self) -> u64 {
        self.rtt.cautious_ns()
    }

    /// Acknowledges all received packets with the next packet, without delay.
    pub(crate) fn quickack(&mut self) {
        self.received.make_due();
    }

    /// Fires expired timers. `drained`: all received packets are handled; a late turn in which that
    /// is not so fires no loss timer, since an unhandled packet may contain the acknowledgement.
    ///
    /// RR-PKT-10.
    pub(crate) fn handle_timeout(&mut self, now_ns: u64, drained: bool) {
        self.apply_deferred_ack();
        let is_due = self.loss_timer_ns().is_some_and(|due_ns| due_ns <= now_ns);
        if !is_due || (self.is_late() && !drained) {
            return;
        }
        if self.timer.expects_loss() {
            self.find_losses(now_ns, true, u64::MAX);
            self.note_window();
            self.update_pace(now_ns);
            return;
        }
        let probes_due = self.loss.handle_probe_timeout();
        self.timer.handle_probe_timeout(now_ns, probes_due);
        if self.loss.probes() >= DEAD_PROBES {
            // Probes continue for the lifetime of the session, and their records would accumulate.
            self.give_up_beyond(now_ns, NUMBERS_MAX - DEAD_NUMBERS);
        }
    }

    /// Returns when a packet counts as lost, or a probe is due. There is such a time whenever any
    /// packet is outstanding.
    fn loss_timer_ns(&self) -> Option<u64> {
        let is_outstanding = self.sent.count() > 0;
        is_outstanding.then(|| self.timer.due_ns(&self.loss, &self.rtt, self.config.ack_delay_ns))
    }

    /// Returns whether the path counts as not answering.
    ///
    /// RR-PATH-3.
    pub(crate) fn is_silent(&self) -> bool {
        self.loss.is_silent(&self.rtt)
    }

    /// Returns when the next turn is due at the latest; a time in the past means at once. `None`:
    /// when a packet arrives or is to be sent.
    pub(crate) fn poll_timeout(&self) -> Option<u64> {
        let or_never = |time: Option<u64>| time.unwrap_or(u64::MAX);
        let due_ns = (self.received.due_ns())
            .min(or_never(self.loss_timer_ns()))
            .min(or_never(self.pacer.holds_until_ns()));
        (due_ns != u64::MAX).then_some(due_ns)
    }

    /// Returns the next event, with deferred acknowledgements applied.
    #[cfg(test)]
    pub(crate) fn poll_event(&mut self) -> Option<PacketEvent> {
        self.apply_deferred_ack();
        self.events.pop_front()
    }

    /// Returns whether there is no event now, and the path answers.
    #[inline]
    pub(crate) fn is_calm(&self) -> bool {
        self.events.is_empty() && !self.is_deferred_ack_due() && self.loss.probes() == 0
    }

    /// Returns the next event without applying deferred acknowledgements: the payload in their
    /// packets has notified the layer above.
    #[inline]
    pub(crate) fn poll_known_event(&mut self) -> Option<PacketEvent> {
        self.events.pop_front()
    }

    /// Returns the number of sent and received packets: while it is unchanged, the path is idle.
    pub(crate) fn traffic(&self) -> u64 {
        self.sent.next().wrapping_add(self.received.expected())
    }

    /// Frees memory that an idle path does not need.
    pub(crate) fn shrink(&mut self) {
        self.apply_deferred_ack();
        self.sent.shrink();
        self.received.shrink();
        if self.events.is_empty() {
            self.events = VecDeque::new();
        }
    }

    fn set_pace(&mut self, now_ns: u64) {
        let (window, datagram) = (self.congestion.paced_window(), self.mtu.current() as u64);
        self.pacer.set_rate(now_ns, window, self.rtt.smoothed_ns(), datagram);
    }

    /// Updates pacing after a change of the window or the round trip.
    #[inline]
    fn update_pace(&mut self, now_ns: u64) {
        if self.pacer.is_in_use() {
            self.set_pace(now_ns);
        }
    }

    /// Returns the lengths of everything that may grow.
    #[cfg(test)]
    pub(super) fn capacities(&self) -> [u64; 4] {
        let [records, lost] = self.sent.capacities();
        [records, lost, self.received.capacity(), self.events.capacity() as u64]
    }

    /// Returns the data delivered so far.
    pub(crate) fn delivered(&mut self) -> Delivered {
        self.apply_deferred_ack();
        self.delivery
    }

    /// Returns the congestion window, the bytes in flight, and the consecutive probe timeouts,
    /// which the health of a path depends on.
    pub(crate) fn load(&self) -> (u64, u64, u32) {
        let in_flight = self.sent.bytes_in_flight();
        (self.congestion.window(), in_flight, self.loss.probes())
    }

    /// Returns the smoothed round trip, in nanoseconds.
    pub(crate) fn round_trip_ns(&self) -> u64 {
        self.rtt.smoothed_ns()
    }

    /// Returns the longest datagram that may be sent.
    pub(crate) fn datagram_bytes_max(&self) -> usize {
        self.config.datagram_bytes_max
    }

    /// Returns the counters.
    pub(crate) fn counters(&self) -> PacketCounters {
        self.counters
    }
}
