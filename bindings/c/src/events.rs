//! Event queues.

use std::ffi::{c_char, c_int};
use std::os::fd::AsRawFd;
use std::ptr;

use ringrail::{Address, ConnectionEnd, ConnectionRefusal, Event};

use crate::address::rr_address;
use crate::check;
use crate::codes::{
    RR_ANY_PEER, RR_EVENT_CONNECTED, RR_EVENT_DISCONNECTED, RR_EVENT_ENDED, RR_EVENT_OPENED,
    RR_EVENT_OTHER, RR_EVENT_PATH, RR_EVENT_REFUSED, RR_EVENT_REJECTED, RR_EVENT_REQUEST,
    RR_EVENT_WITHDRAWN, RR_REASON_BUSY, RR_REASON_MALFORMED, RR_REASON_NONE,
    RR_REASON_NOT_LISTENING, RR_REASON_OTHER, RR_REASON_PEER, RR_REASON_REJECTED,
    RR_REASON_SHUT_DOWN, RR_REASON_TIMED_OUT,
};
use crate::connections::RR_PRIVATE_DATA_BYTES;
use crate::fault::{Fault, guard, guard_unit};
use crate::handles;
use crate::inside::{AnyEvents, each, keep, rr_endpoint, rr_eq};
use crate::options::rr_peer;
use crate::text;

/// Bytes of the text of an event, the zero byte included.
pub const RR_EVENT_TEXT_BYTES: usize = 256;

/// An entry of an event queue.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct rr_event {
    /// RR_EVENT_CONNECTED, ...
    pub kind: u32,
    /// 1: `address` is that of the peer: of its engine, or for a request of its endpoint. 0: it is
    /// not of one peer.
    pub has_address: u32,
    /// Where the peer is.
    pub address: rr_address,
    /// Of RR_EVENT_REQUEST the endpoint that listens; else no address.
    pub listener: rr_address,
    /// The connection (rr_connection) or the request (rr_request) that it is about; else 0.
    pub name: u64,
    /// Of RR_EVENT_OPENED the other side; else RR_ANY_PEER.
    pub peer: rr_peer,
    /// RR_REASON_...
    pub reason: u32,
    /// Bytes of private data that came with it.
    pub data_length: u32,
    /// The private data.
    pub data: [u8; RR_PRIVATE_DATA_BYTES],
    /// What happened, for people; cut where it is too long.
    pub text: [c_char; RR_EVENT_TEXT_BYTES],
}

impl rr_event {
    fn new(kind: u32) -> Self {
        Self {
            kind,
            has_address: 0,
            address: rr_address { bytes: [0; _] },
            listener: rr_address { bytes: [0; _] },
            name: 0,
            peer: RR_ANY_PEER,
            reason: RR_REASON_NONE,
            data_length: 0,
            data: [0; _],
            text: [0; _],
        }
    }

    fn at(self, address: &Address) -> Self {
        Self { has_address: 1, address: rr_address::new(address), ..self }
    }

    fn with(mut self, data: &[u8]) -> Self {
        let length = data.len().min(RR_PRIVATE_DATA_BYTES);
        self.data[..length].copy_from_slice(&data[..length]);
        Self { data_length: length as u32, ..self }
    }
}

fn reason_of_end(end: &ConnectionEnd) -> u32 {
    match end {
        ConnectionEnd::ShutDown => RR_REASON_SHUT_DOWN,
        ConnectionEnd::TimedOut => RR_REASON_TIMED_OUT,
        ConnectionEnd::Peer(_) => RR_REASON_PEER,
        _ => RR_REASON_OTHER,
    }
}

fn reason_of_refusal(refusal: ConnectionRefusal) -> u32 {
    match refusal {
        ConnectionRefusal::Rejected => RR_REASON_REJECTED,
        ConnectionRefusal::NotListening => RR_REASON_NOT_LISTENING,
        ConnectionRefusal::Busy => RR_REASON_BUSY,
        ConnectionRefusal::TimedOut => RR_REASON_TIMED_OUT,
        ConnectionRefusal::Malformed => RR_REASON_MALFORMED,
        _ => RR_REASON_OTHER,
    }
}

