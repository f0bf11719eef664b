//! How much may be in flight.
//!
//! Delay decides, as in Swift (SIGCOMM 2020) and Copa (NSDI 2018): the least round trip of a round
//! against the least of the last seconds is the queue. Well below the target the path counts as
//! uncongested and the window grows by a share of itself; near the target by one datagram per
//! round; above it the window shrinks in proportion, at most to half and once per round, and not
//! below a few datagrams. Loss may take it below one; pacing then spaces datagrams out.
//!
//! Loss by itself is no sign of congestion, or one bad cable would stop a path. What counts is
//! loss *beyond the share that the path loses anyway*, by more than chance explains: that is a
//! queue too short to show as delay, or a policer.

use super::rtt::Rtt;

/// Greatest queueing delay aimed at, in nanoseconds; in between it is a quarter of the least RTT.
const TARGET_MAX_NS: u64 = 10_000_000;
/// Samples whose least one ends the start: fewer would take jitter for a queue.
const RECENT: usize = 4;
/// Packets after which losses are weighed.
const LOSS_SAMPLE: u64 = 96;
/// Unit of shares: 65536 is all.
const WHOLE: u64 = 1 << 16;
/// Windows are no longer, in datagrams: the span of numbers a receiver takes is not longer.
const WINDOW_MAX_PACKETS: u64 = 1 << 18;
/// Windows are no shorter than one of so many parts of a datagram.
const WINDOW_MIN_PARTS: u64 = 16;
/// Delay alone makes no window shorter than this, in datagrams; loss does. On a busy machine the
/// peer's loop waits milliseconds for its core, on a path of microseconds.
const WINDOW_DELAY_PACKETS: u64 = 4;
/// The window after persistent congestion, in datagrams.
const WINDOW_RESTART_PACKETS: u64 = 2;

/// See the module. Windows are in bytes of datagrams.
#[derive(Clone, Debug)]
pub(super) struct Congestion {
    window: u64,
    datagram: u64,
    target_min_ns: u64,
    /// The window doubles each round until a queue shows.
    startup: bool,
    /// Bytes by which the window grows in this round.
    growth: u64,
    /// Acknowledged bytes times growth that did not make a whole byte yet.
    growth_part: u64,
    /// The round ends when this number is acknowledged.
    round_end: u64,
    /// The window shrank: what this round measures was sent before that.
    settling: bool,
    /// For one round less is sent, so that the path's least RTT shows.
    draining: bool,
    /// The window was what limited sending, in this round.
    limited: bool,
    /// The least queue that a sample of this round showed.
    round_queue_ns: u64,
    recent_ns: [u64; RECENT],
    recent_at: usize,
    quiet_rounds: u32,
    /// Counts since losses were weighed last.
    acked_packets: u64,
    lost_packets: u64,
    /// Bytes acknowledged in this round.
    round_bytes: u64,
    /// The share of packets that the path loses anyway.
    usual_loss: u64,
    /// The window shrank for loss.
    trial: Option<Box<Trial>>,
    /// Where loss showed that the path was full: near it the window grows slowly.
    ceiling: u64,
}

/// Each round the ceiling rises by this part of it.
const CEILING_PART: u64 = 16;

/// What was before the window shrank for loss, and the first number sent after that.
#[derive(Clone, Debug)]
struct Trial {
    share: u64,
    window: u64,
    startup: bool,
    until: u64,
}

impl Congestion {
    pub(super) fn new(datagram: u64, initial_packets: u32, target_min_ns: u64) -> Self {
        Self {
            window: datagram * u64::from(initial_packets),
            datagram,
            target_min_ns,
            startup: true,
            growth: 0,
            growth_part: 0,
            round_end: 0,
            settling: false,
            draining: false,
            limited: false,
            round_queue_ns: u64::MAX,
            recent_ns: [0; RECENT],
            recent_at: 0,
            quiet_rounds: 0,
            acked_packets: 0,
            lost_packets: 0,
            round_bytes: 0,
            usual_loss: 0,
            trial: None,
            ceiling: u64::MAX,
        }
    }

    /// Bytes that may be in flight. Below one datagram: one may, if nothing else is.
    #[inline]
    pub(super) fn window(&self) -> u64 {
        if self.draining { self.window * 3 / 4 } else { self.window }
    }

