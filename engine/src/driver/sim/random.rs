//! Random numbers determined by a seed.

/// Xorshift.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        // Splitmix, so that adjacent seeds are unrelated.
        let mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Self((mixed ^ (mixed >> 31)) | 1)
    }

    /// Generator for `names` within the run of `seed`: independent of all others of that run.
    pub(crate) fn of(seed: u64, names: &[u64]) -> Self {
        names.iter().fold(Self::new(seed), |random, name| Self::new(random.0 ^ name))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 11
    }

    /// Less than `bound`; 0 if that is 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    /// Less than `bound_ns`; 0 if that is 0.
    pub(crate) fn within(&mut self, bound_ns: u64) -> u64 {
        self.next() % bound_ns.max(1)
    }

    /// True once in `count` times; never if that is 0.
    pub(crate) fn one_in(&mut self, count: usize) -> bool {
        count > 0 && self.below(count) == 0
    }

    /// True `ppm` times in a million.
    pub(crate) fn hits(&mut self, ppm: u64) -> bool {
        ppm > 0 && self.within(1_000_000) < ppm
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// Generators of one host, by purpose: a draw from one does not affect the others.
#[derive(Debug)]
pub(crate) struct HostRandom {
    /// Duration of turns.
    pub(crate) turns: Random,
    /// Delay of events.
    pub(crate) events: Random,
    /// Impairments of links that have their own.
    pub(crate) links: Random,
    /// Impairments of the datagrams that it sends.
    pub(crate) datagrams: Random,
    /// Impairments of its rings.
    pub(crate) rings: Random,
}

impl HostRandom {
    pub(crate) fn new(seed: u64, host: usize) -> Self {
        let of = |purpose: u64| Random::of(seed, &[host as u64, purpose]);
        Self { turns: of(1), events: of(2), links: of(3), datagrams: of(4), rings: of(5) }
    }
}
