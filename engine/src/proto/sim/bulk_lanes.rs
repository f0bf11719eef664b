//! Bulk lanes: they take no time, and lose nothing.

use std::collections::VecDeque;

use super::engine::engine_id;
use super::net::Net;
use super::sessions::lane_hello;
use crate::proto::effects::Effects;
use crate::proto::table::Id;

impl Net {
    pub(super) fn open_lane(&mut self, number: usize, slot: u32, lane: Id) {
        let now_ns = self.now_ns();
        let here = &self.engines[number];
        let Some(peer) = here.slots.iter().find(|(_, at)| **at == slot).map(|(peer, _)| *peer)
        else {
            return;
        };
        let session = here.core.sessions.at(slot as usize).unwrap().id();
        let name = here.core.shared.lanes.get(lane).unwrap().number();
        let there = &mut self.engines[peer].core;
        let hello = lane_hello(engine_id(number), session, name);
        let other = there.join_as_lane(&hello, now_ns).unwrap();
        there.make_lane_ready(other, now_ns);
        self.engines[number].core.make_lane_ready(lane, now_ns);
        self.engines[number].lanes.insert(lane, (peer, other));
        self.engines[peer].lanes.insert(other, (number, lane));
    }

    pub(super) fn move_chunks(&mut self, number: usize) {
        let now_ns = self.now_ns();
        while let Some(lane) = self.engines[number].core.shared_mut().lanes_mut().poll_runnable() {
            let engine = &mut self.engines[number];
            if let Some(receive) = engine.core.shared_mut().next_receive(lane) {
                engine.receiving.insert(lane, receive);
            }
            if let Some(chunk) = engine.core.next_send(lane, &engine.memory) {
                let range = chunk.offset as usize..chunk.offset as usize + chunk.length as usize;
                let bytes = engine.memory.bytes[&chunk.operation][range].to_vec();
                engine.core.with_lane(lane, |it, cx| it.handle_chunk_sent(cx, lane, now_ns));
                engine.core.handle_chunk_released(chunk.operation, &mut engine.memory);
                let (peer, other) = engine.lanes[&lane];
                let inbox = &mut self.engines[peer].inbox;
                inbox.entry(other).or_default().push_back((chunk.header, bytes));
            }
        }
        let engine = &mut self.engines[number];
        let mut ready: Vec<Id> = engine.receiving.keys().copied().collect();
        ready.sort_unstable();
        for lane in ready {
            let chunk = engine.inbox.get_mut(&lane).and_then(VecDeque::pop_front);
            let Some((header, bytes)) = chunk else { continue };
            let receive = engine.receiving.remove(&lane).unwrap();
            engine.memory.place(receive.operation, receive.offset as usize, &bytes);
            let (core, memory) = (&mut engine.core, &mut engine.memory);
            let is_good = core.handle_chunk_received(lane, receive, Some(&header), now_ns, memory);
            assert!(is_good, "chunks arrive in grant order");
        }
    }
}
