//! Asking the daemon for a socket.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_domain};
use rustix::net::{
    AddressFamily, RecvFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, connect, shutdown,
    socket_with,
};

use super::channel::{is_silence, receive, send};
use super::wire::{Code, Garbled, REPLY_BYTES_MAX, Reply, Request};
use crate::Mode;

/// How long the end of a lease waits for the daemon to have taken the claim back.
const END_TIME: Duration = Duration::from_millis(50);

/// Why there is no lease.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LeaseError {
    /// No process listens there.
    #[error("ringrail-xdpd does not run (no process listens at {path})")]
    Absent {
        /// The socket.
        path: PathBuf,
    },
    /// This user is not among those who are served.
    #[error("ringrail-xdpd does not serve this user: {text}; join its group (ringrail by default)")]
    NotAllowed {
        /// The message of the kernel or the daemon.
        text: String,
    },
    /// Another process has the queue; another queue may be free.
    #[error("{text}")]
    Busy {
        /// The message of the daemon.
        text: String,
    },
    /// The daemon refuses.
    #[error("ringrail-xdpd refuses: {text}")]
    Refused {
        /// Why.
        text: String,
    },
    /// The daemon is busy, stopped or overloaded.
    #[error("ringrail-xdpd does not answer within {} ms", .waited.as_millis())]
    Silent {
        /// How long an answer was waited for.
        waited: Duration,
    },
    /// The daemon has ended the conversation, or was stopped.
    #[error("ringrail-xdpd has hung up")]
    HungUp,
    /// The answer is none; the daemon is of another version, or not one at all.
    #[error("no answer of ringrail-xdpd: {what}")]
    Garbled {
        /// What is wrong with it.
        what: String,
    },
    /// The kernel refused something.
    #[error("asking ringrail-xdpd: {source}")]
    Os {
        /// What it answered.
        source: io::Error,
    },
}

impl LeaseError {
    fn os(error: impl Into<io::Error>) -> Self {
        Self::Os { source: error.into() }
    }
}

/// A connection to the daemon.
#[derive(Debug)]
struct Talk {
    connection: OwnedFd,
    patience: Duration,
}

impl Talk {
    fn say(&self, request: Request, descriptor: Option<BorrowedFd<'_>>) -> Result<(), LeaseError> {
        send(&self.connection, &request.to_bytes(), descriptor).or_else(|error| {
            match error.raw_os_error() {
                // It may have sent the reason before it closed the connection.
                Some(libc::EPIPE | libc::ECONNRESET) => Ok(()),
                _ => Err(LeaseError::os(error)),
            }
        })
    }

    fn hear(&self) -> Result<(Reply, Vec<OwnedFd>), LeaseError> {
        let mut bytes = [0; REPLY_BYTES_MAX + 1];
        let packet = match receive(&self.connection, &mut bytes, RecvFlags::empty()) {
            Ok(Some(packet)) if !packet.is_cut => packet,
            Ok(Some(_)) => return Err(LeaseError::Garbled { what: Garbled::Other.to_string() }),
            Ok(None) => return Err(LeaseError::HungUp),
            Err(error) if is_silence(&error) => {
                return Err(LeaseError::Silent { waited: self.patience });
            }
            Err(error) => return Err(LeaseError::os(error)),
        };
        match Reply::from_bytes(&bytes[..packet.bytes]) {
            Ok(Reply::Refused { code, text }) => Err(match code {
                Code::NotAllowed => LeaseError::NotAllowed { text },
                Code::Busy => LeaseError::Busy { text },
                _ => LeaseError::Refused { text },
            }),
            Ok(reply) => Ok((reply, packet.descriptors)),
            Err(wrong) => Err(LeaseError::Garbled { what: wrong.to_string() }),
        }
    }
}

/// An AF_XDP socket that the daemon lends, before it is bound to a queue.
#[derive(Debug)]
pub struct Offer {
    talk: Talk,
    nic: String,
    queues: u32,
    mode: Mode,
}

/// A queue whose datagrams come.
#[derive(Debug)]
pub struct Bound {
    /// The lease. Datagrams come for as long as it exists and is not lost.
    pub lease: Lease,
    /// The queue.
    pub queue: u32,
    /// Whether the NIC reads and writes the memory itself.
    pub is_zero_copy: bool,
}

