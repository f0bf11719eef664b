//! Configuration of an engine's protocol.

use super::regions::RegionLimits;
use super::session::connection::Retry;
use super::session::eager_limit::EagerPolicy;
use super::session::lanes::LaneLimits;
use super::session::offers::CreditLimits;
use super::session::rendezvous::limits::PullLimits;
use super::session::segments::StagingLimits;

#[cfg(any(test, feature = "sim"))]
mod by_hand;

#[cfg(any(test, feature = "sim"))]
pub(crate) use self::by_hand::Config;

/// What an engine's protocol is created with. [`Core::new`](super::core::Core::new) gives each
/// owner its part; it is not kept.
#[derive(Clone, Debug)]
pub(crate) struct CoreConfig {
    /// Seed of the hash tables whose keys peers choose.
    pub(crate) hash_seed: u64,
    /// Sessions.
    pub(crate) sessions_max: usize,
    /// Outstanding operations.
    pub(crate) operations_max: usize,
    /// Sends that may wait per session.
    pub(crate) waiting_max: usize,
    /// Connection attempts.
    pub(crate) retry: Retry,
    /// Memory that peers may access.
    pub(crate) regions: RegionLimits,
    pub(crate) credit: CreditLimits,
    pub(crate) eager: EagerPolicy,
    pub(crate) pull: PullLimits,
    pub(crate) lanes: LaneLimits,
    pub(crate) staging: StagingLimits,
}
