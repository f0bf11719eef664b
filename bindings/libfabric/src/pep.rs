//! Passive endpoints: they listen, and hand requests for connections to an event queue.

use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use ringrail::{
    Address, Endpoint, Event, EventQueue, ListenOptions, Listener, PRIVATE_DATA_MAX, RequestId,
    Shared,
};

use crate::abi::consts::{
    FI_BACKLOG, FI_CLASS_CONNREQ, FI_CLASS_PEP, FI_CONNREQ, FI_OPT_CM_DATA_SIZE, FI_OPT_ENDPOINT,
};
use crate::abi::fids::{fid, fid_fabric, fid_pep};
use crate::abi::info::fi_info;
use crate::abi::ops::{fi_ops, fi_ops_cm, fi_ops_ep};
use crate::address::{Format, copy_out};
use crate::eq::{Eq, Source};
use crate::errno::Errno;
use crate::fabric::Fabric;
use crate::fid::{Header, Object, border_unit, close, find, hand_out, share};
use crate::info::{self, Given};
use crate::params;

/// A passive endpoint.
#[repr(C)]
pub(crate) struct Pep {
    header: Header<fid_pep>,
    fabric: Arc<Fabric>,
    given: Mutex<Given>,
    eq: Mutex<Option<Arc<Eq>>>,
    backlog: Mutex<usize>,
    /// Once its name is asked for, or it listens.
    place: OnceLock<Arc<Place>>,
}

// SAFETY: it is `repr(C)`, and begins with its header.
unsafe impl Object for Pep {
    type Fid = fid_pep;
    const CLASS: usize = FI_CLASS_PEP;
}

/// Where it listens: an engine of its own.
pub(crate) struct Place {
    format: Format,
    endpoint: Endpoint<Shared>,
    events: EventQueue<Shared>,
    listener: OnceLock<Listener<Shared>>,
    /// The listener of the requests, and the event queue that they are reported to.
    reports_to: OnceLock<(Weak<Pep>, Arc<Eq>)>,
    turns: Mutex<Turns>,
}

/// Requests that wait for the confirmation of an earlier connection: an application that accepts
/// expects `FI_CONNECTED` before the next `FI_CONNREQ` of the same process. Requests come to the
/// listener's engine and confirmations to that of the accepted endpoint, so either may be first.
#[derive(Default)]
struct Turns {
    /// The engine that asked, of each connection that was accepted and is not confirmed.
    unconfirmed: Vec<SocketAddr>,
    /// Requests of these, the oldest first.
    held: Vec<Held>,
}

struct Held {
    id: RequestId,
    peer: Address,
    data: Arc<[u8]>,
}

impl Turns {
    fn has_unconfirmed(&self, engine: SocketAddr) -> bool {
        self.unconfirmed.contains(&engine)
    }
}

/// A connection that was accepted and is neither open nor over. It is dropped when the event queue
/// has the event of either, with no lock of the listener's or of the domain's connections held: the
/// next request is reported then.
pub(crate) struct Unconfirmed {
    place: Weak<Place>,
    engine: SocketAddr,
}

impl Drop for Unconfirmed {
    fn drop(&mut self) {
        let Some(place) = self.place.upgrade() else { return };
        let due: Vec<Held> = {
            let mut turns = locked(&place.turns);
            if let Some(at) = turns.unconfirmed.iter().position(|it| *it == self.engine) {
                turns.unconfirmed.swap_remove(at);
            }
            if turns.has_unconfirmed(self.engine) {
                return;
            }
            let is_due = |held: &mut Held| held.peer.locator() == self.engine;
            turns.held.extract_if(.., is_due).collect()
        };
        due.iter().for_each(|held| place.report(held));
    }
}

/// A request, as applications hand it on in `fi_info::handle`.
#[repr(C)]
pub(crate) struct Request {
    header: Header<fid>,
    place: Arc<Place>,
    id: RequestId,
    /// The engine that asks.
    engine: SocketAddr,
}