impl Offer {
    /// Asks the daemon at `path` for a socket on the NIC numbered `ifindex`, for datagrams to the
    /// address that the UDP socket `udp` is bound to; to `address`, if that is given and the socket
    /// is bound to the port of all addresses. It has four rings of `entries` each, a power of two
    /// up to [`RING_ENTRIES_MAX`](super::RING_ENTRIES_MAX). Each answer is waited for as long as
    /// `patience` and no longer.
    ///
    /// The socket is to have its memory registered before [`try_bind`](Self::try_bind).
    ///
    /// # Errors
    ///
    /// See [`LeaseError`].
    pub fn ask(
        path: &Path,
        ifindex: u32,
        udp: BorrowedFd<'_>,
        address: Option<IpAddr>,
        entries: u32,
        patience: Duration,
    ) -> Result<(Self, OwnedFd), LeaseError> {
        let (family, flags) = (AddressFamily::UNIX, SocketFlags::CLOEXEC);
        let connection =
            socket_with(family, SocketType::SEQPACKET, flags, None).map_err(LeaseError::os)?;
        for which in [Timeout::Send, Timeout::Recv] {
            set_socket_timeout(&connection, which, Some(patience)).map_err(LeaseError::os)?;
        }
        let daemon = SocketAddrUnix::new(path).map_err(LeaseError::os)?;
        connect(&connection, &daemon).map_err(|error| match error {
            Errno::NOENT | Errno::CONNREFUSED | Errno::NOTDIR => {
                LeaseError::Absent { path: path.to_owned() }
            }
            Errno::ACCESS | Errno::PERM => {
                LeaseError::NotAllowed { text: format!("{}: {error}", path.display()) }
            }
            Errno::AGAIN => LeaseError::Silent { waited: patience },
            error => LeaseError::os(error),
        })?;
        let talk = Talk { connection, patience };
        let request = match address {
            None => Request::Ask { ifindex, entries },
            Some(address) => Request::AskFor { ifindex, entries, address },
        };
        talk.say(request, Some(udp))?;
        let (Reply::Offer { queues, mode, nic }, descriptors) = talk.hear()? else {
            return Err(LeaseError::Garbled { what: "an answer to something else".to_owned() });
        };
        let socket = match <[OwnedFd; 1]>::try_from(descriptors) {
            Ok([socket]) if socket_domain(&socket) == Ok(AddressFamily::XDP) => socket,
            _ => return Err(LeaseError::Garbled { what: "an offer without a socket".to_owned() }),
        };
        Ok((Self { talk, nic, queues, mode }, socket))
    }

    /// How many queues the NIC has.
    pub fn queues(&self) -> u32 {
        self.queues
    }

    /// Has the socket bound to `queue`, and datagrams come to it. After [`LeaseError::Busy`]
    /// another queue may be tried, or the same one later: the kernel gives a queue back some 20 ms
    /// after its socket was closed.
    ///
    /// # Errors
    ///
    /// See [`LeaseError`]; the offer is of use after [`LeaseError::Busy`] alone.
    pub fn try_bind(self, queue: u32) -> Result<Bound, (Self, LeaseError)> {
        let reply = self.talk.say(Request::Bind { queue }, None).and_then(|()| self.talk.hear());
        match reply {
            Ok((Reply::Bound { queue: bound, is_zero_copy }, _)) if bound == queue => {
                let Self { talk, nic, mode, .. } = self;
                let lease = Lease { connection: talk.connection, nic, mode };
                Ok(Bound { lease, queue, is_zero_copy })
            }
            Ok(_) => {
                let what = "an answer to something else".to_owned();
                Err((self, LeaseError::Garbled { what }))
            }
            Err(error) => Err((self, error)),
        }
    }
}

/// The right to a queue and to the datagrams for an address on it.
///
/// Dropping it gives them back: drop it before the AF_XDP socket. It waits up to 50 ms for the
/// daemon to have let go of the UDP socket, so that the port can be bound again.
#[derive(Debug)]
pub struct Lease {
    connection: OwnedFd,
    nic: String,
    mode: Mode,
}

impl Lease {
    /// The NIC's name.
    pub fn nic(&self) -> &str {
        &self.nic
    }

    /// Where the program runs.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The connection to the daemon. A copy of it, which a child of `fork` has, keeps the queue
    /// when this process is gone.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }

    /// Returns whether datagrams can still come. One short system call that does not wait.
    ///
    /// # Errors
    ///
    /// Why they cannot: what the daemon saw of program and NIC, or its own end.
    pub fn check(&self) -> Result<(), String> {
        let mut bytes = [0; REPLY_BYTES_MAX + 1];
        match receive(&self.connection, &mut bytes, RecvFlags::DONTWAIT) {
            Err(error) if is_silence(&error) => Ok(()),
            Ok(Some(packet)) => match Reply::from_bytes(&bytes[..packet.bytes]) {
                Ok(Reply::Lost { text }) => Err(text),
                _ => Err("ringrail-xdpd sent a reply that does not end a lease".to_owned()),
            },
            Ok(None) => Err("ringrail-xdpd has ended".to_owned()),
            Err(error) => Err(format!("ringrail-xdpd: {error}")),
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if shutdown(&self.connection, Shutdown::Write).is_err()
            || set_socket_timeout(self.connection.as_fd(), Timeout::Recv, Some(END_TIME)).is_err()
        {
            return;
        }
        let mut bytes = [0; REPLY_BYTES_MAX];
        while let Ok(Some(_)) = receive(&self.connection, &mut bytes, RecvFlags::empty()) {}
    }
}
