//! Address vectors as C calls them.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::Arc;

use super::{Av, Entries};
use crate::abi::consts::{
    FI_ADDR_NOTAVAIL, FI_AV_COMPLETE, FI_AV_MAP, FI_AV_TABLE, FI_AV_UNSPEC, FI_CLASS_AV, FI_EVENT,
};
use crate::abi::fids::{fid, fid_av, fid_domain};
use crate::abi::info::fi_av_attr;
use crate::abi::messages::{fi_addr_t, fi_eq_entry};
use crate::abi::ops::{fi_ops, fi_ops_av};
use crate::address::{Encoded, Format, Location, copy_out};
use crate::domain::Domain;
use crate::eq::{Eq, ErrorEntry};
use crate::errno::Errno;
use crate::fid::{Header, border, border_unit, close, hand_out, object, share};
use crate::info::places::resolve;

/// An insert reports the error of each address, in the array at its context.
const FI_SYNC_ERR: u64 = 1 << 58;

static FID_OPS: fi_ops = fi_ops { close: close_av, bind, ..fi_ops::ENOSYS };
static OPS: fi_ops_av =
    fi_ops_av { insert, insertsvc, remove, lookup, straddr, ..fi_ops_av::ENOSYS };

/// `fi_av_open`.
pub(crate) unsafe extern "C" fn av_open(
    domain: *mut fid_domain,
    attr: *mut fi_av_attr,
    into: *mut *mut fid_av,
    context: *mut c_void,
) -> c_int {
    border_unit(|| {
        // SAFETY: libfabric's caller passes a domain that is open, an attribute or none, and where
        // the vector goes.
        unsafe {
            let domain: Arc<Domain> = share(domain.cast()).ok_or(Errno::INVAL)?;
            let mut flags = 0;
            if let Some(attr) = attr.as_mut() {
                if !attr.name.is_null() || !attr.map_addr.is_null() {
                    tracing::info!("address vectors that processes share are not offered");
                    return Err(Errno::NOSYS);
                }
                match attr.r#type {
                    FI_AV_UNSPEC => attr.r#type = FI_AV_TABLE,
                    FI_AV_MAP | FI_AV_TABLE => {}
                    _ => return Err(Errno::INVAL),
                }
                flags = attr.flags;
            }
            if flags & !FI_EVENT != 0 {
                tracing::info!("flags {flags:#x} of an address vector are not offered");
                return Err(Errno::NOSYS);
            }
            let fid = fid { fclass: FI_CLASS_AV, context, ops: &raw const FID_OPS };
            let header = Header::new(fid_av { fid, ops: &raw const OPS });
            let format = domain.format();
            *into = hand_out(Arc::new(Av {
                header,
                domain,
                format,
                is_asynchronous: flags & FI_EVENT != 0,
                eq: Default::default(),
                table: Default::default(),
                entries: Entries::default().into(),
                by_peer: Default::default(),
            }));
        }
        Ok(())
    })
}

unsafe extern "C" fn close_av(fid: *mut fid) -> c_int {
    // SAFETY: libfabric's caller closes a vector once.
    border_unit(|| unsafe { close::<Av>(fid) })
}

unsafe extern "C" fn bind(fid: *mut fid, other: *mut fid, flags: u64) -> c_int {
    border_unit(|| {
        if flags != 0 {
            return Err(Errno::BADFLAGS);
        }
        // SAFETY: libfabric's caller passes objects that are open.
        unsafe {
            let queue = share::<Eq>(other).ok_or(Errno::INVAL)?;
            let av = object::<Av>(fid.cast());
            queue.check_fabric(av.domain().fabric())?;
            *av.eq() = Some(queue);
        }
        Ok(())
    })
}

/// Where the results of an insert go.
struct Results<'a> {
    av: &'a Av,
    addresses: Option<&'a mut [fi_addr_t]>,
    /// With `FI_SYNC_ERR`.
    errors: Option<&'a mut [c_int]>,
    context: *mut c_void,
    inserted: usize,
}

impl Results<'_> {
    fn note(&mut self, index: usize, result: Result<fi_addr_t, Errno>) {
        if let Some(addresses) = &mut self.addresses {
            addresses[index] = result.unwrap_or(FI_ADDR_NOTAVAIL);
        }
        if let Some(errors) = &mut self.errors {
            errors[index] = result.err().map_or(0, Errno::number);
        }
        match result {
            Ok(_) => self.inserted += 1,
            Err(errno) if self.av.is_asynchronous => {
                if let Some(eq) = &*self.av.eq() {
                    eq.push_error(ErrorEntry {
                        fid: self.av.header.as_ptr().cast(),
                        context: self.context,
                        data: index as u64,
                        errno,
                        error_data: Vec::new(),
                    });
                }
            }
            Err(_) => {}
        }
    }

    /// Returns the result of the call.
    fn finish(self) -> Result<c_int, Errno> {
        let inserted = c_int::try_from(self.inserted).map_err(|_| Errno::NOSPC)?;
        if !self.av.is_asynchronous {
            return Ok(inserted);
        }
        let (fid, context) = (self.av.header.as_ptr().cast(), self.context);
        let entry = fi_eq_entry { fid, context, data: self.inserted as u64 };
        self.av.eq().as_ref().ok_or(Errno::NOEQ)?.push(FI_AV_COMPLETE, entry);
        Ok(0)
    }
}

