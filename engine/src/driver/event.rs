//! Events that drivers report.

use std::io;
use std::net::SocketAddr;

use super::traits::{CHUNK_HEADER_BYTES, LaneKey};
#[cfg(doc)]
use super::traits::{ConnectionIo, DatagramIo};

/// An event reported by a driver.
#[derive(Debug)]
pub(crate) enum DriverEvent {
    /// A peer connected to the listener; the driver has adopted the lane.
    Accepted {
        /// The new lane.
        lane: LaneKey,
        /// The peer's address.
        remote: SocketAddr,
        /// The rail whose address the peer connected to.
        rail: u8,
    },
    /// An outgoing connection is established.
    Connected {
        /// The lane that [`ConnectionIo::connect`] returned.
        lane: LaneKey,
    },
    /// An outgoing connection failed. `Closed` follows without a call to `close`.
    ConnectFailed {
        /// The lane that [`ConnectionIo::connect`] returned.
        lane: LaneKey,
        /// The cause.
        error: io::Error,
    },
    /// The other side of a session that was met ([`DatagramIo::connect_peer`]) can read messages
    /// from this process's memory, or cannot any more.
    CmaChanged {
        /// The session, as its packets name it.
        session: u64,
        /// It can read.
        is_able: bool,
    },
    /// The session ([`DatagramIo::connect_peer`]) has gained a ring for its segments
    /// ([`DatagramIo::write_segment`]), or lost it: unacknowledged segments may be lost.
    RingChanged {
        /// The session, as its packets name it.
        session: u64,
        /// The number both sides use for the ring.
        number: u32,
        /// The ring exists.
        is_up: bool,
    },
    /// The process of the other side of a session that was met ([`DatagramIo::connect_peer`]) has
    /// ended, according to the kernel; another one may keep its connections open. What it wrote
    /// into its ring is read.
    ProcessEnded {
        /// The session, as its packets name it.
        session: u64,
    },
    /// A watched lane became readable (once per [`ConnectionIo::watch`]).
    Readable {
        /// The watched lane.
        lane: LaneKey,
    },
    /// A watched lane became writable (once per [`ConnectionIo::watch`]).
    Writable {
        /// The watched lane.
        lane: LaneKey,
    },
    /// All bytes of a chunk were handed to the kernel, or sending failed.
    ChunkSent {
        /// The bulk lane.
        lane: LaneKey,
        /// `Err` means that the stream position of the lane is unknown: close it.
        result: io::Result<()>,
    },
    /// The kernel no longer references the memory of a sent chunk.
    ChunkReleased {
        /// The caller's identifier of the chunk.
        token: u64,
    },
    /// Header and payload of a chunk arrived, or receiving failed; the kernel no longer
    /// references the memory.
    ChunkReceived {
        /// The bulk lane.
        lane: LaneKey,
        /// The header as received. `Err` means that the stream position is unknown.
        result: io::Result<[u8; CHUNK_HEADER_BYTES]>,
    },
    /// A datagram can be received (once per [`DatagramIo::watch_datagrams`]).
    DatagramsReadable,
    /// There is room for a datagram again (once after [`DatagramIo::datagram_room`] had none).
    DatagramsWritable,
    /// The carrier of a rail's NIC came up or went down, as far as this host sees. Only a hint: a
    /// switch that drops everything does not take the carrier down, and the event may be late.
    /// Rails count as up until such an event.
    #[allow(dead_code, reason = "a single rail is not monitored")]
    RailChanged {
        /// The rail.
        rail: u8,
        /// Its NIC is up and has a carrier.
        is_up: bool,
    },
    /// All requests of a lane are reaped and its descriptor is closed.
    Closed {
        /// The lane; its key is never seen again.
        lane: LaneKey,
    },
}
