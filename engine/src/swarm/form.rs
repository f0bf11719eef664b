//! Messages of the swarm: what is in them, and how it lies in memory.

use crate::driver::sim::random::Random;
use crate::memory::{Buffer, Layout, Segment};

/// Contents of memory before a receive.
pub(super) const UNTOUCHED: u8 = 0x5a;
/// Contents of memory once its operation is over.
const CANARY: u8 = 0xc3;

/// Bytes that only message `name` has. The first eight name it.
pub(super) fn content(name: u64, length: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length + 8);
    let mut word = mark(name);
    while bytes.len() < length {
        bytes.extend_from_slice(&word.to_le_bytes());
        word = word.wrapping_mul(0x2545_f491_4f6c_dd1d).rotate_left(17) ^ name;
    }
    bytes.truncate(length);
    bytes
}

/// The first word of message `name`: different for all names.
pub(super) fn mark(name: u64) -> u64 {
    (name + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The name of the message that begins with `bytes`; `None`: too short to say.
pub(super) fn name_of(bytes: &[u8]) -> Option<u64> {
    let word = u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?);
    // The inverse of the multiplier modulo 2^64.
    Some(word.wrapping_mul(0xf1de_83e1_9937_733d).wrapping_sub(1))
}

/// How a message lies in memory.
#[derive(Clone, Copy, Debug)]
pub(super) enum Form {
    /// In one piece.
    Whole,
    /// In blocks with gaps.
    Strided { block: usize, gap: usize },
    /// In two pieces, the second before the first.
    Crossed { split: usize },
    /// In two buffers.
    Pair { split: usize },
}

impl Form {
    pub(super) fn random(random: &mut Random, length: usize) -> Self {
        match random.below(8) {
            0 if length > 1 => Self::Crossed { split: 1 + random.below(length - 1) },
            1 => Self::Pair { split: random.below(length + 1) },
            2 if length > 0 => {
                let blocks = 1 + random.below(length.min(20));
                let divides = length.is_multiple_of(blocks);
                let block = if divides { length / blocks } else { 1.max(length / 2) };
                if length.is_multiple_of(block) {
                    Self::Strided { block, gap: 1 + random.below(9) }
                } else {
                    Self::Whole
                }
            }
            _ => Self::Whole,
        }
    }

    /// The memory of a message of `length` bytes of which the first are `bytes`; the others, and
    /// the gaps, are `fill`.
    fn image(self, length: usize, bytes: &[u8], fill: u8) -> [Vec<u8>; 2] {
        let mut message = bytes.to_vec();
        message.resize(length, fill);
        match self {
            Self::Whole => [message, Vec::new()],
            Self::Strided { block, gap } => {
                let mut memory = Vec::new();
                for piece in message.chunks(block) {
                    memory.extend_from_slice(piece);
                    memory.resize(memory.len() + gap, fill);
                }
                [memory, Vec::new()]
            }
            Self::Crossed { split } => {
                let mut memory = vec![fill; 3];
                memory.extend_from_slice(&message[split..]);
                memory.extend_from_slice(&[fill; 5]);
                memory.extend_from_slice(&message[..split]);
                [memory, Vec::new()]
            }
            Self::Pair { split } => {
                let rest = message.split_off(split);
                [message, rest]
            }
        }
    }

    /// The buffer of a message of `length` bytes that begins with `bytes`.
    pub(super) fn buffer(self, length: usize, bytes: &[u8]) -> Buffer {
        let [first, second] = self.image(length, bytes, UNTOUCHED);
        match self {
            Self::Whole => Buffer::Heap(first),
            Self::Strided { block, gap } => {
                let layout = Layout::Strided {
                    offset: 0,
                    block_bytes: block,
                    stride_bytes: block + gap,
                    count: length / block,
                };
                Buffer::shaped(first, layout)
            }
            Self::Crossed { split } => {
                let rest = length - split;
                let head = Segment { offset: 8 + rest, len: split };
                let tail = Segment { offset: 3, len: rest };
                Buffer::shaped(first, Layout::Segments(vec![head, tail]))
            }
            Self::Pair { .. } => Buffer::list([Buffer::Heap(first), Buffer::Heap(second)]),
        }
    }

    /// Whether `memory` is that of a message of `length` bytes that begins with `bytes`, and
    /// nothing else was written.
    pub(super) fn agrees(self, memory: &[Vec<u8>; 2], length: usize, bytes: &[u8]) -> bool {
        *memory == self.image(length, bytes, UNTOUCHED)
    }

    /// The first bytes of the message, eight at the most.
    pub(super) fn head(self, memory: &[Vec<u8>; 2], length: usize) -> Vec<u8> {
        let count = length.min(8);
        let at = |index: usize| match self {
            Self::Whole => memory[0][index],
            Self::Strided { block, gap } => {
                memory[0][index / block * (block + gap) + index % block]
            }
            Self::Crossed { split } if index < split => memory[0][8 + (length - split) + index],
            Self::Crossed { split } => memory[0][3 + index - split],
            Self::Pair { split } if index < split => memory[0][index],
            Self::Pair { split } => memory[1][index - split],
        };
        (0..count).map(at).collect()
    }
}

/// The memory of a buffer that [`Form::buffer`] made.
pub(super) fn memory_of(buffer: Buffer) -> [Vec<u8>; 2] {
    let heap = |buffer| match buffer {
        Buffer::Heap(bytes) => bytes,
        other => unreachable!("forms are made of vectors, not of {other:?}"),
    };
    match buffer {
        Buffer::Shaped(shaped) => [heap(shaped.buffer), Vec::new()],
        Buffer::List(list) => {
            let mut list = list.into_iter().map(heap);
            [list.next().unwrap_or_default(), list.next().unwrap_or_default()]
        }
        whole => [heap(whole), Vec::new()],
    }
}

/// Memory that must not be written any more (RR-RDV-3).
#[derive(Debug, Default)]
pub(super) struct Graves(Vec<Vec<u8>>);

impl Graves {
    pub(super) fn bury(&mut self, memory: [Vec<u8>; 2]) {
        for mut bytes in memory {
            if !bytes.is_empty() {
                bytes.fill(CANARY);
                self.0.push(bytes);
            }
        }
    }

    /// Whether all of it is as it was left.
    pub(super) fn are_quiet(&self) -> bool {
        self.0.iter().all(|bytes| bytes.iter().all(|&byte| byte == CANARY))
    }
}

/// The memory of a buffer that is still one.
pub(super) fn pieces_of(buffer: &Buffer) -> Vec<&[u8]> {
    match buffer {
        Buffer::Shaped(shaped) => pieces_of(&shaped.buffer),
        Buffer::List(list) => list.iter().flat_map(pieces_of).collect(),
        whole => whole.as_slice().into_iter().collect(),
    }
}
