//! Plain receives, which most are: one piece of memory, and a completion in a queue.
//!
//! Such a receive needs one cache line until its message arrives. It gets a general slot
//! ([`super::CompletionSlot`]), which all other code uses, if its message is not whole, its
//! completion is not a plain one, or its queue closes.

use super::{Completions, PostedTo, Posting};
use crate::memory::{Buffer, RegionSlice, Shape, Span, copy_bytes, copy_bytes_to};
use crate::progress::counters::{CounterEvents, UNCOUNTED};
use crate::progress::post::Memory;
use crate::proto::effects::Arrival;
use crate::proto::table::Id;
use crate::types::{Completion, Envelope, OperationKind, Peer, Status};

/// Memory of a receive that is one piece.
pub struct ReceiveMemory(Owner);

/// Shows the length instead of bytes, which may be many and confidential.
impl std::fmt::Debug for ReceiveMemory {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let owner = if self.is_borrowed() { "borrowed" } else { "owned" };
        write!(out, "ReceiveMemory({} bytes, {owner})", self.len())
    }
}

enum Owner {
    /// The operation owns it: memory of the heap.
    Heap(Vec<u8>),
    /// The operation owns it: memory of a domain.
    Region(RegionSlice),
    /// Its poster keeps it valid, and to this receive alone, until the operation ends.
    Borrowed(Span),
}

impl ReceiveMemory {
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
            Owner::Region(slice) => slice.len(),
            Owner::Borrowed(span) => span.len,
        }
    }

    /// Converts it to memory of any kind.
    pub(crate) fn into_memory(self) -> Memory {
        match self.0 {
            Owner::Heap(mut bytes) => {
                let shape = Shape::contiguous(bytes.as_mut_ptr(), bytes.len());
                Memory { buffer: Some(Buffer::Heap(bytes)), shape }
            }
            Owner::Region(mut slice) => {
                let shape = Shape::contiguous(slice.as_mut_ptr(), slice.len());
                Memory { buffer: Some(Buffer::Region(slice)), shape }
            }
            Owner::Borrowed(Span { ptr, len }) => {
                Memory { buffer: None, shape: Shape::contiguous(ptr, len) }
            }
        }
    }

    /// Memory of a domain, which the operation owns.
    #[inline]
    pub(crate) fn region(slice: RegionSlice) -> Self {
        Self(Owner::Region(slice))
    }

    /// Returns memory that is one piece; `Err` returns other memory.
    #[inline]
    pub(crate) fn of_memory(memory: Memory) -> Result<Self, Memory> {
        match memory {
            Memory { buffer: Some(Buffer::Heap(bytes)), .. } => Ok(Self::heap(bytes)),
            Memory { buffer: Some(Buffer::Region(slice)), .. } => Ok(Self::region(slice)),
            Memory { buffer: None, shape } => match shape.as_span() {
                Some(span) => Ok(Self(Owner::Borrowed(span))),
                None => Err(Memory { buffer: None, shape }),
            },
            other => Err(other),
        }
    }
}

/// The memory of a receive, and the destination of its completion: one cache line
/// that contains nothing else.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct PlainReceive {
    /// `None`: there is no such receive under this index.
    pub(super) memory: Option<ReceiveMemory>,
    pub(super) user_data: u64,
    pub(super) queue: u32,
    /// The endpoint whose counters count its completion; [`UNCOUNTED`]: none.
    pub(super) counts_for: u16,
    /// Only a failure is reported.
    pub(super) silent: bool,
}

const _: () = assert!(size_of::<PlainReceive>() == 64);

impl PlainReceive {
    const NONE: Self =
        Self { memory: None, user_data: 0, queue: 0, counts_for: UNCOUNTED, silent: false };
}

impl Completions {
    /// Keeps the memory of receive `id`, which `endpoint` has posted, until it ends.
    #[inline(always)]
    pub(in crate::progress) fn insert_plain(
        &mut self,
        id: Id,
        memory: ReceiveMemory,
        to: PostedTo,
        endpoint: u16,
    ) {
        let index = id.index();
        if index >= self.plain_receives.len() {
            self.grow_plain(index);
        }
        self.queues[to.queue as usize].reserve();
        let receive = &mut self.plain_receives[index];
        debug_assert!(receive.memory.is_none(), "an operation begins in a vacant slot");
        debug_assert!(self.slots.get(index).is_none_or(Option::is_none), "its index is free");
        // So that no code to drop it is in this path.
        std::mem::forget(receive.memory.replace(memory));
        (receive.user_data, receive.queue, receive.silent) = (to.user_data, to.queue, to.silent);
        receive.counts_for = if self.counting.is_used() { endpoint } else { UNCOUNTED };
    }

