//! Entries of event queues.

use std::ffi::c_void;

use crate::abi::consts::{FI_CONNECTED, FI_CONNREQ};
use crate::abi::fids::fid;
use crate::abi::info::fi_info;
use crate::abi::messages::{fi_eq_cm_entry, fi_eq_entry};
use crate::errno::Errno;

pub(super) enum Entry {
    /// As `fi_eq_read` gives it.
    Event {
        event: u32,
        bytes: Vec<u8>,
    },
    Error(ErrorEntry),
}

/// The entry that `fi_eq_readerr` returns.
pub(crate) struct ErrorEntry {
    pub(crate) fid: *mut fid,
    pub(crate) context: *mut c_void,
    pub(crate) data: u64,
    pub(crate) errno: Errno,
    pub(crate) error_data: Vec<u8>,
}

// SAFETY: this side follows no pointer of it.
unsafe impl Send for ErrorEntry {}

/// The bytes of a structure without padding.
pub(super) fn bytes_of(entry: &fi_eq_entry) -> Vec<u8> {
    let fi_eq_entry { fid, context, data } = *entry;
    let words = [fid as usize, context as usize, data as usize];
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// The bytes of a `fi_eq_cm_entry`, without its data.
pub(super) fn bytes_of_connection(fid: *mut fid, info: *mut fi_info) -> Vec<u8> {
    [fid as usize, info as usize].iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// How much room a reader has to have for an event of `length` bytes: private data may be cut.
pub(super) fn least_bytes(event: u32, length: usize) -> usize {
    match event {
        FI_CONNREQ | FI_CONNECTED => length.min(size_of::<fi_eq_cm_entry>()),
        _ => length,
    }
}
