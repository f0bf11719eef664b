//! Rails of the simulated network: links of hosts, their rates and faults.
//!
//! A host begins with one link, at its locator, which behaves as
//! [`Impairments`](super::net::Impairments) and
//! [`DatagramImpairments`](super::datagrams::DatagramImpairments) say. With [`Net::set_link`] it,
//! and each further one, has a rate of its own that everything on it shares: what connections carry
//! and datagrams leave, and arrive, one after the other. A switch between the links passes each
//! packet on as it comes.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};

use super::datagrams::FRAMING_BYTES;
use super::net::{Item, Net};
use crate::driver::traits::DriverEvent;
use crate::driver::traits::Rail;

/// TCP payload of one packet.
const SEGMENT_BYTES: u64 = 1448;
/// Header bytes of TCP with timestamps beyond those of UDP.
const TCP_BYTES: u64 = 24;
/// The first time that a kernel waits for an acknowledgement, at the least; each further time is
/// twice as long (Linux: `TCP_RTO_MIN`).
pub(super) const RETRANSMIT_NS: u64 = 200_000_000;
/// Times that one loss follows another, at the most: 6.2 s in all.
const LOSSES_MAX: u32 = 5;
/// Loss rate beyond which a stream does not recover by fast retransmission.
const HEAVY_LOSS_PPM: u64 = 50_000;

/// Impairments of a link, the same in both directions. 0 disables.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct LinkImpairments {
    /// Time that it takes per KiB, headers included.
    pub(crate) ns_per_kib: u64,
    /// Its share of the delay; the link at the other end adds its own.
    pub(crate) delay_ns: u64,
    /// Jitter of that.
    pub(crate) jitter_ns: u64,
    /// Packet loss in each direction, per million.
    pub(crate) loss_ppm: u64,
    /// Size of the queue in bytes, headers included. Datagrams beyond are dropped; streams are
    /// throttled.
    pub(crate) queue_bytes: u64,
}

/// A fault of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RailFault {
    /// Drops everything sent or received, silently.
    Blackhole { outward: bool, inward: bool },
    /// Drops that many packets per million, in each direction.
    BrownOut { loss_ppm: u64 },
    /// Additional delay, in each direction.
    Delay { extra_ns: u64 },
    /// No carrier: drops everything, and the host is notified.
    Down,
    /// A gateway, or another host at its address, refuses connections to it; datagrams are dropped.
    Refuses,
}

impl RailFault {
    /// Both directions.
    pub(crate) const BLACKHOLE: Self = Self::Blackhole { outward: true, inward: true };
}

/// A link of a host, by its index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct At {
    pub(super) host: usize,
    pub(super) link: usize,
}

/// See [`LinkImpairments`].
#[derive(Debug)]
pub(super) struct Link {
    pub(super) address: SocketAddr,
    /// Public source address of its datagrams.
    pub(super) public: SocketAddr,
    impairments: Option<LinkImpairments>,
    fault: Option<RailFault>,
    /// Longer packets vanish; 0: none do.
    pub(super) packet_bytes_max: usize,
    /// Names the fault.
    epoch: u64,
    /// When everything queued so far is sent, and received.
    free_ns: [u64; 2],
    /// Bytes transferred, headers included.
    carried: [u64; 2],
}

const OUTWARD: usize = 0;
const INWARD: usize = 1;

impl Link {
    pub(super) fn new(address: SocketAddr) -> Self {
        let (impairments, fault, epoch) = (None, None, 0);
        let (public, packet_bytes_max) = (address, 0);
        let (free_ns, carried) = ([0; 2], [0; 2]);
        Self { address, public, impairments, fault, packet_bytes_max, epoch, free_ns, carried }
    }

    fn is_cut(&self, way: usize) -> bool {
        match self.fault {
            Some(RailFault::Blackhole { outward, inward }) => [outward, inward][way],
            Some(RailFault::Down) => true,
            Some(RailFault::Refuses) => way == INWARD,
            _ => false,
        }
    }