    #[cold]
    fn grow_plain(&mut self, index: usize) {
        self.plain_receives.resize_with(index + 1, || PlainReceive::NONE);
    }

    /// Gives receive `id` a general slot, if it is a plain one.
    #[inline]
    pub(super) fn make_general(&mut self, id: Id) {
        if let Some(receive) = self.plain_receives.get_mut(id.index())
            && let Some(memory) = receive.memory.take()
        {
            let &mut PlainReceive { user_data, queue, counts_for, silent, .. } = receive;
            self.turn_into_slot(id, memory, PostedTo { queue, user_data, silent }, counts_for);
        }
    }

    #[cold]
    fn turn_into_slot(&mut self, id: Id, memory: ReceiveMemory, to: PostedTo, counts_for: u16) {
        let (kind, memory) = (OperationKind::Receive, memory.into_memory());
        // Both are noted when it matches, or ends without a message.
        let (peer, envelope) = (None, Envelope::UNTAGGED);
        self.insert(id, Posting { kind, route: to.route(), memory, peer, envelope });
        // It was reserved already.
        self.queues[to.queue as usize].release();
        if let Some(slot) = self.slot_mut(id) {
            slot.counts_for = counts_for;
        }
    }

    /// Completes receive `id` with a whole message, of which `bytes` fit. `false`: it is no plain
    /// one, or not any more, and nothing was delivered.
    #[inline(always)]
    pub(super) fn deliver_plain(&mut self, id: Id, bytes: &[u8], arrival: &Arrival) -> bool {
        let Some(receive) = self.plain_receives.get_mut(id.index()) else { return false };
        let is_plain = !receive.silent && arrival.data.is_none() && !planted!(DuplicateCompletion);
        debug_assert!(bytes.len() as u64 <= arrival.length, "bytes are of the message");
        let fits = |memory: &ReceiveMemory| {
            arrival.length <= memory.len() as u64 && bytes.len() <= memory.len()
        };
        let Some(memory) = receive.memory.take_if(|memory| is_plain && fits(memory)) else {
            self.make_general(id);
            return false;
        };
        let count = bytes.len();
        let buffer = match memory.0 {
            Owner::Heap(mut memory) => {
                self.copies.run(count, || copy_bytes(&mut memory[..count], bytes));
                Some(Buffer::Heap(memory))
            }
            Owner::Region(mut memory) => {
                self.copies.run(count, || copy_bytes(&mut memory[..count], bytes));
                Some(Buffer::Region(memory))
            }
            Owner::Borrowed(span) => {
                // SAFETY: its poster guarantees that the memory is valid and exclusive until the
                // operation ends, so that `bytes` are elsewhere; it is not shorter than they are.
                self.copies.run(count, || unsafe { copy_bytes_to(span.ptr, bytes) });
                None
            }
        };
        let (user_data, queue, counts_for) = (receive.user_data, receive.queue, receive.counts_for);
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

    /// Gives general slots to all plain receives whose queue `is_wanted` selects.
    pub(super) fn make_general_where(&mut self, is_wanted: impl Fn(u32) -> bool) {
        for index in 0..self.plain_receives.len() {
            let receive = &self.plain_receives[index];
            if is_wanted(receive.queue) {
                self.make_general(Id::from_u64(index as u64));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::effects::{Effects, Ended};
    use crate::types::Error;

    fn id(index: u64) -> Id {
        Id::from_u64(1 << 32 | index)
    }

    fn arrival(length: u64, data: Option<u64>) -> Arrival {
        Arrival { peer: id(5), context: 3, tag: 4, length, data }
    }

    /// Completions with a queue of four entries, in which a receive of 8 bytes is outstanding.
    fn with_receive(silent: bool) -> (Completions, u32) {
        let mut completions = Completions::new(4);
        let queue = completions.open_queue(4);
        let to = PostedTo { queue, user_data: 7, silent };
        completions.insert_plain(id(2), ReceiveMemory::heap(vec![0; 8]), to, 0);
        (completions, queue)
    }

    fn bytes_of(completion: Completion) -> Vec<u8> {
        completion.buffer.and_then(|buffer| buffer.into_vec().ok()).unwrap()
    }

    #[test]
    fn a_whole_message_completes_it_and_returns_its_buffer() {
        let (mut completions, queue) = with_receive(false);
        completions.deliver(id(2), b"bytes", arrival(5, None));
        let completion = completions.pop(queue).unwrap();
        let status = completion.result.as_ref().unwrap();
        assert_eq!((completion.user_data, status.length, status.peer), (7, 5, Some(Peer(id(5)))));
        assert_eq!(bytes_of(completion), b"bytes\0\0\0");
        assert!(completions.is_queue_idle(queue) && completions.pop(queue).is_none());
    }

    #[test]
    fn what_is_not_plain_ends_by_a_general_slot() {
        let (mut completions, queue) = with_receive(false);
        completions.deliver(id(2), b"beyond a", arrival(9, None));
        let completion = completions.pop(queue).unwrap();
        assert!(matches!(completion.result, Err(Error::Truncated { capacity: 8, .. })));
        assert_eq!(bytes_of(completion), b"beyond a");
        let (mut completions, queue) = with_receive(false);
        completions.deliver(id(2), b"bytes", arrival(5, Some(9)));
        assert_eq!(completions.pop(queue).unwrap().result.unwrap().data, Some(9));
        let (mut completions, queue) = with_receive(true);
        completions.deliver(id(2), b"bytes", arrival(5, None));
        assert!(completions.pop(queue).is_none() && completions.is_queue_idle(queue), "silent");
        let (mut completions, queue) = with_receive(false);
        completions.unmatched(id(2), Some(id(5)), (3, 4));
        completions.complete(id(2), Ended::Cancelled);
        assert!(matches!(completions.pop(queue).unwrap().result, Err(Error::Cancelled)));
        assert!(completions.is_queue_idle(queue));
    }

    #[test]
    fn its_space_in_the_queue_is_reserved_once() {
        let (mut completions, queue) = with_receive(false);
        let to = PostedTo { queue, user_data: 8, silent: false };
        for index in 3..6 {
            assert!(completions.has_room_in(queue));
            completions.insert_plain(id(index), ReceiveMemory::heap(Vec::new()), to, 0);
        }
        assert!(!completions.has_room_in(queue));
        completions.make_general_where(|_| true);
        assert!(!completions.has_room_in(queue) && completions.user_data_of(id(5)) == Some(8));
        completions.deliver(id(5), &[], arrival(0, None));
        assert!(!completions.has_room_in(queue), "its completion is unread");
        assert!(completions.pop(queue).is_some() && completions.has_room_in(queue));
    }

    #[test]
    fn its_message_is_taken_after_its_queue_has_closed() {
        let (mut completions, queue) = with_receive(false);
        completions.close_queue(queue);
        completions.deliver(id(2), b"bytes", arrival(5, None));
        assert!(completions.slots.iter().all(Option::is_none), "its buffer is dropped");
        let (mut completions, queue) = with_receive(false);
        completions.end_all(&Error::NoPeerLeft);
        assert!(matches!(completions.pop(queue).unwrap().result, Err(Error::NoPeerLeft)));
    }

    #[test]
    fn borrowed_memory_is_written_up_to_the_length_of_the_message() {
        for length in 0..20_usize {
            let (mut completions, queue) = with_receive(false);
            let mut memory = [0xee_u8; 24];
            let span = Span { ptr: memory.as_mut_ptr(), len: 20 };
            let memory_of = Memory { buffer: None, shape: Shape::contiguous(span.ptr, span.len) };
            let borrowed = ReceiveMemory::of_memory(memory_of).unwrap();
            assert!(borrowed.is_borrowed());
            let to = PostedTo { queue, user_data: 8, silent: false };
            completions.insert_plain(id(3), borrowed, to, 0);
            let bytes: Vec<u8> = (0..length as u8).collect();
            completions.deliver(id(3), &bytes, arrival(length as u64, None));
            let completion = completions.pop(queue).unwrap();
            assert!(completion.result.is_ok() && completion.buffer.is_none());
            assert_eq!(memory[..length], bytes);
            assert!(memory[length..].iter().all(|&byte| byte == 0xee), "{length}");
        }
    }

    #[test]
    fn debug_output_shows_no_bytes() {
        let text = format!("{:?}", ReceiveMemory::heap(b"secret".to_vec()));
        assert_eq!(text, "ReceiveMemory(6 bytes, owned)");
    }
}
