//! The swarm: whole engines in a simulated world, one seed a run.
//!
//! A run has two phases. First processes exchange random messages while faults strike (chosen by
//! `plan`); then all faults end, and everything that is outstanding has to end within a bound of
//! virtual time, memory and credit have to be back, and every pair that lives has to be able to
//! talk. `oracle` watches at every step. The same seed makes the same run, to the last event.

#[cfg(test)]
mod absence;
#[cfg(test)]
mod advice;
mod at_rest;
mod attacker;
#[cfg(test)]
mod checksums;
#[cfg(test)]
mod control_lane_lost;
mod datagram_plan;
mod faults;
mod fences;
mod figures;
mod form;
#[cfg(test)]
mod fuzz;
mod garble;
mod known_seeds;
#[cfg(test)]
mod lanes;
mod local_peer_plan;
mod many;
mod one_sided;
mod oracle;
mod parting;
#[cfg(test)]
mod paths;
#[cfg(test)]
mod placed;
#[cfg(test)]
mod placed_ends;
pub(crate) mod plan;
mod rail_plan;
#[cfg(test)]
mod reasons;
#[cfg_attr(not(test), allow(dead_code, reason = "figures use a part of it"))]
mod scenarios;
#[cfg(test)]
mod segments;
#[cfg(test)]
mod silent_engines;
mod span;
#[cfg(test)]
mod storms;
#[cfg(test)]
mod streams;
#[cfg(test)]
mod tests;
mod thread_life;
mod thread_plan;
mod threads;
#[cfg(test)]
mod twins;
#[cfg(test)]
mod unfinished;
#[cfg(test)]
mod without_datagrams;
mod workload;
pub(crate) mod world;

pub use self::figures::FIGURES;
pub use self::known_seeds::KNOWN_SEEDS;

use std::collections::BTreeMap;
use std::fs::File;

use self::garble::GARBLE;
use self::one_sided::OneSidedWorld;
use self::oracle::{Oracle, Process};
use self::plan::Plan;
use self::threads::{Bout, THREADS, Team};
use self::world::{Step, World};
use crate::driver::sim::random::Random;
use crate::hooks::simulated;
use crate::proto::table::Id;

/// Where the name of a message stands in its tag, in contexts in which tags have names.
const SERIAL_SHIFT: u32 = 8;

/// Hellos that an attacker repeats, fewer than may be pending anywhere.
const REPLAYED_HELLOS: usize = 20;

/// Turns of all engines between two looks at what bounds memory.
const TURNS_PER_LOOK: u64 = 64;

/// Looks at a world made whole after which receives that wait are cancelled.
const RECEIVES_STAY_LOOKS: u32 = 24;

/// The results of a run.
#[derive(Clone, Copy, Default, Debug)]
pub struct Report {
    /// Messages that were received whole.
    pub messages: u64,
    /// Faults that struck, and rare branches that were taken.
    pub faults: u64,
    /// Hash of everything that happened, in order.
    pub trace_hash: u64,
    /// Hash of the bytes that engines sent, whenever they did: the times of neither sending nor
    /// acknowledgements are in it, nor the order of what goes different ways.
    pub wire_hash: u64,
    /// Virtual time that passed, in nanoseconds.
    pub virtual_ns: u64,
    /// Turns of all engines.
    pub turns: u64,
    /// Segments that came by rings, reads from memory, and pieces of messages that came by rings.
    pub from_local_peers: [u64; 3],
}

/// A process that runs, and what it calls the others.
#[derive(Debug, Default)]
struct Resident {
    process: Process,
    /// Sends a goodbye, and ends when that is sent.
    leaves_ns: Option<u64>,
    /// Endpoints that are closed now.
    closed: Vec<u16>,
    /// Peers that it leaves cleanly: other processes that it has a session by datagrams with, and
    /// that no fault had interrupted when it sent the goodbye.
    at_peace: Vec<Process>,
    /// Outstanding operations of its threads.
    team: Team,
}

