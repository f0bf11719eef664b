//! `fi_domain`: an engine that all threads share, and its endpoints.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use ringrail::{CompletionQueue, Endpoint, EndpointOptions, Shared, SharedMemoryState};

use crate::abi::consts::FI_CLASS_DOMAIN;
use crate::abi::fids::{fid, fid_domain};
use crate::abi::ops::{fi_ops, fi_ops_domain};
use crate::address::Format;
use crate::av::{self, Peers};
use crate::cntr::RemoteCounts;
use crate::connections::Connections;
use crate::errno::Errno;
use crate::fabric::Fabric;
use crate::fid::{Header, Object, border_unit, close, share};
use crate::info::Given;
use crate::{cntr, cq, ep, eq, mr, params};

/// A domain.
#[repr(C)]
pub(crate) struct Domain {
    header: Header<fid_domain>,
    /// The endpoint with the number 0, which peers know by its port alone: of the first
    /// `fi_endpoint`.
    first: Mutex<Option<Endpoint<Shared>>>,
    /// An endpoint that is never addressed, for calls to the engine.
    engine: Endpoint<Shared>,
    /// Which endpoints use which peer.
    pub(crate) peers: Peers,
    /// Counts of what peers do to memory.
    pub(crate) remote: RemoteCounts,
    eq: Mutex<Option<Arc<eq::Eq>>>,
    fabric: Arc<Fabric>,
    /// How the addresses of its peers are written.
    format: Format,
    /// Of endpoints that are connected.
    connections: OnceLock<Arc<Connections>>,
    _open: OpenCount,
}

/// Domains of this process that are open, each of which is an engine.
static DOMAINS: AtomicUsize = AtomicUsize::new(0);

/// Counts an open domain in [`DOMAINS`].
struct OpenCount;

impl OpenCount {
    fn new() -> Self {
        DOMAINS.fetch_add(1, Ordering::Relaxed);
        Self
    }
}

impl Drop for OpenCount {
    fn drop(&mut self) {
        DOMAINS.fetch_sub(1, Ordering::Relaxed);
    }
}

// SAFETY: it is `repr(C)`, and begins with its header.
unsafe impl Object for Domain {
    type Fid = fid_domain;
    const CLASS: usize = FI_CLASS_DOMAIN;
}

static FID_OPS: fi_ops = fi_ops { close: close_domain, bind, ..fi_ops::ENOSYS };
static OPS: fi_ops_domain = fi_ops_domain {
    av_open: av::av_open,
    cq_open: cq::cq_open,
    endpoint: ep::endpoint,
    endpoint2: ep::endpoint2,
    cntr_open: cntr::cntr_open,
    query_atomic: ep::query_atomic,
    ..fi_ops_domain::ENOSYS
};

/// Opens the engine of a domain, at the port that `info` names, if it does.
pub(crate) fn open(
    fabric: Arc<Fabric>,
    given: &Given,
    context: *mut c_void,
) -> Result<Arc<Domain>, Errno> {
    let format = given.format()?;
    let of_engine = params::open_domain(given)?;
    let opened = match params::listen_port(given)? {
        Some(port) => of_engine.endpoint_at(port),
        None => of_engine.endpoint(),
    };
    let opened = opened.and_then(Endpoint::share).and_then(|first| {
        let engine = first.open_endpoint(EndpointOptions::default())?;
        Ok((first, engine))
    });
    let (first, engine) = opened.map_err(|error| {
        tracing::error!("a domain cannot be opened: {error}");
        Errno::of(&error)
    })?;
    // A consumer tries again what a call refuses, and takes an error entry for the end.
    engine.disable_deferred_posts();
    tracing::debug!(address = %first.address(), "a domain is open");
    let fid = fid { fclass: FI_CLASS_DOMAIN, context, ops: &FID_OPS };
    let header = Header::new(fid_domain { fid, ops: &OPS, mr: &mr::OPS });
    Ok(Arc::new(Domain {
        header,
        first: Mutex::new(Some(first)),
        engine,
        peers: Peers::default(),
        remote: RemoteCounts::default(),
        eq: Mutex::default(),
        fabric,
        format,
        connections: OnceLock::new(),
        _open: OpenCount::new(),
    }))
}

