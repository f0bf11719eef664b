//! After warm-up nothing is allocated, whichever datagrams are lost or reordered.

use super::super::Asks;
use super::{CONTENT, net};
use crate::counting::allocations;
use crate::proto::core::Core;
use crate::proto::effects::{Effects, Ended};
use crate::proto::hint::Hint;
use crate::proto::ready::Work;
use crate::proto::session::send::{SendRequest, Staged};
use crate::proto::sim::{receive_request, send_request};
use crate::proto::table::Id;

#[derive(Default)]
struct Counts {
    placed: usize,
    ended: usize,
}

impl Effects for Counts {
    fn slice(&mut self, _: Id, _: Id, _: u64, _: u64) {
        unreachable!("no receive here takes many messages")
    }

    fn place(&mut self, _: Id, _: usize, bytes: &[u8]) {
        self.placed += bytes.len();
    }

    fn copy(&mut self, _: Id, _: Id, _: u64, _: u64) {
        unreachable!("the peer is another engine")
    }

    fn checksum(&self, _: Id, _: u64, _: u32) -> u32 {
        unreachable!("no side wants checksums")
    }

    fn complete(&mut self, _: Id, _: Ended) {
        self.ended += 1;
    }
}

const DATAGRAMS: usize = 64;
/// Hints of messages, in rotation.
const HINTS: [Hint; 4] = [Hint::None, Hint::Latency, Hint::Bulk, Hint::Priority];

/// Datagrams in flight: token, length, bytes.
struct Wire {
    slots: [(u64, usize, [u8; CONTENT]); DATAGRAMS],
    len: usize,
}

impl Wire {
    fn fill(&mut self, core: &mut Core) {
        loop {
            while let Some(id) = core.poll_waiting() {
                match core.stage(id, 0) {
                    Staged::Eager { room, .. } | Staged::Rts { room } | Staged::Source { room } => {
                        room.fill(7)
                    }
                    Staged::Blocked => {}
                }
            }
            let Some(out) =
                core.enter(0).and_then(|(it, cx)| it.poll_segment(cx, CONTENT, Asks::Never))
            else {
                return;
            };
            let slot = &mut self.slots[self.len];
            (slot.0, slot.1) = (out.token, out.bytes.len());
            slot.2[..out.bytes.len()].copy_from_slice(out.bytes);
            self.len += 1;
        }
    }

    /// Delivers the newest datagram first, and loses every third one once.
    fn carry(&mut self, from: &mut Core, to: &mut Core, counts: &mut Counts) {
        for round in 0.. {
            self.len = 0;
            self.fill(from);
            if self.len == 0 {
                return;
            }
            for (at, (token, length, bytes)) in self.slots[..self.len].iter().enumerate().rev() {
                if round == 0 && at % 3 == 0 {
                    from.with(0, |it, cx| it.segments.handle_segment_lost(cx, *token));
                    continue;
                }
                to.handle_lone_segment(0, &bytes[..*length], 0, counts).unwrap();
                from.with(0, |it, cx| it.handle_segment_acked(cx, *token, counts));
            }
            while from.shared_mut().ready_mut().take(Work::Flush).is_some()
                || to.shared_mut().ready_mut().take(Work::Flush).is_some()
            {}
        }
    }
}

/// Exchanges messages of two contexts; half of the receives are posted before, the others later.
fn exchange(cores: &mut [Core; 2], peers: [Id; 2], wire: &mut Wire) -> Counts {
    let mut counts = Counts::default();
    let [left, right] = cores;
    let receive = |right: &mut Core, context: u64, counts: &mut Counts| {
        let request = receive_request(Some(peers[1]), context, 0, 2000);
        let id = right.shared_mut().new_receive(&request).unwrap();
        right.start_receive(id, counts);
    };
    for number in 0..10u64 {
        let context = number % 2;
        if number < 5 {
            receive(right, context, &mut counts);
        }
        let hint = HINTS[number as usize % HINTS.len()];
        let request = SendRequest { hint, ..send_request(peers[0], context, 0, number % 5 * 20) };
        let id = left.new_send(&request).unwrap();
        left.enqueue(id, 0);
    }
    wire.carry(left, right, &mut counts);
    for number in 5..10 {
        receive(right, number % 2, &mut counts);
    }
    wire.carry(right, left, &mut counts);
    wire.carry(left, right, &mut counts);
    counts
}

#[test]
fn warm_messages_do_not_allocate() {
    let mut net = net();
    let peers = [net.engines[0].peers[&(1, 0)], net.engines[1].peers[&(0, 0)]];
    let right = net.engines.remove(1).core;
    let left = net.engines.remove(0).core;
    let mut cores = [left, right];
    let mut wire = Wire { slots: [(0, 0, [0; CONTENT]); DATAGRAMS], len: 0 };
    for _ in 0..50 {
        exchange(&mut cores, peers, &mut wire);
    }
    let before = allocations();
    assert!(before > 0, "allocations are counted");
    for _ in 0..200 {
        let counts = exchange(&mut cores, peers, &mut wire);
        assert_eq!((counts.ended, counts.placed), (20, 400));
    }
    assert_eq!(allocations() - before, 0, "in 2000 messages");
}
