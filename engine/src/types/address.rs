//! Addresses of endpoints.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use zerocopy::{FromBytes, IntoBytes};

use super::error::Error;
use crate::wire::address::{ADDRESS_BYTES, ADDRESS_VERSION, FAMILY_IPV4, FAMILY_IPV6, WireAddress};

/// Where an endpoint can be reached: opaque, [`Address::BYTES`] long, to be exchanged out of
/// band (see [`crate::bootstrap`]).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Address(WireAddress);

impl Address {
    /// Length of an address in bytes.
    pub const BYTES: usize = ADDRESS_BYTES;

    pub(crate) fn new(engine: u64, locator: SocketAddr, endpoint: u16) -> Self {
        let mut ip = [0; 16];
        let (family, scope) = match locator {
            SocketAddr::V4(v4) => {
                ip[..4].copy_from_slice(&v4.ip().octets());
                (FAMILY_IPV4, 0)
            }
            SocketAddr::V6(v6) => {
                ip = v6.ip().octets();
                (FAMILY_IPV6, v6.scope_id())
            }
        };
        Self(WireAddress {
            version: ADDRESS_VERSION,
            flags: 0,
            endpoint: endpoint.into(),
            port: locator.port().into(),
            family,
            reserved: 0,
            ip,
            scope: scope.into(),
            reserved_2: 0.into(),
            engine: engine.into(),
        })
    }

    /// The bytes to hand to peers.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes.copy_from_slice(self.0.as_bytes());
        bytes
    }

    /// Reads what [`Self::to_bytes`] gave.
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] when the length is wrong, the address is of another version, or it is
    /// no address at all.
    ///
    /// RR-ADDR-1.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Error> {
        let wire = WireAddress::read_from_bytes(bytes).map_err(|_| {
            let got = bytes.len();
            Error::misuse(format!("an address has {ADDRESS_BYTES} bytes, this has {got}"))
        })?;
        if wire.version != ADDRESS_VERSION {
            return Err(Error::misuse(format!(
                "the address is of version {}, this ringrail knows {ADDRESS_VERSION}: run the \
                 same ringrail on both sides",
                wire.version
            )));
        }
        let is_sound = matches!(wire.family, FAMILY_IPV4 | FAMILY_IPV6)
            && wire.port.get() != 0
            && wire.engine.get() != 0;
        if !is_sound {
            return Err(Error::misuse("these bytes are not an address that an endpoint gave out"));
        }
        Ok(Self(wire))
    }

    pub(crate) fn from_wire(wire: &WireAddress) -> Result<Self, Error> {
        Self::from_bytes(wire.as_bytes())
    }

    pub(crate) fn to_wire(self) -> WireAddress {
        self.0
    }

    pub(crate) fn engine(&self) -> u64 {
        self.0.engine.get()
    }

    pub(crate) fn endpoint(&self) -> u16 {
        self.0.endpoint.get()
    }

    /// IP address and TCP port that the engine of the endpoint listens on.
    pub fn locator(&self) -> SocketAddr {
        let port = self.0.port.get();
        if self.0.family == FAMILY_IPV4 {
            let [a, b, c, d, ..] = self.0.ip;
            SocketAddr::new(IpAddr::V4(Ipv4Addr::new(a, b, c, d)), port)
        } else {
            let ip = Ipv6Addr::from(self.0.ip);
            SocketAddr::V6(SocketAddrV6::new(ip, port, 0, self.0.scope.get()))
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{:016x}.{}", self.locator(), self.engine(), self.endpoint())
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RR-ADDR-1
    #[test]
    fn an_address_survives_its_bytes() {
        for locator in ["10.1.2.3:4567", "[fe80::1%3]:80"] {
            let locator = locator.parse().unwrap();
            let address = Address::new(77, locator, 5);
            let again = Address::from_bytes(&address.to_bytes()).unwrap();
            assert_eq!(again, address);
            assert_eq!((again.locator(), again.engine(), again.endpoint()), (locator, 77, 5));
        }
    }

    /// RR-ADDR-1
    #[test]
    fn other_versions_and_garbage_are_named() {
        let mut bytes = Address::new(1, "127.0.0.1:1".parse().unwrap(), 0).to_bytes();
        bytes[0] = 9;
        assert!(Address::from_bytes(&bytes).unwrap_err().to_string().contains("version 9"));
        assert!(Address::from_bytes(&bytes[1..]).unwrap_err().to_string().contains("39"));
        let good = Address::new(1, "127.0.0.1:1".parse().unwrap(), 0).to_bytes();
        // The port, the family, the engine.
        for (field, value) in [(4..6, 0), (6..7, 5), (6..7, 0), (32..40, 0)] {
            let mut bytes = good;
            bytes[field.clone()].fill(value);
            let error = Address::from_bytes(&bytes).unwrap_err().to_string();
            assert!(error.contains("not an address"), "{field:?}: {error}");
        }
    }
}
