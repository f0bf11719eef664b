//! The loop's side of operations: their memory, and the destination of their completions.

use std::sync::Arc;
use std::task::Waker;

use super::clock::Clock;
use super::copies::CopyMeter;
use super::counters::{CounterEvents, Counting, UNCOUNTED};
use super::events::EventQueues;
use super::held::MemoryGuard;
use super::outside::{OutsideQueue, Ticket};
use super::post::Memory;
use super::registered_memory::RegisteredMemory;
use super::shared::Keys;
use crate::driver::traits::ProcessCookie;
use crate::memory::{Buffer, Shape, Span, Window};
use crate::proto::table::{Id, Table};
use crate::types::{
    Completed, Completion, Envelope, Error, Failed, OperationKind, Outcome, Peer, Status,
};

mod effects;
mod handles;
pub(super) mod pieces;
mod placed;
mod plain_receive;
mod queue;

use plain_receive::PlainReceive;
pub(crate) use plain_receive::ReceiveMemory;
use queue::EntryQueue;

/// Destination of an operation's completion.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CompletionRoute {
    /// Into a completion queue, with the poster's `user_data`; `silent` drops successes.
    Queue { queue: u32, user_data: u64, silent: bool },
    /// To the handle of this id.
    Handle(Id),
    /// Nowhere: its completion queue was closed.
    Nowhere,
    /// To the region whose memory it uses: it is an operation of a peer.
    Region(Id),
}

/// Where a poster wants the completion of an operation.
#[derive(Clone, Copy, Debug)]
pub struct PostedTo {
    /// Its completion queue.
    pub(crate) queue: u32,
    /// The value returned with the completion.
    pub(crate) user_data: u64,
    /// Only a failure is reported.
    pub(crate) silent: bool,
}

impl PostedTo {
    #[inline]
    pub(crate) fn route(self) -> CompletionRoute {
        let Self { queue, user_data, silent } = self;
        CompletionRoute::Queue { queue, user_data, silent }
    }
}

/// The loop's record of an operation.
#[derive(Debug)]
struct CompletionSlot {
    kind: OperationKind,
    route: CompletionRoute,
    held: MemoryGuard,
    shape: Shape,
    peer: Option<Peer>,
    envelope: Envelope,
    /// Offset of its memory in that of its multi-receive, in bytes; of an operation of a peer, the
    /// endpoint that it names.
    offset: u32,
    /// The endpoint whose counters count its completion; [`UNCOUNTED`]: none.
    counts_for: u16,
}

/// What completes an operation that is posted, and its memory.
#[derive(Debug)]
pub(crate) struct Posting {
    pub(crate) kind: OperationKind,
    pub(crate) route: CompletionRoute,
    pub(crate) memory: Memory,
    pub(crate) peer: Option<Peer>,
    pub(crate) envelope: Envelope,
}

/// Returns the counter event of an operation's completion, with memory of this many bytes.
#[cold]
pub(super) fn counted_as(kind: OperationKind, bytes: usize) -> Option<CounterEvents> {
    match kind {
        OperationKind::Send => Some(CounterEvents::SEND),
        OperationKind::Receive | OperationKind::MultiReceive => Some(CounterEvents::RECEIVE),
        OperationKind::Get => Some(CounterEvents::READ),
        OperationKind::Put => Some(CounterEvents::WRITE),
        // The memory of an atomic operation is the destination of its fetch.
        OperationKind::Atomic if bytes > 0 => Some(CounterEvents::READ),
        OperationKind::Atomic => Some(CounterEvents::WRITE),
        OperationKind::Flush | OperationKind::RemotePut => None,
    }
}

impl CompletionSlot {
    /// Returns the CRC32C of a range of its memory.
    fn checksum(&self, offset: usize, length: usize) -> u32 {
        if let MemoryGuard::Window(window) = &self.held {
            return checksum_of_window(window, span_of(&self.shape), (offset, length));
        }
        // SAFETY: the slot owns the buffer (or its poster guarantees the memory) until the
        // operation ends; nothing of the kernel's writes a send's memory, and the protocol asks for
        // ranges of a receive only when their recv is reaped.
        unsafe { self.shape.checksum(offset, length, 0) }
    }

