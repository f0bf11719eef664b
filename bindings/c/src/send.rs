//! Sends.

use std::ffi::{c_int, c_void};

use ringrail::Peer;

use crate::check;
use crate::fault::{guard, guard_unit};
use crate::handles;
use crate::inside::{each, rr_endpoint};
use crate::options::{
    self, check_operation, put_operation, rr_envelope, rr_operation, rr_peer, rr_send_options,
    rr_span,
};

/// Posts a send. Its end goes to the transmit queue of the endpoint, with `user_data` of the
/// options, also where it is over already; with RR_SILENT only a failure does.
///
/// # Order
///
/// Messages of one endpoint to one endpoint in one context match receives in the order in which
/// they were posted. Operations complete in any order.
///
/// # Completion
///
/// When the send has come as far as the level of the options asks. A long message is pulled by its
/// receiver, and completes at every level when it is there.
///
/// # Errors
///
/// RR_EHANDLE, RR_ETHREAD. RR_EINVAL: null with a length, a length that no memory has, unknown
/// options. RR_EAGAIN: too much is outstanding: read the queue, and call again. RR_ENOPEER. Why the
/// peer has failed. Of what is left to another thread these come with the completion.
///
/// # Safety
///
/// `length` bytes at `data` stay as they are until the completion was read (with RR_SILENT: until a
/// later completion has to show its end), or rr_endpoint_close returned. After an error they are
/// the caller's at once. `operation` is null or can be written: for rr_cancel.
///
/// # Threads
///
/// Any, at the same time; of RR_OWNED its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_post_send(
    endpoint: *mut rr_endpoint,
    peer: rr_peer,
    envelope: rr_envelope,
    data: *const c_void,
    length: usize,
    options: *const rr_send_options,
    operation: *mut rr_operation,
) -> c_int {
    guard_unit(|| {
        // SAFETY: the caller does not close it meanwhile.
        let endpoint = unsafe { handles::get::<rr_endpoint>(endpoint) }?;
        let (span, envelope) = (check::span(data, length, "data")?, envelope.get()?);
        // SAFETY: the caller guarantees it.
        let options = unsafe { options::send(options, -1) }?;
        check_operation(operation)?;
        let (peer, pieces) = (Peer::from_bits(peer), &[span]);
        let posted = each!(&endpoint.0, it => {
            // SAFETY: the caller keeps the memory until the operation has ended.
            unsafe { it.post_send_raw(peer, envelope, pieces, options) }
        })?;
        // SAFETY: the caller guarantees it.
        unsafe { put_operation(operation, posted) };
        Ok(())
    })
}

/// Posts a send of `count` pieces of memory, in order, as one message. Otherwise as rr_post_send.
/// There may be more than IOV_MAX.
///
/// # Errors
///
/// As for rr_post_send. RR_EMEMORY: a piece that cannot be memory.
///
/// # Safety
///
/// As for rr_post_send, of each piece. The array itself is the caller's again on return.
///
/// # Threads
///
/// Any, at the same time; of RR_OWNED its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_post_sendv(
    endpoint: *mut rr_endpoint,
    peer: rr_peer,
    envelope: rr_envelope,
    pieces: *const rr_span,
    count: usize,
    options: *const rr_send_options,
    operation: *mut rr_operation,
) -> c_int {
    guard_unit(|| {
        // SAFETY: the caller does not close it meanwhile.
        let endpoint = unsafe { handles::get::<rr_endpoint>(endpoint) }?;
        // SAFETY: the caller guarantees it.
        let (pieces, options) =
            unsafe { (options::pieces(pieces, count)?, options::send(options, -1)?) };
        let (peer, envelope) = (Peer::from_bits(peer), envelope.get()?);
        check_operation(operation)?;
        let posted = each!(&endpoint.0, it => {
            // SAFETY: the caller keeps the memory until the operation has ended.
            unsafe { it.post_send_raw(peer, envelope, pieces, options) }
        })?;
        // SAFETY: the caller guarantees it.
        unsafe { put_operation(operation, posted) };
        Ok(())
    })
}

