//! Invariants of a run: each message arrives at most once, whole, in order and in no other memory
//! than its receive's, and every operation ends once and for a reason.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::form::{Form, Graves, content, memory_of, name_of};
use super::many::Many;
use super::span::Span;
use crate::memory::Buffer;
use crate::proto::effects::CompletionLevel;
use crate::types::{Completion, Error, OperationKind, PeerFailure, Status};

/// A process: its engine's id. Endpoints are numbered within it.
pub(super) type Process = u64;

/// One endpoint of one process.
pub(super) type Place = (Process, u16);

/// What a peek reports of a message: source, tag, length, remote data.
pub(super) type PeekedMessage = (Place, u64, usize, Option<u64>);

/// The outcome of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    Outstanding,
    /// An injected message: nothing is reported unless it fails.
    Gone,
    Done,
    Failed,
    Cancelled,
    /// Its process was killed.
    Forgotten,
}

/// A message.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) from: Place,
    pub(super) to: Place,
    pub(super) context: u64,
    pub(super) tag: u64,
    pub(super) length: usize,
    pub(super) data: Option<u64>,
    pub(super) is_fenced: bool,
    pub(super) level: CompletionLevel,
    pub(super) form: Form,
    /// It is too long to be eager.
    pub(super) is_long: bool,
    pub(super) fate: Fate,
    pub(super) posted_ns: u64,
    /// It has come, whatever becomes of its sender.
    pub(super) is_owed: bool,
    /// It was claimed and dropped.
    pub(super) is_discarded: bool,
    /// The receive that got it.
    pub(super) taken_by: Option<usize>,
    /// A thread of a bout posts it, or will.
    pub(super) is_threaded: bool,
    /// When it was posted, among threads; known once the call has returned.
    pub(super) span: Option<Span>,
}

/// A receive.
#[derive(Debug)]
pub(super) struct Received {
    pub(super) at: Place,
    pub(super) source: Option<Place>,
    pub(super) context: u64,
    pub(super) tag: u64,
    pub(super) ignore: u64,
    pub(super) capacity: usize,
    pub(super) form: Form,
    pub(super) fate: Fate,
    pub(super) message: Option<usize>,
    pub(super) posted_ns: u64,
    pub(super) ended_ns: u64,
    /// The message that a peek announced.
    pub(super) peeked: Option<PeekedMessage>,
    /// It takes many messages.
    pub(super) many: Option<Many>,
    /// When it was posted, among threads.
    pub(super) span: Option<Span>,
}

impl Received {
    pub(super) fn accepts(&self, message: &Sent) -> bool {
        self.at == message.to
            && self.context == message.context
            && (self.tag ^ message.tag) & !self.ignore == 0
            && self.source.is_none_or(|source| source == message.from)
    }
}

/// Bit of a completion's context that distinguishes sends from receives.
const SEND: u64 = 1 << 40;

/// How far back the order is checked: only messages close together in a stream are reordered.
const LOOK_BACK: usize = 48;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Oracle {
    pub(super) sent: Vec<Sent>,
    pub(super) received: Vec<Received>,
    graves: Graves,
    /// Pairs of processes whose session may have failed.
    tainted: BTreeSet<(Process, Process)>,
    /// Of these, pairs that may find it garbled what they sent each other.
    garbled: BTreeSet<(Process, Process)>,
    /// Endpoints that were closed, and until when; what was sent to them before may be dropped.
    closed: BTreeMap<Place, u64>,
    /// Source and target of what may be dropped because the target forgot the source, and when.
    dropped: BTreeMap<(Process, Process), u64>,
    /// Time that nothing on its way takes less than.
    pub(super) delay_ns: u64,
    /// Forgives earlier failures.
    is_pardoned: bool,
    /// Any session may fail.
    pub(super) all_tainted: bool,
    /// Sends to look at once all completions of the turn are known.
    promises: Vec<usize>,
    /// Processes whose completions are not all known.
    pub(super) at_work: BTreeSet<Process>,
    /// Sessions may have datagrams.
    pub(super) has_datagrams: bool,
    /// Sends and receives of each process.
    outstanding: BTreeMap<Process, [usize; 2]>,
}

fn pair(one: Process, other: Process) -> (Process, Process) {
    (one.min(other), one.max(other))
}

