//! The limit of descriptors of this process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The kernel's maximum of descriptors of a process, whatever its limits.
const SYSTEM_LIMIT: &str = "/proc/sys/fs/nr_open";

/// Raises the soft limit of descriptors to the hard one. An engine has about twenty descriptors,
/// and some more for each peer; soft limits of 1024 are usual, for the sake of `select`.
pub(crate) fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let system = || std::fs::read_to_string(SYSTEM_LIMIT).ok()?.trim().parse().ok();
    let Some(raised) = raised_limit(&limit, system) else { return };
    match setrlimit(Resource::Nofile, Rlimit { current: Some(raised), ..limit }) {
        Ok(()) => tracing::debug!(
            from = limit.current,
            to = raised,
            "the soft limit of descriptors is raised"
        ),
        Err(error) => tracing::debug!("the soft limit of descriptors cannot be raised: {error}"),
    }
}

/// Returns the limit to which the soft limit is raised; `None`: it stays. The kernel refuses a
/// limit above its own, which `system` reads, also if the hard limit is higher or infinite.
fn raised_limit(limit: &Rlimit, system: impl FnOnce() -> Option<u64>) -> Option<u64> {
    let current = limit.current?;
    if limit.maximum == Some(current) {
        return None;
    }
    // If the kernel's limit cannot be read, the hard limit applies.
    let most = match (limit.maximum, system()) {
        (Some(maximum), Some(system)) => maximum.min(system),
        (Some(most), None) | (None, Some(most)) => most,
        (None, None) => return None,
    };
    (most > current).then_some(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raised(current: u64, maximum: Option<u64>, system: Option<u64>) -> Option<u64> {
        raised_limit(&Rlimit { current: Some(current), maximum }, || system)
    }

    #[test]
    fn a_soft_limit_is_raised_to_what_the_hard_one_and_the_kernel_allow() {
        assert_eq!(raised(1024, Some(4096), Some(1 << 20)), Some(4096));
        assert_eq!(raised(1024, Some(1 << 30), Some(1 << 20)), Some(1 << 20));
        assert_eq!(raised(1024, None, Some(1 << 20)), Some(1 << 20));
        assert_eq!(raised(1024, Some(4096), None), Some(4096));
    }

    #[test]
    fn a_soft_limit_is_never_lowered() {
        assert_eq!(raised(4096, Some(4096), Some(1 << 20)), None);
        assert_eq!(raised(4096, Some(8192), Some(1024)), None);
        assert_eq!(raised(4096, None, Some(1024)), None);
        assert_eq!(raised(4096, None, None), None);
        let unlimited = Rlimit { current: None, maximum: None };
        assert_eq!(raised_limit(&unlimited, || Some(1 << 20)), None);
    }
}
