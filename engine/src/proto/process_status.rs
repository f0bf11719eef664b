//! Whether the process of a silent peer has ended, by the kernel of its host.
//!
//! A child that keeps the connections of a killed process makes its kernel answer for it. Engines
//! of one host that share memory observe each other's processes (a pidfd), so an engine that gets
//! no answer from a peer asks others at the same address:
//!
//! ```text
//!  this engine                     another engine at that address            silent peer
//!  probes, several in a row  ─────────────────────────────────────────────────> no answer
//!  PROCESS QUERY (engine)    ────────────> its kernel reported the end?
//!                            <──────────── PROCESS STATUS (ended, running, unknown)
//!  ended: the session ends at once
//! ```
//!
//! Only *ended* has an effect, and only while the peer is silent: a stopped process is running.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;

use super::context::Cx;
use super::core::{Action, Core};
use super::paths::Paths;
use super::session::control_lane::Decision;
use super::session::late::Hashing;
use super::session::segments::Transport;
use super::session::{ControlFrame, Session};
use super::table::Table;
use crate::wire::frame::{self, FrameError};
use crate::wire::process_status::{ENDED, RUNNING, UNKNOWN};
use crate::wire::{ProcessQuery, ProcessStatus};

/// Time for the answer to a probe, in nanoseconds.
pub(crate) const ANSWER_NS: u64 = 1_000_000_000;
/// Probes in a row without an answer after which other engines are asked.
const PROBES_MIN: u32 = 3;
/// From one question about a silent peer to the next, in nanoseconds; it doubles each time.
const PAUSE_MIN_NS: u64 = 5_000_000_000;
const PAUSE_MAX_NS: u64 = 60_000_000_000;
/// Engines that are asked at a time.
const ASKED_MAX: usize = 8;
/// Sessions that are searched for such engines at a time; the search goes on a second later.
const SEARCHED_MAX: usize = 4096;
/// Silent peers that are asked about; others wait until one of them ends or answers.
const SILENT_MAX: usize = 256;
/// Ended processes that are remembered: the latest ones.
const ENDED_MAX: usize = 1024;
/// Replies to one peer in a second. Further questions are dropped, and asked again.
const REPLIES_MAX: u32 = 64;
const REPLIES_PERIOD_NS: u64 = 1_000_000_000;
/// Control frames that wait for a peer that takes none; beyond, it is not answered.
const CONTROL_WAITING_MAX: usize = 64;

/// A peer whose engine does not answer.
#[derive(Debug)]
struct SilentPeer {
    slot: u32,
    /// The session and the engine in that slot.
    session_id: u64,
    engine: u64,
    /// Probes in a row without an answer.
    probes: u32,
    /// When it is probed, and asked about, next.
    due_ns: u64,
    pause_ns: u64,
    /// Since when it has not answered.
    since_ns: u64,
    /// The engines that were asked last.
    asked: Vec<Asked>,
    /// One that has answered that it observes the process: it is asked first.
    observer: Option<Asked>,
    /// The next search for engines begins at this slot.
    next_slot: u32,
}

/// A session with an engine that was asked: its slot, and its id, as slots are used again.
type Asked = (u32, u64);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Processes {
    /// Usually none.
    silent: Vec<SilentPeer>,
    /// Sessions with a path that has just stopped answering.
    silent_paths: Vec<u32>,
    /// Engines whose processes have ended, the latest last.
    ended: VecDeque<u64>,
    /// Replies since then, by session.
    replies: HashMap<u32, u32, Hashing>,
    replies_since_ns: u64,
}

impl Processes {
    // ---- The engine that observes processes ----

    /// Returns whether another question of a session may be answered now.
    fn may_reply(&mut self, slot: u32, now_ns: u64) -> bool {
        if now_ns.saturating_sub(self.replies_since_ns) >= REPLIES_PERIOD_NS {
            self.replies.clear();
            self.replies_since_ns = now_ns;
        }
        let replies = self.replies.entry(slot).or_default();
        *replies += 1;
        *replies <= REPLIES_MAX
    }

