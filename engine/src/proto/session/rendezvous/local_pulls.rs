//! How a peer of this host gets a message that it can read from this process's memory, and that
//! could be copied through the ring in pieces.
//!
//! Pieces are copied twice, by two cores at once; a read is one copy, and a system call that visits
//! each page. Which one is faster depends on the machine, on whether both processes share a core,
//! and on what else runs. So both are tried, and the faster one carries the next messages.

use super::super::late::AtRest;
use super::SessionRendezvous;
use super::serving::Serving;
use crate::proto::faster_of_two::{Alternative, FasterOfTwo, RunBytes};
use crate::proto::session::segments::{CLASSES, SendProtocol};

/// Runs of messages: 64 of 64 KiB are timed, as many as are often sent at once.
const RUN_BYTES: RunBytes = RunBytes { settle: 1 << 20, timed: 4 << 20 };

/// A message that the peer has pulled.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServedMessage {
    length: u64,
    /// The peer could read it.
    is_read: bool,
    /// When its RTS was staged; 0: its time is not measured.
    begun_ns: u64,
    /// When DONE came.
    done_ns: u64,
}

impl ServedMessage {
    /// Returns the message of a send of `length` bytes, for which DONE has come.
    pub(super) fn of(serving: &Serving, length: u64, now_ns: u64) -> Self {
        let (begun_ns, is_read) = (serving.begun_ns(), serving.is_readable());
        Self { length, is_read, begun_ns, done_ns: now_ns }
    }
}

/// See the module. Pieces are the first way.
#[derive(Debug)]
pub(super) struct LocalPulls {
    /// By class ([`SendProtocol::class_of`]).
    faster: [FasterOfTwo; CLASSES],
    /// When the latest message ended.
    done_ns: u64,
}

impl LocalPulls {
    const fn new() -> Self {
        Self { faster: [const { FasterOfTwo::new(RUN_BYTES) }; CLASSES], done_ns: 0 }
    }

    /// Handles a message of a class; returns whether the next ones go in pieces. Several are under
    /// way at once: each takes the time since the one before.
    fn handle(&mut self, class: usize, message: &ServedMessage) -> bool {
        let way = if message.is_read { Alternative::Second } else { Alternative::First };
        let since_ns = message.begun_ns.max(self.done_ns);
        self.done_ns = message.done_ns;
        let elapsed_ns = message.done_ns.saturating_sub(since_ns);
        // A read leaves the sender's core to its program: pieces have to be faster by an eighth.
        let elapsed_ns = if message.is_read { elapsed_ns } else { elapsed_ns / 8 * 9 };
        let faster = &mut self.faster[class];
        faster.handle_sent(way, message.length, elapsed_ns);
        faster.way() == Alternative::First
    }
}

impl Default for LocalPulls {
    fn default() -> Self {
        Self::new()
    }
}

impl AtRest for LocalPulls {
    const AT_REST: &'static Self = &Self::new();
}

impl SessionRendezvous {
    /// Handles a message that the peer has pulled: the next ones of such a length go by the faster
    /// way.
    pub(super) fn note_served(&mut self, protocol: &mut SendProtocol, message: &ServedMessage) {
        let class = protocol.class_of(message.length).filter(|_| message.begun_ns > 0);
        if let Some(class) = class {
            let are_pieces = self.local_pulls.handle(class, message);
            protocol.set_pieces(class, are_pieces);
        } else if let Some(pulls) = self.local_pulls.get_mut() {
            // Those behind it waited for it.
            pulls.done_ns = message.done_ns;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns whether windows of 32 messages of a class, of 64 KiB, go in pieces at last, where
    /// each message takes these times.
    fn are_pieces(pulls: &mut LocalPulls, class: usize, pieces_ns: u64, read_ns: u64) -> bool {
        let mut now_ns = pulls.done_ns + 1;
        let mut are_pieces = true;
        for _ in 0..40 {
            let begun_ns = now_ns;
            for _ in 0..32 {
                let is_read = !are_pieces;
                now_ns += if is_read { read_ns } else { pieces_ns };
                let message = ServedMessage { length: 1 << 16, is_read, begun_ns, done_ns: now_ns };
                are_pieces = pulls.handle(class, &message);
            }
            // The program computes.
            now_ns += 1_000_000;
        }
        assert!(pulls.faster[class].is_decided());
        are_pieces
    }

    #[test]
    fn messages_of_a_window_take_the_time_since_the_one_before() {
        let mut pulls = LocalPulls::new();
        assert!(are_pieces(&mut pulls, 0, 3000, 7000));
        assert!(!are_pieces(&mut pulls, 2, 7000, 6000), "each class has its own");
        assert!(are_pieces(&mut pulls, 4, 5000, 6000));
        assert!(!are_pieces(&mut pulls, 1, 5600, 6000), "not by an eighth");
    }
}
