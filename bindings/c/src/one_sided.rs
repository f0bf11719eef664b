//! Puts, gets and flushes.

use std::ffi::{c_int, c_void};

use ringrail::{Peer, RawSpan, RemoteAddress, RemoteKey};

use crate::check;
use crate::fault::{Fault, guard_unit};
use crate::handles;
use crate::inside::{each, rr_endpoint};
use crate::options::{
    self, check_operation, put_operation, rr_operation, rr_peer, rr_send_options, rr_span,
};

/// A place in the memory of a peer.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct rr_remote {
    /// What opens it: rr_region_key of its owner.
    pub key: u64,
    /// Where, in bytes from the beginning of what the key opens.
    pub offset: u64,
}

impl rr_remote {
    #[inline]
    pub(crate) fn get(self) -> RemoteAddress {
        RemoteKey(self.key).at(self.offset)
    }
}

/// Posts a write of `length` bytes to the memory of a peer, which needs no call there. Its end goes
/// to the transmit queue of the endpoint.
///
/// # Order
///
/// None, neither of operations on memory nor with messages, but by completion, RR_FENCE and
/// rr_flush.
///
/// # Completion
///
/// At RR_LEVEL_INJECT when the memory may be reused: rr_flush reports whether the target refused
/// it, by a count. At other levels, and of a long put always, when it is in the peer's memory, or
/// with RR_EACCESS.
///
/// # Errors
///
/// RR_EHANDLE, RR_ETHREAD. RR_EINVAL: null with a length, a length that no memory has, unknown
/// options. RR_EAGAIN: too much is outstanding: read the queue, and call again. RR_ENOPEER. Why the
/// peer has failed. Of what is left to another thread these come with the completion.
///
/// # Safety
///
/// As for rr_post_send.
///
/// # Threads
///
/// Any, at the same time; of RR_OWNED its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_post_put(
    endpoint: *mut rr_endpoint,
    peer: rr_peer,
    at: rr_remote,
    data: *const c_void,
    length: usize,
    options: *const rr_send_options,
    operation: *mut rr_operation,
) -> c_int {
    guard_unit(|| {
        let pieces = [check::span(data, length, "data")?];
        // SAFETY: the caller guarantees it.
        unsafe { put_pieces(endpoint, peer, at, &pieces, options, operation) }
    })
}

/// Posts a write of `count` pieces of memory, in order. Otherwise as rr_post_put.
///
/// # Errors
///
/// As for rr_post_put. RR_EMEMORY: a piece that cannot be memory.
///
/// # Safety
///
/// As for rr_post_send, of each piece. The array itself is the caller's again on return.
///
/// # Threads
///
/// Any, at the same time; of RR_OWNED its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_post_putv(
    endpoint: *mut rr_endpoint,
    peer: rr_peer,
    at: rr_remote,
    pieces: *const rr_span,
    count: usize,
    options: *const rr_send_options,
    operation: *mut rr_operation,
) -> c_int {
    guard_unit(|| {
        // SAFETY: the caller guarantees it.
        unsafe {
            put_pieces(endpoint, peer, at, options::pieces(pieces, count)?, options, operation)
        }
    })
}

/// Writes a copy of a few bytes to the memory of a peer. Nothing is reported but a failure of the
/// session; rr_flush reports whether it was refused.
///
/// # Order
///
/// As for rr_post_put.
///
/// # Errors
///
/// As for rr_post_put. RR_EINVAL also: longer than the setting inject_limit_bytes.
///
/// # Safety
///
/// `length` bytes can be read at `data`; they are the caller's again on return.
///
/// # Threads
///
/// Any, at the same time; of RR_OWNED its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_inject_put(
    endpoint: *mut rr_endpoint,
    peer: rr_peer,
    at: rr_remote,
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
        let (peer, at) = (Peer::from_bits(peer), at.get());
        each!(&endpoint.0, it => it.inject_put(peer, at, bytes, options))?;
        Ok(())
    })
}

