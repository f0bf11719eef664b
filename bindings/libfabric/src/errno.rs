//! Errors as libfabric numbers them.

use std::ffi::c_int;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_consumers_compare_has_libfabrics_number() {
        assert_eq!(Errno::of(&Error::Cancelled), Errno::CANCELED);
        assert_eq!(Errno::of(&Error::WouldBlock("full")), Errno::AGAIN);
        assert_eq!(Errno::of(&Error::TimedOut), Errno::TIMEDOUT);
        assert_eq!(Errno::of(&Error::UnknownPeer), Errno::ADDRNOTAVAIL);
        assert_eq!(Errno::TRUNC.number(), 265);
    }
}
