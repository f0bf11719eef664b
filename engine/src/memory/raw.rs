//! Memory whose validity the caller guarantees: the interface of the bindings.

use super::error::MemoryError;
use super::shape::{Shape, Span};

/// A span of memory by its address: the `iovec` of the unsafe calls, which document what the caller
/// has to guarantee.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct RawSpan {
    /// The address of the first byte; ignored if `len` is 0.
    pub ptr: *mut u8,
    /// The length in bytes.
    pub len: usize,
}

// SAFETY: an address may be known to any thread; every access through it is `unsafe`.
unsafe impl Send for RawSpan {}
// SAFETY: as above.
unsafe impl Sync for RawSpan {}

impl RawSpan {
    /// A span of memory that is only read (for sends and puts).
    pub fn from_const(ptr: *const u8, len: usize) -> Self {
        Self { ptr: ptr.cast_mut(), len }
    }

    #[inline]
    fn check(self, index: usize) -> Result<Self, MemoryError> {
        let wraps = self.ptr.addr().checked_add(self.len).is_none();
        if self.len > 0 && (self.ptr.is_null() || wraps || self.len > isize::MAX as usize) {
            return Err(MemoryError::BadSpan { index });
        }
        Ok(self)
    }
}

/// The shape of a message in raw memory: any number of spans in order (`IOV_MAX` does not apply).
///
/// Allocates only when there are several.
///
/// # Errors
///
/// [`MemoryError::BadSpan`] for what cannot be memory, [`MemoryError::LayoutOverflow`] when the
/// message's length would overflow a `usize`.
///
/// # Safety
///
/// Until the operation that uses the shape has completed, every span is live memory; the operation
/// may read it, and when it receives, write it, while nothing else accesses it. Overlapping
/// spans of a receive get bytes of one of the pieces each, unspecified which.
#[inline]
pub(crate) unsafe fn raw_shape(spans: &[RawSpan]) -> Result<Shape, MemoryError> {
    match spans {
        // An empty span may have any address, also null.
        [span] if span.len > 0 => {
            span.check(0)?;
            Ok(Shape::contiguous(span.ptr, span.len))
        }
        _ => raw_list(spans),
    }
}

/// The shape of several spans, or of no bytes.
fn raw_list(spans: &[RawSpan]) -> Result<Shape, MemoryError> {
    let mut len = 0usize;
    for (index, span) in spans.iter().enumerate() {
        len = len.checked_add(span.check(index)?.len).ok_or(MemoryError::LayoutOverflow)?;
    }
    Ok(Shape::list(spans.iter().map(|span| Span { ptr: span.ptr, len: span.len })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_longer_than_iov_max_are_one_message() {
        const PIECES: usize = 5000;
        let mut memory: Vec<u8> = (0..4 * PIECES).map(|index| (index / 4 % 251) as u8).collect();
        let base = memory.as_mut_ptr();
        // Every other pair of bytes.
        let spans: Vec<RawSpan> = (0..PIECES)
            .map(|index| RawSpan { ptr: base.wrapping_add(4 * index), len: 2 })
            .collect();
        // SAFETY: the spans lie in `memory`, which is only used through them meanwhile.
        let shape = unsafe { raw_shape(&spans) }.expect("good spans");
        assert_eq!(shape.len(), 2 * PIECES);
        assert_eq!(shape.spans(1, 2 * PIECES - 2).count(), PIECES);
        let mut picked = vec![0; 2 * PIECES];
        // SAFETY: as above.
        unsafe { shape.copy_to(0, &mut picked) };
        assert!(picked.iter().enumerate().all(|(index, &byte)| byte == (index / 2 % 251) as u8));
    }

    #[test]
    fn one_span_is_contiguous_and_none_is_empty() {
        let byte = 5u8;
        // SAFETY: the span is a live byte, which is only read.
        let shape = unsafe { raw_shape(&[RawSpan::from_const(&raw const byte, 1)]) };
        assert!(shape.expect("a good span").is_contiguous());
        let nothing = RawSpan { ptr: std::ptr::null_mut(), len: 0 };
        // SAFETY: no memory at all.
        let shape = unsafe { raw_shape(&[nothing; 3]) }.expect("no bytes");
        assert!(shape.is_empty());
        // SAFETY: no memory at all.
        assert!(unsafe { raw_shape(&[]) }.expect("no bytes").is_empty());
        // SAFETY: no byte is copied.
        unsafe { shape.copy_from(0, &[]) };
    }

    #[test]
    fn invalid_spans_are_refused() {
        let mut byte = 5u8;
        let ptr = &raw mut byte;
        let good = RawSpan { ptr, len: 1 };
        for bad in [
            RawSpan { ptr: std::ptr::null_mut(), len: 1 },
            RawSpan { ptr, len: usize::MAX },
            RawSpan { ptr, len: isize::MAX as usize + 1 },
        ] {
            // SAFETY: the shape is refused, nothing is accessed.
            let refused = unsafe { raw_shape(&[good, bad]) };
            assert_eq!(refused.err(), Some(MemoryError::BadSpan { index: 1 }));
        }
        let long = RawSpan { ptr, len: isize::MAX as usize };
        // SAFETY: the shape is refused, nothing is accessed.
        let refused = unsafe { raw_shape(&[long; 3]) };
        assert_eq!(refused.err(), Some(MemoryError::LayoutOverflow));
    }
}
