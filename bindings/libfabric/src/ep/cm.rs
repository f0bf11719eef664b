//! Connected endpoints (`FI_EP_MSG`): connect, accept, shut down.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use ringrail::{ConnectionId, Peer};

use super::Ep;
use crate::abi::fids::{fid, fid_ep};
use crate::abi::ops::fi_ops_cm;
use crate::address::{Location, copy_out};
use crate::connections::Connected;
use crate::eq::{Eq, Source};
use crate::errno::Errno;
use crate::fid::{border_unit, find, share};
use crate::pep::{Request, Unconfirmed};

/// How long a request waits for its answer.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) static CM: fi_ops_cm =
    fi_ops_cm { getname: super::getname, getpeer, connect, accept, shutdown, ..fi_ops_cm::ENOSYS };

/// The connection of an endpoint.
pub(super) struct Connection {
    /// The destination in the info that it was opened with.
    destination: Option<Location>,
    /// The request that it was opened for.
    request: Option<Arc<Request>>,
    id: Option<ConnectionId>,
}

impl Connection {
    pub(super) const fn new(destination: Option<Location>, request: Option<Arc<Request>>) -> Self {
        Self { destination, request, id: None }
    }
}

impl Connected for Ep {
    fn fid(&self) -> *mut fid {
        self.header.as_ptr().cast()
    }

    fn opened(&self, peer: Peer) {
        self.connect_to(Some(peer));
    }

    fn events(&self) -> Option<Arc<Eq>> {
        self.event_queue()
    }
}

/// # Safety
///
/// It is null or has `length` bytes.
unsafe fn private_data<'a>(data: *const c_void, length: usize) -> &'a [u8] {
    if data.is_null() {
        return &[];
    }
    // SAFETY: the caller guarantees it.
    unsafe { std::slice::from_raw_parts(data.cast(), length) }
}

impl Ep {
    /// Forgets the connection of a closed endpoint: its events are discarded.
    pub(super) fn forget_connection(&mut self) {
        let connection = self.connection.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(id) = connection.id {
            self.domain.connections().forget(id);
        }
    }

    fn connection(&self) -> &Mutex<Connection> {
        &self.connection
    }

    /// Begins a connection by `call`, whose events go to the bound queue.
    fn begin(
        self: &Arc<Self>,
        unconfirmed: Option<Unconfirmed>,
        call: impl FnOnce() -> Result<ConnectionId, ringrail::Error>,
    ) -> Result<(), Errno> {
        let eq = self.event_queue().ok_or(Errno::NOEQ)?;
        let connections = self.domain.connections();
        let source: Arc<dyn Source> = Arc::clone(connections) as Arc<dyn Source>;
        eq.add_source(&source)?;
        let weak = Arc::downgrade(self);
        let endpoint: Weak<dyn Connected> = weak;
        let id = connections.begin(endpoint, unconfirmed, call)?;
        self.connection().lock().unwrap_or_else(PoisonError::into_inner).id = Some(id);
        Ok(())
    }
}

unsafe extern "C" fn connect(
    ep: *mut fid_ep,
    address: *const c_void,
    data: *const c_void,
    length: usize,
) -> c_int {
    border_unit(|| {
        // SAFETY: libfabric's caller passes an endpoint that is open, an address of its format or
        // none, and data of that length.
        let (ep, data) = unsafe {
            let ep: Arc<Ep> = share(ep.cast()).ok_or(Errno::INVAL)?;
            (ep, private_data(data, length))
        };
        let location = if address.is_null() {
            let connection = ep.connection().lock().unwrap_or_else(PoisonError::into_inner);
            connection.destination.ok_or(Errno::INVAL)?
        } else {
            // SAFETY: as above.
            let bytes =
                unsafe { std::slice::from_raw_parts(address.cast::<u8>(), ep.format.len()) };
            ep.format.decode(bytes)?
        };
        ep.enable()?;
        let address = location.peer_address()?;
        ep.begin(None, || match ep.engine() {
            Ok(engine) => engine.request(&address, data, PATIENCE),
            Err(_) => Err(ringrail::Error::Cancelled),
        })
    })
}

unsafe extern "C" fn accept(ep: *mut fid_ep, data: *const c_void, length: usize) -> c_int {
    border_unit(|| {
        // SAFETY: as for `connect`.
        let (ep, data) = unsafe {
            let ep: Arc<Ep> = share(ep.cast()).ok_or(Errno::INVAL)?;
            (ep, private_data(data, length))
        };
        let request = {
            let mut connection = ep.connection().lock().unwrap_or_else(PoisonError::into_inner);
            connection.request.take().ok_or(Errno::INVAL)?
        };
        ep.enable()?;
        let connections = Arc::clone(ep.domain.connections());
        request.add_source(&(connections as Arc<dyn Source>))?;
        ep.begin(Some(request.await_confirmation()), || match ep.engine() {
            Ok(engine) => engine.accept(request.listener(), request.id(), data),
            Err(_) => Err(ringrail::Error::Cancelled),
        })?;
        // SAFETY: it is the handle that the endpoint was opened with, and it is answered: one that
        // could not be accepted is rejected by the application.
        drop(unsafe { Request::take(request.handle()) });
        Ok(())
    })
}

unsafe extern "C" fn shutdown(ep: *mut fid_ep, _flags: u64) -> c_int {
    border_unit(|| {
        // SAFETY: libfabric's caller passes an endpoint that is open.
        let ep = unsafe { find::<Ep>(ep.cast()) }.ok_or(Errno::INVAL)?;
        let id = ep.connection().lock().unwrap_or_else(PoisonError::into_inner).id.take();
        let id = id.ok_or(Errno::NOTCONN)?;
        if let Err(error) = ep.engine()?.shut_down(id) {
            // The other side was faster.
            tracing::debug!("a connection is over already: {error}");
        }
        ep.domain.connections().shut_down(id);
        Ok(())
    })
}

unsafe extern "C" fn getpeer(ep: *mut fid_ep, address: *mut c_void, length: *mut usize) -> c_int {
    border_unit(|| {
        // SAFETY: libfabric's caller passes an open endpoint, and a buffer of the given length.
        unsafe {
            let ep = find::<Ep>(ep.cast()).ok_or(Errno::INVAL)?;
            let known = ep.engine()?.peer_address(ep.connected_peer()?);
            copy_out(&ep.format.encode(&known.ok_or(Errno::NOTCONN)?), address, length)
        }
    })
}
