//! A turn of the background thread: the engine's own, executed by another thread while the owner is
//! absent.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::engine::{Engine, EngineState};
use super::roles::ConnectionRole;
use crate::driver::AnyDriver;
use crate::forks::EngineFd;
use crate::proto::ready::Work;
use crate::types::Error;

/// Interval of turns while a session is being set up, after a full TCP lane, or after a turn that
/// did not send everything: no descriptor wakes the background thread for these.
const SOON: Duration = Duration::from_millis(1);

/// Interval at which control lanes of sessions without datagrams are checked for questions, which
/// do not wake the background thread. Peers ask once a second at the most.
const LOOK: Duration = Duration::from_millis(500);

/// Descriptors that become readable without a request of this engine: copies of the datagram
/// socket if there is one, of the listeners, and of the descriptors by which engines of this host
/// wake it. The engine replaces them; the caretaker sleeps on those current at that time.
#[derive(Clone, Default)]
pub(super) struct WakeFds(Arc<Mutex<Arc<[EngineFd]>>>);

impl WakeFds {
    pub(super) fn current(&self) -> Arc<[EngineFd]> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Makes the copies of an engine, which wake its caretaker.
    pub(super) fn share(&self, state: &EngineState, driver: &AnyDriver) -> Self {
        match state.copies_of_wake_fds(driver) {
            Ok(fds) => self.replace(fds),
            Err(error) => tracing::warn!("background progress is disabled for an engine: {error}"),
        }
        self.clone()
    }

    /// Replaces the copy of a listener that changed. The last copy of the old one is closed, since
    /// the kernel listens as long as one exists.
    pub(super) fn renew(&self, state: &EngineState, driver: &AnyDriver) {
        if self.current().is_empty() {
            return;
        }
        match state.copies_of_wake_fds(driver) {
            Ok(fds) => self.replace(fds),
            Err(error) => {
                tracing::warn!("a new listener does not wake the background thread: {error}")
            }
        }
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
    /// Executes one turn while the owner is absent. Datagrams are read, acknowledged and
    /// retransmitted, sessions set up, deadlines handled; posted operations advance as far as
    /// credit permits, and received data is stored for the owner. Chunks that only the owner can
    /// move wait.
    ///
    /// Returns whether something happened, and when the next turn is due; `None`: at the next
    /// event.
    ///
    /// RR-PATH-6.
    pub(crate) fn background_turn(&mut self) -> Result<(bool, Option<Duration>), Error> {
        self.owner_is_absent = true;
        self.chunks_rest = !self.driver.begin_detached();
        self.state.read_clock();
        self.state.datagrams.poll_detached();
        let state = &mut *self.state;
        // The driver reports free space to the owner only.
        state.controls.unblock_all(&mut state.core);
        // The driver handles the event that woke the thread, also if a message arrives before that.
        self.state.deferred.end();
        let progressed = self.progress();
        // No reply is about to be sent, and a turn that delivered a message ended with that.
        self.state.drain_paths();
        self.acknowledge(true);
        self.acknowledge_all();
        let mut cx = self.setup();
        cx.bulk.quickack(u64::MAX, &mut cx.lanes);
        self.driver.end_detached();
        (self.owner_is_absent, self.chunks_rest) = (false, false);
        let happened = progressed?;
        self.state.read_clock();
        let due = [
            self.state.due_in(),
            self.state.engines_asked_in(),
            self.state.controls.has_streams().then_some(LOOK),
        ];
        Ok((happened, due.into_iter().flatten().min()))
    }
}

impl EngineState {
    /// See [`WakeFds`].
    fn copies_of_wake_fds(&self, driver: &AnyDriver) -> io::Result<Vec<EngineFd>> {
        let socket = self.datagrams.socket().ok().map(|socket| socket.copy()).transpose()?;
        let socket = socket.map(EngineFd::into_owned);
        let local_peers = driver.local_peers_fd().transpose()?.map(EngineFd::new);
        let listeners = self.listeners.copies()?.into_iter().map(EngineFd::into_owned);
        Ok(listeners.chain(socket).chain(local_peers).collect())
    }

    /// Returns the earliest deadline of connections and of endpoints.
    pub(super) fn next_deadline_ns(&self) -> Option<u64> {
        self.core.next_deadline_ns().into_iter().chain(self.requests.next_deadline_ns()).min()
    }

    /// Returns when engines of idle peers are probed, or their answers checked. Nothing else is
    /// outstanding then.
    pub(super) fn engines_asked_in(&self) -> Option<Duration> {
        let due = [
            self.engine_questions.next_ns(),
            self.engine_questions.probed.next_ns(),
            self.core.shared().processes().next_due_ns(),
        ];
        let next_ns = due.into_iter().flatten().min()?;
        Some(Duration::from_nanos(next_ns.saturating_sub(self.now_ns)))
    }

    /// Returns when a turn is due; `None`: nothing is outstanding.
    pub(super) fn due_in(&mut self) -> Option<Duration> {
        if self.core.shared().rendezvous().has_readable() {
            return Some(Duration::ZERO);
        }
        let deadline_ns = [self.next_deadline_ns(), self.paths.next_timer_ns()];
        let left = |at_ns: u64| Duration::from_nanos(at_ns.saturating_sub(self.now_ns));
        let due = deadline_ns.into_iter().flatten().min().map(left);
        let is_growing = self.handshakes.pending() > 0
            || self.core.shared().ready().len(Work::Flush) > 0
            || self.core.shared().ready().len(Work::Stage) > 0
            || self.datagrams.waits_for_room()
            || self.rings.is_some_full()
            || self.core.shared().ready().len(Work::Piece) > 0
            || self.controls.are_some_blocked()
            || self.roles.handshakes().any(|(_, role)| {
                matches!(
                    role,
                    ConnectionRole::Connecting { .. } | ConnectionRole::AwaitReply { .. }
                )
            });
        due.into_iter().chain(is_growing.then_some(SOON)).min()
    }
}
