//! What one seed decides about memory that engines of one machine share. Drawn apart from the rest
//! of the plan.

use crate::driver::sim::local_peers::LocalPeerImpairments;
use crate::driver::sim::random::Random;

const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000_000;

/// How rings fare, of one seed in three; they are used where there are datagrams.
pub(crate) fn local_peers_of(seed: u64) -> Option<LocalPeerImpairments> {
    let mut random = Random::new(seed ^ 0x5a3e_d0e5);
    if !random.one_in(3) {
        return None;
    }
    Some(LocalPeerImpairments {
        machines: random.pick(&[1, 1, 2]),
        ring_bytes: random.pick(&[4096, 16 << 10, 32 << 10]),
        delay_ns: random.pick(&[0, 100, 5 * MICROSECOND, 200 * MICROSECOND]),
        full_one_in: random.pick(&[0, 0, 5, 50]),
        end_ns: random.pick(&[0, 200 * MICROSECOND, MILLISECOND, 20 * MILLISECOND]),
        reads: random.one_in(2),
        unreadable_one_in: random.pick(&[0, 3, 20]),
    })
}
