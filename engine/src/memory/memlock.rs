//! How much memory may be pinned, and the arena size that follows.

use std::fs;

use rustix::process::{Resource, getrlimit};

/// Bit of `CAP_IPC_LOCK` in a capability set.
const CAP_IPC_LOCK_BIT: u32 = 14;
/// The name of the initial user namespace in `/proc` (a fixed inode number of the kernel).
const INITIAL_USER_NAMESPACE: &str = "user:[4026531837]";

const SMALLEST_ARENA_BYTES: usize = 256 << 10;
const LARGEST_ARENA_BYTES: usize = 64 << 20;
/// Arena sizes are multiples of this: whole pages on every supported machine.
const ARENA_STEP_BYTES: usize = 64 << 10;
/// The limit is counted per user, so that this many ranks of one user fit on a host.
const RANKS_PER_LIMIT: u64 = 4;

/// How many bytes the user may pin; `None` when nothing limits it.
///
/// That is `RLIMIT_MEMLOCK`, which does not apply with `CAP_IPC_LOCK` on the host.
pub(crate) fn memlock_limit() -> Option<u64> {
    if has_cap_ipc_lock() { None } else { getrlimit(Resource::Memlock).current }
}

/// Whether the calling thread has `CAP_IPC_LOCK` where the kernel asks for it: in the initial
/// user namespace. The root of a container with its own user namespace is limited as any user.
pub(crate) fn has_cap_ipc_lock() -> bool {
    let status = fs::read_to_string("/proc/thread-self/status");
    let namespace = fs::read_link("/proc/self/ns/user");
    status.is_ok_and(|status| effective_capability(&status, CAP_IPC_LOCK_BIT))
        && namespace.is_ok_and(|name| name.as_os_str() == INITIAL_USER_NAMESPACE)
}

/// The default size of an arena under a limit on pinned memory (`None`: unlimited), in bytes:
/// a quarter of the limit, at least 256 KiB and at most 64 MiB.
pub(crate) fn default_arena_bytes(memlock_limit: Option<u64>) -> usize {
    let share = memlock_limit.map_or(u64::MAX, |limit| limit / RANKS_PER_LIMIT);
    let share = usize::try_from(share).unwrap_or(usize::MAX);
    let bytes = share.clamp(SMALLEST_ARENA_BYTES, LARGEST_ARENA_BYTES);
    // An arena of 2 MiB or more is rounded up to huge pages; here it is rounded down first.
    let step = if bytes >= super::mapping::HUGE_PAGE_BYTES {
        super::mapping::HUGE_PAGE_BYTES
    } else {
        ARENA_STEP_BYTES
    };
    bytes - bytes % step
}

/// Looks a bit up in the `CapEff` line of a `/proc/.../status` file.
fn effective_capability(status: &str, bit: u32) -> bool {
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let set = set.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    set.is_some_and(|set| set >> bit & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_a_quarter_of_the_limit_within_bounds() {
        assert_eq!(default_arena_bytes(None), 64 << 20);
        assert_eq!(default_arena_bytes(Some(u64::MAX)), 64 << 20);
        assert_eq!(default_arena_bytes(Some(8 << 20)), 2 << 20);
        assert_eq!(default_arena_bytes(Some(22 << 20)), 4 << 20);
        assert_eq!(default_arena_bytes(Some(4_000_000)), 15 * (64 << 10));
        assert_eq!(default_arena_bytes(Some(0)), 256 << 10);
    }

    #[test]
    fn capabilities_are_read_from_the_effective_set() {
        let status = "Name:\tx\nCapPrm:\t000001ffffffffff\nCapEff:\t0000000000004000\n";
        assert!(effective_capability(status, 14));
        assert!(!effective_capability(status, 13));
        let none = "CapPrm:\t000001ffffffffff\nCapEff:\t0000000000000000\n";
        assert!(!effective_capability(none, 14));
        assert!(!effective_capability("CapEff:\tnonsense\n", 14));
        assert!(!effective_capability("", 14));
    }

    #[test]
    fn the_limit_of_this_process_agrees_with_its_capability() {
        let soft = getrlimit(Resource::Memlock).current;
        let expected = if has_cap_ipc_lock() { None } else { soft };
        assert_eq!(memlock_limit(), expected);
    }
}
