//! Memory that peers may reach.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use ringrail::{Access, KeyOptions, RawSpan, Region, Shared};

use crate::abi::consts::{
    FI_CLASS_CNTR, FI_CLASS_DOMAIN, FI_CLASS_EP, FI_CLASS_MR, FI_ENABLE, FI_KEY_NOTAVAIL,
    FI_REMOTE_READ, FI_REMOTE_WRITE, FI_RMA_EVENT,
};
use crate::abi::fids::{fid, fid_mr};
use crate::abi::info::fi_mr_attr;
use crate::abi::messages::iovec;
use crate::abi::ops::{fi_ops, fi_ops_mr};
use crate::cntr::Cntr;
use crate::domain::Domain;
use crate::ep::Ep;
use crate::errno::Errno;
use crate::fid::{Header, Object, border_unit, close, find, hand_out, share};

/// The part of memory that counters look at.
pub(crate) struct RegisteredRegion(Region<Shared>);

impl RegisteredRegion {
    /// Returns how many operations peers have done on it, of the kinds in `flags`.
    pub(crate) fn done(&self, flags: u64) -> u64 {
        let counts = self.0.counters();
        let written = if flags & FI_REMOTE_WRITE == 0 { 0 } else { counts.puts + counts.atomics };
        let read = if flags & FI_REMOTE_READ == 0 { 0 } else { counts.gets };
        written + read
    }
}

/// A memory region.
#[repr(C)]
pub(crate) struct Mr {
    header: Header<fid_mr>,
    /// `None`: it is for this side's operations alone, which need none.
    registered: Option<Arc<RegisteredRegion>>,
    counters: Mutex<Vec<Arc<Cntr>>>,
    domain: Arc<Domain>,
}

// SAFETY: it is `repr(C)`, and begins with its header.
unsafe impl Object for Mr {
    type Fid = fid_mr;
    const CLASS: usize = FI_CLASS_MR;
}

static FID_OPS: fi_ops = fi_ops { close: close_mr, bind, control, ..fi_ops::ENOSYS };
pub(crate) static OPS: fi_ops_mr = fi_ops_mr { reg, regv, regattr, ..fi_ops_mr::ENOSYS };

/// The arguments of a registration.
struct Request {
    memory: RawSpan,
    access: u64,
    key: u64,
    context: *mut c_void,
}

impl Mr {
    /// # Safety
    ///
    /// The memory is the application's, as `fi_mr_reg` asks for it, until the region is closed.
    unsafe fn register(domain: &Arc<Domain>, request: &Request) -> Result<Arc<Self>, Errno> {
        let Request { memory, access, key, context } = *request;
        let mut rights = Access::empty();
        if access & FI_REMOTE_READ != 0 {
            rights |= Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        }
        if access & FI_REMOTE_WRITE != 0 {
            rights |= Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        }
        let registered = if rights.is_empty() {
            None
        } else {
            let end = memory.ptr.addr().checked_add(memory.len);
            // All of memory, or much of it: MPI's dynamic windows. No allocation is that large.
            let is_vast = memory.ptr.is_null() || end.is_none() || memory.len > 1 << 46;
            let region = match is_vast {
                // SAFETY: the caller guarantees it; what is not mapped is refused.
                true => unsafe { domain.engine().register_unmapped(memory) },
                // SAFETY: the caller guarantees it.
                false => unsafe { domain.engine().register_raw(memory) },
            }?;
            let options = KeyOptions { key: Some(key), ..KeyOptions::new(rights) };
            region.key(&options).map_err(|error| {
                tracing::debug!(key, "no key of a region: {error}");
                Errno::NOKEY
            })?;
            let registered = Arc::new(RegisteredRegion(region));
            domain.remote.add(&registered);
            Some(registered)
        };
        let fid = fid { fclass: FI_CLASS_MR, context, ops: &FID_OPS };
        let header = Header::new(fid_mr { fid, mem_desc: std::ptr::null_mut(), key });
        let (counters, domain) = (Mutex::default(), Arc::clone(domain));
        Ok(Arc::new(Self { header, registered, counters, domain }))
    }
}

impl Drop for Mr {
    /// Revokes the key; the memory is not accessed any more when this returns.
    fn drop(&mut self) {
        if let Some(registered) = &self.registered {
            let counters = self.counters.get_mut().unwrap_or_else(PoisonError::into_inner);
            counters.iter().for_each(|counter| counter.keeps(registered));
            self.domain.remote.remove(registered);
        }
    }
}