// SAFETY: it is `repr(C)`, and begins with its header.
unsafe impl Object for Request {
    type Fid = fid;
    const CLASS: usize = FI_CLASS_CONNREQ;
}

impl Request {
    pub(crate) fn listener(&self) -> &Listener<Shared> {
        self.place.listener.get().expect("a request comes to one that listens")
    }

    /// Returns the application's handle.
    pub(crate) const fn handle(&self) -> *mut fid {
        self.header.as_ptr()
    }

    pub(crate) const fn id(&self) -> RequestId {
        self.id
    }

    /// It is about to be accepted: the next request of the same engine waits until what is given
    /// is dropped.
    pub(crate) fn await_confirmation(&self) -> Unconfirmed {
        locked(&self.place.turns).unconfirmed.push(self.engine);
        Unconfirmed { place: Arc::downgrade(&self.place), engine: self.engine }
    }

    /// Has the queue that gets the requests take events from `source`, too: the next request may
    /// wait for the confirmation of this one.
    pub(crate) fn add_source(&self, source: &Arc<dyn Source>) -> Result<(), Errno> {
        self.place.reports_to.get().map_or(Ok(()), |(_, eq)| eq.add_source(source))
    }

    /// The request in an info's handle, if it has one. The application keeps its count: it may
    /// reject the request after it has opened an endpoint for it.
    ///
    /// # Safety
    ///
    /// `handle` is null, or of an object of this provider that was neither accepted nor rejected.
    pub(crate) unsafe fn of(handle: *mut fid) -> Option<Arc<Self>> {
        // SAFETY: the caller guarantees it.
        unsafe { share(handle) }
    }

    /// The request in an info's handle, taken from the application: it is answered.
    ///
    /// # Safety
    ///
    /// `handle` is null, or of an object of this provider that is not used any more.
    pub(crate) unsafe fn take(handle: *mut fid) -> Option<Arc<Self>> {
        // SAFETY: the caller guarantees it; the application's count is given up.
        unsafe {
            let request: Arc<Self> = share(handle)?;
            Arc::decrement_strong_count(Arc::as_ptr(&request));
            Some(request)
        }
    }
}

static REQUEST_OPS: fi_ops = fi_ops { close: close_request, ..fi_ops::ENOSYS };
static FID_OPS: fi_ops = fi_ops { close: close_pep, bind, control, ..fi_ops::ENOSYS };
static OPS: fi_ops_ep = fi_ops_ep { getopt, ..fi_ops_ep::ENOSYS };
static CM: fi_ops_cm = fi_ops_cm { getname, setname, listen, reject, ..fi_ops_cm::ENOSYS };

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pep {
    /// The engine, at the place that the info names.
    fn place(&self) -> Result<&Arc<Place>, Errno> {
        let given = locked(&self.given);
        if let Some(known) = self.place.get() {
            return Ok(known);
        }
        let domain = params::open_domain(&given)?;
        let opened = match params::listen_port(&given)? {
            Some(port) => domain.endpoint_at(port),
            None => domain.endpoint(),
        };
        let endpoint = opened.and_then(Endpoint::share).map_err(|error| {
            tracing::error!("a passive endpoint cannot be opened: {error}");
            Errno::of(&error)
        })?;
        let events = endpoint.event_queue();
        let format = given.format()?;
        let (listener, reports_to) = (OnceLock::new(), OnceLock::new());
        let turns = Mutex::default();
        let place = Arc::new(Place { format, endpoint, events, listener, reports_to, turns });
        Ok(self.place.get_or_init(|| place))
    }

    fn listen(self: &Arc<Self>) -> Result<(), Errno> {
        let eq = locked(&self.eq).clone().ok_or(Errno::NOEQ)?;
        let place = Arc::clone(self.place()?);
        let options = ListenOptions { backlog: *locked(&self.backlog), ..Default::default() };
        let listener = place.endpoint.listen(options)?;
        if place.reports_to.set((Arc::downgrade(self), Arc::clone(&eq))).is_err()
            || place.listener.set(listener).is_err()
        {
            return Err(Errno::OPBADSTATE);
        }
        let source: Arc<dyn Source> = place;
        eq.add_source(&source)
    }
}

