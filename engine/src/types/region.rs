//! Who may do what to registered memory, and why not.

pub use crate::proto::regions::{Access, KeyError, Refusal};
