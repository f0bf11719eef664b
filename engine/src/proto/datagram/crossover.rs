//! From which length on a message is pulled, instead of going in parts: measured for each path.
//!
//! A message in parts is there after a round trip (the acknowledgement included), and for each
//! datagram after the first as much later as the slowest of sender, wire and receiver needs for
//! one. One that is pulled takes request, grant, chunk and DONE, hardly longer for 30 KiB than for
//! 3. Both are timed at the sender, where both end with news from the receiver. Where they meet is
//! the crossover:
//!
//! ```text
//! round trip + (datagrams - 1) x time per datagram  =  time of a pull
//! ```
//!
//! What counts is the least of several, for receivers that come late make a pull longer and say
//! nothing of the path; where they always come late, eager messages are the better ones indeed.
//! Nothing is tried for the sake of measuring: until messages in parts were timed they go as long
//! as the settings allow, and when their times are out of date, again.

use super::super::core::Core;
use super::super::operation::State;
use super::super::table::Id;
use super::Datagram;
use crate::wire::eager::EAGER_HEADER_BYTES;
use crate::wire::part::PART_HEADER_BYTES;

/// Samples of which the least counts, as far as they are the last or those before.
const SAMPLES: u8 = 8;
/// After this time without a sample the path may be another one.
const VALID_NS: u64 = 10_000_000_000;
/// Messages in parts of which one is timed, when there are samples enough.
const TIMED_EVERY: u32 = 16;
/// A message whose end is not known after this time is not waited for.
const GIVEN_UP_NS: u64 = 1_000_000_000;
/// Longer messages say more of the lane's rate than of what a pull costs.
const PULL_BYTES_MAX: u64 = 64 << 10;
/// What a pull takes beyond two round trips, as long as none was timed: two wake-ups of TCP.
const PULL_NS: u64 = 8_000;

/// The least of some samples.
#[derive(Clone, Copy, Debug)]
struct Least {
    now: u64,
    before: Option<u64>,
    samples: u8,
    at_ns: u64,
}

impl Least {
    const NONE: Self = Self { now: u64::MAX, before: None, samples: 0, at_ns: 0 };

    fn add(&mut self, sample: u64, now_ns: u64) {
        if self.is_old(now_ns) {
            *self = Self::NONE;
        }
        self.at_ns = now_ns;
        self.now = self.now.min(sample);
        self.samples += 1;
        if self.samples == SAMPLES {
            *self = Self { before: Some(self.now), at_ns: now_ns, ..Self::NONE };
        }
    }

    /// `None`: too few, or out of date.
    fn get(&self, now_ns: u64) -> Option<u64> {
        self.before.filter(|_| !self.is_old(now_ns)).map(|before| before.min(self.now))
    }

    fn is_old(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.at_ns) > VALID_NS
    }
}

/// A message that is under way and timed.
#[derive(Clone, Copy, Debug)]
struct Timed {
    /// Of parts: the last content. Of a pull: the operation.
    id: Option<Id>,
    /// Number of the envelope's frame.
    frame: u32,
    since_ns: u64,
    datagrams: u32,
}

/// What is known of a path, and what follows.
#[derive(Debug)]
pub(crate) struct Crossover {
    /// Nothing is measured: the settings decide.
    is_fixed: bool,
    /// Longest message that goes with its envelope, in bytes; `u64::MAX`: the settings decide.
    limit: u64,
    round_trip: Least,
    per_datagram: Least,
    pull: Least,
    parts: Option<Timed>,
    pulled: Option<Timed>,
    /// Messages in parts before the next that is timed.
    rests: u32,
}

impl Crossover {
    pub(super) fn new(is_fixed: bool) -> Self {
        Self {
            is_fixed,
            limit: u64::MAX,
            round_trip: Least::NONE,
            per_datagram: Least::NONE,
            pull: Least::NONE,
            parts: None,
            pulled: None,
            rests: 0,
        }
    }

