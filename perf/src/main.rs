//! ringrail-perf.
fn main() {}
