//! Exports statistics to Prometheus, from a thread that never touches an engine.
//!
//! Each engine's owner publishes its statistics in a slot periodically, without ever waiting; the
//! thread reads them on request. It serves a few clients at once, each for a bounded time,
//! and ends at once with its domain. No small HTTP server promises that: `tiny_http` 0.12 has a
//! thread per connection, for as long as a client likes, and no bound on a request. So sockets are
//! handled here, and requests are read by `httparse`.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError, TryLockError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use httparse::Status;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::{Statistics, prometheus};
use crate::forks::{EngineFd, OwnerProcess};

/// Longest request, and most headers in it.
const REQUEST_BYTES_MAX: usize = 4096;
const HEADERS_MAX: usize = 64;
const BAD_REQUEST: &str = "400 Bad Request";
const TOO_LARGE: &str = "431 Request Header Fields Too Large";
/// The largest number of concurrent clients; above it, the one idle for longest is closed.
const CLIENTS_MAX: usize = 8;
/// Time that a client has to send its request, and again to read the answer and to close.
const CLIENT_MAX: Duration = Duration::from_secs(1);
/// Time that a client has to close once it has its answer, and how often it is read until then.
const LEAVE_MAX: Duration = Duration::from_millis(200);
const REQUESTS_DRAINED_MAX: usize = 64;
/// Pause after a client that could not be accepted, or a wait that failed.
const PAUSE: Duration = Duration::from_millis(100);

/// The newest statistics of one engine.
#[derive(Debug, Default)]
pub(crate) struct StatisticsSlot(Mutex<Option<Arc<Statistics>>>);

impl StatisticsSlot {
    /// Replaces the statistics. Never waits: while they are being read, the older ones stay.
    pub(crate) fn put(&self, statistics: Statistics) {
        let statistics = Some(Arc::new(statistics));
        let before = match self.0.try_lock() {
            Ok(mut newest) => std::mem::replace(&mut *newest, statistics),
            Err(TryLockError::Poisoned(newest)) => {
                std::mem::replace(&mut *newest.into_inner(), statistics)
            }
            Err(TryLockError::WouldBlock) => None,
        };
        // Outside of the lock.
        drop(before);
    }

    /// Returns the newest statistics, if any.
    pub(crate) fn get(&self) -> Option<Arc<Statistics>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What the endpoints of a domain share with its exporter.
#[derive(Debug, Default)]
struct ExporterSlots(Mutex<Vec<Weak<StatisticsSlot>>>);

impl ExporterSlots {
    /// Adds a slot for an engine; it is removed after the engine has dropped it.
    fn add(&self) -> Arc<StatisticsSlot> {
        let slot = Arc::new(StatisticsSlot::default());
        let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        slots.retain(|slot| slot.strong_count() > 0);
        slots.push(Arc::downgrade(&slot));
        slot
    }

    /// Returns the latest statistics of all engines.
    fn text(&self) -> String {
        let slots = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let newest: Vec<_> = slots.iter().filter_map(|slot| slot.upgrade()?.get()).collect();
        prometheus(&newest.iter().map(Arc::as_ref).collect::<Vec<_>>())
    }
}

/// A thread that serves the published statistics over HTTP. It ends at once when this is dropped,
/// regardless of its clients.
#[derive(Debug)]
pub(crate) struct Exporter {
    slots: Arc<ExporterSlots>,
    address: SocketAddr,
    thread: Option<JoinHandle<()>>,
    /// The thread's waits end when this is closed.
    end: Option<UnixStream>,
    /// The process that the thread belongs to.
    owner: OwnerProcess,
}

impl Exporter {
    /// Starts listening at `address`.
    ///
    /// # Errors
    ///
    /// The address is taken or not this host's, or the system has no thread or descriptor left.
    pub(crate) fn open(address: SocketAddr) -> io::Result<Self> {
        let listener = EngineFd::new(TcpListener::bind(address)?);
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (end, ended) = UnixStream::pair()?;
        let slots = Arc::new(ExporterSlots::default());
        let shared = Arc::clone(&slots);
        let thread = std::thread::Builder::new()
            .name("ringrail-stats".into())
            .spawn(move || serve(&listener, &ended, &shared, poll))?;
        let (thread, end) = (Some(thread), Some(end));
        Ok(Self { slots, address, thread, end, owner: OwnerProcess::current() })
    }

    /// Returns the address at which it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Adds a slot for the statistics of an engine.
    pub(crate) fn slot(&self) -> Arc<StatisticsSlot> {
        self.slots.add()
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.end = None;
        if self.owner.is_inherited() {
            // A child of `fork` has no such thread; its parent's goes on.
            std::mem::forget(self.thread.take());
        }
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::warn!("the exporter of statistics had panicked");
        }
    }
}

