//! Faults strike, and pass.

use std::time::Duration;

use super::plan::{Fault, HANDSHAKE_TIMEOUT};
use super::{FAULT, FIREWALL, FIREWALL_DOWN, Process, RAIL, Run, UNDO};
use crate::driver::sim::net::GivenUp;
use crate::types::PeerFailure;

/// Processes of one run, one after the other or at the same time.
const PROCESSES_MAX: usize = 24;

impl Run {
    /// One of the plan's faults strikes; the next one is planned.
    pub(super) fn strike(&mut self) -> Result<(), String> {
        self.settle_all()?;
        let total: u32 = self.plan.faults.iter().map(|(_, weight)| weight).sum();
        let mut at = self.random.below(total as usize) as u32;
        let chosen = self.plan.faults.iter().find(|(_, weight)| {
            let is_it = at < *weight;
            at = at.saturating_sub(*weight);
            is_it
        });
        if let Some(&(fault, _)) = chosen
            && self.carry_out(fault)?
        {
            self.faults += 1;
            self.world.net.borrow_mut().trace(&[FAULT, fault as u64]);
        }
        let pause_ns = self.random.within(2 * self.plan.fault_ns) + 1;
        self.world.plan(pause_ns, FAULT);
        Ok(())
    }

    /// `false`: there was nothing to strike.
    fn carry_out(&mut self, fault: Fault) -> Result<bool, String> {
        let host = self.random.below(self.residents.len());
        let other = self.random.below(self.residents.len());
        let outage_ns = 1 + self.random.within(self.plan.outage_ns);
        let is_there = self.world.look(host).is_some();
        match fault {
            Fault::CutBulk | Fault::CutControl => {
                let hit = self.world.net.borrow_mut().cut_one(fault == Fault::CutBulk);
                let Some((one, other)) = hit else { return Ok(false) };
                self.taint(one, other);
                Ok(true)
            }
            Fault::Stall => {
                let is_bulk = self.random.one_in(2);
                Ok(self.world.net.borrow_mut().stall_one(is_bulk, outage_ns))
            }
            Fault::CutWay | Fault::CutPair if host != other => {
                self.taint(host, other);
                let net = &mut *self.world.net.borrow_mut();
                net.cut_way(host, other);
                let undo = UNDO | (host as u64) << 8 | other as u64;
                let at_ns = net.now_ns() + outage_ns;
                net.plan(at_ns, crate::driver::sim::net::Item::Owner(undo));
                if fault == Fault::CutPair {
                    net.cut_way(other, host);
                    let undo = UNDO | (other as u64) << 8 | host as u64;
                    net.plan(at_ns, crate::driver::sim::net::Item::Owner(undo));
                }
                Ok(true)
            }
            Fault::CutWay | Fault::CutPair => Ok(false),
            Fault::Pause if is_there => {
                let still_ns = self.world.net.borrow_mut().pause(host, outage_ns);
                // Many pauses make one that is longer than others wait for a word.
                if 2 * still_ns > self.plan.patience_ns() {
                    self.taint_all(host);
                }
                Ok(true)
            }
            Fault::Kill if is_there => {
                self.end(host);
                Ok(true)
            }
            Fault::Darken if is_there => {
                self.world.net.borrow_mut().power_off(host);
                self.end(host);
                Ok(true)
            }
            Fault::Restart if self.homes.len() < PROCESSES_MAX => {
                if is_there {
                    self.end(host);
                }
                self.world.net.borrow_mut().power_on(host);
                self.start(host)?;
                // A peer that knows the address may find another process there.
                self.taint_all(host);
                Ok(true)
            }
            Fault::Leave if is_there && self.residents[host].leaves_ns.is_none() => {
                self.leave(host);
                Ok(true)
            }
            Fault::Join if self.residents.len() < 6 => {
                self.join()?;
                Ok(true)
            }
            Fault::Pause | Fault::Kill | Fault::Darken | Fault::Leave | Fault::Join => Ok(false),
            Fault::Restart => Ok(false),
        }
    }

    /// Checks that no engine waits for a proof for ever, however long the kernel repeats it; its
    /// sender takes that for the end of a session.
    ///
    /// RR-CONN-5.
    pub(super) fn forgive_late_proofs(&mut self) {
        let given_up = self.world.net.borrow_mut().take_given_up();
        for GivenUp { between: (one, other), waited_ns } in given_up {
            if Duration::from_nanos(waited_ns) >= HANDSHAKE_TIMEOUT {
                self.taint(one, other);
            }
        }
    }

    fn taint(&mut self, one: usize, other: usize) {
        for (one, other) in self.processes_of(one, other) {
            self.oracle.taint(one, other);
        }
    }

    /// What the processes of two hosts send each other by streams was garbled.
    pub(super) fn garbled_between(&mut self, one: usize, other: usize) {
        for (one, other) in self.processes_of(one, other) {
            self.oracle.garble(one, other);
        }
    }

    /// Pairs of processes that live on two hosts, or did: these may be remembered.
    fn processes_of(&self, one: usize, other: usize) -> Vec<(Process, Process)> {
        let of = |host: usize| {
            let homes = self.homes.iter().filter(move |(_, home)| **home == host);
            homes.map(|(process, _)| *process)
        };
        of(one).flat_map(|one| of(other).map(move |other| (one, other))).collect()
    }

    pub(super) fn taint_all(&mut self, host: usize) {
        for other in 0..self.residents.len() {
            self.taint(host, other);
        }
    }

    /// Ends a process without a goodbye.
    pub(super) fn end(&mut self, host: usize) {
        self.taint_all(host);
        drop(self.world.take(host));
        self.oracle.forget(self.residents[host].process);
    }

