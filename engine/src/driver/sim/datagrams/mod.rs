//! Datagrams of the simulated network.
//!
//! Each host has one socket, for all of its links. A datagram waits in the driver's queue, in the
//! sender's kernel and for its link, is in flight, waits in the receiver's kernel, and may be lost
//! at each stage. Arrivals are not scheduled: a poll finds what has arrived by then, and only
//! sleeping engines are woken.

mod checker;
mod impairments;
mod socket;
#[cfg(test)]
mod tests;
mod watcher;

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;

use self::checker::DatagramChecker;
pub(crate) use self::impairments::DatagramImpairments;
pub(super) use self::socket::{Datagram, Socket};
use self::socket::{QUEUED_MAX, UnderWay};
pub(crate) use self::watcher::Sighting;
use self::watcher::{DropFilter, Watcher};
use super::host::Host;
use super::net::{Item, Net};
use super::rails::{At, Trip};
use crate::driver::traits::{DATAGRAM_BYTES_MAX, DriverEvent};

/// Bytes around a UDP payload on Ethernet: preamble, header, IPv4, UDP, check sequence, gap.
pub(crate) const FRAMING_BYTES: u64 = 8 + 14 + 20 + 8 + 4 + 12;

/// Code of an arrival in the trace hash.
const TRACE_ARRIVAL: u64 = 12;

/// Statistics of datagrams.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct DatagramCounts {
    /// Taken by a sender's kernel.
    pub(crate) sent: u64,
    /// Injected by an attacker.
    pub(crate) injected: u64,
    /// Dropped at the queue of a link.
    pub(crate) queue_drops: u64,
    /// Lost in flight: at random, by a cut, above the MTU, or without a receiver's address.
    pub(crate) lost: u64,
    /// Times that a sender's kernel blocked.
    pub(crate) blocked: u64,
    /// Possibly reordered.
    pub(crate) late: u64,
    /// Corrupted or truncated.
    pub(crate) garbled: u64,
    /// Duplicated by the network.
    pub(crate) duplicates: u64,
    /// Arrived where no process was.
    pub(crate) no_receiver: u64,
    /// Dropped at the receive buffer.
    pub(crate) receive_drops: u64,
    /// Delivered to a process's kernel buffer.
    pub(crate) arrived: u64,
    /// Address changes of hosts.
    pub(crate) rebinds: u64,
}

/// The link that an address reaches, and until when.
#[derive(Clone, Copy, Debug)]
struct Route {
    at: At,
    until_ns: u64,
}

/// State of datagrams in the network.
#[derive(Debug, Default)]
pub(super) struct DatagramNet {
    routes: HashMap<SocketAddr, Route>,
    /// Directions between two hosts that are cut.
    cuts: Vec<(usize, usize)>,
    counts: DatagramCounts,
    watcher: Option<Watcher>,
    sieve: Option<DropFilter>,
    checker: Option<DatagramChecker>,
    /// Free list.
    // Boxed where they are used: they move from queue to queue.
    #[allow(clippy::vec_box)]
    spare: Vec<Box<Datagram>>,
}

impl Net {
    /// Statistics so far.
    #[cfg(test)]
    pub(crate) fn datagram_counts(&self) -> DatagramCounts {
        self.datagram_net.counts
    }

    // ---- The socket of a process ----

    /// Adds a route for the address of a new link.
    pub(super) fn add_route(&mut self, host: usize, link: usize) {
        let (address, at) = (self.hosts[host].links[link].address, At { host, link });
        self.datagram_net.routes.insert(address, Route { at, until_ns: u64::MAX });
    }

    /// Opens the socket of a process; its source addresses are those of its links.
    pub(super) fn open_datagrams(&mut self, host: usize) -> io::Result<()> {
        let one_in = self.datagram_impairments.unsupported_one_in;
        if self.hosts[host].random.datagrams.one_in(one_in) {
            return Err(ErrorKind::Unsupported.into());
        }
        // Earlier arrivals had no receiver.
        self.process_arrivals(host);
        for link in 0..self.hosts[host].links.len() {
            let known = &self.hosts[host].links[link];
            let (address, public) = (known.address, known.public);
            if public != address {
                self.change_address(At { host, link }, address);
            }
        }
        self.hosts[host].socket.is_open = true;
        Ok(())
    }

    /// Whether the process of a host has a socket for datagrams.
    pub(crate) fn has_datagrams(&self, host: usize) -> bool {
        self.hosts[host].socket.is_open
    }

    /// Closes the socket of a process. Datagrams in flight may reach the next process.
    pub(super) fn close_datagrams(&mut self, host: usize) {
        self.process_arrivals(host);
        let socket = &mut self.hosts[host].socket;
        socket.is_open = false;
        self.datagram_net.spare.extend(socket.queue.drain(..).chain(socket.inbox.drain(..)));
        socket.inbox_bytes = 0;
        (socket.wants_room, socket.awaits_room) = (false, false);
        socket.readable_ns = None;
    }

