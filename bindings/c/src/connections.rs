//! Connections of two endpoints by request and answer.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::time::Duration;

use ringrail::{ConnectionId, ListenOptions, RequestId};

use crate::address::rr_address;
use crate::check::{self, Sized32};
use crate::fault::guard_unit;
use crate::handles;
use crate::inside::{each, keep, rr_endpoint, rr_listener};

/// Longest private data of a request or an answer, in bytes.
pub const RR_PRIVATE_DATA_BYTES: usize = 512;

const _: () = assert!(RR_PRIVATE_DATA_BYTES == ringrail::PRIVATE_DATA_MAX);

/// A request that a listener has received (rr_event).
pub type rr_request = u64;

/// A connection of an endpoint, from when it was requested or accepted. Only endpoints of its
/// engine know it.
pub type rr_connection = u64;

/// How an endpoint listens. A null pointer to it means RR_LISTEN_OPTIONS_INIT.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct rr_listen_options {
    /// sizeof(rr_listen_options).
    pub size: u32,
    /// Requests that wait for an answer at the most; more are refused (RR_REASON_BUSY).
    pub backlog: u32,
    /// How long one waits at the most, in nanoseconds; then it is refused (RR_REASON_TIMED_OUT).
    pub patience_ns: u64,
}

impl Sized32 for rr_listen_options {
    const WHAT: &'static str = "options of a listener";
    const UNSAID: Self =
        Self { size: size_of::<Self>() as u32, backlog: 128, patience_ns: 60_000_000_000 };
}

/// Takes requests for connections with this endpoint from now on: events of the queue that it
/// reports to (RR_EVENT_REQUEST). The first endpoint of an engine is also found by IP address and
/// port alone (rr_address_from_text). A listener keeps the engine open, and its port, also when the
/// endpoint is closed.
///
/// # Errors
///
/// RR_EHANDLE, RR_ETHREAD. RR_EINVAL: null; options of another size; the endpoint has a listener
/// already.
///
/// # Safety
///
/// `options` is null or can be read; `listener` can be written, and on failure is null.
///
/// # Threads
///
/// Any, at the same time; of RR_OWNED its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_listen(
    endpoint: *mut rr_endpoint,
    options: *const rr_listen_options,
    listener: *mut *mut rr_listener,
) -> c_int {
    guard_unit(|| {
        // SAFETY: the caller guarantees it.
        unsafe { check::put(listener, ptr::null_mut(), "listener") }?;
        // SAFETY: the caller does not close it meanwhile.
        let endpoint = unsafe { handles::get::<rr_endpoint>(endpoint) }?;
        // SAFETY: the caller guarantees it.
        let given = unsafe { check::options(options) }?;
        let options = ListenOptions {
            backlog: given.backlog as usize,
            answer_timeout: Duration::from_nanos(given.patience_ns),
        };
        let opened = keep!(&endpoint.0, it => it.listen(options)?);
        let handle = handles::open(opened.owner(), rr_listener(opened))?;
        // SAFETY: it was written above.
        unsafe { listener.write(handle) };
        Ok(())
    })
}

/// Closes a listener: requests are refused from then on, those that wait among them. Connections
/// stay.
///
/// # Errors
///
/// RR_EHANDLE: it was closed before. RR_ETHREAD.
///
/// # Safety
///
/// No other thread is in a call with it.
///
/// # Threads
///
/// Any; of RR_OWNED its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_listener_close(listener: *mut rr_listener) -> c_int {
    // SAFETY: the caller guarantees it.
    guard_unit(|| unsafe { handles::close::<rr_listener>(listener) }.map(drop))
}

/// Asks the listener of an endpoint for a connection with this one, with up to
/// RR_PRIVATE_DATA_BYTES of private data, and does not wait. How it ends is an event of the queue
/// of this endpoint: RR_EVENT_OPENED with the peer, RR_EVENT_REJECTED, or RR_EVENT_ENDED when
/// `timeout_ns` passes (RR_FOREVER: never) or the engine of the listener fails first.
///
/// # Errors
///
/// RR_EHANDLE, RR_ETHREAD. RR_EINVAL: null, no address, more data. RR_ELIMIT: 65536 connections,
/// the setting sessions_max. Why the peer could not be connected before: RR_EUNREACHABLE, ...
///
/// # Safety
///
/// `address` and `length` bytes at `data` can be read, `connection` written.
///
/// # Threads
///
/// Any, at the same time; of RR_OWNED its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_request_connection(
    endpoint: *mut rr_endpoint,
    address: *const rr_address,
    data: *const c_void,
    length: usize,
    timeout_ns: i64,
    connection: *mut rr_connection,
) -> c_int {
    guard_unit(|| {
        // SAFETY: the caller does not close it meanwhile.
        let endpoint = unsafe { handles::get::<rr_endpoint>(endpoint) }?;
        // SAFETY: the caller guarantees it.
        let address = unsafe { check::read(address, "address") }?.get()?;
        // SAFETY: the caller guarantees it.
        let data = unsafe { check::slice(data.cast::<u8>(), length, "data") }?;
        check::place(connection, 1, "connection")?;
        let timeout = check::timeout(timeout_ns).unwrap_or(Duration::MAX);
        let asked = each!(&endpoint.0, it => it.request(&address, data, timeout)?);
        // SAFETY: the caller guarantees it.
        unsafe { check::put(connection, asked.to_bits(), "connection") }
    })
}

