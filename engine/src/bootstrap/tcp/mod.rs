//! Bootstrap over TCP: rank 0 serves, and all ranks (rank 0 too) connect to it.

mod frame;
#[cfg(test)]
mod fuzz;
mod server;

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rand::RngExt;
use rand::rand_core::UnwrapErr;
use rand::rngs::SysRng;
use socket2::{Domain, Socket, Type};

use super::collective::{Collective, Gather};
use super::{BootstrapError, Member, own_label};
use frame::{
    ClientHello, FRAME_HEADER_BYTES, Instance, MAGIC, RESULT_BYTES_MAX, decode_result, frame, kind,
    parse_header,
};
use server::Server;

/// Bootstrap over TCP, with the variables of `torch.distributed`.
///
/// Rank 0 listens at the port; ranks may start in any order, and retry until the timeout.
/// Connections from other programs to the port do no harm.
///
/// Each process has a random instance number. If two processes claim one rank, both get
/// [`BootstrapError::DuplicateRank`]. That includes rank 0, which also connects to the common
/// address and so detects a second one.
#[derive(Debug)]
pub struct Tcp(pub(super) Collective<RankLink>);

impl Tcp {
    /// Joins the job whose rank 0 runs at `host` (a name or an address) and listens at `port`.
    /// Returns when all ranks have joined.
    ///
    /// # Errors
    /// Two processes claim one rank, ranks disagree about their number, or a rank did not join
    /// before the timeout.
    pub fn join(host: &str, port: u16, member: &Member) -> Result<Self, BootstrapError> {
        Self::join_with(host, port, member, None)
    }

    /// As `join`; rank 0 may bring a listener.
    pub(super) fn join_with(
        host: &str,
        port: u16,
        member: &Member,
        listener: Option<TcpListener>,
    ) -> Result<Self, BootstrapError> {
        member.check()?;
        if port == 0 {
            return Err(BootstrapError::Invalid { problem: "port 0 cannot be reached".into() });
        }
        let mut joining = Joining {
            host,
            port,
            member,
            instance: UnwrapErr(SysRng).random(),
            label: own_label(),
            deadline: Instant::now().checked_add(member.timeout),
            trouble: "no answer".into(),
        };
        let server = match (member.rank, listener) {
            (0, Some(listener)) => Some(joining.serve(listener)?),
            (0, None) => Some(joining.serve(joining.open_port()?)?),
            _ => None,
        };
        let stream = match joining.connect() {
            Ok(stream) => stream,
            Err(error) => {
                if let Some(server) = server {
                    server.abort(&error);
                }
                return Err(error);
            }
        };
        // From here on the server reports what goes wrong.
        let link = RankLink {
            stream,
            rank: member.rank,
            size: member.size,
            timeout: member.timeout,
            server,
        };
        Ok(Self(Collective::join(link)?))
    }
}

/// Opens the port of rank 0: at the address if the host is given as one, else at all addresses,
/// because a host's own name often resolves to its loopback only.
fn listen(host: &str, port: u16) -> io::Result<TcpListener> {
    let literal = match host {
        "localhost" => Some(IpAddr::from([127, 0, 0, 1])),
        _ => host.trim_matches(['[', ']']).parse().ok(),
    };
    let bind = |address: IpAddr| {
        let domain = if address.is_ipv6() { Domain::IPV6 } else { Domain::IPV4 };
        let socket = Socket::new(domain, Type::STREAM, None)?;
        // A job may follow another on the same port while the old connections fade away.
        socket.set_reuse_address(true)?;
        if address.is_ipv6() && address.is_unspecified() {
            socket.set_only_v6(false)?;
        }
        socket.bind(&SocketAddr::new(address, port).into())?;
        socket.listen(1024)?;
        Ok(TcpListener::from(socket))
    };
    match literal {
        Some(address) => bind(address),
        None => bind(IpAddr::from([0u16; 8])).or_else(|error: io::Error| match error.kind() {
            io::ErrorKind::AddrInUse => Err(error),
            // No IPv6 on this host.
            _ => bind(IpAddr::from([0u8; 4])),
        }),
    }
}

struct Joining<'a> {
    host: &'a str,
    port: u16,
    member: &'a Member,
    instance: Instance,
    label: String,
    deadline: Option<Instant>,
    /// What went wrong last.
    trouble: String,
}

/// The result of one attempt.
enum ConnectAttempt {
    Joined(TcpStream),
    Again(String),
    /// To try again as well: the server gave a reason for refusing.
    Refused(String),
    Failed(BootstrapError),
}

/// The first pause between two attempts; it doubles up to the longest.
const PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// How long one attempt may take to connect, and then to be answered.
const ATTEMPT_TIME: Duration = Duration::from_secs(5);

/// How much longer than rank 0 the others wait: rank 0 knows which ranks are missing and reports
/// them.
const GRACE: Duration = Duration::from_secs(1);

