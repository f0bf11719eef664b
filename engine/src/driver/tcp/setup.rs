//! Creation of the sockets of lanes.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, TcpKeepalive, Type};

use super::{congestion, nic};
use crate::refused_call::if_refused;
use crate::settings::TcpCongestion;

/// Longest keep-alive interval of the kernel.
const KEEPALIVE_PAUSE_MAX: Duration = Duration::from_secs(32_767);

/// Options of every lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaneOptions {
    idle: Duration,
    interval: Duration,
    probes: u32,
    congestion: TcpCongestion,
}

impl LaneOptions {
    /// Keep-alive that probes an idle peer after a fifth of `peer_timeout` and every tenth from
    /// then on, so that the engine sees unanswered probes. The kernel's own timeout is later: it
    /// counts whole seconds, is up to an eighth late, and does not report how long it waited.
    pub(crate) fn new(peer_timeout: Duration, congestion: TcpCongestion) -> Self {
        let pause = |part: u64| {
            let whole = Duration::from_secs(peer_timeout.as_secs() / part);
            whole.clamp(Duration::from_secs(1), KEEPALIVE_PAUSE_MAX)
        };
        let (idle, interval) = (pause(5), pause(10));
        let rest = peer_timeout.saturating_sub(idle).as_secs() / interval.as_secs();
        let probes = rest as u32 + 2;
        Self { idle, interval, probes, congestion }
    }
}

/// Source of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Binding {
    /// Source address; with port 0, `connect` chooses one.
    pub(crate) address: SocketAddr,
    /// NIC; 0: routing decides.
    pub(crate) nic_index: u32,
}

/// A connection attempt.
#[derive(Debug)]
pub(crate) struct Opening {
    /// The non-blocking socket.
    pub(crate) socket: OwnedFd,
    /// `Ok(true)`: established; `Ok(false)`: in progress, writable when decided; `Err`: refused
    /// at once.
    pub(crate) outcome: io::Result<bool>,
    /// System calls made.
    pub(crate) syscalls: u64,
}

/// Sets the options of a lane: non-blocking, close-on-exec, `TCP_NODELAY`, keep-alive.
///
/// Eight system calls.
pub(crate) fn prepare(socket: &impl AsFd, options: &LaneOptions) -> io::Result<()> {
    let socket = SockRef::from(socket);
    socket.set_nonblocking(true)?;
    socket.set_cloexec(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(options.idle)
        .with_interval(options.interval)
        .with_retries(options.probes);
    let set = socket.set_tcp_nodelay(true).and_then(|()| socket.set_tcp_keepalive(&keepalive));
    set.map_err(if_refused("setsockopt"))
}

/// Options that require a connected lane; returns the number of system calls.
pub(crate) fn established(socket: &impl AsFd, options: &LaneOptions) -> u64 {
    congestion::apply(socket, options.congestion)
}

/// Creates a socket and starts to connect it.
///
/// # Errors
///
/// Only what is this host's fault: no descriptor left, or `binding` cannot be had. What the
/// network or the peer answers is [`Opening::outcome`]. `segment_bytes` bounds the segments of both
/// directions.
pub(crate) fn open(
    remote: SocketAddr,
    binding: Option<Binding>,
    segment_bytes: Option<u16>,
    options: &LaneOptions,
) -> io::Result<Opening> {
    let socket = Socket::new(Domain::for_address(remote), Type::STREAM, Some(Protocol::TCP))
        .map_err(if_refused("socket"))?;
    prepare(&socket, options)?;
    let mut syscalls = 10;
    if let Some(bytes) = segment_bytes {
        // Before `connect`: the first packet announces it to the peer, whose segments obey, too.
        socket.set_tcp_mss(bytes.into())?;
        syscalls += 1;
    }
    if let Some(binding) = binding {
        syscalls += bind(&socket, remote, binding)?;
    }
    let outcome = match socket.connect(&SockAddr::from(remote)) {
        Ok(()) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => Ok(false),
        Err(error) => Err(if_refused("connect")(error)),
    };
    Ok(Opening { socket: socket.into(), outcome, syscalls })
}

/// Binds a socket before it connects to `remote`; returns the number of system calls.
fn bind(socket: &Socket, remote: SocketAddr, binding: Binding) -> io::Result<u64> {
    let Binding { address, nic_index } = binding;
    if address.is_ipv4() != remote.is_ipv4() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!(
                "{remote} cannot be reached from {}, an address of the other family: choose a \
                 NIC with an address of the peer's family",
                address.ip()
            ),
        ));
    }
    // Before the address, which may be unique only within the NIC's VRF.
    let mut syscalls = 1 + nic::bind(socket, nic_index);
    if address.port() == 0 {
        bind_address_without_port(socket)?;
        syscalls += 1;
    }
    socket.bind(&SockAddr::from(address)).map_err(if_refused("bind")).map_err(|error| {
        io::Error::new(
            error.kind(),
            format!(
                "cannot bind the local address {address}: {error}; choose a NIC of this host \
                 whose address is up"
            ),
        )
    })?;
    Ok(syscalls)
}

