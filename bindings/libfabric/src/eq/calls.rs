//! Event queues as C calls them.

use std::ffi::{c_char, c_int, c_void};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};

use super::entry::Entry;
use super::source::Sources;
use super::{Entries, Eq};
use crate::abi::consts::{
    FI_CLASS_EQ, FI_GETWAIT, FI_GETWAITOBJ, FI_PEEK, FI_WAIT_FD, FI_WAIT_NONE, FI_WAIT_POLLFD,
    FI_WAIT_UNSPEC, FI_WAIT_YIELD, FI_WRITE, version,
};
use crate::abi::fids::{fid, fid_eq, fid_fabric};
use crate::abi::info::{fi_eq_attr, fi_wait_pollfd};
use crate::abi::messages::fi_eq_err_entry;
use crate::abi::ops::{fi_ops, fi_ops_eq};
use crate::errno::Errno;
use crate::fabric::Fabric;
use crate::fid::{Header, border, border_unit, close, hand_out, object, share};

static FID_OPS: fi_ops = fi_ops { close: close_eq, control, ..fi_ops::ENOSYS };
static OPS: fi_ops_eq = fi_ops_eq { read, readerr, write, sread, strerror, ..fi_ops_eq::ENOSYS };

/// `fi_eq_open`.
pub(crate) unsafe extern "C" fn eq_open(
    fabric: *mut fid_fabric,
    attr: *mut fi_eq_attr,
    into: *mut *mut fid_eq,
    context: *mut c_void,
) -> c_int {
    border_unit(|| {
        // SAFETY: libfabric's caller passes a fabric that is open, an attribute or none, and where
        // the queue goes.
        unsafe {
            let fabric: Arc<Fabric> = share(fabric.cast()).ok_or(Errno::INVAL)?;
            let (wait_obj, flags) =
                attr.as_ref().map_or((FI_WAIT_NONE, 0), |attr| (attr.wait_obj, attr.flags));
            match wait_obj {
                FI_WAIT_NONE | FI_WAIT_UNSPEC | FI_WAIT_FD | FI_WAIT_POLLFD | FI_WAIT_YIELD => {}
                _ => {
                    tracing::info!("an event queue cannot be waited for by {wait_obj}");
                    return Err(Errno::NOSYS);
                }
            }
            let fid = fid { fclass: FI_CLASS_EQ, context, ops: &raw const FID_OPS };
            let header = Header::new(fid_eq { fid, ops: &raw const OPS });
            let bell = Eq::new_bell()?;
            let sources = Sources::new(bell.as_fd())?;
            *into = hand_out(Arc::new(Eq {
                header,
                fabric,
                wait_obj,
                is_writable: flags & FI_WRITE != 0,
                entries: Mutex::new(Entries::default()),
                bell,
                sources,
            }));
        }
        Ok(())
    })
}

unsafe extern "C" fn close_eq(fid: *mut fid) -> c_int {
    // SAFETY: libfabric's caller closes a queue once.
    border_unit(|| unsafe { close::<Eq>(fid) })
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, argument: *mut c_void) -> c_int {
    border_unit(|| {
        if argument.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: libfabric's caller passes a queue that is open, and for each command what that
        // writes to.
        unsafe {
            let eq = object::<Eq>(fid.cast());
            match (command, eq.wait_obj) {
                (FI_GETWAITOBJ, wait_obj) => *argument.cast::<c_int>() = wait_obj,
                (FI_GETWAIT, FI_WAIT_FD | FI_WAIT_UNSPEC) => {
                    *argument.cast::<c_int>() = eq.raw_wait_fd();
                }
                (FI_GETWAIT, FI_WAIT_POLLFD) => {
                    let asked = &mut *argument.cast::<fi_wait_pollfd>();
                    let room = asked.nfds;
                    asked.nfds = 1;
                    asked.change_index = 1;
                    if room < 1 || asked.fd.is_null() {
                        return Err(Errno::TOOSMALL);
                    }
                    let (fd, events) = (eq.raw_wait_fd(), libc::POLLIN);
                    *asked.fd = libc::pollfd { fd, events, revents: 0 };
                }
                (FI_GETWAIT, _) => return Err(Errno::NODATA),
                _ => return Err(Errno::NOSYS),
            }
        }
        Ok(())
    })
}

