//! `FI_ATOMIC`. Operations and types have libfabric's numbers in the engine, too.

use std::ffi::{c_int, c_void};

use ringrail::{Atomic, AtomicOp, Datatype, RawSpan};

use super::post::posted;
use super::rma::Remote;
use super::{Ep, IOV_LIMIT};
use crate::abi::consts::{FI_ATOMIC, FI_COMPARE_ATOMIC, FI_FETCH_ATOMIC, FI_READ};
use crate::abi::fids::{fid_domain, fid_ep};
use crate::abi::info::fi_atomic_attr;
use crate::abi::messages::{fi_addr_t, fi_ioc, fi_msg_atomic};
use crate::abi::ops::fi_ops_atomic;
use crate::cq::name::Record;
use crate::errno::Errno;
use crate::fid::{border, border_unit, object};

pub(super) static OPS: fi_ops_atomic = fi_ops_atomic {
    size: size_of::<fi_ops_atomic>(),
    write,
    writev,
    writemsg,
    inject,
    readwrite,
    readwritev,
    readwritemsg,
    compwrite,
    compwritev,
    compwritemsg,
    writevalid,
    readwritevalid,
    compwritevalid,
};

/// Which of the three families of calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Family {
    /// Nothing comes back.
    Base,
    /// The values of before come back.
    Fetch,
    /// The same, of operations that compare.
    Compare,
}

/// The engine's names of an operation and its type.
///
/// # Errors
///
/// [`Errno::OPNOTSUPP`] for what the family does not have, or the type does not allow.
fn named(family: Family, datatype: c_int, op: c_int) -> Result<(AtomicOp, Datatype), Errno> {
    let datatype = u8::try_from(datatype).ok().and_then(Datatype::from_code);
    let op = u8::try_from(op).ok().and_then(AtomicOp::from_code);
    let (Some(datatype), Some(op)) = (datatype, op) else { return Err(Errno::OPNOTSUPP) };
    let is_of_family = match family {
        Family::Base => !op.takes_compare() && op.takes_operands(),
        Family::Fetch => !op.takes_compare(),
        Family::Compare => op.takes_compare(),
    };
    match is_of_family && op.is_valid_for(datatype) {
        true => Ok((op, datatype)),
        false => Err(Errno::OPNOTSUPP),
    }
}

/// How many elements one operation has at the most.
fn most(family: Family, datatype: c_int, op: c_int) -> Result<usize, Errno> {
    named(family, datatype, op).map(|(_, datatype)| Atomic::BYTES_MAX / datatype.size())
}

/// Elements of an application, gathered.
struct Gathered {
    bytes: [u8; Atomic::BYTES_MAX],
    len: usize,
}

/// # Safety
///
/// There are `count` pieces of elements of `size` bytes.
unsafe fn gather(ioc: *const fi_ioc, count: usize, size: usize) -> Result<Gathered, Errno> {
    let mut gathered = Gathered { bytes: [0; Atomic::BYTES_MAX], len: 0 };
    // SAFETY: the caller guarantees it.
    let (spans, count) = unsafe { spans(ioc, count, size) }?;
    for span in spans[..count].iter().filter(|span| span.len > 0) {
        let room = gathered.bytes.get_mut(gathered.len..gathered.len + span.len);
        let room = room.ok_or(Errno::MSGSIZE)?;
        // SAFETY: the caller guarantees it.
        room.copy_from_slice(unsafe { std::slice::from_raw_parts(span.ptr, span.len) });
        gathered.len += span.len;
    }
    Ok(gathered)
}

