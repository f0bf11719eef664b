//! Endpoints.

use std::ffi::{c_char, c_int};
use std::num::NonZeroU16;
use std::ptr;

use ringrail::EndpointOptions;

use crate::address::rr_address;
use crate::check::{self, Sized32};
use crate::codes::{RR_DEDICATED, RR_FAIL_WITHOUT_PEERS, RR_OWNED, RR_SHARED};
use crate::fault::{Fault, guard, guard_unit};
use crate::handles;
use crate::inside::{AnyEndpoint, Of, each, rr_cq, rr_domain, rr_endpoint, rr_eq};
use crate::options::hint;

/// How an endpoint is opened. A null pointer to it means RR_ENDPOINT_OPTIONS_INIT.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct rr_endpoint_options {
    /// sizeof(rr_endpoint_options).
    pub size: u32,
    /// RR_SHARED, RR_DEDICATED, RR_OWNED.
    pub mode: u32,
    /// A TCP port that peers know beforehand (rr_address_from_text); 0: one of the setting
    /// port_range.
    pub port: u32,
    /// 0.
    pub _reserved: u32,
}

/// How an endpoint is opened beside another one. A null pointer to it means
/// RR_BESIDE_OPTIONS_INIT.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct rr_beside_options {
    /// sizeof(rr_beside_options).
    pub size: u32,
    /// RR_FAIL_WITHOUT_PEERS.
    pub flags: u32,
    /// Where the ends of its sends go; null: to a queue of its own.
    pub transmit_queue: *mut rr_cq,
    /// Where the ends of its receives go; null: to where those of its sends go.
    pub receive_queue: *mut rr_cq,
    /// Where it reports events; null: to the queue of its engine.
    pub event_queue: *mut rr_eq,
}

impl Sized32 for rr_endpoint_options {
    const WHAT: &'static str = "options of an endpoint";
    const UNSAID: Self =
        Self { size: size_of::<Self>() as u32, mode: RR_SHARED, port: 0, _reserved: 0 };
}

impl Sized32 for rr_beside_options {
    const WHAT: &'static str = "options of an endpoint beside another";
    const UNSAID: Self = Self {
        size: size_of::<Self>() as u32,
        flags: 0,
        transmit_queue: ptr::null_mut(),
        receive_queue: ptr::null_mut(),
        event_queue: ptr::null_mut(),
    };
}

pub(crate) fn other_engine() -> Fault {
    Fault::invalid("the objects belong to different engines: use those of one endpoint")
}

/// Opens an endpoint on an engine of its own. It listens from now on, and its address can be given
/// to peers. By default every thread of the process may use it (RR_SHARED).
///
/// An endpoint of RR_OWNED, and all objects that are made from it, belong to the calling thread:
/// it makes all progress, goes by io_uring where the kernel allows it, and takes no lock. Other
/// threads get RR_ETHREAD. It is to be closed before its thread ends, or it stays open.
///
/// # Errors
///
/// RR_EHANDLE. RR_EINVAL: null, an unknown mode, a port beyond 65535; the setting lanes = uring
/// with a mode that is not RR_OWNED. RR_ESYSTEM: no NIC that can be used, a port that is taken, no
/// descriptors.
///
/// # Safety
///
/// `options` is null or can be read; `endpoint` can be written, and on failure is null.
///
/// # Threads
///
/// Any, at the same time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_endpoint_open(
    domain: *mut rr_domain,
    options: *const rr_endpoint_options,
    endpoint: *mut *mut rr_endpoint,
) -> c_int {
    guard_unit(|| {
        // SAFETY: the caller guarantees it.
        unsafe { check::put(endpoint, ptr::null_mut(), "endpoint") }?;
        // SAFETY: the caller does not close it meanwhile.
        let domain = &unsafe { handles::get::<rr_domain>(domain) }?.0;
        // SAFETY: the caller guarantees it.
        let options = unsafe { check::options(options) }?;
        if options._reserved != 0 {
            return Err(Fault::invalid("_reserved of the options of an endpoint is not 0"));
        }
        if !matches!(options.mode, RR_SHARED | RR_DEDICATED | RR_OWNED) {
            return Err(check::unknown("mode", options.mode));
        }
        let port = u16::try_from(options.port)
            .map_err(|_| Fault::invalid(format!("port {} is beyond 65535", options.port)))?;
        let detached = match NonZeroU16::new(port) {
            Some(port) => domain.endpoint_at(port)?,
            None => domain.endpoint()?,
        };
        let opened: AnyEndpoint = match options.mode {
            RR_OWNED => Of::Owned(detached.attach()?),
            RR_DEDICATED => Of::Shared(detached.dedicate()?),
            _ => Of::Shared(detached.share()?),
        };
        let opened = handles::open(opened.owner(), rr_endpoint(opened))?;
        // SAFETY: it was written above.
        unsafe { endpoint.write(opened) };
        Ok(())
    })
}

