//! Rank 0's side: one thread that registers the ranks and gathers their parts.

use std::collections::{HashMap, VecDeque};
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::frame::{
    CLIENT_BYTES_MAX, ClientHello, HELLO_BYTES_MAX, Instance, RESULT_BYTES_MAX, frame, kind,
    push_field, take_frame,
};
use crate::bootstrap::error::rank_list;
use crate::bootstrap::{BootstrapError, Member};

/// How long a connection may take to send its hello.
const HELLO_TIME: Duration = Duration::from_secs(5);

/// The largest number of connections without a hello; above it, the oldest is closed.
const UNKNOWN_MAX: usize = 256;

/// How long sending the final frames may take.
const LINGER: Duration = Duration::from_secs(2);

/// How often deadlines are checked.
const TICK: Duration = Duration::from_millis(100);

/// The server's thread; it ends when this is dropped, after all pending frames have been sent.
#[derive(Debug)]
pub(super) struct Server {
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves ranks of `member`'s job on `listener`. `instance` and `label` are those of this
    /// process: no other one may be rank 0.
    pub(super) fn start(
        listener: TcpListener,
        member: &Member,
        instance: Instance,
        label: String,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let (stop, stopped) = UnixStream::pair()?;
        let job = Job {
            member: member.clone(),
            instance,
            label,
            ranks: (0..member.size).map(|_| Rank::default()).collect(),
            registered: 0,
            given: 0,
            since: Instant::now(),
            failed: None,
        };
        let connections = HashMap::new();
        let serving = ServerLoop { listener, stopped, job, connections, next: 0 };
        let thread =
            std::thread::Builder::new().name("ringrail-boot".into()).spawn(|| serving.run())?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Server {
    /// Stops, and reports the reason to the ranks that have joined.
    pub(super) fn abort(mut self, error: &BootstrapError) {
        if let Some(mut stop) = self.stop.take() {
            // Short enough for the socket's buffer, so this does not wait for the thread.
            let _ = stop.write_all(&error.encode());
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Closing our end requests the stop.
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // The thread has printed its panic; nothing else is left to do.
            let _ = thread.join();
        }
    }
}

struct ClientConnection {
    stream: TcpStream,
    opened: Instant,
    magic_seen: bool,
    rank: Option<usize>,
    incoming: Vec<u8>,
    /// The frames to be sent, and how many bytes of the first have been sent already.
    outgoing: VecDeque<Arc<[u8]>>,
    sent: usize,
    /// Set when no more frames are read. The connection ends when all is sent and the other end
    /// has closed, or at this time.
    closing: Option<Instant>,
    write_closed: bool,
    dead: bool,
}

impl ClientConnection {
    fn push(&mut self, bytes: &Arc<[u8]>) {
        self.outgoing.push_back(Arc::clone(bytes));
    }

    /// Sends a final frame.
    fn close_with(&mut self, bytes: &Arc<[u8]>) {
        if self.closing.is_none() {
            self.push(bytes);
            self.closing = Some(Instant::now() + LINGER);
        }
    }

    /// Sends as much as the kernel accepts.
    fn flush(&mut self) {
        while let Some(first) = self.outgoing.front() {
            match self.stream.write(&first[self.sent..]) {
                Ok(0) => self.dead = true,
                Ok(count) => {
                    self.sent += count;
                    if self.sent == first.len() {
                        self.outgoing.pop_front();
                        self.sent = 0;
                    }
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => self.dead = true,
            }
            return;
        }
        if self.closing.is_some() && !self.write_closed {
            self.write_closed = true;
            self.dead |= self.stream.shutdown(Shutdown::Write).is_err();
        }
    }

    /// Reads available bytes; returns `false` at the end of the stream. Bounded, so that one
    /// sender cannot starve the others.
    fn fill(&mut self) -> bool {
        let mut buffer = [0; 16 << 10];
        // Connections without a rank get little memory.
        for _ in 0..if self.rank.is_some() { 16 } else { 1 } {
            match self.stream.read(&mut buffer) {
                Ok(0) => return false,
                // Data of a closing connection is read only so that the kernel does not answer it
                // with a reset, which would overtake the final frame.
                Ok(_) if self.closing.is_some() => {}
                Ok(count) => self.incoming.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            }
        }
        true
    }

    /// Returns the next complete frame, if any.
    fn next_frame(&mut self) -> Result<Option<(u8, Vec<u8>)>, ()> {
        let limit = if self.rank.is_some() { CLIENT_BYTES_MAX } else { HELLO_BYTES_MAX };
        take_frame(&mut self.incoming, &mut self.magic_seen, limit)
    }
}

/// The server's state of a rank.
#[derive(Default)]
struct Rank {
    hello: Option<ClientHello>,
    connection: Option<u64>,
    part: Option<Vec<u8>>,
    left: bool,
}

struct Job {
    member: Member,
    instance: Instance,
    label: String,
    ranks: Vec<Rank>,
    registered: usize,
    /// Parts of the round under way.
    given: usize,
    /// Since when the server has been waiting for the missing ranks.
    since: Instant,
    failed: Option<BootstrapError>,
}

impl Job {
    /// Checks whether a new client may have the rank it claims; the outer error concerns it alone.
    fn admit(&self, hello: &ClientHello) -> Result<Result<(), BootstrapError>, String> {
        let member = &self.member;
        if hello.job != member.job {
            return Err(format!(
                "this port serves the job `{}`, not `{}`; choose another MASTER_PORT",
                member.job, hello.job
            ));
        }
        let owner = match hello.rank {
            0 if hello.instance != self.instance => Some(&self.label),
            _ => self.ranks.get(hello.rank).and_then(|rank| rank.hello.as_ref()).map(|h| &h.label),
        };
        if let Some(owner) = owner {
            let who = format!("{owner}, and {}", hello.label);
            return Ok(Err(BootstrapError::DuplicateRank { rank: hello.rank, who }));
        }
        if hello.size != member.size || hello.rank >= member.size {
            let detail = format!(
                "rank 0 ({}) has WORLD_SIZE = {}, but rank {} ({}) has {}",
                self.label, member.size, hello.rank, hello.label, hello.size
            );
            return Ok(Err(BootstrapError::SizeMismatch { detail }));
        }
        Ok(Ok(()))
    }

    fn name(&self, rank: usize) -> String {
        match &self.ranks[rank].hello {
            Some(hello) => format!("rank {rank} ({})", hello.label),
            None => format!("rank {rank}"),
        }
    }

    /// Returns the error of a rank that has been waiting for too long.
    fn overdue(&self) -> Option<BootstrapError> {
        let started = self.registered < self.member.size || self.given > 0;
        if !started || self.since.elapsed() < self.member.timeout {
            return None;
        }
        let missing = |present: fn(&Rank) -> bool| {
            rank_list((0..self.member.size).filter(|rank| !present(&self.ranks[*rank])))
        };
        let (what, cure) = if self.registered < self.member.size {
            let missing = missing(|rank| rank.hello.is_some());
            (
                format!("for ranks {missing} to reach rank 0 ({})", self.label),
                "see whether they were started, and with the same MASTER_ADDR and MASTER_PORT, \
                 and whether a firewall stands between",
            )
        } else {
            let missing = missing(|rank| rank.part.is_some());
            (
                format!("for ranks {missing} to make the same collective call as the others"),
                "see what these ranks do instead",
            )
        };
        Some(BootstrapError::Timeout { what, after: self.member.timeout, cure: cure.into() })
    }
}

struct ServerLoop {
    listener: TcpListener,
    stopped: UnixStream,
    job: Job,
    connections: HashMap<u64, ClientConnection>,
    next: u64,
}

impl ServerLoop {
    fn run(mut self) {
        loop {
            let ids: Vec<u64> = self.connections.keys().copied().collect();
            let Some((stop, newcomers, ready)) = self.wait(&ids) else { break };
            if stop {
                let mut report = Vec::new();
                let read = self.stopped.read_to_end(&mut report);
                if read.is_ok_and(|length| length > 0) {
                    self.fail(BootstrapError::decode(&report));
                }
                break;
            }
            if newcomers {
                self.accept();
            }
            for id in ready {
                self.serve(id);
            }
            if self.job.failed.is_none()
                && let Some(error) = self.job.overdue()
            {
                self.fail(error);
            }
            self.sweep();
        }
        self.send_final_ack();
    }

    /// Returns whether to stop, whether a client connects, and which connections are ready.
    fn wait(&self, ids: &[u64]) -> Option<(bool, bool, Vec<u64>)> {
        let mut watched = vec![
            PollFd::from_borrowed_fd(self.stopped.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.listener.as_fd(), PollFlags::IN),
        ];
        for id in ids {
            let connection = &self.connections[id];
            let mut wanted = PollFlags::IN;
            if !connection.outgoing.is_empty() {
                wanted |= PollFlags::OUT;
            }
            watched.push(PollFd::from_borrowed_fd(connection.stream.as_fd(), wanted));
        }
        let tick = Timespec { tv_sec: 0, tv_nsec: i64::from(TICK.subsec_nanos()) };
        match poll(&mut watched, Some(&tick)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return None,
        }
        let ready: Vec<bool> = watched.iter().map(|fd| !fd.revents().is_empty()).collect();
        let active = ids.iter().zip(&ready[2..]).filter(|(_, ready)| **ready).map(|(id, _)| *id);
        Some((ready[0], ready[1], active.collect()))
    }

    fn accept(&mut self) {
        loop {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    // Out of descriptors, most likely: close those without a rank first.
                    tracing::warn!(%error, "bootstrap cannot accept a connection");
                    self.drop_oldest_unknown();
                    std::thread::sleep(Duration::from_millis(5));
                    return;
                }
            };
            if stream.set_nonblocking(true).is_err() || stream.set_nodelay(true).is_err() {
                continue;
            }
            if self.connections.values().filter(|one| one.rank.is_none()).count() >= UNKNOWN_MAX {
                self.drop_oldest_unknown();
            }
            let connection = ClientConnection {
                stream,
                opened: Instant::now(),
                magic_seen: false,
                rank: None,
                incoming: Vec::new(),
                outgoing: VecDeque::new(),
                sent: 0,
                closing: None,
                write_closed: false,
                dead: false,
            };
            self.connections.insert(self.next, connection);
            self.next += 1;
        }
    }

    fn drop_oldest_unknown(&mut self) {
        let unknown = self.connections.iter().filter(|(_, one)| one.rank.is_none());
        if let Some(oldest) = unknown.map(|(id, _)| *id).min() {
            self.connections.remove(&oldest);
        }
    }

    /// Makes progress on one connection.
    fn serve(&mut self, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.flush();
        let open = connection.fill();
        if connection.closing.is_some() {
            connection.dead |= !open;
            return;
        }
        loop {
            let Some(connection) = self.connections.get_mut(&id) else { return };
            match connection.next_frame() {
                Ok(Some((kind, body))) => {
                    if !self.handle(id, kind, &body) {
                        return;
                    }
                }
                Ok(None) if open => return,
                Ok(None) => return self.lost(id, false),
                Err(()) => return self.lost(id, true),
            }
        }
    }

    /// Handles a frame; returns `false` if the connection may not send any more.
    fn handle(&mut self, id: u64, kind: u8, body: &[u8]) -> bool {
        let Some(connection) = self.connections.get_mut(&id) else { return false };
        match (kind, connection.rank) {
            (kind::HELLO, None) => match ClientHello::decode(body) {
                Some(hello) => self.register(id, hello),
                None => connection.dead = true,
            },
            (kind::PART, Some(rank)) => self.take_part(rank, body.to_vec()),
            (kind::GOODBYE, Some(rank)) => {
                self.job.ranks[rank].left = true;
                self.job.ranks[rank].connection = None;
                connection.dead = true;
                self.check_left();
            }
            // Without a rank it is just closed; a rank that sends invalid frames counts as lost.
            _ => {
                self.lost(id, true);
                return false;
            }
        }
        self.connections.get(&id).is_some_and(|one| one.closing.is_none() && !one.dead)
    }

    fn register(&mut self, id: u64, hello: ClientHello) {
        let abort = self.job.failed.as_ref().map(|error| frame(kind::ABORT, &error.encode()));
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if let Some(abort) = abort {
            return connection.close_with(&abort.into());
        }
        match self.job.admit(&hello) {
            Err(text) => connection.close_with(&frame(kind::REFUSED, text.as_bytes()).into()),
            Ok(Err(error)) => {
                connection.close_with(&frame(kind::ABORT, &error.encode()).into());
                self.fail(error);
            }
            Ok(Ok(())) => {
                connection.rank = Some(hello.rank);
                connection.push(&frame(kind::ACCEPTED, &[]).into());
                connection.flush();
                let rank = &mut self.job.ranks[hello.rank];
                rank.hello = Some(hello);
                rank.connection = Some(id);
                self.job.registered += 1;
                if self.job.registered == self.job.member.size {
                    self.job.since = Instant::now();
                }
            }
        }
    }

    fn take_part(&mut self, rank: usize, part: Vec<u8>) {
        if self.job.failed.is_some() {
            return;
        }
        if self.job.ranks[rank].part.is_some() {
            let detail = format!("{} gave two parts in one round", self.job.name(rank));
            return self.fail(BootstrapError::Malformed { detail });
        }
        // Before all ranks have joined, the time limit applies to those that have not.
        if self.job.given == 0 && self.job.registered == self.job.member.size {
            self.job.since = Instant::now();
        }
        self.job.ranks[rank].part = Some(part);
        self.job.given += 1;
        if self.job.given < self.job.member.size {
            return self.check_left();
        }
        self.job.given = 0;
        let mut result = Vec::new();
        for rank in &mut self.job.ranks {
            push_field(&mut result, &rank.part.take().unwrap_or_default());
            if result.len() > RESULT_BYTES_MAX {
                let problem = format!("more than {RESULT_BYTES_MAX} bytes put by all ranks");
                return self.fail(BootstrapError::Invalid { problem });
            }
        }
        let result: Arc<[u8]> = frame(kind::RESULT, &result).into();
        for id in self.job.ranks.iter().filter_map(|rank| rank.connection) {
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.push(&result);
                connection.flush();
            }
        }
    }

