//! What is checked before a queue is leased, and the lease.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};

use rustix::net::xdp::{SocketAddrXdp, SocketAddrXdpFlags};
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, getsockname, ipproto, socket_with, sockopt,
};

use super::wire::Code;
use crate::error::ClaimError;
use crate::sys::device::Device;
use crate::sys::socket::{bind_to_device, bound_device, netns_cookie};
use crate::{Claim, Nic};

/// Entries of the longest rings that a leased socket has: 384 KiB of the kernel's memory for all.
pub const RING_ENTRIES_MAX: u32 = 8192;

/// Why not, for the client.
pub(crate) type Refusal = (Code, String);

/// A UDP socket of the daemon's network, and the address and port that it has to itself.
#[derive(Debug)]
pub(crate) struct Port {
    socket: OwnedFd,
    /// What it is bound to: `addr`, or its port of all addresses.
    bound: SocketAddr,
    addr: SocketAddr,
}

impl Port {
    /// Checks a descriptor that came from anybody. `cookie` is that of the daemon's network;
    /// `wanted` is the address that a socket is asked for which is bound to none.
    pub(crate) fn check(
        socket: OwnedFd,
        cookie: u64,
        wanted: Option<IpAddr>,
    ) -> Result<Self, Refusal> {
        let no = |text: &str| (Code::Address, text.to_owned());
        let is_udp = || -> rustix::io::Result<bool> {
            let family = sockopt::socket_domain(&socket)?;
            Ok(matches!(family, AddressFamily::INET | AddressFamily::INET6)
                && sockopt::socket_type(&socket)? == SocketType::DGRAM
                && sockopt::socket_protocol(&socket)? == Some(ipproto::UDP))
        };
        if !is_udp().unwrap_or(false) {
            return Err(no("the descriptor that came along is no UDP socket"));
        }
        match netns_cookie(socket.as_fd()) {
            Ok(theirs) if theirs == cookie => {}
            Ok(_) => {
                return Err(no(
                    "the UDP socket is in another network namespace than ringrail-xdpd: \
                     run one there",
                ));
            }
            Err(error) => return Err((Code::Nic, format!("asking for the namespace: {error}"))),
        }
        let bound = address_of(socket.as_fd())?;
        let addr = match wanted {
            Some(wanted) if has_port_of(socket.as_fd(), bound.ip(), wanted)? => {
                SocketAddr::new(wanted, bound.port())
            }
            Some(wanted) => {
                let text =
                    format!("the UDP socket is bound to {bound}: it has no port of {wanted}");
                return Err((Code::Address, text));
            }
            None => bound,
        };
        if addr.port() == 0 || addr.ip().is_unspecified() {
            return Err((
                Code::Address,
                format!(
                    "the UDP socket is bound to {addr}, which is not \
                 one address and port"
                ),
            ));
        }
        Ok(Self { socket, bound, addr })
    }

    /// Its address, an IPv4 one also where the socket calls it an IPv6 one.
    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// That it still is where it was: a socket can be unbound, and then its port is anybody's; and
    /// that it is bound to no other interface than `ifindex`, where others may have the same port.
    pub(crate) fn check_again(&self, ifindex: u32) -> Result<(), Refusal> {
        self.check_device(ifindex)?;
        match address_of(self.socket.as_fd()) {
            Ok(addr) if addr == self.bound => Ok(()),
            Ok(addr) => {
                let (was, now) = (self.bound, addr);
                Err((Code::Address, format!("the UDP socket was bound to {was}, and is to {now}")))
            }
            Err(refusal) => Err(refusal),
        }
    }

    /// The kernel takes sockets that are bound to different interfaces for no rivals.
    fn check_device(&self, ifindex: u32) -> Result<(), Refusal> {
        match bound_device(self.socket.as_fd()) {
            Ok(0) => Ok(()),
            Ok(device) if device == ifindex => Ok(()),
            Ok(device) => {
                let text = format!("the UDP socket is bound to interface {device}, not {ifindex}");
                Err((Code::Address, text))
            }
            Err(error) => Err((Code::Nic, format!("asking for the socket's interface: {error}"))),
        }
    }

    /// Checks that its address is one of the interface's, and returns the name of that: an address
    /// may have another one (the label of an IPv4 address).
    pub(crate) fn check_nic(&self, ifindex: u32) -> Result<String, Refusal> {
        self.check_device(ifindex)?;
        if matches!(self.addr.ip(), IpAddr::V6(ip) if ip.is_unicast_link_local()) {
            let text = "a link-local address can be that of several interfaces: use another one";
            return Err((Code::Address, text.to_owned()));
        }
        let all = if_addrs::get_if_addrs()
            .map_err(|error| (Code::Nic, format!("asking for addresses: {error}")))?;
        let ip = self.addr.ip();
        let found = all.into_iter().find(|nic| nic.index == Some(ifindex) && nic.ip() == ip);
        if found.as_ref().is_some_and(if_addrs::Interface::is_loopback) {
            return Err((Code::Nic, "the loopback has no frames".to_owned()));
        }
        if found.is_none() {
            return Err((Code::Address, format!("{ip} is no address of interface {ifindex}")));
        }
        let device = Device::find(self.socket.as_fd(), ifindex)
            .map_err(|error| (Code::Nic, format!("asking for interface {ifindex}: {error}")))?;
        Ok(device.name())
    }
}

