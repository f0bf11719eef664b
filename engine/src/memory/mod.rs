//! Arena, regions, buffers and their shapes, pools.

/// A contiguous piece of a message's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    /// Its first byte.
    pub(crate) ptr: *mut u8,
    /// Its length in bytes.
    pub(crate) len: usize,
}

/// Where the bytes of a message lie.
#[derive(Debug)]
pub(crate) struct Shape;

impl Shape {
    /// The pieces that hold bytes `offset..offset + length` of the message, in order.
    pub(crate) fn spans(&self, _offset: usize, _length: usize) -> impl Iterator<Item = Span> {
        std::iter::empty()
    }
}
