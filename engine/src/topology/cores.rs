//! Cores that this thread may run on, and pinning to one of them, which is `core_affinity`'s, or to
//! several. Nothing else in the engine changes where threads run.

use std::cell::Cell;
use std::sync::OnceLock;

use core_affinity::CoreId;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The affinity mask of the first pinned thread before it was pinned.
static BEFORE_PINNING: OnceLock<CpuSet> = OnceLock::new();

thread_local! {
    /// Whether this thread was pinned by [`pin_current_thread`].
    static IS_PINNED: Cell<bool> = const { Cell::new(false) };
}

/// Why a thread could not be pinned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PinError {
    /// The number is beyond what an affinity mask can hold.
    #[error("core {core} does not exist: cores have numbers below {}", CpuSet::MAX_CPU)]
    OutOfRange {
        /// The core asked for.
        core: usize,
    },
    /// The kernel refused.
    #[error(
        "the kernel refused to pin this thread to core {core}: the core is absent, off-line, or \
         outside this process's cpuset (cores allowed now: {allowed:?}); choose one of these, or \
         widen the cpuset (taskset, numactl, the job's cgroup)"
    )]
    Refused {
        /// The core asked for.
        core: usize,
        /// The cores that the thread may use.
        allowed: Vec<usize>,
    },
    /// The call succeeded, but the thread's mask is a different one.
    #[error(
        "this thread was to run on core {core} alone, but the kernel lets it run on {actual:?}: \
         something else sets the affinity of this process; stop that, or do not pin"
    )]
    NoEffect {
        /// The core asked for.
        core: usize,
        /// The cores in the mask afterwards.
        actual: Vec<usize>,
    },
}

/// Returns the cores that the calling thread may run on, ascending.
///
/// This is its current affinity mask, so call it before pinning. Empty if the system does not
/// report the mask.
pub fn cores() -> Vec<usize> {
    let Ok(mask) = sched_getaffinity(None) else { return Vec::new() };
    (0..CpuSet::MAX_CPU).filter(|core| mask.is_set(*core)).collect()
}

/// Makes the calling thread run on `core` alone, and checks that it does.
///
/// # Errors
/// The core does not exist or may not be used; the thread's affinity is then what it was.
pub fn pin_current_thread(core: usize) -> Result<(), PinError> {
    // The mask below has a fixed size and indexing it further would panic.
    if core >= CpuSet::MAX_CPU {
        return Err(PinError::OutOfRange { core });
    }
    if let Ok(mask) = sched_getaffinity(None) {
        BEFORE_PINNING.get_or_init(|| mask);
    }
    if !core_affinity::set_for_current(CoreId { id: core }) {
        return Err(PinError::Refused { core, allowed: cores() });
    }
    IS_PINNED.set(true);
    let actual = cores();
    if actual == [core] { Ok(()) } else { Err(PinError::NoEffect { core, actual }) }
}

/// Lets the calling thread, which a pinned one may have started, run where the first thread that
/// was pinned could before.
pub(crate) fn unpin_current_thread() {
    if let Some(mask) = BEFORE_PINNING.get() {
        // The thread works on this core too, but competes with the core's owner.
        let _ = sched_setaffinity(None, mask);
    }
}

/// Makes the calling thread run on these cores alone; false if the kernel refuses.
pub(crate) fn run_on(cores: &[usize]) -> bool {
    if let [core] = *cores {
        return core < CpuSet::MAX_CPU && core_affinity::set_for_current(CoreId { id: core });
    }
    let mut mask = CpuSet::new();
    for &core in cores.iter().filter(|core| **core < CpuSet::MAX_CPU) {
        mask.set(core);
    }
    !cores.is_empty() && sched_setaffinity(None, &mask).is_ok()
}

/// Runs `work` on these cores, if the thread may run there, and restores its affinity afterwards,
/// also after a panic.
pub(super) fn on_cores<T>(cores: &[usize], work: impl FnOnce() -> T) -> T {
    let _back = sched_getaffinity(None).ok().filter(|_| run_on(cores)).map(Return);
    work()
}

/// Restores the affinity of the thread.
struct Return(CpuSet);

impl Drop for Return {
    fn drop(&mut self) {
        // Cannot be refused: the thread ran there before.
        let _ = sched_setaffinity(None, &self.0);
    }
}

/// Returns the cores that the calling thread may run on, or could before [`pin_current_thread`].
pub(crate) fn unpinned_cores() -> Vec<usize> {
    match BEFORE_PINNING.get().filter(|_| IS_PINNED.get()) {
        Some(mask) => (0..CpuSet::MAX_CPU).filter(|core| mask.is_set(*core)).collect(),
        None => cores(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinning_takes_effect_for_this_thread_only() {
        let before = cores();
        assert!(!before.is_empty());
        for &core in &before {
            let pinned = std::thread::spawn(move || pin_current_thread(core).map(|()| cores()));
            assert_eq!(pinned.join().unwrap(), Ok(vec![core]));
            let unpinned = std::thread::spawn(move || {
                pin_current_thread(core).unwrap();
                let could = unpinned_cores();
                unpin_current_thread();
                (could, cores())
            });
            assert_eq!(unpinned.join().unwrap(), (before.clone(), before.clone()));
        }
        assert_eq!(cores(), before);
    }

    #[test]
    fn impossible_cores_are_refused_and_change_nothing() {
        let before = cores();
        let beyond = pin_current_thread(CpuSet::MAX_CPU);
        assert_eq!(beyond, Err(PinError::OutOfRange { core: CpuSet::MAX_CPU }));
        let absent = CpuSet::MAX_CPU - 1;
        // A machine with 1024 cores has this one.
        if !before.contains(&absent) {
            let refused = pin_current_thread(absent);
            assert_eq!(refused, Err(PinError::Refused { core: absent, allowed: before.clone() }));
            assert!(refused.unwrap_err().to_string().contains(&format!("{before:?}")));
        }
        assert_eq!(cores(), before);
    }
}
