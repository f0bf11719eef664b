//! How long the last steps of a turn are deferred.

use super::{
    DEFERRED_IDLE_NS_MAX, DEFERRED_IDLE_TURNS_MAX, DEFERRED_NS_MAX, DEFERRED_RECEIPTS_MAX,
    DeferredSteps,
};

const START_NS: u64 = 5_000_000;

fn started() -> DeferredSteps {
    DeferredSteps::done(START_NS)
}

#[test]
fn idle_turns_are_deferred_for_a_time() {
    let mut steps = started();
    for since_ns in [0, DEFERRED_IDLE_NS_MAX / 2, DEFERRED_IDLE_NS_MAX - 1] {
        assert!(steps.defer_idle(START_NS + since_ns), "{since_ns}");
    }
    assert!(!steps.defer_idle(START_NS + DEFERRED_IDLE_NS_MAX));
    // A clock that goes back counts as one that stands.
    assert!(started().defer_idle(START_NS - 1));
    assert!(!started().defer_idle(u64::MAX));
}

#[test]
fn idle_turns_are_deferred_for_a_number_of_turns() {
    let mut steps = started();
    for turn in 0..DEFERRED_IDLE_TURNS_MAX {
        assert!(steps.defer_idle(START_NS), "{turn}");
    }
    assert!(!steps.defer_idle(START_NS));
    assert!(steps.defer(1, START_NS), "a message still ends its turn");
    assert!(!steps.defer_idle(START_NS), "and does not begin another row of idle turns");
    steps = started();
    assert!(steps.defer_idle(START_NS), "they are executed");
}

#[test]
fn nothing_is_deferred_once_deferring_has_ended() {
    let mut steps = started();
    assert!(steps.defer_idle(START_NS));
    steps.end();
    assert!(!steps.defer_idle(START_NS));
    assert!(!steps.defer(0, START_NS));
    assert!(started().defer(0, START_NS));
}

#[test]
fn receipts_count_between_idle_turns() {
    let mut steps = started();
    for receipt in 1..=DEFERRED_RECEIPTS_MAX {
        assert!(steps.defer_idle(START_NS), "before receipt {receipt}");
        // A turn with a message counts, even if none is known.
        assert!(steps.defer(receipt % 2, START_NS), "{receipt}");
    }
    assert!(!steps.defer_idle(START_NS), "acknowledgements are due");
    assert!(!steps.defer(1, START_NS));
    let mut steps = started();
    assert!(!steps.defer(DEFERRED_RECEIPTS_MAX + 1, START_NS));
    assert!(!steps.defer_idle(START_NS));
}

#[test]
fn messages_are_deferred_for_longer_than_idle_turns() {
    let mut steps = started();
    assert!(!steps.defer_idle(START_NS + DEFERRED_IDLE_NS_MAX));
    assert!(steps.defer(1, START_NS + DEFERRED_NS_MAX - 1));
    assert!(!steps.defer(1, START_NS + DEFERRED_NS_MAX));
}
