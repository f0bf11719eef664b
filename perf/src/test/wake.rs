//! What a dedicated engine that sleeps adds to the first message.
//!
//! The server's endpoint is dedicated, and its other threads make no call. The client, whose thread
//! owns its endpoint, gets a word of the server's memory after a pause in which the server's engine
//! has fallen asleep, and a second time at once, while that still spins. The first get takes longer
//! by the wake of a sleeping thread; what the host itself takes for one is the floor `wake`, which
//! is measured in the same round.

use std::time::{Duration, Instant};

use ringrail::{Attached, SendOptions, topology};
use serde::{Deserialize, Serialize};

use super::one_sided::{ELEMENT_BYTES, Memory};
use super::{Side, message};
use crate::floor;
use crate::output::{EndpointKind, Report, histogram};

/// Pairs of gets that are not counted.
const WARM_UP: u64 = 20;

/// Least pause between two pairs of gets.
const PAUSE: Duration = Duration::from_millis(2);

/// The pause is at least so many times as long as an engine spins before it sleeps.
const PAUSE_BY_SPIN: u32 = 10;

/// What `dedicated-wake` reports beside the latency, which is that of the first get.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct WakeReport {
    /// The median of the second gets, in microseconds.
    pub(crate) awake_us_p50: f64,
    /// What the first one takes longer: the difference of the medians.
    pub(crate) wake_us: f64,
    /// The median of the floor `wake`.
    pub(crate) floor_wake_us_p50: f64,
    /// `wake_us` by `floor_wake_us_p50`.
    pub(crate) by_floor_wake: f64,
}

pub(super) fn run(side: &mut Side<'_, impl Attached>) -> Result<Report, String> {
    let memory = Memory::exchange(side, 1)?;
    let before = side.endpoint.counters();
    let total = side.job.iters + WARM_UP;
    let mut report = side.report();
    report.endpoints = Some(EndpointKind::Dedicated);
    let mut verified = true;
    if side.is_server {
        memory.set_done(side.job.iters)?;
        // From the core that takes its packets, of a lab the client's, to its own.
        let own = topology::cores().first().copied().unwrap_or(0);
        let floor = floor::wake_between([usize::from(own == 0), own])?;
        side.link.put(&floor.latency_us_p50.unwrap_or_default())?;
        // No call to the endpoint: its own thread does everything.
        side.link.barrier()?;
    } else {
        let floor: f64 = side.link.get()?;
        let spin = side.endpoint.domain().settings().spin();
        let pause = PAUSE.max(spin * PAUSE_BY_SPIN);
        let (mut first, mut second) = (histogram(), histogram());
        for number in 0..total {
            let begin = Instant::now();
            while begin.elapsed() < pause {
                std::hint::spin_loop();
            }
            for histogram in [&mut first, &mut second] {
                let mut word = [0; ELEMENT_BYTES];
                let start = Instant::now();
                side.endpoint
                    .get_blocking(side.peer, memory.done_there(), &mut word, SendOptions::new())
                    .map_err(message)?;
                if number >= WARM_UP {
                    histogram.saturating_record(start.elapsed().as_nanos() as u64);
                }
                verified &= u64::from_ne_bytes(word) == side.job.iters;
            }
        }
        side.link.barrier()?;
        let us = |nanoseconds: u64| nanoseconds as f64 / 1e3;
        let (asleep, awake) = (us(first.value_at_quantile(0.5)), us(second.value_at_quantile(0.5)));
        let wake_us = asleep - awake;
        report.latencies(&first);
        report.wake = Some(WakeReport {
            awake_us_p50: awake,
            wake_us,
            floor_wake_us_p50: floor,
            by_floor_wake: wake_us / floor.max(1e-3),
        });
    }
    side.conclude(&mut report, &before, 2 * total, verified)?;
    Ok(report)
}