impl Place {
    /// A request is an event with an info, by which an endpoint for it is opened.
    fn report(self: &Arc<Self>, Held { id, peer, data }: &Held) {
        let Some((pep, eq)) = self.reports_to.get() else { return };
        let Some(pep) = pep.upgrade() else { return };
        let null = std::ptr::null_mut();
        let fid = fid { fclass: FI_CLASS_CONNREQ, context: null, ops: &raw const REQUEST_OPS };
        let (place, engine) = (Arc::clone(self), peer.locator());
        let request = Request { header: Header::new(fid), place, id: *id, engine };
        let handle = hand_out(Arc::new(request));
        let source = (self.endpoint.address().locator().ip(), 0).into();
        let given = locked(&pep.given).clone();
        let version = pep.fabric.api_version;
        let made = info::of_request(
            &given,
            version,
            handle,
            self.format.encode_place(source),
            self.format.encode(peer),
        );
        match made {
            Ok(info) => eq.push_connection(FI_CONNREQ, pep.header.as_ptr().cast(), info, data),
            Err(errno) => {
                tracing::warn!(errno = errno.number(), "a request is lost: no info for it");
                // SAFETY: it was made above, and was not handed out.
                drop(unsafe { Request::take(handle) });
            }
        }
    }
}

/// A place knows itself by what holds it.
impl Source for Place {
    fn pump(&self) {
        let Some((pep, _)) = self.reports_to.get() else { return };
        let Some(pep) = pep.upgrade() else { return };
        let Some(own) = pep.place.get() else { return };
        loop {
            match self.events.read() {
                Ok(Some(Event::ConnectionRequest { request, peer, data, .. })) => {
                    let asked = Held { id: request, peer, data };
                    let mut turns = locked(&own.turns);
                    if turns.has_unconfirmed(asked.peer.locator()) {
                        turns.held.push(asked);
                    } else {
                        drop(turns);
                        own.report(&asked);
                    }
                }
                Ok(Some(Event::RequestWithdrawn { request, .. })) => {
                    locked(&own.turns).held.retain(|held| held.id != request);
                }
                Ok(Some(_)) => {}
                Ok(None) => return,
                Err(error) => {
                    tracing::error!("the engine of a passive endpoint has failed: {error}");
                    return;
                }
            }
        }
    }

    fn arm(&self) -> bool {
        self.events.arm().unwrap_or(false)
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.events.wait_fd().ok()
    }
}

/// `fi_passive_ep`.
pub(crate) unsafe extern "C" fn passive_ep(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    into: *mut *mut fid_pep,
    context: *mut c_void,
) -> c_int {
    border_unit(|| {
        // SAFETY: libfabric's caller passes a fabric that is open, an info that libfabric has
        // allocated, and where the endpoint goes.
        unsafe {
            let fabric: Arc<Fabric> = share(fabric.cast()).ok_or(Errno::INVAL)?;
            let given = Given::read(info, fabric.api_version).ok_or(Errno::INVAL)?;
            let fid = fid { fclass: FI_CLASS_PEP, context, ops: &raw const FID_OPS };
            let header = Header::new(fid_pep { fid, ops: &raw const OPS, cm: &raw const CM });
            *into = hand_out(Arc::new(Pep {
                header,
                fabric,
                given: Mutex::new(given),
                eq: Mutex::default(),
                backlog: Mutex::new(ListenOptions::default().backlog),
                place: OnceLock::new(),
            }));
        }
        Ok(())
    })
}

unsafe extern "C" fn close_pep(fid: *mut fid) -> c_int {
    // SAFETY: libfabric's caller closes an endpoint once.
    border_unit(|| unsafe { close::<Pep>(fid) })
}

