//! Fences: sends that start when all earlier ones of their endpoint to their peer are done.
//!
//! A fenced send is in the queue of its session ([`super::Session::waiting`]), with
//! everything posted after it, so that sends of that session bypass no queue meanwhile; sends of
//! other endpoints or to other peers overtake it. It waits for, in this order:
//!
//! 1. earlier sends with an operation: each until it has ended, successfully or not;
//! 2. the acknowledgement of all frames made until then, which include those of sends that
//!    completed when they were staged.

use std::collections::VecDeque;

use crate::proto::context::Cx;
use crate::proto::operation::{Operation, OperationState};
use crate::proto::operations::Operations;
use crate::proto::ready::Work;
use crate::proto::session::Session;
use crate::proto::table::Id;

/// A fence; see the module.
#[derive(Debug)]
pub(crate) struct Fence {
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

impl Fence {
    /// Returns the fenced send.
    pub(in crate::proto) fn send(&self) -> Id {
        self.send
    }
}

impl Session {
    /// Adds a fence for its queued send `id`.
    pub(in crate::proto) fn fence(&mut self, cx: &Cx<'_>, id: Id) {
        let target = cx.shared.operations.get(id).map(target_of);
        debug_assert!(target.is_some(), "a fence is for a send that waits");
        let Some(target) = target else { return };
        let is_earlier = |other: Id, it: &Operation| {
            other != id && it.is_send() && it.session == cx.slot && target_of(it) == target
        };
        let earlier = cx.shared.operations.iter().filter(|(other, it)| is_earlier(*other, it));
        let earlier = earlier.map(|(other, _)| other).collect();
        self.fences.push_back(Fence { send: id, earlier, mark: None });
    }

    /// Checks the fences after an event that one may wait for.
    #[inline]
    pub(in crate::proto) fn look_at_fences(&self, cx: &mut Cx<'_>) {
        if !self.fences.is_empty() {
            cx.add_work(Work::Stage);
        }
    }

    /// Returns the first send in the queue that no fence holds back, and moves it to the front,
    /// where it is staged.
    pub(in crate::proto) fn first_unfenced(&mut self, cx: &mut Cx<'_>) -> Option<Id> {
        let mut fences = std::mem::take(&mut self.fences);
        fences.retain_mut(|fence| !self.is_fence_open(cx, fence));
        let first = first_free(&self.waiting, &cx.shared.operations, &fences);
        fences.shrink();
        self.fences = fences;
        let at = first?;
        let id = self.waiting.remove(at)?;
        self.waiting.push_front(id);
        Some(id)
    }

    /// Returns whether a fence has nothing left to wait for, or its send has ended.
    fn is_fence_open(&mut self, cx: &mut Cx<'_>, fence: &mut Fence) -> bool {
        let waits = |it: &Operation| matches!(it.state, OperationState::Queued { .. });
        if !cx.shared.operations.get(fence.send).is_some_and(waits) {
            return true;
        }
        fence.earlier.retain(|&earlier| cx.shared.operations.get(earlier).is_some());
        if !fence.earlier.is_empty() {
            return false;
        }
        let segments = &mut self.segments;
        if !segments.is_established() {
            return true;
        }
        let (epoch, end) = match fence.mark {
            Some(mark) => mark,
            None => {
                let end = segments.next_frame();
                segments.request_early_ack(fence.send);
                if segments.has_update_due() {
                    cx.add_work(Work::Flush);
                }
                *fence.mark.insert((self.epoch, end))
            }
        };
        epoch != self.epoch || segments.has_acked_before(end)
    }
}

/// Returns the position of the first send that no fence holds back.
fn first_free(
    waiting: &VecDeque<Id>,
    operations: &Operations,
    fences: &VecDeque<Fence>,
) -> Option<usize> {
    let mut held: Vec<Target> = Vec::new();
    waiting.iter().position(|&id| {
        let Some(target) = operations.get(id).map(target_of) else { return true };
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
