//! Liveness of the peer.
//!
//! The control lane shows the peer's end, since the kernel closes it when the process is killed.
//! But a rail that works in one direction only also causes a reset, by a kernel that gets no
//! acknowledgements. In a session with several paths the peer is then *suspect*, and probed on all
//! paths and by connections to its listener. A live peer answers one of these; for a process that
//! has ended its host refuses.
//!
//! A peer on this host that shares memory needs no NIC. Its memory ends with it, so the session
//! outlives the control lane, whose address the host may lose. Only a peer whose lane was reset and
//! whose memory has ended is lost at once.
//!
//! ```text
//!                       an answer, or another control lane
//!   has a lane ─ reset ─> suspect ─────────────────────────> continues without a lane for now
//!       │                    │                                   │
//!       │ end of stream      │ refused; unknown there;           │ refused; unknown there;
//!       v                    v no answer in time                 v silent for the peer timeout
//!     ended                ended                               ended
//! ```

use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::time::Duration;

use super::super::late::AtRest;
use super::{Decision, Facts, LaneMonitor, lost};
use crate::proto::failure::PeerFailure;
use crate::proto::paths::Paths;
use crate::proto::silence::{Unacked, patience};
use crate::wire::hello::HelloStatus;

/// Time for any answer of a suspect peer without a connection, in nanoseconds: together with the
/// loop's time to detect the reset it is less than a second.
const WORD_NS: u64 = 700_000_000;
/// Interval of probes to a peer whose end no TCP lane would show, in nanoseconds.
const QUESTION_NS: u64 = 1_000_000_000;
/// Time for answers to probes sent when a connection was refused, in nanoseconds: the refusal is
/// the kernel's, or a firewall's, and arrives before the answer of a process.
const REFUSED_NS: u64 = 100_000_000;
/// Maximum time between the end of a killed process's control lane and that of its memory, in
/// nanoseconds: a kernel ends both, one after the other.
const RESET_NS: u64 = 1_000_000_000;
/// Number of probes of an idle path in a peer timeout.
const QUESTIONS_PER_TIMEOUT: u32 = 4;

/// Liveness state of the peer.
#[derive(Debug, Default)]
pub(super) struct Liveness {
    /// Since when it is suspect: its control lane was reset.
    suspected_ns: Option<u64>,
    /// The kernel's error of the reset.
    error: String,
    /// When its host refused a connection, as it does after the process has ended; firewalls may
    /// refuse, too.
    refused_ns: Option<u64>,
    /// When it was last probed for liveness.
    questioned_ns: u64,
    /// When it last shared memory, as of the last check, or otherwise showed that it is alive.
    shared_ns: Option<u64>,
}

impl AtRest for Liveness {
    const AT_REST: &'static Self = &Self {
        suspected_ns: None,
        error: String::new(),
        refused_ns: None,
        questioned_ns: 0,
        shared_ns: None,
    };
}

impl Liveness {
    /// Returns whether the peer may have ended, since its control lane was reset.
    pub(super) fn is_peer_suspect(&self) -> bool {
        self.suspected_ns.is_some()
    }

    /// Notes that the peer is alive.
    pub(super) fn handle_word(&mut self) {
        (self.suspected_ns, self.refused_ns) = (None, None);
        self.error.clear();
    }

    /// Returns the kernel's error for the end of its control lane.
    fn error_of_lane(&self) -> &str {
        if self.error.is_empty() { "its path was abandoned" } else { &self.error }
    }

    /// Notes that the peer has shown that it is alive.
    fn confirm(&mut self, now_ns: u64, paths: &mut Paths) {
        self.handle_word();
        paths.forget_silence(now_ns);
        tracing::debug!("peer is alive without a control connection");
    }

