//! Tagged ping-pong.

use std::time::Instant;

use ringrail::{Buffer, OperationKind, Selector, SendOptions};

use super::{Side, TAG, message};
use crate::output::{Report, histogram};
use crate::stamp;

/// Iterations that are not counted.
const WARM_UP: u64 = 200;

pub(super) fn run(side: &mut Side<'_>) -> Result<Report, String> {
    let size = side.job.size;
    let mut histogram = histogram();
    let mut verified = true;
    let mut send = Some(side.buffer(size)?);
    let receive = side.buffer(size)?;
    let selector = Selector::from(side.peer, TAG);
    side.endpoint.post_receive(selector, receive, 0).map_err(|error| error.to_string())?;
    side.link.barrier()?;
    let before = side.endpoint.counters();
    let total = side.job.iters + WARM_UP;
    for number in 0..total {
        let start = Instant::now();
        if !side.is_server {
            send_one(side, &mut send, number)?;
        }
        let received = receive_one(side, &mut send)?;
        let elapsed = start.elapsed();
        verified &= received.as_slice().is_some_and(|bytes| check(side, bytes, number));
        // The next receive is there before the answer can bring the next message.
        side.endpoint.post_receive(selector, received, 0).map_err(|error| error.to_string())?;
        if side.is_server {
            send_one(side, &mut send, number)?;
        } else if number >= WARM_UP {
            histogram.saturating_record((elapsed.as_nanos() / 2) as u64);
        }
        if send.is_none() {
            reclaim(side, &mut send)?;
        }
    }
    let mut report = side.report();
    report.latencies(&histogram);
    side.conclude(&mut report, &before, total, verified)?;
    // The receive that is still posted would take the next round's first message.
    drain(side)?;
    Ok(report)
}

fn check(side: &Side<'_>, bytes: &[u8], number: u64) -> bool {
    match side.job.verify {
        true => stamp::check_all(bytes, number),
        false => stamp::check(bytes, number),
    }
}

/// Sends message `number`: small ones are copied at once, long ones lend their buffer.
fn send_one(side: &Side<'_>, send: &mut Option<Buffer>, number: u64) -> Result<(), String> {
    let mut buffer = send.take().ok_or("the send buffer has not come back")?;
    let bytes = buffer.as_mut_slice().ok_or("the buffer is in pieces")?;
    match side.job.verify {
        true => stamp::fill(bytes, number),
        false => stamp::write(bytes, number),
    }
    if bytes.len() <= side.endpoint.domain().settings().inject_limit_bytes() {
        loop {
            match side.endpoint.inject(side.peer, TAG, bytes) {
                Ok(()) => break,
                Err(error) if error.is_would_block() => {
                    side.endpoint.progress().map_err(message)?;
                }
                Err(error) => return Err(error.to_string()),
            }
        }
        *send = Some(buffer);
        return Ok(());
    }
    let posted = side.endpoint.post_send(side.peer, TAG, buffer, SendOptions::default(), 1);
    posted.map(drop).map_err(|error| error.to_string())
}

/// Waits for the message; a send buffer that comes back meanwhile is kept.
fn receive_one(side: &mut Side<'_>, send: &mut Option<Buffer>) -> Result<Buffer, String> {
    loop {
        let mut received = None;
        for completion in side.next_completions()? {
            completion.result.map_err(message)?;
            match completion.kind {
                OperationKind::Receive => received = completion.buffer,
                OperationKind::Send => *send = completion.buffer,
            }
        }
        if let Some(buffer) = received {
            return Ok(buffer);
        }
    }
}

fn reclaim(side: &mut Side<'_>, send: &mut Option<Buffer>) -> Result<(), String> {
    while send.is_none() {
        for completion in side.next_completions()? {
            completion.result.map_err(message)?;
            *send = completion.buffer;
        }
    }
    Ok(())
}

/// Feeds the receive that is left over.
fn drain(side: &mut Side<'_>) -> Result<(), String> {
    let mut send = Some(side.buffer(side.job.size)?);
    send_one(side, &mut send, 0)?;
    receive_one(side, &mut send)?;
    if send.is_none() {
        reclaim(side, &mut send)?;
    }
    Ok(())
}