/// Accepts a request of `listener` into `endpoint`, which may be of another engine, with private
/// data for the peer. The connection is established with the event RR_EVENT_OPENED of the queue of
/// `endpoint`, with the peer; if who asked does not confirm within 10 s, RR_EVENT_ENDED does.
///
/// # Errors
///
/// RR_EHANDLE, RR_ETHREAD. RR_EINVAL: null, more data than RR_PRIVATE_DATA_BYTES; no such request:
/// it was answered, or withdrawn (RR_EVENT_WITHDRAWN). RR_ELIMIT: 65536 connections, the setting
/// sessions_max. Who asked is gone: RR_ELOST, ... After RR_EHANDLE, RR_ETHREAD, and RR_EINVAL for
/// null or too much data, the request still waits; else it is spent.
///
/// # Safety
///
/// `length` bytes at `data` can be read, `connection` written.
///
/// # Threads
///
/// Any, at the same time; of RR_OWNED their own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_accept(
    endpoint: *mut rr_endpoint,
    listener: *mut rr_listener,
    request: rr_request,
    data: *const c_void,
    length: usize,
    connection: *mut rr_connection,
) -> c_int {
    guard_unit(|| {
        // SAFETY: the caller does not close it meanwhile.
        let endpoint = unsafe { handles::get::<rr_endpoint>(endpoint) }?;
        // SAFETY: the caller does not close it meanwhile.
        let listener = unsafe { handles::get::<rr_listener>(listener) }?;
        // SAFETY: the caller guarantees it.
        let data = unsafe { check::slice(data.cast::<u8>(), length, "data") }?;
        check::place(connection, 1, "connection")?;
        let request = RequestId::from_bits(request);
        let accepted = each!(&endpoint.0, endpoint => {
            each!(&listener.0, listener => endpoint.accept(listener, request, data)?)
        });
        // SAFETY: the caller guarantees it.
        unsafe { check::put(connection, accepted.to_bits(), "connection") }
    })
}

/// Rejects a request of `listener`, with private data for who asked.
///
/// # Errors
///
/// RR_EHANDLE, RR_ETHREAD. RR_EINVAL: null, more data than RR_PRIVATE_DATA_BYTES; no such request:
/// it was answered, or withdrawn.
///
/// # Safety
///
/// `length` bytes at `data` can be read.
///
/// # Threads
///
/// Any, at the same time; of RR_OWNED its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_reject(
    listener: *mut rr_listener,
    request: rr_request,
    data: *const c_void,
    length: usize,
) -> c_int {
    guard_unit(|| {
        // SAFETY: the caller does not close it meanwhile.
        let listener = unsafe { handles::get::<rr_listener>(listener) }?;
        // SAFETY: the caller guarantees it.
        let data = unsafe { check::slice(data.cast::<u8>(), length, "data") }?;
        each!(&listener.0, it => it.reject(RequestId::from_bits(request), data)?);
        Ok(())
    })
}

/// Ends a connection of this endpoint, or withdraws a request. The other side is notified
/// by RR_EVENT_ENDED; here there is no event. Sends that are outstanding go on, and the peer stays.
///
/// # Errors
///
/// RR_EHANDLE, RR_ETHREAD. RR_EINVAL: no such connection: it is over (see the events), or another
/// endpoint's.
///
/// # Safety
///
/// The endpoint is not closed during the call.
///
/// # Threads
///
/// Any, at the same time; of RR_OWNED its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_shut_down(
    endpoint: *mut rr_endpoint,
    connection: rr_connection,
) -> c_int {
    guard_unit(|| {
        // SAFETY: the caller does not close it meanwhile.
        let endpoint = unsafe { handles::get::<rr_endpoint>(endpoint) }?;
        each!(&endpoint.0, it => it.shut_down(ConnectionId::from_bits(connection))?);
        Ok(())
    })
}
