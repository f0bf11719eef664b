//! Messages of the engines' users, and checks of what arrives.

use std::collections::BTreeMap;

use zerocopy::IntoBytes;

use super::engine::Engine;
use super::memory::Memory;
use super::net::Net;
use super::requests::{receive_request, send_request};
use super::shared_memory::source_of;
use crate::proto::core::Core;
use crate::proto::effects::{Arrival, CompletionLevel, Effects, Ended};
use crate::proto::receive::ReceiveRequest;
use crate::proto::session::Session;
use crate::proto::session::send::{SendRequest, Staged, must_wait};
use crate::proto::table::Id;

/// A flow of messages: what a receive of it has to return.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Flow {
    pub(crate) from: usize,
    pub(crate) source: u16,
    pub(crate) to: usize,
    pub(crate) target: u16,
    pub(crate) context: u64,
}

impl Flow {
    /// Returns the flow of context 0 between the first endpoints.
    pub(crate) fn between(from: usize, to: usize) -> Self {
        Self { from, source: 0, to, target: 0, context: 0 }
    }
}

/// A receive, in the order of posting.
pub(super) struct Receive {
    engine: usize,
    endpoint: u16,
    id: Id,
}

/// Returns the remote data of a message: one in three has some.
fn data_of(tag: u64, length: usize) -> Option<u64> {
    (tag % 3 == 1).then_some(tag << 32 | length as u64)
}

/// Returns the bytes of a message.
pub(crate) fn content(flow: &Flow, tag: u64, length: usize) -> Vec<u8> {
    let seed = tag
        .wrapping_mul(31)
        .wrapping_add(flow.context * 7 + flow.from as u64 * 3 + u64::from(flow.source) * 5);
    (0..length as u64).map(|at| (seed ^ at.wrapping_mul(13) ^ (at >> 7)) as u8).collect()
}

/// Stages what waits for it.
pub(crate) fn stage(core: &mut Core, memory: &mut Memory) {
    while let Some(id) = core.poll_waiting() {
        let completed = match core.stage(id, memory.now) {
            Staged::Eager { room, completes } => {
                room.copy_from_slice(&memory.bytes[&id]);
                completes
            }
            Staged::Rts { room } => {
                room.copy_from_slice(&memory.bytes[&id][..room.len()]);
                false
            }
            Staged::Source { room } => {
                room.copy_from_slice(source_of(memory, id).as_bytes());
                false
            }
            // Blocked sessions are not returned again.
            Staged::Blocked => continue,
        };
        if completed {
            memory.complete(id, Ended::Sent { accepted: 0 });
        }
    }
    while let Some(data) = core.stage_data() {
        let range = data.offset as usize..data.offset as usize + data.room.len();
        data.room.copy_from_slice(&memory.bytes[&data.operation][range]);
    }
}

impl Net {
    /// Returns the next message of a flow: its tag is its number there.
    pub(super) fn next_message(
        &self,
        flow: &Flow,
        length: usize,
        level: CompletionLevel,
    ) -> (SendRequest, Vec<u8>) {
        let tag = self.messages(flow);
        let peer = self.engines[flow.from].peers[&(flow.to, flow.target)];
        let request = SendRequest {
            endpoint: flow.source,
            level,
            hint: self.hint,
            data: data_of(tag, length).filter(|_| self.has_data),
            ..send_request(peer, flow.context, tag, length as u64)
        };
        (request, content(flow, tag, length))
    }

    /// Notes a message that was sent, by this operation unless it was staged at once.
    pub(super) fn note_sent(&mut self, flow: Flow, length: usize, id: Option<Id>) {
        self.sent.entry(flow).or_default().push((length, id));
    }

    /// Sends the next message of a flow. Returns the operation, unless the message is staged at
    /// once.
    pub(crate) fn send(&mut self, flow: Flow, length: usize, level: CompletionLevel) -> Option<Id> {
        let (request, bytes) = self.next_message(&flow, length, level);
        let now_ns = self.now_ns();
        let engine = &mut self.engines[flow.from];
        let id = if level == CompletionLevel::Inject
            && request.is_plain()
            && !must_wait()
            && let Ok(to) = engine.core.destination(request.peer)
            && let Some(room) = engine.core.stage_now(to, &request)
        {
            room.copy_from_slice(&bytes);
            None
        } else {
            let id = engine.core.new_send(&request).unwrap();
            engine.memory.bytes.insert(id, bytes);
            engine.core.enqueue(id, now_ns);
            Some(id)
        };
        self.note_sent(flow, length, id);
        id
    }

    /// Returns the number of messages sent in a flow.
    pub(crate) fn messages(&self, flow: &Flow) -> u64 {
        self.sent.get(flow).map_or(0, Vec::len) as u64
    }

    /// Posts a receive of the next message of a flow.
    pub(crate) fn receive_of(&mut self, flow: Flow, capacity: usize) -> Id {
        let source = Some((flow.from, flow.source));
        self.receive((flow.to, flow.target), source, flow.context, capacity)
    }

