//! Plain receives, which most are: one piece of memory, and a completion in a queue.
//!
//! Such a receive needs one cache line until its message arrives. It gets a general slot
//! ([`super::CompletionSlot`]), which all other code uses, if its message is not whole, its
//! completion is not a plain one, or its queue closes.

use super::{Completions, PostedTo, Posting, class_of};
use crate::memory::{Buffer, Shape, Span};
use crate::progress::counters::{CounterEvents, UNCOUNTED};
use crate::progress::post::Memory;
use crate::proto::effects::Arrival;
use crate::proto::table::Id;
use crate::types::{Completion, Envelope, OperationKind, Peer, Status};

/// Memory of a receive that is one piece.
pub struct ReceiveMemory {
    /// What the operation owns: memory of the heap, or of a domain. `None`: its poster keeps the
    /// memory valid, and to this receive alone, until the operation ends.
    buffer: Option<Buffer>,
    /// The memory, which is that of the buffer if there is one.
    span: Span,
}

/// Shows the length instead of bytes, which may be many and confidential.
impl std::fmt::Debug for ReceiveMemory {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let owner = if self.buffer.is_none() { "borrowed" } else { "owned" };
        write!(out, "ReceiveMemory({} bytes, {owner})", self.len())
    }
}

impl ReceiveMemory {
    /// No memory.
    const NONE: Self = Self { buffer: None, span: Span { ptr: std::ptr::null_mut(), len: 0 } };

    /// Memory that the operation owns; `Err` returns a buffer that is not one piece.
    #[inline(always)]
    pub(crate) fn of(mut buffer: Buffer) -> Result<Self, Buffer> {
        let span = match &mut buffer {
            Buffer::Heap(bytes) => Span { ptr: bytes.as_mut_ptr(), len: bytes.len() },
            Buffer::Region(slice) => Span { ptr: slice.as_mut_ptr(), len: slice.len() },
            Buffer::List(_) | Buffer::Shaped(_) => return Err(buffer),
        };
        Ok(Self { buffer: Some(buffer), span })
    }

    /// Returns memory that its poster keeps valid, and to the receive alone, until that ends.
    #[inline]
    pub(crate) fn borrowed(span: Span) -> Self {
        Self { buffer: None, span }
    }

    /// Returns memory that is one piece; `Err` returns other memory.
    #[inline]
    pub(crate) fn of_memory(memory: Memory) -> Result<Self, Memory> {
        match memory {
            Memory { buffer: Some(Buffer::List(_) | Buffer::Shaped(_)), .. } => Err(memory),
            Memory { buffer, shape } => match shape.as_span() {
                Some(span) => Ok(Self { buffer, span }),
                None => Err(Memory { buffer, shape }),
            },
        }
    }

    /// Returns the length in bytes.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.span.len
    }

    /// Takes the memory, and leaves its address, for [`Self::restore`].
    #[inline(always)]
    pub(crate) fn take(&mut self) -> Self {
        Self { buffer: self.buffer.take(), span: self.span }
    }

    /// Puts memory back that was taken.
    #[inline]
    pub(crate) fn restore(&mut self, taken: Self) {
        self.buffer = taken.buffer;
    }

    /// Puts memory back that was taken as [`Memory`].
    pub(crate) fn put_back(&mut self, memory: Memory) {
        self.buffer = memory.buffer;
    }

    /// Converts it to memory of any kind.
    pub(crate) fn into_memory(self) -> Memory {
        let Self { buffer, span } = self;
        Memory { buffer, shape: Shape::Contiguous(span) }
    }

    /// Returns what the operation owned.
    #[inline]
    pub(crate) fn into_buffer(self) -> Option<Buffer> {
        self.buffer
    }
}

/// Whether a receive is in a slot, and how its completion is reported.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Waiting {
    /// There is no such receive under this index.
    Not,
    /// It is, and is reported.
    Reported,
    /// It is, and only a failure is reported.
    Silent,
}

