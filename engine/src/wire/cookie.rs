//! What answers the first hello from an address on a datagram lane: nothing is kept until the same
//! hello comes again from there with the cookie.
//!
//! ```text
//!  0                                                                       8
//! +-----------------------------------------------------------------------+
//! | magic "RRCOOKIE"                                                      |
//! +-----------------------------------------------------------------------+
//! | nonce of the hello, 16 bytes                                          | 8
//! |                                                                       |
//! +-----------------------------------+-----------------------------------+
//! | second in which it was made       | number of the server key          | 24
//! +-----------------------------------+-----------------------------------+
//! | tag, 16 bytes                                                         | 32
//! |                                                                       |
//! +-----------------------------------------------------------------------+
//! ```
//!
//! It is shorter than every hello, so that whoever forges the source of a hello gains nothing by
//! it.

use zerocopy::byteorder::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::hello::HELLO_BYTES;

/// What a cookie reply starts with.
pub(crate) const COOKIE_MAGIC: [u8; 8] = *b"RRCOOKIE";
/// Length of a cookie reply, in bytes.
pub(crate) const COOKIE_REPLY_BYTES: usize = 48;

/// The second half of the drawing above; the next hello carries it back unchanged.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub(crate) struct Cookie {
    pub(crate) second: U32,
    pub(crate) key: U32,
    pub(crate) tag: [u8; 16],
}

/// The drawing above.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct CookieReply {
    pub(crate) magic: [u8; 8],
    pub(crate) nonce: [u8; 16],
    pub(crate) cookie: Cookie,
}

const _: () = assert!(size_of::<CookieReply>() == COOKIE_REPLY_BYTES);
const _: () = assert!(COOKIE_REPLY_BYTES <= HELLO_BYTES);