    fn is_down(&self) -> bool {
        self.fault == Some(RailFault::Down)
    }

    fn loss_ppm(&self) -> u64 {
        let always = self.impairments.map_or(0, |impairments| impairments.loss_ppm);
        match self.fault {
            Some(RailFault::BrownOut { loss_ppm }) => always.max(loss_ppm),
            _ => always,
        }
    }

    fn extra_ns(&self) -> u64 {
        match self.fault {
            Some(RailFault::Delay { extra_ns }) => extra_ns,
            _ => 0,
        }
    }

    fn cost_ns(&self, bytes: u64) -> u64 {
        (bytes * self.impairments.map_or(0, |impairments| impairments.ns_per_kib)) >> 10
    }
}

/// Times of a packet that leaves now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trip {
    /// When the sender's link has sent it.
    pub(super) left_ns: u64,
    pub(super) arrival_ns: u64,
}

impl Net {
    // ---- Configuration ----

    /// One more link of a host, at another address and the same port; its place.
    pub(crate) fn add_rail(
        &mut self,
        host: usize,
        ip: IpAddr,
        impairments: LinkImpairments,
    ) -> usize {
        let known = &mut self.hosts[host];
        let link = known.links.len();
        known.links.push(Link::new(SocketAddr::new(ip, known.locator.port())));
        self.set_link(host, link, impairments);
        self.add_route(host, link);
        link
    }

    /// From now on a link has this impairments, and no other.
    pub(crate) fn set_link(&mut self, host: usize, link: usize, impairments: LinkImpairments) {
        self.hosts[host].links[link].impairments = Some(impairments);
    }

    /// Links lose nothing from now on, and have room for all.
    pub(crate) fn disable_link_faults(&mut self) {
        for link in self.hosts.iter_mut().flat_map(|host| &mut host.links) {
            if let Some(impairments) = &mut link.impairments {
                (impairments.loss_ppm, impairments.queue_bytes) = (0, 0);
            }
        }
    }

    /// Number of links of a host.
    pub(crate) fn link_count(&self, host: usize) -> usize {
        self.hosts[host].links.len()
    }

    /// Address of a link.
    pub(crate) fn rail_address(&self, host: usize, link: usize) -> SocketAddr {
        self.hosts[host].links[link].address
    }

    /// Rate of a link in Mbit/s, if it has one.
    pub(crate) fn link_mbps(&self, host: usize, link: usize) -> Option<u32> {
        let ns_per_kib = self.hosts[host].links[link].impairments?.ns_per_kib;
        Some((8_192_000_u64.checked_div(ns_per_kib)?) as u32)
    }

