//! Memory of receives of the common kind: one piece of memory, and a completion in a queue.
//!
//! Such a receive needs 40 bytes until its message arrives. If the message is not whole, or its
//! completion is not the plain one, the landing becomes a [`Slot`], which all other code uses.

use super::{Completions, PostedTo, Posting, Route};
use crate::memory::{Buffer, Shape, Span, copy_bytes};
use crate::progress::counters::{CounterEvents, UNCOUNTED};
use crate::progress::post::Memory;
use crate::proto::effects::Arrival;
use crate::proto::table::Id;
use crate::types::{Completion, Envelope, OperationKind, Peer, Status};

/// One piece of memory of a receive.
#[derive(Debug)]
pub struct Piece(Owner);

#[derive(Debug)]
enum Owner {
    /// The operation owns it.
    Heap(Vec<u8>),
    /// Its poster keeps it valid, and to this receive alone, until the operation ends.
    Borrowed(Span),
}

impl Piece {
    /// Memory of the heap, which the operation owns.
    #[inline]
    pub(crate) fn heap(bytes: Vec<u8>) -> Self {
        Self(Owner::Heap(bytes))
    }

    pub(super) fn is_borrowed(&self) -> bool {
        matches!(self.0, Owner::Borrowed(_))
    }

    /// Returns the length in bytes.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        match &self.0 {
            Owner::Heap(bytes) => bytes.len(),
            Owner::Borrowed(span) => span.len,
        }
    }

    /// Returns the same as memory of any kind.
    pub(crate) fn into_memory(self) -> Memory {
        match self.0 {
            Owner::Heap(mut bytes) => {
                let shape = Shape::contiguous(bytes.as_mut_ptr(), bytes.len());
                Memory { buffer: Some(Buffer::Heap(bytes)), shape }
            }
            Owner::Borrowed(Span { ptr, len }) => {
                Memory { buffer: None, shape: Shape::contiguous(ptr, len) }
            }
        }
    }

    /// Returns memory that is one piece, of the heap or borrowed; `Err` returns other memory.
    #[inline]
    pub(crate) fn of_memory(memory: Memory) -> Result<Self, Memory> {
        match memory {
            Memory { buffer: Some(Buffer::Heap(bytes)), .. } => Ok(Self::heap(bytes)),
            Memory { buffer: None, shape } => match shape.as_span() {
                Some(span) => Ok(Self(Owner::Borrowed(span))),
                None => Err(Memory { buffer: None, shape }),
            },
            other => Err(other),
        }
    }
}

/// The memory of a receive, and the destination of its completion.
#[derive(Debug)]
pub(super) struct Landing {
    /// `None`: there is no such receive under this index.
    pub(super) piece: Option<Piece>,
    pub(super) user_data: u64,
    pub(super) queue: u32,
    /// The endpoint whose counters count its completion; [`UNCOUNTED`]: none.
    pub(super) counts_for: u16,
    /// Only a failure is reported.
    pub(super) silent: bool,
}

/// Two of them in three cache lines.
const _: () = assert!(size_of::<Landing>() <= 40);

impl Landing {
    const NONE: Self =
        Self { piece: None, user_data: 0, queue: 0, counts_for: UNCOUNTED, silent: false };
}

impl Completions {
    /// Keeps the memory of receive `id`, which `endpoint` has posted, until it ends.
    #[inline(always)]
    pub(in crate::progress) fn insert_landing(
        &mut self,
        id: Id,
        piece: Piece,
        to: PostedTo<u32>,
        endpoint: u16,
    ) {
        let index = id.index();
        if index >= self.landings.len() {
            self.grow_landings(index);
        }
        self.queues[to.queue as usize].reserve();
        let landing = &mut self.landings[index];
        debug_assert!(landing.piece.is_none(), "an operation begins in a vacant slot");
        // So that no code to drop it is in this path.
        std::mem::forget(landing.piece.replace(piece));
        (landing.user_data, landing.queue, landing.silent) = (to.user_data, to.queue, to.silent);
        landing.counts_for = if self.counting.is_used() { endpoint } else { UNCOUNTED };
    }

