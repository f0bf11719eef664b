//! The address of an endpoint, as exchanged out of band.
//!
//! ```text
//!  0        1        2                 4                 6        7        8
//! +--------+--------+-----------------+-----------------+--------+--------+
//! |version | flags  | endpoint        | port            | family |   0    |
//! +--------+--------+-----------------+-----------------+--------+--------+
//! | IP address, 16 bytes (an IPv4 address takes the first 4)              | 8
//! |                                                                       |
//! +-----------------------------------+-----------------------------------+
//! | IPv6 scope id                     | 0                                 | 24
//! +-----------------------------------+-----------------------------------+
//! | engine id, random, never 0                                            | 32
//! +-----------------------------------------------------------------------+
//! ```

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Version of the address format.
pub(crate) const ADDRESS_VERSION: u8 = 1;
/// `family` of an IPv4 locator.
pub(crate) const FAMILY_IPV4: u8 = 4;
/// `family` of an IPv6 locator.
pub(crate) const FAMILY_IPV6: u8 = 6;
/// Length of an address, in bytes.
pub(crate) const ADDRESS_BYTES: usize = 40;

/// The drawing above.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub(crate) struct WireAddress {
    pub(crate) version: u8,
    pub(crate) flags: u8,
    pub(crate) endpoint: U16,
    pub(crate) port: U16,
    pub(crate) family: u8,
    pub(crate) reserved: u8,
    pub(crate) ip: [u8; 16],
    pub(crate) scope: U32,
    pub(crate) reserved_2: U32,
    pub(crate) engine: U64,
}

const _: () = assert!(size_of::<WireAddress>() == ADDRESS_BYTES);
const _: () = assert!(ADDRESS_BYTES <= 64);