    /// Bytes that a link has transferred outward and inward, headers included.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn carried_bytes(&self, host: usize, link: usize) -> [u64; 2] {
        self.hosts[host].links[link].carried
    }

    /// Schedules a fault of a link, or its end, at `at_ns`.
    pub(crate) fn plan_rail_fault(
        &mut self,
        at_ns: u64,
        host: usize,
        link: usize,
        fault: Option<RailFault>,
    ) {
        self.plan(at_ns, Item::RailFault { host, link, fault });
    }

    /// Schedules a fault that comes and goes `times` times from `at_ns` on: it lasts for half of
    /// each `period_ns`.
    pub(crate) fn plan_flapping(
        &mut self,
        at_ns: u64,
        (host, link): (usize, usize),
        fault: RailFault,
        period_ns: u64,
        times: u64,
    ) {
        for turn in 0..times {
            let begin_ns = at_ns + turn * period_ns;
            self.plan_rail_fault(begin_ns, host, link, Some(fault));
            self.plan_rail_fault(begin_ns + period_ns / 2, host, link, None);
        }
    }

    // ---- Faults ----

    /// Sets the fault of a link; `None` ends it, and kernels retransmit lost data when their timers
    /// expire.
    pub(crate) fn set_rail_fault(&mut self, host: usize, link: usize, fault: Option<RailFault>) {
        self.epoch += 1;
        let epoch = self.epoch;
        let known = &mut self.hosts[host].links[link];
        let was_down = known.is_down();
        let was_cut = [OUTWARD, INWARD].map(|way| known.is_cut(way));
        (known.fault, known.epoch) = (fault, epoch);
        let is_cut = [OUTWARD, INWARD].map(|way| known.is_cut(way));
        let is_down = known.is_down();
        if is_cut != [false; 2] {
            let at_ns = self.now_ns() + self.impairments.keep_alive_ns;
            self.plan(at_ns, Item::RailSilence { host, link, epoch });
            self.lose_datagrams_of(At { host, link }, is_cut);
        }
        if (0..2).any(|way| was_cut[way] && !is_cut[way]) {
            self.resume_streams(At { host, link });
        }
        if was_down != is_down {
            self.report_link(host, link);
        }
    }

    /// Ends all faults, including scheduled ones.
    pub(super) fn heal_rails(&mut self) {
        self.forget_rail_faults();
        for host in 0..self.hosts.len() {
            for link in 0..self.hosts[host].links.len() {
                if self.hosts[host].links[link].fault.is_some() {
                    self.set_rail_fault(host, link, None);
                }
            }
        }
    }

    /// Reports to the process of a host whether a link is up, if it has a choice.
    fn report_link(&mut self, host: usize, link: usize) {
        let known = &self.hosts[host];
        let is_up = !known.links[link].is_down();
        let rail = known.rails.iter().position(|&at| at == link);
        if let Some(rail) = rail.filter(|_| known.is_running && known.rails.len() > 1) {
            self.post_event(host, None, DriverEvent::RailChanged { rail: rail as u8, is_up });
        }
    }

    /// Retransmits unacknowledged data on connections of a link.
    fn resume_streams(&mut self, at: At) {
        for index in 0..self.connections.len() {
            let ends = &self.connections[index].ends;
            if !ends.iter().any(|end| end.at() == Some(at)) {
                continue;
            }
            for side in 0..2 {
                let pipe = &self.connections[index].pipes[side];
                let at_ns = self.repeat_ns(pipe.unacknowledged_since_ns());
                self.plan(at_ns, Item::Arrive { connection: index, side });
                if self.connections[index].ends[side].is_forgotten {
                    self.plan(at_ns, Item::Reset { connection: index, side: 1 - side });
                }
            }
        }
    }

    /// When a kernel retransmits data sent at `since_ns`.
    fn repeat_ns(&mut self, since_ns: Option<u64>) -> u64 {
        let now_ns = self.now_ns();
        let mut at_ns = since_ns.unwrap_or(now_ns);
        let mut pause_ns = RETRANSMIT_NS;
        while at_ns <= now_ns {
            at_ns += pause_ns;
            pause_ns *= 2;
        }
        at_ns + 2 * self.delay_ns()
    }

    /// The keep-alive time of a link is over: its connections are reset.
    pub(super) fn handle_rail_silence(&mut self, host: usize, link: usize, epoch: u64) {
        if self.hosts[host].links[link].epoch != epoch {
            return;
        }
        for index in 0..self.connections.len() {
            let connection = &self.connections[index];
            let is_hit = connection.ends.iter().any(|end| end.at() == Some(At { host, link }));
            if is_hit && !connection.is_mute {
                for side in 0..2 {
                    self.break_end(index, side);
                }
            }
        }
    }

    // ---- Routes ----

    /// The link with an address.
    pub(super) fn link_at(&self, address: SocketAddr) -> Option<At> {
        self.hosts.iter().enumerate().find_map(|(host, known)| {
            let link = known.links.iter().position(|link| link.address == address)?;
            Some(At { host, link })
        })
    }

    /// Whether the direction from one link to another is cut.
    pub(super) fn is_way_cut(&self, from: At, to: At) -> bool {
        self.link(from).is_cut(OUTWARD) || self.link(to).is_cut(INWARD)
    }

    /// Whether a link has no carrier.
    pub(super) fn is_link_down(&self, at: At) -> bool {
        self.link(at).is_down()
    }

    /// Whether another host refuses connections to a link.
    pub(super) fn is_refused_at(&self, at: At) -> bool {
        self.link(at).fault == Some(RailFault::Refuses)
    }

    fn link(&self, at: At) -> &Link {
        &self.hosts[at.host].links[at.link]
    }

    /// Loss rate between two links, per million.
    pub(super) fn way_loss_ppm(&self, from: At, to: At) -> u64 {
        let (from, to) = (self.link(from).loss_ppm(), self.link(to).loss_ppm());
        from + to - from * to / 1_000_000
    }

    /// Bytes that wait for a link that has a rate, outward; `None`: it has no impairments of its
    /// own.
    pub(super) fn link_backlog(&self, at: At) -> Option<u64> {
        let link = self.link(at);
        let impairments = link.impairments?;
        let wait_ns = link.free_ns[OUTWARD].saturating_sub(self.now_ns());
        Some((wait_ns << 10).checked_div(impairments.ns_per_kib).unwrap_or(0))
    }

    /// When the queue of a link with a rate will have shrunk to `bytes`.
    pub(super) fn link_room_ns(&self, at: At, bytes: u64) -> Option<u64> {
        let link = self.link(at);
        link.impairments?;
        Some(link.free_ns[OUTWARD].saturating_sub(link.cost_ns(bytes)))
    }

    /// Whether a datagram does not fit into the queue of a link.
    fn is_full(&self, at: At, way: usize, from_ns: u64, bytes: u64) -> bool {
        let link = self.link(at);
        let Some(LinkImpairments { ns_per_kib, queue_bytes, .. }) = link.impairments else {
            return false;
        };
        if queue_bytes == 0 || ns_per_kib == 0 {
            return false;
        }
        let backlog = (link.free_ns[way].saturating_sub(from_ns) << 10) / ns_per_kib;
        backlog > 0 && backlog + bytes > queue_bytes
    }

    /// Takes `bytes`, headers included, from one link to another; `None`: neither has impairments
    /// of its own. One that has none costs no time.
    fn travel(&mut self, from: At, to: At, bytes: u64) -> Option<Trip> {
        let impairments = [self.link(from).impairments, self.link(to).impairments];
        if impairments == [None, None] {
            return None;
        }
        let now_ns = self.now_ns();
        let [near, far] = impairments.map(Option::unwrap_or_default);
        let random = &mut self.hosts[from.host].random.links;
        let jitter_ns = random.within(near.jitter_ns + far.jitter_ns);
        let extra_ns = self.link(from).extra_ns() + self.link(to).extra_ns();
        let out = &mut self.hosts[from.host].links[from.link];
        let out_cost_ns = out.cost_ns(bytes);
        let left_ns = out.free_ns[OUTWARD].max(now_ns) + out_cost_ns;
        out.free_ns[OUTWARD] = left_ns;
        out.carried[OUTWARD] += bytes;
        let way_ns = near.delay_ns + far.delay_ns + jitter_ns;
        let begins_ns = left_ns - out_cost_ns + way_ns;
        let into = &mut self.hosts[to.host].links[to.link];
        // The switch forwards packets as they arrive, limited by the rate of the receiver's link.
        let through_ns = into.free_ns[INWARD].max(begins_ns) + into.cost_ns(bytes);
        let arrival_ns = through_ns.max(left_ns + way_ns);
        into.free_ns[INWARD] = arrival_ns;
        into.carried[INWARD] += bytes;
        // A delay is latency: it does not occupy the receiver's link.
        Some(Trip { left_ns, arrival_ns: arrival_ns + extra_ns })
    }

    /// When `count` bytes of a stream that leave now have arrived, what the kernel repeats
    /// included; `None`: neither link has impairments of its own.
    pub(super) fn stream_arrival_ns(&mut self, from: At, to: At, count: usize) -> Option<u64> {
        let segments = (count as u64).div_ceil(SEGMENT_BYTES).max(1);
        let bytes = count as u64 + segments * (FRAMING_BYTES + TCP_BYTES);
        let Trip { left_ns, arrival_ns } = self.travel(from, to, bytes)?;
        let loss_ppm = self.way_loss_ppm(from, to);
        if loss_ppm == 0 {
            return Some(arrival_ns);
        }
        // A single loss is repaired within a round trip, others by the timer.
        let mut late_ns = 0;
        let mut pause_ns =
            if loss_ppm > HEAVY_LOSS_PPM { RETRANSMIT_NS } else { 2 * (arrival_ns - left_ns) };
        let all_ppm = (segments * loss_ppm).min(1_000_000);
        let mut chance_ppm = if loss_ppm > HEAVY_LOSS_PPM { loss_ppm } else { all_ppm };
        for _ in 0..LOSSES_MAX {
            // Longer silences may end sessions: these come of faults, not of impairments.
            let is_recoverable = loss_ppm <= HEAVY_LOSS_PPM;
            let is_too_long = late_ns + pause_ns > self.impairments.keep_alive_ns / 2;
            let drawn = self.hosts[from.host].random.links.within(1_000_000);
            if drawn >= chance_ppm || (is_recoverable && is_too_long) {
                break;
            }
            late_ns += pause_ns;
            pause_ns = (2 * pause_ns).max(RETRANSMIT_NS);
            chance_ppm = loss_ppm;
        }
        Some(arrival_ns + late_ns)
    }

    /// A datagram of `bytes`, headers included, that leaves now. `Some(None)`: no room before a
    /// link. `None`: neither link has impairments of its own.
    pub(super) fn datagram_trip(&mut self, from: At, to: At, bytes: u64) -> Option<Option<Trip>> {
        if self.link(from).impairments.is_none() && self.link(to).impairments.is_none() {
            return None;
        }
        let now_ns = self.now_ns();
        if self.is_full(from, OUTWARD, now_ns, bytes) {
            return Some(None);
        }
        let left_ns = self.link(from).free_ns[OUTWARD].max(now_ns);
        if self.is_full(to, INWARD, left_ns, bytes) {
            return Some(None);
        }
        self.travel(from, to, bytes).map(Some)
    }

    // ---- Rails of a process ----

    /// See [`crate::driver::traits::Driver::set_rails`].
    pub(super) fn set_rails(&mut self, host: usize, rails: &[Rail]) -> io::Result<()> {
        let known = &self.hosts[host];
        let link_of = |rail: &Rail| {
            known.links.iter().position(|link| link.address.ip() == rail.address).ok_or_else(|| {
                let address = rail.address;
                io::Error::new(
                    ErrorKind::InvalidInput,
                    format!("no link has the address {address}"),
                )
            })
        };
        let numbers: Vec<usize> = rails.iter().map(link_of).collect::<io::Result<_>>()?;
        let down: Vec<usize> =
            numbers.iter().copied().filter(|&link| known.links[link].is_down()).collect();
        self.hosts[host].rails = numbers;
        for link in down {
            self.report_link(host, link);
        }
        Ok(())
    }

    /// The link of a rail.
    pub(super) fn link_of(&self, host: usize, rail: u8) -> Option<usize> {
        match &self.hosts[host].rails[..] {
            [] => (rail == 0).then_some(0),
            rails => rails.get(usize::from(rail)).copied(),
        }
    }

    /// The rail of a process that uses a link; `None`: no rail, connections are refused.
    pub(super) fn rail_of(&self, at: At) -> Option<u8> {
        match &self.hosts[at.host].rails[..] {
            [] | [_] => Some(0),
            rails => rails.iter().position(|&link| link == at.link).map(|rail| rail as u8),
        }
    }
}

#[cfg(test)]
mod tests;