    /// Notes that the kernel has reported the end of an engine's process.
    ///
    /// RR-END-8.
    pub(crate) fn note_ended(&mut self, engine: u64) {
        // An engine that is resolved by its address has no id yet.
        if engine == 0 || self.ended.contains(&engine) {
            return;
        }
        if self.ended.len() >= ENDED_MAX {
            self.ended.pop_front();
        }
        self.ended.push_back(engine);
        debug_assert!(self.ended.len() <= ENDED_MAX, "the oldest ones are forgotten");
    }

    // ---- The engine with a silent peer ----

    /// Notes that a path of a session does not answer any more: its peer is probed at once.
    #[cold]
    pub(super) fn note_silent_path(&mut self, slot: u32) {
        if self.silent_paths.last() != Some(&slot) {
            self.silent_paths.push(slot);
        }
    }

    /// Removes and returns the sessions with such paths, each once.
    pub(crate) fn take_silent_paths(&mut self) -> Vec<u32> {
        let mut slots = std::mem::take(&mut self.silent_paths);
        slots.sort_unstable();
        slots.dedup();
        slots
    }

    /// Returns when the next silent peer is probed; `None`: there is none.
    pub(crate) fn next_due_ns(&self) -> Option<u64> {
        self.silent.iter().map(|peer| peer.due_ns).min()
    }

    /// Returns the session of a silent peer that is to be judged now.
    pub(crate) fn next_silent(&self, now_ns: u64) -> Option<u32> {
        self.silent.iter().find(|peer| peer.due_ns <= now_ns).map(|peer| peer.slot)
    }

    fn position_of(&self, slot: u32) -> Option<usize> {
        self.silent.iter().position(|peer| peer.slot == slot)
    }

    /// Notes that the peer of a session has been silent since then.
    fn note_silent(&mut self, slot: u32, session: &Session, since_ns: u64, now_ns: u64) {
        if let Some(index) = self.position_of(slot) {
            let known = &self.silent[index];
            if (known.session_id, known.since_ns) == (session.id(), since_ns) {
                return;
            }
            // It has answered meanwhile, or it is another one.
            self.remove_silent(index);
        }
        if self.silent.len() >= SILENT_MAX {
            return;
        }
        self.silent.push(SilentPeer {
            slot,
            session_id: session.id(),
            engine: session.peer().id(),
            probes: 1,
            due_ns: now_ns,
            pause_ns: PAUSE_MIN_NS,
            since_ns,
            asked: Vec::new(),
            observer: None,
            next_slot: 0,
        });
        debug_assert_eq!(
            self.position_of(slot),
            Some(self.silent.len() - 1),
            "a peer is silent once"
        );
    }

