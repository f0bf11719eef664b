//! Posting of receives.

use std::sync::Arc;

use super::completions::{CompletionRoute, PostedTo, Posting, ReceiveMemory};
use super::engine::EngineState;
use super::outside::Ticket;
use super::post::{COMPLETIONS, Memory, Refused, kind_of};
use crate::proto::effects::Arrival;
use crate::proto::receive::ReceiveRequest;
use crate::proto::table::Id;
use crate::types::{Envelope, Error, OperationKind, Peer, Status};

/// Longest multi-receive buffer: offsets in it are kept in 32 bits.
const MULTI_BYTES_MAX: usize = u32::MAX as usize;

fn status_of(arrival: &Arrival) -> Status {
    Status {
        peer: Some(Peer(arrival.peer)),
        envelope: Envelope::of(arrival.context, arrival.tag),
        length: arrival.length as usize,
        data: arrival.data,
    }
}

impl EngineState {
    /// Posts a receive with a new handle, which gets the completion, or `ticket` does.
    pub(crate) fn start_receive(
        &mut self,
        request: &ReceiveRequest,
        memory: Memory,
        ticket: Option<&Arc<Ticket>>,
    ) -> Result<Id, Refused> {
        let Some(handle) = self.completions.new_handle(ticket) else {
            return Err((Error::WouldBlock(COMPLETIONS), memory));
        };
        let posted = self.post_receive(request, memory, CompletionRoute::Handle(handle));
        if posted.is_err() {
            self.completions.remove_handle(handle);
        }
        posted.map(|_| handle)
    }

    /// Posts a receive into one piece of memory.
    /// Takes `memory` unless it is refused.
    #[inline(always)]
    pub(crate) fn post_into(
        &mut self,
        request: &ReceiveRequest,
        memory: &mut ReceiveMemory,
        to: PostedTo,
    ) -> Result<Id, Error> {
        if !self.completions.try_reserve(to.queue) {
            return Err(Error::WouldBlock(COMPLETIONS));
        }
        let Some(id) = self.core.post_fast(request) else {
            self.completions.release(to.queue);
            // Copies, so that those of other receives stay in registers.
            let (request, to, mut taken) = (ReceiveRequest { ..*request }, to, memory.take());
            let posted = self.post_taken(&request, &mut taken, &to);
            memory.restore(taken);
            return posted;
        };
        self.completions.insert_plain(id, memory, to, request.endpoint);
        Ok(id)
    }

    #[inline(never)]
    fn post_taken(
        &mut self,
        request: &ReceiveRequest,
        memory: &mut ReceiveMemory,
        to: &PostedTo,
    ) -> Result<Id, Error> {
        let posted = self.post_by_slot(request, memory.take().into_memory(), to.route(), false);
        posted.map_err(|(error, refused)| {
            memory.put_back(refused);
            error
        })
    }

    /// Posts a receive.
    #[inline]
    pub(crate) fn post_receive(
        &mut self,
        request: &ReceiveRequest,
        memory: Memory,
        route: CompletionRoute,
    ) -> Result<Id, Refused> {
        let CompletionRoute::Queue { queue, user_data, silent } = route else {
            return self.post_by_slot(request, memory, route, true);
        };
        match ReceiveMemory::of_memory(memory) {
            Ok(mut memory) => {
                let posted =
                    self.post_into(request, &mut memory, PostedTo { queue, user_data, silent });
                posted.map_err(|error| (error, memory.into_memory()))
            }
            Err(memory) => self.post_by_slot(request, memory, route, true),
        }
    }

