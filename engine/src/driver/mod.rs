//! The only modules with system calls on the data path.
//!
//! [`open`] chooses between the io_uring driver and the plain socket driver; both keep the
//! contract of [`traits`], and an engine holds either as an [`AnyDriver`].

#[macro_use]
mod delegate;
#[macro_use]
mod shared;

mod any;
mod calls;
mod datagrams;
mod event;
mod gratuitous_arp;
mod links;
mod local_peer;
mod middleware;
mod options;
mod pieces;
mod rails;
mod random;
mod shm;
#[cfg(any(test, feature = "sim"))]
pub(crate) mod sim;
pub(crate) mod sockets;
pub(crate) mod tcp;
#[cfg(test)]
mod tests;
pub(crate) mod traits;
pub(crate) mod udp;
#[cfg(feature = "uring")]
pub(crate) mod uring;
#[cfg(not(feature = "xdp"))]
#[path = "no_xdp.rs"]
mod xdp;
#[cfg(feature = "xdp")]
mod xdp;

pub(crate) use self::any::AnyDriver;

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::driver::traits::{CHUNK_HEADER_BYTES, Driver, DriverEvent, LaneKey};
use crate::settings::{Faults, TcpCongestion};

/// Limit of bytes per call, which a chunk of 256 KiB takes with its header: small messages wait for
/// the duration of a call (about 25 µs per 128 KiB), and longer calls are slower per byte as well.
const BYTES_PER_CALL: usize = CHUNK_HEADER_BYTES + 256 * 1024;

/// How long a listener pauses after the process ran out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);
/// Connections accepted per poll, so that a flood does not starve the loop.
const ACCEPTS_AT_ONCE: usize = 8;

/// Which driver to use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum DriverChoice {
    /// io_uring where the kernel lets us, otherwise plain sockets with one line in the log.
    #[default]
    Auto,
    /// io_uring or an error.
    Uring,
    /// Plain non-blocking sockets, no io_uring at all.
    Sockets,
}

/// Settings of a driver.
#[derive(Clone, Debug)]
pub(crate) struct DriverConfig {
    /// Names of io_uring features to disable even if the kernel has them (see `UringFeatures`).
    /// Default: none.
    #[cfg_attr(not(feature = "uring"), allow(dead_code, reason = "used by io_uring only"))]
    pub(crate) disabled_features: Vec<String>,
    /// Silence after which an idle peer counts as lost; keep-alive is derived from it. Default: 10
    /// s.
    pub(crate) peer_timeout: Duration,
    /// Congestion control of lanes. Default: auto.
    pub(crate) tcp_congestion: TcpCongestion,
    /// Entries of the submission queue; rounded up to a power of two and clamped by the kernel.
    /// Default: 256.
    #[cfg_attr(not(feature = "uring"), allow(dead_code, reason = "used by io_uring only"))]
    pub(crate) ring_entries: u32,
    /// Maximum number of lanes, including those being closed. Default: 4096.
    pub(crate) max_lanes: u32,
    /// AF_XDP frames for datagrams; 0, the default: none.
    pub(crate) xdp_frames: u32,
    /// Busy-poll time of an empty XDP ring, in microseconds; 0: no busy polling.
    pub(crate) busy_poll_us: u32,
    /// Path of the socket of `ringrail-xdpd`. Default: none.
    pub(crate) xdpd_socket: Option<PathBuf>,
    /// Use of shared memory with local peers. Default: none.
    pub(crate) shared_memory: crate::settings::SharedMemory,
    /// Directory in which local peers find each other. Default: abstract names in the network
    /// namespace.
    pub(crate) shared_memory_directory: Option<PathBuf>,
    /// Local peers may belong to other users.
    pub(crate) shared_memory_other_users: bool,
    /// All processes of the user may read this one's memory. Default: the system's ptrace policy.
    pub(crate) shared_memory_ptrace_any: bool,
    /// Faults to inject. Default: none.
    pub(crate) inject_faults: Option<Faults>,
    /// Capture file for the traffic of lanes and datagrams. Default: none.
    pub(crate) pcap_file: Option<PathBuf>,
}

impl Default for DriverConfig {
    fn default() -> Self {
        Self {
            disabled_features: Vec::new(),
            peer_timeout: Duration::from_secs(10),
            tcp_congestion: TcpCongestion::Auto,
            ring_entries: 256,
            max_lanes: 4096,
            xdp_frames: 0,
            busy_poll_us: 0,
            xdpd_socket: None,
            shared_memory: crate::settings::SharedMemory::Off,
            shared_memory_directory: None,
            shared_memory_other_users: false,
            shared_memory_ptrace_any: false,
            inject_faults: None,
            pcap_file: None,
        }
    }
}

/// The memory that may be registered for zero-copy sends.
///
/// Huge pages are not registered: a registered send from one charges the socket's send buffer from
/// the start of the page, up to 2 MiB for each 64 KiB, so that one or two of them fill it (Linux
/// 6.18, `io_sg_from_iter`). Sends from unregistered memory are charged what they send, and
/// adjacent pages are joined as registered ones are.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(feature = "uring"), allow(dead_code, reason = "used by io_uring only"))]
pub(crate) struct ArenaRange {
    /// Its first byte.
    pub(crate) base: *mut u8,
    /// Its length in bytes.
    pub(crate) len: usize,
    /// Some of its pages may be huge.
    pub(crate) may_be_huge: bool,
}

// SAFETY: a range of addresses, which is not accessed by way of this.
unsafe impl Send for ArenaRange {}

