//! The swarm itself: it repeats, and it finds what is wrong.

use super::*;

#[test]
fn a_few_seeds_hold() {
    for seed in 0..60 {
        run_seed(seed).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
    }
}

#[test]
fn the_same_seed_makes_the_same_run() {
    for seed in 0..20 {
        let hash = || run_seed(seed).map(|report| report.trace_hash);
        assert_eq!(hash(), hash(), "seed {seed}");
    }
}
