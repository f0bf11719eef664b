//! Messages that arrived before their receive, within limits.
//!
//! Payloads are in buffers of a few sizes that are reused, so that a warm engine allocates nothing.
//! Their total is bounded by the credit of sessions: a payload takes less than twice its length, or
//! 64 bytes.

use std::fmt;

use super::effects::Arrival;
use super::matching::MatchEnvelope;
use super::table::{Id, Table};
use crate::wire::MessageSource;

/// The smallest buffer, in bytes; each class of buffers is twice as long as the one before it.
const CLASS_BYTES_MIN: usize = 64;
/// Classes, the last of which holds the longest eager message.
const CLASSES: usize = class_of(crate::wire::EAGER_BYTES_MAX) + 1;
/// Bytes of free buffers kept per class; more return to the allocator.
const IDLE_BYTES_MAX: usize = 256 << 10;
/// The longest payload that is stored in the message itself, in bytes.
const INLINE_BYTES: usize = 22;

/// Returns the class whose buffers hold `length` bytes.
const fn class_of(length: usize) -> usize {
    length.div_ceil(CLASS_BYTES_MIN).next_power_of_two().trailing_zeros() as usize
}

/// Kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It has arrived completely.
    Eager {
        /// The sender's operation if it waits for MATCHED, else 0.
        report: u64,
        /// It was put back, with this order among those that were, and holds no credit; 0: it was
        /// not.
        put_back: u64,
    },
    /// Its first bytes have arrived.
    Rendezvous {
        /// The sender's operation.
        send_operation: u64,
        /// Length of the whole message in bytes.
        length: u64,
        /// Flags of its request to send: the hint, and what its payload is.
        flags: u8,
    },
}

/// The bytes that came with an envelope.
enum Payload {
    Inline { length: u8, bytes: [u8; INLINE_BYTES] },
    Buffer { length: u32, bytes: Box<[u8]> },
}

impl Payload {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Inline { length, bytes } => &bytes[..usize::from(*length)],
            Self::Buffer { length, bytes } => &bytes[..*length as usize],
        }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Inline { length, bytes } => &mut bytes[..usize::from(*length)],
            Self::Buffer { length, bytes } => &mut bytes[..*length as usize],
        }
    }
}

/// One message, without its envelope, which is in the matcher or the claim that has it.
pub(crate) struct Message {
    /// Slot of its session.
    pub(crate) session: u32,
    /// Epoch of that session on arrival.
    pub(crate) epoch: u32,
    /// Its remote data.
    pub(crate) data: Option<u64>,
    /// Eager or rendezvous.
    pub(crate) kind: Kind,
    payload: Payload,
}

// There may be millions: with its node in a matcher and one view a message takes 128 bytes.
const _: () = assert!(size_of::<Option<Message>>() == 72);

/// A message to be kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    /// Slot and epoch of its session.
    pub(crate) came_by: (u32, u32),
    /// Its remote data.
    pub(crate) data: Option<u64>,
    /// Eager or rendezvous.
    pub(crate) kind: Kind,
}

impl Waiting {
    fn with(self, payload: Payload) -> Message {
        let Self { came_by: (session, epoch), data, kind } = self;
        Message { session, epoch, data, kind, payload }
    }
}

impl Message {
    /// Returns the length of the whole message in bytes.
    pub(crate) fn length(&self) -> u64 {
        match self.kind {
            Kind::Eager { .. } => self.payload().len() as u64,
            Kind::Rendezvous { length, .. } => length,
        }
    }

    /// Returns the result of the receive that gets it: `peer` sent it with `envelope`.
    pub(crate) fn arrival(&self, peer: Id, envelope: &MatchEnvelope) -> Arrival {
        let MatchEnvelope { context, tag, .. } = *envelope;
        Arrival { peer, context, tag, length: self.length(), data: self.data }
    }

    /// Returns the bytes that arrived with the envelope.
    pub(crate) fn payload(&self) -> &[u8] {
        self.payload.bytes()
    }

    /// Returns those of them that are of the message itself: an envelope may have its location.
    pub(crate) fn first_bytes(&self) -> &[u8] {
        match self.kind {
            Kind::Eager { .. } => self.payload(),
            Kind::Rendezvous { flags, .. } => MessageSource::split(flags, self.payload()).0,
        }
    }

    /// Returns its order among those that were put back; 0: it was not, and holds credit.
    pub(crate) fn put_back(&self) -> u64 {
        match self.kind {
            Kind::Eager { put_back, .. } => put_back,
            _ => 0,
        }
    }
}

/// Omits the bytes, which may be many.
impl fmt::Debug for Message {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { session, epoch, data, kind, .. } = self;
        let here = self.payload().len();
        write!(out, "Message {{ session {session}.{epoch} ")?;
        write!(out, "{} bytes, data {data:?} {kind:?} {here} here }}", self.length())
    }
}

/// Unexpected messages; see the module.
#[derive(Debug)]
pub(crate) struct Unexpected {
    messages: Table<Message>,
    /// Limit on those that peers sent; those that were put back are not counted.
    messages_max: usize,
    put_back: usize,
    idle: [Vec<Box<[u8]>>; CLASSES],
    held_bytes: usize,
    held_bytes_max: usize,
}

impl Unexpected {
    pub(crate) fn new(messages_max: usize) -> Self {
        Self {
            messages: Table::new(usize::MAX),
            messages_max,
            put_back: 0,
            idle: [const { Vec::new() }; CLASSES],
            held_bytes: 0,
            held_bytes_max: 0,
        }
    }

    /// Returns the bytes of the buffers in use now, and their maximum so far.
    pub(crate) fn held_bytes(&self) -> (usize, usize) {
        (self.held_bytes, self.held_bytes_max)
    }

