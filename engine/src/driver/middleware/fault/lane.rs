//! State of a lane with injected faults.

use crate::memory::Shape;

/// The state of a lane as the caller sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// The inner lane.
    Open,
    /// A connection attempt that fails: the inner lane is being closed.
    Refused,
    /// Reset; the inner lane is being closed, or is closed (`is_gone`).
    Broken { is_gone: bool },
    /// Closed by the caller, and so is the inner lane: `Closed` is due.
    Closing,
}

/// See the module.
#[derive(Debug)]
pub(super) struct FaultLane {
    pub(super) state: State,
    /// Sends so far, counted while they are spared.
    pub(super) sends: u8,
    /// Receives with bytes so far, counted while they are spared.
    pub(super) receives: u8,
    /// Destination of the chunk being received, if it may be corrupted: memory, offset, length.
    pub(super) target: Option<(Shape, usize, usize)>,
    /// Requested events: readable, writable.
    pub(super) watched: [bool; 2],
    /// The poll at which it is reset.
    pub(super) reset_at: Option<u64>,
}

impl FaultLane {
    pub(super) fn new(state: State) -> Self {
        Self { state, sends: 0, receives: 0, target: None, watched: [false; 2], reset_at: None }
    }
}
