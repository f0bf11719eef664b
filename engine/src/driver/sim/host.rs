//! Hosts of the simulated network: lanes, pending events, and scheduling of turns.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::datagrams::Socket;
use super::lane::{PendingEvent, SimLane, Watch, What};
use super::net::{Item, Net};
use super::rails::Link;
use super::random::HostRandom;
use crate::driver::ACCEPTS_AT_ONCE;
use crate::driver::traits::{DriverEvent, LaneKey};

/// Backlog of listeners.
const BACKLOG: usize = 4096;

/// A process, by host and number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct ProcessName {
    pub(super) host: usize,
    pub(super) process: u32,
}

#[derive(Debug)]
pub(crate) struct Host {
    pub(super) random: HostRandom,
    pub(super) locator: SocketAddr,
    /// The first one has the locator.
    pub(super) links: Vec<Link>,
    /// The link of each rail of the process; empty: one rail, the first link.
    pub(super) rails: Vec<usize>,
    /// Counts the processes of this host.
    pub(super) process: u32,
    pub(super) is_running: bool,
    /// It sends nothing and answers nothing.
    pub(super) is_powered_off: bool,
    /// Identifies the power-off period.
    pub(super) power_epoch: Option<u64>,
    pub(super) lanes: Vec<Option<SimLane>>,
    generation: u32,
    pending: BTreeMap<(u64, u64), PendingEvent>,
    /// Makes turns that were planned before stale.
    turn: u64,
    /// When it wakes, if it sleeps.
    wakes_ns: Option<u64>,
    /// The loop is paused until then.
    pub(super) paused_until_ns: u64,
    /// Start of the current sequence of pauses.
    pub(super) paused_since_ns: u64,
    pub(super) socket: Socket,
    /// Connections accepted by its processes.
    pub(super) accepted: u64,
    /// Accepting is paused until then.
    pub(super) accepts_after_ns: u64,
    /// Connections opened by the current process, and by visitors to the host.
    pub(super) opened: u64,
    pub(super) visits: u64,
}

impl Host {
    pub(super) fn new(locator: SocketAddr, random: HostRandom) -> Self {
        Self {
            random,
            locator,
            links: vec![Link::new(locator)],
            rails: Vec::new(),
            process: 0,
            is_running: false,
            is_powered_off: false,
            power_epoch: None,
            lanes: Vec::new(),
            generation: 0,
            pending: BTreeMap::new(),
            turn: 0,
            wakes_ns: None,
            paused_since_ns: 0,
            paused_until_ns: 0,
            socket: Socket::new(),
            accepted: 0,
            accepts_after_ns: 0,
            opened: 0,
            visits: 0,
        }
    }

    pub(super) fn start(&mut self) {
        self.process += 1;
        self.opened = 0;
        self.rails.clear();
        self.is_running = true;
        self.paused_until_ns = 0;
    }

    /// The current process of host `host`.
    pub(super) fn process_name(&self, host: usize) -> ProcessName {
        ProcessName { host, process: self.process }
    }

    /// Removes everything of the process; returns its lanes, and events whose memory must be
    /// released.
    pub(super) fn stop(&mut self) -> (Vec<SimLane>, Vec<PendingEvent>) {
        self.is_running = false;
        self.turn += 1;
        self.wakes_ns = None;
        let pending = std::mem::take(&mut self.pending).into_values().collect();
        (self.lanes.drain(..).flatten().collect(), pending)
    }

    pub(super) fn add_lane(&mut self, connection: usize, side: usize) -> LaneKey {
        self.generation += 1;
        let lane = SimLane::new(self.generation, connection, side);
        let free = self.lanes.iter().position(Option::is_none);
        let index = free.unwrap_or_else(|| {
            self.lanes.push(None);
            self.lanes.len() - 1
        });
        self.lanes[index] = Some(lane);
        LaneKey { index: index as u32, generation: self.generation }
    }

    pub(super) fn lane_mut(&mut self, key: LaneKey) -> Option<&mut SimLane> {
        let lane = self.lanes.get_mut(key.index as usize)?.as_mut();
        lane.filter(|lane| lane.generation == key.generation)
    }
}

impl Net {
    pub(super) fn find_lane(&mut self, host: usize, key: LaneKey) -> Option<&mut SimLane> {
        self.hosts[host].lane_mut(key)
    }