/// Events that the run plans for itself, by name: a bit each, and below them hosts.
const FAULT: u64 = 1 << 32;
const CHECK: u64 = 1 << 33;
/// Ends an outage of the way from one host to another.
const UNDO: u64 = 1 << 34;
/// An endpoint of a host is opened again.
const REOPEN: u64 = 1 << 35;
/// A firewall comes up.
const FIREWALL: u64 = 1 << 36;
/// It goes down, from one host to another.
const FIREWALL_DOWN: u64 = 1 << 37;
/// A fault befalls a link.
const RAIL: u64 = 1 << 39;

/// One run.
struct Run {
    plan: Plan,
    world: World,
    random: Random,
    oracle: Oracle,
    one_sided: OneSidedWorld,
    /// By host.
    residents: Vec<Resident>,
    /// Threads that are at work, by host.
    bouts: BTreeMap<usize, Bout>,
    next_bout: u64,
    /// Host of every process there ever was.
    homes: BTreeMap<Process, usize>,
    /// Hosts whose first link has failed, and until when it may again.
    first_links: BTreeMap<usize, u64>,
    /// When a link was first struck.
    first_strike_ns: Option<u64>,
    next_process: u64,
    actions_left: usize,
    /// Operations that may be cancelled: where, which, and whether it is a receive.
    operations: Vec<(usize, Id)>,
    faults: u64,
    /// Chunks, or headers of chunks, with a byte that was garbled.
    garbled_chunks: u32,
    is_healing: bool,
}

/// Runs one seed.
///
/// # Errors
///
/// The violation, its time, and the plan of the run.
pub fn run_seed(seed: u64) -> Result<Report, String> {
    run(Plan::new(seed), None)
}

/// Returns the result of `run`, which takes no fast path.
pub fn by_long_ways<T>(run: impl FnOnce() -> T) -> T {
    simulated::by_long_ways(run)
}

/// Runs a seed with a line in `log` for everything that an engine sends: source, destination,
/// length, the hash of all that went there so far, and the bytes. No line has a time.
///
/// # Errors
///
/// As [`run_seed`].
pub fn run_logged(seed: u64, log: File) -> Result<Report, String> {
    run(Plan::new(seed), Some(log))
}

/// Version of the format of what engines send.
pub const WIRE_VERSION: u16 = crate::wire::VERSION;

/// How many bugs can be planted.
pub const BUGS: usize = simulated::BUGS.len();

/// Returns the name of one of them.
///
/// # Panics
///
/// When `bug` is not below [`BUGS`].
pub fn bug_name(bug: usize) -> String {
    format!("{:?}", simulated::BUGS[bug])
}

/// Runs one seed with one bug planted into the engine, to see that it is found; gives the bug's
/// name as well. A panic ends the planting, too.
///
/// # Errors
///
/// As [`run_seed`]; that is what is hoped for.
///
/// # Panics
///
/// When the engine notices the bug itself, and when `bug` is not below [`BUGS`].
pub fn run_planted(seed: u64, bug: usize) -> (String, Result<Report, String>) {
    struct Planted;
    impl Drop for Planted {
        fn drop(&mut self) {
            simulated::plant(None);
        }
    }
    let _planted = Planted;
    let bug = simulated::BUGS[bug];
    simulated::plant(Some(bug));
    (format!("{bug:?}"), run_seed(seed))
}

/// Runs `actions` sends and receives of short messages without faults, by streams or by datagrams,
/// to measure the simulator.
///
/// # Errors
///
/// As [`run_seed`].
pub fn run_throughput(seed: u64, actions: usize, by_datagrams: bool) -> Result<Report, String> {
    run(Plan::throughput(seed, actions, by_datagrams), None)
}

