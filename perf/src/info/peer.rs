//! How messages travel to a process that listens.

use std::fmt;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::time::{Duration, Instant};

use ringrail::{Address, Endpoint, Owned};
use serde::Serialize;

use crate::secret;

/// A process that does not answer is reported after this time.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// After it has connected a session finds out whether datagrams and shared memory can be used.
const SETTLING_TIME: Duration = Duration::from_millis(500);

/// A process that `--peer` names with its port.
#[derive(Serialize)]
pub(super) struct PeerInfo {
    address: SocketAddr,
    /// How messages to it travel, by length; or why it cannot be reached.
    text: String,
    is_connected: bool,
}

/// Returns the addresses of a peer that `--peer` names, and the port that it has.
pub(super) fn addresses_of(name: &str) -> Result<Vec<(IpAddr, Option<u16>)>, String> {
    // An address of IPv6 may look like one with a port.
    if let Ok(address) = name.parse() {
        return Ok(vec![(address, None)]);
    }
    if let Ok(sockets) = name.to_socket_addrs() {
        return Ok(sockets.map(|socket| (socket.ip(), Some(socket.port()))).collect());
    }
    let sockets = (name, 0).to_socket_addrs().map_err(|error| {
        format!("--peer {name}: {error}; give an IP address, or a name that resolves")
    })?;
    Ok(sockets.map(|socket| (socket.ip(), None)).collect())
}

impl PeerInfo {
    /// Connects to the processes among `names`: those with a port.
    pub(super) fn gather(
        endpoint: &Endpoint<Owned>,
        names: &[String],
    ) -> Result<Vec<Self>, String> {
        let mut found = Vec::new();
        for name in names {
            for (address, port) in addresses_of(name)? {
                found.extend(port.map(|port| Self::of(endpoint, (address, port).into())));
            }
        }
        Ok(found)
    }

    fn of(endpoint: &Endpoint<Owned>, address: SocketAddr) -> Self {
        let (text, is_connected) = match protocol(endpoint, address) {
            Ok(text) => (text, true),
            Err(error) if secret::of_this_run().is_some() => {
                (format!("{error} (this process has no secret: set {})", secret::VARIABLE), false)
            }
            Err(error) => (error.to_string(), false),
        };
        Self { address, text, is_connected }
    }
}

fn protocol(endpoint: &Endpoint<Owned>, at: SocketAddr) -> Result<String, ringrail::Error> {
    let peer = endpoint.insert_peer(&Address::from_listener(at)?)?;
    endpoint.connect(peer, Some(CONNECT_TIMEOUT))?;
    let settled = Instant::now() + SETTLING_TIME;
    while Instant::now() < settled {
        endpoint.progress()?;
    }
    let protocol = endpoint.send_protocol(peer);
    Ok(protocol.map_or_else(|| "its session has ended".to_owned(), |it| it.to_string()))
}

impl fmt::Display for PeerInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_connected {
            true => write!(f, "  {}: messages go {}", self.address, self.text),
            false => write!(f, "  {} cannot be reached: {}", self.address, self.text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv6_address_is_no_address_with_a_port() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let of = |name| addresses_of(name).unwrap();
        assert_eq!(of("fd00::10:2"), [(ip("fd00::10:2"), None)]);
        assert_eq!(of("[fd00::10]:2"), [(ip("fd00::10"), Some(2))]);
        assert_eq!(of("10.0.0.1"), [(ip("10.0.0.1"), None)]);
        assert_eq!(of("10.0.0.1:7"), [(ip("10.0.0.1"), Some(7))]);
    }
}