impl Gathered {
    fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// # Safety
///
/// As for [`gather`].
unsafe fn spans(
    ioc: *const fi_ioc,
    count: usize,
    size: usize,
) -> Result<([RawSpan; IOV_LIMIT], usize), Errno> {
    if count > IOV_LIMIT || (ioc.is_null() && count > 0) {
        return Err(Errno::INVAL);
    }
    let mut spans = [RawSpan { ptr: std::ptr::null_mut(), len: 0 }; IOV_LIMIT];
    for (index, span) in spans[..count].iter_mut().enumerate() {
        // SAFETY: the caller guarantees it.
        let piece = unsafe { *ioc.add(index) };
        let len = piece.count.checked_mul(size).ok_or(Errno::INVAL)?;
        *span = RawSpan { ptr: piece.addr.cast(), len };
    }
    Ok((spans, count))
}

/// Pieces of elements.
#[derive(Clone, Copy)]
struct Elements {
    ioc: *const fi_ioc,
    count: usize,
}

impl Elements {
    const NONE: Self = Self { ioc: std::ptr::null(), count: 0 };
}

/// The arguments of an atomic operation.
struct Request {
    family: Family,
    numbers: (c_int, c_int),
    operands: Elements,
    compare: Elements,
    results: Elements,
    remote: Remote,
    /// It has no entry, also if it fails.
    is_injected: bool,
}

impl Ep {
    /// # Safety
    ///
    /// As for the calls of `fi_atomic`.
    unsafe fn post_atomic(&self, request: &Request) -> Result<isize, Errno> {
        let Request { family, numbers, operands, compare, results, ref remote, .. } = *request;
        let (op, datatype) = named(family, numbers.0, numbers.1)?;
        let size = datatype.size();
        let (open, endpoint) = (self.opened()?, self.engine()?);
        let peer = self.peer(open, remote.peer)?;
        // A read has none, whatever is passed.
        let operands = if op.takes_operands() { operands } else { Elements::NONE };
        // SAFETY: the caller guarantees it.
        let (operands, compare, (results, count)) = unsafe {
            let operands = gather(operands.ioc, operands.count, size)?;
            let compare = gather(compare.ioc, compare.count, size)?;
            (operands, compare, spans(results.ioc, results.count, size)?)
        };
        let atomic =
            Atomic { op, datatype, operands: operands.as_slice(), compare: compare.as_slice() };
        let fetches = family != Family::Base;
        let counted = if fetches { &open.counts.read } else { &open.counts.write };
        let record = Record {
            context: remote.context.addr(),
            // Else it is taken for one that writes.
            flags: if fetches { FI_ATOMIC | FI_READ } else { 0 },
            ..Record::default()
        };
        let (user_data, silent) = match (request.is_injected, counted) {
            (false, counted) => open.transmit.named(remote.flags, counted.as_ref(), record),
            (true, count) => (Record::of_inject(count.clone()).into_user_data(), count.is_none()),
        };
        let options = remote.options(user_data, silent);
        let result = match fetches {
            false => endpoint.post_atomic(peer, remote.at, &atomic, options),
            // SAFETY: the caller guarantees it. The endpoint's drop ends what is outstanding.
            true => unsafe {
                let into = &results[..count];
                endpoint.post_fetch_atomic_raw(peer, remote.at, &atomic, into, options)
            },
        };
        posted(result, user_data)
    }
}

/// The one place that a message names, as long as its pieces.
///
/// # Safety
///
/// The message is one of `fi_atomicmsg` and its kin.
unsafe fn parts(
    msg: *const fi_msg_atomic,
    flags: u64,
) -> Result<(Elements, Remote, (c_int, c_int)), Errno> {
    // SAFETY: the caller guarantees it.
    unsafe {
        let fi_msg_atomic { msg_iov, iov_count, addr, rma_iov, rma_iov_count, context, .. } = *msg;
        if rma_iov_count != 1 {
            return Err(Errno::INVAL);
        }
        let place = *rma_iov;
        let operands = Elements { ioc: msg_iov, count: iov_count };
        let remote = Remote::new(addr, (place.addr, place.key), context, flags);
        Ok((operands, remote, ((*msg).datatype, (*msg).op)))
    }
}

fn piece(buf: *const c_void, count: usize) -> fi_ioc {
    fi_ioc { addr: buf.cast_mut(), count }
}

fn of(ioc: &fi_ioc) -> Elements {
    Elements { ioc, count: 1 }
}

// SAFETY of all that follow: libfabric's caller passes an endpoint that is open, as many pieces as
// its count, and memory as the call requires it.

unsafe extern "C" fn write(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    desc: *mut c_void,
    to: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    context: *mut c_void,
) -> isize {
    let ioc = piece(buf, count);
    let mut desc = desc;
    // SAFETY: see above.
    unsafe { writev(ep, &raw const ioc, &raw mut desc, 1, to, addr, key, datatype, op, context) }
}

unsafe extern "C" fn writev(
    ep: *mut fid_ep,
    ioc: *const fi_ioc,
    _desc: *mut *mut c_void,
    count: usize,
    to: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    context: *mut c_void,
) -> isize {
    // SAFETY: see above.
    border(|| unsafe {
        let ep = object::<Ep>(ep);
        ep.post_atomic(&Request {
            family: Family::Base,
            numbers: (datatype, op),
            operands: Elements { ioc, count },
            compare: Elements::NONE,
            results: Elements::NONE,
            remote: Remote::new(to, (addr, key), context, ep.transmit_flags()),
            is_injected: false,
        })
    })
}

unsafe extern "C" fn writemsg(ep: *mut fid_ep, msg: *const fi_msg_atomic, flags: u64) -> isize {
    // SAFETY: see above.
    border(|| unsafe {
        let (operands, remote, numbers) = parts(msg, flags)?;
        object::<Ep>(ep).post_atomic(&Request {
            family: Family::Base,
            numbers,
            operands,
            compare: Elements::NONE,
            results: Elements::NONE,
            remote,
            is_injected: false,
        })
    })
}

unsafe extern "C" fn inject(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    to: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
) -> isize {
    let ioc = piece(buf, count);
    // SAFETY: see above.
    border(|| unsafe {
        let ep = object::<Ep>(ep);
        let nothing = std::ptr::null_mut();
        ep.post_atomic(&Request {
            family: Family::Base,
            numbers: (datatype, op),
            operands: of(&ioc),
            compare: Elements::NONE,
            results: Elements::NONE,
            remote: Remote::new(to, (addr, key), nothing, ep.transmit_flags()),
            is_injected: true,
        })
    })
}

unsafe extern "C" fn readwrite(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    result: *mut c_void,
    _result_desc: *mut c_void,
    to: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    context: *mut c_void,
) -> isize {
    let (operands, result) = (piece(buf, count), piece(result, count));
    // SAFETY: see above.
    border(|| unsafe {
        let ep = object::<Ep>(ep);
        ep.post_atomic(&Request {
            family: Family::Fetch,
            numbers: (datatype, op),
            operands: of(&operands),
            compare: Elements::NONE,
            results: of(&result),
            remote: Remote::new(to, (addr, key), context, ep.transmit_flags()),
            is_injected: false,
        })
    })
}

unsafe extern "C" fn readwritev(
    ep: *mut fid_ep,
    ioc: *const fi_ioc,
    _desc: *mut *mut c_void,
    count: usize,
    result: *mut fi_ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    to: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    context: *mut c_void,
) -> isize {
    // SAFETY: see above.
    border(|| unsafe {
        let ep = object::<Ep>(ep);
        ep.post_atomic(&Request {
            family: Family::Fetch,
            numbers: (datatype, op),
            operands: Elements { ioc, count },
            compare: Elements::NONE,
            results: Elements { ioc: result, count: result_count },
            remote: Remote::new(to, (addr, key), context, ep.transmit_flags()),
            is_injected: false,
        })
    })
}

unsafe extern "C" fn readwritemsg(
    ep: *mut fid_ep,
    msg: *const fi_msg_atomic,
    result: *mut fi_ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    // SAFETY: see above.
    border(|| unsafe {
        let (operands, remote, numbers) = parts(msg, flags)?;
        object::<Ep>(ep).post_atomic(&Request {
            family: Family::Fetch,
            numbers,
            operands,
            compare: Elements::NONE,
            results: Elements { ioc: result, count: result_count },
            remote,
            is_injected: false,
        })
    })
}

unsafe extern "C" fn compwrite(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    compare: *const c_void,
    _compare_desc: *mut c_void,
    result: *mut c_void,
    _result_desc: *mut c_void,
    to: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    context: *mut c_void,
) -> isize {
    let pieces = (piece(buf, count), piece(compare, count), piece(result, count));
    // SAFETY: see above.
    border(|| unsafe {
        let ep = object::<Ep>(ep);
        ep.post_atomic(&Request {
            family: Family::Compare,
            numbers: (datatype, op),
            operands: of(&pieces.0),
            compare: of(&pieces.1),
            results: of(&pieces.2),
            remote: Remote::new(to, (addr, key), context, ep.transmit_flags()),
            is_injected: false,
        })
    })
}

unsafe extern "C" fn compwritev(
    ep: *mut fid_ep,
    ioc: *const fi_ioc,
    _desc: *mut *mut c_void,
    count: usize,
    compare: *const fi_ioc,
    _compare_desc: *mut *mut c_void,
    compare_count: usize,
    result: *mut fi_ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    to: fi_addr_t,
    addr: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    context: *mut c_void,
) -> isize {
    // SAFETY: see above.
    border(|| unsafe {
        let ep = object::<Ep>(ep);
        ep.post_atomic(&Request {
            family: Family::Compare,
            numbers: (datatype, op),
            operands: Elements { ioc, count },
            compare: Elements { ioc: compare, count: compare_count },
            results: Elements { ioc: result, count: result_count },
            remote: Remote::new(to, (addr, key), context, ep.transmit_flags()),
            is_injected: false,
        })
    })
}

unsafe extern "C" fn compwritemsg(
    ep: *mut fid_ep,
    msg: *const fi_msg_atomic,
    compare: *const fi_ioc,
    _compare_desc: *mut *mut c_void,
    compare_count: usize,
    result: *mut fi_ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    // SAFETY: see above.
    border(|| unsafe {
        let (operands, remote, numbers) = parts(msg, flags)?;
        object::<Ep>(ep).post_atomic(&Request {
            family: Family::Compare,
            numbers,
            operands,
            compare: Elements { ioc: compare, count: compare_count },
            results: Elements { ioc: result, count: result_count },
            remote,
            is_injected: false,
        })
    })
}

/// Writes how many elements one operation of a family has at the most.
///
/// # Safety
///
/// `count` is a place for it, or null.
unsafe fn write_most(
    family: Family,
    (datatype, op): (c_int, c_int),
    count: *mut usize,
) -> Result<(), Errno> {
    let most = most(family, datatype, op)?;
    // SAFETY: the caller guarantees it.
    if let Some(count) = unsafe { count.as_mut() } {
        *count = most;
    }
    Ok(())
}

unsafe extern "C" fn writevalid(
    _ep: *mut fid_ep,
    datatype: c_int,
    op: c_int,
    count: *mut usize,
) -> c_int {
    // SAFETY: see above.
    border_unit(|| unsafe { write_most(Family::Base, (datatype, op), count) })
}

unsafe extern "C" fn readwritevalid(
    _ep: *mut fid_ep,
    datatype: c_int,
    op: c_int,
    count: *mut usize,
) -> c_int {
    // SAFETY: see above.
    border_unit(|| unsafe { write_most(Family::Fetch, (datatype, op), count) })
}

unsafe extern "C" fn compwritevalid(
    _ep: *mut fid_ep,
    datatype: c_int,
    op: c_int,
    count: *mut usize,
) -> c_int {
    // SAFETY: see above.
    border_unit(|| unsafe { write_most(Family::Compare, (datatype, op), count) })
}

/// `fi_query_atomic`.
pub(crate) unsafe extern "C" fn query_atomic(
    _domain: *mut fid_domain,
    datatype: c_int,
    op: c_int,
    attr: *mut fi_atomic_attr,
    flags: u64,
) -> c_int {
    border_unit(|| {
        let family = match flags {
            0 => Family::Base,
            FI_FETCH_ATOMIC => Family::Fetch,
            FI_COMPARE_ATOMIC => Family::Compare,
            _ => return Err(Errno::BADFLAGS),
        };
        let (_, named) = named(family, datatype, op)?;
        // SAFETY: libfabric's caller passes a place for the answer.
        let attr = unsafe { attr.as_mut() }.ok_or(Errno::INVAL)?;
        (attr.count, attr.size) = (Atomic::BYTES_MAX / named.size(), named.size());
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers as libfabric's headers have them.
    #[test]
    fn families_have_their_operations_and_types() {
        let (sum, bit_or, read, compare_swap, masked_swap) = (2, 6, 10, 12, 18);
        let (int64, double, long_double, complex) = (6, 9, 12, 11);
        assert_eq!(most(Family::Base, int64, sum), Ok(64));
        assert_eq!(most(Family::Base, int64, read), Err(Errno::OPNOTSUPP));
        assert_eq!(most(Family::Fetch, double, read), Ok(64));
        assert_eq!(most(Family::Fetch, int64, compare_swap), Err(Errno::OPNOTSUPP));
        assert_eq!(most(Family::Compare, complex, compare_swap), Ok(32));
        assert_eq!(most(Family::Compare, int64, masked_swap), Ok(64));
        assert_eq!(most(Family::Compare, double, masked_swap), Err(Errno::OPNOTSUPP));
        assert_eq!(most(Family::Base, double, bit_or), Err(Errno::OPNOTSUPP));
        for (datatype, op) in [(long_double, sum), (-1, sum), (int64, 300)] {
            assert_eq!(most(Family::Base, datatype, op), Err(Errno::OPNOTSUPP));
        }
    }
}
