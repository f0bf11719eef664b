//! The server: receives the stream, answers pings, and watches how far it is.

use std::collections::VecDeque;

use ringrail::{Completion, ReceiveOptions, Selector};

use super::control::now_ns;
use super::record::{Record, Recorder};
use super::tally::Tally;
use super::watched::Watched;
use super::{END_LIMIT_NS, PING, STOP, STREAM, pong, seen_until};
use crate::stamp;
use crate::test::{Side, message};

/// Contexts of receives that are none of the stream, whose contexts count from 0.
const OF_PING: u64 = u64::MAX;
const OF_STOP: u64 = u64::MAX - 1;

/// Bytes of a ping, and of what ends the stream.
const SHORT_BYTES: usize = 8;

/// What a server has seen.
pub(super) struct Seen {
    pub(super) record: Record,
    pub(super) tally: Tally,
    pub(super) sent: u64,
}

/// A receive that is posted, or done while one before it is not.
struct Post {
    slot: usize,
    is_done: bool,
}

struct Receiver<'a, 'b> {
    side: &'a mut Side<'b>,
    /// Outlived by no receive: [`Self::cancel_all`] comes first.
    memory: Vec<Watched>,
    /// From the oldest receive that is not done on, in posting order.
    posts: VecDeque<Post>,
    /// The number of the first of `posts`.
    first: u64,
    posted: u64,
    /// How far the first of `posts` is.
    offset: usize,
    operations: VecDeque<(u64, ringrail::OperationId)>,
    tally: Tally,
    /// How many messages there are, once the client has said so.
    total: Option<u64>,
}

pub(super) fn run(side: &mut Side<'_>) -> Result<Seen, String> {
    let memory = (0..side.job.window).map(|_| Watched::new(side.job.size));
    let mut receiver = Receiver {
        memory: memory.collect::<Result<_, _>>()?,
        side,
        posts: VecDeque::new(),
        first: 0,
        posted: 0,
        offset: 0,
        operations: VecDeque::new(),
        tally: Tally::default(),
        total: None,
    };
    let outcome = receiver.receive();
    if outcome.is_err() {
        // The engine may still have the memory, and may not be able to give it back.
        receiver.memory.drain(..).for_each(std::mem::forget);
    }
    let record = outcome?;
    Ok(Seen { record, tally: receiver.tally, sent: receiver.total.unwrap_or(0) })
}

impl Receiver<'_, '_> {
    fn receive(&mut self) -> Result<Record, String> {
        self.post_short(PING, OF_PING, vec![0; SHORT_BYTES].into())?;
        self.post_short(STOP, OF_STOP, vec![0; SHORT_BYTES].into())?;
        for slot in 0..self.memory.len() {
            self.post(slot)?;
        }
        self.side.barrier()?;
        let mut recorder = Recorder::begin(&self.side.job.lab_rails, now_ns())?;
        let mut batch = Vec::with_capacity(64);
        let mut last_ns = now_ns();
        loop {
            self.side.endpoint.completions(&mut batch, 64).map_err(message)?;
            let now = now_ns();
            if !batch.is_empty() {
                last_ns = now;
            }
            for completion in batch.drain(..) {
                self.take(completion)?;
            }
            self.look();
            recorder.see(now, self.frontier_bytes())?;
            if let Some(total) = self.total {
                // What has not come long after the end is lost.
                let is_over = self.tally.arrived() >= total || now - last_ns > END_LIMIT_NS;
                if is_over {
                    break;
                }
            }
        }
        let record = recorder.end(now_ns());
        self.cancel_all()?;
        Ok(record)
    }

    fn post_short(
        &self,
        label: ringrail::Envelope,
        context: u64,
        buffer: ringrail::Buffer,
    ) -> Result<(), String> {
        let selector = Selector::from_peer(self.side.peer, label);
        let posted = self.side.endpoint.post_receive(
            selector,
            buffer,
            ReceiveOptions::new().user_data(context),
        );
        posted.map(drop).map_err(|error| error.to_string())
    }

