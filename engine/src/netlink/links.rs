//! Counters of NICs.

use std::io;

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkMessage, Stats64};

use super::{NetlinkSocket, odd_answer};

/// Returns the counters of the NIC with this index.
///
/// # Errors
///
/// There is no such NIC in the namespace of the socket, or it has no counters.
pub(crate) fn counters(netlink: &mut NetlinkSocket, index: u32) -> io::Result<Stats64> {
    let mut message = LinkMessage::default();
    message.header.index = index;
    let answer = netlink.ask(RouteNetlinkMessage::GetLink(message))?;
    let RouteNetlinkMessage::NewLink(link) = answer else { return Err(odd_answer()) };
    let counters = link.attributes.into_iter().find_map(|attribute| match attribute {
        LinkAttribute::Stats64(counters) => Some(counters),
        _ => None,
    });
    counters.ok_or_else(odd_answer)
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn loopback_counts_sent_packets() {
        let mut netlink = NetlinkSocket::open().unwrap();
        let before = counters(&mut netlink, 1).unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        for _ in 0..10 {
            socket.send_to(&[0; 100], socket.local_addr().unwrap()).unwrap();
        }
        let after = counters(&mut netlink, 1).unwrap();
        assert!(after.tx_packets >= before.tx_packets + 10, "{before:?} {after:?}");
        assert!(after.rx_bytes >= before.rx_bytes + 1000, "{before:?} {after:?}");
    }

    #[test]
    fn missing_nic_is_an_error() {
        let error = counters(&mut NetlinkSocket::open().unwrap(), 0x7fff_fff0).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV), "{error}");
    }
}
