//! Event queues.

use std::ffi::{c_char, c_int};
use std::os::fd::AsRawFd;
use std::ptr;

use ringrail::Event;

use crate::address::rr_address;
use crate::check;
use crate::codes::{
    RR_EVENT_CONNECTED, RR_EVENT_DISCONNECTED, RR_EVENT_OTHER, RR_EVENT_PATH, RR_EVENT_REFUSED,
};
use crate::fault::{Fault, guard, guard_unit};
use crate::handles;
use crate::inside::{AnyEvents, each, keep, rr_endpoint, rr_eq};
use crate::text;

/// Bytes of the text of an event, the zero byte included.
pub const RR_EVENT_TEXT_BYTES: usize = 256;

/// An entry of an event queue.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct rr_event {
    /// RR_EVENT_CONNECTED, ...
    pub kind: u32,
    /// 1: `address` says where the engine of the peer listens. 0: it is not of one peer.
    pub has_address: u32,
    /// Where the engine of the peer listens.
    pub address: rr_address,
    /// What happened, for people; cut where it is too long.
    pub text: [c_char; RR_EVENT_TEXT_BYTES],
}

fn told(event: &Event) -> Result<rr_event, Fault> {
    let (kind, address, said) = match event {
        Event::Connected { address } => {
            (RR_EVENT_CONNECTED, Some(address), format!("{address} is connected"))
        }
        Event::Disconnected { address, failure } => {
            (RR_EVENT_DISCONNECTED, Some(address), format!("{address} {failure}"))
        }
        Event::Refused { remote, cause } => {
            (RR_EVENT_REFUSED, None, format!("a connection from {remote} was refused: {cause}"))
        }
        Event::PathChanged { address, rail, remote, state, cause } => {
            let said =
                format!("path from rail {rail} to {remote} of {address}: {state:?}, {cause:?}");
            (RR_EVENT_PATH, Some(address), said)
        }
        other => (RR_EVENT_OTHER, None, format!("{other:?}")),
    };
    let nowhere = rr_address { bytes: [0; _] };
    let mut event = rr_event {
        kind,
        has_address: u32::from(address.is_some()),
        address: address.map_or(nowhere, rr_address::new),
        text: [0; _],
    };
    // SAFETY: that is all of the array.
    unsafe { text::give(&said, event.text.as_mut_ptr(), event.text.len()) }?;
    Ok(event)
}

fn open(queue: AnyEvents) -> Result<*mut rr_eq, Fault> {
    handles::open(queue.owner(), rr_eq(queue))
}

/// Opens an event queue on the engine of an endpoint, with room for `entries` events (at least 1).
/// Endpoints report to it that are opened with it (rr_endpoint_open_beside). Who does not read it
/// stops nobody: it drops the oldest events.
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
        // SAFETY: the caller's promise.
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
/// 4096 events, unless rr_endpoint_open_beside was told otherwise.
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
        // SAFETY: the caller's promise.
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
    // SAFETY: the caller's promise.
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
        // SAFETY: the caller's promise.
        unsafe { check::put(event, told(&found)?, "event") }?;
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
/// Nobody closes the queue meanwhile.
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
/// Nobody closes the queue meanwhile.
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
