//! Invariants of any run.

use zerocopy::IntoBytes;

use super::engine::{FuzzedEngine, SOUND_CONTEXT, SOUND_ENDPOINT, config};
use crate::proto::effects::Ended;
use crate::proto::failure::PeerFailure;
use crate::proto::receive::ReceiveRequest;
use crate::proto::session::segments::window::FRAMES_MAX;
use crate::proto::sim::{eager, receive_request};
use crate::wire::frame::KIND_REPLY;
use crate::wire::{Eager, Frame};

impl FuzzedEngine {
    /// Checks the invariants after every step.
    pub(super) fn check(&self) {
        let (core, config) = (&self.core, config());
        assert_eq!(core.shared.operations.len(), self.kernel.live.len(), "an operation has no end");
        assert!(core.sessions.len() <= config.sessions_max);
        assert!(core.shared.lanes.len() <= config.bulk_lanes_max);
        let sound = core.sessions.at(self.sound_slot as usize).unwrap();
        assert!(
            sound.is_connected() && sound.ending().failure().is_none(),
            "{:?}",
            sound.ending().failure()
        );
        // A payload takes less than twice its length, or 64 bytes.
        let held_max = 2 * config.unexpected_bytes + 64 * config.unexpected_messages;
        assert!(core.shared.unexpected.held_bytes().0 as u64 <= held_max);
        for (_, session) in core.sessions.iter() {
            // At most one answer per operation and message, one grant or refusal per lane. Replies
            // to one-sided operations need no operation here: their limit is that of all answers.
            let answers = config.operations_max + config.envelope_credits as usize;
            let grants = config.bulk_lanes_max * (1 + config.horizon_chunks as usize);
            let (replies, others): (Vec<u8>, Vec<u8>) = session
                .segments()
                .control()
                .iter()
                .map(|frame| frame.as_frame()[0])
                .partition(|&kind| kind == KIND_REPLY);
            assert!(others.len() <= answers + grants + 1, "frames wait for the peer: {others:?}");
            let replies_max = 4 * config.operations_max + 2 * FRAMES_MAX as usize;
            assert!(replies.len() <= replies_max, "{} replies wait for the peer", replies.len());
            assert!(session.lanes().ids().len() <= config.bulk_lanes_max);
            assert!(session.waiting().len() <= config.send_queue_ops);
        }
        self.check_reserved();
    }

    /// Checks that reserved credit is that of open sessions and of messages of closed ones.
    fn check_reserved(&self) {
        let core = &self.core;
        let live = || core.sessions.iter().filter(|(_, session)| session.is_connected());
        let mut envelopes: u64 = live()
            .map(|(_, it)| u64::from(it.segments().receive_credits().both()[0].window()))
            .sum();
        let mut bytes: u64 = live()
            .map(|(_, it)| u64::from(it.segments().receive_credits().both()[1].window()))
            .sum();
        // The store's indices are dense and its bound is known.
        let stored = (0..2000).filter_map(|index| core.shared.unexpected.at(index));
        for message in stored {
            let session = core.sessions.at(message.session as usize).unwrap();
            if session.epoch() != message.epoch {
                envelopes += 1;
                bytes += message.payload().len() as u64;
            }
        }
        assert_eq!(core.shared().reserved(), (envelopes, bytes));
    }

    /// Sends a message of the correct peer and checks that it arrives at once.
    pub(super) fn ping(&mut self) {
        self.turn();
        let slot = self.sound_slot;
        let session = self.core.sessions.at(slot as usize).unwrap();
        assert!(session.segments().control().is_empty(), "it waits for others");
        assert!(self.unsent[1].is_empty(), "it waits for others");
        let left = self.sound_limit.wrapping_sub(self.sound_messages);
        assert!(left > 0 && left <= u32::MAX / 2, "the sound peer gets no credit: {left}");
        let request = ReceiveRequest {
            endpoint: SOUND_ENDPOINT,
            ..receive_request(Some(self.sound_peer), SOUND_CONTEXT, 1, 8)
        };
        let id = self.core.shared_mut().new_receive(&request).expect("there is room");
        self.kernel.started(id, super::kernel::Live::Receive { capacity: 8 });
        self.core.start_receive(id, &mut self.kernel);
        let header = Eager {
            target_endpoint: SOUND_ENDPOINT.into(),
            context: (SOUND_CONTEXT as u32).into(),
            ..eager(8)
        };
        let segment = self.sound.next_segment(1, &[header.as_bytes(), &[1; 8]].concat());
        self.sound_messages = self.sound_messages.wrapping_add(1);
        let used = self.core.handle_bytes(slot, &segment, self.now_ns, &mut self.kernel);
        assert_eq!(used.as_ref(), Ok(&segment.len()));
        assert_eq!(
            self.kernel.last.take().map(|(ended, how)| (ended, is_received(&how))),
            Some((id, true))
        );
    }

    /// Checks that the engine's output is valid, for either peer.
    pub(super) fn read(&mut self, is_hostile: bool) {
        let peer = if is_hostile { &mut self.hostile } else { &mut self.sound };
        peer.read(&mut self.outgoing[usize::from(!is_hostile)], |header, frames| {
            let refused = frames.iter().find(|frame| matches!(frame, Frame::Refused(..)));
            assert!(is_hostile || refused.is_none(), "{refused:?} goes to a peer without grants");
            if !is_hostile {
                self.sound_limit = header.envelope_limit.get();
            }
        });
    }

    /// Disconnects all peers, and checks that no state remains.
    pub(super) fn finish(mut self) {
        self.ping();
        self.check();
        // The correct peer last, so that the others' ends do not affect it.
        let slots: Vec<u32> = (0..self.core.sessions.slots() as u32).rev().collect();
        // Twice: a session that was left and is wanted again has another attempt, which fails as
        // well.
        for _ in 0..2 {
            for slot in slots.iter().copied().filter(|&slot| slot != self.sound_slot) {
                self.core.fail_session(slot, PeerFailure::Lost("over".into()), &mut self.kernel);
            }
            self.carry_out();
        }
        self.ping();
        self.check();
        let failure = PeerFailure::Left;
        self.core.fail_session(self.sound_slot, failure, &mut self.kernel);
        self.core.shared.actions.clear();
        while !self.kernel.receiving.is_empty() {
            self.chunk_received(0, 255);
        }
        self.kernel.sending.clear();
        while !self.kernel.unreleased.is_empty() {
            self.release(0);
        }
        for endpoint in 0..3 {
            self.core.close_endpoint(endpoint, &mut self.kernel);
        }
        assert!(self.kernel.live.is_empty(), "these never end: {:?}", self.kernel.live);
        assert_eq!(self.core.shared.operations.len(), 0);
        assert_eq!(self.core.shared.unexpected.held_bytes().0, 0);
        assert_eq!(self.core.shared().reserved(), (0, 0));
        assert_eq!(self.core.shared.lanes.len(), 0);
        assert_eq!(self.core.shared.pool.len(), [0; 3]);
    }
}

fn is_received(ended: &Ended) -> bool {
    matches!(ended, Ended::Received(arrival) if arrival.length == 8)
}
