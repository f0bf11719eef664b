//! Limit on bulk data outstanding to an engine in datagrams.

use super::super::traits::{DATAGRAM_BYTES_MIN, FrameState};
use super::EngineDatagrams;
use crate::proto::core::Core;

/// Returns the bulk window for `room_bytes` of datagram buffers: a quarter is reserved for
/// messages.
pub(crate) fn window_bytes(room_bytes: usize) -> u64 {
    room_bytes as u64 / 4 * 3
}

/// Returns the same for the current receive buffers. Half of the XDP frames receive, and each holds
/// a datagram or a part of a long one: every path carries 1200 bytes. `None`: AF_XDP is not used.
fn window_now(frames: &FrameState, socket_window_bytes: u64) -> Option<u64> {
    match frames {
        FrameState::Off => None,
        FrameState::Up { figures, .. } => {
            Some(window_bytes(figures.frames / 2 * DATAGRAM_BYTES_MIN))
        }
        FrameState::Down { .. } | FrameState::Refused { .. } => Some(socket_window_bytes),
    }
}

impl EngineDatagrams {
    /// Adapts the window to the number of XDP frames. Outstanding grants remain: their data may be
    /// lost, and is retransmitted then.
    ///
    /// RR-BULK-3.
    pub(in super::super) fn fit_window(&self, core: &mut Core, frames: &FrameState) {
        if let Some(bytes) = window_now(frames, self.socket_window_bytes) {
            core.shared_mut().set_datagram_window(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::FrameFigures;

    /// RR-BULK-3
    #[test]
    fn window_follows_the_number_of_xdp_frames() {
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
