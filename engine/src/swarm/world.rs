//! Engines under virtual time: each runs, sleeps and wakes as its loop would on a host.

use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;

use rand::SeedableRng;
use rand::rngs::StdRng;

use super::attacker::Attacker;
use crate::driver::AnyDriver;
use crate::driver::sim::net::{Impairments, Item, Net};
use crate::driver::sim::rails::LinkImpairments;
use crate::driver::sim::{Shared, SimDriver};
use crate::driver::traits::DATAGRAM_BYTES_USUAL;
use crate::driver::traits::Driver;
use crate::memory::Arena;
use crate::progress::datagram::EngineDatagrams;
use crate::progress::engine::{Engine, EngineParts, EngineState, LoopConfig};
use crate::progress::listeners::Listeners;
use crate::progress::rails::LocalRails;
use crate::progress::statistics::Reports;
use crate::proto::core::Config;
use crate::proto::keys::JobKeys;
use crate::types::{Completion, Error, Rail, RailRole};
use crate::wire::locators::Locators;

/// What the world plans for itself; the rest of the name identifies the attacker.
const ATTACK: u64 = 1 << 63;

/// How often the background thread makes a turn of a simulated engine, besides when something is
/// due: nothing that comes wakes it.
const CARE_NS: u64 = 1_000_000;

/// Attacks after which there are half as many in the same time.
const ATTACKS_TO_TIRE: u64 = 20_000;

/// A host, and the engine that lives there now.
struct Place {
    engine: Option<Engine>,
    /// Threads share it for now.
    is_shared: bool,
    idle_turns: u32,
    /// Its owner computes until then, and only the background thread makes turns.
    absent_until_ns: u64,
}

/// The reason why time stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// The engine of this host made a turn.
    Turn(usize),
    /// An event that the caller planned under this name is due.
    Planned(u64),
    /// The limit is reached.
    Limit,
}

/// See the module.
pub(crate) struct World {
    pub(crate) net: Shared,
    places: Vec<Place>,
    /// What all engines have instead of one each: no simulated byte goes there.
    arena: Arc<Arena>,
    listener: TcpListener,
    keys: Arc<JobKeys>,
    /// As the listener: no datagram goes there. Engines that are started have datagrams, too.
    datagrams: Option<UdpSocket>,
    attacker: Option<Attacker>,
    /// Pause between two attacks, on average; counts the attackers.
    attack: (u64, u64),
    /// Time that a turn takes.
    pub(crate) turn_ns: u64,
    /// Time that it takes longer for each datagram that it receives or sends.
    pub(crate) datagram_ns: u64,
    /// Likewise for each connection that it accepts.
    pub(crate) connection_ns: u64,
    /// Turns in which nothing happens before an engine sleeps.
    pub(crate) idle_turns_max: u32,
    /// Turns of all engines so far.
    pub(crate) turns: u64,
    /// Engines that are started know the speeds of their links, as reported by NICs.
    pub(crate) reports_speed: bool,
}

impl World {
    /// A world without hosts.
    pub(crate) fn new(seed: u64, impairments: Impairments) -> Result<Self, Error> {
        let failed = |error| Error::system("cannot set a simulated world up", error);
        Ok(Self {
            net: Net::new(seed, impairments),
            places: Vec::new(),
            arena: Arena::new(4096).map_err(failed)?,
            listener: TcpListener::bind(("127.0.0.1", 0)).map_err(failed)?,
            keys: Arc::new(JobKeys::new(None)),
            datagrams: None,
            attacker: None,
            attack: (0, ATTACK),
            turn_ns: 1_000,
            datagram_ns: 0,
            connection_ns: 0,
            idle_turns_max: 2,
            turns: 0,
            reports_speed: false,
        })
    }

    /// Engines that are started from now on take datagrams, or do not.
    pub(crate) fn set_datagrams(&mut self, wanted: bool) -> Result<(), Error> {
        let failed = |error| Error::system("cannot set a simulated world up", error);
        let socket = wanted.then(|| UdpSocket::bind(("127.0.0.1", 0))).transpose();
        self.datagrams = socket.map_err(failed)?;
        self.net.borrow_mut().check_datagrams();
        Ok(())
    }

    /// A new host, without a process; its number.
    #[cfg(test)]
    pub(crate) fn add_host(&mut self) -> usize {
        self.add_host_with(&[])
    }

    /// Adds a place for another process on a host: it has the same address, and other ports.
    #[cfg(test)]
    pub(crate) fn add_process_beside(&mut self, host: usize) -> usize {
        self.add_place(host, &[])
    }

    /// Adds a host with these links; none: with one, configured by the impairments.
    pub(crate) fn add_host_with(&mut self, links: &[LinkImpairments]) -> usize {
        self.add_place(self.places.len(), links)
    }

