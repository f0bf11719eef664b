//! How messages travel to a process that listens.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::time::{Duration, Instant};

use ringrail::{Address, Endpoint, Owned};
use serde::Serialize;

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

impl PeerInfo {
    /// Connects to the processes among `names`: those with a port.
    pub(super) fn gather(endpoint: &Endpoint<Owned>, names: &[String]) -> Vec<Self> {
        let sockets = names.iter().filter_map(|name| name.to_socket_addrs().ok()?.next());
        sockets.filter(|address| address.port() != 0).map(|at| Self::of(endpoint, at)).collect()
    }

    fn of(endpoint: &Endpoint<Owned>, address: SocketAddr) -> Self {
        let (text, is_connected) = match protocol(endpoint, address) {
            Ok(text) => (text, true),
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
