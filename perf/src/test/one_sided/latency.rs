//! One operation at a time.

use std::sync::atomic::Ordering;
use std::time::Instant;

use ringrail::{Atomic, AtomicOp, Attached, Buffer, Datatype, SendOptions};

use super::super::{INJECT_BYTES_MAX, Side, message};
use super::{ELEMENT_BYTES, Memory, inject, prepare, wait};
use crate::output::{Histogram, Report, histogram};
use crate::stamp;

/// Iterations that are not counted.
const WARM_UP: u64 = 200;

/// Puts to and fro: half round trip. Who waits looks at the last word of its memory; of what is too
/// long to be injected, which may come in pieces, at the count of puts.
pub(super) fn puts(side: &mut Side<'_, impl Attached>) -> Result<Report, String> {
    let memory = Memory::exchange(side, 1)?;
    let (size, is_whole) = (side.job.size, side.job.verify);
    let mut histogram = histogram();
    let mut verified = true;
    let mut buffer = Some(side.buffer(size)?);
    let last = memory.last_word(0)?;
    // Behind the barrier the first put may have come already.
    let mut seen = last.load(Ordering::Acquire);
    side.barrier()?;
    let before = side.endpoint.counters();
    let warm_up = WARM_UP.min(side.job.iters);
    let total = side.job.iters + warm_up;
    for number in 1..=total {
        if !side.is_server {
            side.job.compute();
        }
        let start = Instant::now();
        if !side.is_server {
            put(side, &memory, &mut buffer, number)?;
        }
        if size <= INJECT_BYTES_MAX {
            wait(side, || last.load(Ordering::Acquire) != seen)?;
            seen = last.load(Ordering::Acquire);
        } else {
            wait(side, || memory.puts() >= number)?;
        }
        let elapsed = start.elapsed();
        verified &= memory.holds(0, number, is_whole);
        if side.is_server {
            put(side, &memory, &mut buffer, number)?;
        } else if number > warm_up {
            histogram.saturating_record((elapsed.as_nanos() / 2) as u64);
        }
        while buffer.is_none() {
            buffer = completed(side)?;
        }
    }
    side.endpoint.flush(side.peer, SendOptions::new()).map_err(message)?;
    let mut report = side.report();
    report.latencies(&histogram);
    side.conclude(&mut report, &before, total, verified)?;
    Ok(report)
}

/// Puts message `number`: a short one is copied at once, a long one lends its buffer.
fn put<M: Attached>(
    side: &Side<'_, M>,
    memory: &Memory<M>,
    buffer: &mut Option<Buffer>,
    number: u64,
) -> Result<(), String> {
    let mut taken = buffer.take().ok_or("the buffer has not come back")?;
    let bytes = taken.as_mut_slice().ok_or("the buffer is in pieces")?;
    prepare(bytes, number, side.job.verify);
    let at = memory.there(0);
    if bytes.len() <= side.endpoint.domain().settings().inject_limit_bytes() {
        inject(side, at, bytes, false)?;
        *buffer = Some(taken);
        return Ok(());
    }
    let posted = side.endpoint.post_put(side.peer, at, taken, SendOptions::new());
    posted.map(drop).map_err(|error| error.to_string())
}

/// The buffer of the only operation, if it has ended.
fn completed(side: &mut Side<'_, impl Attached>) -> Result<Option<Buffer>, String> {
    let mut buffer = None;
    for completion in side.next_completions()? {
        completion.result.map_err(message)?;
        buffer = completion.buffer;
    }
    Ok(buffer)
}

/// Gets, one after the other: whole round trip.
pub(super) fn gets(side: &mut Side<'_, impl Attached>) -> Result<Report, String> {
    let memory = Memory::exchange(side, 1)?;
    let (size, is_whole) = (side.job.size, side.job.verify);
    let mut bytes = vec![0; size];
    prepare(&mut bytes, 1, is_whole);
    memory.fill(0, &bytes)?;
    let mut buffer = Some(side.buffer(size)?);
    let mut is_good = true;
    ask(side, &memory, |side, _| {
        let mut taken = buffer.take().ok_or("the buffer has not come back")?;
        // What was there before is not taken for what comes.
        prepare(taken.as_mut_slice().ok_or("the buffer is in pieces")?, 0, is_whole);
        let start = Instant::now();
        let posted = side.endpoint.post_get(side.peer, memory.there(0), taken, SendOptions::new());
        posted.map_err(|error| error.to_string())?;
        buffer = completed(side)?;
        let elapsed = start.elapsed();
        let bytes = buffer.as_ref().and_then(|buffer| buffer.as_slice());
        is_good &= bytes.is_some_and(|bytes| {
            stamp::check(bytes, 1) && (!is_whole || stamp::check_between(bytes, 1))
        });
        Ok((elapsed.as_nanos() as u64, is_good))
    })
}

/// Adds 1 to words of the other side and fetches what they were before, one after the other: whole
/// round trip.
pub(super) fn atomics(side: &mut Side<'_, impl Attached>) -> Result<Report, String> {
    let memory = Memory::exchange(side, 1)?;
    let count = side.job.size / ELEMENT_BYTES;
    let ones = 1u64.to_ne_bytes().repeat(count);
    let mut buffer = Some(side.buffer(side.job.size)?);
    let mut is_good = true;
    let is_server = side.is_server;
    let mut report = ask(side, &memory, |side, number| {
        let taken = buffer.take().ok_or("the buffer has not come back")?;
        let start = Instant::now();
        let atomic = Atomic::new(AtomicOp::Sum, Datatype::U64, &ones);
        let (at, options) = (memory.there(0), SendOptions::new());
        let posted = side.endpoint.post_fetch_atomic(side.peer, at, &atomic, taken, options);
        posted.map_err(|error| error.to_string())?;
        buffer = completed(side)?;
        let elapsed = start.elapsed();
        let bytes = buffer.as_ref().and_then(|buffer| buffer.as_slice());
        is_good &= bytes.is_some_and(|bytes| {
            bytes.as_chunks().0.iter().all(|&word| u64::from_ne_bytes(word) == number - 1)
        });
        Ok((elapsed.as_nanos() as u64, is_good))
    })?;
    if is_server {
        let total = side.job.iters + WARM_UP.min(side.job.iters);
        for element in 0..count {
            let word = memory.word(memory.offset(0) + element * ELEMENT_BYTES)?;
            report.verified &= word.load(Ordering::Acquire) == total;
        }
        side.link.put(&report.verified)?;
    } else {
        report.verified &= side.get::<bool>()?;
    }
    Ok(report)
}

/// The client asks, one operation after the other, each of which says how long it took in
/// nanoseconds, and whether all were good; the server makes progress.
fn ask<'a, M: Attached>(
    side: &mut Side<'a, M>,
    memory: &Memory<M>,
    mut one: impl FnMut(&mut Side<'a, M>, u64) -> Result<(u64, bool), String>,
) -> Result<Report, String> {
    side.barrier()?;
    let before = side.endpoint.counters();
    let warm_up = WARM_UP.min(side.job.iters);
    let total = side.job.iters + warm_up;
    let mut histogram: Histogram = histogram();
    let mut verified = true;
    if side.is_server {
        memory.wait_done(side)?;
    } else {
        for number in 1..=total {
            side.job.compute();
            let (nanoseconds, is_good) = one(side, number)?;
            verified &= is_good;
            if number > warm_up {
                histogram.saturating_record(nanoseconds);
            }
        }
        memory.tell_done(side)?;
    }
    let mut report = side.report();
    report.latencies(&histogram);
    side.conclude(&mut report, &before, total, verified)?;
    Ok(report)
}
