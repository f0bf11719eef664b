//! What an engine counts of its datagrams.

use super::super::packet::Path;
use super::{PathTable, Paths};

/// Datagrams that were dropped, by reason. None of them has changed anything.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Dropped {
    /// Too short, or not a packet.
    pub(crate) malformed: u64,
    /// Of no session that lives here.
    pub(crate) unknown: u64,
    /// Their tag does not fit: forged, garbled, or for somebody else.
    pub(crate) forged: u64,
    /// They came before, or are too old to tell.
    pub(crate) repeated: u64,
    /// A peer made them, and they came from where it is not known to be. What was in them goes
    /// again.
    pub(crate) stray: u64,
}

/// What an engine counts of its datagrams.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct DatagramCounters {
    /// All that were made.
    pub(crate) sent: u64,
    /// Of these, those taken for lost.
    pub(crate) lost: u64,
    /// Those that came in and changed nothing.
    pub(crate) dropped: u64,
    /// Segments that came in datagrams.
    pub(crate) segments: u64,
}

impl DatagramCounters {
    /// These and those of a path.
    pub(super) fn with(self, path: &Path) -> Self {
        let statistics = path.statistics();
        Self { sent: self.sent + statistics.sent, lost: self.lost + statistics.lost, ..self }
    }
}

impl PathTable {
    /// What paths counted, those of sessions that are over included.
    pub(crate) fn counters(&self) -> DatagramCounters {
        let Dropped { malformed, unknown, forged, repeated, stray } = self.dropped;
        let dropped = malformed + unknown + forged + repeated + stray;
        let segments = self.segments;
        let start = DatagramCounters { dropped, segments, ..self.of_closed };
        let paths = self.by_slot.iter().flat_map(Paths::all);
        paths.fold(start, |sum, path| sum.with(&path.packets))
    }
}