/// Registers one piece of memory.
///
/// # Safety
///
/// As for `fi_mr_regattr`.
unsafe fn register(
    domain: *mut fid,
    pieces: &[iovec],
    (access, offset, key, flags): (u64, u64, u64, u64),
    mr: *mut *mut fid_mr,
    context: *mut c_void,
) -> Result<(), Errno> {
    let [piece] = pieces else {
        tracing::debug!(pieces = pieces.len(), "a region is one piece of memory (mr_iov_limit)");
        return Err(Errno::INVAL);
    };
    // Counters of remote accesses need no flag.
    if flags & !FI_RMA_EVENT != 0 {
        return Err(Errno::BADFLAGS);
    }
    if offset != 0 || key == FI_KEY_NOTAVAIL {
        return Err(Errno::INVAL);
    }
    let memory = RawSpan { ptr: piece.iov_base.cast(), len: piece.iov_len };
    let request = Request { memory, access, key, context };
    // SAFETY: the caller guarantees it.
    unsafe {
        let domain = share::<Domain>(domain).ok_or(Errno::INVAL)?;
        *mr = hand_out(Mr::register(&domain, &request)?);
    }
    Ok(())
}

unsafe extern "C" fn reg(
    domain: *mut fid,
    buf: *const c_void,
    len: usize,
    access: u64,
    offset: u64,
    requested_key: u64,
    flags: u64,
    mr: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    let piece = iovec { iov_base: buf.cast_mut(), iov_len: len };
    let request = (access, offset, requested_key, flags);
    // SAFETY: libfabric's caller passes a domain, memory of its own, and a place for the region.
    border_unit(|| unsafe { register(domain, &[piece], request, mr, context) })
}

unsafe extern "C" fn regv(
    domain: *mut fid,
    iov: *const iovec,
    count: usize,
    access: u64,
    offset: u64,
    requested_key: u64,
    flags: u64,
    mr: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    border_unit(|| {
        if iov.is_null() || count == 0 {
            return Err(Errno::INVAL);
        }
        // SAFETY: libfabric's caller passes as many pieces; else as for `reg`.
        unsafe {
            let pieces = std::slice::from_raw_parts(iov, count);
            register(domain, pieces, (access, offset, requested_key, flags), mr, context)
        }
    })
}

unsafe extern "C" fn regattr(
    domain: *mut fid,
    attr: *const fi_mr_attr,
    flags: u64,
    mr: *mut *mut fid_mr,
) -> c_int {
    border_unit(|| {
        if attr.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: libfabric's caller passes attributes, of which all versions have these fields;
        // else as for `reg`.
        unsafe {
            let (iov, count) = ((*attr).mr_iov, (*attr).iov_count);
            if iov.is_null() || count == 0 {
                return Err(Errno::INVAL);
            }
            let pieces = std::slice::from_raw_parts(iov, count);
            let request = ((*attr).access, (*attr).offset, (*attr).requested_key, flags);
            register(domain, pieces, request, mr, (*attr).context)
        }
    })
}

unsafe extern "C" fn close_mr(fid: *mut fid) -> c_int {
    // SAFETY: libfabric's caller closes a region once.
    border_unit(|| unsafe { close::<Mr>(fid) })
}

unsafe extern "C" fn bind(fid: *mut fid, other: *mut fid, flags: u64) -> c_int {
    border_unit(|| {
        // SAFETY: libfabric's caller passes objects that are open.
        unsafe {
            let mr = find::<Mr>(fid).ok_or(Errno::INVAL)?;
            match other.as_ref().map(|other| other.fclass) {
                Some(FI_CLASS_CNTR) => {
                    let counter = share::<Cntr>(other).ok_or(Errno::INVAL)?;
                    mr.domain.check_own(counter.domain(), "counter")?;
                    if let Some(registered) = &mr.registered {
                        counter.watches(registered, flags);
                    }
                    mr.counters.lock().unwrap_or_else(PoisonError::into_inner).push(counter);
                    Ok(())
                }
                // Every endpoint of the domain reaches it.
                Some(FI_CLASS_EP) => {
                    let ep = find::<Ep>(other).ok_or(Errno::INVAL)?;
                    mr.domain.check_own(ep.domain(), "endpoint")
                }
                Some(FI_CLASS_DOMAIN) => {
                    let domain = find::<Domain>(other).ok_or(Errno::INVAL)?;
                    mr.domain.check_own(domain, "domain")
                }
                _ => Err(Errno::INVAL),
            }
        }
    })
}

unsafe extern "C" fn control(_fid: *mut fid, command: c_int, _argument: *mut c_void) -> c_int {
    border_unit(|| match command {
        // It is from the beginning.
        FI_ENABLE => Ok(()),
        _ => Err(Errno::NOSYS),
    })
}
