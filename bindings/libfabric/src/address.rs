//! Addresses as applications hand them around.
//!
//! # Two formats
//!
//! *Opaque*, the default: 48 bytes, the same on all ranks. Either an [`Address`] as an endpoint of
//! the engine gives it out, or a *place*: IP address and port, where the first endpoint of an
//! engine listens, as `fi_getinfo(node, service)` knows it. Every endpoint of a domain has an
//! address of its own, and a peer that was started again is not taken for the old one. This is what
//! MPI and launchers exchange, and what `fi_getname` gives.
//!
//! `FI_SOCKADDR_IN` (and `IN6`), for those that ask for it in their hints: a place alone. Only the
//! first endpoint of a domain is known by it, so such a domain has one (`ep_cnt`).

use std::ffi::c_void;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use ringrail::Address;

use crate::abi::consts::{
    FI_FORMAT_UNSPEC, FI_PROV_SPECIFIC, FI_SOCKADDR, FI_SOCKADDR_IN, FI_SOCKADDR_IN6,
    FI_SOCKADDR_IP,
};
use crate::errno::Errno;

/// The number of the opaque format: `RR`, of this provider.
pub(crate) const FORMAT_OPAQUE: u32 = FI_PROV_SPECIFIC | 0x5252;

/// The first bytes of an opaque place, where an address has its version.
const PLACE: u8 = 0xff;

/// Length of the longest address of any format.
const BYTES_MAX: usize = Address::BYTES;

/// How addresses are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Format {
    /// The format `FORMAT_OPAQUE`.
    Opaque,
    /// `struct sockaddr_in`.
    Ipv4,
    /// `struct sockaddr_in6`.
    Ipv6,
}

impl Format {
    /// Returns the format of a `fi_info::addr_format`; of a `FI_SOCKADDR`, `ip` decides.
    pub(crate) fn of(addr_format: u32, ip: Option<IpAddr>) -> Result<Self, Errno> {
        match addr_format {
            FI_FORMAT_UNSPEC | FORMAT_OPAQUE => Ok(Self::Opaque),
            FI_SOCKADDR_IN => Ok(Self::Ipv4),
            FI_SOCKADDR_IN6 => Ok(Self::Ipv6),
            FI_SOCKADDR | FI_SOCKADDR_IP => match ip {
                Some(IpAddr::V6(_)) => Ok(Self::Ipv6),
                _ => Ok(Self::Ipv4),
            },
            _ => Err(Errno::NODATA),
        }
    }

    /// Returns the `addr_format` of an info that offers it.
    pub(crate) const fn number(self) -> u32 {
        match self {
            Self::Opaque => FORMAT_OPAQUE,
            Self::Ipv4 => FI_SOCKADDR_IN,
            Self::Ipv6 => FI_SOCKADDR_IN6,
        }
    }

    /// Length of each address, in bytes.
    pub(crate) const fn len(self) -> usize {
        match self {
            Self::Opaque => Address::BYTES,
            Self::Ipv4 => size_of::<libc::sockaddr_in>(),
            Self::Ipv6 => size_of::<libc::sockaddr_in6>(),
        }
    }

    /// An endpoint's own address. Of a place: where the first endpoint of its engine listens.
    pub(crate) fn encode(self, address: &Address) -> Encoded {
        match self {
            Self::Opaque => Encoded { bytes: address.to_bytes(), length: self.len() },
            Self::Ipv4 | Self::Ipv6 => self.encode_place(address.locator()),
        }
    }

    /// A place. Port 0: any.
    pub(crate) fn encode_place(self, place: SocketAddr) -> Encoded {
        let mut bytes = [0; BYTES_MAX];
        let (family, at) = match self {
            Self::Opaque => {
                bytes[0] = PLACE;
                (u16::from(place.is_ipv6()), 2)
            }
            Self::Ipv4 => (libc::AF_INET as u16, 0),
            Self::Ipv6 => (libc::AF_INET6 as u16, 0),
        };
        bytes[at..at + 2].copy_from_slice(&family.to_ne_bytes());
        bytes[at + 2..at + 4].copy_from_slice(&place.port().to_be_bytes());
        match (self, place.ip()) {
            (Self::Opaque | Self::Ipv4, IpAddr::V4(ip)) => {
                bytes[at + 4..at + 8].copy_from_slice(&ip.octets());
            }
            (_, ip) => {
                let ip = match ip {
                    IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                    IpAddr::V6(ip) => ip,
                };
                bytes[at + 8..at + 24].copy_from_slice(&ip.octets());
                let scope = if let SocketAddr::V6(v6) = place { v6.scope_id() } else { 0 };
                bytes[at + 24..at + 28].copy_from_slice(&scope.to_ne_bytes());
            }
        }
        Encoded { bytes, length: self.len() }
    }

    /// Parses `bytes`.
    pub(crate) fn decode(self, bytes: &[u8]) -> Result<Location, Errno> {
        let bytes = bytes.get(..self.len()).ok_or(Errno::INVAL)?;
        let is_place = match self {
            Self::Opaque => bytes[0] == PLACE,
            Self::Ipv4 | Self::Ipv6 => true,
        };
        if !is_place {
            return Address::from_bytes(bytes).map(Location::Endpoint).map_err(|error| {
                tracing::warn!("an address cannot be read: {error}");
                Errno::INVAL
            });
        }
        let (at, is_ipv6) = match self {
            Self::Opaque => (2, u16::from_ne_bytes([bytes[2], bytes[3]]) != 0),
            Self::Ipv4 | Self::Ipv6 => {
                let family = u16::from_ne_bytes([bytes[0], bytes[1]]);
                let right = if self == Self::Ipv4 { libc::AF_INET } else { libc::AF_INET6 };
                if i32::from(family) != right {
                    return Err(Errno::INVAL);
                }
                (0, self == Self::Ipv6)
            }
        };
        let port = u16::from_be_bytes([bytes[at + 2], bytes[at + 3]]);
        if !is_ipv6 {
            let octets: [u8; 4] = array(&bytes[at + 4..])?;
            let place = SocketAddrV4::new(Ipv4Addr::from(octets), port);
            return Ok(Location::Place(place.into()));
        }
        let octets: [u8; 16] = array(&bytes[at + 8..])?;
        let scope = u32::from_ne_bytes(array(&bytes[at + 24..])?);
        let place = SocketAddrV6::new(Ipv6Addr::from(octets), port, 0, scope);
        Ok(Location::Place(place.into()))
    }
}

