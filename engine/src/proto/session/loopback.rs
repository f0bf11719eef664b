//! The session of an engine with itself: messages between its own endpoints.
//!
//! It is a session like any other (credit, unexpected messages, levels, order), established from
//! the start, whose control connection is memory: segments are passed to its own receiving side,
//! which acknowledges them by that. A rendezvous message is copied once, from the send's memory to
//! the receive's.

use super::segments::{Asks, SegmentId, TakenSegment};
use super::{Limits, Session};
use crate::proto::context::Cx;
use crate::proto::core::{Core, ENVELOPES_MIN};
use crate::proto::effects::{Arrival, Effects, Ended};
use crate::proto::failure::PeerFailure;
use crate::proto::operation::Operation;
use crate::proto::table::Id;
use crate::wire::segment::SEGMENT_HEADER_BYTES;

impl Session {
    /// Makes the new session, which is with this engine itself, usable.
    pub(in crate::proto) fn establish_loopback(&mut self, cx: Cx<'_>) {
        let offer = cx.shared.offer(1);
        // Without credit for the longest eager message none could ever arrive: there is no lane to
        // pull by, and the windows of others may have taken all credit.
        let limits = Limits {
            envelope_limit: offer.envelope_limit.max(ENVELOPES_MIN),
            byte_limit: offer.byte_limit.max(offer.eager_limit),
            // Nothing leaves this process's memory.
            checksum: false,
            bulk_in_datagrams: false,
            ..offer
        };
        self.connection.loop_back();
        self.establish(cx.shared, limits, limits, None);
        cx.shared.offers.reserve(limits);
    }
}

impl Core {
    /// Returns whether a session is the engine's own.
    #[inline]
    pub(crate) fn is_loopback(&self, session: u32) -> bool {
        self.sessions
            .at(session as usize)
            .is_some_and(|known| known.peer.id() == self.shared.engine())
    }

    /// Passes the staged segments of the loopback session to its receiving side. Returns `true` if
    /// there were any.
    pub(crate) fn turn_around(
        &mut self,
        slot: u32,
        now_ns: u64,
        effects: &mut impl Effects,
    ) -> bool {
        let mut happened = false;
        while let Some((session, cx)) = self.enter(slot)
            && let Some(outgoing) = session.poll_segment(cx, usize::MAX, Asks::Never)
        {
            happened = true;
            let id = SegmentId::from_token(outgoing.token);
            let handled = if outgoing.bytes.len() == SEGMENT_HEADER_BYTES {
                // No frame is in it, and it is no segment of the pool.
                let mut update = [0; SEGMENT_HEADER_BYTES];
                update.copy_from_slice(outgoing.bytes);
                self.handle_lone_segment(slot, &update, now_ns, effects)
            } else {
                let segment = self.with(slot, |it, _| it.segments.take_segment(id));
                debug_assert!(
                    matches!(segment, Some(Some(TakenSegment::Buffer(_)))),
                    "a segment that was just polled is unacknowledged, and in no ring"
                );
                let Some(TakenSegment::Buffer(segment)) = segment.flatten() else { break };
                let handled = self.handle_lone_segment(slot, segment.whole(), now_ns, effects);
                self.with(slot, |it, mut cx| it.end_segment(&mut cx, segment, effects));
                handled
            };
            if let Err(error) = handled {
                debug_assert!(false, "loopback frames are valid: {error}");
                let failure = PeerFailure::Protocol(error.to_string().into());
                self.fail_session(slot, failure, effects);
                break;
            }
        }
        happened
    }

