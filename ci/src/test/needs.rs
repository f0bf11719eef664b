//! What a job needs of the machine, and how long it takes on a quiet one of two cores.

use std::time::Duration;

/// The part of the machine that a job needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Share {
    /// It mostly waits for time to pass.
    Waits,
    /// It waits for about half of the time.
    Half,
    /// It computes.
    Core,
    /// What it counts or measures is wrong beside other jobs.
    Machine,
}

/// What a job needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Needs {
    pub(super) share: Share,
    /// Seconds that it is expected to take.
    pub(super) seconds: u64,
}

/// Jobs that are not in the table.
const USUAL: Needs = Needs { share: Share::Core, seconds: 5 };

/// A job that takes less is stopped after so long all the same.
const LIMIT_MIN: Duration = Duration::from_secs(300);

/// A job is stopped after so many times its expected time: machines are slower, and shared.
const LIMIT_TIMES: u32 = 10;

/// Jobs by the beginning of their names; the first row counts.
const TABLE: &[(&str, Share, u64)] = &[
    // A timer that fires while a program stands still adds to what is counted. It uses all cores,
    // and counts again, alone, what seems to cost more.
    ("instructions", Share::Machine, 30),
    ("swarm: fixed seeds", Share::Core, 60),
    ("swarm: known seeds", Share::Core, 10),
    ("swarm: new seeds", Share::Core, 30),
    ("swarm: figures", Share::Core, 20),
    ("ringrail memory matching_cost", Share::Core, 70),
    // Programs under valgrind, all in one process.
    ("ringrail-c programs", Share::Core, 120),
    ("ringrail-tests labs liveness", Share::Core, 50),
    ("ringrail-tests labs queues", Share::Core, 40),
    // They compare rates of rails.
    ("ringrail-tests labs lab_rails", Share::Machine, 10),
    ("ringrail-perf failover", Share::Machine, 20),
    ("ringrail-perf sharing", Share::Machine, 15),
    ("ringrail-tests labs rails", Share::Core, 30),
    // Other labs, most of which wait for half of the time.
    ("ringrail-tests", Share::Half, 10),
    ("ringrail-xdp", Share::Half, 10),
    ("ringrail-perf", Share::Half, 10),
    ("ringrail-fi", Share::Half, 10),
    ("ringrail ringrail swarm", Share::Core, 40),
    ("ringrail api refused_calls", Share::Waits, 100),
    ("ringrail api faults", Share::Waits, 30),
    ("ringrail api fork", Share::Waits, 50),
    ("ringrail api silence", Share::Waits, 50),
    ("ringrail api middleware", Share::Core, 30),
    ("ringrail api one_sided", Share::Core, 30),
];

/// Beginnings of the names of unit tests of the engine that only the long set runs.
const LONG: &[&str] = &[
    // `uring_of_an_old_kernel` switches all features off at once.
    "driver::tests::uring_without_",
    // The job of planted bugs plants these, too.
    "swarm::tests::a_fence_that_holds_nothing_back_is_found",
    "swarm::tests::what_may_break_memory_of_peers_is_found",
    "swarm::tests::what_threads_may_break_is_found",
    // The job of fixed seeds runs these, too.
    "swarm::tests::a_few_seeds_hold",
    "swarm::tests::other_seeds_make_other_runs",
    "swarm::tests::seeds_with_",
    "swarm::tests::the_same_seed_makes_the_same_run",
];

/// Whether only the long set runs a unit test.
pub(super) fn is_long(test: &str) -> bool {
    LONG.iter().any(|start| test.starts_with(start))
}

/// The needs of the job of this name.
pub(super) fn needs_of(name: &str) -> Needs {
    let row = TABLE.iter().find(|(start, ..)| name.starts_with(start));
    row.map_or(USUAL, |&(_, share, seconds)| Needs { share, seconds })
}

impl Needs {
    /// When it is stopped.
    pub(super) fn limit(&self) -> Duration {
        LIMIT_MIN.max(LIMIT_TIMES * Duration::from_secs(self.seconds))
    }

    /// What it takes from a machine of so many cores, in half core-seconds.
    pub(super) fn work(&self, cores: u32) -> u64 {
        let halves = match self.share {
            Share::Waits | Share::Half => 1,
            Share::Core => 2,
            Share::Machine => 2 * u64::from(cores),
        };
        halves * self.seconds.max(1)
    }
}