/// Whether a socket that is bound to the address `bound` has its port of `wanted`.
///
/// The wildcard address takes the port of all addresses of its family: the kernel gives none of
/// them to anybody else, unless both sides allow it (`SO_REUSEADDR`), and then anybody may bind the
/// very address as well, and gets what comes there. IPv6's takes those of IPv4 if it is for both.
fn has_port_of(socket: BorrowedFd<'_>, bound: IpAddr, wanted: IpAddr) -> Result<bool, Refusal> {
    if !bound.is_unspecified() {
        return Ok(bound == wanted);
    }
    match (bound, wanted) {
        (IpAddr::V6(_), IpAddr::V4(_)) => match sockopt::ipv6_v6only(socket) {
            Ok(is_v6_only) => Ok(!is_v6_only),
            Err(error) => Err((Code::Address, format!("asking for the socket's family: {error}"))),
        },
        (bound, wanted) => Ok(bound.is_ipv4() == wanted.is_ipv4()),
    }
}

fn address_of(socket: BorrowedFd<'_>) -> Result<SocketAddr, Refusal> {
    let refused = |error| (Code::Address, format!("asking for the UDP socket's address: {error}"));
    let addr = getsockname(socket).map_err(refused)?;
    let addr = SocketAddr::try_from(addr).map_err(refused)?;
    Ok(SocketAddr::new(addr.ip().to_canonical(), addr.port()))
}

/// That rings of `entries` are what the kernel makes, and not too long.
pub(crate) fn check_entries(entries: u32) -> Result<(), Refusal> {
    if entries.is_power_of_two() && entries <= RING_ENTRIES_MAX {
        return Ok(());
    }
    let text = format!("rings have a power of two of entries, up to {RING_ENTRIES_MAX}");
    Err((Code::Protocol, text))
}

/// An AF_XDP socket that can be bound to a queue of `nic`, and to nothing else, with its rings: the
/// kernel charges their memory to no user, and lets them be made only once.
pub(crate) fn new_socket(nic: &Nic, entries: u32) -> Result<OwnedFd, Refusal> {
    let refused = |doing: &str, error: io::Error| {
        let name = nic.name();
        (Code::Nic, format!("{doing} for {name}: {error}"))
    };
    let socket = socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None)
        .map_err(|error| refused("opening an AF_XDP socket", error.into()))?;
    bind_to_device(socket.as_fd(), nic.ifindex())
        .map_err(|error| refused("keeping an AF_XDP socket", error))?;
    let rings = || {
        sockopt::set_xdp_umem_fill_ring_size(&socket, entries)?;
        sockopt::set_xdp_umem_completion_ring_size(&socket, entries)?;
        sockopt::set_xdp_rx_ring_size(&socket, entries)?;
        sockopt::set_xdp_tx_ring_size(&socket, entries)
    };
    rings().map_err(|error| refused("making the rings of an AF_XDP socket", error.into()))?;
    Ok(socket)
}

/// Checks that a lease of a queue gives away nothing but what is claimed. A NIC without copies
/// writes all that comes in on a queue to the memory of the process that has bound it, before any
/// program sees it.
pub(crate) fn check_copies(nic: &Nic) -> Result<(), Refusal> {
    if nic.may_have_zero_copy() {
        let text = format!(
            "{} can receive without copies, so that who borrows a queue would see all that comes \
             in on it; ringrail-xdpd lends it if --trust-clients is given",
            nic.name()
        );
        return Err((Code::Nic, text));
    }
    Ok(())
}

/// Binds the socket, whose memory the client has registered, and has the datagrams for
/// `addr` come to it. Returns whether frames are not copied.
pub(crate) fn bind_and_claim(
    nic: &Nic,
    socket: BorrowedFd<'_>,
    queue: u32,
    addr: SocketAddr,
) -> Result<(Claim, bool), Refusal> {
    let name = nic.name();
    if queue >= nic.queues() {
        let queues = nic.queues();
        return Err((Code::Nic, format!("{name} has no queue {queue}, only {queues}")));
    }
    let try_bind = |copying| {
        let flags = SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP | copying;
        bind(socket, &SocketAddrXdp::new(flags, nic.ifindex(), queue))
    };
    let (zero, copy) = (SocketAddrXdpFlags::XDP_ZEROCOPY, SocketAddrXdpFlags::XDP_COPY);
    let is_zero_copy = nic.has_zero_copy() && try_bind(zero).is_ok();
    if !is_zero_copy {
        try_bind(copy).map_err(|error| {
            let text = format!("queue {queue} of {name}: {error}");
            match io::Error::from(error).raw_os_error() {
                Some(libc::EBUSY) => {
                    (Code::Busy, format!("{text}; another process has it, which alone can use it"))
                }
                Some(libc::EINVAL) => {
                    (Code::Protocol, format!("{text}; memory is registered first"))
                }
                _ => (Code::Nic, text),
            }
        })?;
    }
    match nic.claim(queue, addr, socket.as_raw_fd()) {
        Ok(claim) => Ok((claim, is_zero_copy)),
        // The socket is bound now and cannot be bound again.
        Err(error @ ClaimError::AddressTaken { .. }) => Err((Code::Address, error.to_string())),
        Err(error @ ClaimError::Full { .. }) => Err((Code::Limit, error.to_string())),
        Err(error) => Err((Code::Nic, error.to_string())),
    }
}
