//! Monitors whether the peer's engine answers, where its host does.
//!
//! A kernel acknowledges data for a suspended process, and for a killed one as long as a child
//! keeps its connections. An engine with datagrams answers probes within milliseconds, independent
//! of its owner. So it is probed periodically, and silence of the engine for the silent timeout
//! ends the session. Until then it may resume.

use std::time::Duration;

use super::super::core::Core;
use super::super::late::AtRest;
use super::super::paths::Paths;
use super::{Decision, lost};

/// Number of probes in a silent timeout. As many must be unanswered, besides the elapsed time: an
/// engine that was suspended itself has sent none meanwhile.
pub(crate) const QUESTIONS: u32 = 4;

/// Silence of the peer's engine; see the module.
#[derive(Debug, Default)]
pub(super) struct EngineSilence {
    /// When the first unanswered probe was sent.
    first_ns: Option<u64>,
    /// Probes since then.
    asked: u32,
    /// Whether the paths have answered the previous probe; `None`: there was none. Where datagrams
    /// do not pass, an engine whose owner computes does not answer.
    do_paths_answer: Option<bool>,
    /// Frame numbers received, and acknowledged by the peer, at the last probe.
    frames: (u32, u32),
}

impl AtRest for EngineSilence {
    const AT_REST: &'static Self =
        &Self { first_ns: None, asked: 0, do_paths_answer: None, frames: (0, 0) };
}

impl EngineSilence {
    /// Handles a due probe. `has_spoken`: something was received since the last one, on any
    /// transport. Returns the duration of the silence if the session has to end.
    fn judge(
        &mut self,
        now_ns: u64,
        has_spoken: bool,
        limit: Duration,
        paths: &mut Paths,
    ) -> Option<Duration> {
        if let Some(first_ns) = self.first_ns {
            let have_answered = paths.have_answered_since(first_ns);
            if have_answered || has_spoken {
                self.do_paths_answer = Some(have_answered);
                (self.first_ns, self.asked) = (None, 0);
            }
        }
        let first_ns = *self.first_ns.get_or_insert(now_ns);
        let silence = Duration::from_nanos(now_ns.saturating_sub(first_ns));
        let do_paths_answer = self.do_paths_answer.unwrap_or_else(|| paths.have_answered_since(0));
        let is_over = do_paths_answer && self.asked >= QUESTIONS && silence >= limit;
        self.asked += 1;
        is_over.then_some(silence)
    }
}

impl Core {
    /// Probes the engine of a session's peer, and evaluates earlier probes. `limit`: the silent
    /// timeout. `None`: its peer is not probed.
    ///
    /// RR-END-6.
    pub(crate) fn judge_engine(
        &mut self,
        slot: u32,
        now_ns: u64,
        limit: Duration,
        paths: &mut Paths,
    ) -> Option<Decision> {
        let session = self.sessions.at_mut(slot as usize)?;
        let is_asked = session.is_connected()
            && session.keys.is_some()
            && session.datagram.is_some()
            && paths.all().next().is_some();
        if !is_asked {
            return None;
        }
        let has_received = session.questions.take_received();
        let frames = (session.expected_frame, session.acked_frame);
        let monitor = &mut session.control_lane;
        if monitor.is_lost() {
            // Evaluated by its paths alone, and sooner.
            return Some(Decision::Nothing);
        }
        let known = &mut *monitor.engine;
        let has_spoken = std::mem::replace(&mut known.frames, frames) != frames || has_received;
        Some(match known.judge(now_ns, has_spoken, limit, paths) {
            None => Decision::AskForAnswer,
            Some(silence) => lost(&format!(
                "its host answers, but its engine has not answered for {} s (setting \
                 silent_timeout): its process is suspended, or has ended and left its connections \
                 to a child",
                silence.as_secs()
            )),
        })
    }
}
