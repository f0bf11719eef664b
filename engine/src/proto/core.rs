//! The protocol of one engine: sessions, endpoints, operations and their relations.
//!
//! # Order of calls
//!
//! An engine loop owns a [`Core`] and calls, from one thread:
//!
//! 1. commands of the user ([`Core::insert_peer`], the sends in [`super::session::send`], the
//!    receives in [`super::receive`]) at any time;
//! 2. `handle_*` for received data and events: [`Core::handle_bytes`] with the bytes of a control
//!    lane, the chunk events in [`super::session::rendezvous`], connection events;
//! 3. [`Core::poll_waiting`], then [`Core::poll_grants`], then [`SharedState::poll_action`]
//!    until it returns `None`, then [`BulkLanes::poll_runnable`] for the chunks of bulk lanes, then
//!    the sessions with [`Work::Flush`] in [`SharedState::ready_mut`], and for each of them its
//!    segments, as [`super::session::segments`] states.
//!
//! `now_ns` never decreases. Deadlines are not handled on their own: [`Core::next_deadline_ns`]
//! returns the next one.

use std::net::{IpAddr, SocketAddr};

#[cfg(any(test, feature = "sim"))]
pub(crate) use super::config::Config;
pub(crate) use super::config::CoreConfig;
use super::context::SharedState;
use super::effects::{Effects, RemoteName};
use super::failure::PeerFailure;
#[cfg(doc)]
use super::ready::Work;
use super::session::Session;
#[cfg(doc)]
use super::session::connection::Connection;
#[cfg(doc)]
use super::session::lanes::BulkLanes;
use super::session::rails::health::Transition;
use super::session::segments::{Transport, split};
use super::table::{Id, Table};
use super::unexpected::Message;
use crate::wire::FrameError;

/// Bit of a 64-bit context that separates untagged messages from tagged ones.
pub(crate) const UNTAGGED: u64 = 1 << 32;

/// The context of connection requests, their replies and closes ([`super::manager`]): not available
/// to users.
pub(crate) const REQUESTS: u64 = UNTAGGED | 1;

/// Maximum number of open endpoints of one engine.
pub(crate) const ENDPOINTS_MAX: usize = 1024;

/// Minimum envelope credit of each session.
pub(crate) const ENVELOPES_MIN: u32 = 16;

/// An action of the loop for the protocol, besides [`Effects`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    /// Open a TCP connection for the control lane of a session.
    Connect { session: u32 },
    /// Close the control lane of a session, and any attempt.
    CloseControl { session: u32, is_failure: bool },
    /// Open a bulk lane; the protocol's id for it is `lane`.
    OpenLane { session: u32, lane: Id },
    /// Close a bulk lane; whatever it carried is lost.
    CloseLane { lane: Id, is_failure: bool },
    /// Abort a bulk lane: its path has failed here, or the peer reports that (`is_reported`).
    AbandonLane { lane: Id, is_reported: bool },
    /// The peer reports that segments of so many bytes are lost on the path at `at`; `None`: on
    /// that of the control lane.
    SegmentsLost { session: u32, at: Option<u8>, bytes: u16 },
    /// All rails of the peer are known: say which paths there are, if this side opened the session.
    PairRails { session: u32 },
    /// The engine at `observer`, on the peer's host, reports that the process of the peer has
    /// ended, whose session in slot `session` had the id `session_id`.
    ProcessEnded { session: u32, session_id: u64, observer: SocketAddr },
    /// The peer's data cannot be used: report the cause to it and fail the session.
    GiveUp { session: u32, failure: PeerFailure },
    /// One of several paths of a session changed; `rail` is this engine's, and `remote` the peer's
    /// address on it.
    PathChanged { peer: RemoteName, rail: u8, remote: IpAddr, change: Transition },
    /// A session was established.
    Established { session: u32 },
    /// A session ended.
    Ended { session: u32, failure: PeerFailure },
    /// Messages wait in the context [`REQUESTS`] of endpoints.
    Requests,
    /// A session that was left has ended, and another one is needed: [`Connection::connect`].
    Reconnect { session: u32 },
}

impl Action {
    /// Returns the session of the action, if it has one.
    pub(super) fn session(&self) -> Option<u32> {
        match *self {
            Self::Connect { session }
            | Self::CloseControl { session, .. }
            | Self::OpenLane { session, .. }
            | Self::SegmentsLost { session, .. }
            | Self::ProcessEnded { session, .. }
            | Self::PairRails { session }
            | Self::GiveUp { session, .. }
            | Self::Established { session }
            | Self::Ended { session, .. }
            | Self::Reconnect { session } => Some(session),
            Self::CloseLane { .. }
            | Self::AbandonLane { .. }
            | Self::PathChanged { .. }
            | Self::Requests => None,
        }
    }
}

