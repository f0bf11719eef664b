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

use super::control_lane::Decision;
use super::core::{Action, Core};
use super::late::Hashing;
use super::paths::Paths;
use super::session::{ControlFrame, Session};
use crate::wire::frame::{self, FrameError};
use crate::wire::process_status::{ENDED, RUNNING, UNKNOWN};
use crate::wire::{ProcessQuery, ProcessStatus};

/// Time for the answer to a probe, in nanoseconds.
pub(crate) const ANSWER_NS: u64 = 1_000_000_000;
/// Probes in a row without an answer after which other engines are asked.
const PROBES: u32 = 3;
/// From one question about a silent peer to the next, in nanoseconds; it doubles each time.
const PAUSE_MIN_NS: u64 = 5_000_000_000;
const PAUSE_MAX_NS: u64 = 60_000_000_000;
/// Engines that are asked at a time.
const ASKED_MAX: usize = 3;
/// Silent peers that are asked about; others wait until one of them ends or answers.
const SILENT_MAX: usize = 256;
/// Ended processes that are remembered: the latest ones.
const ENDED_MAX: usize = 1024;
/// Replies to one peer in a second. Further questions are dropped, and asked again.
const REPLIES_MAX: u32 = 64;
const REPLIES_PERIOD_NS: u64 = 1_000_000_000;
/// Control frames that wait for a peer that takes none; beyond, it is not answered.
const WAITING_MAX: usize = 64;

/// A peer whose engine does not answer.
#[derive(Debug)]
struct SilentPeer {
    slot: u32,
    /// The session and the engine in that slot.
    session: u64,
    engine: u64,
    /// Probes in a row without an answer.
    probes: u32,
    /// When it is probed, and asked about, next.
    due_ns: u64,
    pause_ns: u64,
    /// Sessions of the engines that were asked last.
    asked: Vec<u32>,
    /// The next search for engines begins at this slot.
    next_slot: u32,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Processes {
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
    fn note_ended(&mut self, engine: u64) {
        if self.ended.contains(&engine) {
            return;
        }
        if self.ended.len() >= ENDED_MAX {
            self.ended.pop_front();
        }
        self.ended.push_back(engine);
    }

    /// Removes a silent peer, and the memory with the last one.
    fn remove_silent(&mut self, index: usize) -> SilentPeer {
        let removed = self.silent.swap_remove(index);
        if self.silent.is_empty() {
            self.silent = Vec::new();
        }
        removed
    }
}

impl Session {
    /// Returns whether one more control frame may wait.
    fn takes_control(&self) -> bool {
        self.is_connected() && self.control.len() < WAITING_MAX
    }
}

impl Core {
    // ---- The engine that observes processes ----

    /// Notes that this host's kernel has reported the end of the process of a session's peer.
    ///
    /// RR-END-8.
    pub(crate) fn note_process_ended(&mut self, slot: u32) {
        let engine = self.sessions.at(slot as usize).map(|session| session.engine);
        if let Some(engine) = engine.filter(|&engine| engine != 0) {
            self.processes.note_ended(engine);
        }
    }

    /// Answers the question of a peer, within limits.
    ///
    /// RR-END-8.
    pub(super) fn handle_process_query(&mut self, slot: u32, query: &ProcessQuery, now_ns: u64) {
        let may_wait = self.sessions.at(slot as usize).is_some_and(Session::takes_control);
        if !may_wait || !self.processes.may_reply(slot, now_ns) {
            return;
        }
        let engine = query.engine.get();
        let status = self.process_status(engine);
        self.push_control(slot, ControlFrame::process_status(engine, status));
    }

    /// Returns what this engine knows of the process of another one.
    fn process_status(&self, engine: u64) -> u8 {
        if self.processes.ended.contains(&engine) {
            return ENDED;
        }
        let slot = self.by_engine.get(&engine);
        let session = slot.and_then(|&slot| self.sessions.at(slot as usize));
        // With the shared memory of a peer comes its process.
        let is_observed = session.is_some_and(|session| {
            session.is_connected() && session.datagram.as_deref().is_some_and(|it| it.has_ring())
        });
        if is_observed || engine == self.engine { RUNNING } else { UNKNOWN }
    }

    // ---- The engine with a silent peer ----

    /// Notes that a path of a session does not answer any more: its peer is probed at once.
    #[cold]
    pub(super) fn note_silent_path(&mut self, slot: u32) {
        if self.processes.silent_paths.last() != Some(&slot) {
            self.processes.silent_paths.push(slot);
        }
    }

    /// Removes and returns the sessions with such paths, each once.
    pub(crate) fn take_silent_paths(&mut self) -> Vec<u32> {
        let mut slots = std::mem::take(&mut self.processes.silent_paths);
        slots.sort_unstable();
        slots.dedup();
        slots
    }

