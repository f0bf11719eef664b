//! The rails of a driver: what its connections are bound to, and at which addresses it lets peers
//! in.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::OwnedFd;

use super::tcp::{self, Binding};
use crate::progress::lanes::DriverCounters;
use crate::types::{RAILS_MAX, Rail};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Rails {
    list: Vec<Rail>,
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
        Ok(())
    }

    /// What a connection by `rail` is bound to; `None`: routes decide.
    pub(super) fn binding(&self, rail: u8) -> io::Result<Option<Binding>> {
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
        let nic_index = if self.has_several() { found.nic_index } else { 0 };
        Ok(Some(Binding { address, nic_index }))
    }

    /// Whether sockets are bound to the wildcard address.
    fn has_several(&self) -> bool {
        self.list.len() > 1
    }

    /// The rail that an accepted connection came to, which it is bound to from now on; `None`: to
    /// none of them, and it is to be closed.
    pub(super) fn welcome(&self, socket: &OwnedFd, counters: &mut DriverCounters) -> Option<u8> {
        if !self.has_several() {
            // The listener is bound to the only address.
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
        counters.syscalls += tcp::keep_to_nic(socket, self.list[rail].nic_index);
        u8::try_from(rail).ok()
    }
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
