//! Whether a path of a session that has several is to be relied on.
//!
//! ```text
//!             answers enough, for long enough
//!  Probing ─────────────────────────────────────> Active
//!   ^  ^ │                                          │
//!   │  │ └─ a probe unanswered ─> Down              │ a probe unanswered, while another path
//!   │  └───── an answer ── Suspect <────────────────┤ answered what was sent later
//!   │                        │ 3 probes unanswered  │
//!   └──── an answer ─ Down <─┴── silent, or no link ┘
//! ```
//!
//! A peer that is busy, stopped or overloaded answers on no path, so silence of one path alone
//! speaks against it: as soon as another path has brought the answer to something that was sent
//! no earlier than the probe which this one has not answered, and a round trip more has passed. One
//! packet that is dropped by a full queue so means nothing; two in a row take three round trips to
//! be noticed, where a time-out that trusts no other path takes many times as long.
//!
//! A path that comes back must answer several times in a row, and for a while that doubles when it
//! soon fails again: one that flaps carries nothing.

/// Answers in a row that make a path active again after it failed.
const ANSWERS_TO_RETURN: u32 = 3;
/// Probe timeouts in a row after which a suspect path is down.
const PROBES_TO_DOWN: u32 = 3;
/// Silence that makes a path down although no other one bears witness, in nanoseconds: many times
/// as long as a process is kept from its core.
const SILENCE_NS: u64 = 100_000_000;
/// Least time that an answer on another path must be old, in nanoseconds: what was sent on both at
/// once may overtake each other.
const GRACE_MIN_NS: u64 = 500_000;
/// First and longest time that a path must answer before it is active again, in nanoseconds.
const HOLD_MIN_NS: u64 = 2_000_000;
const HOLD_MAX_NS: u64 = 2_000_000_000;
/// A failure so soon after the return is a relapse, in nanoseconds.
const RELAPSE_NS: u64 = 1_000_000_000;
/// Longest pause between probes of a path that fails, in nanoseconds.
const PROBE_PAUSE_MAX_NS: u64 = 50_000_000;
const PROBE_PAUSE_MIN_NS: u64 = 1_000_000;

/// State of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// It is asked, and has not answered often enough.
    Probing,
    /// It carries what it is given.
    Active,
    /// It owes answers that others brought: nothing new goes there.
    Suspect,
    /// It does not answer.
    Down,
}

/// What speaks for a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cause {
    /// It answered.
    Answered,
    /// Another path brought an answer to something sent later.
    OthersAnswer,
    /// Its probes are not answered.
    ProbesLost,
    /// Probes are not answered although packets of the peer arrive.
    OneWay,
    /// Its NIC lost its link.
    NoLink,
}

impl Cause {
    /// For people.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Answered => "it answered",
            Self::OthersAnswer => "other paths answer, this one does not",
            Self::ProbesLost => "its probes are not answered",
            Self::OneWay => {
                "it works one way only: datagrams of the peer arrive, ours are not answered"
            }
            Self::NoLink => "its NIC has no link",
        }
    }
}

/// A change of state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Transition {
    pub(crate) from: Phase,
    pub(crate) to: Phase,
    pub(crate) cause: Cause,
}

/// What the packet layer knows of a path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Evidence {
    /// Probe timeouts in a row without any answer.
    pub(crate) probes: u32,
    /// When the last of them fired, and a probe went.
    pub(crate) probed_ns: u64,
    /// When the newest packet that was answered had been sent; `None`: none was ever answered.
    pub(crate) answered_sent_ns: Option<u64>,
    /// Since when something is under way and nothing was answered, while there are probes.
    pub(crate) unanswered_since_ns: u64,
    /// A round trip that is no surprise, in nanoseconds.
    pub(crate) round_trip_max_ns: u64,
    /// Packets of the peer that arrived on it.
    pub(crate) arrived: u64,
}

