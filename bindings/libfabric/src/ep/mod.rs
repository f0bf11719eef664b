//! Endpoints.

mod atomic;
mod bind;
mod cm;
mod msg;
mod options;
mod peek;
mod post;
mod rma;
mod tagged;

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use ringrail::{ClaimedMessage, Endpoint, Hint, Peer, Shared};

pub(crate) use self::atomic::query_atomic;
use self::bind::Bound;
use crate::abi::consts::{
    FI_CLASS_EP, FI_DIRECTED_RECV, FI_EP_MSG, FI_EP_RDM, FI_EP_UNSPEC, FI_TC_BULK_DATA,
    FI_TC_DEDICATED_ACCESS, FI_TC_LOW_LATENCY, FI_TC_SCAVENGER,
};
use crate::abi::fids::{fid, fid_domain, fid_ep};
use crate::abi::info::fi_info;
use crate::abi::messages::fi_addr_t;
use crate::abi::ops::{fi_ops, fi_ops_collective};
use crate::address::{self, Format};
use crate::av::Av;
use crate::cntr::{Cntr, Count};
use crate::cq::{Cq, Sink};
use crate::domain::Domain;
use crate::errno::Errno;
use crate::fid::{Header, Object, border_unit, find, hand_out, share};
use crate::info::Given;
use crate::pep::Request;

/// Most pieces of memory that one operation is on.
pub(crate) const IOV_LIMIT: usize = 16;

/// How little free room ends a multi-receive, unless `FI_OPT_MIN_MULTI_RECV` sets it.
const MIN_MULTI_RECV: usize = 64;

/// An endpoint.
#[repr(C)]
pub(crate) struct Ep {
    header: Header<fid_ep>,
    format: Format,
    is_connected_kind: bool,
    caps: u64,
    hint: Option<Hint>,
    /// Flags of operations that say none themselves.
    transmit_flags: AtomicU64,
    receive_flags: AtomicU64,
    min_multi_recv: AtomicUsize,
    /// The peer of an endpoint that is connected; 0: none.
    connected: AtomicU64,
    connection: Mutex<cm::Connection>,
    /// Before it is enabled.
    bound: Mutex<Bound>,
    open: OnceLock<Open>,
    /// Messages that were claimed and not received, by their contexts.
    claims: Mutex<HashMap<usize, ClaimedMessage<Shared>>>,
    domain: Arc<Domain>,
}

/// The state of an enabled endpoint.
struct Open {
    /// `None`: it is being closed.
    endpoint: Option<Endpoint<Shared>>,
    av: Option<Arc<Av>>,
    transmit: Side,
    receive: Side,
    /// The counters of operations.
    counts: Counts,
    _counters: Vec<Arc<Cntr>>,
    _queues: Vec<Arc<Cq>>,
}

impl Open {
    /// The engine's endpoint.
    ///
    /// # Errors
    ///
    /// [`Errno::OPBADSTATE`]: it is being closed.
    #[inline]
    fn engine(&self) -> Result<&Endpoint<Shared>, Errno> {
        self.endpoint.as_ref().ok_or(Errno::OPBADSTATE)
    }
}

/// Where one direction ends.
struct Side {
    sink: Arc<Sink>,
    /// Successes have an entry only with `FI_COMPLETION`.
    is_selective: bool,
}

/// Counters of an endpoint's own operations.
#[derive(Default)]
struct Counts {
    send: Option<Arc<Count>>,
    recv: Option<Arc<Count>>,
    read: Option<Arc<Count>>,
    write: Option<Arc<Count>>,
}

// SAFETY: it is `repr(C)`, and begins with its header.
unsafe impl Object for Ep {
    type Fid = fid_ep;
    const CLASS: usize = FI_CLASS_EP;
}

static FID_OPS: fi_ops =
    fi_ops { close: bind::close_ep, bind: bind::bind, control: bind::control, ..fi_ops::ENOSYS };
static COLLECTIVE: fi_ops_collective = fi_ops_collective::ENOSYS;

