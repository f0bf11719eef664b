//! Addresses: values of fixed length, and texts.

use std::ffi::{c_char, c_int};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use ringrail::Address;

use crate::check;
use crate::fault::{Fault, guard, guard_unit};
use crate::text;

/// Bytes of an address.
pub const RR_ADDRESS_BYTES: usize = 64;

/// Most bytes of the text of an address, the zero byte included.
pub const RR_ADDRESS_TEXT_BYTES: usize = 128;

/// Where an endpoint can be reached: a value to copy and to send to peers as it is. What is in it
/// is the library's business; all zero it is no address.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct rr_address {
    /// Opaque.
    pub bytes: [u8; RR_ADDRESS_BYTES],
}

/// Offset of the byte that gives the kind of address.
const KIND: usize = RR_ADDRESS_BYTES - 1;
/// The address of an endpoint.
const OF_ENDPOINT: u8 = 1;
/// An IP address and a port: the first endpoint of the engine that listens there.
const OF_LISTENER: u8 = 2;
/// What begins the text of the address of an endpoint.
const PREFIX: &str = "rr1:";

const _: () = assert!(Address::BYTES < KIND);

fn invalid() -> Fault {
    Fault::invalid(
        "the address is none that rr_endpoint_address or rr_address_from_text gave: its bytes \
         were changed on the way, or it was never filled",
    )
}

impl rr_address {
    pub(crate) fn new(address: &Address) -> Self {
        let mut bytes = [0; RR_ADDRESS_BYTES];
        if !address.is_listener() {
            bytes[..Address::BYTES].copy_from_slice(&address.to_bytes());
            bytes[KIND] = OF_ENDPOINT;
            return Self { bytes };
        }
        let locator = address.locator();
        bytes[KIND] = OF_LISTENER;
        bytes[0..2].copy_from_slice(&locator.port().to_le_bytes());
        match locator {
            SocketAddr::V4(v4) => {
                bytes[2] = 4;
                bytes[4..8].copy_from_slice(&v4.ip().octets());
            }
            SocketAddr::V6(v6) => {
                bytes[2] = 6;
                bytes[4..20].copy_from_slice(&v6.ip().octets());
                bytes[20..24].copy_from_slice(&v6.scope_id().to_le_bytes());
            }
        }
        Self { bytes }
    }

    pub(crate) fn get(&self) -> Result<Address, Fault> {
        let bytes = &self.bytes;
        let used = match bytes[KIND] {
            OF_ENDPOINT => Address::BYTES,
            OF_LISTENER => 24,
            _ => return Err(invalid()),
        };
        if bytes[used..KIND].iter().any(|byte| *byte != 0) {
            return Err(invalid());
        }
        if bytes[KIND] == OF_ENDPOINT {
            return Ok(Address::from_bytes(&bytes[..used])?);
        }
        let port = u16::from_le_bytes([bytes[0], bytes[1]]);
        let mut octets = [0; 16];
        octets.copy_from_slice(&bytes[4..20]);
        let scope = u32::from_le_bytes([bytes[20], bytes[21], bytes[22], bytes[23]]);
        let locator = match bytes[2] {
            4 => {
                let [a, b, c, d, ..] = octets;
                SocketAddr::new(IpAddr::V4(Ipv4Addr::new(a, b, c, d)), port)
            }
            6 => SocketAddrV6::new(Ipv6Addr::from(octets), port, 0, scope).into(),
            _ => return Err(invalid()),
        };
        Ok(Address::from_listener(locator)?)
    }
}

fn parse(text: &str) -> Result<rr_address, Fault> {
    let text = text.trim();
    let Some(digits) = text.strip_prefix(PREFIX) else {
        let locator: SocketAddr = text.parse().map_err(|_| {
            let text = "neither IP:PORT ([IP]:PORT of IPv6) nor what rr_address_to_text gave";
            Fault::invalid(text)
        })?;
        return Ok(rr_address::new(&Address::from_listener(locator)?));
    };
    let mut bytes = [0; Address::BYTES];
    if digits.len() != 2 * bytes.len() || !digits.is_ascii() {
        return Err(invalid());
    }
    for (index, byte) in bytes.iter_mut().enumerate() {
        let pair = &digits[2 * index..2 * index + 2];
        // It takes a sign, too.
        let is_plain = pair.bytes().all(|byte| byte.is_ascii_hexdigit());
        *byte = u8::from_str_radix(pair, 16).ok().filter(|_| is_plain).ok_or_else(invalid)?;
    }
    Ok(rr_address::new(&Address::from_bytes(&bytes)?))
}