impl Joining<'_> {
    fn serve(&self, listener: TcpListener) -> Result<Server, BootstrapError> {
        let server = Server::start(listener, self.member, self.instance, self.label.clone());
        server.map_err(|error| BootstrapError::System {
            doing: "cannot serve the other ranks".into(),
            problem: error.to_string(),
            cure: "free threads or file descriptors (ulimit -u, ulimit -n)".into(),
        })
    }

    fn remaining(&self) -> Duration {
        self.deadline.map_or(Duration::MAX, |at| at.saturating_duration_since(Instant::now()))
    }

    /// Opens rank 0's port. If it is in use, connects to its owner: if that is another rank 0 of
    /// this job, both fail; if it is an earlier job that is about to end, waits for that.
    fn open_port(&self) -> Result<TcpListener, BootstrapError> {
        let patience = Instant::now() + self.remaining().min(ATTEMPT_TIME);
        loop {
            let bind_error = match listen(self.host, self.port) {
                Ok(listener) => return Ok(listener),
                Err(error) => error,
            };
            let trouble = match self.attempt() {
                ConnectAttempt::Failed(error) => return Err(error),
                // A server that accepts a second rank 0 does not check ranks.
                ConnectAttempt::Joined(_) => "a server that accepts any rank".into(),
                ConnectAttempt::Again(trouble) | ConnectAttempt::Refused(trouble) => trouble,
            };
            if Instant::now() < patience {
                std::thread::sleep(LONGEST_PAUSE);
                continue;
            }
            return Err(BootstrapError::System {
                doing: format!("rank 0 cannot listen at {}:{}", self.host, self.port),
                problem: format!("{bind_error} (answer of the current owner: {trouble})"),
                cure: match bind_error.kind() {
                    io::ErrorKind::AddrInUse => "choose an unused MASTER_PORT",
                    io::ErrorKind::AddrNotAvailable => {
                        "set MASTER_ADDR to an address of the host that runs rank 0, or run rank 0 \
                         there"
                    }
                    _ => "choose another MASTER_PORT (above 1023)",
                }
                .into(),
            });
        }
    }

    fn connect(&mut self) -> Result<TcpStream, BootstrapError> {
        let mut pause = PAUSE;
        let mut was_refused = false;
        loop {
            match self.attempt() {
                ConnectAttempt::Joined(stream) => return Ok(stream),
                ConnectAttempt::Failed(error) => return Err(error),
                ConnectAttempt::Refused(reason) => (self.trouble, was_refused) = (reason, true),
                // Our own deadline cut it off: the reason of the earlier refusal explains more.
                ConnectAttempt::Again(_) if was_refused && self.remaining().is_zero() => {}
                ConnectAttempt::Again(trouble) => (self.trouble, was_refused) = (trouble, false),
            }
            let remaining = self.remaining();
            if remaining.is_zero() {
                return Err(BootstrapError::Timeout {
                    what: format!(
                        "for rank 0 at {}:{} to answer (last: {})",
                        self.host, self.port, self.trouble
                    ),
                    after: self.member.timeout,
                    cure: "check that rank 0 runs there, check its output, and check \
                           MASTER_ADDR, MASTER_PORT and the firewall"
                        .into(),
                });
            }
            std::thread::sleep(pause.min(remaining));
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn attempt(&self) -> ConnectAttempt {
        let addresses = match self.resolve() {
            Ok(addresses) => addresses,
            Err(trouble) => return ConnectAttempt::Again(trouble),
        };
        let mut trouble = format!("{} has no address", self.host);
        let mut refusal = None;
        for address in addresses {
            let limit = self.remaining().min(ATTEMPT_TIME).max(Duration::from_millis(1));
            match TcpStream::connect_timeout(&address, limit) {
                Ok(stream) => match self.introduce(stream, limit) {
                    ConnectAttempt::Again(reason) => trouble = format!("{address}: {reason}"),
                    ConnectAttempt::Refused(reason) => {
                        refusal = Some(format!("{address}: {reason}"))
                    }
                    other => return other,
                },
                Err(error) => trouble = format!("{address}: {error}"),
            }
        }
        refusal.map_or(ConnectAttempt::Again(trouble), ConnectAttempt::Refused)
    }

    /// Resolves the host. This may block for long, so it runs on a thread of its own.
    fn resolve(&self) -> Result<Vec<SocketAddr>, String> {
        if let Ok(address) = self.host.trim_matches(['[', ']']).parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, self.port)]);
        }
        let (answer, answered) = mpsc::channel();
        let (host, port) = (self.host.to_string(), self.port);
        let ask = move || {
            let found = (host.as_str(), port).to_socket_addrs().map(Iterator::collect);
            // The receiver is gone if resolving took too long.
            let _ = answer.send(found);
        };
        let thread = std::thread::Builder::new().name("ringrail-dns".into()).spawn(ask);
        thread.map_err(|error| format!("no thread to resolve names: {error}"))?;
        match answered.recv_timeout(self.remaining().min(ATTEMPT_TIME)) {
            Ok(Ok(addresses)) => Ok(addresses),
            Ok(Err(error)) => Err(format!("cannot resolve {}: {error}", self.host)),
            Err(_) => Err(format!("resolving {} takes too long", self.host)),
        }
    }

    /// Sends the hello and reads rank 0's answer.
    fn introduce(&self, mut stream: TcpStream, limit: Duration) -> ConnectAttempt {
        let hello = ClientHello {
            rank: self.member.rank,
            size: self.member.size,
            instance: self.instance,
            label: self.label.clone(),
            job: self.member.job.clone(),
        };
        let greeting = [&MAGIC[..], &frame(kind::HELLO, &hello.encode())].concat();
        let deadline = Instant::now() + limit;
        let sent = stream
            .set_nodelay(true)
            .and_then(|()| stream.set_write_timeout(Some(limit)))
            .and_then(|()| stream.write_all(&greeting));
        if let Err(error) = sent {
            return ConnectAttempt::Again(error.to_string());
        }
        match read_frame(&mut stream, Some(deadline), 64 << 10) {
            Ok((kind::ACCEPTED, _)) => ConnectAttempt::Joined(stream),
            Ok((kind::ABORT, body)) => ConnectAttempt::Failed(BootstrapError::decode(&body)),
            Ok((kind::REFUSED, body)) => {
                ConnectAttempt::Refused(String::from_utf8_lossy(&body).into())
            }
            Ok(_) => ConnectAttempt::Again("what answers there is no rank of such a job".into()),
            Err(error) => {
                ConnectAttempt::Again(format!("connected, but got no proper answer: {error}"))
            }
        }
    }
}

