//! What a message is for.

pub use crate::proto::hint::Hint;
