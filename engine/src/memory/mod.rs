//! Arena, regions, buffers and their shapes, pools.

/// Where the bytes of a message lie.
#[derive(Debug)]
pub(crate) struct Shape;
