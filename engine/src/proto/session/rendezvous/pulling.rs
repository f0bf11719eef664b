//! A receive that pulls its message: what is granted, what is in place, and what brings the rest.

use super::pull::ring::RingCarrier;
use super::pull::{AnyCarrier, Carrier};
use super::ranges::Ranges;
use crate::proto::operation::Cause;

/// Limit on the disjoint ranges received of a message: more than a window of datagrams leaves when
/// every other one is lost. Each range costs search time.
const RANGES_MAX: usize = 1 << 14;

/// What a receive that pulls waits for.
///
/// ```text
///            a ring begins                  it has come
///  Granting ───────────────> Draining ──────────────────> Settled
///     ^  ^                      │                            ^
///     │  └──────────────────────┘ the ring ends before       │
///     │                                                      │
///     └───────────────────────────────────────────────────── matched
///       the memory cannot be read               with a ring, or to be read
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PullState {
    /// Its turn to be granted, and what was granted.
    Granting,
    /// All that was granted: a ring brings the rest as soon as that has come, so that nothing but
    /// pieces writes to the memory.
    Draining,
    /// The rest, by its carrier: none takes its place while it lasts. What a ring has left to
    /// another carrier stays there.
    Settled,
}

/// A rendezvous receive after its match.
#[derive(Debug)]
pub(crate) struct Pulling {
    /// The sender's id of the message.
    pub(super) send_operation: u64,
    /// Length of the message as sent.
    pub(super) length: u64,
    /// Bytes wanted: the length, or the capacity if that is less.
    pub(super) wanted: u64,
    /// Bytes before this offset have been granted at least once.
    pub(super) granted: u64,
    /// Bytes in place.
    pub(super) arrived: u64,
    /// Ranges that the kernel may still write.
    pub(super) targeted: u32,
    /// Consecutive chunks with a wrong checksum.
    pub(super) bad_chunks: u32,
    /// What brings the rest.
    pub(super) carrier: AnyCarrier,
    /// What it waits for.
    pub(super) state: PullState,
    /// What came in datagrams.
    pub(super) ranges: Ranges,
    /// It has failed; completes when nothing is targeted.
    pub(super) failed: Option<Cause>,
}

impl Pulling {
    /// One of `length` bytes, of which `wanted` have room and `in_place` came with the envelope.
    pub(super) fn new(
        send_operation: u64,
        (length, wanted): (u64, u64),
        in_place: u64,
        ranges: Ranges,
    ) -> Self {
        Self {
            send_operation,
            length,
            wanted,
            granted: in_place,
            arrived: in_place,
            targeted: 0,
            bad_chunks: 0,
            carrier: AnyCarrier::default(),
            state: PullState::Granting,
            ranges,
            failed: None,
        }
    }

    /// Returns the sender's id of the message, unless it has failed.
    pub(in crate::proto) fn live_send_operation(&self) -> Option<u64> {
        self.failed.is_none().then_some(self.send_operation)
    }

    /// Returns whether it has failed, and waits for the kernel alone.
    pub(in crate::proto) fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// Lets it fail as soon as the kernel has released its memory. Returns `false` if that is now.
    pub(in crate::proto) fn fail_later(&mut self, cause: &Cause) -> bool {
        let waits = self.targeted > 0 && !planted!(EndBeforeReap);
        if waits {
            self.failed.get_or_insert_with(|| cause.clone());
        }
        waits
    }

    /// Returns the bytes that were never granted.
    pub(super) fn ungranted(&self) -> u64 {
        self.wanted - self.granted
    }

    /// Returns the offset and the length of what is missing, all of which is in place now: a copy
    /// on this host brings it.
    pub(in crate::proto) fn copy_all(&mut self) -> (u64, u64) {
        let missing = (self.arrived, self.wanted - self.arrived);
        (self.granted, self.arrived) = (self.wanted, self.wanted);
        missing
    }

    /// Notes bytes in place.
    pub(super) fn note_arrived(&mut self, bytes: u64) {
        self.arrived += bytes;
        debug_assert!(self.arrived <= self.wanted, "no more is in place than is wanted");
    }

    /// Grants the next bytes. Returns their offset.
    pub(super) fn grant(&mut self, bytes: u64) -> u64 {
        debug_assert!(bytes > 0 && bytes <= self.ungranted(), "it is not granted yet");
        let offset = self.granted;
        self.granted += bytes;
        offset
    }

    /// Lets unsolicited pieces bring all of it by `ring`. Returns `false` if they would exceed the
    /// receive, or some of it is in place.
    pub(super) fn begin_unsolicited(&mut self, ring: RingCarrier) -> bool {
        let takes_all = self.wanted == self.length && self.granted == 0;
        if takes_all {
            (self.carrier, self.state) = (ring.into(), PullState::Settled);
            self.granted = self.wanted;
        }
        takes_all
    }

