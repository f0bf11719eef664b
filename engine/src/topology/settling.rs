//! NICs that are just coming up.

use std::thread;
use std::time::{Duration, Instant};

use super::discovery::{DiscoveryError, nics};
use super::selection::{Candidate, Selection, SelectionError, select};
use crate::settings::Settings;

/// The interval at which the NICs of the host are listed.
const PAUSE: Duration = Duration::from_millis(20);

/// Why no rails could be selected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RailsError {
    /// The kernel does not list the NICs.
    #[error("cannot list the NICs of this host: {0}")]
    Unknown(#[source] DiscoveryError),
    /// The settings name something that does not exist, or contradict each other.
    #[error(transparent)]
    Settings(SelectionError),
    /// No NIC is up and has an address.
    #[error("no NIC can be used; name one in the setting nics: {candidates}")]
    None {
        /// Every NIC and why it is not used.
        candidates: String,
    },
    /// Only loopback is up, and there is another NIC.
    #[error(
        "only loopback is up, which reaches this host only; set nics = {loopback} to use it all \
         the same. Waited {waited_ms} ms (setting connect_timeout) for: {awaited}"
    )]
    LoopbackOnly {
        /// Its name.
        loopback: String,
        /// How long a link of the others was waited for.
        waited_ms: u128,
        /// The others, each with what it lacks and the cure.
        awaited: String,
    },
}

/// As [`select`] for the NICs of this host, but waits up to `limit` where a NIC that lacks nothing
/// but a link would be a better first rail than those that are up, or the only one: it may be
/// coming up. After that time the best of those that are up is taken, with a warning. The
/// selection has rails.
///
/// # Errors
/// As [`select`], and where there is no rail; where it would be loopback beside another NIC with an
/// address, for a process that took it would be reached by none of another host.
pub fn select_when_up(settings: &Settings, limit: Duration) -> Result<Selection, RailsError> {
    let start = Instant::now();
    let mut is_logged = false;
    loop {
        let selection = select(&nics().map_err(RailsError::Unknown)?, settings)
            .map_err(RailsError::Settings)?;
        if selection.awaited.is_empty() || start.elapsed() >= limit {
            return judge(selection, start.elapsed());
        }
        if !is_logged {
            tracing::info!("waiting for a link of: {}", selection.awaited_reasons());
            is_logged = true;
        }
        thread::sleep(PAUSE.min(limit.saturating_sub(start.elapsed())));
    }
}

/// Whether a selection will do, after that time.
fn judge(selection: Selection, waited: Duration) -> Result<Selection, RailsError> {
    let Some((nic, _)) = selection.chosen() else {
        let candidates: Vec<_> = selection.candidates.iter().map(ToString::to_string).collect();
        return Err(RailsError::None { candidates: candidates.join("; ") });
    };
    if !selection.awaited.is_empty() {
        let awaited = selection.awaited_reasons();
        if selection.is_loopback_by_default() {
            let (loopback, waited_ms) = (nic.name.clone(), waited.as_millis());
            return Err(RailsError::LoopbackOnly { loopback, waited_ms, awaited });
        }
        tracing::warn!("{} is used, for want of a better NIC that is up: {awaited}", nic.name);
    } else if selection.is_loopback_by_default() {
        // Hardware that has no address, and is not waited for: it may never have one.
        let is_other = |one: &&Candidate| !one.nic.loopback && one.nic.virtual_.is_none();
        let others = selection.candidates.iter().filter(is_other).map(ToString::to_string);
        let others: Vec<_> = others.collect();
        if !others.is_empty() {
            tracing::warn!("only loopback can be used, not {}", others.join("; "));
        }
    }
    Ok(selection)
}
