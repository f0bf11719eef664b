//! One path of a session: what comes in, and timers. What goes out is in [`super::transmit`].

use std::collections::VecDeque;

use super::config::PathConfig;
use super::congestion::Congestion;
use super::delivery::Delivered;
use super::fast_path::DeferredAck;
use super::loss::Loss;
use super::mtu::Mtu;
use super::numbers::WORD;
use super::pacing::Pacer;
use super::received::{Arrival, Received, Wants};
use super::rtt::Rtt;
use super::sent::Sent;
use crate::wire::ack::NUMBERS_MAX;
use crate::wire::packet::{Packet, PacketError, expand};

/// A loop that is later than this, and than an eighth of a round trip, first drains what it
/// received: acknowledgements that wait there speak against its timers.
const LATE_NS: u64 = 50_000;
/// Lost packets are remembered for half a round trip, and at least for this.
const REMEMBER_NS: u64 = 50_000;
/// Probe timeouts in a row, the last ones a thousand round trips apart, after which it is not for
/// their slowness that answers do not come.
const DEAD_PROBES: u32 = 16;
/// Numbers that a path which is as dead as that waits for at the most.
const DEAD_NUMBERS: u64 = 128;
/// Probe timeouts without any answer that make one due, however lately something was sent.
pub(super) const PATIENCE_PROBES: u64 = 4;

/// What the layer above is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PacketEvent {
    /// A packet with this token arrived at the peer's path.
    Acked {
        /// As given with the payload.
        token: u64,
    },
    /// A packet with this token is taken for lost. Of one packet, this or the other is reported,
    /// once; a token that was sent in two packets is reported for both.
    Lost {
        /// As given with the payload.
        token: u64,
    },
    /// Payload may be up to so long now; what is sent again may have to be cut anew.
    PayloadBytesMax {
        /// The new limit, without an acknowledgement in the same packet.
        bytes: usize,
    },
}

/// Counters of a path, all since it began.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Statistics {
    /// Datagrams made.
    pub(crate) sent: u64,
    /// Of these, those that carry an acknowledgement only.
    pub(crate) acks_alone: u64,
    /// Packets taken for lost.
    pub(crate) lost: u64,
    /// Of these, those that arrived after all, as an acknowledgement said.
    pub(crate) spurious: u64,
    /// Probes sent on a timeout.
    pub(crate) probes: u64,
    /// Packets that arrived twice, or too late to be told from such.
    pub(crate) duplicates: u64,
}

/// See the module and [`super`], which has the order of calls.
#[derive(Debug)]
pub(crate) struct Path {
    pub(super) config: PathConfig,
    pub(super) sent: Sent,
    pub(super) received: Received,
    pub(super) rtt: Rtt,
    pub(super) loss: Loss,
    pub(super) congestion: Congestion,
    pub(super) pacer: Pacer,
    pub(super) mtu: Mtu,
    pub(super) statistics: Statistics,
    pub(super) delivery: Delivered,
    pub(super) events: VecDeque<PacketEvent>,
    /// The receiver of the payload of a packet gets it before the acknowledgement beside it has
    /// its consequences: they come with [`Self::apply_deferred_ack`], which all calls make that
    /// depend on them.
    pub(super) deferred_ack: Option<DeferredAck>,
    /// How late this turn is.
    pub(super) late_ns: u64,
    /// Highest number ever acknowledged.
    pub(super) highest_acked: Option<u64>,
    /// When the newest of all acknowledged packets was sent.
    pub(super) acked_sent_ns: u64,
    /// The peer's cumulative number, as far as told.
    pub(super) peer_cumulative: u64,
    /// When the oldest of what may be lost is lost.
    pub(super) lost_at_ns: Option<u64>,
    /// When the last packet that wants an answer went.
    pub(super) asked_at_ns: u64,
    /// The peer was asked to answer that packet at once.
    pub(super) asked_at_once: bool,
    /// Since when packets are outstanding and none was answered.
    pub(super) unanswered_since_ns: u64,
    /// When the last probe timeout fired.
    probed_at_ns: u64,
    /// Probes due.
    pub(super) probes_due: u32,
    /// Pacing holds payload back until then.
    pub(super) paced_until_ns: Option<u64>,
}