impl Oracle {
    /// The session of two processes may fail from now on.
    pub(super) fn taint(&mut self, one: Process, other: Process) {
        self.tainted.insert(pair(one, other));
    }

    pub(super) fn is_tainted(&self, one: Process, other: Process) -> bool {
        one != other && (self.all_tainted || self.tainted.contains(&pair(one, other)))
    }

    /// What `source` has sent to `target` until now may never be received.
    pub(super) fn drop_from(&mut self, source: Process, target: Process, now_ns: u64) {
        self.dropped.insert((source, target), now_ns);
    }

    /// Keeps memory that must not be written any more.
    pub(super) fn bury(&mut self, memory: [Vec<u8>; 2]) {
        self.graves.bury(memory);
    }

    /// Whether an endpoint was closed at any time.
    pub(super) fn was_closed(&self, place: Place) -> bool {
        self.closed.contains_key(&place)
    }

    /// An endpoint is closed.
    pub(super) fn close(&mut self, place: Place) {
        self.closed.insert(place, u64::MAX);
    }

    /// There is an endpoint of this name again.
    pub(super) fn reopen(&mut self, place: Place, now_ns: u64) {
        self.closed.insert(place, now_ns);
    }

    /// Whether its target may have dropped a message.
    fn may_be_dropped(&self, sent: &Sent) -> bool {
        let until_ns = |found: Option<&u64>| found.is_some_and(|&until| sent.posted_ns <= until);
        until_ns(self.closed.get(&sent.to)) || until_ns(self.dropped.get(&(sent.from.0, sent.to.0)))
    }

    /// The context of the completion of a send.
    pub(super) fn name_of_send(index: usize) -> u64 {
        SEND | index as u64
    }

    pub(super) fn count(&mut self, process: Process, kind: OperationKind, by: isize) {
        let count = &mut self.outstanding.entry(process).or_default()[kind as usize];
        *count = count.saturating_add_signed(by);
    }

    /// Operations of one kind that are outstanding.
    pub(super) fn outstanding(&self, process: Process, kind: OperationKind) -> usize {
        self.outstanding.get(&process).map_or(0, |counts| counts[kind as usize])
    }

    /// What one process has sent to another is known to have come there: none of it may be lost.
    pub(super) fn owe(&mut self, from: Process, to: Process) {
        for sent in self.sent.iter_mut().filter(|sent| (sent.from.0, sent.to.0) == (from, to)) {
            sent.is_owed = matches!(sent.fate, Fate::Gone | Fate::Done);
        }
    }

    /// Forgets the operations of a killed process, which end without completions.
    pub(super) fn forget(&mut self, process: Process) {
        for sent in self.sent.iter_mut().filter(|sent| sent.from.0 == process) {
            if matches!(sent.fate, Fate::Outstanding | Fate::Gone) {
                sent.fate = Fate::Forgotten;
            }
        }
        for received in self.received.iter_mut().filter(|received| received.at.0 == process) {
            if received.fate == Fate::Outstanding {
                received.fate = Fate::Forgotten;
            }
        }
        self.outstanding.remove(&process);
    }

    /// An error that a call or an operation of `process` ended with.
    pub(super) fn check_error(&self, process: Process, error: &Error) -> Result<(), String> {
        match error {
            Error::WouldBlock(_) => Ok(()),
            // What the kernel held when the peer was removed ends later.
            Error::UnknownPeer if self.dropped.keys().any(|&(_, target)| target == process) => {
                Ok(())
            }
            Error::Peer { failure: PeerFailure::Left, address, .. }
                if self.closed.contains_key(&(address.engine(), address.endpoint())) =>
            {
                Ok(())
            }
            Error::Peer { failure, address, .. } => {
                if self.is_pardoned {
                    return Err(format!("process {process} has no reason for: {error}"));
                }
                self.check_failure(process, address.engine(), failure)
            }
            other => Err(format!("process {process} has no reason for: {other}")),
        }
    }

    /// Checks the failure of the session of `process` with `peer`. No engine here violates the
    /// protocol, and packets of third parties must not make it look so.
    pub(super) fn check_failure(
        &self,
        process: Process,
        peer: Process,
        failure: &PeerFailure,
    ) -> Result<(), String> {
        let is_never = match failure {
            PeerFailure::Protocol(_)
            | PeerFailure::Rejected
            | PeerFailure::Version { .. }
            | PeerFailure::WrongSecret => true,
            PeerFailure::Corrupted(_) => {
                !self.is_pardoned && !self.garbled.contains(&pair(process, peer))
            }
            _ => false,
        };
        if is_never || !(self.is_pardoned || self.is_tainted(process, peer)) {
            return Err(format!("process {process} has no reason for {peer}: {failure}"));
        }
        Ok(())
    }