    /// Adds a place for a process on the host with this number.
    fn add_place(&mut self, host: usize, links: &[LinkImpairments]) -> usize {
        let low = [(host >> 8) as u8, host as u8];
        let ip = |link: usize| [127, 77 + link as u8, low[0], low[1]];
        let port = 20_000 + (self.places.len() - host) as u16;
        self.places.push(Place {
            engine: None,
            is_shared: false,
            idle_turns: 0,
            absent_until_ns: 0,
        });
        let net = &mut *self.net.borrow_mut();
        let host = net.add_host(SocketAddr::from((ip(0), port)));
        for (link, impairments) in links.iter().enumerate() {
            match link {
                0 => net.set_link(host, 0, *impairments),
                _ => assert_eq!(net.add_rail(host, ip(link).into(), *impairments), link),
            }
        }
        host
    }

    /// Returns the links of a host as its engine knows them.
    fn rails_of(&self, host: usize) -> Vec<Rail> {
        let net = self.net.borrow();
        let links = net.link_count(host);
        let rail = |link: usize| Rail {
            nic: format!("sim{link}"),
            nic_index: link as u32 + 1,
            address: net.rail_address(host, link).ip(),
            speed_mbps: net.link_mbps(host, link).filter(|_| self.reports_speed),
            mtu: None,
            role: RailRole::Ordinary,
        };
        if links > 1 { (0..links).map(rail).collect() } else { Vec::new() }
    }

    /// Where the engine of a host listens.
    pub(super) fn locators(&self, host: usize) -> Locators {
        let rails = self.rails_of(host);
        Locators::of(self.net.borrow().locator(host), rails.iter().map(|rail| rail.address))
    }

    /// How many hosts there are.
    pub(crate) fn hosts(&self) -> usize {
        self.places.len()
    }

    /// Starts a process with an engine of the given id, with one endpoint and one queue.
    pub(crate) fn start(
        &mut self,
        host: usize,
        id: u64,
        core: Config,
        config: LoopConfig,
    ) -> Result<(), Error> {
        let failed = |error| Error::system("cannot start a simulated engine", error);
        let listener = self.listener.try_clone().map_err(failed)?;
        let locator = self.net.borrow().locator(host);
        let random = StdRng::seed_from_u64(id.wrapping_mul(1000));
        let queue_entries = 1 << 16;
        let socket =
            self.datagrams.as_ref().map(UdpSocket::try_clone).transpose().map_err(failed)?;
        let datagrams = socket.map_or_else(EngineDatagrams::default, |socket| {
            EngineDatagrams::new(socket, locator.port(), DATAGRAM_BYTES_USUAL, false)
        });
        let mut state = EngineState::new(EngineParts {
            engine: id,
            random,
            core: core.into(),
            config,
            keys: Arc::clone(&self.keys),
            entries_max: queue_entries,
            arena: Arc::clone(&self.arena),
            listeners: Listeners::new(listener, Vec::new()),
            rails: LocalRails::new(locator, self.rails_of(host), self.rails_of(host)),
            datagrams,
            placement: Arc::default(),
            reports: Reports::default(),
        });
        state.use_virtual_time();
        let driver = AnyDriver::<dyn Driver>::Other(Box::new(SimDriver::new(&self.net, host)));
        let engine = Engine::attach(Box::new(state), driver, Vec::new())?;
        self.places[host] =
            Place { engine: Some(engine), is_shared: false, idle_turns: 0, absent_until_ns: 0 };
        Ok(())
    }

    /// The engine of a host; it runs soon, if it slept.
    pub(crate) fn engine(&mut self, host: usize) -> Option<&mut Engine> {
        let engine = self.places[host].engine.as_mut()?;
        self.net.borrow_mut().wake(host);
        Some(engine)
    }

    /// The engine of a host, to look at.
    pub(crate) fn look(&self, host: usize) -> Option<&Engine> {
        self.places[host].engine.as_ref()
    }

    /// The oldest completion of a process that was not taken.
    pub(crate) fn pop(&mut self, host: usize) -> Option<Completion> {
        self.places[host].engine.as_mut()?.state.completions_mut().pop(0)
    }

    /// Takes the engine off, for the caller to drop: its process is killed.
    pub(crate) fn take(&mut self, host: usize) -> Option<Engine> {
        self.places[host].engine.take()
    }

    /// Takes the engine off for threads to share; [`Step::Turn`] then means that its driver is
    /// ready.
    pub(crate) fn lend(&mut self, host: usize) -> Option<Engine> {
        let engine = self.places[host].engine.take();
        self.places[host].is_shared = engine.is_some();
        engine
    }

    /// The threads are done.
    pub(crate) fn give_back(&mut self, host: usize, engine: Engine) {
        let place = &mut self.places[host];
        (place.engine, place.is_shared, place.idle_turns) = (Some(engine), false, 0);
        let net = &mut *self.net.borrow_mut();
        let now_ns = net.now_ns();
        net.plan_turn(host, now_ns);
    }

    /// Whether a process runs on a host.
    pub(crate) fn is_running(&self, host: usize) -> bool {
        self.places[host].engine.is_some() || self.places[host].is_shared
    }

