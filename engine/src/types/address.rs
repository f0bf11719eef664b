//! Addresses of endpoints.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::SocketAddr;

use zerocopy::{FromBytes, IntoBytes};

use super::error::Error;
use crate::wire::address::{ADDRESS_BYTES, ADDRESS_VERSION, LOCATOR_BYTES, WireAddress};
use crate::wire::locators::Locators;

/// Length of addresses of versions 1 and 2.
const OLDER_BYTES: usize = 56;

/// The address of an endpoint: opaque, [`Address::BYTES`] long, exchanged out of band (see
/// [`crate::bootstrap`]).
///
/// ```
/// # let settings = ringrail::settings::Settings::isolated().set("listen_address", "127.0.0.1");
/// # let domain = ringrail::Domain::with_settings(settings.insecure(true).build()?)?;
/// use ringrail::Address;
///
/// let endpoint = domain.endpoint()?;
/// let bytes: [u8; Address::BYTES] = endpoint.address().to_bytes();
/// assert_eq!(Address::from_bytes(&bytes)?, endpoint.address());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Address(WireAddress);

impl Address {
    /// Length of an address in bytes.
    pub const BYTES: usize = ADDRESS_BYTES;

    pub(crate) fn new(engine: u64, locators: impl Into<Locators>, endpoint: u16) -> Self {
        let mut wire = WireAddress {
            version: ADDRESS_VERSION,
            flags: 0,
            endpoint: endpoint.into(),
            port: 0.into(),
            family: 0,
            locators: 0,
            ips: [0; LOCATOR_BYTES],
            engine: engine.into(),
        };
        locators.into().fill(&mut wire);
        Self(wire)
    }

    /// Returns the address of the first endpoint of the engine that listens on an IP address and
    /// a port, for processes that exchange nothing else (`FI_SOCKADDR_IN`).
    ///
    /// The first connection takes one more round trip: the engine replies with its full address
    /// and a proof of the job's secret. `locator` has to be an address that the engine itself
    /// announces, so this does not work through network address translation. After the session has
    /// failed, the peer is the engine that listens on `locator` then. Inserting it fails with
    /// [`PeerFailure::KnownOtherwise`](crate::PeerFailure::KnownOtherwise) where that engine's
    /// first endpoint was inserted before by its full address; in the other order both inserts
    /// return the same peer.
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] for port 0 and for an unspecified (`0.0.0.0`) or multicast address.
    // RR-CONN-7.
    pub fn from_listener(locator: SocketAddr) -> Result<Self, Error> {
        if locator.port() == 0 || locator.ip().is_unspecified() || locator.ip().is_multicast() {
            return Err(Error::misuse(format!(
                "no endpoint can listen on {locator}: give the IP address of a NIC of the peer, \
                 and the port of its endpoint"
            )));
        }
        Ok(Self::new(0, locator, 0))
    }

    /// Whether this address was made by [`Self::from_listener`].
    pub fn is_listener(&self) -> bool {
        self.engine() == 0
    }

    /// Returns the bytes to hand to peers.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes.copy_from_slice(self.0.as_bytes());
        bytes
    }

    /// Reads bytes that [`Self::to_bytes`] returned.
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] if the length is wrong, the address has another version, or the bytes are
    /// no address.
    // RR-ADDR-1.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Error> {
        let got = bytes.len();
        let version = bytes.first().filter(|_| [ADDRESS_BYTES, OLDER_BYTES].contains(&got));
        if let Some(version) = version.filter(|&&version| version != ADDRESS_VERSION) {
            return Err(Error::misuse(format!(
                "the address is of version {version}, this ringrail knows {ADDRESS_VERSION}: run \
                 the same ringrail on both sides"
            )));
        }
        let wire = WireAddress::read_from_bytes(bytes).map_err(|_| {
            Error::misuse(format!("an address has {ADDRESS_BYTES} bytes, this has {got}"))
        })?;
        if Locators::from_wire(&wire).is_none() || wire.engine.get() == 0 {
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

    pub(crate) fn to_locators(self) -> Locators {
        // Each constructor checks that there is one.
        Locators::from_wire(&self.0).unwrap_or_else(|| unreachable!())
    }

    /// Returns the IP address and TCP port on which the engine of the endpoint listens, and which
    /// peers try first.
    pub fn locator(&self) -> SocketAddr {
        self.to_locators().first()
    }

    /// Returns all addresses that peers try, in this order: one for each rail of the engine, up to
    /// 8 of IPv4 or 2 of IPv6.
    pub fn locators(&self) -> impl Iterator<Item = SocketAddr> + use<> {
        self.to_locators().iter()
    }
}