    /// Posts a receive of the stream into the memory `slot`.
    fn post(&mut self, slot: usize) -> Result<(), String> {
        let selector = Selector::from_peer(self.side.peer, STREAM);
        let span = [self.memory[slot].span()];
        // SAFETY: no other operation has the memory, and it lives until this one has ended:
        // `cancel_all` waits for all, and where it does not get so far the memory stays for ever.
        let posted = unsafe {
            self.side.endpoint.post_receive_raw(
                selector,
                &span,
                ReceiveOptions::new().user_data(self.posted),
            )
        };
        self.operations.push_back((self.posted, posted.map_err(message)?));
        self.posts.push_back(Post { slot, is_done: false });
        self.posted += 1;
        Ok(())
    }

    fn take(&mut self, completion: Completion) -> Result<(), String> {
        let status = completion.result.map_err(|error| {
            format!("a receive failed after {} messages: {error}", self.tally.arrived())
        });
        match completion.user_data {
            OF_PING => {
                status?;
                let buffer = completion.buffer.ok_or("a ping without its buffer")?;
                pong(self.side, buffer.as_slice().unwrap_or_default())?;
                self.post_short(PING, OF_PING, buffer)
            }
            OF_STOP => {
                status?;
                let buffer = completion.buffer.ok_or("an end without its buffer")?;
                let bytes = buffer.as_slice().unwrap_or_default();
                self.total = bytes.try_into().ok().map(u64::from_le_bytes);
                Ok(())
            }
            number => {
                // Completions without a buffer are those of sends, which have other contexts.
                let at = number.checked_sub(self.first).and_then(|at| usize::try_from(at).ok());
                let post = at.and_then(|at| self.posts.get_mut(at)).ok_or("an unknown receive")?;
                post.is_done = true;
                let slot = post.slot;
                self.operations.retain(|(other, _)| *other != number);
                self.examine(number, slot, status?.length);
                self.advance();
                self.post(slot)
            }
        }
    }

    /// Looks what has arrived in the memory `slot`, whose receive has ended.
    fn examine(&mut self, receive: u64, slot: usize, length: usize) {
        // SAFETY: the only operation that had the memory has ended.
        let bytes = unsafe { self.memory[slot].bytes() };
        let first = bytes.first_chunk().map_or(0, |first| u64::from_le_bytes(*first));
        let is_whole = length == bytes.len();
        let verify = self.side.job.verify;
        self.tally.take(receive, first, |number| {
            let is_right = stamp::check(bytes, number);
            is_whole && is_right && (!verify || stamp::check_between(bytes, number))
        });
    }

    /// Leaves behind what is done.
    fn advance(&mut self) {
        while self.posts.front().is_some_and(|post| post.is_done) {
            self.posts.pop_front();
            self.first += 1;
            self.offset = 0;
        }
    }

    /// Looks how far the first message is that is not complete.
    fn look(&mut self) {
        if let Some(post) = self.posts.front() {
            self.offset = seen_until(&self.memory[post.slot], self.first, self.offset);
        }
    }

    fn frontier_bytes(&self) -> u64 {
        self.first * self.side.job.size as u64 + self.offset as u64
    }

    /// Takes back the memory of what is not needed any more.
    fn cancel_all(&mut self) -> Result<(), String> {
        for (_, operation) in &self.operations {
            self.side.endpoint.cancel(*operation);
        }
        let mut batch = Vec::new();
        let begin = now_ns();
        while !self.operations.is_empty() {
            self.side.endpoint.completions(&mut batch, 64).map_err(message)?;
            for completion in batch.drain(..) {
                self.operations.retain(|(number, _)| *number != completion.user_data);
            }
            if now_ns() - begin > END_LIMIT_NS {
                return Err("receives that were cancelled do not end; please report it".to_owned());
            }
        }
        Ok(())
    }
}
