//! How a session ends: whether this side leaves it, why it has failed, and what its owner knows of
//! that.

use crate::proto::failure::PeerFailure;

/// What follows the end of a session that is being left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::proto) enum Sequel {
    /// Nothing: sends fail until the peer is connected again.
    None,
    /// The peer was inserted again: operations posted since are for the next session.
    Return,
    /// The same, and the user waits for that one.
    Connect,
}

/// The end of a session, and of the one before it; see the module.
#[derive(Debug)]
pub(crate) struct Ending {
    /// Why the session failed, while it has.
    failure: Option<PeerFailure>,
    /// A failure not yet reported to the owner, though completed sends may be lost.
    unreported: Option<Box<PeerFailure>>,
    /// The goodbye is staged; until the session ends.
    is_leaving: bool,
    /// What follows the end, if the session is left.
    sequel: Sequel,
}

impl Ending {
    /// Creates that of a session that has not begun.
    pub(super) fn new() -> Self {
        Self { failure: None, unreported: None, is_leaving: false, sequel: Sequel::None }
    }

    /// Returns why the session failed, while it has.
    #[inline]
    pub(crate) fn failure(&self) -> Option<&PeerFailure> {
        self.failure.as_ref()
    }

    /// Returns whether the goodbye is staged.
    #[inline]
    pub(crate) fn is_leaving(&self) -> bool {
        self.is_leaving
    }

    /// Returns whether the session is left, and its peer is not wanted again.
    pub(in crate::proto) fn is_left_for_good(&self) -> bool {
        self.is_leaving && self.sequel == Sequel::None
    }

    /// Returns whether another session is to follow.
    pub(in crate::proto) fn has_sequel(&self) -> bool {
        self.sequel != Sequel::None
    }

    /// Sets what follows the end of the session, which is being left.
    pub(in crate::proto) fn continue_by(&mut self, sequel: Sequel) {
        debug_assert!(self.is_leaving, "another one does not end");
        self.sequel = sequel;
    }

    /// Begins anew with an established connection. What is unreported remains.
    pub(super) fn restart(&mut self) {
        (self.failure, self.is_leaving, self.sequel) = (None, false, Sequel::None);
    }

    /// Clears a failure.
    pub(super) fn reset(&mut self) {
        (self.failure, self.unreported) = (None, None);
    }

    /// Leaves the session on the user's request. Returns whether a goodbye is to be staged: not for
    /// one that is not connected, nor twice.
    pub(super) fn leave(&mut self, is_connected: bool) -> bool {
        (self.sequel, self.unreported) = (Sequel::None, None);
        if !is_connected {
            // A later insertion of the peer starts afresh.
            self.failure = None;
            return false;
        }
        !std::mem::replace(&mut self.is_leaving, true)
    }

    /// Ends the session for `failure`. Returns what follows.
    pub(super) fn end(&mut self, failure: PeerFailure) -> Sequel {
        self.failure = Some(failure);
        // The next session with the peer is not being left.
        self.is_leaving = false;
        std::mem::replace(&mut self.sequel, Sequel::None)
    }

    /// Returns why the session cannot be used, or an interruption not yet reported to the owner.
    #[inline]
    pub(in crate::proto) fn to_report(&self) -> Option<&PeerFailure> {
        self.failure.as_ref().or(self.unreported.as_deref())
    }

    /// Returns the same, which is reported with that.
    pub(in crate::proto) fn report(&mut self) -> Option<PeerFailure> {
        let failure = self.to_report().cloned();
        self.unreported = None;
        failure
    }

    /// Notes that the owner received the reason.
    ///
    /// RR-END-5.
    pub(crate) fn note_reported(&mut self) {
        self.unreported = None;
    }

    /// Keeps a failure that no operation reports.
    pub(super) fn keep_unreported(&mut self, failure: PeerFailure) {
        self.unreported.get_or_insert(Box::new(failure));
    }

    /// Returns a failure not yet reported, which is reported with that.
    pub(super) fn take_unreported(&mut self) -> Option<PeerFailure> {
        self.unreported.take().map(|failure| *failure)
    }
}