    /// Probes idle paths periodically, so that failures are known before a path is needed, and so
    /// is whether any path is left when the kernel abandons the control lane.
    ///
    /// RR-RAIL-8.
    pub(super) fn judge_idle(&mut self, facts: &Facts<'_>, paths: &Paths) -> Decision {
        let now_ns = facts.now_ns;
        let pause_ns = (facts.peer_timeout / QUESTIONS_PER_TIMEOUT).as_nanos() as u64;
        if now_ns.saturating_sub(self.questioned_ns) < pause_ns || !paths.are_several() {
            return Decision::Nothing;
        }
        self.questioned_ns = now_ns;
        Decision::AskQuietPaths { since_ns: now_ns.saturating_sub(pause_ns) }
    }
}

impl Facts<'_> {
    /// Returns whether the peer continues without the control lane if this side resets it: it has
    /// to know of another path or a ring, else it takes the reset for the end of the session.
    ///
    /// RR-RAIL-8.
    pub(super) fn may_drop(&self, paths: &Paths) -> bool {
        paths.can_outlast_lane_at_peer(self.is_initiator)
    }

    /// Returns how long before a silence was detected the peer's last packet arrived. Its paths are
    /// probed several times in a peer timeout, so that time is part of the silence; a longer one
    /// only shows that no probe was sent.
    fn silent_before(&self, paths: &mut Paths, silence: Duration) -> Duration {
        // From an answered probe to the next but one, which is late and waited for.
        let most = 5 * self.peer_timeout / (2 * QUESTIONS_PER_TIMEOUT);
        if !paths.are_several() || paths.has_active() {
            return Duration::ZERO;
        }
        let age_ns = paths.answered_sent_ns().map(|sent_ns| self.age_ns(sent_ns));
        let before = age_ns.map(|age_ns| Duration::from_nanos(age_ns).saturating_sub(silence));
        before.filter(|before| *before <= most).unwrap_or_default()
    }
}

impl LaneMonitor {
    /// Handles a failed control lane: the session ends with it, unless it has several paths.
    ///
    /// RR-RAIL-7, RR-RAIL-8.
    pub(super) fn handle_failed(
        &mut self,
        error: &str,
        is_of_network: bool,
        facts: &Facts<'_>,
        paths: &Paths,
    ) -> Decision {
        let is_replaced = self.attempt_at().is_some();
        if !paths.can_outlast_lane() && !is_replaced {
            self.end_with(error, is_of_network, facts)
        } else if !is_of_network {
            self.suspect(error, facts)
        } else if paths.can_reach_peer() {
            self.liveness.error = error.to_owned();
            Decision::DropLane
        } else {
            self.end_with(error, is_of_network, facts)
        }
    }

    /// Ends the session. A kernel that abandons a silent host does not report how long it waited.
    fn end_with(&self, error: &str, is_of_network: bool, facts: &Facts<'_>) -> Decision {
        if facts.is_goodbye_under_way {
            return Decision::Fail(PeerFailure::Removed);
        }
        match self.silence.lasts(facts.now_ns) {
            _ if !is_of_network => lost(error),
            Some(silence) => {
                let silence = silence.as_millis();
                lost(&format!("its host has not answered for {silence} ms: {error}"))
            }
            None => lost(&format!("its host does not answer: {error}")),
        }
    }

    /// Handles the end of stream. A peer that has our goodbye closes the lane, and its own goodbye
    /// may be lost.
    ///
    /// RR-RAIL-8.
    pub(super) fn handle_end_of_stream(&mut self, facts: &Facts<'_>) -> Decision {
        if self.attempt_at().is_some() {
            // The peer may already use the other one.
            self.suspect("closed by the peer", facts)
        } else if facts.is_goodbye_under_way {
            Decision::Fail(PeerFailure::Removed)
        } else {
            lost("its connection was closed without a goodbye")
        }
    }

    /// Handles the end of the peer's process as reported by the common kernel, which a peer cannot
    /// forge, or by another engine of its host, which has the job's secret.
    ///
    /// RR-SHM-13, RR-END-8.
    pub(super) fn handle_process_ended(
        observer: Option<SocketAddr>,
        facts: &Facts<'_>,
    ) -> Decision {
        if !facts.is_connected {
            Decision::Nothing
        } else if facts.is_goodbye_under_way {
            Decision::Fail(PeerFailure::Removed)
        } else if let Some(observer) = observer {
            lost(&format!(
                "its process has ended without a goodbye, as the engine at {observer} on its host \
                 reports"
            ))
        } else {
            lost("its process has ended without a goodbye")
        }
    }

