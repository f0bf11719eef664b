//! Chunks on TCP lanes: granted ranges, received by the kernel in their place.

use super::super::super::eager_limit::CopySpeed;
use super::super::super::lanes::lane::{BulkLane, ChunkArrival, GrantedRange, ServedRange};
use super::super::super::rails::schedule::{GrantTarget, LaneSchedule, Next};
use super::super::super::{ControlFrame, Session};
use super::super::SessionRendezvous;
use super::super::granting::{NextRange, range_bytes};
use super::{Carrier, Chunks};
use crate::proto::context::{Cx, SharedState};
use crate::proto::core::{Action, Core};
use crate::proto::effects::Effects;
use crate::proto::failure::PeerFailure;
use crate::proto::operation::{NO_REMOTE, OperationState};
use crate::proto::ready::Work;
use crate::proto::table::Id;
use crate::wire::chunk::CHUNK_HEADER_BYTES;
use crate::wire::{CHUNK_BYTES_MAX, FrameError, Grant, GrantOver};

/// Consecutive corrupted chunks of a message before the session fails: that indicates a defect, not
/// chance.
pub(crate) const BAD_CHUNKS_MAX: u32 = 8;

/// The TCP lanes of a session.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct LaneCarrier;

/// A chunk for the driver to send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChunkSend {
    pub(crate) operation: Id,
    pub(crate) offset: u64,
    pub(crate) length: u32,
    pub(crate) header: [u8; CHUNK_HEADER_BYTES],
    /// Another chunk on the same lane is granted.
    pub(crate) is_followed: bool,
}

/// A chunk for the driver to receive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChunkReceive {
    pub(crate) operation: Id,
    pub(crate) offset: u64,
    pub(crate) length: u32,
}

/// A chunk that has arrived as granted.
#[derive(Clone, Copy, Default, Debug)]
struct Arrived {
    /// Length in bytes.
    length: u32,
    /// What the checksum of its bytes has to be, if the session has checksums.
    checksum: Option<u32>,
}

/// The receiver.
impl Session {
    /// Handles the header of a chunk whose recv has ended. `None`: it is not that of the granted
    /// range, or there is none.
    fn accept_chunk(
        &mut self,
        cx: &mut Cx<'_>,
        lane: Id,
        header: Option<&[u8; CHUNK_HEADER_BYTES]>,
        now_ns: u64,
        copy_speed: CopySpeed,
    ) -> Option<Arrived> {
        let bulk = cx.shared.lanes.get_mut(lane)?;
        let arrival = bulk.end_receive(header, self.segments.has_checksums(), now_ns)?;
        let ChunkArrival { length, checksum, granted_ns, was_idle } = arrival;
        let (at, rate) = (bulk.path(), *bulk.rate());
        self.rails.handle_arrival(at.into(), length, rate);
        if was_idle {
            let lanes = self.lanes.ids().len();
            let [_, bytes] = self.segments.receive_credits().both();
            let (window, limit) = (bytes.window(), self.segments.eager_limit_mut());
            limit.handle_lone_chunk(&rate, copy_speed, (lanes, window));
            let wanted = limit.wanted_window();
            let [_, bytes] = self.segments.receive_credits_mut().both_mut();
            if cx.shared.offers.extend_to(bytes, wanted) {
                cx.add_work(Work::Flush);
            }
        }
        cx.shared.rails_mut().shares_mut().note_chunk(
            &self.rails,
            at,
            (length, granted_ns),
            now_ns,
        );
        self.lanes.handle_carried(&mut cx.shared.lanes, lane);
        cx.add_work(Work::Grant);
        cx.shared.lanes.mark_runnable(lane);
        Some(Arrived { length, checksum: self.segments.has_checksums().then_some(checksum) })
    }
}

/// The receiver.
impl SessionRendezvous {
    /// Grants a range again on any lane.
    fn grant_again(&mut self, mut cx: Cx<'_>, range: ChunkReceive) {
        let ChunkReceive { operation, offset, length } = range;
        self.push_missing(operation, offset, length.into());
        cx.add_work(Work::Grant);
    }
}

/// The receiver.
impl SharedState {
    /// Returns the range that the driver should receive next on a lane, which is receiving then.
    pub(crate) fn next_receive(&mut self, lane: Id) -> Option<ChunkReceive> {
        let bulk = self.lanes.get_mut(lane)?;
        let GrantedRange { operation, offset, length, .. } = bulk.next_receive()?;
        let Some((pulling, _)) = self.operations.pulling(bulk.session(), operation) else {
            // The receive has ended, but its bytes will arrive: the lane is not usable any more.
            self.act(Action::CloseLane { lane, is_failure: true });
            return None;
        };
        debug_assert!(
            offset + u64::from(length) <= pulling.granted,
            "what is received was granted"
        );
        pulling.targeted += 1;
        bulk.begin_receive();
        Some(ChunkReceive { operation, offset, length })
    }
}