/// Counters of drops and errors, for users.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct CoreCounters {
    /// Segments handled.
    pub(crate) segments_received: u64,
    /// Frames handled.
    pub(crate) frames_received: u64,
    /// Messages for an endpoint that is not open.
    pub(crate) unknown_endpoint: u64,
    /// DONE, MATCHED, GRANT or REFUSED for an operation that is not outstanding, and frames for a
    /// lane that has failed here: usually both cross what ended them.
    pub(crate) stale_frames: u64,
    /// Messages that arrived before their receive.
    pub(crate) unexpected_messages: u64,
    /// Bulk lanes that failed.
    pub(crate) lane_failures: u64,
    /// Chunks that arrived completely but corrupted.
    pub(crate) corrupted_chunks: u64,
    /// Operations of peers on this engine's memory that were refused.
    pub(crate) refused_accesses: u64,
}

/// Protocol state of an engine; see the module.
pub(crate) struct Core {
    pub(super) sessions: Table<Session>,
    pub(super) shared: SharedState,
}

impl Core {
    /// Creates an engine with the random, non-zero id `engine`.
    pub(crate) fn new(engine: u64, config: CoreConfig) -> Self {
        let sessions = Table::new(config.sessions_max);
        Self { sessions, shared: SharedState::new(engine, config) }
    }

    /// Handles the complete segments at the front of `bytes`, received on the control lane of
    /// `session`; returns their length in bytes. An error means that the peer violated the
    /// protocol, or, as [`FrameError::NoSession`], that this engine has a defect: fail the session.
    pub(crate) fn handle_bytes(
        &mut self,
        slot: u32,
        bytes: &[u8],
        now_ns: u64,
        effects: &mut impl Effects,
    ) -> Result<usize, FrameError> {
        let mut used = 0;
        // What follows the end of a session is not read.
        while let Some(session) = self.session(slot).filter(|it| it.is_connected())
            && let Some((header, body, length)) =
                split(&bytes[used..], session.segments().has_checksums())?
        {
            let transport = Some(Transport::Stream);
            self.handle_segment(slot, (header, body), transport, now_ns, effects)?;
            used += length;
        }
        Ok(used)
    }

    /// Returns the credit of a message that leaves the unexpected store.
    pub(crate) fn return_credit_of(&mut self, message: &Message) {
        let payload_bytes = message.payload().len();
        if planted!(LoseCreditReturn) || message.put_back() != 0 {
            return;
        }
        match self.enter(message.session) {
            Some((session, mut cx))
                if session.epoch() == message.epoch || planted!(ForgetEpoch) =>
            {
                session.return_credit(&mut cx, payload_bytes);
                self.shrink_grown_windows(message.session);
            }
            _ => {
                // Its session is closed, but its memory was counted until now.
                self.shared.offers.release(1, payload_bytes as u64);
                self.extend_others();
            }
        }
    }
}

/// Access for the loop. It changes a session by the methods of that, which it gets by
/// [`Core::enter`] and [`Core::with`].
impl Core {
    /// Returns what all sessions share.
    #[inline]
    pub(crate) fn shared(&self) -> &SharedState {
        &self.shared
    }

    /// Returns the same, mutable.
    #[inline]
    pub(crate) fn shared_mut(&mut self) -> &mut SharedState {
        &mut self.shared
    }

    /// Returns the session in a slot.
    #[inline]
    pub(crate) fn session(&self, slot: u32) -> Option<&Session> {
        self.sessions.at(slot as usize)
    }

    /// Returns all sessions.
    #[inline]
    pub(crate) fn sessions(&self) -> &Table<Session> {
        &self.sessions
    }

    /// Returns the session of an operation; of a receive, that of its source.
    #[cfg(test)]
    pub(crate) fn session_of_operation(&self, id: Id) -> u32 {
        let session = self.shared.operations.get(id).map(|operation| operation.session);
        session
            .or_else(|| Some(self.shared.source_of(id)?.session))
            .unwrap_or(super::operation::NO_SESSION)
    }
}

/// Hooks for simulations.
#[cfg(any(test, feature = "sim"))]
impl Core {
    /// Queues an action for the loop, as if the protocol had requested it.
    #[cfg_attr(not(test), allow(dead_code, reason = "a test asks for it"))]
    pub(crate) fn act_next(&mut self, action: Action) {
        self.shared.act(action);
    }

    /// Returns the session in a slot, for tests that corrupt it.
    #[cfg_attr(not(test), allow(dead_code, reason = "a test asks for it"))]
    pub(crate) fn session_mut(&mut self, slot: u32) -> Option<&mut Session> {
        self.sessions.at_mut(slot as usize)
    }
}