fn run(plan: Plan, log: Option<File>) -> Result<Report, String> {
    simulated::set_rare(plan.rare.then_some(plan.seed));
    let described = format!("{plan:?}");
    crate::hooks::threads::forget();
    let mut run = Run::new(plan).map_err(|error| format!("{error}; {described}"))?;
    if let Some(log) = log {
        run.world.net.borrow_mut().log_wire(log);
    }
    let done = run.go();
    let now_ns = run.world.now_ns();
    let rare_taken = simulated::rare_taken();
    simulated::set_rare(None);
    let report = Report {
        messages: run.oracle.received.iter().filter(|it| it.message.is_some()).count() as u64,
        faults: run.faults + rare_taken,
        trace_hash: run.world.net.borrow().trace_hash(),
        wire_hash: run.world.net.borrow().wire_hash(),
        virtual_ns: now_ns,
        turns: run.world.turns,
        from_local_peers: run.world.net.borrow().local_read_counts(),
    };
    match done {
        Ok(()) => Ok(report),
        Err(what) => {
            let state = run.describe();
            Err(format!("at {now_ns} ns: {what}\n{state}\nthe plan: {described}"))
        }
    }
}

impl Run {
    fn new(plan: Plan) -> Result<Self, String> {
        let seed = plan.seed;
        let mut world = World::new(seed, plan.impairments.clone()).map_err(|e| e.to_string())?;
        (world.turn_ns, world.idle_turns_max) = (plan.turn_ns, plan.idle_turns_max);
        if let Some(datagrams) = &plan.datagrams {
            world.net.borrow_mut().datagram_impairments = datagrams.impairments.clone();
        }
        let mut oracle = Oracle::default();
        oracle.all_tainted = plan.connects_fail();
        oracle.has_datagrams = plan.datagrams.is_some();
        let fair_ns = crate::driver::sim::net::Impairments::ideal().delay_ns;
        let is_attacked =
            plan.datagrams.as_ref().is_some_and(|datagrams| datagrams.attack_ns.is_some());
        if let Some(impairments) = plan.local_peers {
            world.net.borrow_mut().share_memory(impairments);
        }
        oracle.delay_ns = match &plan.rails {
            // An attacker that reads along may send copies that overtake, and so may rings.
            _ if is_attacked || plan.local_peers.is_some() => 0,
            Some(rails) => rails.delay_ns(),
            None => plan.impairments.delay_ns.min(fair_ns),
        };
        let mut run = Self {
            world,
            random: Random::new(seed ^ 0x5eed),
            oracle,
            one_sided: OneSidedWorld::new(seed),
            residents: Vec::new(),
            bouts: BTreeMap::new(),
            next_bout: 1,
            homes: BTreeMap::new(),
            first_links: BTreeMap::new(),
            first_strike_ns: None,
            next_process: 1,
            actions_left: plan.actions,
            operations: Vec::new(),
            faults: 0,
            garbled_chunks: 0,
            is_healing: false,
            plan,
        };
        for _ in 0..run.plan.hosts {
            run.join()?;
        }
        Ok(run)
    }

    /// A new host with a process.
    fn join(&mut self) -> Result<(), String> {
        let rails = self.plan.rails.as_ref();
        let links = rails.map_or(Vec::new(), |rails| rails.links_of(self.residents.len()));
        let host = self.world.add_host_with(&links);
        self.world.net.borrow_mut().limit_packets(host, self.plan.packet_bytes_max);
        self.residents.push(Resident::default());
        self.start(host)?;
        let first_ns = self.random.within(self.plan.think_ns);
        self.world.plan(first_ns, host as u64);
        Ok(())
    }