    /// Returns when the next silent peer is probed; `None`: there is none.
    pub(crate) fn silent_due_ns(&self) -> Option<u64> {
        self.processes.silent.iter().map(|peer| peer.due_ns).min()
    }

    /// Checks whether the engine of a session's peer has answered a probe; if not it is probed from
    /// now on, and other engines are asked.
    ///
    /// RR-END-8.
    pub(crate) fn check_answer(&mut self, slot: u32, now_ns: u64, paths: &mut Paths) {
        let Processes { silent, .. } = &self.processes;
        let is_known = silent.iter().any(|peer| peer.slot == slot);
        if is_known || silent.len() >= SILENT_MAX || self.silent_since_ns(slot, paths).is_none() {
            return;
        }
        let Some(session) = self.sessions.at(slot as usize) else { return };
        let peer = SilentPeer {
            slot,
            session: session.id,
            engine: session.engine,
            probes: 1,
            due_ns: now_ns,
            pause_ns: PAUSE_MIN_NS,
            asked: Vec::new(),
            next_slot: 0,
        };
        self.processes.silent.push(peer);
    }

    /// Returns the session of a silent peer that is to be judged now.
    pub(crate) fn next_silent(&self, now_ns: u64) -> Option<u32> {
        self.processes.silent.iter().find(|peer| peer.due_ns <= now_ns).map(|peer| peer.slot)
    }

    /// Judges a silent peer: it is probed, and asked about when it is silent for long enough; or it
    /// has answered.
    ///
    /// RR-END-8.
    pub(crate) fn judge_silent(&mut self, slot: u32, now_ns: u64, paths: &mut Paths) -> Decision {
        let silent = &self.processes.silent;
        let Some(index) = silent.iter().position(|peer| peer.slot == slot) else {
            return Decision::Nothing;
        };
        let session = self.sessions.at(slot as usize);
        let is_same = session.is_some_and(|session| session.id == silent[index].session);
        if !is_same || self.silent_since_ns(slot, paths).is_none() {
            self.processes.remove_silent(index);
            return Decision::Nothing;
        }
        let peer = &mut self.processes.silent[index];
        let is_asked_about = peer.probes >= PROBES;
        peer.probes += 1;
        peer.due_ns = now_ns + ANSWER_NS;
        if is_asked_about {
            peer.due_ns = now_ns + peer.pause_ns;
            peer.pause_ns = (2 * peer.pause_ns).min(PAUSE_MAX_NS);
            self.ask_others(index);
        }
        Decision::AskForAnswer
    }

    /// Asks other engines of a silent peer's host about its process, in turn.
    fn ask_others(&mut self, index: usize) {
        let Some(peer) = self.processes.silent.get(index) else { return };
        let (engine, slots) = (peer.engine, self.sessions.slots() as u32);
        let Some(session) = self.sessions.at(peer.slot as usize) else { return };
        let first = if peer.next_slot < slots { peer.next_slot } else { 0 };
        let is_silent = |slot| self.processes.silent.iter().any(|peer| peer.slot == slot);
        let may_observe = |&slot: &u32| {
            self.sessions.at(slot as usize).is_some_and(|other| {
                other.observes_processes
                    && other.takes_control()
                    && shares_an_address(session, other)
                    && !is_silent(slot)
            })
        };
        let asked: Vec<u32> =
            (first..slots).chain(0..first).filter(may_observe).take(ASKED_MAX).collect();
        for &slot in &asked {
            self.push_control(slot, ControlFrame::process_query(engine));
        }
        let Some(peer) = self.processes.silent.get_mut(index) else { return };
        peer.next_slot = asked.last().map_or(0, |&slot| slot + 1);
        peer.asked = asked;
    }

    /// Handles an answer about a silent peer. One that was not asked for, or comes after the peer
    /// has answered, has no effect.
    ///
    /// RR-END-8.
    pub(super) fn handle_process_status(
        &mut self,
        slot: u32,
        status: &ProcessStatus,
    ) -> Result<(), FrameError> {
        let engine = status.engine.get();
        let has_ended = match status.status {
            UNKNOWN | RUNNING => false,
            ENDED => true,
            other => return Err(FrameError::BadProcessStatus(other)),
        };
        let is_it = |peer: &SilentPeer| peer.engine == engine && peer.asked.contains(&slot);
        let found = self.processes.silent.iter().position(is_it).filter(|_| has_ended);
        if let Some(index) = found {
            let peer = self.processes.remove_silent(index);
            let (session, name) = (peer.slot, peer.session);
            self.actions.push_back(Action::ProcessEnded { session, name, observer: slot });
        }
        Ok(())
    }
}

/// Returns whether two engines listen at one address: one kernel has that, and answers for both.
fn shares_an_address(one: &Session, other: &Session) -> bool {
    let is_at = |ip| other.locators.iter().any(|its| its.ip() == ip);
    one.locators.iter().any(|own| is_at(own.ip()))
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
