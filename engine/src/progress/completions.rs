//! The loop's side of operations: their memory, and where their end is reported.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

use super::clock::Clock;
use super::copies::CopyMeter;
use super::counters::{CounterEvents, Counting, UNCOUNTED};
use super::events::EventQueues;
use super::held::Held;
use super::lent::LentRegions;
use super::outside::{OutsideQueue, Ticket};
use super::shared::{ChunkWriter, Keys};
use crate::driver::traits::ProcessCookie;
use crate::memory::{Buffer, Shape, Span, Window};
use crate::proto::table::{Id, Table};
use crate::types::{
    Completed, Completion, Envelope, Error, Failed, OperationKind, Outcome, Peer, Status,
};

mod effects;
pub(super) mod pieces;

/// Where the end of an operation goes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Route {
    /// Into a completion queue, with the poster's `user_data`; `silent` drops successes.
    Queue { queue: u32, user_data: u64, silent: bool },
    /// To whoever holds the handle of this name.
    Handle(Id),
    /// Nowhere: its completion queue was closed.
    Nowhere,
    /// To the region whose memory it has: it is an operation of a peer.
    Region(Id),
}

/// Where a poster wants the end of an operation.
#[derive(Clone, Copy, Debug)]
pub struct PostedTo<Q> {
    /// Its completion queue.
    pub(crate) queue: Q,
    /// What the completion gives back.
    pub(crate) user_data: u64,
    /// Only a failure is reported.
    pub(crate) silent: bool,
}

impl PostedTo<u32> {
    #[inline]
    pub(crate) fn route(self) -> Route {
        let Self { queue, user_data, silent } = self;
        Route::Queue { queue, user_data, silent }
    }
}

/// What the loop keeps for one operation.
#[derive(Debug)]
struct Slot {
    kind: OperationKind,
    route: Route,
    held: Held,
    shape: Shape,
    peer: Option<Peer>,
    envelope: Envelope,
    /// Where its memory lies in that of the multi-receive that it is of, in bytes; of an operation
    /// of a peer, the endpoint that it names.
    offset: u32,
    /// The endpoint whose counters count its end; [`UNCOUNTED`]: none.
    counts_for: u16,
}

/// What the end of an operation is to counters, which has memory of so many bytes.
#[cold]
pub(super) fn counted_as(kind: OperationKind, bytes: usize) -> Option<CounterEvents> {
    match kind {
        OperationKind::Send => Some(CounterEvents::SEND),
        OperationKind::Receive | OperationKind::MultiReceive => Some(CounterEvents::RECEIVE),
        OperationKind::Get => Some(CounterEvents::READ),
        OperationKind::Put => Some(CounterEvents::WRITE),
        // The memory of an atomic operation is where it fetches to.
        OperationKind::Atomic if bytes > 0 => Some(CounterEvents::READ),
        OperationKind::Atomic => Some(CounterEvents::WRITE),
        OperationKind::Flush | OperationKind::RemotePut => None,
    }
}

impl Slot {
    /// What its end is to counters.
    #[cold]
    fn counted_as(&self, is_ok: bool) -> Option<CounterEvents> {
        // Each of its messages counts.
        let is_unheard = is_ok && self.kind == OperationKind::MultiReceive;
        counted_as(self.kind, self.shape.len()).filter(|_| !is_unheard)
    }

    /// What is known of an operation whose peer failed.
    #[cold]
    fn status_of_failed(&self) -> Status {
        let is_sent = matches!(self.kind, OperationKind::Send | OperationKind::Put);
        let length = if is_sent { self.shape.len() } else { 0 };
        Status { peer: self.peer, envelope: self.envelope, length, data: None }
    }
}

/// What compilers move in line, without a call.
const _: () = assert!(size_of::<Option<Slot>>() <= 128);

/// A handle's side of an operation.
#[derive(Debug, Default)]
pub(crate) struct Handle {
    pub(crate) operation: Option<Id>,
    pub(crate) outcome: Option<(Result<Status, Error>, Option<Buffer>)>,
    /// Who waits for it outside of the engine.
    pub(crate) ticket: Option<Arc<Ticket>>,
    /// In which order receives with handles matched; 0: it has not.
    pub(crate) order: u64,
    /// Nobody waits any more; the outcome is dropped when it comes.
    pub(crate) is_abandoned: bool,
}

