//! How much each user has, and may have.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Questions that a user may ask at once, and a second from then on: each may load a program.
const QUESTIONS_MAX: u32 = 256;
const QUESTIONS_PER_SECOND: u32 = 64;
/// Connections of a user beyond those that are leases.
const WAITING_MAX: usize = 64;
/// Of all users.
pub(crate) const CONNECTIONS_MAX: usize = 2048;

/// What one user has.
#[derive(Clone, Copy, Debug)]
struct Account {
    connections: usize,
    leases: usize,
    questions: u32,
    filled_at: Instant,
}

/// The accounts of all users.
#[derive(Debug)]
pub(crate) struct Usage {
    leases_per_user: usize,
    accounts: Mutex<HashMap<u32, Account>>,
}

/// Something that a user has, until it is dropped.
#[derive(Debug)]
pub(crate) struct Share {
    usage: Arc<Usage>,
    user: u32,
    is_lease: bool,
}

impl Usage {
    /// No user has a lease.
    pub(crate) fn new(leases_per_user: usize) -> Arc<Self> {
        Arc::new(Self { leases_per_user, accounts: Mutex::default() })
    }

    fn accounts(&self) -> MutexGuard<'_, HashMap<u32, Account>> {
        // Each change is one assignment, so a panic leaves whole accounts.
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection more for `user`; `None`: too many.
    pub(crate) fn connect(self: &Arc<Self>, user: u32, now: Instant) -> Option<Share> {
        let mut accounts = self.accounts();
        accounts.retain(|_, account| {
            account.connections > 0 || now.duration_since(account.filled_at) < FORGOTTEN_AFTER
        });
        let all: usize = accounts.values().map(|account| account.connections).sum();
        let account = accounts.entry(user).or_insert(Account {
            connections: 0,
            leases: 0,
            questions: QUESTIONS_MAX,
            filled_at: now,
        });
        if all >= CONNECTIONS_MAX || account.connections >= self.leases_per_user + WAITING_MAX {
            return None;
        }
        account.connections += 1;
        Some(Share { usage: Arc::clone(self), user, is_lease: false })
    }

    /// Whether `user`, who has a connection, may ask for something now.
    pub(crate) fn may_ask(&self, user: u32, now: Instant) -> bool {
        let mut accounts = self.accounts();
        let Some(account) = accounts.get_mut(&user) else { return false };
        let seconds = now.duration_since(account.filled_at).as_secs();
        if seconds > 0 {
            let more = u32::try_from(seconds).unwrap_or(u32::MAX);
            account.questions =
                account.questions.saturating_add(more.saturating_mul(QUESTIONS_PER_SECOND));
            account.questions = account.questions.min(QUESTIONS_MAX);
            account.filled_at = now;
        }
        let is_allowed = account.questions > 0;
        account.questions = account.questions.saturating_sub(1);
        is_allowed
    }

    /// A queue more for `user`, who has a connection; `None`: too many.
    pub(crate) fn lease(self: &Arc<Self>, user: u32) -> Option<Share> {
        let mut accounts = self.accounts();
        let account = accounts.get_mut(&user)?;
        if account.leases >= self.leases_per_user {
            return None;
        }
        account.leases += 1;
        Some(Share { usage: Arc::clone(self), user, is_lease: true })
    }
}

/// An account without connections has had all its questions back long before.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

impl Drop for Share {
    fn drop(&mut self) {
        let mut accounts = self.usage.accounts();
        let Some(account) = accounts.get_mut(&self.user) else { return };
        let count = if self.is_lease { &mut account.leases } else { &mut account.connections };
        *count -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_user_has_limits_of_its_own() {
        let usage = Usage::new(2);
        let now = Instant::now();
        let connections: Vec<_> = std::iter::from_fn(|| usage.connect(1, now)).take(1000).collect();
        assert_eq!(connections.len(), 2 + WAITING_MAX);
        let other = usage.connect(2, now).unwrap();
        let leases = [usage.lease(1).unwrap(), usage.lease(1).unwrap()];
        assert!(usage.lease(1).is_none());
        assert!(usage.lease(2).is_some());
        assert!(usage.lease(3).is_none(), "who has no connection has nothing");
        drop(leases);
        assert!(usage.lease(1).is_some());
        drop((connections, other));
        assert!(usage.connect(1, now).is_some());
        assert!(usage.accounts().values().all(|account| account.connections == 0));
    }

    #[test]
    fn all_users_together_have_a_limit() {
        let usage = Usage::new(8);
        let now = Instant::now();
        let all: Vec<_> = (0..100_000).map_while(|at| usage.connect(at / 50, now)).collect();
        assert_eq!(all.len(), CONNECTIONS_MAX);
        drop(all);
        assert!(usage.connect(1, now + FORGOTTEN_AFTER * 2).is_some());
        assert_eq!(usage.accounts().len(), 1, "who left long ago is forgotten");
    }

    #[test]
    fn questions_are_limited_and_come_back() {
        let usage = Usage::new(8);
        let mut now = Instant::now();
        let _connection = usage.connect(1, now).unwrap();
        let asked = (0..10_000).take_while(|_| usage.may_ask(1, now)).count();
        assert_eq!(asked, QUESTIONS_MAX as usize);
        now += Duration::from_secs(1);
        let asked = (0..10_000).take_while(|_| usage.may_ask(1, now)).count();
        assert_eq!(asked, QUESTIONS_PER_SECOND as usize);
        now += Duration::from_secs(1 << 30);
        assert!(usage.may_ask(1, now));
    }
}
