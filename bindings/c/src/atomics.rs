//! Atomic operations on the memory of peers.

use std::ffi::{c_int, c_void};

use ringrail::{Atomic, AtomicOp, Datatype, Peer};

use crate::check;
use crate::fault::{Fault, guard_unit};
use crate::handles;
use crate::inside::{each, rr_endpoint};
use crate::one_sided::rr_remote;
use crate::options::{
    self, check_operation, put_operation, rr_operation, rr_peer, rr_send_options,
};

/// What is done to each element. The numbers are those of libfabric's enum fi_op.
pub const RR_MIN: u32 = 0;
/// The larger of both.
pub const RR_MAX: u32 = 1;
/// The sum; integers wrap around.
pub const RR_SUM: u32 = 2;
/// The product; integers wrap around.
pub const RR_PRODUCT: u32 = 3;
/// 1 where one of both is not 0.
pub const RR_LOGICAL_OR: u32 = 4;
/// 1 where both are not 0.
pub const RR_LOGICAL_AND: u32 = 5;
/// The bits of either.
pub const RR_BIT_OR: u32 = 6;
/// The bits of both.
pub const RR_BIT_AND: u32 = 7;
/// 1 where exactly one of both is not 0.
pub const RR_LOGICAL_XOR: u32 = 8;
/// The bits of exactly one.
pub const RR_BIT_XOR: u32 = 9;
/// Fetches; takes no operands.
pub const RR_READ: u32 = 10;
/// The operand.
pub const RR_WRITE: u32 = 11;
/// The operand where `compare` equals the element.
pub const RR_COMPARE_SWAP: u32 = 12;
/// The operand where they differ.
pub const RR_COMPARE_SWAP_NE: u32 = 13;
/// The operand where `compare` is not larger.
pub const RR_COMPARE_SWAP_LE: u32 = 14;
/// The operand where `compare` is smaller.
pub const RR_COMPARE_SWAP_LT: u32 = 15;
/// The operand where `compare` is not smaller.
pub const RR_COMPARE_SWAP_GE: u32 = 16;
/// The operand where `compare` is larger.
pub const RR_COMPARE_SWAP_GT: u32 = 17;
/// The bits of the operand that `compare` has, and the others of the element.
pub const RR_MASKED_SWAP: u32 = 18;
/// The element less the operand.
pub const RR_DIFFERENCE: u32 = 19;

/// The type of the elements. The numbers are those of libfabric's enum fi_datatype.
pub const RR_INT8: u32 = 0;
/// uint8_t.
pub const RR_UINT8: u32 = 1;
/// int16_t.
pub const RR_INT16: u32 = 2;
/// uint16_t.
pub const RR_UINT16: u32 = 3;
/// int32_t.
pub const RR_INT32: u32 = 4;
/// uint32_t.
pub const RR_UINT32: u32 = 5;
/// int64_t.
pub const RR_INT64: u32 = 6;
/// uint64_t.
pub const RR_UINT64: u32 = 7;
/// float.
pub const RR_FLOAT: u32 = 8;
/// double.
pub const RR_DOUBLE: u32 = 9;
/// float complex.
pub const RR_FLOAT_COMPLEX: u32 = 10;
/// double complex.
pub const RR_DOUBLE_COMPLEX: u32 = 11;

/// Most bytes of elements that one operation is on.
pub const RR_ATOMIC_BYTES_MAX: usize = 512;

const _: () = assert!(RR_ATOMIC_BYTES_MAX <= Atomic::BYTES_MAX);

/// An atomic operation on elements of the memory of a peer, in the byte order of that.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct rr_atomic {
    /// sizeof(rr_atomic).
    pub size: u32,
    /// RR_SUM, ...
    pub op: u32,
    /// RR_UINT64, ...
    pub datatype: u32,
    /// 0.
    pub _reserved: u32,
    /// How many elements.
    pub count: usize,
    /// An operand for each; RR_READ takes none.
    pub operands: *const c_void,
    /// What to compare with, for those that compare; of RR_MASKED_SWAP the mask.
    pub compare: *const c_void,
}