/// Why a connection attempt failed, `None` if it is established. One system call.
pub(crate) fn connect_error(socket: &impl AsFd) -> Option<io::Error> {
    match SockRef::from(socket).take_error() {
        Ok(None) => None,
        Ok(Some(error)) => Some(error),
        Err(error) => Some(if_refused("getsockopt")(error)),
    }
}

/// Makes the kernel acknowledge received data now. One system call. No effect if the socket is not
/// connected.
pub(crate) fn quickack(socket: &impl AsFd) {
    let _ = SockRef::from(socket).set_tcp_quickack(true);
}

/// Lets `connect` choose the port: `bind` to port 0 would reserve one for all destinations.
fn bind_address_without_port(socket: &Socket) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: the pointer and the length describe `on`, which outlives the call.
    let rc = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_BIND_ADDRESS_NO_PORT,
            (&raw const on).cast(),
            size_of_val(&on) as libc::socklen_t,
        )
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keepalive_probes_before_and_gives_up_after_the_peer_timeout() {
        const DAY_S: u64 = 24 * 3600;
        for (timeout_s, idle_s, interval_s) in
            [(10, 2, 1), (5, 1, 1), (1, 1, 1), (60, 12, 6), (0, 1, 1), (DAY_S, 17_280, 8_640)]
        {
            let options = LaneOptions::new(Duration::from_secs(timeout_s), TcpCongestion::System);
            assert_eq!(options.idle.as_secs(), idle_s);
            assert_eq!(options.interval.as_secs(), interval_s);
            let end_s = idle_s + u64::from(options.probes) * interval_s;
            assert!(end_s > timeout_s && options.probes < 128, "{timeout_s}: {end_s} s");
        }
    }

    #[test]
    fn options_reach_the_kernel() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let opening = open(
            listener.local_addr().unwrap(),
            Some(Binding { address: "127.0.0.2:0".parse().unwrap(), nic_index: 0 }),
            Some(1220),
            &LaneOptions::new(Duration::from_secs(10), TcpCongestion::System),
        )
        .unwrap();
        opening.outcome.unwrap();
        let socket = Socket::from(opening.socket);
        assert!(socket.tcp_nodelay().unwrap());
        assert!(socket.keepalive().unwrap());
        assert!(socket.nonblocking().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap().as_secs(), 2);
        assert_eq!(socket.tcp_keepalive_interval().unwrap().as_secs(), 1);
        assert_eq!(socket.tcp_keepalive_retries().unwrap(), 10);
        let (far, from) = listener.accept().unwrap();
        assert_eq!(from.ip().to_string(), "127.0.0.2");
        for mss in [SockRef::from(&far).tcp_mss().unwrap(), socket.tcp_mss().unwrap()] {
            assert!((1200..=1220).contains(&mss), "segments of {mss} bytes");
        }
    }

    /// A kernel that has seen both sides send delays acknowledgements to piggyback them.
    #[test]
    fn quickack_sends_the_delayed_acknowledgement() {
        use std::io::{Read, Write};
        use std::net::{TcpListener, TcpStream};

        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        let is_prompt = |socket: &TcpStream| SockRef::from(socket).tcp_quickack().unwrap();
        let mut bytes = [0; 100];
        for _ in 0..50 {
            near.write_all(&bytes).unwrap();
            far.read_exact(&mut bytes).unwrap();
            far.write_all(&bytes).unwrap();
            near.read_exact(&mut bytes).unwrap();
        }
        assert!(!is_prompt(&far), "it waits for what is sent next");
        near.write_all(&bytes).unwrap();
        far.read_exact(&mut bytes).unwrap();
        quickack(&far);
        assert!(is_prompt(&far));
        // Nothing to acknowledge.
        drop(near);
        quickack(&far);
        quickack(&listener);
    }

    #[test]
    fn foreign_local_address_is_named_in_the_error() {
        let error = open(
            "127.0.0.1:9".parse().unwrap(),
            Some(Binding { address: "192.0.2.1:0".parse().unwrap(), nic_index: 0 }),
            None,
            &LaneOptions::new(Duration::from_secs(10), TcpCongestion::System),
        )
        .unwrap_err();
        assert!(error.to_string().contains("192.0.2.1"), "{error}");
    }
}
