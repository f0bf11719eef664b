//! Faults of the simulated network.

use std::net::SocketAddr;

use super::connection::{Connection, ConnectionName, End};
use super::lane::{PendingEvent, What};
use super::net::{Item, Net};

/// Bytes of a handshake at most, in one direction. Corrupting it is detected, but costs an attempt,
/// and attempts are limited.
const HANDSHAKE_BYTES: u64 = 256;

impl Net {
    pub(super) fn pair_of(&self, index: usize) -> Option<(usize, usize)> {
        let ends = &self.connections[index].ends;
        Some((ends[0].host?, ends[1].host?))
    }

    /// Whether the direction from host `from` to host `to` is cut.
    pub(super) fn is_cut(&self, from: usize, to: usize) -> bool {
        let is_powered_off = self.hosts[from].is_powered_off || self.hosts[to].is_powered_off;
        is_powered_off || self.cuts.iter().any(|&(f, t, _)| (f, t) == (from, to))
    }

    /// Whether the direction of `side` of a connection is cut.
    pub(super) fn is_path_cut(&self, index: usize, side: usize) -> bool {
        let ends = &self.connections[index].ends;
        match (ends[side].host, ends[1 - side].host) {
            (Some(from), Some(to)) => self.is_cut(from, to) || self.is_rail_path_cut(index, side),
            _ => false,
        }
    }

    /// The same because of the links of the connection.
    pub(super) fn is_rail_path_cut(&self, index: usize, side: usize) -> bool {
        let ends = &self.connections[index].ends;
        let way = ends[side].at().zip(ends[1 - side].at());
        way.is_some_and(|(from, to)| self.is_way_cut(from, to))
    }

    /// A connection that both sides use: a bulk lane or a control connection.
    fn live(&mut self, is_bulk: bool) -> Option<usize> {
        let live: Vec<usize> = (0..self.connections.len())
            .filter(|&index| {
                let connection = &self.connections[index];
                connection.is_bulk == is_bulk
                    && connection.is_whole()
                    && connection.ends[1].lane.is_some()
            })
            .collect();
        (!live.is_empty()).then(|| live[self.random.below(live.len())])
    }

    /// Breaks one connection in use, a bulk lane or a control connection; returns its hosts. Both
    /// sides notice, one of them later.
    pub(crate) fn cut_one(&mut self, is_bulk: bool) -> Option<(usize, usize)> {
        let index = self.live(is_bulk)?;
        for side in 0..2 {
            let far_ns = if self.draw(2) { 0 } else { self.random.within(2_000_000) };
            let at_ns = self.now_ns() + far_ns;
            self.connections[index].is_broken = true;
            self.plan(at_ns, Item::Reset { connection: index, side });
        }
        self.pair_of(index)
    }

    /// Stalls one connection for a while, in both directions.
    pub(crate) fn stall_one(&mut self, is_bulk: bool, for_ns: u64) -> bool {
        let Some(index) = self.live(is_bulk) else { return false };
        let until_ns = self.now_ns() + for_ns;
        self.connections[index].stalled_until_ns = until_ns;
        true
    }

    /// Loses all bytes of connections, and never reports it.
    #[cfg(test)]
    pub(crate) fn mute(&mut self) {
        for connection in &mut self.connections {
            connection.is_mute = true;
            connection.pipes.iter_mut().for_each(|pipe| pipe.lose(false));
        }
    }

    /// Cuts the direction from `from` to `to` until [`Self::open_way`]; kernels time out.
    pub(crate) fn cut_way(&mut self, from: usize, to: usize) {
        self.epoch += 1;
        self.cuts.push((from, to, self.epoch));
        self.plan_keep_alive([from, to]);
        self.lose_datagrams(from, to);
    }

    fn plan_keep_alive(&mut self, pair: [usize; 2]) {
        let at_ns = self.now_ns() + self.impairments.keep_alive_ns;
        self.plan(at_ns, Item::KeepAlive { pair, epoch: self.epoch });
    }

    /// Ends a cut; bytes held back continue.
    pub(crate) fn open_way(&mut self, from: usize, to: usize) {
        if let Some(at) = self.cuts.iter().position(|&(f, t, _)| (f, t) == (from, to)) {
            self.cuts.swap_remove(at);
        }
        self.resume(from, to);
    }

    fn resume(&mut self, from: usize, to: usize) {
        for index in 0..self.connections.len() {
            for side in 0..2 {
                let ends = &self.connections[index].ends;
                if (ends[side].host, ends[1 - side].host) != (Some(from), Some(to)) {
                    continue;
                }
                let is_forgotten = ends[side].is_forgotten;
                // Retransmitted after a while.
                let at_ns = self.now_ns() + 2 * self.delay_ns();
                self.plan(at_ns, Item::Arrive { connection: index, side });
                // The reverse direction carries acknowledgements of what arrived before.
                self.plan(at_ns, Item::Arrive { connection: index, side: 1 - side });
                if is_forgotten {
                    self.plan(at_ns, Item::Reset { connection: index, side: 1 - side });
                }
            }
        }
    }

    /// Ends all cuts, stalls and pauses. Powered-off hosts stay off.
    pub(crate) fn heal(&mut self) {
        for (from, to, _) in std::mem::take(&mut self.cuts) {
            self.resume(from, to);
        }
        self.heal_rails();
        self.heal_datagrams();
        let now_ns = self.now_ns();
        for index in 0..self.connections.len() {
            if self.connections[index].stalled_until_ns > now_ns {
                self.connections[index].stalled_until_ns = 0;
                for side in 0..2 {
                    self.plan(now_ns, Item::Arrive { connection: index, side });
                }
            }
        }
        for host in 0..self.hosts.len() {
            // A pause may have delayed the next turn further.
            self.hosts[host].paused_until_ns = 0;
            self.plan_turn(host, now_ns);
        }
    }

