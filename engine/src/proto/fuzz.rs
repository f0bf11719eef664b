//! The protocol against a peer that does anything at any time.
//!
//! An input is a script: each byte of it decides what happens next to one engine that has two
//! peers. One peer is hostile: it says frames that fit, frames that do not, and bytes that are no
//! frames; its lanes join, break and lie. The user makes every call in any order as well. The other
//! peer is sound, and must not notice. [`judge`] says what must hold after every step, and what
//! once everybody has left.

mod judge;
mod kernel;
mod peer;
mod script;
mod world;

use std::time::Duration;

use self::script::Script;
use self::world::World;

/// Long enough to see the random engine through all steps, short enough for every test run.
const TEST_TIME: Duration = Duration::from_millis(1500);

#[test]
fn hostile_peer() {
    bolero::check!().with_test_time(TEST_TIME).for_each(|bytes| {
        let mut script = Script::new(bytes);
        let mut world = World::new();
        while !script.is_over() {
            world.step(&mut script);
            world.check();
        }
        world.finish();
    });
}
