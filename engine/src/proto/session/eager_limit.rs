//! The automatic eager limit: longer messages use rendezvous.
//!
//! A rendezvous message waits for its grant; an eager one is copied once more by the receiver. Both
//! take equally long at
//!
//! ```text
//!                least time from a grant to its bytes, less a copy of them
//!   length  =   -----------------------------------------------------------
//!                             time to copy one byte
//! ```
//!
//! The receiver measures both: [`Rate`] has the first, of each bulk lane, [`CopySpeed`] the second.
//! It puts its preferred class, a power of two, into each grant. Where a path is slower than a
//! copy, the wait includes the difference: the copy matters less there.
//!
//! A message that finds its receive posted is received into it without a copy
//! ([`super::segments::PlacedMessage`]), and one that waits for its receive alone is there when it
//! is posted: while receives keep up with messages, every class is eager.

use std::cmp::Ordering;

use super::rails::rate::Rate;
use crate::wire::EAGER_BYTES_MAX;

/// Classes are logarithms to base 2, of 16 KiB to 256 KiB; 64 KiB initially. Longer messages delay
/// others of their engine too much in one piece.
const CLASS_MIN: u8 = 14;
const CLASS_START: u8 = 16;
const CLASS_MAX: u8 = 18;

const _: () = assert!(1 << CLASS_MAX == EAGER_BYTES_MAX, "the greatest class is permitted");

/// In place of a class: there is no advice.
const UNADVISED: u8 = 0;

/// The greatest class of a session with several bulk lanes: all of them deliver a longer message
/// faster than one does eagerly.
const CLASS_MAX_OF_SEVERAL: u8 = CLASS_START;

/// Bytes of the greatest class.
pub(crate) const CHOSEN_BYTES_MAX: u32 = 1 << CLASS_MAX;

/// Messages of a class above [`CLASS_START`] for which the window of bytes grows.
const WINDOW_MESSAGES: u32 = 4;

/// A class changes by one when this many more samples are on one side of it than on the other.
const VOTES: i8 = 8;

/// One out of this many eager messages above [`CLASS_START`] is pulled instead, as only grants
/// carry advice.
const PULLED_ONE_IN: u8 = 64;

/// Assumed time to copy a byte before the first sample, in picoseconds: 10 GB/s.
const PS_PER_BYTE_AT_FIRST: u64 = 100;

/// Copy bandwidth of an engine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CopySpeed {
    /// Picoseconds; not 0.
    ps_per_byte: u64,
    is_measured: bool,
}

impl Default for CopySpeed {
    fn default() -> Self {
        Self { ps_per_byte: PS_PER_BYTE_AT_FIRST, is_measured: false }
    }
}

impl CopySpeed {
    /// Handles a copy of `bytes` in `elapsed_ns`. The fastest copy counts: others were disturbed.
    pub(crate) fn handle_copy(&mut self, bytes: usize, elapsed_ns: u64) {
        let sample = elapsed_ns.saturating_mul(1000) / (bytes as u64).max(1);
        if sample == 0 {
            return;
        }
        // It expires eventually: memory may be slower now.
        let least = self.ps_per_byte.saturating_add(self.ps_per_byte / 64 + 1);
        self.ps_per_byte = if self.is_measured { sample.min(least) } else { sample };
        self.is_measured = true;
    }
}

/// How an engine sends messages eagerly, besides the limit that it announces.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EagerPolicy {
    /// Longest message that can be injected, in bytes.
    inject_max: u32,
    /// Sessions follow the advice of their peers below the announced limits.
    is_advised: bool,
    /// Messages that do not fit a datagram use the session's stream.
    by_stream: bool,
}

impl EagerPolicy {
    /// Up to `inject_max` bytes can be injected. If limits are advised, they are no lower than
    /// that.
    pub(crate) const fn new(inject_max: u32, is_advised: bool, by_stream: bool) -> Self {
        Self { inject_max, is_advised, by_stream }
    }

    /// Returns the longest message that can be injected, in bytes.
    #[inline]
    pub(crate) fn inject_max(&self) -> u32 {
        self.inject_max
    }

