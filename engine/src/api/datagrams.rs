//! Whether an endpoint takes datagrams.

use super::endpoint::Endpoint;
use super::engine_ref::EngineRef;
use super::mode::Attached;
use crate::driver::udp;
use crate::progress::engine::Engine;
use crate::proto::paths::Dropped;
use crate::types::{FrameState, SharedMemoryState};

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
        /// Those that came in and changed nothing.
        dropped: DroppedDatagrams,
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

/// Datagrams that came in and were dropped, by reason. None of them has changed anything.
///
/// Those that the NIC's XDP program or the kernel did not take for the endpoint's are not among
/// them.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct DroppedDatagrams {
    /// Too short, or not a packet.
    pub malformed: u64,
    /// Longer than any peer sends.
    pub too_long: u64,
    /// Of no session that lives here: of another job, or late.
    pub unknown: u64,
    /// Their tag does not fit: forged, garbled, or for somebody else.
    pub forged: u64,
    /// They came before, or are too old to tell.
    pub repeated: u64,
    /// A peer made them, and they came from where it is not known to be. What was in them goes
    /// again.
    pub stray: u64,
}

impl<M: Attached> Endpoint<M> {
    /// Whether it takes datagrams. Endpoints of the same engine share one socket.
    pub fn datagrams(&self) -> DatagramState {
        self.open().engine.with(|engine| state_of(engine))
    }

    /// Whether memory is shared with engines of this host, and what became of it. Endpoints of the
    /// same engine share it.
    pub fn shared_memory(&self) -> SharedMemoryState {
        self.open().engine.with(|engine| engine.shared_memory())
    }
}

fn state_of(engine: &Engine) -> DatagramState {
    let datagrams = &engine.state.datagrams;
    let socket = match datagrams.socket() {
        Ok(socket) => socket,
        Err(None) => return DatagramState::Off,
        Err(Some(cause)) => return DatagramState::Refused { cause: cause.to_owned() },
    };
    let Dropped { malformed, unknown, forged, repeated, stray } = engine.state.paths.dropped();
    let asked = socket.local_addr().and_then(|at| Ok((at.port(), udp::buffers(socket)?)));
    match asked {
        Ok((port, (receive_buffer_bytes, send_buffer_bytes))) => DatagramState::Taken {
            port,
            receive_buffer_bytes,
            send_buffer_bytes,
            wanted_buffer_bytes: udp::WANTED_BYTES,
            frames: engine.frame_state(),
            dropped: DroppedDatagrams {
                malformed,
                too_long: engine.driver_counters().datagrams_too_long,
                unknown,
                forged,
                repeated,
                stray,
            },
        },
        Err(error) => DatagramState::Refused { cause: error.to_string() },
    }
}
