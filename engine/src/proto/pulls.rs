//! Messages to be pulled, in the order in which their ranges are granted.
//!
//! Messages with priority are granted before all others, bulk ones after them; among equal ones,
//! short before long, and otherwise in matching order. None is starved: one grant in sixteen is for
//! those that are overtaken.

use std::collections::VecDeque;

use super::hint::{Hint, Hinted};
use super::operation::{Operation, OperationState};
use super::operations::Operations;
use super::session::{ControlFrame, Session};
use super::table::Id;
use crate::proto::context::Cx;
use crate::proto::lanes::BulkLanes;
use crate::proto::ready::Work;
use crate::wire::CHUNK_BYTES_MAX;
use crate::wire::CmaSource;

/// One out of this many overtaking grants goes to the overtaken messages.
const PASSES: u32 = 16;

/// Contents of a request to send besides its envelope.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offered {
    /// The sender's id of the message.
    pub(crate) send_operation: u64,
    /// Hint of the sender.
    pub(crate) hint: Hint,
    /// Bytes that arrived with it.
    pub(crate) first: u64,
    /// Where it can be read by CMA.
    pub(crate) source: Option<CmaSource>,
}

/// Priority class of a message.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Class {
    First = 0,
    Usual = 1,
    Last = 2,
}

const CLASSES: [Class; 3] = [Class::First, Class::Usual, Class::Last];

impl Class {
    pub(super) fn of(hint: Hint) -> Self {
        match hint {
            Hint::Priority => Self::First,
            Hint::None | Hint::Latency => Self::Usual,
            Hint::Bulk => Self::Last,
        }
    }
}

/// Messages of one class, in matching order.
#[derive(Debug, Default)]
struct Queue {
    /// Of one chunk each, which is all that they delay later ones.
    short: VecDeque<Id>,
    long: VecDeque<Id>,
    /// Grants of short ones that overtook long ones.
    passed: u32,
}

impl Queue {
    fn is_empty(&self) -> bool {
        self.short.is_empty() && self.long.is_empty()
    }

    fn line(&mut self, is_short: bool) -> &mut VecDeque<Id> {
        if is_short { &mut self.short } else { &mut self.long }
    }

    /// Returns the one to be granted next, and whether it is short.
    fn next(&self) -> Option<(bool, Id)> {
        let is_turn_of_long = self.passed % PASSES == PASSES - 1;
        let (short, long) = (self.short.front(), self.long.front());
        match (short, long) {
            (Some(&id), None) => Some((true, id)),
            (Some(&id), Some(_)) if !is_turn_of_long => Some((true, id)),
            (_, long) => long.map(|&id| (false, id)),
        }
    }

    fn note_grant(&mut self) {
        if !self.short.is_empty() && !self.long.is_empty() {
            self.passed = self.passed.wrapping_add(1);
        }
    }
}

/// Queue of the message that is granted next, which is at its front.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    class: Class,
    is_short: bool,
}

/// The receives of one session with bytes that were never granted.
#[derive(Debug, Default)]
pub(crate) struct Pulls {
    /// Allocated with the first message that is pulled.
    classes: Option<Box<[Queue; 3]>>,
    /// Grants that overtook others.
    passed: u32,
}

impl Pulls {
    /// Adds a receive whose message arrived with `hint`; a short one has at most one chunk.
    pub(crate) fn push(&mut self, id: Id, hint: Hint, is_short: bool) {
        let classes = self.classes.get_or_insert_default();
        classes[Class::of(hint) as usize].line(is_short).push_back(id);
    }

    fn queues(&self) -> &[Queue] {
        self.classes.as_deref().map_or(&[], |classes| classes)
    }

    fn queues_mut(&mut self) -> &mut [Queue] {
        self.classes.as_deref_mut().map_or(&mut [], |classes| classes)
    }

    /// Frees memory if it is empty.
    pub(crate) fn shrink(&mut self) {
        if self.is_empty() {
            self.classes = None;
        }
    }

    fn lines(&self) -> impl Iterator<Item = &VecDeque<Id>> {
        self.queues().iter().flat_map(|queue| [&queue.short, &queue.long])
    }

