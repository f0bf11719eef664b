//! What became of the frames of a NIC.

use std::fmt;
use std::io;
use std::ops::Sub;

use libbpf_rs::{MapCore as _, MapFlags, MapHandle};

use crate::program::plain;

/// Frames by what became of them, since the program was attached, of all processes together.
///
/// All but `redirected` and `fault` went on to the kernel as if the program were not there.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub struct Counters {
    /// Into the AF_XDP socket of a claim. What its receive ring has no room for, or its fill ring
    /// no frame, is dropped by the kernel, which counts it for the socket (`XDP_STATISTICS`).
    pub redirected: u64,
    /// Claimed, but the socket is closed: its process has died.
    pub no_socket: u64,
    /// UDP for an address, port or queue without a claim.
    pub not_claimed: u64,
    /// Another protocol over IP.
    pub not_udp: u64,
    /// ARP and whatever else is not IP, frames of more than two VLAN tags included.
    pub not_ip: u64,
    /// Parts of IP packets, which the kernel puts together and gives to a UDP socket.
    pub fragment: u64,
    /// IPv6 with extension headers.
    pub extension_header: u64,
    /// Shorter than their headers, or than the length in their IP header.
    pub too_short: u64,
    /// A UDP length beyond the end of the IP packet.
    pub too_long: u64,
    /// A version or length that cannot be.
    pub malformed: u64,
    /// Dropped on purpose by the program of tests.
    pub fault: u64,
}

/// How many there are: `REASONS` in `bpf/shared.h`.
const REASONS: u32 = 11;

impl Counters {
    /// Reads them off the map, where each CPU has its own.
    pub(crate) fn read(map: &MapHandle) -> io::Result<Self> {
        let mut sums = [0_u64; REASONS as usize];
        for (reason, sum) in (0..REASONS).zip(&mut sums) {
            let key = reason.to_ne_bytes();
            let of_cpus = map.lookup_percpu(&key, MapFlags::ANY).map_err(plain)?;
            for value in of_cpus.iter().flatten() {
                let value: [u8; 8] = value.as_slice().try_into().unwrap_or_default();
                *sum = sum.wrapping_add(u64::from_ne_bytes(value));
            }
        }
        Ok(Self::from_sums(sums))
    }

    /// In the order of `enum reason`.
    fn from_sums(sums: [u64; REASONS as usize]) -> Self {
        let [
            redirected,
            no_socket,
            not_claimed,
            not_udp,
            not_ip,
            fragment,
            extension_header,
            too_short,
            too_long,
            malformed,
            fault,
        ] = sums;
        Self {
            redirected,
            no_socket,
            not_claimed,
            not_udp,
            not_ip,
            fragment,
            extension_header,
            too_short,
            too_long,
            malformed,
            fault,
        }
    }

    /// Each with its name, in the order of the fields.
    pub fn by_name(&self) -> [(&'static str, u64); REASONS as usize] {
        [
            ("redirected", self.redirected),
            ("no_socket", self.no_socket),
            ("not_claimed", self.not_claimed),
            ("not_udp", self.not_udp),
            ("not_ip", self.not_ip),
            ("fragment", self.fragment),
            ("extension_header", self.extension_header),
            ("too_short", self.too_short),
            ("too_long", self.too_long),
            ("malformed", self.malformed),
            ("fault", self.fault),
        ]
    }

    /// All frames that the program saw.
    pub fn total(&self) -> u64 {
        self.by_name().iter().map(|(_, count)| count).sum()
    }
}

/// What was counted since `earlier`, read off the same NIC.
impl Sub for Counters {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        let mut sums = [0; REASONS as usize];
        let pairs = self.by_name().into_iter().zip(earlier.by_name());
        for (sum, ((_, now), (_, then))) in sums.iter_mut().zip(pairs) {
            *sum = now.wrapping_sub(then);
        }
        Self::from_sums(sums)
    }
}

/// Those that are not 0.
impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (name, count) in self.by_name().into_iter().filter(|&(_, count)| count != 0) {
            write!(f, "{separator}{name} {count}")?;
            separator = ", ";
        }
        if separator.is_empty() { f.write_str("no frame yet") } else { Ok(()) }
    }
}
