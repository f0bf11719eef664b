//! Netlink queries of NICs, routes and neighbours.
//!
//! Frames bypass the kernel's routing and neighbour tables, so both are queried here: before the
//! first frame to a destination and every few seconds after.

use std::io;
use std::net::{IpAddr, SocketAddr};

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use netlink_packet_route::neighbour::{NeighbourAttribute, NeighbourMessage, NeighbourState};
use netlink_packet_route::route::RouteType;

use super::headers::Mac;
use crate::netlink::{NetlinkSocket, Question, family, is_no_way, look_up, odd_answer};

/// State of a NIC.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct NicLink {
    pub(super) mac: Mac,
    /// Bytes of a packet without its Ethernet header.
    pub(super) mtu: u32,
    /// It is enabled; the carrier is not checked.
    pub(super) is_up: bool,
}

/// Next hop of frames to a destination.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct NextHop {
    pub(super) mac: Mac,
    /// MTU of the route, in bytes; `None`: that of the NIC.
    pub(super) mtu: Option<u32>,
    /// The neighbour entry is stale: the kernel still uses it, and probes it when it does.
    pub(super) is_stale: bool,
}

/// How to reach a destination.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Resolution {
    /// By frames.
    Frames(NextHop),
    /// The neighbour is unresolved: the kernel resolves it when a socket sends.
    Unresolved,
    /// By another NIC, or unreachable: use the socket.
    Elsewhere,
}

/// Route queries.
#[derive(Debug)]
pub(super) struct XdpRoutes(NetlinkSocket);

impl XdpRoutes {
    /// Opens a socket in the network namespace of the calling thread.
    ///
    /// # Errors
    ///
    /// No descriptor is left.
    pub(super) fn open() -> io::Result<Self> {
        NetlinkSocket::open().map(Self)
    }

    /// Queries the NIC with this index.
    ///
    /// # Errors
    ///
    /// `NotFound` without such a NIC; another error of the kernel, or a NIC without Ethernet.
    pub(super) fn link(&mut self, nic: u32) -> io::Result<NicLink> {
        let mut message = LinkMessage::default();
        message.header.index = nic;
        let answer = self.0.ask(RouteNetlinkMessage::GetLink(message))?;
        let RouteNetlinkMessage::NewLink(link) = answer else { return Err(odd_answer()) };
        let (mut mac, mut mtu) = (None, None);
        for attribute in &link.attributes {
            match attribute {
                LinkAttribute::Address(bytes) => mac = Mac::try_from(bytes.as_slice()).ok(),
                LinkAttribute::Mtu(bytes) => mtu = Some(*bytes),
                _ => {}
            }
        }
        let is_up = link.header.flags.contains(LinkFlags::Up);
        match (mac, mtu) {
            (Some(mac), Some(mtu)) => Ok(NicLink { mac, mtu, is_up }),
            _ => Err(io::Error::other("the NIC has no Ethernet address")),
        }
    }

    /// Resolves the next hop to `to` by the NIC with index `nic`, from `from`.
    ///
    /// # Errors
    ///
    /// An error of the kernel, except that there is no route.
    pub(super) fn resolve(
        &mut self,
        nic: u32,
        from: IpAddr,
        to: SocketAddr,
    ) -> io::Result<Resolution> {
        let (hop, mtu) = match self.route(nic, from, to) {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(Resolution::Elsewhere),
            Err(error) if is_no_way(&error) => return Ok(Resolution::Elsewhere),
            Err(error) => return Err(error),
        };
        match self.neighbour(nic, hop) {
            Ok(Some((mac, is_stale))) => Ok(Resolution::Frames(NextHop { mac, mtu, is_stale })),
            Ok(None) => Ok(Resolution::Unresolved),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(Resolution::Unresolved),
            Err(error) => Err(error),
        }
    }

    /// The next hop to `to`, and the MTU of the route; `None` if it uses another NIC.
    fn route(
        &mut self,
        nic: u32,
        from: IpAddr,
        to: SocketAddr,
    ) -> io::Result<Option<(IpAddr, Option<u32>)>> {
        let bound_to = match to {
            SocketAddr::V6(to) if to.scope_id() != 0 => Some(to.scope_id()),
            _ => None,
        };
        let question = Question { from, to: to.ip(), bound_to, is_strict: false };
        let found = look_up(&mut self.0, question)?;
        // Special route types are left to the kernel.
        let goes = found.kind == RouteType::Unicast && found.leaves_by == Some(nic);
        Ok((goes && !found.is_odd).then(|| (found.gateway.unwrap_or(to.ip()), found.mtu)))
    }

    /// The MAC address of a neighbour and whether it is stale, if the kernel knows it.
    fn neighbour(&mut self, nic: u32, hop: IpAddr) -> io::Result<Option<(Mac, bool)>> {
        let mut message = NeighbourMessage::default();
        message.header.family = family(hop);
        message.header.ifindex = nic;
        message.attributes.push(NeighbourAttribute::Destination(hop.into()));
        let answer = self.0.ask(RouteNetlinkMessage::GetNeighbour(message))?;
        let RouteNetlinkMessage::NewNeighbour(neighbour) = answer else {
            return Err(odd_answer());
        };
        let is_stale = match neighbour.header.state {
            NeighbourState::Reachable | NeighbourState::Permanent => false,
            NeighbourState::Stale | NeighbourState::Delay | NeighbourState::Probe => true,
            _ => return Ok(None),
        };
        let mac = neighbour.attributes.iter().find_map(|attribute| match attribute {
            NeighbourAttribute::LinkLayerAddress(bytes) => Mac::try_from(bytes.as_slice()).ok(),
            _ => None,
        });
        Ok(mac.map(|mac| (mac, is_stale)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_addresses_are_not_reached_by_frames() {
        let mut routes = XdpRoutes::open().unwrap();
        let localhost = "127.0.0.1".parse().unwrap();
        for _ in 0..3 {
            let way = routes.resolve(1, localhost, "127.0.0.2:9".parse().unwrap()).unwrap();
            assert_eq!(way, Resolution::Elsewhere);
        }
        let lo = routes.link(1).unwrap();
        assert!(lo.mtu >= 1500, "{lo:?}");
        assert_eq!(lo.mac, [0; 6]);
        let error = routes.link(0x7fff_fff0).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
        // The next answer is not mixed up with that one.
        assert_eq!(routes.link(1).unwrap(), lo);
    }
}
