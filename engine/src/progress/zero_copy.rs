//! Copy or zero copy: selected per path by measurement (the kernel's "copied" flag is unreliable:
//! registered sends over veth report it and can still be faster).

use super::traits::SendMode;
use crate::proto::faster_of_two::{Alternative, FasterOfTwo, RunBytes};

/// Runs of chunks: the socket still holds those of the other mode at the start of one.
const RUN_BYTES: RunBytes = RunBytes { settle: 1 << 20, timed: 4 << 20 };
/// Minimum length of chunks that count, and use zero copy: for shorter ones it saves less than its
/// notification costs, and that may wait for a delayed acknowledgement of TCP, 40 ms.
const CHUNK_BYTES_MIN: u32 = 16 << 10;

/// The user's setting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Policy {
    /// The faster one.
    Measure,
    /// Always this one.
    Always(SendMode),
}

/// Selects the mode for one path. Pure: durations are arguments.
#[derive(Debug)]
pub(crate) struct SendModeSelector {
    policy: Policy,
    faster: FasterOfTwo,
}

impl SendModeSelector {
    pub(crate) fn new(policy: Policy) -> Self {
        Self { policy, faster: FasterOfTwo::new(RUN_BYTES) }
    }

    /// Returns the mode of the next chunk, of `length` bytes.
    pub(crate) fn mode(&self, length: u32) -> SendMode {
        match (self.policy, self.faster.way()) {
            (Policy::Always(mode), _) => mode,
            (Policy::Measure, _) if length < CHUNK_BYTES_MIN => SendMode::Copy,
            (Policy::Measure, Alternative::First) => SendMode::ZeroCopy,
            (Policy::Measure, Alternative::Second) => SendMode::Copy,
        }
    }

    /// Handles the sending time of a chunk of `length` bytes, sent by `mode` in `elapsed_ns`.
    pub(crate) fn handle_sent(&mut self, mode: SendMode, length: u32, elapsed_ns: u64) {
        let way = match mode {
            SendMode::ZeroCopy => Alternative::First,
            SendMode::Copy | SendMode::CopyMore => Alternative::Second,
        };
        if self.policy == Policy::Measure && length >= CHUNK_BYTES_MIN {
            self.faster.handle_sent(way, length.into(), elapsed_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: u32 = 1 << 17;
    /// Chunks that are more than both modes are tried with.
    const TRIAL: u32 = 400;

    #[test]
    fn faster_mode_is_kept() {
        for (copy_ns, zero_copy_ns, winner) in
            [(100, 50, SendMode::ZeroCopy), (50, 100, SendMode::Copy)]
        {
            let mut path = SendModeSelector::new(Policy::Measure);
            let mut modes = Vec::new();
            for _ in 0..TRIAL {
                let mode = path.mode(CHUNK);
                modes.push(mode);
                let cost = if mode == SendMode::Copy { copy_ns } else { zero_copy_ns };
                path.handle_sent(mode, CHUNK, cost * 1000);
            }
            assert_eq!(path.mode(CHUNK), winner);
            assert!(modes.contains(&SendMode::Copy) && modes.contains(&SendMode::ZeroCopy));
        }
    }

    #[test]
    fn short_chunks_are_not_measured() {
        let mut path = SendModeSelector::new(Policy::Measure);
        for _ in 0..TRIAL * CHUNK / CHUNK_BYTES_MIN {
            path.handle_sent(SendMode::ZeroCopy, CHUNK_BYTES_MIN - 1, 1);
            assert_eq!(path.mode(CHUNK), SendMode::ZeroCopy, "the first one is still tried");
        }
    }

    #[test]
    fn short_chunks_are_copied_unless_configured() {
        for length in [1, 256, CHUNK_BYTES_MIN - 1] {
            assert_eq!(SendModeSelector::new(Policy::Measure).mode(length), SendMode::Copy);
            let always = Policy::Always(SendMode::ZeroCopy);
            assert_eq!(SendModeSelector::new(always).mode(length), SendMode::ZeroCopy);
        }
        assert_eq!(
            SendModeSelector::new(Policy::Measure).mode(CHUNK_BYTES_MIN),
            SendMode::ZeroCopy
        );
    }

    #[test]
    fn fixed_policy_is_kept() {
        for mode in [SendMode::Copy, SendMode::ZeroCopy] {
            let mut path = SendModeSelector::new(Policy::Always(mode));
            for _ in 0..4 * TRIAL {
                path.handle_sent(mode, CHUNK, 1);
                assert_eq!(path.mode(CHUNK), mode);
            }
        }
    }
}