    /// Copies the rest of a rendezvous message of this engine. Returns `false` if its send has
    /// ended, because the peer was removed meanwhile, or its endpoint closed.
    pub(super) fn copy_rest(
        &mut self,
        id: Id,
        send_operation: u64,
        arrival: Arrival,
        effects: &mut impl Effects,
    ) -> bool {
        let send = Id::from_u64(send_operation);
        let is_serving = self.shared.operations.get(send).is_some_and(Operation::serves);
        if !is_serving {
            let name = self.shared.peers.name_of(&self.sessions, arrival.peer.index() as u32);
            let failure = match name {
                Some(source) if !self.shared.endpoints.is_open(source.endpoint) => {
                    PeerFailure::Left
                }
                _ => PeerFailure::Removed,
            };
            let slice_of = self.remove_operation(id).and_then(|operation| operation.slice_of);
            let ended = Ended::Failed(failure, name);
            self.shared.operations.end_receive(id, slice_of, ended, effects);
            return false;
        }
        let (offset, length) =
            self.shared.operations.with_pulled(id, |_, pulling| pulling.copy_all());
        effects.copy(send, id, offset, length);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::core::Config;
    use crate::proto::effects::CompletionLevel;
    use crate::proto::hint::Hint;
    use crate::proto::ready::Work;
    use crate::proto::receive::ReceiveRequest;
    use crate::proto::session::send::SendRequest;
    use crate::proto::sim::{Memory, locator, receive_request, send_request, stage};

    const RTS_BYTES: usize = Config::for_tests().rts_bytes as usize;
    const EAGER_LIMIT: usize = Config::for_tests().eager_limit as usize;

    /// An engine with two endpoints, and the memory of its operations.
    struct Bench {
        core: Core,
        own: [Id; 2],
        memory: Memory,
    }

    impl Bench {
        /// Creates a bench with windows of envelopes that do not grow.
        fn new(envelope_credits: u32) -> Self {
            Self::with_bound(envelope_credits, envelope_credits.into())
        }

        fn with_bound(envelope_credits: u32, unexpected_messages: u64) -> Self {
            Self::of(Config { envelope_credits, unexpected_messages, ..Config::for_tests() })
        }

        fn of(config: Config) -> Self {
            let mut core = Core::new(7, config.into());
            let own = [0, 1].map(|_| {
                let endpoint = core.shared_mut().endpoints_mut().open().unwrap();
                core.insert_peer(7, locator(), endpoint).unwrap()
            });
            Self { core, own, memory: Memory::default() }
        }

        /// Runs the steps of an engine loop until nothing changes.
        fn run(&mut self) {
            loop {
                stage(&mut self.core, &mut self.memory);
                let mut happened = false;
                while let Some(session) = self.core.shared_mut().ready_mut().take(Work::Flush) {
                    happened |= self.core.turn_around(session, 0, &mut self.memory);
                }
                if !happened {
                    break;
                }
            }
            assert_eq!(self.core.shared_mut().poll_action(), None, "no lane is asked for");
            self.core.poll_grants(0);
            assert!(
                self.core.shared_mut().lanes_mut().poll_runnable().is_none(),
                "no chunk goes out"
            );
        }

        fn send(&mut self, to: usize, tag: u64, bytes: &[u8], level: CompletionLevel) -> Id {
            let (hint, data) = (Hint::Bulk, data_of(bytes.len()));
            let request = send_request(self.own[to], 5, tag, bytes.len() as u64);
            let request = SendRequest { level, hint, data, ..request };
            let id = self.core.new_send(&request).unwrap();
            self.memory.bytes.insert(id, bytes.to_vec());
            self.core.enqueue(id, 0);
            self.run();
            id
        }

        fn receive(&mut self, endpoint: u16, tag: u64, capacity: usize) -> Id {
            let request = receive_request(Some(self.own[0]), 5, tag, capacity as u64);
            let request = ReceiveRequest { endpoint, ..request };
            let id = self.core.shared_mut().new_receive(&request).unwrap();
            self.memory.bytes.insert(id, vec![0xee; capacity]);
            self.core.start_receive(id, &mut self.memory);
            self.run();
            id
        }

        fn is_over(&self, id: Id) -> bool {
            self.memory.ended.contains_key(&id)
        }
    }

    /// Returns remote data for messages of odd lengths, and for some others.
    fn data_of(length: usize) -> Option<u64> {
        (length % 2 == 1 || length > EAGER_LIMIT).then_some(!(length as u64))
    }

    fn bytes(length: usize) -> Vec<u8> {
        (0..length).map(|at| (at * 7 + at / 256) as u8).collect()
    }

    /// RR-DATA-1
    #[test]
    fn every_length_and_level_is_delivered_in_either_order() {
        let lengths = [0, 1, RTS_BYTES, EAGER_LIMIT, EAGER_LIMIT + 1, 100_000];
        for (to, is_posted) in [(0, true), (0, false), (1, true), (1, false)] {
            for level in
                [CompletionLevel::Inject, CompletionLevel::Delivery, CompletionLevel::Match]
            {
                for length in lengths {
                    let mut bench = Bench::new(64);
                    let early = is_posted.then(|| bench.receive(to as u16, 3, length));
                    let send = bench.send(to, 3, &bytes(length), level);
                    let is_long = length > EAGER_LIMIT;
                    // A long message and one that reports its match wait for the receive.
                    let waits = !is_posted && (is_long || level == CompletionLevel::Match);
                    assert_eq!(bench.is_over(send), !waits, "{length} {level:?}");
                    let receive = early.unwrap_or_else(|| bench.receive(to as u16, 3, length));
                    let peer = bench.own[0];
                    let (length, data) = (length as u64, data_of(length));
                    let arrival = Arrival { peer, context: 5, tag: 3, length, data };
                    assert_eq!(bench.memory.ended[&receive].0, Ended::Received(arrival));
                    assert!(matches!(bench.memory.ended[&send].0, Ended::Sent { .. }));
                    let whole = bytes(length as usize);
                    assert!(bench.memory.ended[&receive].2 == whole, "{length} {level:?}");
                    let copied: &[u64] = if is_long { &[length - RTS_BYTES as u64] } else { &[] };
                    assert_eq!(bench.memory.copies, copied, "once, and only bytes not sent before");
                    assert_eq!(bench.core.shared.operations.len(), 0);
                }
            }
        }
    }

    #[test]
    fn truncated_long_message_copies_only_what_fits() {
        for capacity in [0, RTS_BYTES - 1, RTS_BYTES, 5000] {
            let mut bench = Bench::new(64);
            let send = bench.send(1, 3, &bytes(9000), CompletionLevel::Inject);
            let receive = bench.receive(1, 3, capacity);
            let Ended::Received(arrival) = bench.memory.ended[&receive].0 else {
                panic!("{:?}", bench.memory.ended[&receive].0)
            };
            assert_eq!(arrival.length, 9000, "the length as it was sent");
            assert_eq!(bench.memory.ended[&receive].2, bytes(9000)[..capacity]);
            let copied: u64 = bench.memory.copies.iter().sum();
            assert_eq!(copied, capacity.saturating_sub(RTS_BYTES) as u64);
            assert!(bench.is_over(send));
        }
    }

    #[test]
    fn multi_receive_takes_short_and_long_local_messages() {
        let mut bench = Bench::new(64);
        let lengths = [10, 3000, 0, EAGER_LIMIT + 100, 77];
        let send = |bench: &mut Bench, at: usize| {
            bench.send(1, 3, &bytes(lengths[at]), CompletionLevel::Inject);
        };
        (0..2).for_each(|at| send(&mut bench, at));
        let request = receive_request(None, 5, 3, lengths.iter().sum::<usize>() as u64);
        let request = ReceiveRequest { endpoint: 1, min_free: Some(1), ..request };
        let many = bench.core.shared_mut().new_receive(&request).unwrap();
        bench.memory.bytes.insert(many, vec![0xee; request.capacity as usize]);
        bench.core.start_receive(many, &mut bench.memory);
        bench.run();
        (2..lengths.len()).for_each(|at| send(&mut bench, at));
        let used = request.capacity;
        assert_eq!(bench.memory.ended[&many].0, Ended::Released { used });
        let Memory { slices, ended, .. } = &bench.memory;
        let mut placed: Vec<(usize, &[u8])> =
            slices.iter().map(|(slice, &(_, offset))| (offset, &ended[slice].2[..])).collect();
        placed.sort_unstable_by_key(|(offset, content)| (*offset, content.len()));
        assert!(slices.values().all(|(of, _)| *of == many) && placed.len() == lengths.len());
        let mut end = 0;
        for ((offset, content), length) in placed.into_iter().zip(lengths) {
            assert!(offset == end && content == bytes(length));
            end += length;
        }
        assert_eq!(end as u64, used);
        assert_eq!(bench.core.shared.operations.len(), 0);
    }

    #[test]
    fn credit_limits_a_flood_and_receives_resume_it_in_order() {
        const CREDITS: usize = 16;
        let mut bench = Bench::new(CREDITS as u32);
        let flood: Vec<Id> =
            (0..60u8).map(|number| bench.send(1, 3, &[number], CompletionLevel::Inject)).collect();
        let over = flood.iter().filter(|id| bench.is_over(**id)).count();
        assert_eq!(over, CREDITS, "the rest waits with the sender");
        for number in 0..60u8 {
            let receive = bench.receive(1, 3, 1);
            assert_eq!(bench.memory.ended[&receive].2, [number]);
        }
        assert!(flood.iter().all(|id| bench.is_over(*id)));
        assert_eq!(bench.core.shared.operations.len(), 0);
    }

    /// RR-CREDIT-5
    #[test]
    fn receive_of_a_later_message_extends_the_envelope_window() {
        const EARLIER: u32 = 300;
        let mut bench = Bench::with_bound(16, 4000);
        for number in 0..EARLIER {
            bench.send(1, 3, &number.to_le_bytes(), CompletionLevel::Inject);
        }
        bench.send(1, 4, &[7], CompletionLevel::Inject);
        let later = bench.receive(1, 4, 1);
        assert_eq!(bench.memory.ended[&later].2, [7]);
        for number in 0..EARLIER {
            let receive = bench.receive(1, 3, 4);
            assert_eq!(bench.memory.ended[&receive].2, number.to_le_bytes());
        }
        assert_eq!(bench.core.shared.operations.len(), 0);
        assert!(bench.core.shared().reserved().0 <= 4000);
    }

    /// Few messages fit the segments of a session at a time.
    #[test]
    fn sends_that_wait_for_segments_continue() {
        const COUNT: u64 = 100;
        let config =
            Config { envelope_credits: 200, eager_credit_bytes: 1 << 20, ..Config::for_tests() };
        let mut bench = Bench::of(config);
        let receives: Vec<Id> = (0..COUNT).map(|_| bench.receive(1, 3, 1000)).collect();
        for number in 0..COUNT {
            let request = send_request(bench.own[1], 5, 3, 1000);
            let id = bench.core.new_send(&request).unwrap();
            bench.memory.bytes.insert(id, vec![number as u8; 1000]);
            bench.core.enqueue(id, 0);
        }
        stage(&mut bench.core, &mut bench.memory);
        while let Some(session) = bench.core.shared_mut().ready_mut().take(Work::Flush) {
            bench.core.turn_around(session, 0, &mut bench.memory);
        }
        assert!(!bench.core.shared().is_at_rest(), "the loop must not sleep: others wait");
        bench.run();
        for (number, receive) in receives.iter().enumerate() {
            assert_eq!(bench.memory.ended[receive].2, [number as u8; 1000]);
        }
        assert_eq!(bench.core.shared.operations.len(), 0);
        assert_eq!(bench.core.shared.pool.len(), [0; 3]);
    }

    #[test]
    fn waiting_sends_to_a_closed_endpoint_fail() {
        for length in [10, 10_000] {
            let mut bench = Bench::new(64);
            let early = bench.send(1, 3, &bytes(length), CompletionLevel::Match);
            assert!(!bench.is_over(early));
            bench.core.close_endpoint(1, &mut bench.memory);
            bench.run();
            let late = bench.send(1, 3, &bytes(length), CompletionLevel::Match);
            for send in [early, late] {
                let ended = &bench.memory.ended[&send].0;
                assert!(matches!(ended, Ended::Failed(PeerFailure::Left, Some(_))), "{ended:?}");
            }
            assert_eq!(bench.core.shared.operations.len(), 0);
        }
    }

    #[test]
    fn only_waiting_sends_can_be_cancelled() {
        let mut bench = Bench::new(1);
        let sent = bench.send(1, 1, &bytes(5000), CompletionLevel::Inject);
        let waiting: Vec<Id> =
            (0..40).map(|_| bench.send(1, 2, &[1], CompletionLevel::Inject)).collect();
        let last = *waiting.last().unwrap();
        assert!(!bench.core.cancel_send(sent, &mut bench.memory));
        assert!(bench.core.cancel_send(last, &mut bench.memory));
        assert_eq!(bench.memory.ended[&last].0, Ended::Cancelled);
        let receive = bench.receive(1, 1, 5000);
        assert!(bench.memory.ended[&receive].2 == bytes(5000));
        for _ in 1..waiting.len() {
            bench.receive(1, 2, 1);
        }
        assert!(waiting.iter().all(|id| bench.is_over(*id)));
        assert_eq!(bench.core.shared.operations.len(), 0);
    }
}
