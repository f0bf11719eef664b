//! Moves the control connection of a session to another rail when its own fails.
//!
//! In a session with several paths short messages do not depend on that connection, but it shows
//! the peer's end and carries long messages, and all of them while no path is fit. When its path is
//! down, or another one permanently carries the short messages, or it is lost, the side that opened
//! the session opens another one on a healthy path, which joins the session as bulk lanes do and
//! replaces the old one. Data lost with that is sent again.

use super::super::late::AtRest;
use super::{Decision, Facts, LaneMonitor};
use crate::proto::paths::{Paths, SessionPath};

/// Pause after an attempt, in nanoseconds. Doubles with several failures, unless the peer is
/// suspect.
const PAUSE_NS: u64 = 90_000_000;
/// Time for TCP to connect before another path is tried, in nanoseconds. Doubles with each failed
/// attempt, since round trips may be long.
const CONNECT_NS: u64 = 250_000_000;

/// How long another path must carry segments before the control lane follows, for the sake of long
/// ones, in nanoseconds: longer than a trial of a path that turns out to be worse.
const SETTLED_NS: u64 = 50_000_000;
/// Time after a failed attempt before another attempt to follow, in nanoseconds.
const FOLLOW_AGAIN_NS: u64 = 30_000_000_000;

/// Time after which the peer is asked again to replace a lane with too long segments, in
/// nanoseconds: its attempt may have failed.
const REPORT_INTERVAL_NS: u64 = 1_000_000_000;

/// An attempt under way.
#[derive(Clone, Copy, Debug)]
struct Attempt {
    /// Position of its path.
    at: u8,
    /// TCP is connected, and the hello is sent.
    is_connected: bool,
}

/// Migration state; see the module.
#[derive(Debug, Default)]
pub(super) struct Migration {
    attempt: Option<Attempt>,
    /// When the last attempt began or failed; 0: none.
    since_ns: u64,
    /// Consecutive failed attempts.
    failures: u32,
    /// Position of the path of the last attempt, or of a lane dropped since.
    last_at: u8,
}

impl AtRest for Migration {
    const AT_REST: &'static Self = &Self { attempt: None, since_ns: 0, failures: 0, last_at: 0 };
}

impl Migration {
    /// Resets the state after another lane, opened by either side, was established.
    pub(super) fn after(now_ns: u64) -> Self {
        Self { since_ns: now_ns, ..Self::default() }
    }

    pub(super) fn handle_dropped(&mut self, at: u8) {
        (self.last_at, self.failures) = (at, 0);
    }

    pub(super) fn is_attempt_connected(&self) -> bool {
        self.attempt.is_some_and(|attempt| attempt.is_connected)
    }

    /// Returns the segments' path, if the lane is to move there from a path that is down, or that
    /// long messages leave.
    ///
    /// RR-RAIL-7.
    fn leave_for(&self, facts: &Facts<'_>, paths: &Paths) -> Option<u8> {
        let at = paths.stream_at();
        let primary = paths.primary_at().filter(|&primary| primary != at);
        let has_streamed = paths.has_streamed();
        let is_in_doubt = paths.is_down(at) || (has_streamed && paths.is_suspect(at));
        // Where it could not connect it is not needed either.
        let may_follow = self.failures == 0 || facts.age_ns(self.since_ns) > FOLLOW_AGAIN_NS;
        let is_settled = has_streamed && paths.are_settled(facts.now_ns, SETTLED_NS);
        let follows = is_settled && may_follow && !facts.is_leaving;
        primary.filter(|_| is_in_doubt || follows)
    }

    /// Returns the next path for a session without a lane: all in turn, healthy ones first, and
    /// that of the last lane or attempt last.
    ///
    /// RR-RAIL-8.
    fn next_turn(&self, facts: &Facts<'_>, paths: &Paths) -> Option<u8> {
        // Behind a NAT the peer's own address may be another host's, and so may one without
        // answers.
        let answered_ip = |path: &SessionPath| path.packets().is_answered().then(|| path.ip());
        let is_there = |path: &&SessionPath| {
            let way = facts.rails.way(path.position(), facts.locator);
            facts.is_initiator || way.is_some_and(|(to, _)| Some(to.ip()) == answered_ip(path))
        };
        let turn = |at: u8| at.wrapping_sub(self.last_at).wrapping_sub(1);
        let order = |path: &&SessionPath| (!path.is_active(), turn(path.position()));
        paths.all().filter(is_there).min_by_key(order).map(SessionPath::position)
    }
}

