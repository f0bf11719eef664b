//! NICs in use: joined once for all leases, and left a while after the last one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use super::grant::Refusal;
use super::wire::Code;
use crate::{AttachMode, Nic};

/// How long a NIC stays joined without a lease. To attach the program and to take it off interrupts
/// some NICs, and who asks and leaves in turns is not to do that to others.
const KEPT_FOR: Duration = Duration::from_secs(5);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Nics(Mutex<All>);

#[derive(Debug, Default)]
struct All {
    /// Each under a lock of its own: joining one may wait for files and load a program, which those
    /// who want another one do not wait for.
    places: HashMap<u32, Arc<Mutex<Place>>>,
    is_closed: bool,
}

#[derive(Debug)]
struct Place {
    nic: Option<Nic>,
    used_at: Instant,
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change is one assignment, so a panic leaves what is as good as before.
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Nics {
    /// The NIC, joined for all who use it.
    pub(crate) fn join(&self, ifindex: u32) -> Result<Nic, Refusal> {
        let refused = |why: &dyn std::fmt::Display| (Code::Nic, format!("ringrail-xdpd: {why}"));
        let place = {
            let mut all = lock(&self.0);
            if all.is_closed {
                return Err(refused(&"it stops"));
            }
            let empty = || Arc::new(Mutex::new(Place { nic: None, used_at: Instant::now() }));
            Arc::clone(all.places.entry(ifindex).or_insert_with(empty))
        };
        let mut place = lock(&place);
        place.used_at = Instant::now();
        if let Some(nic) = place.nic.as_ref().filter(|nic| nic.is_attached().is_ok()) {
            return Ok(nic.clone());
        }
        // One that brings nothing any more is left with the last lease that has it.
        place.nic = None;
        let nic = Nic::join(ifindex, AttachMode::Auto).map_err(|error| refused(&error))?;
        place.nic = Some(nic.clone());
        Ok(nic)
    }

    /// Those that had no lease for a while. Dropping them may take as long as locks of files do.
    pub(crate) fn take_idle(&self, now: Instant) -> Vec<Nic> {
        let mut idle = Vec::new();
        lock(&self.0).places.retain(|_, place| {
            let is_wanted = Arc::strong_count(place) > 1;
            let mut place = match place.try_lock() {
                Ok(place) => place,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                // Another thread joins it.
                Err(TryLockError::WouldBlock) => return true,
            };
            if is_wanted || place.nic.as_ref().is_some_and(Nic::is_shared) {
                place.used_at = now;
            }
            let is_kept = now.saturating_duration_since(place.used_at) < KEPT_FOR;
            if !is_kept {
                idle.extend(place.nic.take());
            }
            is_kept
        });
        idle
    }

    /// All of them; none is joined any more.
    pub(crate) fn close(&self) -> Vec<Nic> {
        let places = {
            let mut all = lock(&self.0);
            all.is_closed = true;
            std::mem::take(&mut all.places)
        };
        places.into_values().filter_map(|place| lock(&place).nic.take()).collect()
    }
}
