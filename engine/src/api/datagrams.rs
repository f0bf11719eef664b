//! The state of datagrams of an endpoint.

use super::endpoint::Endpoint;
use super::engine_ref::EngineRef;
use super::mode::Attached;
use crate::driver::udp;
use crate::progress::engine::Engine;
use crate::proto::paths::Dropped;
use crate::types::{FrameState, SharedMemoryState};

/// Whether this side can send and receive datagrams.
///
/// The peer has to support them, too, and the network has to let them pass:
/// [`Counters::segments_by_datagram`](crate::Counters::segments_by_datagram) counts those that were
/// used.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DatagramState {
    /// Datagrams are on.
    #[non_exhaustive]
    Taken {
        /// UDP port, at the address that the endpoint listens on.
        port: u16,
        /// Receive buffer of the socket in bytes (`SO_RCVBUF`). The kernel counts the memory that
        /// it allocates, which is more than the length of the datagrams.
        receive_buffer_bytes: usize,
        /// Send buffer of the socket in bytes (`SO_SNDBUF`).
        send_buffer_bytes: usize,
        /// The requested size of either buffer; where it is smaller, the limits `net.core.rmem_max`
        /// and `wmem_max` of the host apply. Smaller buffers lose more datagrams.
        wanted_buffer_bytes: usize,
        /// Whether they are AF_XDP frames.
        frames: FrameState,
        /// Received datagrams that were dropped.
        dropped: DroppedDatagrams,
    },
    /// The setting `control_lane` does not enable them.
    Off,
    /// They could not be set up; messages are carried by TCP.
    #[non_exhaustive]
    Refused {
        /// The error of the system or the driver.
        cause: String,
    },
}

/// Received datagrams that were dropped, by cause.
///
/// Packets that the XDP program or the kernel did not deliver to the endpoint are not counted.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct DroppedDatagrams {
    /// Too short, or not a packet.
    pub malformed: u64,
    /// Longer than the maximum that was agreed on.
    pub too_long: u64,
    /// Of no session of this engine: of another job, or late.
    pub unknown: u64,
    /// Wrong authentication tag: forged, corrupted, or for another engine.
    pub forged: u64,
    /// Duplicates, or too old to be checked for that.
    pub repeated: u64,
    /// Authentic, from an address that is not validated for the peer. Their frames are sent again.
    pub stray: u64,
}

impl<M: Attached> Endpoint<M> {
    /// Returns the state of datagrams. Endpoints of one engine share a socket.
    pub fn datagrams(&self) -> DatagramState {
        self.open().engine.with(|engine| state_of(engine))
    }

    /// Returns state and counters of shared memory with engines of this host, for all endpoints of
    /// this engine.
    pub fn shared_memory(&self) -> SharedMemoryState {
        self.open().engine.with(|engine| engine.driver.shared_memory())
    }
}

fn state_of(engine: &Engine) -> DatagramState {
    let datagrams = engine.state.datagrams();
    let socket = match datagrams.socket() {
        Ok(socket) => socket,
        Err(None) => return DatagramState::Off,
        Err(Some(cause)) => return DatagramState::Refused { cause: cause.to_owned() },
    };
    let Dropped { malformed, unknown, forged, repeated, stray } =
        engine.state.session_paths().dropped();
    let asked = socket.local_addr().and_then(|at| Ok((at.port(), udp::buffers(socket)?)));
    match asked {
        Ok((port, (receive_buffer_bytes, send_buffer_bytes))) => DatagramState::Taken {
            port,
            receive_buffer_bytes,
            send_buffer_bytes,
            wanted_buffer_bytes: udp::WANTED_BYTES,
            frames: engine.driver.frame_state(),
            dropped: DroppedDatagrams {
                malformed,
                too_long: engine.driver.counters().datagrams_too_long,
                unknown,
                forged,
                repeated,
                stray,
            },
        },
        Err(error) => DatagramState::Refused { cause: error.to_string() },
    }
}
