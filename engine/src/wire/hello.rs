//! The first bytes of every connection, in both directions.
//!
//! ```text
//! Hello                                        HelloReply
//!   0  magic "RINGRAIL"                          0  magic "RINGRAIL"
//!   8  version u16 | kind u8 | flags u8          8  version u16 | status u8 | flags u8
//!  12  segment_bytes_max u32                    12  segment_bytes_max u32
//!  16  source engine u64                        16  address of the acceptor, 48 bytes
//!  24  target engine u64                        64  0, 8 bytes
//!  32  session u64                              72  session u64
//!  40  lane u32 | eager_limit u32               80  envelope_limit u32 | byte_limit u32
//!  48  envelope_limit u32 | byte_limit u32      88  eager_limit u32 | datagrams (2 × u16)
//!  56  address of the source engine, 48 bytes   96  nonce, 16 bytes
//! 104  0, 8 bytes                              112  proof, 16 bytes
//! 112  epoch u32 | datagrams (2 × u16)         128
//! 120  path u16 | 0 | answered u32
//! 128  nonce, 16 bytes
//! 144  tag, 16 bytes
//! 160
//! ```
//!
//! *Datagrams*: `datagram_port` and `datagram_bytes`.
//!
//! Nonces are fresh in every hello and reply. `proto::handshake` computes tags and proofs; the
//! epoch counts the hellos of an engine, to all peers, from 1. *Answered*: the epoch of the
//! acceptor's own hello that the sender has accepted and whose proof it waits for; 0: there is
//! none.
//!
//! Magic and version stand at the same place in every version, so that a peer of another version is
//! distinguished from garbage.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::address::WireAddress;

/// The first bytes of every connection.
pub(crate) const MAGIC: [u8; 8] = *b"RINGRAIL";
/// `kind` of a connection that becomes the control lane of a session.
pub(crate) const KIND_CONTROL: u8 = 1;
/// `kind` of a connection that joins a session as a bulk lane.
pub(crate) const KIND_BULK: u8 = 2;

/// `kind` of a connection that takes the place of a session's control lane.
pub(crate) const KIND_MOVE: u8 = 3;

/// `flags`: this side runs without a job secret (the setting `insecure`), under a public key.
pub(crate) const FLAG_INSECURE: u8 = 1;
/// `flags` of a control lane's hello and its reply: this side wants checksums. One that wants them
/// is enough.
pub(crate) const FLAG_CHECKSUM: u8 = 2;
/// `flags` of a control lane's hello and its reply: this side wants bulk data in datagrams. One
/// that wants them there is enough.
pub(crate) const FLAG_BULK_IN_DATAGRAMS: u8 = 4;
/// `flags` of a control lane's hello and its reply: this side may take datagrams as frames, before
/// its kernel could cut trains of them.
pub(crate) const FLAG_FRAMES: u8 = 8;

/// `flags` of a control lane's hello and its reply: the engine of this side answers (flag 4 of a
/// segment, and probes of paths), whatever its owner does.
pub(crate) const FLAG_ANSWERS: u8 = 16;

/// `flags` of a control lane's hello and its reply: this side takes and answers a
/// [`ProcessQuery`](super::ProcessQuery).
pub(crate) const FLAG_PROCESS_STATUS: u8 = 32;

/// Sent by the side that connected.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Hello {
    pub(crate) magic: [u8; 8],
    pub(crate) version: U16,
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) segment_bytes_max: U32,
    pub(crate) source: U64,
    pub(crate) target: U64,
    pub(crate) session: U64,
    pub(crate) lane: U32,
    pub(crate) eager_limit: U32,
    pub(crate) envelope_limit: U32,
    pub(crate) byte_limit: U32,
    pub(crate) address: WireAddress,
    /// Keeps the length of older versions, whose acceptors name theirs only when they have it all.
    pub(crate) reserved_2: U64,
    pub(crate) epoch: U32,
    /// UDP port of the engine's datagrams; 0: it takes none.
    pub(crate) datagram_port: U16,
    /// Longest datagram that it takes, without headers of UDP and IP.
    pub(crate) datagram_bytes: U16,
    /// The path that a bulk lane belongs to; 0 in the hello of a control lane.
    pub(crate) path: U16,
    pub(crate) reserved: U16,
    /// Epoch of the other side's hello that this one was made after; 0: of none that is known.
    pub(crate) answered: U32,
    pub(crate) nonce: [u8; 16],
    pub(crate) tag: [u8; 16],
}

/// Length of a hello, in bytes.
pub(crate) const HELLO_BYTES: usize = 160;
const _: () = assert!(size_of::<Hello>() == HELLO_BYTES);

/// The answer.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct HelloReply {
    pub(crate) magic: [u8; 8],
    pub(crate) version: U16,
    pub(crate) status: u8,
    pub(crate) flags: u8,
    pub(crate) segment_bytes_max: U32,
    /// Of the engine that replies, with all its locators.
    pub(crate) address: WireAddress,
    /// Keeps the length of older versions, as in [`Hello`].
    pub(crate) reserved: U64,
    pub(crate) session: U64,
    pub(crate) envelope_limit: U32,
    pub(crate) byte_limit: U32,
    pub(crate) eager_limit: U32,
    pub(crate) datagram_port: U16,
    pub(crate) datagram_bytes: U16,
    pub(crate) nonce: [u8; 16],
    pub(crate) proof: [u8; 16],
}

/// Length of a reply, in bytes.
pub(crate) const HELLO_REPLY_BYTES: usize = 128;
const _: () = assert!(size_of::<HelloReply>() == HELLO_REPLY_BYTES);

/// `status` of a [`HelloReply`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum HelloStatus {
    /// The lane belongs to the session now.
    Accepted = 0,
    /// The acceptor's own attempt wins the election; it will arrive shortly.
    ElectionLost = 1,
    /// There is a session between the two engines already.
    AlreadyConnected = 2,
    /// Another engine lives at this address now: the peer restarted.
    WrongEngine = 3,
    /// The acceptor speaks another version, given in `version`.
    WrongVersion = 4,
    /// No such session, or it is another one.
    UnknownSession = 5,
    /// The acceptor is at its limit of sessions or lanes.
    Busy = 6,
    /// The engine is shutting down.
    Leaving = 7,
    /// A field is out of range.
    Malformed = 8,
    /// The hello's tag does not fit the acceptor's job secret.
    WrongSecret = 9,
    /// A hello of this engine with this epoch or a later one has led to a session already: it is
    /// a replay.
    StaleEpoch = 10,
}

impl HelloStatus {
    pub(crate) fn from_wire(value: u8) -> Option<Self> {
        Some(match value {
            0 => Self::Accepted,
            1 => Self::ElectionLost,
            2 => Self::AlreadyConnected,
            3 => Self::WrongEngine,
            4 => Self::WrongVersion,
            5 => Self::UnknownSession,
            6 => Self::Busy,
            7 => Self::Leaving,
            8 => Self::Malformed,
            9 => Self::WrongSecret,
            10 => Self::StaleEpoch,
            _ => return None,
        })
    }
}
