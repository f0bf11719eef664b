//! Health of a path in a session with several paths.
//!
//! ```text
//!             answers enough, for long enough
//!  Probing ─────────────────────────────────────> Active
//!   ^  ^ │                                          │
//!   │  │ └─ 3 probes unanswered ─> Down             │ a probe unanswered, while another path
//!   │  └───── an answer ── Suspect <────────────────┤ answered a later packet
//!   │                        │ 3 probes unanswered  │
//!   └──── an answer ─ Down <─┴── silent, or no link ┘
//! ```
//!
//! A peer that is busy, suspended or overloaded answers on no path, so missing answers count
//! against a single path only in comparison: as soon as another path has delivered the answer to a
//! packet that was sent no earlier than the unanswered probe of this one, and one more round trip
//! has passed. One packet dropped by a full queue therefore has no effect; two in a row are
//! detected within three round trips, where a timeout without a reference takes many times as long.
//! Bulk data that arrives explains late answers by the queue ahead of them, so it counts for the
//! path; and overdue bulk data counts against it.
//!
//! A path that has never answered is down, too, when it is silent for long enough while another one
//! answers. That is reported for diagnostics; it carries no data before or after.
//!
//! An answer may still arrive late, when a queue has grown: the path is active again, and the next
//! time the grace period is twice as long, so that the error is not repeated often.
//!
//! A path that returns must answer several times in a row, and for a time that doubles when it soon
//! fails again: a flapping path carries nothing.

use std::fmt;

/// Answers in a row that make a path active again after it failed.
const ANSWERS_TO_RETURN: u32 = 3;
/// Probe timeouts in a row after which a suspect path is down.
const PROBES_TO_DOWN: u32 = 3;
/// Silence that makes a path down without a reference from another one, in nanoseconds: many times
/// as long as a process is descheduled.
const SILENCE_NS: u64 = 100_000_000;
/// The same for a path that has never answered: the peer may not have begun to probe.
const FIRST_SILENCE_NS: u64 = 1_000_000_000;
/// Minimum age of an answer on another path, in nanoseconds: packets sent on both paths at once may
/// arrive in any order.
const GRACE_MIN_NS: u64 = 500_000;
/// Maximum of that age, once a path was suspected whose answers were late, in nanoseconds.
const GRACE_MAX_NS: u64 = 32_000_000;
/// Interval without another error after which the age is halved, in nanoseconds.
const GRACE_HALF_LIFE_NS: u64 = 1_000_000_000;
/// Minimum and maximum time that a path must answer before it is active again, in nanoseconds.
const HOLD_MIN_NS: u64 = 2_000_000;
const HOLD_MAX_NS: u64 = 2_000_000_000;
/// A failure this soon after the return is a relapse, in nanoseconds.
const RELAPSE_NS: u64 = 1_000_000_000;
/// Longest interval of probes on a failed path, in nanoseconds.
const PROBE_PAUSE_MAX_NS: u64 = 50_000_000;
const PROBE_PAUSE_MIN_NS: u64 = 1_000_000;

/// State of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PathPhase {
    /// It is probed, and has not answered often enough.
    Probing,
    /// It carries data.
    Active,
    /// Answers are missing that other paths delivered: no new data is sent on it.
    Suspect,
    /// It does not answer.
    Down,
}

/// Why the state of a path changed. Displayed as text for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PathCause {
    /// It answered.
    Answered,
    /// It answered the probe for which it was suspected, only late.
    Late,
    /// The peer reports that it fails.
    PeerDoubts,
    /// Another path delivered the answer to a later packet.
    OthersAnswer,
    /// Its probes are not answered.
    ProbesLost,
    /// Probes are not answered although packets of the peer arrive.
    OneWay,
    /// Its NIC lost carrier.
    NoLink,
}

impl fmt::Display for PathCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Answered => "it answered",
            Self::Late => "its answers were late, not lost",
            Self::PeerDoubts => "the peer reports a failure",
            Self::OthersAnswer => "other paths answer, this one does not",
            Self::ProbesLost => "its probes are not answered",
            Self::OneWay => {
                "it works one way only: datagrams of the peer arrive, ours are not answered"
            }
            Self::NoLink => "its NIC has no carrier",
        })
    }
}

