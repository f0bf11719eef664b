//! The control connection: parameters, addresses, barriers and results, as lines of JSON.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::cli::{Buffers, Fault, FloorName, HintName, LabRail, Lanes, Reuse, TestName};

/// What both sides measure.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) test: TestName,
    pub(crate) floor: Option<FloorName>,
    pub(crate) size: usize,
    /// Bytes of a transfer of `latency-under-load`.
    pub(crate) bulk_size: usize,
    pub(crate) iters: u64,
    /// What the client of a ping-pong computes before each message, in microseconds.
    pub(crate) pause_us: u64,
    pub(crate) window: usize,
    pub(crate) buffers: Buffers,
    pub(crate) reuse: Reuse,
    pub(crate) verify: bool,
    pub(crate) lanes: Lanes,
    pub(crate) nics: Option<String>,
    pub(crate) hint: Option<HintName>,
    pub(crate) settings: Vec<String>,
    /// The client's alone: it is not sent to the server.
    #[serde(skip)]
    pub(crate) pcap: Option<String>,
    pub(crate) rounds: usize,
    /// What `failover` does.
    pub(crate) fault: Fault,
    /// Of a lab.
    pub(crate) lab_rails: Vec<LabRail>,
    /// A lab has interfaces that are no rail.
    pub(crate) has_decoys: bool,
    /// The client's alone: whether it draws.
    #[serde(skip)]
    pub(crate) plots: bool,
    /// Of `incast`.
    pub(crate) senders: usize,
    /// Of `alltoall`, both sides together.
    pub(crate) ranks: usize,
    /// Threads of each side, with an endpoint each.
    pub(crate) threads: usize,
    /// The endpoints of a side are on one shared engine.
    pub(crate) is_shared: bool,
}

impl Job {
    /// The pause that was asked for.
    pub(crate) fn pause(&self) -> Option<u64> {
        Some(self.pause_us).filter(|&pause_us| pause_us > 0)
    }

    /// Computes for as long as the client of a ping-pong does before each message.
    pub(crate) fn compute(&self) {
        let (start, pause) = (Instant::now(), Duration::from_micros(self.pause_us));
        while self.pause_us > 0 && start.elapsed() < pause {
            std::hint::spin_loop();
        }
    }
}

/// One side's end of the connection.
pub(crate) struct Link {
    reader: BufReader<TcpStream>,
    writer: TcpStream,
    /// The address of this side, which endpoints listen on as well.
    pub(crate) local: IpAddr,
    /// The address of the other side.
    pub(crate) remote: IpAddr,
}

fn text(error: impl std::fmt::Display) -> String {
    format!("the control connection failed: {error}; is the other side still running?")
}

/// The port of a server that names no other one.
pub(crate) const PORT: u16 = 18_515;

/// An address or a name with its port; where it has none, with [`PORT`].
fn with_port(address: &str) -> String {
    let bare = address.trim_start_matches('[').trim_end_matches(']');
    if let Ok(ip) = bare.parse::<IpAddr>() {
        return SocketAddr::new(ip, PORT).to_string();
    }
    let has_port = address.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    if has_port { address.to_owned() } else { format!("{address}:{PORT}") }
}

impl Link {
    /// Waits for the client.
    pub(crate) fn listen(address: &str) -> Result<Self, String> {
        let address = with_port(address);
        let listener = TcpListener::bind(&address).map_err(|error| {
            let cure = match error.kind() {
                ErrorKind::AddrInUse => "; name another port, here and with --connect",
                _ => "",
            };
            format!("cannot listen on {address}: {error}{cure}")
        })?;
        let (stream, _) = listener.accept().map_err(text)?;
        Self::new(stream)
    }

