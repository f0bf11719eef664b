//! What one seed decides about datagrams. Drawn apart from the rest of the plan.

use crate::driver::sim::datagrams::DatagramImpairments;
use crate::driver::sim::random::Random;

const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000_000;
const PERCENT: u64 = 10_000;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct DatagramPlan {
    /// One process in so many takes no datagrams; 0: all do.
    pub(crate) without_one_in: usize,
    pub(crate) impairments: DatagramImpairments,
    /// Mean time between two firewalls that come up from one host to another, and how long they
    /// stay at the most; streams pass them.
    pub(crate) firewall_ns: Option<(u64, u64)>,
    /// Mean time between two datagrams of an on-path attacker without a key.
    pub(crate) attack_ns: Option<u64>,
    /// Hosts with even numbers only send and the others only receive: nothing that a receiver has
    /// to say goes along with messages of its own.
    pub(crate) one_way: bool,
    /// Some ways let no datagram pass for ever, also when the world is whole.
    pub(crate) firewalls_stay: bool,
}

impl DatagramPlan {
    /// Datagrams in a network that leaves them alone.
    pub(crate) fn fair() -> Self {
        Self {
            without_one_in: 0,
            impairments: DatagramImpairments::ideal(),
            firewall_ns: None,
            attack_ns: None,
            one_way: false,
            firewalls_stay: false,
        }
    }

    /// Of every other seed.
    pub(crate) fn new(seed: u64) -> Option<Self> {
        let mut random = Random::new(seed ^ 0x0da7_a600);
        if random.one_in(2) {
            return None;
        }
        let impairments = DatagramImpairments {
            ns_per_kib: random.pick(&[0, 0, 100, 1000, 10_000]),
            queue_bytes: random.pick(&[0, 20_000, 200_000]),
            send_room_bytes: random.pick(&[0, 5_000, 100_000]),
            receive_room_bytes: random.pick(&[0, 5_000, 100_000]),
            bytes_max: random.pick(&[0, 0, 1200, 1472]),
            loss_ppm: random.pick(&[0, 0, 100, PERCENT, 10 * PERCENT, 30 * PERCENT]),
            duplicate_ppm: random.pick(&[0, 0, PERCENT, 30 * PERCENT]),
            late_ppm: random.pick(&[0, 0, PERCENT, 20 * PERCENT]),
            late_ns: random.pick(&[10, 500, 5000]) * MICROSECOND,
            flip_ppm: random.pick(&[0, 0, PERCENT, 10 * PERCENT]),
            truncate_ppm: random.pick(&[0, 0, PERCENT, 10 * PERCENT]),
            rebind_ppm: random.pick(&[0, 0, 0, 1000, PERCENT]),
            rebind_keeps_ns: random.pick(&[0, 1, 100]) * MILLISECOND,
            unsupported_one_in: random.pick(&[0, 0, 0, 3]),
        };
        let firewalls = random.one_in(3);
        let firewall_ns =
            (random.pick(&[200, 5000]) * MICROSECOND, random.pick(&[1, 20, 300]) * MILLISECOND);
        let attacks = random.one_in(3);
        let attack_ns = random.pick(&[5, 50, 500]) * MICROSECOND;
        let without_one_in = random.pick(&[0, 0, 3]);
        Some(Self {
            without_one_in,
            impairments,
            firewall_ns: firewalls.then_some(firewall_ns),
            attack_ns: attacks.then_some(attack_ns),
            firewalls_stay: random.one_in(3),
            one_way: random.one_in(4),
        })
    }
}
