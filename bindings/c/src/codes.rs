//! The numbers of the header.

use std::ffi::CStr;

use ringrail::ErrorKind;

/// One error code: its number, its name, its text.
type Row = (i32, &'static CStr, &'static CStr);

macro_rules! rows {
    ($($code:ident = $text:literal,)*) => {
        /// Every code with its name and what it means.
        pub(crate) const ROWS: &[Row] = &[
            $((
                $code,
                match CStr::from_bytes_with_nul(concat!(stringify!($code), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a name has no zero byte"),
                },
                $text,
            ),)*
        ];
    };
}

/// Success. Calls that count or find give a positive number.
pub const RR_OK: i32 = 0;
/// A bound is reached for now: make progress (read a queue), and call again.
pub const RR_EAGAIN: i32 = -1;
/// A bound is reached that no progress lifts; the text names it.
pub const RR_ELIMIT: i32 = -2;
/// No attempt to connect to the peer succeeded.
pub const RR_EUNREACHABLE: i32 = -3;
/// The peer has as many sessions as it may have.
pub const RR_EFULL: i32 = -4;
/// The connection to the peer broke.
pub const RR_ELOST: i32 = -5;
/// The peer closed its endpoint.
pub const RR_ELEFT: i32 = -6;
/// Another process is at the peer's address now: exchange addresses again.
pub const RR_ERESTARTED: i32 = -7;
/// The peer has another version, or settings that do not go together with this side's.
pub const RR_EINCOMPATIBLE: i32 = -8;
/// One side broke the protocol.
pub const RR_EPROTOCOL: i32 = -9;
/// What came was not what was sent.
pub const RR_ECORRUPTED: i32 = -10;
/// The peer does not know the job's secret.
pub const RR_ESECRET: i32 = -11;
/// The peer was removed.
pub const RR_EREMOVED: i32 = -12;
/// The number names no peer of this engine.
pub const RR_ENOPEER: i32 = -13;
/// No peer is left that could send what a receive from anybody waits for.
pub const RR_ENOPEERLEFT: i32 = -14;
/// The message, or the text, is longer than the memory for it.
pub const RR_ETRUNCATED: i32 = -15;
/// The target refused an operation on its memory; the text has the cause.
pub const RR_EACCESS: i32 = -16;
/// Memory is still in use by an operation of a peer.
pub const RR_EBUSY: i32 = -17;
/// The operation was cancelled, or its endpoint was closed.
pub const RR_ECANCELLED: i32 = -18;
/// The time has passed.
pub const RR_ETIMEDOUT: i32 = -19;
/// There is no memory, or it cannot be used like this.
pub const RR_EMEMORY: i32 = -20;
/// An argument is wrong: a null pointer, a length, an alignment, a number out of range.
pub const RR_EINVAL: i32 = -21;
/// Settings cannot be used.
pub const RR_ESETTINGS: i32 = -22;
/// The operating system refused something: see rr_last_errno.
pub const RR_ESYSTEM: i32 = -23;
/// The handle names no open object of this kind: it was closed, or never was one.
pub const RR_EHANDLE: i32 = -24;
/// The object belongs to the thread that opened its endpoint with RR_OWNED, and this is another.
pub const RR_ETHREAD: i32 = -25;
/// Ranks did not find each other.
pub const RR_EBOOTSTRAP: i32 = -26;
/// A bug of ringrail, which was stopped at the border. Close what the call was about.
pub const RR_EPANIC: i32 = -27;
/// Another error, of a later version; the text describes it.
pub const RR_EOTHER: i32 = -28;

rows! {
    RR_OK = c"success",
    RR_EAGAIN = c"a bound is reached for now: make progress, then call again",
    RR_ELIMIT = c"a bound is reached that no progress lifts",
    RR_EUNREACHABLE = c"the peer cannot be reached",
    RR_EFULL = c"the peer has as many sessions as it may have",
    RR_ELOST = c"the connection to the peer broke",
    RR_ELEFT = c"the peer closed its endpoint",
    RR_ERESTARTED = c"another process is at the peer's address",
    RR_EINCOMPATIBLE = c"the peer has another version or other settings",
    RR_EPROTOCOL = c"one side broke the protocol",
    RR_ECORRUPTED = c"what came was not what was sent",
    RR_ESECRET = c"the peer does not know the job's secret",
    RR_EREMOVED = c"the peer was removed",
    RR_ENOPEER = c"no such peer",
    RR_ENOPEERLEFT = c"no peer is left that could send this",
    RR_ETRUNCATED = c"longer than the memory for it",
    RR_EACCESS = c"the target refused the operation on its memory",
    RR_EBUSY = c"memory is still in use by an operation of a peer",
    RR_ECANCELLED = c"cancelled",
    RR_ETIMEDOUT = c"timed out",
    RR_EMEMORY = c"no memory, or memory that cannot be used like this",
    RR_EINVAL = c"an argument is wrong",
    RR_ESETTINGS = c"settings cannot be used",
    RR_ESYSTEM = c"the operating system refused something",
    RR_EHANDLE = c"no open object of this kind",
    RR_ETHREAD = c"the object belongs to another thread",
    RR_EBOOTSTRAP = c"ranks did not find each other",
    RR_EPANIC = c"a bug of ringrail",
    RR_EOTHER = c"an error of a later version",
}

/// The code of a kind of errors.
pub(crate) fn code_of(kind: ErrorKind) -> i32 {
    match kind {
        ErrorKind::WouldBlock => RR_EAGAIN,
        ErrorKind::Limit => RR_ELIMIT,
        ErrorKind::Unreachable => RR_EUNREACHABLE,
        ErrorKind::Full => RR_EFULL,
        ErrorKind::Lost => RR_ELOST,
        ErrorKind::Left => RR_ELEFT,
        ErrorKind::Restarted => RR_ERESTARTED,
        ErrorKind::Incompatible => RR_EINCOMPATIBLE,
        ErrorKind::Protocol => RR_EPROTOCOL,
        ErrorKind::Corrupted => RR_ECORRUPTED,
        ErrorKind::WrongSecret => RR_ESECRET,
        ErrorKind::Removed => RR_EREMOVED,
        ErrorKind::UnknownPeer => RR_ENOPEER,
        ErrorKind::NoPeerLeft => RR_ENOPEERLEFT,
        ErrorKind::Truncated => RR_ETRUNCATED,
        ErrorKind::RemoteAccess => RR_EACCESS,
        ErrorKind::Busy => RR_EBUSY,
        ErrorKind::Cancelled => RR_ECANCELLED,
        ErrorKind::TimedOut => RR_ETIMEDOUT,
        ErrorKind::Memory => RR_EMEMORY,
        ErrorKind::Misuse => RR_EINVAL,
        ErrorKind::Settings => RR_ESETTINGS,
        ErrorKind::System => RR_ESYSTEM,
        _ => RR_EOTHER,
    }
}

/// Of rr_domain_open: neither environment nor files are read, only what is given.
pub const RR_ISOLATED: u32 = 1;

/// An endpoint that any thread uses at any time; those that wait make the progress of all.
pub const RR_SHARED: u32 = 0;
/// As RR_SHARED, and a thread of its own makes progress while the others compute.
pub const RR_DEDICATED: u32 = 1;
/// An endpoint of the thread that opens it, without a lock. Other threads get RR_ETHREAD.
pub const RR_OWNED: u32 = 2;

/// For rr_endpoint_open_beside: receives from any source end with RR_ENOPEERLEFT when no peer is
/// left.
pub const RR_FAIL_WITHOUT_PEERS: u32 = 1;

/// The queue of what an endpoint sends (and puts, gets, flushes).
pub const RR_TRANSMIT: u32 = 0;
/// The queue of what an endpoint receives.
pub const RR_RECEIVE: u32 = 1;

/// A peer that is none: of a selector, anybody.
pub const RR_ANY_PEER: u64 = 0;

/// A timeout that never passes.
pub const RR_FOREVER: i64 = -1;

/// Of an envelope: neither tag nor context, matched with those that have none, either.
pub const RR_UNTAGGED: u32 = 1;

/// A send completes when its memory may be reused.
pub const RR_LEVEL_INJECT: u32 = 0;
/// A send completes when the peer's engine has it; a put when it is in the peer's memory.
pub const RR_LEVEL_DELIVERY: u32 = 1;
/// A send completes when a receive has matched it.
pub const RR_LEVEL_MATCH: u32 = 2;

/// No hint: that of the endpoint applies (rr_set_hint).
pub const RR_HINT_UNSAID: u32 = 0;
/// The usual message.
pub const RR_HINT_NONE: u32 = 1;
/// The receiver waits for it: it is sent at once.
pub const RR_HINT_LATENCY: u32 = 2;
/// It is not urgent: it is sent after others.
pub const RR_HINT_BULK: u32 = 3;
/// It goes before others.
pub const RR_HINT_PRIORITY: u32 = 4;

/// Of options: only a failure is reported.
pub const RR_SILENT: u32 = 1;
/// Of options: more posts follow at once, so this one need not hurry.
pub const RR_MORE: u32 = 2;
/// Of options: it waits for everything that was posted to the same peer before it.
pub const RR_FENCE: u32 = 4;
/// Of options: the field `data` goes along (remote data). Of completions and statuses: it came.
pub const RR_DATA: u32 = 8;

/// A completion of a send.
pub const RR_SEND: u32 = 0;
/// A completion of a receive, or of one message of a receive of many.
pub const RR_RECEIVED: u32 = 1;
/// A completion of a put.
pub const RR_PUT: u32 = 2;
/// A completion of a get.
pub const RR_GET: u32 = 3;
/// A completion of an atomic operation.
pub const RR_ATOMIC: u32 = 4;
/// A completion of a flush.
pub const RR_FLUSH: u32 = 5;
/// A put of a peer with remote data was written. It was not posted here: its user_data is 0.
pub const RR_REMOTE_PUT: u32 = 6;
/// A receive of many takes no more messages: its memory is the caller's again.
pub const RR_MULTI_RECEIVE: u32 = 7;

/// Of a key: peers may read.
pub const RR_REMOTE_READ: u32 = 1;
/// Of a key: peers may write.
pub const RR_REMOTE_WRITE: u32 = 2;
/// Of a key: peers may operate on it atomically.
pub const RR_REMOTE_ATOMIC: u32 = 4;
/// Of key options: the key is the one given, and not a random one.
pub const RR_CHOSEN_KEY: u32 = 1;
/// Of key options: the length of what a key opens; to the end of the region.
pub const RR_TO_THE_END: u64 = 18446744073709551615;

/// A session with the engine of a peer was established.
pub const RR_EVENT_CONNECTED: u32 = 0;
/// The engine of a peer is gone; operations with it have ended with the same error.
pub const RR_EVENT_DISCONNECTED: u32 = 1;
/// A connection was refused, or broken off before it was a session.
pub const RR_EVENT_REFUSED: u32 = 2;
/// A path of a session fares otherwise than before.
pub const RR_EVENT_PATH: u32 = 3;
/// Something else that has only a text here.
pub const RR_EVENT_OTHER: u32 = 4;
/// The endpoint at `address` asks a listener for a connection, with `data`: answer `name` by
/// rr_accept or rr_reject.
pub const RR_EVENT_REQUEST: u32 = 5;
/// The request `name` is answered no more, for `reason`.
pub const RR_EVENT_WITHDRAWN: u32 = 6;
/// The connection `name` with `peer` is there, and both sides know. `data` is of who accepted.
pub const RR_EVENT_OPENED: u32 = 7;
/// The connection `name` that was requested will not be, for `reason`, with `data` of who rejected
/// it. The name is spent.
pub const RR_EVENT_REJECTED: u32 = 8;
/// The connection `name` is over, or did not come about, for `reason`. The name is spent. What had
/// come by it before can be received.
pub const RR_EVENT_ENDED: u32 = 9;

/// Of an event: it has no reason.
pub const RR_REASON_NONE: u32 = 0;
/// The listener's user has rejected the request.
pub const RR_REASON_REJECTED: u32 = 1;
/// The endpoint has no listener, or has closed it.
pub const RR_REASON_NOT_LISTENING: u32 = 2;
/// As many requests as the listener takes wait for an answer: try again later.
pub const RR_REASON_BUSY: u32 = 3;
/// It was not answered in time; for a withdrawn request, by this side.
pub const RR_REASON_TIMED_OUT: u32 = 4;
/// The other side does not understand the request: it is of another version.
pub const RR_REASON_MALFORMED: u32 = 5;
/// The other side has shut the connection down, given its request up, or closed its endpoint.
pub const RR_REASON_SHUT_DOWN: u32 = 6;
/// The engine of the peer failed, left, or cannot be reached; the text has the cause.
pub const RR_REASON_PEER: u32 = 7;
/// Another reason, of a later version; the text describes it.
pub const RR_REASON_OTHER: u32 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_has_one_row_at_its_place() {
        for (index, (code, name, text)) in ROWS.iter().enumerate() {
            assert_eq!(*code, -(index as i32), "{name:?}");
            assert!(!text.is_empty());
        }
        assert_eq!(ROWS.last().map(|row| row.0), Some(RR_EOTHER));
    }
}
