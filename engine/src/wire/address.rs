//! The address of an endpoint, as exchanged out of band.
//!
//! ```text
//!  0        1        2                 4                 6        7        8
//! +--------+--------+-----------------+-----------------+--------+--------+
//! |version | flags  | endpoint        | port            | family |locators|
//! +--------+--------+-----------------+-----------------+--------+--------+
//! | IP addresses of the locators: 8 of IPv4 with 4 bytes each,            | 8
//! | or 2 of IPv6 with 16 bytes each; what is left is 0                    |
//! |                                                                       |
//! |                                                                       |
//! +-----------------------------------------------------------------------+
//! | engine id, random, never 0                                            | 40
//! +-----------------------------------------------------------------------+
//! ```
//!
//! A link-local address of IPv6, which only the first one may be, has its scope id in its bytes 4
//! to 8, in network byte order; they are 0 otherwise (RFC 4291, 2.5.6).
//!
//! 48 bytes are what LCI has room for.

use zerocopy::byteorder::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Version of the address format.
pub(crate) const ADDRESS_VERSION: u8 = 3;
/// `family` of IPv4 locators.
pub(crate) const FAMILY_IPV4: u8 = 4;
/// `family` of IPv6 locators.
pub(crate) const FAMILY_IPV6: u8 = 6;
/// Room for the IP addresses of locators, in bytes.
pub(crate) const LOCATOR_BYTES: usize = 32;
/// Length of an address, in bytes.
pub(crate) const ADDRESS_BYTES: usize = 48;

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
    pub(crate) locators: u8,
    pub(crate) ips: [u8; LOCATOR_BYTES],
    pub(crate) engine: U64,
}

const _: () = assert!(size_of::<WireAddress>() == ADDRESS_BYTES);
const _: () = assert!(ADDRESS_BYTES <= 48);