fn write(address: &Address) -> String {
    if address.is_listener() {
        return address.locator().to_string();
    }
    let digits = address.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    format!("{PREFIX}{digits}")
}

/// Writes an address as a text for rr_address_from_text: a word of letters, digits and
/// punctuation, with a zero byte behind it. RR_ADDRESS_TEXT_BYTES are enough. Gives its length
/// without that byte, also where `capacity` is too small and the text was cut.
///
/// # Errors
///
/// RR_EINVAL: null, or bytes that are no address.
///
/// # Safety
///
/// `address` can be read, and `capacity` bytes can be written at `buffer`, which may be null for 0.
///
/// # Threads
///
/// Any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_address_to_text(
    address: *const rr_address,
    buffer: *mut c_char,
    capacity: usize,
) -> c_int {
    guard(|| {
        // SAFETY: the caller guarantees it.
        let address = unsafe { check::read(address, "address") }?.get()?;
        // SAFETY: the caller guarantees it.
        unsafe { text::give(&write(&address), buffer, capacity) }
    })
}

/// Writes an address for people: where it listens, and which endpoint it is there. Otherwise as
/// rr_address_to_text, and there is no way back.
///
/// # Errors
///
/// RR_EINVAL: null, or bytes that are no address.
///
/// # Safety
///
/// As for rr_address_to_text.
///
/// # Threads
///
/// Any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_address_describe(
    address: *const rr_address,
    buffer: *mut c_char,
    capacity: usize,
) -> c_int {
    guard(|| {
        // SAFETY: the caller guarantees it.
        let address = unsafe { check::read(address, "address") }?.get()?;
        // SAFETY: the caller guarantees it.
        unsafe { text::give(&address.to_string(), buffer, capacity) }
    })
}

/// Reads what rr_address_to_text wrote, or `IP:PORT` (IPv6 in brackets), which names the first
/// endpoint of the process that listens there: for peers that know no more of each other
/// (rr_endpoint_options.port).
///
/// # Errors
///
/// RR_EINVAL: null, or no address.
///
/// # Safety
///
/// `text` ends with a zero byte; `address` can be written.
///
/// # Threads
///
/// Any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_address_from_text(
    text: *const c_char,
    address: *mut rr_address,
) -> c_int {
    guard_unit(|| {
        // SAFETY: the caller guarantees it.
        let parsed = parse(unsafe { check::text(text, "text") }?)?;
        // SAFETY: the caller guarantees it.
        unsafe { check::put(address, parsed, "address") }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_survive_bytes_and_text() {
        for locator in ["10.0.0.2:7000", "[fe80::1%3]:80", "[2001:db8::5]:65535"] {
            let address = parse(locator).ok().unwrap();
            let again = address.get().ok().unwrap();
            assert_eq!(again.locator(), locator.parse().unwrap());
            assert_eq!(write(&again), locator);
        }
    }

    #[test]
    fn garbage_is_no_address() {
        let long = format!("{PREFIX}{}", "zz".repeat(Address::BYTES));
        let signs = format!("{PREFIX}{}", "+1".repeat(Address::BYTES));
        for text in ["", "host", "10.0.0.2", "0.0.0.0:1", "10.0.0.2:0", "rr1:00", &long, &signs] {
            assert!(parse(text).is_err(), "{text}");
        }
        let good = parse("10.0.0.2:7000").ok().unwrap();
        for at in [2, 30, KIND] {
            let mut bad = good;
            bad.bytes[at] ^= 9;
            assert!(bad.get().is_err(), "byte {at}");
        }
    }
}
