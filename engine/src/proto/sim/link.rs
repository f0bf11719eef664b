//! One direction of a simulated link.

use std::ops::Range;

/// Bytes around a UDP payload on Ethernet: preamble, header, IPv4, UDP, check sequence, gap.
const FRAMING_BYTES: u64 = 8 + 14 + 20 + 8 + 4 + 12;

/// SplitMix64: the same seed gives the same numbers, independent of crate versions.
#[derive(Clone, Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Returns a number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns true `ppm` times in a million.
    pub(crate) fn hits(&mut self, ppm: u64) -> bool {
        ppm > 0 && self.below(1_000_000) < ppm
    }
}

/// Properties of a link.
#[derive(Clone, Debug)]
pub(crate) struct LinkConfig {
    pub(crate) bits_per_second: u64,
    /// Capacity of the queue in front of the link, in nanoseconds at its rate.
    pub(crate) queue_ns: u64,
    pub(crate) delay_ns: u64,
    /// Maximum additional delay of a datagram, which may reorder them.
    pub(crate) jitter_ns: u64,
    pub(crate) loss_ppm: u64,
    pub(crate) duplicate_ppm: u64,
    /// Datagrams that take `late_ns` longer.
    pub(crate) late_ppm: u64,
    pub(crate) late_ns: u64,
    /// Longer datagrams are dropped.
    pub(crate) bytes_max: usize,
    /// The time in which everything is dropped.
    pub(crate) dead_ns: Range<u64>,
}

impl LinkConfig {
    pub(crate) fn new(bits_per_second: u64, rtt_ns: u64) -> Self {
        Self {
            bits_per_second,
            // A switch port's share of buffer, or the queue of a WAN router.
            queue_ns: (rtt_ns / 2).max(200_000),
            delay_ns: rtt_ns / 2,
            jitter_ns: 0,
            loss_ppm: 0,
            duplicate_ppm: 0,
            late_ppm: 0,
            late_ns: 0,
            bytes_max: usize::MAX,
            dead_ns: 0..0,
        }
    }

    /// Returns a link of unlimited rate.
    pub(crate) fn fixed(delay_ns: u64) -> Self {
        Self { delay_ns, ..Self::new(u64::MAX, 0) }
    }
}

/// What a link does with all datagrams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Gate {
    Open,
    /// They are lost.
    Cut,
    /// They are kept by the net.
    Held,
}

/// A link; see the module.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) config: LinkConfig,
    pub(crate) gate: Gate,
    random: Random,
    /// When the last queued datagram leaves the queue.
    free_ns: u64,
    sent: u64,
    /// Datagrams (by count) that are dropped, as tests specify.
    pub(crate) dropped: Vec<u64>,
    pub(crate) queue_peak_ns: u64,
}

impl Link {
    pub(crate) fn new(config: LinkConfig, seed: u64) -> Self {
        let dropped = Vec::new();
        let (gate, random) = (Gate::Open, Random(seed));
        Self { config, gate, random, free_ns: 0, sent: 0, dropped, queue_peak_ns: 0 }
    }

    /// Drops the next datagram.
    pub(crate) fn drop_next(&mut self) {
        self.dropped.push(self.sent);
    }

    /// Returns the number of sent datagrams.
    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    /// Sends a datagram, and returns when it and its copy arrive.
    pub(crate) fn send(&mut self, now_ns: u64, bytes: usize) -> [Option<u64>; 2] {
        self.sent += 1;
        let config = &self.config;
        if self.gate != Gate::Open
            || self.dropped.contains(&(self.sent - 1))
            || bytes > config.bytes_max
            || config.dead_ns.contains(&now_ns)
        {
            return [None; 2];
        }
        let start_ns = self.free_ns.max(now_ns);
        if start_ns - now_ns > config.queue_ns {
            return [None; 2];
        }
        self.queue_peak_ns = self.queue_peak_ns.max(start_ns - now_ns);
        let bits = (bytes as u64 + FRAMING_BYTES) * 8;
        self.free_ns = start_ns + bits * 1_000_000_000 / config.bits_per_second;
        if self.random.hits(config.loss_ppm) {
            return [None; 2];
        }
        let mut arrival_ns = self.free_ns + config.delay_ns;
        if config.jitter_ns > 0 {
            arrival_ns += self.random.below(config.jitter_ns);
        }
        if self.random.hits(config.late_ppm) {
            arrival_ns += config.late_ns;
        }
        let copied = self.random.hits(config.duplicate_ppm);
        let spread_ns = 2 * config.delay_ns + config.jitter_ns + 1;
        let copy_ns = copied.then(|| arrival_ns + self.random.below(spread_ns));
        [Some(arrival_ns), copy_ns]
    }
}
