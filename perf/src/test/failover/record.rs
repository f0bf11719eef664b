//! What the receiver writes down while it receives: every millisecond how far it is and what each
//! NIC has got, and each time that nothing came for longer than usual.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use crate::cli::LabRail;

/// From one sample to the next.
const SAMPLE_NS: u64 = 1_000_000;

/// Times without progress are counted only when they are shorter.
const SHORT_NS: u64 = 100_000;

/// A time without progress of the frontier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Standstill {
    pub(super) from_ns: u64,
    pub(super) length_ns: u64,
}

impl Standstill {
    pub(super) fn end_ns(self) -> u64 {
        self.from_ns + self.length_ns
    }
}

/// How things stand at one time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Sample {
    pub(super) at_ns: u64,
    /// Bytes of messages that are there without a gap, in the order they were posted in.
    pub(super) frontier_bytes: u64,
    /// What the NIC of each rail has received, headers and all.
    pub(super) nic_bytes: Vec<u64>,
    /// Standstills shorter than 0.1 ms so far.
    pub(super) short: u64,
}

/// All of it.
#[derive(Default, Debug)]
pub(super) struct Record {
    pub(super) samples: Vec<Sample>,
    /// Those of 0.1 ms and more, oldest first.
    pub(super) standstills: Vec<Standstill>,
}

/// Writes a [`Record`].
pub(super) struct Recorder {
    record: Record,
    counters: Vec<File>,
    next_sample_ns: u64,
    frontier_bytes: u64,
    moved_ns: u64,
    short: u64,
}

impl Recorder {
    /// Begins at `now_ns`, for these rails of the calling process's host.
    pub(super) fn begin(rails: &[LabRail], now_ns: u64) -> Result<Self, String> {
        let open = |rail: &LabRail| {
            let path = format!("/sys/class/net/{}/statistics/rx_bytes", rail.nic);
            File::open(&path).map_err(|error| format!("{path}: {error}"))
        };
        Ok(Self {
            record: Record::default(),
            counters: rails.iter().map(open).collect::<Result<_, _>>()?,
            next_sample_ns: now_ns,
            frontier_bytes: 0,
            moved_ns: now_ns,
            short: 0,
        })
    }

    /// The frontier is at `frontier_bytes` now.
    pub(super) fn see(&mut self, now_ns: u64, frontier_bytes: u64) -> Result<(), String> {
        if frontier_bytes != self.frontier_bytes {
            self.frontier_bytes = frontier_bytes;
            self.end_standstill(now_ns);
        }
        if now_ns >= self.next_sample_ns {
            let nic_bytes = self.counters.iter().map(count).collect::<Result<_, _>>()?;
            let short = self.short;
            self.record.samples.push(Sample { at_ns: now_ns, frontier_bytes, nic_bytes, short });
            self.next_sample_ns = now_ns + SAMPLE_NS;
        }
        Ok(())
    }

    /// The frontier moves at `now_ns`.
    fn end_standstill(&mut self, now_ns: u64) {
        let length_ns = now_ns - self.moved_ns;
        if length_ns < SHORT_NS {
            self.short += 1;
        } else {
            self.record.standstills.push(Standstill { from_ns: self.moved_ns, length_ns });
        }
        self.moved_ns = now_ns;
    }

    /// Ends. A standstill that goes on then counts up to now.
    pub(super) fn end(mut self, now_ns: u64) -> Record {
        self.end_standstill(now_ns);
        self.record
    }
}

/// Asks a counter of sysfs. Takes 2 µs, for the file stays open.
fn count(file: &File) -> Result<u64, String> {
    let mut digits = [0; 24];
    let length = file.read_at(&mut digits, 0).map_err(|error| format!("rx_bytes: {error}"))?;
    let text = std::str::from_utf8(&digits[..length]).unwrap_or_default().trim();
    text.parse().map_err(|_| format!("rx_bytes: `{text}` is no count"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_standstills_are_counted_and_long_ones_kept() {
        let mut recorder = Recorder::begin(&[], 1000).unwrap();
        // 50 µs, nothing new, then 450 µs without progress, then until the end.
        let seen = [(51_000, 10), (300_000, 10), (501_000, 20), (1_100_000, 20)];
        seen.iter().for_each(|&(at, frontier)| recorder.see(at, frontier).unwrap());
        let record = recorder.end(2_501_000);
        let kept = [(51_000, 450_000), (501_000, 2_000_000)]
            .map(|(from_ns, length_ns)| Standstill { from_ns, length_ns });
        assert_eq!(record.standstills, kept);
        assert_eq!(record.samples.len(), 2);
        assert_eq!((record.samples[1].short, record.samples[1].frontier_bytes), (1, 20));
    }
}