fn c_event(event: &Event) -> Result<rr_event, Fault> {
    let new = rr_event::new;
    let (mut event_out, text_out) = match event {
        Event::Connected { address } => {
            (new(RR_EVENT_CONNECTED).at(address), format!("{address} is connected"))
        }
        Event::Disconnected { address, failure } => {
            (new(RR_EVENT_DISCONNECTED).at(address), format!("{address} {failure}"))
        }
        Event::Refused { remote, cause } => {
            (new(RR_EVENT_REFUSED), format!("a connection from {remote} was refused: {cause}"))
        }
        Event::PathChanged { address, rail, remote, state, cause } => {
            let text_out =
                format!("path from rail {rail} to {remote} of {address}: {state:?}, {cause:?}");
            (new(RR_EVENT_PATH).at(address), text_out)
        }
        Event::ConnectionRequest { request, listener, peer, data } => {
            let (name, listener) = (request.to_bits(), rr_address::new(listener));
            let event_out = new(RR_EVENT_REQUEST).at(peer).with(data);
            let event_out = rr_event { name, listener, ..event_out };
            (event_out, format!("{peer} requests a connection"))
        }
        Event::RequestWithdrawn { request, end } => {
            let (name, reason) = (request.to_bits(), reason_of_end(end));
            let event_out = rr_event { name, reason, ..new(RR_EVENT_WITHDRAWN) };
            (event_out, format!("a request can no longer be answered: {end}"))
        }
        Event::ConnectionOpened { connection, peer, data } => {
            let (name, peer) = (connection.to_bits(), peer.to_bits());
            let event_out = rr_event { name, peer, ..new(RR_EVENT_OPENED).with(data) };
            (event_out, "a connection is established".to_owned())
        }
        Event::ConnectionRefused { connection, refusal, data } => {
            let (name, reason) = (connection.to_bits(), reason_of_refusal(*refusal));
            let event_out = rr_event { name, reason, ..new(RR_EVENT_REJECTED).with(data) };
            (event_out, format!("a requested connection was refused: {refusal}"))
        }
        Event::ConnectionEnded { connection, end } => {
            let (name, reason) = (connection.to_bits(), reason_of_end(end));
            let event_out = rr_event { name, reason, ..new(RR_EVENT_ENDED) };
            (event_out, format!("a connection was {end}"))
        }
        other => (new(RR_EVENT_OTHER), format!("{other:?}")),
    };
    // SAFETY: that is all of the array.
    unsafe { text::give(&text_out, event_out.text.as_mut_ptr(), event_out.text.len()) }?;
    Ok(event_out)
}

fn open(queue: AnyEvents) -> Result<*mut rr_eq, Fault> {
    handles::open(queue.owner(), rr_eq(queue))
}

/// Opens an event queue on the engine of an endpoint, with room for `entries` events (at least 1).
/// Endpoints report to it that are opened with it (rr_endpoint_open_beside). Who does not read it
/// blocks nothing: it drops the oldest events.
///
/// # Errors
///
/// RR_EHANDLE, RR_ETHREAD. RR_EINVAL: null.
///
/// # Safety
///
/// `queue` can be written, and on failure is null.
///
/// # Threads
///
/// Any, at the same time; of RR_OWNED its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_eq_open(
    endpoint: *mut rr_endpoint,
    entries: usize,
    queue: *mut *mut rr_eq,
) -> c_int {
    guard_unit(|| {
        // SAFETY: the caller guarantees it.
        unsafe { check::put(queue, ptr::null_mut(), "queue") }?;
        // SAFETY: the caller does not close it meanwhile.
        let endpoint = unsafe { handles::get::<rr_endpoint>(endpoint) }?;
        let opened = open(keep!(&endpoint.0, it => it.open_event_queue(entries)))?;
        // SAFETY: it was written above.
        unsafe { queue.write(opened) };
        Ok(())
    })
}

