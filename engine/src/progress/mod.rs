//! The engine loop, and the trait a driver implements for it.

pub(crate) mod completions;
pub(crate) mod lanes;
