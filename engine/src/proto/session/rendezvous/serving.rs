//! A send whose message the peer pulls.

use crate::proto::operation::Cause;

/// A rendezvous send after its RTS.
#[derive(Debug, Default)]
pub(crate) struct Serving {
    /// Chunks that the kernel may still read.
    pub(super) unreleased: u32,
    /// Bytes that were granted in datagrams.
    granted: u64,
    /// A range that is to leave as pieces is granted, and some of it has not left.
    has_pieces: bool,
    /// It was sent in unsolicited pieces, and is not granted yet.
    is_unsolicited: bool,
    /// Messages of the session that were sent in unsolicited pieces before it, itself included.
    unsolicited_count: u64,
    /// The RTS contained the location of the message: the peer may be reading it
    /// ([`super::pull::cma`]).
    is_readable: bool,
    /// When its RTS was staged; 0: its time is not measured.
    begun_ns: u64,
    /// DONE was received, with this many bytes accepted.
    pub(super) done: Option<u64>,
    /// It has failed; completes when nothing is unreleased.
    failed: Option<Cause>,
}

/// How a send that serves has ended.
#[derive(Debug)]
pub(in crate::proto) enum Served {
    /// The peer has accepted this many bytes.
    Done(u64),
    /// It has failed; the peer may be reading its memory if `is_readable`.
    Failed { cause: Cause, is_readable: bool },
}

impl Serving {
    /// Creates the state of a send whose RTS contains its location if `is_readable`.
    pub(in crate::proto) fn new(is_readable: bool) -> Self {
        Self { is_readable, ..Self::default() }
    }

    /// Notes when its RTS was staged.
    pub(in crate::proto) fn note_begun(&mut self, now_ns: u64) {
        self.begun_ns = now_ns;
    }

    /// Notes that the peer grants it. One that it could read it has not read.
    pub(super) fn note_grant(&mut self) {
        if self.is_readable {
            self.begun_ns = 0;
        }
    }

    /// Returns when its RTS was staged; 0: that is not known, or it was not read although it could
    /// be.
    pub(super) fn begun_ns(&self) -> u64 {
        self.begun_ns
    }

    /// Notes whether it is sent in unsolicited pieces, as the last one of `count` messages, or
    /// after them.
    pub(in crate::proto) fn note_unsolicited(&mut self, is_unsolicited: bool, count: u64) {
        (self.is_unsolicited, self.unsolicited_count) = (is_unsolicited, count);
    }

    /// Returns how many messages of the session were sent in unsolicited pieces before it, itself
    /// included.
    pub(super) fn unsolicited_count(&self) -> u64 {
        self.unsolicited_count
    }

    /// Returns whether the peer grants it for the first time, although it was sent in unsolicited
    /// pieces.
    pub(super) fn take_unsolicited(&mut self) -> bool {
        std::mem::take(&mut self.is_unsolicited)
    }

    /// Returns whether the kernel may still read its memory.
    pub(in crate::proto) fn is_read_by_kernel(&self) -> bool {
        self.unreleased > 0
    }

    /// Returns whether the peer may be reading its memory.
    pub(in crate::proto) fn is_readable(&self) -> bool {
        self.is_readable
    }

    /// Returns whether it has failed.
    pub(in crate::proto) fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// Returns whether its result is known, and it waits for the kernel alone.
    pub(in crate::proto) fn is_decided(&self) -> bool {
        self.done.is_some() || self.failed.is_some()
    }

    /// Lets it fail when the kernel has released its memory.
    pub(in crate::proto) fn fail(&mut self, cause: Cause) {
        self.failed.get_or_insert(cause);
    }

    /// Lets it fail as soon as the kernel has released its memory. Returns `false` if that is now.
    pub(in crate::proto) fn fail_later(&mut self, cause: &Cause) -> bool {
        // After DONE the message has arrived, whether or not the peer fails.
        if self.is_read_by_kernel() && self.done.is_none() {
            self.failed.get_or_insert_with(|| cause.clone());
        }
        self.is_read_by_kernel()
    }

    /// Takes the result, once it is known and the kernel has released all memory.
    ///
    /// RR-RDV-4.
    pub(in crate::proto) fn take_end(&mut self) -> Option<Served> {
        if self.is_read_by_kernel() && !planted!(IgnoreRelease) {
            return None;
        }
        match (self.failed.take(), self.done) {
            (Some(cause), _) => Some(Served::Failed { cause, is_readable: self.is_readable }),
            (None, done) => done.map(Served::Done),
        }
    }

    /// Notes that the peer grants a range in datagrams. Returns the bytes of all of them.
    pub(super) fn note_granted(&mut self, bytes: u32) -> u64 {
        self.granted = self.granted.saturating_add(bytes.into());
        self.granted
    }

    /// Notes that the peer grants a range on a ring. Returns `false` if some of the one before has
    /// not left.
    pub(super) fn begin_pieces(&mut self) -> bool {
        !std::mem::replace(&mut self.has_pieces, true)
    }

    /// Notes that all pieces of the granted range have left.
    pub(super) fn note_pieces_sent(&mut self) {
        self.has_pieces = false;
    }
}

#[cfg(test)]
mod tests {
    use super::super::granted::RangeCarrier;
    use super::super::pull::datagrams::DatagramCarrier;
    use super::super::pull::ring::RingCarrier;
    use super::*;
    use crate::wire::Grant;

    const MESSAGE: u64 = 100;

    fn accepts(serving: &mut Serving, by: impl RangeCarrier, range: (u64, u32)) -> bool {
        by.admit(serving, &Grant::new(by.over(), 1, 2, range), MESSAGE).is_ok()
    }

    #[test]
    fn a_message_that_is_granted_although_it_could_be_read_is_not_measured() {
        for (is_readable, begun_ns) in [(true, 0), (false, 7)] {
            let mut serving = Serving::new(is_readable);
            serving.note_begun(7);
            assert_eq!(serving.begun_ns(), 7);
            serving.note_grant();
            assert_eq!(serving.begun_ns(), begun_ns);
        }
    }

    /// RR-BULK-2
    #[test]
    fn nothing_is_granted_twice_in_datagrams() {
        let mut serving = Serving::default();
        assert!(accepts(&mut serving, DatagramCarrier, (0, 60)));
        assert!(accepts(&mut serving, DatagramCarrier, (60, 40)));
        assert!(!accepts(&mut serving, DatagramCarrier, (0, 1)));
    }

    /// RR-SHM-10
    #[test]
    fn one_range_at_a_time_is_granted_on_a_ring() {
        let mut serving = Serving::default();
        let pieces = RingCarrier(1);
        assert!(accepts(&mut serving, pieces, (0, 60)));
        assert!(!accepts(&mut serving, pieces, (60, 40)));
        serving.note_pieces_sent();
        assert!(accepts(&mut serving, pieces, (60, 40)));
    }
}
