//! What tests, benches and `ringrail-perf --lab` share: two hosts on one machine, and a way to
//! skip a test that is heard.

pub mod lab;
mod skip;

pub use skip::{SKIP_MARK, skip};
