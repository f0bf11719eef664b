//! The only rooms with system calls on the data path.

pub(crate) mod sockets;
#[cfg(feature = "uring")]
pub(crate) mod uring;
