//! The daemon: admission of clients, and a thread for each.
//!
//! Closing descriptors of unknown clients can wait (a FUSE file, a socket that lingers), and
//! joining a NIC may take a while: so each connection has a thread, and each user a limited number.
//! A client that is not served gets a refusal from a thread that releases the connection without
//! waiting.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SocketFlags, SocketType, accept_with, recv, socket_with,
};

use super::channel::{Packet, is_silence, receive, send};
use super::grant::{Port, Refusal, bind_and_claim, check_copies, check_entries, new_socket};
use super::nics::Nics;
use super::place::Place;
use super::usage::{Share, Usage};
use super::wire::{Code, Garbled, REQUEST_BYTES_MAX, Reply, Request};
use crate::sweep::sweep;
use crate::sys::socket::{netns_cookie, peer, peer_groups};
use crate::sys::table::OwnTable;
use crate::{Claim, Nic};

/// From connecting to the bound queue. Registering memory takes milliseconds.
const SETUP_TIME: Duration = Duration::from_secs(10);
/// How often a lease is looked after: its NIC, its port, and whether the daemon is to stop.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Interval at which unused NICs are searched for.
const TEND_EVERY: Duration = Duration::from_secs(1);
/// How long the end of all leases may take when the daemon stops.
const STOP_TIME: Duration = Duration::from_secs(3);
/// Queues that one client may try; it waits for a busy one between tries.
const TRIES_MAX: u32 = 1024;
/// What a thread of a connection needs, and more.
const STACK_BYTES: usize = 1 << 20;

/// What a [`Daemon`] does for whom.
#[derive(Clone, Debug)]
pub struct DaemonConfig {
    /// Where it listens.
    pub socket: PathBuf,
    /// Groups whose members are served, by number.
    pub groups: Vec<u32>,
    /// Users who are served besides, by number.
    pub users: Vec<u32>,
    /// Queues that one user may have at the same time.
    pub queues_per_user: usize,
    /// Names of the NICs whose queues are leased; empty: all.
    pub nics: Vec<String>,
    /// Clients may see all that comes in on a queue they borrow, and hold it up: queues of NICs
    /// that receive without copies are leased, too.
    pub trusts_clients: bool,
}

/// Why a daemon cannot start or go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DaemonError {
    /// No user would be served.
    #[error("no user may use it: name a group or a user")]
    Nobody,
    /// Another daemon listens there, or it is no socket at all.
    #[error("{path} is in use: stop the ringrail-xdpd that listens there, or choose another path")]
    Running {
        /// The socket.
        path: PathBuf,
    },
    /// The kernel refused something.
    #[error("{doing}: {source}")]
    Os {
        /// What was refused.
        doing: String,
        /// What the kernel answered.
        source: io::Error,
    },
}

/// The number of a group of this host; `None`: there is no such group.
///
/// # Errors
///
/// What the host's list of groups answered.
pub fn group_id(name: &str) -> io::Result<Option<u32>> {
    crate::sys::users::group_id(name)
}

/// Keeps SIGTERM, SIGINT and SIGHUP from the calling thread and those that it starts from now on;
/// the descriptor, which [`Daemon::run`] takes, is readable when one of them has come.
///
/// # Errors
///
/// What the kernel answered.
pub fn termination() -> io::Result<OwnedFd> {
    crate::sys::signals::termination()
}

/// Lends AF_XDP sockets to who may have them.
#[derive(Debug)]
pub struct Daemon {
    listener: OwnedFd,
    place: Place,
    shared: Arc<Shared>,
}

/// What all connections have together.
#[derive(Debug)]
struct Shared {
    config: DaemonConfig,
    /// Of the daemon's network.
    cookie: u64,
    usage: Arc<Usage>,
    nics: Nics,
    is_over: AtomicBool,
    log: fn(&str),
}

impl Daemon {
    /// Takes away what a killed one has left, and listens from now on. `log` gets a line for each
    /// lease that begins or ends.
    ///
    /// # Errors
    ///
    /// See [`DaemonError`].
    pub fn listen(config: DaemonConfig, log: fn(&str)) -> Result<Self, DaemonError> {
        if config.groups.is_empty() && config.users.is_empty() {
            return Err(DaemonError::Nobody);
        }
        let (listener, place) = Place::listen(&config)?;
        let udp = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
        let cookie = udp
            .map_err(io::Error::from)
            .and_then(|udp| netns_cookie(udp.as_fd()))
            .map_err(|source| DaemonError::Os {
                doing: "asking for the network namespace".into(),
                source,
            })?;
        // A client of the previous daemon may still receive datagrams for its port.
        for error in sweep() {
            log(&format!("clearing up after killed processes: {error}"));
        }
        let usage = Usage::new(config.queues_per_user);
        let shared = Arc::new(Shared {
            config,
            cookie,
            usage,
            nics: Nics::default(),
            is_over: AtomicBool::new(false),
            log,
        });
        Ok(Self { listener, place, shared })
    }

