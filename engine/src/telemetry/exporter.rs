//! Tells Prometheus what engines counted: a thread that never touches an engine.
//!
//! Each engine's owner leaves its statistics in a slot once in a while, without ever waiting; the
//! thread fetches them when it is asked. It serves one client at a time, each for a bounded time.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError, TryLockError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, getpid};

use super::{Statistics, prometheus};

/// Longest request.
const REQUEST_BYTES_MAX: usize = 4096;
/// Time that a client has to ask, and again to read the answer.
const CLIENT_MAX: Duration = Duration::from_secs(1);
/// Time that a client has to leave once it has its answer, and how often it is read until then.
const LEAVE_MAX: Duration = Duration::from_millis(200);
const REQUESTS_DRAINED_MAX: usize = 64;
/// Pause after a client that could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The newest statistics of one engine.
#[derive(Debug, Default)]
pub(crate) struct Slot(Mutex<Option<Arc<Statistics>>>);

impl Slot {
    /// Replaces them. Never waits: while they are being fetched the older ones stay.
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

    /// The newest, if there are any.
    pub(crate) fn get(&self) -> Option<Arc<Statistics>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What the endpoints of a domain share with its exporter.
#[derive(Debug, Default)]
struct Slots(Mutex<Vec<Weak<Slot>>>);

impl Slots {
    /// One for an engine, gone when that is.
    fn add(&self) -> Arc<Slot> {
        let slot = Arc::new(Slot::default());
        let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        slots.retain(|slot| slot.strong_count() > 0);
        slots.push(Arc::downgrade(&slot));
        slot
    }

