//! Socket addresses in the layout of system calls.

use std::mem;
use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6};

/// Address family of a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Family {
    /// IPv4 only.
    V4,
    /// IPv6, with IPv4 addresses mapped (`::ffff:a.b.c.d`).
    V6,
}

impl Family {
    /// The family of the socket that is bound to `local`.
    pub(super) fn of(local: SocketAddr) -> Self {
        if local.is_ipv4() { Self::V4 } else { Self::V6 }
    }
}

/// A socket address of either family; both begin with the family.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) union RawAddress {
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

impl RawAddress {
    /// Bytes of the longest address.
    pub(super) const BYTES: libc::socklen_t = size_of::<Self>() as libc::socklen_t;

    /// An empty address.
    pub(super) fn new() -> Self {
        // SAFETY: both variants are integers, for which zero bytes are a value.
        unsafe { mem::zeroed() }
    }

    /// Stores `address` for a socket of `family`; returns its length in bytes, `None` if such a
    /// socket cannot reach it.
    #[inline(always)]
    pub(super) fn set(&mut self, address: SocketAddr, family: Family) -> Option<libc::socklen_t> {
        match (family, address) {
            (Family::V4, SocketAddr::V4(v4)) => Some(self.set_v4(v4)),
            (Family::V4, SocketAddr::V6(v6)) => {
                let ip = v6.ip().to_ipv4_mapped()?;
                Some(self.set_v4(SocketAddrV4::new(ip, v6.port())))
            }
            (Family::V6, SocketAddr::V6(v6)) => Some(self.set_v6(v6)),
            (Family::V6, SocketAddr::V4(v4)) => {
                let mapped = SocketAddrV6::new(v4.ip().to_ipv6_mapped(), v4.port(), 0, 0);
                Some(self.set_v6(mapped))
            }
        }
    }

    /// Whether the first `bytes` of both are equal: lengths that [`Self::set`] returned.
    pub(super) fn equals(&self, other: &Self, bytes: libc::socklen_t) -> bool {
        debug_assert!(bytes <= Self::BYTES);
        // SAFETY: zero bytes or a whole address of either family, without padding, were written
        // there.
        let [ours, theirs] = [self, other].map(|address| unsafe {
            let start = (&raw const *address).cast::<u8>();
            std::slice::from_raw_parts(start, bytes.min(Self::BYTES) as usize)
        });
        ours == theirs
    }

    fn set_v4(&mut self, address: SocketAddrV4) -> libc::socklen_t {
        self.v4 = libc::sockaddr_in {
            sin_family: libc::AF_INET as libc::sa_family_t,
            sin_port: address.port().to_be(),
            sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.ip().octets()) },
            sin_zero: [0; 8],
        };
        size_of::<libc::sockaddr_in>() as libc::socklen_t
    }

    fn set_v6(&mut self, address: SocketAddrV6) -> libc::socklen_t {
        self.v6 = libc::sockaddr_in6 {
            sin6_family: libc::AF_INET6 as libc::sa_family_t,
            sin6_port: address.port().to_be(),
            sin6_flowinfo: address.flowinfo(),
            sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
            sin6_scope_id: address.scope_id(),
        };
        size_of::<libc::sockaddr_in6>() as libc::socklen_t
    }

    /// The address that the kernel wrote, of `length` bytes, with mapped addresses as IPv4. `None`
    /// if it is no IP address.
    #[inline]
    pub(super) fn get(&self, length: libc::socklen_t) -> Option<SocketAddr> {
        if (length as usize) < size_of::<libc::sockaddr_in>() {
            return None;
        }
        // SAFETY: the family is at the same place in both variants, and all bytes are initialised.
        let family = libc::c_int::from(unsafe { self.v4.sin_family });
        if family == libc::AF_INET {
            // SAFETY: the variant is integers, all of them initialised.
            let v4 = unsafe { self.v4 };
            let ip = v4.sin_addr.s_addr.to_ne_bytes();
            return Some(SocketAddr::new(ip.into(), u16::from_be(v4.sin_port)));
        }
        if family != libc::AF_INET6 || (length as usize) < size_of::<libc::sockaddr_in6>() {
            return None;
        }
        // SAFETY: the variant is integers, all of them initialised.
        let v6 = unsafe { self.v6 };
        let (ip, port) = (v6.sin6_addr.s6_addr.into(), u16::from_be(v6.sin6_port));
        let address = SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id);
        Some(match address.ip().to_ipv4_mapped() {
            Some(ip) => SocketAddr::new(ip.into(), port),
            None => SocketAddr::V6(address),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_round_trip() {
        for (family, text) in [
            (Family::V4, "192.0.2.7:65535"),
            (Family::V6, "192.0.2.7:1"),
            (Family::V6, "[2001:db8::1]:4791"),
            (Family::V6, "[fe80::1%3]:5"),
        ] {
            let address: SocketAddr = text.parse().unwrap();
            let mut raw = RawAddress::new();
            let length = raw.set(address, family).unwrap();
            assert_eq!(raw.get(length), Some(address), "{family:?} {text}");
            assert_eq!(raw.get(3), None);
        }
    }

    #[test]
    fn ipv4_socket_reaches_mapped_addresses_only() {
        let mut raw = RawAddress::new();
        assert_eq!(raw.set("[2001:db8::1]:1".parse().unwrap(), Family::V4), None);
        let length = raw.set("[::ffff:192.0.2.1]:9".parse().unwrap(), Family::V4).unwrap();
        assert_eq!(raw.get(length), Some("192.0.2.1:9".parse().unwrap()));
    }
}