    /// Serves until `stop` is readable or at its end; then all leases end, and NICs are left.
    ///
    /// # Errors
    ///
    /// The kernel does not let it wait.
    pub fn run(self, stop: BorrowedFd<'_>) -> Result<(), DaemonError> {
        let mut threads: Vec<thread::JoinHandle<()>> = Vec::new();
        loop {
            let mut watched =
                [PollFd::new(&stop, PollFlags::IN), PollFd::new(&self.listener, PollFlags::IN)];
            let timeout = timespec(TEND_EVERY);
            match poll(&mut watched, Some(&timeout)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    return Err(DaemonError::Os { doing: "waiting".into(), source: error.into() });
                }
            }
            if !watched[0].revents().is_empty() {
                break;
            }
            let is_called = !watched[1].revents().is_empty();
            threads.retain(|thread| !thread.is_finished());
            threads.extend(leave(self.shared.nics.take_idle(Instant::now())));
            if !is_called {
                continue;
            }
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match accept_with(&self.listener, flags) {
                Ok(connection) => threads.extend(self.admit(connection)),
                // Descriptors or memory are used up, and the next one would find it so, too.
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    thread::sleep(LOOK_EVERY);
                }
                // Who was about to connect has gone.
                Err(_) => {}
            }
        }
        self.shared.is_over.store(true, Ordering::SeqCst);
        drop(self.place);
        threads.extend(leave(self.shared.nics.close()));
        let deadline = Instant::now() + STOP_TIME;
        while Instant::now() < deadline && threads.iter().any(|thread| !thread.is_finished()) {
            thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Starts a thread for who may be served.
    fn admit(&self, connection: OwnedFd) -> Option<thread::JoinHandle<()>> {
        let user = match self.shared.who_asks(connection.as_fd()) {
            Ok(user) => user,
            Err(refusal) => return turn_away(connection, refusal),
        };
        let Some(share) = self.shared.usage.connect(user, Instant::now()) else {
            let text = format!("user {user} has too many connections");
            return turn_away(connection, (Code::Limit, text));
        };
        let shared = Arc::clone(&self.shared);
        let serve = move || {
            // The connection goes first: closing it may take as long as descriptors in it want.
            let (_share, connection) = (share, connection);
            Visit { shared: &shared, connection: &connection, user }.serve();
        };
        // Where no thread is to be had, the client sees the end of the connection.
        thread::Builder::new().name("lease".into()).stack_size(STACK_BYTES).spawn(serve).ok()
    }
}

/// Sends the reason of a refusal, in a thread.
///
/// Closing the connection closes what was sent along, too, which waits for as long as its sender
/// wants if it is the last descriptor of a socket that lingers. But no task lingers that ends. So
/// the thread has a table of its own, in which the connection stays until the thread ends, and it
/// does not end before the connection is closed here.
fn turn_away(connection: OwnedFd, (code, text): Refusal) -> Option<thread::JoinHandle<()>> {
    let number = connection.as_raw_fd();
    let (ready, is_ready) = mpsc::sync_channel(1);
    let (closed, is_closed) = mpsc::sync_channel::<()>(1);
    let send_reason = move || {
        let Ok(table) = OwnTable::new() else { return };
        // The receiver is there: it waits for this.
        let _ = ready.send(());
        // One who does not listen learns nothing.
        let _ = send(table.get(number), &Reply::Refused { code, text }.to_bytes(), None);
        // Nothing is sent: the end of the other side is what is waited for.
        let _ = is_closed.recv();
    };
    let thread =
        thread::Builder::new().name("refusal".into()).stack_size(STACK_BYTES).spawn(send_reason);
    // Where no thread or no table is to be had, closing it waits: there is no other way, and no
    // client could be served either.
    let _ = is_ready.recv();
    drop(connection);
    drop(closed);
    thread.ok()
}

