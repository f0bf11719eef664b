//! Errors as libfabric numbers them.

use std::ffi::{CStr, c_char, c_int};

use ringrail::{Error, ErrorKind, PeerFailure};

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

    /// Returns the closest match for the failure of an operation or a call of the engine.
    pub(crate) fn of(error: &Error) -> Self {
        match error.kind() {
            ErrorKind::Truncated => Self::TRUNC,
            // What a target refuses: the key, its rights, its bounds.
            ErrorKind::RemoteAccess => Self::ACCES,
            ErrorKind::Limit => Self::NOSPC,
            // It was removed while the call was on its way.
            ErrorKind::UnknownPeer | ErrorKind::NoPeerLeft => Self::NOTCONN,
            ErrorKind::System => Self::of_system(error.errno()),
            _ => match error {
                Error::Peer { failure, .. } => Self::of_failure(failure),
                _ => Self(error.errno()),
            },
        }
    }

    /// The failure of a peer, by a number that fault-tolerant runtimes take for one. Open MPI gives
    /// a process up for those of [`PEER_FAILURES`], and aborts the job for all others.
    const fn of_failure(failure: &PeerFailure) -> Self {
        match failure {
            PeerFailure::Unreachable { .. } => Self(libc::EHOSTUNREACH),
            PeerFailure::Lost(_) => Self(libc::ECONNRESET),
            PeerFailure::Left | PeerFailure::Removed => Self(libc::ENOTCONN),
            PeerFailure::Restarted => Self(libc::EHOSTDOWN),
            PeerFailure::Protocol(_) | PeerFailure::Rejected => Self(libc::EREMOTEIO),
            PeerFailure::Corrupted(_) => Self(libc::EIO),
            PeerFailure::Full { .. }
            | PeerFailure::Version { .. }
            | PeerFailure::Settings(_)
            | PeerFailure::WrongSecret
            | PeerFailure::KnownOtherwise => Self(libc::ECONNABORTED),
            // Of a later version of the engine.
            _ => Self(libc::EIO),
        }
    }

    /// Errors of the operating system on this side are no failures of a peer, whatever their
    /// number: a NIC that is gone, memory, descriptors.
    fn of_system(number: c_int) -> Self {
        if PEER_FAILURES.contains(&number) { Self::OTHER } else { Self(number) }
    }
}

/// Numbers that say that a peer failed, and nothing else.
const PEER_FAILURES: [c_int; 7] = [
    libc::EREMOTEIO,
    libc::EHOSTUNREACH,
    libc::ECONNABORTED,
    libc::ECONNRESET,
    libc::ENOTCONN,
    libc::EHOSTDOWN,
    libc::EIO,
];

impl From<Error> for Errno {
    fn from(error: Error) -> Self {
        Self::of(&error)
    }
}