    /// Why the session of a host's process with another process failed.
    fn failure_of(&self, host: usize, other: Process) -> Option<&PeerFailure> {
        let core = self.world.look(host)?.state.core();
        core.sessions().at(core.shared().peers().session_of(other)? as usize)?.ending().failure()
    }

    /// Ends a process that sent a goodbye. Where the goodbye was answered, all before it has come.
    ///
    /// RR-END-1.
    pub(super) fn end_of_leaver(&mut self, host: usize) {
        let process = self.residents[host].process;
        let others = std::mem::take(&mut self.residents[host].at_peace);
        for other in others {
            if self.failure_of(host, other) == Some(&PeerFailure::Removed) {
                self.oracle.owe(process, other);
            }
        }
        self.end(host);
    }

    /// Has a process send a goodbye to all its peers, and end a little later.
    fn leave(&mut self, host: usize) {
        let process = self.residents[host].process;
        if let Some(engine) = self.world.look(host) {
            let sessions = engine.state.core().sessions().iter();
            // What still waits is not before the goodbye.
            let by_datagrams = sessions.filter(|(_, session)| {
                session.segments().has_datagrams() && session.waiting().is_empty()
            });
            let others = by_datagrams.map(|(_, session)| session.peer().id());
            let at_peace = others.filter(|&other| !self.oracle.is_tainted(process, other));
            self.residents[host].at_peace = at_peace.collect();
        }
        self.taint_all(host);
        let Some(engine) = self.world.engine(host) else { return };
        for session in 0..engine.state.core().sessions().slots() {
            engine.state.core_mut().leave(session as u32);
        }
        let ends_ns = self.world.now_ns() + self.random.within(5_000_000);
        self.residents[host].leaves_ns = Some(ends_ns);
    }

    /// An outage is over.
    pub(super) fn undo(&mut self, name: u64) {
        if name & UNDO != 0 {
            let (from, to) = ((name >> 8 & 0xff) as usize, (name & 0xff) as usize);
            self.world.net.borrow_mut().open_way(from, to);
        } else if name & FIREWALL_DOWN != 0 {
            let (from, to) = ((name >> 8 & 0xff) as usize, (name & 0xff) as usize);
            self.world.net.borrow_mut().open_datagrams_way(from, to);
        } else if name == FIREWALL {
            self.raise_firewall();
        } else if name == RAIL {
            self.strike_rail();
        }
    }

    /// A network may let no datagrams pass for ever: that costs speed, and nothing else.
    pub(super) fn keep_firewalls(&mut self) {
        if !self.plan.datagrams.as_ref().is_some_and(|plan| plan.firewalls_stay) {
            return;
        }
        let hosts = self.residents.len();
        for (from, to) in (0..hosts * hosts).map(|way| (way / hosts, way % hosts)) {
            if from != to && self.random.one_in(2) {
                self.world.net.borrow_mut().cut_datagrams_way(from, to);
            }
        }
    }

    /// Strikes a link with a fault for a while, or some times in a row. Nothing may fail; but an
    /// engine with a short timeout may lose a session that began by the first link just before, and
    /// knows of no other yet; and a session without datagrams ends with its stream.
    fn strike_rail(&mut self) {
        self.taint_silent_streams();
        let Some(rails) = &self.plan.rails else { return };
        let host = self.random.below(self.residents.len());
        let link = self.random.below(self.world.net.borrow().link_count(host));
        let fault_ns = rails.fault_ns;
        let Some((fault, outage_ns, times)) = rails.fault(&mut self.random) else { return };
        self.faults += 1;
        let may_fail = link == 0 && !self.plan.is_patient();
        if may_fail {
            self.taint_all(host);
        }
        let now_ns = self.world.now_ns();
        if may_fail {
            // A process that starts meanwhile finds it so.
            let until_ns = now_ns + 2 * outage_ns * times;
            let known = self.first_links.entry(host).or_default();
            *known = (*known).max(until_ns);
        }
        let way = (host, link);
        self.world.net.borrow_mut().plan_flapping(now_ns, way, fault, 2 * outage_ns, times);
        let next_ns = 1 + self.random.within(2 * fault_ns);
        self.world.plan(next_ns, RAIL);
    }

    /// Sessions without datagrams whose stream the links' faults may have silenced have a reason to
    /// end.
    fn taint_silent_streams(&mut self) {
        let now_ns = self.world.now_ns();
        let since_ns = *self.first_strike_ns.get_or_insert(now_ns);
        if !self.plan.silences_streams(now_ns - since_ns) {
            return;
        }
        for host in 0..self.residents.len() {
            if !self.world.net.borrow().has_datagrams(host) {
                self.taint_all(host);
            }
        }
    }

    /// No datagram comes from one host to another for a while; streams do. Nothing may fail.
    fn raise_firewall(&mut self) {
        let firewalls = self.plan.datagrams.as_ref().and_then(|plan| plan.firewall_ns);
        let Some((pause_ns, outage_ns)) = firewalls else { return };
        let (from, to) =
            (self.random.below(self.residents.len()), self.random.below(self.residents.len()));
        let outage_ns = 1 + self.random.within(outage_ns);
        if from != to {
            self.faults += 1;
            self.world.net.borrow_mut().cut_datagrams_way(from, to);
            self.world.plan(outage_ns, FIREWALL_DOWN | (from as u64) << 8 | to as u64);
        }
        let next_ns = 1 + self.random.within(2 * pause_ns);
        self.world.plan(next_ns, FIREWALL);
    }
}
