//! Paths that change what streams carry, in plans whose sessions have checksums.
//!
//! What is garbled of chunks is found and asked for again, and nothing fails. What is garbled of a
//! control lane ends the session, for nothing there is repeated.

use super::Run;
use crate::driver::sim::random::Random;
use crate::proto::session::rendezvous::pull::lanes::BAD_CHUNKS_MAX;

/// The next byte is garbled, as the world's planned name; the lowest bit selects where.
pub(super) const GARBLE: u64 = 1 << 38;
/// A chunk rather than a control lane.
const OF_CHUNKS: u64 = 1;

/// How often bytes are garbled: mean times between two of them.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct GarblePlan {
    /// Bytes of chunks and of the headers before them.
    pub(crate) chunks_ns: Option<u64>,
    /// Bytes of control lanes, behind the handshake.
    pub(crate) control_ns: Option<u64>,
    /// So many bytes of chunks are garbled that a message may not get through.
    pub(crate) is_hopeless: bool,
}

impl GarblePlan {
    /// That of a seed whose sessions have checksums, drawn apart from the rest of its plan.
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x6a4b_1e00);
        let (is_of_chunks, is_of_control) = (!random.one_in(3), random.one_in(3));
        let chunks_ns = random.pick(&[20, 200, 2000]) * 1_000;
        let control_ns = random.pick(&[200, 2000, 20_000]) * 1_000;
        Self {
            chunks_ns: is_of_chunks.then_some(chunks_ns),
            control_ns: is_of_control.then_some(control_ns),
            is_hopeless: random.one_in(4),
        }
    }

    fn pause_ns(&self, name: u64) -> Option<u64> {
        if name & OF_CHUNKS != 0 { self.chunks_ns } else { self.control_ns }
    }
}

impl Run {
    /// Begins to garble as planned.
    pub(super) fn begin_garbling(&mut self) {
        for name in [GARBLE, GARBLE | OF_CHUNKS] {
            if let Some(pause_ns) = self.plan.garble.pause_ns(name) {
                self.world.plan(pause_ns, name);
            }
        }
    }

    /// Garbles one byte, if there is one on its way.
    pub(super) fn garble(&mut self, name: u64) {
        let is_of_chunks = name & OF_CHUNKS != 0;
        if is_of_chunks
            && self.garbled_chunks + 1 == BAD_CHUNKS_MAX
            && !self.plan.garble.is_hopeless
        {
            return;
        }
        let hit = self.world.net.borrow_mut().flip(is_of_chunks);
        if let Some((one, other)) = hit {
            self.faults += 1;
            self.world.net.borrow_mut().trace(&[name, one as u64, other as u64]);
            self.garbled_chunks += u32::from(is_of_chunks);
            if !is_of_chunks || self.plan.garble.is_hopeless {
                self.garbled_between(one, other);
            }
        }
        if let Some(pause_ns) = self.plan.garble.pause_ns(name) {
            let pause_ns = 1 + self.random.within(2 * pause_ns);
            self.world.plan(pause_ns, name);
        }
    }
}
