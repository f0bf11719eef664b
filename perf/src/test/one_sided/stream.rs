//! Many operations at a time: a stream with a window.

use std::time::Instant;

use ringrail::{Attached, Buffer, SendOptions};

use super::super::{Side, message, seconds_since};
use super::{Memory, prepare};
use crate::output::Report;
use crate::stamp;

/// Who has the bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    /// The client writes.
    Put,
    /// The client reads.
    Get,
}

/// A slot of the target and a buffer for each operation of the window. The clock of puts stops when
/// a flush says that all are in place.
pub(super) fn run(
    side: &mut Side<'_, impl Attached>,
    direction: Direction,
) -> Result<Report, String> {
    let (size, total, is_whole) = (side.job.size, side.job.iters, side.job.verify);
    let window = side.job.window.min(usize::try_from(total).unwrap_or(usize::MAX));
    let memory = Memory::exchange(side, window)?;
    if side.is_server && direction == Direction::Get {
        let mut bytes = vec![0; size];
        for slot in 0..window {
            prepare(&mut bytes, slot as u64 + 1, is_whole);
            memory.fill(slot, &bytes)?;
        }
    }
    let mut idle: Vec<(usize, Buffer)> = Vec::with_capacity(window);
    if !side.is_server {
        for slot in (0..window).rev() {
            idle.push((slot, side.buffer(size)?));
        }
    }
    side.barrier()?;
    let before = side.endpoint.counters();
    let start = Instant::now();
    let mut verified = true;
    if side.is_server {
        memory.wait_done(side)?;
        // That the client is done is told by a put, too.
        verified = direction == Direction::Get || memory.holds_all(total + 1, is_whole);
    } else {
        // How often each slot was used.
        let mut uses = vec![0u64; window];
        let (mut posted, mut done) = (0, 0);
        while done < total {
            while posted < total
                && let Some((slot, mut buffer)) = idle.pop()
            {
                let bytes = buffer.as_mut_slice().ok_or("the buffer is in pieces")?;
                let at = memory.there(slot);
                let options = SendOptions::new().user_data(slot as u64);
                let result = match direction {
                    Direction::Put => {
                        prepare(bytes, memory.number(slot, uses[slot]), is_whole);
                        side.endpoint.post_put(side.peer, at, buffer, options)
                    }
                    Direction::Get => {
                        // What was there before is not taken for what comes.
                        prepare(bytes, 0, is_whole);
                        side.endpoint.post_get(side.peer, at, buffer, options)
                    }
                };
                match result {
                    Ok(_) => {
                        posted += 1;
                        uses[slot] += 1;
                    }
                    Err(rejected) if rejected.error.is_would_block() => {
                        idle.push((slot, rejected.buffer));
                        break;
                    }
                    Err(rejected) => return Err(rejected.to_string()),
                }
            }
            for completion in side.next_completions()? {
                completion.result.map_err(message)?;
                let Some(buffer) = completion.buffer else { continue };
                done += 1;
                idle.push((completion.user_data as usize, buffer));
                if direction == Direction::Get {
                    let bytes = idle.last().and_then(|(_, buffer)| buffer.as_slice());
                    let number = completion.user_data + 1;
                    verified &= bytes.is_some_and(|bytes| {
                        stamp::check(bytes, number)
                            && (!is_whole || stamp::check_between(bytes, number))
                    });
                }
            }
        }
        side.endpoint.flush(side.peer, SendOptions::new()).map_err(message)?;
    }
    let seconds = seconds_since(start);
    if !side.is_server {
        memory.tell_done(side)?;
    }
    let mut report = side.report();
    report.bandwidth_mb_s = Some(size as f64 * total as f64 / seconds / 1e6);
    report.message_rate_per_s = Some(total as f64 / seconds);
    side.conclude(&mut report, &before, total, verified)?;
    Ok(report)
}