    /// Longest message that goes with its envelope as far as the path is concerned, in bytes.
    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    /// Whether a message of `length` bytes, which is longer than a datagram, would be timed if it
    /// was staged now.
    pub(super) fn is_due(&self, length: u64) -> bool {
        !self.is_fixed && length <= PULL_BYTES_MAX
    }

    /// The path's round trip without queues: messages in parts make some, and these are measured.
    pub(super) fn note_round_trip(&mut self, round_trip_ns: u64, now_ns: u64) {
        self.round_trip.add(round_trip_ns, now_ns);
    }

    /// A message begins that goes in parts, with this frame.
    pub(super) fn begin_parts(&mut self, frame: u32, now_ns: u64) {
        if self.is_fixed || is_under_way(self.parts, now_ns) {
            return;
        }
        if self.rests > 0 && self.per_datagram.get(now_ns).is_some() {
            self.rests -= 1;
            return;
        }
        self.rests = TIMED_EVERY - 1;
        self.parts = Some(Timed { id: None, frame, since_ns: now_ns, datagrams: 0 });
    }

    /// The last part of the message of this frame is in `content`; it took `datagrams`.
    pub(super) fn end_parts(&mut self, frame: u32, content: Id, datagrams: u32) {
        let begun = self.parts.as_mut();
        if let Some(timed) = begun.filter(|timed| timed.frame == frame && timed.id.is_none()) {
            (timed.id, timed.datagrams) = (Some(content), datagrams);
        }
    }

    /// Whether a content is to be acknowledged at once, for its time is taken.
    pub(super) fn waits_for(&self, content: Id) -> bool {
        self.parts.is_some_and(|timed| timed.id == Some(content))
    }

    /// A content was acknowledged.
    pub(super) fn handle_acked(&mut self, content: Id, now_ns: u64) {
        if !self.waits_for(content) {
            return;
        }
        let Some(timed) = self.parts.take() else { return };
        let Some(round_trip_ns) = self.round_trip.get(now_ns) else { return };
        let beyond_first = u64::from(timed.datagrams.saturating_sub(1)).max(1);
        let took_ns = now_ns.saturating_sub(timed.since_ns).saturating_sub(round_trip_ns);
        self.per_datagram.add((took_ns / beyond_first).max(1), now_ns);
    }

    /// A message of `length` bytes is to be pulled by its peer.
    pub(super) fn begin_pull(&mut self, operation: Id, length: u64, now_ns: u64) {
        if !self.is_due(length) || is_under_way(self.pulled, now_ns) {
            return;
        }
        let id = Some(operation);
        self.pulled = Some(Timed { id, frame: 0, since_ns: now_ns, datagrams: 0 });
    }

    /// The peer has pulled a message.
    pub(super) fn handle_pulled(&mut self, operation: Id, now_ns: u64) {
        if let Some(timed) = self.pulled.filter(|timed| timed.id == Some(operation)) {
            self.pulled = None;
            self.pull.add(now_ns.saturating_sub(timed.since_ns), now_ns);
        }
    }

    /// Reckons anew. `datagram_bytes`: what of a message one datagram takes.
    pub(super) fn reckon(&mut self, datagram_bytes: u64, now_ns: u64) {
        if self.is_fixed {
            return;
        }
        let measured = self.per_datagram.get(now_ns).zip(self.round_trip.get(now_ns));
        let Some((per_datagram_ns, round_trip_ns)) = measured else {
            self.limit = u64::MAX;
            return;
        };
        let pull_ns = self.pull.get(now_ns).unwrap_or(2 * round_trip_ns + PULL_NS);
        let datagrams = 1 + pull_ns.saturating_sub(round_trip_ns) / per_datagram_ns;
        let limit = datagrams.saturating_mul(datagram_bytes);
        // What lies closer together than this takes as long either way.
        if limit.abs_diff(self.limit) > self.limit.min(limit) / 4 {
            self.limit = limit;
        }
    }
}