    /// Connects to the server, which may take a moment to start.
    pub(crate) fn connect(address: &str) -> Result<Self, String> {
        let address = with_port(address);
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            match TcpStream::connect(&address) {
                Ok(stream) => return Self::new(stream),
                Err(error) if Instant::now() > deadline => {
                    return Err(format!("no server at {address}: {error}; start it with --listen"));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    fn new(stream: TcpStream) -> Result<Self, String> {
        stream.set_nodelay(true).map_err(text)?;
        let local = stream.local_addr().map_err(text)?.ip();
        let remote = stream.peer_addr().map_err(text)?.ip();
        let reader = BufReader::new(stream.try_clone().map_err(text)?);
        Ok(Self { reader, writer: stream, local, remote })
    }

    /// Sends one value.
    pub(crate) fn put(&mut self, value: &impl Serialize) -> Result<(), String> {
        let mut line = serde_json::to_string(value).map_err(text)?;
        line.push('\n');
        self.writer.write_all(line.as_bytes()).map_err(text)
    }

    /// Receives one value; `None` at the end of the connection.
    pub(crate) fn get_or_end<T: DeserializeOwned>(&mut self) -> Result<Option<T>, String> {
        let mut line = String::new();
        if self.reader.read_line(&mut line).map_err(text)? == 0 {
            return Ok(None);
        }
        serde_json::from_str(&line).map(Some).map_err(text)
    }

    /// Whether the other side has sent a value, or has gone, so that receiving does not wait.
    pub(crate) fn is_ready(&self) -> Result<bool, String> {
        if !self.reader.buffer().is_empty() {
            return Ok(true);
        }
        let mut byte = [std::mem::MaybeUninit::uninit()];
        let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
        match socket2::SockRef::from(&self.writer).recv_with_flags(&mut byte, flags) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(text(error)),
        }
    }

    /// An error if the other side has gone.
    pub(crate) fn check_presence(&self) -> Result<(), String> {
        let mut byte = [std::mem::MaybeUninit::uninit()];
        let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
        match socket2::SockRef::from(&self.writer).recv_with_flags(&mut byte, flags) {
            Ok(0) if self.reader.buffer().is_empty() => Err(text("it was closed")),
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(text(error)),
            _ => Ok(()),
        }
    }

    /// Receives one value.
    pub(crate) fn get<T: DeserializeOwned>(&mut self) -> Result<T, String> {
        self.get_or_end()?.ok_or_else(|| text("it was closed"))
    }

    /// Both sides are here.
    pub(crate) fn barrier(&mut self) -> Result<(), String> {
        self.put(&0)?;
        self.get::<u32>().map(drop)
    }

    /// One more control connection, for a thread of its own.
    pub(crate) fn beside(&mut self, is_server: bool) -> Result<Self, String> {
        Self::new(self.raw(is_server)?)
    }

    /// A raw TCP connection for a floor: the server listens, the client connects.
    pub(crate) fn raw(&mut self, is_server: bool) -> Result<TcpStream, String> {
        let stream = if is_server {
            let listener = TcpListener::bind(SocketAddr::new(self.local, 0)).map_err(text)?;
            self.put(&listener.local_addr().map_err(text)?.port())?;
            listener.accept().map_err(text)?.0
        } else {
            let port: u16 = self.get()?;
            TcpStream::connect(SocketAddr::new(self.remote, port)).map_err(text)?
        };
        stream.set_nodelay(true).map_err(text)?;
        unpace(&stream);
        Ok(stream)
    }

    /// A raw UDP socket for a floor, connected with that of the other side and non-blocking.
    pub(crate) fn raw_udp(&mut self) -> Result<UdpSocket, String> {
        let (local, remote) = (SocketAddr::new(self.local, 0), self.remote);
        let failed = |error| format!("no UDP socket between {local} and {remote}: {error}");
        let socket = UdpSocket::bind(local).map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        self.put(&socket.local_addr().map_err(failed)?.port())?;
        let port: u16 = self.get()?;
        socket.connect(SocketAddr::new(remote, port)).map_err(failed)?;
        Ok(socket)
    }
}

/// Replaces a paced congestion control, as the engine does on a local path: a floor is measured
/// at its best setting.
pub(crate) fn unpace(stream: &TcpStream) {
    let socket = socket2::SockRef::from(stream);
    if socket.tcp_congestion().is_ok_and(|name| name.starts_with(b"bbr")) {
        // The first that this process may use; where it may use neither, the host's own stays.
        let _ = ["cubic", "reno"]
            .iter()
            .find(|name| socket.set_tcp_congestion(name.as_bytes()).is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_without_a_port_has_the_usual_one() {
        for (given, meant) in [
            ("10.0.0.1", "10.0.0.1:18515"),
            ("10.0.0.1:7000", "10.0.0.1:7000"),
            ("::1", "[::1]:18515"),
            ("[::1]", "[::1]:18515"),
            ("[::1]:7000", "[::1]:7000"),
            ("node7", "node7:18515"),
            ("node7:7000", "node7:7000"),
        ] {
            assert_eq!(with_port(given), meant, "{given}");
        }
    }
}
