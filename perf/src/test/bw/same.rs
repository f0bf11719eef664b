//! The stream with one buffer to send from and one to receive into, whatever the window.

use std::mem::ManuallyDrop;
use std::time::Instant;

use ringrail::{Attached, Buffer, OperationKind, RawSpan, ReceiveOptions, Selector, SendOptions};

use super::{Side, TAG, finish, message};
use crate::output::Report;
use crate::stamp;

/// The number of every message: there is one buffer to stamp. No byte of it is 0.
const NUMBER: u64 = 0x5a5a_5a5a_5a5a_5a5a;

/// Memory that operations refer to.
///
/// It is freed by [`Self::take_back`] only: who returns or unwinds before leaves it to those that
/// are outstanding.
struct Lent {
    buffer: ManuallyDrop<Buffer>,
    span: RawSpan,
}

impl Lent {
    fn new(
        side: &Side<'_, impl Attached>,
        prepare: impl FnOnce(&mut [u8]),
    ) -> Result<Self, String> {
        let mut buffer = ManuallyDrop::new(side.buffer(side.job.size)?);
        let bytes = buffer.as_mut_slice().ok_or("the buffer is in pieces")?;
        prepare(bytes);
        let span = RawSpan { ptr: bytes.as_mut_ptr(), len: bytes.len() };
        Ok(Self { buffer, span })
    }

    /// The buffer again. No operation refers to it any more.
    fn take_back(self) -> Buffer {
        ManuallyDrop::into_inner(self.buffer)
    }
}

pub(super) fn run(side: &mut Side<'_, impl Attached>, both: bool) -> Result<Report, String> {
    let total = side.job.iters;
    let sends = if both || !side.is_server { total } else { 0 };
    let receives = if both || side.is_server { total } else { 0 };
    let window = side.job.window as u64;
    let is_whole = side.job.verify;
    let stamped = |bytes: &mut [u8]| match is_whole {
        true => stamp::fill(bytes, NUMBER),
        false => stamp::write(bytes, NUMBER),
    };
    let outgoing = (sends > 0).then(|| Lent::new(side, stamped)).transpose()?;
    let incoming = (receives > 0).then(|| Lent::new(side, |bytes| bytes.fill(0))).transpose()?;
    let (mut sent, mut sends_done, mut posted, mut received) = (0, 0, 0, 0);
    let mut verified = true;
    if let Some(memory) = &incoming {
        posted = post_receives(side, memory, window.min(receives))?;
    }
    side.barrier()?;
    let before = side.endpoint.counters();
    let start = Instant::now();
    while (sends_done, received) != (sends, receives) {
        if let Some(memory) = &outgoing {
            let most = (window - (sent - sends_done)).min(sends - sent);
            sent += post_sends(side, memory, most)?;
        }
        let size = side.job.size;
        for completion in side.next_completions()? {
            let status = completion.result.map_err(message)?;
            match completion.kind {
                OperationKind::Send => sends_done += 1,
                OperationKind::Receive | OperationKind::MultiReceive => {
                    received += 1;
                    verified &= status.length == size;
                }
                _ => {}
            }
        }
        if let Some(memory) = &incoming {
            let most = (window - (posted - received)).min(receives - posted);
            posted += post_receives(side, memory, most)?;
        }
    }
    drop(outgoing.map(Lent::take_back));
    if let Some(buffer) = incoming.map(Lent::take_back) {
        let bytes = buffer.as_slice().ok_or("the buffer is in pieces")?;
        verified &= match is_whole {
            true => stamp::check_all(bytes, NUMBER),
            false => stamp::check(bytes, NUMBER),
        };
    }
    finish(side, both, start, &before, verified)
}

/// Posts as many receives as there is room for, at most `count`; how many.
fn post_receives(side: &Side<'_, impl Attached>, memory: &Lent, count: u64) -> Result<u64, String> {
    for done in 0..count {
        let selector = Selector::from_peer(side.peer, TAG);
        // SAFETY: the memory is freed after the end of all operations, and nobody but the engine
        // touches it before. Receives of the engine share it; all messages are alike, so that it
        // does not matter which of them wrote a byte.
        let posted = unsafe {
            side.endpoint.post_receive_raw(selector, &[memory.span], ReceiveOptions::new())
        };
        match posted {
            Ok(_) => {}
            Err(error) if error.is_would_block() => return Ok(done),
            Err(error) => return Err(error.to_string()),
        }
    }
    Ok(count)
}

/// Posts as many sends as there is room for, at most `most`; how many.
fn post_sends(side: &Side<'_, impl Attached>, memory: &Lent, most: u64) -> Result<u64, String> {
    for sent in 0..most {
        let options = SendOptions::default();
        // SAFETY: the memory is freed after the end of all operations, and nobody changes it.
        let posted =
            unsafe { side.endpoint.post_send_raw(side.peer, TAG, &[memory.span], options) };
        match posted {
            Ok(_) => {}
            Err(error) if error.is_would_block() => return Ok(sent),
            Err(error) => return Err(error.to_string()),
        }
    }
    Ok(most)
}