impl LaneMonitor {
    /// Notes that the attempt is connected, and its hello sent.
    pub(crate) fn handle_attempt_connected(&mut self) {
        let attempt = &mut self.migration.attempt;
        if let Some(attempt) = debug_assert_some!(attempt, "the loop drops other attempts") {
            debug_assert!(!attempt.is_connected, "an attempt is connected once");
            attempt.is_connected = true;
        }
    }

    /// Notes that the attempt failed.
    pub(crate) fn handle_attempt_failed(&mut self, now_ns: u64) {
        (self.migration.attempt, self.migration.since_ns) = (None, now_ns);
        self.migration.failures += 1;
    }

    /// Returns the position of the attempt's path.
    pub(crate) fn attempt_at(&self) -> Option<u8> {
        self.migration.attempt.map(|attempt| attempt.at)
    }

    /// Returns whether the attempt takes too long. `hello_ns`: time for the reply to a hello.
    pub(crate) fn is_attempt_late(&self, now_ns: u64, hello_ns: u64, peer_timeout_ns: u64) -> bool {
        let Migration { attempt, since_ns, failures, .. } = *self.migration;
        attempt.is_some_and(|attempt| {
            let limit_ns = match attempt.is_connected {
                false => (CONNECT_NS << failures.min(10)).min(hello_ns),
                // A suspended process answers when it resumes.
                true if self.liveness.is_peer_suspect() => hello_ns.max(peer_timeout_ns),
                true => hello_ns,
            };
            now_ns.saturating_sub(since_ns) > limit_ns
        })
    }

    /// Its segments are too long for its path, and what waits behind them goes by another one: the
    /// side that opened it opens that on the same path, with shorter ones.
    ///
    /// RR-LANE-8.
    pub(super) fn replace(
        &mut self,
        bytes: u16,
        cause: Option<String>,
        facts: &Facts<'_>,
        paths: &Paths,
    ) -> Decision {
        let at = paths.stream_at();
        let is_there = paths.all().any(|path| path.position() == at);
        let is_lost = self.is_lost();
        let known = self.segments_lost.get_or_insert_default();
        known.cause = cause.or(known.cause.take());
        if !facts.is_connected || is_lost || !is_there {
            // Without datagrams nothing goes by another one.
            return Decision::Nothing;
        }
        if !facts.is_initiator {
            let is_due = known
                .reported_ns
                .is_none_or(|reported_ns| facts.age_ns(reported_ns) > REPORT_INTERVAL_NS);
            if is_due {
                known.reported_ns = Some(facts.now_ns);
            }
            return if is_due { Decision::ReportSegmentsLost { bytes } } else { Decision::Nothing };
        }
        let known = &mut self.migration;
        let is_late = known.since_ns == 0 || facts.age_ns(known.since_ns) > PAUSE_NS;
        if known.attempt.is_some() || !is_late {
            return Decision::Nothing;
        }
        (known.since_ns, known.last_at) = (facts.now_ns, at);
        known.attempt = Some(Attempt { at, is_connected: false });
        Decision::Open { at }
    }

    /// Another one is opened if it is needed, none is under way, and the last attempt is not of
    /// just now.
    ///
    /// RR-RAIL-7, RR-RAIL-8.
    pub(super) fn poll_move(&mut self, facts: &Facts<'_>, paths: &Paths) -> Decision {
        let (is_lost, is_suspect) = (self.is_lost(), self.liveness.is_peer_suspect());
        let known = &mut self.migration;
        let doublings = if is_suspect { 0 } else { known.failures.min(3) };
        let is_late = known.since_ns == 0 || facts.age_ns(known.since_ns) > PAUSE_NS << doublings;
        // The other side probes the peer, and waits for the lane that the opener opens.
        let is_asking = is_lost && (is_suspect || paths.silent_since_ns().is_some());
        let may_move = facts.is_connected && (facts.is_initiator || is_asking);
        if !may_move || !is_late || known.attempt.is_some() {
            return Decision::Nothing;
        }
        let at =
            if is_lost { known.next_turn(facts, paths) } else { known.leave_for(facts, paths) };
        let Some(at) = at else { return Decision::Nothing };
        (known.since_ns, known.last_at) = (facts.now_ns, at);
        known.attempt = Some(Attempt { at, is_connected: false });
        Decision::Open { at }
    }
}
