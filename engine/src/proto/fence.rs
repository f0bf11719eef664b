//! Fences: sends that start when all earlier ones of their endpoint to their peer are done.
//!
//! A fenced send stands in the line of its session ([`super::session::Session::waiting`]), with all
//! that was posted behind it, so that nothing of that session goes at once meanwhile; sends of
//! other endpoints or to other peers pass it. What it waits for, in this order:
//!
//! 1. the earlier sends that are operations: each until it has ended, however;
//! 2. the acknowledgement of all frames that were made until then: those of sends that completed
//!    when they were staged are among them.

use std::collections::VecDeque;

use super::core::Core;
use super::operation::{Operation, OperationState};
use super::session::Session;
use super::table::{Id, Table};

/// See the module.
#[derive(Debug)]
pub(crate) struct Fence {
    send: Id,
    /// Earlier sends that had not ended when they were last looked at.
    earlier: Vec<Id>,
    /// These have ended: epoch of the session, and the frame before which all are to be
    /// acknowledged. With its epoch the frames of a session end.
    mark: Option<(u32, u32)>,
}

/// What a fence is about: endpoint and index of the peer.
type Target = (u16, u32);

pub(super) fn target_of(operation: &Operation) -> Target {
    (operation.endpoint, operation.remote)
}

impl Core {
    /// The fenced send `id` has its place in the line of its session.
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

    /// Something that a fence of a session may wait for has ended.
    #[inline]
    pub(super) fn look_at_fences(&mut self, slot: u32) {
        let session = self.sessions.at(slot as usize);
        if session.is_some_and(|session| !session.fences.is_empty()) {
            self.unblocked.push(slot);
        }
    }

    /// The first send in the line of a session that no fence holds back. It is the first of all
    /// then: nobody is to pass it when it has gone in part.
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

    /// Whether a fence has nothing to wait for any more, or its send has ended.
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
        let pool = &mut self.datagrams.segments;
        let (epoch, end) = match fence.mark {
            Some(mark) => mark,
            None => {
                let end = session.next_frame();
                let asks = match session.datagram.as_deref_mut() {
                    Some(datagram) => {
                        datagram.hasten_acks(pool, fence.send);
                        datagram.has_update_due()
                    }
                    None => session.demand_ack(),
                };
                fence.mark = Some((session.epoch, end));
                if asks && !std::mem::replace(&mut session.is_dirty, true) {
                    self.dirty.push(slot);
                }
                (session.epoch, end)
            }
        };
        epoch != session.epoch
            || match session.datagram.as_deref() {
                Some(datagram) => datagram.has_acked_before(pool, end),
                None => session.has_acked_before(end),
            }
    }
}

impl Session {
    /// In stream mode, the next segment asks for an acknowledgement of all frames. `false`: there
    /// is nothing to ask.
    pub(super) fn demand_ack(&mut self) -> bool {
        self.asks_ack |= self.acked_frame != self.next_frame;
        self.asks_ack
    }

    /// The number of the frame that is made next.
    pub(super) fn next_frame(&self) -> u32 {
        self.datagram.as_deref().map_or(self.next_frame, |datagram| datagram.next_frame())
    }

    /// In stream mode, whether the peer has acknowledged all frames before `end`.
    pub(super) fn has_acked_before(&self, end: u32) -> bool {
        self.next_frame.wrapping_sub(self.acked_frame) <= self.next_frame.wrapping_sub(end)
    }
}

/// Where the first send stands that no fence holds back.
fn first_free(
    waiting: &VecDeque<Id>,
    operations: &Table<Operation>,
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
