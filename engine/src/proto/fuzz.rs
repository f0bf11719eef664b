//! Fuzzes the protocol against a peer with arbitrary behaviour.
//!
//! An input is a script: each byte decides what happens next to an engine with two peers. One peer
//! is hostile: it sends valid frames, invalid ones, and bytes that are no frames; its lanes join,
//! break and carry invalid data. The user makes all calls in any order as well. The other peer is
//! correct, and must not be affected. [`judge`] contains the invariants after every step, and after
//! all peers have left.

mod engine;
mod judge;
mod kernel;
mod peer;
mod script;

use std::time::Duration;

use self::engine::FuzzedEngine;
use self::script::Script;

/// Long enough for the random engine to take all kinds of steps, short enough for every test run.
const TEST_TIME: Duration = Duration::from_millis(1500);

#[test]
fn hostile_peer() {
    bolero::check!().with_test_time(TEST_TIME).for_each(|bytes| {
        let mut script = Script::new(bytes);
        let mut engine = FuzzedEngine::new();
        while !script.is_over() {
            engine.step(&mut script);
            engine.check();
        }
        engine.finish();
    });
}