impl Handle {
    /// The receive has matched, if it had not; `matches` is the number of the last match.
    fn number_match(&mut self, matches: &mut u64) {
        if self.order == 0 {
            *matches += 1;
            self.order = *matches;
        }
    }
}

/// A completion queue.
#[derive(Debug, Default)]
struct Queue {
    entries: VecDeque<Completion>,
    /// Endpoints whose operations end here, and objects that name it; 0: it is closed.
    users: u32,
    entries_max: usize,
    /// Entries that outstanding operations and unread completions take; of one that is read
    /// outside, the former.
    reserved: usize,
    /// Where completions go that are read outside of the engine.
    outside: Option<ChunkWriter<Completion>>,
}

impl Queue {
    fn has_room(&self) -> bool {
        let unread = self.outside.as_ref().map_or(0, ChunkWriter::len);
        self.reserved + unread < self.entries_max
    }
}

/// For whom there is something outside of the engine since the last look.
#[derive(Debug, Default)]
pub(crate) struct News {
    /// Classes of queues and tickets, a bit each ([`class_of`]).
    pub(crate) classes: u32,
    pub(crate) wakers: Vec<Waker>,
}

impl News {
    pub(crate) fn is_empty(&self) -> bool {
        self.classes == 0 && self.wakers.is_empty()
    }
}

/// The class of those who wait for the queue or ticket of a number.
pub(crate) fn class_of(number: u32) -> u32 {
    Keys::of(number).bits()
}

/// Operations' memory, completion queues, handles, events.
#[derive(Debug)]
pub(crate) struct Completions {
    slots: Vec<Option<Slot>>,
    queues: Vec<Queue>,
    pub(crate) handles: Table<Handle>,
    pub(crate) events: EventQueues,
    pub(crate) counting: Counting,
    copies: CopyMeter,
    news: News,
    /// Memory that peers may reach.
    pub(crate) regions: LentRegions,
    /// Bytes copied between user memory and staging or receive buffers.
    pub(crate) copied_bytes: u64,
    /// Operations that have ended.
    pub(super) finished: u64,
    /// Matches of receives with handles, in order.
    matches: u64,
    /// By what peers on this host know whether what they read of this memory counts.
    pub(super) cookie: Option<Arc<ProcessCookie>>,
}

impl Completions {
    pub(crate) fn new(entries_max: usize) -> Self {
        Self {
            slots: Vec::new(),
            queues: Vec::new(),
            handles: Table::new(entries_max),
            events: EventQueues::new(),
            counting: Counting::default(),
            copies: CopyMeter::new(Clock::start()),
            news: News::default(),
            regions: LentRegions::default(),
            copied_bytes: 0,
            finished: 0,
            matches: 0,
            cookie: None,
        }
    }

