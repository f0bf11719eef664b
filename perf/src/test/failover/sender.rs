//! The client: streams, pings, and has the rails cut.

use ringrail::{Buffer, Completion, OperationKind, ReceiveOptions, Selector, SendOptions};

use super::control::{Control, now_ns};
use super::schedule::{Cut, Schedule};
use super::{END_LIMIT_NS, PING, STOP, STREAM, pong};
use crate::output::{Histogram, histogram};
use crate::progress::Progress;
use crate::stamp;
use crate::test::{Side, message};

/// From an answer to the next ping.
const PING_PAUSE_NS: u64 = 1_000_000;

/// The context of receives of answers.
const OF_ANSWER: u64 = u64::MAX;

/// What a client has done and seen.
pub(super) struct Sent {
    pub(super) cuts: Vec<Cut>,
    pub(super) pings: Pings,
    pub(super) messages: u64,
}

/// The ping-pong.
pub(super) struct Pings {
    /// When each began, and how long its answer took, in nanoseconds.
    pub(super) rounds: Vec<(u64, u64)>,
    /// Half round trips.
    pub(super) histogram: Histogram,
    /// Answers to another ping than the last.
    pub(super) wrong: u64,
    /// The one without answer began then.
    open_ns: Option<u64>,
    next_ns: u64,
}

impl Pings {
    fn new() -> Self {
        let rounds = Vec::new();
        Self { rounds, histogram: histogram(), wrong: 0, open_ns: None, next_ns: 0 }
    }

    fn number(&self) -> u64 {
        self.rounds.len() as u64
    }
}

struct Sender<'a, 'b> {
    side: &'a mut Side<'b>,
    idle: Vec<Buffer>,
    sent: u64,
    finished: u64,
    pings: Pings,
}

pub(super) fn run(
    side: &mut Side<'_>,
    control: &mut Control,
    progress: &Progress,
) -> Result<Sent, String> {
    let idle = (0..side.job.window).map(|_| side.buffer(side.job.size));
    let idle = idle.collect::<Result<_, _>>()?;
    let mut sender = Sender { side, idle, sent: 0, finished: 0, pings: Pings::new() };
    sender.post_answer(vec![0; 8].into())?;
    sender.side.barrier()?;
    let (fault, rails) = (sender.side.job.fault, sender.side.job.lab_rails.len() as u8);
    let mut schedule = Schedule::new(fault, rails, sender.side.job.iters, now_ns());
    let mut told = 0;
    while !schedule.advance(now_ns(), control)? {
        sender.stream()?;
        sender.turn(true).map_err(|error| format!("fault {}: {error}", schedule.cuts.len()))?;
        // A fault has just ended: drawing takes a moment, and this is the time for it.
        for _ in told..schedule.cuts.len() {
            progress.advance();
        }
        told = schedule.cuts.len();
    }
    let messages = sender.sent;
    sender.finish()?;
    Ok(Sent { cuts: schedule.cuts, pings: sender.pings, messages })
}

impl Sender<'_, '_> {
    /// Sends from all memory that is free.
    fn stream(&mut self) -> Result<(), String> {
        while let Some(mut buffer) = self.idle.pop() {
            let bytes = buffer.as_mut_slice().ok_or("the buffer is in pieces")?;
            if self.side.job.verify {
                stamp::fill(bytes, self.sent);
            }
            stamp::write(bytes, self.sent);
            let options = SendOptions::default();
            let endpoint = &self.side.endpoint;
            match endpoint.post_send(self.side.peer, STREAM, buffer, options.user_data(self.sent)) {
                Ok(_) => self.sent += 1,
                Err(rejected) if rejected.error.is_would_block() => {
                    self.idle.push(rejected.buffer);
                    break;
                }
                Err(rejected) => return Err(rejected.to_string()),
            }
        }
        Ok(())
    }

    /// One turn of the engine, and a ping if it is time for it.
    fn turn(&mut self, pings: bool) -> Result<(), String> {
        let now = now_ns();
        if pings && self.pings.open_ns.is_none() && now >= self.pings.next_ns {
            pong(self.side, &self.pings.number().to_le_bytes())?;
            self.pings.open_ns = Some(now);
        }
        let mut batch = std::mem::take(&mut self.side.completions);
        self.side.endpoint.completions(&mut batch, 64).map_err(message)?;
        for completion in batch.drain(..) {
            self.take(completion)?;
        }
        self.side.completions = batch;
        Ok(())
    }

    fn take(&mut self, completion: Completion) -> Result<(), String> {
        completion.result.map_err(|error| {
            format!("an operation failed after {} messages: {error}", self.finished)
        })?;
        match (completion.kind, completion.buffer) {
            (OperationKind::Send, Some(buffer)) => {
                self.finished += 1;
                self.idle.push(buffer);
            }
            (OperationKind::Receive | OperationKind::MultiReceive, buffer) => {
                let buffer = buffer.ok_or("an answer without its buffer")?;
                let now = now_ns();
                let number = self.pings.number().to_le_bytes();
                let is_right = buffer.as_slice() == Some(&number[..]);
                match self.pings.open_ns.take() {
                    Some(begin) if is_right => {
                        self.pings.rounds.push((begin, now - begin));
                        self.pings.histogram.saturating_record((now - begin) / 2);
                        self.pings.next_ns = now + PING_PAUSE_NS;
                    }
                    open => {
                        self.pings.wrong += 1;
                        self.pings.open_ns = open;
                    }
                }
                self.post_answer(buffer)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn post_answer(&self, buffer: Buffer) -> Result<(), String> {
        let selector = Selector::from_peer(self.side.peer, PING);
        let posted = self.side.endpoint.post_receive(
            selector,
            buffer,
            ReceiveOptions::new().user_data(OF_ANSWER),
        );
        posted.map(drop).map_err(|error| error.to_string())
    }

    /// Waits for what is under way, and says how much there was.
    fn finish(&mut self) -> Result<(), String> {
        let begin = now_ns();
        while self.finished < self.sent || self.pings.open_ns.is_some() {
            self.turn(false)?;
            if now_ns() - begin > END_LIMIT_NS {
                let open = self.sent - self.finished;
                return Err(format!("{open} messages do not arrive although all rails are healed"));
            }
        }
        let options = SendOptions::default();
        let total = self.sent.to_le_bytes().to_vec();
        let posted = self.side.endpoint.post_send(self.side.peer, STOP, total, options);
        posted.map_err(|error| error.to_string())?;
        // Its buffer comes back as that of a message would.
        let all = self.sent + 1;
        while self.finished < all {
            self.turn(false)?;
        }
        Ok(())
    }
}
