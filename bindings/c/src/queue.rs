//! Completion queues.

use std::cell::Cell;
use std::ffi::{c_char, c_int};
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::Mutex;

use ringrail::{Completion, Error};

use crate::check;
use crate::codes::{RR_RECEIVE, RR_TRANSMIT};
use crate::completion::rr_completion;
use crate::fault::{Fault, guard, guard_unit, rr_strerror};
use crate::handles;
use crate::inside::{AnyQueue, Failures, each, keep, lock, rr_cq, rr_endpoint};
use crate::text;

/// Most completions that one call takes out, so that what a thread keeps for it stays small.
const BATCH_MAX: usize = 1024;

thread_local! {
    /// Where the engine puts completions before they are the caller's: made once for each thread.
    static BATCH: Cell<Vec<Completion>> = const { Cell::new(Vec::new()) };
}

/// Has `take` fill a batch, and writes that to the caller's array.
///
/// # Safety
///
/// `room` completions can be written at `into`.
#[inline]
unsafe fn deliver(
    queue: &rr_cq,
    into: *mut rr_completion,
    room: usize,
    take: impl FnOnce(&mut Vec<Completion>, usize) -> Result<usize, Error>,
) -> Result<c_int, Fault> {
    check::place(into, room, "completions")?;
    // A thread that is ending has none any more, and makes one.
    let mut batch = BATCH.try_with(Cell::take).unwrap_or_default();
    let taken = take(&mut batch, room.min(BATCH_MAX));
    let mut count = 0;
    for (index, completion) in batch.drain(..).enumerate() {
        let completion = rr_completion::new(completion, &queue.1);
        // SAFETY: there are no more than `room`, and the caller promises that there is room.
        unsafe { into.add(index).write(completion) };
        count += 1;
    }
    let _ = BATCH.try_with(|kept| kept.set(batch));
    taken?;
    Ok(count)
}

fn open(queue: AnyQueue) -> Result<*mut rr_cq, Fault> {
    handles::open(queue.owner(), rr_cq(queue, Mutex::new(Failures::default())))
}

/// Opens a completion queue on the engine of an endpoint, with room for `entries` completions (at
/// least 1), those of operations under way included. Endpoints are bound to it by
/// rr_endpoint_open_beside.
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
pub unsafe extern "C" fn rr_cq_open(
    endpoint: *mut rr_endpoint,
    entries: usize,
    queue: *mut *mut rr_cq,
) -> c_int {
    guard_unit(|| {
        // SAFETY: the caller guarantees it.
        unsafe { check::put(queue, ptr::null_mut(), "queue") }?;
        // SAFETY: the caller does not close it meanwhile.
        let endpoint = unsafe { handles::get::<rr_endpoint>(endpoint) }?;
        let opened = open(keep!(&endpoint.0, it => it.open_completion_queue(entries)))?;
        // SAFETY: it was written above.
        unsafe { queue.write(opened) };
        Ok(())
    })
}

/// Opens a handle of the queue that an endpoint is bound to: `which` is RR_TRANSMIT or RR_RECEIVE.
/// Both are the same queue unless the endpoint was opened with others (rr_endpoint_open_beside).
/// Each handle has a descriptor, and texts of errors, of its own.
///
/// # Errors
///
/// RR_EHANDLE, RR_ETHREAD. RR_EINVAL: null, no such queue.
///
/// # Safety
///
/// `queue` can be written, and on failure is null.
///
/// # Threads
///
/// Any, at the same time; of RR_OWNED its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_endpoint_cq(
    endpoint: *mut rr_endpoint,
    which: u32,
    queue: *mut *mut rr_cq,
) -> c_int {
    guard_unit(|| {
        // SAFETY: the caller guarantees it.
        unsafe { check::put(queue, ptr::null_mut(), "queue") }?;
        // SAFETY: the caller does not close it meanwhile.
        let endpoint = unsafe { handles::get::<rr_endpoint>(endpoint) }?;
        let found = match which {
            RR_TRANSMIT => keep!(&endpoint.0, it => it.transmit_queue()),
            RR_RECEIVE => keep!(&endpoint.0, it => it.receive_queue()),
            other => return Err(check::unknown("queue", other)),
        };
        let opened = open(found)?;
        // SAFETY: it was written above.
        unsafe { queue.write(opened) };
        Ok(())
    })
}

/// Closes a handle of a completion queue. The queue goes with its last handle and endpoint, and
/// with it what was not read. Its descriptor is closed.
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
pub unsafe extern "C" fn rr_cq_close(queue: *mut rr_cq) -> c_int {
    // SAFETY: the caller guarantees it.
    guard_unit(|| unsafe { handles::close::<rr_cq>(queue) }.map(drop))
}

