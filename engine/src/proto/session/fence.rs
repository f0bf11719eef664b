//! Fences: sends that start when all earlier ones of their endpoint to their peer are done.
//!
//! A fenced send is in the queue of its session (`Session::waiting`), with everything posted
//! after it, so that sends of that session bypass no queue meanwhile; sends of other endpoints or
//! to other peers overtake it. It waits for, in this order:
//!
//! 1. earlier sends with an operation: each until it has ended, successfully or not;
//! 2. the acknowledgement of all frames made until then, which include those of sends that
//!    completed when they were staged.

use std::collections::VecDeque;

use super::late::LateQueue;
use super::segments::Segments;
use crate::proto::context::Cx;
use crate::proto::operation::{Operation, OperationState};
use crate::proto::operations::Operations;
use crate::proto::ready::Work;
use crate::proto::table::Id;

/// A fence; see the module.
#[derive(Debug)]
pub(super) struct Fence {
    send: Id,
    /// Earlier sends that had not ended at the last check.
    earlier: Vec<Id>,
    /// These have ended: epoch of the session, and the frame before which all are to be
    /// acknowledged. The frames of a session end with its epoch.
    mark: Option<(u32, u32)>,
}

/// Scope of a fence: endpoint and index of the peer.
type Target = (u16, u32);

pub(in crate::proto) fn target_of(operation: &Operation) -> Target {
    (operation.endpoint, operation.remote)
}

/// The fences of a session, and what they wait for.
#[derive(Debug, Default)]
pub(in crate::proto) struct Fences {
    fences: LateQueue<Fence>,
}

impl Fences {
    /// Returns whether no send waits for earlier ones.
    #[inline]
    pub(in crate::proto) fn is_empty(&self) -> bool {
        self.fences.is_empty()
    }

    /// Returns how many there are.
    #[cfg(test)]
    pub(in crate::proto) fn len(&self) -> usize {
        self.fences.len()
    }

    /// Adds a fence for the queued send `id` of the session.
    pub(super) fn add(&mut self, cx: &Cx<'_>, id: Id) {
        let target = cx.shared.operations.get(id).map(target_of);
        debug_assert!(target.is_some(), "a fence is for a send that waits");
        let is_earlier = |other: Id, it: &Operation| {
            other != id && it.is_send() && it.session == cx.slot && Some(target_of(it)) == target
        };
        let earlier = cx.shared.operations.iter().filter(|(other, it)| is_earlier(*other, it));
        let earlier = earlier.map(|(other, _)| other).collect();
        self.fences.push_back(Fence { send: id, earlier, mark: None });
    }

    /// Appends fences of another session.
    pub(super) fn append(&mut self, fences: VecDeque<Fence>) {
        fences.into_iter().for_each(|fence| self.fences.push_back(fence));
    }

    /// Removes and returns those of certain sends.
    pub(super) fn extract(&mut self, is_its: impl Fn(&Id) -> bool) -> VecDeque<Fence> {
        self.fences.extract(|fence| is_its(&fence.send))
    }

    /// Checks the fences after an event that one may wait for.
    #[inline]
    pub(super) fn recheck(&self, cx: &mut Cx<'_>) {
        if !self.fences.is_empty() {
            cx.add_work(Work::Stage);
        }
    }

    /// Returns the first send in the queue of the session that no fence holds back, and moves it
    /// to the front, where it is staged.
    pub(super) fn first_unfenced(
        &mut self,
        cx: &mut Cx<'_>,
        (segments, epoch): (&mut Segments, u32),
        waiting: &mut VecDeque<Id>,
    ) -> Option<Id> {
        self.fences.retain_mut(|fence| !fence.is_open(cx, segments, epoch));
        let first = first_free(waiting, &cx.shared.operations, &self.fences);
        self.fences.shrink();
        let id = waiting.remove(first?)?;
        waiting.push_front(id);
        Some(id)
    }
}

impl Fence {
    /// Returns whether nothing is left to wait for, or its send has ended.
    fn is_open(&mut self, cx: &mut Cx<'_>, segments: &mut Segments, epoch: u32) -> bool {
        let waits = |it: &Operation| matches!(it.state, OperationState::Queued { .. });
        if !cx.shared.operations.get(self.send).is_some_and(waits) {
            return true;
        }
        self.earlier.retain(|&earlier| cx.shared.operations.get(earlier).is_some());
        if !self.earlier.is_empty() {
            return false;
        }
        if !segments.is_established() {
            return true;
        }
        let (its_epoch, end) = match self.mark {
            Some(mark) => mark,
            None => {
                let end = segments.next_frame();
                segments.request_early_ack(self.send);
                if segments.has_update_due() {
                    cx.add_work(Work::Flush);
                }
                *self.mark.insert((epoch, end))
            }
        };
        its_epoch != epoch || segments.has_acked_before(end)
    }
}

/// Returns the position of the first send that no fence holds back.
fn first_free(
    waiting: &VecDeque<Id>,
    operations: &Operations,
    fences: &VecDeque<Fence>,
) -> Option<usize> {
    let mut held: Vec<Option<Target>> = Vec::new();
    waiting.iter().position(|&id| {
        let target = operations.get(id).map(target_of);
        debug_assert!(target.is_some(), "what waits has not ended");
        if held.contains(&target) {
            return false;
        }
        let is_fenced = fences.iter().any(|fence| fence.send == id);
        if is_fenced {
            held.push(target);
        }
        !is_fenced
    })
}
