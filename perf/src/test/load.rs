//! Ping-pong while four transfers of 16 MiB, or of another length, client to server, are in flight
//! between the same two endpoints. Only samples that began and ended with all four in flight count.
//!
//! Messages of the ping-pong have the hint of the job, or with `bulk` the transfers have it. One
//! that is too long to be injected is pulled, and competes with the transfers for grants.

use std::time::Instant;

use ringrail::{Attached, Buffer, Envelope, Hint, OperationKind, Selector, SendOptions};

use super::{STAMP_BYTES, Side, TAG, message, seconds_since};
use crate::output::{Report, histogram};
use crate::stamp;

/// Bytes of a transfer unless the user says otherwise, and the most that there may be.
pub(crate) const BULK_BYTES: usize = 16 << 20;

/// How many are in flight.
pub(super) const TRANSFERS: usize = 4;
const BULK: Envelope = Envelope::tagged(3);
/// Context of ping-pong operations; bulk ones have their number.
const PING: u64 = u64::MAX;
/// The content of the last ping.
const STOP: u64 = u64::MAX / 2;

pub(super) fn run(side: &mut Side<'_, impl Attached>) -> Result<Report, String> {
    let size = side.job.size.max(STAMP_BYTES);
    let ping = Selector::from_peer(side.peer, TAG);
    side.post_receive(ping, vec![0u8; size].into(), PING)?;
    if side.is_server { serve(side) } else { client(side, size) }
}

fn post_bulk_receive(
    side: &Side<'_, impl Attached>,
    buffer: Buffer,
    number: u64,
) -> Result<(), String> {
    let selector = Selector::from_peer(side.peer, BULK);
    side.post_receive(selector, buffer, number)
}

/// Hints of the ping-pong and of the transfers.
fn hints(side: &Side<'_, impl Attached>) -> (Hint, Hint) {
    match side.job.hint.map_or(Hint::None, Hint::from) {
        Hint::Bulk => (Hint::None, Hint::Bulk),
        hint => (hint, Hint::None),
    }
}

fn pong(side: &Side<'_, impl Attached>, bytes: &[u8]) -> Result<(), String> {
    let (hint, _) = hints(side);
    if bytes.len() > side.endpoint.domain().settings().inject_limit_bytes() {
        let options = SendOptions::default().silent(true).hint(hint);
        let posted =
            side.endpoint.post_send(side.peer, TAG, bytes.to_vec(), options.user_data(PING));
        return posted.map(drop).map_err(|error| error.to_string());
    }
    loop {
        match side.endpoint.inject(side.peer, TAG, bytes, SendOptions::new().hint(hint)) {
            Ok(()) => return Ok(()),
            Err(error) if error.is_would_block() => {
                side.endpoint.progress().map_err(message)?;
            }
            Err(error) => return Err(error.to_string()),
        }
    }
}

fn serve(side: &mut Side<'_, impl Attached>) -> Result<Report, String> {
    let mut posted = 0;
    for _ in 0..TRANSFERS {
        let buffer = side.buffer(side.job.bulk_size)?;
        post_bulk_receive(side, buffer, posted)?;
        posted += 1;
    }
    side.barrier()?;
    let before = side.endpoint.counters();
    let mut verified = true;
    let (mut bulk, mut stop_at) = (0u64, None);
    let mut pings = 0;
    let mut batch = Vec::new();
    while stop_at != Some(bulk) {
        batch.extend(side.next_completions()?);
        for completion in batch.drain(..) {
            completion.result.map_err(message)?;
            let Some(mut buffer) = completion.buffer else { continue };
            let bytes = buffer.as_mut_slice().ok_or("the buffer is in pieces")?;
            if completion.user_data == PING {
                let number = u64::from_le_bytes(bytes[..8].try_into().unwrap_or([0; 8]));
                pong(side, bytes)?;
                if number >= STOP {
                    // The rest of the last ping says how many transfers there were.
                    stop_at = Some(number - STOP);
                } else {
                    pings += 1;
                    let ping = Selector::from_peer(side.peer, TAG);
                    side.post_receive(ping, buffer, PING)?;
                }
            } else {
                verified &= stamp::check(bytes, completion.user_data);
                bulk += 1;
                post_bulk_receive(side, buffer, posted)?;
                posted += 1;
            }
        }
    }
    // The receives that are left over are fed, so that the next round starts clean.
    use_rest(side, posted - bulk)?;
    let mut report = side.report();
    side.conclude(&mut report, &before, pings, verified)?;
    Ok(report)
}

