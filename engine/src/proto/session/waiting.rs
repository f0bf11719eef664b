//! Operations that wait at a session, which may move to another one.

use std::collections::VecDeque;

use super::Session;
use super::fence::Fence;
use super::segments::uncommon::Uncommon;
use crate::proto::operations::Operations;
use crate::proto::table::Id;

/// Operations that wait at a session, in order.
pub(in crate::proto) struct WaitingOperations {
    sends: VecDeque<Id>,
    fences: VecDeque<Fence>,
    one_sided: VecDeque<Id>,
}

impl Session {
    /// Removes and returns the waiting operations with a remote endpoint.
    pub(in crate::proto) fn take_waiting_with(
        &mut self,
        remote: u32,
        operations: &Operations,
    ) -> WaitingOperations {
        let is_its = |id: &Id| operations.get(*id).is_some_and(|it| it.remote == remote);
        let (sends, others) = std::mem::take(&mut self.waiting).into_iter().partition(is_its);
        self.waiting = others;
        WaitingOperations {
            sends,
            fences: self.fences.extract(is_its),
            one_sided: self.one_sided.take_waiting(is_its),
        }
    }

    /// Appends operations that waited at another session.
    pub(in crate::proto) fn add_waiting(&mut self, waiting: WaitingOperations) {
        self.waiting.extend(waiting.sends);
        self.segments.add_uncommon(Uncommon::WAITING);
        self.fences.append(waiting.fences);
        self.one_sided.add_waiting(waiting.one_sided);
    }
}