    /// A new process on a host.
    fn start(&mut self, host: usize) -> Result<(), String> {
        // The higher id wins elections, so ids are in no order.
        let process = (self.next_process << 8 | self.random.next() & 0xff).reverse_bits() >> 1;
        self.next_process += 1;
        let config = self.plan.config(&mut self.random);
        let loops = self.plan.loop_config(&mut self.random);
        if let Some(datagrams) = &self.plan.datagrams {
            let has_them = datagrams.without_one_in == 0
                || !process.is_multiple_of(datagrams.without_one_in as u64);
            self.world.set_datagrams(has_them).map_err(|error| error.to_string())?;
        }
        self.world.start(host, process, config, loops).map_err(|error| error.to_string())?;
        let engine = self.world.engine(host).ok_or("an engine that was just started")?;
        for _ in 1..self.plan.endpoints {
            engine.state.open_endpoint();
        }
        self.residents[host] = Resident { process, ..Resident::default() };
        let dead: Vec<Process> =
            self.homes.keys().copied().filter(|&known| !self.is_alive(known)).collect();
        dead.into_iter().for_each(|dead| self.oracle.taint(process, dead));
        self.homes.insert(process, host);
        if self.plan.one_sided {
            self.open_region(host)?;
        }
        let now_ns = self.world.now_ns();
        let failing = self.first_links.iter().filter(|&(_, &until_ns)| until_ns > now_ns);
        let failing: Vec<usize> = failing.map(|(&host, _)| host).collect();
        failing.into_iter().for_each(|host| self.taint_all(host));
        Ok(())
    }

    fn is_alive(&self, process: Process) -> bool {
        self.homes.get(&process).is_some_and(|&host| {
            self.residents[host].process == process && self.world.is_running(host)
        })
    }

    fn go(&mut self) -> Result<(), String> {
        if self.plan.fault_ns > 0 {
            self.world.plan(self.plan.fault_ns, FAULT);
        }
        if let Some(datagrams) = &self.plan.datagrams {
            if let Some(pause_ns) = datagrams.attack_ns {
                self.world.attack(self.plan.seed, pause_ns);
                // Attempts that arrive elsewhere are spent; enough are left for what else happens.
                let relays = (self.plan.retry.retries as usize / 4).min(4);
                self.world.net.borrow_mut().attack_handshakes(REPLAYED_HELLOS, relays);
            }
            if let Some((pause_ns, _)) = datagrams.firewall_ns {
                self.world.plan(pause_ns, FIREWALL);
            }
        }
        if let Some(rails) = self.plan.rails.as_ref().filter(|rails| rails.fault_ns > 0) {
            self.world.plan(rails.fault_ns, RAIL);
        }
        self.begin_garbling();
        let limit_ns = self.plan.actions as u64 * self.plan.think_ns * 4 + self.plan.outage_ns * 4;
        while self.actions_left > 0 {
            match self.next_step(limit_ns) {
                Step::Limit => break,
                Step::Turn(host) => self.after_turn(host)?,
                Step::Planned(name) if name & THREADS != 0 => self.run_threads(name)?,
                Step::Planned(FAULT) => self.strike()?,
                Step::Planned(name) if name & GARBLE != 0 => self.garble(name),
                Step::Planned(name) if name & REOPEN != 0 => self.reopen((name & 0xff) as usize)?,
                Step::Planned(name) if name > FAULT => self.undo(name),
                Step::Planned(host) => self.act(host as usize)?,
            }
        }
        self.heal()
    }

    /// The next thing that happens. What others learn of the one before, by turns or by threads,
    /// they learn later.
    fn next_step(&mut self, limit_ns: u64) -> Step {
        let step = self.world.step(limit_ns);
        self.forgive_late_proofs();
        step
    }

    /// Checks the results of a turn.
    fn after_turn(&mut self, host: usize) -> Result<(), String> {
        self.wake_threads(host);
        self.collect(host)?;
        self.check_waiting_room(host)?;
        if self.world.turns.is_multiple_of(TURNS_PER_LOOK) {
            self.check_bounds(host)?;
        }
        if self.residents[host].leaves_ns.is_some_and(|at_ns| self.world.now_ns() > at_ns) {
            self.end_of_leaver(host);
        }
        let violation = self.world.net.borrow_mut().take_violation();
        violation.map_or(Ok(()), Err)
    }

