//! The rails of a driver: source address and NIC of its connections, and filtering of accepted
//! ones.

use std::collections::BTreeMap;
use std::io;
use std::mem;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{OwnedFd, RawFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::netdevice::index_to_name_inlined;

use super::gratuitous_arp::ArpAnnouncer;
use super::links::{CarrierState, Links};
use super::tcp::{self, Binding};
use crate::driver::traits::{DriverCounters, DriverEvent, LaneKey, Reach};
use crate::driver::traits::{RAILS_MAX, Rail};
use crate::netlink::{NetlinkSocket, Route, find};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct DriverRails {
    list: Vec<Rail>,
    /// A listener is bound to the wildcard address.
    listens_everywhere: bool,
    /// Whether the link of each rail is up, as far as known.
    are_up: Vec<bool>,
    /// Whether the NIC of each rail was deleted.
    are_gone: Vec<bool>,
    /// Opened when there are several rails.
    links: Option<Links>,
    /// Socket for route queries, opened on first use.
    routes: Option<NetlinkSocket>,
    /// Present if rails share a subnet.
    announcer: Option<ArpAnnouncer>,
    unmatched: Vec<UnmatchedAccept>,
    /// How often connections of a rail and remote address were bound late.
    bound_late: BTreeMap<(u8, IpAddr), u8>,
}

/// An accepted connection that arrived by another NIC than its rail's, because the peer has the
/// wrong MAC. It is bound to the rail's NIC once the peer's ARP entry is corrected.
#[derive(Clone, Copy, Debug)]
struct UnmatchedAccept {
    lane: LaneKey,
    rail: u8,
    remote: IpAddr,
    since: Instant,
    /// It has carried a chunk; control connections never do.
    is_bulk: bool,
}

/// A connection accepted for a rail.
#[derive(Clone, Copy, Debug)]
pub(super) struct AcceptedOnRail {
    /// The rail whose address it was accepted on.
    pub(super) rail: u8,
    unmatched_from: Option<IpAddr>,
}

/// Times that connections of a remote address are bound late: if that keeps breaking them, the
/// network routes differently.
const BOUND_LATE_MAX: u8 = 3;
/// Limit of [`DriverRails::unmatched`].
const UNMATCHED_MAX: usize = 256;
/// Limit of [`DriverRails::bound_late`].
const BOUND_LATE_ENTRIES_MAX: usize = 1024;

impl DriverRails {
    /// See [`crate::driver::traits::Driver::set_rails`].
    pub(super) fn set(&mut self, rails: &[Rail]) -> io::Result<()> {
        if rails.len() > RAILS_MAX {
            let count = rails.len();
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{count} rails are too many: an engine has at most {RAILS_MAX}"),
            ));
        }
        self.list = rails.to_vec();
        self.are_up = vec![true; rails.len()];
        self.are_gone = vec![false; rails.len()];
        self.bound_late.clear();
        if self.has_several() && self.routes.is_none() {
            // By the owner: the background thread may be in another network namespace.
            self.routes = NetlinkSocket::open().ok();
        }
        self.announcer = if self.has_several() { ArpAnnouncer::of(rails) } else { None };
        if let Some(announcer) = &mut self.announcer {
            // Peers may know addresses from an earlier process.
            announcer.announce(Instant::now());
        }
        Ok(())
    }

    /// Subscribes to link changes, if peers can use another rail then. Returns the descriptor to
    /// watch if it is new.
    pub(super) fn subscribe_links(&mut self, counters: &mut DriverCounters) -> Option<RawFd> {
        if !self.has_several() || self.list.iter().all(|rail| rail.nic_index == 0) {
            return None;
        }
        if let Some(links) = &mut self.links {
            counters.syscalls += 1;
            if let Err(error) = links.request_list() {
                tracing::debug!("cannot query the state of links: {error}");
            }
            return None;
        }
        counters.syscalls += 3;
        match Links::open() {
            Ok(links) => {
                let fd = links.fd();
                self.links = Some(links);
                Some(fd)
            }
            // Rails are monitored by packet loss as well.
            Err(error) => {
                Self::warn_no_link_events(&error);
                None
            }
        }
    }

    /// The descriptor of link notifications.
    #[cfg(feature = "uring")]
    pub(super) fn links_fd(&self) -> Option<RawFd> {
        self.links.as_ref().map(Links::fd)
    }

    /// Link notifications are unavailable. Logged once per driver.
    pub(super) fn warn_no_link_events(error: &io::Error) {
        tracing::warn!(
            "link monitoring is unavailable, rail failures are detected by packet loss: {error}"
        );
    }

    /// Time until [`Self::handle_links`] is to be called unasked, because the kernel refused a
    /// request.
    pub(super) fn links_retry_in(&self) -> Option<Duration> {
        self.links.as_ref().and_then(Links::retry_in)
    }

    /// Handles link notifications and reports rails that changed. `true`: datagram routes must be
    /// refreshed, because a rail has another NIC of the same name, or its link changed.
    pub(super) fn handle_links(
        &mut self,
        counters: &mut DriverCounters,
        events: &mut Vec<DriverEvent>,
    ) -> bool {
        let Some(mut links) = self.links.take() else { return false };
        let (mut has_moved, reported) = (false, events.len());
        let mut questions = 0;
        counters.syscalls += links.read(|link, socket| {
            let is_there = |index| {
                questions += 1;
                !matches!(index_to_name_inlined(socket, index), Err(Errno::NXIO | Errno::NODEV))
            };
            has_moved |= self.handle_link(link, is_there, events);
        });
        counters.syscalls += questions;
        self.links = Some(links);
        has_moved || events.len() > reported
    }

    /// Handles one link notification. `is_there`: whether a NIC of that index exists.
    fn handle_link(
        &mut self,
        link: CarrierState<'_>,
        mut is_there: impl FnMut(u32) -> bool,
        events: &mut Vec<DriverEvent>,
    ) -> bool {
        let mut has_moved = false;
        for (at, rail) in self.list.iter_mut().enumerate() {
            let is_its_nic = rail.nic_index == link.index;
            if is_its_nic {
                self.are_gone[at] = link.is_gone;
                // The NIC may have been renamed.
                if !link.is_gone
                    && !link.name.is_empty()
                    && rail.nic.as_bytes() != link.name
                    && let Ok(name) = str::from_utf8(link.name)
                {
                    rail.nic = name.to_owned();
                }
            } else {
                // Addresses are configured by NIC name, so the rail moves to a new NIC of the same
                // name, but only after its own was deleted.
                let is_same = rail.nic_index != 0 && rail.nic.as_bytes() == link.name;
                if !is_same || link.is_gone || !self.are_gone[at] && is_there(rail.nic_index) {
                    continue;
                }
                tracing::info!(
                    nic = rail.nic,
                    index = link.index,
                    "a rail moved to a new NIC of the same name"
                );
                if let Some(announcer) = &mut self.announcer {
                    announcer.nic_changed(rail.nic_index, link.index);
                }
                (rail.nic_index, self.are_gone[at], has_moved) = (link.index, false, true);
            }
            let was_up = mem::replace(&mut self.are_up[at], link.is_up);
            if !is_its_nic && was_up && link.is_up {
                // Packets in flight by the old one are lost.
                events.push(DriverEvent::RailChanged { rail: at as u8, is_up: false });
            }
            if !is_its_nic || was_up != link.is_up {
                events.push(DriverEvent::RailChanged { rail: at as u8, is_up: link.is_up });
            }
        }
        has_moved
    }

    /// See [`crate::driver::traits::Driver::nic_of`].
    pub(super) fn nic_of(&self, rail: u8) -> Option<u32> {
        self.list.get(usize::from(rail)).map(|rail| rail.nic_index)
    }

    /// The rails now.
    pub(super) fn list(&self) -> &[Rail] {
        &self.list
    }

    /// Address and NIC to bind a connection to `remote` by `rail` to; `None`: routing decides.
    pub(super) fn binding(
        &mut self,
        rail: u8,
        remote: SocketAddr,
        counters: &mut DriverCounters,
    ) -> io::Result<Option<Binding>> {
        if self.list.is_empty() && rail == 0 {
            return Ok(None);
        }
        let Some(found) = self.list.get(usize::from(rail)) else {
            let count = self.list.len();
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("there is no rail {rail}: the driver has {count}"),
            ));
        };
        let address = tcp::address_of(found, 0);
        // A single rail leaves the choice of the NIC to routing by its address.
        let mut nic_index = if self.has_several() { found.nic_index } else { 0 };
        if nic_index != 0 {
            counters.syscalls += LISTING_CALLS;
            if is_of_this_host(remote.ip()) {
                nic_index = 0;
            } else if let Some(announcer) = &mut self.announcer
                && announcer.is_announced(nic_index)
            {
                // The answer must arrive by this NIC.
                counters.syscalls += announcer.announce(Instant::now());
            }
        }
        Ok(Some(Binding { address, nic_index }))
    }

    /// Registers a listener.
    pub(super) fn note_listener(&mut self, listener: &TcpListener) {
        let local = listener.local_addr();
        self.listens_everywhere |= local.is_ok_and(|local| local.ip().is_unspecified());
    }

    /// A new listener for a rail whose NIC changed, and the index in `all` of the one it replaces.
    /// Beside `everywhere`, see [`tcp::listeners_of_rails`].
    pub(super) fn reopen_listener<'a>(
        &self,
        rail: u8,
        everywhere: &TcpListener,
        mut all: impl Iterator<Item = &'a TcpListener>,
        counters: &mut DriverCounters,
    ) -> Option<(TcpListener, Option<usize>)> {
        let rail = self.list.get(usize::from(rail))?;
        counters.syscalls += REOPENING_CALLS;
        let opened = tcp::listeners_of_rails(everywhere, std::slice::from_ref(rail)).pop()?;
        let is_its =
            |it: &TcpListener| it.local_addr().is_ok_and(|local| local.ip() == rail.address);
        Some((opened, all.position(is_its)))
    }

    /// See [`crate::driver::traits::Driver::reach`]. A single rail follows routing.
    pub(super) fn reach(&mut self, rail: u8, remote: IpAddr) -> Reach {
        if !self.has_several() {
            return Reach::Unknown;
        }
        let Some(rail) = self.list.get(usize::from(rail)) else { return Reach::Unreachable };
        if rail.nic_index == 0 {
            return Reach::Unknown;
        }
        let Some(netlink) = &mut self.routes else { return Reach::Unknown };
        match find(netlink, rail.nic_index, rail.address, remote) {
            Ok(Route::Local | Route::Direct { .. }) => Reach::Direct,
            Ok(Route::Routed { .. }) => Reach::Routed,
            Ok(Route::OtherNic { .. } | Route::Unreachable { .. }) => Reach::Unreachable,
            Err(error) => {
                tracing::debug!(%remote, %error, "route query failed");
                Reach::Unknown
            }
        }
    }

    fn has_several(&self) -> bool {
        self.list.len() > 1
    }

    /// Assigns an accepted connection to the rail whose address it was made to, and binds it to the
    /// rail's NIC; `None`: the address belongs to no rail, close the connection.
    pub(super) fn accept_on_rail(
        &mut self,
        socket: &OwnedFd,
        counters: &mut DriverCounters,
    ) -> Option<AcceptedOnRail> {
        if self.list.is_empty() || !self.has_several() && !self.listens_everywhere {
            // The listener is bound to the only address, or routing decides.
            return Some(AcceptedOnRail { rail: 0, unmatched_from: None });
        }
        counters.syscalls += 2;
        let ends = tcp::addresses(socket);
        let local = ends.map(|(local, _)| local.ip().to_canonical());
        let came_to = |rail: &Rail| Some(rail.address) == local;
        let Some(rail) = self.list.iter().position(came_to) else {
            tracing::debug!(?local, "closed a connection to an address of no rail");
            counters.foreign_connections += 1;
            return None;
        };
        let mut accepted = AcceptedOnRail { rail: u8::try_from(rail).ok()?, unmatched_from: None };
        if self.has_several() {
            let (syscalls, is_unmatched) = tcp::keep_to_nic(socket, self.list[rail].nic_index);
            counters.syscalls += syscalls;
            accepted.unmatched_from = ends.filter(|_| is_unmatched).map(|(_, remote)| remote.ip());
        }
        if let Some(announcer) = &mut self.announcer {
            // The peer may have sent ARP requests a moment ago.
            counters.syscalls += announcer.announce(Instant::now());
        }
        Some(accepted)
    }

    /// Registers the lane of an accepted connection.
    pub(super) fn lane_opened(&mut self, accepted: AcceptedOnRail, lane: LaneKey) {
        // Without announcements the peer's ARP entry is never corrected.
        let (nic_index, announcer) = (self.nic_of(accepted.rail), &self.announcer);
        let is_announced = announcer
            .as_ref()
            .zip(nic_index)
            .is_some_and(|(announcer, nic)| announcer.is_announced(nic));
        let Some(remote) = accepted.unmatched_from.filter(|_| is_announced) else { return };
        if self
            .bound_late
            .get(&(accepted.rail, remote))
            .is_some_and(|&times| times >= BOUND_LATE_MAX)
        {
            return;
        }
        let since = Instant::now();
        self.watch(UnmatchedAccept { lane, rail: accepted.rail, remote, since, is_bulk: false });
    }

    /// Registers a connection; if the table is full, replaces the oldest that has carried no chunk.
    fn watch(&mut self, accept: UnmatchedAccept) {
        if self.unmatched.len() >= UNMATCHED_MAX {
            let idle = self.unmatched.iter().position(|accept| !accept.is_bulk);
            self.unmatched.remove(idle.unwrap_or(0));
        }
        self.unmatched.push(accept);
    }

    /// Forgets a closed lane.
    pub(super) fn lane_closed(&mut self, lane: LaneKey) {
        self.unmatched.retain(|accept| accept.lane != lane);
    }

    /// Whether [`Self::rebind_unmatched`] has anything to do.
    pub(super) fn has_unmatched(&self) -> bool {
        !self.unmatched.is_empty()
    }

    /// A bulk lane is used: if it arrived by another NIC than its rail's, binds it to that NIC as
    /// soon as the peer's ARP entry is corrected.
    pub(super) fn rebind_unmatched(
        &mut self,
        lane: LaneKey,
        socket: &OwnedFd,
        counters: &mut DriverCounters,
    ) {
        let Some(at) = self.unmatched.iter().position(|accept| accept.lane == lane) else { return };
        let Some(announcer) = &mut self.announcer else { return };
        self.unmatched[at].is_bulk = true;
        let (accept, now) = (self.unmatched[at], Instant::now());
        let Some(nic_index) = self.list.get(usize::from(accept.rail)).map(|rail| rail.nic_index)
        else {
            return;
        };
        if !announcer.is_converged(nic_index, accept.since, now) {
            counters.syscalls += announcer.announce(now);
            return;
        }
        self.unmatched.remove(at);
        self.count_late_bind(accept.rail, accept.remote);
        counters.syscalls += tcp::bind_to_nic(socket, nic_index);
    }

    /// If the table is full, an arbitrary entry is evicted.
    fn count_late_bind(&mut self, rail: u8, remote: IpAddr) {
        let key = (rail, remote);
        if self.bound_late.len() >= BOUND_LATE_ENTRIES_MAX && !self.bound_late.contains_key(&key) {
            self.bound_late.pop_first();
        }
        let times = self.bound_late.entry(key).or_default();
        *times = times.saturating_add(1);
    }
}

