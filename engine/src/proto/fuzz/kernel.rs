//! Memory held by the loop, the kernel and the user, and checks of its use.

use std::collections::HashMap;

use crate::proto::effects::{Effects, Ended};
use crate::proto::session::rendezvous::pull::lanes::{ChunkReceive, ChunkSend};
use crate::proto::table::Id;

/// An operation that has not ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Live {
    Send { length: u64 },
    Receive { capacity: u64 },
}

/// The memory of operations.
#[derive(Default)]
pub(super) struct Kernel {
    pub(super) live: HashMap<Id, Live>,
    /// Chunks that are being received, with their lane.
    pub(super) receiving: Vec<(Id, ChunkReceive)>,
    /// Chunks that are being sent.
    pub(super) sending: Vec<(Id, ChunkSend)>,
    /// Sends whose chunks were sent and are still read, once per chunk.
    pub(super) unreleased: Vec<Id>,
    /// Slices of multi-receives that have not ended, and the used bytes of each receive.
    slices: HashMap<Id, Id>,
    used: HashMap<Id, u64>,
    /// The operation that ended last.
    pub(super) last: Option<(Id, Ended)>,
}

impl Kernel {
    /// Begins to write a received chunk.
    pub(super) fn receive(&mut self, lane: Id, chunk: ChunkReceive) {
        let Some(&Live::Receive { capacity }) = self.live.get(&chunk.operation) else {
            panic!("{chunk:?} is for no receive")
        };
        let end = chunk.offset.checked_add(u64::from(chunk.length)).expect("an offset in memory");
        assert!(chunk.length > 0 && end <= capacity, "{chunk:?} goes beyond {capacity} bytes");
        for (_, other) in &self.receiving {
            let is_apart = other.operation != chunk.operation
                || other.offset >= end
                || chunk.offset >= other.offset + u64::from(other.length);
            assert!(is_apart, "{chunk:?} and {other:?} share memory");
        }
        assert!(self.receiving.iter().all(|(busy, _)| *busy != lane), "one chunk at a time");
        self.receiving.push((lane, chunk));
    }

    /// Begins to read a sent chunk.
    pub(super) fn send(&mut self, lane: Id, chunk: ChunkSend) {
        let Some(&Live::Send { length }) = self.live.get(&chunk.operation) else {
            panic!("{chunk:?} is from no send")
        };
        let end = chunk.offset.checked_add(u64::from(chunk.length)).expect("an offset in memory");
        assert!(chunk.length > 0 && end <= length, "{chunk:?} goes beyond {length} bytes");
        assert!(self.sending.iter().all(|(busy, _)| *busy != lane), "one chunk at a time");
        self.unreleased.push(chunk.operation);
        self.sending.push((lane, chunk));
    }

    /// Returns whether messages of a multi-receive have not ended.
    pub(super) fn has_slices(&self, id: Id) -> bool {
        self.slices.values().any(|of| *of == id)
    }

    pub(super) fn started(&mut self, id: Id, operation: Live) {
        assert_eq!(self.live.insert(id, operation), None, "{id:?} is in use");
    }
}

impl Effects for Kernel {
    fn place(&mut self, operation: Id, offset: usize, bytes: &[u8]) {
        let Some(&Live::Receive { capacity }) = self.live.get(&operation) else {
            panic!("{operation:?} is no receive")
        };
        assert!(offset as u64 + bytes.len() as u64 <= capacity, "beyond the buffer");
    }

    fn copy(&mut self, _: Id, _: Id, _: u64, _: u64) {
        panic!("no peer is this engine itself")
    }

    fn checksum(&self, _: Id, _: u64, _: u32) -> u32 {
        unreachable!("no side wants checksums")
    }

    fn slice(&mut self, receive: Id, slice: Id, offset: u64, length: u64) {
        let Some(&Live::Receive { capacity }) = self.live.get(&receive) else {
            panic!("{receive:?} is no receive")
        };
        let used = self.used.entry(receive).or_default();
        assert!(offset == *used && length <= capacity - offset, "no two messages share memory");
        *used += length;
        self.slices.insert(slice, receive);
        self.started(slice, Live::Receive { capacity: length });
    }

    fn complete(&mut self, operation: Id, ended: Ended) {
        self.slices.remove(&operation);
        self.used.remove(&operation);
        assert!(!self.slices.values().any(|of| *of == operation), "slices end before it");
        let known = self.live.remove(&operation);
        match known {
            Some(Live::Send { .. }) => {
                assert!(!matches!(ended, Ended::Received(_)), "{ended:?}");
                assert!(!self.unreleased.contains(&operation), "the kernel still reads it");
            }
            Some(Live::Receive { .. }) => {
                assert!(!matches!(ended, Ended::Sent { .. }), "{ended:?}");
                let mut targets = self.receiving.iter().map(|(_, chunk)| chunk.operation);
                assert!(targets.all(|target| target != operation), "the kernel still writes it");
            }
            None => panic!("{operation:?} ended twice, or never was: {ended:?}"),
        }
        self.last = Some((operation, ended));
    }
}
