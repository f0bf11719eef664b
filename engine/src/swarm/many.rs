//! Receives that are not like others: claims, and multi-receives. Of these: each message in a
//! piece of the buffer of its own, in the order of the matches, and the buffer back when all of
//! them have ended.

use super::form::{UNTOUCHED, content, memory_of};
use super::oracle::{Fate, Oracle, PeekedMessage, Place, Process};
use super::{Run, SERIAL_SHIFT};
use crate::memory::Buffer;
use crate::proto::receive::ReceiveRequest;
use crate::types::{Completion, Error, OperationKind, Status};

/// The purpose of a receive.
#[derive(Clone, Copy)]
pub(super) enum What {
    One,
    /// The message that a peek has found.
    Peeked(PeekedMessage),
    /// Many, until fewer bytes are free.
    Many(usize),
}

impl What {
    pub(super) fn peeked(self) -> Option<PeekedMessage> {
        if let Self::Peeked(peeked) = self { Some(peeked) } else { None }
    }

    pub(super) fn min_free(self) -> Option<usize> {
        if let Self::Many(min_free) = self { Some(min_free) } else { None }
    }
}

/// A receive of anything in a context, for a look.
pub(super) fn wish(endpoint: u16, context: u64) -> ReceiveRequest {
    let (peer, tag, ignore, capacity, min_free) = (None, 0, u64::MAX, 0, None);
    ReceiveRequest { endpoint, peer, context, tag, ignore, capacity, min_free }
}

/// The reports of a multi-receive.
#[derive(Debug)]
pub(super) struct Many {
    /// It is released when fewer bytes are free.
    pub(super) min_free: usize,
    /// Offset, bytes taken, message.
    pub(super) taken: Vec<(usize, usize, usize)>,
    /// Messages that failed; where their bytes would lie is not known.
    pub(super) holes: usize,
}

impl Many {
    pub(super) fn new(min_free: usize) -> Self {
        Self { min_free, taken: Vec::new(), holes: 0 }
    }

    /// Where a message that it took begins.
    pub(super) fn offset_of(&self, message: usize) -> Option<usize> {
        self.taken.iter().find(|taken| taken.2 == message).map(|taken| taken.0)
    }
}

impl Oracle {
    /// Takes a completion of multi-receive `index` of `process`.
    pub(super) fn complete_many(
        &mut self,
        process: Process,
        index: usize,
        now_ns: u64,
        completion: Completion,
    ) -> Result<(), String> {
        let Completion { kind, result, offset, buffer, .. } = completion;
        let received = &self.received[index];
        if received.at.0 != process || received.fate != Fate::Outstanding {
            return Err(format!("multi-receive {index} goes on after its end: {received:?}"));
        }
        if kind == OperationKind::Receive {
            let owns = buffer.is_some();
            let taken = self.take_one(process, index, offset as usize, result);
            return if owns { Err("a message owns a buffer of many".into()) } else { taken };
        }
        self.count(process, OperationKind::Receive, -1);
        self.release(process, index, now_ns, result, buffer)
    }

    fn take_one(
        &mut self,
        process: Process,
        index: usize,
        offset: usize,
        result: Result<Status, Error>,
    ) -> Result<(), String> {
        let capacity = self.received[index].capacity;
        let at = self.received[index].at;
        let (status, bytes) = match result {
            Ok(status) => (status, status.length),
            Err(Error::Truncated { status, capacity: had }) => (*status, had as usize),
            Err(error) => {
                if let Some(many) = &mut self.received[index].many {
                    many.holes += 1;
                }
                let is_closing = matches!(error, Error::Cancelled) && self.was_closed(at);
                return if is_closing { Ok(()) } else { self.check_error(process, &error) };
            }
        };
        let is_last = offset + bytes == capacity;
        if offset + bytes > capacity || (bytes < status.length && !is_last) {
            return Err(format!(
                "multi-receive {index} puts {status:?} at {offset}, {bytes} bytes"
            ));
        }
        let message = (status.envelope.tag() >> SERIAL_SHIFT) as usize;
        if message >= self.sent.len() {
            return Err(format!("multi-receive {index} got an unsent message: {status:?}"));
        }
        self.check_message(index, message, &status)?;
        if let Some(many) = &mut self.received[index].many {
            many.taken.push((offset, bytes, message));
        }
        self.sent[message].taken_by = Some(index);
        Ok(())
    }

    fn release(
        &mut self,
        process: Process,
        index: usize,
        now_ns: u64,
        result: Result<Status, Error>,
        buffer: Option<Buffer>,
    ) -> Result<(), String> {
        let memory = memory_of(buffer.ok_or("a multi-receive keeps its buffer")?);
        let received = &mut self.received[index];
        received.ended_ns = now_ns;
        received.fate = if result.is_ok() { Fate::Done } else { Fate::Failed };
        let (form, capacity) = (received.form, received.capacity);
        let Some(many) = &mut received.many else { return Ok(()) };
        many.taken.sort_unstable();
        let mut expected = vec![UNTOUCHED; capacity];
        let mut end = 0;
        for &(offset, bytes, message) in &many.taken {
            if offset < end || (offset > end && many.holes == 0) {
                return Err(format!("messages of multi-receive {index} lie wrongly: {many:?}"));
            }
            if capacity - end < many.min_free && end > 0 {
                return Err(format!("multi-receive {index} took more than it may: {many:?}"));
            }
            end = offset + bytes;
            let whole = content(message as u64, self.sent[message].length);
            expected[offset..end].copy_from_slice(&whole[..bytes]);
        }
        if many.holes == 0 && !form.agrees(&memory, capacity, &expected) {
            return Err(format!("messages are damaged in multi-receive {index}: {many:?}"));
        }
        if let Ok(status) = &result
            && (status.length < end || (many.holes == 0 && status.length != end))
        {
            return Err(format!("multi-receive {index} is reported wrongly: {status:?} {many:?}"));
        }
        self.bury(memory);
        match result {
            Ok(_) | Err(Error::Cancelled) => Ok(()),
            Err(error) => self.check_error(process, &error),
        }
    }
}

impl Run {
    /// Takes the message that a look has found out of matching, and drops it.
    pub(super) fn discard(
        &mut self,
        host: usize,
        at: Place,
        context: u64,
        (from, seen): (Place, Status),
    ) -> Result<(), String> {
        let Some(engine) = self.world.engine(host) else { return Ok(()) };
        let request = wish(at.1, context);
        let Ok(Some((claim, status))) = engine.state.claim(&request) else {
            return Err(format!("a peek found a message that cannot be claimed: {seen:?}"));
        };
        if status != seen || !engine.state.core_mut().discard_claimed(claim) {
            return Err(format!("{status:?} was claimed where {seen:?} was found"));
        }
        self.oracle.discarded(at, from, &status)?;
        self.collect(host)
    }
}
