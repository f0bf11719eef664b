//! Datagram sockets.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};

use super::super::options;

/// Requested socket buffers, in bytes each way: the default limits `rmem_max` and `wmem_max`, so
/// that every user gets them.
///
/// The kernel doubles the number and charges each datagram with the memory it takes (`SO_MEMINFO`,
/// loopback): 832 bytes for one of 64, 1280 for 200-600, 2304 for 800-1500; a NIC that fills whole
/// pages is charged more. So the 425 984 bytes hold 512, 332 or 184 datagrams while the engine is
/// away: 184 of 1500 bytes are 220 µs of 10 Gb/s, nine times the duration of a bulk call (25 µs).
/// The rest is lost, and the packet layer detects it. The default is half of that.
const BUFFER_BYTES: usize = 212_992;
/// The result of [`buffers`] if the request was granted.
pub(crate) const WANTED_BYTES: usize = 2 * BUFFER_BYTES;

/// Binds a non-blocking datagram socket at `address`; at an ephemeral port if the wanted one is
/// taken.
///
/// The kernel never fragments its datagrams (`IP_PMTUDISC_PROBE`): one that is longer than the
/// NIC's MTU is refused, and the packet layer discovers the path MTU. ICMP errors do not interrupt
/// an unconnected socket, as `IP_RECVERR` stays off. On `::` it is dual-stack.
///
/// # Errors
///
/// The kernel's error for the address, or no descriptor is left; the text names the address.
pub(crate) fn bind(wanted: SocketAddr) -> io::Result<UdpSocket> {
    let bound = match try_bind(wanted) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse && wanted.port() != 0 => {
            let mut elsewhere = wanted;
            elsewhere.set_port(0);
            try_bind(elsewhere)
        }
        bound => bound,
    };
    bound.map_err(|error| {
        io::Error::new(error.kind(), format!("cannot bind a datagram socket to {wanted}: {error}"))
    })
}

fn try_bind(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
        let probe = libc::IPV6_PMTUDISC_PROBE;
        options::set(socket.as_raw_fd(), libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, probe)?;
        // For IPv4 destinations; kernels without dual-stack support refuse.
        let probe = libc::IP_PMTUDISC_PROBE;
        let _ = options::set(socket.as_raw_fd(), libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, probe);
    } else {
        let probe = libc::IP_PMTUDISC_PROBE;
        options::set(socket.as_raw_fd(), libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, probe)?;
    }
    // Smaller buffers lose more and are no error.
    let _ = socket.set_recv_buffer_size(BUFFER_BYTES);
    let _ = socket.set_send_buffer_size(BUFFER_BYTES);
    socket.bind(&SockAddr::from(address))?;
    Ok(socket.into())
}

/// Receive and send buffer of a socket in bytes, as the kernel counts them: twice the request,
/// within its limits.
///
/// # Errors
///
/// The kernel's error.
pub(crate) fn buffers(socket: &UdpSocket) -> io::Result<(usize, usize)> {
    let socket = SockRef::from(socket);
    Ok((socket.recv_buffer_size()?, socket.send_buffer_size()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn option(socket: &UdpSocket, level: libc::c_int, name: libc::c_int) -> libc::c_int {
        options::get(socket.as_raw_fd(), level, name).unwrap()
    }

    #[test]
    fn options_reach_the_kernel() {
        let socket = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let discovery = option(&socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER);
        assert_eq!(discovery, libc::IP_PMTUDISC_PROBE);
        assert_eq!(option(&socket, libc::IPPROTO_IP, libc::IP_RECVERR), 0);
        let fresh = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
        let got = buffers(&socket).unwrap();
        let socket = SockRef::from(&socket);
        assert_eq!(got, (socket.recv_buffer_size().unwrap(), socket.send_buffer_size().unwrap()));
        assert!(socket.nonblocking().unwrap() && !socket.reuse_address().unwrap());
        assert!(socket.recv_buffer_size().unwrap() >= fresh.recv_buffer_size().unwrap());
        assert!(socket.send_buffer_size().unwrap() >= fresh.send_buffer_size().unwrap());
    }

    #[test]
    fn taken_port_falls_back_to_another_one() {
        let localhost = std::net::Ipv4Addr::LOCALHOST;
        let first = bind((localhost, 0).into()).unwrap();
        let port = first.local_addr().unwrap().port();
        let second = bind((localhost, port).into()).unwrap();
        assert_ne!(second.local_addr().unwrap().port(), port);
        drop(first);
        let third = bind((localhost, port).into()).unwrap();
        assert_eq!(third.local_addr().unwrap().port(), port);
        let error = bind("192.0.2.1:0".parse().unwrap()).unwrap_err();
        assert!(error.to_string().contains("192.0.2.1"), "{error}");
    }

    #[test]
    fn ipv6_is_not_fragmented_and_wildcard_is_dual_stack() {
        let Ok(socket) = bind("[::]:0".parse().unwrap()) else {
            return println!("RINGRAIL-SKIP: driver::udp::socket: this host has no IPv6");
        };
        let discovery = option(&socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER);
        assert_eq!(discovery, libc::IPV6_PMTUDISC_PROBE);
        assert_eq!(option(&socket, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY), 0);
    }
}
