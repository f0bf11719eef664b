//! The loop's side of operations: their memory, and where their end is reported.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

use super::clock::Clock;
use super::copies::CopyMeter;
use super::outside::{OutsideQueue, Ticket};
use super::shared::Keys;
use crate::memory::{Buffer, Shape, Span};
use crate::proto::eager_limit::CopySpeed;
use crate::proto::effects::{Arrival, Effects, Ended};
use crate::proto::table::{Id, Table};
use crate::types::{
    Address, Completed, Completion, Envelope, Error, Event, Failed, OperationKind, Outcome, Peer,
    Status,
};

/// Where the end of an operation goes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Route {
    /// Into a completion queue, with the poster's `user_data`; `silent` drops successes.
    Queue { queue: u32, user_data: u64, silent: bool },
    /// To whoever holds the handle of this name.
    Handle(Id),
    /// Nowhere: its completion queue was closed.
    Nowhere,
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
    buffer: Option<Buffer>,
    shape: Shape,
    peer: Option<Peer>,
    envelope: Envelope,
    /// Where its memory lies in that of the multi-receive that it is of, in bytes.
    offset: u32,
}

impl Slot {
    /// What is known of an operation whose peer failed.
    #[cold]
    fn status_of_failed(&self) -> Status {
        let length = if self.kind == OperationKind::Send { self.shape.len() } else { 0 };
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
    /// Nobody waits any more; the outcome is dropped when it comes.
    pub(crate) is_abandoned: bool,
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
    outside: Option<Arc<OutsideQueue>>,
}

impl Queue {
    fn has_room(&self) -> bool {
        let unread = self.outside.as_ref().map_or(0, |outside| outside.len());
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
    pub(crate) events: VecDeque<Event>,
    events_max: usize,
    copies: CopyMeter,
    news: News,
    /// Bytes copied between user memory and staging or receive buffers.
    pub(crate) copied_bytes: u64,
    /// Operations that have ended.
    pub(super) finished: u64,
}

impl Completions {
    pub(crate) fn new(entries_max: usize) -> Self {
        Self {
            slots: Vec::new(),
            queues: Vec::new(),
            handles: Table::new(entries_max),
            events: VecDeque::new(),
            events_max: 4096,
            copies: CopyMeter::new(Clock::start()),
            news: News::default(),
            copied_bytes: 0,
            finished: 0,
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
        self.open_queue_with(entries_max, None)
    }

    /// The same, for completions that are read outside of the engine.
    pub(crate) fn open_outside_queue(&mut self, entries_max: usize) -> Arc<OutsideQueue> {
        let outside = Arc::new(OutsideQueue::default());
        let number = self.open_queue_with(entries_max, Some(Arc::clone(&outside)));
        outside.set_number(number);
        outside
    }

    /// The completions of an open queue are read outside from now on.
    pub(crate) fn move_queue_outside(&mut self, number: u32) -> Arc<OutsideQueue> {
        let outside = Arc::new(OutsideQueue::default());
        outside.set_number(number);
        let queue = &mut self.queues[number as usize];
        queue.reserved -= queue.entries.len();
        queue.entries.drain(..).for_each(|completion| outside.push(completion));
        queue.outside = Some(Arc::clone(&outside));
        outside
    }

    fn open_queue_with(&mut self, entries_max: usize, outside: Option<Arc<OutsideQueue>>) -> u32 {
        let free = self.queues.iter().position(|queue| queue.users == 0);
        let index = free.unwrap_or_else(|| {
            self.queues.push(Queue::default());
            self.queues.len() - 1
        });
        self.queues[index] = Queue { users: 1, entries_max, outside, ..Queue::default() };
        index as u32
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
        slot.is_some_and(|slot| slot.buffer.is_none())
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
        self.slots[index] = Some(Slot { kind, route, buffer, shape, peer, envelope, offset: 0 });
        if let Route::Handle(handle) = route
            && let Some(handle) = self.handles.get_mut(handle)
        {
            handle.operation = Some(id);
            if let Some(ticket) = &handle.ticket {
                ticket.set_operation(id);
            }
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
            // SAFETY: the slot owns the buffer (or its poster promised to keep the memory) until
            // the operation ends, and no request of the kernel writes a send's memory.
            unsafe { slot.shape.copy_to(offset, room) };
            self.copied_bytes += room.len() as u64;
        }
    }

    /// Where the bytes at `offset` of an outstanding operation lie, if in one piece.
    pub(crate) fn piece(&self, id: Id, offset: usize, length: usize) -> Option<Span> {
        let mut pieces = self.shape(id)?.spans(offset, length);
        pieces.next().filter(|piece| piece.len == length)
    }

    /// Continues the CRC32C `before` with the bytes of an outstanding operation.
    pub(crate) fn continue_sum(&self, id: Id, offset: usize, length: usize, before: u32) -> u32 {
        let Some(Some(slot)) = self.slots.get(id.index()) else { return before };
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
        match &queue.outside {
            None => queue.entries.push_back(completion),
            Some(outside) => {
                outside.push(completion);
                queue.reserved -= 1;
                self.news.classes |= class_of(number);
            }
        }
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
            into.extend(queue.entries.pop_front());
        }
        queue.reserved -= count;
        count
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

    /// Adds an event. When nobody reads them the oldest is dropped; those that say which peers are
    /// there last, for what flaps would drive them out.
    pub(crate) fn push_event(&mut self, event: Event) {
        if self.events.len() == self.events_max {
            let says_who_is_there =
                |it: &Event| matches!(it, Event::Connected { .. } | Event::Disconnected { .. });
            let least = self.events.iter().position(|it| !says_who_is_there(it));
            self.events.remove(least.unwrap_or(0));
        }
        self.events.push_back(event);
    }

    /// Reports the end of an operation, whose slot is given.
    #[inline]
    fn finish(&mut self, slot: Slot, result: Result<Status, Error>) {
        let Slot { kind, route, buffer, offset, .. } = slot;
        let offset = u64::from(offset);
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
            Route::Nowhere => {}
            Route::Handle(id) => {
                let Some(handle) = self.handles.get_mut(id) else { return };
                if handle.is_abandoned {
                    self.handles.remove(id);
                    return;
                }
                if let Some(ticket) = handle.ticket.take() {
                    self.handles.remove(id);
                    self.end_ticket(&ticket, result, buffer);
                    return;
                }
                handle.outcome = Some((result, buffer));
            }
        }
    }
}

impl Completions {
    #[inline]
    fn status_of(slot: &Slot, arrival: &Arrival) -> Result<Status, Error> {
        let capacity = slot.shape.len() as u64;
        let envelope = Envelope::of(arrival.context, arrival.tag);
        let peer = Some(Peer(arrival.peer));
        let (length, data) = (arrival.length as usize, arrival.data);
        let status = Status { peer, envelope, length, data };
        if arrival.length > capacity {
            return Err(Error::Truncated { status: Box::new(status), capacity });
        }
        Ok(status)
    }
}

impl Effects for Completions {
    #[inline]
    fn place(&mut self, operation: Id, offset: usize, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        if let Some(Some(slot)) = self.slots.get(operation.index()) {
            // SAFETY: the slot owns the buffer (or its poster promised exclusive memory) until the
            // operation ends; the protocol keeps `offset + bytes.len()` within its capacity.
            self.copies.run(bytes.len(), || unsafe { slot.shape.copy_from(offset, bytes) });
            self.copied_bytes += bytes.len() as u64;
        }
    }