/// Reads a frame whose body has at most `limit` bytes.
fn read_frame(
    stream: &mut TcpStream,
    deadline: Option<Instant>,
    limit: usize,
) -> io::Result<(u8, Vec<u8>)> {
    let mut header = [0; FRAME_HEADER_BYTES];
    read_exact(stream, deadline, &mut header)?;
    let (length, kind) = parse_header(header);
    if length > limit {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not our protocol"));
    }
    let mut body = Vec::new();
    // Memory grows with the bytes received, not with the length in the header.
    while body.len() < length {
        let start = body.len();
        body.resize(length.min(start + (1 << 20)), 0);
        read_exact(stream, deadline, &mut body[start..])?;
    }
    Ok((kind, body))
}

fn read_exact(
    stream: &mut TcpStream,
    deadline: Option<Instant>,
    mut buffer: &mut [u8],
) -> io::Result<()> {
    while !buffer.is_empty() {
        let remaining = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        if remaining.is_some_and(|remaining| remaining.is_zero()) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(remaining)?;
        match stream.read(buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => buffer = &mut buffer[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(io::ErrorKind::TimedOut.into());
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A rank's connection to rank 0, and at rank 0 the server as well.
#[derive(Debug)]
pub(crate) struct RankLink {
    stream: TcpStream,
    rank: usize,
    size: usize,
    timeout: Duration,
    server: Option<Server>,
}

impl RankLink {
    fn trouble(&self, error: &io::Error) -> BootstrapError {
        match error.kind() {
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => BootstrapError::Timeout {
                what: "for rank 0 to answer".into(),
                after: self.timeout,
                cure: "see whether rank 0 still runs and is reachable".into(),
            },
            _ => BootstrapError::PeerLost { detail: format!("lost rank 0: {error}") },
        }
    }
}

impl Gather for RankLink {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn gather(&mut self, part: Vec<u8>) -> Result<Vec<Vec<u8>>, BootstrapError> {
        let limit = self.timeout.saturating_add(GRACE);
        let deadline = Instant::now().checked_add(limit);
        let sent = self
            .stream
            .set_write_timeout(Some(limit))
            .and_then(|()| self.stream.write_all(&frame(kind::PART, &part)));
        // A failed job closes its connections, but its reason can still be read.
        let answer = read_frame(&mut self.stream, deadline, RESULT_BYTES_MAX);
        match (sent, answer) {
            (_, Ok((kind::ABORT, body))) => Err(BootstrapError::decode(&body)),
            (Ok(()), Ok((kind::RESULT, body))) => decode_result(&body, self.size),
            (Err(error), _) | (Ok(()), Err(error)) => Err(self.trouble(&error)),
            (Ok(()), Ok((kind, _))) => {
                let detail = format!("rank 0 sent a frame of the unknown kind {kind}");
                Err(BootstrapError::Malformed { detail })
            }
        }
    }
}

impl Drop for RankLink {
    fn drop(&mut self) {
        // If it does not arrive, the end of the connection means the same.
        let _ = self.stream.set_write_timeout(Some(Duration::from_millis(100)));
        let _ = self.stream.write_all(&frame(kind::GOODBYE, &[]));
        // After a failure our own server waits for this end too.
        let _ = self.stream.shutdown(Shutdown::Both);
        // Rank 0 ends serving after its own goodbye, when the others have got what is theirs.
        drop(self.server.take());
    }
}
