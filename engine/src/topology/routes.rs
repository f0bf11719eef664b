//! How peers are reached from NICs, as far as the kernel's tables tell without trying.

use std::io;
use std::net::IpAddr;

use crate::netlink::{Door, Route, find};

/// A door to the routing tables of the network namespace that it was opened in.
#[derive(Debug)]
pub struct Routes(Door);

impl Routes {
    /// Opens it, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn open() -> io::Result<Self> {
        Door::open().map(Self)
    }

    /// How `to` is reached from the NIC with the index `nic_index` by its address `from`. Takes a
    /// few microseconds. That there is a route does not mean that somebody answers.
    ///
    /// # Errors
    /// What the kernel says, other than that there is no way.
    pub fn find(&mut self, nic_index: u32, from: IpAddr, to: IpAddr) -> io::Result<Route> {
        find(&mut self.0, nic_index, from, to)
    }
}
