//! What is asked of two endpoints: messages, receives, and their bytes.

use ringrail::{Buffer, CompletionLevel, Domain, Envelope, Layout, SendOptions};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Send,
    Receive,
}

/// Whose messages: each has one source, so that matching is determined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// From the other side.
    Tagged,
    /// From the other side, without a tag.
    Untagged,
    /// From the same side.
    Own,
}

/// What kind of buffer; lists and strided ones have blocks of so many bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Shape {
    Heap,
    Region,
    List(usize),
    Strided(usize),
}

#[derive(Clone, Debug)]
pub(crate) struct Message {
    /// Who sends.
    pub(crate) side: usize,
    pub(crate) lane: Lane,
    pub(crate) tag: u64,
    pub(crate) length: usize,
    pub(crate) level: CompletionLevel,
    /// Announces that others follow at once.
    pub(crate) more: bool,
    pub(crate) shape: Shape,
}

impl Message {
    pub(crate) fn options(&self) -> SendOptions {
        SendOptions::at(self.level).more(self.more)
    }

    /// Who receives.
    pub(crate) fn target(&self) -> usize {
        if self.lane == Lane::Own { self.side } else { 1 - self.side }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Receive {
    /// Who receives.
    pub(crate) side: usize,
    pub(crate) lane: Lane,
    pub(crate) tag: u64,
    pub(crate) ignore: u64,
    pub(crate) directed: bool,
    pub(crate) capacity: usize,
    pub(crate) shape: Shape,
}

impl Receive {
    pub(crate) fn accepts(&self, message: &Message) -> bool {
        let tags = (self.tag ^ message.tag) & !self.ignore == 0;
        (self.side, self.lane) == (message.target(), message.lane)
            && (tags || self.lane == Lane::Untagged)
    }
}

/// The bytes of a message, by its number.
pub(crate) fn content(number: usize, length: usize) -> Vec<u8> {
    let mut word = number as u64;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        // Knuth's MMIX generator.
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        bytes.extend_from_slice(&(word >> 8).to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// A buffer of a shape that holds `bytes`.
pub(crate) fn buffer(domain: &Domain, bytes: &[u8], shape: Shape) -> Buffer {
    match shape {
        Shape::Heap => Buffer::from(bytes.to_vec()),
        Shape::Region => {
            let mut region = domain.allocate(bytes.len()).unwrap();
            region.copy_from_slice(bytes);
            Buffer::from(region)
        }
        Shape::List(block) => {
            Buffer::list(bytes.chunks(block).map(|block| Buffer::from(block.to_vec())))
        }
        Shape::Strided(block) => {
            // Whole blocks only, three bytes apart; what is left follows in a piece of its own.
            let count = bytes.len() / block;
            let mut memory = vec![0xee; count * (block + 3)];
            for (to, from) in memory.chunks_mut(block + 3).zip(bytes.chunks(block)) {
                to[..block].copy_from_slice(from);
            }
            let stride_bytes = block + 3;
            let layout = Layout::Strided { offset: 0, block_bytes: block, stride_bytes, count };
            let rest = bytes[count * block..].to_vec();
            Buffer::list([Buffer::shaped(memory, layout), Buffer::from(rest)])
        }
    }
}

/// The envelope of a lane: its own messages have a context of their own.
pub(crate) fn label(lane: Lane, tag: u64) -> Envelope {
    Envelope::new(u32::from(lane == Lane::Own), tag)
}