    /// Returns the number of receives.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.lines().map(VecDeque::len).sum()
    }

    /// Returns whether there is none.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.queues().iter().all(Queue::is_empty)
    }

    /// Returns all of them, in no particular order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Id> {
        self.lines().flatten().copied()
    }

    /// Returns whether some have priority.
    pub(crate) fn has_first(&self) -> bool {
        !self.of(Class::First).is_empty()
    }

    /// Returns whether all of them are bulk.
    pub(crate) fn are_last(&self) -> bool {
        CLASSES[..2].iter().all(|&class| self.of(class).is_empty())
    }

    /// Returns the one to be granted next, and its queue.
    ///
    /// RR-RDV-8.
    pub(crate) fn next(&self) -> Option<(Place, Id)> {
        let mut there = CLASSES.into_iter().filter(|&class| !self.of(class).is_empty());
        let first = there.next()?;
        let is_turn_of_others = self.passed % PASSES == PASSES - 1;
        let class = match (is_turn_of_others, there.next(), there.next()) {
            // Both alternate.
            (true, Some(_), Some(last)) if self.passed / PASSES % 2 == 1 => last,
            (true, Some(second), _) => second,
            _ => first,
        };
        let (is_short, id) = self.of(class).next()?;
        Some((Place { class, is_short }, id))
    }

    /// Notes a grant of the message at `place`. Returns `true` if it overtook others of lower
    /// priority.
    pub(crate) fn note_grant(&mut self, place: Place) -> bool {
        let class = place.class as usize;
        self.queues_mut()[class].note_grant();
        let is_passed = |other: &Class| !self.of(*other).is_empty();
        let passes = CLASSES[class + 1..].iter().any(is_passed);
        if passes || CLASSES[..class].iter().any(is_passed) {
            self.passed = self.passed.wrapping_add(1);
        }
        passes
    }

    /// Removes the message at `place`, which is fully granted.
    pub(crate) fn pop(&mut self, place: Place) {
        self.queues_mut()[place.class as usize].line(place.is_short).pop_front();
    }

    /// Drops those for which `keep` returns `false`.
    pub(crate) fn retain(&mut self, keep: impl Fn(Id) -> bool) {
        for queue in self.queues_mut() {
            queue.short.retain(|&id| keep(id));
            queue.long.retain(|&id| keep(id));
        }
    }

    /// Drops all.
    pub(crate) fn clear(&mut self) {
        for queue in self.queues_mut() {
            queue.short.clear();
            queue.long.clear();
        }
    }

    fn of(&self, class: Class) -> &Queue {
        static NONE: Queue = Queue { short: VecDeque::new(), long: VecDeque::new(), passed: 0 };
        self.classes.as_ref().map_or(&NONE, |classes| &classes[class as usize])
    }
}

/// Returns how much of `left` bytes to grant at once: a chunk, or all if no more than a quarter of
/// a chunk would be left, since the cost per chunk is mostly fixed.
pub(super) fn range_bytes(left: u64, chunk_bytes: u64) -> u64 {
    let most = (chunk_bytes + chunk_bytes / 4).min(CHUNK_BYTES_MAX.into());
    if left <= most { left } else { chunk_bytes }
}

/// Returns the next range to grant: lost ones first, then the next bytes of the message whose turn
/// it is. `most` returns the maximum for a remaining length.
///
/// RR-RDV-8.
pub(super) fn next_range(
    session: &mut Session,
    operations: &mut Operations,
    hinted: &mut Hinted,
    most: impl Fn(u64) -> u64,
) -> Option<(Id, u64, u32)> {
    while let Some((id, offset, length)) = session.missing.pop_front() {
        if !operations.get(id).is_some_and(Operation::pulls) {
            continue;
        }
        let granted = most(length);
        if granted < length {
            session.missing.push_front((id, offset + granted, length - granted));
        }
        return Some((id, offset, granted as u32));
    }
    while let Some((place, id)) = session.pulls.next() {
        let found = operations.get_mut(id).map(|operation| &mut operation.state);
        if let Some(OperationState::Pulling(pulling)) = found {
            let left = pulling.wanted - pulling.granted;
            if left > 0 {
                let (offset, length) = (pulling.granted, most(left));
                pulling.granted += length;
                hinted.grants_ahead += u64::from(session.pulls.note_grant(place));
                if length == left {
                    session.pulls.pop(place);
                }
                return Some((id, offset, length as u32));
            }
        }
        session.pulls.pop(place);
    }
    None
}

impl Session {
    /// Queues the remaining `left` bytes of a message to be granted on lanes.
    pub(super) fn begin_granting(&mut self, mut cx: Cx<'_>, id: Id, hint: Hint, left: u64) {
        let chunk = u64::from(cx.config.chunk_bytes);
        self.pulls.push(id, hint, range_bytes(left, chunk) == left);
        cx.add_work(Work::Grant);
    }