/// The best witness among the other paths.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Witness {
    /// When what it answered had been sent.
    pub(crate) sent_ns: u64,
    /// When that answer came.
    pub(crate) came_ns: u64,
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Health {
    phase: Phase,
    since_ns: u64,
    /// Answers in a row since the last failure.
    answers: u32,
    /// When the first of them came.
    answers_since_ns: u64,
    needed: u32,
    hold_ns: u64,
    /// Newest answer that was counted: when what it answers had been sent.
    seen_sent_ns: Option<u64>,
    /// When it came.
    came_ns: u64,
    /// Packets that had arrived when its probes were last answered.
    arrived_then: u64,
    has_link: bool,
    probe_at_ns: u64,
    probe_pause_ns: u64,
}

impl Health {
    /// A path that nobody has asked yet.
    pub(crate) fn new(now_ns: u64) -> Self {
        Self {
            phase: Phase::Probing,
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
        }
    }

    /// How it fares.
    pub(crate) fn phase(&self) -> Phase {
        self.phase
    }

    /// Whether it carries what it is given.
    pub(crate) fn is_active(&self) -> bool {
        self.phase == Phase::Active
    }

    /// Whether it does not answer.
    pub(crate) fn is_down(&self) -> bool {
        self.phase == Phase::Down
    }

    /// What it can say of other paths.
    pub(crate) fn witness(&self) -> Option<Witness> {
        let sent_ns = self.seen_sent_ns.filter(|_| self.is_active() || self.answers > 0)?;
        Some(Witness { sent_ns, came_ns: self.came_ns })
    }

    /// Looks at the path. `witness` is the newest of the other paths; `is_needed`: none of them is
    /// active, so that there is nothing to wait for once it answers.
    pub(crate) fn observe(
        &mut self,
        now_ns: u64,
        evidence: &Evidence,
        witness: Option<Witness>,
        is_needed: bool,
    ) -> Option<Transition> {
        let is_new_answer = evidence.answered_sent_ns > self.seen_sent_ns;
        if is_new_answer {
            self.handle_answer(now_ns, evidence);
        }
        let silent_ns = now_ns.saturating_sub(evidence.unanswered_since_ns);
        let is_silent = evidence.probes >= PROBES_TO_DOWN && silent_ns >= SILENCE_NS;
        let (to, cause) = match self.phase {
            _ if !self.has_link && witness.is_some() => (Phase::Down, Cause::NoLink),
            Phase::Active if is_silent => (Phase::Down, self.why_lost(evidence)),
            Phase::Active if self.is_outdone(now_ns, evidence, witness) => {
                (Phase::Suspect, Cause::OthersAnswer)
            }
            Phase::Suspect | Phase::Down | Phase::Probing if is_needed && is_new_answer => {
                (Phase::Active, Cause::Answered)
            }
            Phase::Suspect | Phase::Down if is_new_answer => (Phase::Probing, Cause::Answered),
            Phase::Suspect if evidence.probes >= PROBES_TO_DOWN => {
                (Phase::Down, self.why_lost(evidence))
            }
            Phase::Probing if evidence.probes >= PROBES_TO_DOWN && self.needed > 1 => {
                (Phase::Down, self.why_lost(evidence))
            }
            Phase::Probing if self.has_returned(now_ns) => (Phase::Active, Cause::Answered),
            _ => return None,
        };
        self.change(now_ns, to, cause)
    }

    /// Its NIC has a link, or has none: a hint, that the path itself confirms.
    pub(crate) fn handle_link(&mut self, now_ns: u64, is_up: bool) {
        self.has_link = is_up;
        if is_up {
            (self.probe_at_ns, self.probe_pause_ns) = (now_ns, PROBE_PAUSE_MIN_NS);
        }
    }

