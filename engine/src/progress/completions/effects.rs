//! Effects of the protocol on user memory, and completions.

use super::super::counters::CounterEvents;
use super::super::held::MemoryGuard;
use super::super::post::Memory;
use super::{CompletionRoute, CompletionSlot, Completions, EntryQueue, Posting, span_of};
use crate::memory::copy_bytes_to;
use crate::memory::{Buffer, Shape};
use crate::proto::effects::{Arrival, Effects, Ended, RemoteName};
use crate::proto::regions::{Access, Refusal};
use crate::proto::session::eager_limit::CopySpeed;
use crate::proto::table::Id;
use crate::types::{Address, Completion, Envelope, Error, OperationKind, Peer, Status};

impl Completions {
    #[inline]
    fn status_of(slot: &CompletionSlot, arrival: &Arrival) -> Result<Status, Error> {
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
        self.make_general(operation);
        if let Some(slot) = self.slots.get(operation.index()).and_then(Option::as_ref) {
            if let MemoryGuard::Window(window) = &slot.held {
                window.store_to(span_of(&slot.shape), offset, bytes);
                self.copied_bytes += bytes.len() as u64;
                return;
            }
            // SAFETY: the slot owns the buffer (or its poster guarantees exclusive memory) until
            // the operation ends; the protocol keeps `offset + bytes.len()` within its capacity.
            self.copies.run(bytes.len(), || unsafe { slot.shape.copy_from(offset, bytes) });
            self.copied_bytes += bytes.len() as u64;
        }
    }

    fn copy(&mut self, from: Id, to: Id, offset: u64, length: u64) {
        self.make_general(to);
        let both = self.slot(from).zip(self.slot(to));
        let Some((source, target)) = debug_assert_some!(both, "operations that copy have memory")
        else {
            return;
        };
        if source.held.is_window() || target.held.is_window() {
            copy_by_windows(source, target, offset as usize, length as usize);
        } else {
            // SAFETY: both slots own their buffers (or their posters guarantee the memory) until
            // the operations end, a receive's memory is exclusive, and the protocol keeps the range
            // within both.
            unsafe { target.shape.copy_of(&source.shape, offset as usize, length as usize) };
        }
        self.copied_bytes += length;
    }

    fn checksum(&self, operation: Id, offset: u64, length: u32) -> u32 {
        let slot = debug_assert_some!(self.slot(operation), "its chunk is outstanding");
        slot.map_or(0, |slot| slot.checksum(offset as usize, length as usize))
    }

    fn put(&mut self, region: Id, offset: u64, bytes: &[u8]) -> Result<(), Refusal> {
        self.copied_bytes += bytes.len() as u64;
        self.regions.put(region, offset, bytes)
    }

    fn atomic(
        &mut self,
        region: Id,
        offset: u64,
        codes: (u8, u8),
        operands: (&[u8], &[u8]),
        before: Option<&mut [u8]>,
    ) -> Result<(), Refusal> {
        self.regions.atomic(region, offset, codes, operands, before)
    }

    fn bind_region(
        &mut self,
        operation: Id,
        region: Id,
        offset: u64,
        length: u64,
        (target, is_write): (u16, bool),
    ) -> Result<(), Refusal> {
        let (window, shape) = self.regions.bind(region, offset, length, is_write)?;
        let kind = if is_write { OperationKind::Receive } else { OperationKind::Send };
        let route = CompletionRoute::Region(region);
        let (memory, peer) = (Memory { buffer: None, shape }, None);
        let envelope = Envelope::UNTAGGED;
        self.insert(operation, Posting { kind, route, memory, peer, envelope });
        if let Some(slot) = self.slot_mut(operation) {
            (slot.held, slot.offset) = (MemoryGuard::Window(window), target.into());
        }
        Ok(())
    }

    fn keep(&mut self, operation: Id, bytes: &[u8]) {
        let mut bytes = bytes.to_vec();
        let shape = Shape::contiguous(bytes.as_mut_ptr(), bytes.len());
        let (kind, route) = (OperationKind::Send, CompletionRoute::Nowhere);
        let memory = Memory { buffer: Some(Buffer::Heap(bytes)), shape };
        let (peer, envelope) = (None, Envelope::UNTAGGED);
        self.insert(operation, Posting { kind, route, memory, peer, envelope });
    }

    fn can_report(&self, target: u16) -> bool {
        let queue = self.regions.queue_of(target);
        let queue = queue.and_then(|queue| self.queues.get(queue as usize));
        queue.is_some_and(EntryQueue::has_room)
    }

    fn accessed(&mut self, region: Id, access: Access, target: u16, arrival: &Arrival) {
        self.regions.count(region, access, arrival.length);
        self.count_access(access, target);
        if arrival.data.is_some() {
            self.report_put(target, arrival);
        }
    }

    #[cold]
    fn revoke(&mut self) {
        if let Some(cookie) = &self.cookie {
            cookie.revoke();
        }
    }

    fn copy_speed(&self) -> CopySpeed {
        self.copies.speed()
    }

    fn slice(&mut self, receive: Id, slice: Id, offset: u64, length: u64) {
        let whole = debug_assert_some!(self.slot(receive), "a receive with slices is posted");
        let Some(whole) = whole else { return };
        let shape = whole.shape.part(offset as usize, length as usize);
        let (kind, route, memory) =
            (OperationKind::Receive, whole.route, Memory { buffer: None, shape });
        let (peer, envelope, counts_for) = (whole.peer, whole.envelope, whole.counts_for);
        self.insert(slice, Posting { kind, route, memory, peer, envelope });
        if let Some(slot) = self.slot_mut(slice) {
            (slot.offset, slot.counts_for) = (offset as u32, counts_for);
        }
    }