/// A change of state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Transition {
    pub(crate) from: PathPhase,
    pub(crate) to: PathPhase,
    pub(crate) cause: PathCause,
}

/// Packet statistics of a path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Evidence {
    /// Consecutive probe timeouts without any answer.
    pub(crate) probes: u32,
    /// When the last of them fired, and a probe was sent.
    pub(crate) probed_ns: u64,
    /// When the most recently sent acknowledged packet was sent; `None`: none was acknowledged.
    pub(crate) answered_sent_ns: Option<u64>,
    /// Since when packets are outstanding without an answer, while there are probes.
    pub(crate) unanswered_since_ns: u64,
    /// Upper bound of an ordinary round trip, in nanoseconds.
    pub(crate) round_trip_max_ns: u64,
    /// Packets of the peer that arrived on it.
    pub(crate) arrived: u64,
    /// When bulk data last arrived on it.
    pub(crate) bulk_ns: u64,
    /// Bulk data is overdue on it.
    pub(crate) is_stalled: bool,
}

/// The most recent answer on the other paths, as a reference.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReferenceAck {
    /// When the answered packet was sent.
    pub(crate) sent_ns: u64,
    /// When the answer arrived.
    pub(crate) came_ns: u64,
}

/// Health of a path; see the module.
#[derive(Clone, Debug)]
pub(crate) struct RailHealth {
    phase: PathPhase,
    since_ns: u64,
    /// Answers in a row since the last failure.
    answers: u32,
    /// When the first of them arrived.
    answers_since_ns: u64,
    needed: u32,
    hold_ns: u64,
    /// Send time of the packet whose answer was counted last.
    seen_sent_ns: Option<u64>,
    /// When that answer arrived.
    came_ns: u64,
    /// Number of received packets when its probes were last answered.
    arrived_then: u64,
    has_link: bool,
    probe_at_ns: u64,
    probe_pause_ns: u64,
    /// Learned grace period for late answers, and since when it applies.
    lateness_ns: u64,
    lateness_since_ns: u64,
    /// Since when it lags behind the answer of another path.
    outdone_since_ns: Option<u64>,
    /// The peer has abandoned it, which has not been evaluated yet.
    is_suspected: bool,
    /// The peer had abandoned it when the path became suspect.
    was_suspected: bool,
}

impl RailHealth {
    /// Creates a path that was not probed yet.
    pub(crate) fn new(now_ns: u64) -> Self {
        Self {
            phase: PathPhase::Probing,
            since_ns: now_ns,
            answers: 0,
            answers_since_ns: now_ns,
            needed: 1,
            hold_ns: 0,
            seen_sent_ns: None,
            came_ns: 0,
            arrived_then: 0,
            has_link: true,
            probe_at_ns: now_ns,
            probe_pause_ns: PROBE_PAUSE_MIN_NS,
            lateness_ns: 0,
            lateness_since_ns: now_ns,
            outdone_since_ns: None,
            is_suspected: false,
            was_suspected: false,
        }
    }

    /// Returns its state.
    pub(crate) fn phase(&self) -> PathPhase {
        self.phase
    }

    /// Returns whether it carries data.
    pub(crate) fn is_active(&self) -> bool {
        self.phase == PathPhase::Active
    }

    /// Returns whether it does not answer.
    pub(crate) fn is_down(&self) -> bool {
        self.phase == PathPhase::Down
    }

    /// Returns whether no packet was ever answered on it.
    pub(crate) fn has_never_answered(&self) -> bool {
        self.seen_sent_ns.is_none()
    }

    /// Returns its latest answer as a reference for other paths.
    pub(crate) fn reference(&self) -> Option<ReferenceAck> {
        let sent_ns = self.seen_sent_ns.filter(|_| self.is_active() || self.answers > 0)?;
        Some(ReferenceAck { sent_ns, came_ns: self.came_ns })
    }

