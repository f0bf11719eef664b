//! Listening sockets.
//!
//! With several rails one socket is bound to the wildcard address, for connections by the loopback
//! or by a NIC that answered ARP for another one's address. Beside it each rail has one that is
//! bound to its address and NIC: replies then leave by the NIC that the connection arrived by,
//! which the kernel does not ensure if another NIC has a route to the same network.

use std::io;
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener};
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};

use super::super::{ACCEPT_PAUSE, ACCEPTS_AT_ONCE};
use super::nic;
use crate::driver::traits::Rail;
use crate::refused_call::{Seldom, if_refused, is_for_good};

/// Backlog; the kernel caps it (`net.core.somaxconn`).
const BACKLOG: i32 = 4096;

/// How long a range of ports that are all taken is retried: the kernel closes sockets referenced by
/// the io_uring of a killed process shortly after the process is gone.
const TAKEN_PATIENCE: Duration = Duration::from_secs(1);

/// How long a listener rests that accepts nothing any more.
const NEVER: Duration = Duration::from_secs(24 * 3600);

/// Listens on the first free port of `ports` at `address`; `0..=0` lets the kernel choose.
///
/// The listener is non-blocking, close-on-exec and has `SO_REUSEADDR`, so that a restarted
/// process gets its port back while old connections linger in TIME_WAIT.
///
/// # Errors
///
/// `AddrInUse` when no port of the range is free for a second, `InvalidInput` when the range is
/// empty, otherwise the kernel's error for the address; the text names address and range.
pub(crate) fn listener(address: IpAddr, ports: RangeInclusive<u16>) -> io::Result<TcpListener> {
    let (first, last) = (*ports.start(), *ports.end());
    if first > last || (first == 0 && last != 0) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!(
                "the port range {first}-{last} is not one: give the lower port first, or 0 alone \
                 for any port"
            ),
        ));
    }
    let deadline = Instant::now() + TAKEN_PATIENCE;
    loop {
        if let Some(listener) = first_free(address, ports.clone())? {
            return Ok(listener);
        }
        if Instant::now() >= deadline {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Err(io::Error::new(
        io::ErrorKind::AddrInUse,
        format!(
            "every port of {first}-{last} at {address} is taken: widen the port range, or let the \
             kernel choose with port 0"
        ),
    ))
}

/// Listens on the first free port.
fn first_free(address: IpAddr, ports: RangeInclusive<u16>) -> io::Result<Option<TcpListener>> {
    for port in ports {
        match listen_on(SocketAddr::new(address, port)) {
            Ok(listener) => return Ok(Some(listener)),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => {
                return Err(io::Error::new(
                    error.kind(),
                    format!("cannot listen on {}: {error}", SocketAddr::new(address, port)),
                ));
            }
        }
    }
    Ok(None)
}

fn listen_on(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))
        .map_err(if_refused("socket"))?;
    socket.set_reuse_address(true).map_err(if_refused("setsockopt"))?;
    socket.bind(&SockAddr::from(address)).map_err(if_refused("bind"))?;
    listen(socket)
}

fn listen(socket: Socket) -> io::Result<TcpListener> {
    socket.listen(BACKLOG).map_err(if_refused("listen"))?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// A listener for each of `rails`, bound to its address and NIC, at the port of `everywhere`, which
/// is bound to the wildcard address and has lower precedence. If one cannot be opened (before Linux
/// 5.7, without privileges), `everywhere` accepts that rail's connections, too, and routing chooses
/// the NIC of replies.
///
/// The port is free on all rails: `everywhere` has bound it on all addresses without
/// `SO_REUSEPORT`, which permits several listeners and is enabled only during this call. So no
/// other engine gets it.
pub(crate) fn listeners_of_rails(everywhere: &TcpListener, rails: &[Rail]) -> Vec<TcpListener> {
    let shared = SockRef::from(everywhere);
    let opened = everywhere.local_addr().and_then(|local| {
        shared.set_reuse_port(true)?;
        let open = |rail: &Rail| match listen_at_rail(rail, local.port()) {
            Ok(listener) => Some(listener),
            Err(error) => {
                let (nic, address) = (&rail.nic, rail.address);
                tracing::info!(
                    nic,
                    %address,
                    "cannot bind a listener to the NIC; replies follow the routing table: {error}"
                );
                None
            }
        };
        let opened: Vec<_> = rails.iter().filter_map(open).collect();
        shared.set_reuse_port(false)?;
        Ok(opened)
    });
    opened.unwrap_or_else(|error| {
        tracing::info!("cannot open listeners per rail; replies follow the routing table: {error}");
        Vec::new()
    })
}

fn listen_at_rail(rail: &Rail, port: u16) -> io::Result<TcpListener> {
    let address = nic::address_of(rail, port);
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    nic::try_bind(&socket, rail.nic_index)?;
    // A NIC made anew gets its address late.
    match address {
        SocketAddr::V4(_) => socket.set_freebind_v4(true)?,
        SocketAddr::V6(_) => socket.set_freebind_v6(true)?,
    }
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.bind(&SockAddr::from(address))?;
    let listener = listen(socket)?;
    SockRef::from(&listener).set_reuse_port(false)?;
    Ok(listener)
}

/// Result of accepting.
#[derive(Debug)]
pub(crate) struct Accepted {
    /// System calls made.
    pub(crate) syscalls: u64,
    /// When to continue: after a pause if descriptors or memory ran out, in the next poll if there
    /// may be more. `None`: no connection is pending.
    pub(crate) rest: Option<Duration>,
}

/// Passes pending connections to `adopt`, at most [`ACCEPTS_AT_ONCE`]; those that it refuses are
/// closed.
pub(crate) fn accept_some(
    listener: &TcpListener,
    mut adopt: impl FnMut(OwnedFd, SocketAddr) -> io::Result<()>,
) -> Accepted {
    let mut syscalls = 0;
    for _ in 0..ACCEPTS_AT_ONCE {
        syscalls += 1;
        match accept(listener) {
            Ok(None) => return Accepted { syscalls, rest: None },
            Ok(Some((socket, remote))) => {
                if let Err(error) = adopt(socket, remote) {
                    tracing::warn!("refused a connection from {remote}: {error}");
                }
            }
            // The connection was closed before it was accepted; the next one may be fine.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted
                ) => {}
            Err(error) if is_for_good(&error) => {
                tracing::error!("no peer can connect to this engine any more: {error}");
                // The kernel refuses new connections, which need not wait for an answer.
                let _ = SockRef::from(listener).shutdown(Shutdown::Both);
                return Accepted { syscalls, rest: Some(NEVER) };
            }
            // It was shut down as above.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                return Accepted { syscalls, rest: Some(NEVER) };
            }
            Err(error) => {
                static WARNED: Seldom = Seldom::new();
                if WARNED.is_due() {
                    tracing::warn!("cannot accept connections for now: {error}");
                }
                return Accepted { syscalls, rest: Some(ACCEPT_PAUSE) };
            }
        }
    }
    Accepted { syscalls, rest: Some(Duration::ZERO) }
}

