//! Copy or zero copy: decided per path by measuring (the kernel's "copied" flag says little:
//! registered sends over veth report it and are still faster).

use super::lanes::SendMode;

/// Chunks timed per mode before deciding.
const TRIALS: u32 = 8;
/// Chunks after which the loser is tried again, for a path can change.
const RETRY_CHUNKS: u32 = 4096;

/// What the user wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Policy {
    /// The faster one.
    Measure,
    /// Always this one.
    Always(SendMode),
}

/// Times one path. Pure: durations come in.
#[derive(Debug)]
pub(crate) struct ZeroCopy {
    policy: Policy,
    /// Least nanoseconds per MiB seen, by mode.
    best: [u64; 2],
    trials: [u32; 2],
    since_decision: u32,
}

fn index(mode: SendMode) -> usize {
    match mode {
        SendMode::Copy => 0,
        SendMode::ZeroCopy => 1,
    }
}

impl ZeroCopy {
    pub(crate) fn new(policy: Policy) -> Self {
        Self { policy, best: [u64::MAX; 2], trials: [0; 2], since_decision: 0 }
    }

    /// How the next chunk is to be sent.
    pub(crate) fn mode(&self) -> SendMode {
        match self.policy {
            Policy::Always(mode) => mode,
            Policy::Measure if self.trials[1] < TRIALS && self.trials[1] <= self.trials[0] => {
                SendMode::ZeroCopy
            }
            Policy::Measure if self.trials[0] < TRIALS => SendMode::Copy,
            Policy::Measure if self.best[1] <= self.best[0] => SendMode::ZeroCopy,
            Policy::Measure => SendMode::Copy,
        }
    }

    /// A chunk of `length` bytes went out in `elapsed_ns`.
    pub(crate) fn handle_sent(&mut self, mode: SendMode, length: u32, elapsed_ns: u64) {
        // Short chunks say nothing about the rate.
        if length < 16 * 1024 {
            return;
        }
        let cost = elapsed_ns.saturating_mul(1 << 20) / u64::from(length);
        let mode = index(mode);
        if self.trials[mode] < TRIALS {
            self.trials[mode] += 1;
            self.best[mode] = self.best[mode].min(cost);
        }
        self.since_decision += 1;
        if self.since_decision == RETRY_CHUNKS {
            *self = Self::new(self.policy);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_faster_mode_is_kept_and_tried_again_later() {
        for (copy_ns, zero_copy_ns, winner) in
            [(100, 50, SendMode::ZeroCopy), (50, 100, SendMode::Copy)]
        {
            let mut path = ZeroCopy::new(Policy::Measure);
            let mut used = [0u32; 2];
            for _ in 0..RETRY_CHUNKS - 1 {
                let mode = path.mode();
                used[index(mode)] += 1;
                let cost = if mode == SendMode::Copy { copy_ns } else { zero_copy_ns };
                path.handle_sent(mode, 1 << 17, cost);
            }
            assert_eq!(path.mode(), winner);
            assert_eq!(used[1 - index(winner)], TRIALS);
            path.handle_sent(winner, 1 << 17, 1);
            assert_eq!(path.mode(), SendMode::ZeroCopy);
        }
    }
}