/// Takes up to `room` completions off a queue, the oldest first, after one turn of progress, and
/// gives how many (not more than 1024). Nothing is allocated for them once a thread has read a
/// batch of that size.
///
/// # Order
///
/// Operations complete in any order.
///
/// # Errors
///
/// RR_EHANDLE, RR_ETHREAD. RR_EINVAL: null. RR_ESYSTEM: the driver failed for good. Failures of
/// operations are in the completions.
///
/// # Safety
///
/// `room` completions can be written at `completions`. The memory of an operation is the caller's
/// again when its completion was read.
///
/// # Threads
///
/// Any, at the same time: each completion goes to one of them. Of RR_OWNED its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_cq_read(
    queue: *mut rr_cq,
    completions: *mut rr_completion,
    room: usize,
) -> c_int {
    guard(|| {
        // SAFETY: the caller does not close it meanwhile.
        let queue = unsafe { handles::get::<rr_cq>(queue) }?;
        // SAFETY: the caller guarantees it.
        unsafe {
            deliver(
                queue,
                completions,
                room,
                |batch, limit| each!(&queue.0, it => it.read(batch, limit)),
            )
        }
    })
}

/// Like rr_cq_read, but waits for the first completion. 0: `timeout_ns` (RR_FOREVER: never) has
/// passed, or `room` is 0.
///
/// # Errors
///
/// As for rr_cq_read.
///
/// # Safety
///
/// As for rr_cq_read.
///
/// # Threads
///
/// Any, at the same time: one of those that wait makes the progress of all. Of RR_OWNED its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_cq_wait(
    queue: *mut rr_cq,
    completions: *mut rr_completion,
    room: usize,
    timeout_ns: i64,
) -> c_int {
    guard(|| {
        // SAFETY: the caller does not close it meanwhile.
        let queue = unsafe { handles::get::<rr_cq>(queue) }?;
        let timeout = check::timeout(timeout_ns);
        // SAFETY: the caller guarantees it.
        unsafe {
            deliver(
                queue,
                completions,
                room,
                |batch, limit| each!(&queue.0, it => it.wait(batch, limit, timeout)),
            )
        }
    })
}

/// Gives a descriptor for poll, epoll or an event loop: see rr_cq_arm. It is the library's: do not
/// read or close it. It lives as long as the handle.
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
/// One that sleeps at a time: another one opens a handle of its own (rr_endpoint_cq).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_cq_fd(queue: *mut rr_cq) -> c_int {
    guard(|| {
        // SAFETY: the caller does not close it meanwhile.
        let queue = unsafe { handles::get::<rr_cq>(queue) }?;
        Ok(each!(&queue.0, it => it.wait_fd()?.as_raw_fd()))
    })
}

/// Makes progress, and prepares a sleep by rr_cq_fd. 1: sleep now; the descriptor is readable from
/// the first thing that comes, and then rr_cq_read and another call of this are due. It may be
/// something else than a completion of this queue. 0: completions are there.
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
/// As for rr_cq_fd.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_cq_arm(queue: *mut rr_cq) -> c_int {
    guard(|| {
        // SAFETY: the caller does not close it meanwhile.
        let queue = unsafe { handles::get::<rr_cq>(queue) }?;
        Ok(c_int::from(each!(&queue.0, it => it.arm()?)))
    })
}

/// Writes why an operation failed: peer, cause, cure; with a zero byte behind it. Gives the length
/// of the text without that byte, also where it was cut to `capacity`. The texts of the last 256
/// failures are kept with the handle that they were read by; of others, and of success, it is what
/// that of rr_strerror.
///
/// # Errors
///
/// RR_EHANDLE, RR_ETHREAD. RR_EINVAL: null.
///
/// # Safety
///
/// `completion` can be read; `capacity` bytes can be written at `buffer`.
///
/// # Threads
///
/// Any, at the same time; of RR_OWNED its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_cq_error_text(
    queue: *mut rr_cq,
    completion: *const rr_completion,
    buffer: *mut c_char,
    capacity: usize,
) -> c_int {
    guard(|| {
        // SAFETY: the caller does not close it meanwhile.
        let queue = unsafe { handles::get::<rr_cq>(queue) }?;
        // SAFETY: the caller guarantees it.
        let completion = unsafe { check::read(completion, "completion") }?;
        let known = lock(&queue.1).get(completion.detail).map(ToString::to_string);
        let known = known.unwrap_or_else(|| {
            // SAFETY: the text lives as long as the process, and ends with a zero byte.
            let text = unsafe { std::ffi::CStr::from_ptr(rr_strerror(completion.error)) };
            text.to_string_lossy().into_owned()
        });
        // SAFETY: the caller guarantees it.
        unsafe { text::give(&known, buffer, capacity) }
    })
}