/// Accepts one connection; `None` when none is pending. One system call.
fn accept(listener: &TcpListener) -> io::Result<Option<(OwnedFd, SocketAddr)>> {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let accepted = match SockRef::from(listener).accept4(flags) {
        // Some profiles know the older call alone.
        Err(error) if is_for_good(&error) => SockRef::from(listener).accept_raw().and_then(|it| {
            it.0.set_nonblocking(true)?;
            it.0.set_cloexec(true)?;
            Ok(it)
        }),
        accepted => accepted,
    };
    match accepted {
        Ok((socket, remote)) => {
            let remote = remote.as_socket().ok_or_else(|| {
                io::Error::new(
                    io::ErrorKind::InvalidData,
                    "accepted a connection of a non-IP address family",
                )
            })?;
            Ok(Some((socket.into(), remote)))
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(if_refused("accept")(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_free_port_is_taken_and_exhaustion_is_an_error() {
        let localhost: IpAddr = "127.0.0.1".parse().unwrap();
        let taken = listener(localhost, 0..=0).unwrap();
        let port = taken.local_addr().unwrap().port();
        let error = listener(localhost, port..=port).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert!(error.to_string().contains(&format!("{port}-{port}")), "{error}");
        let next = listener(localhost, port..=port.saturating_add(50)).unwrap();
        assert!(next.local_addr().unwrap().port() > port);
        assert!(accept(&taken).unwrap().is_none());
    }

    fn rail(address: &str) -> Rail {
        let any_socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let nic_index = rustix::net::netdevice::name_to_index(&any_socket, "lo").unwrap();
        let (nic, address) = ("lo".to_owned(), address.parse().unwrap());
        let role = crate::types::RailRole::Ordinary;
        Rail { nic, nic_index, address, speed_mbps: None, mtu: None, role }
    }

    #[test]
    fn rail_listener_shares_the_wildcard_port() {
        let everywhere = listener("0.0.0.0".parse().unwrap(), 0..=0).unwrap();
        let port = everywhere.local_addr().unwrap().port();
        let rails = ["127.0.0.1", "127.0.0.2"].map(rail);
        let of_rails = listeners_of_rails(&everywhere, &rails);
        assert_eq!(of_rails.len(), 2);
        for (rail, of_rail) in rails.iter().zip(&of_rails) {
            let near = std::net::TcpStream::connect((rail.address, port)).unwrap();
            let (socket, from) = accept(of_rail).unwrap().unwrap();
            assert_eq!(from, near.local_addr().unwrap());
            assert_eq!(nic::bound_to(&socket), Some(rail.nic_index));
            assert_eq!(nic::keep_to_nic(&socket, rail.nic_index), (1, false));
        }
        let near = std::net::TcpStream::connect(("127.0.0.3", port)).unwrap();
        let (socket, from) = accept(&everywhere).unwrap().unwrap();
        assert_eq!(from, near.local_addr().unwrap());
        assert_eq!(nic::bound_to(&socket), None);
    }

    #[test]
    fn rail_ports_cannot_be_shared_by_others() {
        let everywhere = listener("0.0.0.0".parse().unwrap(), 0..=0).unwrap();
        let port = everywhere.local_addr().unwrap().port();
        let _of_rails = listeners_of_rails(&everywhere, &["127.0.0.1", "127.0.0.2"].map(rail));
        for ip in ["0.0.0.0", "127.0.0.1", "127.0.0.2", "127.0.0.3"] {
            let error = listener(ip.parse().unwrap(), port..=port).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "{ip}");
        }
        // As processes do that share ports on purpose.
        let other = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        other.set_reuse_port(true).unwrap();
        let address: SocketAddr = (std::net::Ipv4Addr::UNSPECIFIED, port).into();
        assert_eq!(other.bind(&address.into()).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn rail_without_a_nic_uses_the_wildcard_listener() {
        let everywhere = listener("0.0.0.0".parse().unwrap(), 0..=0).unwrap();
        for nic_index in [0, u32::MAX] {
            let rail = Rail { nic_index, ..rail("127.0.0.1") };
            assert!(listeners_of_rails(&everywhere, &[rail]).is_empty());
        }
        // The port is not shared.
        assert!(!SockRef::from(&everywhere).reuse_port().unwrap());
    }

    #[test]
    fn a_reversed_range_is_refused() {
        let (first, last) = (9000, 8000);
        let error = listener("::1".parse().unwrap(), first..=last).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}