/// The receiver.
impl Core {
    /// Handles the result of a recv of [`SharedState::next_receive`]. Returns `false` if the lane
    /// is unusable; its ranges are granted again elsewhere.
    ///
    /// RR-RDV-3, RR-RDV-6, RR-SUM-4, RR-SUM-5.
    pub(crate) fn handle_chunk_received(
        &mut self,
        lane: Id,
        receive: ChunkReceive,
        header: Option<&[u8; CHUNK_HEADER_BYTES]>,
        now_ns: u64,
        effects: &mut impl Effects,
    ) -> bool {
        let copy_speed = effects.copy_speed();
        let slot = self.shared.lanes.get(lane).map(BulkLane::session);
        let entered = slot.and_then(|slot| self.enter(slot));
        let arrived = entered.and_then(|(session, mut cx)| {
            session.accept_chunk(&mut cx, lane, header, now_ns, copy_speed)
        });
        let is_good = arrived.is_some();
        if let Some(slot) = slot {
            // The advised class may have become lower.
            self.shrink_grown_windows(slot);
        }
        let Arrived { length, checksum } = arrived.unwrap_or_default();
        let ChunkReceive { operation, offset, .. } = receive;
        let pulled = self.shared.operations.pulled(operation);
        debug_assert!(
            pulled.is_some() || planted!(EndBeforeReap),
            "a receive stays, and pulls, while the kernel may write its memory"
        );
        let Some((owner, pulling)) = pulled else { return is_good };
        pulling.targeted -= 1;
        if pulling.failed.is_none() {
            if slot.is_none() {
                // Another lane may write the range only after the kernel has released it.
                self.with_known(owner, |it, cx| it.rendezvous.grant_again(cx, receive));
                return is_good;
            }
            if let Some(sent) = checksum {
                if effects.checksum(operation, offset, length) != sent && !planted!(SkipChunkSum) {
                    pulling.bad_chunks += 1;
                    let is_hopeless = pulling.bad_chunks == BAD_CHUNKS_MAX;
                    self.regrant_corrupted(owner, receive, is_hopeless);
                    return is_good;
                }
                pulling.bad_chunks = 0;
            }
        }
        pulling.note_arrived(length.into());
        if pulling.targeted > 0 {
            return is_good;
        }
        if let Some(cause) = pulling.failed.take() {
            let removed = self.remove_operation(operation);
            let (remote, slice_of) =
                removed.map_or((NO_REMOTE, None), |it| (it.remote, it.slice_of));
            let ended = cause.ended(self.shared.peers.name_of(&self.sessions, remote));
            self.shared.operations.end_receive(operation, slice_of, ended, effects);
        } else {
            self.continue_pull(operation, effects);
        }
        is_good
    }

    /// Grants a corrupted chunk, which arrived completely, again on any lane. `is_hopeless`: too
    /// many of the message were corrupted in a row.
    ///
    /// RR-SUM-5.
    #[cold]
    fn regrant_corrupted(&mut self, slot: u32, receive: ChunkReceive, is_hopeless: bool) {
        self.shared.note_corrupted_chunk();
        self.with_known(slot, |it, cx| it.rendezvous.grant_again(cx, receive));
        if is_hopeless {
            let ChunkReceive { offset, length, .. } = receive;
            let cause = format!(
                "{BAD_CHUNKS_MAX} chunks of a message in a row differ from what was sent (CRC32C), \
                 the last one of {length} bytes at {offset}"
            );
            let failure = PeerFailure::Corrupted(cause.into());
            self.shared.act(Action::GiveUp { session: slot, failure });
        }
    }
}

impl Carrier for LaneCarrier {
    /// Grants the next range on the lane that would deliver it first, unless enough is granted on
    /// all.
    fn grant_next(self, it: &mut Session, cx: &mut Cx<'_>, chunks: Chunks, now_ns: u64) -> bool {
        let left = it.rendezvous.ungranted(&cx.shared.operations);
        let (lanes, shares) = (&cx.shared.lanes, cx.shared.rails().shares());
        let schedule = LaneSchedule::new((&it.lanes, &it.rails), lanes, shares, now_ns);
        let GrantTarget { lane, chunk_bytes, is_last } = match schedule.choose(left, chunks) {
            Next::Now(choice) => choice,
            Next::Later => return false,
            Next::NoLane => {
                it.request_lanes(cx, now_ns);
                return false;
            }
        };
        // Horizons count bytes, and ranges may be short. Arrivals trigger the next attempt.
        if cx.shared.lanes.get(lane).is_some_and(BulkLane::is_full) {
            return false;
        }
        let most = |left| range_bytes(left, chunk_bytes);
        let next = it.rendezvous.next_range(cx, most, now_ns);
        let bulk = debug_assert_some!(cx.shared.lanes.get_mut(lane), "the chosen lane exists");
        let Some((next, bulk)) = next.zip(bulk) else { return false };
        let NextRange { id, send_operation, offset, length } = next;
        let chunk = bulk.grant(id, (offset, length), is_last, now_ns);
        let over = GrantOver::Lane { lane: bulk.number(), chunk };
        cx.shared.lanes.mark_runnable(lane);
        let grant = Grant {
            eager_class: it.segments.eager_limit().class(),
            ..Grant::new(over, send_operation, id.to_u64(), (offset, length))
        };
        it.send_control(cx, ControlFrame::Grant(grant));
        true
    }

