//! Short time slices for threads that sleep until something comes.

use std::io;

/// The shortest that Linux grants, in nanoseconds.
const SLICE_NS: u64 = 100_000;

/// Asks for short time slices for the calling thread. When it wakes while another thread computes
/// on its core it runs at once then, where it would wait for the end of that one's slice, 3 ms or
/// more; its share of the core stays as it is. Kernels before 6.12 take no notice.
///
/// A thread that has another policy than the usual one keeps what it has.
///
/// # Errors
///
/// The kernel's error, for example from a system call filter.
pub(crate) fn ask_for_short_slices() -> io::Result<()> {
    let mut attributes = attributes()?;
    if attributes.sched_policy != libc::SCHED_OTHER as u32 {
        return Ok(());
    }
    attributes.sched_runtime = SLICE_NS;
    // SAFETY: 0 is the calling thread; the structure outlives the call, which reads it alone.
    let answer = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Those of the calling thread.
fn attributes() -> io::Result<libc::sched_attr> {
    let size = size_of::<libc::sched_attr>() as u32;
    let mut attributes = libc::sched_attr {
        size,
        sched_policy: 0,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: 0,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: 0 is the calling thread; the kernel writes `size` bytes of the structure at the most.
    let answer = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
    if answer == 0 { Ok(attributes) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the kernel knows slices of single threads.
    fn is_known() -> bool {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
        (numbers.next(), numbers.next()) >= (Some(6), Some(12))
    }

    #[test]
    fn only_the_slice_changes() {
        let before = attributes().unwrap();
        let after = std::thread::spawn(|| {
            ask_for_short_slices().unwrap();
            attributes().unwrap()
        });
        let after = after.join().unwrap();
        assert_eq!(after.sched_policy, before.sched_policy);
        assert_eq!(after.sched_nice, before.sched_nice);
        if is_known() && before.sched_policy == libc::SCHED_OTHER as u32 {
            assert_eq!(after.sched_runtime, SLICE_NS);
        }
    }
}