    /// Bytes per round trip that pacing lets go: more than the window, so that pacing follows it
    /// and never holds it back, but no more while a queue drains.
    pub(super) fn paced_window(&self) -> u64 {
        let exact = self.settling || self.draining || self.trial.is_some();
        match (self.startup, exact) {
            (true, _) => 2 * self.window,
            (false, true) => self.window(),
            (false, false) if self.window >= self.datagram => self.window / 4 * 5,
            (false, false) => self.window,
        }
    }

    /// Whether the path shows no queue, so that small sends need no pacing.
    #[inline]
    pub(super) fn is_uncongested(&self) -> bool {
        self.startup || self.quiet_rounds > 0
    }

    /// The datagram's length changed.
    pub(super) fn set_datagram(&mut self, bytes: u64) {
        self.datagram = bytes;
    }

    /// The window, and not the caller, limited what was sent.
    #[inline]
    pub(super) fn set_limited(&mut self) {
        self.limited = true;
    }

    /// The queueing delay aimed at.
    fn target_ns(&self, least_ns: u64) -> u64 {
        (least_ns / 4).clamp(self.target_min_ns, TARGET_MAX_NS.max(self.target_min_ns))
    }

    /// A packet was acknowledged.
    #[inline]
    pub(super) fn handle_ack(&mut self, bytes: u64) {
        self.acked_packets += 1;
        self.round_bytes += bytes;
        if !self.limited {
            return;
        }
        if self.startup {
            self.window += bytes;
        } else {
            self.growth_part += self.growth * bytes;
            let whole = self.growth_part / self.window.max(1);
            self.growth_part -= whole * self.window;
            self.window += whole;
        }
        self.window = self.window.min(WINDOW_MAX_PACKETS * self.datagram);
    }

    /// A packet counts as lost.
    #[inline]
    pub(super) fn handle_loss(&mut self) {
        self.lost_packets += 1;
    }

    /// A packet taken for lost was late: if the window shrank for it, it grows back.
    pub(super) fn handle_spurious(&mut self, number: u64) {
        self.lost_packets = self.lost_packets.saturating_sub(1);
        self.acked_packets += 1;
        if let Some(trial) = self.trial.take_if(|trial| number < trial.until) {
            self.window = self.window.max(trial.window);
        }
    }

    /// A round trip was measured, `queue_ns` above the least. `epoch` says that the least one was
    /// partly forgotten.
    #[inline]
    pub(super) fn handle_sample(&mut self, queue_ns: u64, epoch: bool) {
        self.round_queue_ns = self.round_queue_ns.min(queue_ns);
        self.recent_ns[self.recent_at % RECENT] = queue_ns;
        self.recent_at += 1;
        self.draining |= epoch && !self.startup;
    }

    /// After the packets of one acknowledgement: `highest` is the highest number acknowledged,
    /// `next` the one to be sent next. `true`: a round ended.
    #[inline]
    pub(super) fn handle_ack_end(&mut self, highest: u64, next: u64, rtt: &Rtt) -> bool {
        if self.startup && self.recent_at >= RECENT {
            let recent_ns = self.recent_ns.iter().copied().min().unwrap_or(0);
            if recent_ns >= self.target_ns(rtt.least_ns()) {
                // What is measured was sent a round ago, when the window was half of this.
                self.startup = false;
                self.shrink(self.window / 2, next);
            }
        }
        if highest < self.round_end {
            return false;
        }
        if std::mem::take(&mut self.settling) {
            // All of this was sent before the window shrank.
            self.clear_counts();
        } else if !self.weigh_losses(next) {
            self.draining = false;
            self.weigh_delay(next, rtt);
        }
        self.round_end = next;
        self.round_queue_ns = u64::MAX;
        self.round_bytes = 0;
        self.limited = false;
        true
    }

