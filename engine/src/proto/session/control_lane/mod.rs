//! Monitors the control connection of a session: its state, liveness of the peer without it, and
//! migration.
//!
//! [`LaneMonitor`] decides without side effects: the loop reports events ([`LaneEvent`]) and
//! conditions ([`Facts`], the session's paths), and executes the returned [`Decision`].

mod engine;
mod liveness;
mod migration;
mod unfinished;

#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::time::Duration;

use self::engine::EngineSilence;
pub(crate) use self::engine::{QUESTIONS, SilentTimeout};
use self::liveness::Liveness;
use self::migration::Migration;
use self::unfinished::Unfinished;
use super::Session;
use super::late::Late;
use super::rails::Rails;
use crate::proto::failure::PeerFailure;
use crate::proto::paths::Paths;
use crate::proto::silence::{Silence, Unacked};
use crate::wire::hello::HelloStatus;

/// An event of a session's control lane.
#[derive(Clone, Debug)]
pub(crate) enum LaneEvent {
    /// It failed, by a network error or a reset.
    Failed { error: String, is_of_network: bool },
    /// The peer closed it.
    EndOfStream,
    /// The peer's process has ended, as reported by the kernel of its host: to this engine, which
    /// is on that host (`None`), or to the engine that listens there.
    ProcessEnded { observer: Option<SocketAddr> },
    /// Data that the peer's kernel has not acknowledged.
    Unacked(Unacked),
    /// Segments of so many bytes, as long as its own, are lost, for this side or the peer, which
    /// does not say what it saw.
    SegmentsLost { bytes: u16, cause: Option<String> },
    /// The rest of a segment has not come.
    RestMissing,
    /// Another lane may be needed.
    MoveDue,
    /// The attempt to open another one was refused by the remote host.
    Refused,
    /// The authenticated reply to the hello of another one.
    Reply(HelloStatus),
    /// Periodic check without a lane.
    TickWithout,
    /// Periodic check of possibly idle paths.
    TickIdle,
    /// The peer's shared memory has ended.
    RingEnded,
}

/// What the loop has to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Decision {
    /// Nothing.
    Nothing,
    /// Open another one, on the path at this position.
    Open { at: u8 },
    /// Abandon the attempt to open another one.
    DropAttempt,
    /// Use the connection of the attempt as control lane from now on.
    TakeLane { at: u8 },
    /// Drop it, and continue without.
    DropLane,
    /// The same; probe all paths for the peer, and check whether to open another one.
    Suspect,
    /// Probe all paths.
    AskPaths,
    /// Probe those that have not answered any packet sent since then.
    AskQuietPaths { since_ns: u64 },
    /// Request a segment from the peer, and probe all paths.
    AskForAnswer,
    /// Report to the peer that segments of so many bytes are lost.
    ReportSegmentsLost { bytes: u16 },
    /// Report the cause to the peer, and end the session.
    GiveUp(PeerFailure),
    /// End the session.
    Fail(PeerFailure),
}

/// Returns the decision to end the session for this cause.
fn lost(cause: &str) -> Decision {
    Decision::Fail(PeerFailure::Lost(cause.into()))
}

/// Conditions of the decision, besides the paths.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts<'a> {
    now_ns: u64,
    /// Silence of a peer's kernel after which the peer counts as lost.
    peer_timeout: Duration,
    is_connected: bool,
    is_initiator: bool,
    is_leaving: bool,
    /// A goodbye was sent, which may have arrived, or was received.
    is_goodbye_under_way: bool,
    /// The goodbye and everything before it are with the peer once its kernel owes nothing.
    has_left: bool,
    /// Messages that only a TCP lane carries are unacknowledged.
    holds_long: bool,
    /// Destinations of lanes to the peer.
    rails: &'a Rails,
    locator: SocketAddr,
}

impl Facts<'_> {
    /// Returns the time since then.
    fn age_ns(&self, since_ns: u64) -> u64 {
        self.now_ns.saturating_sub(since_ns)
    }
}

