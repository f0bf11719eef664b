//! The loop's side of operations: their memory, and where their end is reported.

use std::collections::VecDeque;
use std::task::Waker;

use super::clock::Clock;
use super::copies::CopyMeter;
use crate::memory::{Buffer, Shape, Span};
use crate::proto::eager_limit::CopySpeed;
use crate::proto::effects::{Arrival, Effects, Ended};
use crate::proto::table::{Id, Table};
use crate::types::{
    Address, Completion, Envelope, Error, Event, OperationKind, Outcome, Peer, Status,
};

/// Where the end of an operation goes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Route {
    /// Into a completion queue, with the user's context; `on_error_only` drops successes.
    Queue { queue: u32, context: u64, on_error_only: bool },
    /// To whoever holds the handle of this name.
    Handle(Id),
    /// Nowhere: its completion queue was closed.
    Nowhere,
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
}

/// What compilers move in line, without a call.
const _: () = assert!(size_of::<Option<Slot>>() <= 128);

/// A handle's side of an operation.
#[derive(Debug, Default)]
pub(crate) struct Handle {
    pub(crate) operation: Option<Id>,
    pub(crate) outcome: Option<(Result<Status, Error>, Option<Buffer>)>,
    pub(crate) waker: Option<Waker>,
    /// Nobody waits any more; the outcome is dropped when it comes.
    pub(crate) is_abandoned: bool,
}

/// A completion queue.
#[derive(Debug, Default)]
struct Queue {
    entries: VecDeque<Completion>,
    /// Endpoints whose operations end here; 0: it is closed.
    users: u32,
}