    /// Judges a silent peer, which is probed again. Returns its position, its session, and whether
    /// other engines are asked about it; `None`: it has answered.
    fn judge<'s>(
        &mut self,
        slot: u32,
        session: Option<&'s Session>,
        now_ns: u64,
        paths: &mut Paths,
    ) -> Option<(usize, &'s Session, bool)> {
        let index = self.position_of(slot)?;
        let peer = &mut self.silent[index];
        let session = session.filter(|session| session.id() == peer.session_id);
        let Some(session) = session.filter(|it| it.silent_since_ns(paths).is_some()) else {
            self.remove_silent(index);
            return None;
        };
        let is_asked_about = peer.probes >= PROBES_MIN;
        peer.probes += 1;
        peer.due_ns = now_ns + ANSWER_NS;
        Some((index, session, is_asked_about))
    }

    /// Chooses engines of a silent peer's host to be asked about its process: the one that observes
    /// it, and others in turn. Returns their sessions.
    fn choose_asked(
        &mut self,
        (index, session): (usize, &Session),
        sessions: &Table<Session>,
        now_ns: u64,
    ) -> Vec<u32> {
        let peer = &self.silent[index];
        let slots = sessions.slots() as u32;
        let first = if peer.next_slot < slots { peer.next_slot } else { 0 };
        let as_asked = |slot: u32| {
            let other = sessions.at(slot as usize).filter(|other| {
                other.peer().answers_process_queries()
                    && other.takes_control()
                    && shares_an_address(session, other)
                    && self.position_of(slot).is_none()
            })?;
            Some((slot, other.id()))
        };
        let observer = peer.observer.filter(|&(slot, id)| as_asked(slot) == Some((slot, id)));
        let mut asked: Vec<Asked> = observer.into_iter().collect();
        let (mut next_slot, mut searched) = (first, 0);
        for slot in (first..slots).chain(0..first).take(SEARCHED_MAX) {
            (next_slot, searched) = (slot + 1, searched + 1);
            asked.extend(as_asked(slot).filter(|&it| Some(it) != observer));
            if asked.len() >= ASKED_MAX {
                break;
            }
        }
        debug_assert!(asked.len() <= ASKED_MAX, "some are asked at a time");
        debug_assert!(
            asked.iter().all(|&(it, _)| it != peer.slot),
            "no peer is asked about itself"
        );
        let chosen = asked.iter().map(|&(slot, _)| slot).collect();
        let is_searching = asked.is_empty() && searched < slots;
        let peer = &mut self.silent[index];
        if !is_searching {
            peer.due_ns = now_ns + peer.pause_ns;
            // The one that observes the process will know.
            let pause_ns = if observer.is_some() { PAUSE_MIN_NS } else { 2 * peer.pause_ns };
            peer.pause_ns = pause_ns.min(PAUSE_MAX_NS);
        }
        (peer.asked, peer.observer, peer.next_slot) = (asked, observer, next_slot);
        chosen
    }

    /// Returns the position of the silent peer about whose engine a session was asked last.
    fn position_asked(&self, from: Asked, engine: u64) -> Option<usize> {
        let is_it = |peer: &SilentPeer| peer.engine == engine && peer.asked.contains(&from);
        self.silent.iter().position(is_it)
    }

    /// Handles the answer of a session that was asked about the silent peer at `index`. Returns the
    /// slot and the id of the peer's session if its process has ended.
    fn handle_status(&mut self, index: usize, from: Asked, status: u8) -> Option<Asked> {
        match status {
            RUNNING => self.silent[index].observer = Some(from),
            ENDED => {
                let ended = self.remove_silent(index);
                return Some((ended.slot, ended.session_id));
            }
            _ => {}
        }
        None
    }

    /// Removes a silent peer, and the memory with the last one.
    fn remove_silent(&mut self, index: usize) -> SilentPeer {
        let removed = self.silent.swap_remove(index);
        if self.silent.is_empty() {
            self.silent = Vec::new();
        }
        removed
    }

    /// Forgets a session: its slot may be used again.
    pub(super) fn forget(&mut self, slot: u32) {
        self.silent.retain(|peer| peer.slot != slot);
        self.silent_paths.retain(|&other| other != slot);
        self.replies.remove(&slot);
    }
}

impl Session {
    /// Returns whether one more control frame may wait.
    fn takes_control(&self) -> bool {
        self.is_connected() && self.segments().control().len() < CONTROL_WAITING_MAX
    }

    /// Checks whether the peer's engine has answered a probe; if not it is probed from now on, and
    /// other engines are asked.
    ///
    /// RR-END-8.
    pub(crate) fn check_answer(&self, cx: Cx<'_>, now_ns: u64, paths: &mut Paths) {
        if let Some(since_ns) = self.silent_since_ns(paths) {
            cx.shared.processes_mut().note_silent(cx.slot, self, since_ns, now_ns);
        }
    }
}

