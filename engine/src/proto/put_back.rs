//! Messages that are put back: the handle of their receive was dropped before its result was taken,
//! so the receive has received nothing.

use super::context::SharedState;
use super::core::Core;
use super::effects::{Arrival, Effects, Ended};
use super::matching::MatchEnvelope;
use super::unexpected::{Kind, Waiting};

impl Core {
    /// Puts the whole message `bytes` back that a receive of `endpoint` had matched with number
    /// `order`: the oldest receive that accepts it gets it now, or the next one that is posted,
    /// before every message that has arrived since. It holds no credit, which was returned to its
    /// sender when it was received. Returns `false` if its endpoint or its source was removed, and
    /// the message with it.
    ///
    /// RR-MATCH-2.
    pub(crate) fn put_back(
        &mut self,
        endpoint: u16,
        arrival: Arrival,
        bytes: &[u8],
        order: u64,
        effects: &mut impl Effects,
    ) -> bool {
        let SharedState { peers, endpoints, operations, unexpected, .. } = &mut self.shared;
        let Some(remote) = peers.get(arrival.peer) else { return false };
        let Arrival { peer, context, tag, length, data } = arrival;
        let envelope = MatchEnvelope { source: peer.index() as u32, context, tag };
        let matched = endpoints.match_arrival(operations, endpoint, &envelope, length, effects);
        if let Some(id) = matched {
            let matched = operations.remove_matched(id);
            let fits = matched.capacity.min(length) as usize;
            effects.place(id, 0, &bytes[..fits]);
            effects.order(id, order);
            operations.end_receive(id, matched.slice_of, Ended::Received(arrival), effects);
            return true;
        }
        let epoch = self.sessions.at(remote.session as usize).map_or(0, |session| session.epoch());
        let kind = Kind::Eager { report: 0, put_back: order };
        let message = Waiting { came_by: (remote.session, epoch), data, kind };
        let kept = endpoints
            .get_mut(endpoint)
            .and_then(|matcher| Some((matcher, unexpected.insert_put_back(message, bytes)?)));
        let Some((matcher, message)) = kept else { return false };
        matcher.put_back(&envelope, message.index() as u32, order);
        true
    }
}
