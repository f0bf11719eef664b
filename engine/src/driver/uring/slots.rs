//! Requests in flight: a completion finds its slot by index and is validated by generation.

use super::super::datagrams::WatchSource;
use crate::driver::traits::LaneKey;
use crate::proto::table::{Id, Table};

/// The purpose of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RequestKind {
    /// Watches a listener.
    Listen(usize),
    /// Watches link notifications.
    Links,
    /// Waits until a connection attempt completes.
    Connect(LaneKey),
    /// Watches a lane for readability (0) or writability (1).
    Watch(LaneKey, usize),
    /// Receives a chunk.
    Receive(LaneKey),
    /// Sends (a part of) the chunk with this number in the table of chunks.
    Send { lane: LaneKey, chunk: usize, zero_copy: bool },
    /// Watches a datagram source for readability or writability.
    Datagrams { source: WatchSource, is_writable: bool },
    /// Cancels another request, or is obsolete: its own result is ignored.
    Cancel,
}

#[derive(Clone, Copy, Debug)]
struct RingRequest {
    kind: RequestKind,
    /// The result arrived; the notification of a zero-copy send is outstanding.
    waits_for_notification: bool,
}

/// See the module. A request is identified by its `user_data`.
#[derive(Debug)]
pub(super) struct RequestSlots(Table<RingRequest>);

impl Default for RequestSlots {
    fn default() -> Self {
        Self(Table::new(usize::MAX))
    }
}

impl RequestSlots {
    /// Allocates a slot and returns the `user_data` of its request.
    pub(super) fn insert(&mut self, kind: RequestKind) -> u64 {
        let inserted = self.0.insert(RingRequest { kind, waits_for_notification: false });
        inserted.expect("lanes and chunks, which are bounded, bound the requests").to_u64()
    }

    /// The request of a completion; `None`: the completion is stale.
    pub(super) fn get(&self, user_data: u64) -> Option<RequestKind> {
        self.0.get(Id::from_u64(user_data)).map(|request| request.kind)
    }

    /// The result of a zero-copy send arrived, its notification will follow.
    pub(super) fn await_notification(&mut self, user_data: u64) {
        if let Some(request) = self.0.get_mut(Id::from_u64(user_data)) {
            request.waits_for_notification = true;
        }
    }

    /// Ignores further completions of a request.
    pub(super) fn ignore_completion(&mut self, user_data: u64) {
        if let Some(request) = self.0.get_mut(Id::from_u64(user_data)) {
            request.kind = RequestKind::Cancel;
        }
    }

    /// The last completion of a request arrived.
    pub(super) fn remove(&mut self, user_data: u64) {
        self.0.remove(Id::from_u64(user_data));
    }

    /// Requests in flight, including those that wait for a notification.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The `user_data` of requests that can still be cancelled and that `is_hit` selects.
    pub(super) fn select(&self, is_hit: impl Fn(RequestKind) -> bool) -> Vec<u64> {
        let hits = self
            .0
            .iter()
            .filter(|(_, request)| !request.waits_for_notification && is_hit(request.kind));
        hits.map(|(id, _)| id.to_u64()).collect()
    }
}