impl Hash for Address {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.as_bytes().hash(state);
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_listener() {
            return write!(f, "{}", self.locator());
        }
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

    fn of(engine: u64, locator: &str, endpoint: u16) -> Address {
        Address::new(engine, locator.parse::<SocketAddr>().unwrap(), endpoint)
    }

    /// RR-ADDR-1
    #[test]
    fn an_address_round_trips() {
        for locator in ["10.1.2.3:4567", "[fd00::1]:80", "[fe80::1%3]:80", "[fe80::1]:80"] {
            let address = of(77, locator, 5);
            let locator = locator.parse().unwrap();
            let again = Address::from_bytes(&address.to_bytes()).unwrap();
            assert_eq!(again, address);
            assert_eq!((again.locator(), again.engine(), again.endpoint()), (locator, 77, 5));
            assert_eq!(again.locators().collect::<Vec<_>>(), [locator]);
        }
        let mut locators = Locators::from("10.0.0.1:9".parse::<SocketAddr>().unwrap());
        (1..9).for_each(|rail| locators.add([10, 0, rail, 1].into()));
        let again = Address::from_bytes(&Address::new(7, locators, 0).to_bytes()).unwrap();
        assert_eq!(again.to_locators(), locators);
        assert_eq!(again.locators().last(), Some("10.0.7.1:9".parse().unwrap()));
    }

    #[test]
    fn a_listener_is_known_by_its_place_alone() {
        let locator = "10.0.0.2:7000".parse().unwrap();
        let address = Address::from_listener(locator).unwrap();
        assert!(address.is_listener() && !of(1, "10.0.0.2:7000", 0).is_listener());
        assert_eq!((address.to_string(), address.locator()), ("10.0.0.2:7000".into(), locator));
        assert!(Address::from_bytes(&address.to_bytes()).is_err(), "it is not handed to peers");
        for locator in ["10.0.0.2:0", "0.0.0.0:7000", "[::]:7000", "224.0.0.1:7000"] {
            let error = Address::from_listener(locator.parse().unwrap()).unwrap_err();
            assert!(error.to_string().contains(locator), "{error}");
        }
    }

    /// RR-ADDR-1
    #[test]
    fn other_versions_and_garbage_are_named() {
        let mut bytes = of(1, "127.0.0.1:1", 0).to_bytes();
        bytes[0] = 9;
        assert!(Address::from_bytes(&bytes).unwrap_err().to_string().contains("version 9"));
        assert!(Address::from_bytes(&bytes[1..]).unwrap_err().to_string().contains("47"));
        let mut older = [0; OLDER_BYTES];
        older[0] = 2;
        let error = Address::from_bytes(&older).unwrap_err().to_string();
        assert!(error.contains("version 2") && error.contains("same ringrail"), "{error}");
        let good = of(1, "127.0.0.1:1", 0).to_bytes();
        // The port, the family, the engine.
        // And how many locators there are: none, and more than there is room for.
        for (field, value) in [(4..6, 0), (6..7, 5), (6..7, 0), (7..8, 0), (7..8, 9), (40..48, 0)] {
            let mut bytes = good;
            bytes[field.clone()].fill(value);
            let error = Address::from_bytes(&bytes).unwrap_err().to_string();
            assert!(error.contains("not an address"), "{field:?}: {error}");
        }
    }
}
