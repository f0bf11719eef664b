//! Connections of a domain's endpoints (`FI_EP_MSG`): from events of its engine to those of event
//! queues.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use ringrail::{ConnectionEnd, ConnectionId, ConnectionRefusal, Event, EventQueue, Peer, Shared};

use crate::abi::consts::{FI_CONNECTED, FI_SHUTDOWN};
use crate::abi::fids::fid;
use crate::eq::{Eq, ErrorEntry, Source};
use crate::errno::Errno;
use crate::pep::Unconfirmed;

/// An endpoint, as its connection sees it.
pub(crate) trait Connected: Send + Sync {
    /// Its header.
    fn fid(&self) -> *mut fid;

    /// Makes `peer` the target of its sends.
    fn opened(&self, peer: Peer);

    /// The queue that it is bound to.
    fn events(&self) -> Option<Arc<Eq>>;
}

struct Known {
    endpoint: Weak<dyn Connected>,
    is_open: bool,
    /// Of one that was accepted, until it is open.
    unconfirmed: Option<Unconfirmed>,
}

/// The connections of a domain.
pub(crate) struct Connections {
    events: EventQueue<Shared>,
    known: Mutex<HashMap<ConnectionId, Known>>,
}

impl Connections {
    pub(crate) fn new(events: EventQueue<Shared>) -> Self {
        Self { events, known: Mutex::default() }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<ConnectionId, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests or accepts a connection by `call`: its events go to `endpoint`. `unconfirmed` is
    /// dropped after the first event of the connection.
    pub(crate) fn begin(
        &self,
        endpoint: Weak<dyn Connected>,
        unconfirmed: Option<Unconfirmed>,
        call: impl FnOnce() -> Result<ConnectionId, ringrail::Error>,
    ) -> Result<ConnectionId, Errno> {
        // Nothing is read meanwhile: the event may come before the call returns.
        let mut known = self.known();
        let connection = call().map_err(|error| {
            tracing::info!("no connection: {error}");
            Errno::of(&error)
        })?;
        known.insert(connection, Known { endpoint, is_open: false, unconfirmed });
        Ok(connection)
    }

    /// Forgets a connection whose endpoint is closed: its events are discarded.
    pub(crate) fn forget(&self, connection: ConnectionId) {
        let known = self.known().remove(&connection);
        // The lock is free by now.
        drop(known);
    }

    /// This side has shut it down, which is an event like the other side's.
    pub(crate) fn shut_down(&self, connection: ConnectionId) {
        self.end(connection, Errno::CANCELED, &[]);
    }

    fn deliver(&self, event: Event) {
        match event {
            Event::ConnectionOpened { connection, peer, data } => {
                let known = self.known().get_mut(&connection).map(|known| {
                    known.is_open = true;
                    (known.endpoint.upgrade(), known.unconfirmed.take())
                });
                let Some((Some(endpoint), _dropped_last)) = known else { return };
                endpoint.opened(peer);
                if let Some(eq) = endpoint.events() {
                    let (fid, no_info) = (endpoint.fid(), std::ptr::null_mut());
                    eq.push_connection(FI_CONNECTED, fid, no_info, &data);
                }
            }
            Event::ConnectionRefused { connection, refusal, data } => {
                let errno = match refusal {
                    ConnectionRefusal::TimedOut => Errno::TIMEDOUT,
                    _ => Errno::CONNREFUSED,
                };
                tracing::info!("a connection is refused: {refusal}");
                self.end(connection, errno, &data);
            }
            Event::ConnectionEnded { connection, end } => {
                let errno = match end {
                    ConnectionEnd::ShutDown => Errno::CONNREFUSED,
                    _ => Errno::TIMEDOUT,
                };
                tracing::info!("a connection is over: {end}");
                self.end(connection, errno, &[]);
            }
            _ => {}
        }
    }

    /// One that was open is shut down; one that was not has failed.
    fn end(&self, connection: ConnectionId, errno: Errno, data: &[u8]) {
        let Some(known) = self.known().remove(&connection) else { return };
        let Some(endpoint) = known.endpoint.upgrade() else { return };
        let Some(eq) = endpoint.events() else { return };
        if known.is_open {
            eq.push_connection(FI_SHUTDOWN, endpoint.fid(), std::ptr::null_mut(), &[]);
            return;
        }
        let fid = endpoint.fid();
        // SAFETY: the endpoint is there, and its context is set before it is handed out.
        let context = unsafe { (*fid).context };
        eq.push_error(ErrorEntry { fid, context, data: 0, errno, error_data: data.to_vec() });
    }
}

impl Source for Connections {
    fn pump(&self) {
        loop {
            match self.events.read() {
                Ok(Some(event)) => self.deliver(event),
                Ok(None) => return,
                Err(error) => {
                    tracing::error!("the engine of a domain has failed: {error}");
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
