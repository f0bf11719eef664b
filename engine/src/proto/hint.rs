//! Hints of users on messages, and their effects.

use std::fmt;

use crate::wire::rts::{FLAG_FIRST, FLAG_LAST};

/// A message of [`Hint::Bulk`] that is longer than this uses rendezvous, in bytes: only its
/// envelope goes with short messages.
pub(crate) const BULK_EAGER_BYTES: u64 = 1024;

/// The purpose of a message. A hint affects only when a message is sent and which others wait for
/// it: messages of one source to one target in one context match in the order in which they were
/// sent, whatever their hints are, and an operation completes as its level defines.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Hint {
    /// A message is sent at once if it is the first since the engine last made progress; others are
    /// sent together with the next turn.
    #[default]
    None,
    /// Latency matters: it is sent at once, whatever was sent before in the same turn and whatever
    /// [`SendOptions::more`](crate::SendOptions::more) is, waits for no later message, and goes
    /// before messages that wait for the network. It is for short messages: one that is longer than
    /// the eager limit uses rendezvous like any other.
    Latency,
    /// Latency does not matter: it is sent with the next turn or when a segment is full. Above 1
    /// KiB it uses rendezvous, unless it is injected. Its receiver grants it after all others of
    /// this engine, in short chunks and few at a time while those of other peers are outstanding;
    /// at least one chunk in 32 is granted to it, so that it is not starved.
    Bulk,
    /// It goes before waiting messages without this hint, whether they wait for the connection, for
    /// credit or for the network (each that waits for credit lets sixteen pass); and its receiver
    /// grants all of it before it grants more to others of this engine, except for one chunk in
    /// sixteen.
    Priority,
}

impl fmt::Display for Hint {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::None => "none",
            Self::Latency => "latency",
            Self::Bulk => "bulk",
            Self::Priority => "priority",
        })
    }
}

impl Hint {
    /// Returns whether its messages must not share a datagram with, or follow datagrams of,
    /// messages with other hints.
    #[inline]
    pub(crate) fn leads(self) -> bool {
        matches!(self, Self::Latency | Self::Priority)
    }

    /// Returns the eager limit of its messages, where that of others is `limit` bytes.
    pub(crate) fn eager_limit(self, limit: u64) -> u64 {
        if self == Self::Bulk { limit.min(BULK_EAGER_BYTES) } else { limit }
    }

    /// Returns its rank among waiting sends; lower ones first.
    fn rank(self) -> u8 {
        match self {
            Self::Priority => 0,
            Self::Latency => 1,
            Self::None => 2,
            Self::Bulk => 3,
        }
    }

    /// Returns whether its sends overtake those of `other` that belong to another flow and have
    /// waited for longer.
    pub(crate) fn passes(self, other: Self) -> bool {
        self.rank() < other.rank()
    }

    /// Returns the flags of its RTS.
    ///
    /// RR-RDV-8.
    pub(crate) fn flags(self) -> u8 {
        match self {
            Self::Priority => FLAG_FIRST,
            Self::Bulk => FLAG_LAST,
            Self::None | Self::Latency => 0,
        }
    }

    /// Returns the hint of an RTS with these flags, as far as the receiver needs it.
    ///
    /// RR-RDV-8.
    pub(crate) fn of_flags(flags: u8) -> Self {
        match flags & (FLAG_FIRST | FLAG_LAST) {
            FLAG_FIRST => Self::Priority,
            FLAG_LAST => Self::Bulk,
            _ => Self::None,
        }
    }
}

/// Counters of hints.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Hinted {
    /// Messages sent with [`Hint::Latency`].
    pub(crate) latency_sends: u64,
    /// Messages sent with [`Hint::Bulk`].
    pub(crate) bulk_sends: u64,
    /// Messages sent with [`Hint::Priority`].
    pub(crate) priority_sends: u64,
    /// Grants that overtook messages with a longer wait.
    pub(crate) grants_ahead: u64,
    /// When a range of a message without the bulk hint was last granted, to any peer.
    pub(crate) granted_ns: Option<u64>,
}

impl Hinted {
    /// Returns whether a range of a message without the bulk hint was granted within `time_ns`.
    pub(crate) fn is_granting(&self, now_ns: u64, time_ns: u64) -> bool {
        self.granted_ns.is_some_and(|at_ns| now_ns < at_ns + time_ns)
    }

    /// Counts a sent message.
    pub(crate) fn note_send(&mut self, hint: Hint) {
        match hint {
            Hint::None => {}
            Hint::Latency => self.latency_sends += 1,
            Hint::Bulk => self.bulk_sends += 1,
            Hint::Priority => self.priority_sends += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Hint; 4] = [Hint::None, Hint::Latency, Hint::Bulk, Hint::Priority];

    /// RR-RDV-8
    #[test]
    fn flags_carry_the_hint_for_the_receiver() {
        for hint in ALL {
            let expected = if hint == Hint::Latency { Hint::None } else { hint };
            // Other flags have other meanings.
            assert_eq!(Hint::of_flags(hint.flags() | 7), expected);
        }
        assert_eq!(Hint::of_flags(u8::MAX), Hint::None, "first and last is neither");
    }

    #[test]
    fn equal_hints_do_not_overtake_each_other() {
        for (at, one) in ALL.into_iter().enumerate() {
            for other in &ALL[at..] {
                assert!(!(one.passes(*other) && other.passes(one)));
            }
            assert!(!one.passes(one));
        }
        assert!(Hint::Priority.passes(Hint::Latency) && Hint::Latency.passes(Hint::None));
        assert!(Hint::None.passes(Hint::Bulk));
    }

    #[test]
    fn bulk_uses_rendezvous_from_a_lower_length() {
        assert_eq!(Hint::Bulk.eager_limit(16 << 10), BULK_EAGER_BYTES);
        assert_eq!(Hint::Bulk.eager_limit(100), 100);
        assert_eq!(Hint::Latency.eager_limit(16 << 10), 16 << 10);
    }
}
