//! Ordering of delayed events.

use crate::driver::traits::{DriverEvent, LaneKey};

/// The lane of an event.
pub(super) fn lane_of(event: &DriverEvent) -> Option<LaneKey> {
    match *event {
        DriverEvent::Accepted { lane, .. }
        | DriverEvent::Connected { lane }
        | DriverEvent::ConnectFailed { lane, .. }
        | DriverEvent::Readable { lane }
        | DriverEvent::Writable { lane }
        | DriverEvent::ChunkSent { lane, .. }
        | DriverEvent::ChunkReceived { lane, .. }
        | DriverEvent::Closed { lane } => Some(lane),
        DriverEvent::ChunkReleased { .. }
        | DriverEvent::DatagramsReadable
        | DriverEvent::DatagramsWritable
        | DriverEvent::RailChanged { .. }
        | DriverEvent::CmaChanged { .. }
        | DriverEvent::RingChanged { .. }
        | DriverEvent::ProcessEnded { .. } => None,
    }
}

/// Whether `later` must not be reported before `earlier`. A release names no lane, so it follows
/// the end of every send, and every `Closed` follows it.
pub(super) fn must_follow(later: &DriverEvent, earlier: &DriverEvent) -> bool {
    match (later, earlier) {
        (DriverEvent::ChunkReleased { .. }, DriverEvent::ChunkSent { .. })
        | (DriverEvent::Closed { .. }, DriverEvent::ChunkReleased { .. }) => true,
        (
            DriverEvent::CmaChanged { session: later, .. },
            DriverEvent::CmaChanged { session: earlier, .. },
        )
        | (
            DriverEvent::RingChanged { session: later, .. },
            DriverEvent::RingChanged { session: earlier, .. },
        ) => later == earlier,
        _ => lane_of(later).is_some() && lane_of(later) == lane_of(earlier),
    }
}