    /// Returns whether messages that do not fit a datagram use the session's stream.
    pub(in crate::proto) fn uses_stream(&self) -> bool {
        self.by_stream
    }

    /// Returns the limit of a session in which this side announced `ours` and the peer `theirs`.
    pub(super) fn limit(&self, ours: u32, theirs: u32, is_loopback: bool) -> EagerLimit {
        let is_advised = self.is_advised && !is_loopback;
        let limit = EagerLimit::new(ours.min(theirs), is_advised.then_some(self.inject_max));
        EagerLimit { own: ours, ..limit }
    }
}

/// Eager limit of a session, and the advice to its peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EagerLimit {
    /// What this side announces, in bytes.
    own: u32,
    /// What both sides accept, in bytes.
    most: u32,
    /// What this side sends, in bytes; at most the above.
    bytes: u32,
    /// The lower bound of advised limits, in bytes.
    least: u32,
    /// The class that this side advises; [`UNADVISED`]: advice is neither followed nor given.
    class: u8,
    /// Votes for a greater class (or, if negative, a smaller one).
    votes: i8,
    /// Eager messages above [`CLASS_START`] since one was pulled.
    unpulled: u8,
    /// Receives kept up with messages at the latest one of a class above [`CLASS_START`].
    receives_keep_up: bool,
}

impl EagerLimit {
    /// Creates the limit of a session whose sides accept `most` bytes. Advised ones are no lower
    /// than `least`; `None`: advice is neither followed nor given.
    pub(crate) fn new(most: u32, least: Option<u32>) -> Self {
        let mut limit = Self {
            own: most,
            most,
            bytes: most,
            least: least.unwrap_or(most),
            class: if least.is_some() { CLASS_START } else { UNADVISED },
            votes: 0,
            unpulled: 0,
            receives_keep_up: false,
        };
        limit.follow(CLASS_START);
        limit
    }

    /// Returns the limit in bytes.
    #[inline]
    pub(crate) fn bytes(&self) -> u32 {
        self.bytes
    }

    /// Returns the limit that this side announces, in bytes: that of frames with the bytes of a
    /// put, or of a reply.
    #[inline]
    pub(in crate::proto) fn own_bytes(&self) -> u32 {
        self.own
    }

    /// Returns the same limits, of which both sides accept up to `most` bytes.
    #[cfg(test)]
    pub(crate) fn with_most(self, most: u32) -> Self {
        let least = self.is_advised().then_some(self.least);
        Self { own: self.own, ..Self::new(self.own.min(most), least) }
    }

    /// Returns the class for a grant.
    pub(crate) fn class(&self) -> u8 {
        match self.class {
            // The setting is fixed.
            UNADVISED => UNADVISED,
            // Simulations give arbitrary advice.
            _ if rare!("any advice", 20) => rare_value!("which advice", 32) as u8,
            class => class,
        }
    }

    /// Returns whether a message within the limit should be pulled, so that the peer advises again.
    pub(crate) fn is_pull_due(&self, length: u64) -> bool {
        self.unpulled >= PULLED_ONE_IN - 1 && self.is_above_start(length)
    }

    /// Counts a message of this length to the peer.
    pub(crate) fn note_message(&mut self, length: u64, is_pulled: bool) {
        if is_pulled {
            self.unpulled = 0;
        } else if self.is_above_start(length) {
            self.unpulled = self.unpulled.saturating_add(1);
        }
    }

    /// Returns the bytes of unreceived messages that the peer should be permitted for the class
    /// that this side advises: so many that it need not wait for credit. 0: what it has at first.
    pub(crate) fn wanted_window(&self) -> u32 {
        let longest = (1 << self.class).min(self.most);
        let is_advised = self.class > CLASS_START && longest > 1 << CLASS_START;
        if is_advised { WINDOW_MESSAGES * longest } else { 0 }
    }

    fn is_advised(&self) -> bool {
        self.class != UNADVISED
    }

    fn is_above_start(&self, length: u64) -> bool {
        self.is_advised() && length > 1 << CLASS_START
    }