impl Shared {
    /// The user at the other end, if it is one that is served.
    fn who_asks(&self, connection: BorrowedFd<'_>) -> Result<u32, Refusal> {
        let unknown = |error: io::Error| (Code::NotAllowed, format!("asking who asks: {error}"));
        let (user, group) = peer(connection).map_err(unknown)?;
        if self.config.users.contains(&user) || self.config.groups.contains(&group) {
            return Ok(user);
        }
        let groups = peer_groups(connection).map_err(unknown)?;
        if groups.iter().any(|group| self.config.groups.contains(group)) {
            return Ok(user);
        }
        let groups: Vec<String> = self.config.groups.iter().map(u32::to_string).collect();
        let text = format!(
            "user {user} is in none of the groups that ringrail-xdpd serves (number {})",
            groups.join(", ")
        );
        Err((Code::NotAllowed, text))
    }

    /// Refuses a NIC whose queues are not leased.
    fn check_leased(&self, name: &str) -> Result<(), Refusal> {
        let leased = &self.config.nics;
        if leased.is_empty() || leased.iter().any(|leased| leased == name) {
            return Ok(());
        }
        Err((Code::Nic, format!("ringrail-xdpd does not lend queues of {name}")))
    }
}

/// One connection.
struct Visit<'a> {
    shared: &'a Shared,
    connection: &'a OwnedFd,
    user: u32,
}

/// What a client has that was checked, and not bound yet.
struct Offered {
    port: Port,
    nic: Nic,
    socket: OwnedFd,
    _share: Share,
}

/// A lease.
struct Leased {
    // Goes first: no other process gets the port before.
    claim: Claim,
    port: Port,
    nic: Nic,
    _share: Share,
}