impl Domain {
    /// Whether an object of `other` may be bound to one of this domain.
    ///
    /// # Errors
    ///
    /// [`Errno::INVAL`], with a line in the log: each domain is an engine, whose peers and
    /// completions have names of their own.
    pub(crate) fn check_own(&self, other: &Self, what: &str) -> Result<(), Errno> {
        if std::ptr::eq(self, other) {
            return Ok(());
        }
        tracing::warn!(
            "the {what} belongs to another domain: open it from the domain of what it is bound to"
        );
        Err(Errno::INVAL)
    }

    /// An endpoint of the engine, for calls that are not about endpoints.
    pub(crate) const fn engine(&self) -> &Endpoint<Shared> {
        &self.engine
    }

    /// How the addresses of its peers are written.
    pub(crate) const fn format(&self) -> Format {
        self.format
    }

    /// Of endpoints that are connected.
    pub(crate) fn connections(&self) -> &Arc<Connections> {
        let of_engine = || Arc::new(Connections::new(self.engine.event_queue()));
        self.connections.get_or_init(of_engine)
    }

    /// Engines of this host that this process knows of: its own, and those that share memory with
    /// this one.
    pub(crate) fn engines_on_host(&self) -> usize {
        let local_peers = match self.engine.shared_memory() {
            SharedMemoryState::On { figures, .. } => figures.local_peers,
            _ => 0,
        };
        DOMAINS.load(Ordering::Relaxed) + local_peers
    }

    pub(crate) fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// Opens a queue of the engine, as long as the setting `cq_entries`: it never overruns, for a
    /// post that has no room is refused.
    pub(crate) fn open_queue(&self) -> CompletionQueue<Shared> {
        self.engine.open_completion_queue(self.engine.domain().settings().cq_entries())
    }

    fn first(&self) -> MutexGuard<'_, Option<Endpoint<Shared>>> {
        self.first.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An endpoint whose operations end in these queues.
    ///
    /// # Errors
    ///
    /// [`Errno::NOSPC`] when there are too many, or `format` can say the first alone.
    pub(crate) fn open_endpoint(
        &self,
        format: Format,
        transmit: &CompletionQueue<Shared>,
        receive: &CompletionQueue<Shared>,
    ) -> Result<Endpoint<Shared>, Errno> {
        if let Some(mut first) = self.first().take() {
            first.bind_queues(transmit, receive)?;
            return Ok(first);
        }
        if !matches!(format, Format::Opaque) {
            tracing::warn!(
                "a socket address reaches the first endpoint of a domain alone: use \
                 the default address format, or one domain for each endpoint"
            );
            return Err(Errno::NOSPC);
        }
        let options = EndpointOptions {
            transmit_queue: Some(transmit),
            receive_queue: Some(receive),
            ..EndpointOptions::default()
        };
        Ok(self.engine.open_endpoint(options)?)
    }
}

unsafe extern "C" fn close_domain(fid: *mut fid) -> c_int {
    // SAFETY: libfabric's caller closes a domain once.
    border_unit(|| unsafe { close::<Domain>(fid) })
}

unsafe extern "C" fn bind(fid: *mut fid, other: *mut fid, _flags: u64) -> c_int {
    border_unit(|| {
        // SAFETY: libfabric's caller passes objects that are open.
        unsafe {
            let domain = crate::fid::find::<Domain>(fid).ok_or(Errno::INVAL)?;
            let queue = share::<eq::Eq>(other).ok_or(Errno::INVAL)?;
            queue.check_fabric(&domain.fabric)?;
            *domain.eq.lock().unwrap_or_else(PoisonError::into_inner) = Some(queue);
        }
        Ok(())
    })
}