    fn unmatched(&mut self, receive: Id, peer: Option<Id>, (context, tag): (u64, u64)) {
        self.make_general(receive);
        if let Some(slot) = self.slot_mut(receive) {
            (slot.peer, slot.envelope) = (peer.map(Peer), Envelope::of(context, tag));
        }
    }

    fn matched(&mut self, receive: Id, arrival: &Arrival) {
        self.make_general(receive);
        if let Some(slot) = self.slot_mut(receive) {
            slot.peer = Some(Peer(arrival.peer));
            slot.envelope = Envelope::of(arrival.context, arrival.tag);
            if let CompletionRoute::Handle(handle) = slot.route {
                self.number_match(handle);
            }
        }
    }

    #[cold]
    fn order(&mut self, receive: Id, order: u64) {
        if let Some(slot) = self.slot(receive)
            && let CompletionRoute::Handle(handle) = slot.route
            && let Some(handle) = self.handles.get_mut(handle)
        {
            handle.order = order;
        }
    }

    fn has_room(&self, receive: Id) -> bool {
        self.slot(receive).is_some_and(|slot| Self::has_room(self, slot.route))
    }

    #[inline(always)]
    fn deliver(&mut self, operation: Id, bytes: &[u8], arrival: Arrival) {
        // SAFETY: the destination is valid for writes of so many bytes, and exclusive, so that
        // `bytes` are elsewhere.
        let copy = |to| unsafe { copy_bytes_to(to, bytes) };
        if !self.deliver_plain(operation, bytes.len(), &arrival, copy) {
            // A copy, so that the fields of other arrivals stay in registers.
            self.deliver_general(operation, bytes, &Arrival { ..arrival });
        }
    }

    fn complete(&mut self, operation: Id, ended: Ended) {
        self.make_general(operation);
        let taken = self.slots.get_mut(operation.index()).and_then(Option::take);
        // A driver that has failed has ended all operations before the protocol ends them.
        let Some(slot) = taken else { return };
        if let CompletionRoute::Region(region) = slot.route {
            return self.end_remote_access(&slot, region, &ended);
        }
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
            Ended::Refused(cause, Some(name)) => Err(refused(&slot, cause, name)),
            Ended::Failed(_, None) | Ended::Refused(_, None) => Err(Error::UnknownPeer),
            Ended::Unflushed(count) => Err(Error::Unflushed(count)),
            Ended::NoPeerLeft => Err(Error::NoPeerLeft),
            Ended::Cancelled => Err(Error::Cancelled),
        };
        self.finish(slot, result);
    }
}

impl Completions {
    #[inline(never)]
    pub(in crate::progress) fn deliver_general(
        &mut self,
        operation: Id,
        bytes: &[u8],
        arrival: &Arrival,
    ) {
        self.make_general(operation);
        self.place(operation, 0, bytes);
        self.complete(operation, Ended::Received(*arrival));
    }

    /// Handles the end of a peer's operation on memory of this engine that did not end at once.
    fn end_remote_access(&mut self, slot: &CompletionSlot, region: Id, ended: &Ended) {
        let is_write = slot.kind == OperationKind::Receive;
        let target = slot.offset as u16;
        match ended {
            Ended::Received(arrival) if is_write => {
                self.accessed(region, Access::REMOTE_WRITE, target, arrival);
            }
            Ended::Sent { accepted } if !is_write => {
                self.regions.count(region, Access::REMOTE_READ, *accepted);
                self.count_access(Access::REMOTE_READ, target);
            }
            _ => {}
        }
    }

    /// Counts a peer's access to memory, for the endpoint that it named.
    #[inline]
    fn count_access(&mut self, access: Access, target: u16) {
        let event = match access {
            Access::REMOTE_READ => CounterEvents::REMOTE_READ,
            _ => CounterEvents::REMOTE_WRITE,
        };
        self.count(target, event, true);
    }

    /// Reports a put with remote data to the owner of an endpoint.
    fn report_put(&mut self, target: u16, arrival: &Arrival) {
        let Some(queue) = self.regions.queue_of(target) else { return };
        let (peer, length) = (Some(Peer(arrival.peer)), arrival.length as usize);
        let status = Status { peer, envelope: Envelope::UNTAGGED, length, data: arrival.data };
        let (kind, result) = (OperationKind::RemotePut, Ok(status));
        self.queues[queue as usize].reserve();
        self.report(queue, || Completion { user_data: 0, kind, result, offset: 0, buffer: None });
    }
}

/// Returns the error of a refusal by the target.
#[cold]
fn refused(slot: &CompletionSlot, cause: Refusal, name: RemoteName) -> Error {
    let address = Address::new(name.engine, name.locators, name.endpoint);
    let status = Some(Box::new(slot.status_of_failed()));
    Error::Refused { address: Box::new(address), cause, status }
}

/// Copies between memory of which one or both may be accessed by peers meanwhile.
fn copy_by_windows(source: &CompletionSlot, target: &CompletionSlot, offset: usize, length: usize) {
    let mut piece = [0; 4096];
    let mut at = offset;
    while at < offset + length {
        let piece = &mut piece[..(offset + length - at).min(4096)];
        match &source.held {
            MemoryGuard::Window(window) => window.load_from(span_of(&source.shape), at, piece),
            // SAFETY: the slot owns its buffer (or its poster guarantees the memory) until the
            // operation ends, and nothing writes the memory of a send.
            _ => unsafe { source.shape.copy_to(at, piece) },
        }
        match &target.held {
            MemoryGuard::Window(window) => window.store_to(span_of(&target.shape), at, piece),
            // SAFETY: as above, and the memory of a receive is exclusive.
            _ => unsafe { target.shape.copy_from(at, piece) },
        }
        at += piece.len();
    }
}
