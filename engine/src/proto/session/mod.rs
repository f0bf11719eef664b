//! The relation of this engine with one remote engine.
//!
//! A [`Session`] consists of parts, each with a module that owns its state: what is known of the
//! remote engine ([`peer_engine`]), the connection by which it is established and how it ends
//! ([`connection`], [`ending`]), its control lane ([`control_lane`]), what carries its frames
//! ([`segments`]), its rails and bulk lanes ([`rails`], [`lanes`]), the messages that it pulls and
//! serves ([`rendezvous`]), one-sided operations ([`one_sided`]) and fenced sends ([`fence`]).
//! Other modules have methods that concern several parts: [`send`] and [`waiting`] those of sends
//! that wait, [`connecting`], [`teardown`], [`loopback`]. What all sessions share of a part is
//! beside it; [`offers`] has the windows that are announced before there is a session.

pub(crate) mod connection;
mod control_frame;
pub(crate) mod control_lane;
pub(crate) mod credit;
pub(crate) mod eager_limit;
pub(super) mod ending;
pub(super) mod fence;
pub(crate) mod lanes;
pub(crate) mod late;
pub(crate) mod one_sided;
pub(super) mod peer_engine;
pub(crate) mod rails;
pub(crate) mod rendezvous;
pub(crate) mod segments;

mod connecting;
pub(crate) mod loopback;
pub(crate) mod offers;
mod teardown;
mod waiting;

pub(crate) mod send;

use std::collections::VecDeque;
use std::sync::Arc;

use crate::proto::context::{Cx, SharedState};
use crate::proto::keys::SessionKeys;
use crate::proto::ready::Work;
use crate::proto::table::Id;
use crate::wire::hello;
use crate::wire::locators::Locators;
use connection::{Connection, Retry};
pub(crate) use control_frame::{ControlFrame, ShortReply};
use control_lane::LaneMonitor;
use ending::Ending;
use fence::Fences;
use lanes::SessionLanes;
use one_sided::SessionOneSided;
use peer_engine::PeerEngine;
use rails::Rails;
use rendezvous::SessionRendezvous;
use segments::Segments;
use segments::uncommon::Uncommon;

/// Limits exchanged in the hello exchange.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Random id of the session, chosen by the side that connected.
    pub(crate) session: u64,
    /// Initial limit of envelopes.
    pub(crate) envelope_limit: u32,
    /// Initial limit of eager bytes.
    pub(crate) byte_limit: u32,
    /// Longest eager payload that is accepted.
    pub(crate) eager_limit: u32,
    /// Checksums are required.
    pub(crate) checksum: bool,
    /// Bulk data is required in datagrams.
    pub(crate) bulk_in_datagrams: bool,
    /// The engine answers by the control lane although its owner makes no call.
    pub(crate) answers: bool,
    /// The engine answers what others ask of processes of its host.
    pub(crate) process_status: bool,
}

/// Limits of a side that announces none.
pub(crate) const NOTHING: Limits = Limits {
    session: 0,
    envelope_limit: 0,
    byte_limit: 0,
    eager_limit: 0,
    checksum: false,
    bulk_in_datagrams: false,
    answers: false,
    process_status: false,
};

impl Limits {
    /// Returns the flags of a hello or a reply with these limits, without those of the handshake.
    pub(crate) fn flags(&self) -> u8 {
        let checksum = if self.checksum { hello::FLAG_CHECKSUM } else { 0 };
        let bulk = if self.bulk_in_datagrams { hello::FLAG_BULK_IN_DATAGRAMS } else { 0 };
        let answers = if self.answers { hello::FLAG_ANSWERS } else { 0 };
        let status = if self.process_status { hello::FLAG_PROCESS_STATUS } else { 0 };
        checksum | bulk | answers | status
    }

    /// Returns what the flags of a hello or a reply state; the other limits are 0.
    pub(crate) fn of_flags(flags: u8) -> Self {
        let has = |flag| flags & flag != 0;
        Self {
            checksum: has(hello::FLAG_CHECKSUM),
            bulk_in_datagrams: has(hello::FLAG_BULK_IN_DATAGRAMS),
            answers: has(hello::FLAG_ANSWERS),
            process_status: has(hello::FLAG_PROCESS_STATUS),
            ..NOTHING
        }
    }
}

