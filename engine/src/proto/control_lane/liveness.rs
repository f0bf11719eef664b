//! Is the peer still there?
//!
//! The control lane tells of the peer's end, for the kernel of a process that was killed ends it.
//! But a rail that works one way only has it reset, too, by a kernel that hears no answer. In a
//! session with several paths the peer is then *suspect*, and asked by all of them and by
//! connections to its listener. Whoever lives answers one of these; for a process that is gone its
//! host refuses.
//!
//! A peer on this host that shares memory needs no NIC. Its memory ends with it, so that the
//! session outlives the control lane, which goes by an address that the host may lose. Only a peer
//! whose lane was reset and whose memory has ended is gone at once.
//!
//! ```text
//!                       an answer, or another control lane
//!   has a lane ─ reset ─> suspect ─────────────────────────> lives on, without a lane for now
//!       │                    │                                   │
//!       │ end of stream      │ refused; unknown there;           │ refused; unknown there;
//!       v                    v no word for so long               v silent for the peer timeout
//!     over                 over                                over
//! ```

use std::time::Duration;

use super::super::failure::PeerFailure;
use super::super::late::AtRest;
use super::super::paths::Paths;
use super::super::silence::{Owed, patience};
use super::{Decision, Facts, LaneMonitor, lost};
use crate::wire::hello::HelloStatus;

/// Time for any word of a peer that is suspect and to which no connection stands, in nanoseconds:
/// with what the loop takes to notice it makes less than a second.
const WORD_NS: u64 = 700_000_000;
/// Time between two questions to a peer that no TCP lane would tell the end of, in nanoseconds.
const QUESTION_NS: u64 = 1_000_000_000;
/// Time for the answers to questions that were asked when a connection was refused, in nanoseconds:
/// the refusal is the kernel's, or a firewall's, and comes sooner than the word of a process.
const REFUSED_NS: u64 = 100_000_000;
/// The memory of a process that was killed ends within this time of its control lane, in
/// nanoseconds: a kernel ends both, one after the other.
const RESET_NS: u64 = 1_000_000_000;
/// An idle path is asked so many times in a peer timeout.
const QUESTIONS_PER_TIMEOUT: u32 = 4;

/// What is known of the peer.
#[derive(Debug, Default)]
pub(super) struct Liveness {
    /// Since when it is suspect: its control lane was reset.
    suspected_ns: Option<u64>,
    /// What the kernel called that.
    error: String,
    /// When its host refused a connection, as it does when the process is gone; others on the way
    /// may, too.
    refused_ns: Option<u64>,
    /// When it was last asked for the sake of hearing from it.
    questioned_ns: u64,
    /// When it last shared memory, as far as was looked at, or showed otherwise that it is there.
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
    /// Whether the peer may be gone, as its control lane was reset.
    pub(super) fn is_peer_suspect(&self) -> bool {
        self.suspected_ns.is_some()
    }

    /// The peer is there.
    pub(super) fn handle_word(&mut self) {
        (self.suspected_ns, self.refused_ns) = (None, None);
        self.error.clear();
    }

    /// What the kernel called the end of its control lane.
    fn error_of_lane(&self) -> &str {
        if self.error.is_empty() { "its path was given up" } else { &self.error }
    }

    /// The peer has said that it is there.
    fn confirm(&mut self, now_ns: u64, paths: &mut Paths) {
        self.handle_word();
        paths.forget_silence(now_ns);
        tracing::debug!("a peer is there, though its control lane is not");
    }

    /// Asks idle paths now and then, so that one that fails is known before it is needed, and so is
    /// whether any is left when the kernel gives the control lane up.
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
    /// How long before a silence was noticed the peer was last heard. Its paths are asked some
    /// times in a peer timeout, so that is part of the silence; more than that shows only that
    /// nobody asked.
    fn silent_before(&self, paths: &mut Paths, silence: Duration) -> Duration {
        // From one question that was answered to the next but one, which is late and waited for.
        let most = 5 * self.peer_timeout / (2 * QUESTIONS_PER_TIMEOUT);
        if !paths.are_several() || paths.has_active() {
            return Duration::ZERO;
        }
        let Some(heard_ns) = paths.heard_ns() else { return Duration::ZERO };
        let before = Duration::from_nanos(self.age_ns(heard_ns)).saturating_sub(silence);
        if before <= most { before } else { Duration::ZERO }
    }
}

impl LaneMonitor {
    /// It failed: the session with it, unless that has several paths.
    ///
    /// RR-RAIL-7, RR-RAIL-8.
    pub(super) fn handle_failed(
        &mut self,
        error: &str,
        is_of_network: bool,
        facts: &Facts<'_>,
        paths: &Paths,
    ) -> Decision {
        let has_ring = paths.has_ring();
        let is_replaced = self.attempt_at().is_some();
        if !paths.are_several() && !has_ring && !is_replaced {
            self.end_with(error, is_of_network, facts)
        } else if !is_of_network {
            self.suspect(error, facts)
        } else if paths.has_active() || has_ring {
            self.liveness.error = error.to_owned();
            Decision::DropLane
        } else {
            self.end_with(error, is_of_network, facts)
        }
    }

    /// The session ends with it. A kernel that gives a silent host up says nothing of how long it
    /// waited.
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

