//! Access rights of peers to registered memory, and why they are refused.

pub use crate::proto::regions::{Access, KeyError, Refusal};
