//! Rate of small puts, which the target counts.

use std::time::Instant;

use ringrail::{Attached, SendOptions};

use super::super::{Side, message, seconds_since};
use super::{Memory, inject, prepare, wait};
use crate::output::Report;

pub(super) fn run(side: &mut Side<'_, impl Attached>) -> Result<Report, String> {
    let (size, total, is_whole) = (side.job.size, side.job.iters, side.job.verify);
    let window = side.job.window as u64;
    let memory = Memory::exchange(side, side.job.window)?;
    side.barrier()?;
    let before = side.endpoint.counters();
    let start = Instant::now();
    let mut verified = true;
    if side.is_server {
        wait(side, || memory.puts() >= total)?;
        memory.tell_done(side)?;
        verified = memory.holds_all(total, is_whole);
    } else {
        let mut bytes = vec![0; size];
        for number in 0..total {
            let (slot, uses) = ((number % window) as usize, number / window);
            prepare(&mut bytes, memory.number(slot, uses), is_whole);
            let more = number % window != window - 1;
            inject(side, memory.there(slot), &bytes, more)?;
            if !more {
                side.endpoint.progress().map_err(message)?;
            }
        }
        memory.wait_done(side)?;
    }
    let seconds = seconds_since(start);
    if !side.is_server {
        // Says so if any was refused.
        side.endpoint.flush(side.peer, SendOptions::new()).map_err(message)?;
    }
    let mut report = side.report();
    report.message_rate_per_s = Some(total as f64 / seconds);
    side.conclude(&mut report, &before, total, verified)?;
    Ok(report)
}