fn use_rest(side: &mut Side<'_, impl Attached>, count: u64) -> Result<(), String> {
    side.barrier()?;
    for _ in 0..count {
        side.link.put(&0)?;
    }
    let mut left = count;
    while left > 0 {
        for completion in side.next_completions()? {
            completion.result.map_err(message)?;
            left -= 1;
        }
    }
    Ok(())
}

fn client(side: &mut Side<'_, impl Attached>, size: usize) -> Result<Report, String> {
    let mut histogram = histogram();
    let mut idle = Vec::with_capacity(TRANSFERS);
    for _ in 0..TRANSFERS {
        idle.push(side.buffer(side.job.bulk_size)?);
    }
    side.barrier()?;
    let before = side.endpoint.counters();
    let start = Instant::now();
    let (mut sent, mut finished, mut samples, mut pings) = (0u64, 0u64, 0, 0u64);
    let mut verified = true;
    let mut bytes = vec![0; size];
    while samples < side.job.iters {
        start_bulk(side, &mut idle, &mut sent)?;
        let had_all = sent - finished == TRANSFERS as u64;
        bytes[..8].copy_from_slice(&pings.to_le_bytes());
        let begin = Instant::now();
        pong(side, &bytes)?;
        let mut answer = None;
        let mut ended = 0;
        while answer.is_none() {
            for completion in side.next_completions()? {
                completion.result.map_err(message)?;
                match (completion.kind, completion.buffer) {
                    (OperationKind::Receive | OperationKind::MultiReceive, buffer) => {
                        answer = buffer
                    }
                    (OperationKind::Send, Some(buffer)) => {
                        idle.push(buffer);
                        ended += 1;
                    }
                    _ => {}
                }
            }
            // A transfer that ended is replaced at once: four stay in flight.
            finished += ended;
            let refill = ended;
            ended = 0;
            if refill > 0 {
                start_bulk(side, &mut idle, &mut sent)?;
            }
        }
        let elapsed = begin.elapsed();
        let buffer = answer.ok_or("no answer")?;
        verified &= buffer.as_slice() == Some(&bytes[..]);
        pings += 1;
        let ping = Selector::from_peer(side.peer, TAG);
        side.post_receive(ping, buffer, PING)?;
        if had_all && sent - finished == TRANSFERS as u64 {
            histogram.saturating_record((elapsed.as_nanos() / 2) as u64);
            samples += 1;
        }
    }
    // The transfers in flight end, then the server is told how many there were.
    while finished < sent {
        for completion in side.next_completions()? {
            completion.result.map_err(message)?;
            finished += 1;
        }
    }
    let seconds = seconds_since(start);
    bytes[..8].copy_from_slice(&(STOP + sent).to_le_bytes());
    pong(side, &bytes)?;
    for completion in side.next_completions()? {
        completion.result.map_err(message)?;
    }
    feed_rest(side)?;
    let mut report = side.report();
    report.latencies(&histogram);
    report.bandwidth_mb_s = Some(sent as f64 * side.job.bulk_size as f64 / seconds / 1e6);
    side.conclude(&mut report, &before, pings, verified)?;
    Ok(report)
}

fn start_bulk(
    side: &Side<'_, impl Attached>,
    idle: &mut Vec<Buffer>,
    sent: &mut u64,
) -> Result<(), String> {
    let (_, hint) = hints(side);
    while let Some(mut buffer) = idle.pop() {
        stamp::write(buffer.as_mut_slice().ok_or("the buffer is in pieces")?, *sent);
        let options = SendOptions::default().hint(hint);
        side.endpoint
            .post_send(side.peer, BULK, buffer, options.user_data(*sent))
            .map_err(|error| error.to_string())?;
        *sent += 1;
    }
    Ok(())
}

/// Feeds the receives that the server has left over, as many as it says.
fn feed_rest(side: &mut Side<'_, impl Attached>) -> Result<(), String> {
    side.barrier()?;
    for _ in 0..TRANSFERS {
        let _: u32 = side.get()?;
        let level = ringrail::CompletionLevel::Match;
        side.endpoint
            .send_blocking(side.peer, BULK, &[], SendOptions::at(level))
            .map_err(message)?;
    }
    Ok(())
}