/// Returns the text of `fi_eq_strerror` and `fi_cq_strerror` for an entry's error number: in
/// `buffer`, too, if there is one.
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
        libc::EACCES => c"refused: the key, rights or bounds at the peer; or the secret is not set",
        libc::EHOSTUNREACH => c"the peer cannot be reached",
        libc::ECONNRESET => c"the connection to the peer broke",
        libc::ENOTCONN => c"the peer has closed its endpoint, or was removed",
        libc::EHOSTDOWN => c"the peer's process is gone: another one is at its address",
        libc::ECONNABORTED => {
            c"the peer cannot be agreed with: its version, settings or secret, or it is full"
        }
        libc::EREMOTEIO => c"one of the sides broke the protocol",
        libc::EIO => c"what came from the peer is not what was sent",
        // More exact numbers of the provider's own.
        libc::ESHUTDOWN => c"the peer has closed its endpoint",
        libc::ESTALE => c"another process is at the peer's address",
        libc::EPROTONOSUPPORT => c"the peer runs another version, or other settings",
        libc::EUSERS => c"the peer has as many sessions as its setting sessions_max allows",
        libc::EADDRNOTAVAIL => c"no such peer",
        libc::ETIMEDOUT => c"timed out",
        // SAFETY: glibc has a static text for each number, and keeps one for others.
        other => unsafe { CStr::from_ptr(libc::strerror(other)) },
    };
    if !buffer.is_null() && length > 0 {
        let bytes = text.to_bytes();
        let fitting = bytes.len().min(length - 1);
        // SAFETY: the caller guarantees it.
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
    fn compared_codes_have_the_numbers_of_libfabric() {
        assert_eq!(Errno::of(&Error::Cancelled), Errno::CANCELED);
        assert_eq!(Errno::of(&Error::WouldBlock("full")), Errno::AGAIN);
        let outcome = ringrail::TimeOutOutcome::Unknown;
        let late = ringrail::TimeOut::new("send", None, outcome).into();
        assert_eq!(Errno::of(&late), Errno::TIMEDOUT);
        assert_eq!(Errno::of(&Error::UnknownPeer), Errno::NOTCONN);
        assert_eq!(Errno::of(&Error::NoPeerLeft), Errno::NOTCONN);
        assert_eq!(Errno::TRUNC.number(), 265);
    }

    fn of_failure(failure: PeerFailure) -> c_int {
        let address = ringrail::Address::from_listener(([127, 0, 0, 1], 9).into()).unwrap();
        Errno::of(&Error::Peer { address: Box::new(address), failure, status: None }).number()
    }

    #[test]
    fn an_unreachable_peer_is_an_unreachable_host() {
        let failure = PeerFailure::Unreachable { attempts: 1, cause: "refused".into() };
        assert_eq!(of_failure(failure), libc::EHOSTUNREACH);
    }

    #[test]
    fn a_lost_peer_has_reset_its_connection() {
        assert_eq!(of_failure(PeerFailure::Lost("silence".into())), libc::ECONNRESET);
    }

    #[test]
    fn a_peer_that_left_is_not_connected() {
        assert_eq!(of_failure(PeerFailure::Left), libc::ENOTCONN);
    }

    #[test]
    fn a_removed_peer_is_not_connected() {
        assert_eq!(of_failure(PeerFailure::Removed), libc::ENOTCONN);
    }

    #[test]
    fn a_restarted_peer_is_down() {
        assert_eq!(of_failure(PeerFailure::Restarted), libc::EHOSTDOWN);
    }

    #[test]
    fn a_peer_that_breaks_the_protocol_is_a_remote_error() {
        assert_eq!(of_failure(PeerFailure::Protocol("a frame".into())), libc::EREMOTEIO);
    }

    #[test]
    fn a_peer_that_rejects_this_side_is_a_remote_error() {
        assert_eq!(of_failure(PeerFailure::Rejected), libc::EREMOTEIO);
    }

    #[test]
    fn a_corrupted_session_is_an_input_error() {
        assert_eq!(of_failure(PeerFailure::Corrupted("a checksum".into())), libc::EIO);
    }

    #[test]
    fn a_full_peer_aborts_the_connection() {
        assert_eq!(of_failure(PeerFailure::Full { attempts: 1 }), libc::ECONNABORTED);
    }

    #[test]
    fn a_peer_of_another_version_aborts_the_connection() {
        let failure = PeerFailure::Version { theirs: 1, ours: 2 };
        assert_eq!(of_failure(failure), libc::ECONNABORTED);
    }

    #[test]
    fn a_peer_of_other_settings_aborts_the_connection() {
        assert_eq!(of_failure(PeerFailure::Settings("a setting".into())), libc::ECONNABORTED);
    }

    #[test]
    fn a_peer_without_the_secret_aborts_the_connection() {
        assert_eq!(of_failure(PeerFailure::WrongSecret), libc::ECONNABORTED);
    }

    #[test]
    fn a_second_name_of_a_peer_aborts_the_connection() {
        assert_eq!(of_failure(PeerFailure::KnownOtherwise), libc::ECONNABORTED);
    }

    #[test]
    fn system_errors_are_no_peer_failures() {
        for number in PEER_FAILURES {
            assert_eq!(Errno::of_system(number), Errno::OTHER);
        }
        for number in [libc::ENODEV, libc::ENETDOWN, libc::EMFILE] {
            assert_eq!(Errno::of_system(number).number(), number);
        }
    }
}