/// Writes to the memory of a peer, and waits until the put has completed, as described for
/// rr_post_put.
///
/// # Order
///
/// As for rr_post_put.
///
/// # Errors
///
/// As for rr_post_put, and how the put failed. RR_ETIMEDOUT: `timeout_ns` (RR_FOREVER:
/// never) has passed. What had not gone out was taken back; of what had the outcome is unknown
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
pub unsafe extern "C" fn rr_put(
    endpoint: *mut rr_endpoint,
    peer: rr_peer,
    at: rr_remote,
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
        let (peer, at) = (Peer::from_bits(peer), at.get());
        each!(&endpoint.0, it => it.put_blocking(peer, at, bytes, options))?;
        Ok(())
    })
}

/// Posts a read of `length` bytes of the memory of a peer. Its end goes to the transmit queue of
/// the endpoint.
///
/// # Order
///
/// As for rr_post_put.
///
/// # Completion
///
/// When the bytes are here, or with RR_EACCESS.
///
/// # Errors
///
/// As for rr_post_put.
///
/// # Safety
///
/// As for rr_post_receive.
///
/// # Threads
///
/// Any, at the same time; of RR_OWNED its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_post_get(
    endpoint: *mut rr_endpoint,
    peer: rr_peer,
    at: rr_remote,
    data: *mut c_void,
    length: usize,
    options: *const rr_send_options,
    operation: *mut rr_operation,
) -> c_int {
    guard_unit(|| {
        let pieces = [check::span(data, length, "data")?];
        // SAFETY: the caller guarantees it.
        unsafe { get_pieces(endpoint, peer, at, &pieces, options, operation) }
    })
}

/// Posts a read into `count` pieces of memory, in order. Otherwise as rr_post_get.
///
/// # Errors
///
/// As for rr_post_put. RR_EMEMORY: a piece that cannot be memory.
///
/// # Safety
///
/// As for rr_post_receive, of each piece. The array itself is the caller's again on return.
///
/// # Threads
///
/// Any, at the same time; of RR_OWNED its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_post_getv(
    endpoint: *mut rr_endpoint,
    peer: rr_peer,
    at: rr_remote,
    pieces: *const rr_span,
    count: usize,
    options: *const rr_send_options,
    operation: *mut rr_operation,
) -> c_int {
    guard_unit(|| {
        // SAFETY: the caller guarantees it.
        unsafe {
            get_pieces(endpoint, peer, at, options::pieces(pieces, count)?, options, operation)
        }
    })
}

/// Reads memory of a peer, and waits for it.
///
/// # Order
///
/// As for rr_post_put.
///
/// # Errors
///
/// As for rr_put.
///
/// # Safety
///
/// `length` bytes can be written at `data`, and are not accessed otherwise during the call. They
/// are the caller's then, in any case.
///
/// # Threads
///
/// Any, at the same time; of RR_OWNED its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_get(
    endpoint: *mut rr_endpoint,
    peer: rr_peer,
    at: rr_remote,
    data: *mut c_void,
    length: usize,
    options: *const rr_send_options,
    timeout_ns: i64,
) -> c_int {
    guard_unit(|| {
        // SAFETY: the caller does not close it meanwhile.
        let endpoint = unsafe { handles::get::<rr_endpoint>(endpoint) }?;
        // SAFETY: the caller guarantees it.
        let (into, options) = unsafe {
            (check::bytes_mut(data, length, "data")?, options::send(options, timeout_ns)?)
        };
        let (peer, at) = (Peer::from_bits(peer), at.get());
        each!(&endpoint.0, it => it.get_blocking(peer, at, into, options))?;
        Ok(())
    })
}