    /// When it wants to be asked, or looked at again, at the latest. `None`: not on its own.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        (self.phase != Phase::Active).then_some(self.probe_at_ns)
    }

    /// Whether it is to be asked now, which has been done then.
    pub(crate) fn take_probe(&mut self, now_ns: u64) -> bool {
        if self.phase == Phase::Active || now_ns < self.probe_at_ns {
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
        // Whatever was said of its link.
        self.has_link = true;
        if self.phase == Phase::Active {
            return;
        }
        if self.answers == 0 {
            self.answers_since_ns = now_ns;
        }
        self.answers += 1;
        // The next one at once: it is the pace of answers that says how it is.
        (self.probe_at_ns, self.probe_pause_ns) = (now_ns, PROBE_PAUSE_MIN_NS);
    }

    fn has_returned(&self, now_ns: u64) -> bool {
        self.answers >= self.needed && now_ns.saturating_sub(self.answers_since_ns) >= self.hold_ns
    }

    fn is_outdone(&self, now_ns: u64, evidence: &Evidence, witness: Option<Witness>) -> bool {
        let grace_ns = evidence.round_trip_max_ns.max(GRACE_MIN_NS);
        evidence.probes > 0
            && witness.is_some_and(|witness| {
                witness.sent_ns >= evidence.probed_ns && now_ns >= witness.came_ns + grace_ns
            })
    }

    fn why_lost(&self, evidence: &Evidence) -> Cause {
        // One packet may have been under way when it failed.
        if evidence.arrived > self.arrived_then + 1 { Cause::OneWay } else { Cause::ProbesLost }
    }

    fn change(&mut self, now_ns: u64, to: Phase, cause: Cause) -> Option<Transition> {
        let from = self.phase;
        if from == to {
            return None;
        }
        match to {
            Phase::Active => {}
            Phase::Probing => self.needed = ANSWERS_TO_RETURN,
            Phase::Suspect | Phase::Down => {
                if from == Phase::Active {
                    let is_relapse = now_ns.saturating_sub(self.since_ns) < RELAPSE_NS;
                    self.hold_ns = if is_relapse { (2 * self.hold_ns).min(HOLD_MAX_NS) } else { 0 };
                    self.hold_ns = self.hold_ns.max(HOLD_MIN_NS);
                }
                (self.answers, self.needed) = (0, ANSWERS_TO_RETURN);
                (self.probe_at_ns, self.probe_pause_ns) = (now_ns, PROBE_PAUSE_MIN_NS);
            }
        }
        (self.phase, self.since_ns) = (to, now_ns);
        Some(Transition { from, to, cause })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn evidence(probes: u32, probed_ns: u64, answered: Option<u64>) -> Evidence {
        Evidence {
            probes,
            probed_ns,
            answered_sent_ns: answered,
            unanswered_since_ns: probed_ns,
            round_trip_max_ns: 100_000,
            arrived: 0,
        }
    }

    fn active() -> Health {
        let mut health = Health::new(0);
        let up = health.observe(MS, &evidence(0, 0, Some(1)), None, false).unwrap();
        assert_eq!((up.from, up.to), (Phase::Probing, Phase::Active));
        health
    }

    fn witness(sent_ns: u64, came_ns: u64) -> Option<Witness> {
        Some(Witness { sent_ns, came_ns })
    }

    /// RR-RAIL-4
    #[test]
    fn a_path_is_suspect_once_another_one_answered_something_younger() {
        let mut health = active();
        let owes = evidence(1, 10 * MS, Some(1));
        for harmless in [None, witness(9 * MS, 11 * MS), witness(11 * MS, 12 * MS)] {
            assert_eq!(
                health.observe(12 * MS + 100_000, &owes, harmless, false),
                None,
                "{harmless:?}"
            );
        }
        let quiet = evidence(0, 10 * MS, Some(1));
        assert_eq!(health.observe(20 * MS, &quiet, witness(11 * MS, 12 * MS), false), None);
        let down = health.observe(13 * MS, &owes, witness(11 * MS, 12 * MS), false).unwrap();
        assert_eq!((down.to, down.cause), (Phase::Suspect, Cause::OthersAnswer));
        let down = health.observe(14 * MS, &evidence(3, 10 * MS, Some(1)), None, false).unwrap();
        assert_eq!((down.to, down.cause), (Phase::Down, Cause::ProbesLost));
    }

    /// RR-RAIL-4
    #[test]
    fn a_peer_that_stands_still_makes_no_path_suspect() {
        let (mut one, mut two) = (active(), active());
        for probes in 1..4 {
            let now_ns = 10 * MS + u64::from(probes) * 10 * MS;
            let owes = evidence(probes, 10 * MS, Some(1));
            assert_eq!(one.observe(now_ns, &owes, two.witness(), false), None);
            assert_eq!(two.observe(now_ns, &owes, one.witness(), false), None);
        }
        let owes = evidence(5, 10 * MS, Some(1));
        assert_eq!(one.observe(109 * MS, &owes, two.witness(), false), None);
        assert_eq!(one.observe(110 * MS, &owes, two.witness(), false).unwrap().to, Phase::Down);
    }

    /// RR-RAIL-6
    #[test]
    fn a_path_returns_after_several_answers_and_one_that_flaps_after_ever_more() {
        let mut health = active();
        let (mut now_ns, mut sent_ns, mut last_hold_ns) = (5_000 * MS, 2, 0);
        for round in 0..8 {
            let owes = evidence(1, now_ns, Some(sent_ns));
            now_ns += 5 * MS;
            health.observe(now_ns, &owes, witness(now_ns - MS, now_ns - MS), false).unwrap();
            let failed_ns = now_ns;
            while !health.is_active() {
                assert!(now_ns - failed_ns < 10_000 * MS);
                now_ns += MS;
                if health.take_probe(now_ns) {
                    sent_ns += 1;
                    health.observe(now_ns, &evidence(0, now_ns, Some(sent_ns)), None, false);
                } else {
                    health.observe(now_ns, &evidence(0, now_ns, Some(sent_ns)), None, false);
                }
            }
            let hold_ns = now_ns - failed_ns;
            assert!(hold_ns >= last_hold_ns, "{round}: {hold_ns} after {last_hold_ns}");
            last_hold_ns = hold_ns;
        }
        assert!(last_hold_ns >= 200 * MS, "{last_hold_ns}");
        // Long after that a failure is the first one again.
        now_ns += 2 * RELAPSE_NS;
        health.observe(
            now_ns,
            &evidence(1, 1, Some(sent_ns)),
            witness(now_ns - MS, now_ns - MS),
            false,
        );
        assert_eq!(health.hold_ns, HOLD_MIN_NS);
    }

    /// RR-RAIL-6
    #[test]
    fn the_only_path_that_answers_is_taken_at_once() {
        let mut health = active();
        let owes = evidence(5, MS, Some(1));
        assert_eq!(health.observe(200 * MS, &owes, None, true).unwrap().to, Phase::Down);
        let answers = evidence(0, MS, Some(200 * MS));
        assert_eq!(health.observe(201 * MS, &answers, None, true).unwrap().to, Phase::Active);
    }

    /// RR-RAIL-4
    #[test]
    fn a_link_that_goes_and_packets_that_come_one_way_are_told_apart() {
        let mut health = active();
        health.handle_link(10 * MS, false);
        assert_eq!(health.observe(10 * MS, &evidence(0, 0, Some(1)), None, false), None);
        let told = health.observe(10 * MS, &evidence(0, 0, Some(1)), witness(0, 0), false).unwrap();
        assert_eq!((told.to, told.cause), (Phase::Down, Cause::NoLink));
        let mut health = active();
        let silent = Evidence { arrived: 9, ..evidence(5, MS, Some(1)) };
        assert_eq!(health.observe(200 * MS, &silent, None, false).unwrap().cause, Cause::OneWay);
    }

    #[test]
    fn probes_become_rare_and_never_stop() {
        let mut health = active();
        health.observe(200 * MS, &evidence(5, MS, Some(1)), None, false);
        let probes: Vec<u64> = (200 * MS..2200 * MS)
            .step_by(100_000)
            .filter(|&now_ns| health.take_probe(now_ns))
            .collect();
        assert!((40..80).contains(&probes.len()), "{}", probes.len());
        assert!(probes.windows(2).all(|pair| pair[1] - pair[0] <= PROBE_PAUSE_MAX_NS + MS));
    }
}
