//! Sessions free memory when they become idle, so that an idle peer costs what a new one does. Only
//! sessions in use are examined. Each packet sets a timer, and when that expires the session is in
//! the list of those in use; without datagrams it is when its connection is checked.

use super::super::core::Core;
use super::{PathTable, Paths, SharedPathState};

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
        let Self { by_slot, shared: SharedPathState { in_use, awake, .. } } = self;
        in_use.retain_mut(|it| {
            let paths = by_slot.get_mut(it.session as usize);
            let Some(paths) = debug_assert_some!(paths, "slots of paths stay") else {
                return false;
            };
            // Another session has its slot, or it has two entries.
            if !paths.is_in_use {
                return false;
            }
            let mut session = core.enter(it.session).map(|(session, _)| session);
            let frames = session.as_deref().map_or(0, |it| it.segments().frames_moved());
            let traffic = paths.traffic().wrapping_add(frames);
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
            if let Some(session) = &mut session {
                session.shrink_idle();
            }
            became_idle(it.session);
            false
        });
        if in_use.is_empty() {
            in_use.shrink_to_fit();
        }
        // Ended paths leave entries where the loop never sleeps.
        if awake.len() > by_slot.len() {
            awake.sort_unstable();
            awake.dedup();
        }
    }
}