    /// Posts a receive of any kind. `may_be_fast`: [`Core::post_fast`] was not tried.
    ///
    /// [`Core::post_fast`]: crate::proto::core::Core::post_fast
    #[inline(never)]
    fn post_by_slot(
        &mut self,
        request: &ReceiveRequest,
        memory: Memory,
        route: CompletionRoute,
        may_be_fast: bool,
    ) -> Result<Id, Refused> {
        if !self.completions.has_room(route) {
            return Err((Error::WouldBlock(COMPLETIONS), memory));
        }
        if request.min_free.is_some() && memory.shape.len() > MULTI_BYTES_MAX {
            let text = format!("a multi-receive has at most {MULTI_BYTES_MAX} bytes; post several");
            return Err((Error::misuse(text), memory));
        }
        let peer = request.peer.map(Peer);
        let kind = kind_of(request);
        let envelope = Envelope::of(request.context, request.tag);
        let fast = may_be_fast.then(|| self.core.post_fast(request)).flatten();
        let id = match fast.map_or_else(|| self.core.shared_mut().new_receive(request), Ok) {
            Ok(id) => id,
            Err(refusal) => return Err((self.error_of(peer, refusal), memory)),
        };
        self.completions.insert(id, Posting { kind, route, memory, peer, envelope });
        self.completions.count_for(id, request.endpoint);
        if fast.is_none() {
            self.core.start_receive(id, &mut self.completions);
        }
        Ok(id)
    }

    /// Returns the message that a receive would get now.
    pub(crate) fn peek(&mut self, request: &ReceiveRequest) -> Result<Option<Status>, Error> {
        let found = self.core.peek(request);
        let found = found.map_err(|refusal| self.error_of(request.peer.map(Peer), refusal))?;
        Ok(found.map(|arrival| status_of(&arrival)))
    }

    /// Claims the message that a receive would get now.
    pub(crate) fn claim(
        &mut self,
        request: &ReceiveRequest,
    ) -> Result<Option<(Id, Status)>, Error> {
        let found = self.core.claim(request);
        let found = found.map_err(|refusal| self.error_of(request.peer.map(Peer), refusal))?;
        Ok(found.map(|(claim, arrival)| (claim, status_of(&arrival))))
    }

    /// Receives a claimed message. The claim ends unless this is refused.
    pub(crate) fn receive_claimed(
        &mut self,
        claim: Id,
        endpoint: u16,
        memory: Memory,
        route: CompletionRoute,
    ) -> Result<Id, Refused> {
        if !self.completions.has_room(route) {
            return Err((Error::WouldBlock(COMPLETIONS), memory));
        }
        let id = match self.core.shared_mut().new_claimed_receive(claim, memory.shape.len() as u64)
        {
            Some(Ok(id)) => id,
            Some(Err(refusal)) => return Err((self.error_of(None, refusal), memory)),
            None => {
                let text = "no such claimed message: it was received or discarded, or its endpoint \
                            was closed";
                return Err((Error::misuse(text), memory));
            }
        };
        let (kind, peer, envelope) = (OperationKind::Receive, None, Envelope::default());
        self.completions.insert(id, Posting { kind, route, memory, peer, envelope });
        self.completions.count_for(id, endpoint);
        self.core.start_claimed(id, claim, &mut self.completions);
        Ok(id)
    }

    /// Cancels an operation that has not matched and was not sent.
    pub(crate) fn cancel(&mut self, id: Id) -> bool {
        // Its memory is not as it was any more.
        if self.completions.is_placed(id) {
            return false;
        }
        self.withdraw(id)
    }

    /// Does the same where the engine owns the memory of a receive: a message that arrives there is
    /// kept for another one.
    pub(super) fn withdraw(&mut self, id: Id) -> bool {
        self.core.shared_mut().cancel_receive(id, &mut self.completions)
            || self.core.cancel_send(id, &mut self.completions)
    }

    /// Returns the operations of an endpoint that complete to a queue, with their `user_data`.
    pub(crate) fn outstanding_of(&self, endpoint: u16) -> Vec<(Id, u64)> {
        let own = self.core.shared().operations().ids_of(endpoint);
        let named = own.map(|id| (id, self.completions.user_data_of(id)));
        named.filter_map(|(id, user_data)| Some((id, user_data?))).collect()
    }
}