    fn weigh_delay(&mut self, next: u64, rtt: &Rtt) {
        if self.round_queue_ns == u64::MAX || self.startup {
            return;
        }
        let least_ns = rtt.least_ns();
        let target_ns = self.target_ns(least_ns);
        let queue_ns = self.round_queue_ns;
        if queue_ns >= target_ns {
            // To three quarters of the target: at this rate the window is that much less.
            let wanted_ns = least_ns + target_ns * 3 / 4;
            // A window of gigabytes by round trips of seconds takes more than 64 bits.
            let wanted = u128::from(self.window) * u128::from(wanted_ns);
            let wanted = wanted / u128::from(least_ns + queue_ns);
            let wanted = u64::try_from(wanted).unwrap_or(self.window);
            // A host that does not run looks like a queue, and shorter windows do not help it.
            let least = (WINDOW_DELAY_PACKETS * self.datagram).min(self.window);
            self.shrink(wanted.max(self.window / 2).max(least), next);
        } else if self.trial.is_some() {
            self.growth = 0;
        } else if queue_ns >= target_ns / 2 {
            self.quiet_rounds = 0;
            self.growth = self.datagram.min(self.window);
        } else {
            // Only rounds that used the window say that there is room for more.
            if self.limited {
                self.quiet_rounds = (self.quiet_rounds + 1).min(3);
            }
            let share = self.window >> (5 - self.quiet_rounds.clamp(1, 3));
            let share = share.min(self.ceiling.saturating_sub(self.window));
            self.growth = share.max(self.datagram.min(self.window));
        }
        self.ceiling = self.ceiling.saturating_add(self.ceiling / CEILING_PART);
    }

    /// Compares losses with what the path loses anyway. More than that, and more than chance
    /// explains: the window shrinks to what got through, as a trial. If two thirds of the excess
    /// go away with that, it was congestion; if not, it is the path's own: it is remembered as
    /// usual, and the window comes back. `true`: the window shrank.
    ///
    /// RR-PKT-12.
    fn weigh_losses(&mut self, next: u64) -> bool {
        let (lost, all) = (self.lost_packets, self.acked_packets + self.lost_packets);
        if all < LOSS_SAMPLE {
            return false;
        }
        self.clear_counts();
        let (share, usual) = (lost * WHOLE / all, self.usual_loss);
        if let Some(trial) = self.trial.take() {
            let (before, after) = (trial.share.saturating_sub(usual), share.saturating_sub(usual));
            if after > before / 3 {
                self.usual_loss = share.min(trial.share);
                self.window = self.window.max(trial.window);
                self.startup = trial.startup;
                return false;
            }
            self.ceiling = self.window / 7 * 8;
        }
        // Down fast, up slowly: a queue that overflows now and then must not become usual.
        self.usual_loss =
            if share < usual { (usual + share) / 2 } else { usual + (share - usual) / 16 };
        let excess = lost.saturating_sub(all * usual / WHOLE);
        // Three standard deviations of a Poisson count, and two for small counts.
        if excess <= 2 + 3 * lost.isqrt() {
            return false;
        }
        let (window, startup) = (self.window, self.startup);
        self.startup = false;
        // Of what got through a window is made that would let as much through if only the usual
        // were lost, less an eighth for the queue to drain.
        let sent_bytes = self.round_bytes * WHOLE / (WHOLE - usual.min(WHOLE * 3 / 4));
        self.shrink((sent_bytes * 7 / 8).clamp(window / 2, window), next);
        self.trial = Some(Box::new(Trial { share, window, startup, until: next }));
        true
    }

    /// Everything sent for a long time was lost.
    pub(super) fn handle_persistent_congestion(&mut self, next: u64) {
        let window = self.window.min(WINDOW_RESTART_PACKETS * self.datagram);
        self.shrink(window, next);
        self.startup = true;
        self.recent_at = 0;
        self.trial = None;
    }

    fn clear_counts(&mut self) {
        (self.acked_packets, self.lost_packets) = (0, 0);
    }

