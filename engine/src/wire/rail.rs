//! One of several rails of the sender.
//!
//! ```text
//!  0        1        2        3        4                                   8
//! +--------+--------+--------+--------+-----------------------------------+
//! |type 11 | index  | count  | role   | speed in Mb/s, 0: not known       |
//! +--------+--------+--------+--------+-----------------------------------+
//! | IP address, 16 bytes (an IPv4 address takes the first 4)              | 8
//! |                                                                       |
//! +--------+--------+-----------------+-----------------------------------+
//! | family | 0      | 0               | 0                                 | 24
//! +--------+--------+-----------------+-----------------------------------+
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::address::{FAMILY_IPV4, FAMILY_IPV6};
use super::frame::{FrameError, KIND_RAIL};

/// Rails of an engine at the most.
pub(crate) const RAILS_MAX: usize = 16;

/// `role` of a rail that short messages prefer.
pub(crate) const ROLE_PREFERRED: u8 = 1;
/// `role` of a rail that is used while no other one is healthy.
pub(crate) const ROLE_BACKUP: u8 = 2;

/// Length of the frame, in bytes.
pub(crate) const RAIL_BYTES: usize = 32;

/// The drawing above.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct RailFrame {
    pub(crate) kind: u8,
    pub(crate) index: u8,
    pub(crate) count: u8,
    pub(crate) role: u8,
    pub(crate) speed_mbps: U32,
    pub(crate) ip: [u8; 16],
    pub(crate) family: u8,
    pub(crate) reserved: u8,
    pub(crate) reserved_2: U16,
    pub(crate) reserved_3: U32,
}

const _: () = assert!(size_of::<RailFrame>() == RAIL_BYTES);

impl RailFrame {
    /// The frame for rail `index` of `count`.
    pub(crate) fn new(index: u8, count: u8, role: u8, speed_mbps: u32, address: IpAddr) -> Self {
        let mut ip = [0; 16];
        let family = match address {
            IpAddr::V4(v4) => {
                ip[..4].copy_from_slice(&v4.octets());
                FAMILY_IPV4
            }
            IpAddr::V6(v6) => {
                ip = v6.octets();
                FAMILY_IPV6
            }
        };
        Self {
            kind: KIND_RAIL,
            index,
            count,
            role,
            speed_mbps: speed_mbps.into(),
            ip,
            family,
            reserved: 0,
            reserved_2: 0.into(),
            reserved_3: 0.into(),
        }
    }

    /// The address, if the frame is sound.
    ///
    /// RR-RAIL-1.
    pub(crate) fn address(&self) -> Result<IpAddr, FrameError> {
        let (index, count) = (self.index, self.count);
        if index >= count || usize::from(count) > RAILS_MAX || self.role > ROLE_BACKUP {
            return Err(FrameError::BadRail { index, count });
        }
        let [a, b, c, d, ..] = self.ip;
        match self.family {
            FAMILY_IPV4 => Ok(Ipv4Addr::new(a, b, c, d).into()),
            FAMILY_IPV6 => Ok(Ipv6Addr::from(self.ip).into()),
            _ => Err(FrameError::BadRail { index, count }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RR-RAIL-1
    #[test]
    fn a_rail_round_trips_and_malformed_ones_are_refused() {
        for address in ["10.1.2.3", "fd00::7"] {
            let address: IpAddr = address.parse().unwrap();
            let rail = RailFrame::new(3, 4, ROLE_BACKUP, 25_000, address);
            let rail = RailFrame::read_from_bytes(rail.as_bytes()).unwrap();
            assert_eq!((rail.address(), rail.speed_mbps.get()), (Ok(address), 25_000));
            for wrong in [
                RailFrame { index: 4, ..rail },
                RailFrame { count: 17, ..rail },
                RailFrame { role: 3, ..rail },
                RailFrame { family: 5, ..rail },
            ] {
                assert!(matches!(wrong.address(), Err(FrameError::BadRail { .. })), "{wrong:?}");
            }
        }
    }
}
