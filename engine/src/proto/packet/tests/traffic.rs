//! Messages split into payload, and reassembled.

use std::collections::VecDeque;

use super::super::{Filled, PacketEvent, PayloadSource};

/// Header of each piece of payload: message, offset.
const PIECE_HEADER_BYTES: usize = 8;

/// Sorted, disjoint ranges of bytes.
#[derive(Clone, Debug, Default)]
pub(super) struct Ranges(Vec<(u32, u32)>);

impl Ranges {
    /// Adds a range; returns how many of its bytes are new.
    pub(super) fn insert(&mut self, start: u32, end: u32) -> u32 {
        let from = self.0.partition_point(|&(_, other)| other < start);
        let to = from + self.0[from..].partition_point(|&(other, _)| other <= end);
        let known: u32 = self.0[from..to]
            .iter()
            .map(|&(low, high)| high.min(end).saturating_sub(low.max(start)))
            .sum();
        let (mut low, mut high) = (start, end);
        if from < to {
            low = low.min(self.0[from].0);
            high = high.max(self.0[to - 1].1);
        }
        self.0.splice(from..to, [(low, high)]);
        end - start - known
    }

    pub(super) fn covers(&self, start: u32, end: u32) -> bool {
        let at = self.0.partition_point(|&(_, other)| other < end);
        self.0.get(at).is_some_and(|&(low, _)| low <= start)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Piece {
    message: u32,
    offset: u32,
    bytes: u32,
}

/// State of one token.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Token {
    Open(Piece),
    Acked,
    Lost,
}

/// A sender of messages of one length, with a fixed number outstanding.
#[derive(Debug)]
pub(super) struct Sender {
    pub(super) message_bytes: u32,
    at_once: u32,
    messages: u32,
    /// Messages begun; of the last one, `cut` bytes are in pieces.
    begun: u32,
    cut: u32,
    again: VecDeque<Piece>,
    tokens: Vec<Token>,
    acked: Vec<Ranges>,
    /// Start time of each message.
    pub(super) begun_ns: Vec<u64>,
    acked_bytes: Vec<u32>,
    pub(super) finished: u32,
    pub(super) now_ns: u64,
    pub(super) payload_bytes_max: Option<usize>,
}

impl Sender {
    pub(super) fn new(message_bytes: u32, at_once: u32, messages: u32) -> Self {
        Self {
            message_bytes,
            at_once,
            messages,
            begun: 0,
            cut: 0,
            again: VecDeque::new(),
            tokens: Vec::new(),
            acked: Vec::new(),
            begun_ns: Vec::new(),
            acked_bytes: Vec::new(),
            finished: 0,
            now_ns: 0,
            payload_bytes_max: None,
        }
    }

    /// Begins messages up to the limit.
    pub(super) fn begin(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
    }

    /// Returns the unsent bytes of the current message, or of the next if it may begin.
    fn uncut(&self) -> u32 {
        if self.cut > 0 {
            return self.message_bytes - self.cut;
        }
        let may_begin = self.begun < self.messages && self.begun - self.finished < self.at_once;
        if may_begin { self.message_bytes } else { 0 }
    }

    pub(super) fn handle_event(&mut self, event: PacketEvent) {
        match event {
            PacketEvent::Acked { token } => {
                let state = std::mem::replace(&mut self.tokens[token as usize], Token::Acked);
                let Token::Open(piece) = state else { panic!("{token} was {state:?}, is acked") };
                let message = piece.message as usize;
                let end = piece.offset + piece.bytes;
                self.acked_bytes[message] += self.acked[message].insert(piece.offset, end);
                if self.acked_bytes[message] == self.message_bytes {
                    self.acked_bytes[message] = u32::MAX;
                    self.finished += 1;
                }
            }
            PacketEvent::Lost { token } => {
                let state = std::mem::replace(&mut self.tokens[token as usize], Token::Lost);
                let Token::Open(piece) = state else { panic!("{token} was {state:?}, is lost") };
                let acked = &self.acked[piece.message as usize];
                if !acked.covers(piece.offset, piece.offset + piece.bytes) {
                    self.again.push_back(piece);
                }
            }
            PacketEvent::PayloadBytesMax { bytes } => self.payload_bytes_max = Some(bytes),
        }
    }

