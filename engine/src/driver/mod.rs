//! The only rooms with system calls on the data path.
//!
//! [`open`] chooses between the io_uring driver and the plain socket driver; both keep the
//! contract of [`traits`], and [`AnyDriver`] is what an engine has of either.

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

use crate::driver::traits::{Driver, DriverEvent, LaneKey};
use crate::settings::{Faults, TcpCongestion};

/// Bytes that one call moves at most: what a call holds the engine for is what small messages
/// wait for (about 25 µs per 128 KiB), and calls beyond 256 KiB are slower per byte as well.
const BYTES_PER_CALL: usize = 256 * 1024;

/// How long a listener rests after the process ran out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);
/// Connections that a driver accepts in one poll, so that a crowd does not keep the loop from
/// others.
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
    /// Names of io_uring features not to use though the kernel has them (see
    /// `UringFeatures`). Default: none.
    #[cfg_attr(not(feature = "uring"), allow(dead_code, reason = "only io_uring asks"))]
    pub(crate) disabled_features: Vec<String>,
    /// Silence after which an idle peer counts as dead; keep-alive is derived from it.
    /// Default: 10 s.
    pub(crate) peer_timeout: Duration,
    /// Congestion control of lanes. Default: auto.
    pub(crate) tcp_congestion: TcpCongestion,
    /// Entries of the submission queue; rounded up to a power of two and clamped by the kernel.
    /// Default: 256.
    #[cfg_attr(not(feature = "uring"), allow(dead_code, reason = "only io_uring asks"))]
    pub(crate) ring_entries: u32,
    /// Lanes at the same time, those that are closing included. Default: 4096.
    pub(crate) max_lanes: u32,
    /// AF_XDP frames to send and receive datagrams by; 0: none, the default.
    pub(crate) xdp_frames: u32,
    /// For how long a look at an empty ring of frames may drive the NIC, in microseconds; 0: not.
    pub(crate) busy_poll_us: u32,
    /// Where `ringrail-xdpd` listens. Default: nowhere.
    pub(crate) xdpd_socket: Option<PathBuf>,
    /// What is shared with engines of this host. Default: nothing.
    pub(crate) shared_memory: crate::settings::SharedMemory,
    /// Where engines of this host find each other. Default: in their network namespace.
    pub(crate) shared_memory_directory: Option<PathBuf>,
    /// LocalPeers may be of other users.
    pub(crate) shared_memory_other_users: bool,
    /// All processes of the user may read this one's memory. Default: as the system has it.
    pub(crate) shared_memory_ptrace_any: bool,
    /// What the driver does wrong on purpose. Default: nothing.
    pub(crate) inject_faults: Option<Faults>,
    /// The file for what the lanes carry. Default: none.
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

/// The memory that zero-copy sends may be registered for.
///
/// Huge pages are not: what is sent from one by its registration counts against the send buffer of
/// the socket from the start of the page on, up to 2 MiB for each 64 KiB, and the socket is full
/// after one or two of them (Linux 6.18, `io_sg_from_iter`). Sends from unregistered memory count
/// what they send, and join neighbouring pages as registered ones do.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(feature = "uring"), allow(dead_code, reason = "only io_uring asks"))]
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
    /// A feature name is not one.
    #[cfg_attr(not(feature = "uring"), allow(dead_code, reason = "only io_uring asks"))]
    #[error("there is no io_uring feature named `{name}`; the names are {known}")]
    UnknownFeature {
        /// The name as given.
        name: String,
        /// All names, separated by commas.
        known: String,
    },
    /// The driver's own descriptors or memory could not be had.
    #[error(
        "cannot set up the {driver} driver: {source}; check the limits on open files and memory"
    )]
    SetUp {
        /// Which driver.
        driver: &'static str,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// The file for what the lanes carry cannot be written.
    #[error("cannot write {}: {source}; choose another pcap_file, or none", path.display())]
    Capture {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
}

/// Opens a driver for the calling thread, which becomes its owner, in the middleware that the
/// configuration asks for.
///
/// # Errors
///
/// With [`DriverChoice::Auto`] only when plain sockets cannot be set up either, or a feature
/// name in `config` is wrong, or the file of a capture cannot be written.
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

/// When `limit` is over; a limit beyond what the clock can say is as good as a century.
fn deadline_after(limit: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(limit).unwrap_or_else(|| now + Duration::from_secs(100 * 366 * 86_400))
}

/// Answers a `send_chunk` that could not start.
fn refuse_send(events: &mut Vec<DriverEvent>, lane: LaneKey, token: u64, error: io::Error) {
    events.push(DriverEvent::ChunkSent { lane, result: Err(error) });
    events.push(DriverEvent::ChunkReleased { token });
}

/// A lane key that names nothing.
fn no_such_lane() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the lane is closed or was never open")
}

/// A lane that cannot do this yet or any more.
fn not_open() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the lane is not connected, or is being closed")
}

/// A second chunk in one direction of a lane.
fn already_outstanding() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        "a chunk is outstanding on this lane and direction already (one at a time)",
    )
}

/// A shape that has fewer bytes than the chunk.
fn beyond_shape() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "the chunk reaches beyond the message's memory")
}

/// The end of stream inside or instead of a chunk.
fn cut_short() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the peer ended the stream inside a chunk")
}

/// A chunk of a lane that was closed before it was through.
fn cancelled() -> io::Error {
    io::Error::new(
        io::ErrorKind::ConnectionAborted,
        "the lane was closed before the chunk was through",
    )
}

/// No slot is left for another lane.
fn table_full(limit: usize) -> io::Error {
    io::Error::new(
        io::ErrorKind::QuotaExceeded,
        format!("all {limit} lanes are in use: raise the limit on lanes, or close idle peers"),
    )
}

/// Datagrams asked of a driver that has no socket for them.
fn no_datagrams() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "this driver was given no socket for datagrams")
}

/// A second socket for datagrams.
fn datagrams_open() -> io::Error {
    io::Error::new(io::ErrorKind::AlreadyExists, "this driver has a socket for datagrams")
}

/// A call on a driver that was shut down or dismantled.
fn stopped() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the driver was shut down or dismantled")
}