/// # Safety
///
/// It is null or has `length` bytes.
unsafe fn room<'a>(buffer: *mut c_void, length: usize) -> &'a mut [u8] {
    if buffer.is_null() {
        return &mut [];
    }
    // SAFETY: the caller guarantees it.
    unsafe { std::slice::from_raw_parts_mut(buffer.cast(), length) }
}

unsafe extern "C" fn read(
    eq: *mut fid_eq,
    event: *mut u32,
    buffer: *mut c_void,
    length: usize,
    flags: u64,
) -> isize {
    border(|| {
        // SAFETY: libfabric's caller passes a queue that is open, and room for an event.
        let (eq, into) = unsafe { (object::<Eq>(eq), room(buffer, length)) };
        let (number, length) = eq.read(into, flags & FI_PEEK != 0)?;
        // SAFETY: as above.
        unsafe { *event = number };
        Ok(length as isize)
    })
}

unsafe extern "C" fn sread(
    eq: *mut fid_eq,
    event: *mut u32,
    buffer: *mut c_void,
    length: usize,
    timeout: c_int,
    flags: u64,
) -> isize {
    border(|| {
        // SAFETY: libfabric's caller passes a queue that is open, and room for an event.
        let (eq, into) = unsafe { (object::<Eq>(eq), room(buffer, length)) };
        if eq.wait_obj == FI_WAIT_NONE {
            return Err(Errno::NOSYS);
        }
        let (number, length) = eq.wait(into, flags & FI_PEEK != 0, timeout)?;
        // SAFETY: as above.
        unsafe { *event = number };
        Ok(length as isize)
    })
}

unsafe extern "C" fn readerr(eq: *mut fid_eq, into: *mut fi_eq_err_entry, flags: u64) -> isize {
    border(|| {
        // SAFETY: libfabric's caller passes a queue that is open, and an entry, which has the
        // address for its data.
        unsafe {
            let eq = object::<Eq>(eq);
            let into = into.as_mut().ok_or(Errno::INVAL)?;
            let mut entries = eq.entries();
            let Some(Entry::Error(found)) = entries.list.front() else {
                return Err(Errno::AGAIN);
            };
            into.fid = found.fid;
            into.context = found.context;
            into.data = found.data;
            into.err = found.errno.number();
            into.prov_errno = found.errno.number();
            let data = found.error_data.clone();
            let is_new = eq.fabric.api_version >= version(1, 5);
            if is_new && into.err_data_size > 0 && !into.err_data.is_null() {
                let length = data.len().min(into.err_data_size);
                std::ptr::copy_nonoverlapping(data.as_ptr(), into.err_data.cast(), length);
                into.err_data_size = length;
            } else {
                into.err_data_size = data.len();
                entries.error_data = data;
                let kept = &entries.error_data;
                into.err_data = if kept.is_empty() {
                    std::ptr::null_mut()
                } else {
                    kept.as_ptr().cast_mut().cast()
                };
            }
            if flags & FI_PEEK == 0 {
                entries.list.pop_front();
                eq.taken(&entries);
            }
            Ok(size_of::<fi_eq_err_entry>() as isize)
        }
    })
}

unsafe extern "C" fn write(
    eq: *mut fid_eq,
    event: u32,
    buffer: *const c_void,
    length: usize,
    _flags: u64,
) -> isize {
    border(|| {
        // SAFETY: libfabric's caller passes a queue that is open, and an event of that length.
        let (eq, bytes) = unsafe { (object::<Eq>(eq), &*room(buffer.cast_mut(), length)) };
        if !eq.is_writable {
            tracing::info!("an event queue is written to that was opened without FI_WRITE");
            return Err(Errno::INVAL);
        }
        eq.put(Entry::Event { event, bytes: bytes.to_vec() });
        Ok(length as isize)
    })
}

unsafe extern "C" fn strerror(
    _: *mut fid_eq,
    prov_errno: c_int,
    _: *const c_void,
    buffer: *mut c_char,
    length: usize,
) -> *const c_char {
    // SAFETY: libfabric's caller passes a buffer with its length, or none.
    border(|| unsafe { Ok(crate::errno::text(prov_errno, buffer, length)) })
}
