//! Whether an endpoint takes datagrams.

use super::endpoint::{Endpoint, Owned};
use crate::driver::udp;
use crate::types::FrameState;

/// Whether short messages can go by datagrams, as far as this side is concerned.
///
/// The peer has to take them as well, and the network has to let them pass:
/// [`Counters::segments_by_datagram`](crate::Counters::segments_by_datagram) tells what came of it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DatagramState {
    /// They are taken.
    #[non_exhaustive]
    Taken {
        /// UDP port, at the address that the endpoint listens on.
        port: u16,
        /// Kernel memory for datagrams that wait to be received, in bytes. The kernel counts what
        /// it allocates, which is more than what datagrams hold.
        receive_buffer_bytes: usize,
        /// The same for those that wait to be sent.
        send_buffer_bytes: usize,
        /// What was asked for, for either; the limits `net.core.rmem_max` and `wmem_max` of the
        /// host are in the way where it has less. Smaller buffers lose more.
        wanted_buffer_bytes: usize,
        /// Whether they go as AF_XDP frames.
        frames: FrameState,
    },
    /// The setting `control_lane` asks for none.
    Off,
    /// They were asked for and cannot be had; messages go by TCP.
    #[non_exhaustive]
    Refused {
        /// What the system, or the driver, said.
        cause: String,
    },
}

impl Endpoint<Owned> {
    /// Whether it takes datagrams. Endpoints of the same engine share one socket.
    pub fn datagrams(&self) -> DatagramState {
        let engine = self.mode.engine.borrow();
        let datagrams = &engine.state.datagrams;
        let socket = match datagrams.socket() {
            Ok(socket) => socket,
            Err(None) => return DatagramState::Off,
            Err(Some(cause)) => return DatagramState::Refused { cause: cause.to_owned() },
        };
        let asked = socket.local_addr().and_then(|at| Ok((at.port(), udp::buffers(socket)?)));
        match asked {
            Ok((port, (receive_buffer_bytes, send_buffer_bytes))) => DatagramState::Taken {
                port,
                receive_buffer_bytes,
                send_buffer_bytes,
                wanted_buffer_bytes: udp::WANTED_BYTES,
                frames: engine.frame_state(),
            },
            Err(error) => DatagramState::Refused { cause: error.to_string() },
        }
    }
}
