//! Messages that are put back: the handle of their receive was dropped before its result was taken,
//! so the receive has received nothing.

use super::core::Core;
use super::effects::{Arrival, Effects, Ended};
use super::matching::MatchEnvelope;
use super::table::Id;
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
        let Some(slot) = self.shared.peers.get(arrival.peer).map(|remote| remote.session) else {
            return false;
        };
        if !self.shared.endpoints.is_open(endpoint) {
            return false;
        }
        let Arrival { peer, context, tag, length, data } = arrival;
        let envelope = MatchEnvelope { source: peer.index() as u32, context, tag };
        if let Some(id) = self.match_arrival(endpoint, &envelope, length, effects) {
            return self.deliver_put_back(id, arrival, bytes, order, effects);
        }
        let epoch = self.sessions.at(slot as usize).map_or(0, |session| session.epoch);
        let kind = Kind::Eager { report: 0, put_back: order };
        let message = Waiting { came_by: (slot, epoch), data, kind };
        let message = self.shared.unexpected.insert_put_back(message, bytes);
        let (Some(message), Some(matcher)) = (message, self.shared.endpoints.get_mut(endpoint))
        else {
            return false;
        };
        matcher.put_back(&envelope, message.index() as u32, order);
        true
    }

    fn deliver_put_back(
        &mut self,
        id: Id,
        arrival: Arrival,
        bytes: &[u8],
        order: u64,
        effects: &mut impl Effects,
    ) -> bool {
        let Some(matched) = self.shared.operations.remove_matched(id) else { return false };
        let fits = matched.capacity.min(arrival.length) as usize;
        effects.place(id, 0, &bytes[..fits]);
        effects.order(id, order);
        self.end_receive(id, matched.slice_of, Ended::Received(arrival), effects);
        true
    }
}
