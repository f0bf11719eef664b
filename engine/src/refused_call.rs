//! System calls that the kernel, or a policy of the host, refuses.

use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit};

/// A refused call. Its text names the call, the system's error, and the cure.
#[derive(Debug, thiserror::Error)]
#[error("{call}(2) failed: {cause}: {}", cure(call, cause))]
pub(crate) struct RefusedCall {
    call: &'static str,
    #[source]
    cause: io::Error,
}

/// Returns a function that makes the error of a failed call with this name.
pub(crate) fn refused<E: Into<io::Error>>(call: &'static str) -> impl Fn(E) -> io::Error {
    move |cause| {
        let cause = cause.into();
        io::Error::new(cause.kind(), RefusedCall { call, cause })
    }
}

/// As [`refused`], for calls that networks and peers make fail too: those errors stay unchanged.
pub(crate) fn if_refused<E: Into<io::Error>>(call: &'static str) -> impl Fn(E) -> io::Error {
    move |cause| {
        let cause = cause.into();
        if is_refusal(&cause) { refused(call)(cause) } else { cause }
    }
}

/// Returns whether an error is caused by this host.
fn is_refusal(error: &io::Error) -> bool {
    let numbers = [
        libc::EPERM,
        libc::EACCES,
        libc::ENOSYS,
        libc::ENOMEM,
        libc::ENOBUFS,
        libc::EMFILE,
        libc::ENFILE,
    ];
    error.raw_os_error().is_some_and(|number| numbers.contains(&number))
}

/// Returns whether trying again is useless: a policy refuses the call, or the kernel is too old.
pub(crate) fn is_for_good(error: &io::Error) -> bool {
    matches!(number_of(error), Some(libc::EPERM | libc::EACCES | libc::ENOSYS))
}

/// Limits a log line to one a minute, for events that may happen each millisecond.
pub(crate) struct Seldom(Mutex<Option<Instant>>);

impl Seldom {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Returns whether the line is due. To be called after a failure only.
    pub(crate) fn is_due(&self) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = last.is_none_or(|last| last.elapsed() >= Duration::from_secs(60));
        if is_due {
            *last = Some(Instant::now());
        }
        is_due
    }
}

/// Returns the system's error number, also of an error made by [`refused`], and of one whose text
/// the engine has replaced.
pub(crate) fn number_of(error: &io::Error) -> Option<i32> {
    let inner = || error.get_ref()?.downcast_ref::<RefusedCall>()?.cause.raw_os_error();
    let by_kind = || match error.kind() {
        io::ErrorKind::AddrInUse => Some(libc::EADDRINUSE),
        io::ErrorKind::OutOfMemory => Some(libc::ENOMEM),
        io::ErrorKind::FileTooLarge => Some(libc::EFBIG),
        _ => None,
    };
    error.raw_os_error().or_else(inner).or_else(by_kind)
}

fn cure(call: &str, cause: &io::Error) -> String {
    match cause.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "a seccomp profile, a security module or a firewall of this host forbids it; allow it \
             there (containers: another profile)"
                .to_owned()
        }
        Some(libc::ENOSYS) => {
            "neither this kernel nor the seccomp profile of the process has the call; run a newer \
             kernel, or allow it there"
                .to_owned()
        }
        Some(libc::ENOMEM | libc::ENOBUFS) => {
            "the kernel has no memory for it; free some, or raise the limit of the control group \
             (memory.max) or of locked memory (ulimit -l)"
                .to_owned()
        }
        Some(libc::EAGAIN) => {
            "a limit of this user or process is reached; raise it (ulimit -a shows them)".to_owned()
        }
        Some(libc::EMFILE) => descriptor_cure(),
        Some(libc::ENFILE) => {
            "the host has as many open files as it may; raise the sysctl fs.file-max".to_owned()
        }
        _ => format!("see this error in the manual page {call}(2)"),
    }
}

/// Returns the cure for a call that failed because no descriptor is left.
pub(crate) fn descriptor_cure() -> String {
    let limit = getrlimit(Resource::Nofile).current;
    let limit = limit.map_or_else(|| "no limit".to_owned(), |limit| limit.to_string());
    format!(
        "this process has as many descriptors as it may ({limit}); close some, open fewer \
         endpoints, or raise its limit (ulimit -n, RLIMIT_NOFILE; in a service LimitNOFILE=)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Error;

    #[test]
    fn an_error_with_another_text_has_the_number_of_its_kind() {
        for (kind, number) in [
            (io::ErrorKind::AddrInUse, Some(libc::EADDRINUSE)),
            (io::ErrorKind::OutOfMemory, Some(libc::ENOMEM)),
            (io::ErrorKind::FileTooLarge, Some(libc::EFBIG)),
            (io::ErrorKind::Other, None),
        ] {
            let error = io::Error::new(kind, "another text");
            assert_eq!(number_of(&error), number);
            let errno = Error::system("cannot bind", error).errno();
            assert_eq!(errno, number.unwrap_or(libc::EIO));
        }
    }

    fn system_error(number: i32) -> io::Error {
        io::Error::from_raw_os_error(number)
    }

    #[test]
    fn the_text_has_call_cause_and_cure_and_the_number_is_kept() {
        for number in [libc::EPERM, libc::ENOSYS, libc::ENOMEM, libc::EAGAIN, libc::EINVAL] {
            let cause = system_error(number);
            let cause_text = cause.to_string();
            let error = Error::system("cannot wait", refused("epoll_wait")(cause));
            assert_eq!(error.errno(), number);
            assert_eq!(number_of(&refused("epoll_wait")(system_error(number))), Some(number));
            let text = error.to_string();
            let call = "cannot wait: epoll_wait(2) failed: ";
            assert!(text.starts_with(&format!("{call}{cause_text}: ")), "{text}");
        }
    }
}
