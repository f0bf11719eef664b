//! Messages that the loop receives into the memory of receives, while they are incomplete.
//!
//! The receive of such a message may end without it: it is given up, its endpoint or queue closes,
//! its peer is removed, or it takes another message first. Before that, what has arrived is copied
//! out of its memory, so that the message is not lost.

use std::ops::Range;

use super::Completions;
use crate::memory::Span;
use crate::proto::effects::{Arrival, Effects as _, Ended};
use crate::proto::table::Id;
use crate::types::OperationKind;

/// An incomplete message in the memory of a receive.
#[derive(Debug)]
struct Placed {
    session: u32,
    receive: Id,
    /// Bytes that have arrived.
    count: usize,
    /// These bytes, if the receive has ended without the message.
    kept: Option<Vec<u8>>,
}

impl Placed {
    /// Returns whether it is in the memory of a receive.
    fn has(&self, receive: Id) -> bool {
        self.receive == receive && self.kept.is_none()
    }
}

/// The incomplete messages of all sessions, at most one of each.
#[derive(Debug, Default)]
pub(super) struct PlacedMessages {
    all: Vec<Placed>,
}

impl PlacedMessages {
    /// Returns whether there are any.
    #[inline]
    pub(super) fn is_some(&self) -> bool {
        !self.all.is_empty()
    }

    fn get_mut(&mut self, session: u32) -> Option<&mut Placed> {
        self.all.iter_mut().find(|it| it.session == session)
    }

    fn remove(&mut self, session: u32) -> Option<Placed> {
        let at = self.all.iter().position(|it| it.session == session)?;
        Some(self.all.swap_remove(at))
    }
}

impl Completions {
    /// Returns the memory of receive `id`; `None`: there is no such receive, or it has several
    /// pieces.
    fn span_of_receive(&self, id: Id) -> Option<Span> {
        if let Some(span) = self.plain_receives.get(id.index()).and_then(|it| it.span()) {
            return Some(span);
        }
        let slot = self.slot(id).filter(|it| it.kind == OperationKind::Receive)?;
        slot.shape.as_span().filter(|_| !slot.held.is_window())
    }

    /// Passes `use_bytes` those at `range` of the memory of receive `id`. `None`: there is no such
    /// receive, or its memory is shorter, or has several pieces.
    fn with_memory<R>(
        &mut self,
        id: Id,
        range: Range<usize>,
        use_bytes: impl FnOnce(&mut [u8]) -> R,
    ) -> Option<R> {
        let span = self.span_of_receive(id)?;
        let length = range.len();
        if range.start > range.end || range.end > span.len {
            return None;
        }
        // SAFETY: the range is in the memory of a receive, which owns its buffer, or whose poster
        // guarantees that the memory is valid and exclusive, until the operation ends. `use_bytes`
        // cannot end it: this call has the engine's completions. Users pass memory that is
        // initialized.
        let bytes = unsafe { std::slice::from_raw_parts_mut(span.ptr.add(range.start), length) };
        Some(use_bytes(bytes))
    }

    /// Copies the beginning of a message that a session receives to the memory of `receive`, which
    /// gets the rest. Returns whether it does: its memory is one piece, long enough, and gets no
    /// message of another session.
    pub(in crate::progress) fn begin_placed(
        &mut self,
        session: u32,
        receive: Id,
        beginning: &[u8],
    ) -> bool {
        let count = beginning.len();
        let copy = |room: &mut [u8]| room.copy_from_slice(beginning);
        let is_other = |it: &Placed| it.session != session && it.has(receive);
        let is_taken = self.placed.all.iter().any(is_other);
        if is_taken || self.with_memory(receive, 0..count, copy).is_none() {
            return false;
        }
        self.forget_placed(session);
        self.copied_bytes += count as u64;
        self.placed.all.push(Placed { session, receive, count, kept: None });
        true
    }