    fn copy(&mut self, from: Id, to: Id, offset: u64, length: u64) {
        let slots = (self.slots.get(from.index()), self.slots.get(to.index()));
        let (Some(Some(source)), Some(Some(target))) = slots else { return };
        // SAFETY: both slots own their buffers (or their posters promised the memory) until the
        // operations end, a receive's memory is nobody else's, and the protocol keeps the range
        // within both.
        unsafe { target.shape.copy_of(&source.shape, offset as usize, length as usize) };
        self.copied_bytes += length;
    }

    fn checksum(&self, operation: Id, offset: u64, length: u32) -> u32 {
        self.continue_sum(operation, offset as usize, length as usize, 0)
    }

    fn copy_speed(&self) -> CopySpeed {
        self.copies.speed()
    }

    fn slice(&mut self, receive: Id, slice: Id, offset: u64, length: u64) {
        let Some(Some(whole)) = self.slots.get(receive.index()) else { return };
        let shape = whole.shape.part(offset as usize, length as usize);
        let (kind, route, buffer) = (OperationKind::Receive, whole.route, None);
        let (peer, envelope) = (whole.peer, whole.envelope);
        self.insert(slice, kind, route, buffer, shape, peer, envelope);
        if let Some(Some(slot)) = self.slots.get_mut(slice.index()) {
            slot.offset = offset as u32;
        }
    }