impl Ep {
    /// # Safety
    ///
    /// `info` is one of libfabric's, or copied from one.
    unsafe fn open(
        domain: Arc<Domain>,
        info: &fi_info,
        context: *mut c_void,
    ) -> Result<Arc<Self>, Errno> {
        // SAFETY: the caller guarantees that each is null or of its type.
        let (ep, tx, rx) =
            unsafe { (info.ep_attr.as_ref(), info.tx_attr.as_ref(), info.rx_attr.as_ref()) };
        let is_connected_kind = match ep.map_or(FI_EP_UNSPEC, |ep| ep.r#type) {
            FI_EP_UNSPEC | FI_EP_RDM => false,
            FI_EP_MSG => true,
            _ => return Err(Errno::INVAL),
        };
        let hint = match tx.map_or(0, |tx| tx.tclass) {
            FI_TC_LOW_LATENCY | FI_TC_DEDICATED_ACCESS => Some(Hint::Latency),
            FI_TC_BULK_DATA | FI_TC_SCAVENGER => Some(Hint::Bulk),
            _ => None,
        };
        // SAFETY: the same; a handle is of a request that waits for its answer.
        let (destination, request) = unsafe {
            let given = Given::read(info, domain.fabric().api_version).ok_or(Errno::INVAL)?;
            let request = if is_connected_kind { Request::of(info.handle) } else { None };
            (given.destination()?, request)
        };
        let connection = cm::Connection::new(destination, request);
        let fid = fid { fclass: FI_CLASS_EP, context, ops: &FID_OPS };
        let header = Header::new(fid_ep {
            fid,
            ops: &options::OPS,
            cm: &cm::CM,
            msg: &msg::OPS,
            rma: &rma::OPS,
            tagged: &tagged::OPS,
            atomic: &atomic::OPS,
            collective: &COLLECTIVE,
        });
        Ok(Arc::new(Self {
            header,
            format: Format::of(info.addr_format, None)?,
            is_connected_kind,
            caps: info.caps,
            hint,
            transmit_flags: AtomicU64::new(tx.map_or(0, |tx| tx.op_flags)),
            receive_flags: AtomicU64::new(rx.map_or(0, |rx| rx.op_flags)),
            min_multi_recv: AtomicUsize::new(MIN_MULTI_RECV),
            connected: AtomicU64::new(0),
            connection: Mutex::new(connection),
            bound: Mutex::default(),
            open: OnceLock::new(),
            claims: Mutex::default(),
            domain,
        }))
    }

    #[inline]
    fn opened(&self) -> Result<&Open, Errno> {
        self.open.get().ok_or(Errno::OPBADSTATE)
    }

    /// The engine's endpoint, once this one is enabled.
    ///
    /// # Errors
    ///
    /// [`Errno::OPBADSTATE`] before.
    #[inline]
    pub(crate) fn engine(&self) -> Result<&Endpoint<Shared>, Errno> {
        self.opened()?.engine()
    }

    pub(crate) fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    /// It is connected with `peer` from now on: what it posts goes there.
    pub(crate) fn connect_to(&self, peer: Option<Peer>) {
        self.connected.store(peer.map_or(0, Peer::to_bits), Ordering::Release);
    }

    /// Where what is posted to `addr` goes.
    #[inline]
    fn peer(&self, open: &Open, addr: fi_addr_t) -> Result<Peer, Errno> {
        if self.is_connected_kind {
            return self.connected_peer();
        }
        let av = open.av.as_ref().ok_or(Errno::NOAV)?;
        av.peer(addr).ok_or(Errno::INVAL)
    }

    #[cold]
    fn connected_peer(&self) -> Result<Peer, Errno> {
        match self.connected.load(Ordering::Acquire) {
            0 => Err(Errno::NOTCONN),
            bits => Ok(Peer::from_bits(bits)),
        }
    }

    /// Returns the peer that a receive from `addr` takes messages from.
    #[inline]
    fn source(&self, open: &Open, addr: fi_addr_t) -> Result<Option<Peer>, Errno> {
        if self.is_connected_kind {
            // Receives are posted before the connection is there; only its peer knows its address.
            return Ok(None);
        }
        if addr == crate::abi::consts::FI_ADDR_UNSPEC || self.caps & FI_DIRECTED_RECV == 0 {
            return Ok(None);
        }
        self.peer(open, addr).map(Some)
    }
}

/// `fi_endpoint`.
pub(crate) unsafe extern "C" fn endpoint(
    domain: *mut fid_domain,
    info: *mut fi_info,
    ep: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    border_unit(|| {
        // SAFETY: libfabric's caller passes a domain, an info of its own and a place.
        unsafe {
            let domain = share::<Domain>(domain.cast()).ok_or(Errno::INVAL)?;
            let info = info.as_ref().ok_or(Errno::INVAL)?;
            *ep = hand_out(Ep::open(domain, info, context)?);
        }
        Ok(())
    })
}

/// `fi_endpoint2`.
pub(crate) unsafe extern "C" fn endpoint2(
    domain: *mut fid_domain,
    info: *mut fi_info,
    ep: *mut *mut fid_ep,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    match flags {
        // SAFETY: the same.
        0 => unsafe { endpoint(domain, info, ep, context) },
        _ => -Errno::BADFLAGS.number(),
    }
}

unsafe extern "C" fn getname(ep: *mut fid, addr: *mut c_void, addrlen: *mut usize) -> c_int {
    border_unit(|| {
        // SAFETY: libfabric's caller passes an open endpoint, and a buffer of the given length.
        unsafe {
            let ep = find::<Ep>(ep).ok_or(Errno::INVAL)?;
            let name = ep.format.encode(&ep.engine()?.address());
            address::copy_out(&name, addr, addrlen)
        }
    })
}
