//! Sockets of processes that have not authenticated as part of the job.
//!
//! Closing a socket closes the descriptors in its queue, and closing the last descriptor of a file
//! can block for as long as its owner likes: a socket with SO_LINGER, a file on a FUSE file system.
//! Since Linux 6.16 a socket refuses descriptors (`SO_PASSRIGHTS` off) until its peer is
//! authenticated. On older kernels, a socket that may hold descriptors is closed by a dedicated
//! thread.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread;

use crate::forks::EngineFd;

/// From `asm-generic/socket.h`.
const SO_PASSRIGHTS: libc::c_int = 83;
/// Sockets of this process waiting to be closed, at most; beyond, no more are accepted.
const CLOSING_MAX: usize = 256;
const STACK_BYTES: usize = 64 * 1024;

/// Sockets handed to the closing thread.
static CLOSING: AtomicUsize = AtomicUsize::new(0);

/// A socket whose peer is not authenticated.
#[derive(Debug)]
pub(super) struct Untrusted {
    /// `Some` until it is admitted or dropped.
    socket: Option<EngineFd>,
    /// No descriptors can be in its queue.
    refuses_descriptors: bool,
}

impl Untrusted {
    /// A new socket, or one that a socket of [`Self::new`] has accepted.
    pub(super) fn new(socket: OwnedFd) -> Self {
        let refuses_descriptors =
            !is_older_kernel() && set_passes_descriptors(socket.as_fd(), false).is_ok();
        Self { socket: Some(EngineFd::new(socket)), refuses_descriptors }
    }

    /// A connection accepted by this listener. It refuses descriptors from the moment of the peer's
    /// `connect`, as it inherits that option.
    pub(super) fn accepted(&self, socket: OwnedFd) -> Self {
        Self { socket: Some(EngineFd::new(socket)), refuses_descriptors: self.refuses_descriptors }
    }

    /// The peer is authenticated: it may pass descriptors.
    pub(super) fn admit(&mut self) -> io::Result<()> {
        if self.refuses_descriptors {
            set_passes_descriptors(self.as_fd(), true)?;
            self.refuses_descriptors = false;
        }
        Ok(())
    }

    /// Accepts the pending connections of a listener that was shut down, until `next` fails; then
    /// closing it closes no other descriptors. Each connection is closed as any connection is.
    pub(super) fn drain(&mut self, next: impl Fn(BorrowedFd<'_>) -> io::Result<OwnedFd>) {
        while !self.refuses_descriptors {
            match next(self.as_fd()) {
                Ok(socket) => drop(self.accepted(socket)),
                // The queue is empty, and the listener was shut down.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                    self.refuses_descriptors = true;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.refuses_descriptors = true;
                }
                Err(_) => return,
            }
        }
    }

    /// Whether it belongs to a parent of this process.
    pub(super) fn is_inherited(&self) -> bool {
        self.socket.as_ref().is_some_and(EngineFd::is_inherited)
    }

    /// The socket of an authenticated peer.
    pub(super) fn into_trusted(mut self) -> Option<EngineFd> {
        self.socket.take()
    }
}

impl AsFd for Untrusted {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Some(socket) => socket.as_fd(),
            // Taken only by methods that consume this.
            None => unreachable!("the socket is there until the end"),
        }
    }
}

impl Drop for Untrusted {
    fn drop(&mut self) {
        let Some(socket) = self.socket.take() else { return };
        if self.refuses_descriptors || socket.is_inherited() {
            drop(socket);
        } else {
            close_elsewhere(socket);
        }
    }
}

#[cfg(test)]
thread_local! {
    /// New sockets of this thread behave as on a kernel before Linux 6.16.
    pub(super) static HAS_OLDER_KERNEL: std::cell::Cell<bool> = const {
        std::cell::Cell::new(false)
    };
}

#[cfg(test)]
fn is_older_kernel() -> bool {
    HAS_OLDER_KERNEL.get()
}

#[cfg(not(test))]
const fn is_older_kernel() -> bool {
    false
}

/// Whether too many sockets wait to be closed to accept more.
pub(super) fn are_too_many_closing() -> bool {
    CLOSING.load(Ordering::Relaxed) >= CLOSING_MAX
}

/// Closes it on a dedicated thread. If none can be started, the socket stays open and counts as
/// waiting: closing it here could block the engine.
fn close_elsewhere(socket: EngineFd) {
    static QUEUE: OnceLock<Option<Sender<EngineFd>>> = OnceLock::new();
    CLOSING.fetch_add(1, Ordering::Relaxed);
    let start = || {
        let (queue, sockets) = mpsc::channel();
        let close_all = move || {
            for socket in sockets {
                drop::<EngineFd>(socket);
                CLOSING.fetch_sub(1, Ordering::Relaxed);
            }
        };
        let thread = thread::Builder::new().name("ringrail-close".into()).stack_size(STACK_BYTES);
        if let Err(error) = thread.spawn(close_all) {
            tracing::warn!(
                "no thread to close sockets of processes that are not in the job: {error}; after \
                 {CLOSING_MAX} of them this process shares no memory with new peers; raise the \
                 limit of threads (RLIMIT_NPROC, pids.max), or use Linux 6.16"
            );
            return None;
        }
        Some(queue)
    };
    match QUEUE.get_or_init(start) {
        Some(queue) => {
            if let Err(mpsc::SendError(socket)) = queue.send(socket) {
                mem::forget(socket);
            }
        }
        None => mem::forget(socket),
    }
}

/// Sets whether peers can pass descriptors by a socket.
///
/// # Errors
///
/// The kernel is older than Linux 6.16.
fn set_passes_descriptors(socket: BorrowedFd<'_>, does: bool) -> io::Result<()> {
    let value = libc::c_int::from(does);
    let length = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the kernel reads `length` bytes, which `value` has.
    let failed = unsafe {
        let value = (&raw const value).cast();
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_PASSRIGHTS, value, length)
    };
    if failed != 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
