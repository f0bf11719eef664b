//! The relation of this engine with one remote engine.

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
pub(crate) mod rails;
pub(crate) mod rendezvous;
pub(crate) mod segments;

mod connecting;
pub(crate) mod loopback;
pub(super) mod offers;
mod teardown;

use std::collections::VecDeque;
use std::sync::Arc;

use crate::proto::context::{Cx, SharedState};
use crate::proto::effects::RemoteName;
use crate::proto::keys::SessionKeys;
use crate::proto::peers::{PeerTable, SessionRemotes};
use crate::proto::ready::Work;
use crate::proto::table::Id;
use crate::wire::hello;
use crate::wire::locators::Locators;
use connection::{Connection, Retry};
pub(crate) use control_frame::{ControlFrame, ShortReply};
use ending::Ending;
use lanes::SessionLanes;
use late::LateQueue;
use one_sided::SessionOneSided;
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

/// A session; see the module. Read-only outside `proto`, except for its connection and its lane
/// monitor, which the loop gets by [`crate::proto::core::Core::enter`].
#[derive(Debug)]
pub(crate) struct Session {
    /// The remote engine; 0: it is unknown until its address is resolved.
    pub(crate) engine: u64,
    /// Where it listens.
    pub(crate) locators: Locators,
    /// The user inserted only a listener address ([`crate::proto::peers`]).
    pub(super) place: Option<Box<std::net::SocketAddr>>,
    /// State of the control lane's connection.
    pub(crate) connection: Connection,
    /// Whether it is left, and why it has failed.
    pub(crate) ending: Ending,
    /// Number of starts and ends of its connections.
    pub(crate) epoch: u32,
    /// Id of the session, agreed on in the hello exchange.
    pub(crate) id: u64,
    /// Its keys, while it is established; a session with oneself has none.
    pub(crate) keys: Option<SessionKeys>,
    /// No bulk lanes: granted ranges arrive in datagrams.
    pub(crate) bulk_in_datagrams: bool,
    /// Hellos to it have announced a window that is reserved for it.
    pub(super) has_offer: bool,
    /// The peer's endpoints that are known.
    pub(super) remotes: SessionRemotes,

    // Sending.
    /// Sends that wait for the connection, for credit or for space, in order.
    pub(crate) waiting: VecDeque<Id>,
    /// Operations on memory, of both sides.
    pub(super) one_sided: SessionOneSided,
    /// Of these, fenced ones, and what they wait for.
    pub(super) fences: LateQueue<fence::Fence>,
    /// The peer's engine answers by the control lane although its owner makes no call.
    pub(super) peer_answers: bool,
    /// The peer's engine answers questions about processes of its host.
    pub(super) answers_process_queries: bool,

    // Rendezvous.
    /// Messages that are pulled.
    pub(crate) rendezvous: rendezvous::SessionRendezvous,
    /// Its bulk lanes.
    pub(crate) lanes: SessionLanes,
    /// Monitor of its control lane.
    pub(crate) control_lane: control_lane::LaneMonitor,
    /// Its segments in both directions, with their credit.
    pub(crate) segments: Segments,
    /// The rails between the two engines.
    pub(crate) rails: rails::Rails,
}

impl Session {
    pub(crate) fn new(engine: u64, locators: Locators, retry: Arc<Retry>) -> Self {
        Self {
            engine,
            locators,
            place: None,
            connection: Connection::new(retry),
            ending: Ending::new(),
            epoch: 0,
            id: 0,
            keys: None,
            bulk_in_datagrams: false,
            has_offer: false,
            remotes: SessionRemotes::default(),
            waiting: VecDeque::new(),
            one_sided: SessionOneSided::default(),
            fences: LateQueue::default(),
            peer_answers: false,
            answers_process_queries: false,
            rendezvous: rendezvous::SessionRendezvous::default(),
            lanes: SessionLanes::default(),
            control_lane: control_lane::LaneMonitor::default(),
            segments: Segments::closed(),
            rails: rails::Rails::default(),
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
    pub(crate) fn may_send_now(&mut self, length: u64, eager_limit: u32) -> bool {
        (self.is_free_of(Uncommon::STAGING) || (planted!(OvertakeWaiting) && self.is_connected()))
            && length <= u64::from(eager_limit.min(self.segments.eager_limit().bytes()))
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
        self.peer_answers = theirs.answers;
        self.answers_process_queries = theirs.process_status;
        self.bulk_in_datagrams = ours.bulk_in_datagrams || theirs.bulk_in_datagrams;
        self.ending.restart();
        self.epoch = self.epoch.wrapping_add(1);
        self.id = ours.session;
        self.lanes.restart();
        self.rails = rails::Rails::new(self.connection.is_initiator());
        self.control_lane = control_lane::LaneMonitor::new();
    }

    /// Returns the name of one of its remote endpoints for errors.
    pub(super) fn name_of(&self, peers: &PeerTable, remote: u32) -> Option<RemoteName> {
        let endpoint = peers.at(remote)?.endpoint;
        Some(RemoteName { engine: self.engine, locators: self.locators, endpoint })
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