/// Operations' memory, completion queues, handles, events.
#[derive(Debug)]
pub(crate) struct Completions {
    slots: Vec<Option<Slot>>,
    queues: Vec<Queue>,
    pub(crate) handles: Table<Handle>,
    pub(crate) events: VecDeque<Event>,
    events_max: usize,
    entries_max: usize,
    /// Entries that outstanding operations and unread completions take.
    reserved: usize,
    copies: CopyMeter,
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
            entries_max,
            reserved: 0,
            copies: CopyMeter::new(Clock::start()),
            copied_bytes: 0,
            finished: 0,
        }
    }

    /// From now on copies take as long as in the world that this thread simulates.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn use_virtual_time(&mut self) {
        self.copies = CopyMeter::new(Clock::Virtual);
    }

    /// Opens a completion queue for one endpoint.
    pub(crate) fn open_queue(&mut self) -> u32 {
        let queue = self.queues.iter().position(|queue| queue.users == 0);
        let queue = queue.unwrap_or_else(|| {
            self.queues.push(Queue::default());
            self.queues.len() - 1
        });
        self.queues[queue].users = 1;
        queue as u32
    }

    /// One more endpoint uses a queue.
    pub(crate) fn share_queue(&mut self, queue: u32) {
        self.queues[queue as usize].users += 1;
    }

    /// An endpoint uses a queue no more. With the last one go the completions that nobody read,
    /// their buffers, and what was reserved for them; what has still to end does so unheard.
    pub(crate) fn close_queue(&mut self, queue: u32) {
        let closed = &mut self.queues[queue as usize];
        closed.users -= 1;
        if closed.users > 0 {
            return;
        }
        let unread = std::mem::take(&mut closed.entries);
        self.reserved -= unread.len();
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

    /// Whether there is room for one more operation and its completion.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.reserved < self.entries_max
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
        self.reserved += 1;
        self.slots[index] = Some(Slot { kind, route, buffer, shape, peer, envelope });
        if let Route::Handle(handle) = route
            && let Some(handle) = self.handles.get_mut(handle)
        {
            handle.operation = Some(id);
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
    pub(crate) fn push_sent(
        &mut self,
        queue: u32,
        context: u64,
        status: Status,
        buffer: Option<Buffer>,
    ) {
        self.reserved += 1;
        self.queues[queue as usize].entries.push_back(Completion {
            context,
            kind: OperationKind::Send,
            result: Ok(status),
            buffer,
        });
    }

    /// Takes the oldest completions of a queue, `limit` at the most, and says how many.
    #[inline]
    pub(crate) fn take(&mut self, queue: u32, into: &mut Vec<Completion>, limit: usize) -> usize {
        let Some(queue) = self.queues.get_mut(queue as usize) else { return 0 };
        let count = queue.entries.len().min(limit);
        for _ in 0..count {
            into.extend(queue.entries.pop_front());
        }
        self.reserved -= count;
        count
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

    #[inline]
    fn finish(
        &mut self,
        kind: OperationKind,
        route: Route,
        buffer: Option<Buffer>,
        result: Result<Status, Error>,
    ) {
        self.finished += 1;
        match route {
            Route::Queue { on_error_only: true, .. } if result.is_ok() => self.reserved -= 1,
            Route::Queue { queue, context, .. } => {
                if planted!(DuplicateCompletion) && kind == OperationKind::Receive {
                    let result = Err(Error::Cancelled);
                    let completion = Completion { context, kind, result, buffer: None };
                    self.queues[queue as usize].entries.push_back(completion);
                    self.reserved += 1;
                }
                let completion = Completion { context, kind, result, buffer };
                self.queues[queue as usize].entries.push_back(completion);
            }
            Route::Nowhere => self.reserved -= 1,
            Route::Handle(id) => {
                self.reserved -= 1;
                let Some(handle) = self.handles.get_mut(id) else { return };
                if handle.is_abandoned {
                    self.handles.remove(id);
                    return;
                }
                handle.outcome = Some((result, buffer));
                if let Some(waker) = handle.waker.take() {
                    waker.wake();
                }
            }
        }
    }
}

impl Completions {
    #[inline]
    fn status_of(slot: &Slot, arrival: &Arrival) -> Result<Status, Error> {
        let capacity = slot.shape.len() as u64;
        let envelope = Envelope { context: arrival.context as u32, tag: arrival.tag };
        let peer = Some(Peer(arrival.peer));
        let status = Status { peer, envelope, length: arrival.length as usize };
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

    #[inline]
    fn deliver(&mut self, operation: Id, bytes: &[u8], arrival: Arrival) {
        let Some(place) = self.slots.get_mut(operation.index()) else { return };
        let Some(slot) = place else { return };
        if !bytes.is_empty() {
            // SAFETY: as in `place`.
            self.copies.run(bytes.len(), || unsafe { slot.shape.copy_from(0, bytes) });
            self.copied_bytes += bytes.len() as u64;
        }
        let (kind, route, buffer) = (slot.kind, slot.route, slot.buffer.take());
        if let Route::Queue { queue, context, on_error_only: false } = route
            && let Some(span) = slot.shape.as_span()
            && arrival.length <= span.len as u64
            && !planted!(DuplicateCompletion)
        {
            // Mostly it fits, and nothing is left in its slot that is to be dropped.
            std::mem::forget(place.take());
            self.finished += 1;
            let envelope = Envelope { context: arrival.context as u32, tag: arrival.tag };
            let (peer, length) = (Some(Peer(arrival.peer)), arrival.length as usize);
            let result = Ok(Status { peer, envelope, length });
            let completion = Completion { context, kind, result, buffer };
            self.queues[queue as usize].entries.push_back(completion);
            return;
        }
        let result = Self::status_of(slot, &arrival);
        *place = None;
        self.finish(kind, route, buffer, result);
    }

    fn complete(&mut self, operation: Id, ended: Ended) {
        let taken = self.slots.get_mut(operation.index()).and_then(Option::take);
        let Some(slot) = taken else { return };
        let result = match ended {
            Ended::Sent { .. } => {
                Ok(Status { peer: slot.peer, envelope: slot.envelope, length: slot.shape.len() })
            }
            Ended::Received(arrival) => Self::status_of(&slot, &arrival),
            Ended::Failed(failure, Some(name)) => {
                let address = Address::new(name.engine, name.locators, name.endpoint);
                Err(Error::Peer { address: Box::new(address), failure })
            }
            Ended::Failed(_, None) => Err(Error::UnknownPeer),
            Ended::Cancelled => Err(Error::Cancelled),
        };
        self.finish(slot.kind, slot.route, slot.buffer, result);
    }
}

/// What a finished handle holds.
pub(crate) fn outcome_of((result, buffer): (Result<Status, Error>, Option<Buffer>)) -> Outcome {
    Outcome { result, buffer: buffer.unwrap_or_else(|| Buffer::Heap(Vec::new())) }
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