/// The memory of a receive, and the destination of its completion: one cache line
/// that contains nothing else.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct PlainReceive {
    memory: ReceiveMemory,
    user_data: u64,
    queue: u32,
    /// The endpoint whose counters count its completion; [`UNCOUNTED`]: none.
    counts_for: u16,
    waiting: Waiting,
}

const _: () = assert!(size_of::<PlainReceive>() == 64);

impl PlainReceive {
    const NONE: Self = Self {
        memory: ReceiveMemory::NONE,
        user_data: 0,
        queue: 0,
        counts_for: UNCOUNTED,
        waiting: Waiting::Not,
    };

    /// Makes a list longer, up to an index. Returns the entry there.
    #[cold]
    fn grow(list: &mut Vec<Self>, index: usize) -> &mut Self {
        list.resize_with(index + 1, || Self::NONE);
        &mut list[index]
    }

    /// Returns whether there is a receive.
    #[inline]
    pub(super) fn is_some(&self) -> bool {
        self.waiting != Waiting::Not
    }

    /// Returns its memory; `None`: there is no receive.
    pub(super) fn span(&self) -> Option<Span> {
        self.is_some().then_some(self.memory.span)
    }

    /// Returns the value that is returned with its completion; `None`: there is no receive.
    pub(super) fn user_data(&self) -> Option<u64> {
        self.is_some().then_some(self.user_data)
    }
}

impl Completions {
    /// Keeps the memory of receive `id`, which `endpoint` has posted, until it ends. The space of
    /// its completion was reserved.
    #[inline(always)]
    pub(in crate::progress) fn insert_plain(
        &mut self,
        id: Id,
        memory: &mut ReceiveMemory,
        to: PostedTo,
        endpoint: u16,
    ) {
        let index = id.index();
        let receive = match self.plain_receives.get_mut(index) {
            Some(receive) => receive,
            None => PlainReceive::grow(&mut self.plain_receives, index),
        };
        debug_assert!(!receive.is_some(), "an operation begins in a vacant slot");
        debug_assert!(receive.memory.buffer.is_none(), "its buffer went with its completion");
        debug_assert!(self.slots.get(index).is_none_or(Option::is_none), "its index is free");
        receive.user_data = to.user_data;
        receive.queue = to.queue;
        receive.waiting = if to.silent { Waiting::Silent } else { Waiting::Reported };
        receive.counts_for = if self.counting.is_used() { endpoint } else { UNCOUNTED };
        receive.memory.span = memory.span;
        // So that no code to drop it is in this path.
        std::mem::forget(std::mem::replace(&mut receive.memory.buffer, memory.buffer.take()));
    }

