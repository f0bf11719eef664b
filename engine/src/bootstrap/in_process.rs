//! Bootstrap between threads of one process.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::collective::{Collective, Gather};
use super::error::rank_list;
use super::{BootstrapError, Member};

/// Bootstrap between threads of one process.
#[derive(Debug)]
pub struct InProcess(pub(super) Collective<Thread>);

impl InProcess {
    /// Creates the bootstraps of `size` ranks, in rank order.
    ///
    /// # Errors
    /// `size` is 0 or beyond [`RANKS_MAX`](super::RANKS_MAX).
    pub fn group(size: usize) -> Result<Vec<Self>, BootstrapError> {
        let member = Member::new(0, size);
        member.check()?;
        let shared = Arc::new(InProcessShared {
            table: Mutex::new(InProcessTable {
                round: 0,
                parts: vec![None; size],
                gathered: Arc::default(),
                left: vec![false; size],
            }),
            changed: Condvar::new(),
        });
        let rank = |rank| {
            let shared = Arc::clone(&shared);
            let thread = Thread { rank, size, timeout: member.timeout, shared };
            Self(Collective::assume_joined(thread))
        };
        Ok((0..size).map(rank).collect())
    }

    /// Sets how long each collective call of this rank may take.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.0.gather_mut().timeout = timeout;
        self
    }
}

#[derive(Debug)]
struct InProcessShared {
    table: Mutex<InProcessTable>,
    changed: Condvar,
}

#[derive(Debug)]
struct InProcessTable {
    /// Rounds that are complete.
    round: u64,
    /// Parts of the round under way.
    parts: Vec<Option<Vec<u8>>>,
    /// The last complete round, kept until all ranks have reached the next one.
    gathered: Arc<Vec<Vec<u8>>>,
    left: Vec<bool>,
}

impl InProcessShared {
    /// Locks the table. It is consistent even after a panic: every change below is a single step.
    fn lock(&self) -> MutexGuard<'_, InProcessTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One rank's hold on the table.
#[derive(Debug)]
pub(crate) struct Thread {
    rank: usize,
    size: usize,
    timeout: Duration,
    shared: Arc<InProcessShared>,
}

impl Gather for Thread {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn gather(&mut self, part: Vec<u8>) -> Result<Vec<Vec<u8>>, BootstrapError> {
        let deadline = Instant::now().checked_add(self.timeout);
        let mut table = self.shared.lock();
        let round = table.round;
        table.parts[self.rank] = Some(part);
        if table.parts.iter().all(Option::is_some) {
            let parts = table.parts.iter_mut().filter_map(Option::take).collect();
            table.gathered = Arc::new(parts);
            table.round += 1;
            self.shared.changed.notify_all();
        }
        while table.round == round {
            let missing = |rank: &usize| table.parts[*rank].is_none();
            if let Some(rank) = (0..self.size).find(|rank| table.left[*rank] && missing(rank)) {
                table.left[self.rank] = true;
                self.shared.changed.notify_all();
                let detail = format!("rank {rank} left while rank {} waits for it", self.rank);
                return Err(BootstrapError::PeerLost { detail });
            }
            let now = Instant::now();
            let remaining = deadline.map_or(Duration::MAX, |at| at.saturating_duration_since(now));
            if remaining.is_zero() {
                let what = format!("for ranks {}", rank_list((0..self.size).filter(missing)));
                // The others must not be joined with a rank that gave up.
                table.left[self.rank] = true;
                table.parts[self.rank] = None;
                self.shared.changed.notify_all();
                let cure = "see what these threads do instead of calling".into();
                return Err(BootstrapError::Timeout { what, after: self.timeout, cure });
            }
            let waited = self.shared.changed.wait_timeout(table, remaining);
            table = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let gathered = Arc::clone(&table.gathered);
        drop(table);
        Ok(gathered.to_vec())
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.shared.lock().left[self.rank] = true;
        self.shared.changed.notify_all();
    }
}
