//! Peers are forgotten, endpoints closed and opened again.

use super::oracle::{Fate, Place};
use super::{Process, REOPEN, Run};

/// Messages that may still be on their way.
const SENT_RECENTLY: usize = 40;

impl Run {
    /// Whether a process has closed one of its endpoints.
    pub(super) fn is_closed(&self, host: usize, endpoint: u16) -> bool {
        let closed = &self.residents[host].closed;
        closed.contains(&endpoint)
    }

    /// A process forgets a peer, or closes an endpoint.
    pub(super) fn part(&mut self, host: usize) -> Result<(), String> {
        if self.random.one_in(2) { self.forget_peer(host) } else { self.close_endpoint(host) }
    }

    fn forget_peer(&mut self, host: usize) -> Result<(), String> {
        let process = self.residents[host].process;
        // With something under way to the peer there is more to go wrong.
        let to = match self.recently_sent_to(process) {
            Some(to) if self.random.one_in(2) => to,
            _ => self.random_place(),
        };
        // No process forgets itself.
        if to.0 == process {
            return Ok(());
        }
        let Some(peer) = self.name_of(host, to) else { return Ok(()) };
        let now_ns = self.world.now_ns();
        // If it was the last peer of its process, the session ends with it.
        self.oracle.taint(process, to.0);
        self.oracle.drop_from(to.0, process, now_ns);
        let Some(engine) = self.world.engine(host) else { return Ok(()) };
        let state = &mut *engine.state;
        if !state.with_core(|core, ended| core.remove_peer(peer, ended)) {
            return Err(format!("process {process} does not know {to:?} any more"));
        }
        self.collect(host)
    }

    /// Returns the target of the process's last message that has not ended.
    fn recently_sent_to(&self, process: Process) -> Option<Place> {
        let mut recent = self.oracle.sent.iter().rev().take(SENT_RECENTLY);
        let found = recent
            .find(|sent| sent.from.0 == process && sent.fate == Fate::Outstanding && !sent.is_long);
        found.map(|sent| sent.to)
    }

    fn close_endpoint(&mut self, host: usize) -> Result<(), String> {
        let endpoint = self.random.below(self.plan.endpoints) as u16;
        if self.is_closed(host, endpoint) {
            return Ok(());
        }
        let process = self.residents[host].process;
        let Some(engine) = self.world.engine(host) else { return Ok(()) };
        let state = &mut *engine.state;
        state.with_core(|core, ended| core.close_endpoint(endpoint, ended));
        self.residents[host].closed.push(endpoint);
        self.oracle.close((process, endpoint));
        let pause_ns = self.random.within(20 * self.plan.think_ns) + 1;
        self.world.plan(pause_ns, REOPEN | host as u64);
        self.collect(host)
    }

    /// The endpoint of a host that was closed first, if any, is opened again.
    pub(super) fn reopen(&mut self, host: usize) -> Result<(), String> {
        self.settle(host)?;
        let closed = &mut self.residents[host].closed;
        let Some(endpoint) = closed.iter().copied().min() else { return Ok(()) };
        closed.retain(|&other| other != endpoint);
        let process: Process = self.residents[host].process;
        let now_ns = self.world.now_ns();
        let Some(engine) = self.world.engine(host) else { return Ok(()) };
        // What is on its way to a number for 65536 openings is seldom; here it is the rule.
        let is_open = engine.state.core_mut().shared_mut().endpoints_mut().open_at(endpoint);
        self.oracle.reopen((process, endpoint), now_ns);
        if is_open { Ok(()) } else { Err(format!("process {process} still has {endpoint} open")) }
    }
}
