//! What atomic operations do, and to what.

pub use crate::wire::atomic_op::{AtomicOp, Datatype};