    /// What two processes send each other by streams may be garbled from now on.
    pub(super) fn garble(&mut self, one: Process, other: Process) {
        self.garbled.insert(pair(one, other));
        self.taint(one, other);
    }

    /// Takes a completion of `process`.
    pub(super) fn complete(
        &mut self,
        process: Process,
        now_ns: u64,
        completion: Completion,
    ) -> Result<(), String> {
        let (user_data, kind) = (completion.user_data, completion.kind);
        let index = (user_data & !SEND) as usize;
        let is_send = user_data & SEND != 0;
        if is_send != (kind == OperationKind::Send) {
            return Err("a completion is of another kind than its operation".into());
        }
        if !is_send && self.received[index].many.is_some() {
            return self.complete_many(process, index, now_ns, completion);
        }
        let Completion { result, buffer, .. } = completion;
        if kind == OperationKind::MultiReceive || completion.offset != 0 {
            return Err(format!("receive {index} is reported as one of many"));
        }
        if is_send {
            let sent = &self.sent[index];
            let had_time = now_ns - sent.posted_ns >= 2 * self.delay_ns || sent.from.0 == sent.to.0;
            if result.is_ok() && sent.level != CompletionLevel::Inject && !had_time {
                return Err(format!("send {index} ended before word of it was back: {sent:?}"));
            }
            self.complete_send(process, index, result.map(|status| status.length), buffer)
        } else {
            self.complete_receive(process, index, now_ns, result, buffer)
        }
    }

    fn complete_send(
        &mut self,
        process: Process,
        index: usize,
        result: Result<usize, Error>,
        buffer: Option<Buffer>,
    ) -> Result<(), String> {
        let sent = &self.sent[index];
        let is_injected = sent.fate == Fate::Gone;
        if sent.from.0 != process || !matches!(sent.fate, Fate::Outstanding | Fate::Gone) {
            return Err(format!("send {index} ends again: {sent:?}"));
        }
        let fate = match &result {
            Ok(length) if *length == sent.length && !is_injected => {
                self.check_fence(index)?;
                Fate::Done
            }
            Ok(_) => return Err(format!("send {index} is reported wrongly: {sent:?}")),
            Err(Error::Cancelled) => Fate::Cancelled,
            Err(error) => {
                self.check_error(process, error)?;
                Fate::Failed
            }
        };
        let (form, length) = (sent.form, sent.length);
        self.sent[index].fate = fate;
        if !is_injected {
            self.count(process, OperationKind::Send, -1);
            let memory = memory_of(buffer.ok_or("a send keeps its buffer")?);
            if !form.agrees(&memory, length, &content(index as u64, length)) {
                return Err(format!("the memory of send {index} was written"));
            }
            self.graves.bury(memory);
        }
        if fate == Fate::Done {
            self.promises.push(index);
        }
        Ok(())
    }

    /// A send that was over when it was posted.
    pub(super) fn sent_at_once(&mut self, index: usize, buffer: Option<Buffer>) {
        self.sent[index].fate = Fate::Done;
        if let Some(buffer) = buffer {
            self.graves.bury(memory_of(buffer));
        }
    }

    /// A message was claimed at `at`, and dropped.
    pub(super) fn discarded(
        &mut self,
        at: Place,
        from: Place,
        status: &Status,
    ) -> Result<(), String> {
        let name = (status.envelope.tag() >> super::SERIAL_SHIFT) as usize;
        let reported = (from, at, status.length, status.data);
        let Some(sent) = self.sent.get_mut(name) else {
            return Err(format!("an unsent message was claimed: {status:?}"));
        };
        let is_it = reported == (sent.from, sent.to, sent.length, sent.data);
        if !is_it || sent.taken_by.is_some() || sent.fate == Fate::Cancelled {
            return Err(format!("{status:?} was claimed: {sent:?}"));
        }
        if std::mem::replace(&mut sent.is_discarded, true) {
            return Err(format!("a message was claimed twice: {sent:?}"));
        }
        Ok(())
    }

