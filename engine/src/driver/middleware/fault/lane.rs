//! A lane as the driver that fails sees it.

use crate::memory::Shape;

/// What the caller may see of a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// What the driver inside says.
    Open,
    /// A connection attempt that fails: the lane inside is being closed.
    Refused,
    /// Reset; the lane inside is being closed, or is (`is_gone`).
    Broken { is_gone: bool },
    /// Closed by the caller, and inside as well: `Closed` is due.
    Closing,
}

/// See the module.
#[derive(Debug)]
pub(super) struct FaultLane {
    pub(super) state: State,
    /// Sends so far, as far as they are spared.
    pub(super) sends: u8,
    /// Receives that gave bytes, as far as they are spared.
    pub(super) receives: u8,
    /// Where the chunk that is received goes, if it may be garbled: memory, offset, length.
    pub(super) target: Option<(Shape, usize, usize)>,
    /// Events that were asked for: readable, writable.
    pub(super) watched: [bool; 2],
    /// The poll at which it is reset.
    pub(super) reset_at: Option<u64>,
}

impl FaultLane {
    pub(super) fn new(state: State) -> Self {
        Self { state, sends: 0, receives: 0, target: None, watched: [false; 2], reset_at: None }
    }
}