    /// Notes that no more unsolicited pieces come: the rest is to be granted. Returns its offset.
    pub(super) fn end_unsolicited(&mut self) -> u64 {
        self.granted = self.arrived;
        self.arrived
    }

    /// Returns whether it waits for what was granted, and that has come.
    ///
    /// RR-SHM-10.
    pub(super) fn is_drained(&self) -> bool {
        self.state == PullState::Draining && self.arrived == self.granted
    }

    /// Returns whether this ring brings the rest.
    pub(super) fn is_on(&self, ring: RingCarrier) -> bool {
        matches!(self.carrier, AnyCarrier::Ring(its) if its == ring)
    }

    /// Checks a piece of a ring: pieces of a message come in order.
    pub(super) fn check_piece(&self, offset: u64, length: u64) -> Result<(), &'static str> {
        if length == 0 || offset != self.arrived {
            Err("piece out of order")
        } else if length > self.granted - self.arrived {
            Err("range was not granted")
        } else {
            Ok(())
        }
    }

    /// Returns whether bytes may come in datagrams. A chunk of an earlier session that failed may
    /// still be written by the kernel.
    pub(super) fn takes_data(&self) -> bool {
        let is_on_ring = matches!(self.carrier, AnyCarrier::Ring(_));
        self.failed.is_none() && self.targeted == 0 && !is_on_ring
    }

    /// Notes that the bytes from `offset` to `end` have come in a datagram, unless they may not.
    ///
    /// RR-BULK-4.
    pub(super) fn accept_data(&mut self, offset: u64, end: u64) -> Result<(), &'static str> {
        if end > self.granted {
            return Err("range was not granted");
        }
        if !self.ranges.add(offset, end) {
            return Err("range overlaps received data");
        }
        if self.ranges.count() > RANGES_MAX {
            return Err("too many disjoint ranges");
        }
        self.note_arrived(end - offset);
        debug_assert!(self.arrived <= self.granted, "ranges that arrive are granted");
        Ok(())
    }

    /// Ends it: returns its record of what came in datagrams, and the bytes that it still takes of
    /// their window.
    pub(super) fn end(&mut self) -> (Ranges, u64) {
        (std::mem::take(&mut self.ranges), self.carrier.window_bytes(self))
    }
}

#[cfg(test)]
mod tests {
    use super::super::pull::datagrams::DatagramCarrier;
    use super::*;

    fn pulling(in_place: u64, wanted: u64) -> Pulling {
        Pulling::new(7, (wanted, wanted), in_place, Ranges::default())
    }

    /// RR-SHM-10
    #[test]
    fn ring_brings_the_rest_once_all_granted_ranges_have_come() {
        let mut pulling = pulling(10, 100);
        assert_eq!(pulling.grant(20), 10);
        pulling.state = PullState::Draining;
        assert!(!pulling.carrier.is_rest_due(&pulling));
        pulling.note_arrived(20);
        assert!(pulling.carrier.is_rest_due(&pulling));
        (pulling.carrier, pulling.state) = (RingCarrier(3).into(), PullState::Settled);
        assert_eq!(pulling.grant(70), 30);
        assert!(pulling.is_on(RingCarrier(3)) && !pulling.is_on(RingCarrier(2)));
        assert!(pulling.check_piece(30, 70).is_ok() && !pulling.takes_data());
        for (offset, length) in [(30, 0), (30, 71), (29, 1), (31, 1)] {
            assert!(pulling.check_piece(offset, length).is_err(), "{length} bytes at {offset}");
        }
        pulling.note_arrived(25);
        assert!(!pulling.carrier.is_rest_due(&pulling), "pieces are under way");
        pulling.carrier.take_back(&mut pulling);
        pulling.carrier = DatagramCarrier.into();
        assert_eq!((pulling.state, pulling.ungranted()), (PullState::Settled, 45));
        assert!(!pulling.carrier.is_rest_due(&pulling) && pulling.takes_data());
    }

    /// RR-BULK-4
    #[test]
    fn data_is_granted_and_comes_once() {
        let mut pulling = pulling(0, 100);
        pulling.carrier = DatagramCarrier.into();
        pulling.grant(50);
        assert!(pulling.accept_data(10, 20).is_ok());
        for (offset, end) in [(10, 20), (15, 25), (0, 51), (50, 60)] {
            assert!(pulling.accept_data(offset, end).is_err(), "{offset}..{end}");
        }
        assert_eq!(pulling.arrived, 10);
        assert_eq!(pulling.end().1, 40, "granted and missing");
    }
}