    /// Lets `read` write up to `length` bytes behind those of a session's message that have
    /// arrived, and return how many it wrote. `None`: the receive has ended; see
    /// [`Self::take_placed`].
    pub(in crate::progress) fn continue_placed<E>(
        &mut self,
        session: u32,
        length: usize,
        read: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Option<Result<usize, E>> {
        let placed = self.placed.get_mut(session).filter(|it| it.kept.is_none())?;
        let (receive, count) = (placed.receive, placed.count);
        let result = self.with_memory(receive, count..count + length, read)?;
        if let (Ok(got), Some(placed)) = (&result, self.placed.get_mut(session)) {
            placed.count += got.min(&length);
        }
        Some(result)
    }

    /// Completes the receive of a session's message, which is whole, with it. Returns `false`,
    /// without effect, if another receive, `matched`, takes the message, or this one has ended.
    pub(in crate::progress) fn complete_placed(
        &mut self,
        session: u32,
        matched: Id,
        arrival: &Arrival,
    ) -> bool {
        if !self.placed.get_mut(session).is_some_and(|it| it.has(matched)) {
            return false;
        }
        self.forget_placed(session);
        if !self.deliver_plain(matched, 0, arrival, |_| ()) {
            self.make_general(matched);
            self.complete(matched, Ended::Received(*arrival));
        }
        true
    }

    /// Takes what has arrived of a session's message, whether or not its receive has ended.
    pub(in crate::progress) fn take_placed(&mut self, session: u32) -> Vec<u8> {
        let Some(Placed { receive, count, kept, .. }) = self.placed.remove(session) else {
            return Vec::new();
        };
        kept.or_else(|| self.with_memory(receive, 0..count, |bytes| bytes.to_vec()))
            .unwrap_or_default()
    }

    /// Notes that the rest of a session's message does not arrive: its connection has ended, and
    /// the whole message is sent again. The memory of its receive has changed until it takes that.
    pub(in crate::progress) fn restart_placed(&mut self, session: u32) {
        if let Some(placed) = self.placed.get_mut(session) {
            placed.count = 0;
        }
    }

    /// Forgets a session's message: its session has ended, or it arrived in another way.
    pub(in crate::progress) fn forget_placed(&mut self, session: u32) {
        self.placed.remove(session);
    }

    /// Returns whether a message is received into the memory of a receive.
    pub(in crate::progress) fn is_placed(&self, receive: Id) -> bool {
        self.placed.all.iter().any(|it| it.has(receive))
    }

    /// Copies what has arrived of a message out of the memory of its receive, which is about to
    /// end, or to take another message.
    #[cold]
    pub(super) fn keep_placed(&mut self, receive: Id) {
        for at in 0..self.placed.all.len() {
            let Placed { receive: of_it, count, kept: None, .. } = self.placed.all[at] else {
                continue;
            };
            // Where many receives change at once only the index is known.
            if of_it.index() == receive.index() {
                let bytes = self.with_memory(receive, 0..count, |bytes| bytes.to_vec());
                self.placed.all[at].kept = Some(bytes.unwrap_or_default());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{PostedTo, ReceiveMemory};
    use super::*;
    use crate::memory::Buffer;

    const SESSION: u32 = 7;

    fn id(index: u64) -> Id {
        Id::from_u64(1 << 32 | index)
    }

    /// The receive.
    fn receive() -> Id {
        id(3)
    }

    fn arrival(length: u64) -> Arrival {
        Arrival { peer: id(5), context: 3, tag: 4, length, data: None }
    }

    /// Completions with a queue, to which a plain receive of 8 bytes reports.
    fn with_receive() -> (Completions, u32) {
        let mut completions = Completions::new(4);
        let queue = completions.open_queue(4);
        let mut memory = ReceiveMemory::of(Buffer::Heap(vec![0; 8])).unwrap();
        let to = PostedTo { queue, user_data: 9, silent: false };
        assert!(completions.try_reserve(queue));
        completions.insert_plain(receive(), &mut memory, to, 0);
        (completions, queue)
    }

    fn bytes_of(completions: &mut Completions, queue: u32) -> Vec<u8> {
        let completion = completions.pop(queue).unwrap();
        assert_eq!(completion.user_data, 9);
        completion.buffer.and_then(|buffer| buffer.into_vec().ok()).unwrap()
    }

    fn write(completions: &mut Completions, bytes: &[u8]) -> Option<Result<usize, ()>> {
        completions.continue_placed(SESSION, 8 - 3, |room| {
            room[..bytes.len()].copy_from_slice(bytes);
            Ok(bytes.len())
        })
    }

    #[test]
    fn a_message_arrives_in_the_memory_of_its_receive() {
        let (mut completions, queue) = with_receive();
        assert!(!completions.begin_placed(SESSION, receive(), b"123456789"), "it has 8 bytes");
        assert!(!completions.begin_placed(SESSION, id(4), b"1"), "there is no such one");
        assert!(completions.begin_placed(SESSION, receive(), b"abc"));
        assert!(completions.is_placed(receive()));
        assert_eq!(write(&mut completions, b"defgh"), Some(Ok(5)));
        assert!(completions.complete_placed(SESSION, receive(), &arrival(8)));
        assert!(!completions.is_placed(receive()) && !completions.placed.is_some());
        assert_eq!(bytes_of(&mut completions, queue), b"abcdefgh");
    }

    #[test]
    fn a_message_that_is_sent_again_gets_its_receive_again() {
        let (mut completions, queue) = with_receive();
        assert!(completions.begin_placed(SESSION, receive(), b"xy"));
        completions.restart_placed(SESSION);
        assert!(completions.is_placed(receive()), "its memory was written");
        assert!(completions.begin_placed(SESSION, receive(), b"abc"));
        assert_eq!(write(&mut completions, b"defgh"), Some(Ok(5)));
        assert!(completions.complete_placed(SESSION, receive(), &arrival(8)));
        assert_eq!(bytes_of(&mut completions, queue), b"abcdefgh");
    }

    #[test]
    fn messages_of_two_sessions_do_not_share_a_receive() {
        let (mut completions, _) = with_receive();
        assert!(completions.begin_placed(SESSION, receive(), b"abc"));
        assert!(!completions.begin_placed(SESSION + 1, receive(), b"ABC"));
        assert_eq!(completions.take_placed(SESSION), b"abc");
    }

    #[test]
    fn what_has_arrived_is_kept_when_the_receive_takes_another_message() {
        let (mut completions, queue) = with_receive();
        assert!(completions.begin_placed(SESSION, receive(), b"abc"));
        assert_eq!(write(&mut completions, b"de"), Some(Ok(2)));
        completions.deliver(receive(), b"ABCDEFGH", arrival(8));
        assert!(!completions.is_placed(receive()));
        assert_eq!(bytes_of(&mut completions, queue), b"ABCDEFGH");
        assert_eq!(write(&mut completions, b"f"), None, "its memory is the user's again");
        assert!(!completions.complete_placed(SESSION, receive(), &arrival(8)));
        assert_eq!(completions.take_placed(SESSION), b"abcde");
        assert!(completions.take_placed(SESSION).is_empty());
    }

    #[test]
    fn what_has_arrived_is_kept_when_the_receive_is_cancelled() {
        let (mut completions, queue) = with_receive();
        assert!(completions.begin_placed(SESSION, receive(), b"abc"));
        completions.complete(receive(), Ended::Cancelled);
        assert_eq!(write(&mut completions, b"d"), None);
        assert_eq!(completions.take_placed(SESSION), b"abc");
        assert!(completions.pop(queue).unwrap().result.is_err());
    }

    #[test]
    fn a_queue_that_closes_does_not_end_a_message() {
        let (mut completions, queue) = with_receive();
        assert!(completions.begin_placed(SESSION, receive(), b"abc"));
        completions.close_queue(queue);
        assert_eq!(completions.take_placed(SESSION), b"abc");
    }

    #[test]
    fn a_message_that_another_receive_takes_can_be_taken_out() {
        let (mut completions, _) = with_receive();
        assert!(completions.begin_placed(SESSION, receive(), b"abc"));
        assert!(!completions.complete_placed(SESSION, id(4), &arrival(3)));
        assert_eq!(completions.take_placed(SESSION), b"abc");
        assert!(!completions.placed.is_some());
    }
}
