//! The process-wide context.

use std::cell::Cell;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::num::NonZeroU16;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rand::rngs::{StdRng, SysRng};
use rand::{RngExt, SeedableRng};

use super::endpoint::{Detached, Endpoint};
use crate::driver;
use crate::driver::traits::{
    DATAGRAM_BYTES_MAX, DATAGRAM_BYTES_MIN, DATAGRAM_BYTES_USUAL, PIECE_BYTES_MAX, SendMode,
};
use crate::forks::OwnerProcess;
use crate::memory::{Arena, RegionSlice, alloc_region, default_arena_bytes};
use crate::memory::{has_cap_ipc_lock, memlock_limit};
use crate::progress::datagram::{EngineDatagrams, window_bytes};
use crate::progress::engine::{EngineParts, EngineState, LoopConfig};
use crate::progress::listeners::Listeners;
use crate::progress::rails::LocalRails;
use crate::progress::shared_engine::DomainEngines;
use crate::progress::statistics::{Publisher, Reports};
use crate::progress::zero_copy::Policy;
use crate::proto::core::CoreConfig;
use crate::proto::keys::JobKeys;
use crate::proto::regions::RegionLimits;
use crate::proto::session::Limits;
use crate::proto::session::connection::Retry;
use crate::proto::session::control_lane::SilentTimeout;
use crate::proto::session::eager_limit::{CHOSEN_BYTES_MAX, EagerPolicy};
use crate::proto::session::lanes::LaneLimits;
use crate::proto::session::offers::CreditLimits;
use crate::proto::session::rendezvous::limits::{ChunkLimits, PieceLimits, PullLimits};
use crate::proto::session::segments::StagingLimits;
use crate::settings::{
    BulkLane, ControlLane, EagerLane, PortRange, Settings, SharedMemory, ZeroCopy,
};
use crate::telemetry::exporter::Exporter;
use crate::telemetry::transports;
use crate::topology::{self, Placement, RailsError};
use crate::types::Error;
use crate::types::descriptors::raise_descriptor_limit;

/// The longest message that is copied through a ring where it could be read from its sender's
/// memory, in bytes: two copies by two cores at once, beside a system call and one. Measured:
/// perf/NOTEBOOK.md, "Pieces by rings".
const PIECES_BYTES_MAX: u32 = 32 << 10;

/// The same where a session measures that pieces are faster. The sender has to make progress for
/// them, and not for a read: longer ones leave it to its computation.
const FASTER_PIECES_BYTES_MAX: u32 = 1 << 20;

/// The settings, the arena of registered memory, and the selected NICs, from which endpoints are
/// made. Cheap to clone, and shared by threads.
///
/// A child of `fork` can only drop a domain that it inherited, and has to make a domain of its own.
/// It must not access memory that was allocated from the inherited one, which is not mapped there.
///
/// ```
/// use ringrail::{Domain, settings::Settings};
///
/// // `Domain::new()` reads the settings from the environment and files instead.
/// let settings = Settings::isolated().set("listen_address", "127.0.0.1").insecure(true);
/// let domain = Domain::with_settings(settings.build()?)?;
/// let memory = domain.allocate(4096)?;
/// assert_eq!(memory.len(), 4096);
/// let endpoint = domain.endpoint()?; // one for each thread, or one that all threads share
/// println!("peers reach it at {}", endpoint.address());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Domain(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    settings: Settings,
    arena: Arc<Arena>,
    keys: Arc<JobKeys>,
    /// Identifies the domain; never used twice.
    id: u64,
    exporter: Option<Exporter>,
    /// Where the arena is mapped.
    owner: OwnerProcess,
    /// Threads that were given a core so far.
    pinned: AtomicUsize,
    /// Cores that the thread that made it may use: those of the process, as a launcher set them.
    cores: Vec<usize>,
    /// Where engines run, by the node of their NIC.
    placements: Mutex<Vec<(Option<u32>, Arc<Placement>)>>,
    /// Shared engines, which those who wait help.
    domain_engines: Arc<DomainEngines>,
    /// An endpoint was made, and NICs that were coming up were waited for.
    has_waited: AtomicBool,
}

thread_local! {
    /// The domain that pinned this thread last; 0: none.
    static PINNED_BY: Cell<u64> = const { Cell::new(0) };
}

impl Domain {
    /// A domain with the settings of environment and files.
    ///
    /// # Errors
    ///
    /// A setting that is unknown or out of range, no job secret ([`Self::with_settings`]), or
    /// memory that cannot be had.
    pub fn new() -> Result<Self, Error> {
        let settings = Settings::load().map_err(Error::settings)?;
        Self::with_settings(settings)
    }