    /// Returns the counter event of its completion.
    #[cold]
    fn counted_as(&self, is_ok: bool) -> Option<CounterEvents> {
        // Each of its messages counts.
        let are_messages_counted = is_ok && self.kind == OperationKind::MultiReceive;
        counted_as(self.kind, self.shape.len()).filter(|_| !are_messages_counted)
    }

    /// Returns the known status of an operation whose peer failed.
    #[cold]
    fn status_of_failed(&self) -> Status {
        let is_sent = matches!(self.kind, OperationKind::Send | OperationKind::Put);
        let length = if is_sent { self.shape.len() } else { 0 };
        Status { peer: self.peer, envelope: self.envelope, length, data: None }
    }
}

/// Size that compilers move inline, without a call.
const _: () = assert!(size_of::<Option<CompletionSlot>>() <= 128);

/// A handle's side of an operation.
#[derive(Debug, Default)]
pub(super) struct Handle {
    operation: Option<Id>,
    outcome: Option<(Result<Status, Error>, Option<Buffer>)>,
    /// The waiter for it outside of the engine.
    ticket: Option<Arc<Ticket>>,
    /// Matching order of receives with handles; 0: not matched.
    order: u64,
    /// The handle was dropped; the result is discarded when it arrives.
    is_abandoned: bool,
}

impl Handle {
    /// Numbers the match of the receive, if it is the first; `matches` is the number of the last
    /// match.
    fn number_match(&mut self, matches: &mut u64) {
        if self.order == 0 {
            *matches += 1;
            self.order = *matches;
        }
    }
}

/// Waiters outside of the engine that have an event since the last call.
#[derive(Debug, Default)]
pub(crate) struct Wakeups {
    /// Classes of queues and tickets, a bit each ([`class_of`]).
    pub(crate) classes: u32,
    pub(crate) wakers: Vec<Waker>,
}

impl Wakeups {
    pub(crate) fn is_empty(&self) -> bool {
        self.classes == 0 && self.wakers.is_empty()
    }
}

/// Returns the class of waiters for the queue or ticket of a number.
pub(crate) fn class_of(number: u32) -> u32 {
    Keys::of(number).bits()
}

/// Operations' memory, completion queues, handles, events.
#[derive(Debug)]
pub(crate) struct Completions {
    /// Plain receives, by the index of their ids.
    plain_receives: Vec<PlainReceive>,
    /// All other operations, by the index of their ids.
    slots: Vec<Option<CompletionSlot>>,
    placed: placed::PlacedMessages,
    queues: Vec<EntryQueue>,
    handles: Table<Handle>,
    events: EventQueues,
    counting: Counting,
    copies: CopyMeter,
    wakeups: Wakeups,
    /// Memory that peers may access.
    regions: RegisteredMemory,
    /// Bytes copied between user memory and segments or receive buffers.
    copied_bytes: u64,
    /// Operations that have ended.
    finished: u64,
    /// Matches of receives with handles, in order.
    matches: u64,
    /// Proves to peers on this host whether their reads of this memory are valid.
    cookie: Option<Arc<ProcessCookie>>,
}

impl Completions {
    pub(crate) fn new(entries_max: usize) -> Self {
        Self {
            plain_receives: Vec::new(),
            placed: placed::PlacedMessages::default(),
            slots: Vec::new(),
            queues: Vec::new(),
            handles: Table::new(entries_max),
            events: EventQueues::new(),
            counting: Counting::default(),
            copies: CopyMeter::new(Clock::start()),
            wakeups: Wakeups::default(),
            regions: RegisteredMemory::default(),
            copied_bytes: 0,
            finished: 0,
            matches: 0,
            cookie: None,
        }
    }

