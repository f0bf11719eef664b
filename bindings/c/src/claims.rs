//! Messages that are taken out of matching before they are received.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Mutex;

use crate::check;
use crate::completion::rr_status;
use crate::endpoint::other_engine;
use crate::fault::{guard, guard_unit};
use crate::handles;
use crate::inside::{AnyMessage, Of, lock, rr_endpoint, rr_message};
use crate::options::{
    self, check_operation, put_operation, rr_operation, rr_receive_options, rr_selector,
};

/// Takes the message that rr_peek would find out of matching (MPI_Mprobe): no receive gets it but
/// rr_post_receive_claimed. 1: there is one, with a handle in `message`. 0: there is none.
///
/// # Errors
///
/// As for rr_peek.
///
/// # Safety
///
/// `selector` can be read, `message` written (null where there is none); `status` is null or can be
/// written.
///
/// # Threads
///
/// Any, at the same time; of RR_OWNED its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_claim(
    endpoint: *mut rr_endpoint,
    selector: *const rr_selector,
    message: *mut *mut rr_message,
    status: *mut rr_status,
) -> c_int {
    guard(|| {
        // SAFETY: the caller guarantees it.
        unsafe { check::put(message, ptr::null_mut(), "message") }?;
        // SAFETY: the caller does not close it meanwhile.
        let endpoint = unsafe { handles::get::<rr_endpoint>(endpoint) }?;
        // SAFETY: the caller guarantees it.
        let selector = unsafe { options::selector(selector) }?;
        if !status.is_null() {
            check::place(status, 1, "status")?;
        }
        let (claimed, found): (AnyMessage, _) = match &endpoint.0 {
            Of::Shared(endpoint) => match endpoint.claim(selector)? {
                Some(claimed) => {
                    let found = rr_status::new(claimed.status());
                    (Of::Shared(Mutex::new(claimed)), found)
                }
                None => return Ok(0),
            },
            Of::Owned(endpoint) => match endpoint.claim(selector)? {
                Some(claimed) => {
                    let found = rr_status::new(claimed.status());
                    (Of::Owned(Mutex::new(claimed)), found)
                }
                None => return Ok(0),
            },
        };
        let handle = handles::open(claimed.owner(), rr_message(claimed))?;
        // SAFETY: it was written above.
        unsafe { message.write(handle) };
        if !status.is_null() {
            // SAFETY: the caller guarantees it.
            unsafe { check::put(status, found, "status") }?;
        }
        Ok(1)
    })
}

/// Receives a claimed message. Otherwise as rr_post_receive. On success the handle is spent.
///
/// # Completion
///
/// As for rr_post_receive.
///
/// # Errors
///
/// RR_EHANDLE, RR_ETHREAD. RR_EAGAIN, RR_EINVAL (also: the message is another engine's): the handle
/// stays, and the message can still be received.
///
/// # Safety
///
/// As for rr_post_receive. No other thread is in a call with the message.
///
/// # Threads
///
/// Any; of RR_OWNED its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_post_receive_claimed(
    endpoint: *mut rr_endpoint,
    message: *mut rr_message,
    data: *mut c_void,
    length: usize,
    options: *const rr_receive_options,
    operation: *mut rr_operation,
) -> c_int {
    guard_unit(|| {
        // SAFETY: the caller does not close it meanwhile.
        let endpoint = unsafe { handles::get::<rr_endpoint>(endpoint) }?;
        // SAFETY: no other thread is in a call with it.
        let claimed = unsafe { handles::get::<rr_message>(message) }?;
        let pieces = [check::span(data, length, "data")?];
        // SAFETY: the caller guarantees it.
        let options = unsafe { options::receive(options, -1) }?;
        check_operation(operation)?;
        let posted = match (&endpoint.0, &claimed.0) {
            // SAFETY: the caller keeps the memory until the operation has ended.
            (Of::Shared(endpoint), Of::Shared(claimed)) => unsafe {
                endpoint.post_receive_claimed_raw(&mut lock(claimed), &pieces, options)
            },
            // SAFETY: as above.
            (Of::Owned(endpoint), Of::Owned(claimed)) => unsafe {
                endpoint.post_receive_claimed_raw(&mut lock(claimed), &pieces, options)
            },
            _ => return Err(other_engine()),
        }?;
        // SAFETY: the caller guarantees it.
        unsafe { put_operation(operation, Some(posted)) };
        // SAFETY: no other thread is in a call with it.
        unsafe { handles::close::<rr_message>(message) }.map(drop)
    })
}

/// Drops a claimed message: its sender ends as if it had been received. The handle is spent.
///
/// # Errors
///
/// RR_EHANDLE: it was received or dropped before. RR_ETHREAD.
///
/// # Safety
///
/// No other thread is in a call with the message.
///
/// # Threads
///
/// Any; of RR_OWNED its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_message_discard(message: *mut rr_message) -> c_int {
    // SAFETY: the caller guarantees it.
    guard_unit(|| unsafe { handles::close::<rr_message>(message) }.map(drop))
}
