//! How much bulk data may be on its way to an engine in datagrams.

use super::super::engine::Engine;
use super::super::traits::{DATAGRAM_BYTES_MIN, FrameState};

/// Bytes of bulk data that there is room for until the engine looks, where there are `room_bytes`
/// for all datagrams: a quarter is for messages.
pub(crate) fn window_bytes(room_bytes: usize) -> u64 {
    room_bytes as u64 / 4 * 3
}

/// The same for what datagrams arrive in now. Half of the frames receive, and each holds a datagram
/// or a part of a long one: 1200 bytes go by every path. `None`: frames are no matter.
fn window_now(frames: &FrameState, socket_window_bytes: u64) -> Option<u64> {
    match frames {
        FrameState::Off => None,
        FrameState::Up { figures, .. } => {
            Some(window_bytes(figures.frames / 2 * DATAGRAM_BYTES_MIN))
        }
        FrameState::Down { .. } | FrameState::Refused { .. } => Some(socket_window_bytes),
    }
}

impl Engine {
    /// Frames come and go, and so does the room for what peers are granted. What was granted
    /// before stays granted: it may be lost, and then goes again.
    ///
    /// RR-BULK-3.
    pub(in super::super) fn fit_window(&mut self) {
        let state = &mut *self.state;
        let socket_window_bytes = state.datagrams.socket_window_bytes;
        if let Some(bytes) = window_now(&self.driver.frame_state(), socket_window_bytes) {
            state.core.set_datagram_window(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::FrameFigures;

    /// RR-BULK-3
    #[test]
    fn grants_fit_frames_only_while_there_are_some() {
        let figures = FrameFigures { frames: 2048, ..FrameFigures::default() };
        let up = |frames| FrameState::Up {
            nic: "eth1".to_owned(),
            queue: 0,
            how: "copied".to_owned(),
            figures: FrameFigures { frames, ..figures },
        };
        let cause = || "the NIC is down".to_owned();
        assert_eq!(window_now(&up(2048), 1000), Some(1024 * 1200 / 4 * 3));
        // As many as the user may lock.
        assert_eq!(window_now(&up(128), 1 << 30), Some(64 * 1200 / 4 * 3));
        assert_eq!(window_now(&FrameState::Down { cause: cause(), figures }, 1000), Some(1000));
        assert_eq!(window_now(&FrameState::Refused { cause: cause() }, 1000), Some(1000));
        assert_eq!(window_now(&FrameState::Off, 1000), None);
    }
}