    /// Takes copy durations from the world that this thread simulates.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn use_virtual_time(&mut self) {
        self.copies = CopyMeter::new(Clock::Virtual);
    }

    /// Opens a completion queue with one user. Each queue has a limit of its own, so that an unread
    /// one does not block others.
    pub(crate) fn open_queue(&mut self, entries_max: usize) -> u32 {
        let free = self.queues.iter().position(EntryQueue::is_closed);
        let index = free.unwrap_or_else(|| {
            self.queues.push(EntryQueue::default());
            self.queues.len() - 1
        });
        self.queues[index] = EntryQueue::open(entries_max);
        index as u32
    }

    /// Opens one for completions that are read outside of the engine.
    pub(crate) fn open_outside_queue(&mut self, entries_max: usize) -> Arc<OutsideQueue> {
        let number = self.open_queue(entries_max);
        self.move_queue_outside(number)
    }

    /// Moves the completions of an open queue outside.
    pub(crate) fn move_queue_outside(&mut self, number: u32) -> Arc<OutsideQueue> {
        self.queues[number as usize].move_outside(number)
    }

    /// Adds a user to a queue.
    pub(crate) fn share_queue(&mut self, queue: u32) {
        self.queues[queue as usize].add_user();
    }

    /// Removes a user of a queue. With the last one the unread completions and their buffers are
    /// dropped; later ones are not reported.
    pub(crate) fn close_queue(&mut self, queue: u32) {
        if !self.queues[queue as usize].remove_user() {
            return;
        }
        self.make_general_where(|of| of == queue);
        for slot in self.slots.iter_mut().flatten() {
            if matches!(slot.route, CompletionRoute::Queue { queue: of, .. } if of == queue) {
                slot.route = CompletionRoute::Nowhere;
            }
        }
    }

    /// Returns whether the memory of an outstanding operation is borrowed. Plain receives are not
    /// asked about: they end when their endpoint closes.
    pub(crate) fn is_borrowed(&self, id: Id) -> bool {
        self.slot(id).is_some_and(|slot| matches!(slot.held, MemoryGuard::Nothing))
    }

    /// Returns the user data of an outstanding operation, if it completes to a queue.
    pub(crate) fn user_data_of(&self, id: Id) -> Option<u64> {
        if let Some(user_data) = self.plain_receives.get(id.index()).and_then(|it| it.user_data()) {
            return Some(user_data);
        }
        match self.slot(id)?.route {
            CompletionRoute::Queue { user_data, .. } => Some(user_data),
            CompletionRoute::Handle(_) | CompletionRoute::Nowhere | CompletionRoute::Region(_) => {
                None
            }
        }
    }

    /// Returns whether there is space for the completion of one more operation. A handle has its
    /// own.
    #[inline]
    pub(crate) fn has_room(&self, route: CompletionRoute) -> bool {
        match route {
            CompletionRoute::Queue { queue, .. } => self.has_room_in(queue),
            _ => true,
        }
    }

    /// Returns the same for operations that complete in a queue.
    #[inline]
    pub(crate) fn has_room_in(&self, queue: u32) -> bool {
        self.queues[queue as usize].has_room()
    }

    /// Reserves the space of a completion in a queue; `false`: there is none.
    #[inline(always)]
    pub(crate) fn try_reserve(&mut self, queue: u32) -> bool {
        let queue = &mut self.queues[queue as usize];
        let has_room = queue.has_room();
        if has_room {
            queue.reserve();
        }
        has_room
    }

    /// Releases the space of a completion in a queue.
    pub(crate) fn release(&mut self, queue: u32) {
        self.queues[queue as usize].release();
    }

    /// Keeps the memory of operation `id` until it ends.
    #[inline]
    pub(crate) fn insert(&mut self, id: Id, posting: Posting) {
        let Posting { kind, route, memory: Memory { buffer, shape }, peer, envelope } = posting;
        let index = id.index();
        if index >= self.slots.len() {
            self.slots.resize_with(index + 1, || None);
        }
        if let CompletionRoute::Queue { queue, .. } = route {
            self.queues[queue as usize].reserve();
        }
        let held = buffer.map_or(MemoryGuard::Nothing, MemoryGuard::Buffer);
        let (offset, counts_for) = (0, UNCOUNTED);
        let slot = CompletionSlot { kind, route, held, shape, peer, envelope, offset, counts_for };
        let before = self.slots[index].replace(slot);
        debug_assert!(before.is_none(), "an operation begins in a vacant slot");
        let plain = self.plain_receives.get(index);
        debug_assert!(plain.is_none_or(|it| !it.is_some()), "a plain receive has ended");
        // So that no code to drop it is in this path.
        std::mem::forget(before);
        if let CompletionRoute::Handle(handle) = route
            && let Some(handle) = self.handles.get_mut(handle)
        {
            handle.operation = Some(id);
            if let Some(ticket) = &handle.ticket {
                ticket.set_operation(id);
            }
        }
    }

    /// Lets the completion of operation `id` count for `endpoint`.
    #[inline]
    pub(crate) fn count_for(&mut self, id: Id, endpoint: u16) {
        if self.counting.is_used()
            && let Some(slot) = self.slot_mut(id)
        {
            slot.counts_for = endpoint;
        }
    }

    /// Counts the completion of an operation of `endpoint`.
    #[inline]
    pub(crate) fn count(&mut self, endpoint: u16, event: CounterEvents, is_ok: bool) {
        if self.counting.is_used()
            && let Some(number) = self.counting.count(endpoint, event, is_ok)
        {
            self.wakeups.classes |= class_of(number);
        }
    }

    /// Returns the record of an outstanding operation that is no plain receive.
    #[inline]
    fn slot(&self, id: Id) -> Option<&CompletionSlot> {
        self.slots.get(id.index())?.as_ref()
    }

    #[inline]
    fn slot_mut(&mut self, id: Id) -> Option<&mut CompletionSlot> {
        self.slots.get_mut(id.index())?.as_mut()
    }

    /// Returns the memory of an outstanding operation.
    #[inline]
    pub(crate) fn shape(&self, id: Id) -> Option<&Shape> {
        self.slot(id).map(|slot| &slot.shape)
    }

    /// Copies the bytes at `offset` of an outstanding send into a frame.
    #[inline]
    pub(crate) fn gather(&mut self, id: Id, offset: usize, room: &mut [u8]) {
        if let Some(Some(slot)) = self.slots.get(id.index()) {
            if let MemoryGuard::Window(window) = &slot.held {
                window.load_from(span_of(&slot.shape), offset, room);
            } else {
                // SAFETY: the slot owns the buffer (or its poster guarantees the memory)
                // until the operation ends, and no request of the kernel writes a send's memory.
                unsafe { slot.shape.copy_to(offset, room) };
            }
            self.copied_bytes += room.len() as u64;
        }
    }

    /// Returns whether the memory of an operation is a region's, which peers access meanwhile.
    pub(super) fn is_window(&self, id: Id) -> bool {
        self.slot(id).is_some_and(|slot| slot.held.is_window())
    }

    /// Returns the location of the bytes at `offset` of an outstanding operation, if contiguous.
    pub(crate) fn piece(&self, id: Id, offset: usize, length: usize) -> Option<Span> {
        let mut pieces = self.shape(id)?.spans(offset, length);
        pieces.next().filter(|piece| piece.len == length)
    }

    /// Reports the completion of a send that was sent at once, without an operation.
    #[inline]
    pub(crate) fn push_sent(&mut self, to: PostedTo, status: Status, buffer: Option<Buffer>) {
        if to.silent {
            return;
        }
        let (user_data, kind, offset) = (to.user_data, OperationKind::Send, 0);
        self.queues[to.queue as usize].reserve();
        let result = Ok(status);
        self.report(to.queue, || Completion { user_data, kind, result, offset, buffer });
    }

    /// Reports the failure of an operation that could not be posted.
    pub(crate) fn push_refused(
        &mut self,
        to: PostedTo,
        kind: OperationKind,
        error: Error,
        buffer: Option<Buffer>,
    ) {
        let (user_data, offset) = (to.user_data, 0);
        self.queues[to.queue as usize].reserve();
        let result = Err(error);
        self.report(to.queue, || Completion { user_data, kind, result, offset, buffer });
    }

    /// Reports a completion without an operation to its ticket.
    pub(crate) fn end_ticket(
        &mut self,
        ticket: &Ticket,
        result: Result<Status, Error>,
        buffer: Option<Buffer>,
    ) {
        self.wakeups.classes |= class_of(ticket.number());
        self.wakeups.wakers.extend(ticket.end(outcome_of((result, buffer))));
    }

    /// Appends a completion to its queue, where its space is reserved. It is made where it is
    /// kept.
    #[inline(always)]
    fn report(&mut self, number: u32, make: impl FnOnce() -> Completion) {
        if self.queues[number as usize].push(make) {
            self.wakeups.classes |= class_of(number);
        }
    }

    /// Takes the classes of waiters outside of the engine that have an event; `None`, and nothing
    /// is taken, if there are tasks among these waiters.
    #[inline]
    pub(crate) fn take_classes(&mut self) -> Option<u32> {
        let Wakeups { classes, wakers } = &mut self.wakeups;
        wakers.is_empty().then(|| std::mem::take(classes))
    }

    /// Takes the waiters outside of the engine that have an event.
    pub(crate) fn take_wakeups(&mut self) -> Wakeups {
        std::mem::take(&mut self.wakeups)
    }

    /// Takes the oldest completions of a queue, at most `limit`, and returns their number.
    #[inline]
    pub(crate) fn take(&mut self, queue: u32, into: &mut Vec<Completion>, limit: usize) -> usize {
        self.queues.get_mut(queue as usize).map_or(0, |queue| queue.take(into, limit))
    }

    /// Returns whether a queue is empty, with no completion outstanding.
    pub(crate) fn is_queue_idle(&self, queue: u32) -> bool {
        self.queues.get(queue as usize).is_none_or(EntryQueue::is_idle)
    }

    /// Returns whether a queue is empty.
    pub(crate) fn is_queue_empty(&self, queue: u32) -> bool {
        self.queues.get(queue as usize).is_none_or(|queue| queue.len() == 0)
    }

    /// Takes the oldest completion of a queue.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn pop(&mut self, queue: u32) -> Option<Completion> {
        let mut taken = Vec::new();
        self.take(queue, &mut taken, 1);
        taken.pop()
    }

    /// Ends all outstanding operations: nothing else refers to their memory.
    pub(crate) fn end_all(&mut self, error: &Error) {
        self.make_general_where(|_| true);
        for slot in std::mem::take(&mut self.slots).into_iter().flatten() {
            self.finish(slot, Err(error.clone()));
        }
    }

    /// Reports the completion of an operation, whose slot is given.
    #[inline]
    fn finish(&mut self, slot: CompletionSlot, result: Result<Status, Error>) {
        if slot.counts_for == UNCOUNTED {
            return self.report_end(slot, result);
        }
        // After the report: a reader that sees the count finds the completion.
        let (endpoint, is_ok) = (slot.counts_for, result.is_ok());
        let event = slot.counted_as(is_ok);
        self.report_end(slot, result);
        if let Some(event) = event {
            self.count(endpoint, event, is_ok);
        }
    }

    #[inline]
    fn report_end(&mut self, slot: CompletionSlot, result: Result<Status, Error>) {
        let CompletionSlot { kind, route, held, offset, .. } = slot;
        let offset = u64::from(offset);
        let buffer = held.into_buffer();
        self.finished += 1;
        match route {
            // The owner of a multi-receive buffer has to get its completion.
            CompletionRoute::Queue { queue, silent: true, .. }
                if result.is_ok() && kind != OperationKind::MultiReceive =>
            {
                self.queues[queue as usize].release();
            }
            CompletionRoute::Queue { queue, user_data, .. } => {
                if planted!(DuplicateCompletion) && kind == OperationKind::Receive {
                    let result = Err(Error::Cancelled);
                    self.queues[queue as usize].reserve();
                    let buffer = None;
                    self.report(queue, || Completion { user_data, kind, result, offset, buffer });
                }
                self.report(queue, || Completion { user_data, kind, result, offset, buffer });
            }
            CompletionRoute::Nowhere | CompletionRoute::Region(_) => {}
            CompletionRoute::Handle(id) => {
                let handle = self.handles.get_mut(id);
                let Some(handle) = debug_assert_some!(handle, "it lasts as its operation does")
                else {
                    return;
                };
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

/// Returns the memory of an operation of a peer, which is contiguous.
fn span_of(shape: &Shape) -> Span {
    shape.as_span().unwrap_or(Span { ptr: std::ptr::null_mut(), len: 0 })
}

/// Returns the CRC32C of bytes that others may write meanwhile.
fn checksum_of_window(window: &Window, span: Span, (offset, length): (usize, usize)) -> u32 {
    let mut piece = [0; 4096];
    let (mut at, mut sum) = (offset, 0);
    while at < offset + length {
        let piece = &mut piece[..(offset + length - at).min(4096)];
        window.load_from(span, at, piece);
        sum = crc32c::crc32c_append(sum, piece);
        at += piece.len();
    }
    sum
}

/// Returns the result of a finished handle.
fn outcome_of((result, buffer): (Result<Status, Error>, Option<Buffer>)) -> Outcome {
    match result {
        Ok(status) => {
            let buffer = buffer.unwrap_or_else(|| Buffer::Heap(Vec::new()));
            Ok(Completed { status, buffer })
        }
        Err(error) => Err(Failed::new((error, buffer))),
    }
}