/// An operation with its operands, and how many bytes of elements it is on.
///
/// # Safety
///
/// If it is not null it can be read, and so can its operands.
unsafe fn atomic<'a>(pointer: *const rr_atomic) -> Result<(Atomic<'a>, usize), Fault> {
    // SAFETY: the caller guarantees it.
    let given = unsafe { check::read(pointer, "atomic") }?;
    if given.size as usize != size_of::<rr_atomic>() || given._reserved != 0 {
        return Err(Fault::invalid(
            "atomic: its size is not sizeof(rr_atomic), or _reserved not 0",
        ));
    }
    let op = u8::try_from(given.op).ok().and_then(AtomicOp::from_code);
    let op = op.ok_or_else(|| check::unknown("atomic operation", given.op))?;
    let datatype = u8::try_from(given.datatype).ok().and_then(Datatype::from_code);
    let datatype = datatype.ok_or_else(|| check::unknown("datatype", given.datatype))?;
    let length = given.count.checked_mul(datatype.size()).filter(|it| *it <= RR_ATOMIC_BYTES_MAX);
    let Some(length) = length.filter(|length| *length > 0) else {
        let count = given.count;
        return Err(Fault::invalid(format!(
            "an atomic operation on {count} elements: 1 to RR_ATOMIC_BYTES_MAX bytes of them"
        )));
    };
    let bytes = |pointer: *const c_void, is_taken, what| match is_taken {
        // SAFETY: the caller guarantees it.
        true => unsafe { check::slice(pointer.cast::<u8>(), length, what) },
        false => Ok(&[][..]),
    };
    let operands = bytes(given.operands, op.takes_operands(), "operands")?;
    let compare = bytes(given.compare, op.takes_compare(), "compare")?;
    Ok((Atomic { op, datatype, operands, compare }, length))
}

/// Posts an atomic operation that fetches nothing. Its end goes to the transmit queue.
///
/// # Order
///
/// As for rr_post_put. Each element changes in one step that no other atomic operation divides.
///
/// # Completion
///
/// As for rr_post_put.
///
/// # Errors
///
/// As for rr_post_put. RR_EINVAL also: an operation that there is not, or not for this type; no
/// elements, or more than RR_ATOMIC_BYTES_MAX bytes of them.
///
/// # Safety
///
/// `what` and its operands can be read; they are the caller's again on return. `operation` is null
/// or can be written.
///
/// # Threads
///
/// Any, at the same time; of RR_OWNED its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_post_atomic(
    endpoint: *mut rr_endpoint,
    peer: rr_peer,
    at: rr_remote,
    what: *const rr_atomic,
    options: *const rr_send_options,
    operation: *mut rr_operation,
) -> c_int {
    guard_unit(|| {
        // SAFETY: the caller does not close it meanwhile.
        let endpoint = unsafe { handles::get::<rr_endpoint>(endpoint) }?;
        // SAFETY: the caller guarantees it.
        let ((atomic, _), options) = unsafe { (atomic(what)?, options::send(options, -1)?) };
        check_operation(operation)?;
        let (peer, at) = (Peer::from_bits(peer), at.get());
        let posted = each!(&endpoint.0, it => it.post_atomic(peer, at, &atomic, options))?;
        // SAFETY: the caller guarantees it.
        unsafe { put_operation(operation, Some(posted)) };
        Ok(())
    })
}

/// Posts an atomic operation that fetches the values of before into `fetched`: as many elements as
/// it is on. Its end goes to the transmit queue.
///
/// # Order
///
/// As for rr_post_atomic.
///
/// # Completion
///
/// When the values are here, or with RR_EACCESS.
///
/// # Errors
///
/// As for rr_post_atomic.
///
/// # Safety
///
/// As for rr_post_atomic; the elements at `fetched` as for rr_post_receive.
///
/// # Threads
///
/// Any, at the same time; of RR_OWNED its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_post_fetch_atomic(
    endpoint: *mut rr_endpoint,
    peer: rr_peer,
    at: rr_remote,
    what: *const rr_atomic,
    fetched: *mut c_void,
    options: *const rr_send_options,
    operation: *mut rr_operation,
) -> c_int {
    guard_unit(|| {
        // SAFETY: the caller does not close it meanwhile.
        let endpoint = unsafe { handles::get::<rr_endpoint>(endpoint) }?;
        // SAFETY: the caller guarantees it.
        let ((atomic, length), options) = unsafe { (atomic(what)?, options::send(options, -1)?) };
        let pieces = [check::span(fetched, length, "fetched")?];
        check_operation(operation)?;
        let (peer, at) = (Peer::from_bits(peer), at.get());
        // SAFETY: the caller keeps the memory until the operation has ended.
        let posted = each!(&endpoint.0, it => unsafe {
            it.post_fetch_atomic_raw(peer, at, &atomic, &pieces, options)
        })?;
        // SAFETY: the caller guarantees it.
        unsafe { put_operation(operation, Some(posted)) };
        Ok(())
    })
}