    #[cold]
    fn grow_landings(&mut self, index: usize) {
        self.landings.resize_with(index + 1, || Landing::NONE);
    }

    /// Gives a receive a slot, if it has a landing.
    #[inline]
    pub(super) fn leave_landing(&mut self, id: Id) {
        if self.landings.get(id.index()).is_some_and(|landing| landing.piece.is_some()) {
            self.turn_into_slot(id);
        }
    }

    #[cold]
    fn turn_into_slot(&mut self, id: Id) {
        let landing = &mut self.landings[id.index()];
        let Some(piece) = landing.piece.take() else { return };
        let &mut Landing { user_data, queue, counts_for, silent, .. } = landing;
        let (kind, memory) = (OperationKind::Receive, piece.into_memory());
        // Both are noted when it matches, or ends without a message.
        let (peer, envelope) = (None, Envelope::UNTAGGED);
        let route = Route::Queue { queue, user_data, silent };
        self.insert(id, Posting { kind, route, memory, peer, envelope });
        // It was reserved already.
        self.queues[queue as usize].release();
        if let Some(Some(slot)) = self.slots.get_mut(id.index()) {
            slot.counts_for = counts_for;
        }
    }

    /// Completes receive `id` with a whole message, of which `bytes` fit. `false`: it has no landing
    /// any more, and nothing was done.
    #[inline(always)]
    pub(super) fn deliver_to_landing(&mut self, id: Id, bytes: &[u8], arrival: &Arrival) -> bool {
        let Some(landing) = self.landings.get_mut(id.index()) else { return false };
        let is_plain = !landing.silent && arrival.data.is_none() && !planted!(DuplicateCompletion);
        let piece = match &mut landing.piece {
            Some(piece) if is_plain && arrival.length <= piece.len() as u64 => piece,
            _ => {
                self.leave_landing(id);
                return false;
            }
        };
        let buffer = match &mut piece.0 {
            Owner::Heap(memory) => {
                self.copies.run(bytes.len(), || copy_bytes(&mut memory[..bytes.len()], bytes));
                Some(Buffer::Heap(std::mem::take(memory)))
            }
            Owner::Borrowed(span) => {
                // SAFETY: its poster guarantees that the memory is valid and exclusive until the
                // operation ends, and it is not shorter than the message.
                let memory = unsafe { std::slice::from_raw_parts_mut(span.ptr, bytes.len()) };
                self.copies.run(bytes.len(), || copy_bytes(memory, bytes));
                None
            }
        };
        // What is left owns nothing.
        std::mem::forget(landing.piece.take());
        let (user_data, queue, counts_for) = (landing.user_data, landing.queue, landing.counts_for);
        self.copied_bytes += bytes.len() as u64;
        self.finished += 1;
        self.report(queue, || {
            let envelope = Envelope::of(arrival.context, arrival.tag);
            let (peer, length) = (Some(Peer(arrival.peer)), arrival.length as usize);
            let result = Ok(Status { peer, envelope, length, data: None });
            let kind = OperationKind::Receive;
            Completion { user_data, kind, result, buffer, offset: 0 }
        });
        if counts_for != UNCOUNTED {
            self.count(counts_for, CounterEvents::RECEIVE, true);
        }
        true
    }

    /// Gives all receives slots that `is_wanted` selects by their queue.
    pub(super) fn leave_landings(&mut self, is_wanted: impl Fn(u32) -> bool) {
        for index in 0..self.landings.len() {
            let landing = &self.landings[index];
            if landing.piece.is_some() && is_wanted(landing.queue) {
                self.turn_into_slot(Id::from_u64(index as u64));
            }
        }
    }
}
