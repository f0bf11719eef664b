//! Datagram counters of an engine.

use super::super::packet::Path;
use super::{PathTable, Paths};

/// Dropped datagrams, by reason. None had an effect.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Dropped {
    /// Too short, or not a packet.
    pub(crate) malformed: u64,
    /// Of no session of this engine.
    pub(crate) unknown: u64,
    /// Authentication tag mismatch: forged, corrupted, or for another receiver.
    pub(crate) forged: u64,
    /// Duplicate, or too old to be recognised.
    pub(crate) repeated: u64,
    /// Authentic, but from an address where the peer is not known to be. Their content is
    /// retransmitted.
    pub(crate) stray: u64,
}

/// Datagram counters of an engine.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct DatagramCounters {
    /// All datagrams sent.
    pub(crate) sent: u64,
    /// Of these, those declared lost.
    pub(crate) lost: u64,
    /// Received without effect.
    pub(crate) dropped: u64,
    /// Segments received in datagrams.
    pub(crate) segments: u64,
}

impl DatagramCounters {
    /// Returns the sum of these and those of a path.
    pub(super) fn with(self, path: &Path) -> Self {
        let counters = path.counters();
        Self { sent: self.sent + counters.sent, lost: self.lost + counters.lost, ..self }
    }
}

impl PathTable {
    /// Returns the counters of all paths, those of closed sessions included.
    pub(crate) fn counters(&self) -> DatagramCounters {
        let Dropped { malformed, unknown, forged, repeated, stray } = self.shared.dropped;
        let dropped = malformed + unknown + forged + repeated + stray;
        let segments = self.shared.segments;
        let start = DatagramCounters { dropped, segments, ..self.shared.of_closed };
        let paths = self.by_slot.iter().flat_map(Paths::all);
        paths.fold(start, |sum, path| sum.with(path.packets()))
    }
}
