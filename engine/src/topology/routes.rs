//! How peers are reached from NICs, according to the kernel's tables.

use std::io;
use std::net::IpAddr;

use crate::netlink::{NetlinkSocket, Route, find};

/// The routing tables of the network namespace that it was opened in.
#[derive(Debug)]
pub struct Routes(NetlinkSocket);

impl Routes {
    /// Opens the tables, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn open() -> io::Result<Self> {
        NetlinkSocket::open().map(Self)
    }

    /// Returns how `to` is reached from the NIC with the index `nic_index` by its address `from`.
    /// Takes a few microseconds. A route does not imply that a host answers.
    ///
    /// # Errors
    /// The kernel's error, other than that there is no route.
    pub fn find(&mut self, nic_index: u32, from: IpAddr, to: IpAddr) -> io::Result<Route> {
        let mut found = find(&mut self.0, nic_index, from, to)?;
        if let Route::Unreachable { cause } = &mut found
            && let Some((words, _)) = cause.split_once(" (os error ")
        {
            *cause = words.to_owned();
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreachable_route_has_a_cause() {
        // A source address that this host does not have, and class E.
        let mut routes = Routes::open().unwrap();
        for (from, to) in [("192.0.2.77", "192.0.2.78"), ("127.0.0.1", "240.0.0.1")] {
            let found = routes.find(0x7fff_fff0, from.parse().unwrap(), to.parse().unwrap());
            let text = found.unwrap().to_string();
            assert!(text.starts_with("none (") && !text.contains("os error"), "{text}");
        }
    }
}
