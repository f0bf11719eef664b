//! What goes wrong in the simulated network, and how it ends.

use std::net::SocketAddr;

use super::connection::{Connection, ConnectionName, End};
use super::lane::{PendingEvent, What};
use super::net::{Item, Net};

/// What a handshake takes at the most in one direction. It is proof against whoever garbles it, but
/// costs an attempt, and attempts are counted.
const GREETINGS_BYTES: u64 = 256;

impl Net {
    pub(super) fn pair_of(&self, index: usize) -> Option<(usize, usize)> {
        let ends = &self.connections[index].ends;
        Some((ends[0].host?, ends[1].host?))
    }

    /// Whether nothing comes from host `from` to host `to`.
    pub(super) fn is_cut(&self, from: usize, to: usize) -> bool {
        let is_powered_off = self.hosts[from].is_powered_off || self.hosts[to].is_powered_off;
        is_powered_off || self.cuts.iter().any(|&(f, t, _)| (f, t) == (from, to))
    }

    /// Whether nothing of what `side` of a connection sends arrives.
    pub(super) fn is_path_cut(&self, index: usize, side: usize) -> bool {
        let ends = &self.connections[index].ends;
        match (ends[side].host, ends[1 - side].host) {
            (Some(from), Some(to)) => self.is_cut(from, to) || self.is_rail_path_cut(index, side),
            _ => false,
        }
    }

    /// The same for the sake of the links that the connection goes by.
    pub(super) fn is_rail_path_cut(&self, index: usize, side: usize) -> bool {
        let ends = &self.connections[index].ends;
        let way = ends[side].at().zip(ends[1 - side].at());
        way.is_some_and(|(from, to)| self.is_way_cut(from, to))
    }

    /// A connection that both sides use: a bulk lane or another one.
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

    /// Breaks one connection that is in use, a bulk lane or another one; between which hosts.
    /// Both sides hear of it, one of them later.
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

    /// Nothing arrives on one connection for a while, in either direction.
    pub(crate) fn stall_one(&mut self, is_bulk: bool, for_ns: u64) -> bool {
        let Some(index) = self.live(is_bulk) else { return false };
        let until_ns = self.now_ns() + for_ns;
        self.connections[index].stalled_until_ns = until_ns;
        true
    }

    /// Loses what there is of connections, and every news of that.
    #[cfg(test)]
    pub(crate) fn mute(&mut self) {
        for connection in &mut self.connections {
            connection.is_mute = true;
            connection.pipes.iter_mut().for_each(|pipe| pipe.lose(false));
        }
    }

    /// Nothing comes from `from` to `to` until [`Self::open_way`]; kernels give up in time.
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

    /// What was held on the way goes on.
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
                // Repeated after a while, as kernels do.
                let at_ns = self.now_ns() + 2 * self.delay_ns();
                self.plan(at_ns, Item::Arrive { connection: index, side });
                // The way back carries acknowledgements of what arrived before.
                self.plan(at_ns, Item::Arrive { connection: index, side: 1 - side });
                if is_forgotten {
                    self.plan(at_ns, Item::Reset { connection: index, side: 1 - side });
                }
            }
        }
    }

    /// All ways are open, nothing is stalled or paused. Dark hosts stay dark.
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
            // A pause that is over may have put the next turn off for longer.
            self.hosts[host].paused_until_ns = 0;
            self.plan_turn(host, now_ns);
        }
    }

    /// The kernel of each side gives up what the other has not answered for so long.
    pub(super) fn handle_keep_alive(&mut self, [from, to]: [usize; 2], epoch: u64) {
        let is_same_cut = self.cuts.contains(&(from, to, epoch));
        if is_same_cut || self.hosts[from].power_epoch == Some(epoch) {
            self.end_keep_alive(from, to);
        }
    }

    /// The kernels of two hosts have waited for each other long enough.
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

    /// The loop of a process does not run for a while; its kernel goes on. Returns how long it
    /// will have stood still in a row by then: shorter than a breath, it does not run between two.
    pub(crate) fn pause(&mut self, host: usize, for_ns: u64) -> u64 {
        const BREATH_NS: u64 = 1_000_000;
        let now_ns = self.now_ns();
        let host = &mut self.hosts[host];
        if now_ns > host.paused_until_ns + BREATH_NS {
            host.paused_since_ns = now_ns;
        }
        host.paused_until_ns = host.paused_until_ns.max(now_ns + for_ns);
        host.paused_until_ns - host.paused_since_ns
    }

    pub(crate) fn is_paused(&self, host: usize) -> bool {
        self.hosts[host].paused_until_ns > self.now_ns()
    }

    /// A host loses power: drop its engine after this. The others' kernels give up in time.
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

    /// A process starts again on a host that was dark: its kernel knows no old connection.
    pub(crate) fn power_on(&mut self, host: usize) {
        self.hosts[host].is_powered_off = false;
        self.hosts[host].power_epoch = None;
        for other in 0..self.hosts.len() {
            self.resume(host, other);
            self.resume(other, host);
        }
    }

    /// A connection to `host` by somebody who is no engine, with `bytes` written, and closed then
    /// or not.
    #[cfg(test)]
    pub(crate) fn intrude(&mut self, host: usize, bytes: &[u8]) {
        let ends = self.draw(2);
        self.visit(host, bytes, ends);
    }

    /// The same by somebody who closes the connection or stays.
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

    /// Overwrites bytes on their way on a lane of the given kind. `false`: there are none.
    #[cfg(test)]
    pub(crate) fn garble(&mut self, is_bulk: bool) -> bool {
        let Self { random, connections, .. } = self;
        let mut pipes = connections
            .iter_mut()
            .filter(|connection| connection.is_bulk == is_bulk)
            .flat_map(|connection| &mut connection.pipes);
        pipes.any(|pipe| pipe.garble(|| random.next() as u8))
    }

    /// Flips one bit on its way on a bulk lane, or on another one behind its greeting, that both
    /// sides use; between which hosts. `None`: nothing is under way there.
    pub(crate) fn flip(&mut self, is_bulk: bool) -> Option<(usize, usize)> {
        let from = if is_bulk { 0 } else { GREETINGS_BYTES };
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
