//! Handshake of two engines of one host that set up shared memory, by a unix packet socket.
//!
//! ```text
//!  client                                server
//!  HELLO(session, nonce) ───────────────>
//!               <──────────── CHALLENGE(nonce, proof)
//!  JOIN(proof) ────────────────────────>  lets descriptors in from now on
//!               <──────────── ADMITTED
//!  MEMORY(cookie, doorbell, proof), ───>  maps both, reads the cookie
//!    descriptors of rings and doorbells
//!               <───────── READY or READS(cookie, doorbell, proof), a descriptor of doorbells
//!  one byte, either way: 1: poll the ring; 2: I have verified your cookie
//!
//!  0                                   4                 6                 8
//! +-----------------------------------+-----------------+-----------------+
//! | "RRSM"                            | kind            | version         |
//! +-----------------------------------+-----------------+-----------------+
//! | session                                                               | 8
//! +-----------------------------------------------------------------------+
//! | nonce of HELLO and CHALLENGE; [`CookieLocation`] of MEMORY and READY  | 16
//! |                                                                       |
//! +-----------------------------------------------------------------------+
//! | proof, but for HELLO and ADMITTED                                     | 32
//! |                                                                       |
//! +-----------------------------------+-----------------------------------+
//! | doorbell, of MEMORY, READY, READS | 0                                 | 48
//! +-----------------------------------+-----------------------------------+
//! ```
//!
//! Two little-endian words in the memory of an engine's process are its cookie: a random number
//! that is not 0, and a count of revocations. A process that reads the number there reads the
//! engine's memory, and no other process's.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The first four bytes.
pub(crate) const LOCAL_PEER_MAGIC: [u8; 4] = *b"RRSM";
/// Version of the messages and of the memory's layout.
pub(crate) const LOCAL_PEER_VERSION: u16 = 11;
/// Length of each message, in bytes.
pub(crate) const LOCAL_PEER_BYTES: usize = 56;

/// `kind`: the client names the session.
pub(crate) const KIND_LOCAL_HELLO: u16 = 1;
/// `kind`: the server proves that it is in the session.
pub(crate) const KIND_CHALLENGE: u16 = 2;
/// `kind`: the client passes the memory.
pub(crate) const KIND_MEMORY: u16 = 3;
/// `kind`: the server has mapped the memory.
pub(crate) const KIND_READY: u16 = 4;
/// `kind`: the same, and it has verified the client's cookie.
pub(crate) const KIND_READS: u16 = 5;

/// `kind`: the client proves that it is in the session.
pub(crate) const KIND_JOIN: u16 = 6;
/// `kind`: the server takes descriptors from now on.
pub(crate) const KIND_ADMITTED: u16 = 7;

/// The byte that wakes the peer to poll its ring.
pub(crate) const SIGNAL_POLL: u8 = 1;
/// The byte that confirms that this side has read the other one's process cookie.
pub(crate) const SIGNAL_READS: u8 = 2;

/// Location and value of an engine's cookie.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct CookieLocation {
    /// Its address in the engine's process; 0: its memory must not be read.
    pub(crate) address: U64,
    /// The random number.
    pub(crate) word: U64,
}

/// The drawing above.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct LocalPeerMessage {
    pub(crate) magic: [u8; 4],
    pub(crate) kind: U16,
    pub(crate) version: U16,
    pub(crate) session: U64,
    pub(crate) nonce: [u8; 16],
    pub(crate) proof: [u8; 16],
    /// The sender's doorbell that the receiver sets.
    pub(crate) doorbell: U32,
    pub(crate) reserved: [u8; 4],
}

const _: () = assert!(size_of::<LocalPeerMessage>() == LOCAL_PEER_BYTES);

impl LocalPeerMessage {
    /// A message of this version.
    pub(crate) fn new(kind: u16, session: u64, nonce: [u8; 16], proof: [u8; 16]) -> Self {
        Self {
            magic: LOCAL_PEER_MAGIC,
            kind: kind.into(),
            version: LOCAL_PEER_VERSION.into(),
            session: session.into(),
            nonce,
            proof,
            doorbell: 0.into(),
            reserved: [0; 4],
        }
    }

    /// Parses a message of this version and `kind`.
    pub(crate) fn parse(bytes: &[u8], kind: u16) -> Option<Self> {
        let message = Self::read_from_bytes(bytes).ok()?;
        let is_right = message.magic == LOCAL_PEER_MAGIC
            && message.version.get() == LOCAL_PEER_VERSION
            && message.reserved == [0; 4]
            && message.kind.get() == kind;
        is_right.then_some(message)
    }
}