/// Why no driver could be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DriverError {
    /// The kernel, or a policy of this host, refuses io_uring.
    #[error(
        "io_uring is not available: {0}; or choose the plain socket driver, which needs no \
         io_uring"
    )]
    UringRefused(#[source] io::Error),
    /// An unknown feature name.
    #[cfg_attr(not(feature = "uring"), allow(dead_code, reason = "used by io_uring only"))]
    #[error("there is no io_uring feature named `{name}`; the names are {known}")]
    UnknownFeature {
        /// The name as configured.
        name: String,
        /// All names, separated by commas.
        known: String,
    },
    /// The driver's own descriptors or memory could not be allocated.
    #[error(
        "cannot set up the {driver} driver: {source}; check the limits on open files and memory"
    )]
    SetUp {
        /// Which driver.
        driver: &'static str,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
    /// The capture file cannot be written.
    #[error("cannot write {}: {source}; choose another pcap_file, or none", path.display())]
    Capture {
        /// The file.
        path: PathBuf,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
}

/// Opens a driver for the calling thread, which becomes its owner, wrapped in the middleware of the
/// configuration.
///
/// # Errors
///
/// With [`DriverChoice::Auto`] only if plain sockets cannot be set up either, a feature name in
/// `config` is wrong, or the capture file cannot be written.
///
/// # Safety
///
/// `arena` stays mapped until the driver is dropped.
pub(crate) unsafe fn open(
    choice: DriverChoice,
    config: &DriverConfig,
    arena: Option<ArenaRange>,
) -> Result<AnyDriver<dyn Driver + Send>, DriverError> {
    // SAFETY: the caller keeps the arena mapped.
    let driver = unsafe { open_bare(choice, config, arena) }?;
    middleware::wrap(driver, config)
}

unsafe fn open_bare(
    choice: DriverChoice,
    config: &DriverConfig,
    arena: Option<ArenaRange>,
) -> Result<AnyDriver<dyn Driver + Send>, DriverError> {
    if choice != DriverChoice::Sockets {
        // SAFETY: the caller keeps the arena mapped.
        match unsafe { open_uring(config, arena) } {
            Ok(driver) => return Ok(driver),
            Err(error @ DriverError::UnknownFeature { .. }) => return Err(error),
            Err(error) if choice == DriverChoice::Uring => return Err(error),
            Err(error) => tracing::warn!("using the plain socket driver: {error}"),
        }
    }
    let driver = sockets::SocketsDriver::open(config)
        .map_err(|source| DriverError::SetUp { driver: "sockets", source })?;
    Ok(AnyDriver::Sockets(Box::new(driver)))
}

#[cfg(feature = "uring")]
unsafe fn open_uring(
    config: &DriverConfig,
    arena: Option<ArenaRange>,
) -> Result<AnyDriver<dyn Driver + Send>, DriverError> {
    let mut features = uring::UringFeatures::probe().map_err(DriverError::UringRefused)?;
    features.disable(&config.disabled_features)?;
    // SAFETY: the caller keeps the arena mapped.
    let driver = unsafe { uring::UringDriver::open(config, features, arena) }
        .map_err(|source| DriverError::SetUp { driver: "uring", source })?;
    Ok(AnyDriver::Uring(Box::new(driver)))
}

#[cfg(not(feature = "uring"))]
unsafe fn open_uring(
    _config: &DriverConfig,
    _arena: Option<ArenaRange>,
) -> Result<AnyDriver<dyn Driver + Send>, DriverError> {
    Err(DriverError::UringRefused(io::Error::new(
        io::ErrorKind::Unsupported,
        "this build has no io_uring driver: build with the cargo feature `uring`",
    )))
}

/// The instant after `limit`, capped at a century.
fn deadline_after(limit: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(limit).unwrap_or_else(|| now + Duration::from_secs(100 * 366 * 86_400))
}

/// Reports the failure of a `send_chunk` that could not start.
fn refuse_send(events: &mut Vec<DriverEvent>, lane: LaneKey, token: u64, error: io::Error) {
    events.push(DriverEvent::ChunkSent { lane, result: Err(error) });
    events.push(DriverEvent::ChunkReleased { token });
}

/// Error: unknown lane key.
fn no_such_lane() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the lane is closed or was never open")
}

/// Error: the lane is not connected.
fn not_open() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the lane is not connected, or is being closed")
}

/// Error: a second chunk in one direction of a lane.
fn already_outstanding() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        "a chunk is already outstanding on this lane and direction",
    )
}

/// Error: the shape is shorter than the chunk.
fn beyond_shape() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "the chunk exceeds the message's memory")
}

/// Error: end of stream inside or instead of a chunk.
fn cut_short() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the peer ended the stream inside a chunk")
}

/// Error: the lane was closed before the chunk was complete.
fn cancelled() -> io::Error {
    io::Error::new(
        io::ErrorKind::ConnectionAborted,
        "the lane was closed before the chunk was complete",
    )
}

/// Error: the lane table is full.
fn table_full(limit: usize) -> io::Error {
    io::Error::new(
        io::ErrorKind::QuotaExceeded,
        format!("all {limit} lanes are in use: raise the limit on lanes, or close idle peers"),
    )
}

/// Error: no datagram socket.
fn no_datagrams() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "this driver has no datagram socket")
}

/// Error: a second datagram socket.
fn datagrams_open() -> io::Error {
    io::Error::new(io::ErrorKind::AlreadyExists, "this driver already has a datagram socket")
}

/// Error: the driver was shut down or dismantled.
fn stopped() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the driver was shut down or dismantled")
}
