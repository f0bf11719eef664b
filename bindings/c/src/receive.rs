//! Receives.

use std::ffi::{c_int, c_void};

use crate::check;
use crate::completion::rr_status;
use crate::fault::{guard, guard_unit};
use crate::handles;
use crate::inside::{each, rr_endpoint};
use crate::options::{
    self, check_operation, put_operation, rr_operation, rr_receive_options, rr_selector, rr_span,
};

/// Posts a receive. Its end goes to the receive queue of the endpoint, with `user_data` of the
/// options.
///
/// # Order
///
/// Of the posted receives that accept a message the oldest gets it; of the messages that a receive
/// accepts it gets the oldest of their source.
///
/// # Completion
///
/// When the message is in the memory. One that is longer than that ends in RR_ETRUNCATED with its
/// beginning there.
///
/// # Errors
///
/// RR_EHANDLE, RR_ETHREAD. RR_EINVAL: null with a length, a length that no memory has, unknown
/// options. RR_EAGAIN: too much is outstanding: read the queue, and call again. RR_ENOPEER. Why the
/// source that is named has failed. Of what is left to another thread these come with the
/// completion.
///
/// # Safety
///
/// `length` bytes can be written at `data`, and are not accessed otherwise, until the completion
/// was read (one with RR_SILENT that succeeds has none; a later message has to show its end), or
/// rr_endpoint_close returned. After an error they are the caller's at once. `selector` can be
/// read; `operation` is null or can be written: for rr_cancel.
///
/// # Threads
///
/// Any, at the same time; of RR_OWNED its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_post_receive(
    endpoint: *mut rr_endpoint,
    selector: *const rr_selector,
    data: *mut c_void,
    length: usize,
    options: *const rr_receive_options,
    operation: *mut rr_operation,
) -> c_int {
    guard_unit(|| {
        // SAFETY: the caller does not close it meanwhile.
        let endpoint = unsafe { handles::get::<rr_endpoint>(endpoint) }?;
        let span = check::span(data, length, "data")?;
        // SAFETY: the caller guarantees it.
        let (selector, options) =
            unsafe { (options::selector(selector)?, options::receive(options, -1)?) };
        check_operation(operation)?;
        let posted = each!(&endpoint.0, it => {
            // SAFETY: the caller keeps the memory until the operation has ended.
            unsafe { it.post_receive_raw(selector, &[span], options) }
        })?;
        // SAFETY: the caller guarantees it.
        unsafe { put_operation(operation, Some(posted)) };
        Ok(())
    })
}

/// Posts a receive into `count` pieces of memory, in order. Otherwise as rr_post_receive.
///
/// # Errors
///
/// As for rr_post_receive. RR_EMEMORY: a piece that cannot be memory.
///
/// # Safety
///
/// As for rr_post_receive, of each piece. The array itself is the caller's again on return.
///
/// # Threads
///
/// Any, at the same time; of RR_OWNED its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_post_receivev(
    endpoint: *mut rr_endpoint,
    selector: *const rr_selector,
    pieces: *const rr_span,
    count: usize,
    options: *const rr_receive_options,
    operation: *mut rr_operation,
) -> c_int {
    guard_unit(|| {
        // SAFETY: the caller does not close it meanwhile.
        let endpoint = unsafe { handles::get::<rr_endpoint>(endpoint) }?;
        // SAFETY: the caller guarantees it.
        let pieces = unsafe { options::pieces(pieces, count) }?;
        // SAFETY: the caller guarantees it.
        let (selector, options) =
            unsafe { (options::selector(selector)?, options::receive(options, -1)?) };
        check_operation(operation)?;
        let posted = each!(&endpoint.0, it => {
            // SAFETY: the caller keeps the memory until the operation has ended.
            unsafe { it.post_receive_raw(selector, pieces, options) }
        })?;
        // SAFETY: the caller guarantees it.
        unsafe { put_operation(operation, Some(posted)) };
        Ok(())
    })
}