    /// Fails the job if any rank waits for one that has left.
    fn check_left(&mut self) {
        let left = self.job.ranks.iter().position(|rank| rank.left && rank.part.is_none());
        if let (Some(rank), true) = (left, self.job.given > 0) {
            let detail = format!("{} left while others wait for it", self.job.name(rank));
            self.fail(BootstrapError::PeerLost { detail });
        }
    }

    /// Handles a connection that ended or sent invalid data.
    fn lost(&mut self, id: u64, nonsense: bool) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.dead = true;
        let Some(rank) = connection.rank else { return };
        if self.job.ranks[rank].left || self.job.failed.is_some() {
            return;
        }
        self.job.ranks[rank].connection = None;
        let what = if nonsense { "sent something unreadable" } else { "went away" };
        let detail = format!("{} {what}", self.job.name(rank));
        self.fail(BootstrapError::PeerLost { detail });
    }

    /// Ends the job for all ranks, including those that have yet to join.
    fn fail(&mut self, error: BootstrapError) {
        if self.job.failed.is_some() {
            return;
        }
        let abort: Arc<[u8]> = frame(kind::ABORT, &error.encode()).into();
        self.job.failed = Some(error);
        for connection in self.connections.values_mut().filter(|one| one.rank.is_some()) {
            connection.close_with(&abort);
            connection.flush();
        }
    }

    /// Removes connections that have ended; writing to a rank may have shown that it is gone.
    fn sweep(&mut self) {
        for connection in self.connections.values_mut() {
            connection.flush();
        }
        let dead = self.connections.iter().filter(|(_, one)| one.dead && one.rank.is_some());
        for id in dead.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.lost(id, false);
        }
        self.connections.retain(|_, connection| {
            let late = match connection.closing {
                Some(limit) => Instant::now() >= limit,
                None => connection.rank.is_none() && connection.opened.elapsed() > HELLO_TIME,
            };
            !connection.dead && !late
        });
    }

    /// Sends pending frames, and after a failure waits a moment until the others have read them.
    fn send_final_ack(mut self) {
        let limit = Instant::now() + LINGER;
        let failed = self.job.failed.is_some();
        // New connections are refused, so that their ranks try again or find the next job.
        drop(self.listener);
        self.connections
            .retain(|_, connection| connection.rank.is_some() || connection.closing.is_some());
        while Instant::now() < limit {
            self.connections.retain(|_, connection| {
                connection.flush();
                let open = !connection.dead && connection.fill();
                open && (failed || !connection.outgoing.is_empty())
            });
            if self.connections.is_empty() {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