/// Posts a flush: it completes when all operations on the memory of a peer that were posted before
/// are done there. Its end goes to the transmit queue.
///
/// # Completion
///
/// With RR_EACCESS where the target refused operations that had completed at RR_LEVEL_INJECT since
/// the last flush; the text has their number.
///
/// # Errors
///
/// RR_EHANDLE, RR_ETHREAD. RR_EINVAL: unknown options. RR_EAGAIN. RR_ENOPEER. Why the peer has
/// failed. Of what is left to another thread these come with the completion.
///
/// # Safety
///
/// `options` is null or can be read; `operation` is null or can be written.
///
/// # Threads
///
/// Any, at the same time; of RR_OWNED its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_post_flush(
    endpoint: *mut rr_endpoint,
    peer: rr_peer,
    options: *const rr_send_options,
    operation: *mut rr_operation,
) -> c_int {
    guard_unit(|| {
        // SAFETY: the caller does not close it meanwhile.
        let endpoint = unsafe { handles::get::<rr_endpoint>(endpoint) }?;
        // SAFETY: the caller guarantees it.
        let options = unsafe { options::send(options, -1) }?;
        check_operation(operation)?;
        let posted = each!(&endpoint.0, it => it.post_flush(Peer::from_bits(peer), options))?;
        // SAFETY: the caller guarantees it.
        unsafe { put_operation(operation, Some(posted)) };
        Ok(())
    })
}

/// Waits until all operations on the memory of a peer that were posted before are done there.
///
/// # Errors
///
/// RR_EHANDLE, RR_ETHREAD. RR_EACCESS: the target refused operations since the last flush, by any
/// endpoint of the engine. RR_ENOPEER. RR_ETIMEDOUT: `timeout_ns` (RR_FOREVER: never) has passed.
/// Why the peer has failed.
///
/// # Safety
///
/// The endpoint is not closed during the call.
///
/// # Threads
///
/// Any, at the same time; of RR_OWNED its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_flush(
    endpoint: *mut rr_endpoint,
    peer: rr_peer,
    timeout_ns: i64,
) -> c_int {
    guard_unit(|| {
        // SAFETY: the caller does not close it meanwhile.
        let endpoint = unsafe { handles::get::<rr_endpoint>(endpoint) }?;
        // SAFETY: usual options are asked for.
        let options = unsafe { options::send(std::ptr::null(), timeout_ns) }?;
        each!(&endpoint.0, it => it.flush(Peer::from_bits(peer), options))?;
        Ok(())
    })
}

/// # Safety
///
/// As for rr_post_putv.
unsafe fn put_pieces(
    endpoint: *mut rr_endpoint,
    peer: rr_peer,
    at: rr_remote,
    pieces: &[RawSpan],
    options: *const rr_send_options,
    operation: *mut rr_operation,
) -> Result<(), Fault> {
    // SAFETY: the caller does not close it meanwhile.
    let endpoint = unsafe { handles::get::<rr_endpoint>(endpoint) }?;
    // SAFETY: the caller guarantees it.
    let options = unsafe { options::send(options, -1) }?;
    check_operation(operation)?;
    let (peer, at) = (Peer::from_bits(peer), at.get());
    // SAFETY: the caller keeps the memory until the operation has ended.
    let posted = each!(&endpoint.0, it => unsafe { it.post_put_raw(peer, at, pieces, options) })?;
    // SAFETY: the caller guarantees it.
    unsafe { put_operation(operation, Some(posted)) };
    Ok(())
}

/// # Safety
///
/// As for rr_post_getv.
unsafe fn get_pieces(
    endpoint: *mut rr_endpoint,
    peer: rr_peer,
    at: rr_remote,
    pieces: &[RawSpan],
    options: *const rr_send_options,
    operation: *mut rr_operation,
) -> Result<(), Fault> {
    // SAFETY: the caller does not close it meanwhile.
    let endpoint = unsafe { handles::get::<rr_endpoint>(endpoint) }?;
    // SAFETY: the caller guarantees it.
    let options = unsafe { options::send(options, -1) }?;
    check_operation(operation)?;
    let (peer, at) = (Peer::from_bits(peer), at.get());
    // SAFETY: the caller keeps the memory until the operation has ended.
    let posted = each!(&endpoint.0, it => unsafe { it.post_get_raw(peer, at, pieces, options) })?;
    // SAFETY: the caller guarantees it.
    unsafe { put_operation(operation, Some(posted)) };
    Ok(())
}