    /// Evaluates the path. `reference` is the newest one of the other paths; `is_needed`: none of
    /// them is active, so that the first answer is enough.
    pub(crate) fn observe(
        &mut self,
        now_ns: u64,
        evidence: &Evidence,
        reference: Option<ReferenceAck>,
        is_needed: bool,
    ) -> Option<Transition> {
        let is_new_answer = evidence.answered_sent_ns > self.seen_sent_ns;
        // The answer to the probe for which it was suspected.
        let was_late = self.phase == PathPhase::Suspect
            && !self.was_suspected
            && is_new_answer
            && evidence.answered_sent_ns < Some(self.since_ns);
        if is_new_answer {
            self.handle_answer(now_ns, evidence);
        }
        if was_late {
            self.learn_lateness(now_ns, evidence);
        }
        let is_suspected = std::mem::take(&mut self.is_suspected);
        let is_outdone = self.is_outdone(now_ns, evidence, reference);
        let silent_ns = now_ns.saturating_sub(evidence.unanswered_since_ns);
        let is_silent = evidence.probes >= PROBES_TO_DOWN && silent_ns >= SILENCE_NS;
        let is_mute = self.has_never_answered()
            && is_silent
            && (reference.is_some() || silent_ns >= FIRST_SILENCE_NS);
        let (to, cause) = match self.phase {
            _ if !self.has_link && reference.is_some() => (PathPhase::Down, PathCause::NoLink),
            PathPhase::Active if is_silent => (PathPhase::Down, self.why_lost(evidence)),
            PathPhase::Active if is_suspected && reference.is_some() => {
                (PathPhase::Suspect, PathCause::PeerDoubts)
            }
            PathPhase::Active if is_outdone => (PathPhase::Suspect, PathCause::OthersAnswer),
            PathPhase::Suspect | PathPhase::Down | PathPhase::Probing
                if is_needed && is_new_answer =>
            {
                (PathPhase::Active, PathCause::Answered)
            }
            PathPhase::Suspect if was_late => (PathPhase::Active, PathCause::Late),
            PathPhase::Suspect | PathPhase::Down if is_new_answer => {
                (PathPhase::Probing, PathCause::Answered)
            }
            PathPhase::Suspect if evidence.probes >= PROBES_TO_DOWN => {
                (PathPhase::Down, self.why_lost(evidence))
            }
            PathPhase::Probing if evidence.probes >= PROBES_TO_DOWN && self.needed > 1 => {
                (PathPhase::Down, self.why_lost(evidence))
            }
            PathPhase::Probing if self.has_returned(now_ns) => {
                (PathPhase::Active, PathCause::Answered)
            }
            PathPhase::Probing if is_mute => (PathPhase::Down, self.why_lost(evidence)),
            _ => return None,
        };
        self.change(now_ns, to, cause)
    }

    /// Handles a carrier change of its NIC: a hint, which the path itself confirms.
    pub(crate) fn handle_link(&mut self, now_ns: u64, is_up: bool) {
        self.has_link = is_up;
        if is_up {
            (self.probe_at_ns, self.probe_pause_ns) = (now_ns, PROBE_PAUSE_MIN_NS);
        }
    }

    /// Notes that the peer reports its failure: evaluated while another path is active.
    pub(crate) fn suspect(&mut self) {
        self.is_suspected = true;
    }