    fn matched(&mut self, receive: Id, arrival: &Arrival) {
        if let Some(Some(slot)) = self.slots.get_mut(receive.index()) {
            slot.peer = Some(Peer(arrival.peer));
            slot.envelope = Envelope::of(arrival.context, arrival.tag);
        }
    }

    fn has_room(&self, receive: Id) -> bool {
        let slot = self.slots.get(receive.index()).and_then(Option::as_ref);
        slot.is_some_and(|slot| Self::has_room(self, slot.route))
    }

    #[inline]
    fn deliver(&mut self, operation: Id, bytes: &[u8], arrival: Arrival) {
        let Some(place) = self.slots.get_mut(operation.index()) else { return };
        let Some(slot) = place.as_mut() else { return };
        if !bytes.is_empty() {
            // SAFETY: as in `place`.
            self.copies.run(bytes.len(), || unsafe { slot.shape.copy_from(0, bytes) });
            self.copied_bytes += bytes.len() as u64;
        }
        if let Route::Queue { queue, user_data, silent: false } = slot.route
            && let Some(span) = slot.shape.as_span()
            && arrival.length <= span.len as u64
            && arrival.data.is_none()
            && !planted!(DuplicateCompletion)
        {
            let (kind, buffer) = (slot.kind, slot.buffer.take());
            // Mostly it fits, and nothing is left in its slot that is to be dropped.
            std::mem::forget(place.take());
            self.finished += 1;
            let envelope = Envelope::of(arrival.context, arrival.tag);
            let (peer, length) = (Some(Peer(arrival.peer)), arrival.length as usize);
            let result = Ok(Status { peer, envelope, length, data: None });
            let completion = Completion { user_data, kind, result, buffer, offset: 0 };
            self.report(queue, completion);
            return;
        }
        let result = Self::status_of(slot, &arrival);
        if let Some(slot) = place.take() {
            self.finish(slot, result);
        }
    }

    fn complete(&mut self, operation: Id, ended: Ended) {
        let taken = self.slots.get_mut(operation.index()).and_then(Option::take);
        let Some(slot) = taken else { return };
        let result = match ended {
            Ended::Sent { .. } => {
                let (length, data) = (slot.shape.len(), None);
                Ok(Status { peer: slot.peer, envelope: slot.envelope, length, data })
            }
            Ended::Received(arrival) => Self::status_of(&slot, &arrival),
            Ended::Released { used } => {
                let (length, data) = (used as usize, None);
                Ok(Status { peer: slot.peer, envelope: slot.envelope, length, data })
            }
            Ended::Failed(failure, Some(name)) => {
                let address = Address::new(name.engine, name.locators, name.endpoint);
                let status = Some(Box::new(slot.status_of_failed()));
                Err(Error::Peer { address: Box::new(address), failure, status })
            }
            Ended::Failed(_, None) => Err(Error::UnknownPeer),
            Ended::Cancelled => Err(Error::Cancelled),
        };
        self.finish(slot, result);
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Address, PathCause, PathState};

    #[test]
    fn flaps_drive_out_no_news_of_peers() {
        let locator = std::net::SocketAddr::from(([10, 0, 0, 1], 1));
        let address = Address::new(1, locator, 0);
        let flap = |rail| {
            let (state, cause) = (PathState::Down, PathCause::NoLink);
            Event::PathChanged { address, rail, remote: locator.ip(), state, cause }
        };
        let mut completions = Completions::new(3);
        let room = completions.events_max;
        completions.push_event(Event::Connected { address });
        (0..2 * room).for_each(|rail| completions.push_event(flap(rail)));
        assert_eq!(completions.events.len(), room);
        assert!(matches!(completions.events[0], Event::Connected { .. }));
        let oldest = &completions.events[1];
        assert!(matches!(oldest, Event::PathChanged { rail, .. } if *rail == room + 1));
        (0..room + 1).for_each(|_| completions.push_event(Event::Connected { address }));
        let is_news = |event: &Event| matches!(event, Event::Connected { .. });
        assert!(completions.events.len() == room && completions.events.iter().all(is_news));
    }
}