    /// A domain with settings from [`Settings::builder`].
    ///
    /// # Errors
    ///
    /// [`Error::Settings`] when there is neither a job secret nor `insecure = true`, or the file of
    /// the secret cannot be trusted; memory that cannot be had.
    pub fn with_settings(settings: Settings) -> Result<Self, Error> {
        let secret = settings.effective_secret().map_err(Error::settings)?;
        let keys = Arc::new(JobKeys::new(secret.as_ref()));
        let bytes = settings.arena_bytes().unwrap_or_else(|| {
            let limit = if has_cap_ipc_lock() { None } else { memlock_limit() };
            default_arena_bytes(limit)
        });
        let arena = Arena::new(bytes)
            .map_err(|error| Error::system("cannot map the arena (setting arena_bytes)", error))?;
        tracing::debug!("arena of {} KiB, {} pages", arena.len() / 1024, arena.kind());
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let exporter = settings.prometheus_address().map(open_exporter).transpose()?;
        let pinned = AtomicUsize::new(0);
        let domain_engines = Arc::default();
        let (cores, placements) = (topology::unpinned_cores(), Mutex::default());
        let inner = Inner {
            settings,
            arena,
            keys,
            id,
            exporter,
            owner: OwnerProcess::current(),
            pinned,
            cores,
            placements,
            domain_engines,
            has_waited: AtomicBool::new(false),
        };
        Ok(Self(Arc::new(inner)))
    }

    /// Whether this process made it, and did not inherit it by `fork`.
    pub(crate) fn check_process(&self) -> Result<(), Error> {
        if !self.0.owner.is_inherited() {
            return Ok(());
        }
        let text = "this domain was made before a fork and works in the parent only; make another \
                    one in this process";
        Err(Error::misuse(text))
    }

    /// Returns the address at which statistics are served in the format of Prometheus, if the
    /// setting `prometheus_address` is set: by HTTP, at the path `/metrics`, at most a second old
    /// while an endpoint makes progress. If the setting has port 0, this has the port that was
    /// chosen.
    pub fn prometheus_address(&self) -> Option<SocketAddr> {
        self.0.exporter.as_ref().map(Exporter::address)
    }

    /// Returns the settings.
    pub fn settings(&self) -> &Settings {
        &self.0.settings
    }

    /// Allocates zeroed memory for messages, from the registered arena if it has room (see
    /// [`RegionSlice::is_registered`]), else from the heap.
    ///
    /// # Errors
    ///
    /// [`Error::Memory`] if there is no memory, [`Error::Misuse`] in a child of `fork`.
    pub fn allocate(&self, length: usize) -> Result<RegionSlice, Error> {
        self.check_process()?;
        Ok(alloc_region(&self.0.arena, length, 64)?)
    }

    /// Opens an endpoint with an engine of its own. It listens from now on, so its address can be
    /// handed out; it makes progress once a thread has attached it. If a NIC that is just coming up
    /// is better than those that are up, or the only one, the first endpoint of a domain waits for
    /// its link, up to `connect_timeout`.
    ///
    /// Raises the soft limit of file descriptors of the process to the hard one.
    ///
    /// # Errors
    ///
    /// [`Error::System`] if there is no usable NIC (loopback beside a NIC that did not come up is
    /// used only if it is named), no free port in `port_range`, or no descriptor; with
    /// `control_lane = xdp` also if there is no UDP socket, without which other settings use TCP.
    /// [`Error::Misuse`] in a child of `fork`.
    pub fn endpoint(&self) -> Result<Endpoint<Detached>, Error> {
        self.open_endpoint(self.0.settings.port_range())
    }

    /// Opens an endpoint like [`Self::endpoint`], at a port that peers know beforehand
    /// ([`Address::from_listener`](crate::Address::from_listener)) instead of one of `port_range`.
    ///
    /// # Errors
    ///
    /// As for [`Self::endpoint`]; [`Error::System`] if the port is in use.
    pub fn endpoint_at(&self, port: NonZeroU16) -> Result<Endpoint<Detached>, Error> {
        self.open_endpoint(PortRange::from(port))
    }