/// Makes an atomic operation, and waits for it. The values of before go to `fetched`, unless that
/// is null.
///
/// # Order
///
/// As for rr_post_atomic.
///
/// # Errors
///
/// As for rr_post_atomic, and how it failed. RR_ETIMEDOUT: `timeout_ns` (RR_FOREVER:
/// never) has passed. What had not gone out was taken back; of what had the outcome is unknown
/// (see rr_last_error), and the call returns at most 100 ms later.
///
/// # Safety
///
/// As for rr_post_atomic. `fetched` is null, or as many elements as the operation is on can be
/// written there.
///
/// # Threads
///
/// Any, at the same time; of RR_OWNED its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_atomically(
    endpoint: *mut rr_endpoint,
    peer: rr_peer,
    at: rr_remote,
    what: *const rr_atomic,
    fetched: *mut c_void,
    options: *const rr_send_options,
    timeout_ns: i64,
) -> c_int {
    guard_unit(|| {
        // SAFETY: the caller does not close it meanwhile.
        let endpoint = unsafe { handles::get::<rr_endpoint>(endpoint) }?;
        // SAFETY: the caller guarantees it.
        let ((atomic, length), options) =
            unsafe { (atomic(what)?, options::send(options, timeout_ns)?) };
        let wanted = if fetched.is_null() { 0 } else { length };
        // SAFETY: the caller guarantees it.
        let fetched = unsafe { check::bytes_mut(fetched, wanted, "fetched") }?;
        let (peer, at) = (Peer::from_bits(peer), at.get());
        each!(&endpoint.0, it => it.atomic_blocking(peer, at, &atomic, fetched, options))?;
        Ok(())
    })
}

/// Adds to a 64-bit word of a peer, waits for it, and gives its value of before.
///
/// # Errors
///
/// RR_EHANDLE, RR_ETHREAD. RR_EINVAL: null. RR_ENOPEER. RR_EACCESS. Why the peer has failed.
///
/// # Safety
///
/// `before` can be written.
///
/// # Threads
///
/// Any, at the same time; of RR_OWNED its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_fetch_add(
    endpoint: *mut rr_endpoint,
    peer: rr_peer,
    at: rr_remote,
    value: u64,
    before: *mut u64,
) -> c_int {
    guard_unit(|| {
        // SAFETY: the caller does not close it meanwhile.
        let endpoint = unsafe { handles::get::<rr_endpoint>(endpoint) }?;
        check::place(before, 1, "before")?;
        let (peer, at) = (Peer::from_bits(peer), at.get());
        let found = each!(&endpoint.0, it => it.fetch_add(peer, at, value)?);
        // SAFETY: the caller guarantees it.
        unsafe { check::put(before, found, "before") }
    })
}

/// Writes `value` to a 64-bit word of a peer where that is `expected`, waits for it, and gives its
/// value of before: it was written if that is `expected`.
///
/// # Errors
///
/// As for rr_fetch_add.
///
/// # Safety
///
/// `before` can be written.
///
/// # Threads
///
/// Any, at the same time; of RR_OWNED its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rr_compare_swap(
    endpoint: *mut rr_endpoint,
    peer: rr_peer,
    at: rr_remote,
    expected: u64,
    value: u64,
    before: *mut u64,
) -> c_int {
    guard_unit(|| {
        // SAFETY: the caller does not close it meanwhile.
        let endpoint = unsafe { handles::get::<rr_endpoint>(endpoint) }?;
        check::place(before, 1, "before")?;
        let (peer, at) = (Peer::from_bits(peer), at.get());
        let found = each!(&endpoint.0, it => it.compare_swap(peer, at, expected, value)?);
        // SAFETY: the caller guarantees it.
        unsafe { check::put(before, found, "before") }
    })
}
