//! Which NICs and addresses a setting means: by name, by network, or all but these.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use super::glob;

/// One entry of a list of NICs, such as `rail0`, `rail*`, `10.1.0.0/16` or `!docker*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicPattern {
    is_exclusion: bool,
    subject: Subject,
}

/// The property of a NIC that an entry matches.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Subject {
    /// The name of the NIC: `*` is any run of characters, `?` any single one.
    Name(String),
    /// An address that the NIC has: this many leading bits of it. The others are 0 here.
    Network(IpAddr, u8),
}

impl NicPattern {
    /// Returns whether it excludes the NICs that it matches.
    pub fn is_exclusion(&self) -> bool {
        self.is_exclusion
    }

    /// Returns whether it matches addresses and not the name of a NIC.
    pub fn is_network(&self) -> bool {
        matches!(self.subject, Subject::Network(..))
    }

    /// Returns whether it matches a NIC's name; a network matches none.
    pub fn fits_name(&self, name: &str) -> bool {
        matches!(&self.subject, Subject::Name(pattern) if glob::matches(pattern, name))
    }

    /// Returns whether an address is in its network; a name matches none.
    pub fn fits_address(&self, address: IpAddr) -> bool {
        match self.subject {
            Subject::Network(network, bits) => is_same_network(network, address, bits),
            Subject::Name(_) => false,
        }
    }

    /// Returns whether it matches a NIC of this name and address.
    pub fn fits(&self, name: &str, address: IpAddr) -> bool {
        self.fits_name(name) || self.fits_address(address)
    }

    /// Returns the address that it means, if it is a single one.
    pub fn single_address(&self) -> Option<IpAddr> {
        match self.subject {
            Subject::Network(address, bits) if bits == width(address) => Some(address),
            _ => None,
        }
    }
}

impl fmt::Display for NicPattern {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = if self.is_exclusion { "!" } else { "" };
        match &self.subject {
            Subject::Name(name) => write!(out, "{mark}{name}"),
            Subject::Network(address, bits) if *bits == width(*address) => {
                write!(out, "{mark}{address}")
            }
            Subject::Network(address, bits) => write!(out, "{mark}{address}/{bits}"),
        }
    }
}

impl FromStr for NicPattern {
    type Err = String;

    /// Parses an entry; the error describes what is wrong with it.
    fn from_str(text: &str) -> Result<Self, String> {
        let (is_exclusion, subject) = match text.strip_prefix('!') {
            Some(rest) => (true, rest.trim_start()),
            None => (false, text),
        };
        Ok(Self { is_exclusion, subject: subject_of(subject)? })
    }
}

fn subject_of(text: &str) -> Result<Subject, String> {
    if let Ok(address) = text.parse() {
        return Ok(Subject::Network(address, width(address)));
    }
    // The kernel allows neither in a name.
    let Some((address, bits)) = text.split_once('/') else {
        let is_name = !text.is_empty()
            && !text.contains(|letter: char| {
                letter.is_whitespace() || letter.is_control() || matches!(letter, ':' | '!' | ',')
            });
        return match is_name {
            true => Ok(Subject::Name(text.into())),
            false => Err(format!("`{text}` is not a name")),
        };
    };
    let address: IpAddr =
        address.parse().map_err(|_| format!("`{address}` of `{text}` is not an IP address"))?;
    let most = width(address);
    match bits.parse() {
        Ok(bits) if bits <= most => Ok(Subject::Network(network_of(address, bits), bits)),
        _ => Err(format!("`{bits}` of `{text}` is not a number of bits from 0 to {most}")),
    }
}

/// Bits of an address.
fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// The address with all but its leading `bits` cleared.
fn network_of(address: IpAddr, bits: u8) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits.min(32))).unwrap_or(0);
            IpAddr::V4((v4.to_bits() & mask).into())
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits.min(128))).unwrap_or(0);
            IpAddr::V6((v6.to_bits() & mask).into())
        }
    }
}

/// Whether two addresses share their leading `bits`, and are of one family.
pub(crate) fn is_same_network(one: IpAddr, other: IpAddr, bits: u8) -> bool {
    one.is_ipv4() == other.is_ipv4() && network_of(one, bits) == network_of(other, bits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pattern(text: &str) -> NicPattern {
        text.parse().unwrap_or_else(|problem| panic!("{text}: {problem}"))
    }

    fn fits(text: &str, name: &str, address: &str) -> bool {
        pattern(text).fits(name, address.parse().unwrap())
    }

    #[test]
    fn names_networks_and_addresses_are_distinguished() {
        assert!(fits("rail*", "rail7", "10.0.0.1") && !fits("rail*", "eth0", "10.0.0.1"));
        assert!(fits("10.1.0.0/16", "eth0", "10.1.255.1"));
        assert!(!fits("10.1.0.0/16", "eth0", "10.2.0.1"));
        // As `ip address` prints it.
        assert_eq!(pattern("10.1.2.3/16").to_string(), "10.1.0.0/16");
        assert!(fits("fd00:1::/32", "eth0", "fd00:1:2::3"));
        assert!(!fits("fd00:1::/32", "eth0", "fd00:2::3") && !fits("::/0", "eth0", "10.0.0.1"));
        assert!(fits("0.0.0.0/0", "x", "1.2.3.4") && fits("10.0.0.7", "x", "10.0.0.7"));
        assert!(!fits("10.0.0.7", "x", "10.0.0.8"));
        assert_eq!(pattern("10.0.0.7/32").single_address(), Some("10.0.0.7".parse().unwrap()));
        assert_eq!(pattern("10.0.0.7/31").single_address(), None);
        assert!(pattern("eth0.7").single_address().is_none() && fits("eth0.7", "eth0.7", "::1"));
        let exclusion = pattern("!192.168.0.0/24");
        assert!(exclusion.is_exclusion() && exclusion.fits_address("192.168.0.9".parse().unwrap()));
        assert!(pattern("!docker*").fits_name("docker0") && !pattern("docker0").is_exclusion());
    }

    #[test]
    fn invalid_entries_are_refused() {
        for (text, wanted) in [
            ("", "not a name"),
            ("!", "not a name"),
            ("!!x", "not a name"),
            ("a b", "not a name"),
            ("fd00:", "not a name"),
            ("10.0.0/8", "not an IP address"),
            ("rail0/8", "not an IP address"),
            ("10.0.0.0/33", "from 0 to 32"),
            ("10.0.0.0/", "from 0 to 32"),
            ("fd00::/129", "from 0 to 128"),
            ("fd00::/-1", "from 0 to 128"),
        ] {
            let problem = text.parse::<NicPattern>().unwrap_err();
            assert!(problem.contains(wanted), "{text}: {problem}");
        }
    }

    proptest! {
        #[test]
        fn entries_read_as_they_are_written(
            address in any::<IpAddr>(), bits in 0_u8..=32, is_exclusion: bool,
        ) {
            let mark = if is_exclusion { "!" } else { "" };
            let entry = pattern(&format!("{mark}{address}/{bits}"));
            prop_assert!(entry.fits_address(address));
            prop_assert_eq!(entry.is_exclusion(), is_exclusion);
            prop_assert_eq!(pattern(&entry.to_string()), entry);
        }

        #[test]
        fn a_network_is_what_shares_its_bits(one: u32, other: u32, bits in 0_u8..=32) {
            let common = (one ^ other).leading_zeros();
            let address = |bits: u32| IpAddr::V4(bits.into());
            let is_same = is_same_network(address(one), address(other), bits);
            prop_assert_eq!(is_same, common >= u32::from(bits));
        }
    }
}