    fn open_endpoint(&self, ports: PortRange) -> Result<Endpoint<Detached>, Error> {
        self.check_process()?;
        raise_descriptor_limit();
        let settings = &self.0.settings;
        // A NIC that did not come up for one endpoint is not waited for by the others.
        let has_waited = self.0.has_waited.load(Ordering::Relaxed);
        let limit = if has_waited { Duration::ZERO } else { settings.connect_timeout() };
        let selection = topology::select_when_up(settings, limit).map_err(no_rails)?;
        self.0.has_waited.store(true, Ordering::Relaxed);
        let Some((nic, address)) = selection.chosen() else {
            return Err(Error::system("no NIC can be used", "none was chosen"));
        };
        for candidate in &selection.candidates {
            tracing::debug!("{candidate}");
        }
        for rail in &selection.rails {
            let (nic, address, role) = (&rail.nic, rail.address, rail.role);
            tracing::info!(nic, %address, ?role, "using rail");
        }
        // Several rails have one port, at the wildcard address, and for datagrams one socket: that
        // is one system call per turn, however many rails there are.
        let has_several = selection.rails.len() > 1;
        let bound_to = match address {
            _ if !has_several => address,
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let listener = driver::tcp::listener(bound_to, ports.ports())
            .map_err(|error| Error::system(format!("cannot listen on {bound_to}"), error))?;
        let listening = listener
            .local_addr()
            .map_err(|error| Error::system("cannot read the port of the listener", error))?;
        let mut locator = SocketAddr::new(address, listening.port());
        if let SocketAddr::V6(v6) = &mut locator
            && v6.ip().is_unicast_link_local()
        {
            v6.set_scope_id(nic.index);
        }
        let bound_to = if has_several { listening } else { locator };
        let longest = selection
            .rails
            .iter()
            .map(|rail| longest_datagram(rail.mtu, rail.address))
            .max()
            .unwrap_or(DATAGRAM_BYTES_USUAL);
        // Where the user names no address, routes decide which one connections leave from.
        let are_bound = has_several || settings.listen_address().is_some();
        let rails = if are_bound { selection.rails.clone() } else { Vec::new() };
        let mut datagrams = match settings.control_lane() {
            ControlLane::Tcp => EngineDatagrams::default(),
            ControlLane::Xdp => {
                let taken = |error| Error::system("control_lane = xdp", error);
                let (socket, port) = bound(bound_to).map_err(taken)?;
                EngineDatagrams::new(socket, port, longest, true)
            }
            ControlLane::Udp | ControlLane::Auto => match bound(bound_to) {
                Ok((socket, port)) => EngineDatagrams::new(socket, port, longest, false),
                Err(error) => EngineDatagrams::refused(&error),
            },
        };
        // From the kernel: what this process has is the same in all children of `fork`, and two
        // engines with one id, or one row of nonces, would be taken for each other.
        let mut random = StdRng::try_from_rng(&mut SysRng)
            .map_err(|error| Error::system("the kernel gives no random numbers", error))?;
        let engine = random.random::<u64>().max(1);
        let window_bytes = socket_window_bytes(&datagrams);
        datagrams.set_socket_window(window_bytes);
        let placement = self.placement(nic.numa_node);
        let rail_listeners = match has_several {
            true => driver::tcp::listeners_of_rails(&listener, &selection.rails),
            false => Vec::new(),
        };
        let publisher = self.0.exporter.as_ref().map(|exporter| Publisher::new(exporter.slot()));
        if settings.verbose() {
            transports::watch();
        }
        let state = placement.with_memory(|| {
            EngineState::new(EngineParts {
                engine,
                random,
                core: core_config(settings, longest, window_bytes),
                config: loop_config(settings),
                keys: Arc::clone(&self.0.keys),
                entries_max: settings.cq_entries(),
                arena: Arc::clone(&self.0.arena),
                listeners: Listeners::new(listener, rail_listeners),
                rails: LocalRails::new(locator, rails, selection.rails),
                datagrams,
                placement: Arc::clone(&placement),
                reports: Reports { publisher, is_verbose: settings.verbose() },
            })
        });
        Ok(Endpoint::new(self.clone(), Box::new(state)))
    }

    /// Where engines run whose first rail is a NIC on `node`.
    fn placement(&self, node: Option<u32>) -> Arc<Placement> {
        let mut known = self.0.placements.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, placement)) = known.iter().find(|(at, _)| *at == node) {
            return Arc::clone(placement);
        }
        let reserved = self.0.settings.reserved_cores();
        let placement = Arc::new(Placement::of_host(&self.0.cores, reserved, node));
        tracing::debug!("threads of engines may use {placement}");
        known.push((node, Arc::clone(&placement)));
        placement
    }

    /// Pins the calling thread to the next core of the setting `pin_cores`, unless there are none
    /// or this domain has pinned it before: a thread with several endpoints stays where it is.
    pub(crate) fn pin_thread(&self) -> Result<(), Error> {
        let cores = self.0.settings.pin_cores();
        if cores.is_empty() || PINNED_BY.get() == self.0.id {
            return Ok(());
        }
        let Some(core) = self.next_core() else { return Ok(()) };
        topology::pin_current_thread(core)
            .map_err(|error| Error::system("cannot pin this thread (setting pin_cores)", error))?;
        PINNED_BY.set(self.0.id);
        Ok(())
    }

    /// The next core of the setting `pin_cores`, if there are some.
    pub(crate) fn next_core(&self) -> Option<usize> {
        let cores = self.0.settings.pin_cores();
        if cores.is_empty() {
            return None;
        }
        let turn = self.0.pinned.fetch_add(1, Ordering::Relaxed);
        if turn == cores.len() {
            tracing::warn!(
                "all {turn} cores of the setting pin_cores were given to threads: they are given \
                 again from the first; name as many cores as threads attach endpoints"
            );
        }
        Some(cores[turn % cores.len()])
    }

    pub(crate) fn driver_config(&self) -> driver::DriverConfig {
        let settings = &self.0.settings;
        driver::DriverConfig {
            disabled_features: settings.uring_disable().to_vec(),
            peer_timeout: settings.peer_timeout(),
            tcp_congestion: settings.tcp_congestion(),
            ring_entries: settings.ring_entries() as u32,
            // One lane per session, the bulk lanes, and those that are not one or the other yet.
            max_lanes: clamp_u32(
                settings.sessions_max()
                    + settings.bulk_lanes_max()
                    + settings.handshake_pending_max(),
            ),
            xdp_frames: match settings.control_lane().wants_frames() {
                true => clamp_u32(settings.xdp_frames()),
                false => 0,
            },
            busy_poll_us: clamp_u32(settings.busy_poll_us()),
            xdpd_socket: settings.xdpd_socket().map(Into::into),
            shared_memory: settings.shared_memory(),
            shared_memory_directory: settings.shared_memory_directory().map(Into::into),
            shared_memory_other_users: settings.shared_memory_other_users(),
            shared_memory_ptrace_any: settings.shared_memory_ptrace_any(),
            inject_faults: settings.inject_faults(),
            pcap_file: settings.pcap_file().map(Into::into),
        }
    }

    pub(crate) fn domain_engines(&self) -> Arc<DomainEngines> {
        Arc::clone(&self.0.domain_engines)
    }

    pub(crate) fn arena(&self) -> &Arc<Arena> {
        &self.0.arena
    }
}