impl Path {
    /// Begins with nothing sent and nothing received.
    pub(crate) fn new(config: PathConfig) -> Self {
        let datagram = config.datagram_bytes_min;
        let packets = config.window_initial_packets;
        Self {
            sent: Sent::new(),
            received: Received::new(),
            rtt: Rtt::new(config.rtt_initial_ns),
            loss: Loss::new(),
            congestion: Congestion::new(datagram as u64, packets, config.queue_target_ns),
            pacer: Pacer::new(),
            mtu: Mtu::new(datagram, config.datagram_bytes_max),
            statistics: Statistics::default(),
            delivery: Delivered::default(),
            events: VecDeque::new(),
            deferred_ack: None,
            late_ns: 0,
            highest_acked: None,
            acked_sent_ns: 0,
            peer_cumulative: 0,
            lost_at_ns: None,
            asked_at_ns: 0,
            asked_at_once: false,
            unanswered_since_ns: 0,
            probed_at_ns: 0,
            probes_due: 0,
            paced_until_ns: None,
            config,
        }
    }

    /// A turn begins. `late_ns`: how much later than it was due, or than when the datagrams to
    /// be handled may have arrived; 0 for a loop that spins.
    pub(crate) fn start_turn(&mut self, late_ns: u64) {
        self.late_ns = late_ns;
    }

    pub(super) fn is_late(&self) -> bool {
        self.late_ns > LATE_NS.max(self.rtt.smoothed_ns() / 8)
    }

    /// The full number of a packet that arrived, from its low half: what its tag is checked with,
    /// before anything else is believed.
    #[inline]
    pub(crate) fn number_of(&self, low: u32) -> u64 {
        expand(low, self.received.expected())
    }

    /// Takes a packet whose tag is right. Only of a [`Arrival::Fresh`] one is the payload to be
    /// used. An error is the peer's fault; the packet changed nothing.
    #[inline(always)]
    pub(crate) fn handle_packet(
        &mut self,
        now_ns: u64,
        packet: &Packet<'_>,
    ) -> Result<Arrival, PacketError> {
        let number = self.number_of(packet.header.number.get());
        if self.handle_next(now_ns, number, packet) {
            return Ok(Arrival::Fresh);
        }
        self.handle_any(now_ns, number, packet)
    }

    /// [`Self::handle_packet`], whatever it is.
    fn handle_any(
        &mut self,
        now_ns: u64,
        number: u64,
        packet: &Packet<'_>,
    ) -> Result<Arrival, PacketError> {
        let floor = packet.floor.map(|low| expand(low, number));
        if let Some(floor) = floor.filter(|&floor| floor > number) {
            return Err(PacketError::FloorBeyond { floor, number });
        }
        let arrival = self.received.judge(number, floor);
        if arrival != Arrival::Fresh {
            self.statistics.duplicates += u64::from(arrival != Arrival::TooFar);
            return Ok(arrival);
        }
        let may_defer = packet.ack.is_some_and(|ack| self.may_defer(&ack, packet));
        if !may_defer {
            self.apply_deferred_ack();
        }
        let cumulative = packet.ack.map(|ack| self.check(&ack)).transpose()?;
        self.received.handle(now_ns, number, floor, Wants::of(packet), &self.config);
        if let (Some(ack), Some(cumulative)) = (packet.ack, cumulative) {
            self.peer_cumulative = self.peer_cumulative.max(cumulative);
            if may_defer {
                self.defer_ack(now_ns, ack.delay_ns(), cumulative);
            } else {
                self.handle_ack(now_ns, ack.words(), ack.delay_ns(), cumulative);
            }
        }
        Ok(arrival)
    }

