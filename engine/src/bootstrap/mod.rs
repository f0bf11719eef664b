//! How the ranks of a job find each other: exchange of small values, and a barrier.
//!
//! A [`Bootstrap`] is used at the start (to exchange addresses) and possibly at the end (a
//! barrier). It is not a data path: each collective call is a round trip through rank 0 or a
//! directory.
//!
//! There are three implementations:
//!
//! | type | for | needs |
//! |---|---|---|
//! | [`InProcess`] | threads of one process | nothing |
//! | [`SharedDirectory`] | processes that see one file system | a directory |
//! | [`Tcp`] | processes of several hosts | an address and port of rank 0's host |
//!
//! [`from_env`] chooses one by environment variables. A launcher or runtime with an exchange of its
//! own can implement the trait.
//!
//! Peers are not authenticated: any process that can reach the port or write into the directory
//! can join.
//!
//! ```
//! use ringrail::bootstrap::{InProcess, exchange};
//!
//! let ranks = InProcess::group(2)?.into_iter().map(|mut bootstrap| {
//!     std::thread::spawn(move || {
//!         let mine = [bootstrap_rank(&bootstrap)];
//!         exchange(&mut bootstrap, "address", &mine)
//!     })
//! });
//! # use ringrail::bootstrap::Bootstrap;
//! # fn bootstrap_rank(bootstrap: &InProcess) -> u8 { bootstrap.rank() as u8 }
//! for rank in ranks.collect::<Vec<_>>() {
//!     assert_eq!(rank.join().unwrap()?, [vec![0], vec![1]]);
//! }
//! # Ok::<(), ringrail::bootstrap::BootstrapError>(())
//! ```

mod collective;
mod directory;
mod environment;
mod error;
mod folder;
#[cfg(test)]
mod fuzz;
mod in_process;
mod tcp;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub use directory::SharedDirectory;
pub use environment::{from_env, from_variables};
pub use error::BootstrapError;
pub use in_process::InProcess;
pub use tcp::Tcp;

/// The longest key in bytes.
pub const KEY_BYTES_MAX: usize = 256;

/// The longest value in bytes.
pub const VALUE_BYTES_MAX: usize = 64 << 10;

/// What one rank may put between two fences, in bytes, keys and framing included.
pub const PART_BYTES_MAX: usize = 1 << 20;

/// The largest number of ranks.
pub const RANKS_MAX: usize = 1 << 20;

/// The default limit on the duration of joining and of each collective call.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);

/// The exchange of a job's ranks.
///
/// `fence` and `barrier` are collective: every rank calls the same ones in the same order. They
/// return when all ranks have called, or with an error after a deadline. After an error every
/// further call gives that error again.
///
/// Keep the bootstrap until all ranks have completed their last collective call: dropping it
/// reports to the others that this rank has left.
pub trait Bootstrap: Send {
    /// The number of this rank, from 0.
    fn rank(&self) -> usize;

    /// The number of ranks.
    fn size(&self) -> usize;

    /// Publishes a value of this rank. The others can get it after the next `fence`.
    ///
    /// # Errors
    /// The key or the value is too long, or this rank has put that key before: a value that
    /// changed could be read old by one rank and new by another.
    fn put(&mut self, key: &str, value: &[u8]) -> Result<(), BootstrapError>;

    /// Waits for all ranks; then everything that any of them put before can be got.
    ///
    /// # Errors
    /// A rank left, died, did something else, or did not come in time.
    fn fence(&mut self) -> Result<(), BootstrapError>;

    /// Returns the value that `rank` put under `key` before the last `fence`. Does not wait.
    ///
    /// # Errors
    /// There is no such value.
    fn get(&mut self, rank: usize, key: &str) -> Result<Vec<u8>, BootstrapError>;

    /// Waits for all ranks.
    ///
    /// # Errors
    /// As for `fence`.
    fn barrier(&mut self) -> Result<(), BootstrapError>;
}

/// Gives every rank the values of all ranks, in rank order. Collective; a key serves once.
///
/// # Errors
/// As for [`Bootstrap::put`], [`Bootstrap::fence`] and [`Bootstrap::get`].
pub fn exchange(
    bootstrap: &mut dyn Bootstrap,
    key: &str,
    value: &[u8],
) -> Result<Vec<Vec<u8>>, BootstrapError> {
    bootstrap.put(key, value)?;
    bootstrap.fence()?;
    (0..bootstrap.size()).map(|rank| bootstrap.get(rank, key)).collect()
}

/// A rank and the job that it joins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The number of this rank, from 0.
    pub rank: usize,
    /// The number of ranks.
    pub size: usize,
    /// Distinguishes this job from others on the same port or in the same directory. May be empty.
    pub job: String,
    /// How long joining and each collective call may take.
    pub timeout: Duration,
}

impl Member {
    /// Rank `rank` of `size`, of a job without a name, with [`DEFAULT_TIMEOUT`].
    pub fn new(rank: usize, size: usize) -> Self {
        Self { rank, size, job: String::new(), timeout: DEFAULT_TIMEOUT }
    }

    /// Checks that rank and size make sense.
    fn check(&self) -> Result<(), BootstrapError> {
        let problem = if !(1..=RANKS_MAX).contains(&self.size) {
            format!("a job has 1 to {RANKS_MAX} ranks, not {}", self.size)
        } else if self.rank >= self.size {
            format!("rank {} of {} ranks: they count from 0", self.rank, self.size)
        } else if self.timeout.is_zero() {
            "the timeout is zero".into()
        } else if self.job.len() > KEY_BYTES_MAX {
            format!("the job's name has more than {KEY_BYTES_MAX} bytes")
        } else {
            return Ok(());
        };
        Err(BootstrapError::Invalid { problem })
    }
}

/// A process as error messages show it.
fn own_label() -> String {
    format!("process {} on host {}", std::process::id(), crate::settings::host_name())
}

/// Bootstraps are a [`collective::Collective`] over some way to gather.
macro_rules! delegate {
    ($($name:ty),+) => {$(
        impl Bootstrap for $name {
            fn rank(&self) -> usize {
                self.0.rank()
            }
            fn size(&self) -> usize {
                self.0.size()
            }
            fn put(&mut self, key: &str, value: &[u8]) -> Result<(), BootstrapError> {
                self.0.put(key, value)
            }
            fn fence(&mut self) -> Result<(), BootstrapError> {
                self.0.fence()
            }
            fn get(&mut self, rank: usize, key: &str) -> Result<Vec<u8>, BootstrapError> {
                self.0.get(rank, key)
            }
            fn barrier(&mut self) -> Result<(), BootstrapError> {
                self.0.barrier()
            }
        }
    )+};
}

delegate!(InProcess, SharedDirectory, Tcp);
