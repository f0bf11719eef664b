//! A turn of the caretaker: the engine's own, made by another thread while the owner is absent.

use std::io;
use std::net::TcpListener;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::engine::{Engine, EngineState};
use super::roles::Role;
use crate::forks::EngineFd;
use crate::types::Error;

/// How soon to look again after a session that is being set up, at a full TCP lane, or after a turn
/// that did not send everything: nothing wakes the caretaker for these.
const SOON: Duration = Duration::from_millis(1);

/// By what something comes that nobody asked for: copies of the socket of datagrams, of the
/// listeners, and of what engines of this host wake it by. The engine replaces them, the caretaker
/// sleeps by those that are current then.
#[derive(Clone, Default)]
pub(super) struct WakeFds(Arc<Mutex<Arc<[EngineFd]>>>);

impl WakeFds {
    pub(super) fn current(&self) -> Arc<[EngineFd]> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn replace(&self, fds: Vec<EngineFd>) {
        let mut current = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let replaced = std::mem::replace(&mut *current, fds.into());
        // Closing takes its time.
        drop(current);
        drop(replaced);
    }
}

impl Engine {
    /// The descriptors that wake the caretaker, for it to keep; none if the engine takes no
    /// datagrams, or no copies can be had.
    pub(super) fn share_wake_fds(&mut self) -> WakeFds {
        match self.copies_of_wake_fds() {
            Ok(fds) => self.wake_fds.replace(fds),
            Err(error) => tracing::warn!("nobody looks after an engine: {error}"),
        }
        self.wake_fds.clone()
    }

    /// A listener is another one. The last copy of the old one goes: as long as there is one, the
    /// kernel listens.
    pub(super) fn renew_wake_fds(&mut self) {
        if self.wake_fds.current().is_empty() {
            return;
        }
        match self.copies_of_wake_fds() {
            Ok(fds) => self.wake_fds.replace(fds),
            Err(error) => tracing::warn!("a new listener does not wake the caretaker: {error}"),
        }
    }

    fn copies_of_wake_fds(&self) -> io::Result<Vec<EngineFd>> {
        let mut fds = self.state.copies_of_wake_fds()?;
        fds.extend(self.driver.local_peers_fd().transpose()?.map(EngineFd::new));
        Ok(fds)
    }

    /// One turn while the owner is absent. Datagrams are read, acknowledged and sent again,
    /// sessions set up, deadlines kept; what was posted goes as far as credit lets it, and what
    /// arrives is put where it belongs, for the owner to hear of. Chunks rest where only the owner
    /// can move them.
    ///
    /// Whether something happened, and when the next turn is due; `None`: when something comes.
    ///
    /// RR-PATH-6.
    pub(crate) fn background_turn(&mut self) -> Result<(bool, Option<Duration>), Error> {
        self.owner_is_absent = true;
        self.chunks_rest = !self.driver.begin_detached();
        self.read_clock();
        self.state.datagrams.poll_detached();
        self.state.unblock();
        // The driver takes in what woke the caretaker, also where a message comes before that.
        self.state.owes_rest = true;
        let progressed = self.progress();
        // Nobody is about to answer, and a turn that brought a message ended with that.
        self.state.drain_paths();
        self.acknowledge_hot();
        self.acknowledge_rings(true);
        self.acknowledge_all();
        self.hasten_acks(u64::MAX);
        self.driver.end_detached();
        (self.owner_is_absent, self.chunks_rest) = (false, false);
        let happened = progressed?;
        self.read_clock();
        let due = self.state.due_in().into_iter().chain(self.state.engines_asked_in()).min();
        Ok((happened, due))
    }
}

impl EngineState {
    /// Of all listeners, that at the wildcard address first.
    pub(super) fn copies_of_listeners(&self) -> io::Result<Vec<EngineFd<TcpListener>>> {
        let all = [&self.listener].into_iter().chain(&self.listeners_of_rails);
        all.map(EngineFd::<TcpListener>::copy).collect()
    }

    /// See [`WakeFds`]; none if the engine takes no datagrams.
    fn copies_of_wake_fds(&self) -> io::Result<Vec<EngineFd>> {
        let Ok(socket) = self.datagrams.socket() else { return Ok(Vec::new()) };
        let socket = socket.copy()?.into_owned();
        let listeners = self.copies_of_listeners()?;
        Ok(listeners.into_iter().map(EngineFd::into_owned).chain([socket]).collect())
    }

    /// Lanes that were full are tried again: the news of room comes to the owner.
    fn unblock(&mut self) {
        for session in self.blocked.drain(..) {
            let control = self.controls.get_mut(session as usize);
            if control.is_some_and(|control| std::mem::take(&mut control.is_blocked)) {
                self.core.mark_dirty(session);
            }
        }
    }

    /// The earliest deadline of connections and of endpoints.
    pub(super) fn next_deadline_ns(&self) -> Option<u64> {
        self.core.next_deadline_ns().into_iter().chain(self.requests.next_deadline_ns()).min()
    }

    /// When engines of idle peers are asked whether they are there. Nothing is outstanding then.
    pub(super) fn engines_asked_in(&self) -> Option<Duration> {
        let next_ns = self.engine_questions.next_ns()?;
        Some(Duration::from_nanos(next_ns.saturating_sub(self.now_ns)))
    }

    /// When something is due; `None`: nothing is outstanding.
    pub(super) fn due_in(&mut self) -> Option<Duration> {
        if self.core.has_cma() {
            return Some(Duration::ZERO);
        }
        let deadline_ns = [self.next_deadline_ns(), self.paths.next_timer_ns()];
        let left = |at_ns: u64| Duration::from_nanos(at_ns.saturating_sub(self.now_ns));
        let due = deadline_ns.into_iter().flatten().min().map(left);
        let is_growing = self.handshakes_pending > 0
            || !self.core.dirty().is_empty()
            || self.datagrams.waits_for_room()
            || self.rings.is_full
            || !self.core.feeding().is_empty()
            || self.blocked.iter().any(|&it| self.controls[it as usize].is_blocked)
            || self
                .roles
                .handshakes()
                .any(|(_, role)| matches!(role, Role::Connecting { .. } | Role::AwaitReply { .. }));
        due.into_iter().chain(is_growing.then_some(SOON)).min()
    }
}