    /// Takes a probe whose tag is right and which came from an address that is not known to be the
    /// peer's: it is answered, and that is all. Somebody on the way may have sent it on by another
    /// one, so neither when it came nor what it acknowledges says anything about this path.
    ///
    /// RR-PATH-4.
    pub(crate) fn handle_stray_probe(
        &mut self,
        now_ns: u64,
        packet: &Packet<'_>,
    ) -> Result<Arrival, PacketError> {
        let arrival = self.handle_packet(now_ns, &Packet { ack: None, ..*packet })?;
        if arrival == Arrival::Fresh {
            self.received.forget_time();
        }
        Ok(arrival)
    }

    /// Whether probes are to go now.
    pub(crate) fn is_probing(&self) -> bool {
        self.probes_due > 0
    }

    /// Whether a packet of the peer acknowledges this number of ours. One taken for lost may be
    /// below our floor, so that the peer passes over it.
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

    /// How long lost packets are remembered.
    pub(super) fn remember_ns(&self) -> u64 {
        (self.rtt.smoothed_ns() / 2).max(REMEMBER_NS)
    }

    /// Makes room among the numbers that the receiver takes: what has held the floor for that
    /// long counts as lost. Forgets what was lost long ago.
    ///
    /// RR-PKT-4.
    pub(super) fn make_room(&mut self, now_ns: u64) {
        if self.sent.has_lost() {
            self.sent.forget_lost(now_ns.saturating_sub(self.remember_ns()));
        }
        self.give_up_beyond(now_ns, 1);
    }

    /// What holds the floor counts as lost, until there is room for so many numbers.
    fn give_up_beyond(&mut self, now_ns: u64, room: u64) {
        while self.sent.room() < room {
            let number = self.sent.floor();
            if let Some(record) = self.sent.give_up_floor() {
                self.handle_lost(now_ns, number, &record);
            }
        }
    }

    /// Asks for an answer with the next packet, whatever there is to send: to learn whether the
    /// path carries anything.
    pub(crate) fn ask(&mut self) {
        self.probes_due = self.probes_due.max(1);
    }

    /// Whether the path has carried a packet there and the word of it back.
    pub(crate) fn is_answered(&self) -> bool {
        self.highest_acked.is_some()
    }

    /// When the newest packet that was answered had been sent.
    pub(crate) fn answered_sent_ns(&self) -> Option<u64> {
        self.highest_acked.map(|_| self.acked_sent_ns)
    }

    /// When the last probe timeout fired: its probe went right after.
    pub(crate) fn probed_ns(&self) -> u64 {
        self.probed_at_ns
    }

    /// Since when packets are outstanding and none was answered, while there are some.
    pub(crate) fn unanswered_since_ns(&self) -> u64 {
        self.unanswered_since_ns
    }

    /// When the last packet went that wants an answer.
    pub(crate) fn asked_ns(&self) -> u64 {
        self.asked_at_ns
    }

    /// A round trip that is no surprise.
    pub(crate) fn round_trip_max_ns(&self) -> u64 {
        self.rtt.cautious_ns()
    }

    /// Acknowledges with the next packet what arrived, however shortly ago.
    pub(crate) fn quickack(&mut self) {
        self.received.hasten();
    }

    /// Fires what is due. `drained` says that nothing received is left to be handled; a late
    /// turn in which that is not so fires no loss timer, since what is left may answer it.
    ///
    /// RR-PKT-10.
    pub(crate) fn handle_timeout(&mut self, now_ns: u64, drained: bool) {
        self.apply_deferred_ack();
        let Some(due_ns) = self.loss_timer_ns() else { return };
        if due_ns > now_ns || (self.is_late() && !drained) {
            return;
        }
        if self.lost_at_ns.is_some() {
            self.find_losses(now_ns, true, u64::MAX);
            self.update_pace(now_ns);
            return;
        }
        self.probed_at_ns = now_ns;
        self.probes_due = self.loss.handle_probe_timeout();
        if self.loss.probes() >= DEAD_PROBES {
            // Probes go on for as long as the session lives, and so would the memory of them.
            self.give_up_beyond(now_ns, NUMBERS_MAX - DEAD_NUMBERS);
        }
    }