    /// Takes the completions of a process.
    fn collect(&mut self, host: usize) -> Result<(), String> {
        let now_ns = self.world.now_ns();
        let process = self.residents[host].process;
        // Not through `World::engine`: looking at completions gives an engine nothing to do.
        while let Some(completion) = self.next_completion(host) {
            let is_busy = completion.buffer.as_ref().is_some_and(|buffer| {
                let net = self.world.net.borrow();
                form::pieces_of(buffer).iter().any(|piece| net.is_busy(piece))
            });
            if is_busy {
                return Err(format!("{completion:?} while the kernel has its buffer"));
            }
            let outcome = match &completion.result {
                Ok(status) => status.length as u64,
                Err(_) => u64::MAX,
            };
            let happened = [host as u64, completion.user_data, outcome];
            self.world.net.borrow_mut().trace(&happened);
            if !self.end_one_sided(&completion)? {
                self.oracle.complete(process, now_ns, completion)?;
            }
        }
        self.oracle.check_promises()
    }

    /// The world is whole from now on, and everything ends.
    fn heal(&mut self) -> Result<(), String> {
        self.settle_all()?;
        self.is_healing = true;
        self.faults += self.world.end_attack();
        self.world.net.borrow_mut().attack_handshakes(0, 0);
        for host in 0..self.residents.len() {
            while !self.residents[host].closed.is_empty() {
                self.reopen(host)?;
            }
        }
        simulated::set_rare(None);
        {
            let net = &mut *self.world.net.borrow_mut();
            let keep_alive_ns = net.impairments.keep_alive_ns;
            net.impairments = crate::driver::sim::net::Impairments::ideal();
            net.impairments.keep_alive_ns = keep_alive_ns;
            net.datagram_impairments = crate::driver::sim::datagrams::DatagramImpairments::ideal();
            net.disable_link_faults();
            net.disable_ring_faults();
            net.heal();
        }
        self.keep_firewalls();
        let end_ns = self.world.now_ns() + self.plan.bound_ns();
        self.world.plan(0, CHECK);
        let (mut quiet, mut looks, mut wait_ns) = (0, 0, 100_000);
        loop {
            match self.next_step(end_ns) {
                Step::Limit => {
                    return Err("what is outstanding does not end".into());
                }
                Step::Turn(host) => self.after_turn(host)?,
                Step::Planned(CHECK) => {
                    let is_quiet = self.drain()?;
                    looks += 1;
                    if is_quiet {
                        self.check_waiting()?;
                    }
                    if looks == RECEIVES_STAY_LOOKS {
                        // Receives that no send matches may take all room for operations.
                        self.cancel_all()?;
                    }
                    quiet = if is_quiet { quiet + 1 } else { 0 };
                    // Twice the longest sleep of an engine: nothing wakes of itself any more.
                    if quiet > 4 {
                        self.cancel_all()?;
                        if quiet > 12 && !self.is_receiving() {
                            break;
                        }
                    }
                    // What takes long, such as a peer's patience, is not asked for all the time.
                    wait_ns = if is_quiet { 50_000_000 } else { (2 * wait_ns).min(50_000_000) };
                    self.world.plan(wait_ns, CHECK);
                }
                Step::Planned(_) => {}
            }
        }
        self.outlive()?;
        let alive: Vec<Process> = self.residents.iter().map(|it| it.process).collect();
        let alive: Vec<Process> = alive.into_iter().filter(|&p| self.is_alive(p)).collect();
        self.oracle.check_end(|process| alive.contains(&process))?;
        self.check_memory()?;
        self.exchange_messages()?;
        self.come_to_rest()
    }

    fn describe(&self) -> String {
        let mut text = String::new();
        for host in 0..self.world.hosts() {
            if let Some(engine) = self.world.look(host) {
                text += &at_rest::describe(engine);
            }
        }
        // The report may be long; its beginning has most of the information.
        text.chars().take(60_000).collect()
    }
}