unsafe extern "C" fn close_request(fid: *mut fid) -> c_int {
    // SAFETY: libfabric's caller closes a request once, if it neither accepts nor rejects it.
    border_unit(|| unsafe { close::<Request>(fid) })
}

unsafe extern "C" fn bind(pep: *mut fid, other: *mut fid, _flags: u64) -> c_int {
    border_unit(|| {
        // SAFETY: libfabric's caller passes objects that are open.
        unsafe {
            let pep = find::<Pep>(pep).ok_or(Errno::INVAL)?;
            let queue = share::<Eq>(other).ok_or(Errno::INVAL)?;
            queue.check_fabric(&pep.fabric)?;
            *locked(&pep.eq) = Some(queue);
        }
        Ok(())
    })
}

unsafe extern "C" fn control(pep: *mut fid, command: c_int, argument: *mut c_void) -> c_int {
    border_unit(|| {
        if command != FI_BACKLOG {
            return Err(Errno::NOSYS);
        }
        // SAFETY: libfabric's caller passes an endpoint that is open, and an integer.
        unsafe {
            let asked = *argument.cast::<c_int>().as_ref().ok_or(Errno::INVAL)?;
            let pep = find::<Pep>(pep).ok_or(Errno::INVAL)?;
            *locked(&pep.backlog) = usize::try_from(asked).map_err(|_| Errno::INVAL)?;
        }
        Ok(())
    })
}

unsafe extern "C" fn getopt(
    _: *mut fid,
    level: c_int,
    option: c_int,
    value: *mut c_void,
    length: *mut usize,
) -> c_int {
    border_unit(|| {
        if (level, option) != (FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE) {
            return Err(Errno::NOPROTOOPT);
        }
        // SAFETY: libfabric's caller passes a buffer of the given length.
        unsafe { copy_out(&PRIVATE_DATA_MAX.to_ne_bytes(), value, length) }
    })
}

unsafe extern "C" fn getname(pep: *mut fid, address: *mut c_void, length: *mut usize) -> c_int {
    border_unit(|| {
        // SAFETY: libfabric's caller passes an open endpoint, and a buffer of the given length.
        unsafe {
            let place = find::<Pep>(pep).ok_or(Errno::INVAL)?.place()?;
            copy_out(&place.format.encode(&place.endpoint.address()), address, length)
        }
    })
}

unsafe extern "C" fn setname(pep: *mut fid, address: *mut c_void, length: usize) -> c_int {
    border_unit(|| {
        if address.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: libfabric's caller passes an endpoint that is open, and an address.
        unsafe {
            let pep = find::<Pep>(pep).ok_or(Errno::INVAL)?;
            let bytes = std::slice::from_raw_parts(address.cast::<u8>(), length);
            let mut given = locked(&pep.given);
            if pep.place.get().is_some() {
                return Err(Errno::OPBADSTATE);
            }
            given.format()?.decode(bytes)?;
            given.src_addr = Some(bytes.to_vec());
        }
        Ok(())
    })
}

unsafe extern "C" fn listen(pep: *mut fid_pep) -> c_int {
    border_unit(|| {
        // SAFETY: libfabric's caller passes an endpoint that is open.
        unsafe { share::<Pep>(pep.cast()) }.ok_or(Errno::INVAL)?.listen()
    })
}

unsafe extern "C" fn reject(
    _: *mut fid_pep,
    handle: *mut fid,
    data: *const c_void,
    length: usize,
) -> c_int {
    border_unit(|| {
        // SAFETY: libfabric's caller passes the handle of a request, for the last time, and data of
        // that length.
        unsafe {
            let request = Request::take(handle).ok_or(Errno::INVAL)?;
            let data = match data.is_null() {
                true => &[],
                false => std::slice::from_raw_parts(data.cast(), length),
            };
            Ok(request.listener().reject(request.id, data)?)
        }
    })
}