    /// Connection and side of an existing lane.
    pub(super) fn lane(&mut self, host: usize, key: LaneKey) -> (usize, usize) {
        let lane = self.find_lane(host, key).expect("the loop knows its own lanes");
        (lane.connection, lane.side)
    }

    /// Schedules an event for the engine of `host`, after a random delay.
    pub(super) fn post_event(
        &mut self,
        host: usize,
        lane: Option<LaneKey>,
        pending: impl Into<PendingEvent>,
    ) {
        let late_ns = self.lateness_ns(host);
        let mut at_ns = self.now_ns() + late_ns;
        if let Some(lane) = lane.and_then(|key| self.hosts[host].lane_mut(key)) {
            // Events of one lane keep their order.
            at_ns = at_ns.max(lane.last_event_ns);
            lane.last_event_ns = at_ns;
        }
        self.schedule_event(host, at_ns, pending.into());
    }

    /// The same at a time that the caller chooses.
    pub(super) fn schedule_event(&mut self, host: usize, at_ns: u64, pending: PendingEvent) {
        let number = self.next_number();
        self.hosts[host].pending.insert((at_ns, number), pending);
        self.wake_at(host, at_ns);
    }

    /// Wakes the engine of `host` at `at_ns` at the latest, if it sleeps.
    pub(super) fn wake_at(&mut self, host: usize, at_ns: u64) {
        let known = &mut self.hosts[host];
        if known.wakes_ns.is_some_and(|wakes_ns| at_ns < wakes_ns) {
            known.wakes_ns = Some(at_ns);
            self.plan_turn(host, at_ns);
        }
    }

    /// Wakes the engine of `host`.
    pub(crate) fn wake(&mut self, host: usize) {
        let now_ns = self.now_ns();
        self.wake_at(host, now_ns);
    }

    pub(crate) fn plan_turn(&mut self, host: usize, at_ns: u64) {
        let known = &mut self.hosts[host];
        known.turn += 1;
        let (turn, at_ns) = (known.turn, at_ns.max(known.paused_until_ns));
        self.plan(at_ns, Item::Turn { host, turn });
    }

    /// Whether a scheduled turn is to be executed; one of a paused process is postponed.
    pub(crate) fn begins_turn(&mut self, host: usize, turn: u64) -> bool {
        let now_ns = self.now_ns();
        let known = &mut self.hosts[host];
        if !known.is_running || known.turn != turn {
            return false;
        }
        if known.paused_until_ns > now_ns {
            let at_ns = known.paused_until_ns;
            self.plan_turn(host, at_ns);
            return false;
        }
        known.wakes_ns = None;
        true
    }

    /// Sleeps until there is an event, for at most `limit_ns`.
    pub(super) fn sleep(&mut self, host: usize, limit_ns: u64) {
        let now_ns = self.now_ns();
        // A sleeper checks once more for data written before.
        let readable_ns = self.datagrams_readable_ns(host).min(self.ring_ready_ns(host));
        let known = &mut self.hosts[host];
        let pending_ns = known.pending.first_key_value().map_or(u64::MAX, |((at_ns, _), _)| *at_ns);
        let wakes_ns = pending_ns.min(readable_ns).min(now_ns.saturating_add(limit_ns)).max(now_ns);
        known.wakes_ns = Some(wakes_ns);
        self.plan_turn(host, wakes_ns);
    }

    /// Whether the engine of `host` has something to poll for.
    pub(super) fn has_event(&self, host: usize) -> bool {
        self.hosts[host].wakes_ns.is_some_and(|at_ns| at_ns <= self.now_ns())
    }

    /// Connections that the processes of a host have accepted.
    pub(crate) fn accepted(&self, host: usize) -> u64 {
        self.hosts[host].accepted
    }

    /// Whether the engine of `host` sleeps.
    pub(crate) fn is_asleep(&self, host: usize) -> bool {
        self.hosts[host].wakes_ns.is_some()
    }

