//! What the kernel knows of NICs, routes and neighbours, by netlink.
//!
//! Frames pass the kernel's routing and neighbour tables by, so that both are asked here: before
//! the first frame to a destination and every few seconds after. The kernel answers these requests
//! while it takes them, so that nothing is waited for: two short system calls each.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd as _;

use netlink_packet_core::{NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use netlink_packet_route::neighbour::{NeighbourAttribute, NeighbourMessage, NeighbourState};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteMessage, RouteMetric, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr as NetlinkAddr};

use super::headers::Mac;

/// Room for one answer. Those about NICs are the longest, a few KiB.
const ANSWER_BYTES: usize = 32 * 1024;
/// Answers to earlier requests that are passed over.
const STALE_ANSWERS_MAX: usize = 16;

/// What is known of a NIC.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Link {
    pub(super) mac: Mac,
    /// Bytes of a packet without its Ethernet header.
    pub(super) mtu: u32,
    /// It is switched on; whether it has a carrier is not asked.
    pub(super) is_up: bool,
}

/// Where frames for a destination go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct NextHop {
    pub(super) mac: Mac,
    /// Longest packet that the route takes, in bytes; `None`: as long as the NIC takes.
    pub(super) mtu: Option<u32>,
    /// The kernel has not heard of the neighbour for a while. It goes on sending to it, and asks
    /// when it does.
    pub(super) is_stale: bool,
}

/// How to reach a destination.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    /// By frames.
    Frames(NextHop),
    /// The kernel does not know the neighbour's address yet: it asks for it when a socket sends.
    Unresolved,
    /// Not by this NIC, or not at all: for the socket.
    Elsewhere,
}

/// A door to the kernel's tables.
pub(super) struct Routes {
    socket: Socket,
    sequence: u32,
    answer: Vec<u8>,
}