    fn complete_receive(
        &mut self,
        process: Process,
        index: usize,
        now_ns: u64,
        result: Result<Status, Error>,
        buffer: Option<Buffer>,
    ) -> Result<(), String> {
        let received = &mut self.received[index];
        if received.at.0 != process || received.fate != Fate::Outstanding {
            return Err(format!("receive {index} ends again: {received:?}"));
        }
        received.ended_ns = now_ns;
        let (form, capacity) = (received.form, received.capacity);
        self.count(process, OperationKind::Receive, -1);
        let memory = memory_of(buffer.ok_or("a receive keeps its buffer")?);
        let (status, is_cut) = match result {
            Ok(status) => (status, false),
            Err(Error::Truncated { status, capacity: had }) if had == capacity as u64 => {
                (*status, true)
            }
            Err(error) => {
                let is_cancelled = matches!(error, Error::Cancelled);
                let is_written = !form.agrees(&memory, capacity, &[]);
                // One that had matched ends with its endpoint, perhaps after that is open again.
                let received = &self.received[index];
                let closed_ns = self.closed.get(&received.at);
                let is_closed = closed_ns.is_some_and(|&until| received.posted_ns <= until);
                if is_cancelled && is_written && !is_closed {
                    return Err(format!("the memory of cancelled receive {index} was written"));
                }
                let is_unmatched = is_cancelled && !is_closed;
                self.received[index].fate =
                    if is_unmatched { Fate::Cancelled } else { Fate::Failed };
                self.graves.bury(memory);
                return if is_cancelled { Ok(()) } else { self.check_error(process, &error) };
            }
        };
        let (tag, length) = (status.envelope.tag(), status.length);
        if (length > capacity) != is_cut {
            return Err(format!("receive {index} of {capacity} bytes got {length}"));
        }
        let message = self.identify(index, tag, length, &form.head(&memory, capacity))?;
        self.check_message(index, message, &status)?;
        let bytes = content(message as u64, length);
        if !form.agrees(&memory, capacity, &bytes[..length.min(capacity)]) {
            return Err(format!("message {message} is damaged in receive {index}"));
        }
        self.graves.bury(memory);
        let received = &mut self.received[index];
        (received.fate, received.message) = (Fate::Done, Some(message));
        self.sent[message].taken_by = Some(index);
        Ok(())
    }

    /// Which message it is: by its first bytes, or by its tag where these are too few.
    fn identify(
        &self,
        index: usize,
        tag: u64,
        length: usize,
        head: &[u8],
    ) -> Result<usize, String> {
        let unknown =
            || format!("receive {index} got an unsent message: {:?}", &self.received[index]);
        if length >= 8 {
            let name = name_of(head).filter(|&name| name < self.sent.len() as u64);
            return name.map(|name| name as usize).ok_or_else(unknown);
        }
        // Short messages have their name in the tag.
        let name = (tag >> super::SERIAL_SHIFT) as usize;
        Some(name).filter(|&name| name < self.sent.len()).ok_or_else(unknown)
    }

    pub(super) fn check_message(
        &self,
        index: usize,
        message: usize,
        status: &Status,
    ) -> Result<(), String> {
        let (received, sent) = (&self.received[index], &self.sent[message]);
        let fail = |what: &str| Err(format!("{what}: {message} {sent:?} in {index} {received:?}"));
        if sent.taken_by.is_some() || sent.is_discarded {
            return fail("a message was received twice");
        }
        if sent.fate == Fate::Cancelled {
            return fail("a cancelled message was received");
        }
        if !received.accepts(sent) {
            return fail("a receive got a message that it does not accept");
        }
        let (tag, length, data) = (status.envelope.tag(), status.length, status.data);
        if (sent.tag, sent.length, sent.data) != (tag, length, data) {
            return fail("a message is reported wrongly");
        }
        if received.peeked.is_some_and(|it| it != (sent.from, sent.tag, sent.length, sent.data)) {
            return fail("a peek announced another message");
        }
        Ok(())
    }