    /// Returns whether all messages are acknowledged, and every token was reported once.
    pub(super) fn is_done(&self) -> bool {
        self.finished == self.messages
    }

    pub(super) fn open_tokens(&self) -> usize {
        self.tokens.iter().filter(|token| matches!(token, Token::Open(_))).count()
    }

    fn put(&mut self, piece: Piece, room: &mut [u8]) -> Filled {
        room[..4].copy_from_slice(&piece.message.to_le_bytes());
        room[4..8].copy_from_slice(&piece.offset.to_le_bytes());
        self.tokens.push(Token::Open(piece));
        Filled {
            token: self.tokens.len() as u64 - 1,
            bytes: PIECE_HEADER_BYTES + piece.bytes as usize,
            ack_now: piece.offset + piece.bytes == self.message_bytes,
        }
    }
}

impl PayloadSource for Sender {
    fn waiting_bytes(&self) -> usize {
        let piece = self.again.front().map_or_else(|| self.uncut(), |piece| piece.bytes);
        if piece == 0 { 0 } else { PIECE_HEADER_BYTES + piece as usize }
    }

    fn fill(&mut self, room: &mut [u8]) -> Option<Filled> {
        let most = room.len().checked_sub(PIECE_HEADER_BYTES)? as u32;
        if let Some(mut piece) = self.again.pop_front() {
            if piece.bytes > most {
                let rest = Piece {
                    offset: piece.offset + most,
                    bytes: piece.bytes - most,
                    message: piece.message,
                };
                self.again.push_front(rest);
                piece.bytes = most;
            }
            return Some(self.put(piece, room));
        }
        let bytes = self.uncut().min(most);
        if self.cut == 0 {
            self.begun += 1;
            self.begun_ns.push(self.now_ns);
            self.acked.push(Ranges::default());
            self.acked_bytes.push(0);
        }
        let piece = Piece { message: self.begun - 1, offset: self.cut, bytes };
        self.cut = (self.cut + bytes) % self.message_bytes;
        Some(self.put(piece, room))
    }

    fn fill_again(&mut self, token: u64, room: &mut [u8]) -> Option<Filled> {
        let Token::Open(piece) = self.tokens[token as usize] else {
            panic!("{token} is retransmitted but not open")
        };
        let fits = room.len() >= PIECE_HEADER_BYTES + piece.bytes as usize;
        fits.then(|| self.put(piece, room))
    }
}

/// Reassembles messages, and records when each was complete.
#[derive(Debug, Default)]
pub(super) struct Receiver {
    message_bytes: u32,
    arrived: Vec<(Ranges, u32)>,
    /// Messages in the order of their completion, with the time.
    pub(super) whole: Vec<(u32, u64)>,
    /// Bytes received for the first time.
    pub(super) bytes: u64,
}

impl Receiver {
    pub(super) fn new(message_bytes: u32) -> Self {
        Self { message_bytes, ..Self::default() }
    }

    pub(super) fn handle_content(&mut self, now_ns: u64, payload: &[u8]) {
        let message = u32::from_le_bytes(payload[..4].try_into().unwrap());
        let offset = u32::from_le_bytes(payload[4..8].try_into().unwrap());
        let bytes = (payload.len() - PIECE_HEADER_BYTES) as u32;
        let message_at = message as usize;
        if self.arrived.len() <= message_at {
            self.arrived.resize_with(message_at + 1, Default::default);
        }
        let (ranges, held) = &mut self.arrived[message_at];
        let new = ranges.insert(offset, offset + bytes);
        *held += new;
        self.bytes += u64::from(new);
        assert!(*held <= self.message_bytes, "message {message} is too long");
        if new > 0 && *held == self.message_bytes {
            self.whole.push((message, now_ns));
        }
    }
}