    /// Returns when it has to be probed or evaluated at the latest. `None`: without a limit.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        (self.phase != PathPhase::Active).then_some(self.probe_at_ns)
    }

    /// Returns whether a probe is due, and takes it as sent.
    pub(crate) fn take_probe(&mut self, now_ns: u64) -> bool {
        if self.phase == PathPhase::Active || now_ns < self.probe_at_ns {
            return false;
        }
        self.probe_at_ns = now_ns + self.probe_pause_ns;
        if self.answers == 0 {
            self.probe_pause_ns = (2 * self.probe_pause_ns).min(PROBE_PAUSE_MAX_NS);
        }
        true
    }

    fn handle_answer(&mut self, now_ns: u64, evidence: &Evidence) {
        self.seen_sent_ns = evidence.answered_sent_ns;
        (self.came_ns, self.arrived_then) = (now_ns, evidence.arrived);
        self.outdone_since_ns = None;
        // An answer overrides the carrier state.
        self.has_link = true;
        if self.phase == PathPhase::Active {
            return;
        }
        if self.answers == 0 {
            self.answers_since_ns = now_ns;
        }
        self.answers += 1;
        // The next probe is immediate: the rate of answers shows its state.
        (self.probe_at_ns, self.probe_pause_ns) = (now_ns, PROBE_PAUSE_MIN_NS);
    }

    fn has_returned(&self, now_ns: u64) -> bool {
        self.answers >= self.needed && now_ns.saturating_sub(self.answers_since_ns) >= self.hold_ns
    }

    fn lateness_ns(&self, now_ns: u64) -> u64 {
        let calm_ns = now_ns.saturating_sub(self.lateness_since_ns);
        self.lateness_ns >> (calm_ns / GRACE_HALF_LIFE_NS).min(63)
    }

    /// Doubles the grace period after a false suspicion.
    fn learn_lateness(&mut self, now_ns: u64, evidence: &Evidence) {
        let usual_ns = evidence.round_trip_max_ns.max(GRACE_MIN_NS);
        self.lateness_ns = (2 * usual_ns.max(self.lateness_ns(now_ns))).min(GRACE_MAX_NS);
        self.lateness_since_ns = now_ns;
    }

    /// Returns whether it lags behind another path, with time for its own answer to arrive: a peer
    /// that was suspended answers on all paths together.
    fn is_outdone(
        &mut self,
        now_ns: u64,
        evidence: &Evidence,
        reference: Option<ReferenceAck>,
    ) -> bool {
        let is_owing = evidence.probes > 0 && evidence.bulk_ns < evidence.probed_ns;
        let younger = reference.filter(|reference| reference.sent_ns >= evidence.probed_ns);
        let since_ns = match (self.outdone_since_ns, younger) {
            _ if !is_owing => None,
            (Some(since_ns), _) => Some(since_ns),
            (None, younger) => younger.map(|reference| reference.came_ns),
        };
        self.outdone_since_ns = since_ns;
        let mistakes_ns = if evidence.is_stalled { 0 } else { self.lateness_ns(now_ns) };
        let grace_ns = evidence.round_trip_max_ns.max(GRACE_MIN_NS).max(mistakes_ns);
        since_ns.is_some_and(|since_ns| now_ns >= since_ns + grace_ns)
    }

    fn why_lost(&self, evidence: &Evidence) -> PathCause {
        // One packet may have been in flight when it failed.
        if evidence.arrived > self.arrived_then + 1 {
            PathCause::OneWay
        } else {
            PathCause::ProbesLost
        }
    }

    fn change(&mut self, now_ns: u64, to: PathPhase, cause: PathCause) -> Option<Transition> {
        let from = self.phase;
        if from == to {
            return None;
        }
        self.was_suspected = cause == PathCause::PeerDoubts;
        match to {
            PathPhase::Active => {}
            PathPhase::Probing => self.needed = ANSWERS_TO_RETURN,
            PathPhase::Suspect | PathPhase::Down => {
                if from == PathPhase::Active {
                    let is_relapse = now_ns.saturating_sub(self.since_ns) < RELAPSE_NS;
                    self.hold_ns = if is_relapse { (2 * self.hold_ns).min(HOLD_MAX_NS) } else { 0 };
                    self.hold_ns = self.hold_ns.max(HOLD_MIN_NS);
                }
                (self.answers, self.needed) = (0, ANSWERS_TO_RETURN);
                (self.probe_at_ns, self.probe_pause_ns) = (now_ns, PROBE_PAUSE_MIN_NS);
            }
        }
        debug_assert!(
            to == PathPhase::Active || to == PathPhase::Probing || self.answers == 0,
            "answers are counted since the failure"
        );
        debug_assert!(self.hold_ns <= HOLD_MAX_NS, "each path returns some time");
        (self.phase, self.since_ns) = (to, now_ns);
        Some(Transition { from, to, cause })
    }
}

#[cfg(test)]
mod tests;