    /// The peer closed it. One that has our goodbye does so, and its word of that may be lost.
    ///
    /// RR-RAIL-8.
    pub(super) fn handle_end_of_stream(&mut self, facts: &Facts<'_>) -> Decision {
        if self.attempt_at().is_some() {
            // The peer may have the other one already.
            self.suspect("closed by the peer", facts)
        } else if facts.is_goodbye_under_way {
            Decision::Fail(PeerFailure::Removed)
        } else {
            lost("its connection was closed without a goodbye")
        }
    }

    /// The kernel that both sides share says so, and nothing that a peer can do brings it about.
    ///
    /// RR-SHM-13.
    pub(super) fn handle_process_ended(facts: &Facts<'_>) -> Decision {
        if !facts.is_connected {
            Decision::Nothing
        } else if facts.is_goodbye_under_way {
            Decision::Fail(PeerFailure::Removed)
        } else {
            lost("its process has ended without a goodbye")
        }
    }

    /// It is no more, and that may mean the peer's end.
    ///
    /// RR-RAIL-8.
    pub(super) fn suspect(&mut self, error: &str, facts: &Facts<'_>) -> Decision {
        if facts.is_goodbye_under_way {
            // Whoever has that ends the session.
            return Decision::Fail(PeerFailure::Removed);
        }
        self.liveness.suspected_ns = Some(facts.now_ns);
        self.liveness.error = error.to_owned();
        Decision::Suspect
    }

    /// What the peer's kernel owes, and for how long.
    ///
    /// RR-END-2.
    pub(super) fn judge_silence(
        &mut self,
        owed: Owed,
        facts: &Facts<'_>,
        paths: &mut Paths,
    ) -> Decision {
        let limit = facts.peer_timeout;
        let has_another = paths.has_active() || paths.has_ring();
        // Networks may swallow connections alone: what only goes by one waits for another.
        let patience = patience(limit, facts.holds_long && has_another);
        let Some(silence) = self.silence.observe(facts.now_ns, owed, patience) else {
            let is_over = facts.has_left;
            return if is_over {
                Decision::Fail(PeerFailure::Removed)
            } else {
                Decision::AskForAck
            };
        };
        if silence > patience && has_another {
            return Decision::DropLane;
        }
        let before = facts.silent_before(paths, silence);
        if silence > limit - before {
            let silence = (silence + before).as_millis();
            let seen = self.segments_lost.as_deref().and_then(|lost| lost.cause.as_deref());
            return match seen {
                Some(seen) => lost(&format!(
                    "it has not acknowledged what was sent by TCP for {silence} ms: {seen}"
                )),
                None => lost(&format!("its host has not answered for {silence} ms")),
            };
        }
        Decision::Nothing
    }

    /// Without it nothing but answers to questions shows that the peer is there.
    ///
    /// RR-RAIL-7, RR-RAIL-8.
    pub(super) fn judge_without(&mut self, facts: &Facts<'_>, paths: &mut Paths) -> Decision {
        let Some(lost_ns) = self.lost_ns else { return Decision::Nothing };
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
            // Nothing but its answers shows that it is there.
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
            // A host may keep a connection that its process has not answered yet.
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
            // Nothing else carries them, and others wait for them.
            return lost(&format!(
                "messages that fit no datagram wait for a TCP connection, and none of its rails \
                 has let one through for {} ms, though datagrams pass: look for what filters TCP \
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

    /// The memory that the peer shared has ended. It does with the process, or where an engine goes
    /// to another thread.
    ///
    /// RR-SHM-8.
    pub(super) fn handle_ring_ended(&self, paths: &Paths) -> Decision {
        if !self.is_lost() || !self.liveness.is_peer_suspect() || paths.are_several() {
            return Decision::Nothing;
        }
        lost(self.liveness.error_of_lane())
    }

    /// Where nothing but a new lane would tell of the peer's end, a refusal does: its host answers,
    /// and nobody listens there any more.
    ///
    /// RR-RAIL-8.
    pub(super) fn handle_refused(&mut self, facts: &Facts<'_>, paths: &Paths) -> Decision {
        let is_news = self.is_lost() && self.liveness.refused_ns.is_none();
        if !is_news || !self.is_attempt_to_peer(paths) {
            return Decision::Nothing;
        }
        // The questions may go at this very time.
        self.liveness.refused_ns = Some(facts.now_ns.saturating_sub(1));
        Decision::AskPaths
    }

    /// The peer, and nobody else, has answered the hello of another one.
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
            // An honest process says this only if the hello names it, wherever it was found.
            (HelloStatus::UnknownSession, _) => {
                return lost("it has ended the session, whatever became of its word");
            }
            _ if !self.is_attempt_to_peer(paths) => {}
            (HelloStatus::WrongEngine, _) => return Decision::Fail(PeerFailure::Restarted),
            (HelloStatus::Leaving, _) => return Decision::Fail(PeerFailure::Left),
            _ => {}
        }
        Decision::DropAttempt
    }

    /// Whether the attempt goes where the peer was once heard: an address that was only announced
    /// may be anybody's.
    fn is_attempt_to_peer(&self, paths: &Paths) -> bool {
        let Some(at) = self.attempt_at() else { return false };
        paths.all().any(|path| path.position() == at && path.packets().is_answered())
    }
}