/// System calls of [`DriverRails::reopen_listener`].
const REOPENING_CALLS: u64 = 14;
/// System calls to list the addresses of this host.
const LISTING_CALLS: u64 = 7;

/// Whether an address belongs to a NIC of this host: packets for it use the loopback, whose answers
/// a socket bound to a NIC does not receive. For 127.0.0.0/8 the loopback is the NIC.
fn is_of_this_host(address: IpAddr) -> bool {
    let address = address.to_canonical();
    !address.is_loopback()
        && if_addrs::get_if_addrs().is_ok_and(|all| all.iter().any(|nic| nic.ip() == address))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accept(index: u32, is_bulk: bool) -> UnmatchedAccept {
        let (remote, since) = ([192, 0, 2, 1].into(), Instant::now());
        UnmatchedAccept { lane: LaneKey { index, generation: 0 }, rail: 0, remote, since, is_bulk }
    }

    fn rails() -> DriverRails {
        let (address, role) = ([127, 0, 0, 1].into(), crate::types::RailRole::Ordinary);
        let rail =
            Rail { nic: "eth0".into(), nic_index: 2, address, speed_mbps: None, mtu: None, role };
        let mut rails = DriverRails::default();
        rails.set(&[rail]).unwrap();
        rails
    }

    fn link(index: u32, name: &str) -> CarrierState<'_> {
        CarrierState { index, name: name.as_bytes(), is_up: true, is_gone: false }
    }

    /// The reported states of a rail's link, in order.
    fn states(events: &[DriverEvent]) -> Vec<bool> {
        let is_up = |event: &DriverEvent| {
            matches!(event, DriverEvent::RailChanged { rail: 0, is_up: true })
        };
        events.iter().map(is_up).collect()
    }

    #[test]
    fn rail_follows_its_nic_name_only_after_deletion() {
        let (mut rails, mut events) = (rails(), Vec::new());
        // Two NICs swap names; notifications of the first were lost.
        assert!(!rails.handle_link(link(3, "eth0"), |index| index == 2, &mut events));
        assert!(!rails.handle_link(link(2, "eth1"), |_| true, &mut events));
        assert!(!rails.handle_link(link(3, "eth0"), |_| false, &mut events));
        assert_eq!((rails.list[0].nic_index, rails.list[0].nic.as_str()), (2, "eth1"));
        assert!(events.is_empty());
        // It is deleted and made anew.
        let gone = CarrierState { is_up: false, is_gone: true, ..link(2, "eth1") };
        assert!(!rails.handle_link(gone, |_| true, &mut events));
        assert!(rails.handle_link(link(4, "eth1"), |_| true, &mut events));
        assert_eq!(rails.nic_of(0), Some(4));
        assert_eq!(states(&events), [false, true]);
        // The same again, but only the new one is reported.
        assert!(rails.handle_link(link(5, "eth1"), |_| false, &mut events));
        assert_eq!(rails.nic_of(0), Some(5));
        assert_eq!(states(&events), [false, true, false, true]);
        let down = CarrierState { is_up: false, ..link(6, "eth1") };
        assert!(rails.handle_link(down, |_| false, &mut events));
        let down = CarrierState { is_up: false, ..link(7, "eth1") };
        assert!(rails.handle_link(down, |_| false, &mut events));
        assert_eq!(states(&events[4..]), [false, false]);
    }

    #[test]
    fn unmatched_accepts_are_bounded_and_removed_on_close() {
        let mut rails = DriverRails::default();
        for index in 0..UNMATCHED_MAX as u32 {
            rails.watch(accept(index, index != 7));
        }
        for index in [1000, 1001] {
            rails.watch(accept(index, true));
            assert_eq!(rails.unmatched.len(), UNMATCHED_MAX);
        }
        let is_watched =
            |rails: &DriverRails, index| rails.unmatched.iter().any(|s| s.lane.index == index);
        // First the one that carried nothing, then the oldest.
        assert!(!is_watched(&rails, 7) && !is_watched(&rails, 0) && is_watched(&rails, 1));
        rails.lane_closed(LaneKey { index: 1, generation: 1 });
        assert!(is_watched(&rails, 1));
        rails.lane_closed(LaneKey { index: 1, generation: 0 });
        assert!(!is_watched(&rails, 1) && is_watched(&rails, 2));
    }

    #[test]
    fn late_bind_counts_are_bounded_and_cleared_with_the_rails() {
        let mut rails = DriverRails::default();
        for remote in 0..2 * BOUND_LATE_ENTRIES_MAX as u32 {
            rails.count_late_bind(0, IpAddr::V4(remote.into()));
        }
        assert_eq!(rails.bound_late.len(), BOUND_LATE_ENTRIES_MAX);
        rails.set(&[]).unwrap();
        assert!(rails.bound_late.is_empty());
    }
}
