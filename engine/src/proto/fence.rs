//! Fences: sends that start when all earlier ones of their endpoint to their peer are done.
//!
//! A fenced send is in the queue of its session ([`super::session::Session::waiting`]), with
//! everything posted after it, so that sends of that session bypass no queue meanwhile; sends of
//! other endpoints or to other peers overtake it. It waits for, in this order:
//!
//! 1. earlier sends with an operation: each until it has ended, successfully or not;
//! 2. the acknowledgement of all frames made until then, which include those of sends that
//!    completed when they were staged.

use crate::proto::ready::Work;
use std::collections::VecDeque;

use super::core::Core;
use super::operation::{Operation, OperationState};
use super::operations::Operations;
use super::table::Id;

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

pub(super) fn target_of(operation: &Operation) -> Target {
    (operation.endpoint, operation.remote)
}

impl Core {
    /// Adds a fence for the queued send `id`.
    pub(super) fn fence(&mut self, id: Id) {
        let Some(fenced) = self.operations.get(id) else { return };
        let (slot, target) = (fenced.session, target_of(fenced));
        let is_earlier = |other: Id, it: &Operation| {
            other != id && it.is_send() && it.session == slot && target_of(it) == target
        };
        let operations = self.operations.iter();
        let earlier = operations.filter(|(other, it)| is_earlier(*other, it));
        let earlier = earlier.map(|(other, _)| other).collect();
        if let Some(session) = self.sessions.at_mut(slot as usize) {
            session.fences.push_back(Fence { send: id, earlier, mark: None });
        }
    }

    /// Checks the fences of a session after an event that one may wait for.
    #[inline]
    pub(super) fn look_at_fences(&mut self, slot: u32) {
        let session = self.sessions.at(slot as usize);
        if session.is_some_and(|session| !session.fences.is_empty()) {
            self.ready.add(slot, Work::Stage);
        }
    }

    /// Returns the first send in the queue of a session that no fence holds back, and moves it to
    /// the front, where it is staged.
    pub(super) fn first_unfenced(&mut self, slot: u32) -> Option<Id> {
        let session = self.sessions.at_mut(slot as usize)?;
        let mut fences = std::mem::take(&mut session.fences);
        fences.retain_mut(|fence| !self.is_open(slot, fence));
        let session = self.sessions.at_mut(slot as usize)?;
        let first = first_free(&session.waiting, &self.operations, &fences);
        fences.shrink();
        session.fences = fences;
        let at = first?;
        let id = session.waiting.remove(at)?;
        session.waiting.push_front(id);
        Some(id)
    }

    /// Returns whether a fence has nothing left to wait for, or its send has ended.
    fn is_open(&mut self, slot: u32, fence: &mut Fence) -> bool {
        let waits = |it: &Operation| matches!(it.state, OperationState::Queued { .. });
        if !self.operations.get(fence.send).is_some_and(waits) {
            return true;
        }
        fence.earlier.retain(|&earlier| self.operations.get(earlier).is_some());
        if !fence.earlier.is_empty() {
            return false;
        }
        let Some(session) = self.sessions.at_mut(slot as usize) else { return true };
        let pool = &mut self.segments.pool;
        let (epoch, end) = match fence.mark {
            Some(mark) => mark,
            None => {
                let Some(datagram) = session.segments.as_deref_mut() else { return true };
                let end = datagram.next_frame();
                datagram.request_early_ack(pool, fence.send);
                let asks = datagram.has_update_due();
                fence.mark = Some((session.epoch, end));
                if asks {
                    self.ready.add(slot, Work::Flush);
                }
                (session.epoch, end)
            }
        };
        epoch != session.epoch
            || session.segments.as_deref().is_none_or(|it| it.has_acked_before(pool, end))
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
