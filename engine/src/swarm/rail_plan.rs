//! What one seed decides about rails. Drawn apart from the rest of the plan.

use crate::driver::sim::rails::{LinkImpairments, RailFault};
use crate::driver::sim::random::Random;

const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000_000;
const PERCENT: u64 = 10_000;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct RailPlan {
    /// Links of the first host; one is no choice.
    links: Vec<LinkImpairments>,
    /// Hosts have their links in different orders, and every other one has one less.
    uneven: bool,
    /// Mean time between two faults; 0: none.
    pub(crate) fault_ns: u64,
    /// How long they last at the most.
    pub(crate) outage_ns: u64,
    /// What befalls links, and how often relative to each other.
    faults: Vec<(RailFault, usize)>,
    /// Faults that come and go so many times at the most.
    flaps: usize,
}

impl RailPlan {
    /// Of one seed in three.
    pub(crate) fn new(seed: u64) -> Option<Self> {
        let mut random = Random::new(seed ^ 0x0a11_0f5e);
        if !random.one_in(3) {
            return None;
        }
        let count = random.pick(&[2, 2, 2, 3, 4]);
        let delays = random.pick(&[[0, 0], [1, 1], [5, 20], [5, 500]]);
        let links = (0..count).map(|_| LinkImpairments {
            ns_per_kib: random.pick(&[0, 200, 1000, 3000, 10_000]),
            delay_ns: delays[random.below(2)] * MICROSECOND,
            jitter_ns: random.pick(&[0, 0, 1, 50]) * MICROSECOND,
            loss_ppm: random.pick(&[0, 0, 0, 100, PERCENT]),
            queue_bytes: random.pick(&[0, 0, 200_000]),
        });
        let links: Vec<_> = links.collect();
        let kinds = [
            RailFault::BLACKHOLE,
            RailFault::Blackhole { outward: true, inward: false },
            RailFault::Blackhole { outward: false, inward: true },
            RailFault::BrownOut { loss_ppm: 50 * PERCENT },
            RailFault::Delay { extra_ns: random.pick(&[1, 10, 100]) * MILLISECOND },
            RailFault::Down,
        ];
        let mut faults = Vec::new();
        for _ in 0..random.below(4) {
            faults.push((random.pick(&kinds), 1 + random.below(4)));
        }
        let fault_ns = random.pick(&[1, 10, 100]) * MILLISECOND;
        Some(Self {
            links,
            uneven: random.one_in(2),
            fault_ns: if faults.is_empty() { 0 } else { fault_ns },
            outage_ns: random.pick(&[1, 20, 300, 3000]) * MILLISECOND,
            faults,
            flaps: random.pick(&[1, 1, 10]),
        })
    }

    /// Most links of a host.
    pub(crate) fn links_max(&self) -> usize {
        self.links.len()
    }

    /// The links of a host.
    pub(crate) fn links_of(&self, host: usize) -> Vec<LinkImpairments> {
        let mut links = self.links.clone();
        if self.uneven {
            links.rotate_left(host % self.links.len());
            links.truncate(self.links.len() - host % 2);
        }
        links
    }

    /// The least time on the way between two hosts.
    pub(crate) fn delay_ns(&self) -> u64 {
        2 * self.links.iter().map(|link| link.delay_ns).min().unwrap_or(0)
    }

    /// A fault, how long it lasts, and how often it comes.
    pub(crate) fn fault(&self, random: &mut Random) -> Option<(RailFault, u64, u64)> {
        let total = self.faults.iter().map(|(_, weight)| weight).sum();
        let mut at = random.below(total);
        let (fault, _) = self.faults.iter().find(|(_, weight)| {
            let is_it = at < *weight;
            at = at.saturating_sub(*weight);
            is_it
        })?;
        let outage_ns = 1 + random.within(self.outage_ns);
        Some((*fault, outage_ns, 1 + random.below(self.flaps) as u64))
    }
}