    // ---- Sending ----

    /// Provides a datagram to write into. `WouldBlock`: the queue is full; an event follows.
    pub(super) fn datagram_room(&mut self, host: usize) -> io::Result<()> {
        if !self.hosts[host].socket.is_open {
            return Err(ErrorKind::Unsupported.into());
        }
        if self.hosts[host].socket.queue.len() >= QUEUED_MAX {
            self.flush_datagrams(host);
        }
        let socket = &mut self.hosts[host].socket;
        if socket.queue.len() >= QUEUED_MAX {
            socket.wants_room = true;
            return Err(ErrorKind::WouldBlock.into());
        }
        Ok(())
    }

    pub(super) fn spare_datagram(&mut self) -> Box<Datagram> {
        self.datagram_net.spare.pop().unwrap_or_else(|| Box::new(Datagram::new()))
    }

    /// Puts a datagram on the free list.
    pub(super) fn recycle(&mut self, datagram: Box<Datagram>) {
        self.datagram_net.spare.push(datagram);
    }

    pub(super) fn queue_datagram(&mut self, host: usize, datagram: Box<Datagram>) {
        self.check(host, &datagram);
        self.wire.add_datagram(self.hosts[host].process_name(host), datagram.content());
        let socket = &mut self.hosts[host].socket;
        socket.handled += 1;
        socket.queue.push_back(datagram);
    }

    /// Bytes queued for a link of a host, or being sent.
    fn backlog_bytes(&self, host: usize, link: usize) -> u64 {
        if let Some(bytes) = self.link_backlog(At { host, link }) {
            return bytes;
        }
        let wait_ns = self.hosts[host].socket.free_ns.saturating_sub(self.now_ns());
        (wait_ns << 10).checked_div(self.datagram_impairments.ns_per_kib).unwrap_or(0)
    }

    /// Passes queued datagrams to the kernel of `host`, as far as there is room; the rest later.
    pub(super) fn flush_datagrams(&mut self, host: usize) {
        while let Some(first) = self.hosts[host].socket.queue.front() {
            let link = first.link;
            let room_bytes = self.datagram_impairments.send_room_bytes;
            if room_bytes > 0 && self.backlog_bytes(host, link) >= room_bytes {
                self.await_room(host, link);
                return;
            }
            if let Some(datagram) = self.hosts[host].socket.queue.pop_front() {
                self.launch(host, datagram);
            }
        }
    }

    /// Schedules the next flush for when the kernel has room.
    fn await_room(&mut self, host: usize, link: usize) {
        let impairments = &self.datagram_impairments;
        let room_bytes = impairments.send_room_bytes;
        let room_ns = (room_bytes * impairments.ns_per_kib) >> 10;
        let own_ns = self.link_room_ns(At { host, link }, room_bytes);
        let known = &mut self.hosts[host];
        if !known.socket.awaits_room {
            known.socket.awaits_room = true;
            self.datagram_net.counts.blocked += 1;
            let shared_ns = known.socket.free_ns.saturating_sub(room_ns);
            let at_ns = own_ns.unwrap_or(shared_ns) + 1;
            let process = known.process;
            self.plan(at_ns, Item::DatagramRoom { host, process });
        }
    }

    pub(super) fn handle_datagram_room(&mut self, host: usize, process: u32) {
        let known = &mut self.hosts[host];
        if known.process != process || !known.socket.is_open {
            return;
        }
        known.socket.awaits_room = false;
        self.flush_datagrams(host);
        let socket = &mut self.hosts[host].socket;
        if socket.wants_room && socket.queue.len() < QUEUED_MAX {
            socket.wants_room = false;
            self.post_event(host, None, DriverEvent::DatagramsWritable);
        }
    }

    /// Sends a datagram from the kernel of `host`.
    fn launch(&mut self, host: usize, mut datagram: Box<Datagram>) {
        self.datagram_net.counts.sent += 1;
        if self.hosts[host].random.datagrams.hits(self.datagram_impairments.rebind_ppm) {
            self.rebind(host);
        }
        if let Some(to) = self.reached_by(datagram.to) {
            let from = At { host, link: datagram.link };
            let bytes = datagram.length as u64 + FRAMING_BYTES;
            if let Some(trip) = self.datagram_trip(from, to, bytes) {
                self.launch_by_link(from, to, datagram, trip);
                return;
            }
        }
        let now_ns = self.now_ns();
        let impairments = &self.datagram_impairments;
        let bytes = datagram.length as u64 + FRAMING_BYTES;
        let backlog = self.backlog_bytes(host, datagram.link);
        let has_room = impairments.queue_bytes == 0 || backlog == 0;
        if !has_room && backlog + bytes > impairments.queue_bytes {
            self.datagram_net.counts.queue_drops += 1;
            self.recycle(datagram);
            return;
        }
        let cost_ns = (bytes * impairments.ns_per_kib) >> 10;
        let socket = &mut self.hosts[host].socket;
        socket.free_ns = socket.free_ns.max(now_ns) + cost_ns;
        datagram.left_ns = socket.free_ns;
        self.propagate(host, datagram, None);
    }