impl Cx<'_> {
    /// Handles an answer about a silent peer. One that was not asked for, or comes after the peer
    /// has answered, has no effect. It comes from the session with this id, whose peer listens at
    /// `observer`.
    ///
    /// RR-END-8.
    pub(super) fn handle_process_status(
        &mut self,
        (session_id, observer): (u64, SocketAddr),
        status: &ProcessStatus,
    ) -> Result<(), FrameError> {
        let (engine, status) = (status.engine.get(), status.status);
        if !matches!(status, UNKNOWN | RUNNING | ENDED) {
            return Err(FrameError::BadProcessStatus(status));
        }
        let (from, processes) = ((self.slot, session_id), self.shared.processes_mut());
        let Some(index) = processes.position_asked(from, engine) else {
            self.shared.note_stale_frame();
            return Ok(());
        };
        if let Some((session, session_id)) = processes.handle_status(index, from, status) {
            self.act(Action::ProcessEnded { session, session_id, observer });
        }
        Ok(())
    }
}

impl Core {
    /// Answers the question of a peer, within limits.
    ///
    /// RR-END-8.
    pub(super) fn handle_process_query(&mut self, slot: u32, query: &ProcessQuery, now_ns: u64) {
        let engine = query.engine.get();
        let session = self.shared.peers.find(&self.sessions, engine);
        // The process of a peer is observed as long as its engine shares memory with this one.
        let by_ring = Some(Transport::Ring);
        let is_observed = session.is_some_and(|(_, it)| {
            it.is_connected() && it.segments().protocol().transport() == by_ring
        });
        self.with_known(slot, |it, mut cx| {
            if !it.takes_control() || !cx.shared.processes_mut().may_reply(slot, now_ns) {
                return;
            }
            let status = if cx.shared.processes().ended.contains(&engine) {
                ENDED
            } else if engine == cx.shared.engine() || is_observed {
                RUNNING
            } else {
                UNKNOWN
            };
            it.send_control(&mut cx, ControlFrame::process_status(engine, status));
        });
    }

    /// Judges a silent peer: it is probed, and asked about when it is silent for long enough; or it
    /// has answered.
    ///
    /// RR-END-8.
    pub(crate) fn judge_silent_peer(
        &mut self,
        slot: u32,
        now_ns: u64,
        paths: &mut Paths,
    ) -> Decision {
        let session = self.sessions.at(slot as usize);
        let engine = session.map_or(0, |session| session.peer().id());
        let judged = self.shared.processes_mut().judge(slot, session, now_ns, paths);
        let Some((index, session, is_asked_about)) = judged else { return Decision::Nothing };
        if is_asked_about {
            let processes = self.shared.processes_mut();
            for asked in processes.choose_asked((index, session), &self.sessions, now_ns) {
                let query = ControlFrame::process_query(engine);
                self.with(asked, |it, mut cx| it.send_control(&mut cx, query));
            }
        }
        Decision::AskForAnswer
    }
}

/// Returns whether two engines have announced one address, so that they may be of one host. Hosts
/// with equal private addresses exist: their engines answer that they do not know.
fn shares_an_address(one: &Session, other: &Session) -> bool {
    let is_at = |ip| other.peer().locators().iter().any(|its| its.ip() == ip);
    one.peer().locators().iter().any(|own| is_at(own.ip()))
}

impl ControlFrame {
    fn process_query(engine: u64) -> Self {
        Self::ProcessQuery(ProcessQuery {
            kind: frame::KIND_PROCESS_QUERY,
            flags: 0,
            reserved: 0.into(),
            reserved_2: 0.into(),
            engine: engine.into(),
        })
    }

    fn process_status(engine: u64, status: u8) -> Self {
        Self::ProcessStatus(ProcessStatus {
            kind: frame::KIND_PROCESS_STATUS,
            status,
            reserved: 0.into(),
            reserved_2: 0.into(),
            engine: engine.into(),
        })
    }
}