    /// The next thing that happens before `limit_ns`.
    pub(crate) fn step(&mut self, limit_ns: u64) -> Step {
        let mut item = self.net.borrow_mut().next(limit_ns);
        while let Some(Item::Owner(name)) = item
            && name & ATTACK != 0
        {
            self.strike(name);
            item = self.net.borrow_mut().next(limit_ns);
        }
        match item {
            None => Step::Limit,
            Some(Item::Turn { host, .. }) => {
                self.turn(host);
                Step::Turn(host)
            }
            Some(Item::Owner(name)) => Step::Planned(name),
            Some(item) => unreachable!("{item:?} is the network's own business"),
        }
    }

    /// Datagrams and connections that a host has handled so far.
    fn handled(&self, host: usize) -> (u64, u64) {
        let net = self.net.borrow();
        (net.datagrams_handled(host), net.accepted(host))
    }

    fn turn(&mut self, host: usize) {
        let before = self.handled(host);
        let place = &mut self.places[host];
        let Some(engine) = place.engine.as_mut() else { return };
        self.turns += 1;
        let now_ns = self.net.borrow().now_ns();
        if place.absent_until_ns > now_ns {
            let cared = engine.background_turn();
            let net = &mut *self.net.borrow_mut();
            let due_in = match cared {
                Ok((_, due_in)) => due_in.map_or(CARE_NS, |due_in| due_in.as_nanos() as u64),
                Err(error) => {
                    net.violation(format!("a turn of the background thread fails: {error}"));
                    CARE_NS
                }
            };
            // The owner may be back before.
            let at_ns = now_ns + due_in.clamp(self.turn_ns, CARE_NS);
            net.plan_turn(host, at_ns.min(place.absent_until_ns));
            return;
        }
        let mut progressed = engine.progress();
        if matches!(progressed, Ok(false)) {
            place.idle_turns += 1;
            if place.idle_turns >= self.idle_turns_max {
                place.idle_turns = 0;
                progressed = engine.park(None).map(|()| false);
            }
        } else {
            place.idle_turns = 0;
        }
        let net = &mut *self.net.borrow_mut();
        if let Err(error) = progressed {
            net.violation(format!("an engine's loop fails: {error}"));
        }
        if !net.is_asleep(host) {
            let work_ns = self.datagram_ns * (net.datagrams_handled(host) - before.0)
                + self.connection_ns * (net.accepted(host) - before.1);
            let turn_ns = self.turn_ns + net.turn_random(host).within(self.turn_ns);
            let next_ns = net.now_ns() + turn_ns + work_ns;
            net.plan_turn(host, next_ns);
        }
    }

    /// The owner of an engine makes no call for a while.
    #[cfg_attr(not(test), allow(dead_code, reason = "plans may ask for it"))]
    pub(crate) fn be_absent(&mut self, host: usize, for_ns: u64) {
        self.places[host].absent_until_ns = self.now_ns() + for_ns;
        self.net.borrow_mut().wake(host);
    }

    /// Starts an on-path attacker on the datagrams of all hosts, which acts once in `pause_ns` on
    /// average.
    #[cfg_attr(not(test), allow(dead_code, reason = "plans may ask for it"))]
    pub(crate) fn attack(&mut self, seed: u64, pause_ns: u64) {
        self.attacker = Some(Attacker::new(seed, &mut self.net.borrow_mut()));
        self.attack = (pause_ns, self.attack.1 + 1);
        self.plan(0, self.attack.1);
    }

    /// Ends the attack; how many datagrams were sent.
    #[cfg_attr(not(test), allow(dead_code, reason = "plans may ask for it"))]
    pub(crate) fn end_attack(&mut self) -> u64 {
        self.net.borrow_mut().observe_datagrams(0);
        self.attacker.take().map_or(0, |attacker| attacker.attacks())
    }

    fn strike(&mut self, name: u64) {
        let (pause_ns, current) = self.attack;
        let Some(attacker) = self.attacker.as_mut().filter(|_| name == current) else { return };
        let net = &mut *self.net.borrow_mut();
        attacker.attack(net);
        // A run that lasts for long has seen the attacks by then.
        let pause_ns = pause_ns << (attacker.attacks() / ATTACKS_TO_TIRE).min(20);
        let at_ns = net.now_ns() + 1 + net.random.within(2 * pause_ns);
        net.plan(at_ns, Item::Owner(name));
    }

    /// The virtual time in nanoseconds.
    pub(crate) fn now_ns(&self) -> u64 {
        self.net.borrow().now_ns()
    }

    /// Has [`Step::Planned`] come `in_ns` from now.
    pub(crate) fn plan(&mut self, in_ns: u64, name: u64) {
        let net = &mut *self.net.borrow_mut();
        let at_ns = net.now_ns() + in_ns;
        net.plan(at_ns, Item::Owner(name));
    }
}