/// Posts a receive of many messages into one piece of memory, one behind the other. It keeps its
/// place among the posted receives, and takes messages until fewer than `min_free` bytes (at least
/// 1) are free.
///
/// # Order
///
/// As for rr_post_receive.
///
/// # Completion
///
/// One of RR_RECEIVED for each message, with `offset`; a last one of RR_MULTI_RECEIVE, which gives
/// the memory back. All have the same `user_data`. rr_cancel ends it after what it has matched.
///
/// # Errors
///
/// As for rr_post_receive. RR_EINVAL or RR_EMEMORY also: 4 GiB and more of memory.
///
/// # Safety
///
/// As for rr_post_receive, until the completion of RR_MULTI_RECEIVE was read.
///
/// # Threads
///
/// Any, at the same time; of RR_OWNED its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_post_receive_many(
    endpoint: *mut rr_endpoint,
    selector: *const rr_selector,
    data: *mut c_void,
    length: usize,
    min_free: usize,
    options: *const rr_receive_options,
    operation: *mut rr_operation,
) -> c_int {
    guard_unit(|| {
        // SAFETY: the caller does not close it meanwhile.
        let endpoint = unsafe { handles::get::<rr_endpoint>(endpoint) }?;
        let span = check::span(data, length, "data")?;
        // SAFETY: the caller guarantees it.
        let (selector, options) =
            unsafe { (options::selector(selector)?, options::receive(options, -1)?) };
        check_operation(operation)?;
        let posted = each!(&endpoint.0, it => {
            // SAFETY: the caller keeps the memory until the operation has ended.
            unsafe { it.post_receive_many_raw(selector, &[span], min_free, options) }
        })?;
        // SAFETY: the caller guarantees it.
        unsafe { put_operation(operation, Some(posted)) };
        Ok(())
    })
}

/// Waits for a message, making progress meanwhile.
///
/// # Order
///
/// As for rr_post_receive.
///
/// # Errors
///
/// As for rr_post_receive, and how the receive failed. RR_ETRUNCATED: the memory has the beginning
/// of the message. RR_ETIMEDOUT: `timeout_ns` (RR_FOREVER: never) has passed. A receive that had
/// not matched was taken back; the message of one that had, and has not come whole, is lost
/// (see rr_last_error), and the call returns at most 100 ms later.
///
/// # Safety
///
/// `length` bytes can be written at `data`, and are not accessed otherwise during the call. They
/// are the caller's then, in any case. `status` is null or can be written: of success, and of
/// RR_ETRUNCATED, it has the message.
///
/// # Threads
///
/// Any, at the same time; of RR_OWNED its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_receive(
    endpoint: *mut rr_endpoint,
    selector: *const rr_selector,
    data: *mut c_void,
    length: usize,
    status: *mut rr_status,
    timeout_ns: i64,
) -> c_int {
    guard_unit(|| {
        // SAFETY: the caller does not close it meanwhile.
        let endpoint = unsafe { handles::get::<rr_endpoint>(endpoint) }?;
        // SAFETY: the caller guarantees it.
        let into = unsafe { check::bytes_mut(data, length, "data") }?;
        // SAFETY: the caller guarantees it; null means default options.
        let (selector, options) = unsafe {
            (options::selector(selector)?, options::receive(std::ptr::null(), timeout_ns)?)
        };
        if !status.is_null() {
            check::place(status, 1, "status")?;
        }
        let received = each!(&endpoint.0, it => it.receive_blocking(selector, into, options));
        let known = received.as_ref().map_or_else(|error| error.status(), Some);
        if let Some(known) = known.filter(|_| !status.is_null()) {
            // SAFETY: the caller guarantees it.
            unsafe { check::put(status, rr_status::new(known), "status") }?;
        }
        received?;
        Ok(())
    })
}

/// Looks at the message that a receive with this selector would get now, and leaves it where it is.
/// Makes progress first. 1: there is one. 0: there is none.
///
/// # Errors
///
/// RR_EHANDLE, RR_ETHREAD. RR_EINVAL: null. RR_ENOPEER. Why the source that is named has failed.
///
/// # Safety
///
/// `selector` can be read; `status` is null or can be written.
///
/// # Threads
///
/// Any, at the same time; of RR_OWNED its own. What one thread has seen another may receive:
/// rr_claim takes it out.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_peek(
    endpoint: *mut rr_endpoint,
    selector: *const rr_selector,
    status: *mut rr_status,
) -> c_int {
    guard(|| {
        // SAFETY: the caller does not close it meanwhile.
        let endpoint = unsafe { handles::get::<rr_endpoint>(endpoint) }?;
        // SAFETY: the caller guarantees it.
        let selector = unsafe { options::selector(selector) }?;
        if !status.is_null() {
            check::place(status, 1, "status")?;
        }
        let Some(found) = each!(&endpoint.0, it => it.peek(selector)?) else { return Ok(0) };
        if !status.is_null() {
            // SAFETY: the caller guarantees it.
            unsafe { check::put(status, rr_status::new(&found), "status") }?;
        }
        Ok(1)
    })
}