/// Sends a copy of a short message. There is no completion unless it fails later. The level of the
/// options does not matter.
///
/// # Order
///
/// As for rr_post_send.
///
/// # Errors
///
/// RR_EHANDLE, RR_ETHREAD. RR_EAGAIN: it cannot go out now (no connection yet, no credit): make
/// progress, and call again. RR_EINVAL: longer than the setting inject_limit_bytes; null with a
/// length. RR_ENOPEER. Why the peer has failed.
///
/// # Safety
///
/// `length` bytes can be read at `data`; they are the caller's again on return.
///
/// # Threads
///
/// Any, at the same time; of RR_OWNED its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_inject(
    endpoint: *mut rr_endpoint,
    peer: rr_peer,
    envelope: rr_envelope,
    data: *const c_void,
    length: usize,
    options: *const rr_send_options,
) -> c_int {
    guard_unit(|| {
        // SAFETY: the caller does not close it meanwhile.
        let endpoint = unsafe { handles::get::<rr_endpoint>(endpoint) }?;
        // SAFETY: the caller guarantees it.
        let (bytes, options) = unsafe {
            (check::slice(data.cast::<u8>(), length, "data")?, options::send(options, -1)?)
        };
        let (peer, envelope) = (Peer::from_bits(peer), envelope.get()?);
        each!(&endpoint.0, it => it.inject(peer, envelope, bytes, options))?;
        Ok(())
    })
}

/// Sends a message, and waits until it has come as far as the level of the options asks, making
/// progress meanwhile. `user_data` and RR_SILENT do not matter: there is no completion.
///
/// # Order
///
/// As for rr_post_send.
///
/// # Errors
///
/// As for rr_post_send, and how the send failed. RR_ETIMEDOUT: `timeout_ns` (RR_FOREVER: never)
/// has passed. A send that had not gone out was taken back; of one that had the outcome is unknown
/// (see rr_last_error), and the call returns at most 100 ms later.
///
/// # Safety
///
/// `length` bytes can be read at `data`, and stay as they are until the return. They are the
/// caller's then, in any case.
///
/// # Threads
///
/// Any, at the same time; of RR_OWNED its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_send(
    endpoint: *mut rr_endpoint,
    peer: rr_peer,
    envelope: rr_envelope,
    data: *const c_void,
    length: usize,
    options: *const rr_send_options,
    timeout_ns: i64,
) -> c_int {
    guard_unit(|| {
        // SAFETY: the caller does not close it meanwhile.
        let endpoint = unsafe { handles::get::<rr_endpoint>(endpoint) }?;
        // SAFETY: the caller guarantees it.
        let (bytes, options) = unsafe {
            (check::slice(data.cast::<u8>(), length, "data")?, options::send(options, timeout_ns)?)
        };
        let (peer, envelope) = (Peer::from_bits(peer), envelope.get()?);
        each!(&endpoint.0, it => it.send_blocking(peer, envelope, bytes, options))?;
        Ok(())
    })
}

/// Cancels a posted operation that has not matched (receive) or gone out (send). 1: its completion
/// has RR_ECANCELLED. 0: too late; it ends as if it had not been cancelled, or has ended.
///
/// # Errors
///
/// RR_EHANDLE, RR_ETHREAD.
///
/// # Safety
///
/// The endpoint is not closed during the call. The memory of the operation is the library's until
/// its completion was read.
///
/// # Threads
///
/// Any, at the same time; of RR_OWNED its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_cancel(endpoint: *mut rr_endpoint, operation: rr_operation) -> c_int {
    guard(|| {
        // SAFETY: the caller does not close it meanwhile.
        let endpoint = unsafe { handles::get::<rr_endpoint>(endpoint) }?;
        let operation = ringrail::OperationId::from_bits(operation.name);
        Ok(c_int::from(each!(&endpoint.0, it => it.cancel(operation))))
    })
}