    /// From now on copies take as long as in the world that this thread simulates.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn use_virtual_time(&mut self) {
        self.copies = CopyMeter::new(Clock::Virtual);
    }

    /// Opens a completion queue with one user. A bound of its own keeps one that nobody reads from
    /// stopping the others.
    pub(crate) fn open_queue(&mut self, entries_max: usize) -> u32 {
        let free = self.queues.iter().position(|queue| queue.users == 0);
        let index = free.unwrap_or_else(|| {
            self.queues.push(Queue::default());
            self.queues.len() - 1
        });
        self.queues[index] = Queue { users: 1, entries_max, ..Queue::default() };
        index as u32
    }

    /// The same, for completions that are read outside of the engine.
    pub(crate) fn open_outside_queue(&mut self, entries_max: usize) -> Arc<OutsideQueue> {
        let number = self.open_queue(entries_max);
        self.move_queue_outside(number)
    }

    /// The completions of an open queue are read outside from now on.
    pub(crate) fn move_queue_outside(&mut self, number: u32) -> Arc<OutsideQueue> {
        let (mut writer, outside) = OutsideQueue::new(number);
        let queue = &mut self.queues[number as usize];
        queue.reserved -= queue.entries.len();
        queue.entries.drain(..).for_each(|completion| writer.push(completion));
        queue.outside = Some(writer);
        outside
    }

    /// One more user of a queue.
    pub(crate) fn share_queue(&mut self, queue: u32) {
        self.queues[queue as usize].users += 1;
    }

    /// A user of a queue lets go. With the last one go the completions that nobody read and their
    /// buffers; what has still to end does so unheard.
    pub(crate) fn close_queue(&mut self, queue: u32) {
        let closed = &mut self.queues[queue as usize];
        closed.users -= 1;
        if closed.users > 0 {
            return;
        }
        closed.entries = VecDeque::new();
        closed.outside = None;
        for slot in self.slots.iter_mut().flatten() {
            if matches!(slot.route, Route::Queue { queue: of, .. } if of == queue) {
                slot.route = Route::Nowhere;
            }
        }
    }

    /// Whether the memory of an outstanding operation is only lent.
    pub(crate) fn is_lent(&self, id: Id) -> bool {
        let slot = self.slots.get(id.index()).and_then(Option::as_ref);
        slot.is_some_and(|slot| matches!(slot.held, Held::Nothing))
    }

    /// What the poster of an outstanding operation gave, if its end is for a queue.
    pub(crate) fn user_data_of(&self, id: Id) -> Option<u64> {
        match self.slots.get(id.index())?.as_ref()?.route {
            Route::Queue { user_data, .. } => Some(user_data),
            Route::Handle(_) | Route::Nowhere | Route::Region(_) => None,
        }
    }

    /// Whether there is room for the end of one more operation. A handle is its own room.
    #[inline]
    pub(crate) fn has_room(&self, route: Route) -> bool {
        let Route::Queue { queue, .. } = route else { return true };
        self.queues[queue as usize].has_room()
    }

    /// Keeps the memory of operation `id` until it ends.
    #[inline]
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn insert(
        &mut self,
        id: Id,
        kind: OperationKind,
        route: Route,
        buffer: Option<Buffer>,
        shape: Shape,
        peer: Option<Peer>,
        envelope: Envelope,
    ) {
        let index = id.index();
        if index >= self.slots.len() {
            self.slots.resize_with(index + 1, || None);
        }
        if let Route::Queue { queue, .. } = route {
            self.queues[queue as usize].reserved += 1;
        }
        let held = buffer.map_or(Held::Nothing, Held::Buffer);
        let (offset, counts_for) = (0, UNCOUNTED);
        self.slots[index] =
            Some(Slot { kind, route, held, shape, peer, envelope, offset, counts_for });
        if let Route::Handle(handle) = route
            && let Some(handle) = self.handles.get_mut(handle)
        {
            handle.operation = Some(id);
            if let Some(ticket) = &handle.ticket {
                ticket.set_operation(id);
            }
        }
    }

    /// The end of operation `id` is for the counters of `endpoint`.
    #[inline]
    pub(crate) fn count_for(&mut self, id: Id, endpoint: u16) {
        if self.counting.is_used()
            && let Some(Some(slot)) = self.slots.get_mut(id.index())
        {
            slot.counts_for = endpoint;
        }
    }

    /// Counts the end of an operation of `endpoint`.
    #[inline]
    pub(crate) fn count(&mut self, endpoint: u16, event: CounterEvents, is_ok: bool) {
        if self.counting.is_used()
            && let Some(number) = self.counting.count(endpoint, event, is_ok)
        {
            self.news.classes |= class_of(number);
        }
    }

    /// The memory of an outstanding operation.
    #[inline]
    pub(crate) fn shape(&self, id: Id) -> Option<&Shape> {
        self.slots.get(id.index())?.as_ref().map(|slot| &slot.shape)
    }

    /// Copies the bytes at `offset` of an outstanding send into a frame.
    #[inline]
    pub(crate) fn gather(&mut self, id: Id, offset: usize, room: &mut [u8]) {
        if let Some(Some(slot)) = self.slots.get(id.index()) {
            if let Held::Window(window) = &slot.held {
                window.load_from(span_of(&slot.shape), offset, room);
            } else {
                // SAFETY: the slot owns the buffer (or its poster promised to keep the memory)
                // until the operation ends, and no request of the kernel writes a send's memory.
                unsafe { slot.shape.copy_to(offset, room) };
            }
            self.copied_bytes += room.len() as u64;
        }
    }

    /// Whether the memory of an operation is a region's, which others access meanwhile.
    pub(super) fn is_window(&self, id: Id) -> bool {
        let slot = self.slots.get(id.index()).and_then(Option::as_ref);
        slot.is_some_and(|slot| slot.held.is_window())
    }

    /// Where the bytes at `offset` of an outstanding operation lie, if in one piece.
    pub(crate) fn piece(&self, id: Id, offset: usize, length: usize) -> Option<Span> {
        let mut pieces = self.shape(id)?.spans(offset, length);
        pieces.next().filter(|piece| piece.len == length)
    }

    /// Continues the CRC32C `before` with the bytes of an outstanding operation.
    pub(crate) fn continue_sum(&self, id: Id, offset: usize, length: usize, before: u32) -> u32 {
        let Some(Some(slot)) = self.slots.get(id.index()) else { return before };
        if let Held::Window(window) = &slot.held {
            return checksum_of_window(window, span_of(&slot.shape), (offset, length), before);
        }
        // SAFETY: the slot owns the buffer (or its poster promised to keep the memory) until the
        // operation ends; nothing of the kernel's writes a send's memory, and the protocol asks for
        // ranges of a receive only when their recv is reaped.
        unsafe { slot.shape.checksum(offset, length, before) }
    }

    /// Reports the end of something that never was an operation: a send that went out at once.
    #[inline]
    pub(crate) fn push_sent(&mut self, to: PostedTo<u32>, status: Status, buffer: Option<Buffer>) {
        if to.silent {
            return;
        }
        let (user_data, kind, offset) = (to.user_data, OperationKind::Send, 0);
        self.queues[to.queue as usize].reserved += 1;
        self.report(to.queue, Completion { user_data, kind, result: Ok(status), offset, buffer });
    }

    /// Reports the end of an operation that could not be posted.
    pub(crate) fn push_refused(
        &mut self,
        to: PostedTo<u32>,
        kind: OperationKind,
        error: Error,
        buffer: Option<Buffer>,
    ) {
        let (user_data, offset) = (to.user_data, 0);
        self.queues[to.queue as usize].reserved += 1;
        self.report(to.queue, Completion { user_data, kind, result: Err(error), offset, buffer });
    }

    /// Reports the end of something that never was an operation, to its ticket.
    pub(crate) fn end_ticket(
        &mut self,
        ticket: &Ticket,
        result: Result<Status, Error>,
        buffer: Option<Buffer>,
    ) {
        self.news.classes |= class_of(ticket.number());
        self.news.wakers.extend(ticket.end(outcome_of((result, buffer))));
    }

    /// Puts a completion into its queue, where its room is reserved.
    #[inline]
    fn report(&mut self, number: u32, completion: Completion) {
        let queue = &mut self.queues[number as usize];
        match &mut queue.outside {
            None => queue.entries.push_back(completion),
            Some(outside) => {
                outside.push(completion);
                queue.reserved -= 1;
                self.news.classes |= class_of(number);
            }
        }
    }

    /// Whether there is something for anybody outside of the engine.
    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        !self.news.is_empty()
    }

    /// For whom there is something outside of the engine.
    pub(crate) fn take_news(&mut self) -> News {
        std::mem::take(&mut self.news)
    }

    /// Takes the oldest completions of a queue, `limit` at the most, and says how many.
    #[inline]
    pub(crate) fn take(&mut self, queue: u32, into: &mut Vec<Completion>, limit: usize) -> usize {
        let Some(queue) = self.queues.get_mut(queue as usize) else { return 0 };
        let count = queue.entries.len().min(limit);
        for _ in 0..count {
            let Some(completion) = queue.entries.pop_front() else { break };
            into.push(completion);
        }
        queue.reserved -= count;
        count
    }

    /// Whether nothing waits to be taken from a queue, or is under way to it.
    pub(crate) fn is_queue_idle(&self, queue: u32) -> bool {
        self.queues.get(queue as usize).is_none_or(|queue| queue.reserved == 0)
    }

    /// Whether nothing waits to be taken from a queue.
    pub(crate) fn is_queue_empty(&self, queue: u32) -> bool {
        self.queues.get(queue as usize).is_none_or(|queue| queue.entries.is_empty())
    }

    /// Takes the oldest completion of a queue.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn pop(&mut self, queue: u32) -> Option<Completion> {
        let mut taken = Vec::new();
        self.take(queue, &mut taken, 1);
        taken.pop()
    }

    /// Ends everything that is outstanding: nothing else refers to its memory.
    pub(crate) fn end_all(&mut self, error: &Error) {
        for slot in std::mem::take(&mut self.slots).into_iter().flatten() {
            self.finish(slot, Err(error.clone()));
        }
    }

    /// The receive of a handle has matched, if it had not.
    fn number_match(&mut self, handle: Id) {
        if let Some(handle) = self.handles.get_mut(handle) {
            handle.number_match(&mut self.matches);
        }
    }

    /// Reports the end of an operation, whose slot is given.
    #[inline]
    fn finish(&mut self, slot: Slot, result: Result<Status, Error>) {
        if slot.counts_for == UNCOUNTED {
            return self.report_end(slot, result);
        }
        // Behind the report: who sees it counted finds it.
        let (endpoint, is_ok) = (slot.counts_for, result.is_ok());
        let event = slot.counted_as(is_ok);
        self.report_end(slot, result);
        if let Some(event) = event {
            self.count(endpoint, event, is_ok);
        }
    }

    #[inline]
    fn report_end(&mut self, slot: Slot, result: Result<Status, Error>) {
        let Slot { kind, route, held, offset, .. } = slot;
        let offset = u64::from(offset);
        let buffer = held.into_buffer();
        self.finished += 1;
        match route {
            // Who lent a buffer for many messages has to hear of its end.
            Route::Queue { queue, silent: true, .. }
                if result.is_ok() && kind != OperationKind::MultiReceive =>
            {
                self.queues[queue as usize].reserved -= 1;
            }
            Route::Queue { queue, user_data, .. } => {
                if planted!(DuplicateCompletion) && kind == OperationKind::Receive {
                    let result = Err(Error::Cancelled);
                    self.queues[queue as usize].reserved += 1;
                    self.report(
                        queue,
                        Completion { user_data, kind, result, offset, buffer: None },
                    );
                }
                self.report(queue, Completion { user_data, kind, result, offset, buffer });
            }
            Route::Nowhere | Route::Region(_) => {}
            Route::Handle(id) => {
                let Some(handle) = self.handles.get_mut(id) else { return };
                if kind == OperationKind::Receive {
                    handle.number_match(&mut self.matches);
                }
                if handle.is_abandoned {
                    self.handles.remove(id);
                    return;
                }
                if let Some(ticket) = handle.ticket.take() {
                    ticket.set_order(handle.order);
                    self.handles.remove(id);
                    self.end_ticket(&ticket, result, buffer);
                    return;
                }
                handle.outcome = Some((result, buffer));
            }
        }
    }
}

/// The memory of an operation of a peer, which is one piece.
fn span_of(shape: &Shape) -> Span {
    shape.as_span().unwrap_or(Span { ptr: std::ptr::null_mut(), len: 0 })
}

/// Continues a CRC32C with bytes that others may write meanwhile.
fn checksum_of_window(
    window: &Window,
    span: Span,
    (offset, length): (usize, usize),
    before: u32,
) -> u32 {
    let mut piece = [0; 4096];
    let (mut at, mut sum) = (offset, before);
    while at < offset + length {
        let piece = &mut piece[..(offset + length - at).min(4096)];
        window.load_from(span, at, piece);
        sum = crc32c::crc32c_append(sum, piece);
        at += piece.len();
    }
    sum
}

/// What a finished handle holds.
pub(crate) fn outcome_of((result, buffer): (Result<Status, Error>, Option<Buffer>)) -> Outcome {
    match result {
        Ok(status) => {
            let buffer = buffer.unwrap_or_else(|| Buffer::Heap(Vec::new()));
            Ok(Completed { status, buffer })
        }
        Err(error) => Err(Failed::new((error, buffer))),
    }
}