    /// Notes whether receives keep up with messages, as a message of `length` bytes shows.
    pub(crate) fn note_receives(&mut self, length: u64, keep_up: bool) {
        if (1 + (1 << CLASS_START)..=EAGER_BYTES_MAX as u64).contains(&length) {
            self.receives_keep_up = keep_up;
        }
    }

    /// Follows the peer's advice to send messages up to `class` eagerly, and longer ones by
    /// rendezvous. Invalid classes are ignored.
    ///
    /// RR-RDV-10.
    pub(crate) fn follow(&mut self, class: u8) {
        if self.is_advised() && (CLASS_MIN..=CLASS_MAX).contains(&class) {
            self.bytes = (1 << class).max(self.least).min(self.most);
        }
    }

    /// Handles a chunk that arrived on an idle lane, one of `lanes`, where the peer has a window of
    /// `window` bytes.
    pub(crate) fn handle_lone_chunk(
        &mut self,
        rate: &Rate,
        copies: CopySpeed,
        (lanes, window): (usize, u32),
    ) {
        if !self.is_advised() {
            return;
        }
        let wait_ns = rate.least_wait_ns(copies.ps_per_byte);
        let bytes = wait_ns.saturating_mul(1000) / copies.ps_per_byte;
        // The nearest power of two: half the logarithm of the square, rounded.
        let squared = u128::from(bytes.max(1)).pow(2);
        let nearest = squared.ilog2().div_ceil(2) as u8;
        let most = if lanes > 1 { CLASS_MAX_OF_SEVERAL } else { CLASS_MAX };
        // Two messages, or the second waits for credit.
        let most = most.min((window / 2).max(1 << CLASS_MIN).ilog2() as u8);
        let wanted = if self.receives_keep_up { most } else { nearest.clamp(CLASS_MIN, most) };
        let vote = match wanted.cmp(&self.class) {
            Ordering::Greater => 1,
            Ordering::Less => -1,
            // Noise is forgotten.
            Ordering::Equal => -self.votes.signum(),
        };
        self.votes += vote;
        if self.votes.abs() >= VOTES {
            self.class = self.class.saturating_add_signed(self.votes.signum());
            self.votes = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK_BYTES: u64 = 127 << 10;

    /// Returns 10 GB/s.
    fn copies() -> CopySpeed {
        let mut copies = CopySpeed::default();
        copies.handle_copy(32 << 10, 3277);
        copies
    }

    fn lane(wait_ns: u64) -> Rate {
        let mut rate = Rate::default();
        let now_ns = 1_000_000 + wait_ns + CHUNK_BYTES / 10;
        rate.handle_arrival(CHUNK_BYTES, 1_000_000, now_ns);
        rate
    }

    fn learned(wait_ns: u64, lanes: usize) -> u8 {
        let mut limit = EagerLimit::new(CHOSEN_BYTES_MAX, Some(0));
        for _ in 0..100 {
            limit.handle_lone_chunk(&lane(wait_ns), copies(), (lanes, 1 << 20));
        }
        limit.class
    }

    #[test]
    fn limit_equals_the_cost_of_copy_and_grant() {
        assert_eq!(learned(0, 1), 14);
        assert_eq!(learned(1000, 1), 14);
        assert_eq!(learned(3200, 1), 15);
        assert_eq!(learned(6000, 1), 16);
        assert_eq!(learned(12_000, 1), 17);
        assert_eq!(learned(25_000, 1), 18);
        assert_eq!(learned(10_000_000, 1), 18);
        assert_eq!(learned(10_000_000, 2), 16, "several lanes deliver long messages faster");
    }

    #[test]
    fn messages_are_eager_while_receives_keep_up_with_them() {
        let mut limit = EagerLimit::new(CHOSEN_BYTES_MAX, Some(0));
        let mut learn = |keep_up, lanes, window| {
            limit.note_receives(1 << CLASS_MAX, keep_up);
            // Too long to be eager, or always eager: nothing is known of others by it.
            limit.note_receives(1 + (1 << CLASS_MAX), !keep_up);
            limit.note_receives(1 << CLASS_START, !keep_up);
            for _ in 0..4 * VOTES {
                limit.handle_lone_chunk(&lane(0), copies(), (lanes, window));
            }
            (limit.class(), limit.wanted_window())
        };
        assert_eq!(learn(true, 1, 1 << 18), (17, 1 << 19), "two fit the window");
        assert_eq!(learn(true, 1, 1 << 19), (18, 1 << 20));
        assert_eq!(learn(true, 2, 1 << 20), (16, 0), "several lanes deliver long messages faster");
        assert_eq!(learn(false, 1, 1 << 20), (14, 0), "by the cost of copy and grant");
        assert_eq!(learn(true, 1, 0), (14, 0), "without a window");
        let mut low = EagerLimit::new(100_000, Some(0));
        low.note_receives(90_000, true);
        let mut set = EagerLimit::new(50_000, None);
        set.note_receives(90_000, true);
        for _ in 0..4 * VOTES {
            set.handle_lone_chunk(&lane(0), copies(), (1, 1 << 20));
            low.handle_lone_chunk(&lane(0), copies(), (1, 1 << 20));
        }
        assert_eq!(low.wanted_window(), 4 * 100_000, "of messages that both sides accept");
        assert_eq!((set.class(), set.bytes(), set.wanted_window()), (0, 50_000, 0));
    }

    #[test]
    fn noise_does_not_change_the_class() {
        let mut limit = EagerLimit::new(CHOSEN_BYTES_MAX, Some(0));
        for round in 0..1000 {
            let wait_ns = [6000, 3000, 13_000, 6500][round % 4];
            limit.handle_lone_chunk(&lane(wait_ns), copies(), (1, 1 << 20));
            assert_eq!(limit.class, CLASS_START);
        }
    }

    #[test]
    fn class_changes_by_one_step_after_enough_samples() {
        let mut limit = EagerLimit::new(CHOSEN_BYTES_MAX, Some(0));
        for _ in 0..VOTES {
            assert_eq!(limit.class, 16);
            limit.handle_lone_chunk(&lane(0), copies(), (1, 1 << 20));
        }
        assert_eq!(limit.class, 15);
    }

    /// RR-RDV-10
    #[test]
    fn advice_is_followed_within_bounds() {
        let mut limit = EagerLimit::new(CHOSEN_BYTES_MAX, Some(20_000));
        assert_eq!(limit.bytes(), 64 << 10);
        let advice =
            [(17, 128 << 10), (18, 256 << 10), (19, 256 << 10), (14, 20_000), (255, 20_000)];
        for (class, bytes) in advice {
            limit.follow(class);
            assert_eq!(limit.bytes(), bytes, "class {class}");
        }
        let mut low = EagerLimit::new(1000, Some(20_000));
        low.follow(17);
        assert_eq!(low.bytes(), 1000, "the peer's limit");
        let mut set = EagerLimit::new(50_000, None);
        set.follow(14);
        assert_eq!(set.bytes(), 50_000, "fixed by the setting");
    }

    #[test]
    fn occasional_message_is_pulled_for_new_advice() {
        let mut limit = EagerLimit::new(CHOSEN_BYTES_MAX, Some(0));
        let mut pulled = Vec::new();
        for number in 0..200 {
            assert!(!limit.is_pull_due(1 << CLASS_START), "at the initial class");
            let is_due = limit.is_pull_due(100_000);
            pulled.extend(is_due.then_some(number));
            limit.note_message(100_000, is_due);
            limit.note_message(1000, false);
        }
        assert_eq!(pulled, [63, 127, 191]);
        let mut set = EagerLimit::new(CHOSEN_BYTES_MAX, None);
        for _ in 0..200 {
            assert!(!set.is_pull_due(100_000), "fixed by the setting");
            set.note_message(100_000, false);
        }
    }

    #[test]
    fn fastest_copy_counts_and_expires_eventually() {
        let mut copies = copies();
        for _ in 0..10 {
            copies.handle_copy(32 << 10, 1_000_000);
        }
        assert!(copies.ps_per_byte < 130, "{copies:?}");
        for _ in 0..1000 {
            copies.handle_copy(32 << 10, 6554);
        }
        assert_eq!(copies.ps_per_byte, 200);
        copies.handle_copy(32 << 10, 0);
        assert_eq!(copies.ps_per_byte, 200, "a clock that did not advance");
    }
}
