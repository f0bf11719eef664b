//! Binding of connections to NICs.
//!
//! Two rails on one subnet have one route, so an address alone does not choose the NIC: packets of
//! both would leave by the same one. Since Linux 5.7 a socket can be bound without privileges.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd};

use crate::driver::traits::Rail;

/// The address that the sockets of a rail are bound to.
pub(crate) fn address_of(rail: &Rail, port: u16) -> SocketAddr {
    match rail.address {
        IpAddr::V6(v6) if v6.is_unicast_link_local() => {
            SocketAddrV6::new(v6, port, 0, rail.nic_index).into()
        }
        address => SocketAddr::new(address, port),
    }
}

/// Binds `socket` to a NIC; 0: any. If the kernel refuses, routing decides as before. Returns the
/// number of system calls.
pub(crate) fn bind(socket: &impl AsFd, nic_index: u32) -> u64 {
    if nic_index == 0 {
        return 0;
    }
    if let Err(error) = try_bind(socket, nic_index) {
        tracing::debug!("cannot bind a connection to a NIC; routing decides: {error}");
    }
    1
}

/// The same for a socket that is useless unbound. One system call.
pub(super) fn try_bind(socket: &impl AsFd, nic_index: u32) -> io::Result<()> {
    let none = || io::Error::new(io::ErrorKind::InvalidInput, "the NIC of the rail is not known");
    let index = libc::c_int::try_from(nic_index).ok().filter(|&index| index != 0);
    let index = index.ok_or_else(none)?;
    set_int(socket, libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX, index)
}

/// As [`bind`] for an accepted connection, if it arrived by that NIC: if another NIC answered ARP
/// for the address (as Linux does unless `arp_ignore` is set), packets of the peer would be
/// dropped. A connection accepted by the rail's own listener is bound from the start. Returns the
/// number of system calls, and whether it arrived by another NIC.
pub(crate) fn keep_to_nic(socket: &impl AsFd, nic_index: u32) -> (u64, bool) {
    if nic_index == 0 {
        return (0, false);
    }
    if bound_to(socket) == Some(nic_index) {
        return (1, false);
    }
    match arrived_by(socket) {
        Some(arrived) if arrived != nic_index => (3, true),
        _ => (3 + bind(socket, nic_index), false),
    }
}

/// The NIC that a socket is bound to; `None`: any. One system call.
pub(super) fn bound_to(socket: &impl AsFd) -> Option<u32> {
    let mut index: libc::c_int = 0;
    let mut length = size_of_val(&index) as libc::socklen_t;
    // SAFETY: the pointers describe `index` and its length, which outlive the call.
    let rc = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_BINDTOIFINDEX,
            (&raw mut index).cast(),
            &raw mut length,
        )
    };
    if rc == 0 { u32::try_from(index).ok().filter(|&index| index != 0) } else { None }
}

/// The NIC by which the last handshake packet of an accepted IPv4 connection arrived; `None` if the
/// kernel does not report it. Two system calls.
fn arrived_by(socket: &impl AsFd) -> Option<u32> {
    set_int(socket, libc::IPPROTO_IP, libc::IP_PKTINFO, 1).ok()?;
    // One control message: header, then `in_pktinfo`, which begins with the index.
    const HEADER_BYTES: usize = size_of::<libc::cmsghdr>();
    let mut room = [0u8; 256];
    let mut length = room.len() as libc::socklen_t;
    // SAFETY: the pointers describe `room` and its length, which outlive the call.
    let rc = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_IP,
            IP_PKTOPTIONS,
            room.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if rc != 0 || (length as usize) < HEADER_BYTES + 4 {
        return None;
    }
    let level_at = HEADER_BYTES - 8;
    let word = |at: usize| Some(u32::from_ne_bytes(room.get(at..at + 4)?.try_into().ok()?));
    let is_info = word(level_at)? == libc::IPPROTO_IP as u32
        && word(level_at + 4)? == libc::IP_PKTINFO as u32;
    if is_info { word(HEADER_BYTES).filter(|&index| index != 0) } else { None }
}

/// From `linux/in.h`.
const IP_PKTOPTIONS: libc::c_int = 9;

fn set_int(
    socket: &impl AsFd,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    // SAFETY: the pointer and the length describe `value`, which outlives the call.
    let rc = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
