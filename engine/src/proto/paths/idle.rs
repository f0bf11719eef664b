//! Sessions free memory when they become idle, so that an idle peer costs what a new one does. Only
//! sessions in use are examined. Each packet sets a timer, and when that expires the session is in
//! the list of those in use; without datagrams it is when its connection is checked.

use super::super::core::Core;
use super::{PathTable, Paths};

/// Time without a packet after which a session is idle, in nanoseconds: longer than the usual
/// computation between two exchanges.
const IDLE_NS: u64 = 1_000_000_000;

/// A session in use.
#[derive(Debug)]
pub(super) struct InUse {
    session: u32,
    /// Its packets and frames at the last check, and since when they are unchanged.
    traffic: u64,
    since_ns: u64,
}

#[cfg(any(test, feature = "sim"))]
impl InUse {
    /// Returns the slot of the session.
    pub(super) fn session(&self) -> u32 {
        self.session
    }
}

impl Paths {
    /// Notes that something was sent or received.
    #[inline]
    pub(super) fn note_use(&mut self, session: u32, in_use: &mut Vec<InUse>) {
        if !self.is_in_use {
            self.is_in_use = true;
            in_use.push(InUse { session, traffic: 0, since_ns: 0 });
        }
    }

    fn traffic(&self) -> u64 {
        self.all().fold(0, |sum, path| sum.wrapping_add(path.packets().traffic()))
    }
}

impl PathTable {
    /// Notes that data was sent on the control connection of a session.
    pub(crate) fn note_stream_use(&mut self, session: u32) {
        if let Some((paths, shared)) = self.paths_of(session) {
            paths.note_use(session, &mut shared.in_use);
        }
    }

    /// Frees memory of sessions that have become idle and removes them from those in use:
    /// `became_idle` is called with each.
    pub(crate) fn shrink_idle(
        &mut self,
        core: &mut Core,
        now_ns: u64,
        mut became_idle: impl FnMut(u32),
    ) {
        let mut in_use = std::mem::take(&mut self.shared.in_use);
        in_use.retain_mut(|it| {
            let Some((paths, session, _)) = self.enter(core, it.session) else {
                // It was evicted.
                self.of_mut(it.session).is_in_use = false;
                return false;
            };
            // Another session has its slot, or it has two entries.
            if !paths.is_in_use {
                return false;
            }
            let traffic = paths.traffic().wrapping_add(session.segments().frames_moved());
            if traffic != it.traffic || it.since_ns == 0 {
                (it.traffic, it.since_ns) = (traffic, now_ns);
                return true;
            }
            if now_ns.saturating_sub(it.since_ns) < IDLE_NS {
                return true;
            }
            paths.is_in_use = false;
            for path in paths.all_mut() {
                path.shrink();
            }
            session.shrink_idle();
            became_idle(it.session);
            false
        });
        if in_use.is_empty() {
            in_use.shrink_to_fit();
        }
        let Self { by_slot, shared } = self;
        shared.in_use = in_use;
        // Ended paths leave entries where the loop never sleeps.
        let awake = &mut shared.awake;
        if awake.len() > by_slot.len() {
            awake.sort_unstable();
            awake.dedup();
        }
    }
}