    /// Handles the loss of the control lane, which may mean the peer's end.
    ///
    /// RR-RAIL-8.
    pub(super) fn suspect(&mut self, error: &str, facts: &Facts<'_>) -> Decision {
        if facts.is_goodbye_under_way {
            // A peer that has that ends the session.
            return Decision::Fail(PeerFailure::Removed);
        }
        self.liveness.suspected_ns = Some(facts.now_ns);
        self.liveness.error = error.to_owned();
        Decision::Suspect
    }

    /// Evaluates how long data has been unacknowledged by the peer's kernel.
    ///
    /// RR-END-2, RR-RAIL-8.
    pub(super) fn judge_silence(
        &mut self,
        owed: Unacked,
        facts: &Facts<'_>,
        paths: &mut Paths,
    ) -> Decision {
        let limit = facts.peer_timeout;
        let has_another = facts.may_drop(paths) && paths.can_reach_peer();
        // Networks may drop connections alone: data that needs one waits for another lane.
        let patience = patience(limit, facts.holds_long && has_another);
        let Some(silence) = self.silence.observe(facts.now_ns, owed, patience) else {
            let is_over = facts.has_left;
            return if is_over { Decision::Fail(PeerFailure::Removed) } else { Decision::Nothing };
        };
        if silence > patience && has_another {
            return Decision::DropLane;
        }
        let before = facts.silent_before(paths, silence);
        if silence > limit - before {
            let seen = self.segments_lost.as_deref().and_then(|lost| lost.cause.as_deref());
            let millis = (silence + before).as_millis();
            let since_ns = facts.now_ns.saturating_sub(silence.as_nanos() as u64);
            return match seen {
                // What is too long is lost while the rest passes. A silent host loses everything.
                Some(seen) if paths.have_answered_since(since_ns) => lost(&format!(
                    "it has not acknowledged what was sent by TCP for {millis} ms: {seen}"
                )),
                Some(seen) => lost(&format!(
                    "its host has not answered for {millis} ms. If it answers others: {seen}"
                )),
                None => lost(&format!("its host has not answered for {millis} ms")),
            };
        }
        Decision::Nothing
    }

    /// Evaluates a session without a control lane, where only answers to probes show that the peer
    /// is alive.
    ///
    /// RR-RAIL-7, RR-RAIL-8.
    pub(super) fn judge_without(&mut self, facts: &Facts<'_>, paths: &mut Paths) -> Decision {
        let Some(lost_ns) = self.lost_ns.map(NonZeroU64::get) else { return Decision::Nothing };
        let (now_ns, limit) = (facts.now_ns, facts.peer_timeout);
        let limit_ns = limit.as_nanos() as u64;
        let known = &mut self.liveness;
        if paths.has_ring() && !facts.holds_long {
            known.shared_ns = Some(now_ns);
            if known.suspected_ns.is_some_and(|since_ns| facts.age_ns(since_ns) > RESET_NS) {
                known.handle_word();
            }
            return Decision::Nothing;
        }
        if !paths.are_several() {
            // Only its answers show that it is alive.
            let since_ns = known.shared_ns.unwrap_or(lost_ns);
            if paths.have_answered_since(since_ns) {
                known.shared_ns = Some(now_ns);
            } else if facts.age_ns(since_ns) > limit_ns {
                return lost(&format!(
                    "its control lane ended ({}), so has the memory that it shared, and it has \
                     not answered for {} ms",
                    known.error_of_lane(),
                    limit.as_millis()
                ));
            }
        }
        if let Some(refused_ns) = known.refused_ns {
            if paths.have_answered_since(refused_ns) {
                known.refused_ns = None;
            } else if facts.age_ns(refused_ns) > REFUSED_NS {
                let error = known.error_of_lane();
                return lost(&format!(
                    "its control lane ended ({error}), its host refuses another one, and it \
                     answers on none of its rails: its process is gone"
                ));
            }
        }
        if let Some(since_ns) = known.suspected_ns {
            // A kernel may accept a connection that its process has not answered yet.
            let is_received = self.migration.is_attempt_connected();
            let word_ns = if is_received { WORD_NS.max(limit_ns) } else { WORD_NS };
            if paths.have_answered_since(since_ns) {
                known.confirm(now_ns, paths);
            } else if facts.age_ns(since_ns) > word_ns {
                let error = known.error_of_lane();
                return lost(&format!(
                    "its control lane ended ({error}), and it answers on none of its rails"
                ));
            }
        }
        if facts.age_ns(lost_ns) > limit_ns && facts.holds_long {
            // Nothing else carries them, and other messages wait for them.
            return lost(&format!(
                "messages that fit no datagram wait for a TCP connection, and none of its rails \
                 has accepted one for {} ms, though datagrams pass: look for a filter of TCP \
                 on the way",
                limit.as_millis()
            ));
        }
        let silent_ns = paths.silent_since_ns().map_or(0, |since_ns| facts.age_ns(since_ns));
        let silence = Duration::from_nanos(silent_ns);
        let patience = limit - facts.silent_before(paths, silence);
        if silence > patience && known.suspected_ns.is_none() {
            lost(&format!("none of its rails has answered for {} ms", limit.as_millis()))
        } else if facts.age_ns(known.questioned_ns) > QUESTION_NS {
            known.questioned_ns = now_ns;
            Decision::AskPaths
        } else {
            Decision::Nothing
        }
    }