/// That segments of a control lane are too long for its path.
#[derive(Debug, Default)]
struct SegmentsLost {
    /// What was observed; `None`: the peer has.
    cause: Option<String>,
    /// When this was last reported to the peer.
    reported_ns: Option<u64>,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct LaneMonitor {
    /// Data that the peer's kernel has not acknowledged on it.
    silence: Silence,
    /// State while the rest of a segment is missing.
    unfinished: Late<Unfinished>,
    /// Since when the lane is lost.
    lost_ns: Option<NonZeroU64>,
    liveness: Late<Liveness>,
    migration: Late<Migration>,
    /// Its segments are lost.
    segments_lost: Option<Box<SegmentsLost>>,
    /// Whether the peer's engine answers.
    engine: Late<EngineSilence>,
}

impl LaneMonitor {
    /// Creates the monitor of a newly established session.
    pub(super) fn new() -> Self {
        // The end of the handshake may be all that is ever sent on it.
        Self { silence: Silence::OWED, ..Self::default() }
    }

    /// Returns whether the session has lost its lane, and has no other one yet.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost_ns.is_some()
    }

    /// Notes received bytes of an incomplete segment: of another one (`is_next`), or more of the
    /// same one.
    pub(crate) fn note_bytes(&mut self, is_next: bool) {
        if is_next {
            self.unfinished = Late::NONE;
        } else if self.unfinished.was_asked() {
            self.unfinished.note_bytes();
        }
    }

    /// Evaluates an event.
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
            LaneEvent::ProcessEnded { observer } => Self::handle_process_ended(observer, facts),
            LaneEvent::Unacked(owed) => self.judge_silence(owed, facts, paths),
            LaneEvent::RestMissing => self.judge_unfinished(facts, paths),
            LaneEvent::SegmentsLost { bytes, cause } => self.replace(bytes, cause, facts, paths),
            LaneEvent::MoveDue => self.poll_move(facts, paths),
            LaneEvent::Refused => self.handle_refused(facts, paths),
            LaneEvent::Reply(status) => self.handle_reply(status, facts, paths),
            LaneEvent::TickWithout => self.judge_without(facts, paths),
            LaneEvent::RingEnded => self.handle_ring_ended(paths),
            LaneEvent::TickIdle => self.liveness.judge_idle(facts, paths),
        }
    }

    /// Notes that the lane was dropped; its path was at `at`.
    pub(crate) fn handle_dropped(&mut self, now_ns: u64, at: u8) {
        (self.silence, self.unfinished) = (Silence::NONE, Late::NONE);
        self.segments_lost = None;
        // A session takes time to begin, so that 0 does not occur.
        let now_ns = NonZeroU64::new(now_ns).unwrap_or(NonZeroU64::MIN);
        self.lost_ns.get_or_insert(now_ns);
        self.migration.handle_dropped(at);
    }

    /// Notes that another connection has replaced it.
    ///
    /// RR-RAIL-8.
    pub(crate) fn handle_moved(&mut self, now_ns: u64) {
        self.lost_ns = None;
        self.liveness.handle_word();
        *self.migration = Migration::after(now_ns);
    }

    /// Notes that data was sent on the control lane.
    pub(crate) fn expect_answer(&mut self) {
        self.silence.expect_answer();
    }

    /// Returns whether the kernel's state of the control lane needs a check.
    pub(crate) fn is_answer_due(&self) -> bool {
        self.silence.is_owed()
    }
}

impl Session {
    /// Returns the monitor of the control lane, and its conditions. `is_taken`: the kernel has
    /// taken all bytes for it.
    pub(crate) fn lane_monitor_and_facts(
        &mut self,
        now_ns: u64,
        peer_timeout: Duration,
        is_taken: bool,
    ) -> (&mut LaneMonitor, Facts<'_>) {
        let holds_long = self.segments.holds_long();
        let goodbye = self.goodbye_progress(is_taken);
        let is_connected = self.is_connected();
        let Self { control_lane, connection, rails, peer, ending, .. } = self;
        let facts = Facts {
            now_ns,
            peer_timeout,
            is_connected,
            is_initiator: connection.is_initiator(),
            is_leaving: ending.is_leaving(),
            is_goodbye_under_way: goodbye.is_under_way,
            has_left: goodbye.is_done,
            holds_long,
            rails,
            locator: peer.locators().first(),
        };
        (control_lane, facts)
    }
}
