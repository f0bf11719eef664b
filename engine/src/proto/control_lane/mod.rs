//! The control lane of a session: does it hold, is the peer there without it, when does it move?
//!
//! [`LaneMonitor`] decides and does nothing: the loop tells it what happened ([`LaneEvent`]) and
//! what is so ([`Facts`], the session's paths), and does what it answers ([`Decision`]).

mod engine;
mod liveness;
mod migration;
mod unfinished;

#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::time::Duration;

use self::engine::EngineSilence;
pub(crate) use self::engine::QUESTIONS;
use self::liveness::Liveness;
use self::migration::Migration;
use self::unfinished::Unfinished;
use super::core::Core;
use super::failure::PeerFailure;
use super::late::Late;
use super::paths::Paths;
use super::rails::Rails;
use super::session::Session;
use super::silence::{Owed, Silence};
use crate::wire::hello::HelloStatus;

/// What happened to the control lane of a session.
#[derive(Clone, Debug)]
pub(crate) enum LaneEvent {
    /// It failed, for a reason of the network or by a reset.
    Failed { error: String, is_of_network: bool },
    /// The peer closed it.
    EndOfStream,
    /// The peer's process has ended, as the kernel of this host says, which is that of the peer.
    ProcessEnded,
    /// What the peer's kernel owes on it.
    Owed(Owed),
    /// Segments of so many bytes, as long as its own, are lost, for this side or the peer, which
    /// does not say what it saw.
    SegmentsLost { bytes: u16, cause: Option<String> },
    /// The rest of a segment has not come.
    RestMissing { has_datagram_mode: bool },
    /// Another one may be wanted by now.
    MoveDue,
    /// The attempt to open another one was refused by the host there.
    Refused,
    /// The answer to the hello of another one, which the peer has proved.
    Reply(HelloStatus),
    /// Time has passed without one.
    TickWithout,
    /// Time has passed in which paths may have been idle.
    TickIdle,
    /// The memory that the peer shared has ended.
    RingEnded,
}

/// What the loop is to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Decision {
    /// Nothing.
    Nothing,
    /// Open another one, by the path at this position.
    Open { at: u8 },
    /// Give the attempt to open another one up.
    DropAttempt,
    /// The connection of the attempt is the control lane from now on.
    TakeLane { at: u8 },
    /// Drop it, and go on without.
    DropLane,
    /// The same; ask all paths whether the peer is there, and see whether to open another one.
    Suspect,
    /// Ask all paths.
    AskPaths,
    /// Ask those that have not answered anything sent since then.
    AskQuietPaths { since_ns: u64 },
    /// Ask the peer for a segment, and all paths.
    AskForAnswer,
    /// Say to the peer that segments of so many bytes are lost.
    SaySegmentsLost { bytes: u16 },
    /// Nothing is owed: ask the peer for what its kernel has acknowledged and it has not.
    AskForAck,
    /// Tell the peer why, and end the session.
    GiveUp(PeerFailure),
    /// End the session.
    Fail(PeerFailure),
}

/// The session is lost for this reason.
fn lost(cause: &str) -> Decision {
    Decision::Fail(PeerFailure::Lost(cause.into()))
}

/// What is so, besides what the paths say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts<'a> {
    now_ns: u64,
    /// Silence of a peer's kernel that means death.
    peer_timeout: Duration,
    is_connected: bool,
    is_initiator: bool,
    is_leaving: bool,
    /// It said goodbye, which may have arrived, or has.
    is_goodbye_under_way: bool,
    has_left: bool,
    /// Messages that only a TCP lane carries are not acknowledged.
    holds_long: bool,
    /// Where lanes to the peer go.
    rails: &'a Rails,
    locator: SocketAddr,
}

impl Facts<'_> {
    /// Time since then.
    fn age_ns(&self, since_ns: u64) -> u64 {
        self.now_ns.saturating_sub(since_ns)
    }
}

