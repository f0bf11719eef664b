//! The Internet checksum (RFC 1071), eight bytes at a time.
//!
//! Sums are of 16-bit words in host byte order: the sum of swapped words is the swapped sum (RFC
//! 1071, section 2B), so words are never swapped, and the result is stored as it is.

/// Adds `bytes` to an unfolded sum; an odd last byte is padded with zero. Overflows after 2^32
/// words of bytes at the earliest.
pub(super) fn add(sum: u64, bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut sum = words.iter().fold(sum, |sum, word| {
        let word = u64::from_ne_bytes(*word);
        sum + (word & 0xffff_ffff) + (word >> 32)
    });
    if !rest.is_empty() {
        let mut word = [0; 8];
        word[..rest.len()].copy_from_slice(rest);
        let word = u64::from_ne_bytes(word);
        sum += (word & 0xffff_ffff) + (word >> 32);
    }
    sum
}

/// The checksum of the sum, as stored in a header.
#[inline]
pub(super) fn finish(sum: u64) -> [u8; 2] {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    (!(sum as u16)).to_ne_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Word by word, in network byte order.
    fn plain(bytes: &[u8]) -> [u8; 2] {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            let low = pair.get(1).copied().unwrap_or(0);
            sum += u32::from(u16::from_be_bytes([pair[0], low]));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        (!(sum as u16)).to_be_bytes()
    }

    #[test]
    fn sum_of_every_length_matches_the_reference() {
        let bytes: Vec<u8> = (0..2100u32).map(|n| (n * n * 31 + n) as u8).collect();
        for start in 0..3 {
            for end in start..bytes.len() {
                let part = &bytes[start..end];
                assert_eq!(finish(add(0, part)), plain(part), "{start}..{end}");
            }
        }
    }

    #[test]
    fn carries_are_not_lost() {
        let bytes = [0xff; 65_535];
        assert_eq!(finish(add(0, &bytes)), plain(&bytes));
        assert_eq!(finish(add(u64::from(u32::MAX), &[])), [0, 0]);
        assert_eq!(finish(0), [0xff, 0xff]);
    }

    #[test]
    fn rfc_1071_example_holds() {
        // RFC 1071, section 3.
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(finish(add(0, &bytes)), (!0xddf2u16).to_be_bytes());
    }
}