    /// Resets connections whose peer has been silent for the keep-alive time.
    pub(super) fn handle_keep_alive(&mut self, [from, to]: [usize; 2], epoch: u64) {
        let is_same_cut = self.cuts.contains(&(from, to, epoch));
        if is_same_cut || self.hosts[from].power_epoch == Some(epoch) {
            self.end_keep_alive(from, to);
        }
    }

    /// The keep-alive time between two hosts is over.
    pub(crate) fn end_keep_alive(&mut self, one: usize, other: usize) {
        for index in 0..self.connections.len() {
            let is_hit = self.pair_of(index) == Some((one, other))
                || self.pair_of(index) == Some((other, one));
            if is_hit && !self.connections[index].is_mute {
                for side in 0..2 {
                    self.break_end(index, side);
                }
            }
        }
    }

    /// Pauses the loop of a process; its kernel continues. Returns for how long it will have been
    /// paused in total: it does not run between two pauses that are closer than a millisecond.
    pub(crate) fn pause(&mut self, host: usize, for_ns: u64) -> u64 {
        const MIN_RUN_NS: u64 = 1_000_000;
        let now_ns = self.now_ns();
        let host = &mut self.hosts[host];
        if now_ns > host.paused_until_ns + MIN_RUN_NS {
            host.paused_since_ns = now_ns;
        }
        host.paused_until_ns = host.paused_until_ns.max(now_ns + for_ns);
        host.paused_until_ns - host.paused_since_ns
    }

    pub(crate) fn is_paused(&self, host: usize) -> bool {
        self.hosts[host].paused_until_ns > self.now_ns()
    }

    /// Powers a host off: drop its engine after this. Other kernels time out.
    pub(crate) fn power_off(&mut self, host: usize) {
        self.epoch += 1;
        self.hosts[host].is_powered_off = true;
        self.hosts[host].power_epoch = Some(self.epoch);
        self.lose_unsent_datagrams(host);
        for other in 0..self.hosts.len() {
            if other != host {
                self.plan_keep_alive([host, other]);
            }
        }
    }

    /// Powers a host on with a new process: its kernel knows no old connection.
    pub(crate) fn power_on(&mut self, host: usize) {
        self.hosts[host].is_powered_off = false;
        self.hosts[host].power_epoch = None;
        for other in 0..self.hosts.len() {
            self.resume(host, other);
            self.resume(other, host);
        }
    }

    /// Connects to `host` as a process that is no engine, writes `bytes`, and closes or not.
    #[cfg(test)]
    pub(crate) fn intrude(&mut self, host: usize, bytes: &[u8]) {
        let ends = self.draw(2);
        self.visit(host, bytes, ends);
    }

    /// The same; `is_closed`: closes the connection afterwards.
    pub(crate) fn visit(&mut self, host: usize, bytes: &[u8], is_closed: bool) {
        let index = self.connections.len();
        let process = self.hosts[host].process;
        let number = self.hosts[host].visits;
        self.hosts[host].visits += 1;
        let visited = self.hosts[host].process_name(host);
        let name = ConnectionName { process: visited, is_visit: true, number };
        let ends = [End::new(None, 0), End::new(Some(host), process)];
        let mut connection = Connection::new(self.seed, name, ends);
        let now_ns = self.now_ns();
        connection.pipes[0].write(now_ns, bytes, 0, 0);
        if is_closed {
            connection.pipes[0].end();
        }
        self.connections.push(connection);
        self.plan(now_ns, Item::Arrive { connection: index, side: 0 });
        let accept = PendingEvent { what: What::Accept(index), releases: None, scribbles: false };
        self.post_event(host, None, accept);
    }

    /// Overwrites bytes in flight on a lane of the given kind. `false`: there are none.
    #[cfg(test)]
    pub(crate) fn garble(&mut self, is_bulk: bool) -> bool {
        let Self { random, connections, .. } = self;
        let mut pipes = connections
            .iter_mut()
            .filter(|connection| connection.is_bulk == is_bulk)
            .flat_map(|connection| &mut connection.pipes);
        pipes.any(|pipe| pipe.garble(|| random.next() as u8))
    }

    /// Flips one bit in flight on a bulk lane in use, or on a control connection after its
    /// handshake; returns its hosts. `None`: nothing is in flight.
    pub(crate) fn flip(&mut self, is_bulk: bool) -> Option<(usize, usize)> {
        let from = if is_bulk { 0 } else { HANDSHAKE_BYTES };
        let is_hit =
            |connection: &Connection| connection.is_bulk == is_bulk && connection.is_whole();
        let ways: Vec<(usize, usize)> = (0..self.connections.len())
            .filter(|&index| is_hit(&self.connections[index]))
            .flat_map(|index| [(index, 0), (index, 1)])
            .filter(|&(index, side)| self.connections[index].pipes[side].bytes_from(from) > 0)
            .collect();
        if ways.is_empty() {
            return None;
        }
        let (index, side) = ways[self.random.below(ways.len())];
        let random = &mut self.random;
        self.connections[index].pipes[side].flip(from, |bytes| random.below(bytes));
        self.pair_of(index)
    }

    /// Where a host listens.
    pub(crate) fn locator(&self, host: usize) -> SocketAddr {
        self.hosts[host].locator
    }
}
