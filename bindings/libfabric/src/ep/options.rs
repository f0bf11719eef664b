//! Options of endpoints, and cancelling.

use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;

use super::Ep;
use crate::abi::consts::{
    FI_OPT_CM_DATA_SIZE, FI_OPT_CUDA_API_PERMITTED, FI_OPT_ENDPOINT, FI_OPT_INJECT_ATOMIC_SIZE,
    FI_OPT_INJECT_MSG_SIZE, FI_OPT_INJECT_RMA_SIZE, FI_OPT_INJECT_TAGGED_SIZE,
    FI_OPT_MAX_ATOMIC_SIZE, FI_OPT_MAX_MSG_SIZE, FI_OPT_MAX_RMA_SIZE, FI_OPT_MAX_TAGGED_SIZE,
    FI_OPT_MIN_MULTI_RECV, FI_OPT_SHARED_MEMORY_PERMITTED,
};
use crate::abi::fids::fid;
use crate::abi::ops::fi_ops_ep;
use crate::cq::name;
use crate::errno::Errno;
use crate::fid::{border, border_unit, find};

pub(super) static OPS: fi_ops_ep = fi_ops_ep { cancel, getopt, setopt, ..fi_ops_ep::ENOSYS };

impl Ep {
    fn size_of_option(&self, option: c_int) -> Result<usize, Errno> {
        let settings = self.domain.engine().domain().settings();
        match option {
            FI_OPT_MIN_MULTI_RECV => Ok(self.min_multi_recv.load(Ordering::Relaxed)),
            FI_OPT_CM_DATA_SIZE => Ok(ringrail::PRIVATE_DATA_MAX),
            FI_OPT_MAX_MSG_SIZE | FI_OPT_MAX_TAGGED_SIZE | FI_OPT_MAX_RMA_SIZE => {
                Ok(isize::MAX as usize)
            }
            FI_OPT_MAX_ATOMIC_SIZE | FI_OPT_INJECT_ATOMIC_SIZE => Ok(ringrail::Atomic::BYTES_MAX),
            FI_OPT_INJECT_MSG_SIZE | FI_OPT_INJECT_TAGGED_SIZE | FI_OPT_INJECT_RMA_SIZE => {
                Ok(settings.inject_limit_bytes())
            }
            _ => Err(Errno::NOPROTOOPT),
        }
    }
}

unsafe extern "C" fn getopt(
    fid: *mut fid,
    level: c_int,
    option: c_int,
    value: *mut c_void,
    len: *mut usize,
) -> c_int {
    border_unit(|| {
        // SAFETY: libfabric's caller passes an open endpoint, and a buffer of the given length.
        unsafe {
            let ep = find::<Ep>(fid).ok_or(Errno::INVAL)?;
            if level != FI_OPT_ENDPOINT {
                return Err(Errno::NOPROTOOPT);
            }
            let size = ep.size_of_option(option)?;
            let given = std::mem::replace(&mut *len, size_of::<usize>());
            if given < size_of::<usize>() {
                return Err(Errno::TOOSMALL);
            }
            value.cast::<usize>().write_unaligned(size);
        }
        Ok(())
    })
}

unsafe extern "C" fn setopt(
    fid: *mut fid,
    level: c_int,
    option: c_int,
    value: *const c_void,
    len: usize,
) -> c_int {
    border_unit(|| {
        // SAFETY: libfabric's caller passes an endpoint that is open, and a value of the length
        // that it passes.
        unsafe {
            let ep = find::<Ep>(fid).ok_or(Errno::INVAL)?;
            if level != FI_OPT_ENDPOINT {
                return Err(Errno::NOPROTOOPT);
            }
            // There is no memory of devices, and none is shared: it makes no difference.
            if matches!(option, FI_OPT_CUDA_API_PERMITTED | FI_OPT_SHARED_MEMORY_PERMITTED) {
                return Ok(());
            }
            let known = ep.size_of_option(option)?;
            if len != size_of::<usize>() {
                return Err(Errno::INVAL);
            }
            let wanted = value.cast::<usize>().read_unaligned();
            match option {
                FI_OPT_MIN_MULTI_RECV => {
                    ep.min_multi_recv.store(wanted, Ordering::Relaxed);
                    Ok(())
                }
                // What there is, is there however little is asked for.
                _ if wanted <= known => Ok(()),
                _ => Err(Errno::INVAL),
            }
        }
    })
}

unsafe extern "C" fn cancel(fid: *mut fid, context: *mut c_void) -> isize {
    border(|| {
        // SAFETY: libfabric's caller passes an endpoint that is open.
        let ep = unsafe { find::<Ep>(fid) }.ok_or(Errno::INVAL)?;
        // SAFETY: the engine has the operation, so that it has not ended.
        let is_wanted = |user_data| unsafe { name::has_context(user_data, context.addr()) };
        match ep.engine()?.cancel_where(is_wanted) {
            true => Ok(0),
            false => Err(Errno::NOENT),
        }
    })
}