    /// Posts a receive of any tag from `peer`.
    pub(crate) fn receive(
        &mut self,
        (engine, endpoint): (usize, u16),
        peer: Option<(usize, u16)>,
        context: u64,
        capacity: usize,
    ) -> Id {
        let here = &mut self.engines[engine];
        let peer = peer.map(|peer| here.peers[&peer]);
        let request = ReceiveRequest {
            endpoint,
            ignore: u64::MAX,
            ..receive_request(peer, context, 0, capacity as u64)
        };
        let fast = here.core.post_fast(&request);
        let id = fast.unwrap_or_else(|| here.core.shared_mut().new_receive(&request).unwrap());
        here.memory.bytes.insert(id, vec![0xee; capacity]);
        if fast.is_none() {
            here.core.start_receive(id, &mut here.memory);
        }
        self.receives.push(Receive { engine, endpoint, id });
        id
    }

    /// Stages what waits for it.
    pub(crate) fn stage(&mut self, number: usize) {
        let Engine { core, memory, .. } = &mut self.engines[number];
        stage(core, memory);
    }

    // ---- Results ----

    pub(crate) fn end_of(&self, engine: usize, id: Id) -> Option<&Ended> {
        self.engines[engine].memory.ended.get(&id).map(|(ended, ..)| ended)
    }

    /// Returns the numbers of an engine's received messages, in the order of their receives, up to
    /// the first receive that has not ended.
    pub(crate) fn received(&self, engine: usize) -> Vec<u64> {
        let receives = self.receives.iter().filter(|receive| receive.engine == engine);
        let is_over = |receive: &&Receive| self.end_of(engine, receive.id).is_some();
        receives.take_while(is_over).filter_map(|receive| self.number_of(receive)).collect()
    }

    /// Returns the numbers of an engine's received messages from this one on.
    pub(crate) fn received_from(&self, engine: usize, number: u64) -> Vec<u64> {
        let receives = self.receives.iter().filter(|receive| receive.engine == engine);
        let numbers = receives.filter_map(|receive| self.number_of(receive));
        numbers.filter(|&it| it >= number).collect()
    }

    /// Returns the number of a received message, and checks its content.
    fn number_of(&self, receive: &Receive) -> Option<u64> {
        let (ended, _, bytes) = self.engines[receive.engine].memory.ended.get(&receive.id)?;
        let Ended::Received(arrival) = ended else { return None };
        let flow = self.flow_of(receive, arrival);
        let length = self.sent[&flow][arrival.tag as usize].0;
        assert_eq!(arrival.length, length as u64);
        assert_eq!(
            arrival.data,
            data_of(arrival.tag, length).filter(|_| self.has_data),
            "RR-DATA-1"
        );
        let fits = length.min(bytes.len());
        let wanted = &content(&flow, arrival.tag, length)[..fits];
        assert!(bytes[..fits] == *wanted, "{flow:?} {}", arrival.tag);
        assert!(bytes[fits..].iter().all(|&byte| byte == 0xee));
        Some(arrival.tag)
    }

    fn flow_of(&self, receive: &Receive, arrival: &Arrival) -> Flow {
        let peers = &self.engines[receive.engine].peers;
        let (&(from, source), _) = peers.iter().find(|(_, id)| **id == arrival.peer).unwrap();
        let (to, target, context) = (receive.engine, receive.endpoint, arrival.context);
        Flow { from, source, to, target, context }
    }

    /// Returns whether every operation has ended and nothing is outstanding.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.events.is_empty()
            && self.engines.iter().all(|engine| {
                engine.memory.bytes.is_empty()
                    && engine.slots.values().all(|&slot| {
                        engine.core.session(slot).is_some_and(Session::is_settled)
                            && engine
                                .core
                                .session(slot)
                                .map_or(0, |it| it.segments().waiting_bytes())
                                == 0
                    })
            })
    }

    /// Advances until everything is at rest, at most `limit` steps.
    pub(crate) fn settle(&mut self, limit: u64) {
        let begin_ns = self.now_ns();
        while !self.is_at_rest() {
            assert!(self.now_ns() - begin_ns < limit, "not at rest after {limit} steps");
            self.step();
        }
    }

    /// Checks that every message arrived once, complete, at the right receive.
    pub(crate) fn check_messages(&self) {
        let mut next: BTreeMap<Flow, u64> = BTreeMap::new();
        for receive in &self.receives {
            let (ended, ..) = &self.engines[receive.engine].memory.ended[&receive.id];
            let Ended::Received(arrival) = ended else { panic!("{ended:?}") };
            let flow = self.flow_of(receive, arrival);
            let tag = next.entry(flow).or_default();
            assert_eq!(self.number_of(receive), Some(*tag), "{flow:?}");
            *tag += 1;
        }
        for (flow, messages) in &self.sent {
            assert_eq!(next.get(flow).copied().unwrap_or(0), messages.len() as u64);
            for id in messages.iter().filter_map(|(_, id)| *id) {
                let ended = self.end_of(flow.from, id);
                assert!(matches!(ended, Some(Ended::Sent { .. })), "{ended:?}");
            }
        }
    }
}
