//! Congestion control.
//!
//! Delay decides, as in Swift (SIGCOMM 2020) and Copa (NSDI 2018): the minimum round trip of a
//! round minus the minimum of the last seconds is the queueing delay. Well below the target the
//! path counts as uncongested and the window grows by a share of itself; near the target by one
//! datagram per round; above it the window shrinks in proportion, at most to half and once per
//! round, and not below a few datagrams. Loss may reduce it below one; pacing then spaces datagrams
//! out.
//!
//! Loss by itself is no sign of congestion, or one bad cable would stall a path. Only loss *beyond
//! the path's usual loss*, by more than chance explains, counts: it indicates a queue too short to
//! show as delay, or a policer.

use super::rtt::Rtt;

/// Maximum of the target queueing delay, in nanoseconds; in between it is a quarter of the minimum
/// RTT.
const TARGET_MAX_NS: u64 = 10_000_000;
/// Samples whose minimum ends slow start: fewer would take jitter for a queue.
const RECENT: usize = 4;
/// Packets after which the loss rate is evaluated.
const LOSS_SAMPLE: u64 = 96;
/// Unit of shares: 65536 is 100 %.
const WHOLE: u64 = 1 << 16;
/// Maximum window, in datagrams: no more than the span of numbers that a receiver accepts.
const WINDOW_MAX_PACKETS: u64 = 1 << 18;
/// Minimum window, as a fraction of a datagram: one of this many parts.
const WINDOW_MIN_PARTS: u64 = 16;
/// Minimum window that delay alone can cause, in datagrams; loss can reduce it further. On a busy
/// machine the peer's loop waits milliseconds for a core, on a path of microseconds.
const WINDOW_DELAY_PACKETS: u64 = 4;
/// The window after persistent congestion, in datagrams.
const WINDOW_RESTART_PACKETS: u64 = 2;

/// Congestion controller; see the module. Windows are in bytes of datagrams.
#[derive(Clone, Debug)]
pub(super) struct Congestion {
    window: u64,
    datagram: u64,
    target_min_ns: u64,
    /// Slow start: the window doubles each round until a queue shows.
    startup: bool,
    /// Bytes by which the window grows in this round.
    growth: u64,
    /// Product of acknowledged bytes and growth, carried until it makes a whole byte.
    growth_part: u64,
    /// The round ends when this number is acknowledged.
    round_end: u64,
    /// The window shrank: samples of this round were sent before that.
    settling: bool,
    /// Less is sent for one round, so that the path's minimum RTT shows.
    draining: bool,
    /// Sending was limited by the window in this round.
    limited: bool,
    /// The minimum queueing delay of this round's samples.
    round_queue_ns: u64,
    recent_ns: [u64; RECENT],
    recent_at: usize,
    quiet_rounds: u32,
    /// Counts since the last loss evaluation.
    acked_packets: u64,
    lost_packets: u64,
    /// Bytes acknowledged in this round.
    round_bytes: u64,
    /// The path's usual share of lost packets.
    usual_loss: u64,
    /// Present while a window reduced for loss is on trial.
    trial: Option<Box<PriorWindow>>,
    /// The window at which loss showed that the path was full: near it growth is slow.
    ceiling: u64,
}

/// Each round the ceiling rises by this part of it.
const CEILING_PART: u64 = 16;

/// State before the window shrank for loss, and the first number sent after that.
#[derive(Clone, Debug)]
struct PriorWindow {
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

    /// Returns the bytes that may be in flight. Below one datagram: one may, if nothing else is.
    #[inline]
    pub(super) fn window(&self) -> u64 {
        if self.draining { self.window * 3 / 4 } else { self.window }
    }

    /// Returns the bytes per round trip for pacing: more than the window, so that pacing never
    /// limits below it, but no more while a queue drains.
    pub(super) fn paced_window(&self) -> u64 {
        let exact = self.settling || self.draining || self.trial.is_some();
        match (self.startup, exact) {
            (true, _) => 2 * self.window,
            (false, true) => self.window(),
            (false, false) if self.window >= self.datagram => self.window / 4 * 5,
            (false, false) => self.window,
        }
    }

    /// Returns whether the path shows no queue, so that small sends need no pacing.
    #[inline]
    pub(super) fn is_uncongested(&self) -> bool {
        self.startup || self.quiet_rounds > 0
    }

    /// Sets the datagram length.
    pub(super) fn set_datagram(&mut self, bytes: u64) {
        self.datagram = bytes;
    }

    /// Notes that sending was limited by the window, and not by the caller.
    #[inline]
    pub(super) fn set_limited(&mut self) {
        self.limited = true;
    }

    /// Returns the target queueing delay.
    fn target_ns(&self, least_ns: u64) -> u64 {
        (least_ns / 4).clamp(self.target_min_ns, TARGET_MAX_NS.max(self.target_min_ns))
    }

