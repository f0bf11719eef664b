//! Memory of operations, without a loop.

use std::collections::HashMap;

use crate::proto::effects::{Effects, Ended};
use crate::proto::table::Id;

/// The memory of an engine's operations, and their results.
#[derive(Default)]
pub(crate) struct Memory {
    pub(crate) bytes: HashMap<Id, Vec<u8>>,
    /// Bytes placed by the protocol into receives that have not ended.
    placed: HashMap<Id, usize>,
    /// Results, with the step.
    pub(crate) ended: HashMap<Id, (Ended, u64, Vec<u8>)>,
    /// The current step, recorded with results.
    pub(crate) now: u64,
    /// Slices of multi-receives: the receive, and the offset in it.
    pub(crate) slices: HashMap<Id, (Id, usize)>,
    /// Lengths of the copies between operations of one engine.
    pub(crate) copies: Vec<u64>,
    /// How often memory that peers may read was revoked.
    pub(crate) revocations: u64,
}

impl Memory {
    /// Discards the placed bytes of a message: all of it is received again.
    pub(crate) fn begin_anew(&mut self, operation: Id) {
        self.placed.remove(&operation);
    }
}

impl Effects for Memory {
    fn place(&mut self, operation: Id, offset: usize, bytes: &[u8]) {
        let memory = self.bytes.get_mut(&operation).expect("no placement after the end");
        memory[offset..offset + bytes.len()].copy_from_slice(bytes);
        *self.placed.entry(operation).or_default() += bytes.len();
    }

    fn copy(&mut self, from: Id, to: Id, offset: u64, length: u64) {
        self.copies.push(length);
        let range = offset as usize..(offset + length) as usize;
        let bytes = self.bytes[&from][range].to_vec();
        self.place(to, offset as usize, &bytes);
    }

    fn checksum(&self, _: Id, _: u64, _: u32) -> u32 {
        unreachable!("no side wants checksums")
    }

    fn slice(&mut self, receive: Id, slice: Id, offset: u64, length: u64) {
        let (offset, end) = (offset as usize, (offset + length) as usize);
        let room = &self.bytes[&receive][offset..end];
        assert!(room.iter().all(|&byte| byte == 0xee), "no two messages share memory");
        self.bytes.insert(slice, room.to_vec());
        self.slices.insert(slice, (receive, offset));
    }

    fn revoke(&mut self) {
        self.revocations += 1;
    }

    fn complete(&mut self, operation: Id, ended: Ended) {
        let bytes = self.bytes.remove(&operation).expect("an ended operation was begun");
        if let (Ended::Received(arrival), Some(placed)) = (&ended, self.placed.remove(&operation)) {
            assert_eq!(placed as u64, arrival.length.min(bytes.len() as u64), "each byte once");
        }
        if let Some(&(receive, offset)) = self.slices.get(&operation) {
            let whole = self.bytes.get_mut(&receive).expect("slices end before their receive");
            whole[offset..offset + bytes.len()].copy_from_slice(&bytes);
        }
        let earlier = self.ended.insert(operation, (ended, self.now, bytes));
        assert!(earlier.is_none(), "an operation ends once");
    }
}

/// Operations without results.
pub(crate) struct NoEffects;

impl Effects for NoEffects {
    fn place(&mut self, _: Id, _: usize, _: &[u8]) {}
    fn copy(&mut self, _: Id, _: Id, _: u64, _: u64) {}
    fn checksum(&self, _: Id, _: u64, _: u32) -> u32 {
        0
    }
    fn complete(&mut self, _: Id, _: Ended) {}
    fn slice(&mut self, _: Id, _: Id, _: u64, _: u64) {}
}
