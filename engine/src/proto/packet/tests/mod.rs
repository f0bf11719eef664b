//! Two connected paths over simulated links, in virtual time.

mod faults;
mod figures;
mod fuzz;
mod path_pair;
mod properties;
mod snapshot;
mod traffic;

use super::PathConfig;
use crate::proto::sim::LinkConfig;
use path_pair::PathPair;
use traffic::Sender;

const MICRO: u64 = 1_000;
const MILLI: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;
const GBIT: u64 = 1_000_000_000;

/// Returns a symmetric link with the same loss in either direction.
fn lossy(bits_per_second: u64, rtt_ns: u64, loss_ppm: u64) -> [LinkConfig; 2] {
    let link = LinkConfig { loss_ppm, ..LinkConfig::new(bits_per_second, rtt_ns) };
    [link.clone(), link]
}

/// Returns the configuration of a path over Ethernet with 1500 bytes.
fn config(rtt_ns: u64) -> PathConfig {
    PathConfig { rtt_initial_ns: rtt_ns, ..PathConfig::default() }
}

/// Returns the bits per second that arrive at end 1 from `from_ns` to `until_ns`.
fn goodput(pair: &mut PathPair, from_ns: u64, until_ns: u64) -> u64 {
    pair.run(from_ns, |_| false);
    let before = pair.ends[1].receiver.bytes;
    pair.run(until_ns, |_| false);
    (pair.ends[1].receiver.bytes - before) * 8 * SECOND / (until_ns - from_ns)
}

/// Returns a bulk sender: endless messages of 1 MiB, 16 at a time.
fn bulk() -> Sender {
    Sender::new(1 << 20, 16, u32::MAX)
}