    /// Gives receive `id` a general slot, if it is a plain one.
    #[inline]
    pub(super) fn make_general(&mut self, id: Id) {
        if self.placed.is_some() {
            self.keep_placed(id);
        }
        if let Some(receive) = self.plain_receives.get_mut(id.index())
            && receive.is_some()
        {
            let &mut PlainReceive { user_data, queue, counts_for, waiting, .. } = receive;
            receive.waiting = Waiting::Not;
            let memory = receive.memory.take();
            let to = PostedTo { queue, user_data, silent: waiting == Waiting::Silent };
            self.turn_into_slot(id, memory, to, counts_for);
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

    /// Completes receive `id` with a whole message, whose bytes `read` copies. `false`: it is no
    /// plain one, or does not end as one, and nothing was delivered.
    #[inline]
    pub(in crate::progress) fn deliver_in_place(
        &mut self,
        id: Id,
        arrival: &Arrival,
        read: impl FnOnce(&mut [u8]),
    ) -> bool {
        let count = arrival.length as usize;
        // SAFETY: `to` is valid for writes of `count` bytes, and exclusive; users pass memory that
        // is initialized.
        let copy = |to| read(unsafe { std::slice::from_raw_parts_mut(to, count) });
        self.deliver_plain(id, count, arrival, copy)
    }

    /// Completes receive `id` with a whole message, of which `count` bytes fit. `copy` gets their
    /// destination, which is valid for writes of so many bytes, and exclusive. `false`: it is no
    /// plain one, or does not end as one, and nothing was delivered.
    #[inline(always)]
    pub(super) fn deliver_plain(
        &mut self,
        id: Id,
        count: usize,
        arrival: &Arrival,
        copy: impl FnOnce(*mut u8),
    ) -> bool {
        if self.placed.is_some() {
            self.keep_placed(id);
        }
        let Some(receive) = self.plain_receives.get_mut(id.index()) else { return false };
        let length = arrival.length as usize;
        debug_assert!(count <= length, "bytes are of the message");
        let is_plain = receive.waiting == Waiting::Reported
            && length <= receive.memory.span.len
            && count <= length
            && !planted!(DuplicateCompletion);
        if !is_plain {
            return false;
        }
        // The receive owns its buffer, or its poster guarantees that the memory is valid and
        // exclusive, until the operation ends; it is not shorter than the message.
        let to = receive.memory.span.ptr;
        self.copies.run(count, || copy(to));
        receive.waiting = Waiting::Not;
        self.copied_bytes += count as u64;
        self.finished += 1;
        let (user_data, queue, counts_for) = (receive.user_data, receive.queue, receive.counts_for);
        let is_outside = self.queues[queue as usize].push(|| {
            let envelope = Envelope::of(arrival.context, arrival.tag);
            let peer = Some(Peer(arrival.peer));
            let result = Ok(Status { peer, envelope, length, data: arrival.data });
            let (kind, buffer) = (OperationKind::Receive, receive.memory.buffer.take());
            Completion { user_data, kind, result, buffer, offset: 0 }
        });
        if is_outside {
            self.wakeups.classes |= class_of(queue);
        }
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

    fn insert(completions: &mut Completions, index: u64, mut memory: ReceiveMemory, to: PostedTo) {
        assert!(completions.try_reserve(to.queue));
        completions.insert_plain(id(index), &mut memory, to, 0);
        assert!(memory.into_buffer().is_none(), "it was taken");
    }

    fn heap(bytes: Vec<u8>) -> ReceiveMemory {
        ReceiveMemory::of(Buffer::Heap(bytes)).unwrap()
    }

    /// Completions with a queue of four entries, in which a receive of 8 bytes is outstanding.
    fn with_receive(silent: bool) -> (Completions, u32) {
        let mut completions = Completions::new(4);
        let queue = completions.open_queue(4);
        let to = PostedTo { queue, user_data: 7, silent };
        insert(&mut completions, 2, heap(vec![0; 8]), to);
        (completions, queue)
    }

    fn bytes_of(completion: Completion) -> Vec<u8> {
        completion.buffer.and_then(|buffer| buffer.into_vec().ok()).unwrap()
    }

    #[test]
    fn a_whole_message_completes_it_and_returns_its_buffer() {
        let (mut completions, queue) = with_receive(false);
        completions.deliver(id(2), b"bytes", arrival(5, Some(9)));
        let completion = completions.pop(queue).unwrap();
        let status = completion.result.as_ref().unwrap();
        assert_eq!((completion.user_data, status.length, status.peer), (7, 5, Some(Peer(id(5)))));
        assert_eq!(status.data, Some(9));
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
            insert(&mut completions, index, heap(Vec::new()), to);
        }
        assert!(!completions.has_room_in(queue) && !completions.try_reserve(queue));
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
            let to = PostedTo { queue, user_data: 8, silent: false };
            insert(&mut completions, 3, borrowed, to);
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
        let text = format!("{:?}", heap(b"secret".to_vec()));
        assert_eq!(text, "ReceiveMemory(6 bytes, owned)");
    }
}
