//! What users say of messages, and what follows from it.

use std::fmt;

use crate::wire::rts::{FLAG_FIRST, FLAG_LAST};

/// A message of [`Hint::Bulk`] that is longer than this is pulled, in bytes: its envelope alone
/// takes the way of short messages.
pub(crate) const BULK_EAGER_BYTES: u64 = 1024;

/// What a message is for. A hint changes when a message goes and which others wait for it, and
/// nothing else: messages of one source to one target in one context match in the order in which
/// they were sent, whatever their hints are, and an operation completes when its level says.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Hint {
    /// A message goes at once if it is the first since the engine last made progress; others
    /// travel together with the next turn.
    #[default]
    None,
    /// Somebody waits for it: it goes at once, whatever was sent before in the same turn and
    /// whatever [`SendOptions::more`](crate::SendOptions::more) says, waits for none that is sent
    /// later, and goes before messages that wait for the network. It is for short messages: one
    /// that is longer than the eager limit is pulled like any other.
    Latency,
    /// Nobody waits for it soon: it goes with the next turn or when what goes together is full. Of
    /// more than 1 KiB it is pulled, unless it is injected. Its receiver asks for it after all
    /// others of this engine, in short chunks and few at a time while those of other peers are
    /// under way; one chunk in 32 at least is its own, so that it is late but not for ever.
    Bulk,
    /// It goes before messages without this hint that wait, for the connection, for credit or for
    /// the network (of those that wait for credit each lets sixteen pass); and its receiver asks
    /// for all of it before it asks for more of others of this engine, but for one chunk in
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
    /// Whether its messages are not to stand behind those of other hints in one datagram, or
    /// behind datagrams with those.
    #[inline]
    pub(crate) fn leads(self) -> bool {
        matches!(self, Self::Latency | Self::Priority)
    }

    /// The longest message that may go with its envelope, where all others may have `limit` bytes.
    pub(crate) fn eager_limit(self, limit: u64) -> u64 {
        if self == Self::Bulk { limit.min(BULK_EAGER_BYTES) } else { limit }
    }

    /// Where it stands among sends that wait; lower ones first.
    fn rank(self) -> u8 {
        match self {
            Self::Priority => 0,
            Self::Latency => 1,
            Self::None => 2,
            Self::Bulk => 3,
        }
    }

    /// Whether a send of it goes before one of `other` that is of another stream and has waited
    /// for longer.
    pub(crate) fn passes(self, other: Self) -> bool {
        self.rank() < other.rank()
    }

    /// What an RTS says of it.
    ///
    /// RR-RDV-8.
    pub(crate) fn flags(self) -> u8 {
        match self {
            Self::Priority => FLAG_FIRST,
            Self::Bulk => FLAG_LAST,
            Self::None | Self::Latency => 0,
        }
    }

    /// What an RTS with these flags says of its message, as far as its receiver needs to know.
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

/// What has been done about hints.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Hinted {
    /// Messages sent with [`Hint::Latency`].
    pub(crate) latency_sends: u64,
    /// Messages sent with [`Hint::Bulk`].
    pub(crate) bulk_sends: u64,
    /// Messages sent with [`Hint::Priority`].
    pub(crate) priority_sends: u64,
    /// Grants of messages that others had waited for longer than.
    pub(crate) grants_ahead: u64,
    /// When a range of a message that is no bulk was last granted, to any peer.
    pub(crate) granted_ns: Option<u64>,
}

impl Hinted {
    /// Whether a range of a message that is no bulk was granted within `time_ns`.
    pub(crate) fn is_granting(&self, now_ns: u64, time_ns: u64) -> bool {
        self.granted_ns.is_some_and(|at_ns| now_ns < at_ns + time_ns)
    }

    /// Takes note of a message that was sent.
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
    fn flags_say_what_a_receiver_needs() {
        for hint in ALL {
            let told = if hint == Hint::Latency { Hint::None } else { hint };
            // Other flags say other things.
            assert_eq!(Hint::of_flags(hint.flags() | 7), told);
        }
        assert_eq!(Hint::of_flags(u8::MAX), Hint::None, "first and last is neither");
    }

    #[test]
    fn those_that_wait_are_passed_by_none_of_their_own_kind() {
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
    fn bulk_is_pulled_from_a_lower_size() {
        assert_eq!(Hint::Bulk.eager_limit(16 << 10), BULK_EAGER_BYTES);
        assert_eq!(Hint::Bulk.eager_limit(100), 100);
        assert_eq!(Hint::Latency.eager_limit(16 << 10), 16 << 10);
    }
}
