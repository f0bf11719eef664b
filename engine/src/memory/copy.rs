//! Copies of bytes.

/// Copies `from` to `to`, which has the same length. Copies of 8 to 16 bytes, which most short
/// messages are, take no call.
///
/// # Panics
///
/// If the lengths differ.
#[inline(always)]
pub(crate) fn copy_bytes(to: &mut [u8], from: &[u8]) {
    if let 8..=16 = from.len()
        && let (Some(first), Some(last)) = (from.first_chunk::<8>(), from.last_chunk::<8>())
        && to.len() == from.len()
    {
        let (first, last) = (*first, *last);
        to[..8].copy_from_slice(&first);
        let behind = to.len() - 8;
        to[behind..].copy_from_slice(&last);
        return;
    }
    to.copy_from_slice(from);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_every_length_are_copied() {
        for length in 0..40 {
            let from: Vec<u8> = (1..=length).collect();
            let mut to = vec![0; from.len()];
            copy_bytes(&mut to, &from);
            assert_eq!(to, from);
        }
    }

    #[test]
    #[should_panic(expected = "copy_from_slice")]
    fn other_lengths_are_refused() {
        copy_bytes(&mut [0; 9], &[0; 8]);
    }
}
