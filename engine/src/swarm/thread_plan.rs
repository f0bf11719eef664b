//! What threads of a run do: how many there are, how much each posts, and how they are held up.

use crate::driver::sim::random::Random;

/// One seed in so many has threads.
const ONE_IN: u64 = 3;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct ThreadPlan {
    /// Actions of a process begin a bout of threads once in so many times.
    pub(super) bout_one_in: usize,
    pub(super) threads_max: usize,
    /// The maximum of actions of a thread in one bout.
    pub(super) calls_max: usize,
    /// Requests that wait for the holder, at the most.
    pub(super) requests_max: usize,
    /// A thread is held up, wherever it is, once in so many steps, and for how many.
    pub(super) held_up_one_in: usize,
    pub(super) held_up_steps: usize,
    /// Steps of all threads at one time.
    pub(super) steps: usize,
}

impl ThreadPlan {
    /// The plan of a seed. Its numbers are its own: what else the seed decides stays as it is.
    pub(super) fn new(seed: u64) -> Option<Self> {
        let mut random = Random::new(seed.rotate_left(24));
        (seed % ONE_IN == 1).then(|| Self {
            bout_one_in: random.pick(&[2, 4, 10]),
            threads_max: random.pick(&[2, 3, 8]),
            calls_max: random.pick(&[3, 10, 40]),
            requests_max: random.pick(&[1, 4, 1 << 14, 1 << 14]),
            held_up_one_in: random.pick(&[4, 20, 200]),
            held_up_steps: random.pick(&[10, 100, 1000]),
            steps: random.pick(&[1, 10, 100]),
        })
    }
}
