//! Limits on bulk lanes.

/// Limits on the bulk lanes of an engine, times in nanoseconds.
#[derive(Clone, Debug)]
pub(crate) struct LaneLimits {
    /// Lanes of a session on each path.
    per_path: usize,
    /// Lanes of the engine.
    total: usize,
    /// Idle time after which a lane is closed.
    idle_ns: u64,
    /// Time for one attempt to connect.
    attempt_ns: u64,
    /// Duration of network outages that end no session although lanes fail.
    outage_ns: u64,
}

impl LaneLimits {
    /// A session has `per_path` lanes on each path, the engine `total`. Lanes are closed when they
    /// are idle for `idle_ns`; an attempt to connect takes at most `attempt_ns`; outages of
    /// `outage_ns` end no session.
    pub(crate) const fn new(
        per_path: u32,
        total: usize,
        idle_ns: u64,
        attempt_ns: u64,
        outage_ns: u64,
    ) -> Self {
        Self { per_path: per_path as usize, total, idle_ns, attempt_ns, outage_ns }
    }

    /// Returns how many lanes a session has on each path.
    pub(super) fn per_path(&self) -> usize {
        self.per_path.max(1)
    }

    /// Returns how many lanes the engine may have.
    pub(super) fn total(&self) -> usize {
        self.total
    }

    /// Returns how many lanes a session with `paths` may have: twice the usual number leaves space
    /// for lanes that replace failing ones.
    pub(super) fn session_max(&self, paths: usize) -> usize {
        2 * self.per_path.max(8) * paths
    }

    /// Returns whether a lane that was idle for so long is closed.
    pub(super) fn is_idle_too_long(&self, idle_ns: u64) -> bool {
        idle_ns > self.idle_ns
    }

    /// Returns for how long a new lane may wait for the grants that it was opened for.
    pub(super) fn patience_ns(&self) -> u64 {
        self.attempt_ns
    }

    /// Returns for how long the lanes of a session may fail before it fails, too.
    pub(super) fn outage_ns(&self) -> u64 {
        self.attempt_ns.max(self.outage_ns)
    }

    /// Returns the maximum time between two attempts that the network drops: failures further apart
    /// are not of one outage.
    pub(super) fn gap_ns(&self) -> u64 {
        self.outage_ns().saturating_add(2 * self.attempt_ns)
    }
}