    /// What all engines published last.
    fn text(&self) -> String {
        let slots = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let newest: Vec<_> = slots.iter().filter_map(|slot| slot.upgrade()?.get()).collect();
        prometheus(&newest.iter().map(Arc::as_ref).collect::<Vec<_>>())
    }
}

/// A thread that tells by HTTP what engines published. It ends when this is dropped, at once
/// whatever a client does.
#[derive(Debug)]
pub(crate) struct Exporter {
    slots: Arc<Slots>,
    address: SocketAddr,
    thread: Option<JoinHandle<()>>,
    /// The thread's waits end when this is closed.
    end: Option<UnixStream>,
    /// Whose thread it is.
    process: Pid,
}

impl Exporter {
    /// Listens at `address` from now on.
    ///
    /// # Errors
    ///
    /// The address is taken or not this host's, or the system has no thread or descriptor left.
    pub(crate) fn open(address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (end, ended) = UnixStream::pair()?;
        let slots = Arc::new(Slots::default());
        let shared = Arc::clone(&slots);
        let thread = std::thread::Builder::new()
            .name("ringrail-stats".into())
            .spawn(move || serve(&listener, &ended, &shared))?;
        let (thread, end) = (Some(thread), Some(end));
        Ok(Self { slots, address, thread, end, process: getpid() })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where one more engine leaves its statistics.
    pub(crate) fn slot(&self) -> Arc<Slot> {
        self.slots.add()
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.end = None;
        if self.process != getpid() {
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

/// Why a client gets nothing more.
#[derive(Debug)]
enum Failure {
    /// It is gone, or too slow.
    Client,
    /// The exporter ends.
    Ended,
}

fn serve(listener: &TcpListener, ended: &UnixStream, slots: &Slots) {
    loop {
        if wait(listener, PollFlags::IN, ended, None).is_err() {
            return;
        }
        match listener.accept() {
            Ok((client, from)) => {
                let deadline = Instant::now() + CLIENT_MAX;
                match answer(&client, ended, slots, deadline) {
                    Ok(()) => {}
                    Err(Failure::Client) => tracing::debug!(%from, "a scrape came to nothing"),
                    Err(Failure::Ended) => return,
                }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            // The client has left, or no descriptor is free.
            Err(error) => {
                tracing::debug!("cannot accept a scrape: {error}");
                let until = Some(Instant::now() + ACCEPT_PAUSE);
                if let Err(Failure::Ended) = wait(ended, PollFlags::empty(), ended, until) {
                    return;
                }
            }
        }
    }
}

/// One request and its answer.
fn answer(
    client: &TcpStream,
    ended: &UnixStream,
    slots: &Slots,
    deadline: Instant,
) -> Result<(), Failure> {
    client.set_nonblocking(true).map_err(|_| Failure::Client)?;
    let mut room = [0; REQUEST_BYTES_MAX];
    let mut length = 0;
    let mut until = deadline;
    let response = loop {
        if let Some(line) = request_line(&room[..length]) {
            break respond(line, slots);
        }
        if length == room.len() {
            break plain("431 Request Header Fields Too Large");
        }
        match (&*client).read(&mut room[length..]) {
            // As from a client that says no more than one line.
            Ok(0) if length == 0 => return Err(Failure::Client),
            Ok(0) => break plain("400 Bad Request"),
            Ok(more) => length += more,
            Err(error) => retry(&error, client, PollFlags::IN, ended, until)?,
        }
    };
    // Whoever was slow to ask has some time left to read.
    until = until.max(Instant::now() + CLIENT_MAX);
    let mut rest = response.as_bytes();
    while !rest.is_empty() {
        match (&*client).write(rest) {
            Ok(0) => return Err(Failure::Client),
            Ok(written) => rest = &rest[written..],
            Err(error) => retry(&error, client, PollFlags::OUT, ended, until)?,
        }
    }
    let _ = client.shutdown(Shutdown::Write);
    // With bytes unread, closing would reset what the client has not read yet.
    let until = Instant::now() + LEAVE_MAX;
    for _ in 0..REQUESTS_DRAINED_MAX {
        match (&*client).read(&mut room) {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) => retry(&error, client, PollFlags::IN, ended, until)?,
        }
    }
    Ok(())
}

/// The first line of a request that has come as far as its empty line.
fn request_line(bytes: &[u8]) -> Option<&[u8]> {
    let has = |end: &[u8]| bytes.windows(end.len()).any(|window| window == end);
    let is_whole = has(b"\r\n\r\n") || has(b"\n\n");
    is_whole.then(|| bytes.split(|&byte| byte == b'\n').next().unwrap_or_default())
}

fn respond(line: &[u8], slots: &Slots) -> String {
    let Ok(line) = std::str::from_utf8(line) else { return plain("400 Bad Request") };
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let &[method, target, version] = &words[..] else { return plain("400 Bad Request") };
    if !version.starts_with("HTTP/") {
        return plain("400 Bad Request");
    }
    let path = target.split_once('?').map_or(target, |(path, _)| path);
    match (method, path) {
        ("GET", "/metrics" | "/") => whole("200 OK", &slots.text()),
        ("GET", _) => plain("404 Not Found"),
        _ => plain("405 Method Not Allowed"),
    }
}

/// A response that says its status and no more.
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

/// After a call that failed: waits until it may be made again.
fn retry(
    error: &io::Error,
    client: &TcpStream,
    flags: PollFlags,
    ended: &UnixStream,
    until: Instant,
) -> Result<(), Failure> {
    match error.kind() {
        ErrorKind::Interrupted => Ok(()),
        ErrorKind::WouldBlock => wait(client, flags, ended, Some(until)),
        _ => Err(Failure::Client),
    }
}

/// Waits until a socket is as `flags` say, `until` then at the most.
fn wait(
    socket: &impl AsFd,
    flags: PollFlags,
    ended: &UnixStream,
    until: Option<Instant>,
) -> Result<(), Failure> {
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Err(Failure::Client);
        }
        let timeout = left.map(|left| Timespec {
            // Of a second or so.
            tv_sec: left.as_secs().cast_signed(),
            tv_nsec: left.subsec_nanos().into(),
        });
        // Nobody writes to it: it becomes readable by its end.
        let mut both =
            [PollFd::new(socket, flags), PollFd::new(ended, PollFlags::IN | PollFlags::HUP)];
        match poll(&mut both, timeout.as_ref()) {
            Ok(_) if !both[1].revents().is_empty() => return Err(Failure::Ended),
            Ok(_) if !both[0].revents().is_empty() => return Ok(()),
            Ok(_) | Err(Errno::INTR) => {}
            // No memory for it; without a wait there is no serving.
            Err(_) => return Err(Failure::Ended),
        }
    }
}
