//! Requests in flight: a completion finds its slot by index and proves itself by generation.

use super::super::datagrams::Source;
use crate::driver::lanes::LaneKey;

/// What a request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Waits for connections on a listener.
    Listen(usize),
    /// Waits for news of links.
    Links,
    /// Waits until a connection attempt is decided.
    Connect(LaneKey),
    /// Waits until a lane is readable (0) or writable (1).
    Watch(LaneKey, usize),
    /// Receives a chunk.
    Receive(LaneKey),
    /// Sends (a part of) the chunk with this number in the table of chunks.
    Send { lane: LaneKey, chunk: usize, zero_copy: bool },
    /// Waits until a datagram can be received from this source, or sent.
    Datagrams { source: Source, is_writable: bool },
    /// Cancels another request, or is of no use any more: its own result means nothing.
    Cancel,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    generation: u32,
    kind: Option<Kind>,
    /// The result came; the notification of a zero-copy send is outstanding.
    waits_for_notification: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Slots {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

impl Slots {
    /// Takes a slot and returns the `user_data` of its request.
    pub(super) fn insert(&mut self, kind: Kind) -> u64 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 1, kind: None, waits_for_notification: false });
            (self.slots.len() - 1) as u32
        });
        let slot = &mut self.slots[index as usize];
        slot.kind = Some(kind);
        slot.waits_for_notification = false;
        u64::from(slot.generation) << 32 | u64::from(index)
    }

    /// What the request of a completion does; `None`: the completion is stale.
    pub(super) fn get(&self, user_data: u64) -> Option<Kind> {
        let slot = self.slots.get((user_data & 0xffff_ffff) as usize)?;
        if slot.generation == (user_data >> 32) as u32 { slot.kind } else { None }
    }

    /// The result of a zero-copy send came, its notification will.
    pub(super) fn await_notification(&mut self, user_data: u64) {
        if let Some(slot) = self.slots.get_mut((user_data & 0xffff_ffff) as usize) {
            slot.waits_for_notification = true;
        }
    }

    /// What a request still says means nothing any more.
    pub(super) fn disown(&mut self, user_data: u64) {
        if self.get(user_data).is_some() {
            self.slots[(user_data & 0xffff_ffff) as usize].kind = Some(Kind::Cancel);
        }
    }

    /// The last completion of a request came.
    pub(super) fn remove(&mut self, user_data: u64) {
        let index = (user_data & 0xffff_ffff) as u32;
        if let Some(slot) = self.slots.get_mut(index as usize) {
            slot.kind = None;
            slot.generation = slot.generation.wrapping_add(1).max(1);
            self.free.push(index);
        }
    }

    /// Requests in flight, those that wait for a notification included.
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// The `user_data` of requests that can still be cancelled and that `is_hit` selects.
    pub(super) fn select(&self, is_hit: impl Fn(Kind) -> bool) -> Vec<u64> {
        let hits = self.slots.iter().zip(0u64..).filter_map(|(slot, index)| {
            let kind = slot.kind?;
            (!slot.waits_for_notification && is_hit(kind))
                .then_some(u64::from(slot.generation) << 32 | index)
        });
        hits.collect()
    }
}
