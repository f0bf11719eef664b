//! Tagged stream with a window, in one direction or both.

mod same;

use std::time::Instant;

use ringrail::{Attached, Buffer, Counters, OperationKind, Selector, SendOptions};

use super::{Side, TAG, message, seconds_since};
use crate::cli::Reuse;
use crate::output::Report;
use crate::stamp;

pub(super) fn run(side: &mut Side<'_, impl Attached>, both: bool) -> Result<Report, String> {
    match side.job.reuse {
        Reuse::Window => windowed(side, both),
        Reuse::Same => same::run(side, both),
    }
}

/// With a buffer for each message of the window.
fn windowed(side: &mut Side<'_, impl Attached>, both: bool) -> Result<Report, String> {
    let (size, total) = (side.job.size, side.job.iters);
    let sends = both || !side.is_server;
    let receives = both || side.is_server;
    let window = side.job.window.min(usize::try_from(total).unwrap_or(usize::MAX));
    let mut posted = 0;
    if receives {
        for _ in 0..window {
            let buffer = side.buffer(size)?;
            post_receive(side, buffer, posted)?;
            posted += 1;
        }
    }
    let mut idle: Vec<Buffer> = Vec::new();
    if sends {
        for _ in 0..window {
            idle.push(side.buffer(size)?);
        }
    }
    side.barrier()?;
    let before = side.endpoint.counters();
    let start = Instant::now();
    let (mut sent, mut sends_done, mut received) = (0, 0, 0);
    let mut verified = true;
    let wanted = (if sends { total } else { 0 }, if receives { total } else { 0 });
    let mut back: Vec<(u64, Buffer)> = Vec::with_capacity(window);
    while (sends_done, received) != wanted {
        while sent < wanted.0
            && let Some(mut buffer) = idle.pop()
        {
            let bytes = buffer.as_mut_slice().ok_or("the buffer is in pieces")?;
            match side.job.verify {
                true => stamp::fill(bytes, sent),
                false => stamp::write(bytes, sent),
            }
            let options = SendOptions::default();
            let posted = side.endpoint.post_send(side.peer, TAG, buffer, options.user_data(sent));
            match posted {
                Ok(_) => sent += 1,
                Err(rejected) if rejected.error.is_would_block() => {
                    idle.push(rejected.buffer);
                    break;
                }
                Err(rejected) => return Err(rejected.to_string()),
            }
        }
        for completion in side.next_completions()? {
            completion.result.map_err(message)?;
            let Some(buffer) = completion.buffer else { continue };
            match completion.kind {
                OperationKind::Send => {
                    sends_done += 1;
                    idle.push(buffer);
                }
                OperationKind::Receive | OperationKind::MultiReceive => {
                    back.push((completion.user_data, buffer))
                }
                _ => {}
            }
        }
        for (number, buffer) in back.drain(..) {
            let bytes = buffer.as_slice().ok_or("the buffer is in pieces")?;
            verified &= match side.job.verify {
                true => stamp::check_all(bytes, number),
                false => stamp::check(bytes, number),
            };
            received += 1;
            if posted < total {
                post_receive(side, buffer, posted)?;
                posted += 1;
            }
        }
    }
    finish(side, both, start, &before, verified)
}

/// The clock stops when the other side has everything.
fn finish(
    side: &mut Side<'_, impl Attached>,
    both: bool,
    start: Instant,
    before: &Counters,
    verified: bool,
) -> Result<Report, String> {
    let (size, total) = (side.job.size, side.job.iters);
    side.link.put(&verified)?;
    let theirs: bool = side.get()?;
    let seconds = seconds_since(start);
    side.span = Some((start, Instant::now()));
    let mut report = side.report();
    let directions = if both { 2.0 } else { 1.0 };
    report.bandwidth_mb_s = Some(directions * size as f64 * total as f64 / seconds / 1e6);
    report.message_rate_per_s = Some(directions * total as f64 / seconds);
    side.conclude(&mut report, before, total, verified && theirs)?;
    Ok(report)
}

fn post_receive(side: &Side<'_, impl Attached>, buffer: Buffer, number: u64) -> Result<(), String> {
    let selector = Selector::from_peer(side.peer, TAG);
    side.post_receive(selector, buffer, number)
}
