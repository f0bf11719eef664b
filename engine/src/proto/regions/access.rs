//! Access rights, and reasons of refusals.

bitflags::bitflags! {
    /// Permitted accesses of peers by a key. A program needs no rights for its own memory.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct Access: u8 {
        /// Peers may read: get, and atomic operations that fetch.
        const REMOTE_READ = 1;
        /// Peers may write: put.
        const REMOTE_WRITE = 2;
        /// Peers may operate on it atomically.
        const REMOTE_ATOMIC = 4;
        /// Peers may invalidate the key, with a put.
        const REMOTE_INVALIDATE = 8;
    }
}

/// Why no key was created. The program is at fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The region is closed, or of another engine.
    #[error("the region is closed, or of another endpoint: open one before keys are made for it")]
    Closed,
    /// The range is not inside the region.
    #[error(
        "{length} bytes at offset {offset} are not inside a region of {region_bytes} bytes: check \
         offset and length"
    )]
    Range {
        /// Start of the range, in bytes.
        offset: u64,
        /// Its length in bytes.
        length: u64,
        /// The length of the region, in bytes.
        region_bytes: u64,
    },
    /// The key would permit nothing.
    #[error("a key without rights permits nothing: give at least one")]
    NoAccess,
    /// The chosen key is in use.
    #[error("key {key:#x} is in use: choose another one, or let it be random")]
    Taken {
        /// The chosen key.
        key: u64,
    },
    /// The limit of keys is reached.
    #[error("there are {limit} keys, which is the limit: revoke some, or raise the setting")]
    Full {
        /// The limit.
        limit: usize,
    },
}

/// Why a target refused an operation on its memory. Each has a code on the wire, which never
/// changes; 0 is no refusal.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[non_exhaustive]
#[repr(u8)]
pub enum Refusal {
    /// The key is not known. It may have been revoked, or not be for this engine: that is not
    /// distinguished.
    #[error("the peer does not know the key: it is wrong, was revoked, or is for other peers")]
    Key = 1,
    /// The key does not give the right.
    #[error("the key does not allow this operation: ask the peer for one that does")]
    Rights = 2,
    /// Not inside the key's range.
    #[error("the access exceeds the range of the key: check offset and length")]
    Range = 3,
    /// Too many wrong keys in a short time: no access is checked, for milliseconds.
    #[error("rate-limited after repeated invalid keys: wait, and find out where they come from")]
    Throttled = 4,
    /// Nothing is mapped there, or its protection forbids it. Earlier bytes of a put may have been
    /// written.
    #[error("the peer's memory there is not mapped, or its protection forbids the access")]
    Fault = 5,
    /// An element of an atomic operation is not at a multiple of its size.
    #[error("an element of the atomic operation is not aligned in the peer's memory")]
    Misaligned = 6,
    /// An atomic operation that is not defined, or not for this type.
    #[error("the peer does not know the atomic operation, or not for elements of this type")]
    Unsupported = 7,
    /// Operands of an atomic operation that are not whole elements, or not as many as required.
    #[error("the operands of the atomic operation are not as many whole elements as it takes")]
    Length = 8,
    /// The target has no space for another operation, or for the completion of another put.
    #[error(
        "the peer is busy: it has no room for another operation, or its completion queue is full"
    )]
    Busy = 9,
    /// The endpoint that the operation names is closed.
    #[error("the peer's endpoint is closed")]
    Endpoint = 10,
    /// Another reason, of a later version.
    #[error("the peer refused for a reason that this version does not know")]
    Unknown = 255,
}

impl Refusal {
    /// All refusals, by their codes.
    pub(crate) const ALL: [Self; 10] = [
        Self::Key,
        Self::Rights,
        Self::Range,
        Self::Throttled,
        Self::Fault,
        Self::Misaligned,
        Self::Unsupported,
        Self::Length,
        Self::Busy,
        Self::Endpoint,
    ];

    /// Returns its code on the wire, never 0.
    #[inline]
    pub(crate) const fn code(self) -> u8 {
        self as u8
    }

    /// Returns the refusal with this code.
    #[inline]
    pub(crate) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code).wrapping_sub(1)).copied()
    }
}