/// That segments of a control lane are too long for its path.
#[derive(Debug, Default)]
struct SegmentsLost {
    /// What was observed; `None`: the peer has.
    cause: Option<String>,
    /// When this was last said to the peer.
    said_ns: Option<u64>,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct LaneMonitor {
    /// What the peer's kernel owes on it.
    silence: Silence,
    /// How long the rest of a segment has been awaited.
    unfinished: Late<Unfinished>,
    /// Since when there is none, where there was one.
    lost_ns: Option<u64>,
    liveness: Late<Liveness>,
    migration: Late<Migration>,
    /// Its segments are lost.
    segments_lost: Option<Box<SegmentsLost>>,
    /// Whether the peer's engine answers.
    engine: Late<EngineSilence>,
}

impl LaneMonitor {
    /// That of a session that was just established.
    pub(super) fn new() -> Self {
        // The last words of the handshake may be all that ever goes by it.
        Self { silence: Silence::OWED, ..Self::default() }
    }

    /// Whether the session has lost it, and has no other one yet.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost_ns.is_some()
    }

    /// Bytes came that are not a whole segment yet, or were not: another segment `is_next`, or
    /// more of the same one.
    pub(crate) fn note_bytes(&mut self, is_next: bool) {
        if is_next {
            self.unfinished = Late::NONE;
        } else if self.unfinished.was_asked() {
            self.unfinished.note_bytes();
        }
    }

    /// Judges what happened.
    pub(crate) fn handle(
        &mut self,
        event: LaneEvent,
        facts: &Facts<'_>,
        paths: &mut Paths,
    ) -> Decision {
        match event {
            LaneEvent::Failed { error, is_of_network } => {
                self.handle_failed(&error, is_of_network, facts, paths)
            }
            LaneEvent::EndOfStream => self.handle_end_of_stream(facts),
            LaneEvent::ProcessEnded => Self::handle_process_ended(facts),
            LaneEvent::Owed(owed) => self.judge_silence(owed, facts, paths),
            LaneEvent::RestMissing { has_datagram_mode } => {
                self.judge_unfinished(has_datagram_mode, facts, paths)
            }
            LaneEvent::SegmentsLost { bytes, cause } => self.replace(bytes, cause, facts, paths),
            LaneEvent::MoveDue => self.poll_move(facts, paths),
            LaneEvent::Refused => self.handle_refused(facts, paths),
            LaneEvent::Reply(status) => self.handle_reply(status, facts, paths),
            LaneEvent::TickWithout => self.judge_without(facts, paths),
            LaneEvent::RingEnded => self.handle_ring_ended(paths),
            LaneEvent::TickIdle => self.liveness.judge_idle(facts, paths),
        }
    }

    /// It was dropped; it went by the path at a position.
    pub(crate) fn handle_dropped(&mut self, now_ns: u64, at: u8) {
        (self.silence, self.unfinished) = (Silence::NONE, Late::NONE);
        self.segments_lost = None;
        self.lost_ns.get_or_insert(now_ns);
        self.migration.handle_dropped(at);
    }

    /// Another connection has taken its place.
    ///
    /// RR-RAIL-8.
    pub(crate) fn handle_moved(&mut self, now_ns: u64) {
        self.lost_ns = None;
        self.liveness.handle_word();
        *self.migration = Migration::after(now_ns);
    }
}

impl Core {
    /// Something was sent by the control lane of a session.
    pub(crate) fn expect_answer(&mut self, slot: u32) {
        if let Some(session) = self.sessions.at_mut(slot as usize) {
            session.control_lane.silence.expect_answer();
        }
    }

    /// Whether the kernel is worth a look at what it knows of the control lane of a session.
    pub(crate) fn is_answer_due(&self, slot: u32) -> bool {
        let session = self.sessions.at(slot as usize);
        session.is_some_and(|session| session.control_lane.silence.is_owed())
    }

    /// The monitor of a session's control lane, and what it judges by.
    pub(crate) fn lane_monitor_and_facts(
        &mut self,
        slot: u32,
        now_ns: u64,
        peer_timeout: Duration,
    ) -> Option<(&mut LaneMonitor, Facts<'_>)> {
        let (has_left, holds_long) = (self.has_left(slot), self.holds_long(slot));
        let is_goodbye_under_way = self.is_goodbye_under_way(slot);
        let session = self.sessions.at_mut(slot as usize)?;
        let is_connected = session.is_connected();
        let Session { control_lane, connection, rails, locators, is_leaving, .. } = session;
        let facts = Facts {
            now_ns,
            peer_timeout,
            is_connected,
            is_initiator: connection.is_initiator(),
            is_leaving: *is_leaving,
            is_goodbye_under_way,
            has_left,
            holds_long,
            rails,
            locator: locators.first(),
        };
        Some((control_lane, facts))
    }
}