impl Datagram {
    /// What one datagram takes of a message in parts.
    pub(super) fn payload_bytes(&self) -> u64 {
        (self.frame_bytes_max() - PART_HEADER_BYTES) as u64
    }
}

impl Core {
    /// Whether the send that [`Self::poll_waiting`] returned is one whose time may be taken: the
    /// loop looks at its clock, then, for [`Self::note_round_trip`].
    pub(crate) fn is_to_be_timed(&self, id: Id) -> Option<u32> {
        let operation = self.operations.get(id)?;
        let datagram = self.sessions.at(operation.session as usize)?.datagram.as_deref()?;
        let is_to_be = matches!(operation.state, State::Queued { .. })
            && !datagram.takes_whole(operation.length)
            && datagram.crossover.is_due(operation.length);
        is_to_be.then_some(operation.session)
    }

    /// What the clock shows, and the least round trip of a session's path.
    pub(crate) fn note_round_trip(&mut self, slot: u32, round_trip_ns: u64, now_ns: u64) {
        self.datagrams.now_ns = now_ns;
        let session = self.sessions.at_mut(slot as usize);
        if let Some(datagram) = session.and_then(|session| session.datagram.as_deref_mut()) {
            let payload_bytes = datagram.payload_bytes();
            datagram.crossover.note_round_trip(round_trip_ns, now_ns);
            datagram.crossover.reckon(payload_bytes, now_ns);
        }
    }

    /// What the clock shows.
    pub(crate) fn note_time(&mut self, now_ns: u64) {
        self.datagrams.now_ns = now_ns;
    }

    /// A message of `length` bytes was staged: in parts, beginning with the frame `parts`, or
    /// whole, or to be pulled.
    pub(super) fn begin_timed(&mut self, slot: u32, id: Id, length: u64, parts: Option<u32>) {
        let now_ns = self.datagrams.now_ns;
        let session = self.sessions.at_mut(slot as usize);
        let Some(datagram) = session.and_then(|session| session.datagram.as_deref_mut()) else {
            return;
        };
        match parts {
            Some(frame) => datagram.crossover.begin_parts(frame, now_ns),
            None if !datagram.takes_whole(length) => {
                datagram.crossover.begin_pull(id, length, now_ns);
            }
            None => {}
        }
    }

    /// A message was pulled by its peer.
    pub(crate) fn end_pull(&mut self, slot: u32, id: Id) {
        let now_ns = self.datagrams.now_ns;
        let session = self.sessions.at_mut(slot as usize);
        if let Some(datagram) = session.and_then(|session| session.datagram.as_deref_mut()) {
            datagram.crossover.handle_pulled(id, now_ns);
        }
    }

    /// The longest message that goes with its envelope to a session's peer, in bytes.
    pub(crate) fn eager_limit_of(&self, slot: u32) -> Option<u64> {
        let session = self.sessions.at(slot as usize).filter(|session| session.is_connected())?;
        let limit = u64::from(self.config.eager_limit.min(session.eager_limit));
        let Some(datagram) = session.datagram.as_deref() else { return Some(limit) };
        // What fits a datagram always does.
        let whole = (datagram.frame_bytes_max() - EAGER_HEADER_BYTES) as u64;
        Some(limit.min(datagram.crossover.limit().max(whole)))
    }
}

