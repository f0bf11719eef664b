//! The rails of this engine, and the ways from them to a peer.

use std::net::{IpAddr, SocketAddr};

use crate::proto::paths::PathTable;
use crate::proto::session::connection::Way;
use crate::proto::session::rails::RailInfo;
use crate::proto::session::rails::pairing::Reach;
use crate::types::{RAILS_MAX, Rail, RailRole};
use crate::wire::locators::Locators;
use crate::wire::rail::{ROLE_BACKUP, ROLE_PREFERRED};

/// Maximum number of ways to a peer that are tried: all pairs of four rails.
const WAYS_MAX: usize = 16;

/// Rails of an engine, and the addresses by which peers reach it.
#[derive(Debug)]
pub(crate) struct LocalRails {
    /// Addresses for peers to connect to.
    locators: Locators,
    /// Rails that it uses, the locator's first; empty: routes decide.
    used: Vec<Rail>,
    /// The same where routes decide: the rails chosen then. Never empty in an endpoint's engine.
    chosen: Vec<Rail>,
}

impl LocalRails {
    /// Creates the rails of an engine that peers reach at `locator`.
    pub(crate) fn new(locator: SocketAddr, used: Vec<Rail>, chosen: Vec<Rail>) -> Self {
        // Backups are last.
        let is_backup = |rail: &&Rail| rail.role == RailRole::Backup;
        let (backups, others): (Vec<&Rail>, Vec<&Rail>) = used.iter().partition(is_backup);
        let addresses = others.into_iter().chain(backups).map(|rail| rail.address);
        Self { locators: Locators::of(locator, addresses), chosen, used }
    }

    /// Returns the rails that it uses; none: routes decide.
    pub(super) fn used(&self) -> &[Rail] {
        &self.used
    }

    /// Returns the rails that were chosen, also where routes decide.
    pub(super) fn chosen(&self) -> &[Rail] {
        &self.chosen
    }

    /// Returns the addresses for peers to connect to.
    pub(super) fn locators(&self) -> Locators {
        self.locators
    }

    /// Returns whether this engine listens at an address.
    pub(super) fn has_address(&self, address: IpAddr) -> bool {
        self.locators.iter().any(|own| own.ip() == address)
    }

    /// Returns whether an address of a peer is one of this engine, which is another host's: not all
    /// of the peer's are.
    pub(super) fn is_taken_for(&self, remote: IpAddr, peer: &Locators) -> bool {
        self.has_address(remote) && !self.is_on_this_host(peer)
    }

    /// Returns whether all addresses of a peer are this engine's, too: it is on this host.
    fn is_on_this_host(&self, peer: &Locators) -> bool {
        peer.iter().all(|locator| self.has_address(locator.ip()))
    }

    /// Returns the rails as announced to peers.
    pub(super) fn announced(&self) -> Vec<RailInfo> {
        if self.used.is_empty() {
            return vec![RailInfo { address: self.locators.first().ip(), speed_mbps: 0, role: 0 }];
        }
        let infos = self.used.iter().map(|rail| RailInfo {
            address: rail.address,
            speed_mbps: rail.speed_mbps.unwrap_or(0),
            role: match rail.role {
                RailRole::Preferred => ROLE_PREFERRED,
                RailRole::Ordinary => 0,
                RailRole::Backup => ROLE_BACKUP,
            },
        });
        infos.collect()
    }

    /// Returns the ways to a peer, the first address from the first rail first. Then each takes the
    /// next rail and the next address, those on one network first. Backups are last. Ways without a
    /// route or carrier are omitted while there is another.
    pub(super) fn ways_to(
        &self,
        peer: &Locators,
        paths: &PathTable,
        mut reach: impl FnMut(u8, IpAddr) -> Reach,
    ) -> Vec<Way> {
        let rails = self.used.len().clamp(1, RAILS_MAX);
        let mut ways = Vec::new();
        for (at, remote) in peer.iter().enumerate() {
            for rail in 0..rails {
                let (to, is_first) = (remote.ip(), at == 0 && rail == 0);
                let own = self.used.get(rail);
                // A link-local address means another host on each network.
                let is_local = matches!(to, IpAddr::V6(to) if to.is_unicast_link_local());
                let is_odd = own.is_some_and(|own| own.address.is_ipv4() != to.is_ipv4());
                if !is_first && (is_odd || (is_local && rail != 0)) {
                    continue;
                }
                let reach = reach(rail as u8, to);
                let is_backup = own.is_some_and(|own| own.role == RailRole::Backup);
                let apart = (rail + rails - at % rails) % rails;
                let rank = (!is_first, is_backup, reach != Reach::Direct, apart, at);
                ways.push((rank, remote, rail as u8, reach));
            }
        }
        let is_fit = |rail: u8, reach| !paths.is_rail_down(rail) && reach != Reach::Unreachable;
        ways.sort_by_key(|&(rank, ..)| rank);
        if ways.iter().any(|&(_, _, rail, reach)| is_fit(rail, reach)) {
            ways.retain(|&(_, _, rail, reach)| is_fit(rail, reach));
        }
        ways.truncate(WAYS_MAX);
        let is_on_this_host = self.is_on_this_host(peer);
        let way = |(_, remote, rail, _): (_, SocketAddr, u8, _)| {
            let is_own = self.has_address(remote.ip());
            let shows_successor = remote == peer.first() && (!is_own || is_on_this_host);
            Way { remote, rail, is_own: is_own && !is_on_this_host, shows_successor }
        };
        ways.into_iter().map(way).collect()
    }

    /// Returns whether a connection with these ends, which a peer opened, is on the first path: it
    /// uses no other rail of this side, and no other address of the peer than its first one.
    pub(super) fn is_first_path(
        &self,
        peer: &Locators,
        (local, remote): (SocketAddr, SocketAddr),
    ) -> bool {
        let by = self.used.iter().position(|rail| rail.address == local.ip());
        // A NAT may make it look like any.
        let from = peer.iter().position(|locator| locator.ip() == remote.ip());
        by.unwrap_or(0) == 0 && from.unwrap_or(0) == 0
    }

    /// Notes the NIC of a rail. Returns whether that is another one, of one of several rails;
    /// `None`: there is no such rail.
    pub(super) fn set_nic(&mut self, rail: u8, nic_index: u32) -> Option<bool> {
        let known = self.used.get_mut(usize::from(rail))?;
        let is_moved = std::mem::replace(&mut known.nic_index, nic_index) != nic_index;
        // The same rail, in the statistics.
        if let Some(chosen) = self.chosen.get_mut(usize::from(rail)) {
            chosen.nic_index = nic_index;
        }
        Some(is_moved && self.used.len() > 1)
    }
}
