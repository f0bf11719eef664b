//! Tagged ping-pong.

use std::time::Instant;

use ringrail::{Attached, Buffer, OperationKind, Selector, SendOptions};

use super::{Side, TAG, message};
use crate::output::{Report, histogram};
use crate::stamp;

/// Iterations that are not counted.
const WARM_UP: u64 = 200;

pub(super) fn run(side: &mut Side<'_, impl Attached>) -> Result<Report, String> {
    let size = side.job.size;
    let mut histogram = histogram();
    let mut verified = true;
    let mut hands = Hands { send: Some(side.buffer(size)?), received: None };
    let receive = side.buffer(size)?;
    let selector = Selector::from_peer(side.peer, TAG);
    side.post_receive(selector, receive, 0)?;
    side.barrier()?;
    let before = side.endpoint.counters();
    let warm_up = WARM_UP.min(side.job.iters);
    let total = side.job.iters + warm_up;
    for number in 0..total {
        if !side.is_server {
            side.job.compute();
        }
        let start = Instant::now();
        if !side.is_server {
            send_one(side, &mut hands.send, number)?;
        }
        let received = receive_one(side, &mut hands)?;
        let elapsed = start.elapsed();
        verified &= received.as_slice().is_some_and(|bytes| check(side, bytes, number));
        // The next receive is there before the answer can bring the next message.
        side.post_receive(selector, received, 0)?;
        if side.is_server {
            send_one(side, &mut hands.send, number)?;
        } else if number >= warm_up {
            histogram.saturating_record((elapsed.as_nanos() / 2) as u64);
        }
        reclaim(side, &mut hands)?;
    }
    let mut report = side.report();
    report.latencies(&histogram);
    side.histogram = Some(histogram);
    side.conclude(&mut report, &before, total, verified)?;
    // The receive that is still posted would take the next round's first message.
    drain(side, &mut hands)?;
    Ok(report)
}

fn check(side: &Side<'_, impl Attached>, bytes: &[u8], number: u64) -> bool {
    match side.job.verify {
        true => stamp::check_all(bytes, number),
        false => stamp::check(bytes, number),
    }
}

/// Sends message `number`: small ones are copied at once, long ones lend their buffer.
fn send_one(
    side: &Side<'_, impl Attached>,
    send: &mut Option<Buffer>,
    number: u64,
) -> Result<(), String> {
    let mut buffer = send.take().ok_or("the send buffer has not come back")?;
    let bytes = buffer.as_mut_slice().ok_or("the buffer is in pieces")?;
    match side.job.verify {
        true => stamp::fill(bytes, number),
        false => stamp::write(bytes, number),
    }
    if bytes.len() <= side.endpoint.domain().settings().inject_limit_bytes() {
        loop {
            match side.endpoint.inject(side.peer, TAG, bytes, SendOptions::new()) {
                Ok(()) => break,
                Err(error) if error.is_would_block() => {
                    if !side.endpoint.progress().map_err(message)? {
                        side.relax();
                    }
                }
                Err(error) => return Err(error.to_string()),
            }
        }
        *send = Some(buffer);
        return Ok(());
    }
    let posted = side.endpoint.post_send(side.peer, TAG, buffer, SendOptions::new().user_data(1));
    posted.map(drop).map_err(|error| error.to_string())
}

/// What completions have brought. A batch may hold the end of the send and the next message, so
/// both are kept until they are asked for.
struct Hands {
    send: Option<Buffer>,
    received: Option<Buffer>,
}

impl Hands {
    fn take_in(&mut self, side: &mut Side<'_, impl Attached>) -> Result<(), String> {
        for completion in side.next_completions()? {
            completion.result.map_err(message)?;
            match completion.kind {
                OperationKind::Receive | OperationKind::MultiReceive => {
                    self.received = completion.buffer
                }
                OperationKind::Send => self.send = completion.buffer,
                _ => {}
            }
        }
        Ok(())
    }
}

/// Waits for the message; a send buffer that comes back meanwhile is kept.
fn receive_one(side: &mut Side<'_, impl Attached>, hands: &mut Hands) -> Result<Buffer, String> {
    loop {
        if let Some(buffer) = hands.received.take() {
            return Ok(buffer);
        }
        hands.take_in(side)?;
    }
}

/// Waits for the send buffer; a message that comes meanwhile is kept.
fn reclaim(side: &mut Side<'_, impl Attached>, hands: &mut Hands) -> Result<(), String> {
    while hands.send.is_none() {
        hands.take_in(side)?;
    }
    Ok(())
}

/// Feeds the receive that is left over.
fn drain(side: &mut Side<'_, impl Attached>, hands: &mut Hands) -> Result<(), String> {
    send_one(side, &mut hands.send, 0)?;
    receive_one(side, hands)?;
    reclaim(side, hands)
}