/// Opens a handle of the event queue that an endpoint reports to: that of its engine, with room for
/// 4096 events, unless the endpoint was opened with others (rr_endpoint_open_beside).
///
/// # Errors
///
/// RR_EHANDLE, RR_ETHREAD. RR_EINVAL: null.
///
/// # Safety
///
/// `queue` can be written, and on failure is null.
///
/// # Threads
///
/// Any, at the same time; of RR_OWNED its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_endpoint_eq(
    endpoint: *mut rr_endpoint,
    queue: *mut *mut rr_eq,
) -> c_int {
    guard_unit(|| {
        // SAFETY: the caller guarantees it.
        unsafe { check::put(queue, ptr::null_mut(), "queue") }?;
        // SAFETY: the caller does not close it meanwhile.
        let endpoint = unsafe { handles::get::<rr_endpoint>(endpoint) }?;
        let opened = open(keep!(&endpoint.0, it => it.event_queue()))?;
        // SAFETY: it was written above.
        unsafe { queue.write(opened) };
        Ok(())
    })
}

/// Closes a handle of an event queue.
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
pub unsafe extern "C" fn rr_eq_close(queue: *mut rr_eq) -> c_int {
    // SAFETY: the caller guarantees it.
    guard_unit(|| unsafe { handles::close::<rr_eq>(queue) }.map(drop))
}

/// Takes the oldest event. 1: there was one. 0: there was none until `timeout_ns` had passed
/// (RR_FOREVER: never; 0: it does not wait). Makes progress.
///
/// # Errors
///
/// RR_EHANDLE, RR_ETHREAD. RR_EINVAL: null. RR_ESYSTEM: the driver failed for good.
///
/// # Safety
///
/// `event` can be written.
///
/// # Threads
///
/// Any, at the same time: each event goes to one of them. Of RR_OWNED its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_eq_read(
    queue: *mut rr_eq,
    event: *mut rr_event,
    timeout_ns: i64,
) -> c_int {
    guard(|| {
        // SAFETY: the caller does not close it meanwhile.
        let queue = unsafe { handles::get::<rr_eq>(queue) }?;
        check::place(event, 1, "event")?;
        let found = match timeout_ns {
            0 => each!(&queue.0, it => it.read()?),
            ns => each!(&queue.0, it => it.wait(check::timeout(ns))?),
        };
        let Some(found) = found else { return Ok(0) };
        // SAFETY: the caller guarantees it.
        unsafe { check::put(event, c_event(&found)?, "event") }?;
        Ok(1)
    })
}

/// As rr_cq_fd, for rr_eq_arm.
///
/// # Errors
///
/// RR_EHANDLE, RR_ETHREAD. RR_ESYSTEM: no descriptors.
///
/// # Safety
///
/// The queue is not closed during the call.
///
/// # Threads
///
/// One that sleeps at a time: another one opens a handle of its own (rr_endpoint_eq).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_eq_fd(queue: *mut rr_eq) -> c_int {
    guard(|| {
        // SAFETY: the caller does not close it meanwhile.
        let queue = unsafe { handles::get::<rr_eq>(queue) }?;
        Ok(each!(&queue.0, it => it.wait_fd()?.as_raw_fd()))
    })
}

/// As rr_cq_arm, for the events of this queue.
///
/// # Errors
///
/// RR_EHANDLE, RR_ETHREAD. RR_ESYSTEM.
///
/// # Safety
///
/// The queue is not closed during the call.
///
/// # Threads
///
/// As for rr_eq_fd.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_eq_arm(queue: *mut rr_eq) -> c_int {
    guard(|| {
        // SAFETY: the caller does not close it meanwhile.
        let queue = unsafe { handles::get::<rr_eq>(queue) }?;
        Ok(c_int::from(each!(&queue.0, it => it.arm()?)))
    })
}
