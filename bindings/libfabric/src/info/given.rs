//! An info that an application hands in, copied out of its memory.

use std::ffi::{CStr, c_char, c_void};
use std::mem::{MaybeUninit, offset_of};

use crate::abi::consts::version;
use crate::abi::fids::fid;
use crate::abi::info::{
    fi_domain_attr, fi_ep_attr, fi_fabric_attr, fi_info, fi_rx_attr, fi_tx_attr,
};
use crate::address::{Format, Location};
use crate::errno::Errno;

/// What an application passes in a `fi_info`: hints, or what it opens something with. Fields that
/// its version of the API does not have are 0.
#[derive(Clone, Debug)]
pub(crate) struct Given {
    /// Its numbers; its pointers are not followed any more.
    pub(crate) info: fi_info,
    pub(crate) tx: Option<fi_tx_attr>,
    pub(crate) rx: Option<fi_rx_attr>,
    pub(crate) ep: Option<fi_ep_attr>,
    pub(crate) domain: Option<fi_domain_attr>,
    pub(crate) domain_name: Option<String>,
    pub(crate) fabric_name: Option<String>,
    pub(crate) src_addr: Option<Vec<u8>>,
    pub(crate) dest_addr: Option<Vec<u8>>,
}

// SAFETY: the pointers in the copied structures are numbers here and are never dereferenced.
unsafe impl Send for Given {}
// SAFETY: as above.
unsafe impl Sync for Given {}

impl Given {
    /// Reads `info`, for an application of `api_version`.
    ///
    /// # Safety
    ///
    /// It is null, or a `fi_info` that libfabric has allocated in a version of at least that, with
    /// what it points to.
    pub(crate) unsafe fn read(info: *const fi_info, api_version: u32) -> Option<Self> {
        let whole = size_of::<fi_info>();
        // SAFETY: `fi_info` is as long in all versions.
        let info: fi_info = unsafe { beginning(info, whole) }?;
        // SAFETY: what an info points to is as long as its version has it, and its addresses and
        // names as long as its fields declare.
        unsafe {
            let domain: Option<fi_domain_attr> =
                beginning(info.domain_attr, domain_attr_bytes(api_version));
            let fabric: Option<fi_fabric_attr> =
                beginning(info.fabric_attr, size_of::<fi_fabric_attr>());
            Some(Self {
                tx: beginning(info.tx_attr, size_of::<fi_tx_attr>()),
                rx: beginning(info.rx_attr, size_of::<fi_rx_attr>()),
                ep: beginning(info.ep_attr, ep_attr_bytes(api_version)),
                domain_name: domain.as_ref().and_then(|domain| text(domain.name)),
                fabric_name: fabric.as_ref().and_then(|fabric| text(fabric.name)),
                domain,
                src_addr: bytes(info.src_addr, info.src_addrlen),
                dest_addr: bytes(info.dest_addr, info.dest_addrlen),
                info,
            })
        }
    }

    /// How its addresses are written.
    pub(crate) fn format(&self) -> Result<Format, Errno> {
        // The family of a `FI_SOCKADDR` is in the address itself.
        let is_ipv6 = |bytes: &Vec<u8>| {
            bytes
                .first_chunk()
                .is_some_and(|it| i32::from(u16::from_ne_bytes(*it)) == libc::AF_INET6)
        };
        let either = self.src_addr.as_ref().or(self.dest_addr.as_ref());
        let ip = either.filter(|it| is_ipv6(it)).map(|_| std::net::Ipv6Addr::UNSPECIFIED.into());
        Format::of(self.info.addr_format, ip)
    }

    /// The local address that it names, if it does.
    pub(crate) fn source(&self) -> Result<Option<Location>, Errno> {
        self.src_addr.as_deref().map(|bytes| self.format()?.decode(bytes)).transpose()
    }

    /// The address of a peer that it names, if it does.
    pub(crate) fn destination(&self) -> Result<Option<Location>, Errno> {
        self.dest_addr.as_deref().map(|bytes| self.format()?.decode(bytes)).transpose()
    }

    /// An object that it comes from, or is for: a request for a connection.
    pub(crate) fn handle(&self) -> *mut fid {
        self.info.handle
    }
}

/// Bytes of a `fi_domain_attr` that an application of `api_version` has.
fn domain_attr_bytes(api_version: u32) -> usize {
    match api_version {
        it if it >= version(2, 7) => size_of::<fi_domain_attr>(),
        it if it >= version(2, 5) => offset_of!(fi_domain_attr, max_xpu_ctx_cnt),
        it if it >= version(2, 0) => offset_of!(fi_domain_attr, max_cntr_value),
        it if it >= version(1, 20) => offset_of!(fi_domain_attr, max_group_id),
        _ => offset_of!(fi_domain_attr, max_ep_auth_key),
    }
}

/// The same of a `fi_ep_attr`.
fn ep_attr_bytes(api_version: u32) -> usize {
    match api_version {
        it if it >= version(2, 7) => size_of::<fi_ep_attr>(),
        _ => offset_of!(fi_ep_attr, xpu_ctx),
    }
}

/// Reads the first `length` bytes of a structure; the others are 0.
///
/// # Safety
///
/// `from` is null or has that many bytes, and 0 is a value of each field.
unsafe fn beginning<T: Copy>(from: *const T, length: usize) -> Option<T> {
    if from.is_null() {
        return None;
    }
    let mut copy = MaybeUninit::<T>::zeroed();
    let length = length.min(size_of::<T>());
    // SAFETY: the caller guarantees it; all bytes of the copy have a value.
    unsafe {
        std::ptr::copy_nonoverlapping(from.cast::<u8>(), copy.as_mut_ptr().cast(), length);
        Some(copy.assume_init())
    }
}

/// # Safety
///
/// It is null or ends with a 0.
pub(crate) unsafe fn text(from: *const c_char) -> Option<String> {
    if from.is_null() {
        return None;
    }
    // SAFETY: the caller guarantees it.
    Some(unsafe { CStr::from_ptr(from) }.to_string_lossy().into_owned())
}

/// # Safety
///
/// It is null or has `length` bytes.
unsafe fn bytes(from: *const c_void, length: usize) -> Option<Vec<u8>> {
    if from.is_null() || length == 0 {
        return None;
    }
    // SAFETY: the caller guarantees it.
    Some(unsafe { std::slice::from_raw_parts(from.cast::<u8>(), length) }.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_applications_have_shorter_structures() {
        let sizes =
            [(1, 5, 192), (1, 17, 192), (1, 20, 200), (2, 0, 208), (2, 5, 224), (2, 7, 232)];
        for (major, minor, bytes) in sizes {
            assert_eq!(domain_attr_bytes(version(major, minor)), bytes, "{major}.{minor}");
        }
        assert_eq!([ep_attr_bytes(version(1, 17)), ep_attr_bytes(version(2, 7))], [96, 104]);
    }
}
