//! Errors as libfabric numbers them.

use std::ffi::{CStr, c_char, c_int};

use ringrail::{Error, ErrorKind};

use crate::abi::consts;

/// An error number, positive: calls return it negated, error entries as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Errno(c_int);

macro_rules! numbers {
    ($($name:ident = $number:expr;)*) => {
        impl Errno {
            $(
                #[allow(dead_code, reason = "a list, not only of what is used")]
                pub(crate) const $name: Self = Self($number);
            )*
        }
    };
}

numbers! {
    ACCES = libc::EACCES;
    ADDRNOTAVAIL = libc::EADDRNOTAVAIL;
    AGAIN = libc::EAGAIN;
    BUSY = libc::EBUSY;
    CANCELED = libc::ECANCELED;
    CONNREFUSED = libc::ECONNREFUSED;
    FAULT = libc::EFAULT;
    INVAL = libc::EINVAL;
    ISCONN = libc::EISCONN;
    MSGSIZE = libc::EMSGSIZE;
    NODATA = libc::ENODATA;
    NOENT = libc::ENOENT;
    NOMEM = libc::ENOMEM;
    NOMSG = libc::ENOMSG;
    NOPROTOOPT = libc::ENOPROTOOPT;
    NOSPC = libc::ENOSPC;
    NOSYS = consts::FI_ENOSYS;
    NOTCONN = libc::ENOTCONN;
    OPNOTSUPP = libc::EOPNOTSUPP;
    TIMEDOUT = libc::ETIMEDOUT;
    OTHER = consts::FI_EOTHER;
    TOOSMALL = consts::FI_ETOOSMALL;
    OPBADSTATE = consts::FI_EOPBADSTATE;
    AVAIL = consts::FI_EAVAIL;
    BADFLAGS = consts::FI_EBADFLAGS;
    NOEQ = consts::FI_ENOEQ;
    DOMAIN = consts::FI_EDOMAIN;
    NOCQ = consts::FI_ENOCQ;
    TRUNC = consts::FI_ETRUNC;
    NOKEY = consts::FI_ENOKEY;
    NOAV = consts::FI_ENOAV;
    OVERRUN = consts::FI_EOVERRUN;
}

impl Errno {
    /// As in error entries.
    pub(crate) const fn number(self) -> c_int {
        self.0
    }

    /// What says best how an operation or a call of the engine failed.
    pub(crate) fn of(error: &Error) -> Self {
        match error.kind() {
            ErrorKind::Truncated => Self::TRUNC,
            ErrorKind::Corrupted => Self(consts::FI_ECRC),
            // What a target refuses: the key, its rights, its bounds.
            ErrorKind::RemoteAccess => Self::ACCES,
            ErrorKind::Limit => Self::NOSPC,
            _ => Self(error.errno()),
        }
    }
}

impl From<Error> for Errno {
    fn from(error: Error) -> Self {
        Self::of(&error)
    }
}

/// What `fi_eq_strerror` and `fi_cq_strerror` say of a number that an entry had: in `buffer`, too,
/// if there is one.
///
/// # Safety
///
/// `buffer` is null or has `length` bytes.
pub(crate) unsafe fn text(number: c_int, buffer: *mut c_char, length: usize) -> *const c_char {
    let text = match number {
        consts::FI_EOTHER => c"an error of the provider's own: see its log",
        consts::FI_ETRUNC => c"the message is longer than its receive",
        consts::FI_ECRC => c"what came is not what was sent",
        consts::FI_ENOKEY => c"the key is in use",
        libc::ECANCELED => c"cancelled",
        libc::EACCES => c"refused by the peer: its key, rights or bounds; or another job's secret",
        libc::EHOSTUNREACH => c"the peer cannot be reached",
        libc::ECONNRESET => c"the connection to the peer broke",
        libc::ESHUTDOWN => c"the peer has closed its endpoint",
        libc::ESTALE => c"another process is at the peer's address",
        libc::EPROTONOSUPPORT => c"the peer runs another version, or other settings",
        libc::EADDRNOTAVAIL => c"no such peer",
        libc::ETIMEDOUT => c"timed out",
        // SAFETY: glibc has a static text for each number, and keeps one for others.
        other => unsafe { CStr::from_ptr(libc::strerror(other)) },
    };
    if !buffer.is_null() && length > 0 {
        let bytes = text.to_bytes();
        let fitting = bytes.len().min(length - 1);
        // SAFETY: as the caller promises.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.cast(), fitting);
            *buffer.add(fitting) = 0;
        }
        return buffer;
    }
    text.as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_consumers_compare_has_libfabrics_number() {
        assert_eq!(Errno::of(&Error::Cancelled), Errno::CANCELED);
        assert_eq!(Errno::of(&Error::WouldBlock("full")), Errno::AGAIN);
        let outcome = ringrail::TimeOutOutcome::Unknown;
        let late = ringrail::TimeOut::new("send", None, outcome).into();
        assert_eq!(Errno::of(&late), Errno::TIMEDOUT);
        assert_eq!(Errno::of(&Error::UnknownPeer), Errno::ADDRNOTAVAIL);
        assert_eq!(Errno::TRUNC.number(), 265);
    }
}