    /// The same on links with impairments of their own; `trip` is `None` if the queue is full.
    fn launch_by_link(
        &mut self,
        from: At,
        to: At,
        mut datagram: Box<Datagram>,
        trip: Option<Trip>,
    ) {
        let Some(Trip { left_ns, arrival_ns }) = trip else {
            self.datagram_net.counts.queue_drops += 1;
            self.recycle(datagram);
            return;
        };
        datagram.left_ns = left_ns;
        self.hosts[from.host].socket.free_ns = left_ns;
        let loss_ppm = self.way_loss_ppm(from, to);
        if self.hosts[from.host].random.datagrams.hits(loss_ppm) {
            self.datagram_net.counts.lost += 1;
            self.recycle(datagram);
            return;
        }
        self.propagate(from.host, datagram, Some(arrival_ns));
    }

    /// Passes a datagram to the network, where it may be observed and lost.
    fn propagate(&mut self, host: usize, mut datagram: Box<Datagram>, arrival_ns: Option<u64>) {
        datagram.from = self.hosts[host].links[datagram.link].public;
        datagram.sender = Some(host);
        let target = self.reached_by(datagram.to);
        let is_sieved = self
            .datagram_net
            .sieve
            .as_mut()
            .is_some_and(|sieve| sieve.matches(host, datagram.content()));
        if let Some(watcher) = &mut self.datagram_net.watcher {
            watcher.see(host, target.map(|at| at.host), &datagram);
        }
        let from = At { host, link: datagram.link };
        match target {
            Some(target) if !is_sieved && !self.loses(from, target, datagram.length) => {
                datagram.link_in = target.link;
                let arrival_ns = arrival_ns.unwrap_or_else(|| {
                    let random = &mut self.hosts[host].random.datagrams;
                    let jitter_ns = random.within(self.impairments.jitter_ns);
                    datagram.left_ns + self.impairments.delay_ns + jitter_ns
                });
                self.schedule_arrival(host, target, datagram, arrival_ns);
            }
            _ => {
                self.datagram_net.counts.lost += 1;
                self.recycle(datagram);
            }
        }
    }

    /// The link that an address reaches.
    fn reached_by(&self, address: SocketAddr) -> Option<At> {
        let route = self.datagram_net.routes.get(&address)?;
        (route.until_ns > self.now_ns()).then_some(route.at)
    }

    fn loses(&mut self, from: At, to: At, length: usize) -> bool {
        let impairments = &self.datagram_impairments;
        let is_too_long = impairments.bytes_max > 0 && length > impairments.bytes_max;
        is_too_long
            || self.is_cut(from.host, to.host)
            || self.is_way_cut(from, to)
            || self.is_too_long(from, to, length)
            || self.datagram_net.cuts.contains(&(from.host, to.host))
            || self.hosts[from.host].random.datagrams.hits(self.datagram_impairments.loss_ppm)
    }

    /// Puts a datagram in flight, and possibly a duplicate.
    fn schedule_arrival(
        &mut self,
        sender: usize,
        to: At,
        mut datagram: Box<Datagram>,
        mut arrival_ns: u64,
    ) {
        let target = to.host;
        let Host { random, socket, .. } = &mut self.hosts[sender];
        let random = &mut random.datagrams;
        if random.hits(self.datagram_impairments.late_ppm) {
            self.datagram_net.counts.late += 1;
            arrival_ns += random.within(self.datagram_impairments.late_ns);
        } else {
            arrival_ns = socket.keep_order(datagram.link, to, arrival_ns);
        }
        if random.hits(self.datagram_impairments.duplicate_ppm) {
            self.datagram_net.counts.duplicates += 1;
            let copy_ns = arrival_ns + random.within(2 * self.impairments.delay_ns + 1);
            let mut copy = self.spare_datagram();
            copy.copy_from(&datagram);
            self.bring(target, copy_ns, copy);
        }
        let random = &mut self.hosts[sender].random.datagrams;
        // Of two copies one may be intact.
        if datagram.length > 0 && random.hits(self.datagram_impairments.flip_ppm) {
            self.datagram_net.counts.garbled += 1;
            let bit = random.below(8 * datagram.length);
            datagram.bytes[bit / 8] ^= 1 << (bit % 8);
        }
        if random.hits(self.datagram_impairments.truncate_ppm) {
            self.datagram_net.counts.garbled += 1;
            datagram.length = random.below(datagram.length);
        }
        self.bring(target, arrival_ns, datagram);
    }