    /// Returns whether the session grants again after a few more chunks: then DONE can wait for
    /// that datagram, since one for each completed message costs both sides as much as 8 KiB of
    /// bulk data.
    fn grants_soon(&self, lanes: &BulkLanes) -> bool {
        let comes = |lane: &Id| lanes.get(*lane).is_some_and(|it| !it.incoming.is_empty());
        !self.pulls.is_empty() && self.lanes.iter().any(comes)
    }

    /// Sends control frames that waited for the next grants, if there will be none.
    pub(super) fn send_delayed_control(&mut self, mut cx: Cx<'_>) {
        if !self.control.is_empty() && !self.grants_soon(cx.lanes) {
            cx.add_work(Work::Flush);
        }
    }

    /// Sends DONE with the next grants, or at once if there will be none soon.
    pub(super) fn send_done(&mut self, mut cx: Cx<'_>, done: ControlFrame) {
        if self.is_connected() {
            self.push_control(done);
            if !self.grants_soon(cx.lanes) {
                cx.add_work(Work::Flush);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u64) -> Id {
        Id::from_u64(number)
    }

    /// Grants `count` times to messages that never end; returns which ones.
    fn grant(pulls: &mut Pulls, count: usize) -> Vec<Id> {
        (0..count)
            .map(|_| {
                let (place, id) = pulls.next().unwrap();
                pulls.note_grant(place);
                id
            })
            .collect()
    }

    #[test]
    fn hints_precede_order_and_order_precedes_length() {
        let mut pulls = Pulls::default();
        pulls.push(id(1), Hint::Bulk, false);
        pulls.push(id(2), Hint::None, false);
        pulls.push(id(3), Hint::Latency, false);
        pulls.push(id(4), Hint::Priority, false);
        pulls.push(id(5), Hint::Priority, true);
        assert!(pulls.has_first() && !pulls.are_last());
        let mut order = Vec::new();
        while let Some((place, id)) = pulls.next() {
            order.push(id);
            pulls.note_grant(place);
            pulls.pop(place);
        }
        assert_eq!(order, [5, 4, 2, 3, 1].map(id));
        assert!(pulls.is_empty());
    }

    #[test]
    fn no_short_range_remains() {
        let granted = |left| range_bytes(left, 1000);
        assert_eq!([1, 1000, 1250, 1251, 5000].map(granted), [1, 1000, 1250, 1000, 1000]);
        let most = u64::from(CHUNK_BYTES_MAX);
        assert_eq!(range_bytes(most + 1, most), most, "protocol maximum");
    }

    /// RR-RDV-8
    #[test]
    fn no_message_is_starved() {
        let mut pulls = Pulls::default();
        pulls.push(id(1), Hint::Bulk, false);
        pulls.push(id(2), Hint::None, false);
        pulls.push(id(3), Hint::Priority, false);
        let granted = grant(&mut pulls, 320);
        let count = |wanted| granted.iter().filter(|&&it| it == id(wanted)).count();
        assert_eq!((count(1), count(2), count(3)), (10, 10, 300));
        // Without overtaken messages.
        let mut alone = Pulls::default();
        alone.push(id(1), Hint::Bulk, false);
        assert_eq!(grant(&mut alone, 40), [id(1); 40]);
        assert!(alone.are_last());
    }

    /// RR-RDV-8
    #[test]
    fn short_messages_overtake_long_ones_without_starving_them() {
        let mut pulls = Pulls::default();
        pulls.push(id(1), Hint::None, false);
        pulls.push(id(2), Hint::None, false);
        for number in 10..42 {
            pulls.push(id(number), Hint::None, true);
        }
        let (oldest, mut short) = (id(1), Vec::new());
        for _ in 0..34 {
            let (place, id) = pulls.next().unwrap();
            pulls.note_grant(place);
            if place.is_short {
                short.push(id);
                pulls.pop(place);
            } else {
                assert_eq!((id, short.len() % 15), (oldest, 0), "the older one");
            }
        }
        assert_eq!(short, (10..42).map(id).collect::<Vec<_>>());
        // None overtakes any more.
        assert_eq!(grant(&mut pulls, 4), [id(1); 4]);
    }

    #[test]
    fn ended_messages_are_dropped_at_any_position() {
        let mut pulls = Pulls::default();
        for (number, hint) in [(1, Hint::Bulk), (2, Hint::None), (3, Hint::Priority)] {
            pulls.push(id(number), hint, false);
            pulls.push(id(number + 3), hint, true);
        }
        pulls.retain(|it| it != id(2) && it != id(4));
        assert_eq!((pulls.len(), pulls.iter().count()), (4, 4));
        pulls.clear();
        assert!(pulls.is_empty() && pulls.next().is_none());
    }
}
