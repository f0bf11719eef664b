//! Infos in C's memory.
//!
//! `fi_freeinfo` gives every piece back by `free`, and a newer libfabric than this file knows reads
//! beyond the structures that are here (`fi_dupinfo`): so each comes from `calloc`, with room
//! behind it.

use std::ffi::{c_char, c_void};

use super::offer::{DOMAIN_NAME, FABRIC_NAME, Offer};
use crate::abi::info::{fi_fabric_attr, fi_info};
use crate::errno::Errno;
use crate::{PROVIDER_NAME, PROVIDER_VERSION};

/// Zeros behind each structure.
const SLACK_BYTES: usize = 512;

/// An info that is under construction: freed unless it is given away.
struct Growing(*mut fi_info);

impl Drop for Growing {
    fn drop(&mut self) {
        // SAFETY: all pieces are null or come from `calloc`, and have no other owner.
        unsafe { free(self.0) }
    }
}

/// Frees a chain, as `fi_freeinfo` does.
///
/// # Safety
///
/// It came from [`write()`], and is not used any more.
pub(super) unsafe fn free(mut info: *mut fi_info) {
    while !info.is_null() {
        // SAFETY: the caller guarantees it.
        unsafe {
            let fi_info {
                next,
                src_addr,
                dest_addr,
                tx_attr,
                rx_attr,
                ep_attr,
                domain_attr,
                fabric_attr,
                ..
            } = *info;
            if !domain_attr.is_null() {
                libc::free((*domain_attr).name.cast());
            }
            if !fabric_attr.is_null() {
                libc::free((*fabric_attr).name.cast());
                libc::free((*fabric_attr).prov_name.cast());
            }
            for piece in [
                src_addr,
                dest_addr,
                tx_attr.cast(),
                rx_attr.cast(),
                ep_attr.cast(),
                domain_attr.cast(),
                fabric_attr.cast(),
                info.cast(),
            ] {
                libc::free(piece);
            }
            info = next;
        }
    }
}

/// Memory of C's with a copy of `value`.
fn piece<T>(value: T) -> Result<*mut T, Errno> {
    // SAFETY: any size is right.
    let memory: *mut T = unsafe { libc::calloc(1, size_of::<T>() + SLACK_BYTES) }.cast();
    if memory.is_null() {
        return Err(Errno::NOMEM);
    }
    // SAFETY: it is as long, and `calloc` aligns for all of C's types.
    unsafe { memory.write(value) };
    Ok(memory)
}

/// The same of bytes, with a 0 behind.
fn bytes(value: &[u8]) -> Result<*mut c_char, Errno> {
    // SAFETY: any size is right.
    let memory: *mut c_char = unsafe { libc::calloc(1, value.len() + 1) }.cast();
    if memory.is_null() {
        return Err(Errno::NOMEM);
    }
    // SAFETY: it is as long, and new.
    unsafe { std::ptr::copy_nonoverlapping(value.as_ptr().cast(), memory, value.len()) };
    Ok(memory)
}

/// Copies an offer into C's memory; `api_version` is what the fabric is opened for. The caller
/// owns it.
pub(super) fn write(offer: &Offer, api_version: u32) -> Result<*mut fi_info, Errno> {
    let null: *mut c_void = std::ptr::null_mut();
    let growing = Growing(piece(fi_info {
        next: null.cast(),
        caps: offer.caps,
        mode: 0,
        addr_format: offer.format.number(),
        src_addrlen: 0,
        dest_addrlen: 0,
        src_addr: null,
        dest_addr: null,
        handle: offer.handle,
        tx_attr: null.cast(),
        rx_attr: null.cast(),
        ep_attr: null.cast(),
        domain_attr: null.cast(),
        fabric_attr: null.cast(),
        // A NIC of a PCI bus would make MPICH count rails and stripe itself.
        nic: null,
    })?);
    // SAFETY: it was made just now.
    let info = unsafe { &mut *growing.0 };
    info.tx_attr = piece(offer.tx)?;
    info.rx_attr = piece(offer.rx)?;
    info.ep_attr = piece(offer.ep)?;
    info.domain_attr = piece(offer.domain)?;
    // SAFETY: it was made just now.
    unsafe { (*info.domain_attr).name = bytes(DOMAIN_NAME.as_bytes())? };
    info.fabric_attr = piece(fi_fabric_attr {
        fabric: null.cast(),
        name: null.cast(),
        // libfabric's, as the version: it fills in what goes through `fi_getinfo`.
        prov_name: null.cast(),
        prov_version: 0,
        api_version,
    })?;
    // SAFETY: it was made just now.
    unsafe { (*info.fabric_attr).name = bytes(FABRIC_NAME.as_bytes())? };
    if let Some(address) = &offer.src_addr {
        info.src_addr = bytes(address)?.cast();
        info.src_addrlen = address.len();
    }
    if let Some(address) = &offer.dest_addr {
        info.dest_addr = bytes(address)?.cast();
        info.dest_addrlen = address.len();
    }
    let done = growing.0;
    std::mem::forget(growing);
    Ok(done)
}

/// The same with the provider's name and version, which libfabric fills in only for `fi_getinfo`.
pub(super) fn write_named(offer: &Offer, api_version: u32) -> Result<*mut fi_info, Errno> {
    let growing = Growing(write(offer, api_version)?);
    let name = bytes(PROVIDER_NAME.to_bytes())?;
    // SAFETY: it was made just now, with a fabric.
    let fabric = unsafe { &mut *(*growing.0).fabric_attr };
    (fabric.prov_name, fabric.prov_version) = (name, PROVIDER_VERSION);
    let done = growing.0;
    std::mem::forget(growing);
    Ok(done)
}
