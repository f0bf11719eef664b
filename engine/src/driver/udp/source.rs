//! Source of datagrams: one prepared control message per rail.

use std::mem::offset_of;
use std::net::IpAddr;

use super::address::Family;
use crate::driver::traits::Rail;

#[derive(Clone, Copy)]
#[repr(C)]
struct V4 {
    header: libc::cmsghdr,
    info: libc::in_pktinfo,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct V6 {
    header: libc::cmsghdr,
    info: libc::in6_pktinfo,
}

/// `IP_PKTINFO` or `IPV6_PKTINFO`: source address and NIC of a datagram. With NIC index 0
/// (unknown), routing chooses it.
#[derive(Clone, Copy)]
pub(super) enum SourceAddress {
    /// For an IPv4 socket.
    V4(V4Source),
    /// For an IPv6 socket; an IPv4 address is mapped.
    V6(V6Source),
}

/// See [`SourceAddress::V4`].
#[derive(Clone, Copy)]
pub(super) struct V4Source(V4);

/// See [`SourceAddress::V6`].
#[derive(Clone, Copy)]
pub(super) struct V6Source(V6);

/// A header for a value of type `T` at offset `content_at`.
pub(super) fn header<T>(content_at: usize, level: libc::c_int, kind: libc::c_int) -> libc::cmsghdr {
    // SAFETY: integers, for which zero bytes are a value.
    let mut header: libc::cmsghdr = unsafe { std::mem::zeroed() };
    header.cmsg_len = (content_at + size_of::<T>()) as _;
    (header.cmsg_level, header.cmsg_type) = (level, kind);
    header
}

impl SourceAddress {
    /// The source of `rail` for a socket of `family`; `None`: such a socket cannot send from there.
    pub(super) fn of(rail: &Rail, family: Family) -> Option<Self> {
        match (family, rail.address.to_canonical()) {
            (Family::V4, IpAddr::V4(v4)) => Some(Self::V4(V4Source(V4 {
                header: header::<libc::in_pktinfo>(
                    offset_of!(V4, info),
                    libc::IPPROTO_IP,
                    libc::IP_PKTINFO,
                ),
                info: libc::in_pktinfo {
                    ipi_ifindex: libc::c_int::try_from(rail.nic_index).unwrap_or(0),
                    ipi_spec_dst: libc::in_addr { s_addr: u32::from_ne_bytes(v4.octets()) },
                    ipi_addr: libc::in_addr { s_addr: 0 },
                },
            }))),
            (Family::V4, IpAddr::V6(_)) => None,
            (Family::V6, address) => {
                let v6 = match address {
                    IpAddr::V4(v4) => v4.to_ipv6_mapped(),
                    IpAddr::V6(v6) => v6,
                };
                Some(Self::V6(V6Source(V6 {
                    header: header::<libc::in6_pktinfo>(
                        offset_of!(V6, info),
                        libc::IPPROTO_IPV6,
                        libc::IPV6_PKTINFO,
                    ),
                    info: libc::in6_pktinfo {
                        ipi6_addr: libc::in6_addr { s6_addr: v6.octets() },
                        ipi6_ifindex: rail.nic_index,
                    },
                })))
            }
        }
    }

    /// The control message and its padded length, for the kernel to read.
    pub(super) fn message(&self) -> (*const u8, usize) {
        match self {
            Self::V4(V4Source(message)) => ((&raw const *message).cast(), size_of::<V4>()),
            Self::V6(V6Source(message)) => ((&raw const *message).cast(), size_of::<V6>()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::RailRole;

    fn rail(address: &str) -> Rail {
        let (nic, address) = ("lo".to_owned(), address.parse().unwrap());
        let role = RailRole::Ordinary;
        Rail { nic, nic_index: 1, address, speed_mbps: None, mtu: None, role }
    }

    #[test]
    fn pktinfo_matches_the_libc_layout() {
        for (address, family, info_bytes) in [
            ("127.0.0.2", Family::V4, size_of::<libc::in_pktinfo>()),
            ("127.0.0.2", Family::V6, size_of::<libc::in6_pktinfo>()),
            ("2001:db8::1", Family::V6, size_of::<libc::in6_pktinfo>()),
        ] {
            let source = SourceAddress::of(&rail(address), family).unwrap();
            let (message, bytes) = source.message();
            // SAFETY: only computations; the message begins with its header.
            let (space, length, header) = unsafe {
                (
                    libc::CMSG_SPACE(info_bytes as u32),
                    libc::CMSG_LEN(info_bytes as u32),
                    message.cast::<libc::cmsghdr>().read(),
                )
            };
            assert_eq!((bytes, header.cmsg_len as u32), (space as usize, length), "{address}");
        }
        assert!(SourceAddress::of(&rail("2001:db8::1"), Family::V4).is_none());
    }
}
