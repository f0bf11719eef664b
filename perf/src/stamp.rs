//! Content that proves which message it is and where it belongs: cheap enough for timed paths.

/// Bytes from one stamp to the next.
pub(crate) const STRIDE: usize = 4096;

const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
/// `FACTOR * INVERSE` is 1, modulo 2^64.
const INVERSE: u64 = inverse(FACTOR);

/// Newton's method: each step doubles the low bits that are right, 3 at the start.
const fn inverse(odd: u64) -> u64 {
    let mut inverse = odd;
    let mut step = 0;
    while step < 5 {
        inverse = inverse.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(inverse)));
        step += 1;
    }
    inverse
}

/// What stands in a message of 8 bytes or more at a multiple of [`STRIDE`], as a number of the
/// host's (little endian).
pub(crate) fn stamp_at(message: u64, offset: usize) -> u64 {
    message.wrapping_mul(FACTOR) ^ offset as u64
}

/// The number of the message whose first stamp this is.
pub(crate) fn number(first: u64) -> u64 {
    first.wrapping_mul(INVERSE)
}

fn offsets(length: usize) -> impl Iterator<Item = usize> {
    let last = length.checked_sub(8);
    (0..length.saturating_sub(7)).step_by(STRIDE).chain(last)
}

/// Stamps a message: at every 4 KiB and in its last 8 bytes. Fewer than 8 bytes get the low bytes
/// of the message's number.
pub(crate) fn write(bytes: &mut [u8], message: u64) {
    if bytes.len() < 8 {
        let length = bytes.len();
        bytes.copy_from_slice(&message.to_le_bytes()[..length]);
        return;
    }
    for offset in offsets(bytes.len()) {
        bytes[offset..offset + 8].copy_from_slice(&stamp_at(message, offset).to_le_bytes());
    }
}

/// Whether all stamps are those of this message.
pub(crate) fn check(bytes: &[u8], message: u64) -> bool {
    check_by(bytes.len(), message, |at, into| into.copy_from_slice(&bytes[at..][..into.len()]))
}

/// The same of a message of `length` bytes that is no slice: `read` copies bytes out of it.
pub(crate) fn check_by(
    length: usize,
    message: u64,
    mut read: impl FnMut(usize, &mut [u8]),
) -> bool {
    let mut bytes = [0; 8];
    if length < 8 {
        read(0, &mut bytes[..length]);
        return bytes[..length] == message.to_le_bytes()[..length];
    }
    // The last stamp may overlap the one before it, and wins.
    let last = length - 8;
    offsets(length).all(|offset| {
        if offset != last && offset + 8 > last {
            return true;
        }
        read(offset, &mut bytes);
        bytes == stamp_at(message, offset).to_le_bytes()
    })
}

/// A byte of a message that is filled.
fn filling(message: u64, offset: usize) -> u8 {
    (offset as u64 ^ (offset as u64 >> 9) ^ message) as u8
}

/// Fills all of a message, for `--verify`.
pub(crate) fn fill(bytes: &mut [u8], message: u64) {
    for (offset, byte) in bytes.iter_mut().enumerate() {
        *byte = filling(message, offset);
    }
}

/// Whether every byte is as [`fill`] wrote it.
pub(crate) fn check_all(bytes: &[u8], message: u64) -> bool {
    bytes.iter().enumerate().all(|(offset, &byte)| byte == filling(message, offset))
}

/// Whether every byte between the stamps is as [`fill`] wrote it, before [`write()`] came.
pub(crate) fn check_between(bytes: &[u8], message: u64) -> bool {
    let last = bytes.len().saturating_sub(8);
    let between = |offset: usize| offset % STRIDE >= 8 && offset < last;
    bytes
        .iter()
        .enumerate()
        .all(|(offset, &byte)| !between(offset) || byte == filling(message, offset))
}

/// Bytes that one side's buffers may take by default: both sides of a lab belong to one user,
/// whose memlock is 8 MiB on stock systems.
const FOOTPRINT_BYTES: usize = 4 << 20;

/// Messages in flight: as asked, or as many as fit the footprint, 2 to 64.
pub(crate) fn window(asked: Option<usize>, size: usize) -> usize {
    asked.unwrap_or_else(|| (FOOTPRINT_BYTES / size.max(1)).clamp(2, 64)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_message_or_place_does_not_pass() {
        for length in [0, 1, 7, 8, 9, 15, 4096, 4100, 10_000] {
            let mut bytes = vec![0; length];
            write(&mut bytes, 5);
            assert!(check(&bytes, 5), "{length}");
            if length > 0 {
                assert!(!check(&bytes, 6), "{length}");
                bytes[length - 1] ^= 1;
                assert!(!check(&bytes, 5), "{length}");
            }
            fill(&mut bytes, 9);
            assert!(check_all(&bytes, 9) && check_between(&bytes, 9));
            write(&mut bytes, 4);
            assert!(check_between(&bytes, 9));
            if let Some(byte) = bytes.get_mut(5000) {
                *byte ^= 1;
                assert!(!check_between(&bytes, 9));
            }
        }
    }

    #[test]
    fn the_first_stamp_tells_the_number() {
        for message in [0, 1, 77, u64::MAX] {
            assert_eq!(number(stamp_at(message, 0)), message);
        }
    }

    #[test]
    fn windows_shrink_with_size() {
        assert_eq!((window(None, 8), window(None, 1 << 20), window(None, 1 << 28)), (64, 4, 2));
        assert_eq!(window(Some(7), 1 << 28), 7);
    }
}
