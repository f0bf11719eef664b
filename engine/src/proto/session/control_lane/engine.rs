//! Monitors whether the peer's engine answers, where its host does.
//!
//! A kernel acknowledges what comes for a process that stands still, and for one that was killed
//! while a child of it keeps its connections. An engine with datagrams answers questions within
//! milliseconds, whatever its owner does, and one without datagrams within seconds, by the control
//! connection. So it is probed now and then, and a silence of the engine that lasts for the silent
//! timeout ends the session. Until then it may go on. An engine that announces in its hello that it
//! answers (flag 16) is judged; one without a background thread is silent while its owner computes,
//! so it is judged only in a session with datagrams, and if the user has set the timeout.

use std::time::Duration;

use super::super::late::AtRest;
use super::{Decision, lost};
use crate::proto::paths::Paths;
use crate::proto::session::Session;

/// Number of probes in a silent timeout. As many must be unanswered, besides the elapsed time: an
/// engine that was suspended itself has sent none meanwhile.
pub(crate) const QUESTIONS: u32 = 4;

/// How long the engine of a peer may be silent whose host answers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SilentTimeout {
    /// 0: for ever.
    pub(crate) limit: Duration,
    /// The user chose it: it holds as well for engines that answer only while their owners make
    /// calls.
    pub(crate) is_chosen: bool,
}

#[cfg(any(test, feature = "sim"))]
impl SilentTimeout {
    pub(crate) const NONE: Self = Self { limit: Duration::ZERO, is_chosen: false };
}

/// See the module.
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
    /// Another question is due. `has_spoken`: something came since the last one, by whatever way.
    /// `answers_by_lane`: the control lane is answered, and there is nothing else. How long the
    /// silence lasts if the session is to end.
    fn judge(
        &mut self,
        now_ns: u64,
        has_spoken: bool,
        answers_by_lane: bool,
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
        debug_assert_eq!(
            self.first_ns.is_some(),
            self.asked > 0,
            "probes are counted since the first unanswered one"
        );
        let first_ns = *self.first_ns.get_or_insert(now_ns);
        let silence = Duration::from_nanos(now_ns.saturating_sub(first_ns));
        let is_answered =
            answers_by_lane || self.do_paths_answer.unwrap_or_else(|| paths.have_answered_since(0));
        let is_over = is_answered && self.asked >= QUESTIONS && silence >= limit;
        self.asked += 1;
        is_over.then_some(silence)
    }
}

impl Session {
    /// Returns since when probes of the peer's engine have had no answer on any transport; `None`:
    /// the last one has, or the peer shares memory, which shows its end.
    ///
    /// RR-END-8.
    pub(crate) fn silent_since_ns(&self, paths: &mut Paths) -> Option<u64> {
        let monitor = &self.control_lane;
        let known = &*monitor.engine;
        let first_ns = known.first_ns?;
        let is_peer = self.is_connected() && self.keys.is_some() && !monitor.is_lost();
        let has_spoken = known.frames != self.segments.frames_received()
            || self.segments.questions().has_received();
        let has_answered = has_spoken || paths.have_shown_peer_since(first_ns);
        (is_peer && !has_answered).then_some(first_ns)
    }

    /// Asks the peer's engine whether it is there, and judges what became of earlier questions.
    /// `None`: it is not asked.
    ///
    /// RR-END-6, RR-END-7.
    pub(crate) fn judge_engine(
        &mut self,
        now_ns: u64,
        timeout: SilentTimeout,
        paths: &mut Paths,
    ) -> Option<Decision> {
        let frames = self.segments.frames_received();
        let answers_by_lane = !self.segments.has_datagrams() && self.peer.answers();
        let has_paths = self.segments.has_datagrams()
            && paths.all().next().is_some()
            && (timeout.is_chosen || self.peer.answers());
        let is_peer = self.is_connected() && self.keys.is_some();
        if !is_peer || !(answers_by_lane || has_paths) {
            return None;
        }
        let has_received = self.segments.questions_mut().take_received();
        let monitor = &mut self.control_lane;
        if monitor.is_lost() {
            // Evaluated by its paths alone, and sooner.
            return Some(Decision::Nothing);
        }
        let known = &mut *monitor.engine;
        let has_spoken = std::mem::replace(&mut known.frames, frames) != frames || has_received;
        Some(match known.judge(now_ns, has_spoken, answers_by_lane, timeout.limit, paths) {
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
