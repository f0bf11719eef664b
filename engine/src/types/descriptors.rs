//! The limit of descriptors of this process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit of descriptors to the hard one. An engine has about twenty descriptors,
/// and some more for each peer; soft limits of 1024 are usual, for the sake of `select`.
pub(crate) fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return;
    }
    let raised = Rlimit { current: limit.maximum, ..limit };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => tracing::debug!(
            from = limit.current,
            to = limit.maximum,
            "the soft limit of descriptors is raised"
        ),
        Err(error) => tracing::debug!("the soft limit of descriptors cannot be raised: {error}"),
    }
}
