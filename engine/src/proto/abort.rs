//! Abort of operations on this side while they are in progress.

use super::context::SharedState;
use super::core::{Action, Core};
use super::effects::Effects;
use super::operation::{Cause, Operation, OperationState};
use super::regions::Refusal;
use super::session::one_sided::Role;
use super::table::Id;

impl SharedState {
    /// Closes lanes on which an operation has bytes outstanding: a suspended peer would make the
    /// kernel hold its memory indefinitely.
    fn release_lanes_of(&mut self, id: Id) {
        let Some(operation) = self.operations.get(id) else { return };
        let is_sent =
            matches!(&operation.state, OperationState::AwaitPull(it) if it.is_read_by_kernel());
        for (lane, bulk) in self.lanes.iter() {
            // A chunk that has left its lane's queue may still be in the kernel.
            let is_used = is_sent || bulk.expects_chunk_of(id);
            if is_used && bulk.session() == operation.session {
                self.actions.push_back(Action::AbandonLane { lane, is_reported: false });
            }
        }
    }
}

impl Core {
    /// Aborts an operation in any state: it ends as cancelled, at once or as soon as the kernel has
    /// released its memory, which it does when the lanes that use it are reset. The peer's side
    /// fails, and the session continues; an operation of the peer is refused with `refusal`. An
    /// operation that the peer has reported as done ends as done.
    ///
    /// RR-RDV-5.
    pub(crate) fn abort(&mut self, id: Id, refusal: Refusal, effects: &mut impl Effects) {
        self.renounce(id, refusal);
        self.shared.release_lanes_of(id);
        self.fail_operation(id, &Cause::Closed, effects);
    }

    /// Notifies the peer of an operation that this side is about to end, if the peer waits for this
    /// side: for the end of a pull of this side, or for a reply. What the peer pulls itself is
    /// refused when it asks for more.
    ///
    /// RR-RDV-5, RR-RMA-2.
    pub(super) fn renounce(&mut self, id: Id, refusal: Refusal) {
        let operation = self.shared.operations.get(id);
        let due = operation.and_then(|it| Some((it.session, it.renunciation(refusal)?)));
        if let Some((slot, frame)) = due {
            self.with_known(slot, |it, mut cx| it.send_control(&mut cx, frame));
        }
    }

    /// Aborts the operations of peers on a region that is being closed.
    ///
    /// RR-RDV-5.
    pub(crate) fn abort_accesses(&mut self, region: Id, effects: &mut impl Effects) {
        let is_of_region = |operation: &Operation| match operation.role {
            Role::Target(Some(key)) => self.shared.regions().region_named(key) == Some(region),
            _ => false,
        };
        let hit = self.shared.operations.iter().filter(|(_, operation)| is_of_region(operation));
        let hit: Vec<Id> = hit.map(|(id, _)| id).collect();
        for id in hit {
            self.abort(id, Refusal::Key, effects);
        }
    }
}