fn array<const N: usize>(bytes: &[u8]) -> Result<[u8; N], Errno> {
    bytes.first_chunk().copied().ok_or(Errno::INVAL)
}

/// The meaning of an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Location {
    /// This endpoint.
    Endpoint(Address),
    /// The endpoint that listens there. Of an own address: where to listen, port 0 for any.
    Place(SocketAddr),
}

impl Location {
    /// The peer that it is an address of.
    pub(crate) fn peer_address(self) -> Result<Address, Errno> {
        match self {
            Self::Endpoint(address) => Ok(address),
            Self::Place(place) => Address::from_listener(place).map_err(|error| {
                tracing::warn!("no peer can be at {place}: {error}");
                Errno::INVAL
            }),
        }
    }

    /// IP address and port.
    pub(crate) fn place(self) -> SocketAddr {
        match self {
            Self::Endpoint(address) => address.locator(),
            Self::Place(place) => place,
        }
    }
}

/// As people read it.
impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Endpoint(address) => write!(f, "fi_addr_ringrail://{address}"),
            Self::Place(place @ SocketAddr::V4(_)) => write!(f, "fi_sockaddr_in://{place}"),
            Self::Place(place @ SocketAddr::V6(_)) => write!(f, "fi_sockaddr_in6://{place}"),
        }
    }
}

/// The bytes of an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Encoded {
    bytes: [u8; BYTES_MAX],
    length: usize,
}

impl std::ops::Deref for Encoded {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// Gives `bytes` to a caller with a buffer, by the rule of `fi_getname` and `fi_av_lookup`: as many
/// as fit, the whole length in `length`, and `FI_ETOOSMALL` if that is more.
///
/// # Safety
///
/// `into` is null or has `*length` writable bytes, `length` is null or valid.
pub(crate) unsafe fn copy_out(
    bytes: &[u8],
    into: *mut c_void,
    length: *mut usize,
) -> Result<(), Errno> {
    if length.is_null() {
        return Err(Errno::INVAL);
    }
    // SAFETY: the caller guarantees it.
    let room = if into.is_null() { 0 } else { unsafe { *length } };
    // SAFETY: the caller guarantees it; `bytes` is ours and elsewhere.
    unsafe {
        *length = bytes.len();
        if room > 0 {
            let fitting = room.min(bytes.len());
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), into.cast(), fitting);
        }
    }
    if room < bytes.len() { Err(Errno::TOOSMALL) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_survive_their_bytes_in_each_format() {
        let v4: SocketAddr = "10.1.2.3:4567".parse().unwrap();
        let v6: SocketAddr = "[fe80::1%3]:80".parse().unwrap();
        for (format, place) in
            [(Format::Opaque, v4), (Format::Opaque, v6), (Format::Ipv4, v4), (Format::Ipv6, v6)]
        {
            let encoded = format.encode_place(place);
            assert_eq!(encoded.len(), format.len());
            assert_eq!(format.decode(&encoded), Ok(Location::Place(place)), "{format:?}");
        }
        assert_eq!(Format::Ipv4.decode(&Format::Ipv6.encode_place(v6)), Err(Errno::INVAL));
        assert_eq!(Format::Opaque.decode(&[PLACE; 8]), Err(Errno::INVAL));
        assert_eq!(Format::Opaque.decode(&[7; 48]), Err(Errno::INVAL));
    }

    #[test]
    fn a_sockaddr_is_laid_out_as_the_system_has_it() {
        let encoded = Format::Ipv4.encode_place("1.2.3.4:258".parse().unwrap());
        // SAFETY: any bytes are one.
        let sockaddr: libc::sockaddr_in =
            unsafe { std::ptr::read_unaligned(encoded.as_ptr().cast()) };
        assert_eq!(i32::from(sockaddr.sin_family), libc::AF_INET);
        assert_eq!(sockaddr.sin_port.to_ne_bytes(), [1, 2]);
        assert_eq!(sockaddr.sin_addr.s_addr.to_ne_bytes(), [1, 2, 3, 4]);
    }

    #[test]
    fn a_short_buffer_reports_the_needed_length() {
        let bytes = [1, 2, 3, 4];
        let mut room = [0_u8; 4];
        let mut length = 2;
        // SAFETY: the buffer has that many bytes.
        let answer = unsafe { copy_out(&bytes, room.as_mut_ptr().cast(), &raw mut length) };
        assert_eq!((answer, length, room), (Err(Errno::TOOSMALL), 4, [1, 2, 0, 0]));
        // SAFETY: as above.
        let answer = unsafe { copy_out(&bytes, room.as_mut_ptr().cast(), &raw mut length) };
        assert_eq!((answer, room), (Ok(()), bytes));
        length = 77;
        // SAFETY: there is no buffer.
        let answer = unsafe { copy_out(&bytes, std::ptr::null_mut(), &raw mut length) };
        assert_eq!((answer, length), (Err(Errno::TOOSMALL), 4));
    }
}