    /// Returns all of them.
    pub(crate) fn messages(&self) -> impl Iterator<Item = &Message> {
        self.messages.iter().map(|(_, message)| message)
    }

    /// Keeps a message; `None` when the table is full, which credit prevents.
    #[inline]
    pub(crate) fn insert(&mut self, message: Waiting, bytes: &[u8]) -> Option<Id> {
        if self.is_full() {
            return None;
        }
        let payload = self.payload_of(bytes);
        self.messages.insert(message.with(payload)).ok()
    }

    fn is_full(&self) -> bool {
        self.messages.len() - self.put_back >= self.messages_max
    }

    /// Keeps a message that was put back. It takes no slot that credit has reserved for another
    /// one.
    pub(crate) fn insert_put_back(&mut self, message: Waiting, bytes: &[u8]) -> Option<Id> {
        let payload = self.payload_of(bytes);
        let id = self.messages.insert(message.with(payload)).ok()?;
        self.put_back += 1;
        Some(id)
    }

    #[inline]
    fn payload_of(&mut self, bytes: &[u8]) -> Payload {
        let mut payload = self.room_for(bytes.len());
        payload.bytes_mut().copy_from_slice(bytes);
        payload
    }

    fn room_for(&mut self, length: usize) -> Payload {
        if length <= INLINE_BYTES {
            return Payload::Inline { length: length as u8, bytes: [0; INLINE_BYTES] };
        }
        Payload::Buffer { length: length as u32, bytes: self.buffer(length) }
    }

    /// Returns a buffer that begins with `bytes`; [`Self::give_back`] takes it back.
    pub(crate) fn keep(&mut self, bytes: &[u8]) -> Box<[u8]> {
        if bytes.is_empty() {
            return Box::default();
        }
        let mut buffer = self.buffer(bytes.len());
        buffer[..bytes.len()].copy_from_slice(bytes);
        buffer
    }

    fn buffer(&mut self, length: usize) -> Box<[u8]> {
        let class = class_of(length);
        // Messages that were put back may be longer than any eager one.
        let buffer = match self.idle.get_mut(class) {
            Some(idle) => {
                idle.pop().unwrap_or_else(|| vec![0; CLASS_BYTES_MIN << class].into_boxed_slice())
            }
            None => vec![0; length].into_boxed_slice(),
        };
        debug_assert!(buffer.len() >= length, "buffers of a class hold all lengths of it");
        self.held_bytes += buffer.len();
        self.held_bytes_max = self.held_bytes_max.max(self.held_bytes);
        buffer
    }

    /// Returns a message by slot.
    pub(crate) fn at(&self, index: u32) -> Option<&Message> {
        self.messages.at(index as usize)
    }

    /// Removes a message; return it to [`Self::recycle`] when its payload was used.
    pub(crate) fn take(&mut self, index: u32) -> Option<Message> {
        let id = self.messages.id_at(index as usize)?;
        let message = self.messages.remove(id)?;
        self.put_back -= usize::from(message.put_back() != 0);
        debug_assert!(self.put_back <= self.messages.len(), "those put back are kept");
        Some(message)
    }

    /// Checks that messages and buffers are counted.
    #[cfg(any(test, feature = "sim"))]
    pub(super) fn check(&self) {
        let buffer = |message: &Message| match &message.payload {
            Payload::Buffer { bytes, .. } => bytes.len(),
            Payload::Inline { .. } => 0,
        };
        // Messages out of order are kept in buffers, too.
        let bytes: usize = self.messages().map(buffer).sum();
        assert!(bytes <= self.held_bytes, "the buffers of messages are counted");
        let put_back = self.messages().filter(|message| message.put_back() != 0).count();
        assert_eq!(put_back, self.put_back, "those put back are counted");
        for (class, idle) in self.idle.iter().enumerate() {
            let all = idle.iter().all(|buffer| buffer.len() == CLASS_BYTES_MIN << class);
            assert!(all, "all buffers of a class are alike");
        }
    }

    /// Reuses the buffer of a removed message.
    pub(crate) fn recycle(&mut self, message: Message) {
        if let Payload::Buffer { bytes, .. } = message.payload {
            self.give_back(bytes);
        }
    }

    /// Reuses a buffer.
    pub(crate) fn give_back(&mut self, buffer: Box<[u8]>) {
        let bytes = buffer.len();
        if bytes == 0 {
            return;
        }
        debug_assert!(bytes <= self.held_bytes, "it is one of the buffers in use");
        self.held_bytes -= bytes;
        let class = class_of(bytes);
        // Messages that were put back may be longer than any class.
        if let Some(idle) = self.idle.get_mut(class)
            && (idle.len() + 1) * bytes <= IDLE_BYTES_MAX.max(bytes)
        {
            debug_assert_eq!(bytes, CLASS_BYTES_MIN << class, "all buffers of a class are alike");
            idle.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::EAGER_BYTES_MAX;

    #[test]
    fn payload_takes_less_than_twice_its_length() {
        let mut store = Unexpected::new(10);
        for length in [1, 22, 23, 63, 64, 65, 128, 129, 1000, 8192, 8193, EAGER_BYTES_MAX] {
            let bytes = vec![7; length];
            let message = Waiting {
                came_by: (0, 0),
                data: None,
                kind: Kind::Eager { report: 0, put_back: 0 },
            };
            let id = store.insert(message, &bytes).unwrap();
            let held = store.held_bytes().0;
            assert!(
                (length <= INLINE_BYTES && held == 0)
                    || (held >= length && held <= (2 * length).max(CLASS_BYTES_MIN)),
                "{length}: {held}"
            );
            let message = store.take(id.index() as u32).unwrap();
            assert_eq!(message.payload(), bytes);
            store.recycle(message);
            assert_eq!(store.held_bytes().0, 0);
        }
    }
}
