//! The swarm itself: it repeats, and it finds what is wrong.

use super::*;

/// RR-MATCH-1, RR-RDV-3, RR-RDV-6
#[test]
fn a_few_seeds_hold() {
    for seed in 0..15 {
        run_seed(seed).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
    }
}

#[test]
fn the_same_seed_makes_the_same_run() {
    for seed in 0..6 {
        let hash = || run_seed(seed).map(|report| (report.trace_hash, report.wire_hash));
        assert_eq!(hash(), hash(), "seed {seed}");
    }
}

/// A log of what is sent has the same in every run, and changes nothing.
#[test]
fn log_records_everything_that_is_sent() {
    let folder = tempfile::tempdir().unwrap();
    let logged = |name: &str| {
        let file = folder.path().join(name);
        let report = run_logged(5, File::create(&file).unwrap()).unwrap();
        (report.wire_hash, std::fs::read_to_string(file).unwrap())
    };
    let (hash, log) = logged("first");
    assert_eq!((hash, log.clone()), logged("second"));
    assert_eq!(hash, run_seed(5).unwrap().wire_hash);
    assert!(log.lines().count() > 100 && log.ends_with('\n'));
}

#[test]
fn other_seeds_make_other_runs() {
    let hashes: std::collections::BTreeSet<_> =
        (0..6).map(|seed| run_seed(seed).map(|report| report.trace_hash)).collect();
    assert_eq!(hashes.len(), 6);
}

/// The first seeds from `first` on whose engines are shared by threads.
fn seeds_with_threads(first: u64) -> impl Iterator<Item = u64> {
    (first..).filter(|&seed| Plan::new(seed).threads.is_some())
}

/// RR-MATCH-1, RR-RDV-6
#[test]
fn seeds_with_threads_hold_and_repeat() {
    let bouts = threads::BOUTS.get();
    for seed in seeds_with_threads(0).take(10) {
        let first = run_seed(seed).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        let again = run_seed(seed).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        assert_eq!(first.trace_hash, again.trace_hash, "seed {seed}");
    }
    let bouts = threads::BOUTS.get() - bouts;
    assert!(bouts > 10, "{bouts} bouts of threads");
}

/// Bugs that only threads can show; `cargo xtask swarm --planted` looks for the others of its kind.
#[test]
fn what_threads_may_break_is_found() {
    use crate::hooks::simulated::Bug;
    let of_threads = [Bug::SwapRequests, Bug::LoseRelease, Bug::LoseLeadership];
    for bug in of_threads {
        let at = simulated::BUGS.iter().position(|&known| known == bug).unwrap();
        let finds = |seed: &u64| {
            let caught = std::panic::catch_unwind(|| run_planted(*seed, at).1.err());
            let what = caught.unwrap_or_else(|_| Some("a panic".into()));
            if let Some(what) = &what {
                println!("{bug:?}, seed {seed}: {}", what.lines().next().unwrap_or_default());
            }
            what.is_some()
        };
        assert!(seeds_with_threads(0).take(300).any(|seed| finds(&seed)), "{bug:?}");
    }
}

/// Planted bugs of operations on memory are found: results of flushes, ranges, places, and what a
/// revoked key leaves.
#[test]
fn what_may_break_memory_of_peers_is_found() {
    use crate::hooks::simulated::Bug;
    // With the seed that found it when this was written.
    let of_memory = [
        (Bug::FlushEarly, 17),
        (Bug::OvertakePulls, 5),
        (Bug::SkipRange, 1),
        (Bug::ShiftPut, 1),
        (Bug::ForgetLent, 119),
    ];
    for (bug, first) in of_memory {
        let at = simulated::BUGS.iter().position(|&known| known == bug).unwrap();
        let finds = |seed: u64| run_planted(seed, at).1.err().map(|what| (seed, what));
        let found = (first..first + 300).find_map(finds);
        let (seed, what) = found.unwrap_or_else(|| panic!("{bug:?} is not found"));
        println!("{bug:?}, seed {seed}: {}", what.lines().next().unwrap_or_default());
    }
}

/// A fenced send that waits for nothing is found, by the check of fences.
#[test]
fn a_fence_that_holds_nothing_back_is_found() {
    let bug = simulated::BUGS.iter().position(|bug| *bug == simulated::Bug::IgnoreFence);
    let found = |seed| run_planted(seed, bug.expect("it is one of them")).1.err();
    let found = (0..100).find_map(found);
    assert!(found.is_some_and(|what| what.contains("went before")));
}

/// Returns the seeds from `first` on whose engines share memory.
fn seeds_with_shared_memory(first: u64) -> impl Iterator<Item = u64> {
    (first..).filter(|&seed| {
        let plan = Plan::new(seed);
        plan.local_peers.is_some() && plan.datagrams.is_some()
    })
}

/// Rings carry what they can, end in between, and are made anew.
///
/// RR-SHM-7, RR-SHM-8
#[test]
fn seeds_with_shared_memory_hold_and_repeat() {
    let mut read = [0; 3];
    for seed in seeds_with_shared_memory(0).take(12) {
        let first = run_seed(seed).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        let again = run_seed(seed).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        assert_eq!(first.trace_hash, again.trace_hash, "seed {seed}");
        assert_eq!(first.from_local_peers, again.from_local_peers, "seed {seed}");
        read = [0, 1, 2].map(|kind| read[kind] + first.from_local_peers[kind]);
    }
    println!("{} segments and {} pieces by rings, {} reads", read[0], read[2], read[1]);
    assert!(read[0] > 200 && read[1] > 10 && read[2] > 10, "{read:?}");
}