    /// Checks what sends that completed in this turn guarantee (all completions are known now):
    /// those that end with the match have been received, unless the receiver is gone or failed.
    pub(super) fn check_promises(&mut self) -> Result<(), String> {
        for index in std::mem::take(&mut self.promises) {
            let sent = &self.sent[index];
            if self.at_work.contains(&sent.to.0) {
                self.promises.push(index);
                continue;
            }
            let ends_with_match = sent.is_long || sent.level == CompletionLevel::Match;
            let is_over = |receive: usize| {
                let received = &self.received[receive];
                received.fate == Fate::Done || received.many.is_some()
            };
            let is_forgiven = self.is_tainted(sent.from.0, sent.to.0);
            let is_taken = sent.is_discarded || sent.taken_by.is_some_and(is_over);
            if ends_with_match && !is_taken && !is_forgiven {
                return Err(format!("send {index} ended before its receive: {sent:?}"));
            }
        }
        Ok(())
    }

    /// From now on no session fails.
    pub(super) fn pardon(&mut self) {
        self.tainted.clear();
        (self.all_tainted, self.is_pardoned) = (false, true);
    }

    /// At the end: order, and that nothing was lost or written to later.
    pub(super) fn check_end(&self, is_alive: impl Fn(Process) -> bool) -> Result<(), String> {
        if !self.graves.are_quiet() {
            return Err("memory was written after its operation had ended".into());
        }
        self.check_order()?;
        for (index, sent) in self.sent.iter().enumerate() {
            let had_arrived = sent.fate == Fate::Done
                && sent.level == CompletionLevel::Delivery
                && !(self.has_datagrams && self.may_have_waited(index));
            let is_safe = !self.is_tainted(sent.from.0, sent.to.0);
            let is_due = matches!(sent.fate, Fate::Done | Fate::Gone) && is_safe || had_arrived;
            let is_due = (is_due || sent.is_owed) && !self.may_be_dropped(sent);
            let is_gone = sent.taken_by.is_none() && !sent.is_discarded;
            if is_due && is_alive(sent.to.0) && is_gone {
                return Err(format!("message {index} was lost: {sent:?}"));
            }
            if is_alive(sent.from.0) && sent.fate == Fate::Outstanding {
                return Err(format!("send {index} never ended: {sent:?}"));
            }
        }
        let open =
            self.received.iter().enumerate().find(|(_, received)| {
                received.fate == Fate::Outstanding && is_alive(received.at.0)
            });
        match open {
            Some((index, received)) => Err(format!("receive {index} never ended: {received:?}")),
            None => Ok(()),
        }
    }

    /// Messages of one source, target and context do not overtake each other, and receives do
    /// not either.
    fn check_order(&self) -> Result<(), String> {
        // The receives of messages, by stream, side by side: looking back is what costs.
        let mut streams: BTreeMap<(Place, Place, u64), Vec<(usize, usize)>> = BTreeMap::new();
        for (index, sent) in self.sent.iter().enumerate() {
            if let Some(taker) = sent.taken_by {
                let stream = streams.entry((sent.from, sent.to, sent.context)).or_default();
                stream.push((index, taker));
            }
        }
        for messages in streams.values() {
            for (at, &(late, taker)) in messages.iter().enumerate() {
                let before = &messages[at.saturating_sub(LOOK_BACK)..at];
                if let Some(many) = &self.received[taker].many
                    && let Some(&(early, _)) = before.iter().rfind(|&&(_, other)| other == taker)
                    && many.offset_of(early) > many.offset_of(late)
                    && self.is_sent_before(early, late)
                {
                    return Err(format!("message {late} lies before {early} of its stream"));
                }
                for &(early, other) in before {
                    self.check_pair((early, other), (late, taker))?;
                    self.check_pair((late, taker), (early, other))?;
                }
            }
        }
        let mut cancelled: VecDeque<usize> = VecDeque::new();
        for (late, received) in self.received.iter().enumerate() {
            while cancelled.front().is_some_and(|&early| early + LOOK_BACK < late) {
                cancelled.pop_front();
            }
            if let Some(message) = received.message {
                for &early in &cancelled {
                    let other = &self.received[early];
                    // The time at which threads see an end is no measure of when it was.
                    let is_threaded = other.span.is_some() || received.span.is_some();
                    if !is_threaded
                        && other.ended_ns > received.ended_ns
                        && other.accepts(&self.sent[message])
                    {
                        return Err(format!("receive {late} took message {message} from {early}"));
                    }
                }
            }
            if received.fate == Fate::Cancelled {
                cancelled.push_back(late);
            }
        }
        Ok(())
    }
}
