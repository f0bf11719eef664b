//! Copy or zero copy: selected per path by measurement (the kernel's "copied" flag is unreliable:
//! registered sends over veth report it and can still be faster).
//!
//! The measured value is the time in which a run of chunks is sent, waiting for socket space
//! included: the duration of a single call shows how fast the kernel takes bytes, not how fast the
//! path drains them.

use super::traits::SendMode;

/// Bytes at the start of a run that are not counted: the socket still holds the other mode's.
const SETTLE_BYTES: u64 = 1 << 20;
/// Bytes of a run that are timed.
const TIMED_BYTES: u64 = 4 << 20;
/// Runs of either mode before deciding; the better one counts, since disturbances only slow down.
const RUNS: u32 = 3;
/// Bytes after which both are tried again, since a path can change.
const RETRY_BYTES: u64 = 4 << 30;
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
    mode: SendMode,
    /// Completed runs, both modes together; `2 * RUNS`: decided.
    runs: u32,
    /// Bytes since the run, or the decision, began.
    bytes: u64,
    elapsed_ns: u64,
    /// Minimum nanoseconds for `TIMED_BYTES`: copy, zero copy.
    best_ns: [u64; 2],
}

fn index(mode: SendMode) -> usize {
    match mode {
        SendMode::Copy | SendMode::CopyMore => 0,
        SendMode::ZeroCopy => 1,
    }
}

impl SendModeSelector {
    pub(crate) fn new(policy: Policy) -> Self {
        let mode = match policy {
            Policy::Measure => SendMode::ZeroCopy,
            Policy::Always(mode) => mode,
        };
        Self { policy, mode, runs: 0, bytes: 0, elapsed_ns: 0, best_ns: [u64::MAX; 2] }
    }

    /// Returns the mode of the next chunk, of `length` bytes.
    pub(crate) fn mode(&self, length: u32) -> SendMode {
        match self.policy {
            Policy::Measure if length < CHUNK_BYTES_MIN => SendMode::Copy,
            _ => self.mode,
        }
    }

    /// Handles the sending time of a chunk of `length` bytes, sent by `mode` in `elapsed_ns`.
    pub(crate) fn handle_sent(&mut self, mode: SendMode, length: u32, elapsed_ns: u64) {
        // The last chunk of a run may end after the next run began.
        let is_of_this_run = mode == self.mode && length >= CHUNK_BYTES_MIN;
        if self.policy != Policy::Measure || !is_of_this_run {
            return;
        }
        self.bytes += u64::from(length);
        if self.runs == 2 * RUNS {
            if self.bytes >= RETRY_BYTES {
                *self = Self::new(self.policy);
            }
            return;
        }
        if self.bytes <= SETTLE_BYTES {
            return;
        }
        self.elapsed_ns += elapsed_ns;
        if self.bytes >= SETTLE_BYTES + TIMED_BYTES {
            self.end_run();
        }
    }

    fn end_run(&mut self) {
        // Runs differ a little in length: the last chunk may exceed the limit.
        let timed_bytes = self.bytes - SETTLE_BYTES;
        let per_run = u128::from(self.elapsed_ns) * u128::from(TIMED_BYTES);
        let cost_ns = (per_run / u128::from(timed_bytes)) as u64;
        let best_ns = &mut self.best_ns[index(self.mode)];
        *best_ns = cost_ns.min(*best_ns);
        self.runs += 1;
        (self.bytes, self.elapsed_ns) = (0, 0);
        self.mode = match self.mode {
            _ if self.runs == 2 * RUNS && self.best_ns[0] < self.best_ns[1] => SendMode::Copy,
            _ if self.runs == 2 * RUNS => SendMode::ZeroCopy,
            SendMode::Copy | SendMode::CopyMore => SendMode::ZeroCopy,
            SendMode::ZeroCopy => SendMode::Copy,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: u32 = 1 << 17;
    /// Chunks until the decision: settling and timed bytes of all runs, rounded up.
    const TRIAL: u64 = 2 * RUNS as u64 * ((SETTLE_BYTES + TIMED_BYTES) / CHUNK as u64 + 1);

    #[test]
    fn faster_mode_is_kept_and_remeasured_later() {
        for (copy_ns, zero_copy_ns, winner) in
            [(100, 50, SendMode::ZeroCopy), (50, 100, SendMode::Copy)]
        {
            let mut path = SendModeSelector::new(Policy::Measure);
            let mut last_loser = 0;
            let mut chunks = 0;
            let mut send = |path: &mut SendModeSelector| {
                let mode = path.mode(CHUNK);
                if mode != winner {
                    last_loser = chunks;
                }
                chunks += 1;
                let cost = if mode == SendMode::Copy { copy_ns } else { zero_copy_ns };
                path.handle_sent(mode, CHUNK, cost * 1000);
            };
            while path.runs < 2 * RUNS {
                send(&mut path);
            }
            for _ in 1..RETRY_BYTES / u64::from(CHUNK) {
                send(&mut path);
                assert_eq!(path.mode(CHUNK), winner);
            }
            send(&mut path);
            assert_eq!(path.runs, 0, "both are tried again");
            assert!(last_loser < TRIAL, "{last_loser}");
        }
    }

    #[test]
    fn single_disturbed_run_does_not_decide() {
        let mut path = SendModeSelector::new(Policy::Measure);
        for number in 0..TRIAL {
            let mode = path.mode(CHUNK);
            let base = if mode == SendMode::Copy { 40_000 } else { 30_000 };
            // A descheduling in the first run of the faster mode.
            path.handle_sent(mode, CHUNK, if number < 20 { base + 4_000_000 } else { base });
        }
        assert_eq!(path.mode(CHUNK), SendMode::ZeroCopy);
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