    /// When a packet counts as lost, or a probe goes. There is such a time whenever anything is
    /// outstanding.
    ///
    /// RR-PKT-9.
    fn loss_timer_ns(&self) -> Option<u64> {
        if self.sent.count() == 0 {
            return None;
        }
        Some(self.lost_at_ns.unwrap_or_else(|| {
            let is_slow = self.loss.probes() == 0 && !self.asked_at_once;
            let ack_delay_ns = if is_slow { self.config.ack_delay_ns } else { 0 };
            let after_ns = self.loss.probe_after_ns(&self.rtt, ack_delay_ns);
            if self.loss.probes() > 0 {
                return self.probed_at_ns + after_ns;
            }
            // Who goes on sending into a dead path hears nothing either.
            let patience_ns = PATIENCE_PROBES * after_ns;
            (self.asked_at_ns + after_ns).min(self.unanswered_since_ns + patience_ns)
        }))
    }

    /// Whether so little is answered that the path is not to be relied on.
    ///
    /// RR-PATH-3.
    pub(crate) fn is_silent(&self) -> bool {
        self.loss.is_silent(&self.rtt)
    }

    /// When the next turn is due at the latest; a time that passed means at once. `None`: when
    /// something arrives or is to be sent.
    pub(crate) fn poll_timeout(&self) -> Option<u64> {
        let or_never = |time: Option<u64>| time.unwrap_or(u64::MAX);
        let due_ns = or_never(self.received.due_ns())
            .min(or_never(self.loss_timer_ns()))
            .min(or_never(self.paced_until_ns));
        (due_ns != u64::MAX).then_some(due_ns)
    }

    /// The next event, of all that is known.
    #[cfg(test)]
    pub(crate) fn poll_event(&mut self) -> Option<PacketEvent> {
        self.apply_deferred_ack();
        self.events.pop_front()
    }

    /// Whether there is no event now, and the path answers.
    #[inline]
    pub(crate) fn is_calm(&self) -> bool {
        self.events.is_empty() && !self.is_deferred_ack_due() && self.loss.probes() == 0
    }

    /// The next event, where nobody waits for what an acknowledgement without gaps means: the
    /// payload that it came beside has told the layer above.
    #[inline]
    pub(crate) fn poll_known_event(&mut self) -> Option<PacketEvent> {
        self.apply_deferred_ack_if_due();
        self.events.pop_front()
    }

    /// Packets made and packets that came: as long as that is the same, it is not in use.
    pub(crate) fn traffic(&self) -> u64 {
        self.sent.next().wrapping_add(self.received.expected())
    }

    /// Gives back what memory an idle path does without.
    pub(crate) fn shrink(&mut self) {
        self.apply_deferred_ack();
        self.sent.shrink();
        self.received.shrink();
        if self.events.is_empty() {
            self.events = VecDeque::new();
        }
    }

    pub(super) fn set_pace(&mut self, now_ns: u64) {
        let (window, datagram) = (self.congestion.paced_window(), self.mtu.current() as u64);
        self.pacer.set_rate(now_ns, window, self.rtt.smoothed_ns(), datagram);
    }

    /// The window or the round trip changed.
    #[inline]
    pub(super) fn update_pace(&mut self, now_ns: u64) {
        if self.pacer.is_in_use() {
            self.set_pace(now_ns);
        }
    }

    /// Lengths of everything that may grow.
    #[cfg(test)]
    pub(super) fn capacities(&self) -> [u64; 4] {
        let [records, lost] = self.sent.capacities();
        [records, lost, self.received.capacity(), self.events.capacity() as u64]
    }

    /// The round trip as it is reckoned with, in nanoseconds.
    pub(crate) fn round_trip_ns(&self) -> u64 {
        self.rtt.smoothed_ns()
    }

    /// The longest datagram that may be sent.
    pub(crate) fn datagram_bytes_max(&self) -> usize {
        self.config.datagram_bytes_max
    }

    /// Counters.
    pub(crate) fn statistics(&self) -> Statistics {
        self.statistics
    }
}