/// The state of a client.
#[derive(Debug)]
enum ClientPhase {
    /// This many bytes of its request have been received.
    Asks(Box<[u8; REQUEST_BYTES_MAX]>, usize),
    /// This many bytes of its answer have been sent.
    Reads(String, usize),
    /// The answer has been sent; the connection was read this many times since.
    Leaves(usize),
}

/// A client, with its deadline.
#[derive(Debug)]
struct Client {
    stream: TcpStream,
    from: SocketAddr,
    phase: ClientPhase,
    until: Instant,
    /// The deadline, regardless of progress.
    last: Instant,
}

impl Client {
    fn new(stream: TcpStream, from: SocketAddr) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let (now, room) = (Instant::now(), Box::new([0; REQUEST_BYTES_MAX]));
        let (until, last) = (now + CLIENT_MAX, now + 2 * CLIENT_MAX);
        Ok(Self { stream, from, phase: ClientPhase::Asks(room, 0), until, last })
    }

    /// Returns the events to wait for.
    fn flags(&self) -> PollFlags {
        match self.phase {
            ClientPhase::Asks(..) | ClientPhase::Leaves(_) => PollFlags::IN,
            ClientPhase::Reads(..) => PollFlags::OUT,
        }
    }

    /// Makes as much progress as possible. Returns `Ok` when the client has its answer and has
    /// closed.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if it must be waited for. Any other error means that the client failed.
    fn serve(&mut self, slots: &ExporterSlots) -> io::Result<()> {
        loop {
            let next = match &mut self.phase {
                ClientPhase::Asks(room, length) => {
                    let response = if let Some(response) = respond(&room[..*length], slots) {
                        response
                    } else if *length == room.len() {
                        plain(TOO_LARGE)
                    } else {
                        match (&self.stream).read(&mut room[*length..])? {
                            0 if *length == 0 => return Err(ErrorKind::UnexpectedEof.into()),
                            // As from a client that sends a single line only.
                            0 => plain(BAD_REQUEST),
                            more => {
                                *length += more;
                                continue;
                            }
                        }
                    };
                    self.until = Instant::now() + CLIENT_MAX;
                    ClientPhase::Reads(response, 0)
                }
                ClientPhase::Reads(response, sent) if *sent < response.len() => {
                    match (&self.stream).write(&response.as_bytes()[*sent..])? {
                        0 => return Err(ErrorKind::WriteZero.into()),
                        written => *sent += written,
                    }
                    continue;
                }
                ClientPhase::Reads(..) => {
                    let _ = self.stream.shutdown(Shutdown::Write);
                    self.until = Instant::now() + LEAVE_MAX;
                    ClientPhase::Leaves(0)
                }
                ClientPhase::Leaves(REQUESTS_DRAINED_MAX) => return Ok(()),
                ClientPhase::Leaves(drained) => {
                    // With bytes unread, closing would reset what the client has not read yet.
                    if (&self.stream).read(&mut [0; REQUEST_BYTES_MAX])? == 0 {
                        return Ok(());
                    }
                    *drained += 1;
                    continue;
                }
            };
            self.phase = next;
        }
    }

    /// As [`Self::serve`]; returns whether to keep the client.
    fn stays(&mut self, slots: &ExporterSlots) -> bool {
        loop {
            match self.serve(slots) {
                Ok(()) => return false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(error) => {
                    tracing::debug!(from = %self.from, "a scrape came to nothing: {error}");
                    return false;
                }
            }
        }
    }

    fn ends(&self) -> Instant {
        self.until.min(self.last)
    }
}

