//! Rate of small tagged messages.

use std::time::Instant;

use ringrail::{Attached, Envelope, ReceiveOptions, Selector, SendOptions};

use super::{Side, TAG, message, seconds_since};
use crate::output::Report;
use crate::stamp;

/// The client learns by this that the server has everything.
const DONE: Envelope = Envelope::tagged(2);

pub(super) fn run(side: &mut Side<'_, impl Attached>) -> Result<Report, String> {
    let (size, total) = (side.job.size, side.job.iters);
    let before;
    let mut verified = true;
    let start;
    if side.is_server {
        let posts = (4 * side.job.window as u64).min(total);
        let selector = Selector::from_peer(side.peer, TAG);
        for number in 0..posts {
            let buffer = side.buffer(size)?;
            side.post_receive(selector, buffer, number)?;
        }
        side.barrier()?;
        before = side.endpoint.counters();
        start = Instant::now();
        let mut posted = posts;
        let mut received = 0;
        let mut batch = Vec::with_capacity(4096);
        while received < total {
            if side.endpoint.completions(&mut batch, 4096).map_err(message)? == 0 && side.is_crowded
            {
                std::thread::yield_now();
            }
            for completion in batch.drain(..) {
                completion.result.map_err(message)?;
                let Some(buffer) = completion.buffer else { continue };
                let bytes = buffer.as_slice().unwrap_or(&[]);
                verified &= stamp::check(bytes, completion.user_data);
                received += 1;
                if posted < total {
                    side.post_receive(selector, buffer, posted)?;
                    posted += 1;
                }
            }
        }
        send_all(side, DONE, &[])?;
    } else {
        side.barrier()?;
        before = side.endpoint.counters();
        start = Instant::now();
        let mut bytes = vec![0; size];
        let window = side.job.window as u64;
        for number in 0..total {
            stamp::write(&mut bytes, number);
            let more = number % window != window - 1;
            loop {
                match side.endpoint.inject(side.peer, TAG, &bytes, SendOptions::new().more(more)) {
                    Ok(()) => break,
                    Err(error) if error.is_would_block() => {
                        if !side.endpoint.progress().map_err(message)? && side.is_crowded {
                            std::thread::yield_now();
                        }
                    }
                    Err(error) => return Err(error.to_string()),
                }
            }
            if !more {
                side.endpoint.progress().map_err(message)?;
            }
        }
        // A shared engine tells here of what it could not send for another thread.
        let mut failed = Vec::new();
        side.endpoint.completions(&mut failed, 1).map_err(message)?;
        if let Some(Err(error)) = failed.pop().map(|completion| completion.result) {
            return Err(error.to_string());
        }
        let selector = Selector::from_peer(side.peer, DONE);
        side.endpoint
            .receive_blocking(selector, &mut [], ReceiveOptions::new())
            .map_err(message)?;
    }
    let seconds = seconds_since(start);
    side.span = Some((start, Instant::now()));
    let mut report = side.report();
    report.message_rate_per_s = Some(total as f64 / seconds);
    side.conclude(&mut report, &before, total, verified)?;
    Ok(report)
}

fn send_all(
    side: &Side<'_, impl Attached>,
    envelope: Envelope,
    bytes: &[u8],
) -> Result<(), String> {
    let level = ringrail::CompletionLevel::Delivery;
    side.endpoint
        .send_blocking(side.peer, envelope, bytes, SendOptions::at(level))
        .map(drop)
        .map_err(message)
}