    /// Handles an acknowledged packet.
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
            debug_assert!(self.growth_part < self.window.max(1), "whole bytes are taken");
            self.window += whole;
        }
        self.window = self.window.min(WINDOW_MAX_PACKETS * self.datagram);
    }

    /// Handles a lost packet.
    #[inline]
    pub(super) fn handle_loss(&mut self) {
        self.lost_packets += 1;
    }

    /// Handles a spurious loss: if the window shrank for it, it is restored.
    pub(super) fn handle_spurious(&mut self, number: u64) {
        self.lost_packets = self.lost_packets.saturating_sub(1);
        self.acked_packets += 1;
        if let Some(trial) = self.trial.take_if(|trial| number < trial.until) {
            self.window = self.window.max(trial.window);
        }
    }

    /// Handles a round-trip sample, `queue_ns` above the minimum. `epoch`: older minima have
    /// expired.
    #[inline]
    pub(super) fn handle_sample(&mut self, queue_ns: u64, epoch: bool) {
        self.round_queue_ns = self.round_queue_ns.min(queue_ns);
        self.recent_ns[self.recent_at % RECENT] = queue_ns;
        self.recent_at += 1;
        self.draining |= epoch && !self.startup;
    }

    /// Completes an acknowledgement: `highest` is the highest number acknowledged, `next` the one
    /// to be sent next. Returns `true` if a round ended.
    #[inline]
    pub(super) fn handle_ack_end(&mut self, highest: u64, next: u64, rtt: &Rtt) -> bool {
        if self.startup && self.recent_at >= RECENT {
            let recent_ns = self.recent_ns.iter().copied().min().unwrap_or(0);
            if recent_ns >= self.target_ns(rtt.least_ns()) {
                // The sample was sent a round ago, when the window was half of this.
                self.startup = false;
                self.shrink(self.window / 2, next);
            }
        }
        if highest < self.round_end {
            return false;
        }
        if std::mem::take(&mut self.settling) {
            // All samples were sent before the window shrank.
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
            // Aim for three quarters of the target: at this rate the window is that much less.
            let wanted_ns = least_ns + target_ns * 3 / 4;
            // A window of gigabytes by round trips of seconds takes more than 64 bits.
            let wanted = u128::from(self.window) * u128::from(wanted_ns);
            let wanted = wanted / u128::from(least_ns + queue_ns);
            let wanted = u64::try_from(wanted).unwrap_or(self.window);
            // A descheduled host looks like a queue, and shorter windows do not help it.
            let least = (WINDOW_DELAY_PACKETS * self.datagram).min(self.window);
            self.shrink(wanted.max(self.window / 2).max(least), next);
        } else if self.trial.is_some() {
            self.growth = 0;
        } else if queue_ns >= target_ns / 2 {
            self.quiet_rounds = 0;
            self.growth = self.datagram.min(self.window);
        } else {
            // Only rounds that used the window show that it may grow.
            if self.limited {
                self.quiet_rounds = (self.quiet_rounds + 1).min(3);
            }
            let share = self.window >> (5 - self.quiet_rounds.clamp(1, 3));
            let share = share.min(self.ceiling.saturating_sub(self.window));
            self.growth = share.max(self.datagram.min(self.window));
        }
        self.ceiling = self.ceiling.saturating_add(self.ceiling / CEILING_PART);
    }

    /// Compares losses with the path's usual loss. If they exceed it by more than chance explains,
    /// the window shrinks to the delivered bytes, as a trial. If two thirds of the excess disappear
    /// with that, it was congestion; if not, it is the path's own loss: it becomes the usual share,
    /// and the window is restored. Returns `true` if the window shrank.
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
        // Fast down, slowly up: a queue that overflows occasionally must not count as usual loss.
        self.usual_loss =
            if share < usual { (usual + share) / 2 } else { usual + (share - usual) / 16 };
        let excess = lost.saturating_sub(all * usual / WHOLE);
        // Three standard deviations of a Poisson count, and two for small counts.
        if excess <= 2 + 3 * lost.isqrt() {
            return false;
        }
        let (window, startup) = (self.window, self.startup);
        self.startup = false;
        // Choose a window that would deliver as many bytes with the usual loss only, less an eighth
        // for the queue to drain.
        let sent_bytes = self.round_bytes * WHOLE / (WHOLE - usual.min(WHOLE * 3 / 4));
        self.shrink((sent_bytes * 7 / 8).clamp(window / 2, window), next);
        self.trial = Some(Box::new(PriorWindow { share, window, startup, until: next }));
        true
    }

    /// Handles persistent congestion: everything sent for a long time was lost.
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
        debug_assert!(window <= self.window, "it does not grow by that");
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

    /// Runs rounds of `window / 1000` packets, of which `lost` in 1000 are lost, at `rtt_ns`.
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
    fn window_converges_to_a_full_link_with_a_short_queue() {
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
    fn random_loss_does_not_shrink_the_window() {
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
    fn excess_loss_shrinks_the_window_and_spurious_loss_restores_it() {
        let mut rounds = Rounds::new();
        rounds.run(60, 0, link);
        let before = rounds.congestion.window();
        // Losses without additional delay, as a short queue causes.
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
    fn delay_never_shrinks_the_window_below_a_few_datagrams() {
        let mut rounds = Rounds::new();
        rounds.run(60, 0, link);
        rounds.run(80, 0, |_| 1_000_000);
        assert_eq!(rounds.congestion.window(), 4000);
        rounds.run(400, 0, link);
        assert!(rounds.congestion.window() > 120_000, "{}", rounds.congestion.window());
    }

    #[test]
    fn maximum_window_and_minute_rtt_do_not_overflow() {
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
    fn persistent_congestion_restarts_slow_start() {
        let mut rounds = Rounds::new();
        rounds.run(60, 0, link);
        rounds.congestion.handle_persistent_congestion(rounds.next);
        assert_eq!(rounds.congestion.window(), 2000);
        rounds.run(10, 0, link);
        assert!(rounds.congestion.window() > 60_000, "{}", rounds.congestion.window());
    }
}