/// The call that waits.
type Wait = fn(&mut [PollFd<'_>], Option<&Timespec>) -> Result<usize, Errno>;

/// The thread: waits for clients and for its end.
fn serve(listener: &TcpListener, ended: &UnixStream, slots: &ExporterSlots, wait: Wait) {
    // The oldest client comes first.
    let mut clients: Vec<Client> = Vec::new();
    let mut rests_until: Option<Instant> = None;
    let mut is_warned = false;
    loop {
        let now = Instant::now();
        rests_until = rests_until.filter(|&until| now < until);
        clients.retain(|client| {
            let is_late = client.ends() <= now;
            if is_late {
                tracing::debug!(from = %client.from, "a scrape took too long");
            }
            !is_late
        });
        // Nothing is written to `ended`: it becomes readable when it is closed.
        let mut fds = vec![PollFd::new(ended, PollFlags::IN)];
        let asks = if rests_until.is_none() { PollFlags::IN } else { PollFlags::empty() };
        fds.push(PollFd::new(listener, asks));
        fds.extend(clients.iter().map(|client| PollFd::new(&client.stream, client.flags())));
        let next = clients.iter().map(Client::ends).chain(rests_until).min();
        let left = next.map(|next| next.saturating_duration_since(now));
        let timeout = left.map(|left| Timespec {
            // Of two seconds or less.
            tv_sec: left.as_secs().cast_signed(),
            tv_nsec: left.subsec_nanos().into(),
        });
        match wait(&mut fds, timeout.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(error) => {
                // No memory for it, or a limit: it passes, or the domain ends.
                if !std::mem::replace(&mut is_warned, true) {
                    tracing::warn!("metrics endpoint: cannot serve requests: {error}");
                }
                std::thread::sleep(PAUSE);
                if has_ended(ended) {
                    return;
                }
                continue;
            }
        }
        if !fds[0].revents().is_empty() {
            return;
        }
        let comes = rests_until.is_none() && !fds[1].revents().is_empty();
        let called: Vec<bool> = fds[2..].iter().map(|fd| !fd.revents().is_empty()).collect();
        let mut called = called.into_iter();
        clients.retain_mut(|client| !called.next().unwrap_or(false) || client.stays(slots));
        if !comes {
            continue;
        }
        match listener.accept().and_then(|(stream, from)| Client::new(stream, from)) {
            Ok(mut client) => {
                is_warned = false;
                if client.stays(slots) {
                    make_room(&mut clients);
                    clients.push(client);
                }
            }
            // It has closed already.
            Err(error) if is_passing(&error) => {}
            Err(error) => {
                if !std::mem::replace(&mut is_warned, true) {
                    tracing::warn!("metrics endpoint: cannot serve requests: {error}");
                }
                rests_until = Some(Instant::now() + PAUSE);
            }
        }
    }
}

/// Makes room for one more client.
fn make_room(clients: &mut Vec<Client>) {
    if clients.len() < CLIENTS_MAX {
        return;
    }
    let is_silent = |client: &Client| matches!(client.phase, ClientPhase::Asks(_, 0));
    let gone = clients.remove(clients.iter().position(is_silent).unwrap_or(0));
    tracing::debug!(from = %gone.from, "a scrape makes room for another one");
}

fn is_passing(error: &io::Error) -> bool {
    let kinds = [ErrorKind::WouldBlock, ErrorKind::Interrupted, ErrorKind::ConnectionAborted];
    kinds.contains(&error.kind())
}

/// Returns whether the exporter has been dropped, without waiting.
fn has_ended(mut ended: &UnixStream) -> bool {
    let _ = ended.set_nonblocking(true);
    matches!(ended.read(&mut [0]), Ok(0))
}

/// Returns the response to a request; `None` if the request is incomplete.
fn respond(request: &[u8], slots: &ExporterSlots) -> Option<String> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut parsed = httparse::Request::new(&mut headers);
    match parsed.parse(request) {
        Ok(Status::Partial) => return None,
        Ok(Status::Complete(_)) => {}
        Err(httparse::Error::TooManyHeaders) => return Some(plain(TOO_LARGE)),
        Err(_) => return Some(plain(BAD_REQUEST)),
    }
    let target = parsed.path.unwrap_or_default();
    let path = target.split_once('?').map_or(target, |(path, _)| path);
    Some(match (parsed.method, path) {
        (Some("GET"), "/metrics" | "/") => whole("200 OK", &slots.text()),
        (Some("GET"), _) => plain("404 Not Found"),
        _ => plain("405 Method Not Allowed"),
    })
}

/// Returns a response with a status only.
fn plain(status: &str) -> String {
    whole(status, &format!("{status}\n"))
}

fn whole(status: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.0 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
         Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// The number of waits that failed.
    static FAILED: AtomicUsize = AtomicUsize::new(0);

    /// Fails a few times, as without memory.
    fn fails_at_first(fds: &mut [PollFd<'_>], timeout: Option<&Timespec>) -> Result<usize, Errno> {
        if FAILED.fetch_add(1, Ordering::Relaxed) < 3 {
            Err(Errno::NOMEM)
        } else {
            poll(fds, timeout)
        }
    }

    #[test]
    fn exporter_survives_failed_waits() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let (end, ended) = UnixStream::pair().unwrap();
        let thread = std::thread::spawn(move || {
            serve(&listener, &ended, &ExporterSlots::default(), fails_at_first);
        });
        let mut client = TcpStream::connect(address).unwrap();
        client.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.0 200 OK\r\n"), "{answer}");
        assert!(FAILED.load(Ordering::Relaxed) > 3);
        // It ends while waits fail, too.
        FAILED.store(0, Ordering::Relaxed);
        drop(end);
        thread.join().unwrap();
    }
}