    fn shrink(&mut self, window: u64, next: u64) {
        self.window = window.max(self.datagram / WINDOW_MIN_PARTS);
        self.round_end = next;
        self.round_queue_ns = u64::MAX;
        self.settling = true;
        self.quiet_rounds = 0;
        self.growth = 0;
        self.growth_part = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rounds of `window / 1000` packets, of which `lost` in 1000 are lost, at `rtt_ns`.
    struct Rounds {
        congestion: Congestion,
        rtt: Rtt,
        next: u64,
    }

    impl Rounds {
        fn new() -> Self {
            let congestion = Congestion::new(1000, 100, 25_000);
            Self { congestion, rtt: Rtt::new(100_000), next: 0 }
        }

        fn run(&mut self, rounds: u32, lost: u64, round_trip_ns: impl Fn(u64) -> u64) {
            for _ in 0..rounds {
                let packets = (self.congestion.window() / 1000).max(1);
                let first = self.next;
                self.next += packets;
                for number in first..self.next {
                    self.congestion.set_limited();
                    if number * 7919 % 1000 < lost {
                        self.congestion.handle_loss();
                        continue;
                    }
                    let sample_ns = round_trip_ns(self.congestion.window());
                    let (queue_ns, _) = self.rtt.handle_sample(0, sample_ns, 0, true);
                    self.congestion.handle_ack(1000);
                    self.congestion.handle_sample(queue_ns, false);
                    self.congestion.handle_ack_end(number, self.next, &self.rtt);
                }
            }
        }
    }

    /// 10 Gb/s with a round trip of 100 µs: 125 000 bytes fill it.
    fn link(window: u64) -> u64 {
        100_000 + window.saturating_sub(125_000) * 8 / 10
    }

    #[test]
    fn the_window_settles_where_the_link_is_full_and_the_queue_is_short() {
        let mut rounds = Rounds::new();
        rounds.run(60, 0, link);
        for _ in 0..100 {
            rounds.run(1, 0, link);
            let window = rounds.congestion.window();
            assert!((120_000..190_000).contains(&window), "{window}");
        }
    }

    /// RR-PKT-12
    #[test]
    fn random_loss_leaves_the_window_alone() {
        for lost in [10, 100, 300] {
            let mut rounds = Rounds::new();
            rounds.run(100, lost, link);
            for _ in 0..100 {
                rounds.run(1, lost, link);
                let window = rounds.congestion.window();
                assert!((100_000..190_000).contains(&window), "{lost}: {window}");
            }
        }
    }

    #[test]
    fn loss_beyond_the_usual_shrinks_it_and_spurious_loss_gives_it_back() {
        let mut rounds = Rounds::new();
        rounds.run(60, 0, link);
        let before = rounds.congestion.window();
        // Losses at the same delay, which is what a short queue gives.
        while rounds.congestion.trial.is_none() {
            let next = rounds.next;
            rounds.run(1, 300, link);
            assert!(rounds.next < next + 2000);
        }
        let shrunk = rounds.congestion.window();
        assert!(shrunk < before * 9 / 10, "{before} {shrunk}");
        rounds.congestion.handle_spurious(0);
        assert!(rounds.congestion.window() > shrunk);
    }

    #[test]
    fn a_standing_queue_of_others_or_a_slow_host_leaves_a_few_datagrams() {
        let mut rounds = Rounds::new();
        rounds.run(60, 0, link);
        rounds.run(80, 0, |_| 1_000_000);
        assert_eq!(rounds.congestion.window(), 4000);
        rounds.run(400, 0, link);
        assert!(rounds.congestion.window() > 120_000, "{}", rounds.congestion.window());
    }

    #[test]
    fn the_longest_window_and_a_round_trip_of_minutes_are_no_overflow() {
        let mut congestion = Congestion::new(9000, 32, 25_000);
        let mut rtt = Rtt::new(100_000);
        let (mut next, minute_ns) = (0, 60_000_000_000);
        let mut round = |congestion: &mut Congestion, round_trip_ns| {
            for number in next..next + 1000 {
                congestion.set_limited();
                let (queue_ns, _) = rtt.handle_sample(0, round_trip_ns, 0, true);
                congestion.handle_ack(1 << 20);
                congestion.handle_sample(queue_ns, false);
                congestion.handle_ack_end(number, next + 1000, &rtt);
            }
            next += 1000;
        };
        for _ in 0..10 {
            round(&mut congestion, minute_ns);
        }
        assert_eq!(congestion.window(), WINDOW_MAX_PACKETS * 9000);
        congestion.startup = false;
        for _ in 0..3 {
            round(&mut congestion, 2 * minute_ns);
        }
        let window = congestion.window();
        assert!(window >= WINDOW_MAX_PACKETS * 9000 / 4, "{window}");
        assert!(window < WINDOW_MAX_PACKETS * 9000, "{window}");
    }

    #[test]
    fn persistent_congestion_starts_again() {
        let mut rounds = Rounds::new();
        rounds.run(60, 0, link);
        rounds.congestion.handle_persistent_congestion(rounds.next);
        assert_eq!(rounds.congestion.window(), 2000);
        rounds.run(10, 0, link);
        assert!(rounds.congestion.window() > 60_000, "{}", rounds.congestion.window());
    }
}