    /// Delivers due events, some of them if there are many.
    pub(super) fn deliver(&mut self, host: usize, events: &mut Vec<DriverEvent>) {
        // Not counted in the limit, so that lanes and datagrams do not starve each other.
        if self.takes_datagrams_readable(host) {
            self.settle(host, &DriverEvent::DatagramsReadable);
            events.push(DriverEvent::DatagramsReadable);
        }
        self.put_accepts_off(host);
        for _ in 0..self.impairments.events_per_poll {
            let now_ns = self.now_ns();
            let Some(first) = self.hosts[host].pending.first_entry() else { return };
            if first.key().0 > now_ns {
                return;
            }
            let PendingEvent { what, releases, scribbles } = first.remove();
            if let Some(spans) = releases {
                self.release_memory(&spans, scribbles);
            }
            let event = match what {
                What::DriverEvent(event) => event,
                What::Accept(connection) => {
                    let lane = self.hosts[host].add_lane(connection, 1);
                    self.hosts[host].accepted += 1;
                    self.connections[connection].ends[1].lane = Some((lane.index, lane.generation));
                    let ends = &self.connections[connection].ends;
                    let port = self.hosts[host].locator.port();
                    let origin = ends[0].at().map(|at| self.hosts[at.host].links[at.link].address);
                    let remote = origin.map_or(self.hosts[host].locator, |origin| {
                        SocketAddr::new(origin.ip(), port)
                    });
                    let rail = ends[1].at().and_then(|at| self.rail_of(at)).unwrap_or(0);
                    DriverEvent::Accepted { lane, remote, rail }
                }
            };
            self.settle(host, &event);
            events.push(event);
        }
    }

    /// Postpones accepts while accepting is paused, or beyond the limit per poll; other connections
    /// wait in the backlog.
    fn put_accepts_off(&mut self, host: usize) {
        let now_ns = self.now_ns();
        let known = &mut self.hosts[host];
        if known.accepts_after_ns == 0 {
            return;
        }
        let (until_ns, keep) = match known.accepts_after_ns > now_ns {
            true => (known.accepts_after_ns, 0),
            false => (now_ns + 1, ACCEPTS_AT_ONCE),
        };
        let due = known.pending.range(..=(now_ns, u64::MAX));
        let accepts = due.filter(|(_, pending)| matches!(pending.what, What::Accept(_)));
        let late: Vec<_> = accepts.map(|(key, _)| *key).skip(keep).collect();
        for (count, key) in late.into_iter().enumerate() {
            let Some(pending) = known.pending.remove(&key) else { continue };
            if count < BACKLOG {
                known.pending.insert((until_ns, key.1), pending);
            }
        }
    }

    /// An event was delivered: the lane is free for the next one of its kind.
    fn settle(&mut self, host: usize, event: &DriverEvent) {
        let known = &mut self.hosts[host];
        let (kind, lane) = match *event {
            DriverEvent::Accepted { lane, .. } => (1, Some(lane)),
            DriverEvent::Connected { lane } => (2, Some(lane)),
            DriverEvent::ConnectFailed { lane, .. } => (3, Some(lane)),
            DriverEvent::Readable { lane } => (4, Some(lane)),
            DriverEvent::Writable { lane } => (5, Some(lane)),
            DriverEvent::ChunkSent { lane, .. } => (6, Some(lane)),
            DriverEvent::ChunkReleased { .. } => (7, None),
            DriverEvent::ChunkReceived { lane, .. } => (8, Some(lane)),
            DriverEvent::Closed { lane } => (9, Some(lane)),
            DriverEvent::DatagramsReadable => (10, None),
            DriverEvent::DatagramsWritable => (11, None),
            DriverEvent::RailChanged { .. } => (12, None),
            DriverEvent::CmaChanged { .. } => (13, None),
            DriverEvent::RingChanged { .. } => (14, None),
            DriverEvent::ProcessEnded { .. } => (16, None),
        };
        let found = lane.and_then(|key| known.lane_mut(key));
        if let Some(lane) = found {
            match event {
                DriverEvent::Connected { .. } | DriverEvent::ConnectFailed { .. } => {
                    lane.is_connecting = false
                }
                DriverEvent::Readable { .. } => lane.reads = Watch::Off,
                DriverEvent::Writable { .. } => lane.writes = Watch::Off,
                DriverEvent::ChunkSent { .. } => lane.sending = None,
                DriverEvent::ChunkReceived { .. } => lane.receiving = None,
                _ => {}
            }
        }
        if let DriverEvent::RingChanged { session, number, is_up } = *event {
            self.rings_changed(host, (session, number), is_up);
        }
        let known = &mut self.hosts[host];
        if let DriverEvent::Closed { lane } = event {
            known.lanes[lane.index as usize] = None;
        }
        let index = lane.map_or(u64::MAX, |lane| u64::from(lane.index));
        self.trace(&[host as u64, kind, index]);
    }
}