/// A session; see the module. Its parts own their state; what concerns several of them is a method
/// of the session, in the module of the part that it is about.
#[derive(Debug)]
pub(crate) struct Session {
    /// What is known of the remote engine.
    peer: PeerEngine,
    /// State of the control lane's connection.
    connection: Connection,
    /// Whether it is left, and why it has failed.
    ending: Ending,
    /// Number of starts and ends of its connections.
    epoch: u32,
    /// Id of the session, agreed on in the hello exchange.
    id: u64,
    /// Its keys, while it is established; a session with oneself has none.
    keys: Option<SessionKeys>,
    /// No bulk lanes: granted ranges arrive in datagrams.
    bulk_in_datagrams: bool,

    // Sending.
    /// Sends that wait for the connection, for credit or for space, in order.
    waiting: VecDeque<Id>,
    /// Fenced sends among these, and what they wait for.
    fences: Fences,
    /// Operations on memory, of both sides.
    one_sided: SessionOneSided,

    // Rendezvous.
    /// Messages that are pulled.
    rendezvous: SessionRendezvous,
    /// Its bulk lanes.
    lanes: SessionLanes,
    /// Monitor of its control lane.
    control_lane: LaneMonitor,
    /// Its segments in both directions, with their credit.
    segments: Segments,
    /// The rails between the two engines.
    rails: Rails,
}

/// What it consists of.
impl Session {
    /// Returns what is known of the remote engine.
    #[inline]
    pub(crate) fn peer(&self) -> &PeerEngine {
        &self.peer
    }

    /// Returns the same, mutable.
    pub(crate) fn peer_mut(&mut self) -> &mut PeerEngine {
        &mut self.peer
    }

    /// Returns the number of starts and ends of its connections.
    #[inline]
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Returns its id, agreed on in the hello exchange.
    #[inline]
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Returns its keys, while it is established; a session with oneself has none.
    #[inline]
    pub(crate) fn keys(&self) -> Option<&SessionKeys> {
        self.keys.as_ref()
    }

    /// Returns whether granted ranges arrive in datagrams, without bulk lanes.
    pub(crate) fn bulk_in_datagrams(&self) -> bool {
        self.bulk_in_datagrams
    }

    /// Returns the state of its connection.
    #[inline]
    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Returns the same, mutable.
    #[inline]
    pub(crate) fn connection_mut(&mut self) -> &mut Connection {
        &mut self.connection
    }

    /// Returns whether it is left, and why it has failed.
    #[inline]
    pub(crate) fn ending(&self) -> &Ending {
        &self.ending
    }

    /// Returns the same, mutable.
    pub(crate) fn ending_mut(&mut self) -> &mut Ending {
        &mut self.ending
    }

    /// Returns the monitor of its control lane.
    #[inline]
    pub(crate) fn control_lane(&self) -> &LaneMonitor {
        &self.control_lane
    }

    /// Returns the same, mutable.
    #[inline]
    pub(crate) fn control_lane_mut(&mut self) -> &mut LaneMonitor {
        &mut self.control_lane
    }

    /// Returns its bulk lanes.
    #[inline]
    pub(crate) fn lanes(&self) -> &SessionLanes {
        &self.lanes
    }

    /// Returns the same, mutable.
    pub(crate) fn lanes_mut(&mut self) -> &mut SessionLanes {
        &mut self.lanes
    }

    /// Returns its segments, with their credit.
    #[inline(always)]
    pub(crate) fn segments(&self) -> &Segments {
        &self.segments
    }

    /// Returns the same, mutable.
    #[inline(always)]
    pub(crate) fn segments_mut(&mut self) -> &mut Segments {
        &mut self.segments
    }

    /// Returns the sends that wait for the connection, for credit or for space, in order.
    pub(crate) fn waiting(&self) -> &VecDeque<Id> {
        &self.waiting
    }

    /// Returns the messages that are pulled, mutable.
    #[inline]
    pub(crate) fn rendezvous_mut(&mut self) -> &mut SessionRendezvous {
        &mut self.rendezvous
    }

    /// Returns the rails between the two engines.
    #[inline]
    pub(crate) fn rails(&self) -> &Rails {
        &self.rails
    }