/// # Safety
///
/// `addresses` is null or has room for `count`, `context` as well where `flags` say so.
unsafe fn results<'a>(
    av: &'a Av,
    addresses: *mut fi_addr_t,
    count: usize,
    flags: u64,
    context: *mut c_void,
) -> Result<Results<'a>, Errno> {
    if av.is_asynchronous && av.eq().is_none() {
        return Err(Errno::NOEQ);
    }
    // SAFETY: the caller guarantees it.
    let (addresses, errors) = unsafe {
        let has_errors = flags & FI_SYNC_ERR != 0 && !context.is_null();
        (
            (!addresses.is_null()).then(|| std::slice::from_raw_parts_mut(addresses, count)),
            has_errors.then(|| std::slice::from_raw_parts_mut(context.cast(), count)),
        )
    };
    Ok(Results { av, addresses, errors, context, inserted: 0 })
}

unsafe extern "C" fn insert(
    av: *mut fid_av,
    addresses: *const c_void,
    count: usize,
    into: *mut fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    border(|| {
        // SAFETY: libfabric's caller passes a vector that is open, and room for what it inserts.
        let av = unsafe { object::<Av>(av) };
        // SAFETY: as above.
        let mut results = unsafe { results(av, into, count, flags, context) }?;
        let length = av.format.len();
        if addresses.is_null() && count > 0 {
            return Err(Errno::INVAL);
        }
        for index in 0..count {
            // SAFETY: as above: addresses of this format follow each other.
            let bytes = unsafe {
                std::slice::from_raw_parts(addresses.cast::<u8>().add(index * length), length)
            };
            let location = av.format.decode(bytes);
            let result = location.and_then(|it| av.insert(it, written(av.format, it)));
            results.note(index, result);
        }
        results.finish()
    })
}

fn written(format: Format, location: Location) -> Encoded {
    match location {
        Location::Endpoint(address) => format.encode(&address),
        Location::Place(place) => format.encode_place(place),
    }
}

unsafe extern "C" fn insertsvc(
    av: *mut fid_av,
    node: *const c_char,
    service: *const c_char,
    into: *mut fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    border(|| {
        // SAFETY: libfabric's caller passes a vector that is open, texts that end with a 0 or null,
        // and room for an address.
        let (av, node, service) =
            unsafe { (object::<Av>(av), crate::info::text(node), crate::info::text(service)) };
        // SAFETY: as above.
        let mut results = unsafe { results(av, into, 1, flags, context) }?;
        let is_ipv6 = match av.format {
            Format::Opaque => None,
            Format::Ipv4 => Some(false),
            Format::Ipv6 => Some(true),
        };
        let place = resolve(node.as_deref(), service.as_deref(), false, is_ipv6);
        let result = place
            .and_then(|place| av.insert(Location::Place(place), av.format.encode_place(place)));
        results.note(0, result);
        results.finish()
    })
}

unsafe extern "C" fn remove(
    av: *mut fid_av,
    addresses: *mut fi_addr_t,
    count: usize,
    flags: u64,
) -> c_int {
    border_unit(|| {
        if flags != 0 {
            return Err(Errno::BADFLAGS);
        }
        if count == 0 {
            return Ok(());
        }
        if addresses.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: libfabric's caller passes a vector that is open, and so many addresses.
        let (av, addresses) =
            unsafe { (object::<Av>(av), std::slice::from_raw_parts(addresses, count)) };
        let mut answer = Ok(());
        for &address in addresses {
            answer = answer.and(av.remove(address));
        }
        answer
    })
}

unsafe extern "C" fn lookup(
    av: *mut fid_av,
    address: fi_addr_t,
    into: *mut c_void,
    length: *mut usize,
) -> c_int {
    border_unit(|| {
        // SAFETY: libfabric's caller passes a vector that is open, and a buffer with its length.
        unsafe {
            let written = object::<Av>(av).lookup(address)?;
            match copy_out(&written, into, length) {
                // A look-up reports the whole length, and may copy only a part.
                Err(Errno::TOOSMALL) if !into.is_null() => Ok(()),
                answer => answer,
            }
        }
    })
}

unsafe extern "C" fn straddr(
    av: *mut fid_av,
    address: *const c_void,
    into: *mut c_char,
    length: *mut usize,
) -> *const c_char {
    border(|| {
        if address.is_null() || length.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: libfabric's caller passes a vector that is open, an address of its format, and a
        // buffer with its length.
        unsafe {
            let format = object::<Av>(av).format;
            let bytes = std::slice::from_raw_parts(address.cast::<u8>(), format.len());
            let text = format.decode(bytes)?.to_string();
            write_text(&text, into, *length);
            *length = text.len() + 1;
        }
        Ok(into.cast_const())
    })
}

/// Writes as much of `text` as there is room for, with a 0 behind.
///
/// # Safety
///
/// `into` is null or has `room` bytes.
pub(super) unsafe fn write_text(text: &str, into: *mut c_char, room: usize) {
    if into.is_null() || room == 0 {
        return;
    }
    let fitting = text.len().min(room - 1);
    // SAFETY: the caller guarantees it.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), into.cast(), fitting);
        *into.add(fitting) = 0;
        debug_assert!(CStr::from_ptr(into).count_bytes() <= fitting);
    }
}