    // ---- Receiving ----

    fn bring(&mut self, host: usize, arrival_ns: u64, datagram: Box<Datagram>) {
        if !self.hosts[host].socket.is_open {
            // A datagram without a receiver is not kept for the next process.
            self.process_arrivals(host);
        }
        let number = self.next_number();
        let socket = &mut self.hosts[host].socket;
        socket.under_way.push(UnderWay { arrival_ns, number, datagram });
        if socket.readable_ns.is_some_and(|readable_ns| arrival_ns < readable_ns) {
            self.announce(host, arrival_ns);
        }
    }

    /// Wakes the loop of `host` for a datagram that arrives at `arrival_ns`.
    fn announce(&mut self, host: usize, arrival_ns: u64) {
        let noticed_ns = arrival_ns + self.lateness_ns(host);
        let socket = &mut self.hosts[host].socket;
        let readable_ns = socket.readable_ns.map_or(noticed_ns, |known| known.min(noticed_ns));
        socket.readable_ns = Some(readable_ns);
        self.wake_at(host, readable_ns);
    }

    /// Moves due datagrams to the kernel buffer of `host`.
    fn process_arrivals(&mut self, host: usize) {
        let now_ns = self.now_ns();
        let room_bytes = self.datagram_impairments.receive_room_bytes;
        while self.hosts[host].socket.next_arrival_ns() <= now_ns {
            let socket = &mut self.hosts[host].socket;
            let Some(UnderWay { arrival_ns, datagram, .. }) = socket.under_way.pop() else {
                return;
            };
            let length = datagram.length;
            let is_kept =
                socket.is_open && (room_bytes == 0 || socket.inbox_bytes + length <= room_bytes);
            let content = datagram.content().iter().take(16);
            let begin = content.fold(0, |all: u64, byte| all.rotate_left(7) ^ u64::from(*byte));
            let counts = &mut self.datagram_net.counts;
            let count = match is_kept {
                true => &mut counts.arrived,
                false if socket.is_open => &mut counts.receive_drops,
                false => &mut counts.no_receiver,
            };
            *count += 1;
            if is_kept {
                socket.inbox_bytes += length;
                socket.inbox.push_back(datagram);
            } else {
                self.recycle(datagram);
            }
            let what = [TRACE_ARRIVAL << 32 | host as u64, arrival_ns, length as u64, begin];
            self.trace(&what);
        }
    }

    /// The next datagram that arrived.
    pub(super) fn receive_datagram(&mut self, host: usize) -> Option<Box<Datagram>> {
        self.process_arrivals(host);
        let socket = &mut self.hosts[host].socket;
        let datagram = socket.inbox.pop_front()?;
        socket.inbox_bytes -= datagram.length;
        socket.handled += 1;
        Some(datagram)
    }

    /// Datagrams that the processes of a host received or sent.
    pub(crate) fn datagrams_handled(&self, host: usize) -> u64 {
        self.hosts[host].socket.handled
    }

    pub(super) fn watch_datagrams(&mut self, host: usize) -> io::Result<()> {
        let socket = &mut self.hosts[host].socket;
        if !socket.is_open {
            return Err(ErrorKind::Unsupported.into());
        }
        if socket.readable_ns.is_none() {
            self.await_datagram(host);
        }
        Ok(())
    }

    /// Arms the readable event for present datagrams or the next arrival.
    fn await_datagram(&mut self, host: usize) {
        self.process_arrivals(host);
        let socket = &mut self.hosts[host].socket;
        socket.readable_ns = Some(u64::MAX);
        let next_ns = socket.next_arrival_ns();
        if !socket.inbox.is_empty() {
            self.announce(host, self.now_ns());
        } else if next_ns < u64::MAX {
            self.announce(host, next_ns);
        }
    }

    /// Whether the readable event is due.
    pub(super) fn takes_datagrams_readable(&mut self, host: usize) -> bool {
        let readable_ns = self.hosts[host].socket.readable_ns;
        if readable_ns.is_some() && self.ring_ready_ns(host) <= self.now_ns() {
            self.hosts[host].socket.readable_ns = None;
            return true;
        }
        if readable_ns.is_none_or(|readable_ns| readable_ns > self.now_ns()) {
            return false;
        }
        self.process_arrivals(host);
        if self.hosts[host].socket.inbox.is_empty() {
            // It was received before the event, or lost in the last steps.
            self.await_datagram(host);
            return false;
        }
        self.hosts[host].socket.readable_ns = None;
        true
    }

    /// When the readable event is due, as far as known.
    pub(super) fn datagrams_readable_ns(&self, host: usize) -> u64 {
        self.hosts[host].socket.readable_ns.unwrap_or(u64::MAX)
    }
}