    /// Serves grants in the order of their chunks, which can differ from that of their datagrams.
    ///
    /// RR-DGRAM-10, RR-RDV-2.
    fn accept(self, it: &mut Session, cx: &mut Cx<'_>, grant: &Grant) -> Result<(), FrameError> {
        // A lane that failed here while the grant was in transit fails there, too.
        let Some(lane) = cx.shared.lanes.named(it.lanes.ids(), grant.number.get()) else {
            cx.shared.note_stale_frame();
            return Ok(());
        };
        let bulk = cx.shared.lanes.get_mut(lane);
        let Some(bulk) = debug_assert_some!(bulk, "the lanes of a session exist") else {
            return Ok(());
        };
        if !bulk.reorder(grant)? {
            return Ok(());
        }
        it.serve_grant(cx, lane, grant)?;
        while let Some(next) = cx.shared.lanes.get_mut(lane).and_then(BulkLane::take_early) {
            it.serve_grant(cx, lane, &next)?;
        }
        Ok(())
    }
}

/// The sender.
impl Session {
    /// Serves the next grant on a lane.
    ///
    /// RR-RDV-1, RR-RDV-5, RR-RDV-9.
    fn serve_grant(&mut self, cx: &mut Cx<'_>, lane: Id, grant: &Grant) -> Result<(), FrameError> {
        let id = Id::from_u64(grant.send_operation.get());
        let bulk = debug_assert_some!(cx.shared.lanes.get_mut(lane), "a named lane exists");
        let Some(bulk) = bulk.filter(|bulk| !bulk.is_refused()) else {
            cx.shared.note_stale_frame();
            return Ok(());
        };
        let Some((_, message, _)) = cx.shared.operations.serving(cx.slot, id) else {
            let over = GrantOver::Lane { lane: bulk.number(), chunk: grant.chunk() };
            bulk.refuse();
            self.refuse_grant(cx, over, grant.receive_operation.get());
            cx.act(Action::CloseLane { lane, is_failure: true });
            return Ok(());
        };
        grant.check_range(message, CHUNK_BYTES_MAX)?;
        bulk.serve(ServedRange {
            operation: id,
            receive_operation: grant.receive_operation.get(),
            offset: grant.offset.get(),
            length: grant.length.get(),
            chunk: grant.chunk(),
        })?;
        let number = bulk.number();
        self.segments.eager_limit_mut().follow(grant.eager_class);
        let are_reordered = self.segments.has_datagrams();
        self.lanes.handle_grant(number, are_reordered);
        cx.shared.lanes.mark_runnable(lane);
        Ok(())
    }

    /// Notes that the kernel has all bytes of the chunk of [`Core::next_send`].
    pub(crate) fn handle_chunk_sent(&mut self, cx: Cx<'_>, lane: Id, now_ns: u64) {
        let bulk = cx.shared.lanes.get_mut(lane);
        let sent = bulk.and_then(|bulk| Some((bulk.path(), bulk.end_send(now_ns)?)));
        let sent = debug_assert_some!(sent, "the lane carries a chunk");
        let Some((at, length)) = sent else { return };
        self.rails.handle_sent(at.into(), length);
        cx.shared.lanes.mark_runnable(lane);
        // The receiver decides whether chunks arrive completely; a side that only sends would
        // accumulate failures over its whole lifetime.
        self.lanes.handle_carried(&mut cx.shared.lanes, lane);
    }
}

/// The sender.
impl Core {
    /// Returns the chunk that the driver should send next on a lane, which is sending then.
    ///
    /// RR-RDV-2, RR-SUM-4.
    pub(crate) fn next_send(&mut self, lane: Id, effects: &impl Effects) -> Option<ChunkSend> {
        let bulk = self.shared.lanes.get_mut(lane)?;
        let ServedRange { operation, offset, length, .. } = bulk.next_send()?;
        let found = self.shared.operations.serving(bulk.session(), operation);
        let Some((serving, ..)) = found else {
            self.shared.act(Action::CloseLane { lane, is_failure: true });
            return None;
        };
        serving.unreleased += 1;
        let session = self.sessions.at(bulk.session() as usize);
        let session = debug_assert_some!(session, "the session of a lane is in the table");
        let checksum = match session.is_some_and(|session| session.segments.has_checksums()) {
            true => effects.checksum(operation, offset, length),
            false => 0,
        };
        let (header, is_followed) = bulk.begin_send(checksum)?;
        Some(ChunkSend { operation, offset, length, header, is_followed })
    }

    /// Notes that the kernel has released a sent chunk.
    pub(crate) fn handle_chunk_released(&mut self, operation: Id, effects: &mut impl Effects) {
        let found = self.shared.operations.get_mut(operation).map(|found| &mut found.state);
        let Some(OperationState::AwaitPull(serving)) = found else {
            debug_assert!(planted!(IgnoreRelease), "a send stays while the kernel may read it");
            return;
        };
        serving.unreleased -= 1;
        self.finish_serving(operation, effects);
    }
}