    /// Returns the same, mutable.
    #[inline]
    pub(crate) fn rails_mut(&mut self) -> &mut Rails {
        &mut self.rails
    }
}

impl Session {
    pub(crate) fn new(engine: u64, locators: Locators, retry: Arc<Retry>) -> Self {
        Self {
            peer: PeerEngine::new(engine, locators),
            connection: Connection::new(retry),
            ending: Ending::new(),
            epoch: 0,
            id: 0,
            keys: None,
            bulk_in_datagrams: false,
            waiting: VecDeque::new(),
            one_sided: SessionOneSided::default(),
            fences: Fences::default(),
            rendezvous: SessionRendezvous::default(),
            lanes: SessionLanes::default(),
            control_lane: LaneMonitor::default(),
            segments: Segments::closed(),
            rails: Rails::default(),
        }
    }

    /// Returns whether the session is established.
    #[inline]
    pub(crate) fn is_connected(&self) -> bool {
        self.connection.is_connected()
    }

    /// Returns whether a message of eager length may be sent before all others, given space.
    ///
    /// RR-CREDIT-1.
    #[inline]
    pub(crate) fn may_send_now(&mut self, length: u64) -> bool {
        (self.is_free_of(Uncommon::STAGING) || (planted!(OvertakeWaiting) && self.is_connected()))
            && length <= u64::from(self.segments.eager_limit().bytes())
            && self.segments.send_credits().covers(length)
    }

    /// Returns whether it continues without a control lane, so that another session with its peer
    /// would show its end.
    pub(crate) fn is_outlived(&self) -> bool {
        self.is_connected() && self.control_lane.is_lost()
    }

    /// Returns whether this side has something to pull, or the peer has announced that it has.
    pub(crate) fn needs_lane(&self) -> bool {
        self.lanes.are_wanted() || !self.rendezvous.is_empty()
    }

    /// Starts an established connection: `ours` was announced, `theirs` received. Without keys it
    /// is that with this engine itself.
    ///
    /// RR-BULK-1.
    pub(super) fn establish(
        &mut self,
        shared: &SharedState,
        ours: Limits,
        theirs: Limits,
        keys: Option<SessionKeys>,
    ) {
        self.segments.begin(shared, ours, theirs, keys.is_none());
        self.keys = keys;
        self.peer.set_abilities(theirs);
        self.bulk_in_datagrams = ours.bulk_in_datagrams || theirs.bulk_in_datagrams;
        self.ending.restart();
        self.epoch = self.epoch.wrapping_add(1);
        self.id = ours.session;
        self.lanes.restart();
        self.rails = Rails::new(self.connection.is_initiator());
        self.control_lane = LaneMonitor::new();
    }

    /// Queues a control frame for the next segment.
    ///
    /// RR-CREDIT-3.
    pub(crate) fn push_control(&mut self, control: ControlFrame) {
        self.one_sided.note_queued(&control);
        self.segments.push_control(control);
    }

    /// Returns the credit of a message that is received, or never had to wait.
    #[inline]
    pub(super) fn return_credit(&mut self, cx: &mut Cx<'_>, payload_bytes: usize) {
        self.segments.receive_credits_mut().consume(payload_bytes as u32);
        if self.segments.has_update() && self.is_connected() {
            cx.add_work(Work::Flush);
        }
    }

    /// Sends a control frame, if the session is connected.
    pub(crate) fn send_control(&mut self, cx: &mut Cx<'_>, control: ControlFrame) {
        if self.is_connected() {
            self.push_control(control);
            cx.add_work(Work::Flush);
        }
    }
}

/// What only tests read and change.
#[cfg(any(test, feature = "sim"))]
impl Session {
    pub(crate) fn rendezvous(&self) -> &SessionRendezvous {
        &self.rendezvous
    }

    #[cfg(test)]
    pub(super) fn one_sided(&self) -> &SessionOneSided {
        &self.one_sided
    }

    #[cfg(test)]
    pub(super) fn fences(&self) -> &Fences {
        &self.fences
    }

    #[cfg(test)]
    pub(super) fn set_bulk_in_datagrams(&mut self, is_set: bool) {
        self.bulk_in_datagrams = is_set;
    }

    /// As if another session had been established in its slot.
    #[cfg(test)]
    pub(super) fn change_id(&mut self) {
        self.id += 1;
    }
}