/// Opens an endpoint beside another one: on the same engine, with an address, and if wanted queues,
/// of its own. It is of the same mode.
///
/// # Errors
///
/// RR_EHANDLE. RR_EINVAL: null, unknown flags, a queue of another engine. RR_ELIMIT: an engine has
/// 1024 endpoints. RR_ETHREAD.
///
/// # Safety
///
/// `options` is null or can be read; `opened` can be written, and on failure is null.
///
/// # Threads
///
/// Any, at the same time; of RR_OWNED its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_endpoint_open_beside(
    endpoint: *mut rr_endpoint,
    options: *const rr_beside_options,
    opened: *mut *mut rr_endpoint,
) -> c_int {
    guard_unit(|| {
        // SAFETY: the caller guarantees it.
        unsafe { check::put(opened, ptr::null_mut(), "opened") }?;
        // SAFETY: the caller does not close it meanwhile.
        let endpoint = &unsafe { handles::get::<rr_endpoint>(endpoint) }?.0;
        // SAFETY: the caller guarantees it.
        let given = unsafe { check::options(options) }?;
        check::flags(given.flags, RR_FAIL_WITHOUT_PEERS, rr_beside_options::WHAT)?;
        let queue = |handle: *mut rr_cq| {
            // SAFETY: the caller does not close it meanwhile.
            (!handle.is_null()).then(|| unsafe { handles::get::<rr_cq>(handle) }).transpose()
        };
        let (transmit, receive) = (queue(given.transmit_queue)?, queue(given.receive_queue)?);
        let events = (!given.event_queue.is_null())
            // SAFETY: the caller does not close it meanwhile.
            .then(|| unsafe { handles::get::<rr_eq>(given.event_queue) })
            .transpose()?;
        let fails = given.flags & RR_FAIL_WITHOUT_PEERS != 0;
        macro_rules! beside {
            ($kind:ident, $endpoint:expr) => {{
                let mut options = EndpointOptions::default();
                for (given, wanted) in
                    [(transmit, &mut options.transmit_queue), (receive, &mut options.receive_queue)]
                {
                    *wanted = match given.map(|queue| &queue.0) {
                        None => None,
                        Some(Of::$kind(queue)) => Some(queue),
                        Some(_) => return Err(other_engine()),
                    };
                }
                options.event_queue = match events.map(|queue| &queue.0) {
                    None => None,
                    Some(Of::$kind(queue)) => Some(queue),
                    Some(_) => return Err(other_engine()),
                };
                options.fail_without_peers = fails;
                Of::$kind($endpoint.open_endpoint(options)?)
            }};
        }
        let beside: AnyEndpoint = match endpoint {
            Of::Shared(endpoint) => beside!(Shared, endpoint),
            Of::Owned(endpoint) => beside!(Owned, endpoint),
        };
        let handle = handles::open(beside.owner(), rr_endpoint(beside))?;
        // SAFETY: it was written above.
        unsafe { opened.write(handle) };
        Ok(())
    })
}

/// Closes an endpoint. Its receives end at once, its sends go out, up to the setting close_linger;
/// what does not end by itself ends with RR_ECANCELLED, in the queues that have other users. With
/// the last endpoint, queue, region and claimed message its engine closes, and notifies
/// its peers.
///
/// # Completion
///
/// On return the memory of operations of this endpoint is not accessed any more.
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
pub unsafe extern "C" fn rr_endpoint_close(endpoint: *mut rr_endpoint) -> c_int {
    // SAFETY: the caller guarantees it.
    guard_unit(|| unsafe { handles::close::<rr_endpoint>(endpoint) }.map(drop))
}