fn open_exporter(address: SocketAddr) -> Result<Exporter, Error> {
    let exporter = Exporter::open(address).map_err(|error| {
        let text = format!(
            "cannot serve statistics at {address} (setting prometheus_address; each process needs \
             a port of its own, and port 0 takes a free one)"
        );
        Error::system(text, error)
    })?;
    tracing::info!("statistics for Prometheus: http://{}/metrics", exporter.address());
    Ok(exporter)
}

/// A socket for datagrams, and its port.
fn bound(address: SocketAddr) -> io::Result<(UdpSocket, u16)> {
    let socket = driver::udp::bind(address)?;
    let port = socket.local_addr()?.port();
    Ok((socket, port))
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn clamp_u32(value: usize) -> u32 {
    // Windows stay far from the wrap of their 32-bit counters.
    u32::try_from(value).unwrap_or(u32::MAX).min(1 << 30)
}

/// Longest datagram that a NIC carries from `local`, as far as that is known.
fn longest_datagram(mtu: Option<u32>, local: IpAddr) -> usize {
    let headers = if local.is_ipv4() { 28 } else { 48 };
    match mtu {
        // The loopback carries more than anybody has cache for.
        Some(mtu) if !local.is_loopback() => {
            (mtu as usize).saturating_sub(headers).clamp(DATAGRAM_BYTES_MIN, DATAGRAM_BYTES_MAX)
        }
        _ => DATAGRAM_BYTES_USUAL,
    }
}

fn core_config(settings: &Settings, longest: usize, window_bytes: u64) -> CoreConfig {
    let retry = Retry {
        timeout_ns: nanoseconds(settings.connect_timeout()),
        retries: clamp_u32(settings.connect_retries()),
        delay_ns: nanoseconds(settings.connect_retry_delay()),
        silent_ns: nanoseconds(settings.silent_timeout()),
    };
    CoreConfig {
        hash_seed: rand::random(),
        sessions_max: settings.sessions_max(),
        operations_max: settings.operations_max(),
        waiting_max: settings.send_queue_ops(),
        retry,
        regions: RegionLimits::DEFAULT,
        credit: credit_limits(settings),
        eager: EagerPolicy::new(
            clamp_u32(settings.inject_limit_bytes()),
            settings.eager_limit_bytes().is_none(),
            settings.eager_lane() == EagerLane::Tcp,
        ),
        pull: PullLimits::new(
            clamp_u32(settings.rts_bytes()),
            ChunkLimits::new(
                clamp_u32(settings.chunk_bytes()),
                clamp_u32(settings.busy_chunk_bytes()),
                clamp_u32(settings.grant_horizon_chunks()),
            ),
            PieceLimits::new((PIECES_BYTES_MAX, FASTER_PIECES_BYTES_MAX), PIECE_BYTES_MAX),
            window_bytes,
        ),
        lanes: LaneLimits::new(
            clamp_u32(settings.bulk_lanes()),
            settings.bulk_lanes_max(),
            nanoseconds(settings.bulk_idle_timeout()),
            retry.timeout_ns,
            nanoseconds(settings.peer_timeout()),
        ),
        staging: StagingLimits::new(
            settings.staging_bytes(),
            settings.staging_buffers_max(),
            longest,
            match settings.shared_memory() {
                SharedMemory::Off => longest,
                // What a ring takes has nothing to do with the NIC. 8 KiB and their headers: more
                // is sooner read from the sender's memory.
                SharedMemory::Auto | SharedMemory::Rings => DATAGRAM_BYTES_MAX,
            },
        ),
    }
}

fn credit_limits(settings: &Settings) -> CreditLimits {
    let eager_limit = settings.eager_limit_bytes().map_or_else(
        || {
            // What is injected is eager, and what is eager needs credit and room.
            let least = clamp_u32(settings.inject_limit_bytes());
            let most = settings.eager_credit_bytes().min(settings.unexpected_bytes());
            CHOSEN_BYTES_MAX.min(clamp_u32(most)).max(least)
        },
        clamp_u32,
    );
    let most = Limits {
        session: 0,
        envelope_limit: clamp_u32(settings.envelope_credits()),
        byte_limit: clamp_u32(settings.eager_credit_bytes()),
        eager_limit,
        checksum: settings.checksum(),
        bulk_in_datagrams: settings.bulk_lane() == BulkLane::Datagram,
        answers: true,
        process_status: true,
    };
    let (messages, bytes) = (settings.unexpected_messages(), settings.unexpected_bytes());
    CreditLimits::new(most, messages as u64, bytes as u64)
}

/// Bytes of bulk data that may be on their way to an engine in datagrams, as far as its socket has
/// room for them, which charges itself with up to twice the bytes of its datagrams. Frames, once
/// they are up, have room of their own.
fn socket_window_bytes(datagrams: &EngineDatagrams) -> u64 {
    let buffers = datagrams.socket().ok().and_then(|socket| driver::udp::buffers(socket).ok());
    buffers.map_or(0, |(receive_bytes, _)| window_bytes(receive_bytes / 2))
}

/// The error of an endpoint that finds no rails.
fn no_rails(error: RailsError) -> Error {
    match error {
        RailsError::Settings(error) => Error::settings(error),
        RailsError::Unknown(error) => Error::system("cannot list the NICs of this host", error),
        RailsError::None { candidates } => {
            Error::system("no NIC can be used; name one in the setting nics", candidates)
        }
        error @ RailsError::LoopbackOnly { .. } => Error::system("no NIC can be used yet", error),
    }
}

fn loop_config(settings: &Settings) -> LoopConfig {
    LoopConfig {
        spin: settings.spin(),
        hot_lanes: settings.hot_lanes(),
        receive_buffer_bytes: settings.receive_buffer_bytes(),
        zero_copy: match settings.zero_copy() {
            ZeroCopy::Auto => Policy::Measure,
            ZeroCopy::On => Policy::Always(SendMode::ZeroCopy),
            ZeroCopy::Off => Policy::Always(SendMode::Copy),
        },
        peer_timeout: settings.peer_timeout(),
        silent_timeout: SilentTimeout {
            limit: settings.silent_timeout(),
            is_chosen: settings.is_chosen("silent_timeout"),
        },
        handshake_pending_max: settings.handshake_pending_max(),
        handshake_timeout: settings.connect_timeout(),
        linger: settings.close_linger(),
        report_lost_peers: settings.report_lost_peers(),
    }
}