impl Routes {
    /// Opens it, in the network namespace of the calling thread.
    ///
    /// # Errors
    ///
    /// No descriptor is left.
    pub(super) fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&NetlinkAddr::new(0, 0))?;
        socket.set_non_blocking(true)?;
        Ok(Self { socket, sequence: 0, answer: Vec::with_capacity(ANSWER_BYTES) })
    }

    /// Asks about the NIC with this index.
    ///
    /// # Errors
    ///
    /// `NotFound` without such a NIC; what else the kernel says, or that it is none for frames.
    pub(super) fn link(&mut self, nic: u32) -> io::Result<Link> {
        let mut message = LinkMessage::default();
        message.header.index = nic;
        let answer = self.ask(RouteNetlinkMessage::GetLink(message))?;
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
            (Some(mac), Some(mtu)) => Ok(Link { mac, mtu, is_up }),
            _ => Err(io::Error::other("the NIC has no Ethernet address")),
        }
    }

    /// Asks for the way to `to` by the NIC numbered `nic`, from `from`.
    ///
    /// # Errors
    ///
    /// What the kernel says, other than that there is no way.
    pub(super) fn way(&mut self, nic: u32, from: IpAddr, to: SocketAddr) -> io::Result<Way> {
        let (hop, mtu) = match self.route(nic, from, to) {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(Way::Elsewhere),
            Err(error) if is_no_way(&error) => return Ok(Way::Elsewhere),
            Err(error) => return Err(error),
        };
        match self.neighbour(nic, hop) {
            Ok(Some((mac, is_stale))) => Ok(Way::Frames(NextHop { mac, mtu, is_stale })),
            Ok(None) => Ok(Way::Unresolved),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(Way::Unresolved),
            Err(error) => Err(error),
        }
    }

    /// The next hop to `to`, and the MTU of the route; `None` when it leaves by another NIC.
    fn route(
        &mut self,
        nic: u32,
        from: IpAddr,
        to: SocketAddr,
    ) -> io::Result<Option<(IpAddr, Option<u32>)>> {
        let mut message = RouteMessage::default();
        message.header.address_family = family(to.ip());
        message.header.destination_prefix_length = if to.is_ipv4() { 32 } else { 128 };
        message.header.source_prefix_length = message.header.destination_prefix_length;
        message.attributes.push(RouteAttribute::Destination(to.ip().into()));
        message.attributes.push(RouteAttribute::Source(from.into()));
        if let SocketAddr::V6(to) = to
            && to.scope_id() != 0
        {
            message.attributes.push(RouteAttribute::Oif(to.scope_id()));
        }
        let answer = self.ask(RouteNetlinkMessage::GetRoute(message))?;
        let RouteNetlinkMessage::NewRoute(route) = answer else { return Err(odd_answer()) };
        if route.header.kind != RouteType::Unicast {
            return Ok(None);
        }
        let (mut hop, mut mtu, mut leaves_by) = (to.ip(), None, None);
        for attribute in route.attributes {
            match attribute {
                RouteAttribute::Oif(index) => leaves_by = Some(index),
                RouteAttribute::Gateway(RouteAddress::Inet(ip)) => hop = ip.into(),
                RouteAttribute::Gateway(RouteAddress::Inet6(ip)) => hop = ip.into(),
                // A gateway of another family, or something around the packet: for the kernel.
                RouteAttribute::Via(_) | RouteAttribute::Encap(_) => return Ok(None),
                RouteAttribute::Metrics(metrics) => {
                    mtu = metrics.into_iter().find_map(|metric| match metric {
                        RouteMetric::Mtu(bytes) if bytes > 0 => Some(bytes),
                        _ => None,
                    });
                }
                _ => {}
            }
        }
        Ok((leaves_by == Some(nic)).then_some((hop, mtu)))
    }

    /// The Ethernet address of a neighbour and whether it is stale, if the kernel knows it.
    fn neighbour(&mut self, nic: u32, hop: IpAddr) -> io::Result<Option<(Mac, bool)>> {
        let mut message = NeighbourMessage::default();
        message.header.family = family(hop);
        message.header.ifindex = nic;
        message.attributes.push(NeighbourAttribute::Destination(hop.into()));
        let answer = self.ask(RouteNetlinkMessage::GetNeighbour(message))?;
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

    /// One request and its answer.
    fn ask(&mut self, request: RouteNetlinkMessage) -> io::Result<RouteNetlinkMessage> {
        self.sequence = self.sequence.wrapping_add(1).max(1);
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST;
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::from(request));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send(&bytes, libc::MSG_DONTWAIT)?;
        for _ in 0..STALE_ANSWERS_MAX {
            self.answer.clear();
            let length = self.socket.recv(&mut self.answer, libc::MSG_DONTWAIT)?;
            let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&self.answer[..length])
                .map_err(io::Error::other)?;
            if answer.header.sequence_number != self.sequence {
                continue;
            }
            return match answer.payload {
                NetlinkPayload::InnerMessage(answer) => Ok(answer),
                NetlinkPayload::Error(error) => Err(error.to_io()),
                _ => Err(odd_answer()),
            };
        }
        Err(odd_answer())
    }
}

impl std::fmt::Debug for Routes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Routes").field("fd", &self.socket.as_raw_fd()).finish_non_exhaustive()
    }
}

fn family(ip: IpAddr) -> AddressFamily {
    if ip.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

fn is_no_way(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(
            libc::ENETUNREACH
                | libc::EHOSTUNREACH
                | libc::EACCES
                | libc::EINVAL
                | libc::ESRCH
                | libc::EADDRNOTAVAIL
        )
    )
}

fn odd_answer() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the kernel answered something else (netlink)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_is_not_reached_by_frames() {
        let mut routes = Routes::open().unwrap();
        let localhost = "127.0.0.1".parse().unwrap();
        for _ in 0..3 {
            let way = routes.way(1, localhost, "127.0.0.2:9".parse().unwrap()).unwrap();
            assert_eq!(way, Way::Elsewhere);
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
