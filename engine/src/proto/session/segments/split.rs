//! Segments in the bytes of a stream.

use zerocopy::FromBytes;

use crate::wire::segment::{
    FLAG_CHECKSUM, SEGMENT_HEADER_BYTES, SEGMENT_SUMS_BYTES, SegmentHeader, SegmentSums,
};
use crate::wire::{FrameError, SEGMENT_BYTES_MAX};

/// Header, body and whole length of a segment.
pub(crate) type Whole<'a> = (&'a SegmentHeader, &'a [u8], usize);

/// Splits the first complete segment off `bytes`, in a session with or without checksums; `None`:
/// more bytes are needed.
#[inline]
pub(crate) fn split(bytes: &[u8], has_checksums: bool) -> Result<Option<Whole<'_>>, FrameError> {
    if has_checksums { split_checked(bytes) } else { split_segment(bytes) }
}

/// Splits a segment in a session without checksums.
///
/// RR-SEG-1.
#[inline]
pub(super) fn split_segment(bytes: &[u8]) -> Result<Option<Whole<'_>>, FrameError> {
    let Ok((header, rest)) = SegmentHeader::ref_from_prefix(bytes) else { return Ok(None) };
    let length = header.length.get() as usize;
    if !(SEGMENT_HEADER_BYTES..=SEGMENT_BYTES_MAX).contains(&length) {
        return Err(FrameError::BadSegmentLength(header.length.get()));
    }
    match rest.get(..length - SEGMENT_HEADER_BYTES) {
        Some(body) => Ok(Some((header, body, length))),
        None => Ok(None),
    }
}

/// Splits a segment in a session with checksums. The header's checksum is verified as soon as
/// it is there: with a wrong length the rest would never arrive.
///
/// RR-SUM-3.
fn split_checked(bytes: &[u8]) -> Result<Option<Whole<'_>>, FrameError> {
    let Ok((header, rest)) = SegmentHeader::ref_from_prefix(bytes) else { return Ok(None) };
    let Ok((sums, _)) = SegmentSums::ref_from_prefix(rest) else { return Ok(None) };
    let frames = sums.frames.get();
    let expected = SegmentSums::new(header, frames);
    let has_sums = header.flags.get() & FLAG_CHECKSUM != 0;
    if expected.header != sums.header || !has_sums {
        let (sent, computed) = (sums.header.get(), expected.header.get());
        return Err(FrameError::Corrupted { sent, computed, what: " with its header" });
    }
    let Some((header, body, length)) = split_segment(bytes)? else { return Ok(None) };
    let Some(body) = body.get(SEGMENT_SUMS_BYTES..) else {
        return Err(FrameError::BadSegmentLength(header.length.get()));
    };
    let computed = crc32c::crc32c(body);
    if computed != frames && !planted!(SkipSegmentSum) {
        return Err(FrameError::Corrupted { sent: frames, computed, what: "" });
    }
    Ok(Some((header, body, length)))
}