fn is_under_way(timed: Option<Timed>, now_ns: u64) -> bool {
    timed.is_some_and(|timed| now_ns.saturating_sub(timed.since_ns) < GIVEN_UP_NS)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATAGRAM: u64 = 1400;

    fn id(number: u64) -> Id {
        Id::from_u64(number)
    }

    /// A path with a round trip of 10 µs.
    fn path() -> (Crossover, u64) {
        let mut crossover = Crossover::new(false);
        for at in 1..=u64::from(SAMPLES) {
            crossover.note_round_trip(10_000 + 1000 * (at % 3), at);
        }
        (crossover, u64::from(SAMPLES))
    }

    /// Messages of `datagrams` that need 4 µs for each, until enough are timed.
    fn time_parts(crossover: &mut Crossover, now: &mut u64, datagrams: u32, noise_ns: u64) {
        for number in 0..SAMPLES as u32 * TIMED_EVERY {
            crossover.begin_parts(number, *now);
            crossover.end_parts(number, id(u64::from(number)), datagrams);
            let noise_ns = if number % 4 == 0 { 0 } else { noise_ns };
            *now += 10_000 + 4000 * u64::from(datagrams - 1) + noise_ns;
            crossover.handle_acked(id(u64::from(number)), *now);
        }
        crossover.reckon(DATAGRAM, *now);
    }

    fn time_pulls(crossover: &mut Crossover, now: &mut u64, took_ns: u64) {
        for number in 0..u64::from(SAMPLES) {
            crossover.begin_pull(id(number), 16_384, *now);
            *now += took_ns + 50_000 * (number % 2);
            crossover.handle_pulled(id(number), *now);
        }
        crossover.reckon(DATAGRAM, *now);
    }

    #[test]
    fn the_settings_decide_until_something_is_measured_and_where_they_are_to() {
        let (mut crossover, mut now) = path();
        crossover.reckon(DATAGRAM, now);
        assert_eq!(crossover.limit(), u64::MAX);
        crossover = Crossover::new(true);
        time_parts(&mut crossover, &mut now, 4, 0);
        time_pulls(&mut crossover, &mut now, 20_000);
        assert_eq!(crossover.limit(), u64::MAX);
        assert!(!crossover.is_due(5000));
    }

    #[test]
    fn the_limit_is_where_both_take_as_long() {
        let (mut crossover, mut now) = path();
        time_parts(&mut crossover, &mut now, 6, 30_000);
        // No pull was timed: two round trips and the wake-ups, less the round trip of parts.
        assert_eq!(crossover.limit(), (1 + (10_000 + PULL_NS) / 4000) * DATAGRAM);
        time_pulls(&mut crossover, &mut now, 50_000);
        assert_eq!(crossover.limit(), (1 + 40_000 / 4000) * DATAGRAM);
    }

    #[test]
    fn small_changes_do_not_move_it() {
        let (mut crossover, mut now) = path();
        time_parts(&mut crossover, &mut now, 6, 0);
        time_pulls(&mut crossover, &mut now, 50_000);
        let before = crossover.limit();
        for _ in 0..2 {
            time_pulls(&mut crossover, &mut now, 55_000);
        }
        assert_eq!(crossover.limit(), before);
        for _ in 0..2 {
            time_pulls(&mut crossover, &mut now, 90_000);
        }
        assert_eq!(crossover.limit(), 21 * DATAGRAM);
    }

    #[test]
    fn what_is_out_of_date_counts_no_more() {
        let (mut crossover, mut now) = path();
        time_parts(&mut crossover, &mut now, 6, 0);
        assert_ne!(crossover.limit(), u64::MAX);
        crossover.reckon(DATAGRAM, now + VALID_NS + 1);
        assert_eq!(crossover.limit(), u64::MAX);
    }

    #[test]
    fn a_message_that_never_ends_is_not_waited_for() {
        let (mut crossover, now) = path();
        crossover.begin_parts(1, now);
        crossover.end_parts(1, id(1), 3);
        crossover.begin_parts(2, now + 1000);
        assert!(crossover.waits_for(id(1)), "one at a time");
        crossover.begin_parts(3, now + GIVEN_UP_NS);
        crossover.end_parts(3, id(3), 3);
        assert!(crossover.waits_for(id(3)) && !crossover.waits_for(id(1)));
        crossover.begin_pull(id(5), 9000, now);
        crossover.begin_pull(id(6), 9000, now + GIVEN_UP_NS);
        crossover.handle_pulled(id(5), now + GIVEN_UP_NS);
        assert_eq!(crossover.pull.samples, 0);
        crossover.handle_pulled(id(6), now + GIVEN_UP_NS + 20_000);
        assert_eq!(crossover.pull.samples, 1);
    }
}
