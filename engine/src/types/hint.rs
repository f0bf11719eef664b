//! Hints: the purpose of a message.

pub use crate::proto::hint::Hint;
