//! Peers whose engines leave probes unanswered: other engines of their hosts are asked whether
//! their processes have ended ([`crate::proto::process_status`]).

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::Range;

use super::engine::Engine;
use crate::proto::process_status::ANSWER_NS;
use crate::proto::session::control_lane::LaneEvent;

/// Silent peers that are judged in one turn: for each, sessions may be searched.
const PEERS_PER_TURN: usize = 4;

/// Sessions whose peers were probed, until the answers are due.
#[derive(Debug, Default)]
pub(super) struct Probed {
    /// When they are due, and the sessions; in this order.
    due: VecDeque<(u64, Range<u32>)>,
}

impl Probed {
    /// Notes that sessions are probed now.
    pub(super) fn push(&mut self, now_ns: u64, sessions: Range<u32>) {
        self.due.push_back((now_ns + ANSWER_NS, sessions));
    }

    /// Returns when the next answers are due.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.due.front().map(|&(due_ns, _)| due_ns)
    }

    /// Removes sessions whose answers are due now.
    fn pop(&mut self, now_ns: u64) -> Option<Range<u32>> {
        if self.next_ns()? > now_ns {
            return None;
        }
        let (_, sessions) = self.due.pop_front()?;
        Some(sessions)
    }
}

impl Engine {
    /// Probes peers that did not answer, and asks others about them.
    ///
    /// RR-END-8.
    pub(super) fn check_silent_peers(&mut self) {
        let state = &mut *self.state;
        let now_ns = state.now_ns;
        while let Some(sessions) = state.engine_questions.probed.pop(now_ns) {
            for session in sessions {
                let paths = state.paths.of_mut(session);
                state.core.with(session, |it, cx| it.check_answer(cx, now_ns, paths));
            }
        }
        // Each is due later after this; others have the next turn.
        let mut left = PEERS_PER_TURN;
        while left > 0
            && let Some(session) = self.state.core.shared().processes().next_silent(now_ns)
        {
            left -= 1;
            let state = &mut *self.state;
            let paths = state.paths.of_mut(session);
            let decision = state.core.judge_silent_peer(session, now_ns, paths);
            self.carry_out_decision(session, decision);
        }
    }

    /// Ends the session with a silent peer whose process has ended, as the engine at `observer`
    /// reports, unless the peer has answered meanwhile.
    ///
    /// RR-END-8.
    pub(super) fn handle_reported_end(
        &mut self,
        session: u32,
        session_id: u64,
        observer: SocketAddr,
    ) {
        let known = self.state.core.session(session);
        if known.is_none_or(|known| known.id() != session_id) {
            return;
        }
        self.read_to_end(session);
        let state = &mut *self.state;
        let paths = state.paths.of_mut(session);
        if state.core.session(session).is_some_and(|it| it.silent_since_ns(paths).is_some()) {
            let observer = Some(observer);
            self.handle_lane_event(session, LaneEvent::ProcessEnded { observer });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_checked_when_they_are_due_in_order() {
        let mut probed = Probed::default();
        assert_eq!((probed.next_ns(), probed.pop(u64::MAX)), (None, None));
        probed.push(5, 0..64);
        probed.push(7, 64..70);
        assert_eq!(probed.next_ns(), Some(5 + ANSWER_NS));
        assert_eq!(probed.pop(4 + ANSWER_NS), None);
        assert_eq!(probed.pop(5 + ANSWER_NS), Some(0..64));
        assert_eq!(probed.pop(6 + ANSWER_NS), None);
        assert_eq!(probed.pop(8 + ANSWER_NS), Some(64..70));
        assert_eq!(probed.next_ns(), None);
    }
}
