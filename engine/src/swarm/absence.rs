//! Owners that compute: only the background thread makes turns.

use super::paths::{warm_up, world};
use super::scenarios::{MILLISECOND, config, drain, pass, peer, receive, run, send, talk};
use super::world::World;
use crate::proto::core::Config;
use crate::proto::effects::CompletionLevel;

/// Longer than anything takes that does not wait for an owner.
const LONG_NS: u64 = 5_000 * MILLISECOND;
const MESSAGES: u64 = 40;

/// Credit for all messages at once: what is sent is complete at once.
fn ample() -> Config {
    Config { envelope_credits: 1000, eager_credit_bytes: 1 << 20, ..config() }
}

/// Progress of host 0 after its owner's last call.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Then {
    /// No thread makes turns.
    Nothing,
    /// The background thread does.
    Care,
}

/// How many of [`MESSAGES`] that were complete arrive at host 1 while the owner of host 0 is away.
fn arrivals(seed: u64, loss_ppm: u64, then: Then) -> u64 {
    let mut world = world(seed, &ample());
    warm_up(&mut world);
    world.net.borrow_mut().datagram_impairments.loss_ppm = loss_ppm;
    let (target, source) = (peer(&mut world, 0, 1), peer(&mut world, 1, 0));
    for tag in 0..MESSAGES {
        assert!(receive(&mut world, 1, source, tag, 300));
        let is_pending = send(&mut world, 0, target, tag, 200, CompletionLevel::Inject);
        assert!(!is_pending, "message {tag} is complete");
    }
    match then {
        Then::Nothing => {
            world.net.borrow_mut().pause(0, LONG_NS);
        }
        Then::Care => world.be_absent(0, LONG_NS),
    }
    pass(&mut world, LONG_NS / 2);
    assert_eq!(world.net.borrow_mut().take_violation(), None);
    let done = drain(&mut world, 1);
    done.iter().for_each(|done| assert!(done.result.is_ok(), "seed {seed}: {done:?}"));
    let arrived = done.len() as u64;
    pass(&mut world, LONG_NS);
    let late = drain(&mut world, 1).len() as u64;
    assert_eq!(arrived + late, MESSAGES, "seed {seed}: when the owner is back all arrive");
    arrived
}

/// RR-PATH-6
#[test]
fn short_messages_arrive_while_the_owner_computes() {
    for (seed, loss_ppm) in (0..20).zip([0, 10_000, 100_000, 300_000].into_iter().cycle()) {
        assert_eq!(arrivals(seed, loss_ppm, Then::Care), MESSAGES, "seed {seed}, {loss_ppm}");
    }
    let without = (0..5).map(|seed| arrivals(seed, 300_000, Then::Nothing)).max();
    assert!(without < Some(MESSAGES), "nothing of this needs a background thread");
}

/// Both owners compute while messages of all lengths are under way: short ones arrive, and the long
/// ones when the owners are back. Nothing is reported twice.
#[test]
fn everything_ends_when_both_are_back() {
    for seed in 0..30 {
        let mut world = world(seed, &config());
        warm_up(&mut world);
        let loss_ppm = [0, 50_000, 200_000][seed as usize % 3];
        world.net.borrow_mut().datagram_impairments.loss_ppm = loss_ppm;
        let sides = [(0, 1), (1, 0)].map(|(at, of)| (at, peer(&mut world, at, of)));
        let mut expected = [Vec::new(), Vec::new()];
        for (tag, length) in (0..60).zip([10, 3000, 200, 700, 100].into_iter().cycle()) {
            for (at, other) in sides {
                assert!(receive(&mut world, at, other, tag, length));
                send(&mut world, at, other, tag, length, CompletionLevel::Match);
                expected[at].extend([tag, tag]);
            }
            if tag % 20 == 10 {
                pass(&mut world, seed * 10_000);
                sides.iter().for_each(|&(at, _)| world.be_absent(at, 50 * MILLISECOND));
            }
        }
        let mut ended = [Vec::new(), Vec::new()];
        run(&mut world, "everything ends", |world| {
            for (at, ended) in ended.iter_mut().enumerate() {
                for done in drain(world, at) {
                    assert!(done.result.is_ok(), "seed {seed}: {done:?}");
                    ended.push(done.user_data);
                }
            }
            ended.iter().all(|ended| ended.len() >= 120)
        });
        ended.iter_mut().for_each(|ended| ended.sort_unstable());
        assert_eq!(ended, expected, "seed {seed}");
        world.net.borrow_mut().datagram_impairments.loss_ppm = 0;
        talk(&mut world, [0, 1], "after it");
    }
}

/// A session is set up, used and ended between two owners that compute.
#[test]
fn sessions_come_and_go_while_owners_compute() {
    for seed in 0..20 {
        let mut world: World = world(seed, &ample());
        let (target, source) = (peer(&mut world, 0, 1), peer(&mut world, 1, 0));
        assert!(receive(&mut world, 1, source, 1, 100));
        send(&mut world, 0, target, 1, 100, CompletionLevel::Match);
        world.be_absent(0, LONG_NS);
        world.be_absent(1, LONG_NS);
        pass(&mut world, LONG_NS / 2);
        let ended = [0, 1].map(|host| drain(&mut world, host));
        assert!(ended.iter().all(|ended| ended.len() == 1 && ended[0].result.is_ok()), "{seed}");
        pass(&mut world, LONG_NS);
        talk(&mut world, [0, 1], "after it");
    }
}
