//! `fi_fabric`: the root of what an application opens.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use crate::abi::consts::{FI_CLASS_CNTR, FI_CLASS_CQ, FI_CLASS_EQ, FI_CLASS_FABRIC};
use crate::abi::fids::{fid, fid_domain, fid_fabric};
use crate::abi::info::{fi_fabric_attr, fi_info};
use crate::abi::ops::{fi_ops, fi_ops_fabric};
use crate::cntr::Cntr;
use crate::cq::Cq;
use crate::eq::{self, Eq};
use crate::errno::Errno;
use crate::fid::{Header, Object, border_unit, close, find, hand_out, share};
use crate::info::Given;
use crate::info::offer::FABRIC_NAME;
use crate::{domain, pep};

/// A fabric.
#[repr(C)]
pub(crate) struct Fabric {
    header: Header<fid_fabric>,
    /// The API version of the application, which determines the lengths of its structures.
    pub(crate) api_version: u32,
}

// SAFETY: it is `repr(C)`, and begins with its header.
unsafe impl Object for Fabric {
    type Fid = fid_fabric;
    const CLASS: usize = FI_CLASS_FABRIC;
}

static FID_OPS: fi_ops = fi_ops { close: close_fabric, ..fi_ops::ENOSYS };
static OPS: fi_ops_fabric = fi_ops_fabric {
    domain: open_domain,
    domain2: open_domain2,
    passive_ep: pep::passive_ep,
    eq_open: eq::eq_open,
    trywait,
    ..fi_ops_fabric::ENOSYS
};

/// `fi_fabric`.
///
/// # Safety
///
/// As libfabric calls it: `attr` and `fabric` are valid.
pub(crate) unsafe fn open(
    attr: *const fi_fabric_attr,
    fabric: *mut *mut fid_fabric,
    context: *mut c_void,
) -> Result<(), Errno> {
    // SAFETY: the caller guarantees it; an attribute is as long in all versions.
    let (api_version, name) = unsafe {
        let attr = attr.as_ref().ok_or(Errno::INVAL)?;
        (attr.api_version, crate::info::text(attr.name))
    };
    if name.is_some_and(|name| name != FABRIC_NAME) {
        return Err(Errno::INVAL);
    }
    let fid = fid { fclass: FI_CLASS_FABRIC, context, ops: &raw const FID_OPS };
    let header = Header::new(fid_fabric { fid, ops: &raw const OPS, api_version });
    // SAFETY: the caller guarantees it.
    unsafe { *fabric = hand_out(Arc::new(Fabric { header, api_version })) };
    Ok(())
}

unsafe extern "C" fn close_fabric(fid: *mut fid) -> c_int {
    // SAFETY: libfabric's caller closes a fabric once.
    border_unit(|| unsafe { close::<Fabric>(fid) })
}

unsafe extern "C" fn open_domain(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    into: *mut *mut fid_domain,
    context: *mut c_void,
) -> c_int {
    border_unit(|| {
        // SAFETY: libfabric's caller passes a fabric that is open, an info that libfabric has
        // allocated, and where the domain goes.
        unsafe {
            let fabric: Arc<Fabric> = share(fabric.cast()).ok_or(Errno::INVAL)?;
            let given = Given::read(info, fabric.api_version).ok_or(Errno::INVAL)?;
            *into = hand_out(domain::open(fabric, &given, context)?);
        }
        Ok(())
    })
}

unsafe extern "C" fn open_domain2(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    into: *mut *mut fid_domain,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    if flags != 0 {
        // `FI_PEER`: a domain that is part of another provider's.
        return -Errno::NOSYS.number();
    }
    // SAFETY: as for the other.
    unsafe { open_domain(fabric, info, into, context) }
}

/// Prepares a sleep by the descriptors of `fids`: `FI_EAGAIN` when one of them has something.
unsafe extern "C" fn trywait(_: *mut fid_fabric, fids: *mut *mut fid, count: c_int) -> c_int {
    border_unit(|| {
        let count = usize::try_from(count).map_err(|_| Errno::INVAL)?;
        if count == 0 {
            return Ok(());
        }
        // SAFETY: libfabric's caller passes so many objects, all open.
        let fids = unsafe { std::slice::from_raw_parts(fids, count) };
        for &fid in fids {
            if fid.is_null() {
                return Err(Errno::INVAL);
            }
            // SAFETY: as above.
            unsafe {
                match (*fid).fclass {
                    FI_CLASS_CQ => find::<Cq>(fid).ok_or(Errno::INVAL)?.trywait()?,
                    FI_CLASS_CNTR => find::<Cntr>(fid).ok_or(Errno::INVAL)?.trywait()?,
                    FI_CLASS_EQ => find::<Eq>(fid).ok_or(Errno::INVAL)?.trywait()?,
                    _ => return Err(Errno::NOSYS),
                }
            }
        }
        Ok(())
    })
}
