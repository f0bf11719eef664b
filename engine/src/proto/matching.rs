//! Message matching.