impl Visit<'_> {
    fn serve(&self) {
        let deadline = Instant::now() + SETUP_TIME;
        let leased = match self.offer(deadline).and_then(|offered| self.lease(offered, deadline)) {
            Ok(leased) => leased,
            Err(Some((code, text))) => return self.reply(&Reply::Refused { code, text }),
            Err(None) => return,
        };
        let Leased { claim, nic, .. } = &leased;
        let (user, queue, name, addr) = (self.user, claim.queue(), nic.name(), claim.addr());
        (self.shared.log)(&format!("user {user} has queue {queue} of {name} for {addr}"));
        let why = self.look_after(&leased);
        (self.shared.log)(&format!("user {user} had queue {queue} of {name} for {addr}: {why}"));
    }

    fn reply(&self, reply: &Reply) {
        // A client that does not read has no right to more than the end.
        let _ = send(self.connection, &reply.to_bytes(), None);
    }

    /// Waits for a request. `Err(None)`: the client is gone.
    fn request(&self, deadline: Instant) -> Result<(Request, Packet), Option<Refusal>> {
        loop {
            if self.shared.is_over.load(Ordering::SeqCst) {
                return Err(None);
            }
            let now = Instant::now();
            if now >= deadline {
                return Err(Some((Code::Protocol, "too slow".to_owned())));
            }
            wait(self.connection, LOOK_EVERY.min(deadline - now));
            let mut bytes = [0; REQUEST_BYTES_MAX + 1];
            let packet = match receive(self.connection, &mut bytes, RecvFlags::DONTWAIT) {
                Ok(Some(packet)) => packet,
                Ok(None) => return Err(None),
                Err(error) if is_silence(&error) => continue,
                Err(_) => return Err(None),
            };
            if packet.is_cut {
                return Err(Some((Code::Protocol, Garbled::Other.to_string())));
            }
            return match Request::from_bytes(&bytes[..packet.bytes]) {
                Ok(request) => Ok((request, packet)),
                Err(wrong @ Garbled::Version(_)) => Err(Some((Code::Version, wrong.to_string()))),
                Err(wrong) => Err(Some((Code::Protocol, wrong.to_string()))),
            };
        }
    }

    /// Checks what is asked for, and offers a socket.
    fn offer(&self, deadline: Instant) -> Result<Offered, Option<Refusal>> {
        let (request, packet) = self.request(deadline)?;
        let wrong = || (Code::Protocol, "first a NIC is asked for, with one UDP socket".to_owned());
        let (ifindex, entries, address) = match request {
            Request::Ask { ifindex, entries } => (ifindex, entries, None),
            Request::AskFor { ifindex, entries, address } => (ifindex, entries, Some(address)),
            Request::Bind { .. } => return Err(Some(wrong())),
        };
        let [udp] = <[OwnedFd; 1]>::try_from(packet.descriptors).map_err(|_| Some(wrong()))?;
        check_entries(entries)?;
        let usage = &self.shared.usage;
        if !usage.may_ask(self.user, Instant::now()) {
            return Err(Some((Code::Limit, format!("user {} asks too often", self.user))));
        }
        let Some(share) = usage.lease(self.user) else {
            let most = self.shared.config.queues_per_user;
            let text = format!("user {} has its {most} queues already", self.user);
            return Err(Some((Code::Limit, text)));
        };
        let port = Port::check(udp, self.shared.cookie, address)?;
        self.shared.check_leased(&port.check_nic(ifindex)?)?;
        let nic = self.shared.nics.join(ifindex)?;
        if !self.shared.config.trusts_clients {
            check_copies(&nic)?;
        }
        let socket = new_socket(&nic, entries)?;
        let (queues, mode, name) = (nic.queues(), nic.mode(), nic.name().to_owned());
        let reply = Reply::Offer { queues, mode, nic: name }.to_bytes();
        send(self.connection, &reply, Some(socket.as_fd())).map_err(|_| None)?;
        Ok(Offered { port, nic, socket, _share: share })
    }

    /// Binds the socket as asked, until a queue was free.
    fn lease(&self, offered: Offered, deadline: Instant) -> Result<Leased, Option<Refusal>> {
        let Offered { port, nic, socket, _share } = offered;
        for _ in 0..TRIES_MAX {
            let (request, packet) = self.request(deadline)?;
            let (Request::Bind { queue }, true) = (request, packet.descriptors.is_empty()) else {
                let text = "an offered socket is to be bound to a queue".to_owned();
                return Err(Some((Code::Protocol, text)));
            };
            port.check_again(nic.ifindex())?;
            match bind_and_claim(&nic, socket.as_fd(), queue, port.addr()) {
                Ok((claim, is_zero_copy)) => {
                    // Waiting for the claim's turn may have taken long.
                    port.check_again(nic.ifindex())?;
                    // The queue is to be free as soon as the client's descriptors are closed.
                    drop(socket);
                    let reply = Reply::Bound { queue, is_zero_copy }.to_bytes();
                    send(self.connection, &reply, None).map_err(|_| None)?;
                    return Ok(Leased { claim, port, nic, _share });
                }
                Err((code @ Code::Busy, text)) => {
                    let reply = Reply::Refused { code, text }.to_bytes();
                    send(self.connection, &reply, None).map_err(|_| None)?;
                }
                Err(refusal) => return Err(Some(refusal)),
            }
        }
        Err(Some((Code::Limit, "too many tries".to_owned())))
    }

    /// Until the lease ends; why it did.
    fn look_after(&self, leased: &Leased) -> String {
        loop {
            let lost = if self.shared.is_over.load(Ordering::SeqCst) {
                Some("ringrail-xdpd stops".to_owned())
            } else if let Err((_, text)) = leased.port.check_again(leased.nic.ifindex()) {
                Some(text)
            } else {
                leased.nic.is_attached().err().map(|why| why.to_string())
            };
            if let Some(text) = lost {
                self.reply(&Reply::Lost { text: text.clone() });
                return text;
            }
            wait(self.connection, LOOK_EVERY);
            // Descriptors that came along are not taken: closing them could have the claim wait.
            let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
            match recv(self.connection, &mut [0_u8; 1], flags) {
                Ok((0, _)) | Err(Errno::CONNRESET) => return "it has ended".to_owned(),
                Ok(_) => {
                    let text = "a lease takes no requests".to_owned();
                    self.reply(&Reply::Lost { text: text.clone() });
                    return text;
                }
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return error.to_string(),
            }
        }
    }
}

/// Waits until something can be read, at most so long.
fn wait(connection: impl AsFd, at_most: Duration) {
    let timeout = timespec(at_most);
    let mut watched = [PollFd::new(&connection, PollFlags::IN)];
    // Errors are reported by the call that reads.
    let _ = poll(&mut watched, Some(&timeout));
}

fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs() as _, tv_nsec: time.subsec_nanos() as _ }
}

/// Leaves NICs in a thread: it may have to wait for others who join or leave them.
fn leave(nics: Vec<Nic>) -> Option<thread::JoinHandle<()>> {
    if nics.is_empty() {
        return None;
    }
    // Where no thread is to be had they are dropped here.
    thread::Builder::new().name("leave".into()).stack_size(STACK_BYTES).spawn(|| drop(nics)).ok()
}