/// Gives the address of an endpoint, for peers to insert.
///
/// # Errors
///
/// RR_EHANDLE. RR_EINVAL: null. RR_ETHREAD.
///
/// # Safety
///
/// `address` can be written.
///
/// # Threads
///
/// Any, at the same time; of RR_OWNED its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_endpoint_address(
    endpoint: *mut rr_endpoint,
    address: *mut rr_address,
) -> c_int {
    guard_unit(|| {
        // SAFETY: the caller does not close it meanwhile.
        let endpoint = unsafe { handles::get::<rr_endpoint>(endpoint) }?;
        check::place(address, 1, "address")?;
        let own = each!(&endpoint.0, it => it.address());
        // SAFETY: the caller guarantees it.
        unsafe { check::put(address, rr_address::new(&own), "address") }
    })
}

/// Which driver moves the messages of an endpoint: "uring" or "sockets". Null on failure. The text
/// lives as long as the process.
///
/// # Errors
///
/// RR_EHANDLE, RR_ETHREAD: see rr_last_error.
///
/// # Safety
///
/// The endpoint is not closed during the call.
///
/// # Threads
///
/// Any, at the same time; of RR_OWNED its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_endpoint_driver(endpoint: *mut rr_endpoint) -> *const c_char {
    let mut name = ptr::null();
    guard_unit(|| {
        // SAFETY: the caller does not close it meanwhile.
        let endpoint = unsafe { handles::get::<rr_endpoint>(endpoint) }?;
        name = match each!(&endpoint.0, it => it.driver()) {
            "uring" => c"uring".as_ptr(),
            _ => c"sockets".as_ptr(),
        };
        Ok(())
    });
    name
}

/// Makes progress without waiting: 1 if something happened, 0 if not. Every call that reads or
/// waits does so, too. An endpoint of RR_DEDICATED needs none.
///
/// # Errors
///
/// RR_EHANDLE, RR_ETHREAD. RR_ESYSTEM: the driver failed for good.
///
/// # Safety
///
/// The endpoint is not closed during the call.
///
/// # Threads
///
/// Any, at the same time; of RR_OWNED its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_progress(endpoint: *mut rr_endpoint) -> c_int {
    guard(|| {
        // SAFETY: the caller does not close it meanwhile.
        let endpoint = unsafe { handles::get::<rr_endpoint>(endpoint) }?;
        Ok(c_int::from(each!(&endpoint.0, it => it.progress()?)))
    })
}

/// The hint of messages of an endpoint that say none themselves. It changes when a message goes,
/// never the order of matching.
///
/// # Errors
///
/// RR_EHANDLE, RR_ETHREAD. RR_EINVAL: no such hint, or RR_HINT_UNSAID.
///
/// # Safety
///
/// The endpoint is not closed during the call.
///
/// # Threads
///
/// Any, at the same time; of RR_OWNED its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_set_hint(endpoint: *mut rr_endpoint, hint_of_all: u32) -> c_int {
    guard_unit(|| {
        // SAFETY: the caller does not close it meanwhile.
        let endpoint = unsafe { handles::get::<rr_endpoint>(endpoint) }?;
        let Some(hint) = hint(hint_of_all)? else {
            return Err(Fault::invalid("an endpoint has a hint: RR_HINT_NONE is the usual one"));
        };
        each!(&endpoint.0, it => it.set_hint(hint));
        Ok(())
    })
}

/// The same for tagged messages in one context; RR_HINT_UNSAID: those have the endpoint's again.
///
/// # Errors
///
/// RR_EHANDLE, RR_ETHREAD. RR_EINVAL: no such hint.
///
/// # Safety
///
/// The endpoint is not closed during the call.
///
/// # Threads
///
/// Any, at the same time; of RR_OWNED its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_set_context_hint(
    endpoint: *mut rr_endpoint,
    context: u32,
    hint_of_context: u32,
) -> c_int {
    guard_unit(|| {
        // SAFETY: the caller does not close it meanwhile.
        let endpoint = unsafe { handles::get::<rr_endpoint>(endpoint) }?;
        let hint = hint(hint_of_context)?;
        each!(&endpoint.0, it => it.set_context_hint(context, hint));
        Ok(())
    })
}
