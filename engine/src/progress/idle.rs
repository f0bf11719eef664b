//! What sessions in use have grown is given back when they are idle: an idle peer costs what a new
//! one does. Only sessions in use are looked at. Whatever goes or comes by a path enters a time for
//! it; when that has come the session is in the list of those in use.

use super::control::Control;
use super::engine::State;

/// Time without a packet after which a session is idle, in nanoseconds: more than a step of a
/// computation takes between two exchanges.
const IDLE_NS: u64 = 1_000_000_000;

/// A session that was in use.
#[derive(Debug)]
pub(crate) struct InUse {
    session: u32,
    /// What its paths had carried when that was last looked at, and since when it is so much.
    traffic: u64,
    since_ns: u64,
}

impl Control {
    /// Something went or came by a path of the session.
    #[inline]
    pub(super) fn note_use(&mut self, session: u32, in_use: &mut Vec<InUse>) {
        if !self.is_in_use {
            self.is_in_use = true;
            in_use.push(InUse { session, traffic: 0, since_ns: 0 });
        }
    }

    fn traffic(&self) -> u64 {
        self.lanes().fold(0, |sum, lane| sum.wrapping_add(lane.path().traffic()))
    }
}

impl State {
    /// Sessions that have become idle give memory back, and are no longer in use.
    pub(super) fn shrink_idle(&mut self) {
        let Self { in_use, controls, core, now_ns, .. } = self;
        in_use.retain_mut(|it| {
            let Some(control) = controls.get_mut(it.session as usize) else { return false };
            // Another one has its slot, or there are two entries of it.
            if !control.is_in_use {
                return false;
            }
            let traffic = control.traffic();
            if traffic != it.traffic || it.since_ns == 0 {
                (it.traffic, it.since_ns) = (traffic, *now_ns);
                return true;
            }
            if now_ns.saturating_sub(it.since_ns) < IDLE_NS {
                return true;
            }
            control.is_in_use = false;
            if control.unsent.is_empty() {
                control.unsent = Vec::new();
            }
            for lane in control.lanes_mut() {
                lane.shrink();
            }
            core.shrink_session(it.session);
            false
        });
        if in_use.is_empty() {
            in_use.shrink_to_fit();
        }
    }
}
