//! The rails of a driver: what its connections are bound to, and at which addresses it lets peers
//! in.

use std::io;
use std::mem;
use std::net::{IpAddr, SocketAddr, SocketAddrV6, TcpListener};
use std::os::fd::{OwnedFd, RawFd};

use super::links::Links;
use super::tcp::{self, Binding};
use crate::netlink::{Door, Route, find};
use crate::progress::lanes::{DriverCounters, Event, Reach};
use crate::progress::lanes::{RAILS_MAX, Rail};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Rails {
    list: Vec<Rail>,
    /// A listener is bound to no address.
    listens_everywhere: bool,
    /// Whether the link of each is up, as far as is known.
    are_up: Vec<bool>,
    /// Open since there were several.
    links: Option<Links>,
    /// To the kernel's routes, as soon as one was asked for.
    routes: Option<Door>,
}

impl Rails {
    /// See [`crate::progress::lanes::Driver::set_rails`].
    pub(super) fn set(&mut self, rails: &[Rail]) -> io::Result<()> {
        if rails.len() > RAILS_MAX {
            let count = rails.len();
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{count} rails are too many: an engine has {RAILS_MAX} at the most"),
            ));
        }
        self.list = rails.to_vec();
        self.are_up = vec![true; rails.len()];
        if self.has_several() && self.routes.is_none() {
            // By the owner: the caretaker may be in another network namespace.
            self.routes = Door::open().ok();
        }
        Ok(())
    }

    /// Asks for news of links, if somebody can go by another rail then; the descriptor is to be
    /// watched from now on if there was none before. Returns it in that case.
    pub(super) fn ask_for_news(&mut self, counters: &mut DriverCounters) -> Option<RawFd> {
        if !self.has_several() || self.list.iter().all(|rail| rail.nic_index == 0) {
            return None;
        }
        if let Some(links) = &self.links {
            counters.syscalls += 1;
            if let Err(error) = links.ask() {
                tracing::debug!("the state of links is not known: {error}");
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
            // Rails find out without hints.
            Err(error) => {
                tracing::debug!("there will be no news of links: {error}");
                None
            }
        }
    }

    /// What news of links come by.
    #[cfg(feature = "uring")]
    pub(super) fn news_fd(&self) -> Option<RawFd> {
        self.links.as_ref().map(Links::fd)
    }

    /// There is news of links: tells of rails that are concerned.
    pub(super) fn take_news(&mut self, counters: &mut DriverCounters, events: &mut Vec<Event>) {
        let Some(links) = &mut self.links else { return };
        counters.syscalls += links.read(|index, is_up| {
            for (at, (rail, was_up)) in self.list.iter().zip(&mut self.are_up).enumerate() {
                if rail.nic_index == index && mem::replace(was_up, is_up) != is_up {
                    events.push(Event::RailChanged { rail: at as u8, is_up });
                }
            }
        });
    }

    /// What a connection to `remote` by `rail` is bound to; `None`: routes decide.
    pub(super) fn binding(
        &self,
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
        let address = source_of(found);
        // One rail alone leaves the choice of the NIC to the routes of its address.
        let mut nic_index = if self.has_several() { found.nic_index } else { 0 };
        if nic_index != 0 {
            counters.syscalls += LISTING_CALLS;
            if is_of_this_host(remote.ip()) {
                nic_index = 0;
            }
        }
        Ok(Some(Binding { address, nic_index }))
    }

    /// Connections will come to `listener`, too.
    pub(super) fn listening(&mut self, listener: &TcpListener) {
        let local = listener.local_addr();
        self.listens_everywhere |= local.is_ok_and(|local| local.ip().is_unspecified());
    }

    /// See [`crate::progress::lanes::Driver::reach`]. One rail alone is used as routes decide.
    pub(super) fn reach(&mut self, rail: u8, remote: IpAddr) -> Reach {
        if !self.has_several() {
            return Reach::Unknown;
        }
        let Some(rail) = self.list.get(usize::from(rail)) else { return Reach::Unreachable };
        if rail.nic_index == 0 {
            return Reach::Unknown;
        }
        let Some(door) = &mut self.routes else { return Reach::Unknown };
        match find(door, rail.nic_index, rail.address, remote) {
            Ok(Route::Local | Route::Direct { .. }) => Reach::Direct,
            Ok(Route::Routed { .. }) => Reach::Routed,
            Ok(Route::OtherNic { .. } | Route::Unreachable { .. }) => Reach::Unreachable,
            Err(error) => {
                tracing::debug!(%remote, %error, "the kernel does not tell the route");
                Reach::Unknown
            }
        }
    }

    fn has_several(&self) -> bool {
        self.list.len() > 1
    }

    /// The rail that an accepted connection came to, which it is bound to from now on; `None`: to
    /// none of them, and it is to be closed.
    pub(super) fn welcome(&self, socket: &OwnedFd, counters: &mut DriverCounters) -> Option<u8> {
        if self.list.is_empty() || !self.has_several() && !self.listens_everywhere {
            // The listener is bound to the only address, or routes decide.
            return Some(0);
        }
        counters.syscalls += 2;
        let local = tcp::addresses(socket).map(|(local, _)| local.ip().to_canonical());
        let came_to = |rail: &Rail| Some(rail.address) == local;
        let Some(rail) = self.list.iter().position(came_to) else {
            tracing::debug!(?local, "closed a connection to an address that is no rail's");
            counters.foreign_connections += 1;
            return None;
        };
        if self.has_several() {
            counters.syscalls += tcp::keep_to_nic(socket, self.list[rail].nic_index);
        }
        u8::try_from(rail).ok()
    }
}

/// System calls that listing the addresses of this host takes.
const LISTING_CALLS: u64 = 7;

/// Whether an address is one of this host's NICs: packets for it go by the loopback, whose answers
/// a socket that is bound to a NIC does not get. For 127.0.0.0/8 the loopback is the NIC.
fn is_of_this_host(address: IpAddr) -> bool {
    let address = address.to_canonical();
    !address.is_loopback()
        && if_addrs::get_if_addrs().is_ok_and(|all| all.iter().any(|nic| nic.ip() == address))
}

/// What a socket that sends by a rail is bound to, port 0.
fn source_of(rail: &Rail) -> SocketAddr {
    match rail.address {
        IpAddr::V6(v6) if v6.is_unicast_link_local() => {
            SocketAddrV6::new(v6, 0, 0, rail.nic_index).into()
        }
        address => SocketAddr::new(address, 0),
    }
}
