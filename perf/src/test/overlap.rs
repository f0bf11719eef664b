//! Long messages while the program computes and makes no call: how much of a transfer a thread of
//! the engine makes meanwhile.
//!
//! Both sides have a dedicated engine. A round has pairs of messages: one that both sides wait for,
//! and one behind whose post both compute for as long as the first one took, and wait then. What
//! the second takes beyond the computing has not been overlapped (as the OSU benchmarks reckon it):
//! 100 (1 - (total - computed) / alone) percent, from 0 to 100. Computing is processor time of the
//! computing thread: where an engine takes its core away, that is not overlapped, either.

use std::time::{Duration, Instant};

use ringrail::{Attached, Buffer, CompletionLevel, OperationKind, Selector, SendOptions};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::{Side, TAG, message};
use crate::output::{EndpointKind, Report, histogram};
use crate::stamp;

/// Pairs that are not counted.
const WARM_UP: u64 = 1;

/// What `overlap` reports beside the latency, which is that of a message alone.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct OverlapReport {
    /// Of the sender.
    pub(crate) overlap_percent: f64,
    /// Of the receiver.
    pub(crate) overlap_percent_peer: f64,
    /// Processor time of all threads but the computing one, by the time that both take together, of
    /// the sender.
    pub(crate) progress_cpu_share: f64,
    /// The same of the receiver.
    pub(crate) progress_cpu_share_peer: f64,
}

/// What one side has measured.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Measured {
    alone: Duration,
    /// Of the messages behind whose post it computed.
    total: Duration,
    computed: Duration,
    progress_cpu: Duration,
}

impl Measured {
    fn overlap_percent(&self) -> f64 {
        let beyond = self.total.saturating_sub(self.computed).as_secs_f64();
        100.0 * (1.0 - beyond / self.alone.as_secs_f64().max(1e-9)).clamp(0.0, 1.0)
    }

    fn progress_cpu_share(&self) -> f64 {
        self.progress_cpu.as_secs_f64() / self.total.as_secs_f64().max(1e-9)
    }
}

fn time_of(clock: ClockId) -> Duration {
    let now = clock_gettime(clock);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Computes for so much processor time of this thread; says how much it was.
fn compute(amount: Duration) -> Duration {
    let begin = time_of(ClockId::ThreadCPUTime);
    loop {
        let spent = time_of(ClockId::ThreadCPUTime) - begin;
        if spent >= amount {
            return spent;
        }
        (0..256).for_each(|_| std::hint::spin_loop());
    }
}

pub(super) fn run(side: &mut Side<'_, impl Attached>) -> Result<Report, String> {
    let mut histogram = histogram();
    let mut measured = Measured::default();
    let mut verified = true;
    let mut buffer = side.buffer(side.job.size)?;
    let before = side.endpoint.counters();
    let total = side.job.iters + WARM_UP;
    for number in 0..total {
        let (alone, is_good);
        (buffer, alone, is_good) = exchange(side, buffer, 2 * number, || ())?;
        verified &= is_good;
        let (mut computed, mut cpu) = (Duration::ZERO, Duration::ZERO);
        let (together, is_good);
        (buffer, together, is_good) = exchange(side, buffer, 2 * number + 1, || {
            cpu = time_of(ClockId::ProcessCPUTime);
            computed = compute(alone);
            cpu = time_of(ClockId::ProcessCPUTime) - cpu;
        })?;
        verified &= is_good;
        if number >= WARM_UP {
            histogram.saturating_record(alone.as_nanos() as u64);
            measured.alone += alone;
            measured.total += together;
            measured.computed += computed;
            measured.progress_cpu += cpu.saturating_sub(computed);
        }
    }
    side.link.put(&measured)?;
    let theirs: Measured = side.get()?;
    let mut report = side.report();
    report.endpoints = Some(EndpointKind::Dedicated);
    report.latencies(&histogram);
    report.overlap = Some(OverlapReport {
        overlap_percent: measured.overlap_percent(),
        overlap_percent_peer: theirs.overlap_percent(),
        progress_cpu_share: measured.progress_cpu_share(),
        progress_cpu_share_peer: theirs.progress_cpu_share(),
    });
    side.conclude(&mut report, &before, 2 * total, verified)?;
    Ok(report)
}

/// One message of the client, behind whose post both sides do something else. Gives the buffer
/// back, how long it took from the post, or from where it might come, to its end, and whether it is
/// whole.
fn exchange(
    side: &mut Side<'_, impl Attached>,
    mut buffer: Buffer,
    number: u64,
    meanwhile: impl FnOnce(),
) -> Result<(Buffer, Duration, bool), String> {
    let start = if side.is_server {
        side.post_receive(Selector::from_peer(side.peer, TAG), buffer, 0)?;
        side.barrier()?;
        Instant::now()
    } else {
        stamp::write(buffer.as_mut_slice().ok_or("the buffer is in pieces")?, number);
        side.barrier()?;
        let start = Instant::now();
        let options = SendOptions::at(CompletionLevel::Delivery);
        side.endpoint.post_send(side.peer, TAG, buffer, options).map_err(|it| it.to_string())?;
        start
    };
    meanwhile();
    // It is the only operation.
    let completion = side.next_completions()?.next().ok_or("no completion")?;
    let elapsed = start.elapsed();
    completion.result.map_err(message)?;
    let buffer = completion.buffer.ok_or("an operation without its buffer")?;
    let bytes = buffer.as_slice().ok_or("the buffer is in pieces")?;
    let is_good = completion.kind != OperationKind::Receive || stamp::check(bytes, number);
    Ok((buffer, elapsed, is_good))
}
