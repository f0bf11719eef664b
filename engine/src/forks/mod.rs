//! What a child of `fork` does with the engines of its parent: nothing.
//!
//! A child has copies of all descriptors and of all memory. A copy of a socket keeps its connection
//! open when the parent is killed, so that its peers never learn of it; a copy of a ring or of an
//! engine leads to kernel state and to threads that are the parent's. So a handler of
//! `pthread_atfork` closes the descriptors ([`EngineFd`], [`Registration`]) and the engines
//! ([`Gate`]) in the child, before `fork` returns there. It makes system calls and stores to memory
//! alone: it neither allocates nor takes a lock, which a thread may hold that does not exist in the
//! child.
//!
//! A child that `vfork` or a raw `clone` made runs no handlers. A child that executes another
//! program needs none, for all descriptors close then.

mod descriptors;
mod gates;

use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use rustix::process::{Pid, getpid};

pub(crate) use self::descriptors::EngineFd;
#[cfg(feature = "xdp")]
pub(crate) use self::descriptors::Registration;
pub(crate) use self::gates::{Closable, Gate};

/// A part of a table that is read by the handler in children: made when it is needed, never freed.
struct Part<T>(AtomicPtr<T>);

impl<T: Send + Sync + 'static> Part<T> {
    const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    fn get(&self) -> Option<&'static T> {
        // SAFETY: a part is leaked when it is made, and only shared references to it are made,
        // which any thread may use: it is `Sync`.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    fn get_or_make(&self, make: impl FnOnce() -> Box<T>) -> &'static T {
        if let Some(known) = self.get() {
            return known;
        }
        let fresh = Box::into_raw(make());
        match self.0.compare_exchange(ptr::null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: it was made above, and is leaked.
            Ok(_) => unsafe { &*fresh },
            Err(other) => {
                // SAFETY: it was made above, and nothing else refers to it.
                drop(unsafe { Box::from_raw(fresh) });
                // SAFETY: as in `get`.
                unsafe { &*other }
            }
        }
    }
}

/// The error of calls with an inherited engine; those that have no error to give panic with it.
pub const INHERITED: &str = "this process forked from the one that opened the engine, which \
     works there alone: drop the handle here, and open a domain and an endpoint of this process";

/// Forks between the process that first opened an engine and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Names the calling process among its ancestors by `fork`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Generation(u32);

impl Generation {
    /// Of the calling process.
    #[inline]
    pub(crate) fn current() -> Self {
        Self(GENERATION.load(Ordering::Relaxed))
    }

    /// Whether it is the calling process's own.
    #[inline]
    pub(crate) fn is_current(self) -> bool {
        self == Self::current()
    }
}

/// The process that made an object. A child of `fork` has a copy of the object, which it can only
/// drop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OwnerProcess {
    process: Pid,
    generation: Generation,
}

impl OwnerProcess {
    /// Returns the calling process.
    pub(crate) fn current() -> Self {
        install();
        Self { process: getpid(), generation: Generation::current() }
    }

    /// Returns whether the calling process is another one, however it was made. One system call.
    pub(crate) fn is_inherited(&self) -> bool {
        self.is_forked() || self.process != getpid()
    }

    /// As [`Self::is_inherited`], for frequent calls: it reads memory, and does not notice a child
    /// that ran no fork handlers.
    #[inline]
    pub(crate) fn is_forked(&self) -> bool {
        !self.generation.is_current()
    }
}

/// Has the handler run in children from now on.
fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // SAFETY: the handler makes only calls that a child may make whose other threads are
        // missing, and lives as long as the library, with which the C library forgets it.
        let refused = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        if refused != 0 {
            let error = std::io::Error::from_raw_os_error(refused);
            tracing::warn!(
                "children of fork keep the descriptors of engines: {error}; when this process is \
                 killed while one of them runs, its peers notice after silent_timeout only"
            );
        }
    });
}

/// Has a function run when this process ends by `exit` or by the end of `main`; also in children of
/// `fork`, which [`Generation`] distinguishes. It must not unwind.
pub(crate) fn at_exit(function: extern "C" fn()) {
    // SAFETY: the function is one of this library, which the C library forgets with it, takes
    // nothing, and may do what functions at the end of a process may.
    if unsafe { libc::atexit(function) } != 0 {
        tracing::warn!("the C library runs no further function at the end of the process");
    }
}

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    gates::close_all();
    descriptors::close_all();
}