    /// Handles the end of the peer's shared memory, with its process or when an engine moves to
    /// another thread.
    ///
    /// RR-SHM-8.
    pub(super) fn handle_ring_ended(&self, paths: &Paths) -> Decision {
        if !self.is_lost() || !self.liveness.is_peer_suspect() || paths.are_several() {
            return Decision::Nothing;
        }
        lost(self.liveness.error_of_lane())
    }

    /// Handles a refused connection: where only a new lane would show the peer's end, a refusal
    /// does, since its host answers and no process listens there any more.
    ///
    /// RR-RAIL-8.
    pub(super) fn handle_refused(&mut self, facts: &Facts<'_>, paths: &Paths) -> Decision {
        let is_first = self.is_lost() && self.liveness.refused_ns.is_none();
        if !is_first || !self.is_attempt_to_peer(paths) {
            return Decision::Nothing;
        }
        // The probes may be sent at this very time.
        self.liveness.refused_ns = Some(facts.now_ns.saturating_sub(1));
        Decision::AskPaths
    }

    /// Handles the peer's authenticated reply to the hello of another lane.
    ///
    /// RR-RAIL-7, RR-RAIL-8.
    pub(super) fn handle_reply(
        &mut self,
        status: HelloStatus,
        facts: &Facts<'_>,
        paths: &mut Paths,
    ) -> Decision {
        match (status, self.attempt_at()) {
            (HelloStatus::Accepted, Some(at)) if facts.is_initiator => {
                return Decision::TakeLane { at };
            }
            (HelloStatus::Busy, _) => self.liveness.confirm(facts.now_ns, paths),
            // A correct process sends this only if the hello names it, at whichever address.
            (HelloStatus::UnknownSession, _) => {
                return lost("it has ended the session, and its goodbye was lost");
            }
            _ if !self.is_attempt_to_peer(paths) => {}
            (HelloStatus::WrongEngine, _) => return Decision::Fail(PeerFailure::Restarted),
            (HelloStatus::Leaving, _) => return Decision::Fail(PeerFailure::Left),
            _ => {}
        }
        Decision::DropAttempt
    }

    /// Returns whether the attempt uses an address that the peer has answered from: one that was
    /// only announced may be another host's.
    fn is_attempt_to_peer(&self, paths: &Paths) -> bool {
        self.attempt_at().is_some_and(|at| {
            paths.all().any(|path| path.position() == at && path.packets().is_answered())
        })
    }
}
