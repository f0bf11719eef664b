//! Listening sockets.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};

use super::super::{ACCEPT_PAUSE, ACCEPTS_AT_ONCE};

/// Connections that the kernel completes before they are accepted; it caps the number itself
/// (`net.core.somaxconn`).
const BACKLOG: i32 = 4096;

/// How long ports that are all taken are tried again: the kernel closes the sockets in the ring
/// of a process that was killed a little after the process is gone.
const TAKEN_PATIENCE: Duration = Duration::from_secs(1);

/// Listens on the first free port of `ports` at `address`; `0..=0` lets the kernel choose.
///
/// The listener is non-blocking, close-on-exec and has `SO_REUSEADDR`, so that a restarted
/// process gets its port back while old connections linger in TIME_WAIT.
///
/// # Errors
///
/// `AddrInUse` when no port of the range is free for a second, `InvalidInput` when the range is
/// empty, and
/// otherwise what the kernel says of the address; the text names address and range.
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

/// Listens on the first port that is not taken.
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
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.bind(&SockAddr::from(address))?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// What became of accepting.
#[derive(Debug)]
pub(crate) struct Accepted {
    /// System calls that this took.
    pub(crate) syscalls: u64,
    /// When to go on: later if descriptors or memory ran out, in the next poll if there may be
    /// more. `None`: nothing waits.
    pub(crate) rest: Option<Duration>,
}

/// Gives connections that wait to `adopt`, at most [`ACCEPTS_AT_ONCE`]; those that it refuses are
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
            // The connection died before it was accepted; the next one may be fine.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted
                ) => {}
            Err(error) => {
                tracing::warn!("cannot accept connections for now: {error}");
                return Accepted { syscalls, rest: Some(ACCEPT_PAUSE) };
            }
        }
    }
    Accepted { syscalls, rest: Some(Duration::ZERO) }
}

/// Accepts one connection; `None` when none waits. One system call.
fn accept(listener: &TcpListener) -> io::Result<Option<(OwnedFd, SocketAddr)>> {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    match SockRef::from(listener).accept4(flags) {
        Ok((socket, remote)) => {
            let remote = remote.as_socket().ok_or_else(|| {
                io::Error::new(io::ErrorKind::InvalidData, "accepted a peer that is not IP")
            })?;
            Ok(Some((socket.into(), remote)))
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_the_next_free_port_and_says_when_none_is() {
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

    #[test]
    fn a_reversed_range_is_refused() {
        let (first, last) = (9000, 8000);
        let error = listener("::1".parse().unwrap(), first..=last).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}
